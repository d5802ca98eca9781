"""Hooks on gradients, ``.grad`` and `Function` at their edges: what PyTorch does there."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn


def leaf(*values: float) -> tc.Tensor:
    return tc.tensor(values or (1.0, 2.0, 3.0), device="cpu", requires_grad=True)


def test_retained_gradient_is_what_hooks_leave() -> None:
    x = leaf()
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda g: g * 5)
    y.register_hook(lambda g: g + 1)
    y.sum().backward()
    assert y.grad is not None and x.grad is not None
    assert y.grad.tolist() == [6.0] * 3
    assert x.grad.tolist() == [12.0] * 3


def test_one_hook_registered_twice_is_called_twice() -> None:
    x = leaf()

    def double(g: tc.Tensor) -> tc.Tensor:
        return g * 2

    handle = x.register_hook(double)
    x.register_hook(double)
    x.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [4.0] * 3
    handle.remove()
    x.grad = None
    x.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0] * 3


@pytest.mark.parametrize("made", [lambda x: x, lambda x: x * 1], ids=["leaf", "result"])
@pytest.mark.parametrize(
    "result", ["text", tc.ones(4, device="cpu"), tc.ones(3, dtype=tc.float64, device="cpu")]
)
def test_hooks_must_return_a_gradient(made: Any, result: Any) -> None:
    x = leaf()
    y = made(x)
    y.register_hook(lambda g: result)
    with pytest.raises(tc.ArgumentError, match="register_hook"):
        y.sum().backward()


def test_a_handle_is_a_context_manager() -> None:
    x = leaf()
    with x.register_hook(lambda g: g * 7):
        x.sum().backward()
    x.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [8.0] * 3
    model = nn.Identity()
    with model.register_forward_hook(lambda m, a, out: out * 0):
        assert model(tc.ones(2, device="cpu")).tolist() == [0.0, 0.0]
    assert model(tc.ones(2, device="cpu")).tolist() == [1.0, 1.0]


def test_what_is_no_gradient_is_not_assigned() -> None:
    x = leaf()
    for wrong in (3, x, tc.ones(3, dtype=tc.float64, device="cpu")):
        with pytest.raises(tc.DTypeError):
            x.grad = wrong  # type: ignore[assignment]
    assert x.grad is None


def test_inputs_of_backward() -> None:
    x = leaf()
    y = x * 2
    z = (y * x.detach()).sum()
    with pytest.raises(tc.ArgumentError, match="inputs is empty"):
        z.backward(inputs=[])
    z.backward(inputs=[y], retain_graph=True)
    assert x.grad is None and y.grad is not None and y.grad.tolist() == [1.0, 2.0, 3.0]
    z.backward(inputs=[y, x])
    assert x.grad is not None and x.grad.tolist() == [2.0, 4.0, 6.0]
    assert y.grad.tolist() == [2.0, 4.0, 6.0]


def test_a_copied_parameter_has_no_gradient() -> None:
    layer = nn.Linear(2, 1, device="cpu")
    layer(tc.ones(1, 2, device="cpu")).sum().backward()
    assert layer.weight.grad is not None
    assert copy.deepcopy(layer).weight.grad is None
    x = leaf()
    x.sum().backward()
    copied = copy.deepcopy(x).grad
    assert copied is not None and copied.tolist() == [1.0] * 3


class Doubled(tc.autograd.Function):
    """Doubles its input in place."""

    @staticmethod
    def forward(ctx: Any, x: tc.Tensor) -> tc.Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: tc.Tensor) -> tc.Tensor:
        return g * 10


def test_mark_dirty_makes_the_input_the_output() -> None:
    x = leaf()
    y = x * 1
    z = Doubled.apply(y)
    assert z is y and y.tolist() == [2.0, 4.0, 6.0]
    (y * x.detach()).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [10.0, 20.0, 30.0]


def test_mark_dirty_of_a_view() -> None:
    x = leaf()
    y = x * 1
    part = y[1:]
    assert Doubled.apply(part) is part
    y.sum().backward()
    assert y.tolist() == [1.0, 4.0, 6.0]
    assert x.grad is not None and x.grad.tolist() == [1.0, 10.0, 10.0]


def test_mark_dirty_is_refused() -> None:
    class Another(Doubled):
        @staticmethod
        def forward(ctx: Any, x: tc.Tensor) -> tc.Tensor:
            ctx.mark_dirty(x)
            return x * 2

    with pytest.raises(tc.ArgumentError, match="dirty"):
        Another.apply(leaf() * 1)
    with pytest.raises(tc.GradientError):
        Doubled.apply(leaf())


def test_results_without_gradient_have_zeros() -> None:
    seen = []

    class Sorted(tc.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: tc.Tensor) -> Any:
            order = x.argsort()
            ctx.mark_non_differentiable(order)
            return x * 2, order, "text"

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            seen.append(grads)
            return grads[0] * 2

    Sorted.apply(leaf())[0].sum().backward()
    ((_, of_order, of_text),) = seen
    assert of_order.dtype is tc.int64 and of_order.tolist() == [0, 0, 0]
    assert of_text is None


def test_save_for_backward_takes_tensors() -> None:
    class Scaled(Doubled):
        @staticmethod
        def forward(ctx: Any, x: tc.Tensor) -> tc.Tensor:
            ctx.save_for_backward(None, 5)
            return x * 5

    with pytest.raises(tc.DTypeError, match="save_for_backward"):
        Scaled.apply(leaf())


def test_anomalies_of_a_backward_nobody_looked_at() -> None:
    x = leaf(0.0, 1.0)
    with pytest.raises(tc.NonFiniteError, match="sqrt"), tc.autograd.detect_anomaly():
        (x.sqrt() * 0).sum().backward()
    with pytest.raises(tc.NonFiniteError, match="log"), tc.autograd.detect_anomaly():
        _kept = x.detach().log()
    assert np.isinf(x.detach().log().numpy()).any()


def test_derivatives_in_forward_mode() -> None:
    x = tc.tensor([1.0, 2.0], device="cpu")
    value, slope, aux = tc.func.jvp(lambda x: (x * x, x + 1), (x,), (x,), has_aux=True)
    assert (value.tolist(), slope.tolist(), aux.tolist()) == ([1, 4], [2, 8], [2, 3])
    functional = tc.autograd.functional
    whole = functional.jacobian(lambda x: x * x, x, vectorize=True, strategy="forward-mode")
    assert whole.tolist() == [[2.0, 0.0], [0.0, 4.0]]
    with pytest.raises(tc.ArgumentError):
        functional.jacobian(lambda x: x, x, strategy="forward-mode")
