"""Training loops that do more than one loss, one backward pass and one step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.nn import functional as F

Pair = tuple[np.ndarray, np.ndarray]


@pytest.fixture(autouse=True)
def on_cpu() -> Any:
    tc.set_default_device("cpu")
    yield
    tc.set_default_device(None)


def data() -> Pair:
    generator = np.random.default_rng(3)
    return generator.normal(size=(3, 4)), generator.normal(size=(2, 4))


# Several backward passes through one history ------------------------------------------------------


def expected_of(x: np.ndarray, w: np.ndarray) -> Pair:
    """Gradients with respect to w of the mean of ``h = x w.T`` and of that of its squares."""
    h = x @ w.T
    return np.full_like(h, 1 / h.size).T @ x, (2 * h / h.size).T @ x


def both_backward(a: tc.Tensor, b: tc.Tensor, w: tc.Tensor) -> Any:
    a.backward(retain_graph=True)
    b.backward()
    return w.grad


def grad_then_backward(a: tc.Tensor, b: tc.Tensor, w: tc.Tensor) -> Any:
    (first,) = tc.autograd.grad(a, [w], retain_graph=True)
    b.backward()
    assert first is not None and w.grad is not None
    return first + w.grad


def three_passes(a: tc.Tensor, b: tc.Tensor, w: tc.Tensor) -> Any:
    a.backward(retain_graph=True)
    b.backward(retain_graph=True)
    (a - b).backward()
    return (w.grad + 2 * tc.autograd.grad((F.linear(XS[0], w) ** 2).mean(), [w])[0]) / 2


XS: list[tc.Tensor] = []


@pytest.mark.parametrize("look_between", [False, True], ids=["", "a look between"])
@pytest.mark.parametrize("look", [False, True], ids=["no look", "a look a turn"])
@pytest.mark.parametrize("passes", [both_backward, grad_then_backward, three_passes])
def test_several_passes_through_one_history(
    passes: Callable[..., Any], look: bool, look_between: bool
) -> None:
    """Each turn gives the gradient of the sum of both losses."""
    xs, ws = data()
    x, w = tc.tensor(xs), tc.tensor(ws, requires_grad=True)
    XS[:] = [x]
    first, second = expected_of(xs, ws)
    found = []
    for _ in range(5):
        w.grad = None
        h = F.linear(x, w)
        a, b = h.mean(), (h * h).mean()
        if look_between:
            a.item()
        found.append(passes(a, b, w))
        if look:
            found[-1].numpy()
    for gradient in found:
        np.testing.assert_allclose(gradient.numpy(), first + second, rtol=1e-12)


def test_two_losses_train() -> None:
    """The optimizer's step is the look of each turn."""
    xs, ws = data()
    x, w = tc.tensor(xs), tc.tensor(ws, requires_grad=True)
    optimizer = optim.SGD([w], lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        h = F.linear(x, w)
        both_backward(h.mean(), (h * h).mean(), w)
        optimizer.step()
        ws = ws - 0.1 * sum(expected_of(xs, ws))
    np.testing.assert_allclose(w.detach().numpy(), ws, rtol=1e-12)


# Freezing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("by", ["optimizer", "module"])
def test_zero_grad_clears_a_frozen_parameter(by: str, set_to_none: bool) -> None:
    """It is not updated with the gradient that it had when it was frozen."""
    model = nn.Linear(3, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    x = tc.ones(4, 3)
    for turn in range(4):
        if turn == 2:
            model.weight.requires_grad_(False)
            frozen = model.weight.numpy().copy()
        (optimizer if by == "optimizer" else model).zero_grad(set_to_none=set_to_none)
        model(x).square().mean().backward()
        optimizer.step()
    np.testing.assert_array_equal(model.weight.numpy(), frozen)
    if set_to_none:
        assert model.weight.grad is None
    else:
        assert model.weight.grad is not None
        assert not model.weight.grad.any()
    model.weight.requires_grad_(True)
    model.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    assert (model.weight.detach().numpy() != frozen).any()


def test_a_frozen_parameter_takes_its_gradient_along() -> None:
    """What converts a Module does so with every gradient there is; a copy has none, as in torch."""
    model = nn.Linear(3, 2)
    model(tc.ones(4, 3)).sum().backward()
    model.weight.requires_grad_(False)
    assert copy.deepcopy(model).weight.grad is None
    assert copy.deepcopy(model.weight).grad is None
    leaf = tc.ones(3, requires_grad=True)
    leaf.sum().backward()
    assert copy.deepcopy(leaf.requires_grad_(False)).grad is not None
    model.double()
    assert model.weight.grad is not None
    assert model.weight.grad.dtype is tc.float64


# Writes between forward and gradient --------------------------------------------------------------


def test_a_leaf_that_was_written_still_gets_its_gradient_from_grad() -> None:
    """Its history refers to the value before; `grad` and `inputs` mean the leaf, not a value."""
    w, b = (tc.tensor([2.0, 3.0], requires_grad=True) for _ in range(2))
    first = (w * w + b).sum()
    with tc.no_grad():
        w.mul_(10)
    second = (w * 3).sum()
    (g,) = tc.autograd.grad(first, [w], retain_graph=True)
    assert g is not None
    assert g.tolist() == [4, 6]
    (both,) = tc.autograd.grad(first + second, [w], retain_graph=True)
    assert both is not None
    assert both.tolist() == [7, 9]
    (first + second).backward(inputs=[w])
    assert w.grad is not None
    assert w.grad.tolist() == [7, 9]
    assert b.grad is None


def test_grad_reaches_a_leaf_through_all_values_that_were_written() -> None:
    """However many there are; what no history refers to any more takes no room."""
    w = tc.ones(2, requires_grad=True)
    total = tc.zeros(())
    for turn in range(20):
        total = total + (w * turn).sum()
        with tc.no_grad():
            w += 1
    (gradient,) = tc.autograd.grad(total, w)
    assert gradient.tolist() == [190.0, 190.0]
    del total
    for _ in range(100):
        kept = (w * 2).sum()
        with tc.no_grad():
            w += 1
        kept.backward()
    leaf = w.leaf
    assert leaf is not None and len(leaf._earlier) < 20


# Compiled steps -----------------------------------------------------------------------------------


def test_compiled_values_that_share_a_storage_are_two_values() -> None:
    """A clone shares its storage until it is written: later calls find two values there."""

    def averages(compiled: bool) -> list[Any]:
        w = tc.tensor([1.1, 2.3])
        mean, other = w.clone(), w.clone()

        def step(x: tc.Tensor, y: tc.Tensor) -> tc.Tensor:
            mean.mul_(0.5).add_(w, alpha=0.25)
            return x * 2 - y + other

        call = tc.compile(step) if compiled else step
        found: list[Any] = []
        for turn in range(4):
            x = tc.ones(2) * turn
            y = x.clone() if turn < 2 else x + 1
            x.tolist()
            found += [call(x, y).tolist(), mean.tolist(), w.tolist()]
            if turn == 2:
                other.add_(1)
        return found

    assert averages(compiled=True) == averages(compiled=False)


def test_an_optimizer_that_grows_between_calls_is_compiled_anew() -> None:
    """What is changed outside is not what the call leaves behind."""
    model = nn.Linear(2, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    @tc.compile
    def step(x: tc.Tensor) -> tc.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    for _ in range(6):
        assert step(tc.ones(3, 2)).isfinite()
        optimizer.add_param_group({"params": [tc.zeros(2).requires_grad_()]})
        optimizer.param_groups[-1]["params"][0].grad = tc.ones(2)
