"""inv, solve, det, cholesky, qr, svd, eigh, ...: NumPy on the host, gradients on the device.

The matrices go to the host and the results come back (on cuda that is a round trip); so these
functions realize their input. Gradients are compositions of products and of these functions
themselves, so they can be differentiated again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tinygrad_cuda.core.dtypes import float32, float64
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, LinAlgError, ShapeError
from tinygrad_cuda.core.locks import forks_wait
from tinygrad_cuda.core.shapes import broadcast
from tinygrad_cuda.engine.cell import detached
from tinygrad_cuda.graph.node import Node, mode
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.tensors import math, shaping
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.creation import buffer_node
from tinygrad_cuda.tensors.indexing import selecting
from tinygrad_cuda.tensors.shaping import cat

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "cholesky_inverse", "cholesky_solve", "det", "logdet", "matrix_exp", "matrix_power",
    "slogdet",
]  # fmt: skip

Backward = Callable[[list[Any], list[Any]], "list[Tensor | None]"]


class QR(NamedTuple):
    """What `qr` gives."""

    Q: Tensor
    R: Tensor


class SVD(NamedTuple):
    """What `svd` gives."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class Eigh(NamedTuple):
    """What `eigh` gives."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class SlogDet(NamedTuple):
    """What `slogdet` gives."""

    sign: Tensor
    logabsdet: Tensor


# On the host --------------------------------------------------------------------------------------


def require_matrix(op: str, value: Any, square: bool = False) -> Tensor:
    """The Tensor's value, if it holds matrices of float32 or float64, or complex ones."""
    if not isinstance(value, TensorBase):
        raise DTypeError(
            op, "the operand is not a tensor", expect="a Tensor", actual=type(value).__name__
        )
    shape, dtype = value.node.shape, value.node.dtype
    if len(shape) < 2 or (square and shape[-1] != shape[-2]):
        raise ShapeError(
            op,
            "needs square matrices" if square else "needs matrices",
            expect="(.., n, n)" if square else "(.., m, n)",
            actual=str(shape),
        )
    if dtype not in (float32, float64) and not dtype.is_complex:
        raise DTypeError(
            op,
            "the dtype is not supported",
            expect="float32, float64 or complex of these",
            actual=dtype.name,
            hint="cast first, e.g. x.float()",
        )
    # A handle of its own: a gradient needs the value of now, whatever is written later.
    return wrap(value.node)


def _on_host(op: str, function: Callable[..., Any], *tensors: Tensor) -> list[np.ndarray[Any, Any]]:
    arrays = [tensor.array() for tensor in tensors]
    try:
        with forks_wait:
            results = function(*arrays)
    except np.linalg.LinAlgError as error:
        raise LinAlgError(
            op,
            "the computation failed",
            expect="matrices of full rank, or positive definite, without NaN",
            actual=str(error),
        ) from error
    return list(results) if isinstance(results, tuple) else [results]


def _iterated(function: Callable[..., Any]) -> Callable[..., Any]:
    """A factorization by iteration, which would not end for infinities in every LAPACK."""

    def checked(a: Any) -> Any:
        if not np.isfinite(a).all():
            raise np.linalg.LinAlgError("an element is infinite or NaN")
        return function(a)

    return checked


def _recorded(arrays: list[Any], sources: tuple[Tensor, ...], backward: Backward) -> list[Tensor]:
    """Arrays as Tensors with a history: `backward(cotangents, results)` gives the gradients.

    The results that backward sees carry this history themselves, so it can be differentiated. Real
    results of complex sources are real.
    """
    like = sources[0].node
    kinds = [like.dtype if a.dtype.kind == "c" else like.dtype.to_real() for a in arrays]
    nodes = [
        buffer_node(np.array(a, kind.numpy, order="C"), like.device)
        for a, kind in zip(arrays, kinds, strict=True)
    ]
    if not (mode.now.gradients and any(source.requires_grad for source in sources)):
        return [wrap(node) for node in nodes]
    reference: Any = None

    def function(*gs: Node | None) -> list[Node | None]:
        # A weak reference: the node holds this function.
        gradients = backward([None if g is None else wrap(g) for g in gs], _results(reference()))
        return [None if part is None else part.node for part in gradients]

    node = common.custom(
        *nodes, *(source.node for source in sources), results=len(nodes), function=function
    )
    reference = weakref.ref(node)
    return _results(node)


