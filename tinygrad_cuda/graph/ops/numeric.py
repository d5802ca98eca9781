"""NumPy references that take more than one call, written for arrays that fit in the cache.

Each takes ``out=``, which may be one of its operands, and operands that broadcast.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import pairwise
from math import prod
from typing import Any, Protocol

import numpy as np

from tinygrad_cuda.core.locks import forks_wait

Array = np.ndarray[Any, Any]


class Workspace(Protocol):
    """Lends arrays with any contents."""

    def take(self, shape: tuple[int, ...], dtype: Any, /) -> Array:
        """An array."""

    def give(self, array: Array, /) -> None:
        """Takes it back."""


_WORDS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
# Below this many elements the calls cost more than a branch for each element.
_FEW = 256


def takes_out(function: Any) -> Any:
    """Marks a reference that broadcasts and writes to ``out=`` as a ufunc does."""
    function.takes_out = True
    return function


@takes_out
def select(condition: Any, a: Any, b: Any, out: Array | None = None) -> Any:
    """``a`` where the condition holds, else ``b``: by bits, since branches are mispredicted."""
    if condition.size < _FEW or a.dtype.itemsize > 8:
        chosen = np.where(condition, a, b)
        if out is None:
            return chosen
        out[...] = chosen
        return out
    word = _WORDS[a.dtype.itemsize]
    shape = np.broadcast(condition, a, b).shape if out is None else out.shape
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
        differing = np.bitwise_xor(a_bits, b_bits)
        # The condition may be smaller than the result, which then takes an array of its own.
        mask = np.bitwise_and(mask, differing, out=mask if shape == mask.shape else None)
        np.bitwise_xor(mask, b_bits, out=bits)
    return result


# Elements of a block that is read beside a number as an array of it.
_LINE = 1 << 15


@lru_cache(maxsize=32)
def _line(number: bytes, dtype: np.dtype[Any]) -> Array:
    """A read-only row of equal numbers; the bytes distinguish 0 from -0."""
    line = np.full(_LINE, np.frombuffer(number, dtype)[0])
    line.flags.writeable = False
    return line


def spread(number: Any, shape: tuple[int, ...]) -> Array:
    """A 0-d operand in a whole shape: some ufuncs have a vector loop for equal shapes alone."""
    size = prod(shape)
    if size <= _LINE:
        return _line(number.tobytes(), number.dtype)[:size].reshape(shape)
    return np.full(shape, number)


def _extreme(ufunc: np.ufunc, a: Any, b: Any, out: Array | None = None) -> Any:
    if not b.shape and a.size >= _FEW:
        b = spread(b, a.shape)
    elif not a.shape and b.size >= _FEW:
        a = spread(a, b.shape)
    return ufunc(a, b, out=out)


maximum = takes_out(partial(_extreme, np.maximum))
minimum = takes_out(partial(_extreme, np.minimum))


@takes_out
def relu(x: Any, out: Array | None = None) -> Any:
    """x where positive or nan, else 0 (never -0: the sum turns that into 0)."""
    zero, end = x.dtype.type(0), x.dtype.type(np.inf)
    if x.size < _FEW:
        return np.add(np.maximum(x, zero), zero, out=out)
    # Its loop for two numbers is quicker than that of np.maximum.
    result = x.clip(zero, end, out=out)
    return np.add(result, zero, out=result)


@takes_out
def sigmoid(x: Any, out: Array | None = None) -> Any:
    """``1 / (1 + exp(-x))``; of complex numbers by the power that does not overflow."""
    one = x.dtype.type(1)
    if x.dtype.kind == "c":
        left = x.real < 0
        small = np.exp(np.where(left, x, -x))
        return np.divide(np.where(left, small, one), one + small, out=out)
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


@takes_out
def expm1(x: Any, out: Array | None = None) -> Any:
    """``exp(x) - 1``: of complex ``a + ib`` ``expm1(a) cos(b) - 2 sin(b / 2)^2 + i exp(a) sin(b)``.

    NumPy's has NaN for the imaginary part 0 of a real part that is not finite.
    """
    if x.dtype.kind != "c":
        return np.expm1(x, out=out)
    a, b = x.real, x.imag
    half = np.sin(b / 2)
    result = np.exp(x)
    near = np.expm1(a) * np.cos(b) - 2 * half * half + 0.0  # 0 of -0, as exp(x) - 1 has
    result = joined(np.where(np.abs(a) <= 1, near, result.real - 1), result.imag)
    return result if out is None else _copied(result, out)


@takes_out
def log1p(x: Any, out: Array | None = None) -> Any:
    """``log(1 + x)``: of complex ``a + ib`` near 0 half the ``log1p`` of ``a (2 + a) + b^2``.

    NumPy's adds 1 first, so that small real parts are lost.
    """
    if x.dtype.kind != "c":
        return np.log1p(x, out=out)
    a, b = x.real, x.imag
    far = np.log(joined(a + 1, b))
    near = (np.abs(a) <= 0.5) & (np.abs(b) <= 0.5)
    small = np.where(near, a * (2 + a) + b * b, 0)
    result = joined(np.where(near, np.log1p(small) / 2, far.real), far.imag)
    return result if out is None else _copied(result, out)


def joined(real: Any, imag: Any) -> Any:
    """A complex array of its parts."""
    result = np.empty(real.shape, np.result_type(real, np.complex64))
    result.real, result.imag = real, imag
    return result


def _copied(result: Any, out: Array) -> Array:
    out[...] = result
    return out


# -log(1 - erf(x)) / x on [0, 3.95], beyond which erf is 1 in float32: a weighted minimax fit to
# SciPy's erfcx, good to 4e-9 of erf; rounding leaves 3 units in the last place.
_ERF_END = np.float32(3.95)
_ERF = tuple(
    np.float32(number)
    for number in (
        1.1283792, 0.6366194, 0.10277784, -0.019153093, -0.00016034392, 0.001666978,
        -0.0006328116, 0.00011763458, -9.255554e-06,
    )
)  # fmt: skip
_SIGN, _REST = np.int32(-(2**31)), np.int32(2**31 - 1)


@takes_out
def erf(x: Any, out: Array | None = None) -> Any:
    """The error function of float32: ``1 - exp(-x p(x))``, by expm1 so that it is exact near 0."""
    line = np.atleast_1d(x)
    near = np.abs(line)
    minimum(near, _ERF_END, out=near)
    scaled = near * _ERF[-1]
    for number in _ERF[-2:0:-1]:
        scaled += number
        scaled *= near
    scaled += _ERF[0]
    scaled *= near
    np.negative(scaled, out=scaled)
    bits = np.expm1(scaled, out=scaled).view(np.int32)
    bits &= _REST
    bits |= line.view(np.int32) & _SIGN
    if out is None:
        return scaled.reshape(np.shape(x))
    out[...] = scaled.reshape(np.shape(x))
    return out


# Sums ---------------------------------------------------------------------------------------------

# Elements from which a sum is taken apart, and the most that one piece adds up one by one.
_MANY, _PIECE = 1 << 11, 1 << 10
# Elements of a block that lies in the cache with what is computed from it.
_BLOCK = 1 << 16


def total(x: Any, axes: tuple[int, ...]) -> Any:
    """The sum over axes that stay with size 1, in the dtype of x; inner rows by vectors."""
    first = x.ndim
    while first and first - 1 in axes:
        first -= 1
    inner = prod(x.shape[first:])
    pieces = _pieces(inner)
    if x.size < _MANY or inner < 8 or not pieces or not _is_plain(x):
        return np.add.reduce(x, axis=axes, keepdims=True, dtype=x.dtype)
    sums = np.einsum("ij->i", x.reshape(-1, inner // pieces))
    if pieces > 1:
        sums = np.add.reduce(sums.reshape(-1, pieces), axis=1)
    sums = sums.reshape(x.shape[:first] + (1,) * (x.ndim - first))
    outer = tuple(axis for axis in axes if axis < first)
    return np.add.reduce(sums, axis=outer, keepdims=True) if outer else sums


def _is_plain(x: Any) -> bool:
    return x.dtype.char in "fd" and bool(x.flags.c_contiguous)


def _pieces(length: int) -> int:
    """Into how many equal pieces a long row is cut, none of them too long; 0 where that fails."""
    if length <= _PIECE:
        return 1
    least = -(-length // _PIECE)
    return next((count for count in range(least, least + 64) if count and not length % count), 0)


def welford(x: Any, axes: tuple[int, ...]) -> tuple[Any, Any]:
    """The mean and the sum of squared deviations from it, a block at a time."""
    count = prod(x.shape[axis] for axis in axes)
    mean = total(x, axes) / x.dtype.type(count)
    rows = _BLOCK // (x.size // x.shape[0]) if x.size > _BLOCK and x.ndim else 0
    if not rows or not _is_plain(x):
        centred = x - mean
        return mean, total(np.multiply(centred, centred), axes)
    parts = []
    block = np.empty((rows, *x.shape[1:]), x.dtype)
    for start in range(0, x.shape[0], rows):
        part = x[start : start + rows]
        centred = block[: len(part)]
        np.subtract(part, mean if 0 in axes else mean[start : start + rows], out=centred)
        parts.append(total(np.multiply(centred, centred, out=centred), axes))
    joined = np.concatenate(parts)
    return mean, np.add.reduce(joined, axis=0, keepdims=True) if 0 in axes else joined


# Running sums and orders --------------------------------------------------------------------------


def cumsum(x: Any, axis: int) -> Any:
    """Running sums in the dtype of x: by whole slices, or along rows by sixteens."""
    size, inner = x.shape[axis], prod(x.shape[axis + 1 :])
    if x.size < _MANY or not x.flags.c_contiguous or x.dtype.kind not in "fiu":
        return np.cumsum(x, axis=axis, dtype=x.dtype)
    lines = x.reshape(-1, size, inner)
    if inner == 1 and _is_plain(x) and size >= 4 * _STRIDE:
        return _along_rows(lines[:, :, 0]).reshape(x.shape)
    if x.size // size < _MANY // 8:
        return np.cumsum(x, axis=axis, dtype=x.dtype)
    result = np.empty_like(lines)
    result[:, 0] = lines[:, 0]
    for k in range(1, size):
        np.add(result[:, k - 1], lines[:, k], out=result[:, k])
    return result.reshape(x.shape)


# Elements of a group whose running sums are taken across all groups at once, and rows of a block.
_STRIDE, _ROWS = 8, 64


def _along_rows(rows: Any) -> Any:
    """Inside groups first, all of them together; then what stands before each group is added."""
    result = np.empty_like(rows)
    whole = rows.shape[1] // _STRIDE * _STRIDE
    for start in range(0, len(rows), _ROWS):
        part, sums = rows[start : start + _ROWS, :whole], result[start : start + _ROWS, :whole]
        count = len(part)
        # One slice for each number within a group, so that the sums are of whole slices.
        turned = part.reshape(count, -1, _STRIDE).transpose(2, 0, 1)
        inside = np.ascontiguousarray(turned)
        for k in range(1, _STRIDE):
            np.add(inside[k], inside[k - 1], out=inside[k])
        before = np.zeros(inside.shape[1:], rows.dtype)
        np.cumsum(inside[-1, :, :-1], axis=1, out=before[:, 1:])
        np.add(inside, before, out=sums.reshape(count, -1, _STRIDE).transpose(2, 0, 1))
    rest = np.cumsum(rows[:, whole:], axis=1, dtype=rows.dtype)
    np.add(rest, result[:, whole - 1 : whole], out=result[:, whole:])
    return result


def order(x: Any, descending: bool, count: int) -> Any:
    """The positions of the first `count` elements of each row in order: stable, NaN greatest."""
    size = x.shape[-1]
    if 4 * count > size or x.size < _MANY:
        return _sorted_positions(x, descending)[..., :count]
    rows = x.reshape(-1, size)
    cut = size - count if descending else count - 1
    border = np.partition(rows, cut, axis=-1)[:, cut : cut + 1]
    inside = rows >= border if descending else rows <= border
    if descending and x.dtype.kind == "f":
        inside |= rows != rows
    # Among equals at the border the first ones count: such rows are sorted as a whole.
    clear = np.count_nonzero(inside, axis=-1) == count
    positions = np.empty((len(rows), count), np.int64)
    chosen, few = rows[clear], np.flatnonzero(inside[clear]) % size
    few = few.reshape(-1, count)
    local = _sorted_positions(np.take_along_axis(chosen, few, -1), descending)
    positions[clear] = np.take_along_axis(few, local, -1)
    if not clear.all():
        positions[~clear] = _sorted_positions(rows[~clear], descending)[:, :count]
    return positions.reshape(*x.shape[:-1], count)


def _sorted_positions(x: Any, descending: bool) -> Any:
    if not descending:
        return np.argsort(x, axis=-1, kind="stable").astype(np.int64, copy=False)
    # Stable from the other end: the positions of the reversed row count from behind.
    turned = np.argsort(x[..., ::-1], axis=-1, kind="stable")
    return (x.shape[-1] - 1 - turned[..., ::-1]).astype(np.int64, copy=False)


# Short rows ---------------------------------------------------------------------------------------


def short_extreme(combine: Callable[..., Any], tail: tuple[int, ...], x: Any) -> Any:
    """np.maximum or np.minimum of the slices of x along its last axes, whose sizes are `tail`."""
    indices = list(np.ndindex(*tail))
    result = np.empty((*x.shape[: -len(tail)], 1), x.dtype)
    first = result[..., 0]
    combine(x[(..., *indices[0])], x[(..., *indices[1])], out=first)
    for index in indices[2:]:
        combine(first, x[(..., *index)], out=first)
    return result


def short_position(combine: Callable[..., Any], tail: tuple[int, ...], x: Any) -> Any:
    """The row-major position of the first extreme along the last axes; NaN wins.

    How many elements stand before the first one that equals the extreme.
    """
    best = short_extreme(combine, tail, x)[..., 0]
    # NaN equals nothing: it is looked for by itself.
    holes = x.dtype.kind == "f" and bool(np.isnan(best).any())
    before = np.ones(best.shape, bool)
    position = np.zeros(best.shape, np.uint8)
    for index in list(np.ndindex(*tail))[:-1]:
        part = x[(..., *index)]
        differs = part != best
        if holes:
            differs &= part == part
        before &= differs
        position += before.view(np.uint8)
    result = np.empty((*position.shape, 1), np.int64)
    result[..., 0] = position
    return result


def by_slices(call: Callable[..., Any], *operands: Any, out: Array | None = None) -> Any:
    """An elementwise call slice by slice along a short last axis, where operands broadcast there.

    NumPy would go over so few elements at a time.
    """
    if out is None or all(part.ndim == 0 or part.shape == out.shape for part in operands):
        return call(*operands, out=out)
    for column in range(out.shape[-1]):
        parts = [
            operand[..., column if operand.shape[-1] > 1 else 0] if operand.ndim else operand
            for operand in operands
        ]
        call(*parts, out=out[..., column])
    return out


# Copies of views ----------------------------------------------------------------------------------


# Whether a reshape can be asked not to copy: from NumPy 2.1 on.
_REFUSES = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


def reshaped(shape: tuple[int, ...], workspace: Workspace, x: Any) -> Any:
    """The reshape; where it would copy overlapping windows, rows that they share are moved once.

    The columns of a convolution hold each image row once for each row of the kernel: rows are
    made compact first, then whole windows, which lie in one piece by then. Columns whose rows
    would be a power of two apart are not contiguous.

    Args:
        workspace: lends the result and the rows.
    """
    if x.ndim < 4 or x.size < _MANY or x.flags.c_contiguous or not _REFUSES:
        return x.reshape(shape)
    try:
        return x.reshape(shape, copy=False)
    except ValueError:
        pass
    if len(shape) == 3 and not shape[2] * x.itemsize % _SET and _is_columns(shape, x):
        columns = workspace.take((shape[1], shape[2] + _APART), x.dtype)[None, :, :-_APART]
        copy_windows(columns.reshape(x.shape), x, workspace)
        return columns
    result = workspace.take(x.shape, x.dtype)
    copy_windows(result, x, workspace)
    return result.reshape(shape)


def _is_columns(shape: tuple[int, ...], x: Any) -> bool:
    """Whether a matrix has one row for each tap and one column for each window."""
    ends = [prod(x.shape[:axis]) for axis in range(x.ndim)]
    return shape[0] == 1 and shape[1] in ends and _shared_rows(x)[0] >= 0


def copy_windows(result: Array, x: Any, workspace: Workspace) -> None:
    """Copies overlapping windows; the rows that they share are made compact in lent memory."""
    axis, ahead = _shared_rows(x)
    if axis < 0:
        copy_into(result, x)
        return
    height, count = x.shape[-2], x.shape[axis]
    lengths, strides = list(x.shape), list(x.strides)
    lengths[-2] += (count - 1) * ahead
    del lengths[axis], strides[axis]
    rows = workspace.take(tuple(lengths), x.dtype)
    rows[...] = np.lib.stride_tricks.as_strided(x, lengths, strides)
    for number in range(count):
        start = number * ahead
        result[(slice(None),) * axis + (number,)] = rows[..., start : start + height, :]
    workspace.give(rows)


def _shared_rows(x: Any) -> tuple[int, int]:
    """The axis along which windows move by whole rows, and by how many; -1 if there is none."""
    height, step = x.shape[-2], x.strides[-2]
    axes = [
        axis for axis in range(x.ndim - 2)
        if x.shape[axis] > 1 and 0 < step <= x.strides[axis] < height * step
        and not x.strides[axis] % step
    ]  # fmt: skip
    return (axes[0], x.strides[axes[0]] // step) if len(axes) == 1 else (-1, 0)


# Elements between the columns' rows: a distance of a power of two fills few sets of the cache.
_APART = 16


# Elements of the operand of one piece of a sum of products, and the least terms of a piece.
_OPERAND, _LEAST_TERMS = 1 << 18, 1 << 9
# Terms for each row or column of a product from which on its sums are cut into pieces.
_MANY_TERMS = 8


def pieces_of(rows: int, columns: int, terms: int) -> int:
    """Into how many pieces the sums of a product are cut: one but for long sums of few elements.

    A piece of the larger operand stays in the cache.
    """
    widest = max(rows, columns, 1)
    if terms < _MANY_TERMS * widest:
        return 1
    return -(-terms // max(_LEAST_TERMS, _OPERAND // widest))


def _cuts(terms: int, pieces: int) -> list[int]:
    return [number * terms // pieces for number in range(pieces + 1)]


def matmul(a: Any, b: Any, out: Array | None = None) -> Array:
    """`np.matmul`; a fork waits for it."""
    with forks_wait:
        result: Array = np.matmul(a, b, out=out)
    return result


def product(a: Any, b: Any, out: Array | None = None) -> Array:
    """``a @ b``; floating sums of many terms for few elements piece after piece."""
    rows, terms, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    pieces = pieces_of(rows, columns, terms) if a.dtype.kind == "f" else 1
    if pieces == 1:
        return matmul(a, b, out)
    total: Any = None
    for start, end in pairwise(_cuts(terms, pieces)):
        part = matmul(a[..., start:end], b[..., start:end, :], out=None if start else out)
        total = np.add(total, part, out=total) if start else part
    result: Array = total
    return result


def turned_product(a: Any, b: Any, out: Array | None = None) -> Array:
    """``a @ b`` by the product of the transposes: BLAS is quicker with the larger one in front.

    The library may add in another order: a result differs by rounding alone.
    """
    result: Array = product(b.swapaxes(-1, -2), a.swapaxes(-1, -2)).swapaxes(-1, -2)
    if out is None:
        # Row-major as all values: what sums it goes over it in that order.
        return np.ascontiguousarray(result)
    out[...] = result
    return out


# Bytes after which an address falls into the same set of the first-level cache, and of a line.
_SET, _CACHE_LINE = 1 << 12, 64


def copy_into(result: Array, x: Array) -> None:
    """Copies x; a line of the cache at a time where its last axis would evict what it has read."""
    if x.size < _MANY or x.shape[-1] < 32 or not x.strides[-1] or x.strides[-1] % _SET:
        result[...] = x
        return
    axis = x.strides.index(x.itemsize) if x.itemsize in x.strides else -1
    if x.shape[axis] * x.itemsize >= _CACHE_LINE and x.shape[axis] * x.itemsize % _SET:
        # Rows that lie close together are short of that distance once they are compact.
        result[...] = np.ascontiguousarray(x.swapaxes(axis, -1)).swapaxes(axis, -1)
        return
    width = max(1, _CACHE_LINE // 2 // x.itemsize)
    for start in range(0, x.shape[-1], width):
        result[..., start : start + width] = x[..., start : start + width]


# Positions ----------------------------------------------------------------------------------------


def add_at(base: Any, index: Any, values: Any) -> Any:
    """base plus values added at their positions along axis 0, in the order of the index."""
    if base.dtype.kind == "b":
        result = base.copy()
        np.logical_or.at(result, index, values)
        return result
    if values.size < _MANY or base.dtype.char not in "fdil" or not base.size:
        result = base.copy()
        np.add.at(result, index, values)
        return result
    return base + _sums_at(index.reshape(-1), values, base.shape)


def _sums_at(index: Any, values: Any, shape: tuple[int, ...]) -> Any:
    """The product of a sparse matrix, with a one for each position, and the values."""
    with forks_wait:
        import scipy.sparse

    count, width = index.size, prod(shape[1:])
    if width == 1:
        # The values are the entries of one column.
        parts = (values.reshape(-1), index, np.array([0, count]))
        right = np.ones(1, values.dtype)
    else:
        parts = (np.ones(count, values.dtype), index, np.arange(count + 1))
        right = np.ascontiguousarray(values).reshape(count, width)
    matrix = scipy.sparse.csc_array(parts, shape=(shape[0], len(parts[2]) - 1))
    return (matrix @ right).reshape(shape)


# Powers -------------------------------------------------------------------------------------------

# Exponents that are products of few factors.
PRODUCTS = (2, 3, 4)


def product_power(exponent: int, x: Any, out: Array | None = None) -> Any:
    """``x ** exponent`` as a product, for one of `PRODUCTS`."""
    # A cube reads x twice: its square must lie elsewhere.
    apart = out is not None and (exponent != 3 or not np.may_share_memory(x, out))
    square = np.multiply(x, x, out=out if apart else None)
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
