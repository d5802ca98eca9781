"""CONTRACT without register tiles: one output a thread, and tiles in shared memory."""

from __future__ import annotations

from typing import NamedTuple

from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import Evaluator, Scope, is_wide, literal
from tinygrad_cuda.lowering.codegen.skeleton import (
    THREADS,
    KernelParams,
    Stage,
    comment,
    fill,
    stem,
    wrapped,
)
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.skeletons.contract.contract import Contraction, epilogue_text
from tinygrad_cuda.lowering.skeletons.contract.loads import Source, sources_of
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import itemsize_of

PLAIN = "contract_plain.cuh"
SIDE = 16  # rows and columns of a tile
PITCH = SIDE + 1  # elements from row to row in shared memory


class PlainCut(NamedTuple):
    """Whether operands pass through tiles in shared memory."""

    shared: bool


def plain_stages(kernel: Kernel, cut: PlainCut) -> list[Stage]:
    """One stage, whose threads have one output each."""
    problem, params = Contraction(kernel), KernelParams()
    tiles = -(-problem.m // SIDE) * -(-problem.n // SIDE)
    blocks = tiles * problem.batches if cut.shared else -(-kernel.numel // THREADS)
    body = _body(problem, params, cut, tiles)
    shape = f"{problem.batches} x {problem.m} x {problem.n} x {problem.k}"
    how = f"tiles of {SIDE} x {SIDE} in shared memory" if cut.shared else "one output a thread"
    label = comment(kernel, f"contract {shape}, {how}, {problem.flops} FLOPs", blocks)
    shared = 2 * SIDE * PITCH * itemsize_of(problem.dtype) if cut.shared else 0
    return [wrapped(kernel, stem(kernel), body, params.list, blocks, shared, label)]


def _body(problem: Contraction, params: KernelParams, cut: PlainCut, tiles: int) -> str:
    """The kernel's body: an output's sum, and what becomes of it."""
    kernel, outer = problem.kernel, Scope("batch")
    reader = Evaluator(params, set(kernel.reads), is_wide(kernel), kernel.narrowed)
    loads = [_operand(source, reader, outer) for source in sources_of(problem.a, problem.b)]
    (load_a, a), (load_b, b) = loads
    batch = ix.variable("batch", problem.batches)
    row, load, map_, store = epilogue_text(problem, reader, outer, batch, 1)
    results = fill(PLAIN, "results", type=problem.type, row=row, load=load, map=map_, store=store)
    factors = a, b
    if cut.shared:
        factors = f"shared_a[row * {PITCH} + step]", f"shared_b[step * {PITCH} + column]"
    return fill(
        PLAIN,
        "tiled" if cut.shared else "naive",
        index="long long" if is_wide(kernel) else "int",
        type=problem.type,
        zero=literal(0, problem.dtype),
        threads=THREADS,
        outputs=kernel.numel,
        m=problem.m,
        n=problem.n,
        k=problem.k,
        tiles=tiles,
        tiles_n=-(-problem.n // SIDE),
        outer=outer.lines,
        load_a=load_a,
        load_b=load_b,
        a=a,
        b=b,
        add=_added(problem, *factors),
        results=results,
    )


def _added(problem: Contraction, a: str, b: str) -> str:
    """The sum with one more product; byte types wrap."""
    if problem.dtype.is_floating:
        return f"tgc_fma({a}, {b}, sum)"
    return f"({problem.type})(sum + {a} * {b})"


def _operand(source: Source, reader: Evaluator, outer: Scope) -> tuple[list[str], str]:
    """Statements that load an element of an operand, and its value as C text."""
    here = Scope(source.other, "k")
    reader.scopes = [outer, here]
    batch = ix.variable("batch", source.batches)
    other, k = ix.variable(source.other, source.extent), ix.variable("k", source.k)
    value = reader.value(source.node, source.at(batch, other, k))
    return here.lines, value
