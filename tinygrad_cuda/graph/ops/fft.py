"""Discrete Fourier transforms of rows: of complex numbers, and of real ones to half a spectrum.

``out[k] = scale * sum over j of x[j] * exp(-2 pi i j k / n)``; the inverse has the other sign and
no factor of its own. A length that no kernel takes is a composition of rows: `as_nodes`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import DType, float32, float64, int64
from tinygrad_cuda.core.errors import DTypeError, ShapeError
from tinygrad_cuda.graph.node import Node, Op, Outputs
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops.common import arange, full_like, require_dtype

PRIMES = (2, 3, 5, 7, 11, 13)  # factors of the lengths that a kernel takes
BLOCK_BYTES = 32 << 10  # of the longest row that one block transforms

# Rows ---------------------------------------------------------------------------------------------


def _row_length(op: Op, x: Node) -> int:
    if not x.shape or not x.shape[-1]:
        raise ShapeError(
            op.name, "there is no row to transform", expect="a last dimension of at least 1",
            actual=f"shape {x.shape}",
        )  # fmt: skip
    return x.shape[-1]


def _infer_fft(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    require_dtype(op.name, sources[0], "complex")
    _row_length(op, sources[0])
    return sources[0].outputs


def _infer_rfft(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    (x,) = sources
    if x.dtype not in (float32, float64):
        raise DTypeError(
            op.name, "the dtype is not supported", expect="float32 or float64", actual=x.dtype.name,
            hint="cast first: x.float()",
        )  # fmt: skip
    return (((*x.shape[:-1], _row_length(op, x) // 2 + 1), x.dtype.to_complex()),)


def _infer_irfft(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    (x,), n = sources, attributes["n"]
    require_dtype(op.name, x, "complex")
    if _row_length(op, x) != n // 2 + 1:
        raise ShapeError(
            op.name, "the spectrum does not fit the length",
            expect=f"{n // 2 + 1} in the last axis", actual=f"shape {x.shape}",
        )  # fmt: skip
    return (((*x.shape[:-1], n), x.dtype.to_real()),)


def _infer_columns(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    (x,) = sources
    require_dtype(op.name, x, "complex")
    if len(x.shape) < 2 or not x.shape[-1]:
        raise ShapeError(
            op.name, "there are no rows to transform", expect="at least 2-d", actual=f"{x.shape}"
        )
    *head, rows, n = x.shape
    return (((*head, n * rows) if attributes["flat"] else (*head, n, rows), x.dtype),)


def _fft_columns(x: Any, inverse: bool, scale: float, turn: bool, flat: bool) -> Any:
    made, (*head, rows, n) = _fft(x, inverse, scale), x.shape
    if turn:
        products = np.outer(np.arange(rows), np.arange(n)) % (rows * n)
        roots = np.exp((2j if inverse else -2j) * np.pi / (rows * n) * products)
        made = made * roots.astype(x.dtype)
    made = np.swapaxes(made, -1, -2)
    return made.reshape(*head, n * rows) if flat else made


def _fft(x: Any, inverse: bool, scale: float) -> Any:
    result = np.fft.ifft(x, norm="forward") if inverse else np.fft.fft(x)
    return _scaled(result, scale, x.dtype)


def _rfft(x: Any, scale: float) -> Any:
    return _scaled(np.fft.rfft(x), scale, np.result_type(x, np.complex64))


def _irfft(x: Any, n: int, scale: float) -> Any:
    return _scaled(np.fft.irfft(x, n, norm="forward"), scale, x.real.dtype)


def _scaled(result: Any, scale: float, dtype: Any) -> Any:
    # In float32 `scale` is rounded as a kernel rounds it.
    if scale != 1:
        result = result * result.real.dtype.type(scale)
    return result.astype(dtype, copy=False)


def _edges(spectrum: Node, n: int) -> Node:
    """Whether a frequency of half a spectrum is the lowest, or the highest of an even n.

    These two stand once in the whole spectrum of a real row of n points, the others twice.
    """
    size = spectrum.shape[-1]
    k = arange.leaf((size,), int64, spectrum.device, start=0, step=1)
    edge = ew.eq(k, full_like(k, 0))
    if n % 2 == 0:
        edge = ew.logical_or(edge, ew.eq(k, full_like(k, n // 2)))
    apart = mv.reshape(edge, shape=(1,) * (len(spectrum.shape) - 1) + (size,))
    return mv.expand(apart, shape=spectrum.shape)


def _half_weights(spectrum: Node, n: int, inner: float) -> Node:
    """1 for frequencies that a real row's spectrum has once, `inner` for those it has twice."""
    ones = full_like(spectrum, 1)
    return ew.where(_edges(spectrum, n), ones, full_like(ones, inner))


