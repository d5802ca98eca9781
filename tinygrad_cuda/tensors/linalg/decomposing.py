"""LU, LDL and Householder factors: LAPACK on the host through SciPy, gradients on the device.

Only the square part of an LU has a rule of its own; the rest are compositions of solutions.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.core.locks import forks_wait
from tinygrad_cuda.core.shapes import broadcast
from tinygrad_cuda.graph.node import mode
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.tensors import shaping
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.creation import buffer_node
from tinygrad_cuda.tensors.linalg import factorizing
from tinygrad_cuda.tensors.linalg.factorizing import require_matrix, solve_triangular

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "geqrf", "lu_unpack", "ormqr", "pca_lowrank", "svd_lowrank", "triangular_solve",
]  # fmt: skip

Array = np.ndarray[Any, Any]
# LAPACK's for NumPy's, of a type.
LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}


class LUFactor(NamedTuple):
    """What `lu_factor` gives."""

    LU: Tensor
    pivots: Tensor


class LUFactorInfo(NamedTuple):
    """What `lu_factor_ex` gives."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


class PLU(NamedTuple):
    """What `lu` and `lu_unpack` give."""

    P: Tensor
    L: Tensor
    U: Tensor


class LDLFactor(NamedTuple):
    """What `ldl_factor` gives."""

    LD: Tensor
    pivots: Tensor


class LDLFactorInfo(NamedTuple):
    """What `ldl_factor_ex` gives."""

    LD: Tensor
    pivots: Tensor
    info: Tensor


class Geqrf(NamedTuple):
    """What `geqrf` gives."""

    a: Tensor
    tau: Tensor


class TriangularSolution(NamedTuple):
    """What `triangular_solve` gives."""

    solution: Tensor
    cloned_coefficient: Tensor


class LowRank(NamedTuple):
    """What `svd_lowrank` and `pca_lowrank` give."""

    U: Tensor
    S: Tensor
    V: Tensor


def _each(name: str, function: Callable[..., tuple[Any, ...]], *arrays: Array) -> list[Array]:
    """A LAPACK routine for every matrix of a batch; its parts stacked."""
    with forks_wait:
        import scipy.linalg.lapack

    batch = arrays[0].shape[:-2]
    kind = LETTERS[arrays[0].dtype.char]
    routine = getattr(scipy.linalg.lapack, kind + name)
    with forks_wait:
        results = [
            function(routine, *(array[index] for array in arrays)) for index in np.ndindex(batch)
        ]
    return [np.stack(part).reshape((*batch, *np.shape(part[0]))) for part in zip(*results)]


def _buffer(array: Array, like: Tensor, dtype: Any) -> Tensor:
    return wrap(buffer_node(np.array(array, dtype, order="C"), like.device))


def _ungraded(op: str, result: Tensor, *sources: Tensor) -> Tensor:
    """A result whose gradient is asked for in vain: an error in the backward pass."""
    node = result.node
    for source in sources:
        hint = "solve, qr or cholesky have one"
        node = common.without_gradient(node, source.node, op, f"{op} has no gradient", hint)
    return wrap(node)


def _tracked(*tensors: Tensor) -> bool:
    return mode.now.gradients and any(tensor.requires_grad for tensor in tensors)


# LU -----------------------------------------------------------------------------------------------


def _getrf(array: Array) -> list[Array]:
    """The packed factors, LAPACK's pivots from 1, and its info."""
    m, n = array.shape[-2:]
    batch = array.shape[:-2]
    if not prod(array.shape):
        pivots = np.zeros((*batch, min(m, n)), np.int32)
        return [array.copy(), pivots, np.zeros(batch, np.int32)]

    def one(routine: Any, matrix: Array) -> tuple[Any, ...]:
        packed, pivots, info = routine(matrix)
        return packed, pivots + 1, np.int32(info)

    return _each("getrf", one, array)


def _rows(pivots: Array, m: int) -> Array:
    """The order of rows that the pivots (from 1) leave: row i of ``P.T @ A`` is row order[i]."""
    batch = pivots.shape[:-1]
    order = np.tile(np.arange(m), (*batch, 1))
    for index in np.ndindex(batch):
        line = order[index]
        for i, other in enumerate(pivots[index]):
            line[[i, other - 1]] = line[[other - 1, i]]
    return order


