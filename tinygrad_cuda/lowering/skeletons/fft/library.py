"""FFT by cuFFT: which rows in memory a call transforms, and what kernels do around it.

No text is generated: the stage names a library's call, and its parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.graph.node import (
    Node,
    gradient_mode,
    node_made,
    recorded_at,
    topological,
    with_sources,
)
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import fft
from tinygrad_cuda.graph.rewrite.products import readers_of
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.library_call import LibraryTransform
from tinygrad_cuda.lowering.codegen.skeleton import KernelParams, Stage
from tinygrad_cuda.lowering.schedule.kernel_dag import Choice, Kernel
from tinygrad_cuda.lowering.skeletons.contract.library import (
    call_stage,
    in_memory,
    strides_of,
    words_of,
)
from tinygrad_cuda.lowering.target import Target

CUFFT = "cufft"
# cuFFT's names, by the row and whether it is of float64.
KINDS = {
    (fft.fft, False): "C2C", (fft.rfft, False): "R2C", (fft.irfft, False): "C2R",
    (fft.fft, True): "Z2Z", (fft.rfft, True): "D2Z", (fft.irfft, True): "Z2D",
}  # fmt: skip


class TransformCut(NamedTuple):
    """A library transforms: there is nothing to cut."""


def is_chosen(target: Target) -> bool:
    """Whether cuFFT is to make the transforms of a plan, and the target has it."""
    return settings.provider == CUFFT and CUFFT in target.libraries


# What a call computes -----------------------------------------------------------------------------


def refusal(node: Node, target: Target) -> str:
    """Why a call is not all of a row of the op table; empty if it is."""
    if fft.row_length(node) == 1:
        return "a row of one point is its own transform"
    if node.op is fft.fft_columns:
        return "cuFFT stores rows as rows"
    if node.op is fft.irfft:
        return "cuFFT writes over its spectrum, which is copied"
    return "cuFFT has no factor, a kernel multiplies by it" if node.attributes["scale"] != 1 else ""


def as_nodes(node: Node) -> tuple[Node, ...]:
    """The transform without a factor, and what stands before and behind it.

    The ends of half a spectrum are made real: cuFFT reads their imaginary parts in some lengths.
    """
    if fft.row_length(node) == 1 or 0 in node.shape:
        return fft.as_nodes(node)
    (x,), attributes = node.sources, dict(node.attributes)
    scale = attributes.pop("scale")
    with gradient_mode(False), recorded_at(node.site):
        if node.op is fft.fft_columns:
            made = fft.fft(x, inverse=attributes["inverse"], scale=1.0)
            return (fft.scaled(fft.as_columns(made, **attributes), scale),)
        if node.op is fft.irfft:
            x = fft.with_real_ends(x, attributes["n"])
        made = node_made(
            node.op, (x,), {**attributes, "scale": 1.0}, node.outputs, node.device, False,
            node.site,
        )  # fmt: skip
        return (made if scale == 1 else fft.scaled(made, scale),)


# Operands in memory -------------------------------------------------------------------------------


class _MemoryRows(NamedTuple):
    """Rows in memory, in elements."""

    node: Node
    stride: int
    apart: int
    offset: int


def _rows(node: Node) -> _MemoryRows | None:
    """The operand of a transform as rows in memory; None where its movements leave none."""
    (source,) = node.sources
    base, (*head, size) = in_memory(source), source.shape
    if base is None:
        return None
    batches = prod(head)
    row, point = ix.variable("row", batches), ix.variable("point", size)
    strided = strides_of(source, (*ix.unflatten(row, head), point), base, ("row", "point"))
    if strided is None:
        return None
    steps, offset = strided
    apart = steps["row"] if batches > 1 else size
    pair = base.dtype.to_complex().itemsize // base.dtype.itemsize
    if not steps["point"] or not apart or offset % pair:  # cuFFT wants pairs of real numbers
        return None
    return _MemoryRows(base, steps["point"], apart, offset)


def with_calls(
    outputs: Sequence[Node], choices: Mapping[Node, Choice]
) -> tuple[tuple[Node, ...], dict[Node, Choice]]:
    """The same values, whose transforms read rows in memory; and the choice of each.

    Args:
        outputs: of a plan.
        choices: of its products and convolutions.
    """
    order, wanted = topological(outputs), set(outputs)
    readers = readers_of(order)
    new: dict[Node, Node] = {}
    calls: dict[Node, Choice] = {}
    for node in order:
        new[node] = made = with_sources(node, tuple(new[source] for source in node.sources))
        if node.op not in fft.ROWS or 0 in node.shape:
            continue
        (source,) = node.sources
        shared = source in wanted or len(readers[source]) > 1 or source.op is not ew.where
        if (node.op is fft.irfft and shared) or _rows(made) is None:
            with gradient_mode(False), recorded_at(node.site):
                new[node] = made = with_sources(made, (ew.contiguous(made.sources[0]),))
        kind = KINDS[node.op, node.dtype.to_real().itemsize == 8]
        reason = f"{CUFFT}, {kind} of rows of {fft.row_length(node)}"
        calls[made] = Choice(CUFFT, TransformCut(), transform_stages, reason, copies=True)
    others = {new[node]: choice for node, choice in choices.items()}
    return tuple(new[node] for node in outputs), {**others, **calls}


# The stage ----------------------------------------------------------------------------------------


def transform_stages(kernel: Kernel, cut: TransformCut) -> list[Stage]:
    """One stage: the call, on memory that its parameters name."""
    (node,) = kernel.anchors
    rows, n = _rows(node), fft.row_length(node)
    assert rows is not None, f"{node} has an operand that is no rows"
    assert kernel.stores == [node], f"no library call stores {kernel.stores}"
    params = KernelParams()
    words = words_of(params, [params.read(rows.node), params.write(node)])
    batches, kind = prod(node.shape[:-1]), KINDS[node.op, node.dtype.to_real().itemsize == 8]
    inverse = node.op is fft.irfft or bool(node.attributes.get("inverse"))
    call = LibraryTransform(
        CUFFT, kind, n, batches, rows.stride, rows.apart, rows.offset, inverse, words
    )
    sign = ", inverse" if inverse else ""
    label = f"cuFFT {kind} of {batches} rows of {n} points{sign}"
    return [call_stage(kernel, f"cufft_{kind.lower()}", call, params, label)]


__all__ = ["CUFFT", "TransformCut", "as_nodes", "is_chosen", "refusal", "with_calls"]
