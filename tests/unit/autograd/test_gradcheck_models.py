"""gradcheck of whole models: parameters are checked, and a wrong rule is blamed with its line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.autograd import gradcheck
from tinygrad_cuda.core.errors import Site
from tinygrad_cuda.graph.gradient import history
from tinygrad_cuda.graph.ops import TABLE, common, elementwise
from tinygrad_cuda.replay.switches import switches

F = nn.functional


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Any) -> Any:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + x)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.fc = nn.Conv2d(1, 4, 3, padding=1), Block(4), nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(self.stem(x), 2)
        return self.fc(self.block(x).mean((2, 3)))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm1, self.norm2 = nn.Embedding(7, 8), *map(nn.LayerNorm, (8, 8))
        self.project, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 7)

    def forward(self, text: Any) -> Any:
        x = self.embedding(text)
        batch, length = text.shape
        apart = self.project(self.norm1(x)).reshape(batch, length, 3, 2, 4)
        query, key, value = apart.permute(2, 0, 3, 1, 4).unbind()
        scores = query @ key.transpose(-1, -2) / 2
        mask = tc.ones(length, length, dtype=tc.bool, device="cpu").triu(1)
        weights = scores.masked_fill(mask, -float("inf")).softmax(-1)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(x.shape))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return F.cross_entropy(self.head(x).flatten(0, 1), text.flatten())


def resnet() -> tuple[nn.Module, Any]:
    tc.manual_seed(0)
    return ResNet().to("cpu"), tc.randn(2, 1, 8, 8, device="cpu")


def transformer() -> tuple[nn.Module, Any]:
    tc.manual_seed(0)
    return Transformer().to("cpu"), tc.randint(0, 7, (2, 5), device="cpu")


def test_models_pass_and_stay_as_they_were() -> None:
    """Parameters, running means, dtypes and gradients are untouched, in training mode too."""
    for model, batch in (resnet(), transformer()):
        before = {name: value.numpy().copy() for name, value in model.state_dict().items()}
        assert gradcheck(model, batch)
        assert gradcheck(model, (batch,), fast_mode=True)
        for name, value in model.state_dict().items():
            np.testing.assert_array_equal(value.numpy(), before[name])
            assert value.dtype is (tc.int64 if "tracked" in name else tc.float32)
        assert all(p.grad is None for p in model.parameters())


# Planted rules ------------------------------------------------------------------------------------


def flipped(right: Any) -> Any:
    return lambda g, out, *xs, **options: elementwise.neg(right(g, out, *xs, **options))


def scaled(right: Any) -> Any:
    def rule(g: Any, out: Any, *xs: Any, **options: Any) -> Any:
        part = right(g, out, *xs, **options)
        return elementwise.mul(part, common.full_like(part, 1.01))

    return rule


def dropped(right: Any) -> Any:
    return lambda g, out, *xs, **options: None


def without_variance(right: Any) -> Any:
    """The gradient of the mean alone: the term of the second result is missing."""
    return lambda g, out, x, **options: right((g[0], None, *g[2:]), out, x, **options)


def without_bell(right: Any) -> Any:
    return lambda g, out, x: elementwise.mul(g, common.full_like(x, 2 / np.sqrt(np.pi)))


def without_denominator(right: Any) -> Any:
    return lambda g, out, a, b: elementwise.neg(elementwise.mul(g, out))


ZERO, FLIPPED, MORE = "it gives zero", "its sign is flipped", "it gives 1.01 times the derivative"
OTHER = "it is not the derivative, nor a multiple of it"
# Model, op, operand, the wrong rule, what is said of it, and a line with the op.
PLANTED: list[tuple[Any, str, int, Any, str, str]] = [
    (resnet, "convolution", 1, flipped, FLIPPED, "y = F.relu(self.bn1(self.conv1(x)))"),
    (resnet, "welford", 0, without_variance, OTHER, "self.bn2(self.conv2(y)) + x"),
    (resnet, "rsqrt", 0, scaled, MORE, "y = F.relu(self.bn1(self.conv1(x)))"),
    (resnet, "where", 2, scaled, MORE, "return F.relu("),
    (resnet, "sum", 0, flipped, FLIPPED, ".mean((2, 3))"),
    (resnet, "add", 1, dropped, ZERO, "self.bn2(self.conv2(y)) + x"),
    (transformer, "gather", 0, flipped, FLIPPED, "x = self.embedding(text)"),
    (transformer, "erf", 0, without_bell, OTHER, "F.gelu("),
    (transformer, "div", 1, without_denominator, OTHER, ".softmax(-1)"),
    (transformer, "exp", 0, scaled, MORE, ".softmax(-1)"),
    (transformer, "matmul", 1, scaled, MORE, "query @ key"),
    (transformer, "permute", 0, flipped, FLIPPED, ".permute(2, 0, 3, 1, 4)"),
    (transformer, "slice", 0, dropped, ZERO, ".unbind()"),
    (transformer, "log", 0, flipped, FLIPPED, "return F.cross_entropy("),
]


def lines_of(model: nn.Module, batch: Any, op: str, operand: int) -> set[str]:
    """The lines on which a model records an op whose operand a gradient reaches."""
    nodes = history([model(batch).node])
    return {
        str(Site(*node.site)) for node in nodes
        if node.op.name == op and node.sources[operand].requires_grad and node.site is not None
    }  # fmt: skip


@pytest.mark.parametrize(("make", "op", "operand", "plant", "said", "line"), PLANTED)
def test_a_wrong_rule_is_blamed(
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[], tuple[nn.Module, Any]], op: str, operand: int, plant: Any, said: str,
    line: str,
) -> None:  # fmt: skip
    """Only that op, operand and every line that records it are named, the nearest first."""
    model, batch = make()
    expected = lines_of(model, batch, op, operand)
    right = TABLE[op].gradient
    rules = list(right) if isinstance(right, tuple) else [right]
    rules[operand] = plant(rules[operand])
    wrong = tuple(rules) if isinstance(right, tuple) else rules[0]
    monkeypatch.setattr(TABLE[op], "gradient", wrong)
    with switches.without("backward_templates"), pytest.raises(tc.GradientError) as caught:
        gradcheck(model, batch)
    text = str(caught.value)
    blamed = re.findall(r"the rule of (\w+) for operand (\d+) is wrong: (.*)", text)
    assert set(blamed) == {(op, str(operand), said)}
    named = {found.strip() for found in re.findall(r"recorded at (.*)", text)}
    assert named == expected
    assert any(line in found for found in named)
    assert caught.value.site is not None
    assert str(caught.value.site) in named
    assert "by central differences" in text


# Functions ----------------------------------------------------------------------------------------


def leaf(*shape: int) -> Any:
    values = np.random.default_rng(len(shape)).uniform(0.5, 1.5, shape)
    return tc.tensor(values, device="cpu", requires_grad=True)


class Wrong(tc.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * g * x


def test_parameters_of_closures_are_checked() -> None:
    """Leaves, Modules and lists of leaves that a function refers to; none need be an input."""
    x, weight, layers = leaf(4, 3).detach(), leaf(3, 2), [leaf(2), leaf(2)]
    model = nn.Linear(2, 2).to("cpu").double()

    def right(x: Any) -> Any:
        return model((x @ weight) * layers[0] + layers[1]).tanh()

    before = [weight.numpy(force=True).copy(), model.weight.numpy(force=True).copy()]
    assert gradcheck(right, (x,))
    assert gradcheck(right, (x,), full=True)
    np.testing.assert_array_equal(weight.numpy(force=True), before[0])
    np.testing.assert_array_equal(model.weight.numpy(force=True), before[1])
    for wrong in (
        lambda x: right(x) * weight.detach().sum(),
        lambda x: right(x) @ Wrong.apply(model.weight),
    ):
        assert not gradcheck(wrong, (x,), raise_exception=False)


def test_a_wrong_function_is_blamed() -> None:
    """A Function's forward is computed again from its inputs, so its backward can be compared."""
    model = nn.Linear(3, 2).to("cpu")
    with pytest.raises(tc.GradientError) as caught:
        gradcheck(nn.Sequential(model, Applied()), leaf(4, 3).detach())
    text = str(caught.value)
    assert "the rule of Wrong for operand 0 is wrong: it gives 1.5 times the derivative" in text
    assert "return Wrong.apply(x)" in text


