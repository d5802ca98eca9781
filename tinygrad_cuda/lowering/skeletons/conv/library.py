"""CONV by cuDNN: which convolutions a call makes, and how its operands lie in memory.

No text is generated: the stage names a library's call, and its parameters. On matrix units images
and weights have the channels last, as cuDNN's kernels of these want them; on float32 units they lie
in the order of their axes. What lies otherwise is stored so before.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.shapes import Shape, contiguous_strides
from tinygrad_cuda.graph.node import Node, gradient_mode, node_made, recorded_at, topological
from tinygrad_cuda.graph.ops import convolution as conv
from tinygrad_cuda.graph.ops import movement
from tinygrad_cuda.graph.rewrite.convolutions import LIBRARY
from tinygrad_cuda.lowering.codegen.index import INT_MAX
from tinygrad_cuda.lowering.codegen.library_call import LibraryConvolution, LibraryTensor
from tinygrad_cuda.lowering.codegen.skeleton import KernelParams, Stage
from tinygrad_cuda.lowering.layouts import Layouts, channels_first, channels_last
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.skeletons.contract.library import (
    call_stage,
    memory_view,
    words_of,
)
from tinygrad_cuda.lowering.target import Target

CUDNN = "cudnn"
DTYPES = ("float16", "bfloat16", "float32")
ALIGNED = 16  # bytes: of the memory of operands, as cuDNN's kernels take it to be
AXES = 3  # of windows at most
FORMS = {
    conv.convolution: "fprop", conv.convolution_input_gradient: "dgrad",
    conv.convolution_weight_gradient: "wgrad",
}  # fmt: skip


class ConvolutionCut(NamedTuple):
    """How a library convolves.

    Attributes:
        units: whether on matrix units; then channels are last.
        winograd: whether it may multiply transforms of tiles.
    """

    units: bool
    winograd: bool


def is_provider(target: Target) -> bool:
    """Whether cuDNN is chosen, and the target has it."""
    return settings.provider == CUDNN and CUDNN in target.libraries


def is_chosen(target: Target) -> bool:
    """Whether cuDNN is to make the convolutions of a plan."""
    return is_provider(target) and not settings.convolution_tier


def refusal(node: Node) -> str:
    """Why no call makes a convolution, or one of its gradients; empty if one does."""
    at = conv.geometry_of(node.attributes)
    if node.dtype.name not in DTYPES:
        return f"{node.dtype.name} is no dtype of its convolutions"
    if not 1 <= len(at.stride) <= AXES:
        return f"windows of {len(at.stride)} axes"
    if any(before != after or before < 0 for before, after in at.padding):
        return "padding is not the same at both ends"
    if max(prod(one.shape) for one in (node, *node.sources)) > INT_MAX:
        return "positions take 64 bits"
    return ""


def makes(node: Node, target: Target) -> bool:
    """Whether a call makes a node."""
    convolves = node.op in FORMS and 0 not in node.shape
    return convolves and is_chosen(target) and not refusal(node)


def refusals(outputs: Sequence[Node], target: Target) -> list[str]:
    """Which convolutions of a plan stay with generated kernels though cuDNN is chosen, and why."""
    if not is_chosen(target):
        return []
    nodes = [node for node in topological(outputs) if node.op in FORMS and 0 not in node.shape]
    reasons = ((node, refusal(node)) for node in nodes)
    return [
        f"{node.op.name} {node.shape} {node.dtype.name} is not by {CUDNN}: {reason}"
        for node, reason in reasons
        if reason
    ]


def as_it_is(node: Node) -> Node:
    """An input gradient that is not rewritten as convolutions."""
    attributes = {**node.attributes, LIBRARY: True}
    return node_made(
        node.op, node.sources, attributes, node.outputs, node.device, False, node.site
    )  # fmt: skip


# Operands in memory -------------------------------------------------------------------------------


def with_packed_operands(node: Node, layouts: Layouts, last: bool) -> Node:
    """The convolution over operands that fill their memory; with the channels last if `last` is.

    Its result has the channels last then, too: that is the order of its axes.
    """
    first, second = node.sources
    own = node.op is not conv.convolution_weight_gradient
    with gradient_mode(False), recorded_at(node.site):
        sources = (
            _images(first, layouts, last),
            (_weight if own else _images)(second, layouts, last),
        )
    attributes = {name: value for name, value in node.attributes.items() if name != LIBRARY}
    outputs = node.outputs
    if last:
        ((shape, dtype),) = outputs
        attributes["last"] = True
        outputs = ((tuple(shape[axis] for axis in channels_last(len(shape))), dtype),)
    return node_made(node.op, sources, attributes, outputs, node.device, False, node.site)


def _images(x: Node, layouts: Layouts, last: bool) -> Node:
    rank = len(x.shape)
    if not last:
        x = layouts.row_major(x)
        return x if _is_packed(x) else layouts.copy(x, tuple(range(rank)))
    if layouts.last(x) is None and _lies_last(x):
        return x
    stored = layouts.put_last(x)
    if not _is_packed(stored):
        stored = layouts.copy(stored, tuple(range(rank)))
    return movement.permute(stored, axes=channels_first(rank))


def _weight(w: Node, layouts: Layouts, last: bool) -> Node:
    rank = len(w.shape)
    if not last:
        return w if _is_packed(w) else layouts.copy(w, tuple(range(rank)))
    if _lies_last(w):
        return w
    return movement.permute(layouts.copy(w, channels_last(rank)), axes=channels_first(rank))


def _lies_last(x: Node) -> bool:
    """Whether elements with the channels last fill a value's memory in that order."""
    return _is_packed(movement.permute(x, axes=channels_last(len(x.shape))))


