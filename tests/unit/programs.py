"""Programs of nodes for the tests of scheduler and code generator."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.graph.gradient import backward
from tinygrad_cuda.graph.node import Node, gradient_mode, node_made
from tinygrad_cuda.graph.ops import (
    common,
    contraction,
    convolution,
    fft,
    indexing,
    random,
    winograd,
)
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.graph.ops.attention import attention, no_mask
from tinygrad_cuda.graph.ops.recurrence import lstm
from tinygrad_cuda.graph.program import Argument, Program
from tinygrad_cuda.lowering import lower
from tinygrad_cuda.lowering.codegen.pack import PackedLaunch
from tinygrad_cuda.lowering.schedule.kernel_dag import Schedule
from tinygrad_cuda.lowering.target import Target

EMU = as_device("emu")
TARGET = Target.h200()
# Of some of the family: how exact products are, and where their kernel is of another tier.
PRECISION = {
    "product_square": "ieee", "product_tf32x3": "tf32x3", "product_tf32x3_mma": "tf32x3",
    "conv_tma_mn_major": "high",
    "attention_tf32": "high", "attention_tf32x3": "tf32x3", "attention_simt": "ieee",
    "recurrence_simt": "ieee",
}  # fmt: skip
RUNG = {"product_naive": "naive", "product_tiled": "tiled"}
ARCHITECTURE = {"product_tf32x3_mma": "sm_80"}


class Inputs:
    """Makes buffers, numbered in their order."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def __call__(self, *shape: int, dtype: DType = dtypes.float32) -> Node:
        node = common.buffer.leaf(shape, dtype, EMU, slot=len(self.nodes))
        self.nodes.append(node)
        return node

    def program(self, *outputs: Node, overwrites: dict[int, int] | None = None) -> Program:
        return Program(EMU, outputs, tuple(self.nodes), overwrites or {})


def scheduled(program: Program) -> Schedule:
    """The kernels of a program on the target that tests of texts have."""
    return lower.scheduled(program, TARGET)


def launches(program: Program, target: Target = TARGET) -> list[PackedLaunch]:
    """What a program launches on a target."""
    return lower.lower(program, target).launches


def launches_of(name: str, target: Target | None = None) -> list[PackedLaunch]:
    """What one of the family launches, at the precision that it is for."""
    target = target or target_of(ARCHITECTURE.get(name, "sm_90"))
    precision = PRECISION.get(name, settings.matmul_precision)
    with settings.override(matmul_precision=precision, matmul_tier=RUNG.get(name, "")):
        return launches(family()[name], target)


def target_of(arch: str) -> Target:
    """A machine of an architecture, such as sm_80, that is an H200 otherwise."""
    number = int(arch.removeprefix("sm_").rstrip("af"))
    return replace(TARGET, name=arch, architecture=divmod(number, 10))


def spread(x: Node, shape: tuple[int, ...]) -> Node:
    """Broadcasts like NumPy."""
    ones = (1,) * (len(shape) - len(x.shape))
    return mv.expand(mv.reshape(x, shape=ones + x.shape), shape=shape)


def times(x: Node, number: float) -> Node:
    return ew.mul(x, common.full_like(x, number))


def softmax(x: Node, axes: tuple[int, ...]) -> Node:
    top = mv.expand(rd.max(x, axes=axes), shape=x.shape)
    e = ew.exp(ew.sub(x, top))
    return ew.div(e, mv.expand(rd.sum(e, axes=axes), shape=x.shape))


def layer_norm(x: Node, weight: Node, bias: Node) -> Node:
    axes = (len(x.shape) - 1,)
    centered = ew.sub(x, mv.expand(rd.mean(x, axes), shape=x.shape))
    variance = rd.mean(ew.mul(centered, centered), axes)
    scale = ew.rsqrt(ew.add(variance, common.full_like(variance, 1e-5)))
    normal = ew.mul(centered, mv.expand(scale, shape=x.shape))
    return ew.add(ew.mul(normal, spread(weight, x.shape)), spread(bias, x.shape))


