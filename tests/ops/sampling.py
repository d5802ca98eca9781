"""What a sample of an op is, how its operands are made, and its tolerances.

An operand is a buffer read through index rewrites, so that every op meets views.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.graph.node import LeafOp, Node, Op
from tinygrad_cuda.graph.ops import movement

Array = np.ndarray[Any, Any]
Step = tuple[Op, dict[str, Any]]

FLOATS = (dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16)
INTEGERS = (
    dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.int32, dtypes.int64,
    dtypes.uint16, dtypes.uint32, dtypes.uint64,
)  # fmt: skip
NUMBERS = FLOATS + INTEGERS
ALL = NUMBERS + (dtypes.bool_,)

# (relative, absolute); everything that is not floating is compared exactly.
TOLERANCES = {
    "float64": (1e-11, 1e-12),
    "float32": (1e-5, 1e-6),
    "float16": (2e-3, 1e-4),
    "bfloat16": (1.6e-2, 1e-3),
}


class Source(NamedTuple):
    """An operand: `value` is what `steps` make of `buffer`."""

    value: Array
    buffer: Array
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, eq=False)
class Sample:
    """One use of a row of the op table.

    Attributes:
        op: the row.
        label: tells it from the row's other samples.
        sources: its operands.
        attributes: its attributes; an `Argument` takes its number from `numbers`.
        leaf: shape and dtype, if the row is a leaf.
        build: makes the nodes wanted from the operands; None for the row applied to them.
        expected: an independent formula for the result, on arrays; None where there is none.
        differentiate: in a domain where the derivative exists and is smooth.
        exact: every device gives the same bits (up to the sign of zero, unless `signs`).
        loose: multiplies the tolerance.
        halves: whether its operands may be of half types, which are no parts of complex numbers.
        numbers: what the `Argument`s of the attributes stand for.
        torch: the same result by the torch module and tensors; None where torch has no such op
            or another convention.
    """

    op: Op
    label: str
    sources: tuple[Source, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    leaf: tuple[tuple[int, ...], DType] | None = None
    build: Callable[..., tuple[Node, ...]] | None = None
    expected: Callable[..., Any] | None = None
    differentiate: bool = False
    exact: bool = False
    signs: bool = False
    loose: float = 1.0
    halves: bool = True
    numbers: tuple[Any, ...] = ()
    torch: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        return f"{self.op.name}[{self.label}]"

    @property
    def is_leaf(self) -> bool:
        return isinstance(self.op, LeafOp)


def generator(*key: Any) -> np.random.Generator:
    """Random numbers that depend on the key alone, never on the order of the tests."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


# Operands -----------------------------------------------------------------------------------


def plain(value: Any) -> Source:
    value = np.asarray(value)
    return Source(value, np.array(value, order="C"))


