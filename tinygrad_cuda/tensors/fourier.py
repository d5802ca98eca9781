"""Discrete Fourier transforms along any dimensions, by PyTorch's names and normalizations.

Each is one row of the op table a dimension: `fft` of complex numbers, `rfft` of real ones, `irfft`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad_cuda.core.dtypes import as_dtype
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError
from tinygrad_cuda.core.shapes import normalize_axis
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import elementwise, movement
from tinygrad_cuda.graph.ops import fft as ops
from tinygrad_cuda.tensors import creation
from tinygrad_cuda.tensors.arguments import no_tensor
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.creation import get_default_dtype
from tinygrad_cuda.tensors.promotion import to_dtype
from tinygrad_cuda.tensors.shaping import pad_axis, roll, slice_axis

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "ifft", "ifft2",
    "ifftn", "ifftshift", "ihfft", "ihfft2", "ihfftn", "irfft", "irfft2", "irfftn", "rfft", "rfft2",
    "rfftfreq", "rfftn",
]  # fmt: skip

NORMS = ("backward", "ortho", "forward")


# Operands -----------------------------------------------------------------------------------------


def _source(op: str, input: Any) -> Node:
    """The operand's node, of float32, float64 or a complex dtype."""
    if not isinstance(input, TensorBase):
        raise no_tensor(op, "input", input)
    node: Node = input.node
    if node.dtype.is_half:
        raise DTypeError(
            op, "half types are not transformed", expect="float32, float64 or a complex dtype",
            actual=node.dtype.name, hint="cast first: x.float()",
        )  # fmt: skip
    if not node.shape:
        raise ShapeError(op, "a 0-d tensor has no rows", expect="at least 1-d", actual="()")
    return node if node.dtype.category > 1 else to_dtype(node, get_default_dtype())


def _complex_source(op: str, input: Any) -> Node:
    node = _source(op, input)
    return to_dtype(node, node.dtype.to_complex())


def _real_source(op: str, input: Any) -> Node:
    node = _source(op, input)
    if node.dtype.is_complex:
        raise DTypeError(
            op, "the tensor is complex", expect="a real dtype", actual=node.dtype.name,
            hint=f"{op.replace('ihfft', 'ifft').replace('rfft', 'fft')} takes complex numbers",
        )  # fmt: skip
    return node


def _scale(op: str, norm: str | None, n: int, inverse: bool) -> float:
    """The factor of a transform of n points."""
    if norm is not None and norm not in NORMS:
        raise ArgumentError(
            op, "unknown norm", expect=", ".join(map(repr, NORMS)), actual=repr(norm)
        )
    if norm == "ortho":
        return 1 / sqrt(n)
    return 1 / n if (norm == "forward") != inverse else 1.0


def _length(op: str, n: Any, default: int) -> int:
    points = default if n is None else int(n)
    if points < 1:
        raise ArgumentError(
            op, "too few points", expect="at least 1 point in a dimension", actual=str(points)
        )
    return points


def _resized(node: Node, axis: int, n: int) -> Node:
    """The first n elements, or zeros behind them."""
    size = node.shape[axis]
    if n > size:
        return pad_axis(node, axis, 0, n - size)
    return node if n == size else slice_axis(node, axis, 0, n)


def _along(node: Node, axis: int, transform: Callable[[Node], Node]) -> Node:
    """A transform of rows along another axis."""
    last = len(node.shape) - 1
    if axis == last:
        return transform(node)
    axes = list(range(last + 1))
    axes[axis], axes[last] = last, axis  # its own inverse
    return movement.permute(transform(movement.permute(node, axes=tuple(axes))), axes=tuple(axes))


# Transforms of one axis ---------------------------------------------------------------------------


def _complex(op: str, node: Node, n: Any, axis: int, norm: str | None, inverse: bool) -> Node:
    points = _length(op, n, node.shape[axis])
    scale = _scale(op, norm, points, inverse)
    resized, last = _resized(node, axis, points), len(node.shape) - 1
    if axis == last - 1:  # a kernel stores what it transforms as it read it
        rows = movement.permute(resized, axes=(*range(axis), last, axis))
        return ops.fft_columns(rows, inverse=inverse, scale=scale, turn=False, flat=False)
    return _along(resized, axis, lambda x: ops.fft(x, inverse=inverse, scale=scale))


