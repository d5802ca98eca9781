"""NaN goes through every op as in torch: it is neither hidden in a value nor in a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")

Call = Callable[..., Any]  # (torch or tc, its nn.functional, Tensors) -> a Tensor
NAN, INF = float("nan"), float("inf")
VALUES = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.25, -0.25, 3.0, -3.0, 6.0, 30.0, -30.0]
ONE: dict[str, Call] = {
    "relu": lambda m, F, x: m.relu(x),
    "relu6": lambda m, F, x: F.relu6(x),
    "hardtanh": lambda m, F, x: F.hardtanh(x),
    "hardsigmoid": lambda m, F, x: F.hardsigmoid(x),
    "hardshrink": lambda m, F, x: F.hardshrink(x),
    "softshrink": lambda m, F, x: F.softshrink(x),
    "threshold": lambda m, F, x: F.threshold(x, 0.5, 7.0),
    "threshold_nan": lambda m, F, x: F.threshold(x, NAN, 7.0),
    "rrelu": lambda m, F, x: F.rrelu(x),
    "clamp_min": lambda m, F, x: m.clamp(x, min=0.5),
    "clamp_both": lambda m, F, x: m.clamp(x, -1.0, 1.0),
    "max": lambda m, F, x: m.max(x),
    "min": lambda m, F, x: m.min(x),
    "max_dim": lambda m, F, x: m.max(x.reshape(2, 7), 1)[0],
    "sort": lambda m, F, x: m.sort(x, stable=True)[0],
    "topk": lambda m, F, x: m.topk(x, 3)[0],
    "max_pool": lambda m, F, x: F.max_pool1d(x.reshape(1, 1, 14), 2),
    "logcumsumexp": lambda m, F, x: m.logcumsumexp(x, 0),
    "sign": lambda m, F, x: m.sign(x),
    "angle": lambda m, F, x: m.angle(x),
    "atanh": lambda m, F, x: m.atanh(x),
    "logit": lambda m, F, x: m.logit(x),
    "sinc": lambda m, F, x: m.sinc(x * 1e-30),
}
TWO: dict[str, Call] = {
    "maximum": lambda m, F, x, y: m.maximum(x, y),
    "minimum": lambda m, F, x, y: m.minimum(x, y),
    "fmax": lambda m, F, x, y: m.fmax(x, y),
    "clamp_tensor": lambda m, F, x, y: m.clamp(x, min=y),
    "atan2": lambda m, F, x, y: m.atan2(x, y),
    "logaddexp": lambda m, F, x, y: m.logaddexp(x, y),
    "logaddexp2": lambda m, F, x, y: m.logaddexp2(x, y),
    "where": lambda m, F, x, y: m.where(x > y, x, y),
    "lerp": lambda m, F, x, y: m.lerp(x, y, 0.3),
    "lerp_far": lambda m, F, x, y: m.lerp(x, y, 0.9),
    "lerp_tensor": lambda m, F, x, y: m.lerp(x, y, m.tensor(0.75)),
    "huber_loss": lambda m, F, x, y: F.huber_loss(x, y, reduction="none"),
    "smooth_l1_loss": lambda m, F, x, y: F.smooth_l1_loss(x, y, reduction="none"),
    # Of -inf torch gives inf - inf; ours is the limit (tests/unit/nn/test_small_slopes.py).
    "bce": lambda m, F, x, y: F.binary_cross_entropy_with_logits(
        x.clamp(min=-99.0), y, reduction="none"
    ),
}


def values_and_gradients(module: Any, call: Call, arrays: list[list[float]]) -> list[Any]:
    inputs = [module.tensor(a, dtype=module.float32).requires_grad_() for a in arrays]
    result = call(module, module.nn.functional, *inputs)
    result.backward(module.ones_like(result))
    return [result.detach().numpy(), *(x.grad.numpy() for x in inputs)]


def compare(call: Call, arrays: list[list[float]]) -> None:
    ours = values_and_gradients(tc, call, arrays)
    theirs = values_and_gradients(torch, call, arrays)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5, atol=1e-7)
    missing = np.isnan(arrays).any(0)
    for mine, other in zip(ours[1:], theirs[1:]):
        # Equal infinities share the gradient here; in torch it is nan. Where an input is nan,
        # torch's other numbers depend on whether the element stands in a full vector register.
        free = np.isnan(other) != missing
        np.testing.assert_allclose(
            np.where(free, 0, mine), np.where(free, 0, other), rtol=1e-5, atol=1e-7
        )


@pytest.mark.parametrize("name", ONE)
def test_functions_of_one_tensor(name: str, on_cpu: None) -> None:
    compare(ONE[name], [VALUES])


@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_tensors(name: str, on_cpu: None) -> None:
    compare(TWO[name], [[a for a in VALUES for _ in VALUES], VALUES * len(VALUES)])


@pytest.mark.parametrize("name", ["hardsigmoid", "softshrink", "max", "relu6"])
def test_kernels_of_one_tensor(name: str, kernel_device: str) -> None:
    compare(ONE[name], [VALUES])


@pytest.mark.parametrize("name", ["maximum", "atan2", "logaddexp", "lerp_far"])
def test_kernels_of_two_tensors(name: str, kernel_device: str) -> None:
    compare(TWO[name], [[a for a in VALUES for _ in VALUES], VALUES * len(VALUES)])


@pytest.mark.parametrize("limits", [{"min": NAN}, {"max": NAN}, {"min": 0.0, "max": NAN}])
def test_a_limit_that_is_nan_gives_nan(limits: dict[str, float], kernel_device: str) -> None:
    """As in torch 2.13; earlier ones let the values through."""
    x = tc.tensor(VALUES, device=kernel_device).requires_grad_()
    y = tc.clamp(x, **limits)
    y.sum().backward()
    assert np.isnan(y.detach().cpu().numpy()).all()
    assert not x.grad.cpu().numpy().any()


def test_the_gradient_of_sinc_is_accurate_near_zero(on_cpu: None) -> None:
    x = tc.tensor([1e-20, 1e-6, 1e-3], dtype=tc.float64).requires_grad_()
    tc.sinc(x).sum().backward()
    expected = [-(np.pi**2) * v / 3 + np.pi**4 * v**3 / 30 for v in (1e-20, 1e-6, 1e-3)]
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_frexp_of_subnormal_numbers_and_next_to_powers_of_two(dtype: str, on_cpu: None) -> None:
    values = [5e-324, 1e-310, 1e-40, 2.2250738585072014e-308, 1 - 2**-53, 1.0, 7.999999999999999]
    values += [1e300, -3.0, 0.0, INF]
    mantissa, power = tc.frexp(tc.tensor(values, dtype=getattr(tc, dtype)))
    wanted = torch.frexp(torch.tensor(values, dtype=getattr(torch, dtype)))
    np.testing.assert_array_equal(mantissa.numpy(), wanted.mantissa.numpy())
    np.testing.assert_array_equal(power.numpy()[:-1], wanted.exponent.numpy()[:-1])