def _results(node: Node) -> list[Tensor]:
    if len(node.outputs) == 1:
        return [wrap(node)]
    return [wrap(common.output(node, index=k)) for k in range(len(node.outputs))]


# Inverse and solutions ----------------------------------------------------------------------------


def inv(A: Tensor) -> Tensor:
    """The inverse of square matrices.

    Raises:
        ArgumentError: a matrix is singular.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.linalg.inv(tc.tensor([[2.0, 0.0], [0.0, 4.0]], device="cpu")).tolist()
        [[0.5, 0.0], [0.0, 0.25]]
    """
    A = require_matrix("inv", A, square=True)
    arrays = _on_host("inv", np.linalg.inv, A)

    def backward(gs: list[Any], results: list[Any]) -> list[Tensor | None]:
        (g,), (inverse,) = gs, results
        return [-(inverse.mH @ g @ inverse.mH)]

    return _recorded(arrays, (A,), backward)[0]


def _is_vector(A: Tensor, B: Tensor) -> bool:
    """PyTorch's rule: B holds vectors if it is 1-d or has the shape of A without a dimension."""
    return B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """X with ``A @ X == B`` (or ``X @ A == B`` with ``left=False``).

    Args:
        A: (.., n, n)
        B: (.., n, k), or vectors (.., n).

    Raises:
        ArgumentError: a matrix is singular.
    """
    A = require_matrix("solve", A, square=True)
    if A.dtype is not B.dtype:
        raise DTypeError(
            "solve", "A and B have different dtypes", expect=A.dtype.name, actual=B.dtype.name
        )
    if not left:
        return solve(A.mT, B.mT).mT
    if _is_vector(A, B):
        return _solved(A, B.unsqueeze(-1)).squeeze(-1)
    return _solved(A, B)


def _solved(A: Tensor, B: Tensor) -> Tensor:
    batch = broadcast("solve", tuple(A.shape[:-2]), tuple(B.shape[:-2]))
    A = A.expand(*batch, *A.shape[-2:])
    B = B.expand(*batch, *B.shape[-2:])
    arrays = _on_host("solve", np.linalg.solve, A, B)

    def backward(gs: list[Any], results: list[Any]) -> list[Tensor | None]:
        (g,), (X,) = gs, results
        back = _solved(A.mH, g)
        return [-(back @ X.mH), back]

    return _recorded(arrays, (A, B), backward)[0]


def solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """`solve` with the upper or lower triangle of A alone; B is (.., n, k), never vectors.

    A zero on the diagonal divides as IEEE 754 has it: nothing raises, as in PyTorch; B is cast to
    the dtype of A.

    Args:
        unitriangular: take ones for the diagonal.

    Example:
        >>> import tinygrad_cuda as tc
        >>> A = tc.tensor([[2.0, 9.0], [4.0, 1.0]], device="cpu")
        >>> tc.linalg.solve_triangular(A, tc.ones(2, 1, device="cpu"), upper=False).tolist()
        [[0.5], [-1.0]]
    """
    A = require_matrix("solve_triangular", A, square=True)
    B = B.to(A.dtype)
    T = shaping.triu(A) if upper else shaping.tril(A)
    if unitriangular:
        strict = shaping.triu(A, 1) if upper else shaping.tril(A, -1)
        T = strict + _eye(A)
    if left:
        return _triangular_solved(T, B, upper)
    return _triangular_solved(T.mT, B.mT, not upper).mT


def _triangular_solved(T: Tensor, B: Tensor, upper: bool) -> Tensor:
    batch = broadcast("solve_triangular", tuple(T.shape[:-2]), tuple(B.shape[:-2]))
    T = T.expand(*batch, *T.shape[-2:])
    B = B.expand(*batch, *B.shape[-2:])
    arrays = _on_host("solve_triangular", partial(_substituted, upper=upper), T, B)

    def backward(gs: list[Any], results: list[Any]) -> list[Tensor | None]:
        (g,), (X,) = gs, results
        back = _triangular_solved(T.mH, g, not upper)
        return [-(back @ X.mH), back]

    return _recorded(arrays, (T, B), backward)[0]


