"""Which kernel makes a convolution: THE table of tiers, compared by one model of time.

Times are estimates in clocks of a multiprocessor. They depend on shapes, dtype, layout and target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tinygrad_cuda.graph.node import Node, Op, node_made, topological
from tinygrad_cuda.graph.ops.convolution import convolution, convolution_weight_gradient
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import (
    Product,
    clocks,
    itemsize_of,
    plan,
)
from tinygrad_cuda.lowering.skeletons.conv.direct import Cut, cut_of
from tinygrad_cuda.lowering.skeletons.conv.weight_gradient import ImagePart, part_of
from tinygrad_cuda.lowering.skeletons.conv.windows import (
    IMPLICIT,
    Windows,
    operands_of,
    windows_of,
)
from tinygrad_cuda.lowering.skeletons.conv.winograd import (
    Tiles,
    by_tiles,
    tiles_of_least_time,
)
from tinygrad_cuda.lowering.target import Target

UNCOUNTED = 1500  # clocks of a product's beginning and end that its model leaves out


class Problem(NamedTuple):
    """A convolution, or its weight gradient.

    Attributes:
        node: the op.
        windows: those of its input, which tiers but the product need; see `windows_of`.
        channels: of its result.
        usual: an estimate of the time of the product with windows, in clocks.
        target: the machine.
    """

    node: Node
    windows: Windows | None
    channels: int
    usual: float
    target: Target


class Candidate(NamedTuple):
    """What a tier proposes.

    Attributes:
        cut: how its kernel divides the work; None of the product, which has a cut of its own.
        clocks: an estimate of its time, in clocks of a multiprocessor.
        blocks: of its kernel, where they may be too few.
    """

    cut: Cut | ImagePart | Tiles | None
    clocks: float
    blocks: int = 0


@dataclass(frozen=True)
class Tier:
    """One way to make a convolution.

    Attributes:
        name: as `explain` shows it.
        rewrites: whether it is several nodes, chosen before kernels are formed.
        propose: its cut of least time; None where there is none.
        share: of the product's clocks that it may take at most.
        extra: clocks that it may take on top of that.
        blocks: for each multiprocessor at least: with fewer, many have no work.
    """

    name: str
    rewrites: bool
    propose: Callable[[Problem], Candidate | None]
    share: float
    extra: int
    blocks: float

    def wins(self, candidate: Candidate, problem: Problem) -> bool:
        """Whether it takes less time than the product."""
        enough = candidate.blocks >= self.blocks * problem.target.multiprocessors
        return enough and candidate.clocks <= self.share * problem.usual + self.extra


class Choice(NamedTuple):
    """The tier of a convolution, and how it is cut.

    Attributes:
        tier: that of the table.
        candidate: what the tier proposed.
        reason: its name, and its time by the model.
    """

    tier: Tier
    candidate: Candidate
    reason: str


def _winograd(problem: Problem) -> Candidate | None:
    if problem.windows is None:
        return None
    tiles = tiles_of_least_time(problem.node, problem.windows, problem.channels, problem.target)
    return None if tiles is None else Candidate(tiles, tiles.clocks)


def _direct(problem: Problem) -> Candidate | None:
    windows = _in_float32(problem, convolution)
    cut = None if windows is None else cut_of(windows, problem.channels, problem.target)
    return None if cut is None else Candidate(cut, cut.clocks(problem.target), cut.blocks)


def _direct_weight_gradient(problem: Problem) -> Candidate | None:
    windows = _in_float32(problem, convolution_weight_gradient)
    part = None if windows is None else part_of(windows, problem.channels, problem.target)
    return None if part is None else Candidate(part, part.clocks(problem.target), part.blocks)


def _in_float32(problem: Problem, op: Op) -> Windows | None:
    """The windows of a problem of this op if it sums in float32, as direct kernels do."""
    node = problem.node
    return problem.windows if node.op is op and node.dtype.compute == "float" else None


def _product(problem: Problem) -> Candidate:
    return Candidate(None, problem.usual)


# Tried in this order; the first that wins against the product is taken. Winograd's transforms are
# launches of their own, and their model the roughest: it has to win by a tenth.
TIERS: tuple[Tier, ...] = (
    Tier("winograd", True, _winograd, share=0.9, extra=0, blocks=0),
    Tier("direct", False, _direct, 1.0, UNCOUNTED, blocks=0.5),
    Tier("direct weight gradient", False, _direct_weight_gradient, 1.0, UNCOUNTED, blocks=0.5),
    Tier("implicit GEMM", False, _product, 1.0, extra=0, blocks=0),
)


def choose(
    node: Node, usual: float, target: Target, tiers: Sequence[Tier] = TIERS
) -> Choice | None:
    """The first tier that takes less time than the product with windows, or that product.

    Args:
        node: a convolution, or its weight gradient.
        usual: the product's time, see `product_clocks`.
        target: the machine.
        tiers: those to choose from, in their order.

    Returns:
        None where none of these tiers takes less time.
    """
    channels = node.shape[1] if node.op is convolution else node.shape[0]
    problem = Problem(node, windows_of(node), channels, usual, target)
    for tier in tiers:
        candidate = tier.propose(problem)
        if candidate is not None and tier.wins(candidate, problem):
            return Choice(tier, candidate, f"{tier.name}, {candidate.clocks:.0f} clocks")
    return None


def choose_kernel(node: Node, usual: float, target: Target) -> Choice | None:
    """`choose` among the tiers that are one kernel."""
    return choose(node, usual, target, [tier for tier in TIERS if not tier.rewrites])


def with_graph_tiers(outputs: Sequence[Node], target: Target) -> tuple[Node, ...]:
    """The same values up to rounding; convolutions whose tier is several nodes are those.

    Args:
        outputs: of a plan, simplified.
        target: the machine.
    """
    tiers = [tier for tier in TIERS if tier.rewrites]
    new: dict[Node, Node] = {}
    for node in topological(outputs):
        sources = tuple(new[source] for source in node.sources)
        if sources != node.sources:
            copied = node_made(
                node.op, sources, node.attributes, node.outputs, node.device, False, node.site
            )
        else:
            copied = node
        new[node] = copied
        if node.op in IMPLICIT and 0 not in node.shape:
            choice = choose(copied, product_clocks(copied, target), target, tiers)
            if choice is not None and isinstance(choice.candidate.cut, Tiles):
                new[node] = by_tiles(copied, choice.candidate.cut)
    return tuple(new[node] for node in outputs)


def product_clocks(node: Node, target: Target) -> float:
    """An estimate of the time of the product with windows."""
    a, b = operands_of(node)
    product = Product(a.shape[0], a.shape[1], b.shape[2], a.shape[2], itemsize_of(node.dtype))
    return clocks(plan(product, target), product, target)