def _rfft_gradient(g: Node, out: Node, x: Node, scale: float) -> Node:
    n = x.shape[-1]
    return irfft(ew.mul(g, _half_weights(g, n, 0.5)), n=n, scale=scale)


def _irfft_gradient(g: Node, out: Node, x: Node, n: int, scale: float) -> Node:
    spectrum = rfft(g, scale=scale)
    return ew.mul(spectrum, _half_weights(spectrum, n, 2))


def _columns_gradient(
    g: Node, out: Node, x: Node, inverse: bool, scale: float, turn: bool, flat: bool
) -> Node:
    *head, rows, n = x.shape
    g = _swapped(mv.reshape(g, shape=(*head, n, rows)) if flat else g)
    return fft(_turned(g, not inverse) if turn else g, inverse=not inverse, scale=scale)


# The transform is linear and its matrix symmetric: the gradient is the transform of other sign.
fft: Op = Op(
    "fft", "kernel", _infer_fft, numpy=_fft,
    gradient=(lambda g, out, x, inverse, scale: fft(g, inverse=not inverse, scale=scale),),
    batch=lambda size, sources, on, **how: fft(sources[0], **how), cost=16,
)  # fmt: skip
# Of real rows; the spectrum's other half is the conjugate of this one.
rfft: Op = Op(
    "rfft", "kernel", _infer_rfft, numpy=_rfft, gradient=(_rfft_gradient,),
    batch=lambda size, sources, on, **how: rfft(sources[0], **how), cost=16,
)  # fmt: skip
# The inverse of half a spectrum, whose imaginary parts are not read where `rfft` gives none.
irfft: Op = Op(
    "irfft", "kernel", _infer_irfft, numpy=_irfft, gradient=(_irfft_gradient,),
    batch=lambda size, sources, on, **how: irfft(sources[0], **how), cost=16,
)  # fmt: skip
# The transforms of rows, stored as columns, one behind the other if `flat`. With `turn`, times
# exp(-2 pi i row k / (rows n)), which stands between two transforms that make a longer one.
fft_columns: Op = Op(
    "fft_columns", "kernel", _infer_columns, numpy=_fft_columns, gradient=(_columns_gradient,),
    batch=lambda size, sources, on, **how: fft_columns(sources[0], **how), cost=16,
)  # fmt: skip

ROWS: tuple[Op, ...] = (fft, rfft, irfft, fft_columns)

# Lengths ------------------------------------------------------------------------------------------


def row_length(node: Node) -> int:
    """The points of each transform."""
    return int(node.attributes["n"]) if node.op is irfft else node.sources[0].shape[-1]


def longest(dtype: DType) -> int:
    """The longest row of a dtype, real or complex, that one block transforms."""
    return BLOCK_BYTES // dtype.to_complex().itemsize


def factors(n: int) -> dict[int, int]:
    """Prime factors and how often each divides n."""
    exponents: dict[int, int] = {}
    prime = 2
    while n > 1:
        if prime * prime > n:
            prime = n
        while n % prime == 0:
            exponents[prime] = exponents.get(prime, 0) + 1
            n //= prime
        prime += 1
    return exponents