class Applied(nn.Module):
    def forward(self, x: Any) -> Any:
        return Wrong.apply(x)


def test_what_no_rule_explains_is_said() -> None:
    """A detached value: all rules are right, and the text says so."""
    weight = leaf(3)
    with pytest.raises(tc.GradientError) as caught:
        gradcheck(lambda x: x * weight * weight.detach(), (leaf(3),))
    text = str(caught.value)
    assert re.search(r"each of \d+ rules agrees with differences of its op alone", text)
    assert "a value is detached" in text


def test_one_wrong_element_among_many_parameters_is_seen_when_asked_for() -> None:
    """`full` names the parameter and its element."""
    model = nn.Linear(2, 2).to("cpu").double()
    with pytest.raises(tc.GradientError) as caught:
        gradcheck(lambda x: Wrong.apply(model(x)), (leaf(1, 2).detach(),), full=True)
    assert "for parameter model.weight" in str(caught.value) or "model.bias" in str(caught.value)


def test_a_model_of_float32_is_checked_in_float64_unless_tolerances_are_given() -> None:
    model, batch = nn.Linear(3, 2).to("cpu"), tc.randn(4, 3, device="cpu")
    assert gradcheck(model, batch)
    assert gradcheck(model, batch, eps=1e-2, atol=1e-2, rtol=1e-2)
    with pytest.raises(tc.DTypeError, match=r"parameter model\.weight is too coarse"):
        gradcheck(lambda x: model(x), (batch,))


def test_kinks_are_no_alarm() -> None:
    """Hundreds of units of ReLU and pooling: a step that crosses a kink is not the only one."""
    tc.manual_seed(1)
    layers = [nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)]
    assert gradcheck(nn.Sequential(*layers).to("cpu"), tc.randn(8, 16, device="cpu"))
