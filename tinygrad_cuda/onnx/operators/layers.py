"""ONNX operators of layers: products, convolutions, pools, resizing, recurrences, attention."""

from __future__ import annotations

from math import ceil, floor, prod
from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import bool_, float32, int32
from tinygrad_cuda.nn import functional as F
from tinygrad_cuda.onnx.operators.call import NodeCall, Operator, Value, ints, wide
from tinygrad_cuda.tensors import functions as T
from tinygrad_cuda.tensors.tensor import Tensor

Array = np.ndarray[Any, Any]


def _matmul(call: NodeCall, a: Tensor, b: Tensor) -> Value:
    return T.matmul(a, b)


def _gemm(call: NodeCall, a: Tensor, b: Tensor, c: Tensor | None = None) -> Value:
    a = a.t() if call.get("transA", 0) else a
    b = b.t() if call.get("transB", 0) else b
    y = T.matmul(a, b)
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    y = y if alpha == 1 else (y * alpha).to(y.dtype)
    if c is None:
        return y
    return y + (c if beta == 1 else (c * beta).to(c.dtype))


# Convolutions and pools ---------------------------------------------------------------------------


def _pads(call: NodeCall, sizes: list[int], kernel: list[int]) -> list[tuple[int, int]]:
    """Padding before and after each axis, as numbers or as `auto_pad` asks for."""
    rank = len(kernel)
    mode = call.get("auto_pad", "NOTSET")
    strides = call.get("strides", [1] * rank)
    dilations = call.get("dilations", [1] * rank)
    if mode == "NOTSET":
        pads = call.get("pads", [0] * 2 * rank)
        return list(zip(pads[:rank], pads[rank:]))
    if mode == "VALID":
        return [(0, 0)] * rank
    result = []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations):
        total = max((ceil(size / stride) - 1) * stride + (k - 1) * dilation + 1 - size, 0)
        small = total // 2
        result.append((small, total - small) if mode == "SAME_UPPER" else (total - small, small))
    return result


def _surrounded(x: Tensor, pads: list[tuple[int, int]], value: float = 0) -> Value:
    """x with padding on its spatial axes."""
    flat = [count for pair in reversed(pads) for count in pair]
    return F.pad(x, flat, value=value) if any(flat) else x


_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def _of_rank(call: NodeCall, table: dict[int, Any], x: Tensor) -> Any:
    rank = x.ndim - 2
    if rank not in table:
        raise call.refused(f"{rank} spatial axes", "1 to 3 of them")
    return table[rank]


