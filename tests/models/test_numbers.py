"""Python numbers that meet tensors of a narrower dtype: what torch makes of them, by device."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")

Call = Callable[[Any, Any, Any], Any]  # (torch or tc, a tensor, a number) -> a tensor
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
DTYPES = ("bool", *INTEGERS, "float32", "float64")
NUMBERS = (3, 200, 256, 1000, -1, -129, 70000, 2**31, 2**40, -(2**62), 1.5, -2.5)


# In the dtype of the result, which may be wider than the tensor's.
def _operator(function: Callable[[Any, Any], Any]) -> Call:
    return lambda m, x, k: function(x, k)


OPERATORS: dict[str, Call] = {
    name: _operator(getattr(operator, name))
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "eq", "lt", "ge")
}
FUNCTIONS: dict[str, Call] = {
    **OPERATORS,
    **{f"r{n}": lambda m, x, k, f=f: f(m, k, x) for n, f in OPERATORS.items()},
    "atan2": lambda m, x, k: m.atan2(x, m.tensor(k)),
    "xlogy": lambda m, x, k: m.xlogy(x, k),
    "rxlogy": lambda m, x, k: m.xlogy(k, x),
    "copysign": lambda m, x, k: m.copysign(x, k),
    "div_trunc": lambda m, x, k: m.div(x, k, rounding_mode="trunc"),
    "ldexp": lambda m, x, k: m.ldexp(x, m.tensor(k).clamp(-9, 9)),
    "div_0d": lambda m, x, k: x / m.tensor(k),
    "where": lambda m, x, k: m.where(x > 1, x, k),
    # Factors that are converted to the dtype of the result.
    "add_alpha": lambda m, x, k: m.add(x, x, alpha=k),
    "float_sub_alpha": lambda m, x, k: m.sub(m.tensor([1.0, 2.0, 3.0]), x, alpha=k),
    "long_sub_alpha": lambda m, x, k: m.sub(x, m.tensor([1, 2, 3]), alpha=k),
    "number_alpha": lambda m, x, k: m.add(x, 3, alpha=k),
    "bool_alpha": lambda m, x, k: m.add(x, m.tensor([True, False, True]), alpha=k),
    "float_addcmul": lambda m, x, k: m.addcmul(m.tensor([1.0, 2.0, 3.0]), x, x, value=k),
    # Elements that the tensor's own dtype must hold.
    "pow": lambda m, x, k: x**k,
    "clamp_min": lambda m, x, k: m.clamp(x, min=k),
    "clamp_max": lambda m, x, k: m.clamp(x, max=k),
    "fill_": lambda m, x, k: x.clone().fill_(k),
    "full": lambda m, x, k: m.full((2,), k, dtype=x.dtype),
    "masked_fill": lambda m, x, k: x.masked_fill(x > 1, k),
    "index_fill": lambda m, x, k: x.index_fill(0, m.tensor([0]), k),
    "pad": lambda m, x, k: m.nn.functional.pad(x, (1, 0), value=abs(k)),
}


def outcome(module: Any, name: str, dtype: str, number: Any) -> Any:
    """The dtype and values of a call, or the text of its refusal."""
    values = [True, False, True] if dtype == "bool" else [1, 2, 3]
    x = module.tensor(values, dtype=getattr(module, dtype))
    try:
        result = FUNCTIONS[name](module, x, number)
        array = result.to(module.float64 if result.dtype.is_floating_point else result.dtype)
        return str(result.dtype).split(".")[-1], array.numpy()
    except (RuntimeError, TypeError, OverflowError) as error:
        return str(error)


def compare(name: str, dtypes: tuple[str, ...]) -> list[str]:
    """Calls whose outcomes differ; what torch refuses for overflow must be refused here too."""
    differing = []
    for dtype in dtypes:
        for number in NUMBERS:
            theirs, ours = outcome(torch, name, dtype, number), outcome(tc, name, dtype, number)
            if isinstance(theirs, str):
                if "without overflow" in theirs and not isinstance(ours, str):
                    differing.append(f"{dtype} {number}: {ours} is not refused")
                continue
            if isinstance(ours, str) or ours[0] != theirs[0]:
                differing.append(f"{dtype} {number}: {ours}, torch {theirs}")
                continue
            rtol = 1e-6 if ours[0] == "float32" else 1e-12
            if not np.allclose(ours[1], theirs[1], rtol=rtol, atol=0, equal_nan=True):
                differing.append(f"{dtype} {number}: {ours}, torch {theirs}")
    return differing


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_number_outside_the_range_of_a_dtype_is_what_torch_makes_of_it(
    name: str, on_cpu: None
) -> None:
    assert not compare(name, DTYPES)


@pytest.mark.parametrize("name", ["truediv", "rtruediv", "xlogy", "float_sub_alpha", "add", "lt"])
def test_kernels_convert_numbers_alike(name: str, kernel_device: str) -> None:
    assert not compare(name, ("uint8",))


@pytest.mark.parametrize("number", [2**70, -(2**70)])
def test_integers_beyond_64_bits_are_refused_or_floats(number: int, on_cpu: None) -> None:
    assert (tc.tensor([1.0]) * number).item() == float(number)
    with pytest.raises(tc.ArgumentError, match="64 bits"):
        tc.tensor([1]) + number


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x**-1,
        lambda x: tc.add(x, x, alpha=1.5),
        lambda x: tc.add(x, x, alpha=True),
        lambda x: x.fill_(float("nan")),
        lambda x: x.half().masked_fill_(x > 1, -1e9),
        lambda x: tc.add(1, 2),
    ],
)
def test_numbers_that_no_dtype_can_hold_are_refused(
    call: Callable[[Any], Any], on_cpu: None
) -> None:
    with pytest.raises((tc.ArgumentError, tc.DTypeError), match="expect:"):
        call(tc.tensor([1, 2, 3]))


def test_whole_division_of_large_integers_is_exact(on_cpu: None) -> None:
    x = tc.tensor([2**62 + 1, -(2**62) - 1, 7, -7])
    assert tc.div(x, 3, rounding_mode="trunc").tolist() == [
        (2**62 + 1) // 3, -((2**62 + 1) // 3), 2, -2,
    ]  # fmt: skip


def test_a_number_is_shifted_by_a_tensor(on_cpu: None) -> None:
    assert (1 << tc.tensor([0, 3])).tolist() == [1, 8]
    assert (64 >> tc.tensor([0, 3])).tolist() == [64, 8]


def test_the_lowest_and_the_largest_integer_are_not_close(on_cpu: None) -> None:
    x, y = tc.tensor([0, -(2**63), 5]), tc.tensor([-(2**63), 2**63 - 1, 5])
    assert tc.isclose(x, y).tolist() == [False, False, True]
