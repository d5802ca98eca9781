"""Memory by stride, and views as copies: as_strided, resize_, permute_copy, narrow_copy, fill, ...

A Tensor's memory is the value of its cell, row by row; what is read by stride is gathered from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core.dtypes import int64
from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.core.shapes import Shape, contiguous_strides
from tinygrad_cuda.engine.cell import detached
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, elementwise, movement
from tinygrad_cuda.graph.ops import indexing as ops
from tinygrad_cuda.graph.versions import versions
from tinygrad_cuda.tensors import creation, dividing, indexing, rearranging, shaping
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.selecting import along_axis
from tinygrad_cuda.tensors.views import first_position, moves

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "alias_copy", "as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter",
    "detach_copy", "diagonal_copy", "empty_permuted", "empty_strided", "expand_copy", "fill",
    "narrow_copy", "permute_copy", "resize_as_", "scalar_tensor", "select_copy", "split_copy",
    "split_with_sizes_copy", "squeeze_copy", "t_copy", "transpose_copy", "unbind_copy",
    "unfold_copy", "unsqueeze_copy", "view_copy", "zero_",
]  # fmt: skip


# Memory by stride ---------------------------------------------------------------------------------


def _memory(input: Tensor) -> tuple[Node, int]:
    """The value of the whole cell, or of the leaf, as a vector, and where in it the Tensor begins.

    Without a view the vector follows the strides of the Tensor itself.
    """
    chain = input.chain
    leaves = [place + 1 for place, step in enumerate(chain) if step[0] is common.variable]
    begin = max(leaves, default=0)
    views = [k for k in range(begin, len(chain)) if moves(chain[k])]
    if not views:
        node = input.node
        order = sorted(range(len(node.shape)), key=lambda axis: -input.strides[axis])
        if not begin and order != list(range(len(order))):
            node = movement.permute(node, axes=tuple(order))
        return movement.reshape(node, shape=(prod(node.shape),)), 0
    base = input._fold(chain[: views[0]])
    if any(step[0] is common.detach for step in chain[views[0] :]):
        base = detached(base)
    first = first_position(base.shape, chain[views[0] :])
    return movement.reshape(base, shape=(prod(base.shape),)), first


def storage_offset(input: Tensor) -> int:
    """Where in its memory the Tensor begins, in elements."""
    return first_position(input.cell.node.shape, input.chain)


def _places(op: str, size: Shape, stride: Shape, offset: int, memory: Node) -> Node:
    """The int64 node of the places that a geometry reads."""
    if len(size) != len(stride) or min((*size, *stride, offset), default=0) < 0:
        raise ShapeError(
            op,
            "the geometry is not one",
            expect="a stride for each size, none negative",
            actual=f"size {size}, stride {stride}, storage_offset {offset}",
        )
    last = offset + sum((n - 1) * step for n, step in zip(size, stride))
    if prod(size) and last >= memory.shape[0]:
        raise ShapeError(
            op,
            "the geometry leaves the memory",
            expect=f"places below {memory.shape[0]}",
            actual=f"{last} for size {size}, stride {stride}, storage_offset {offset}",
        )
    flat = common.full(offset, size, memory, int64)
    for axis, step in enumerate(stride):
        if size[axis] > 1 and step:
            flat = elementwise.add(flat, along_axis(size, axis, memory, step))
    return flat


def as_strided(
    input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """Elements of the memory by stride: ``out[i, j] = memory[offset + i * s_0 + j * s_1]``.

    The result is a copy: writing to it leaves `input` alone.

    Args:
        input: its memory is the Tensor that it is a view of, row by row, else itself.
        size, stride: the geometry; strides in elements.
        storage_offset: that of `input` when left out.

    Raises:
        ShapeError: the geometry leaves the memory.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.as_strided(tc.arange(5, device="cpu"), (3, 2), (1, 2)).tolist()
        [[0, 2], [1, 3], [2, 4]]
    """
    memory, start = _memory(input)
    sizes, strides = tuple(map(int, size)), tuple(map(int, stride))
    offset = start if storage_offset is None else storage_offset
    result = _read(memory, _places("as_strided", sizes, strides, offset, memory))
    result._strides = None if strides == contiguous_strides(sizes) else strides
    return result


def _read(memory: Node, places: Node) -> Tensor:
    if not prod(places.shape):
        return wrap(movement.reshape(_leading(memory, 0), shape=places.shape))
    return wrap(ops.gather(memory, places))


def _leading(memory: Node, count: int) -> Node:
    return movement.slice_(memory, starts=(0,), shape=(count,), steps=(1,))


def as_strided_scatter(
    input: Tensor,
    src: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Tensor:
    """The input with `src` where `as_strided` would read; each place at most once."""
    memory, start = _memory(input)
    sizes, strides = tuple(map(int, size)), tuple(map(int, stride))
    offset = start if storage_offset is None else storage_offset
    places = _places("as_strided_scatter", sizes, strides, offset, memory)
    if src.node.shape != sizes:
        raise ShapeError(
            "as_strided_scatter",
            "src has another shape",
            expect=str(sizes),
            actual=str(src.node.shape),
        )
    written = ops.scatter(memory, places, src.node) if prod(sizes) else memory
    shape = input.node.shape
    return _read(written, _places("as_strided_scatter", shape, input.strides, start, memory))


def _replace(op: str, input: Tensor, value: Tensor) -> Tensor:
    """Gives a Tensor other memory; those that shared the old one keep it."""
    if input.requires_grad:
        raise ArgumentError(
            op,
            "a tensor with history cannot change its memory",
            expect="a tensor that does not require grad",
            actual="one that does",
            hint=f"use {op.rstrip('_')}() or reshape()",
        )
    if versions.on:
        versions.touched(input)
    input.cell, input.chain = value.cell, value.chain
    input._strides, input._node = value._strides, None
    return input


def as_strided_(
    input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """`as_strided` in place."""
    return _replace("as_strided_", input, as_strided(input, size, stride, storage_offset))


def resize_(input: Tensor, *size: Any, memory_format: Any = None) -> Tensor:
    """Another shape in place: the first elements row by row, and zeros where there were none."""
    sizes = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    shape = shaping.integers("resize_", tuple(sizes), "sizes")
    node = input.node
    if shape == node.shape and not input.requires_grad:
        return input
    flat = movement.reshape(node, shape=(prod(node.shape),))
    count, wanted = prod(node.shape), prod(shape)
    if wanted <= count:
        flat = _leading(flat, wanted)
    else:
        flat = movement.pad(flat, value=0, starts=(0,), shape=(wanted,), steps=(1,))
    return _replace("resize_", input, wrap(movement.reshape(flat, shape=shape)))


def resize_as_(input: Tensor, the_template: Tensor, memory_format: Any = None) -> Tensor:
    """`resize_` to the shape of another Tensor."""
    return resize_(input, tuple(the_template.node.shape))


def empty_strided(size: Sequence[int], stride: Sequence[int], **options: Any) -> Tensor:
    """`empty`, with the elements laid out by stride; only `stride()` tells."""
    result = creation.empty(tuple(size), **options)
    strides = tuple(map(int, stride))
    if strides != contiguous_strides(result.node.shape):
        result._strides = strides
    return result


def new_empty_strided(
    input: Tensor, size: Sequence[int], stride: Sequence[int], **options: Any
) -> Tensor:
    """`empty_strided` with the dtype and device of `input`."""
    options["dtype"] = options.get("dtype") or input.dtype
    options["device"] = options.get("device") or input.device
    return empty_strided(size, stride, **options)


def empty_permuted(size: Sequence[int], physical_layout: Sequence[int], **options: Any) -> Tensor:
    """`empty`, with the dimensions laid out in memory in the given order."""
    sizes = tuple(size)
    inner = contiguous_strides(tuple(sizes[axis] for axis in physical_layout))
    strides = dict(zip(physical_layout, inner))
    return empty_strided(sizes, [strides[axis] for axis in range(len(sizes))], **options)


# Views as copies ----------------------------------------------------------------------------------


def _copying(name: str, view: Callable[..., Any]) -> Callable[..., Any]:
    def function(input: Tensor, *args: Any, **options: Any) -> Any:
        found = view(input, *args, **options)
        if isinstance(found, TensorBase):
            return wrap(found.node)
        return tuple(wrap(part.node) for part in found)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{name.removesuffix('_copy')}` as a copy: it shares no memory."
    return function


def _viewed(input: Tensor, size: Any) -> Tensor:
    if isinstance(size, list | tuple):
        return shaping.view(input, *size)
    return input.view(size)


def _expanded(input: Tensor, size: Any, *, implicit: bool = False) -> Tensor:
    return shaping.expand(input, *size)


alias_copy = _copying("alias_copy", lambda input: input)
as_strided_copy = _copying("as_strided_copy", as_strided)
detach_copy = _copying("detach_copy", lambda input: input.detach())
diagonal_copy = _copying("diagonal_copy", shaping.diagonal)
expand_copy = _copying("expand_copy", _expanded)
narrow_copy = _copying("narrow_copy", shaping.narrow)
permute_copy = _copying("permute_copy", shaping.permute)
select_copy = _copying("select_copy", indexing.select)
split_copy = _copying("split_copy", shaping.split)
split_with_sizes_copy = _copying("split_with_sizes_copy", dividing.split_with_sizes)
squeeze_copy = _copying("squeeze_copy", shaping.squeeze)
t_copy = _copying("t_copy", shaping.t)
transpose_copy = _copying("transpose_copy", shaping.transpose)
unbind_copy = _copying("unbind_copy", shaping.unbind)
unfold_copy = _copying("unfold_copy", shaping.unfold)
unsqueeze_copy = _copying("unsqueeze_copy", shaping.unsqueeze)
view_copy = _copying("view_copy", _viewed)


def fill(input: Tensor, value: Any) -> Tensor:
    """A copy of `input` with every element `value`, a number or a 0-d Tensor."""
    if isinstance(value, TensorBase) and value.node.shape:
        raise ShapeError("fill", "the value is not 0-d", expect="()", actual=str(value.node.shape))
    result: Tensor = rearranging.clone(input).fill_(value)
    return result


def zero_(input: Tensor) -> Tensor:
    """Writes zero to every element."""
    return input.zero_()


def scalar_tensor(
    s: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A number as a 0-d Tensor; the default floating dtype when `dtype` is left out."""
    chosen = dtype or creation.get_default_dtype()
    return creation.tensor(s, dtype=chosen, device=device, requires_grad=requires_grad)
