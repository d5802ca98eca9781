"""NumPy references of convolution and its two gradients: products with columns of windows.

Columns are made for some examples at a time, so that they stay in the cache for the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.ops import numeric
from tinygrad_cuda.graph.ops.geometry import Geometry, Pads, phases_of
from tinygrad_cuda.graph.ops.numeric import Workspace, copy_windows

Array = np.ndarray[Any, Any]

# Bytes of the columns that are made at once. Multiplications of a product from which on OpenBLAS
# takes the usual product, with scratch memory.
COLUMN_BYTES, LEAST_PRODUCT = 1 << 20, 5 << 18
# Elements between the columns' rows: a distance of a power of two fills few sets of the cache.
_APART = 16
# BLAS computes so many columns at once.
_TOGETHER = 16
# Phases of an input gradient, each with a product of its own; of more, and of results with few
# channels, whose products are slow, columns are added up.
_PHASES, _FEW_CHANNELS = 16, 8


class NewArrays:
    """Lends new arrays."""

    def take(self, shape: Shape, dtype: Any) -> Array:
        """An array with any contents."""
        return np.empty(shape, dtype)

    def give(self, array: Array) -> None:
        """Leaves the array to the garbage collector."""


NEW = NewArrays()


# The three passes ---------------------------------------------------------------------------------


def convolution(
    x: Array, w: Array, stride: Shape, padding: Pads, dilation: Shape, groups: int,
    last: bool = False, out: Array | None = None, workspace: Workspace = NEW,
) -> Array:  # fmt: skip
    """Sums over windows: x (N, C, ...), w (O, C / groups, ...) to (N, O, ...).

    Args:
        last: whether the result's channels are last, (N, ..., O): a plan may want them so.
    """
    if last:
        return _last(convolution(x, w, stride, padding, dilation, groups, workspace=workspace))
    geometry = Geometry(stride, padding, dilation, groups)
    sizes = geometry.sizes(x.shape[2:], w.shape[2:])
    if out is None:
        out = np.empty((len(x), len(w), *sizes), x.dtype)
    _convolve(x, w, geometry, out, workspace)
    return out


def _last(y: Array) -> Array:
    """Images, or a weight, with the second axis behind the others in memory."""
    return np.ascontiguousarray(np.moveaxis(y, 1, -1))


def input_gradient(
    g: Array, w: Array, size: Shape, stride: Shape, padding: Pads, dilation: Shape, groups: int,
    last: bool = False, out: Array | None = None, workspace: Workspace = NEW,
) -> Array:  # fmt: skip
    """The cotangent of a convolution's input of spatial sizes `size` from that of its result.

    Args:
        last: as of `convolution`.
    """
    if last:
        at = stride, padding, dilation, groups
        return _last(input_gradient(g, w, size, *at, workspace=workspace))
    geometry = Geometry(stride, padding, dilation, groups)
    if out is None:
        out = np.empty((len(g), groups * w.shape[1], *size), g.dtype)
    if not g.size or not w.size:
        out.fill(0)
        return out
    phases = phases_of(g.shape[2:], w.shape[2:], size, geometry)
    if len(phases) > _PHASES or w.shape[1] <= _FEW_CHANNELS:
        _add_columns(g, w, geometry, out, workspace)
        return out
    if len(phases) < prod(stride):
        out.fill(0)  # no tap reaches some elements
    for phase in phases:
        taps = tuple(slice(axis.tap, None, axis.step) for axis in phase)
        elements = tuple(slice(a.first, None, s) for a, s in zip(phase, stride, strict=True))
        pads, near = tuple(a.pads for a in phase), tuple(a.dilation for a in phase)
        inner = Geometry((1,) * len(size), pads, near, groups)
        _convolve(g, _turned(w[:, :, *taps], groups), inner, out[:, :, *elements], workspace)
    return out


def weight_gradient(
    g: Array, x: Array, kernel: Shape, stride: Shape, padding: Pads, dilation: Shape, groups: int,
    last: bool = False, out: Array | None = None, workspace: Workspace = NEW,
) -> Array:  # fmt: skip
    """The cotangent of a convolution's weight of spatial sizes `kernel` from that of its result.

    Args:
        last: as of `convolution`: (O, ..., C / groups).
    """
    if last:
        at = stride, padding, dilation, groups
        return _last(weight_gradient(g, x, kernel, *at, workspace=workspace))
    batch, outputs, *sizes = g.shape
    each = outputs // groups
    if out is None:
        out = np.empty((outputs, x.shape[1] // groups, *kernel), g.dtype)
    out.fill(0)
    if not g.size or not x.size:
        return out
    total = out.reshape(groups, each, -1)
    wide = _padded(x, padding, workspace)
    windows = _windows(wide, kernel, tuple(sizes), Geometry(stride, padding, dilation, groups))
    depth = total.shape[2]
    slopes = g.reshape(batch, groups, each, -1)
    least = 2 * total.nbytes  # of a part's columns, so that adding up costs little
    for start, end in _parts(batch, depth, each, prod(sizes), x.dtype.itemsize * groups, least):
        lent, columns = _columns(windows, start, end, depth, workspace)
        # Rows of whole images: BLAS turns them quicker than a copy does.
        part = slopes[start:end].transpose(1, 2, 0, 3).reshape(groups, each, -1)
        # BLAS is quicker with the larger one in front.
        if each < depth:
            total += numeric.matmul(columns, part.swapaxes(1, 2)).swapaxes(1, 2)
        else:
            total += numeric.matmul(part, columns.swapaxes(1, 2))
        workspace.give(lent)
    _give_back(wide, x, workspace)
    return out


# Products with columns ----------------------------------------------------------------------------


def _convolve(x: Array, w: Array, geometry: Geometry, out: Array, workspace: Workspace) -> None:
    """The convolution into `out`, which may be any view."""
    groups, kernel = geometry.groups, w.shape[2:]
    if not x.size or not w.size:
        out[...] = 0
        return
    sizes, batch = out.shape[2:], len(x)
    rows = np.ascontiguousarray(w).reshape(groups, len(w) // groups, -1)
    wide = _padded(x, geometry.padding, workspace)
    windows = _windows(wide, kernel, sizes, geometry)
    # (groups, channels of the result, N, ...)
    target = np.moveaxis(out.reshape(batch, groups, rows.shape[1], *sizes), 0, 2)
    runs = _runs(windows)
    _, each, depth = rows.shape
    for start, end in _parts(batch, depth, each, prod(sizes), x.dtype.itemsize * groups):
        into = target[:, :, start:end]
        if runs is not None:
            _product_of_runs(rows, runs[..., start:end, :], into, workspace)
            continue
        lent, columns = _columns(windows, start, end, depth, workspace)
        result = workspace.take((groups, each, columns.shape[2]), x.dtype)
        into[...] = numeric.matmul(rows, columns, out=result).reshape(into.shape)
        workspace.give(result)
        workspace.give(lent)
    _give_back(wide, x, workspace)


def _parts(
    batch: int, depth: int, each: int, columns: int, itemsize: int, least: int = 0
) -> list[tuple[int, int]]:
    """Examples whose columns are made together: few bytes, and a product worth its call."""
    nbytes = itemsize * depth * columns * batch
    count = max(1, min(batch, -(-nbytes // max(COLUMN_BYTES, least))))
    while count > 1 and each * depth * columns * (batch // count) < LEAST_PRODUCT:
        count -= 1
    return list(pairwise(number * batch // count for number in range(count + 1)))


def _columns(
    windows: Array, start: int, end: int, depth: int, workspace: Workspace
) -> tuple[Array, Array]:  # fmt: skip
    """Lent memory, and in it the columns of some examples, shape (groups, depth, columns)."""
    axis = (windows.ndim + 1) // 2
    part = windows[(slice(None),) * axis + (slice(start, end),)]
    groups, width = len(windows), prod(part.shape[axis:])
    lent = workspace.take((groups, depth, width + _APART), windows.dtype)
    columns = lent[:, :, :width]
    copy_windows(columns.reshape(part.shape), part, workspace)
    return lent, columns


def _product_of_runs(rows: Array, runs: Array, out: Array, workspace: Workspace) -> None:
    """The product by runs over whole rows, of which the margins between windows are dropped."""
    (groups, each, depth), (height, width) = rows.shape, out.shape[3:]
    length = runs.shape[-1]
    step = (length - width) // (height - 1) if height > 1 else width
    whole = runs.shape[-2] * length
    padded = -(-whole // _TOGETHER) * _TOGETHER
    lent = workspace.take((groups, depth, padded + _APART), rows.dtype)
    columns = lent[:, :, :padded]
    columns[:, :, :whole].reshape(runs.shape)[...] = runs
    columns[:, :, whole:] = 0
    result = workspace.take((groups, each, padded), rows.dtype)
    numeric.matmul(rows, columns, out=result)
    strides = (*result.strides[:2], *(n * result.itemsize for n in (length, step, 1)))
    out[...] = as_strided(result, out.shape, strides)
    workspace.give(lent)
    workspace.give(result)


def _runs(windows: Array) -> Array | None:
    """Windows of neighbouring elements with the margins between their rows; None of others.

    Shape (groups, channels, K, L, N, length).
    """
    if windows.ndim != 7 or windows.strides[-1] != windows.itemsize:
        return None
    height, width = windows.shape[-2:]
    step, rest = divmod(windows.strides[-2], windows.itemsize)
    length = (height - 1) * step + width
    if rest or step < width or 4 * length > 5 * height * width:
        return None
    shape, strides = (*windows.shape[:-2], length), (*windows.strides[:-2], windows.itemsize)
    return as_strided(windows, shape, strides, writeable=False)


def _add_columns(g: Array, w: Array, geometry: Geometry, out: Array, workspace: Workspace) -> None:
    """The input gradient by columns ``W^T g``, each tap's added where its windows read."""
    groups, kernel = geometry.groups, w.shape[2:]
    batch, outputs, *sizes = g.shape
    rows = w.reshape(groups, outputs // groups, -1).swapaxes(1, 2)
    wide_size = [n + sum(pads) for n, pads in zip(out.shape[2:], geometry.padding, strict=True)]
    wide = np.zeros((*out.shape[:2], *wide_size), out.dtype)
    depth, each = rows.shape[1:]
    windows = _windows(wide, kernel, tuple(sizes), geometry, writeable=True)
    axis = (windows.ndim + 1) // 2
    slopes = g.reshape(batch, groups, each, -1)
    for start, end in _parts(batch, depth, each, prod(sizes), g.dtype.itemsize * groups):
        part = slopes[start:end].transpose(1, 2, 0, 3).reshape(groups, each, -1)
        target = windows[(slice(None),) * axis + (slice(start, end),)]
        columns = numeric.matmul(rows, part).reshape(target.shape)
        for tap in product(*map(range, kernel)):
            inside: tuple[Any, ...] = (slice(None), slice(None), *tap)
            target[inside] += columns[inside]
    inner = tuple(
        slice(before, before + n)
        for (before, _), n in zip(geometry.padding, out.shape[2:], strict=True)
    )
    out[...] = wide[:, :, *inner]


# Views --------------------------------------------------------------------------------------------


def _windows(
    x: Array, kernel: Sequence[int], sizes: Shape, geometry: Geometry, writeable: bool = False
) -> Array:
    """The windows of a padded input, shape (groups, C / groups, *kernel, N, *sizes)."""
    groups, each = geometry.groups, x.shape[1] // geometry.groups
    example, channel, *inner = x.strides
    taps = [step * d for step, d in zip(inner, geometry.dilation, strict=True)]
    steps = [step * s for step, s in zip(inner, geometry.stride, strict=True)]
    return as_strided(
        x, (groups, each, *kernel, len(x), *sizes),
        (each * channel, channel, *taps, example, *steps), writeable=writeable,
    )  # fmt: skip


def _padded(x: Array, pads: Pads, workspace: Workspace) -> Array:
    """x among zeros; negative numbers crop it."""
    if any(before < 0 or after < 0 for before, after in pads):
        x = x[
            :, :, *(
                slice(max(-before, 0), n - max(-after, 0))
                for n, (before, after) in zip(x.shape[2:], pads, strict=True)
            )
        ]  # fmt: skip
    pads = tuple((max(before, 0), max(after, 0)) for before, after in pads)
    if not any(map(any, pads)):
        return x
    sizes = [n + sum(both) for n, both in zip(x.shape[2:], pads, strict=True)]
    wide = workspace.take((*x.shape[:2], *sizes), x.dtype)
    wide.fill(0)
    inner = (slice(before, before + n) for n, (before, _) in zip(x.shape[2:], pads, strict=True))
    wide[:, :, *inner] = x
    return wide


def _give_back(wide: Array, x: Array, workspace: Workspace) -> None:
    """Returns the memory of a padded input; without padding it is the input itself."""
    if wide is not x and wide.base is None:
        workspace.give(wide)


def _turned(w: Array, groups: int) -> Array:
    """The kernel of the transposed convolution: channels exchanged within groups, flipped."""
    outputs, inputs, *kernel = w.shape
    w = w.reshape(groups, outputs // groups, inputs, *kernel).swapaxes(1, 2)
    w = w.reshape(groups * inputs, outputs // groups, *kernel)
    return np.flip(w, tuple(range(2, w.ndim)))
