"""What a first program gets wrong: it is told so, before anything has changed."""

from __future__ import annotations

import copy
import inspect
import operator
import pickle
import types
import warnings
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.nn import functional as F

LAYERS = {
    "Linear": lambda: nn.Linear(3, 2, device="cpu"),
    "Conv2d": lambda: nn.Conv2d(1, 1, 3, device="cpu"),
    "BatchNorm1d": lambda: nn.BatchNorm1d(3, device="cpu"),
    "LayerNorm": lambda: nn.LayerNorm(3, device="cpu"),
    "GroupNorm": lambda: nn.GroupNorm(1, 3, device="cpu"),
    "Embedding": lambda: nn.Embedding(3, 2, device="cpu"),
    "LSTM": lambda: nn.LSTM(3, 2, device="cpu"),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(4, 2, device="cpu"),
    "ReLU": nn.ReLU, "GELU": nn.GELU, "Dropout": nn.Dropout, "Flatten": nn.Flatten,
    "MaxPool2d": lambda: nn.MaxPool2d(2), "Softmax": lambda: nn.Softmax(1),
    "Upsample": lambda: nn.Upsample(4), "MSELoss": nn.MSELoss,
}  # fmt: skip


@pytest.mark.parametrize("value", [np.ones((2, 3), np.float32), None, [1.0]], ids=repr)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_take_tensors(name: str, value: Any) -> None:
    with pytest.raises(tc.DTypeError, match=rf"\[{name}\] (input|src) is no Tensor"):
        LAYERS[name]()(value)


@pytest.mark.parametrize("value", [np.ones((2, 3), np.float32), None], ids=repr)
def test_functions_take_tensors(value: Any) -> None:
    """Losses, products, convolutions and norms, by position and by name."""
    x, w = tc.ones(2, 3, device="cpu"), tc.ones(4, 3, device="cpu")
    for call in (
        lambda: F.cross_entropy(x, value), lambda: F.cross_entropy(value, x),
        lambda: F.mse_loss(x, target=value), lambda: F.linear(value, w),
        lambda: F.layer_norm(value, (3,)), lambda: F.conv2d(value, w),
        lambda: F.binary_cross_entropy_with_logits(x, value),
    ):  # fmt: skip
        with pytest.raises(tc.DTypeError, match=r"(input|target) is no Tensor"):
            call()
    assert F.cross_entropy(x, target=x, weight=None).shape == ()


def _wanting(function: Any, skip: int = 0) -> list[Any] | None:
    """None for each Tensor that a function needs, 1 for other arguments; None if it needs none."""
    wanted = [
        parameter.annotation == "Tensor"
        for parameter in list(inspect.signature(function).parameters.values())[skip:]
        if parameter.default is parameter.empty
        and parameter.kind <= parameter.POSITIONAL_OR_KEYWORD
    ]
    return [None if tensor else 1 for tensor in wanted] if any(wanted) else None


SPACES = ["", "fft", "nn.functional", "linalg", "special"]


@pytest.mark.parametrize("space", SPACES)
def test_every_function_names_the_argument_that_is_none(space: str) -> None:
    module = operator.attrgetter(space)(tc) if space else tc
    functions = {name: getattr(module, name) for name in module.__all__}
    asked = 0
    for name, function in functions.items():
        arguments = _wanting(function) if inspect.isfunction(function) else None
        # These raise for their other arguments.
        others = ("clamp", "clip", "scatter", "scatter_reduce")
        if arguments is None or name in others:
            continue
        asked += 1
        with pytest.raises(tc.TgcError, match="None"):
            function(*arguments)
    assert asked > 15


@pytest.mark.parametrize("space", [*SPACES, "cuda"])
def test_every_function_and_class_can_be_pickled(space: str) -> None:
    module = operator.attrgetter(space)(tc) if space else tc
    public = {name: getattr(module, name) for name in module.__all__}
    kinds = (types.FunctionType, type)
    named = {name: value for name, value in public.items() if isinstance(value, kinds)}
    assert len(named) > 15
    for name, value in named.items():
        assert pickle.loads(pickle.dumps(value)) is value, name


def test_every_method_names_the_argument_that_is_none() -> None:
    x, asked = tc.ones(2, 3, device="cpu"), 0
    for name in dir(tc.Tensor):
        method = inspect.getattr_static(tc.Tensor, name)
        arguments = _wanting(method, 1) if inspect.isfunction(method) else None
        if arguments is None or name.startswith("_") or name in ("show", "select_at"):
            continue
        asked += 1
        with pytest.raises(tc.TgcError):
            method(x, *arguments)
    assert asked > 50