def cross_entropy(logits: Node, labels: Node) -> Node:
    """The mean over the rows, labels checked."""
    rows, classes = logits.shape
    shifted = ew.sub(
        logits, mv.expand(common.detach(rd.max(logits, axes=(1,))), shape=logits.shape)
    )
    total = ew.log(rd.sum(ew.exp(shifted), axes=(1,)))
    chances = ew.sub(shifted, mv.expand(total, shape=logits.shape))
    checked = indexing.check_index(labels, limit=classes, what="label", code=0)
    label = mv.expand(mv.reshape(checked, shape=(rows, 1)), shape=logits.shape)
    place = common.arange.leaf((classes,), dtypes.int64, EMU, start=0, step=1)
    hot = ew.cast(ew.eq(label, spread(place, logits.shape)), dtype=logits.dtype)
    loss = ew.neg(rd.sum(ew.mul(hot, chances), axes=(1,)))
    return mv.reshape(rd.mean(loss, axes=(0, 1)), shape=())


def variable(node: Node) -> Node:
    """A leaf that gradients reach."""
    found = common.variable(node)
    return node_made(
        found.op, found.sources, found.attributes, found.outputs, found.device, True, found.site
    )


def gradients(loss: Node, leaves: list[Node]) -> list[Node]:
    found = backward([loss], [common.full_like(loss, 1.0)], retain_graph=True)
    return [found[leaf] for leaf in leaves]


def mlp_step(batch: int = 64, sizes: tuple[int, ...] = (784, 128, 10)) -> Program:
    """Forward, cross-entropy, backward and SGD with momentum; the learning rate is argument 0."""
    new = Inputs()
    x, labels = new(batch, sizes[0]), new(batch, dtype=dtypes.int64)
    parameters = [new(*shape) for a, b in pairwise(sizes) for shape in ((b, a), (b,))]
    momenta = [new(*parameter.shape) for parameter in parameters]
    leaves = [variable(parameter) for parameter in parameters]
    h = x
    for number in range(0, len(leaves), 2):
        weight, bias = leaves[number : number + 2]
        h = contraction.matmul(h, contraction.transpose(weight))
        h = ew.add(h, spread(bias, h.shape))
        if number + 2 < len(leaves):
            h = ew.maximum(h, common.full_like(h, 0))
    loss = cross_entropy(h, labels)
    outputs: list[Node] = [loss]
    overwrites: dict[int, int] = {}
    rate = common.scalar.leaf((), dtypes.float32, EMU, value=Argument(0))
    with gradient_mode(False):
        for parameter, momentum, gradient in zip(parameters, momenta, gradients(loss, leaves)):
            velocity = ew.add(times(momentum, 0.9), gradient)
            step = ew.mul(spread(rate, parameter.shape), velocity)
            for old, value in ((momentum, velocity), (parameter, ew.sub(parameter, step))):
                overwrites[len(outputs)] = new.nodes.index(old)
                outputs.append(common.assign(old, value))
            outputs.append(gradient)
    return new.program(*outputs, overwrites=overwrites)


