"""Random numbers as a function of (seed, node number, element index): Philox4x32-10, in NumPy.
The same numbers, bit for bit, come from lowering/skeletons/random.cuh; change both or neither.

Counter of a block of four words: (block low, block high, node number low, node number high), key:
the seed's two words. What an element draws:

==================  ============================  ==================================
kind                block, words of element i     value
==================  ============================  ==================================
bits                i // 4, word i % 4            the word
uniform, <= 32 bit  i // 4, word i % 4            top 24 bits (float16 11, bfloat16 8)
uniform float64     i // 2, words 2 (i % 2) + 01  26 + 27 bits
integers            i // 2, words 2 (i % 2) + 01  high word of 64-bit draw * range
normal, <= 32 bit   i // 4, words of i's pair     pair's radius times cosine (even), sine
normal float64      i // 2, all four words        the same, from two 64-bit draws
==================  ============================  ==================================

Reference: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tinygrad_cuda.core.errors import ArgumentError, DTypeError

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
# Added to the high halves of 64 bits.
_WEYL = (0x9E3779B9 << 32, 0xBB67AE85 << 32)
_WORDS = (1 << 64) - 1
_UNIFORM_BITS = {"float32": 24, "float16": 11, "bfloat16": 8}


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[int, int]) -> Array:
    """Ten rounds: four counter words (integers or arrays) to four random ones, (..., 4) uint32."""
    a, b, c, d = np.broadcast_arrays(*(np.asarray(word, np.uint64) for word in counter))
    left, right = ((a << _HALF) | b).reshape(-1), ((c << _HALF) | d).reshape(-1)
    return _rounds(left, right, key).reshape(*a.shape, 4)


def _rounds(left: Array, right: Array, key: tuple[int, int]) -> Array:
    """Philox of counters two words of which lie in 64 bits, the first one high; overwrites them.

    A round's product then holds two new words as they belong.
    """
    first, second = np.empty_like(left), np.empty_like(left)
    high = [word << 32 for word in key]
    for _ in range(10):
        np.right_shift(left, _HALF, out=first)
        np.multiply(first, _MULTIPLIERS[0], out=first)
        np.right_shift(right, _HALF, out=second)
        np.multiply(second, _MULTIPLIERS[1], out=second)
        for state, product, word in ((left, second, high[0]), (right, first, high[1])):
            np.left_shift(state, _HALF, out=state)
            np.bitwise_xor(state, np.uint64(word), out=state)
            np.bitwise_xor(state, product, out=state)
        high = [(word + step) & _WORDS for word, step in zip(high, _WEYL)]
    # The high word comes first.
    words = np.empty((len(left), 4), np.uint32)
    for column, state in ((0, left), (2, right)):
        words[:, column] = np.right_shift(state, _HALF, out=first)
        words[:, column + 1] = state
    return words


def bits(seed: int, node_number: int, n: int, start: int = 0) -> Array:
    """Random 32-bit words of elements start ... start + n - 1.

    Args:
        seed: 64 bits of key (taken modulo 2**64).
        node_number: the random node's number in its generator's stream.
        n: how many elements.
        start: first element index.

    Example:
        >>> [hex(word) for word in bits(seed=0, node_number=0, n=2)]
        ['0x6627e8d5', '0xe169c58d']
    """
    words = _blocks(seed, node_number, start, n, 4).reshape(-1)
    return words[start % 4 : start % 4 + n]


def bits64(seed: int, node_number: int, n: int, start: int = 0) -> Array:
    """Random 64-bit words of elements start ... start + n - 1: high word first, two a block."""
    words = _blocks(seed, node_number, start, n, 2).reshape(-1, 2).astype(np.uint64)
    words = words[start % 2 : start % 2 + n]
    return (words[:, 0] << _HALF) | words[:, 1]


def uniform(seed: int, node_number: int, shape: Shape, dtype: npt.DTypeLike) -> Array:
    """Uniform in [0, 1): k * 2**-b with as many random bits b as the dtype's significand has.

    Raises:
        DTypeError: `dtype` is not a floating type.

    Example:
        >>> uniform(0, 0, (2,), np.float32)
        array([0.39904642, 0.88052016], dtype=float32)
    """
    dtype = np.dtype(dtype)
    if dtype != np.float64:
        _floating("random_uniform", dtype)
    return _by_parts(_uniform_part, seed, node_number, shape, dtype)


def _uniform_part(seed: int, node_number: int, n: int, start: int, dtype: np.dtype[Any]) -> Array:
    value: Array
    if dtype == np.float64:
        value = (bits64(seed, node_number, n, start) >> np.uint64(11)) * np.float64(2.0**-53)
    else:
        width = _UNIFORM_BITS[dtype.name]
        top = bits(seed, node_number, n, start) >> np.uint32(32 - width)
        value = (top.astype(np.float32) * np.float32(2.0**-width)).astype(dtype)
    return value


# Elements that are drawn at once, so that what lies between stays in the cache.
_PART = 1 << 16


def _by_parts(
    draw: Callable[..., Array], seed: int, node_number: int, shape: Shape, dtype: np.dtype[Any]
) -> Array:
    """The draws of all elements, in parts whose first element begins a block."""
    n = prod(shape)
    result = np.empty(n, dtype)
    for start in range(0, n, _PART):
        count = min(_PART, n - start)
        result[start : start + count] = draw(seed, node_number, count, start, dtype)
    return result.reshape(shape)


def normal(seed: int, node_number: int, shape: Shape, dtype: npt.DTypeLike) -> Array:
    r"""Standard normal: :math:`\sqrt{-2 \ln u}\,(\cos \phi, \sin \phi)`, a pair from two draws.

    16-bit types are float32 normals, rounded. The largest value is 6.8 (float64: 8.6).
    Reference: Box and Muller (1958).

    Raises:
        DTypeError: `dtype` is not a floating type.

    Example:
        >>> normal(0, 0, (2,), np.float32).dtype
        dtype('float32')
    """
    dtype = np.dtype(dtype)
    if dtype != np.float64:
        _floating("random_normal", dtype)
    return _by_parts(_normal_part, seed, node_number, shape, dtype)


def _normal_part(seed: int, node_number: int, n: int, start: int, dtype: np.dtype[Any]) -> Array:
    chance: Array
    if dtype == np.float64:
        words = _blocks(seed, node_number, start, n, 2).astype(np.uint64)
        draws = (words[:, 0::2] << _HALF) | words[:, 1::2]
        chance = ((draws[:, 0] >> np.uint64(11)) + np.uint64(1)) * np.float64(2.0**-53)
    else:
        draws = _blocks(seed, node_number, start, n, 4).reshape(-1, 2)
        chance = draws[:, 0].astype(np.float32)
        chance *= np.float32(2.0**-32)
        chance += np.float32(2.0**-33)
    radius = logarithm(chance)
    radius *= radius.dtype.type(-2)
    np.sqrt(radius, out=radius)
    pairs = np.empty((len(radius), 2), radius.dtype)
    for column, part in enumerate(cosine_sine(np.ascontiguousarray(draws[:, 1]))):
        np.multiply(part, radius, out=pairs[:, column])
    normals: Array = pairs.reshape(-1)[:n]
    return normals


def randint(seed: int, node_number: int, shape: Shape, low: int, high: int) -> Array:
    """Integers in [low, high), int64: low + floor(draw * (high - low) / 2**64).

    A value's probability is off by less than 2**-64 (relative bias (high - low) / 2**64).

    Raises:
        ArgumentError: the range is empty or not within int64.

    Example:
        >>> randint(0, 0, (3,), 0, 10)
        array([3, 7, 9])
    """
    if not -(2**63) <= low < high <= 2**63:
        raise ArgumentError(
            "randint",
            "the range is empty or exceeds int64",
            expect="-2**63 <= low < high <= 2**63",
            actual=f"low={low}, high={high}",
        )
    draw, extent = bits64(seed, node_number, prod(shape)), high - low
    draw_high, draw_low = draw >> _HALF, draw & _LOW
    extent_high, extent_low = np.uint64(extent >> 32), np.uint64(extent & 0xFFFFFFFF)
    carry = draw_high * extent_low + ((draw_low * extent_low) >> _HALF)
    middle = draw_low * extent_high + (carry & _LOW)
    offset = draw_high * extent_high + (carry >> _HALF) + (middle >> _HALF)
    value: Array = (offset + np.uint64(low & 0xFFFFFFFFFFFFFFFF)).view(np.int64)
    return value.reshape(shape)


def permutation(seed: int, node_number: int, n: int) -> Array:
    """A random permutation of 0 ... n - 1, int64: the order of n 64-bit keys (ties by index)."""
    return np.argsort(bits64(seed, node_number, n), kind="stable").astype(np.int64)


# ---- the same arithmetic on every device --------------------------------------------------------
# Only + - * / and sqrt, each rounded by itself, in an order that random.cuh repeats.


def logarithm(x: Array) -> Array:
    """ln x of positive normal float32 or float64, good to an ulp or so.

    x = 2**e (1 + f), f in [1/sqrt 2 - 1, sqrt 2 - 1): ln(1 + f) = 2 artanh s with s = f / (2 + f).
    """
    kind: Any = x.dtype.type
    word: Any
    if kind is np.float32:
        word, width, low, one = np.uint32, 23, 0x3F3504F3, 0x3F800000
        ln2_high, ln2_low, terms = kind(0.693359375), kind(-2.12194440e-4), 4
    else:
        word, width, low, one = np.uint64, 52, 0x3FE6A09E667F3BCD, 0x3FF0000000000000
        ln2_high, ln2_low = kind(6.93147180369123816490e-01), kind(1.90821492927058770002e-10)
        terms = 10
    moved = x.view(word) + word(one - low)
    e = (moved >> word(width)).view(f"i{x.itemsize}") - (one >> width)
    e = e.astype(kind)
    moved &= word((1 << width) - 1)
    moved += word(low)
    f: Array = moved.view(kind)
    f -= kind(1)
    s = f + kind(2)
    np.divide(f, s, out=s)
    z = s * s
    series = z * kind(2.0 / (2 * terms + 1))
    for n in range(terms - 1, 0, -1):
        series += kind(2.0 / (2 * n + 1))
        series *= z
    # e ln2_high + ((f - s (f - series)) + e ln2_low)
    np.subtract(f, series, out=series)
    series *= s
    f -= series
    f += np.multiply(e, ln2_low, out=s)
    e *= ln2_high
    e += f
    value: Array = e
    return value


def cosine_sine(turn: Array) -> tuple[Array, Array]:
    """cos and sin of the angle 2 pi turn / 2**32 (uint32 to float32) or / 2**64 (uint64, float64).

    The quadrant is taken off in integers, exactly; then Taylor series on [-pi/4, pi/4].
    """
    kind: Any
    signed: Any
    if turn.dtype == np.uint32:
        kind, signed, width, terms = np.float32, np.int32, 32, 4
    else:
        kind, signed, width, terms = np.float64, np.int64, 64, 8
    word = turn.dtype.type
    quadrant = turn + word(1 << (width - 3))
    quadrant >>= word(width - 2)
    rest = quadrant << word(width - 2)
    np.subtract(turn, rest, out=rest)
    x = rest.view(signed).astype(kind)
    x *= kind(2 * pi * 2.0**-width)
    z = x * x
    sine, cosine = _series(z, terms, 1), _series(z, terms, -1)
    sine *= x
    # By bits, since branches are mispredicted: odd quadrants swap, two of them turn each sign.
    cosine_bits, sine_bits = cosine.view(word), sine.view(word)
    swapped = quadrant & word(1)
    np.subtract(word(0), swapped, out=swapped)
    swapped &= cosine_bits ^ sine_bits
    sine_bits ^= swapped
    cosine_bits ^= swapped
    sine_bits ^= (quadrant & word(2)) << word(width - 2)
    quadrant += word(1)
    cosine_bits ^= (quadrant & word(2)) << word(width - 2)
    return cosine, sine


def _series(z: Array, terms: int, side: int) -> Array:
    """``1 - z / (2 n (2 n + side))`` of 1, for n from `terms` down to 1."""
    kind: Any = z.dtype.type
    value: Array = z * kind(1.0 / (2 * terms * (2 * terms + side)))
    np.subtract(kind(1), value, out=value)
    for n in range(terms - 1, 0, -1):
        value *= z
        value *= kind(1.0 / (2 * n * (2 * n + side)))
        np.subtract(kind(1), value, out=value)
    return value


def _blocks(seed: int, node_number: int, start: int, n: int, each: int) -> Array:
    """The blocks (of four words) of elements start ... start + n - 1, `each` of them a block."""
    block = np.arange(start // each, -(-(start + n) // each), dtype=np.uint64)
    number = node_number & 0xFFFFFFFFFFFFFFFF
    key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    right = np.full(block.shape, (number & 0xFFFFFFFF) << 32 | number >> 32, np.uint64)
    return _rounds((block << _HALF) | (block >> _HALF), right, key)


def _floating(op: str, dtype: np.dtype[Any]) -> str:
    if dtype.name not in _UNIFORM_BITS:
        raise DTypeError(
            op,
            "random reals need a floating dtype",
            expect="float16, bfloat16, float32 or float64",
            actual=dtype.name,
        )
    return dtype.name
