"""ONNX operators that move, choose, join and make elements."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import int64
from tinygrad_cuda.nn import functional as F
from tinygrad_cuda.onnx.operators.call import NodeCall, Operator, Value, axes_of, ints
from tinygrad_cuda.tensors import functions as T
from tinygrad_cuda.tensors.tensor import Tensor

Array = np.ndarray[Any, Any]


def _reshape(call: NodeCall, x: Tensor, shape: Array) -> Value:
    """0 takes the size of x's axis, unless `allowzero`."""
    sizes = ints(shape)
    if not call.get("allowzero", 0):
        sizes = [x.shape[k] if size == 0 else size for k, size in enumerate(sizes)]
    return x.reshape(sizes)


def _transpose(call: NodeCall, x: Tensor) -> Value:
    return x.permute(*call.get("perm", range(x.ndim)[::-1])) if x.ndim else x


def _flatten(call: NodeCall, x: Tensor) -> Value:
    axis = call.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))


def _squeeze(call: NodeCall, x: Tensor, axes: Array | None = None) -> Value:
    dims = axes_of(call, axes)
    return x.squeeze() if dims is None else x.squeeze(tuple(dims))


def _unsqueeze(call: NodeCall, x: Tensor, axes: Array | None = None) -> Value:
    dims = axes_of(call, axes) or []
    rank = x.ndim + len(dims)
    for dim in sorted(dim % rank for dim in dims):
        x = x.unsqueeze(dim)
    return x


def _concat(call: NodeCall, *parts: Tensor) -> Value:
    return T.cat(list(parts), call.get("axis"))


def _split(call: NodeCall, x: Tensor, sizes: Array | None = None) -> tuple[Tensor, ...]:
    axis = call.get("axis", 0)
    parts = call.get("split") if sizes is None else ints(sizes)
    if parts is None:
        count = call.get("num_outputs") or call.results
        each = -(-x.shape[axis] // count)
        parts = [each] * (count - 1)
        parts.append(x.shape[axis] - sum(parts))
    return tuple(x.split(list(parts), axis))


def _slice(
    call: NodeCall, x: Tensor, starts: Array | None = None, ends: Array | None = None,
    axes: Array | None = None, steps: Array | None = None,
) -> Value:  # fmt: skip
    first = call.get("starts") if starts is None else ints(starts)
    last = call.get("ends") if ends is None else ints(ends)
    dims = axes_of(call, axes) or range(len(first))
    strides = [1] * len(first) if steps is None else ints(steps)
    for dim, start, end, step in zip(dims, first, last, strides):
        dim %= x.ndim
        positions = range(*slice(start, end, step).indices(x.shape[dim]))
        if step < 0:
            # The same elements upwards, then turned.
            positions = positions[::-1]
        key: list[Any] = [slice(None)] * x.ndim
        key[dim] = slice(positions.start, positions.stop, abs(step)) if positions else slice(0, 0)
        x = x[tuple(key)]
        if step < 0:
            x = x.flip(dim)
    return x


def _expand(call: NodeCall, x: Tensor, shape: Array) -> Value:
    return x.expand(np.broadcast_shapes(tuple(x.shape), tuple(ints(shape))))


def _tile(call: NodeCall, x: Tensor, repeats: Array) -> Value:
    return x.repeat(*ints(repeats)) if x.ndim else x


def _pad(
    call: NodeCall, x: Tensor, pads: Array | None = None, value: Tensor | None = None,
    axes: Array | None = None,
) -> Value:  # fmt: skip
    amounts = list(call.get("pads", ())) if pads is None else ints(pads)
    dims = range(x.ndim) if axes is None else [axis % x.ndim for axis in ints(axes)]
    half = len(amounts) // 2
    mode = call.get("mode", "constant")
    number = 0 if value is None else value.reshape(()).to(x.dtype)
    for dim, before, after in zip(dims, amounts[:half], amounts[half:]):
        x = _padded(x, dim, before, after, mode, number)
    return x


def _padded(x: Tensor, dim: int, before: int, after: int, mode: str, value: Any) -> Value:
    """x with elements before and after it along an axis; without them where counts are negative."""
    x = x.narrow(dim, max(-before, 0), x.shape[dim] - max(-before, 0) - max(-after, 0))
    before, after, size = max(before, 0), max(after, 0), x.shape[dim]
    if not before and not after:
        return x
    if mode == "constant":
        shape = list(x.shape)
        parts = []
        for count in (before, after):
            shape[dim] = count
            full = T.zeros(shape, dtype=x.dtype, device=x.device)
            parts.append(full if isinstance(value, int) else value.expand(shape))
        return T.cat([parts[0], x, parts[1]], dim)
    form = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}[mode]
    line = np.pad(np.arange(size), (before, after), mode=form)  # type: ignore[call-overload]
    return x.index_select(dim, T.tensor(line, device=x.device))