def _permutation(pivots: Tensor, m: int, like: Tensor) -> Tensor:
    """P as a matrix of zeros and ones."""
    order = _rows(pivots.array().astype(np.int64), m)
    return _buffer(np.swapaxes(np.eye(m)[order], -1, -2), like, like.dtype.numpy)


def _factor(op: str, A: Tensor, pivot: bool) -> tuple[Tensor, Tensor, Tensor]:
    A = require_matrix(op, A)
    if not pivot:
        raise ArgumentError(
            op, "pivots are always chosen", expect="pivot=True", actual="pivot=False"
        )
    packed, pivots, info = _getrf(A.array())
    positions = _buffer(pivots, A, np.int32)
    status = _buffer(info, A, np.int32)
    if not _tracked(A):
        return _buffer(packed, A, A.dtype.numpy), positions, status
    k = min(A.shape[-2:])
    permuted = _permutation(positions, A.shape[-2], A).mT @ A
    square = _packed_square(permuted[..., :k, :k], packed[..., :k, :k])
    if A.shape[-2] > k:
        rest = solve_triangular(square.triu(), permuted[..., k:, :], upper=True, left=False)
        return shaping.cat([square, rest], -2), positions, status
    if A.shape[-1] > k:
        rest = solve_triangular(square, permuted[..., k:], upper=False, unitriangular=True)
        return shaping.cat([square, rest], -1), positions, status
    return square, positions, status


def _packed_square(A: Tensor, packed: Array) -> Tensor:
    """The packed factors of square matrices whose rows are in order already."""

    def backward(gs: list[Any], results: list[Any]) -> list[Tensor | None]:
        (g,), (LU,) = gs, results
        lower = _unit_lower(LU)
        inner = (lower.mH @ shaping.tril(g, -1)).tril(-1)
        inner = inner + (shaping.triu(g) @ LU.triu().mH).triu()
        left = solve_triangular(LU.mH, inner, upper=True, unitriangular=True)
        return [solve_triangular(LU.triu().mH, left, upper=False, left=False)]

    return factorizing._recorded([packed], (A,), backward)[0]


def _unit_lower(LU: Tensor) -> Tensor:
    m, n = LU.shape[-2:]
    k = min(m, n)
    one = _buffer(np.eye(m, k), LU, LU.dtype.numpy)
    return LU[..., :k].tril(-1) + one


def lu_factor(A: Tensor, *, pivot: bool = True) -> LUFactor:
    """Both LU factors in one matrix, and the rows that were exchanged, counted from 1.

    Args:
        A: (.., m, n)
        pivot: must be True.
    """
    return LUFactor(*_factor("lu_factor", A, pivot)[:2])


def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> LUFactorInfo:
    """`lu_factor` with an int32: the first zero on U's diagonal, counted from 1, or 0."""
    return LUFactorInfo(*_factor("lu_factor_ex", A, pivot))


def lu(A: Tensor, *, pivot: bool = True) -> PLU:
    """``A == P @ L @ U`` with a permutation, a unit lower and an upper triangle.

    Example:
        >>> import tinygrad_cuda as tc
        >>> P, L, U = tc.linalg.lu(tc.tensor([[0.0, 2.0], [4.0, 1.0]], device="cpu"))
        >>> P.tolist(), U.tolist()
        ([[0.0, 1.0], [1.0, 0.0]], [[4.0, 1.0], [0.0, 2.0]])
    """
    LU, pivots, _ = _factor("lu", A, pivot)
    return lu_unpack(LU, pivots)


def lu_packed(A: Tensor, pivot: bool = True, get_infos: bool = False) -> Any:
    """`tc.linalg.lu_factor`; with `get_infos` its info too."""
    factors = _factor("lu", A, pivot)
    return LUFactorInfo(*factors) if get_infos else LUFactor(*factors[:2])