def family() -> dict[str, Program]:
    """One program for each way in which the generator makes a kernel."""
    found: dict[str, Program] = {}

    def add(name: str, make: Any) -> None:
        new = Inputs()
        found[name] = new.program(*make(new))

    add("map", lambda new: [ew.exp(ew.add(new(64, 1024), spread(new(1024), (64, 1024))))])
    add("map_of_rows", lambda new: [_scaled_rows(new)])
    add("transpose", lambda new: [_channels_behind(new)])
    add("softmax", lambda new: [softmax(new(64, 1000), (1,))])
    add("softmax_long", lambda new: [softmax(new(80, 20000), (1,))])
    add("layer_norm", lambda new: [layer_norm(new(64, 256), new(256), new(256))])
    add("layer_norm_gradients", lambda new: _layer_norm_gradients(new, 8192, dtypes.bfloat16))
    add("layer_norm_gradients_short", lambda new: _layer_norm_gradients(new, 2048, dtypes.float32))
    add("layer_norm_gradients_warps", lambda new: _layer_norm_gradients(new, 768, dtypes.bfloat16))
    add("batch_statistics", lambda new: _welford(new(8, 16, 12, 12)))
    add("batch_norm", lambda new: _batch_norm(new, (256, 64, 56, 56)))
    add("sum_all", lambda new: [rd.sum(new(1 << 20), axes=(0,))])
    add("column_sum", lambda new: [rd.sum(new(5000, 96), axes=(0,))])
    add("column_sum_stored", lambda new: _scaled_columns(new))
    add("pool_gradient", lambda new: _pool_gradient(new))
    add("argmax", lambda new: [rd.argmax(new(33, 77, dtype=dtypes.float16), axes=(1,))])
    add("product", lambda new: [contraction.matmul(new(300, 200), new(200, 170))])
    add("product_split", lambda new: [contraction.matmul(new(32, 4096), new(4096, 32))])
    add("product_double", lambda new: [_product(new, dtypes.float64)])
    add("product_half", lambda new: [_product(new, dtypes.bfloat16)])
    add("product_mma", lambda new: [_layer(new, 512, 256, 384)])
    add("product_wgmma", lambda new: [_layer(new, 1536, 1024, 512)])
    add("product_tma", lambda new: [_layer(new, 4096, 4096, 4096)])
    add("product_tma_ping_pong", lambda new: [_layer(new, 8192, 3072, 768)])
    add("product_naive", lambda new: [_layer(new, 1000, 500, 300)])
    add("product_tiled", lambda new: [_layer(new, 1000, 500, 300)])
    add("product_shares", lambda new: [_weight_product(new, 8192, 768, 3072)])
    add("product_cluster", lambda new: [_layer(new, 64, 4224, 4096)])
    add("product_tf32x3", lambda new: [_layer(new, 2048, 1024, 512, dtypes.float32)])
    add("product_tf32x3_mma", lambda new: [_layer(new, 2048, 1024, 512, dtypes.float32)])
    add("product_columns", lambda new: _product_columns(new))
    add("product_moments", lambda new: _product_moments(new))
    add("conv_channels_last", lambda new: [_images(new)])
    add("conv_tma", lambda new: _image_passes(new))
    add("conv_tma_mn_major", lambda new: _image_passes(new, dtypes.float32)[1:])
    add("winograd", lambda new: [_winograd(new)])
    add("gather", lambda new: [indexing.gather(new(50, 16), new(30, dtype=dtypes.int64))])
    add("scatter", lambda new: [_scatter(new)])
    add("scatter_rows", lambda new: [_scatter_rows(new)])
    add("product_square", lambda new: [contraction.matmul(new(2048, 2048), new(2048, 2048))])
    add("product_streamed", lambda new: [contraction.matmul(new(8, 1024), new(1024, 65536))])
    add("conv_direct", lambda new: [_few_channels(new)])
    add("conv_weight_gradient", lambda new: [_weight_gradient(new)])
    add("conv_depthwise", lambda new: [_depthwise(new)])
    add("conv_depthwise_last", lambda new: _depthwise_last(new))
    add("attention_mma", lambda new: _attention(new, 96))
    add("attention_wgmma", lambda new: _attention(new, 64, keys=256))
    add("attention_tma", lambda new: _attention(new, 64))
    add("attention_tf32", lambda new: _attention(new, 32, dtypes.float32))
    add("attention_tf32x3", lambda new: _attention(new, 32, dtypes.float32))
    add("attention_simt", lambda new: _attention(new, 32, dtypes.float32))
    add("recurrence", lambda new: _recurrent(new, dtypes.float32))
    add("recurrence_simt", lambda new: _recurrent(new, dtypes.float32))
    add("recurrence_mma", lambda new: _recurrent(new, dtypes.bfloat16))
    add("fft", lambda new: _transforms(new))
    add("random", lambda new: [_random()])
    found["mlp_step"] = mlp_step()
    return found


