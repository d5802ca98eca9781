"""The one way from a graph to launches of CUDA text: read it from top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.graph.node import Node, topological
from tinygrad_cuda.graph.ops.contraction import matmul
from tinygrad_cuda.graph.program import Program
from tinygrad_cuda.graph.rewrite import simplify
from tinygrad_cuda.graph.rewrite.products import turn_products
from tinygrad_cuda.lowering.codegen.pack import PackedLaunch, packed, translation_unit
from tinygrad_cuda.lowering.codegen.skeleton import scratches_of
from tinygrad_cuda.lowering.emit import stages
from tinygrad_cuda.lowering.schedule.arena import Arena, plan_arena
from tinygrad_cuda.lowering.schedule.checks import unread_checks, with_checks
from tinygrad_cuda.lowering.schedule.fuse_column_sums import fuse_column_sums
from tinygrad_cuda.lowering.schedule.fuse_grid_reduce import fuse_grid_reduce
from tinygrad_cuda.lowering.schedule.kernel_dag import Schedule, schedule
from tinygrad_cuda.lowering.schedule.one_hot_gather import find_one_hot_gathers
from tinygrad_cuda.lowering.skeletons.conv.tiers import with_graph_tiers
from tinygrad_cuda.lowering.skeletons.conv.windows import IMPLICIT
from tinygrad_cuda.lowering.target import Target


@dataclass(frozen=True, eq=False)
class Lowered:
    """What a machine needs to run a program.

    Attributes:
        schedule: the kernels, each with the reason for its boundary.
        arena: where values between kernels lie.
        launches: kernels in an order of execution, small independent ones packed together.
        source: all of them as one translation unit.
    """

    schedule: Schedule
    arena: Arena
    launches: list[PackedLaunch]
    source: str


def lower(program: Program, target: Target) -> Lowered:
    """A program as launches: rewrite, choose algorithms, group and fuse, emit, lay out, pack."""
    made = scheduled(program, target)
    emitted = {kernel: stages(kernel) for kernel in made.kernels}
    scratches = {kernel: scratches_of(found) for kernel, found in emitted.items()}
    arena = plan_arena(made, scratches)  # adds edges of order where values share memory
    launches = packed([emitted[kernel] for kernel in made.kernels], target)
    return Lowered(made, arena, launches, translation_unit(launches, target))


def scheduled(program: Program, target: Target) -> Schedule:
    """The kernels of a program, which run each of its checks; none is generated yet."""
    overwrites = {number: program.inputs[slot] for number, slot in program.overwrites.items()}
    checks: list[Node] = []
    outputs = simplify(program.outputs, checks=checks)
    made = schedule(_algorithms(outputs, target), target, overwrites)
    if checks and (unread := unread_checks(checks, made)):
        checked = _algorithms(with_checks(outputs, unread), target)
        made = schedule(checked, target, overwrites)
    if any(kernel.kind == "row" for kernel in made.kernels):  # others have nothing to carry
        fuse_grid_reduce(made, target)
        fuse_column_sums(made, target)
        find_one_hot_gathers(made)
    return made


def _algorithms(outputs: Sequence[Node], target: Target) -> Sequence[Node]:
    """The same values, products and convolutions in the form that takes the least time."""
    ops = {node.op for node in topological(outputs)}
    if matmul in ops:
        outputs = turn_products(outputs)
    if settings.winograd and not ops.isdisjoint(IMPLICIT):
        outputs = with_graph_tiers(outputs, target)
    return outputs