def is_smooth(n: int) -> bool:
    """Whether kernels have a butterfly for each prime factor."""
    return all(prime in PRIMES for prime in factors(n))


# Compositions -------------------------------------------------------------------------------------


def as_nodes(node: Node) -> tuple[Node, ...]:
    """The composition of other rows, and of transforms that kernels take."""
    (x,), how = node.sources, dict(node.attributes)
    scale = how["scale"]
    if node.op is fft:
        return (_transform(x, how["inverse"], scale),)
    if node.op is fft_columns:
        del how["scale"]
        return (as_columns(_transform(x, how["inverse"], scale), **how),)
    last = len(node.shape) - 1
    if node.op is rfft:
        whole = _transform(ew.cast(x, dtype=node.dtype), False, scale)
        return (_cut(whole, last, 0, node.shape[-1]),)
    return (ew.real(_transform(_whole_spectrum(x, how["n"]), True, scale)),)


def _whole_spectrum(x: Node, n: int) -> Node:
    """The spectrum of a real row of n points, from its first half."""
    last, half = len(x.shape) - 1, x.shape[-1]
    x = with_real_ends(x, n)
    if n == half:
        return x
    other = mv.flip(_cut(x, last, 1, n - half), axes=(last,))
    return _joined(x, ew.conj(other), last)


def with_real_ends(x: Node, n: int) -> Node:
    """Half the spectrum of a real row of n points, without the imaginary parts that it has not."""
    return ew.where(_edges(x, n), ew.cast(ew.real(x), dtype=x.dtype), x)


def scaled(x: Node, scale: float) -> Node:
    """A transform's result by its factor."""
    return ew.mul(x, full_like(x, scale))


def _transform(x: Node, inverse: bool, scale: float) -> Node:
    """The transform of the last axis, by rows that kernels take."""
    n = x.shape[-1]
    if n == 1:
        return scaled(x, scale)
    if not is_smooth(n):
        return _bluestein(x, inverse, scale)
    limit = longest(x.dtype)
    if n <= limit:
        return fft(x, inverse=inverse, scale=scale)
    return _four_steps(x, _divided(n, limit), inverse, scale)


def _divided(n: int, limit: int) -> int:
    """The largest divisor that a block takes and whose cofactor is not smaller, if there is one."""
    divisors = [d for d in range(2, limit + 1) if n % d == 0]
    return max((d for d in divisors if d * d <= n), default=divisors[0])


def _four_steps(x: Node, columns: int, inverse: bool, scale: float) -> Node:
    """n = columns * rows: transforms along one, a turn of each element, transforms along the other.

    With j = j1 * rows + j2 and k = k2 * columns + k1 (Bailey, 1990). Each transform stores its rows
    as columns, so that the values pass through memory twice.
    """
    head, n = x.shape[:-1], x.shape[-1]
    rows = n // columns
    apart = _swapped(mv.reshape(x, shape=(*head, columns, rows)))  # (rows, columns): j1 is last
    inner = fft_columns(apart, inverse=inverse, scale=1.0, turn=True, flat=False)  # (k1, j2)
    if rows <= longest(x.dtype):  # (k2, k1)
        return fft_columns(inner, inverse=inverse, scale=scale, turn=False, flat=True)
    return mv.reshape(_swapped(_transform(inner, inverse, scale)), shape=x.shape)


def as_columns(x: Node, inverse: bool, turn: bool, flat: bool) -> Node:
    """Transformed rows as `fft_columns` stores them."""
    *head, rows, n = x.shape
    made = _swapped(_turned(x, inverse) if turn else x)
    return mv.reshape(made, shape=(*head, n * rows)) if flat else made


