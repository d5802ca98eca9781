"""The one way from a graph to launches of CUDA text: read it from top to bottom."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.graph.node import Node, topological
from tinygrad_cuda.graph.program import Program
from tinygrad_cuda.graph.rewrite import simplify
from tinygrad_cuda.graph.rewrite.attention import arrange_attention
from tinygrad_cuda.graph.rewrite.masks import read_masks_off_results
from tinygrad_cuda.graph.rewrite.products import turn_products
from tinygrad_cuda.lowering.algorithms import COMPOSED, choose_algorithms, with_compositions
from tinygrad_cuda.lowering.codegen.pack import (
    PackedLaunch,
    packed,
    translation_unit,
    translation_units,
)
from tinygrad_cuda.lowering.codegen.skeleton import Stage
from tinygrad_cuda.lowering.emit import stages
from tinygrad_cuda.lowering.providers import require_provider
from tinygrad_cuda.lowering.schedule.arena import EMPTY, Arena, plan_arena
from tinygrad_cuda.lowering.schedule.checks import unread_checks, with_checks
from tinygrad_cuda.lowering.schedule.fuse_column_sums import fuse_column_sums
from tinygrad_cuda.lowering.schedule.fuse_grid_reduce import fuse_grid_reduce
from tinygrad_cuda.lowering.schedule.fuse_product_columns import fuse_product_columns
from tinygrad_cuda.lowering.schedule.fusion import LibraryCalls
from tinygrad_cuda.lowering.schedule.kernel_dag import Choice, Schedule, schedule
from tinygrad_cuda.lowering.schedule.one_hot_gather import find_one_hot_gathers
from tinygrad_cuda.lowering.schedule.stored_softmax import with_stored_softmax
from tinygrad_cuda.lowering.skeletons.attention import library as attention_library
from tinygrad_cuda.lowering.skeletons.attention.library import AttentionCut
from tinygrad_cuda.lowering.skeletons.contract.library import CUBLAS, LibraryCut, with_epilogues
from tinygrad_cuda.lowering.skeletons.conv import library as conv_library
from tinygrad_cuda.lowering.skeletons.conv.library import ConvolutionCut
from tinygrad_cuda.lowering.skeletons.fft.library import TransformCut, is_chosen, with_calls
from tinygrad_cuda.lowering.target import Target
from tinygrad_cuda.lowering.tuning import Decision

SHARING = AttentionCut | ConvolutionCut | TransformCut  # calls that have one workspace
LIBRARY_CUTS = LibraryCut | SHARING


@dataclass(frozen=True, eq=False)
class Lowered:
    """What a machine needs to run a program.

    Attributes:
        schedule: the kernels, each with the reason for its boundary.
        arena: where values between kernels lie.
        launches: kernels in an order of execution, small independent ones packed together.
        target: the machine that they are made for.
    """

    schedule: Schedule
    arena: Arena
    launches: list[PackedLaunch]
    target: Target

    @cached_property
    def source(self) -> str:
        """All kernels as one translation unit."""
        return translation_unit(self.launches, self.target)

    def units(self) -> list[str]:
        """The same kernels as translation units that are compiled side by side."""
        return translation_units(self.launches, self.target)


def lower(program: Program, target: Target) -> Lowered:
    """A program as launches: rewrite, choose algorithms, group and fuse, emit, lay out, pack."""
    made = scheduled(program, target)
    emitted = {kernel: stages(kernel) for kernel in made.kernels}
    scratches = {kernel: _scratches(parts) for kernel, parts in emitted.items()}
    arena = EMPTY
    if len(made.kernels) > 1 or any(scratches.values()):
        arena = plan_arena(made, scratches)  # adds edges of order where values share memory
    launches = packed([emitted[kernel] for kernel in made.kernels], target)
    return Lowered(made, arena, launches, target)


def _scratches(stages: Sequence[Stage]) -> dict[Hashable, int]:
    """Memory that the blocks or stages of a kernel share, and its bytes."""
    words = (word for stage in stages for word in stage.words if word.kind == "scratch")
    return {word.operand: word.operand.nbytes for word in words}


def scheduled(program: Program, target: Target) -> Schedule:
    """The kernels of a program, which run each of its checks; none is generated yet."""
    overwrites = {number: program.inputs[slot] for number, slot in program.overwrites.items()}
    checks: list[Node] = []
    notes: list[str] = []
    outputs: Sequence[Node] = program.outputs
    if any(node.op in COMPOSED for node in topological(outputs)):
        outputs = with_compositions(outputs, target, notes)
    outputs = simplify(outputs, checks=checks)
    if settings.provider:
        notes += conv_library.refusals(outputs, target)
        notes += attention_library.refusals(outputs, target)
    made = _grouped(outputs, target, overwrites)
    if checks and (unread := unread_checks(checks, made)):
        made = _grouped(with_checks(outputs, unread), target, overwrites)
    if any(kernel.kind == "row_reduce" for kernel in made.kernels):  # others have nothing to carry
        fuse_grid_reduce(made, target)
        find_one_hot_gathers(made)
        fuse_column_sums(made, target)
    if any(kernel.kind == "contract" for kernel in made.kernels):
        fuse_product_columns(made)
    _one_after_another(made)
    made.notes = notes
    return made


def _one_after_another(made: Schedule) -> None:
    """Lets no two kernels run together whose blocks wait for each other: each needs all of them.

    Else each might have a part of the machine, and neither all of its blocks. Nor do two calls of
    cuDNN or of cuFFT, which have one workspace.
    """
    waiting = [kernel for kernel in made.kernels if kernel.kind == "recurrence"]
    if waiting:
        waiting = [k for k in made.kernels if k.kind == "recurrence" or k.grid is not None]
        made.put_before(pairwise(waiting))
    sharing = [k for k in made.kernels if k.choice and isinstance(k.choice.cut, SHARING)]
    made.put_before(pairwise(sharing))


def _grouped(outputs: Sequence[Node], target: Target, overwrites: Mapping[int, Node]) -> Schedule:
    """Kernels, after each product and convolution was given the tier that makes it."""
    choices: dict[Node, Choice] = {}
    decisions: dict[str, Decision] = {}
    kinds = {node.op.kind for node in topological(outputs)}
    if "kernel" in kinds:
        outputs = arrange_attention(outputs)
    if settings.provider:
        require_provider(outputs, target.name, target.libraries)
    if "contraction" in kinds:
        outputs = read_masks_off_results(outputs)
        # A library stores a product as a matrix.
        arranged = settings.provider != CUBLAS
        chosen = choose_algorithms(turn_products(outputs, arranged), target)
        outputs, choices = with_stored_softmax(chosen.outputs, chosen.choices)
        decisions = chosen.decisions
    if settings.provider and is_chosen(target) and "kernel" in kinds:
        outputs, choices = with_calls(outputs, choices)
    if settings.provider and conv_library.is_provider(target) and "kernel" in kinds:
        outputs, choices = attention_library.with_calls(outputs, choices, target)
    if any(isinstance(choice.cut, LIBRARY_CUTS) for choice in choices.values()):
        made = _with_libraries(outputs, target, overwrites, choices)
    else:
        made = schedule(outputs, target, overwrites, choices)
    made.decisions = decisions
    return made


def _with_libraries(
    outputs: Sequence[Node],
    target: Target,
    overwrites: Mapping[int, Node],
    choices: Mapping[Node, Choice],
) -> Schedule:
    """Kernels and calls, which take the bias and the activation behind a product along."""
    choices = with_epilogues(outputs, choices)
    cuts = {node: c.cut for node, c in choices.items() if isinstance(c.cut, LibraryCut)}
    epilogues = tuple(cut.epilogue for cut in cuts.values() if cut.epilogue is not None)
    calls = {node for node, c in choices.items() if isinstance(c.cut, LIBRARY_CUTS)}
    made = LibraryCalls(frozenset(calls), epilogues)
    return schedule(outputs, target, overwrites, choices, made)