def _conv(call: NodeCall, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Value:
    rank = x.ndim - 2
    pads = _pads(call, list(x.shape[2:]), list(weight.shape[2:]))
    return _of_rank(call, _CONV, x)(
        _surrounded(x, pads), weight, bias, tuple(call.get("strides", [1] * rank)), 0,
        tuple(call.get("dilations", [1] * rank)), call.get("group", 1),
    )  # fmt: skip


def _conv_transpose(call: NodeCall, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Value:
    """Without padding first; what `pads` or `output_shape` leave out is cut off."""
    rank = x.ndim - 2
    strides = call.get("strides", [1] * rank)
    dilations = call.get("dilations", [1] * rank)
    extra = call.get("output_padding", [0] * rank)
    y = _of_rank(call, _TRANSPOSED, x)(
        x, weight, None, tuple(strides), 0, 0, call.get("group", 1), tuple(dilations)
    )
    pads = call.get("pads", [0] * 2 * rank)
    wanted = call.get("output_shape")
    mode = call.get("auto_pad", "NOTSET")
    if wanted is None and mode.startswith("SAME"):
        wanted = [size * stride for size, stride in zip(x.shape[2:], strides)]
    for k in range(rank):
        dim, before, after = k + 2, pads[k], pads[k + rank] - extra[k]
        if wanted is not None:
            total = y.shape[dim] + extra[k] - wanted[-rank:][k]
            small = total // 2
            before = small if mode == "SAME_UPPER" else total - small
            after = total - before - extra[k]
        y = y.narrow(dim, before, y.shape[dim] - before - max(after, 0))
        if after < 0:
            y = _surrounded(y, [(0, -after if j == k else 0) for j in range(rank)])
    return y if bias is None else y + bias.reshape(1, -1, *[1] * rank)


def _pool_size(size: int, kernel: int, stride: int, dilation: int, rounding: int) -> int:
    """How many windows fit; with `ceil_mode` one more that begins inside the input."""
    reach = (kernel - 1) * dilation + 1
    return (ceil if rounding else floor)((size - reach) / stride) + 1


def _windows(
    call: NodeCall, x: Tensor, value: float, count_of_pads: bool = False
) -> tuple[list[Tensor], list[Tensor], list[tuple[int, int]]]:
    """For each position in the window: the elements there, and which are inside the input."""
    kernel = call.get("kernel_shape")
    rank = len(kernel)
    strides = call.get("strides", [1] * rank)
    dilations = call.get("dilations", [1] * rank)
    pads = _pads(call, list(x.shape[2:]), kernel)
    counts, outer = [], []
    for k in range(rank):
        size = x.shape[k + 2] + sum(pads[k])
        count = _pool_size(size, kernel[k], strides[k], dilations[k], call.get("ceil_mode", 0))
        if call.get("ceil_mode", 0) and (count - 1) * strides[k] >= x.shape[k + 2] + pads[k][0]:
            count -= 1
        missing = (count - 1) * strides[k] + (kernel[k] - 1) * dilations[k] + 1 - size
        counts.append(count)
        outer.append((pads[k][0], pads[k][1] + max(missing, 0)))
    inside = T.ones_like(x[:1, :1], dtype=float32)
    if count_of_pads:
        inside = _surrounded(inside, pads, 1)
        rest = [(0, after - pad[1]) for (_, after), pad in zip(outer, pads)]
        inside = _surrounded(inside, rest)
    else:
        inside = _surrounded(inside, outer)
    x = _surrounded(x, outer, value)
    values, weights = [], []
    for position in np.ndindex(*kernel):
        key = (slice(None), slice(None), *(
            slice(p * d, p * d + (n - 1) * s + 1, s)
            for p, d, n, s in zip(position, dilations, counts, strides)
        ))  # fmt: skip
        values.append(x[key])
        weights.append(inside[key])
    return values, weights, outer


def _average_pool(call: NodeCall, x: Tensor) -> Value:
    values, weights, _ = _windows(call, x, 0, bool(call.get("count_include_pad", 0)))
    total, count = values[0], weights[0]
    for value, weight in zip(values[1:], weights[1:]):
        total, count = total + value, count + weight
    return total / count.to(x.dtype)


def _max_pool(call: NodeCall, x: Tensor) -> Any:
    dtype = x.dtype
    own = x if dtype.is_floating else x.int()
    lowest = -float("inf") if dtype.is_floating else int(np.iinfo(dtype.numpy).min)
    values, _, _ = _windows(call, own, lowest)
    stacked = T.stack(values)
    y = stacked.amax(0).to(dtype)
    if call.results < 2:
        return y
    positions = T.arange(x.numel(), device=x.device).reshape(x.shape)
    if call.get("storage_order", 0):
        order = [0, 1, *range(2, x.ndim)[::-1]]
        shape = [x.shape[k] for k in order]
        positions = T.arange(x.numel(), device=x.device).reshape(shape).permute(
            *np.argsort(order).tolist()
        )  # fmt: skip
    places, _, _ = _windows(call, positions.double(), 0)
    chosen = stacked.argmax(0, keepdim=True)
    return y, T.stack(places).gather(0, chosen).squeeze(0).long()


def _lp_pool(call: NodeCall, x: Tensor) -> Value:
    p = call.get("p", 2)
    values, _, _ = _windows(call, x, 0)
    total = values[0].abs() ** p
    for value in values[1:]:
        total = total + value.abs() ** p
    return total ** (1 / p)


def _global(name: str) -> Operator:
    def run(call: NodeCall, x: Tensor) -> Value:
        result: Tensor = getattr(x, name)(list(range(2, x.ndim)), keepdim=True)
        return result

    return Operator(run)


def _max_unpool(
    call: NodeCall, x: Tensor, index: Tensor, shape: Array | None = None
) -> Value:  # fmt: skip
    kernel = call.get("kernel_shape")
    rank = len(kernel)
    strides, pads = call.get("strides", [1] * rank), call.get("pads", [0] * 2 * rank)
    own = [
        (x.shape[k + 2] - 1) * strides[k] + kernel[k] - pads[k] - pads[k + rank]
        for k in range(rank)
    ]
    inner = [*x.shape[:2], *own]
    flat = T.zeros(prod(inner), dtype=x.dtype, device=x.device)
    if shape is None:
        return flat.scatter(0, index.reshape(-1), x.reshape(-1)).reshape(inner)
    wanted = ints(shape)
    flat = T.zeros(prod(wanted), dtype=x.dtype, device=x.device)
    # Positions count in the output that the pads alone would give.
    line = index.reshape(-1)
    position = T.zeros_like(line)
    stride = 1
    for size, large in zip(inner[::-1], wanted[::-1]):
        position = position + (line % size) * stride
        line, stride = line // size, stride * large
    return flat.scatter(0, position, x.reshape(-1)).reshape(wanted)


# Resizing -----------------------------------------------------------------------------------------


def _resize(
    call: NodeCall, x: Tensor, roi: Array | None = None, scales: Array | None = None,
    sizes: Array | None = None,
) -> Value:  # fmt: skip
    """Axis by axis, as a product with the weights of the interpolation."""
    axes = [axis % x.ndim for axis in call.get("axes", range(x.ndim))]
    if call.kind == "Upsample":
        scales = np.array(call.get("scales"), np.float32) if roi is None else roi
        roi = None
    given, wanted = _scales(call, x, axes, scales, sizes)
    boxes = None
    if roi is not None and roi.size:
        boxes = [(float(roi[k]), float(roi[k + len(axes)])) for k in range(len(axes))]
    dtype = x.dtype
    y = wide(x) if dtype.is_floating else x.double()
    for k, axis in enumerate(axes):
        box = boxes[k] if boxes is not None else (0.0, 1.0)
        if wanted[k] == x.shape[axis] and given[k] == 1 and box == (0.0, 1.0):
            continue
        matrix, outside = _interpolation(call, x.shape[axis], wanted[k], given[k], box)
        weights = T.tensor(matrix, dtype=y.dtype, device=x.device)
        y = T.matmul(y.transpose(axis, -1), weights.t()).transpose(axis, -1)
        if outside.any():
            shape = [-1 if j == axis else 1 for j in range(x.ndim)]
            mask = T.tensor(outside, device=x.device).reshape(shape)
            y = T.where(mask, T.full_like(y, call.get("extrapolation_value", 0.0)), y)
    return y.to(dtype)


def _scales(
    call: NodeCall, x: Tensor, axes: list[int], scales: Array | None, sizes: Array | None
) -> tuple[list[float], list[int]]:
    own = [x.shape[axis] for axis in axes]
    if sizes is None or not sizes.size:
        assert scales is not None
        given = [float(scale) for scale in scales]
        return given, [floor(size * scale) for size, scale in zip(own, given)]
    wanted = ints(sizes)
    given = [new / size for new, size in zip(wanted, own)]
    policy = call.get("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        scale = min(given) if policy == "not_larger" else max(given)
        given = [scale] * len(axes)
        wanted = [floor(scale * size + 0.5) for size in own]
    return given, wanted


def _coordinates(
    call: NodeCall, size: int, count: int, scale: float, box: tuple[float, float]
) -> Array:
    """Where each result lies among the elements."""
    at: Array = np.arange(count, dtype=np.float64)
    mode = call.get(
        "coordinate_transformation_mode", "half_pixel" if call.kind == "Resize" else "asymmetric"
    )
    if mode == "asymmetric":
        return at / scale
    if mode == "align_corners":
        last = scale * size - 1  # need not be whole
        return at * ((size - 1) / last if last else 0)
    if mode == "pytorch_half_pixel":
        return (at + 0.5) / scale - 0.5 if count > 1 else np.zeros(count)
    if mode == "half_pixel_symmetric":
        shift = size / 2 * (1 - count / (scale * size))
        return shift + (at + 0.5) / scale - 0.5
    if mode == "tf_crop_and_resize":
        first, last = box
        if count == 1:
            return np.array([0.5 * (first + last) * (size - 1)])
        return first * (size - 1) + at * (last - first) * (size - 1) / (count - 1)
    if mode == "half_pixel":
        return (at + 0.5) / scale - 0.5
    raise call.refused(f"coordinate_transformation_mode={mode}")


def _interpolation(
    call: NodeCall, size: int, count: int, scale: float, box: tuple[float, float]
) -> tuple[Array, Array]:
    """The weights of elements in each result, and which results lie outside."""
    at = _coordinates(call, size, count, scale, box)
    matrix = np.zeros((count, size))
    outside = np.zeros(count, bool)
    if call.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        outside = (at < 0) | (at > size - 1)
    mode = call.get("mode", "nearest")
    if mode == "nearest":
        rows = np.clip(_nearest(call, at), 0, size - 1).astype(int)
        matrix[np.arange(count), rows] = 1
        return matrix, outside
    stretch = min(scale, 1.0) if call.get("antialias", 0) else 1.0
    reach = {"linear": 1, "cubic": 2}[mode] / stretch
    for row, x in enumerate(at):
        first = floor(x - reach) + 1
        taps = np.arange(first, ceil(x + reach))
        weights = _kernel(call, (taps - x) * stretch, mode)
        if call.get("exclude_outside", 0):
            weights = np.where((taps < 0) | (taps >= size), 0, weights)
        weights = weights / weights.sum()
        np.add.at(matrix[row], np.clip(taps, 0, size - 1), weights)
    return matrix, outside


def _nearest(call: NodeCall, at: Array) -> Array:
    how = call.get("nearest_mode", "round_prefer_floor" if call.kind == "Resize" else "floor")
    if how == "round_prefer_floor":
        return np.ceil(at - 0.5)
    if how == "round_prefer_ceil":
        return np.floor(at + 0.5)
    return np.floor(at) if how == "floor" else np.ceil(at)


def _kernel(call: NodeCall, distance: Array, mode: str) -> Array:
    """The weight of an element at a distance (Keys, 1981, for cubic ones)."""
    d = np.abs(distance)
    if mode == "linear":
        near: Array = np.clip(1 - d, 0, None)
        return near
    a = call.get("cubic_coeff_a", -0.75)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _grid_sample(call: NodeCall, x: Tensor, grid: Tensor) -> Value:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(call.get("mode", "linear"))
    mode = mode or call.get("mode")
    return F.grid_sample(
        x, grid, mode=mode, padding_mode=call.get("padding_mode", "zeros"),
        align_corners=bool(call.get("align_corners", 0)),
    )  # fmt: skip


def _affine_grid(call: NodeCall, theta: Tensor, size: Array) -> Value:
    return F.affine_grid(theta, ints(size), align_corners=bool(call.get("align_corners", 0)))


# Quantized numbers --------------------------------------------------------------------------------


def _spread(call: NodeCall, x: Tensor, vector: Tensor | None) -> Tensor | None:
    """A scale or zero point of each channel or block in x's shape."""
    if vector is None or vector.ndim == 0 or vector.numel() == 1:
        return vector if vector is None or vector.ndim == 0 else vector.reshape(())
    axis = call.get("axis", 1) % x.ndim
    if vector.ndim == 1:
        return vector.reshape([-1 if k == axis else 1 for k in range(x.ndim)])
    block = call.get("block_size", 0)
    return vector.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])


def _quantize(
    call: NodeCall, x: Tensor, scale: Tensor, zero: Tensor | None = None
) -> Value:  # fmt: skip
    number = call.get("output_dtype", 0)
    dtype = call.dtype(number) if number else (call.dtype(2) if zero is None else zero.dtype)
    limits = np.iinfo(dtype.numpy)
    steps = _spread(call, x, scale)
    assert steps is not None
    y = T.round(wide(x) / wide(steps))
    offset = _spread(call, x, zero)
    y = y if offset is None else y + offset.float()
    return T.clamp(y, float(limits.min), float(limits.max)).to(dtype)


def _dequantize(call: NodeCall, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Value:
    own = x.int()
    offset = _spread(call, x, zero)
    own = own if offset is None else own - offset.int()
    steps = _spread(call, x, scale)
    assert steps is not None
    return (own.float() * wide(steps)).to(scale.dtype)


def _dynamic_quantize(call: NodeCall, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low, high = T.clamp(x.amin(), max=0.0), T.clamp(x.amax(), min=0.0)
    scale = (high - low) / 255
    zero = T.clamp(T.round(-low / scale), 0.0, 255.0)
    y = T.clamp(T.round(x / scale) + zero, 0.0, 255.0)
    return y.to(call.dtype(2)), scale, zero.to(call.dtype(2))


def _shifted(x: Tensor, zero: Tensor | None, axis: int | None = None) -> Value:
    """Quantized numbers less their zero point, int32."""
    x = x.to(int32)
    if zero is None:
        return x
    zero = zero.to(int32)
    if zero.ndim == 1 and zero.numel() > 1 and axis is not None:
        zero = zero.reshape([-1 if k == axis % x.ndim else 1 for k in range(x.ndim)])
    return x - (zero.reshape(()) if zero.numel() == 1 else zero)


def _matmul_integer(
    call: NodeCall, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Value:
    return T.matmul(_shifted(a, a_zero, -2), _shifted(b, b_zero, -1))


def _conv_integer(
    call: NodeCall, x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None
) -> Value:
    """In float64, which holds the products of 8 bits and their sums."""
    y = _conv(call, _shifted(x, x_zero).double(), _shifted(w, w_zero, 0).double())
    return y.to(int32)


def _requantized(y: Tensor, scale: Tensor, zero: Tensor) -> Value:
    limits = np.iinfo(zero.dtype.numpy)
    y = T.round(y / scale.double()) + zero.double()
    return T.clamp(y, float(limits.min), float(limits.max)).to(zero.dtype)


def _qlinear_matmul(
    call: NodeCall, a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor,
    b_zero: Tensor, y_scale: Tensor, y_zero: Tensor,
) -> Value:  # fmt: skip
    total = _matmul_integer(call, a, b, a_zero, b_zero).double()
    return _requantized(total * a_scale.double() * b_scale.double(), y_scale, y_zero)


def _qlinear_conv(
    call: NodeCall, x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, w_scale: Tensor,
    w_zero: Tensor, y_scale: Tensor, y_zero: Tensor, bias: Tensor | None = None,
) -> Value:  # fmt: skip
    y = _conv(call, _shifted(x, x_zero).double(), _shifted(w, w_zero, 0).double(),
              None if bias is None else bias.double())  # fmt: skip
    steps = w_scale.double()
    if steps.numel() > 1:
        steps = steps.reshape(1, -1, *[1] * (x.ndim - 2))
    return _requantized(y * x_scale.double() * steps, y_scale, y_zero)


# Recurrences --------------------------------------------------------------------------------------

_ACTIVATIONS = {
    "sigmoid": T.sigmoid, "tanh": T.tanh, "relu": T.relu, "softsign": F.softsign,
    "softplus": F.softplus,
}  # fmt: skip


def _functions(call: NodeCall, direction: int, names: list[str]) -> list[Any]:
    """The activations of a direction."""
    given = call.get("activations", names * 2)
    count = len(names)
    own = [name.lower() for name in given[direction * count : (direction + 1) * count]]
    wrong = [name for name in own if name not in _ACTIVATIONS]
    if wrong or call.get("activation_alpha") or call.get("clip"):
        raise call.refused(f"activations {given}, clip={call.get('clip')}")
    return [_ACTIVATIONS[name] for name in own]


def _recurrence(gates: int, step: Any, names: list[str], states: int) -> Operator:
    """A recurrent layer in one or both directions; `step` makes the states after a step."""

    def run(
        call: NodeCall, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None,
        lengths: Tensor | None = None, *rest: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        layout = call.get("layout", 0)
        x = x.transpose(0, 1) if layout else x
        units = r.shape[2]
        order = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
        sequences, finals = [], []
        for d, reverse in enumerate(order[call.get("direction", "forward")]):
            first = []
            for k in range(states):
                given = rest[k] if k < len(rest) else None
                if given is not None:
                    first.append(given[:, d] if layout else given[d])
                else:
                    first.append(T.zeros(x.shape[1], units, dtype=x.dtype, device=x.device))
            weights = _Weights(
                w[d], r[d], None if b is None else b[d], units, gates,
                rest[states] if len(rest) > states else None, d,
            )  # fmt: skip
            functions = _functions(call, d, names)
            out, last = _unrolled(call, step, x, first, weights, functions, reverse, lengths)
            sequences.append(out)
            finals.append(last)
        y = T.stack(sequences, 1)
        ends = [T.stack([last[k] for last in finals], 0) for k in range(states)]
        if layout:
            return y.permute(2, 0, 1, 3), *(end.transpose(0, 1) for end in ends)
        return y, *ends

    return Operator(run)


class _Weights:
    """Those of one direction."""

    def __init__(
        self, w: Tensor, r: Tensor, b: Tensor | None, units: int, gates: int,
        peepholes: Tensor | None, direction: int,
    ) -> None:  # fmt: skip
        self.w, self.r, self.units = w, r, units
        self.wb = None if b is None else b[: gates * units]
        self.rb = None if b is None else b[gates * units :]
        self.peepholes = None if peepholes is None else peepholes[direction].split(units)

    def own(self, h: Tensor, first: int = 0, last: int | None = None) -> Value:
        """The product of the state with the weights of some gates."""
        rows = slice(first * self.units, None if last is None else last * self.units)
        y = T.matmul(h, self.r[rows].t())
        return y if self.rb is None else y + self.rb[rows]


def _unrolled(
    call: NodeCall, step: Any, x: Tensor, states: list[Tensor], weights: _Weights,
    functions: list[Any], reverse: bool, lengths: Tensor | None,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """All steps; a sequence that has ended keeps its state and shows zeros."""
    inputs = T.matmul(x, weights.w.t())
    inputs = inputs if weights.wb is None else inputs + weights.wb
    shown: list[Tensor] = [x] * x.shape[0]
    for t in range(x.shape[0])[:: -1 if reverse else 1]:
        new = step(call, inputs[t], states, weights, functions)
        if lengths is not None:
            going = (lengths > t).unsqueeze(1)
            shown[t] = T.where(going, new[0], T.zeros_like(new[0]))
            new = [T.where(going, after, before) for after, before in zip(new, states)]
        else:
            shown[t] = new[0]
        states = new
    return T.stack(shown), states


def _rnn_step(
    call: NodeCall, gates: Tensor, states: Any, weights: _Weights, f: Any
) -> list[Tensor]:
    return [f[0](gates + weights.own(states[0]))]


def _gru_step(
    call: NodeCall, gates: Tensor, states: Any, weights: _Weights, f: Any
) -> list[Tensor]:
    (h,) = states
    z, r, n = gates.chunk(3, 1)
    own = weights.own(h, 0, 2)
    z = f[0](z + own[:, : weights.units])
    r = f[0](r + own[:, weights.units :])
    if call.get("linear_before_reset", 0):
        n = f[1](n + r * weights.own(h, 2))
    else:
        n = f[1](n + weights.own(r * h, 2))
    return [(1 - z) * n + z * h]


def _lstm_step(
    call: NodeCall, gates: Tensor, states: Any, weights: _Weights, f: Any
) -> list[Tensor]:
    """The gates of ONNX are in the order i, o, f, c."""
    h, c = states
    i, o, forget, g = (gates + weights.own(h)).chunk(4, 1)
    peep = weights.peepholes
    if peep is not None:
        i, forget = i + peep[0] * c, forget + peep[2] * c
    i = f[0](i)
    forget = 1 - i if call.get("input_forget", 0) else f[0](forget)
    c = forget * c + i * f[1](g)
    if peep is not None:
        o = o + peep[1] * c
    return [f[0](o) * f[2](c), c]


# Attention ----------------------------------------------------------------------------------------


def _heads(x: Tensor, count: int) -> Value:
    """(B, L, heads * E) as (B, heads, L, E)."""
    return x.reshape(x.shape[0], x.shape[1], count, -1).transpose(1, 2)


def _attention(
    call: NodeCall, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None,
    past_k: Tensor | None = None, past_v: Tensor | None = None, filled: Tensor | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    flat = q.ndim == 3
    if flat:
        heads = call.get("kv_num_heads")
        q, k, v = _heads(q, call.get("q_num_heads")), _heads(k, heads), _heads(v, heads)
    past = 0
    if past_k is not None and past_v is not None:
        past = past_k.shape[2]
        k, v = T.cat([past_k, k], 2), T.cat([past_v, v], 2)
    present = k, v
    each = q.shape[1] // k.shape[1]
    if each > 1:
        k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
    scale = call.get("scale") or 1 / float(q.shape[-1]) ** 0.5
    products = T.matmul(q * scale**0.5, (k * scale**0.5).transpose(-1, -2))
    softcap = call.get("softcap", 0.0)
    capped = softcap * T.tanh(products / softcap) if softcap else products
    biased = _masked(call, capped, mask, past, filled)
    shares = T.softmax(wide(biased), -1).to(q.dtype)
    shares = T.where(T.isnan(shares), T.zeros_like(shares), shares)
    y = T.matmul(shares, v)
    if flat:
        y = y.transpose(1, 2).reshape(y.shape[0], y.shape[2], -1)
    shown = [products, capped, biased, shares][call.get("qk_matmul_output_mode", 0)]
    return y, *present, shown


def _masked(
    call: NodeCall, scores: Tensor, mask: Tensor | None, past: int, filled: Tensor | None
) -> Value:
    """Scores with the mask added; keys that a query may not see have -inf."""
    rows, keys = scores.shape[-2:]
    if mask is not None:
        if mask.shape[-1] < keys:
            missing = keys - mask.shape[-1]
            low = False if mask.dtype is bool_ else -float("inf")
            rest = T.full((*mask.shape[:-1], missing), low, dtype=mask.dtype, device=mask.device)
            mask = T.cat([mask, rest], -1)
        if mask.dtype is bool_:
            scores = scores.masked_fill(T.logical_not(mask), -float("inf"))
        else:
            scores = scores + mask
    line = T.arange(keys, device=scores.device)
    at = T.arange(rows, device=scores.device).unsqueeze(1)
    if filled is not None:
        seen = line < filled.reshape(-1, 1, 1, 1)
        scores = scores.masked_fill(T.logical_not(seen), -float("inf"))
        at = at + (filled.reshape(-1, 1, 1, 1) - rows)
    else:
        at = at + past
    if call.get("is_causal", 0):
        scores = scores.masked_fill(line > at, -float("inf"))
    for name, side in (("left_window_size", -1), ("right_window_size", 1)):
        width = call.get(name, -1)
        if width >= 0:
            scores = scores.masked_fill((line - at) * side > width, -float("inf"))
    return scores


def _rotary(
    call: NodeCall, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None
) -> Value:
    """Turns pairs of features by angles of their positions (Su et al., 2021)."""
    flat = x.ndim == 3
    if flat:
        x = _heads(x, call.get("num_heads"))
    width = call.get("rotary_embedding_dim", 0) or x.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    if positions is not None:
        shape = (*positions.shape, cos.shape[-1])
        cos, sin = (t.index_select(0, positions.reshape(-1).long()).reshape(shape)
                    for t in (cos, sin))  # fmt: skip
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if call.get("interleaved", 0):
        a, b = turned[..., 0::2], turned[..., 1::2]
    else:
        a, b = turned[..., : width // 2], turned[..., width // 2 :]
    real, imaginary = a * cos - b * sin, a * sin + b * cos
    if call.get("interleaved", 0):
        y = T.stack([real, imaginary], -1).reshape(turned.shape)
    else:
        y = T.cat([real, imaginary], -1)
    y = T.cat([y, rest], -1) if rest.shape[-1] else y
    return y.transpose(1, 2).reshape(y.shape[0], y.shape[2], -1) if flat else y


TABLE: dict[str, Operator] = {
    "MatMul": Operator(_matmul), "Gemm": Operator(_gemm), "Conv": Operator(_conv),
    "ConvTranspose": Operator(_conv_transpose), "AveragePool": Operator(_average_pool),
    "MaxPool": Operator(_max_pool), "LpPool": Operator(_lp_pool),
    "GlobalAveragePool": _global("mean"), "GlobalMaxPool": _global("amax"),
    "MaxUnpool": Operator(_max_unpool, host=(2,)),
    "Resize": Operator(_resize, host=(1, 2, 3)), "Upsample": Operator(_resize, host=(1,)),
    "GridSample": Operator(_grid_sample), "AffineGrid": Operator(_affine_grid, host=(1,)),
    "QuantizeLinear": Operator(_quantize), "DequantizeLinear": Operator(_dequantize),
    "DynamicQuantizeLinear": Operator(_dynamic_quantize),
    "MatMulInteger": Operator(_matmul_integer), "ConvInteger": Operator(_conv_integer),
    "QLinearMatMul": Operator(_qlinear_matmul), "QLinearConv": Operator(_qlinear_conv),
    "RNN": _recurrence(1, _rnn_step, ["Tanh"], 1),
    "GRU": _recurrence(3, _gru_step, ["Sigmoid", "Tanh"], 1),
    "LSTM": _recurrence(4, _lstm_step, ["Sigmoid", "Tanh", "Tanh"], 2),
    "Attention": Operator(_attention), "RotaryEmbedding": Operator(_rotary),
    "Det": Operator(lambda call, x: T.det(x)),
}  # fmt: skip