def _attention(
    new: Inputs, width: int, dtype: DType = dtypes.bfloat16, keys: int = 1024
) -> list[Node]:
    """A GPT's, with its gradients."""
    leaves = [variable(new(16, 12, keys, width, dtype=dtype)) for _ in range(3)]
    both = attention(*leaves, no_mask(leaves[0]), causal=True, scale=0.125)
    out = common.output(both, index=0)
    loss = rd.sum(ew.mul(out, new(*out.shape, dtype=dtype)), axes=(0, 1, 2, 3))
    return [out, *gradients(loss, leaves)]


def _transforms(new: Inputs) -> list[Node]:
    """Of real rows, times a filter, and back: three radices, several rows a block."""
    spectrum = fft.rfft(new(600, 120), scale=1.0)
    kernel = ew.complex_(new(*spectrum.shape), new(*spectrum.shape))
    return [fft.irfft(ew.mul(spectrum, kernel), n=120, scale=1 / 120)]


def _channels_behind(new: Inputs) -> Node:
    """A layer's bias and ReLU, stored with the channels last."""
    x = new(16, 96, 12, 20, dtype=dtypes.bfloat16)
    y = ew.maximum(ew.add(x, spread(new(96, 1, 1, dtype=x.dtype), x.shape)), common.full_like(x, 0))
    return ew.contiguous(mv.permute(y, axes=(0, 2, 3, 1)))


def _recurrent(new: Inputs, dtype: DType) -> list[Node]:
    """The steps of an LSTM, with their gradients."""
    gates = variable(new(35, 64, 2600, dtype=dtype))
    states = [common.full(0, (64, 650), gates) for _ in range(2)]
    whole = lstm(gates, variable(new(2600, 650, dtype=dtype)), *states, reverse=False)
    out = common.output(whole, index=0)
    loss = rd.sum(ew.mul(out, new(*out.shape, dtype=dtype)), axes=(0, 1, 2))
    return [out, *gradients(loss, [gates])]


def _layer_norm_gradients(new: Inputs, length: int, dtype: DType) -> list[Node]:
    """Of so many rows that they carry the columns of the weight and the bias."""
    shapes = ((4096, length), (length,), (length,))
    leaves = [variable(new(*shape, dtype=dtype)) for shape in shapes]
    loss = rd.sum(ew.mul(layer_norm(*leaves), new(*shapes[0], dtype=dtype)), axes=(0, 1))
    return gradients(loss, leaves)


def _batch_norm(new: Inputs, shape: tuple[int, ...]) -> list[Node]:
    """Its value and gradients, of more than a cache holds."""
    x = variable(new(*shape))
    weight, bias = (
        variable(mv.reshape(new(shape[1]), shape=(1, shape[1], 1, 1))) for _ in range(2)
    )
    both = rd.welford(x, axes=(0, 2, 3))
    mean, deviations = (common.output(both, index=number) for number in (0, 1))
    variance = times(deviations, shape[1] / prod(shape))
    factor = ew.mul(ew.rsqrt(ew.add(variance, common.full_like(variance, 1e-5))), weight)
    near = common.detach(mean)
    shift = ew.add(ew.mul(ew.sub(near, mean), factor), bias)
    away = ew.sub(x, mv.expand(near, shape=shape))
    y = ew.add(ew.mul(away, mv.expand(factor, shape=shape)), mv.expand(shift, shape=shape))
    loss = rd.sum(ew.mul(y, new(*shape)), axes=(0, 1, 2, 3))
    return [y, *gradients(loss, [x, weight, bias])]


