"""What a Tensor is, as functions: numel(x), is_floating_point(x), result_type(x, y), ..."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import DType, as_dtype
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.creation import DTypeLike, get_default_dtype

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "adjoint", "can_cast", "detach", "get_device", "is_conj",
    "is_floating_point", "is_inference", "is_neg", "is_nonzero", "is_same_size", "is_signed",
    "is_tensor", "numel", "promote_types", "resolve_conj", "resolve_neg", "result_type",
]  # fmt: skip


def _function(name: str) -> Callable[..., Any]:
    """The method of this name as a function."""

    def function(input: Tensor, *args: Any, **options: Any) -> Any:
        return getattr(input, name)(*args, **options)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`Tensor.{name}` as a function."
    return function


adjoint = _function("adjoint")
resolve_conj = _function("resolve_conj")
resolve_neg = _function("resolve_neg")
detach = _function("detach")
numel = _function("numel")
get_device = _function("get_device")
is_conj = _function("is_conj")
is_neg = _function("is_neg")
is_inference = _function("is_inference")
is_floating_point = _function("is_floating_point")
is_nonzero = _function("is_nonzero")
is_same_size = _function("is_same_size")
is_signed = _function("is_signed")


def is_tensor(obj: Any) -> bool:
    """Whether the object is a Tensor."""
    return isinstance(obj, TensorBase)


def promote_types(type1: DTypeLike, type2: DTypeLike) -> DType:
    """The smallest dtype that both convert to.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.promote_types(tc.int32, tc.float16)
        tinygrad_cuda.float16
    """
    return dtypes.promote(as_dtype(type1), as_dtype(type2))


def can_cast(from_: DTypeLike, to: DTypeLike) -> bool:
    """Whether a conversion keeps the kind of numbers: no fraction or imaginary part is lost.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.can_cast(tc.float64, tc.float32), tc.can_cast(tc.float32, tc.int64)
        (True, False)
    """
    source, target = as_dtype(from_), as_dtype(to)
    return source.category <= target.category


def result_type(tensor1: Any, tensor2: Any) -> DType:
    """The dtype of ``tensor1 + tensor2``: numbers are weak, 0-d tensors rank below others."""
    standings = []
    for value in (tensor1, tensor2):
        if isinstance(value, TensorBase):
            standings.append((value.dtype, 2 if value.node.shape else 1))
        else:
            standings.append((dtypes.scalar_dtype(value, get_default_dtype()), 0))
    return dtypes.result_type(standings)
