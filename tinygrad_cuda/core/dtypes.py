"""The fifteen dtypes and PyTorch's promotion rules.

Python scalars are weak, and 0-d tensors rank below dimensioned ones of the same category. Between
uint16, uint32, uint64 and other integers PyTorch has no rule, and the array API standard's holds.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import ml_dtypes
import numpy as np

from tinygrad_cuda.core.errors import ArgumentError, DTypeError


class DType:
    """An element type; compare with ``is``.

    Attributes:
        is_floating, is_floating_point: whether it is one of floating-point numbers.
        is_half: whether its values have 16 bits and are computed in float32.
        is_integer: whether it is one of integers; bool is not.
        is_complex: whether it is one of complex numbers.
        is_signed: whether it has negative numbers.
    """

    __slots__ = (
        "name", "numpy", "itemsize", "c", "compute", "category", "rank", "is_floating",
        "is_floating_point", "is_half", "is_integer", "is_complex", "is_signed", "__weakref__",
    )  # fmt: skip

    def __init__(
        self, name: str, numpy: Any, c: str, compute: str, category: int, rank: int
    ) -> None:
        self.name = name
        self.numpy = np.dtype(numpy)
        self.itemsize: int = self.numpy.itemsize
        self.c = c
        self.compute = compute
        self.category = category
        self.rank = rank
        self.is_floating = self.is_floating_point = category == 2
        self.is_half = self.is_floating and self.itemsize == 2
        self.is_integer = category == 1
        self.is_complex = category == 3
        self.is_signed = name != "bool" and not name.startswith(("u", "qu"))

    def to_real(self) -> DType:
        """The dtype of the real part: itself, unless it is complex."""
        return _REAL.get(self, self)

    def to_complex(self) -> DType:
        """The complex dtype whose parts have this one; of half types and integers complex64."""
        return self if self.is_complex else complex128 if self is float64 else complex64

    def __repr__(self) -> str:
        return f"tinygrad_cuda.{self.name}"

    def __reduce__(self) -> Any:
        return (_by_name, (self.name,))

    def __copy__(self) -> DType:
        return self

    def __deepcopy__(self, memo: Any) -> DType:
        return self


class UnsupportedDType(DType):
    """A dtype of PyTorch's that exists by name, so that programs may compare with it.

    Args:
        name: PyTorch's.
        what: why there are no Tensors of it.
        category: 2 for floating ones, 3 for complex ones, which programs ask for.
    """

    __slots__ = ("what",)

    def __init__(self, name: str, what: str, category: int = 1) -> None:
        super().__init__(name, np.void, "", "", category, -1)
        self.what = what


bool_ = DType("bool", np.bool_, "bool", "bool", 0, 0)
uint8 = DType("uint8", np.uint8, "unsigned char", "unsigned char", 1, 1)
int8 = DType("int8", np.int8, "signed char", "signed char", 1, 2)
int16 = DType("int16", np.int16, "short", "short", 1, 3)
int32 = DType("int32", np.int32, "int", "int", 1, 4)
int64 = DType("int64", np.int64, "long long", "long long", 1, 5)
uint16 = DType("uint16", np.uint16, "unsigned short", "unsigned short", 1, 6)
uint32 = DType("uint32", np.uint32, "unsigned", "unsigned", 1, 7)
uint64 = DType("uint64", np.uint64, "unsigned long long", "unsigned long long", 1, 8)
float16 = DType("float16", np.float16, "tgc_half", "float", 2, 9)
bfloat16 = DType("bfloat16", ml_dtypes.bfloat16, "tgc_bfloat16", "float", 2, 10)
float32 = DType("float32", np.float32, "float", "float", 2, 11)
float64 = DType("float64", np.float64, "double", "double", 2, 12)
complex64 = DType(
    "complex64", np.complex64, "tgc_complex<float>", "tgc_complex<float>", 3, 13
)  # fmt: skip
complex128 = DType(
    "complex128", np.complex128, "tgc_complex<double>", "tgc_complex<double>", 3, 14
)  # fmt: skip

# Of real numbers: what every op has in mind that does not speak of complex ones.
ALL: tuple[DType, ...] = (
    bool_, uint8, int8, int16, int32, int64, uint16, uint32, uint64, float16, bfloat16, float32,
    float64,
)  # fmt: skip
COMPLEX: tuple[DType, ...] = (complex64, complex128)
_REAL = {complex64: float32, complex128: float64}
_COMPLEX = "there is no arithmetic of complex numbers with 16-bit parts"
_EIGHT = "there is no arithmetic of 8-bit floats"
_QUANTIZED = "quantized tensors are out of scope"
UNSUPPORTED = {
    dtype.name: dtype
    for dtype in (
        UnsupportedDType("complex32", _COMPLEX, 3),
        UnsupportedDType("float8_e4m3fn", _EIGHT, 2),
        UnsupportedDType("float8_e4m3fnuz", _EIGHT, 2),
        UnsupportedDType("float8_e5m2", _EIGHT, 2),
        UnsupportedDType("float8_e5m2fnuz", _EIGHT, 2),
        UnsupportedDType("quint8", _QUANTIZED),
        UnsupportedDType("qint8", _QUANTIZED),
        UnsupportedDType("qint32", _QUANTIZED),
    )
}
_NAMES = {dtype.name: dtype for dtype in (*ALL, *COMPLEX)}
_BY_NUMPY = {dtype.numpy: dtype for dtype in (*ALL, *COMPLEX)}


def _by_name(name: str) -> DType:
    return _NAMES.get(name) or UNSUPPORTED[name]


def from_numpy(dtype: Any) -> DType:
    """The DType of a NumPy dtype.

    Raises:
        DTypeError: the NumPy dtype has no counterpart (object, text, dates).
    """
    dtype_ = _BY_NUMPY.get(np.dtype(dtype))
    if dtype_ is None:
        raise DTypeError(
            "dtype",
            f"no dtype for NumPy's {np.dtype(dtype)}",
            expect=", ".join(_NAMES),
            actual=str(np.dtype(dtype)),
            hint="convert the array first, e.g. array.astype('float32')",
        )
    return dtype_


def is_known(dtype: np.dtype[Any]) -> bool:
    """Whether a NumPy dtype, with its order of bytes, is that of a DType."""
    return dtype in _BY_NUMPY


def as_dtype(value: Any) -> DType:
    """Accepts a DType, its name, ``float``/``int``/``bool``/``complex`` or a NumPy dtype.

    As in PyTorch a Python type is a dtype of its precision: ``float`` is float64.
    """
    if isinstance(value, DType):
        if value.rank < 0:
            assert isinstance(value, UnsupportedDType)
            raise DTypeError("dtype", value.what, expect=", ".join(_NAMES), actual=value.name)
        return value
    if value is float:
        return float64
    if value is int:
        return int64
    if value is bool:
        return bool_
    if value is complex:
        return complex128
    if isinstance(value, str) and value in _NAMES:
        return _NAMES[value]
    try:
        return from_numpy(value)
    except TypeError as error:
        near = get_close_matches(str(value), _NAMES, 1)
        raise DTypeError(
            "dtype",
            "not a dtype",
            expect=", ".join(_NAMES),
            actual=repr(value),
            hint=f"did you mean {near[0]!r}?" if near else None,
        ) from error


def promote(a: DType, b: DType) -> DType:
    """The common dtype of two operands of equal standing (PyTorch's lattice)."""
    if a is b:
        return a
    if a.category != b.category:
        high, low = (a, b) if a.category > b.category else (b, a)
        return complex128 if high.is_complex and low is float64 else high
    if a.category == 2:
        # float16 and bfloat16 hold values the other lacks: only float32 holds both.
        return float32 if {a.name, b.name} == {"float16", "bfloat16"} else max_rank(a, b)
    return _promoted_integer(a, b) if a.category == 1 else max_rank(a, b)


def _promoted_integer(a: DType, b: DType) -> DType:
    """The smallest integer dtype with the values of both.

    Raises:
        DTypeError: there is none: uint64 with a signed one.
    """
    if a.is_signed == b.is_signed:
        return a if a.itemsize > b.itemsize else b
    signed, unsigned = (a, b) if a.is_signed else (b, a)
    if signed.itemsize > unsigned.itemsize:
        return signed
    if unsigned is uint64:
        raise DTypeError(
            "promotion", "no integer dtype has the values of both",
            expect="uint64 with an unsigned dtype, or a Python number",
            actual=f"{a.name} and {b.name}",
            hint=f"cast one of them first, e.g. x.to(tc.{signed.name})",
        )  # fmt: skip
    return {1: int16, 2: int32, 4: int64}[unsigned.itemsize]


def max_rank(a: DType, b: DType) -> DType:
    return a if a.rank > b.rank else b


def scalar_dtype(value: complex, default_float: DType = float32) -> DType:
    """The dtype a Python number has when nothing stronger takes part."""
    if isinstance(value, bool):
        return bool_
    if isinstance(value, complex):
        return default_float.to_complex()
    return int64 if isinstance(value, int) else default_float


def result_type(operands: list[tuple[DType, int]]) -> DType:
    """PyTorch's result dtype.

    Args:
        operands: pairs of dtype and standing: 2 dimensioned tensor, 1 zero-dimensional tensor,
            0 Python number. A lower standing only raises the category, never the width.
    """
    result: DType | None = None
    for standing in (2, 1, 0):
        level: DType | None = None
        for dtype, own in operands:
            if own == standing:
                level = dtype if level is None else promote(level, dtype)
        if level is None:
            continue
        if result is None:
            result = level
        elif level.category > result.category:
            # A float keeps its width beside a complex number of lower standing.
            floats = level.is_complex and result.is_floating
            result = result.to_complex() if floats else promote(result, level)
    assert result is not None
    return result


class finfo:
    """What a floating dtype can hold: bits, eps, max, min, tiny, smallest_normal, resolution.

    Raises:
        DTypeError: the dtype is not floating.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.finfo(tc.float16).max, tc.finfo(tc.bfloat16).eps
        (65504.0, 0.0078125)
    """

    def __init__(self, type: Any = float32) -> None:
        dtype = as_dtype(type).to_real()
        if not dtype.is_floating:
            raise DTypeError(
                "finfo", "not a floating dtype", expect="a floating dtype", actual=dtype.name,
                hint="iinfo has the limits of integers",
            )  # fmt: skip
        limits: Any = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
        self.dtype = dtype.name
        self.bits = 8 * dtype.itemsize
        self.eps = float(limits.eps)
        self.max = float(limits.max)
        self.min = float(limits.min)
        self.tiny = self.smallest_normal = float(limits.smallest_normal)
        # A power of ten, which the dtype itself holds rounded.
        self.resolution = float(f"{float(limits.resolution):.0e}")

    def __repr__(self) -> str:
        names = ("resolution", "min", "max", "eps", "smallest_normal", "tiny")
        numbers = ", ".join(f"{name}={getattr(self, name):.6g}" for name in names)
        return f"finfo({numbers}, dtype={self.dtype})"


class iinfo:
    """What an integer dtype can hold: bits, max, min.

    Raises:
        DTypeError: the dtype is no integer.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.iinfo(tc.int8).min, tc.iinfo(tc.uint8).max
        (-128, 255)
    """

    def __init__(self, type: Any) -> None:
        dtype = as_dtype(type)
        if not dtype.is_integer:
            raise DTypeError(
                "iinfo", "not an integer dtype", expect="an integer dtype", actual=dtype.name,
                hint="finfo has the limits of floating dtypes",
            )  # fmt: skip
        limits = np.iinfo(dtype.numpy)
        self.dtype = dtype.name
        self.bits = 8 * dtype.itemsize
        self.max = int(limits.max)
        self.min = int(limits.min)

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"


FLOAT_LIMITS: dict[str, tuple[float, float]] = {
    "float16": (-65504.0, 65504.0),
    "bfloat16": (-3.3895313892515355e38, 3.3895313892515355e38),
    "float32": (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)),
    "float64": (float(np.finfo(np.float64).min), float(np.finfo(np.float64).max)),
}


