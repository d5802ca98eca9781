"""gradcheck passes what is right, catches what is wrong, and says why in words."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.autograd import gradcheck, gradgradcheck

pytestmark = pytest.mark.smoke("autograd")

DEVICES = ["cpu"] + (["emu"] if shutil.which("c++") else [])


def leaf(*shape: int, seed: int = 0, device: str = "cpu", dtype: Any = None) -> Any:
    values = np.random.default_rng([seed, *shape]).uniform(0.5, 1.5, shape)
    return tc.tensor(values, dtype=dtype or tc.float64, device=device, requires_grad=True)


def broken(factor: float, saved: bool = True) -> Any:
    """x ** 2 whose derivative is `factor` times x."""

    class Square(tc.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * factor * (x if saved else x.detach())

    return Square.apply


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_right_functions_pass(device: str, fast: bool) -> None:
    """One and several inputs and outputs, 0-d, empty and broadcast ones, views."""
    x, w, b = (
        leaf(3, 2, device=device),
        leaf(2, 4, device=device, seed=1),
        leaf(4, device=device, seed=2),
    )
    functions: list[tuple[Any, tuple[Any, ...]]] = [
        (lambda x: x.exp(), (x,)),
        (lambda x, w, b: (x @ w + b).tanh(), (x, w, b)),
        (lambda x, w: (x.sum(), (w * 2).log(), x.T @ x), (x, w)),
        (lambda x: [x[1:], x.flip(0)], (x,)),
        (lambda x: x * x, (leaf(device=device),)),
        (lambda x: x * 2, (leaf(0, 3, device=device),)),
        (lambda x, n: x**n, (x, 3)),
    ]
    for function, inputs in functions:
        assert gradcheck(function, inputs, fast_mode=fast)
    assert gradcheck(lambda x: x.sin(), x, fast_mode=fast)


def test_second_derivatives_pass() -> None:
    x, w = leaf(3, 2), leaf(2, 4, seed=1)
    assert gradgradcheck(lambda x, w: (x @ w).tanh(), (x, w))
    assert gradgradcheck(lambda x, w: (x @ w).tanh(), (x, w), fast_mode=True)
    assert gradgradcheck(lambda x: (x.sum(), x.log()), (x,))
    assert gradgradcheck(lambda x: x * 2, (x,))
    assert gradgradcheck(lambda x: x.exp(), (x,), leaf(3, 2, seed=5))


def test_outputs_without_history_count_as_constant() -> None:
    x, y = leaf(3), leaf(3, seed=1)
    assert gradcheck(lambda x: (x.exp(), x.detach().new_ones(2), x.argmax()), (x,))
    assert gradcheck(lambda x, y: x * 2, (x, y))
    assert gradgradcheck(lambda x, y: x * 2, (x, y))


def test_inputs_without_grad_are_left_alone() -> None:
    x, fixed = leaf(3), leaf(3, seed=1).detach()
    assert gradcheck(lambda x, fixed: x * fixed, (x, fixed))
    assert not fixed.requires_grad


def test_a_detached_factor_is_caught() -> None:
    with pytest.raises(tc.GradientError, match="the gradient of output 0 for input 0 is wrong"):
        gradcheck(lambda x: x * x.detach(), (leaf(2),))


@pytest.mark.parametrize("fast", [False, True])
def test_wrong_gradients_are_caught(fast: bool) -> None:
    assert gradcheck(broken(2.0), (leaf(3),), fast_mode=fast)
    for factor in (-2.0, 2.1, 0.0, 1.0):
        assert not gradcheck(broken(factor), (leaf(3),), raise_exception=False, fast_mode=fast)


def test_the_worst_element_is_shown_with_both_numbers_and_a_sweep() -> None:
    x = tc.tensor([[1.0, 5.0], [2.0, 3.0]], dtype=tc.float64, device="cpu", requires_grad=True)
    with pytest.raises(tc.GradientError) as caught:
        gradcheck(lambda a, x: (a, broken(3.0)(x)), (leaf(2), x))
    text = str(caught.value)
    assert "the gradient of output 1 for input 1 is wrong" in text
    assert "at output 1[0, 1], input 1[0, 1]" in text
    assert "15 by backward" in text
    assert "expect: 10 by central differences with eps 1e-06" in text
    assert "from Square made at test_gradcheck.py" in text
    sweep = [line.split("eps ")[1] for line in text.splitlines() if " eps 1e-" in line[:20]]
    assert [float(line.split(":")[0]) for line in sweep] == [1e-5, 1e-6, 1e-7]
    assert all(float(line.split(":")[1]) == pytest.approx(10, rel=1e-6) for line in sweep)


def test_the_projection_shows_numbers_too() -> None:
    with pytest.raises(tc.GradientError, match="a random projection of output 0 and input 0"):
        gradcheck(broken(3.0), (leaf(3),), fast_mode=True)


def test_a_wrong_second_derivative_is_caught_and_named() -> None:
    function = broken(2.0, saved=False)  # first right, second zero
    assert gradcheck(function, (leaf(2),))
    with pytest.raises(tc.GradientError) as caught:
        gradgradcheck(function, (leaf(2),))
    assert "[gradgradcheck] the second derivative of output 0 for input 0 is wrong" in str(
        caught.value
    )
    assert not gradgradcheck(function, (leaf(2),), raise_exception=False)


def test_float32_is_refused_unless_tolerances_are_given() -> None:
    x = leaf(3, dtype=tc.float32)
    for check in (gradcheck, gradgradcheck):
        with pytest.raises(tc.DTypeError, match="loses half the digits"):
            check(lambda x: x.exp(), (x,))
        with pytest.raises(tc.DTypeError):
            check(lambda x: x.exp(), (x,), eps=1e-2)
        assert check(lambda x: x.exp(), (x,), eps=1e-2, atol=1e-2, rtol=1e-2)
    with pytest.raises(tc.GradientError):
        gradcheck(broken(2.5), (x,), eps=1e-2, atol=1e-2, rtol=1e-2)


def test_tolerances_decide() -> None:
    x = leaf(3)
    assert gradcheck(broken(2.01), (x,), rtol=0.01)
    assert gradcheck(broken(2.01), (x,), atol=0.02)
    assert not gradcheck(broken(2.01), (x,), raise_exception=False)


def test_nan_is_a_mismatch() -> None:
    """On either side, and on both: a NaN proves nothing."""

    class NanBackward(tc.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * float("nan")

    for function in (NanBackward.apply, lambda x: (x - 10).sqrt()):
        for fast in (False, True):
            assert not gradcheck(function, (leaf(2),), raise_exception=False, fast_mode=fast)
    with pytest.raises(tc.GradientError, match="nan by backward"):
        gradcheck(NanBackward.apply, (leaf(2),))


def test_a_kink_is_seen_in_the_sweep() -> None:
    """|x| at 0: backward gives 0 as differences do; relu at 0 gives 0 where they give 1/2."""
    x = tc.zeros(1, dtype=tc.float64, device="cpu", requires_grad=True)
    assert gradcheck(lambda x: x.abs(), (x,))
    with pytest.raises(tc.GradientError, match="not smooth at this point"):
        gradcheck(lambda x: x.relu(), (x,))


def test_a_function_that_throws_dice_is_named() -> None:
    with pytest.raises(tc.GradientError, match="the function is not deterministic"):
        gradcheck(lambda x: x * tc.rand_like(x), (leaf(4),))

    def seeded(x: Any) -> Any:
        tc.manual_seed(3)
        return x * tc.rand_like(x)

    assert gradcheck(seeded, (leaf(4),))


def test_what_cannot_be_checked_says_so() -> None:
    with pytest.raises(tc.GradientError, match="no input requires grad"):
        gradcheck(lambda x: x, (leaf(2).detach(),))
    with pytest.raises(tc.GradientError, match="returned no floating tensor") as caught:
        gradcheck(lambda x: x.argmax(), (leaf(2),))
    assert "actual: int64" in str(caught.value)


def test_grad_of_the_inputs_stays_untouched() -> None:
    x = leaf(3)
    gradcheck(lambda x: x.exp(), (x,))
    gradgradcheck(lambda x: x.exp(), (x,))
    assert x.grad is None
