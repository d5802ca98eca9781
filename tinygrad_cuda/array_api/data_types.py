"""The standard's functions on dtypes, and what says what this namespace has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tinygrad_cuda.array_api.operands import array
from tinygrad_cuda.backend import registry
from tinygrad_cuda.core import dtypes as D
from tinygrad_cuda.core.device import Device, as_device
from tinygrad_cuda.core.dtypes import DType, promote
from tinygrad_cuda.core.errors import ArgumentError, DTypeError
from tinygrad_cuda.tensors import creation
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.tensor import Tensor

# Half types are this package's own and stand beside the standard's.
OF_STANDARD = tuple(dtype for dtype in (*D.ALL, *D.COMPLEX) if not dtype.is_half)


@dataclass(frozen=True)
class finfo_object:
    """What a floating dtype can hold, or each part of a complex one."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True)
class iinfo_object:
    """What an integer dtype can hold."""

    bits: int
    max: int
    min: int
    dtype: DType


def _dtype(value: Any) -> DType:
    return value.dtype if isinstance(value, TensorBase) else D.as_dtype(value)


def finfo(type: DType | Tensor, /) -> finfo_object:
    """The limits of a floating dtype, of a complex one those of its parts, as Python numbers."""
    dtype = _dtype(type).to_real()
    limits = D.finfo(dtype)
    return finfo_object(
        limits.bits, limits.eps, limits.max, limits.min, limits.smallest_normal, dtype
    )


def iinfo(type: DType | Tensor, /) -> iinfo_object:
    """The limits of an integer dtype, as Python numbers."""
    dtype = _dtype(type)
    limits = D.iinfo(dtype)
    return iinfo_object(limits.bits, limits.max, limits.min, dtype)


def astype(x: Tensor, dtype: DType, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """The array in another dtype; the same one where nothing changes and `copy` is False.

    Raises:
        DTypeError: a complex array would lose its imaginary parts.
    """
    if array("astype", x).dtype.is_complex and D.as_dtype(dtype).category in (1, 2):
        raise DTypeError(
            "astype", "a complex array has no real values", expect="a complex dtype or bool",
            actual=D.as_dtype(dtype).name, hint="real(x), imag(x) and abs(x) are real",
        )  # fmt: skip
    result = array("astype", x).to(dtype)
    if device is not None:
        result = result.to(device)
    return result.clone() if copy and result is x else result


_KINDS: dict[str, Callable[[DType], bool]] = {
    "bool": lambda d: d.category == 0,
    "signed integer": lambda d: d.is_integer and d.is_signed,
    "unsigned integer": lambda d: d.is_integer and not d.is_signed,
    "integral": lambda d: d.is_integer,
    "real floating": lambda d: d.is_floating,
    "complex floating": lambda d: d.is_complex,
    "numeric": lambda d: d.category > 0,
}


def isdtype(dtype: DType, kind: DType | str | tuple[DType | str, ...]) -> bool:
    """Whether a dtype is another one, of a kind, or one of several."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    if isinstance(kind, str):
        if kind not in _KINDS:
            raise ArgumentError(
                "isdtype", "unknown kind", expect=", ".join(_KINDS), actual=repr(kind)
            )
        return _KINDS[kind](dtype)
    return dtype is kind


def can_cast(from_: DType | Tensor, to: DType, /) -> bool:
    """Whether promotion of the first with the second gives the second."""
    try:
        return promote(_dtype(from_), to) is to
    except DTypeError:  # no dtype has the values of both
        return False


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The dtype to which arrays, dtypes and Python numbers are promoted together."""
    result: DType | None = None
    numbers = []
    for value in arrays_and_dtypes:
        if isinstance(value, bool | int | float | complex):
            numbers.append(value)
            continue
        dtype = _dtype(value)
        result = dtype if result is None else promote(result, dtype)
    if result is None:
        raise DTypeError(
            "result_type", "there is no array and no dtype", expect="at least one",
            actual="numbers alone" if numbers else "nothing",
        )  # fmt: skip
    for number in numbers:
        own = D.scalar_dtype(number, creation.get_default_dtype())
        if own.category > result.category:
            result = result.to_complex() if own.is_complex and result.is_floating else own
    return result


class Info:
    """What `__array_namespace_info__` gives."""

    def capabilities(self) -> dict[str, Any]:
        """Whether masks can index and shapes depend on values, and how many dimensions."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Device:
        """Where arrays are made by default."""
        return creation.get_default_device()

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """The dtypes of arrays for which none is given."""
        floating = creation.get_default_dtype()
        return {
            "real floating": floating, "complex floating": floating.to_complex(),
            "integral": D.int64, "indexing": D.int64,
        }  # fmt: skip

    def dtypes(
        self, *, device: Any = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """The standard's dtypes that there are, by name."""
        return {d.name: d for d in OF_STANDARD if kind is None or isdtype(d, kind)}

    def devices(self) -> list[Device]:
        """The devices that can be used here."""
        return [as_device(name) for name in ("cpu", "emu", "cuda") if registry.usable(name)]


def namespace_info() -> Info:
    """What this namespace has: dtypes, devices, capabilities."""
    return Info()


__all__ = ["astype", "can_cast", "finfo", "iinfo", "isdtype", "result_type"]