def _winograd(new: Inputs) -> Node:
    """A 3 x 3 convolution by Winograd's transforms."""
    x = mv.pad(
        new(4, 32, 16, 16), starts=(0, 0, 1, 1), shape=(4, 32, 18, 18), steps=(1,) * 4, value=0
    )
    planes = winograd.winograd(x, form=4, part="images")
    kernels = winograd.winograd(new(32, 64, 3, 3), form=4, part="kernels")
    y = contraction.matmul(kernels, planes)
    return ew.exp(winograd.unwinograd(y, form=4, part="results", shape=(4, 64, 16, 16)))


PLAIN = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1}


def _few_channels(new: Inputs) -> Node:
    """A convolution of few channels; what follows its bias is in the same kernel."""
    y = convolution.convolution(new(128, 6, 14, 14), new(16, 6, 5, 5), **PLAIN)
    return ew.maximum(ew.add(y, spread(new(16, 1, 1), y.shape)), common.full_like(y, 0))


def _scaled_rows(new: Inputs) -> Node:
    """A normalization applied: a scale and a shift for each column."""
    shape = (20011, 64)
    return ew.add(ew.mul(new(*shape), spread(new(64), shape)), spread(new(64), shape))


def _scaled_columns(new: Inputs) -> list[Node]:
    """A normalization's gradient by column, and the column sums of what is stored."""
    shape = (12544, 64)
    wide = [ew.cast(new(*shape, dtype=dtypes.bfloat16), dtype=dtypes.float32) for _ in range(2)]
    found = ew.add(ew.mul(wide[0], spread(new(64), shape)), wide[1])
    stored = ew.cast(found, dtype=dtypes.bfloat16)
    return [stored, rd.sum(ew.cast(stored, dtype=dtypes.float32), axes=(0,))]


def _pool_gradient(new: Inputs) -> list[Node]:
    """Of maxima over 2 x 2 pixels behind a ReLU, and its sums by channel: stored on the way."""
    blocks, shape = (128, 16, 5, 5, 2, 2), (128, 16, 10, 10)
    largest, off = new(*blocks, dtype=dtypes.bool_), new(*shape, dtype=dtypes.bool_)
    cotangent = mv.expand(mv.reshape(new(128, 16, 5, 5), shape=(*blocks[:4], 1, 1)), shape=blocks)
    pixels = ew.where(largest, cotangent, common.full_like(cotangent, 0))
    pixels = mv.reshape(mv.permute(pixels, axes=(0, 1, 2, 4, 3, 5)), shape=shape)
    found = ew.where(off, common.full_like(pixels, 0), pixels)
    return [found, rd.sum(found, axes=(0, 2, 3))]


def _weight_gradient(new: Inputs) -> Node:
    """Of the same convolution."""
    cotangent, x = new(128, 16, 10, 10), new(128, 6, 14, 14)
    return convolution.convolution_weight_gradient(cotangent, x, kernel=(5, 5), **PLAIN)


def _depthwise(new: Inputs) -> Node:
    """A depthwise convolution; what follows its bias is in the same kernel."""
    at = {**PLAIN, "padding": ((1, 1), (1, 1)), "groups": 24}
    y = convolution.convolution(new(8, 24, 28, 28), new(24, 1, 3, 3), **at)
    return ew.maximum(ew.add(y, spread(new(24, 1, 1), y.shape)), common.full_like(y, 0))


def _depthwise_last(new: Inputs) -> list[Node]:
    """Gradients of one with a stride, channels last; the kernel's has slices."""
    at = {**PLAIN, "stride": (2, 2), "padding": ((1, 1), (1, 1)), "groups": 64}
    g, x = (
        mv.permute(new(64, size, size, 64, dtype=dtypes.bfloat16), axes=(0, 3, 1, 2))
        for size in (16, 32)
    )
    w = new(64, 1, 3, 3, dtype=dtypes.bfloat16)
    dx = convolution.convolution_input_gradient(g, w, size=(32, 32), **at)
    dw = convolution.convolution_weight_gradient(g, x, kernel=(3, 3), **at)
    return [mv.permute(dx, axes=(0, 2, 3, 1)), dw]


