"""distributions.utils: PyTorch's helpers that distributions of a program's own are made with."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from numbers import Number
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core.dtypes import finfo
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.tensors import creation, math, shaping
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.reductions import softmax
from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "broadcast_all", "clamp_probs", "lazy_property", "logits_to_probs", "probs_to_logits",
    "tril_matrix_to_vec", "vec_to_tril_matrix",
]  # fmt: skip

euler_constant = 0.57721566490153286060


def broadcast_all(*values: Any) -> tuple[Tensor, ...]:
    """Tensors and numbers as Tensors of one shape.

    Args:
        values: a number becomes a Tensor of the dtype and device of the first Tensor.

    Raises:
        ArgumentError: one of them is neither.
        ShapeError: the shapes do not broadcast.

    Example:
        >>> import tinygrad_cuda as tc
        >>> loc, scale = broadcast_all(tc.zeros(2, device="cpu"), 3.0)
        >>> scale.tolist()
        [3.0, 3.0]
    """
    for value in values:
        if not isinstance(value, TensorBase | Number):
            raise ArgumentError(
                "broadcast_all", "a value is neither a number nor a Tensor",
                expect="numbers and Tensors", actual=type(value).__name__,
            )  # fmt: skip
    first = next((value for value in values if isinstance(value, TensorBase)), None)
    like: dict[str, Any] = {} if first is None else {"dtype": first.dtype, "device": first.device}
    if first is None:
        like = {"dtype": creation.get_default_dtype()}
    tensors = (x if isinstance(x, TensorBase) else creation.tensor(x, **like) for x in values)
    return tuple(shaping.broadcast_tensors(*tensors))


def logits_to_probs(logits: Tensor, is_binary: bool = False) -> Tensor:
    """Probabilities of log-odds.

    Args:
        logits: log-odds; or, along the last axis, logarithms of weights.
        is_binary: each is of an event of its own.

    Example:
        >>> import tinygrad_cuda as tc
        >>> logits_to_probs(tc.zeros(2, device="cpu")).tolist()
        [0.5, 0.5]
    """
    return math.sigmoid(logits) if is_binary else softmax(logits, dim=-1)


def clamp_probs(probs: Tensor) -> Tensor:
    """Probabilities, none nearer to 0 or 1 than the dtype's epsilon.

    Example:
        >>> import tinygrad_cuda as tc
        >>> clamp_probs(tc.zeros(1, device="cpu")).item() == tc.finfo(tc.float32).eps
        True
    """
    eps = finfo(probs.dtype).eps
    return probs.clamp(min=eps, max=1 - eps)


def probs_to_logits(probs: Tensor, is_binary: bool = False) -> Tensor:
    """Log-odds of probabilities, which are kept apart from 0 and 1 by `clamp_probs`.

    Args:
        probs: each of an event of its own if ``is_binary``; else they add up along the last axis,
            and the result is their logarithms.
        is_binary: as it says.

    Example:
        >>> import tinygrad_cuda as tc
        >>> probs_to_logits(tc.tensor([0.5], device="cpu"), is_binary=True).item()
        0.0
    """
    clamped = clamp_probs(probs)
    logs = clamped.log()
    return logs - (-clamped).log1p() if is_binary else logs


class lazy_property:
    """A property that is computed once, and kept in the object.

    Args:
        wrapped: computes it of the object.

    Example:
        >>> class Half:
        ...     @lazy_property
        ...     def value(self):
        ...         return 0.5
        >>> half = Half()
        >>> half.value, vars(half)
        (0.5, {'value': 0.5})
    """

    def __init__(self, wrapped: Callable[[Any], Any]) -> None:
        self.wrapped = wrapped
        self.__doc__ = wrapped.__doc__

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return property(self.wrapped)
        value = self.wrapped(instance)
        setattr(instance, self.wrapped.__name__, value)
        return value


def tril_matrix_to_vec(mat: Tensor, diag: int = 0) -> Tensor:
    """The lower triangles of matrices, row by row.

    Args:
        mat: (.., n, n).
        diag: up to which diagonal, of -n to n - 1.

    Raises:
        ArgumentError: there is no such diagonal.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tril_matrix_to_vec(tc.tensor([[1, 2], [3, 4]], device="cpu")).tolist()
        [1, 3, 4]
    """
    n = mat.shape[-1]
    if diag < -n or diag >= n:
        raise ArgumentError(
            "tril_matrix_to_vec", "there is no such diagonal", expect=f"diag of {-n} to {n - 1}",
            actual=str(diag),
        )  # fmt: skip
    rows, columns = shaping.tril_indices(n, n, diag, device=mat.device)
    return mat[..., rows, columns]


def vec_to_tril_matrix(vec: Tensor, diag: int = 0) -> Tensor:
    """Lower triangular matrices of their elements, row by row.

    Args:
        vec: (.., D).
        diag: the diagonal up to which they reach.

    Raises:
        ArgumentError: no triangle has D elements.

    Example:
        >>> import tinygrad_cuda as tc
        >>> vec_to_tril_matrix(tc.tensor([1, 3, 4], device="cpu")).tolist()
        [[1, 0], [3, 4]]
    """
    # Rows of 1 + diag and more elements; above the first, for diag < 0, some have none.
    odd, count = 1 + 2 * diag, vec.shape[-1]
    root = isqrt(odd**2 + 8 * count + 4 * abs(diag) * (diag + 1))
    size, rest = divmod(root - odd, 2)
    if rest or root**2 != odd**2 + 8 * count + 4 * abs(diag) * (diag + 1):
        raise ArgumentError(
            "vec_to_tril_matrix", "no triangle has so many elements", expect="n (n + 1) / 2",
            actual=str(vec.shape[-1]),
        )  # fmt: skip
    matrix = creation.zeros((*vec.shape[:-1], size, size), dtype=vec.dtype, device=vec.device)
    rows, columns = shaping.tril_indices(size, size, diag, device=vec.device)
    matrix[..., rows, columns] = vec
    return matrix


if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
