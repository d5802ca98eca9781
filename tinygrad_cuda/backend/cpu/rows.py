"""The NumPy reference of a node's row as a function of arrays.

Half types are computed in float32 and rounded once a node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinygrad_cuda.backend.base import BadIndex
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import indexing
from tinygrad_cuda.graph.program import Argument, Number

Array = np.ndarray[Any, Any]
HALF = ("float16", "bfloat16")


def _constant(shape: Shape, dtype: DType, value: Any) -> Array:
    return np.broadcast_to(np.asarray(value).astype(dtype.numpy), shape)


def _arange(shape: Shape, dtype: DType, start: Any, step: Any) -> Array:
    wide = np.float64 if dtype.is_floating else np.int64
    return (np.asarray(start, wide) + np.asarray(step, wide) * np.arange(shape[0])).astype(
        dtype.numpy
    )


def _complex_constant(shape: Shape, dtype: DType, real: Any, imag: Any) -> Array:
    return np.full(shape, complex(real, imag), dtype.numpy)


_LEAVES: dict[str, Callable[..., Array]] = {
    "constant": _constant,
    "scalar": _constant,
    "complex_constant": _complex_constant,
    "arange": _arange,
}


def has_argument(value: Any) -> bool:
    """Whether an attribute contains a number that each run supplies."""
    return isinstance(value, Argument) or (
        isinstance(value, tuple) and any(isinstance(part, Argument) for part in value)
    )


def resolved(value: Any, arguments: Sequence[Number]) -> Any:
    """An attribute with the numbers of a run."""
    if isinstance(value, Argument):
        return arguments[value.position]
    if isinstance(value, tuple):
        return tuple(
            arguments[part.position] if isinstance(part, Argument) else part for part in value
        )
    return value


def reference_of(node: Node) -> Callable[..., Any]:
    """The reference of a node's row; for half types with a detour over float32."""
    op = node.op
    if op.kind == "leaf":
        function = _LEAVES.get(op.name, op.numpy)
        shape, dtype = node.shape, node.dtype
        assert function is not None
        return lambda **attributes: function(shape, dtype, **attributes)
    numpy = op.numpy
    assert numpy is not None, op.name
    halves = [source.dtype.name in HALF for source in node.sources]
    if op.kind in ("movement", "identity") or not any(halves):
        return numpy
    results = tuple(dtype.numpy for _, dtype in node.outputs)

    def in_float32(*arrays: Array, **attributes: Any) -> Any:
        wide = [a.astype(np.float32) if half else a for a, half in zip(arrays, halves)]
        values = numpy(*wide, **attributes)
        if len(results) > 1:
            return tuple(part.astype(dtype) for part, dtype in zip(values, results))
        return values.astype(results[0])

    return in_float32


def check(value: Array, what: str, code: int, limit: int | None = None) -> None:
    """What a check's row reports: positions below a limit, or numbers between 0 and 1.

    Raises:
        BadIndex: a value is out of range.
    """
    if not value.size:
        return
    # Of both, nan is neither.
    least, most = value.min(), value.max()
    if least >= 0 and (most <= 1 if limit is None else most < limit):
        return
    right = (value >= 0) & ((value <= 1) if limit is None else (value < limit))
    position = int(np.flatnonzero(~right)[0])
    index = value.reshape(-1)[position]
    if limit is not None:
        raise BadIndex(code, position, int(index), limit)
    raise BadIndex(code, position, int(np.float64(index).view(np.int64)), 1)


def evaluate(node: Node, sources: Sequence[Any]) -> Any:
    """The value of one node from those of its sources; a tuple for several results.

    Raises:
        BadIndex: the node checks positions and one is out of range.
    """
    if node.op in indexing.CHECKS:
        check(sources[0], **node.attributes)
    with np.errstate(all="ignore"):
        return reference_of(node)(*sources, **node.attributes)
