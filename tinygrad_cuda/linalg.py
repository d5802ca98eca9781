"""`tc.linalg`: norms, decompositions and solutions by PyTorch's names.

Decompositions are computed by NumPy on the host, also for tensors on a GPU; gradients are recorded
and run on the device.
"""

from __future__ import annotations

from math import inf, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tinygrad_cuda.core.errors import ArgumentError, LinAlgError, ShapeError
from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.core.shapes import normalize_axes, normalize_axis
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.tensors import math, reductions
from tinygrad_cuda.tensors.arguments import checked_names
from tinygrad_cuda.tensors.autocast import in_float32
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.creation import DTypeLike, buffer_node, eye
from tinygrad_cuda.tensors.indexing.selecting import where
from tinygrad_cuda.tensors.keywords import takes_out
from tinygrad_cuda.tensors.linalg import products
from tinygrad_cuda.tensors.linalg.decomposing import (
    householder_product,
    ldl_factor,
    ldl_factor_ex,
    ldl_solve,
    lu,
    lu_factor,
    lu_factor_ex,
    lu_solve,
)
from tinygrad_cuda.tensors.linalg.eigenvalues import eig, eigvals
from tinygrad_cuda.tensors.linalg.factorizing import (
    cholesky,
    det,
    eigh,
    eigvalsh,
    inv,
    lower_factors,
    matrix_exp,
    matrix_power,
    pinv,
    qr,
    require_matrix,
    slogdet,
    solve,
    solve_triangular,
    svd,
    svdvals,
)
from tinygrad_cuda.tensors.linalg.products import matmul, multi_dot, vecdot
from tinygrad_cuda.tensors.shaping import diagonal as _diagonal
from tinygrad_cuda.tensors.shaping import vander as _vander
from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "LinAlgError",
    "cholesky",
    "cholesky_ex",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "householder_product",
    "inv",
    "inv_ex",
    "ldl_factor",
    "ldl_factor_ex",
    "ldl_solve",
    "lstsq",
    "lu",
    "lu_factor",
    "lu_factor_ex",
    "lu_solve",
    "matmul",
    "matrix_exp",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "multi_dot",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_ex",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensorinv",
    "tensorsolve",
    "vander",
    "vecdot",
    "vector_norm",
]