def lu_unpack(
    LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> PLU:
    """The permutation and the factors of what `lu_factor` gives; empty if not asked for."""
    m, n = LU_data.shape[-2:]
    k = min(m, n)
    none = LU_data.new_zeros(0)
    P = _permutation(LU_pivots, m, LU_data) if unpack_pivots else none
    if not unpack_data:
        return PLU(P, none, none)
    return PLU(P, _unit_lower(LU_data), LU_data[..., :k, :].triu())


def lu_solve(
    LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    """X with ``A @ X == B``, from what `lu_factor` gives for A.

    Args:
        left: False solves ``X @ A == B``.
        adjoint: the same for ``A.mH``.
    """
    require_matrix("lu_solve", LU, square=True)
    if not left:
        turned: Tensor = lu_solve(LU, pivots, B.mH, adjoint=not adjoint).mH
        return turned
    P = _permutation(pivots, LU.shape[-1], LU)
    if adjoint:
        inner = solve_triangular(LU.triu().mH, B, upper=False)
        return P @ solve_triangular(LU.mH, inner, upper=True, unitriangular=True)
    inner = solve_triangular(LU, P.mT @ B, upper=False, unitriangular=True)
    return solve_triangular(LU.triu(), inner, upper=True)


def lu_solve_of(b: Tensor, LU_data: Tensor, LU_pivots: Tensor) -> Tensor:
    """`tc.linalg.lu_solve` with the right side first."""
    return lu_solve(LU_data, LU_pivots, b)


def triangular_solve(
    b: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> TriangularSolution:
    """`tc.linalg.solve_triangular` with the right side first, and a copy of A."""
    matrix = A.mT if transpose else A
    side = upper != transpose
    solution = solve_triangular(matrix, b, upper=side, unitriangular=unitriangular)
    return TriangularSolution(solution, shaping.clone(A))


# LDL ----------------------------------------------------------------------------------------------


def _symmetric(A: Tensor, hermitian: bool) -> str:
    """How LAPACK's routines for such matrices begin."""
    return "he" if hermitian and A.dtype.is_complex else "sy"


def ldl_factor_ex(
    A: Tensor, *, hermitian: bool = False, check_errors: bool = False
) -> LDLFactorInfo:
    """`ldl_factor` with an int32: the first zero of D, counted from 1, or 0."""
    A = require_matrix("ldl_factor", A, square=True)
    array = A.array()

    def one(routine: Any, matrix: Array) -> tuple[Any, ...]:
        packed, pivots, info = routine(matrix, lower=1)
        # LAPACK leaves the other triangle; it is cleared.
        return np.tril(packed), pivots, np.int32(info)

    if prod(array.shape):
        packed, pivots, info = _each(_symmetric(A, hermitian) + "trf", one, array)
    else:
        packed, pivots = array, np.zeros(array.shape[:-1], np.int32)
        info = np.zeros(array.shape[:-2], np.int32)
    factor = _ungraded("ldl_factor", _buffer(packed, A, A.dtype.numpy), A)
    return LDLFactorInfo(factor, _buffer(pivots, A, np.int32), _buffer(info, A, np.int32))


def ldl_factor(A: Tensor, *, hermitian: bool = False) -> LDLFactor:
    """The Bunch-Kaufman factors of symmetric matrices, packed in one; has no gradient.

    Args:
        A: (.., n, n), of which the lower triangle is read.
        hermitian: complex matrices are Hermitian; changes nothing for real numbers.
    """
    return LDLFactor(*ldl_factor_ex(A, hermitian=hermitian)[:2])


def ldl_solve(LD: Tensor, pivots: Tensor, B: Tensor, *, hermitian: bool = False) -> Tensor:
    """X with ``A @ X == B``, from what `ldl_factor` gives for A; has no gradient."""
    LD = require_matrix("ldl_solve", LD, square=True)
    n = LD.shape[-1]
    batch = broadcast("ldl_solve", tuple(LD.shape[:-2]), tuple(B.shape[:-2]))
    packed = np.broadcast_to(LD.array(), (*batch, n, n))
    right = np.broadcast_to(B.array(), (*batch, *B.shape[-2:]))
    positions = np.broadcast_to(pivots.array(), (*batch, n))[..., None]

    def one(routine: Any, matrix: Array, order: Array, b: Array) -> tuple[Any, ...]:
        return (routine(matrix, order[:, 0], b, lower=1)[0],)

    if not prod(right.shape):
        return _ungraded("ldl_solve", _buffer(right, B, B.dtype.numpy), LD, B)
    name = _symmetric(LD, hermitian) + "trs"
    solution = _each(name, one, packed, positions, right)[0]
    return _ungraded("ldl_solve", _buffer(solution, B, B.dtype.numpy), LD, B)


# Householder reflections --------------------------------------------------------------------------


def geqrf(input: Tensor) -> Geqrf:
    """The reflections whose product is Q, and R, packed in one matrix; has no gradient."""
    A = require_matrix("geqrf", input)
    array = A.array()
    if not prod(array.shape):
        tau = np.zeros((*array.shape[:-2], min(array.shape[-2:])))
        return Geqrf(shaping.clone(A), _buffer(tau, A, A.dtype.numpy))
    packed, tau = _each("geqrf", lambda routine, matrix: routine(matrix)[:2], array)
    parts = (_buffer(packed, A, A.dtype.numpy), _buffer(tau, A, A.dtype.numpy))
    return Geqrf(*[_ungraded("geqrf", part, A) for part in parts])


def _reflections(op: str, A: Tensor, tau: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Each vector as a column, with its factor."""
    require_matrix(op, A)
    m, n = A.shape[-2:]
    k = tau.shape[-1]
    if k > min(m, n):
        raise ShapeError(
            op, "more factors than columns", expect=f"at most {min(m, n)}", actual=str(k)
        )
    unit = _unit_lower(A)
    return [(unit[..., :, i : i + 1], tau[..., i : i + 1].unsqueeze(-1)) for i in range(k)]


def householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """The first columns of ``(I - tau_0 v_0 v_0.mH) (I - tau_1 v_1 v_1.mH) ...``.

    Args:
        A: (.., m, n), the vectors below its diagonal.
        tau: (.., k), k <= n <= m.
    """
    pairs = _reflections("householder_product", A, tau)
    m, n = A.shape[-2:]
    start = np.broadcast_to(np.eye(m, n), (*A.shape[:-2], m, n))
    Q = _buffer(start, A, A.dtype.numpy)
    if not pairs and _tracked(A):
        return wrap(common.with_history(Q.node, A.node, passes=False))
    for v, factor in reversed(pairs):
        Q = Q - factor * (v @ (v.mH @ Q))
    return Q


def ormqr(
    input: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False
) -> Tensor:
    """``Q @ other`` for the whole Q of `geqrf`.

    Args:
        left: False gives ``other @ Q``.
        transpose: Q.mH instead of Q.
    """
    if not left:
        turned: Tensor = ormqr(input, tau, other.mH, transpose=not transpose).mH
        return turned
    pairs = _reflections("ormqr", input, tau)
    result = other
    for v, factor in pairs if transpose else reversed(pairs):
        scale = factor.conj() if transpose else factor
        result = result - scale * (v @ (v.mH @ result))
    return shaping.clone(result) if result is other else result


# The largest singular values ----------------------------------------------------------------------


def svd_lowrank(A: Tensor, q: int | None = 6, niter: int | None = 2, M: Any = None) -> LowRank:
    """The `q` largest singular values and their vectors: ``A - M ~ U @ diag(S) @ V.mH``.

    Exact, by the whole SVD; `niter` changes nothing.
    """
    matrix = A if M is None else A - M
    U, S, Vh = factorizing.svd(matrix, full_matrices=False)
    count = min(6 if q is None else q, *A.shape[-2:])
    return LowRank(U[..., :count], S[..., :count], Vh.mH[..., :count])


def pca_lowrank(A: Tensor, q: int | None = None, center: bool = True, niter: int = 2) -> LowRank:
    """`svd_lowrank` of A, with the mean of its rows subtracted if `center`."""
    count = min(6, *A.shape[-2:]) if q is None else q
    return svd_lowrank(A - A.mean(-2, keepdim=True) if center else A, count)
