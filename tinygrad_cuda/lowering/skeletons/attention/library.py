"""ATTENTION by cuDNN: which rows a call makes, and which heads in memory it reads and stores.

No text is generated: the stage names a library's call, and its parameters. Heads may lie in any
order of batches, heads and rows, such as beside each other in one matrix of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from tinygrad_cuda.core.shapes import Shape, contiguous_strides
from tinygrad_cuda.graph.node import (
    Node,
    gradient_mode,
    node_made,
    recorded_at,
    topological,
    with_sources,
)
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.graph.ops.attention import ROWS, attention, placements_of
from tinygrad_cuda.lowering.codegen.index import INT_MAX
from tinygrad_cuda.lowering.codegen.library_call import LibraryAttention, LibraryTensor
from tinygrad_cuda.lowering.codegen.skeleton import KernelParams, LibraryWorkspace, Stage
from tinygrad_cuda.lowering.schedule.kernel_dag import Choice, Kernel
from tinygrad_cuda.lowering.skeletons.attention.tiles import operands_of, stored_results
from tinygrad_cuda.lowering.skeletons.contract.library import (
    call_stage,
    memory_view,
    words_of,
)
from tinygrad_cuda.lowering.skeletons.conv.library import CUDNN, is_provider
from tinygrad_cuda.lowering.target import Target

WIDEST = 128  # columns of a head: of wider ones not every version has the gradients
TOGETHER = 8  # elements of a load: widths, and elements from row to row, are multiples
ALIGNED = 16  # bytes of the memory of heads
OF_VALUES = "of_values"  # the attribute of gradients that sum values times their cotangent
DELTA, SUMS = 5, 4  # sources of the gradients: sums of rows, or values, and logarithms


class AttentionCut(NamedTuple):
    """A library attends: there is nothing to cut."""


# What a call computes -----------------------------------------------------------------------------


def refusal(node: Node) -> str:
    """Why no call makes a row; empty if one does."""
    operands = operands_of(node)
    q = operands[0]
    widths = sorted({x.shape[-1] for x in operands})
    mask, keep_mask = node.sources[-2:]
    if not node.dtype.is_half:
        return f"{node.dtype.name} is no dtype of its attention"
    if len(q.shape) not in (3, 4):
        return f"heads in {len(q.shape) - 2} axes"
    if widths[-1] > WIDEST or any(width % TOGETHER for width in widths):
        return f"heads of {widths} are no multiples of {TOGETHER} up to {WIDEST}"
    if not (_is_true(mask) and _is_true(keep_mask)) or node.attributes["dropout"]:
        return "scores are masked, or weights are dropped"
    if not isinstance(node.attributes["scale"], int | float):
        return "the scale differs from run to run"
    if max(prod(x.shape) for x in (*node.sources[:-2], node)) > INT_MAX:
        return "positions take 64 bits"
    if node.op is not attention:
        if q.shape[-2] == 1:  # of one head, cuDNN 9.28's heuristic ends the process
            return "one query has no gradients there"
        if OF_VALUES not in node.attributes and values_of(node) is None:
            return "the sums of rows are not those of values times their cotangent"
    return ""


def makes(node: Node, target: Target) -> bool:
    """Whether a call makes a node."""
    if node.op not in ROWS or not is_provider(target):
        return False
    return 0 not in (prod(x.shape) for x in operands_of(node)) and not refusal(node)


def _is_true(mask: Node) -> bool:
    """Whether a mask leaves everything."""
    while mask.op.kind == "movement":
        (mask,) = mask.sources
    return mask.op is common.constant and mask.attributes["value"] is True


def values_of(node: Node) -> Node | None:
    """The values of which gradients have the sums over rows, times their cotangent; or None."""
    g, delta = node.sources[0], node.sources[DELTA]
    total = delta.sources[0] if delta.op is mv.reshape else delta
    axis = len(g.shape) - 1
    if total.op is not rd.sum or total.attributes["axes"] != (axis,):
        return None
    (product,) = total.sources
    if product.op is not ew.mul or product.shape != g.shape:
        return None
    factors = [x.sources[0] if x.op is ew.cast else x for x in product.sources]
    for one, other in (factors, reversed(factors)):
        if one is g and other.dtype is g.dtype:
            return other
    return None


def with_values(node: Node) -> Node:
    """A row whose gradients have the values in the place of the sums over rows."""
    if node.op is attention:
        return node
    values = values_of(node)
    assert values is not None, f"{node} has other sums of rows"
    sources = (*node.sources[:DELTA], values, *node.sources[DELTA + 1 :])
    return _made(node, sources, OF_VALUES)


def _made(node: Node, sources: tuple[Node, ...], flag: str) -> Node:
    attributes = {**node.attributes, flag: True}
    return node_made(
        node.op, sources, attributes, node.outputs, node.device, False, node.site
    )  # fmt: skip


def refusals(outputs: Sequence[Node], target: Target) -> list[str]:
    """Which rows of a plan stay with generated kernels though cuDNN is chosen, and why."""
    if not is_provider(target):
        return []
    nodes = [node for node in topological(outputs) if node.op in ROWS]
    reasons = ((node, refusal(node)) for node in nodes)
    return [
        f"{node.op.name} {node.shape} {node.dtype.name} is not by {CUDNN}: {reason}"
        for node, reason in reasons
        if reason
    ]


# Operands in memory -------------------------------------------------------------------------------


def with_calls(
    outputs: Sequence[Node], choices: Mapping[Node, Choice], target: Target
) -> tuple[tuple[Node, ...], dict[Node, Choice]]:
    """The same values, whose attention reads heads in memory; and the choice of each.

    Args:
        outputs: of a plan.
        choices: of its products and convolutions.
        target: the machine.
    """
    new: dict[Node, Node] = {}
    calls: dict[Node, Choice] = {}
    for node in topological(outputs):
        made = with_sources(node, tuple(new[source] for source in node.sources))
        if makes(made, target):
            with gradient_mode(False), recorded_at(node.site):
                heads = tuple(map(_in_memory, made.sources[:-2]))
                made = with_sources(made, (*heads, *made.sources[-2:]))
            reason = f"{CUDNN}, {_form(made)} of {made.shape}"
            calls[made] = Choice(CUDNN, AttentionCut(), attention_call_stages, reason, copies=True)
        new[node] = made
    others = {new[node]: choice for node, choice in choices.items()}
    return tuple(new[node] for node in outputs), {**others, **calls}


def _form(node: Node) -> str:
    return "forward" if node.op is attention else "backward"


def _in_memory(x: Node) -> Node:
    """Heads, or logarithms of rows, as a call can read them."""
    return x if _tensor(x) is not None else ew.contiguous(x)


def _tensor(x: Node) -> tuple[Node, LibraryTensor] | None:
    """The value in memory that an operand is a view of, and the view; None if it is none."""
    view = memory_view(x)
    if view is None:
        return None
    base, strides, offset = view
    rows = not x.dtype.is_half  # the logarithms, one a row
    if rows:
        wanted = contiguous_strides(x.shape)
        run = all(a == b for a, b, n in zip(strides, wanted, x.shape) if n > 1)
        whole = run and offset * x.dtype.itemsize % ALIGNED == 0
        return (base, _of_rows(x.shape, offset)) if whole else None
    tensor = _of_heads(x.shape, strides, offset)
    return None if tensor is None else (base, tensor)


def _of_heads(shape: Shape, strides: Shape, offset: int) -> LibraryTensor | None:
    """Heads with a batch and a head axis; None where a row is no run of aligned loads."""
    sizes = zip(shape[:-1], strides[:-1], strict=True)
    apart = [stride for size, stride in sizes if size > 1]
    if (strides[-1] != 1 and shape[-1] > 1) or offset % TOGETHER:
        return None
    if any(stride % TOGETHER or not stride for stride in apart):
        return None
    # An axis of one element has the stride that it would have if the heads filled their memory.
    filled, extent = [1], shape[-1]
    for size, stride in zip(reversed(shape[:-1]), reversed(strides[:-1])):
        filled.append(stride if size > 1 else extent)
        extent = max(extent, filled[-1] * size)
    while len(filled) < 4:
        shape = (shape[0], 1, *shape[1:])
        filled.insert(-1, filled[-2] * shape[-2])
    return LibraryTensor(shape, tuple(reversed(filled)), offset)


def _of_rows(shape: Shape, offset: int = 0) -> LibraryTensor:
    """A number of each row."""
    shape = (*(shape if len(shape) == 3 else (shape[0], 1, shape[1])), 1)
    return LibraryTensor(shape, contiguous_strides(shape), offset)


# The stage ----------------------------------------------------------------------------------------


def attention_call_stages(kernel: Kernel, cut: AttentionCut) -> list[Stage]:
    """One stage: the call, on memory that its parameters name."""
    (node,) = kernel.anchors
    params = KernelParams()
    tensors, names = [], []
    for source in _read(node):
        found = _tensor(source)
        assert found is not None, f"{node} has an operand that is no heads in memory"
        tensors.append(found[1])
        names.append(params.read(found[0]))
    stored = stored_results(kernel)
    for number, tensor in enumerate(_results(node)):
        if number in stored:
            names.append(params.write(stored[number]))
        elif node.op is attention and number:
            continue  # no gradient needs the logarithms
        else:  # a result that nobody reads
            names.append(params.scratch(LibraryWorkspace(_extent(tensor)), "char", True))
        tensors.append(tensor)
    causal, scale = node.attributes["causal"], float(node.attributes["scale"])
    form, words = _form(node), words_of(params, names)
    call = LibraryAttention(CUDNN, form, node.dtype.name, causal, scale, tuple(tensors), words)
    label = f"cuDNN {form} of {tensors[0].shape} queries, {tensors[1].shape} keys "
    label += node.dtype.name + (", causal" if causal else "")
    return [call_stage(kernel, f"cudnn_attention_{form}", call, params, label)]


def _read(node: Node) -> tuple[Node, ...]:
    """What a call reads, in its order."""
    if node.op is attention:
        return node.sources[:3]
    g, q, k, v, logsumexp, values, *_ = node.sources
    return q, k, v, values, g, logsumexp


def _results(node: Node) -> list[LibraryTensor]:
    """Where a row's results lie in what stores them."""
    q, k, v = operands_of(node)
    values = (*q.shape[:-1], v.shape[-1])
    shapes = (values, q.shape[:-1]) if node.op is attention else (q.shape, k.shape, v.shape)
    tensors = []
    for shape, (_, offset, strides) in zip(shapes, placements_of(node), strict=True):
        if shape == q.shape[:-1]:
            tensors.append(_of_rows(shape, offset))
            continue
        tensor = _of_heads(shape, strides, offset)
        assert tensor is not None, f"{node} stores heads that are no runs of aligned loads"
        tensors.append(tensor)
    return tensors


def _extent(tensor: LibraryTensor) -> int:
    """Bytes from the first element to the last, of float32 at most."""
    sizes = zip(tensor.shape, tensor.strides, strict=True)
    return 4 * (tensor.offset + sum((size - 1) * stride for size, stride in sizes) + 1)


__all__ = ["AttentionCut", "makes", "refusal", "refusals", "with_calls", "with_values"]