class Lstsq(NamedTuple):
    """What `lstsq` gives."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


class InverseInfo(NamedTuple):
    """What `inv_ex` gives."""

    inverse: Tensor
    info: Tensor


class CholeskyInfo(NamedTuple):
    """What `cholesky_ex` gives."""

    L: Tensor
    info: Tensor


class SolutionInfo(NamedTuple):
    """What `solve_ex` gives."""

    result: Tensor
    info: Tensor


# Norms --------------------------------------------------------------------------------------------


@in_float32
def vector_norm(
    x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: DTypeLike = None
) -> Tensor:
    """``sum(|x|**ord) ** (1 / ord)`` along `dim`, or of all elements as one vector.

    Args:
        ord: a number, infinity for the largest magnitude, 0 for the count of other than zero.
    """
    return reductions.norm(x, float(ord), dim, keepdim, dtype=dtype)


@in_float32
def matrix_norm(
    A: Tensor,
    ord: Any = "fro",
    dim: tuple[int, int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: DTypeLike = None,
) -> Tensor:
    """A norm of matrices.

    Args:
        ord: ``"fro"``, ``"nuc"`` (the sum of singular values), 2 and -2 (the largest and the
            smallest singular value), 1 and -1 (of columns), inf and -inf (of rows).
        dim: the rows and the columns.
    """
    if A.ndim < 2:
        raise ShapeError(
            "matrix_norm", "needs matrices", expect="at least 2-d", actual=str(tuple(A.shape))
        )
    if ord == "fro":
        return reductions.norm(A, 2, dim, keepdim, dtype=dtype)
    A = A if dtype is None else A.to(dtype)
    row, column = normalize_axes("matrix_norm", dim, A.ndim)
    row, column = (normalize_axis("matrix_norm", axis, A.ndim) for axis in dim)
    if ord in ("nuc", 2, -2):
        values = svdvals(A.movedim((row, column), (-2, -1)))
        norm = (
            values.amin(-1) if ord == -2 else values.sum(-1) if ord == "nuc" else _largest(values)
        )
        if keepdim:
            first, second = sorted((row, column))
            norm = norm.unsqueeze(first).unsqueeze(second)
        return norm
    if ord not in (1, -1, inf, -inf):
        raise ArgumentError(
            "matrix_norm",
            "unknown order",
            expect="fro, nuc, 1, -1, 2, -2, inf or -inf",
            actual=repr(ord),
        )
    summed, chosen = (row, column) if ord in (1, -1) else (column, row)
    sums = A.abs().sum(summed, keepdim=True)
    extreme = _largest(sums, chosen, True) if ord > 0 else sums.amin(chosen, keepdim=True)
    return extreme if keepdim else extreme.squeeze((row, column))


def _largest(values: Tensor, dim: int = -1, keepdim: bool = False) -> Tensor:
    """The largest of numbers >= 0; 0 of none."""
    return values.amax(dim, keepdim) if values.shape[dim] else values.sum(dim, keepdim)


@in_float32
def norm(
    A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: DTypeLike = None
) -> Tensor:
    """A vector norm for one dimension, a matrix norm for two; of all elements without both."""
    if dim is None and ord is None:
        return vector_norm(A, 2, None, keepdim, dtype=dtype)
    if dim is None:
        if A.ndim == 2:
            return matrix_norm(A, ord, (0, 1), keepdim, dtype=dtype)
        if A.ndim > 2:
            raise ShapeError(
                "norm",
                "needs a vector or a matrix",
                expect="1-d or 2-d, or dim=",
                actual=str(tuple(A.shape)),
            )
        return vector_norm(A, ord, None, keepdim, dtype=dtype)
    axes = (dim,) if isinstance(dim, int) else tuple(dim)
    if len(axes) == 2 and ord is not None:
        return matrix_norm(A, ord, axes, keepdim, dtype=dtype)
    return vector_norm(A, 2 if ord is None else ord, axes, keepdim, dtype=dtype)


def cond(A: Tensor, p: Any = None) -> Tensor:
    """The condition number: ``norm(A, p) * norm(inv(A), p)``, of singular values without `p`.

    That of a singular matrix is infinite.
    """
    if not prod(A.shape[-2:]):
        return A.abs().sum((-2, -1))  # 0
    if p in (None, 2, -2):
        values = svdvals(A)
        largest, smallest = values.amax(-1), values.amin(-1)
        return smallest / largest if p == -2 else largest / smallest
    inverse, info = inv_ex(A)
    return (matrix_norm(A, p) * matrix_norm(inverse, p)).masked_fill(info > 0, inf)


def matrix_rank(
    A: Tensor,
    tol: float | None = None,
    hermitian: bool = False,
    *,
    atol: Any = None,
    rtol: Any = None,
) -> Tensor:
    """How many singular values are larger than max(atol, rtol * the largest); int64."""
    values = svdvals(A.detach())
    if tol is not None:
        atol, rtol = tol, 0.0
    atol, rtol = (x.item() if isinstance(x, Tensor) and not x.ndim else x for x in (atol, rtol))
    if rtol is None:
        given = atol is not None and (isinstance(atol, Tensor) or atol > 0)
        rtol = 0.0 if given else max(A.shape[-2:]) * float(np.finfo(A.dtype.numpy).eps)
    if not prod(A.shape):
        return (values > 0).sum(-1)
    least = values.amax(-1) * rtol
    limit = math.clamp(least, min=0.0 if atol is None else atol)
    return (values > limit.unsqueeze(-1)).sum(-1)


# Products and views -------------------------------------------------------------------------------


def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The cross products of vectors of 3 elements along `dim`."""
    return products.cross(input, other, dim)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """A view of the diagonals of matrices."""
    return _diagonal(A, offset, dim1, dim2)


