"""The standard's extension for linear algebra; four of its functions are in the main namespace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tinygrad_cuda import linalg as L
from tinygrad_cuda.array_api import reductions as R
from tinygrad_cuda.array_api.operands import Axis, array, axes_of, common, joined_axes, with_kept
from tinygrad_cuda.core.dtypes import DType, finfo, int64
from tinygrad_cuda.core.errors import ShapeError
from tinygrad_cuda.tensors import functions as F
from tinygrad_cuda.tensors.tensor import Tensor


class EighResult(NamedTuple):
    """What `eigh` gives."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class QRResult(NamedTuple):
    """What `qr` gives."""

    Q: Tensor
    R: Tensor


class SlogdetResult(NamedTuple):
    """What `slogdet` gives."""

    sign: Tensor
    logabsdet: Tensor


class SVDResult(NamedTuple):
    """What `svd` gives."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The matrix product."""
    return F.matmul(*common("matmul", [x1, x2]))


def matrix_transpose(x: Tensor, /) -> Tensor:
    """The last two axes exchanged."""
    if array("matrix_transpose", x).ndim < 2:
        raise ShapeError(
            "matrix_transpose", "not a matrix", expect="two axes or more", actual=str(x.shape)
        )
    return x.mT


def tensordot(
    x1: Tensor, x2: Tensor, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> Tensor:
    """The sum of products over axes of both."""
    dims: Any = axes if isinstance(axes, int) else tuple(list(one) for one in axes)
    a, b = common("tensordot", [x1, x2])
    return F.tensordot(a, b, dims)


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The inner products of vectors along an axis, conj(x1) . x2."""
    a, b = common("vecdot", [x1, x2])
    a, b = a.movedim(axis, -1), b.movedim(axis, -1)
    if a.shape[-1] != b.shape[-1]:
        raise ShapeError(
            "vecdot", "vectors differ in length", expect=str(a.shape[-1]), actual=str(b.shape[-1])
        )
    return (a.conj() * b).sum(-1, dtype=a.dtype)


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """The triangular factor of a positive definite matrix."""
    return L.cholesky(x, upper=upper)


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The cross product of vectors of three elements."""
    a, b = common("cross", [x1, x2])
    return L.cross(a, b, dim=axis)


def det(x: Tensor, /) -> Tensor:
    """The determinant."""
    return L.det(x)


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """The elements on a diagonal of each matrix."""
    return F.diagonal(array("diagonal", x), offset, -2, -1)


def eigh(x: Tensor, /) -> EighResult:
    """Eigenvalues and eigenvectors of a symmetric matrix."""
    return EighResult(*L.eigh(x))


def eigvalsh(x: Tensor, /) -> Tensor:
    """The eigenvalues of a symmetric or Hermitian matrix."""
    return L.eigvalsh(x)


def inv(x: Tensor, /) -> Tensor:
    """The inverse matrix."""
    return L.inv(x)


def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    """The norm of each matrix."""
    return L.matrix_norm(x, ord, keepdim=keepdims)


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """The matrix to a whole power."""
    return L.matrix_power(x, n)


def matrix_rank(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """How many singular values are above `rtol` times the largest."""
    values = svdvals(x)
    limit = _tolerance(x, rtol)
    return R.sum((values > _column(limit) * F.amax(values, -1, keepdim=True)).to(int64), axis=-1)


def _column(limit: Any) -> Any:
    return limit.unsqueeze(-1) if isinstance(limit, Tensor) else limit


def _tolerance(x: Tensor, rtol: float | Tensor | None) -> Any:
    if rtol is not None:
        return rtol
    from_size = max(x.shape[-2:])
    return from_size * finfo(x.dtype).eps


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The products of each element of one vector with each of the other."""
    a, b = common("outer", [x1, x2])
    return a.reshape(-1, 1) * b.reshape(1, -1)


def pinv(x: Tensor, /, *, rtol: float | Tensor | None = None) -> Tensor:
    """The Moore-Penrose inverse."""
    return L.pinv(x, rtol=_tolerance(x, rtol))


def qr(x: Tensor, /, *, mode: str = "reduced") -> QRResult:
    """An orthogonal and an upper triangular factor."""
    return QRResult(*L.qr(x, mode))


def slogdet(x: Tensor, /) -> SlogdetResult:
    """Sign and logarithm of the magnitude of the determinant."""
    return SlogdetResult(*L.slogdet(x))


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The solution of x1 @ result = x2; x2 is a vector where it has one axis."""
    a, b = common("solve", [x1, x2])
    if b.ndim == 1:
        return L.solve(a, b.unsqueeze(-1)).squeeze(-1)
    return L.solve(a, b)


def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVDResult:
    """Singular values, with the vectors on both sides."""
    return SVDResult(*L.svd(x, full_matrices))


def svdvals(x: Tensor, /) -> Tensor:
    """The singular values."""
    return L.svdvals(x)


def trace(x: Tensor, /, *, offset: int = 0, dtype: DType | None = None) -> Tensor:
    """The sum of a diagonal of each matrix."""
    return R.sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def vector_norm(
    x: Tensor, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2
) -> Tensor:
    """The norm of vectors along axes."""
    axes = axes_of(array("vector_norm", x), axis)
    return with_kept(L.vector_norm(joined_axes(x, axes), ord, -1), x, axes, keepdims)


MAIN = ["matmul", "matrix_transpose", "tensordot", "vecdot"]
__all__ = [
    *MAIN, "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matrix_norm",
    "matrix_power", "matrix_rank", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals",
    "trace", "vector_norm",
]  # fmt: skip
