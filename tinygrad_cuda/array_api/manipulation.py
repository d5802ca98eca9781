"""The standard's functions on shapes, and those that pick elements by index."""

from __future__ import annotations

from math import prod
from typing import Any

from tinygrad_cuda.array_api.operands import Axis, array, axes_of, common
from tinygrad_cuda.core.dtypes import int64
from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.core.shapes import broadcast, normalize_axis
from tinygrad_cuda.tensors import creation
from tinygrad_cuda.tensors import functions as F
from tinygrad_cuda.tensors.tensor import Tensor


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """The arrays in the shape that fits all."""
    shape = broadcast("broadcast_arrays", *(tuple(x.shape) for x in arrays))
    return [x.expand(shape) for x in arrays]


def broadcast_to(x: Tensor, /, shape: tuple[int, ...]) -> Tensor:
    """The array in a larger shape, its elements repeated without a copy."""
    return array("broadcast_to", x).expand(tuple(shape))


def concat(arrays: tuple[Tensor, ...] | list[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """The arrays one after the other along an axis; flattened ones for None."""
    given = common("concat", list(arrays))
    if axis is None:
        return F.cat([x.reshape(-1) for x in given], 0)
    return F.cat(given, axis)


def expand_dims(x: Tensor, /, axis: int) -> Tensor:
    """The array with a new axis of size 1."""
    return array("expand_dims", x).unsqueeze(axis)


def flip(x: Tensor, /, *, axis: Axis = None) -> Tensor:
    """The array with the order of elements reversed along axes."""
    return F.flip(array("flip", x), axes_of(x, axis))


def moveaxis(
    x: Tensor, source: int | tuple[int, ...], destination: int | tuple[int, ...], /
) -> Tensor:
    """The array with axes at other positions."""
    return F.movedim(array("moveaxis", x), source, destination)


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    """The array with its axes in another order."""
    return array("permute_dims", x).permute(tuple(axes))


def repeat(x: Tensor, repeats: int | Tensor, /, *, axis: int | None = None) -> Tensor:
    """The array with each element repeated."""
    if isinstance(repeats, Tensor):
        counts = repeats.to(int64)
        size = x.numel() if axis is None else x.shape[axis]
        repeats = int(counts.item()) if counts.numel() == 1 and size != 1 else counts
    return F.repeat_interleave(array("repeat", x), repeats, axis)


def reshape(x: Tensor, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Tensor:
    """The array in another shape; with `copy` False a view, or an error where none can be."""
    if copy is False:
        return array("reshape", x).view(tuple(shape))
    result = array("reshape", x).reshape(tuple(shape))
    return result.clone() if copy else result


def roll(x: Tensor, /, shift: int | tuple[int, ...], *, axis: Axis = None) -> Tensor:
    """The array with elements moved along axes; those pushed out come in at the other end."""
    if x.numel() == 0:
        return x.clone()
    if axis is None or isinstance(axis, int):
        return F.roll(array("roll", x), shift, axis)
    shifts = (shift,) * len(axis) if isinstance(shift, int) else tuple(shift)
    for one, by in zip(axis, shifts):
        x = F.roll(x, by, one)
    return x


def squeeze(x: Tensor, /, axis: int | tuple[int, ...]) -> Tensor:
    """The array without axes of size 1."""
    axes = axes_of(array("squeeze", x), axis)
    for one in axes:
        if x.shape[one] != 1:
            raise ShapeError(
                "squeeze", f"axis {one} has more than one element", expect="size 1",
                actual=str(tuple(x.shape)),
            )  # fmt: skip
    return x.reshape([n for one, n in enumerate(x.shape) if one not in axes])


def stack(arrays: tuple[Tensor, ...] | list[Tensor], /, *, axis: int = 0) -> Tensor:
    """The arrays beside each other along a new axis."""
    return F.stack(common("stack", list(arrays)), axis)


def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """The whole array repeated along its axes."""
    return F.tile(array("tile", x), tuple(repetitions))


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis."""
    return tuple(array("unstack", x).unbind(axis))


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """Slices of the array along an axis, by index."""
    if axis is None:
        if x.ndim != 1:
            raise ArgumentError(
                "take", "which axis?", expect="axis for an array of several", actual="None"
            )
        axis = 0
    axis = normalize_axis("take", axis, x.ndim)
    index = array("take", indices).to(int64)
    shape = [*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]]
    index = F.where(index < 0, index + x.shape[axis], index)
    if not prod(shape):
        return creation.zeros(shape, dtype=x.dtype, device=x.device)
    return F.index_select(x, axis, index.reshape(-1)).reshape(shape)


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """Elements along an axis, by an index for each position of the others."""
    axis = normalize_axis("take_along_axis", axis, x.ndim)
    index = array("take_along_axis", indices).to(int64)
    index = F.where(index < 0, index + x.shape[axis], index)
    outer = broadcast(
        "take_along_axis", *(tuple(1 if k == axis else n for k, n in enumerate(y.shape))
                             for y in (x, index)),
    )  # fmt: skip
    shape: list[Any] = list(outer)
    shape[axis] = index.shape[axis]
    whole = [*outer[:axis], x.shape[axis], *outer[axis + 1 :]]
    return F.gather(x.expand(whole), axis, index.expand(shape))


__all__ = [
    "broadcast_arrays", "broadcast_to", "concat", "expand_dims", "flip", "moveaxis",
    "permute_dims", "repeat", "reshape", "roll", "squeeze", "stack", "take", "take_along_axis",
    "tile", "unstack",
]  # fmt: skip