@pytest.mark.parametrize(
    "function", [tc.exp, tc.relu, tc.abs, tc.sigmoid], ids=lambda f: f.__name__
)
def test_a_number_is_no_only_operand(function: Any) -> None:
    with pytest.raises(tc.DTypeError, match="input is no Tensor"):
        function(2.0)


def test_failures_with_the_right_arguments_are_their_own() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        tc.unsqueeze(tc.ones(2))
    with pytest.raises(tc.DTypeError) as caught:
        tc.cumsum(np.ones(2), 0)
    assert "input is no Tensor" in str(caught.value) and "as_tensor" in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_a_forward_of_the_users_own_takes_what_it_likes() -> None:
    class Read(nn.Linear):
        def forward(self, rows: Any) -> Any:
            return super().forward(tc.tensor(rows, device="cpu"))

    array = np.ones((2, 3), np.float32)
    assert Read(3, 2, device="cpu")(array).shape == (2, 2)
    replaced, hooked = nn.Linear(3, 2, device="cpu"), nn.Linear(3, 2, device="cpu")
    replaced.forward = lambda rows: len(rows)
    assert replaced(array) == 2
    hooked.register_forward_pre_hook(lambda module, given: tc.tensor(given[0], device="cpu"))
    assert hooked(array).shape == (2, 2)
    assert nn.Identity()(None) is None
    assert nn.Sequential(nn.Identity())(array) is array


def test_batch_norm_counts_no_batch_that_it_refuses() -> None:
    norm = nn.BatchNorm2d(3, device="cpu")
    with pytest.raises(tc.ShapeError):
        norm(tc.zeros(2, 4, 5, 5, device="cpu"))
    assert norm.num_batches_tracked.item() == 0
    assert norm.running_mean.tolist() == [0.0] * 3


@pytest.mark.parametrize("made", [nn.MSELoss, nn.L1Loss, nn.BCELoss, nn.BCEWithLogitsLoss])
def test_losses_are_made_before_they_are_called(made: Any) -> None:
    x = tc.zeros(2, 3, device="cpu")
    with pytest.raises(tc.DTypeError, match="a loss is made before it is called"):
        made(x, x)
    with pytest.raises(tc.DTypeError, match="reduction"):
        made(reduction=x)


def test_losses_with_tensors_as_options_are_made_and_copied() -> None:
    weight = tc.ones(3, device="cpu")
    loss = nn.BCEWithLogitsLoss(weight, pos_weight=weight)
    assert copy.deepcopy(loss).weight.tolist() == [1.0] * 3


def test_gradient_of_a_result_warns_as_in_pytorch() -> None:
    """Only where `backward` stores none: not for leaves, retained or plain Tensors."""
    x = tc.ones(2, device="cpu", requires_grad=True)
    y, kept = x * 2, x * 3
    kept.retain_grad()
    (y + kept).sum().backward()
    with pytest.warns(UserWarning, match="not a leaf Tensor is being accessed") as caught:
        assert y.grad is None
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kept.grad.tolist() == [1.0, 1.0]
        assert x.grad.tolist() == [5.0, 5.0]
        assert y.detach().grad is None


@pytest.mark.parametrize(
    "make",
    [
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9), lambda p: optim.Adam(p, amsgrad=True),
        lambda p: optim.RMSprop(p, momentum=0.9), lambda p: optim.Adafactor(p),
    ],
)  # fmt: skip
def test_optimizer_refuses_a_state_of_other_shapes_and_stays_as_it_was(make: Any) -> None:
    def trained(rows: int) -> tuple[Any, Any]:
        x = tc.ones(rows, 3, device="cpu", requires_grad=True)
        optimizer = make([x])
        (x * x).sum().backward()
        optimizer.step()
        return optimizer, x

    other, _ = trained(5)
    other.param_groups[0]["lr"] = 7.0
    optimizer, x = trained(4)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(tc.ShapeError, match="of parameter 0 does not fit"):
        optimizer.load_state_dict(other.state_dict())
    assert optimizer.param_groups[0]["lr"] != 7.0
    for name, value in before["state"][0].items():
        now = optimizer.state[x][name]
        assert (now.tolist() if isinstance(now, tc.Tensor) else now) == (
            value.tolist() if isinstance(value, tc.Tensor) else value
        )
    optimizer.load_state_dict(trained(4)[0].state_dict())