def _is_packed(x: Node) -> bool:
    """Whether the elements, in the order of the axes, are neighbours in aligned memory."""
    memory = _memory(x)
    return memory is not None and memory[1] * x.dtype.itemsize % ALIGNED == 0


def _memory(x: Node) -> tuple[Node, int] | None:
    """The value in memory of which the elements are a run, and the first of them."""
    view = memory_view(x)
    if view is None:
        return None
    base, strides, offset = view
    wanted = zip(strides, x.shape, contiguous_strides(x.shape), strict=True)
    run = all(stride == packed for stride, size, packed in wanted if size > 1)
    return (base, offset) if run else None


# The stage ----------------------------------------------------------------------------------------


def convolution_stages(kernel: Kernel, cut: ConvolutionCut) -> list[Stage]:
    """One stage: the call, on memory that its parameters name."""
    (node,) = kernel.anchors
    assert kernel.stores == [node], f"no library call stores {kernel.stores}"
    last, axes = cut.units, channels_last(len(node.shape))
    tensors, bases = [], []
    for source in node.sources:
        with gradient_mode(False), recorded_at(node.site):
            memory = _memory(movement.permute(source, axes=axes) if last else source)
        assert memory is not None, f"{node} has an operand that does not fill its memory"
        bases.append(memory[0])
        tensors.append(_tensor(source.shape, last, memory[1]))
    shape = tuple(node.shape[axis] for axis in channels_first(len(axes))) if last else node.shape
    params = KernelParams()
    words = words_of(params, [*map(params.read, bases), params.write(node)])
    stride, padding, dilation, groups = conv.geometry_of(node.attributes)
    before = tuple(start for start, _ in padding)
    geometry = (_planar(stride, 1), _planar(before, 0), _planar(dilation, 1))
    form = FORMS[node.op]
    call = LibraryConvolution(
        CUDNN, form, node.dtype.name, cut.units, cut.winograd, tensors[0], tensors[1],
        _tensor(shape, last), *geometry, words,
    )  # fmt: skip
    units = "tf32" if cut.units and not node.dtype.is_half else node.dtype.name
    label = f"cuDNN {form} of {node.sources[0].shape} and {node.sources[1].shape} {units}, "
    label += "channels last" if last else "channels first"
    label += f", {groups} groups" if groups > 1 else ""
    return [call_stage(kernel, f"cudnn_{form}", call, params, label)]


def _planar(sizes: Shape, filler: int) -> Shape:
    """Numbers of axes of windows, of which cuDNN has two at least."""
    return sizes if len(sizes) > 1 else (filler, *sizes)


def _tensor(shape: Shape, last: bool, offset: int = 0) -> LibraryTensor:
    """A packed tensor with two spatial axes at least."""
    shape = (*shape[:2], *_planar(shape[2:], 1))
    if not last:
        return LibraryTensor(shape, contiguous_strides(shape), offset)
    stored = contiguous_strides(tuple(shape[axis] for axis in channels_last(len(shape))))
    return LibraryTensor(shape, tuple(stored[a] for a in channels_first(len(shape))), offset)


__all__ = [
    "CUDNN", "ConvolutionCut", "as_it_is", "convolution_stages", "is_chosen", "is_provider",
    "makes", "refusal", "refusals", "with_packed_operands",
]  # fmt: skip
