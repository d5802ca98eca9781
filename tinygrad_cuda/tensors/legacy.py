"""Tensor types as PyTorch's first releases had them: `FloatTensor(2, 3)`, `x.type(LongTensor)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.device import CPU, Device, as_device
from tinygrad_cuda.core.dtypes import DType, as_dtype
from tinygrad_cuda.core.errors import ArgumentError, DTypeError
from tinygrad_cuda.tensors import creation
from tinygrad_cuda.tensors.base import Size, TensorBase, the_class

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

NAMES = {
    "FloatTensor": dtypes.float32,
    "DoubleTensor": dtypes.float64,
    "HalfTensor": dtypes.float16,
    "BFloat16Tensor": dtypes.bfloat16,
    "ByteTensor": dtypes.uint8,
    "CharTensor": dtypes.int8,
    "ShortTensor": dtypes.int16,
    "IntTensor": dtypes.int32,
    "LongTensor": dtypes.int64,
    "BoolTensor": dtypes.bool_,
}
OF_DTYPE = {
    **{dtype: name for name, dtype in NAMES.items()},
    dtypes.uint16: "UInt16Tensor",
    dtypes.uint32: "UInt32Tensor",
    dtypes.uint64: "UInt64Tensor",
    dtypes.complex64: "ComplexFloatTensor",
    dtypes.complex128: "ComplexDoubleTensor",
}


def constructed(
    arguments: tuple[Any, ...], dtype: DType, device: Device | None, op: str = "Tensor"
) -> Tensor:
    """What `Tensor(...)` gives: sizes make zeros, data is copied, a Tensor is itself.

    Raises:
        ArgumentError: neither sizes nor data.
    """
    if not arguments:
        return creation.empty(0, dtype=dtype, device=device)
    first = arguments[0]
    if isinstance(first, Size):
        return creation.empty(tuple(first), dtype=dtype, device=device)
    if len(arguments) == 1 and isinstance(first, TensorBase):
        if first.dtype is not dtype:
            raise DTypeError(
                op, "the tensor has another dtype", expect=dtype.name, actual=first.dtype.name,
                hint=f"x.to({dtype!r}) converts",
            )  # fmt: skip
        same: Tensor = first.detach()  # type: ignore[attr-defined]
        return same
    if len(arguments) == 1 and _is_data(first):
        return creation.tensor(first, dtype=dtype, device=device)
    if all(isinstance(size, int | np.integer) for size in arguments):
        return creation.empty(*arguments, dtype=dtype, device=device)
    raise ArgumentError(
        op, "neither sizes nor data", expect="integers, or one list, array or tensor",
        actual=", ".join(type(value).__name__ for value in arguments),
        hint="tc.tensor(data) copies data, tc.empty(sizes) gives a shape",
    )  # fmt: skip


def _is_data(value: Any) -> bool:
    """Whether it is an array or a sequence of any kind, such as a range; a text is none."""
    return isinstance(value, np.ndarray) or (
        isinstance(value, Sequence) and not isinstance(value, str | bytes)
    )


class TensorType(type):
    """The type of `FloatTensor` and its like: no Tensor is made of it, and many belong to it."""

    dtype: DType
    kind: str

    def __instancecheck__(cls, value: Any) -> bool:
        return (
            isinstance(value, TensorBase)
            and value.dtype is cls.dtype
            and value.device.kind == cls.kind
        )

    def __call__(cls, *arguments: Any, device: Any = None) -> Tensor:
        target = as_device(cls.kind) if device is None else as_device(device)
        return constructed(arguments, cls.dtype, target, cls.__name__)

    def __repr__(cls) -> str:
        return f"<class '{cls.__module__}.{cls.__name__}'>"


def _types(kind: str, module: str) -> dict[str, TensorType]:
    made = {}
    for name, dtype in NAMES.items():
        doc = f"Tensors of {dtype.name} on {kind}; called, it makes one of sizes or data."
        fields = {"dtype": dtype, "kind": kind, "__doc__": doc, "__module__": module}
        made[name] = TensorType(name, (), fields)
    return made


ON_HOST, ON_GPU = _types("cpu", "tinygrad_cuda"), _types("cuda", "tinygrad_cuda.cuda")


def _is_any(value: Any) -> bool:
    """Whether it is the class `Tensor` or its name."""
    return value is the_class() or (isinstance(value, str) and value == "torch.Tensor")


def named(value: Any) -> tuple[DType, Device | None] | None:
    """Dtype and device of such a type or its name; None for anything else.

    The class `Tensor` stands for the default dtype and device, as when it is called.
    """
    if _is_any(value):
        return creation.get_default_dtype(), creation.get_default_device()
    if isinstance(value, TensorType):
        return value.dtype, as_device(value.kind)
    if isinstance(value, str) and value.startswith("torch."):
        kind = (ON_GPU if value.startswith("torch.cuda.") else ON_HOST).get(
            value.rpartition(".")[2]
        )
        return None if kind is None else (kind.dtype, as_device(kind.kind))
    return None


def type_of(tensor: Tensor) -> str:
    """What `Tensor.type()` gives: ``torch.FloatTensor``, ``torch.cuda.LongTensor``."""
    prefix = "cuda." if tensor.device.kind == "cuda" else ""
    return f"torch.{prefix}{OF_DTYPE[tensor.dtype]}"


def typename(obj: Any) -> str:
    """The name of a Tensor's type as of `Tensor.type()`, of a class, or of anything else's."""
    if isinstance(obj, TensorBase):
        return type_of(obj)  # type: ignore[arg-type]
    named = obj if hasattr(obj, "__qualname__") else type(obj)
    return f"{named.__module__}.{named.__qualname__}".removeprefix("builtins.")


def set_default_tensor_type(t: Any) -> None:
    """Dtype and device of new floating Tensors, by such a type or its name.

    Raises:
        ArgumentError: it is no such type.
        DTypeError: its dtype is not floating.
    """
    kind = None if _is_any(t) else named(t)
    if kind is None:
        raise ArgumentError(
            "set_default_tensor_type", "not a tensor type", expect=", ".join(NAMES), actual=repr(t),
            hint="set_default_dtype takes a dtype",
        )  # fmt: skip
    creation.set_default_dtype(as_dtype(kind[0]))
    creation.set_default_device(None if kind[1] is CPU else kind[1])
