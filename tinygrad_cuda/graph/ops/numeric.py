"""NumPy references that take more than one call, written for arrays that fit in the cache.

Each takes ``out=``, which may be one of its operands, and operands that broadcast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_WORDS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
# Below this many elements the calls cost more than a branch for each element.
_FEW = 256


def takes_out(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a reference that broadcasts and writes to ``out=`` as a ufunc does."""
    function.takes_out = True  # type: ignore[attr-defined]
    return function


@takes_out
def select(condition: Any, a: Any, b: Any, out: Array | None = None) -> Any:
    """``a`` where the condition holds, else ``b``: by bits, since branches are mispredicted."""
    if condition.size < _FEW:
        found = np.where(condition, a, b)
        if out is None:
            return found
        out[...] = found
        return out
    word = _WORDS[a.dtype.itemsize]
    shape = np.broadcast_shapes(condition.shape, a.shape, b.shape)
    result = np.empty(shape, a.dtype) if out is None else out
    bits, a_bits, b_bits = result.view(word), a.view(word), b.view(word)
    mask = condition.astype(word)
    if not a.ndim and not a_bits:
        np.subtract(mask, 1, out=mask)
        np.bitwise_and(mask, b_bits, out=bits)
    elif not b.ndim and not b_bits:
        np.negative(mask, out=mask)
        np.bitwise_and(mask, a_bits, out=bits)
    else:
        np.negative(mask, out=mask)
        np.bitwise_and(
            mask, np.bitwise_xor(a_bits, b_bits), out=mask if shape == mask.shape else None
        )
        np.bitwise_xor(mask, b_bits, out=bits)
    return result


@takes_out
def sigmoid(x: Any, out: Array | None = None) -> Any:
    """``1 / (1 + exp(-x))``."""
    one = x.dtype.type(1)
    if not x.shape:
        return np.divide(one, one + np.exp(-x), out=out)
    result = np.negative(x, out=out)
    np.exp(result, out=result)
    np.add(result, one, out=result)
    return np.divide(one, result, out=result)


@takes_out
def reciprocal(x: Any, out: Array | None = None) -> Any:
    """``1 / x``."""
    return np.divide(x.dtype.type(1), x, out=out)


@takes_out
def rsqrt(x: Any, out: Array | None = None) -> Any:
    """``1 / sqrt(x)``."""
    root = np.sqrt(x, out=out)
    return np.divide(x.dtype.type(1), root, out=out)


# Exponents that are products of few factors.
PRODUCTS = (2, 3, 4)


def product_power(exponent: int, x: Any, out: Array | None = None) -> Any:
    """``x ** exponent`` as a product, for one of `PRODUCTS`."""
    square = np.multiply(x, x, out=out if exponent != 3 else None)
    if exponent == 2:
        return square
    return np.multiply(square, x if exponent == 3 else square, out=out)


def power(a: Any, b: Any) -> Any:
    """``a ** b``; small integers that are the same everywhere by products, as compilers do."""
    if b.size:
        exponent = b.reshape(-1)[0]
        for number in PRODUCTS:
            if exponent == number and np.all(b == exponent):
                return product_power(number, a)
    if a.dtype.kind == "f":
        return np.power(a, b)
    # Integers: a negative exponent truncates towards zero, as in PyTorch.
    with np.errstate(divide="ignore"):
        positive = np.power(a, np.maximum(b, 0))
    sign = np.where(b % 2 == 0, np.ones_like(a), a)
    negative = np.where(a == 1, np.ones_like(a), np.where(a == -1, sign, np.zeros_like(a)))
    return np.where(b >= 0, positive, negative) if a.dtype.kind == "i" else positive