def vander(x: Tensor, N: int | None = None) -> Tensor:
    """The powers 0 ... N - 1 of each element as a row."""
    return _vander(x if x.ndim else x.reshape(1), N, increasing=True)


# Solutions ----------------------------------------------------------------------------------------


@in_float32
def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Lstsq:
    """X with the least ``|A @ X - B|``, by the pseudo-inverse.

    Args:
        A: (.., m, n)
        B: (.., m, k), or vectors (.., m).
        driver: ``"gelsy"``, ``"gels"``, ``"gelsd"`` or ``"gelss"``; the solution is that of an
            SVD with each, and the driver decides what else is not empty.

    Returns:
        The solution; the squared residuals (empty unless m > n and the rank is full); the rank;
        the singular values.
    """
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    right = B.unsqueeze(-1) if vector else B
    solution = pinv(A, rcond) @ right
    m, n = A.shape[-2:]
    ranks = matrix_rank(A, rtol=rcond)
    residuals = none = A.real.new_zeros(0)
    if driver in ("gels", "gelsd", "gelss") and m > n and bool((ranks.array() == n).all()):
        gap = A @ solution - right
        residuals = (gap * gap.conj()).real.sum(-2)
    else:
        # As in PyTorch also those that are empty depend on both.
        residuals = wrap(common.nothing_written(none.node, A.node, B.node))
    no_ranks = wrap(buffer_node(np.zeros(0, np.int64), A.device))
    values = svdvals(A.detach()) if driver in ("gelsd", "gelss") else none
    # Made last: the one result that PyTorch saves, see graph/saved.py.
    result = wrap((solution.squeeze(-1) if vector else solution).node)
    return Lstsq(result, residuals, no_ranks if driver == "gels" else ranks, values)


def _info(A: Tensor) -> Tensor:
    return wrap(buffer_node(np.zeros(tuple(A.shape[:-2]), np.int32), A.device))


def inv_ex(A: Tensor, *, check_errors: bool = False) -> InverseInfo:
    """`inv` with an int32 for each matrix instead of an error.

    Args:
        A: (..., n, n)
        check_errors: raise, as `inv` does.

    Returns:
        the inverse, zero where there is none, and info: 0, or which pivot is the first that is
        zero, counted from 1.

    Example:
        >>> import tinygrad_cuda as tc
        >>> inv_ex(tc.tensor([[1.0, 2.0], [2.0, 4.0]], device="cpu")).info.item()
        2
    """
    try:
        return InverseInfo(inv(A), _info(A))
    except LinAlgError:
        if check_errors:
            raise
    regular, info, wrong = _regular(A)
    return InverseInfo(where(wrong, 0.0, inv(regular)), info)