def _gather(call: NodeCall, x: Tensor, index: Tensor) -> Value:
    axis = call.get("axis", 0) % x.ndim
    size = x.shape[axis]
    index = index.long()
    flat = T.where(index < 0, index + size, index).reshape(-1)
    chosen = x.index_select(axis, flat)
    return chosen.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def _positive(index: Tensor, size: int) -> Value:
    index = index.long()
    return T.where(index < 0, index + size, index)


def _gather_elements(call: NodeCall, x: Tensor, index: Tensor) -> Value:
    axis = call.get("axis", 0) % x.ndim
    return x.gather(axis, _positive(index, x.shape[axis]))


def _flat_positions(index: Tensor, sizes: tuple[int, ...]) -> Value:
    """Tuples of positions, the last axis of `index`, as positions in the flattened axes."""
    flat = T.zeros(index.shape[:-1], dtype=int64, device=index.device)
    for k, size in enumerate(sizes):
        flat = flat * size + _positive(index[..., k], size)
    return flat


def _gather_nd(call: NodeCall, x: Tensor, index: Tensor) -> Value:
    batch = call.get("batch_dims", 0)
    depth = index.shape[-1]
    outer = prod(x.shape[:batch])
    sizes = tuple(x.shape[batch : batch + depth])
    flat = _flat_positions(index, sizes).reshape(outer, -1)
    first = T.arange(outer, device=x.device).reshape(-1, 1) * prod(sizes)
    rows = x.reshape(outer * prod(sizes), -1)
    chosen = rows.index_select(0, (flat + first).reshape(-1))
    return chosen.reshape(*index.shape[:-1], *x.shape[batch + depth :])


_REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scatter_elements(call: NodeCall, x: Tensor, index: Tensor, values: Tensor) -> Value:
    axis = call.get("axis", 0) % x.ndim
    index = _positive(index, x.shape[axis])
    how = call.get("reduction", "none")
    if how == "none":
        return x.scatter(axis, index, values)
    return x.scatter_reduce(axis, index, values, _REDUCE[how], include_self=True)


def _scatter_nd(call: NodeCall, x: Tensor, index: Tensor, values: Tensor) -> Value:
    depth = index.shape[-1]
    sizes = tuple(x.shape[:depth])
    rows = x.reshape(prod(sizes), -1)
    flat = _flat_positions(index, sizes).reshape(-1, 1).expand(-1, rows.shape[1])
    values = values.reshape(flat.shape)
    how = call.get("reduction", "none")
    if how == "none":
        return rows.scatter(0, flat, values).reshape(x.shape)
    return rows.scatter_reduce(0, flat, values, _REDUCE[how], include_self=True).reshape(x.shape)


def _shape(call: NodeCall, x: Tensor) -> Array:
    sizes = tuple(x.shape)[slice(call.get("start", 0), call.get("end"))]
    return np.array(sizes, np.int64)


def _size(call: NodeCall, x: Tensor) -> Array:
    return np.array(x.numel(), np.int64)


def _range(call: NodeCall, start: Array, limit: Array, delta: Array) -> Value:
    start, limit, delta = (value.reshape(()) for value in (start, limit, delta))
    count = max(int(np.ceil((limit - start) / delta)), 0)
    line = (start + delta * np.arange(count)).astype(start.dtype)
    return T.tensor(line, device=call.device)


def _constant_of_shape(call: NodeCall, shape: Array) -> Value:
    value = call.get("value")
    value = np.zeros(1, np.float32) if value is None else value
    return T.tensor(np.full(tuple(ints(shape)), value[0], value.dtype), device=call.device)


def _eye_like(call: NodeCall, x: Tensor) -> Value:
    dtype = call.get("dtype")
    made = np.eye(x.shape[0], x.shape[1], k=call.get("k", 0), dtype=np.float32)
    return T.tensor(made, device=x.device).to(x.dtype if dtype is None else call.dtype(dtype))


def _one_hot(call: NodeCall, index: Tensor, depth: Array, values: Tensor) -> Value:
    count = ints(depth)[0]
    axis = call.get("axis", -1) % (index.ndim + 1)
    position = _positive(index, count).unsqueeze(axis)
    line = T.arange(count, device=index.device)
    line = line.reshape([-1 if k == axis else 1 for k in range(index.ndim + 1)])
    return T.where(position == line, values[1], values[0])


def _trilu(call: NodeCall, x: Tensor, k: Array | None = None) -> Value:
    diagonal = 0 if k is None else ints(k)[0]
    rows = T.arange(x.shape[-2], device=x.device).unsqueeze(1)
    columns = T.arange(x.shape[-1], device=x.device)
    mask = columns - rows >= diagonal if call.get("upper", 1) else columns - rows <= diagonal
    return T.where(mask, x, T.zeros_like(x))