def _random() -> Node:
    numbers = {"seed": Argument(0), "number": Argument(1)}
    return random.random_uniform.leaf((1000,), dtypes.float32, EMU, **numbers)


def _scatter_rows(new: Inputs) -> Node:
    shape = (50, 256)
    return indexing.scatter_add(new(*shape), new(30, dtype=dtypes.int64), new(30, 256))


def _welford(x: Node) -> list[Node]:
    both = rd.welford(x, axes=(0, 2, 3))
    return [common.output(both, index=0), common.output(both, index=1)]


def _product(new: Inputs, dtype: DType) -> Node:
    a, b = new(4, 65, 33, dtype=dtype), new(4, 47, 33, dtype=dtype)
    return contraction.matmul(a, contraction.transpose(b))


def _layer(
    new: Inputs, rows: int, columns: int, length: int, dtype: DType = dtypes.bfloat16
) -> Node:
    """A linear layer with an activation, on matrix units."""
    x, w = (new(*shape, dtype=dtype) for shape in ((rows, length), (columns, length)))
    bias = spread(new(columns, dtype=dtype), (rows, columns))
    y = ew.add(contraction.matmul(x, contraction.transpose(w)), bias)
    return ew.maximum(y, common.full_like(y, 0))


def _product_columns(new: Inputs) -> list[Node]:
    """A product behind a ReLU's mask, and what a batch norm before that needs of its gradient."""
    (x, w, y), mean = (
        [new(*shape, dtype=dtypes.bfloat16) for shape in ((65536, 576), (576, 64), (65536, 64))],
        new(64),
    )
    zero = common.full_like(y, 0)
    g = ew.where(ew.gt(y, zero), contraction.matmul(x, w), zero)
    wide = ew.cast(g, dtype=dtypes.float32)
    centred = ew.sub(ew.cast(y, dtype=dtypes.float32), spread(mean, y.shape))
    return [g, *(rd.sum(value, axes=(0,)) for value in (wide, ew.mul(wide, centred)))]


def _product_moments(new: Inputs) -> list[Node]:
    """A product with its bias, and the mean and deviations that a batch norm takes of it."""
    x, w, bias = (new(*shape, dtype=dtypes.bfloat16) for shape in ((65536, 576), (576, 64), (64,)))
    y = ew.add(contraction.matmul(x, w), spread(bias, (65536, 64)))
    both = rd.welford(ew.cast(y, dtype=dtypes.float32), axes=(0,))
    return [y, *(common.output(both, index=i) for i in (0, 1))]


def _weight_product(new: Inputs, examples: int, rows: int, columns: int) -> Node:
    """A layer's weight gradient alone."""
    x, y = (new(examples, size, dtype=dtypes.bfloat16) for size in (rows, columns))
    return contraction.matmul(contraction.transpose(x), y)


def _images(new: Inputs) -> Node:
    """A convolution of half values, on matrix units."""
    x, w = (new(*shape, dtype=dtypes.float16) for shape in ((32, 64, 16, 16), (64, 64, 3, 3)))
    at = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
    return convolution.convolution(x, w, **at)


def _image_passes(new: Inputs, dtype: DType = dtypes.bfloat16) -> list[Node]:
    """A convolution and its weight gradient, large enough for TMA."""
    shapes = ((64, 64, 32, 32), (128, 64, 3, 3), (64, 128, 16, 16))
    x, w, g = (new(*shape, dtype=dtype) for shape in shapes)
    at = {"stride": (2, 2), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
    dw = convolution.convolution_weight_gradient(g, x, kernel=(3, 3), **at)
    return [convolution.convolution(x, w, **at), dw]


def _scatter(new: Inputs) -> Node:
    return indexing.scatter_add(new(50, 16), new(30, dtype=dtypes.int64), new(30, 16))