def _regular(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Matrices with ones in place of singular ones, the first zero pivots, and which these are."""
    info = lu_factor_ex(A.detach()).info
    wrong = (info != 0).unsqueeze(-1).unsqueeze(-1)
    one = eye(A.shape[-1], dtype=A.dtype, device=A.device)
    return where(wrong, one, A), info, wrong


def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> CholeskyInfo:
    """`cholesky` with an int32 for each matrix instead of an error.

    Args:
        A: (..., n, n)
        upper: as of `cholesky`.
        check_errors: raise, as `cholesky` does.

    Returns:
        L and info: 0, or the order k of the first leading minor that is not positive definite. L
        then has its first k - 1 columns, and behind them those of A, as LAPACK leaves them.

    Example:
        >>> import tinygrad_cuda as tc
        >>> cholesky_ex(tc.tensor([[1.0, 2.0], [2.0, 1.0]], device="cpu")).info.item()
        2
    """
    A = require_matrix("cholesky", A, square=True)
    orders = _failing_minors(A.array())
    if check_errors or not orders.any():
        return CholeskyInfo(cholesky(A, upper=upper), _info(A))
    info = wrap(buffer_node(orders, A.device))
    wrong = (info != 0).unsqueeze(-1).unsqueeze(-1)
    one = eye(A.shape[-1], dtype=A.dtype, device=A.device)
    factor = cholesky(where(wrong, one, A), upper=upper)
    begun = wrap(buffer_node(_begun_factors(A.array(), orders), A.device))
    return CholeskyInfo(where(wrong, begun.mH if upper else begun, factor), info)


def _begun_factors(
    matrices: np.ndarray[Any, Any], orders: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """The columns of Cholesky factors before the minors that have none, behind them A's own."""
    factors = np.tril(matrices)
    for index in np.ndindex(*orders.shape):
        order, matrix = max(0, orders[index] - 1), matrices[index]
        first = np.linalg.cholesky(matrix[:order, :order])
        factors[index][:order, :order] = first
        factors[index][order:, :order] = np.linalg.solve(first.conj(), matrix[order:, :order].T).T
    return factors


def _failing_minors(matrices: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """For each matrix 0, or the order of the first leading minor without a Cholesky factor."""

    def factored(matrix: np.ndarray[Any, Any]) -> bool:
        try:
            lower_factors(matrix)
        except np.linalg.LinAlgError:
            return False
        return True

    def order(matrix: np.ndarray[Any, Any]) -> int:
        if factored(matrix):
            return 0
        good, bad = 0, len(matrix)  # once a minor fails, all larger ones do
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if factored(matrix[:middle, :middle]) else (good, middle)
        return bad

    orders = np.zeros(matrices.shape[:-2], np.int32)
    for index in np.ndindex(*orders.shape):
        orders[index] = order(matrices[index])
    return orders


def solve_ex(
    A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False
) -> SolutionInfo:
    """`solve` with an int32 for each matrix instead of an error, as `inv_ex` has it.

    Args:
        A, B, left: as of `solve`.
        check_errors: raise, as `solve` does.

    Returns:
        the solutions, zero where there are none, and info.
    """
    try:
        return SolutionInfo(solve(A, B, left=left), _info(A))
    except LinAlgError:
        if check_errors:
            raise
    regular, info, wrong = _regular(A)
    result = solve(regular, B, left=left)
    vectors = result.ndim < A.ndim
    return SolutionInfo(where(wrong.squeeze(-1) if vectors else wrong, 0.0, result), info)


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse of `tensordot` over the last dimensions: the first `ind` are one side."""
    left, right = tuple(A.shape[:ind]), tuple(A.shape[ind:])
    if prod(left) != prod(right):
        raise ShapeError(
            "tensorinv",
            "both sides must have as many elements",
            expect=str(prod(left)),
            actual=str(prod(right)),
        )
    return inv(A.reshape(prod(left), prod(right))).reshape(right + left)


def tensorsolve(A: Tensor, B: Tensor, dims: Any = None) -> Tensor:
    """X with ``tensordot(A, X, X.ndim) == B``."""
    if dims is not None:
        A = A.movedim(tuple(dims), tuple(range(A.ndim - len(dims), A.ndim)))
    shape = tuple(A.shape[B.ndim :])
    return solve(A.reshape(prod(B.shape), prod(shape)), B.reshape(-1)).reshape(shape)


# Not here -----------------------------------------------------------------------------------------


# Of torch.linalg these take `out`: a Tensor, or one for each result.
_WITH_OUT = """
    cholesky cholesky_ex cond cross det eig eigh eigvals eigvalsh householder_product inv inv_ex
    ldl_factor ldl_factor_ex ldl_solve lu lu_factor lu_factor_ex lu_solve matmul matrix_norm
    matrix_power matrix_rank multi_dot norm pinv qr slogdet solve solve_ex solve_triangular svd
    svdvals tensorinv tensorsolve vecdot vector_norm
"""
for _name in _WITH_OUT.split():
    globals()[_name] = takes_out(globals()[_name])
globals().update(checked_names(globals(), __name__, __all__))

if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
