"""What a function of an ONNX operator is given besides its operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tinygrad_cuda.core.dtypes import ALL, DType
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.tensors.tensor import Tensor

OP = "onnx.load"
# onnx.TensorProto.DataType
_NAMES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64",
    15: "complex128", 16: "bfloat16",
}  # fmt: skip
DTYPES: dict[int, DType] = {
    number: dtype for number, name in _NAMES.items() for dtype in ALL if dtype.name == name
}
Value = Any  # a Tensor, a list of them (a sequence), or None (nothing)


@dataclass
class NodeCall:
    """One ONNX node that is computed.

    Attributes:
        kind: the operator's name.
        attributes: by name: numbers, texts, lists, arrays and graphs.
        opset: the version of the operators.
        results: how many results the node names.
        run: computes a graph of an attribute, from values of its inputs.
    """

    kind: str
    attributes: Mapping[str, Any]
    opset: int
    results: int
    run: Callable[[Any, Sequence[Value]], list[Value]]
    device: Any = None
    names: list[str] = field(default_factory=list)

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or what stands for it."""
        return self.attributes.get(name, default)

    def dtype(self, number: int) -> DType:
        """The dtype of ONNX's number.

        Raises:
            ArgumentError: there is none of that kind.
        """
        if number not in DTYPES:
            raise self.refused(f"data type {number}", "a dtype that Tensors have")
        return DTYPES[number]

    def refused(self, what: str, expect: str = "what the operator's function supports") -> Any:
        """The error for a form of the operator that has no function."""
        return ArgumentError(
            OP, f"{self.kind} is not computed in this form", expect=expect, actual=what
        )


class Operator(NamedTuple):
    """How an operator is computed.

    Attributes:
        function: ``(call, *operands) -> value``, a tuple for several results.
        host: operands whose values are read on the host, as NumPy arrays: shapes, axes, counts.
        host_rest: whether all further operands are, too.
    """

    function: Callable[..., Any]
    host: tuple[int, ...] = ()


def ints(array: np.ndarray[Any, Any]) -> list[int]:
    """Whole numbers of an array."""
    return [int(value) for value in np.asarray(array).reshape(-1)]


def axes_of(call: NodeCall, given: np.ndarray[Any, Any] | None) -> list[int] | None:
    """Axes, which newer operators take as an operand and older ones as an attribute."""
    if given is not None:
        return ints(given)
    axes = call.get("axes")
    return None if axes is None else list(axes)


def wide(x: Tensor) -> Tensor:
    """The value in a dtype in which sums of half types are exact enough."""
    return x.float() if x.dtype.is_half else x