def _turned(x: Node, inverse: bool) -> Node:
    """Elements (row, k) by ``exp(-2 pi i row k / (rows n))``, or of the other sign."""
    rows, n = x.shape[-2:]
    twiddles = _roots(_outer_products(rows, n, x), rows * n, inverse, x.dtype)
    wide = mv.reshape(twiddles, shape=(1,) * (len(x.shape) - 2) + (rows, n))
    return ew.mul(x, mv.expand(wide, shape=x.shape))


def _bluestein(x: Node, inverse: bool, scale: float) -> Node:
    """A convolution with a chirp, since 2 j k = j^2 + k^2 - (k - j)^2 (Bluestein, 1970)."""
    head, n = x.shape[:-1], x.shape[-1]
    last, size = len(head), _padded_length(2 * n - 1)
    k = arange.leaf((n,), int64, x.device, start=0, step=1)
    chirp = _roots(ew.mul(k, k), 2 * n, inverse, x.dtype)
    wide = mv.expand(mv.reshape(chirp, shape=(1,) * last + (n,)), shape=x.shape)
    a = _transform(_padded(ew.mul(x, wide), last, 0, size), False, 1.0)
    # The other chirp at distances 1 - n to n - 1, the negative ones at the end.
    other = ew.conj(chirp)
    begin, end = _padded(other, 0, 0, size), mv.flip(_cut(other, 0, 1, n - 1), axes=(0,))
    b = _transform(ew.add(begin, _padded(end, 0, size - n + 1, size)), False, 1.0)
    b = mv.expand(mv.reshape(b, shape=(1,) * last + (size,)), shape=(*head, size))
    product = _transform(ew.mul(a, b), True, scale / size)
    return ew.mul(_cut(product, last, 0, n), wide)


def _padded_length(least: int) -> int:
    """The next length that is a power of two, or three quarters of one."""
    power = 1 << (least - 1).bit_length()
    return power * 3 // 4 if power >= 4 and power * 3 // 4 >= least else power


def _outer_products(rows: int, columns: int, like: Node) -> Node:
    """``j * k`` of every row and column, int64."""
    lines = [arange.leaf((size,), int64, like.device, start=0, step=1) for size in (rows, columns)]
    shapes = ((rows, 1), (1, columns))
    wide = [
        mv.expand(mv.reshape(line, shape=shape), shape=(rows, columns))
        for line, shape in zip(lines, shapes, strict=True)
    ]
    return ew.mul(*wide)


def _roots(k: Node, n: int, inverse: bool, dtype: DType) -> Node:
    """``exp(-2 pi i k / n)``, or of the other sign, from angles in float64."""
    turn = ew.cast(ew.remainder(k, full_like(k, n)), dtype=float64)
    angle = ew.mul(turn, full_like(turn, (2 if inverse else -2) * np.pi / n))
    return ew.cast(ew.complex_(ew.cos(angle), ew.sin(angle)), dtype=dtype)


def _swapped(x: Node) -> Node:
    rank = len(x.shape)
    return mv.permute(x, axes=(*range(rank - 2), rank - 1, rank - 2))


def _cut(x: Node, axis: int, start: int, size: int) -> Node:
    starts, shape = [0] * len(x.shape), list(x.shape)
    starts[axis], shape[axis] = start, size
    ones = (1,) * len(shape)
    return mv.slice_(x, starts=tuple(starts), shape=tuple(shape), steps=ones)


def _padded(x: Node, axis: int, start: int, size: int) -> Node:
    """Zeros around the elements, which begin at `start` of `size`."""
    starts, shape = [0] * len(x.shape), list(x.shape)
    starts[axis], shape[axis] = start, size
    ones = (1,) * len(shape)
    return mv.pad(x, starts=tuple(starts), shape=tuple(shape), steps=ones, value=0)


def _joined(a: Node, b: Node, axis: int) -> Node:
    size = a.shape[axis] + b.shape[axis]
    return ew.add(_padded(a, axis, 0, size), _padded(b, axis, a.shape[axis], size))
