"""The strides that a result reports: PyTorch's, whatever lies in memory here.

What is put channels-last by `contiguous`, `clone` or `to` lies so in memory, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from tinygrad_cuda.core import layouts
from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.core.shapes import (
    Shape,
    channels_last_strides,
    elementwise_strides,
    in_channels_last_order,
    is_channels_last,
    is_contiguous,
    is_dense,
)
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import movement
from tinygrad_cuda.tensors.base import TensorBase, wrap

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor


F = TypeVar("F", bound=Callable[..., Any])


def strides_like(result: Tensor, *operands: Any) -> Tensor:
    """The result of an elementwise operation with the strides that PyTorch gives it.

    Args:
        result: a new Tensor, row-major so far.
        operands: of the operation; Python numbers count as 0-d tensors.
    """
    for operand in operands:
        if isinstance(operand, TensorBase) and operand._strides is not None:
            break
    else:
        return result
    pairs = tuple(
        (operand.node.shape, operand.strides) if isinstance(operand, TensorBase) else ((), ())
        for operand in operands
    )
    result._strides = elementwise_strides(result.cell.node.shape, pairs)
    return result


def copied_strides(result: Tensor, input: Tensor) -> Tensor:
    """The new Tensor with the strides of a copy: the input's, unless these have gaps."""
    strides = input._strides
    if strides is None or not is_dense(input.node.shape, strides):
        return strides_like(result, input)
    result._strides = strides
    return result


def keeps_layout(function: F) -> F:
    """An elementwise function whose result has the strides that PyTorch gives it."""

    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        operands = args if not options else (*args, *options.values())
        for operand in operands:
            if isinstance(operand, TensorBase) and operand._strides is not None:
                break
        else:
            return result
        if isinstance(result, TensorBase) and not result.chain and result is not operand:
            tensor: Any = result
            strides_like(tensor, *(x for x in operands if isinstance(x, TensorBase)))
        return result

    return wrapper  # type: ignore[return-value]


def another(node: Node) -> Node:
    """A node of its own for the same value, so that a gradient asked for one is not the other's."""
    if not node.requires_grad:
        return node
    copy = movement.reshape(node, shape=node.shape)
    if node.storage is not None and type(node.storage) is not tuple:
        copy.storage = node.storage
    return copy


def lies_channels_last(input: Tensor) -> bool:
    """Whether the channels of a Tensor of 4 or 5 dimensions lie innermost."""
    strides = input._strides
    return strides is not None and is_channels_last(input.node.shape, strides)


def fresh(result: Tensor, like: Tensor | None = None) -> Tensor:
    """The value as a Tensor of its own: row-major, or channels-last where `like` is."""
    if result.chain or (like is not None and result.cell is like.cell):
        node = result.node
        result = wrap(another(node) if like is not None and node is like.node else node)
    result._strides = None
    if like is not None and lies_channels_last(like) and result.ndim == like.ndim:
        result._strides = channels_last_strides(result.node.shape)
    return result


def sequence_first_strides(result: Tensor) -> Tensor:
    """A value (N, L, E) as a Tensor of its own, with the strides of a transposed (L, N, E)."""
    n, _, width = result.node.shape
    result = fresh(result)
    result._strides = (width, n * width, 1)
    return result


def _each_fresh(function: F, after: Callable[[Tensor, Any], Tensor]) -> F:
    @functools.wraps(function)
    def wrapper(input: Any, *args: Any, **options: Any) -> Any:
        result = function(input, *args, **options)
        if isinstance(result, tuple):
            return type(result)(after(fresh(x, input), input) for x in result)
        return after(fresh(result, input), input)

    return wrapper  # type: ignore[return-value]


def gives_fresh(function: F) -> F:
    """A function whose results are no views of its first operand: row-major or channels-last."""
    return _each_fresh(function, lambda result, input: result)


def gives_format(function: F) -> F:
    """`gives_fresh` for a function that asks how the elements lie: strides of dimensions of size 1
    do not matter to it."""
    return _each_fresh(function, _in_format)


