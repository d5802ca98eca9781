"""What is recorded from a template is the graph that would have been recorded without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import optim
from tinygrad_cuda.core.errors import describe_site
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.engine.realize import realize_all
from tinygrad_cuda.graph.node import Node, topological
from tinygrad_cuda.graph.ops import elementwise
from tinygrad_cuda.nn import functional as F
from tinygrad_cuda.optim.update_replay import Updates
from tinygrad_cuda.replay.backward_template import BackwardTemplate
from tinygrad_cuda.replay.subgraph_template import Deferred

OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD with all options": lambda p: optim.SGD(
        p, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True, maximize=True
    ),
    "Adam": lambda p: optim.Adam(p, lr=0.1, weight_decay=0.1, amsgrad=True),
    "AdamW": lambda p: optim.AdamW(p, lr=0.1),
    "Adamax": lambda p: optim.Adamax(p, lr=0.1),
    "NAdam": lambda p: optim.NAdam(p, lr=0.1),
    "RAdam": lambda p: optim.RAdam(p, lr=0.1),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.1, momentum=0.9, centered=True),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.1),
    "Adadelta": lambda p: optim.Adadelta(p, lr=0.1),
    "ASGD": lambda p: optim.ASGD(p, lr=0.1),
    "Rprop": lambda p: optim.Rprop(p, lr=0.1),
    "Adafactor": lambda p: optim.Adafactor(p, lr=0.1),
    "Muon": lambda p: optim.Muon(p, lr=0.1),
}


def trained(make: Any, dtype: Any, counts: list[int]) -> list[Any]:
    """Parameters and state after five steps, with a rate of its own in each."""
    generator = np.random.default_rng(0)
    shapes = [(3, 2), (3, 2), (2, 4)]
    parameters = [
        tc.tensor(generator.normal(size=shape), dtype=dtype, device="cpu", requires_grad=True)
        for shape in shapes
    ]
    optimizer = make(parameters)
    for turn in range(5):
        optimizer.param_groups[0]["lr"] = 0.1 / (turn + 1)
        for parameter in parameters:
            values = generator.normal(size=parameter.shape)
            parameter.grad = tc.tensor(values, dtype=dtype, device="cpu")
        optimizer.step()
        counts.append(cache.made)
    state = [v for p in parameters for v in optimizer.state[p].values()]
    return [
        v.detach().double().numpy() if isinstance(v, tc.Tensor) else v
        for v in [*parameters, *state]
    ]


@pytest.mark.parametrize("dtype", [tc.float32, tc.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_from_templates_are_the_same_plans(
    name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps recorded in the ordinary way leave nothing to compile for those from templates."""
    counts: list[int] = []  # of plans made, after each step
    monkeypatch.setattr(Updates, "possible", lambda optimizer: False)
    expected = trained(OPTIMIZERS[name], dtype, counts)
    monkeypatch.undo()
    used = []
    take = Updates.take

    def watched(self: Updates, *arguments: Any) -> Any:
        used.append(take(self, *arguments))
        return used[-1]

    monkeypatch.setattr(Updates, "take", watched)
    actual = trained(OPTIMIZERS[name], dtype, counts)
    assert all(used)
    # The second plan is of what a template has recorded, which a trace takes as one.
    assert counts[-1] == counts[5]
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_update_of_the_users_is_called_for_each_parameter() -> None:
    """A template is for our own updates: another one may count or read what it likes."""
    calls = []

    class Counting(optim.SGD):
        def apply_single(self, gradient: Any, *rest: Any) -> Any:
            calls.append(tuple(gradient.shape))
            return super().apply_single(gradient, *rest)

    parameters = [tc.ones(size, device="cpu").requires_grad_() for size in (2, 3)]
    optimizer = Counting(parameters, lr=0.5)
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = tc.ones(parameter.shape, device="cpu")
        optimizer.step()
    assert calls == [(2,), (3,)] * 2
    assert parameters[1].tolist() == [0.0] * 3


# Functions and backward passes --------------------------------------------------------------------


def described(root: Node) -> list[Any]:
    """A graph in full: ops, attributes, types, history, lines, and how its nodes are joined."""
    order = topological([root])
    places = {node: place for place, node in enumerate(order)}
    return [
        (
            node.op, {k: v for k, v in node.attributes.items() if k not in ("leaf", "code")},
            node.outputs, node.requires_grad, describe_site(node.site),
            [places[source] for source in node.sources],
        )
        for node in order
    ]  # fmt: skip


def operands(*shapes: tuple[int, ...]) -> list[tc.Tensor]:
    generator = np.random.default_rng(1)
    return [tc.tensor(generator.normal(size=s), device="cpu", requires_grad=True) for s in shapes]


def perceptron(lib: Any, x: tc.Tensor, w: tc.Tensor, b: tc.Tensor) -> tc.Tensor:
    y = lib.layer_norm(lib.gelu(lib.linear(x, w, b)), (4,))
    y = lib.max_pool2d(lib.relu(y).reshape(1, 1, 3, 4), 2, stride=1)
    loss: tc.Tensor = lib.cross_entropy(y.reshape(2, 3).exp(), tc.tensor([2, 0], device="cpu"))
    return loss


class Undecorated:
    """The functions themselves."""

    def __getattr__(self, name: str) -> Any:
        return getattr(F, name).__wrapped__