def number_of(op: str, value: Any, dtype: DType) -> Any:
    """A Python number as one element of `dtype`: truncated to an integer, the truth of a bool.

    A negative integer wraps in an unsigned dtype, as in PyTorch; nan and infinities are floats.

    Raises:
        ArgumentError: the dtype cannot hold the number.
    """
    if dtype.category == 0:
        return bool(value)
    if isinstance(value, np.generic):
        value = value.item()  # NumPy would cast the limits to its narrower dtype
    if dtype.is_complex:
        return value if isinstance(value, complex) and value.imag else _real_number(value)
    if isinstance(value, complex):
        raise ArgumentError(
            op, f"a complex number does not fit {dtype.name}", expect="a real number",
            actual=repr(value), hint="cast the tensor first, e.g. x.to(tc.complex64)",
        )  # fmt: skip
    low, high = _limits(dtype)
    if dtype.category == 2:
        if low <= value <= high or value != value or value in (float("inf"), -float("inf")):
            return float(value)
    elif low <= value <= high and (dtype.is_signed or value >= 0 or not isinstance(value, float)):
        return int(value) if dtype.is_signed else int(value) % (high + 1)
    raise ArgumentError(
        op,
        f"the number does not fit {dtype.name}",
        expect=f"a number from {low} to {high}",
        actual=repr(value),
        hint="cast the tensor first, e.g. x.long() or x.float()",
    )


def signed_64(value: int) -> int:
    """The int64 of an integer's low 64 bits: constants of uint64 are held as such."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _real_number(value: complex) -> float:
    return value.real if isinstance(value, complex) else value


def _limits(dtype: DType) -> tuple[Any, Any]:
    """The lowest and the largest number that `number_of` converts."""
    if dtype.category == 2:
        return FLOAT_LIMITS[dtype.name]
    bits = 8 * dtype.itemsize
    if dtype.is_signed:
        return -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return 1 - (1 << bits), (1 << bits) - 1