def _to_half(op: str, node: Node, n: Any, axis: int, norm: str | None, inverse: bool) -> Node:
    """Of real rows to half a spectrum; the inverse is its conjugate."""
    points = _length(op, n, node.shape[axis])
    scale = _scale(op, norm, points, inverse)
    half = _along(_resized(node, axis, points), axis, lambda x: ops.rfft(x, scale=scale))
    return elementwise.conj(half) if inverse else half


def _from_half(op: str, node: Node, n: Any, axis: int, norm: str | None, inverse: bool) -> Node:
    """Of half a spectrum to real rows; the forward transform begins with its conjugate."""
    points = _length(op, n, 2 * (node.shape[axis] - 1))
    scale = _scale(op, norm, points, inverse)
    half = _resized(node, axis, points // 2 + 1)
    half = half if inverse else elementwise.conj(half)
    return _along(half, axis, lambda x: ops.irfft(x, n=points, scale=scale))


Transform = Callable[[str, Node, Any, int, "str | None", bool], Node]
Source = Callable[[str, Any], Node]
COMPLEX: tuple[Source, Transform] = (_complex_source, _complex)
TO_HALF: tuple[Source, Transform] = (_real_source, _to_half)
FROM_HALF: tuple[Source, Transform] = (_complex_source, _from_half)


def _one(
    name: str, kind: tuple[Source, Transform], inverse: bool, doc: str
) -> Callable[..., Tensor]:
    """A function of one dimension."""
    source, transform = kind

    def function(input: Tensor, n: int | None = None, dim: int = -1, norm: Any = None) -> Tensor:
        node = source(name, input)
        axis = normalize_axis(name, dim, len(node.shape))
        return wrap(transform(name, node, n, axis, norm, inverse))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc + _ONE
    return function


def _axes_of(op: str, node: Node, s: Any, dim: Any) -> tuple[list[int], list[Any]]:
    """The axes of a transform in several dimensions, and the points along each."""
    sizes = None if s is None else [s] if isinstance(s, int) else list(s)
    if dim is None:
        dim = range(-(len(node.shape) if sizes is None else len(sizes)), 0)
    dims = [dim] if isinstance(dim, int) else list(dim)
    axes = [normalize_axis(op, axis, len(node.shape)) for axis in dims]
    if len(set(axes)) < len(axes) or not axes:
        raise ArgumentError(
            op, "the dimensions are no set", expect="different dimensions, at least one",
            actual=str(tuple(dims)),
        )  # fmt: skip
    sizes = [None] * len(axes) if sizes is None else sizes
    if len(sizes) != len(axes):
        raise ArgumentError(
            op, "sizes and dimensions do not match", expect=f"{len(axes)} sizes, one a dimension",
            actual=f"s={tuple(sizes)}, dim={tuple(dims)}",
        )  # fmt: skip
    return axes, [None if size == -1 else size for size in sizes]


def _several(
    name: str, kind: tuple[Source, Transform], inverse: bool, rank: int | None, doc: str
) -> Callable[..., Tensor]:
    """A function of several dimensions, the last of which may be half a spectrum."""
    source, last = kind

    def transformed(input: Any, s: Any, dim: Any, norm: Any) -> Tensor:
        node = source(name, input)
        axes, sizes = _axes_of(name, node, s, dim)
        rest = list(zip(axes[:-1], sizes[:-1], strict=True))[::-1]
        if last is _to_half:  # first, while the numbers are real
            node = last(name, node, sizes[-1], axes[-1], norm, inverse)
        for axis, size in rest:
            node = _complex(name, node, size, axis, norm, inverse)
        if last is not _to_half:
            node = last(name, node, sizes[-1], axes[-1], norm, inverse)
        return wrap(node)

    if rank is None:

        def function(input: Tensor, s: Any = None, dim: Any = None, norm: Any = None) -> Tensor:
            return transformed(input, s, dim, norm)
    else:

        def function(input: Tensor, s: Any = None, dim: Any = (-2, -1), norm: Any = None) -> Tensor:
            return transformed(input, s, dim, norm)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc + _SEVERAL
    return function


_ONE = """

    ``out[k] = scale * sum over j of input[j] * exp(-+ 2 pi i j k / n)``

    Args:
        n: points of each row, which is cut or followed by zeros.
        dim: the dimension.
        norm: ``"backward"`` (1 / n for inverse transforms, the default), ``"forward"`` (1 / n for
            the others) or ``"ortho"`` (1 / sqrt(n) for both).
    """
_SEVERAL = """

    Args:
        s: points along each dimension, which is cut or followed by zeros; -1 leaves it.
        dim: the dimensions; of a half spectrum it is the last of them.
        norm: ``"backward"`` (1 / n for inverse transforms, the default), ``"forward"`` (1 / n for
            the others) or ``"ortho"`` (1 / sqrt(n) for both); n is the number of all points.
    """

fft = _one("fft", COMPLEX, False, "The Fourier transform of rows.")
ifft = _one("ifft", COMPLEX, True, "The inverse Fourier transform of rows.")
rfft = _one("rfft", TO_HALF, False, "The first half of the spectrum of real rows, n // 2 + 1.")
irfft = _one("irfft", FROM_HALF, True, "Real rows of n points from half of their spectrum.")
hfft = _one("hfft", FROM_HALF, False, "The real spectrum of rows of which half is given.")
ihfft = _one("ihfft", TO_HALF, True, "Half of the rows whose spectrum is real; inverse of `hfft`.")
fft2 = _several("fft2", COMPLEX, False, 2, "The Fourier transform of matrices.")
ifft2 = _several("ifft2", COMPLEX, True, 2, "The inverse Fourier transform of matrices.")
rfft2 = _several("rfft2", TO_HALF, False, 2, "Half of the spectrum of real matrices.")
irfft2 = _several("irfft2", FROM_HALF, True, 2, "Real matrices from half of their spectrum.")
hfft2 = _several(
    "hfft2", FROM_HALF, False, 2, "The real spectrum of matrices of which half is given."
)
ihfft2 = _several("ihfft2", TO_HALF, True, 2, "Half of the matrices whose spectrum is real.")
fftn = _several("fftn", COMPLEX, False, None, "The Fourier transform in several dimensions.")
ifftn = _several("ifftn", COMPLEX, True, None, "The inverse transform in several dimensions.")
rfftn = _several("rfftn", TO_HALF, False, None, "Half of the spectrum of real numbers.")
irfftn = _several("irfftn", FROM_HALF, True, None, "Real numbers from half of their spectrum.")
hfftn = _several("hfftn", FROM_HALF, False, None, "The real spectrum where half is given.")
ihfftn = _several("ihfftn", TO_HALF, True, None, "Half of what has this real spectrum.")


# Frequencies --------------------------------------------------------------------------------------


def _frequencies(
    numbers: Any, n: int, d: float, dtype: Any, device: Any, requires_grad: bool
) -> Tensor:
    wanted = get_default_dtype() if dtype is None else as_dtype(dtype)
    values = numbers.astype(wanted.numpy) * wanted.numpy.type(1 / (n * d))
    return creation.tensor(values, dtype=wanted, device=device, requires_grad=requires_grad)


def fftfreq(
    n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """The frequency of each element of `fft`, in cycles per unit of `d`.

    Args:
        n: points of the transform.
        d: between two of them.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.fft.fftfreq(4, device="cpu").tolist()
        [0.0, 0.25, -0.5, -0.25]
    """
    numbers = np.concatenate((np.arange((n + 1) // 2), np.arange(-(n // 2), 0)))
    return _frequencies(numbers, n, d, dtype, device, requires_grad)


def rfftfreq(
    n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """The frequency of each element of `rfft`, in cycles per unit of `d`.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.fft.rfftfreq(4, device="cpu").tolist()
        [0.0, 0.25, 0.5]
    """
    return _frequencies(np.arange(n // 2 + 1), n, d, dtype, device, requires_grad)


def _shifted(input: Tensor, dim: Any, back: bool) -> Tensor:
    rank = len(input.node.shape)
    dims: Sequence[int] = range(rank) if dim is None else (dim,) if isinstance(dim, int) else dim
    if not dims:
        return input.clone()
    halves = [input.node.shape[axis] // 2 for axis in dims]
    return roll(input, tuple(-half if back else half for half in halves), tuple(dims))


def fftshift(input: Tensor, dim: Any = None) -> Tensor:
    """The frequency 0 in the middle of each of the dimensions, or of all.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.fft.fftshift(tc.fft.fftfreq(4, device="cpu")).tolist()
        [-0.5, -0.25, 0.0, 0.25]
    """
    return _shifted(input, dim, False)


def ifftshift(input: Tensor, dim: Any = None) -> Tensor:
    """The inverse of `fftshift`: the frequency 0 at the beginning."""
    return _shifted(input, dim, True)