def poison(dtype: Any) -> Any:
    """A value that must not be read."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).max if dtype.kind in "iu" else np.nan


def transposed(value: Array) -> Source:
    """The buffer has its axes in reverse order."""
    axes = tuple(reversed(range(value.ndim)))
    buffer = np.ascontiguousarray(value.transpose(axes)).reshape(value.shape[::-1])
    return Source(value, buffer, ((movement.permute, {"axes": axes}),))


def sliced(value: Array) -> Source:
    """Every second element, from the second on, of a larger buffer."""
    buffer = np.full([2 * size + 2 for size in value.shape], poison(value.dtype), value.dtype)
    buffer[tuple(slice(1, 1 + 2 * size, 2) for size in value.shape)] = value
    rank = value.ndim
    attributes = {"starts": (1,) * rank, "shape": value.shape, "steps": (2,) * rank}
    return Source(value, buffer, ((movement.slice_, attributes),))


def flipped(value: Array) -> Source:
    axes = tuple(range(value.ndim))
    buffer = np.array(value[(slice(None, None, -1),) * value.ndim], order="C")
    return Source(value, buffer, ((movement.flip, {"axes": axes}),))


def expanded(value: Array) -> Source:
    """The first row of `value`, repeated along axis 0."""
    buffer = np.array(value[:1], order="C")
    repeated = np.broadcast_to(buffer, value.shape)
    return Source(repeated, buffer, ((movement.expand, {"shape": value.shape}),))


def reshaped(value: Array) -> Source:
    """A flat buffer, so that the index is split by division."""
    buffer = np.array(value, order="C").reshape(-1)
    return Source(value, buffer, ((movement.reshape, {"shape": value.shape}),))


VIEWS = {view.__name__: view for view in (plain, transposed, sliced, flipped, expanded, reshaped)}


# Values -------------------------------------------------------------------------------------

SPECIAL = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -3.0, 0.1, -0.7, 1e-3, 7.25, -13.0,
    100.0, -100.0, 30000.0, 1e-40, -6e-8, np.inf, -np.inf, np.nan,
)  # fmt: skip
PAIRED = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, -7.0, 1e-40, 30000.0, np.inf, -np.inf, np.nan)


def special(dtype: DType) -> Array:
    """Zeros of both signs, kinks, ties of rounding, subnormals, infinities and NaN."""
    return cast(np.array(SPECIAL), dtype)


def extremes(dtype: DType) -> Array:
    if dtype is dtypes.bool_:
        return np.array([False, True])
    info = np.iinfo(dtype.numpy)
    half = info.max // 2  # after it an unsigned number's highest bit is set
    inner = [-7, -3, -2, -1] if info.min < 0 else [100, half, half + 1, info.max - 1]
    return np.array([info.min, *inner, 0, 1, 2, 3, 7, info.max], dtype.numpy)


def edge_values(dtype: DType) -> Array:
    """What goes wrong first, for any dtype."""
    return special(dtype) if dtype.is_floating else extremes(dtype)


def edge_pairs(dtype: DType) -> tuple[Array, Array]:
    """Every pair of them."""
    values = cast(np.array(PAIRED), dtype) if dtype.is_floating else extremes(dtype)
    first, second = np.meshgrid(values, values, indexing="ij")
    return np.ascontiguousarray(first.ravel()), np.ascontiguousarray(second.ravel())


def cast(array: Array, dtype: DType) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(array).astype(dtype.numpy)


def some(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    """Ordinary values of any dtype; all different in a floating dtype wide enough."""
    if dtype is dtypes.bool_:
        return np.asarray(rng.integers(0, 2, shape)).astype(bool)
    if dtype.is_integer:
        low = -100 if dtype.is_signed else 0
        return np.asarray(rng.integers(low, 100, shape)).astype(dtype.numpy)
    return cast(rng.uniform(-2, 2, shape), dtype)


def wide(array: Array) -> Array:
    """Half types as float32, which NumPy can compute with."""
    return array.astype(np.float32) if array.dtype in (np.float16, ml_dtypes.bfloat16) else array


# Comparison ---------------------------------------------------------------------------------


def difference(found: Array, expected: Array, sample: Sample) -> str | None:
    """What is wrong with `found`, in words; None if nothing."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.shape} {found.dtype} instead of {expected.shape} {expected.dtype}"
    if found.size == 0:
        return None
    if found.dtype.kind == "c":
        return difference(_parts(found), _parts(expected), replace(sample, sources=()))
    floating = found.dtype.kind not in "iub"
    if not floating:
        wrong = found != expected
    else:
        rtol, atol = (0, 0) if sample.exact else TOLERANCES[found.dtype.name]
        a, b = found.astype(np.float64), expected.astype(np.float64)
        with np.errstate(invalid="ignore"):
            close = np.abs(a - b) <= sample.loose * (atol + rtol * np.abs(b))
        close &= np.isfinite(b)  # infinities are equal or not
        wrong = ~((a == b) | close | (np.isnan(a) & np.isnan(b)))
        if sample.exact and sample.signs:
            wrong |= (a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))
    if not wrong.any():
        return None
    where = tuple(int(i) for i in np.argwhere(wrong)[0])
    operands = [
        str(source.value[where]) for source in sample.sources if source.value.shape == found.shape
    ]
    of = f" of {', '.join(operands)}" if operands else ""
    count = int(np.count_nonzero(wrong))
    return f"{found[where]} instead of {expected[where]}{of} at {where} ({count} wrong)"


def _parts(array: Array) -> Array:
    """Real and imaginary parts as one more axis, of size 2."""
    return np.stack((array.real, array.imag), -1)


def variant(sample: Sample, **changes: Any) -> Sample:
    return replace(sample, **changes)


def in_dtype(sample: Sample, dtype: DType) -> Sample:
    """The sample with its float64 operands in another floating dtype."""
    sources = tuple(
        source._replace(value=cast(source.value, dtype), buffer=cast(source.buffer, dtype))
        if source.value.dtype == np.float64 else source
        for source in sample.sources
    )  # fmt: skip
    return variant(sample, sources=sources)