def _substituted(t: Any, b: Any, upper: bool) -> Any:
    """The solution row by row, from the end of the diagonal that stands alone."""
    x, rows = np.array(b), range(t.shape[-1])
    with np.errstate(all="ignore"):
        for row in reversed(rows) if upper else rows:
            solved = slice(row + 1, None) if upper else slice(0, row)
            inner = t[..., row : row + 1, solved] @ x[..., solved, :]
            x[..., row, :] = (x[..., row, :] - inner[..., 0, :]) / t[..., row, row, None]
    return x


def _eye(A: Tensor) -> Tensor:
    """The identity of the size, dtype and device of A."""
    size = A.shape[-1]
    ones = A.new_ones(size)
    return shaping.diag(ones)


def det(A: Tensor) -> Tensor:
    """The determinant; its gradient needs an invertible matrix."""
    A = require_matrix("det", A, square=True)
    arrays = _on_host("det", np.linalg.det, A)

    def backward(gs: list[Any], results: list[Any]) -> list[Tensor | None]:
        (g,), (value,) = gs, results
        return [(g * value.conj()).unsqueeze(-1).unsqueeze(-1) * inv(A).mH]

    return _recorded(arrays, (A,), backward)[0]


def slogdet(A: Tensor) -> SlogDet:
    """The sign (of complex matrices the direction) and the logarithm of the determinant's size."""
    A = require_matrix("slogdet", A, square=True)
    arrays = _on_host("slogdet", lambda a: tuple(np.linalg.slogdet(a)), A)

    def backward(gs: list[Any], results: list[Any]) -> list[Tensor | None]:
        g = gs[1]
        if gs[0] is not None and A.dtype.is_complex:
            turn = (gs[0].conj() * results[0]).imag * -1j
            g = turn if g is None else g + turn
        return [None if g is None else g.unsqueeze(-1).unsqueeze(-1) * inv(A).mH]

    return SlogDet(*_recorded(arrays, (A,), backward))


def logdet(A: Tensor) -> Tensor:
    """The logarithm of the determinant; of real matrices NaN where that is negative."""
    sign, value = slogdet(A)
    if sign.dtype.is_complex:
        return math.add(sign.log(), value)
    logarithm: Tensor = selecting.where(sign < 0, float("nan"), value)
    return logarithm


# Factors ------------------------------------------------------------------------------------------


