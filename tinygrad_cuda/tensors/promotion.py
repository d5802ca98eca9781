"""Promotion and broadcasting of operands: PyTorch's rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, RawSite
from tinygrad_cuda.core.shapes import Shape, broadcast
from tinygrad_cuda.engine.cell import Recorder
from tinygrad_cuda.graph.node import Node, node_made
from tinygrad_cuda.graph.ops import common, elementwise, movement
from tinygrad_cuda.tensors.base import TensorBase, node_of, wrap
from tinygrad_cuda.tensors.creation import get_default_dtype, tensor

LARGEST_INT = (1 << 63) - 1  # of int64
FLOAT_MAX = dtypes.FLOAT_LIMITS["float64"][1]


def to_shape(node: Node, shape: Shape) -> Node:
    """The node broadcast to `shape`, by an explicit expand."""
    if node.shape == shape:
        return node
    missing = len(shape) - len(node.shape)
    if missing:
        node = movement.reshape(node, shape=(1,) * missing + node.shape)
    return node if node.shape == shape else movement.expand(node, shape=shape)


def to_dtype(node: Node, dtype: DType) -> Node:
    """The node in another dtype."""
    return node if node.dtype is dtype else elementwise.cast(node, dtype=dtype)


def _standing(value: Any) -> tuple[DType, int]:
    if isinstance(value, Node):
        return value.dtype, 2 if value.shape else 1
    return dtypes.scalar_dtype(value, get_default_dtype()), 0


def operand_of(op: str, value: Any) -> Any:
    """A node for a Tensor or array; a Python number stays a number."""
    if isinstance(value, TensorBase):
        return value.node
    if isinstance(value, bool | int | float | complex):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray | list | tuple):
        return tensor(value, device="cpu").node
    raise DTypeError(
        op,
        "an operand is neither a tensor nor a number",
        expect="a Tensor, a NumPy array or a Python number",
        actual=f"{type(value).__name__} {value!r:.60}",
    )


def promote(
    op: str, *values: Any, dtype: DType | None = None, floating: bool = False
) -> list[Node]:
    """Nodes of one dtype, shape and device for Tensors and numbers.

    Args:
        op: the user's name of the operation, for errors.
        values: Tensors, NumPy arrays or Python numbers; at least one Tensor or array.
        dtype: the common dtype; PyTorch's promotion decides when left out.
        floating: the op takes floats only. A number then becomes a float at once: in the integer
            dtype of the tensor that it meets it might wrap.
    """
    operands = [operand_of(op, value) for value in values]
    nodes = [value for value in operands if isinstance(value, Node)]
    if not nodes:
        raise DTypeError(
            op, "no operand is a tensor", expect="at least one Tensor",
            actual=", ".join(type(value).__name__ for value in values),
        )  # fmt: skip
    first = nodes[0]
    if dtype is None:
        dtype = first.dtype
        if len(operands) > 1 and any(
            not isinstance(value, Node) or value.dtype is not dtype for value in operands
        ):
            standings = [_standing(value) for value in operands]
            if op == "sub" and any(kind is dtypes.bool_ for kind, _ in standings):
                raise DTypeError(
                    "sub",
                    "a bool has no difference from a number",
                    expect="numbers",
                    actual=" and ".join(kind.name for kind, _ in standings),
                    hint="~mask or mask.logical_not() inverts a mask; mask.int() counts",
                )
            dtype = dtypes.result_type(standings)
        if floating and dtype.category < 2:
            dtype = get_default_dtype()
    shape = first.shape
    if any(node.shape != shape for node in nodes):
        shape = broadcast(op, *(node.shape for node in nodes))
    device = first.device
    if any(node.device is not device for node in nodes):
        nodes, operands = _one_device(nodes, operands)
        first = nodes[0]
        device = first.device
    result = []
    for value in operands:
        if isinstance(value, Node):
            result.append(to_shape(to_dtype(value, dtype), shape))
        else:
            value = _in_64_bits(op, value, dtype)
            result.append(common.number(value, shape, dtype, device))
    return result


def _in_64_bits(op: str, value: Any, dtype: DType) -> Any:
    """A number that the constants of a dtype can be made of; integers wrap, as in PyTorch."""
    if type(value) is not int or -LARGEST_INT <= value <= LARGEST_INT:
        return value
    if dtype.category > 1 and -FLOAT_MAX <= value <= FLOAT_MAX:
        return float(value)
    if dtype.is_integer and -(1 << 63) <= value < 1 << 64:
        return dtypes.signed_64(value)
    raise ArgumentError(
        op, "the number is too large", expect="an integer of at most 64 bits", actual=str(value)
    )


def factor_of(op: str, factor: Any, dtype: DType, name: str = "") -> Any:
    """A number that a function multiplies a tensor of `dtype` by; the dtype stays.

    Args:
        name: of a factor that is no float for integers, and a bool for bools alone.

    Raises:
        DTypeError: it is.
        ArgumentError: the dtype cannot hold it.
    """
    of_float, of_bool = isinstance(factor, float), isinstance(factor, bool)
    if isinstance(factor, complex) and not dtype.is_complex:
        raise DTypeError(
            op, f"{name or 'a factor'} does not go with the dtype",
            expect=f"a number of {dtype.name}", actual=repr(factor),
            hint="x.to(tc.complex64) gives complex numbers",
        )  # fmt: skip
    if name and ((of_float and dtype.category < 2) or (of_bool and dtype.category > 0)):
        raise DTypeError(
            op, f"{name} does not go with the dtype", expect=f"a number of {dtype.name}",
            actual=repr(factor), hint="x.float() gives floats" if of_float else None,
        )  # fmt: skip
    # Half types are multiplied in float32.
    half = dtype.is_half
    return dtypes.number_of(op, factor, dtypes.float32 if half else dtype)


def promoted(
    op: str, a: Any, b: Any, recorder: Recorder, site: RawSite | None, floating: bool
) -> Sequence[Node]:
    """`promote` for two; a number that takes its dtype from the tensor it meets costs less."""
    if isinstance(a, TensorBase):
        node = node_of(a, recorder)
        if of_kind(b, node) and not (floating and node.dtype.category < 2):
            return node, number_like(node, b, site)
    elif isinstance(b, TensorBase):
        node = node_of(b, recorder)
        if of_kind(a, node) and not (floating and node.dtype.category < 2):
            return number_like(node, a, site), node
    return promote(op, a, b, floating=floating)


def of_kind(number: Any, node: Node) -> bool:
    """Whether a number takes the dtype of a node that it meets."""
    kind = type(number)
    if kind is float:
        return node.dtype.category > 1
    return kind is int and node.dtype.category >= 1 and -LARGEST_INT <= number <= LARGEST_INT


def number_like(node: Node, number: Any, site: RawSite | None) -> Node:
    """The constant of a node's shape, dtype and device."""
    outputs = node.outputs[:1]
    return node_made(common.constant, (), {"value": number}, outputs, node.device, False, site)


def _one_device(nodes: list[Node], operands: list[Any]) -> tuple[list[Node], list[Any]]:
    """A 0-d cpu tensor may meet a tensor of another device; nothing else moves by itself."""
    from_wrapped = {}
    target = next((node.device for node in nodes if node.device.kind != "cpu"), nodes[0].device)
    for node in nodes:
        if node.device is not target and node.device.kind == "cpu" and node.shape == ():
            from_wrapped[node] = wrap(node).to(target).node
    moved = [from_wrapped.get(value, value) if isinstance(value, Node) else value
             for value in operands]  # fmt: skip
    first = [value for value in moved if isinstance(value, Node)]
    first.sort(key=lambda node: node.device is not target)
    return first, moved


def as_float(node: Node) -> Node:
    """Integers and bools in the default floating dtype; others as they are."""
    return node if node.dtype.category > 1 else to_dtype(node, get_default_dtype())