@pytest.mark.smoke("replay")
def test_functions_and_gradients_from_templates_are_the_same_graphs() -> None:
    """Node by node, with history and lines, as the functions and the rules record them."""
    x, w, b = operands((3, 5), (4, 5), (4,))

    def graphs(lib: Any) -> Any:
        loss = perceptron(lib, x, w, b)
        loss.backward(retain_graph=True)
        assert w.grad is not None and x.grad is not None
        found = described(loss.node), described(w.grad.node), described(x.grad.node)
        x.grad = w.grad = b.grad = None
        realize_all()  # so that no turn begins with what the one before has left
        return found

    watched = operands((1,))[0].exp()
    watched.register_hook(lambda g: None)
    expected = graphs(Undecorated())  # while a hook waits, passes are recorded by the rules
    assert graphs(F) == expected
    del watched
    assert [graphs(F) for _ in range(3)] == [expected] * 3


@pytest.mark.fast_paths
@pytest.mark.parametrize("join", [tc.cat, tc.stack])
def test_what_joins_many_tensors_is_one_call(join: Any) -> None:
    """A pad, a mask and a choice for each Tensor are not recorded one by one at each call."""
    parts = operands(*[(2, 3)] * 5)

    def recorded(function: Any) -> tc.Tensor:
        result: tc.Tensor = function(parts, 1)
        return result

    expected = described(recorded(join.__wrapped__).node)
    recorded(join)
    again = recorded(join)
    assert type(again.node.piece) is Deferred
    assert described(again.node) == expected


def test_a_rule_that_changes_is_called() -> None:
    """Templates of backward passes belong to the rules that made them."""
    (x,) = operands((3,))

    def gradient() -> Any:
        (g,) = tc.autograd.grad((x * x).exp().sum(), x)
        assert g is not None
        return g.numpy()

    expected = [gradient() for _ in range(3)][2]
    original = elementwise.exp.gradient
    assert isinstance(original, tuple)
    rule = original[0]
    assert rule is not None
    elementwise.exp.gradient = (lambda *operands: elementwise.neg(rule(*operands)),)
    try:
        np.testing.assert_array_equal(gradient(), -expected)
    finally:
        elementwise.exp.gradient = original
    np.testing.assert_array_equal(gradient(), expected)


def test_a_template_is_for_what_a_call_asks_for() -> None:
    """Other options, dtypes, history and inputs of the same shapes are other calls."""
    x, y = operands((2, 3), (2, 3))
    for _ in range(3):
        assert F.mse_loss(x, y).requires_grad
        assert not F.mse_loss(x.detach(), y.detach()).requires_grad
        with tc.no_grad():
            assert not F.mse_loss(x, y).requires_grad
        assert F.mse_loss(x, y, reduction="none").shape == (2, 3)
        assert F.mse_loss(x.double(), y.double()).dtype is tc.float64
        assert F.leaky_relu(x, 0.0).isfinite().all()
        # A Tensor that is both operands.
        assert F.mse_loss(x, x).item() == 0.0
        (g,) = tc.autograd.grad(F.mse_loss(x, x), x)
        assert g is not None
        assert g.abs().max().item() == 0.0
        inplace = x.detach().clone()
        assert F.relu(inplace, inplace=True) is inplace
        assert inplace.min().item() == 0.0
        # The strides are those of the operand.
        assert F.relu(x.T).stride() == (1, 3)


def test_errors_name_the_line_of_the_call_at_hand() -> None:
    """Also where an earlier call with another line recorded the template."""
    logits, labels = tc.zeros(2, 3, device="cpu"), tc.tensor([0, 1], device="cpu")
    F.cross_entropy(logits, labels).item()
    lines = []
    for wrong in ([0, 3], [5, 0]):
        with pytest.raises(tc.TgcError, match="out of range") as caught:
            F.cross_entropy(logits, tc.tensor(wrong, device="cpu")).item()
        lines.append(str(caught.value))
    assert "target[1]" in lines[0] and "target[0]" in lines[1]
    assert all("F.cross_entropy(logits, tc.tensor(wrong" in line for line in lines)
    for _ in range(2):
        with pytest.raises(tc.TgcError, match="does not fit the input"):
            F.cross_entropy(logits, tc.tensor([0, 1, 2], device="cpu"))


def test_a_gradient_is_spent_and_kept_as_by_the_rules() -> None:
    (x,) = operands((3,))
    for _ in range(4):
        y = x.exp().sum()
        y.backward(retain_graph=True)
        y.backward()
        with pytest.raises(tc.TgcError, match="already used"):
            y.backward()


def test_a_backward_template_looks_at_each_call_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over many calls is made a template in time that grows with their number."""
    looks = 0
    make = BackwardTemplate.__init__

    def counting(reference: Any) -> Any:
        def end() -> Any:
            nonlocal looks
            looks += 1
            return reference()

        return end

    def counted(self: BackwardTemplate, *rest: Any) -> None:
        for call in rest[-1].calls:
            call.ends = tuple(counting(end) for end in call.ends)
        make(self, *rest)

    monkeypatch.setattr(BackwardTemplate, "__init__", counted)
    x = tc.ones(3, device="cpu", requires_grad=True)
    y = x
    for _ in range(30):
        y = F.gelu(y)
    y.sum().backward()
    assert 30 <= looks <= 60
    np.testing.assert_allclose(x.grad.numpy(), x.grad.numpy()[0])