def _in_format(result: Tensor, input: Tensor) -> Tensor:
    shape, strides = input.node.shape, input._strides
    result._strides = None
    if strides is None or len(shape) not in (4, 5) or is_contiguous(shape, strides):
        return result
    if in_channels_last_order(shape, strides) or is_channels_last(shape, strides):
        result._strides = channels_last_strides(shape)
    return result


def gives_rows(function: F) -> F:
    """A function whose results are no views of its first operand, and row-major."""
    return _each_fresh(function, lambda result, input: _row_major(result))


def gives_fresh_lines(function: F) -> F:
    """`gives_fresh` for a function of (N, C, L), which PyTorch computes as one of (N, C, 1, L)."""
    return _each_fresh(function, line_strides)


def _row_major(result: Tensor) -> Tensor:
    result._strides = None
    return result


def line_strides(result: Tensor, input: Tensor) -> Tensor:
    """A new Tensor (N, C, L), channels-last if the input is so as (N, C, 1, L)."""
    strides = input._strides
    if strides is None or len(strides) != 3 or result.ndim != 3:
        return result
    (n, channels, length), (first, second, third) = input.node.shape, strides
    image, apart = (n, channels, 1, length), (first, second, length * third, third)
    if is_channels_last(image, apart):
        n, channels, length = result.node.shape
        full = channels_last_strides((n, channels, 1, length))
        result._strides = (*full[:2], full[3])
    return result


def in_format(op: str, result: Tensor, format: layouts.memory_format) -> Tensor:
    """A new Tensor with the strides of a format; `preserve_format` leaves those it has."""
    if format is not layouts.preserve_format:
        result._strides = _strides_of(op, format, result.node.shape)
    return result


def stored_in_format(op: str, result: Tensor, format: layouts.memory_format) -> Tensor:
    """`in_format`, and in memory channels-last values have that order: a view of such a cell."""
    result = in_format(op, result, format)
    if not lies_channels_last(result) or result.chain:
        return result
    rank, strides = result.ndim, result._strides
    inner = movement.permute(result.node, axes=(0, *range(2, rank), 1))
    view = wrap(inner).permute(0, rank - 1, *range(1, rank - 1))
    view._strides = strides
    return view


def lies_in(input: Tensor, format: layouts.memory_format) -> bool:
    """Whether a Tensor's strides are those of a format."""
    shape = input.node.shape
    if format is layouts.contiguous_format:
        return input._strides is None or is_contiguous(shape, input._strides)
    if len(shape) != layouts.RANKS.get(format, len(shape)):
        return False
    wanted = _strides_of("contiguous", format, shape)
    return all(n == 1 or a == b for n, a, b in zip(shape, input.strides, wanted))


def suggests(input: Tensor, format: layouts.memory_format) -> bool:
    """Whether `to` a format leaves a Tensor as it is: doubtful strides are not channels-last."""
    if format is layouts.preserve_format:
        return True
    if format is layouts.contiguous_format:
        return not lies_channels_last(input)
    return lies_channels_last(input) and layouts.RANKS[format] == input.ndim


def _strides_of(op: str, format: layouts.memory_format, shape: Shape) -> Shape:
    """The strides of a new Tensor in a format.

    Raises:
        ArgumentError: it is no memory format, or `preserve_format`, which names no order.
        ShapeError: the format is for another number of dimensions.
    """
    if format is not layouts.contiguous_format and format not in layouts.RANKS:
        raise ArgumentError(
            op, "unknown memory_format",
            expect="contiguous_format, channels_last or channels_last_3d", actual=repr(format),
        )  # fmt: skip
    rank = layouts.RANKS.get(format, len(shape))
    if len(shape) != rank:
        raise ShapeError(
            op, f"{format.name} does not fit the number of dimensions",
            expect=f"{rank} dimensions", actual=str(shape),
        )  # fmt: skip
    return layouts.strides_of(shape, format)