def lower_factors(matrices: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Cholesky factors, refused where a pivot is NaN or infinite: not every LAPACK does that."""
    factors = np.linalg.cholesky(matrices)
    if not np.isfinite(np.diagonal(factors, axis1=-2, axis2=-1)).all():
        raise np.linalg.LinAlgError("a pivot is not finite")
    return factors


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The lower L with ``A == L @ L.mH`` (the upper one if `upper`) of positive definite matrices.

    Raises:
        ArgumentError: a matrix is not positive definite.
    """
    A = require_matrix("cholesky", A, square=True)
    arrays = _on_host("cholesky", lower_factors, A)

    def backward(gs: list[Any], results: list[Any]) -> list[Tensor | None]:
        (g,), (L,) = gs, results
        inner = shaping.tril(L.mH @ g)
        middle = 0.5 * (inner + shaping.tril(inner, -1).mH)
        right = solve_triangular(L, middle, upper=False, left=False)
        return [solve_triangular(L.mH, right, upper=True)]

    L = _recorded(arrays, (A,), backward)[0]
    return L.mH if upper else L


def _lower_factor(L: Tensor, upper: bool) -> Tensor:
    """One triangle of the factor; as in PyTorch, the gradient goes to the whole matrix."""
    triangle = shaping.triu(L) if upper else shaping.tril(L)
    low = (
        wrap(common.with_history(detached(triangle.node), L.node)) if L.requires_grad else triangle
    )
    return low.mH if upper else low


def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """The inverse of the matrix whose Cholesky factor is given."""
    L = require_matrix("cholesky_inverse", L, square=True)
    low = _lower_factor(L, upper)
    return inv(low @ low.mH)


def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """X with ``A @ X == B``, from the Cholesky factor of A."""
    L = require_matrix("cholesky_solve", L, square=True)
    low = _lower_factor(L, upper)
    return _solved(low.mH, _solved(low, B))


def qr(A: Tensor, mode: str = "reduced") -> QR:
    """``A == Q @ R`` with orthonormal columns in Q and an upper triangular R.

    Args:
        mode: ``"reduced"``, ``"complete"`` (Q square; no gradient for tall matrices) or ``"r"``
            (Q empty).
    """
    A = require_matrix("qr", A)
    if mode not in ("reduced", "complete", "r"):
        raise ArgumentError(
            "qr", "unknown mode", expect="reduced, complete or r", actual=repr(mode)
        )
    if mode == "r":
        parts = (A.new_zeros(0), _qr(A.detach(), "reduced").R)
    elif mode == "complete" and A.shape[-2] > A.shape[-1]:
        parts = _qr(A.detach(), mode)
    else:
        return _qr(A, mode)
    problem, hint = f"mode {mode!r} has no gradient", "use mode='reduced'"
    return QR(*[
        wrap(common.without_gradient(part.node, A.node, "qr", problem, hint)) for part in parts
    ])  # fmt: skip


def _qr(A: Tensor, mode: str) -> QR:
    m, n = A.shape[-2:]
    kind: Any = mode
    arrays = _on_host("qr", lambda a: tuple(np.linalg.qr(a, kind)), A)

    def backward(gs: list[Any], results: list[Any]) -> list[Tensor | None]:
        Q, R = results
        gQ = math.mul(Q, 0) if gs[0] is None else gs[0]
        gR = math.mul(R, 0) if gs[1] is None else gs[1]
        if m >= n:
            return [_qr_square(Q, R, gQ, gR)]
        # A = [X | Y] with X square: Y = Q V.
        X_part = R.narrow(-1, 0, m)
        Y = A.narrow(-1, m, n - m)
        gV = gR.narrow(-1, m, n - m)
        gX = _qr_square(Q, X_part, gQ + Y @ gV.mH, gR.narrow(-1, 0, m))
        return [_beside(gX, Q @ gV)]

    return QR(*_recorded(arrays, (A,), backward))


def _beside(left: Any, right: Any) -> Tensor:
    """Two matrices side by side."""
    return cat([left, right], -1)


def _qr_square(Q: Any, R: Any, gQ: Any, gR: Any) -> Tensor:
    M = R @ gR.mH - gQ.mH @ Q
    strict = shaping.tril(M, -1)
    symmetric = strict + strict.mH + M.real * _eye(R)
    adjoint: Tensor = solve(R, (gQ + Q @ symmetric).mH).mH
    return adjoint


def svd(A: Tensor, full_matrices: bool = True) -> SVD:
    """``A == U @ diag(S) @ Vh``, the singular values in descending order.

    Args:
        full_matrices: U and Vh square; with False they have min(m, n) columns and rows. Only the
            first min(m, n) of them take part in a gradient. The gradient of U and Vh needs
            different singular values.
    """
    A = require_matrix("svd", A)
    k = min(A.shape[-2:])
    arrays = _on_host("svd", _iterated(lambda a: tuple(np.linalg.svd(a, full_matrices=False))), A)
    reduced = SVD(*_recorded(arrays, (A,), _svd_backward))
    if not full_matrices or A.shape[-2] == A.shape[-1]:
        return reduced
    full = _on_host("svd", _iterated(lambda a: tuple(np.linalg.svd(a, full_matrices=True))), A)
    like = A.node
    U, Vh = (
        wrap(buffer_node(np.ascontiguousarray(full[i], like.dtype.numpy), like.device))
        for i in (0, 2)
    )
    if A.shape[-2] > k:
        return SVD(_beside(reduced.U, U.narrow(-1, k, U.shape[-1] - k)), reduced.S, reduced.Vh)
    rest = Vh.narrow(-2, k, Vh.shape[-2] - k)
    return SVD(reduced.U, reduced.S, _beside(reduced.Vh.mT, rest.mT).mT)


def _svd_backward(gs: list[Any], results: list[Any]) -> list[Tensor | None]:
    (gU, gS, gVh), (U, S, Vh) = gs, results
    V = Vh.mH
    eye = _eye(S.unsqueeze(-1) * S.unsqueeze(-2))
    middle = eye * 0 if gS is None else eye * gS.unsqueeze(-1)
    squares = S * S
    gap = squares.unsqueeze(-2) - squares.unsqueeze(-1) + eye
    if gU is not None:
        inner = U.mH @ gU
        skew = inner - inner.mH
        middle = middle + skew / gap * S.unsqueeze(-2)
        if U.dtype.is_complex:  # the phases of both vectors turn against each other
            middle = middle + skew * eye / (2 * S.unsqueeze(-2))
    if gVh is not None:
        inner = Vh @ gVh.mH
        middle = middle + S.unsqueeze(-1) * ((inner - inner.mH) / gap)
    total = U @ middle.to(U.dtype) @ Vh
    if gU is not None and U.shape[-2] > U.shape[-1]:
        part = gU / S.unsqueeze(-2)
        total = total + (part - U @ (U.mH @ part)) @ Vh
    if gVh is not None and V.shape[-2] > V.shape[-1]:
        part = U @ (gVh / S.unsqueeze(-1))
        total = total + part - (part @ V) @ Vh
    return [total]


class OldSVD(NamedTuple):
    """What ``tc.svd`` gives: V is the transpose of Vh, for complex numbers the adjoint."""

    U: Tensor
    S: Tensor
    V: Tensor


def svd_v(input: Tensor, some: bool = True, compute_uv: bool = True) -> OldSVD:
    """``input == U @ diag(S) @ V.mH``; `tc.linalg.svd` gives ``V.mH``.

    Args:
        some: U and V have min(m, n) columns, else they are square.
        compute_uv: accepted; U and V are computed anyway.
    """
    U, S, Vh = svd(input, full_matrices=not some)
    return OldSVD(U, S, Vh.mH)


def qr_of(input: Tensor, some: bool = True) -> QR:
    """``input == Q @ R``; `some` is ``mode="reduced"`` of `tc.linalg.qr`, else ``"complete"``."""
    return qr(input, "reduced" if some else "complete")


def cholesky_of(input: Tensor, upper: bool = False) -> Tensor:
    """The Cholesky factor; see `tc.linalg.cholesky`."""
    return cholesky(input, upper=upper)


def svdvals(A: Tensor) -> Tensor:
    """The singular values in descending order."""
    return svd(A, full_matrices=False).S


def eigh(A: Tensor, UPLO: str = "L") -> Eigh:
    """Eigenvalues in ascending order and eigenvectors (columns) of symmetric or Hermitian matrices.

    Args:
        UPLO: the triangle that is read, ``"L"`` or ``"U"``.
    """
    A = require_matrix("eigh", A, square=True)
    if UPLO.upper() not in ("L", "U"):
        raise ArgumentError("eigh", "unknown triangle", expect="'L' or 'U'", actual=repr(UPLO))
    side: Any = UPLO.upper()
    arrays = _on_host("eigh", _iterated(lambda a: tuple(np.linalg.eigh(a, side))), A)

    def backward(gs: list[Any], results: list[Any]) -> list[Tensor | None]:
        (gL, gV), (values, vectors) = gs, results
        eye = _eye(A)
        middle = eye * 0 if gL is None else eye * gL.unsqueeze(-1)
        if gV is not None:
            gap = values.unsqueeze(-2) - values.unsqueeze(-1) + eye
            inner = vectors.mH @ gV
            # The part that turns the vectors: A and its gradient are symmetric or Hermitian.
            middle = middle + (inner - inner.mH) * (1 - eye) / (2 * gap)
        return [vectors @ middle @ vectors.mH]

    return Eigh(*_recorded(arrays, (A,), backward))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of symmetric or Hermitian matrices in ascending order."""
    return eigh(A, UPLO).eigenvalues


# Pseudo-inverse and functions ---------------------------------------------------------------------


def _of_each(tolerance: float | Tensor | None) -> np.ndarray[Any, Any] | None:
    """A tolerance of each matrix, to be compared with its singular values."""
    if isinstance(tolerance, TensorBase):
        array = tolerance.array()
        return array[..., None] if array.ndim else array
    return None if tolerance is None else np.asarray(tolerance)


def pinv(
    A: Tensor,
    rcond: float | Tensor | None = None,
    hermitian: bool = False,
    *,
    rtol: float | Tensor | None = None,
    atol: float | Tensor | None = None,
) -> Tensor:
    """The Moore-Penrose inverse; singular values up to max(atol, rtol * largest) count as zero.

    Args:
        rcond: another name of `rtol`; max(m, n) * eps when left out and atol is not above 0.
        rtol, atol: numbers, or Tensors with one for each matrix.
    """
    A = require_matrix("pinv", A, square=hermitian)
    absolute, relative = _of_each(atol), _of_each(rcond if rtol is None else rtol)
    absolute = np.zeros(()) if absolute is None else absolute
    if relative is None:
        usual = max(A.shape[-2:]) * float(np.finfo(A.dtype.numpy).eps)
        relative = np.where(absolute > 0, 0.0, usual)
    m, n = A.shape[-2:]

    def host(a: Any) -> Any:
        if not prod(a.shape):
            return np.zeros((*a.shape[:-2], n, m), a.dtype)
        if hermitian:
            low = np.tril(a, -1)
            a = low + np.swapaxes(low.conj(), -1, -2) + a.real * np.eye(n, dtype=a.real.dtype)
        U, S, Vh = np.linalg.svd(a, full_matrices=False)
        limit = np.maximum(absolute, relative * S[..., :1])
        inverse = np.where(limit < S, 1 / np.where(limit < S, S, 1), 0)
        V, Uh = np.swapaxes(Vh.conj(), -1, -2), np.swapaxes(U.conj(), -1, -2)
        return V * inverse[..., None, :] @ Uh

    arrays = _on_host("pinv", _iterated(host), A)

    def backward(gs: list[Any], results: list[Any]) -> list[Tensor | None]:
        # Golub and Pereyra, 1973.
        (g,), (P,) = gs, results
        if m <= n:
            K = g.mH @ P
            right = K @ P.mH
            return [-(P @ K).mH + right - (A @ P) @ right + (P.mH @ P) @ (g.mH - K @ A)]
        K = P @ g.mH
        left = P.mH @ K
        return [-(K @ P).mH + (g.mH - A @ K) @ P @ P.mH + left - (left @ P) @ A]

    return _recorded(arrays, (A,), backward)[0]


def matrix_power(A: Tensor, n: int) -> Tensor:
    """The product of `n` times A; of the inverse if `n` is negative."""
    if A.ndim < 2 or A.shape[-1] != A.shape[-2]:
        raise ShapeError(
            "matrix_power", "needs square matrices", expect="(.., n, n)", actual=str(tuple(A.shape))
        )
    if n < 0:
        return matrix_power(inv(A), -n)
    if n == 0:
        one = _eye(A).expand(tuple(A.shape)).node
        return wrap(common.with_history(one, A.node, passes=False) if A.requires_grad else one)
    result: Any = None
    square, left = A, n
    while left:
        if left & 1:
            result = square if result is None else result @ square
        left >>= 1
        if left:
            square = square @ square
    product: Tensor = result
    return shaping.clone(product) if product is A else product


def matrix_exp(A: Tensor) -> Tensor:
    """The exponential of square matrices: ``sum A^k / k!``, by SciPy on the host."""
    if A.dtype.is_half:
        narrow: Tensor = matrix_exp(A.float()).to(A.dtype)
        return narrow
    A = require_matrix("matrix_exp", A, square=True)

    def host(a: Any) -> Any:
        import scipy.linalg

        return scipy.linalg.expm(a) if prod(a.shape) else a.copy()

    arrays = _on_host("matrix_exp", host, A)

    def backward(gs: list[Any], results: list[Any]) -> list[Tensor | None]:
        # The upper right block of the exponential of [[A^H, g], [0, A^H]] (Mathias, 1996).
        g, size = gs[0], A.shape[-1]
        # It is linear in g; a large one would have the whole squared often, and lose digits.
        length = g.detach().abs().amax((-2, -1), keepdim=True)
        length = length.masked_fill(length == 0, 1.0)
        upper = _beside(A.mH, g / length)
        lower = _beside(g * 0, A.mH)
        whole = matrix_exp(_beside(upper.mT, lower.mT).mT)
        return [whole[..., :size, size:] * length]

    return _recorded(arrays, (A,), backward)[0]