def _depth_to_space(call: NodeCall, x: Tensor) -> Value:
    n, c, h, w = x.shape
    b = call.get("blocksize")
    if call.get("mode", "DCR") == "DCR":
        x = x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        x = x.reshape(n, c // b**2, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return x.reshape(n, c // b**2, h * b, w * b)


def _space_to_depth(call: NodeCall, x: Tensor) -> Value:
    n, c, h, w = x.shape
    b = call.get("blocksize")
    x = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if call.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return x.permute(*order).reshape(n, c * b**2, h // b, w // b)


def _reverse_sequence(call: NodeCall, x: Tensor, lengths: Tensor) -> Value:
    time, batch = call.get("time_axis", 0), call.get("batch_axis", 1)
    moved = x.permute(time, batch, *(k for k in range(x.ndim) if k not in (time, batch)))
    line = T.arange(moved.shape[0], device=x.device).unsqueeze(1)
    lengths = lengths.long().unsqueeze(0)
    source = T.where(line < lengths, lengths - 1 - line, line)
    source = source.reshape(*source.shape, *[1] * (x.ndim - 2)).expand(moved.shape)
    turned = moved.gather(0, source)
    order = [time, batch, *(k for k in range(x.ndim) if k not in (time, batch))]
    return turned.permute(*np.argsort(order).tolist())


def _compress(call: NodeCall, x: Tensor, condition: Array) -> Value:
    axis = call.get("axis")
    x = x.reshape(-1) if axis is None else x
    positions = np.flatnonzero(condition)
    return x.index_select(axis or 0, T.tensor(positions, device=x.device))


def _nonzero(call: NodeCall, x: Tensor) -> Value:
    return x.nonzero().t()


def _topk(call: NodeCall, x: Tensor, count: Array | None = None) -> tuple[Tensor, Tensor]:
    k = call.get("k") if count is None else ints(count)[0]
    axis = call.get("axis", -1)
    values, index = T.topk(x, k, axis, bool(call.get("largest", 1)), True)
    return values, index


def _cumulative(product: bool) -> Any:
    def run(call: NodeCall, x: Tensor, axis: Array) -> Value:
        dim = ints(axis)[0] % x.ndim
        x = x.flip(dim) if call.get("reverse", 0) else x
        if call.get("exclusive", 0):
            one = T.ones_like if product else T.zeros_like
            x = T.cat([one(x.narrow(dim, 0, 1)), x.narrow(dim, 0, x.shape[dim] - 1)], dim)
        x = T.cumprod(x, dim).to(x.dtype) if product else T.cumsum(x, dim).to(x.dtype)
        return x.flip(dim) if call.get("reverse", 0) else x

    return run


def _center(call: NodeCall, x: Tensor, shape: Array) -> Value:
    axes = call.get("axes", range(x.ndim))
    for axis, size in zip(axes, ints(shape), strict=True):
        axis %= x.ndim
        missing = size - x.shape[axis]
        if missing < 0:
            x = x.narrow(axis, -missing // 2, size)
        else:
            x = _padded(x, axis, missing // 2, missing - missing // 2, "constant", 0)
    return x


def _hardmax(call: NodeCall, x: Tensor) -> Value:
    axis = call.get("axis", -1 if call.opset >= 13 else 1) % x.ndim
    first = x.argmax(axis, keepdim=True)
    line = T.arange(x.shape[axis], device=x.device)
    line = line.reshape([-1 if k == axis else 1 for k in range(x.ndim)])
    return (first == line).to(x.dtype)


def _position(name: str) -> Any:
    def run(call: NodeCall, x: Tensor) -> Value:
        axis, keep = call.get("axis", 0) % x.ndim, bool(call.get("keepdims", 1))
        if call.get("select_last_index", 0):
            index = getattr(T, name)(x.flip(axis), axis, keepdim=keep)
            return x.shape[axis] - 1 - index
        result: Tensor = getattr(T, name)(x, axis, keepdim=keep)
        return result

    return run


def _unique(call: NodeCall, x: Tensor) -> tuple[Tensor, ...]:
    axis = call.get("axis")
    array = x.numpy()
    values, first, inverse, counts = np.unique(
        array, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not call.get("sorted", 1):
        order = np.argsort(first)
        rank = np.argsort(order)
        values = np.take(values, order, axis=axis or 0)
        first, counts, inverse = first[order], counts[order], rank[inverse]
    return tuple(
        T.tensor(np.ascontiguousarray(part), device=x.device)
        for part in (values, first.astype(np.int64), inverse.astype(np.int64),
                     counts.astype(np.int64))
    )  # fmt: skip


def _einsum(call: NodeCall, *operands: Tensor) -> Value:
    return T.einsum(call.get("equation"), *operands)


def _tensor_scatter(
    call: NodeCall, cache: Tensor, update: Tensor, first: Tensor | None = None
) -> Value:  # fmt: skip
    """Writes new rows of a cache, of each example from its own position on."""
    axis = call.get("axis", -2) % cache.ndim
    size, count = cache.shape[axis], update.shape[axis]
    line = T.arange(count, device=cache.device)
    start = T.zeros(cache.shape[0], dtype=int64, device=cache.device) if first is None else first
    position = start.long().unsqueeze(1) + line
    if call.get("mode", "linear") == "circular":
        position = position % size
    shape = [1] * cache.ndim
    shape[0], shape[axis] = cache.shape[0], count
    return cache.scatter(axis, position.reshape(shape).expand(update.shape), update)


def _window(name: str) -> Any:
    """Hann, Hamming and Blackman windows."""
    terms = {
        "HannWindow": (0.5, -0.5, 0.0), "HammingWindow": (25 / 46, -21 / 46, 0.0),
        "BlackmanWindow": (0.42, -0.5, 0.08),
    }[name]  # fmt: skip

    def run(call: NodeCall, size: Array) -> Value:
        count = ints(size)[0]
        whole = count if call.get("periodic", 1) else count - 1
        angle = 2 * np.pi * np.arange(count) / whole
        line = terms[0] + terms[1] * np.cos(angle) + terms[2] * np.cos(2 * angle)
        return T.tensor(line, device=call.device).to(call.dtype(call.get("output_datatype", 1)))

    return run


def _col2im(call: NodeCall, x: Tensor, image: Array, block: Array) -> Value:
    sizes, kernel = ints(image), ints(block)
    if len(sizes) != 2:
        raise call.refused(f"{len(sizes)} spatial axes", "2 of them")
    pads = call.get("pads", [0] * 4)
    full = [sizes[0] + pads[0] + pads[2], sizes[1] + pads[1] + pads[3]]
    folded = F.fold(
        x, tuple(full), tuple(kernel), dilation=tuple(call.get("dilations", (1, 1))),
        stride=tuple(call.get("strides", (1, 1))),
    )  # fmt: skip
    return folded[:, :, pads[0] : pads[0] + sizes[0], pads[1] : pads[1] + sizes[1]]


TABLE: dict[str, Operator] = {
    "Reshape": Operator(_reshape, host=(1,)), "Transpose": Operator(_transpose),
    "Flatten": Operator(_flatten), "Squeeze": Operator(_squeeze, host=(1,)),
    "Unsqueeze": Operator(_unsqueeze, host=(1,)), "Concat": Operator(_concat),
    "Split": Operator(_split, host=(1,)), "Slice": Operator(_slice, host=(1, 2, 3, 4)),
    "Expand": Operator(_expand, host=(1,)), "Tile": Operator(_tile, host=(1,)),
    "Pad": Operator(_pad, host=(1, 3)), "Gather": Operator(_gather),
    "GatherElements": Operator(_gather_elements), "GatherND": Operator(_gather_nd),
    "Scatter": Operator(_scatter_elements), "ScatterElements": Operator(_scatter_elements),
    "ScatterND": Operator(_scatter_nd), "Shape": Operator(_shape), "Size": Operator(_size),
    "Range": Operator(_range, host=(0, 1, 2)),
    "ConstantOfShape": Operator(_constant_of_shape, host=(0,)), "EyeLike": Operator(_eye_like),
    "OneHot": Operator(_one_hot, host=(1,)), "Trilu": Operator(_trilu, host=(1,)),
    "DepthToSpace": Operator(_depth_to_space), "SpaceToDepth": Operator(_space_to_depth),
    "ReverseSequence": Operator(_reverse_sequence), "Compress": Operator(_compress, host=(1,)),
    "NonZero": Operator(_nonzero), "TopK": Operator(_topk, host=(1,)),
    "CumSum": Operator(_cumulative(False), host=(1,)),
    "CumProd": Operator(_cumulative(True), host=(1,)),
    "CenterCropPad": Operator(_center, host=(1,)), "Hardmax": Operator(_hardmax),
    "ArgMax": Operator(_position("argmax")), "ArgMin": Operator(_position("argmin")),
    "Unique": Operator(_unique), "Einsum": Operator(_einsum),
    "TensorScatter": Operator(_tensor_scatter), "Col2Im": Operator(_col2im, host=(1, 2)),
    **{name: Operator(_window(name), host=(0,))
       for name in ("HannWindow", "HammingWindow", "BlackmanWindow")},
}  # fmt: skip
