"""Eigenvalues and eigenvectors of general matrices, which are complex."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.errors import DTypeError, ShapeError
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.linalg import factorizing
from tinygrad_cuda.tensors.promotion import to_dtype

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor


class Eig(NamedTuple):
    """What `eig` gives."""

    eigenvalues: Tensor
    eigenvectors: Tensor


def _operand(op: str, value: Any) -> Tensor:
    """The matrices as complex ones, with the gradient of that conversion."""
    if not isinstance(value, TensorBase):
        raise DTypeError(
            op, "the operand is not a tensor", expect="a Tensor", actual=type(value).__name__
        )
    node = value.node
    if len(node.shape) < 2 or node.shape[-1] != node.shape[-2]:
        raise ShapeError(
            op, "needs square matrices", expect="(.., n, n)", actual=str(node.shape)
        )  # fmt: skip
    if node.dtype not in (dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.complex128):
        raise DTypeError(
            op, "the dtype is not supported", expect="float32, float64 or complex of these",
            actual=node.dtype.name, hint="cast first, e.g. x.float()",
        )  # fmt: skip
    return wrap(to_dtype(node, node.dtype.to_complex()))


def _real_where_possible(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Without imaginary parts that are all zero: LAPACK then finds conjugate pairs exactly."""
    return array if array.imag.any() else array.real


def _decomposed(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    values, vectors = np.linalg.eig(_real_where_possible(array))
    return values.astype(array.dtype), vectors.astype(array.dtype)


def eig(A: Tensor) -> Eig:
    r"""Eigenvalues and eigenvectors (columns, of length 1) of square matrices, in no order.

    .. math:: A V = V \operatorname{diag}(L)

    The gradient needs eigenvalues that differ, and a loss that does not depend on the phase of
    eigenvectors, which is LAPACK's.

    Args:
        A: (..., n, n) of float32 or float64, or complex.

    Raises:
        LinAlgError: an element is infinite or NaN.

    Example:
        >>> import tinygrad_cuda as tc
        >>> turn = tc.tensor([[0.0, -1.0], [1.0, 0.0]], device="cpu")
        >>> tc.linalg.eig(turn).eigenvalues.tolist()
        [1j, -1j]
    """
    matrices = _operand("eig", A)
    arrays = factorizing._on_host("eig", factorizing._iterated(_decomposed), matrices)

    def backward(gs: list[Any], results: list[Any]) -> list[Tensor | None]:
        (gL, gV), (values, vectors) = gs, results
        eye = factorizing._eye(matrices)
        middle = eye * 0 if gL is None else eye * gL.unsqueeze(-1)
        if gV is not None:
            gap = (values.unsqueeze(-2) - values.unsqueeze(-1)).conj() + eye
            inner = vectors.mH @ gV
            # What lengthens a vector is no change of it: they stay of length 1.
            along = (inner * eye).sum(dim=-1).real.to(inner.dtype)
            turned = inner - (vectors.mH @ vectors) * along.unsqueeze(-2)
            middle = middle + turned * (1 - eye) / gap
        return [factorizing.inv(vectors.mH) @ middle @ vectors.mH]

    return Eig(*factorizing._recorded(arrays, (matrices,), backward))


def eigvals(A: Tensor) -> Tensor:
    """The eigenvalues of square matrices, complex and in no order; see `eig`."""
    return eig(A).eigenvalues
