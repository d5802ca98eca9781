"""Which kernel makes a convolution: THE table of tiers, compared by one model of time.

Times are estimates in clocks of a multiprocessor. They depend on shapes, dtype and layout alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tinygrad_cuda.graph.node import Node, Op, node_made, topological
from tinygrad_cuda.graph.ops.convolution import convolution, convolution_weight_gradient
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import (
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
from tinygrad_cuda.lowering.target import MULTIPROCESSORS

UNCOUNTED = 1500  # clocks of a product's beginning and end that its model leaves out


class Problem(NamedTuple):
    """A convolution, or its weight gradient.

    Attributes:
        node: the op.
        windows: those of its input, which tiers but the product need; see `windows_of`.
        channels: of its result.
        usual: an estimate of the time of the product with windows, in clocks.
    """

    node: Node
    windows: Windows | None
    channels: int
    usual: float


@dataclass(frozen=True)
class Product:
    """The product with windows; `clocks` is an estimate of its time."""

    clocks: float


@dataclass(frozen=True)
class Tier:
    """One way to make a convolution.

    Attributes:
        name: as `explain` shows it.
        rewrites: whether it is several nodes, chosen before kernels are formed.
        propose: its sizes of least time, with their `clocks`; None where there are none.
        share: of the product's clocks that it may take at most.
        extra: clocks that it may take on top of that.
        blocks: of its kernel at least: with fewer, multiprocessors have no work.
    """

    name: str
    rewrites: bool
    propose: Callable[[Problem], Any]
    share: float
    extra: int
    blocks: int

    def wins(self, candidate: Any, usual: float) -> bool:
        """Whether it takes less time than the product."""
        enough = not self.blocks or candidate.blocks >= self.blocks
        return enough and bool(candidate.clocks <= self.share * usual + self.extra)


class Choice(NamedTuple):
    """The tier of a convolution, and how it is cut.

    Attributes:
        tier: that of the table.
        candidate: what the tier proposed.
        reason: its name, and its time by the model.
    """

    tier: Tier
    candidate: Any
    reason: str


def _winograd(problem: Problem) -> Tiles | None:
    if problem.windows is None:
        return None
    return tiles_of_least_time(problem.node, problem.windows, problem.channels)


def _direct(problem: Problem) -> Cut | None:
    windows = _in_float32(problem, convolution)
    return None if windows is None else cut_of(windows, problem.channels)


def _direct_weight_gradient(problem: Problem) -> ImagePart | None:
    windows = _in_float32(problem, convolution_weight_gradient)
    return None if windows is None else part_of(windows, problem.channels)


def _in_float32(problem: Problem, op: Op) -> Windows | None:
    """The windows of a problem of this op if it sums in float32, as direct kernels do."""
    node = problem.node
    return problem.windows if node.op is op and node.dtype.compute == "float" else None


def _product(problem: Problem) -> Product:
    return Product(problem.usual)


# Tried in this order; the first that wins against the product is taken. Winograd's transforms are
# launches of their own, and their model the roughest: it has to win by a tenth.
TIERS: tuple[Tier, ...] = (
    Tier("winograd", True, _winograd, share=0.9, extra=0, blocks=0),
    Tier("direct", False, _direct, 1.0, UNCOUNTED, MULTIPROCESSORS // 2),
    Tier(
        "direct weight gradient", False, _direct_weight_gradient, 1.0, UNCOUNTED,
        MULTIPROCESSORS // 2,
    ),
    Tier("implicit GEMM", False, _product, 1.0, extra=0, blocks=0),
)  # fmt: skip


def choose(node: Node, usual: float, tiers: Sequence[Tier] = TIERS) -> Choice | None:
    """The first tier that takes less time than the product with windows, or that product.

    Args:
        node: a convolution, or its weight gradient.
        usual: the product's time, see `product_clocks`.
        tiers: those to choose from, in their order.

    Returns:
        None where none of these tiers takes less time.
    """
    channels = node.shape[1] if node.op is convolution else node.shape[0]
    problem = Problem(node, windows_of(node), channels, usual)
    for tier in tiers:
        candidate = tier.propose(problem)
        if candidate is not None and tier.wins(candidate, usual):
            return Choice(tier, candidate, f"{tier.name}, {candidate.clocks:.0f} clocks")
    return None


def choose_kernel(node: Node, usual: float) -> Choice | None:
    """`choose` among the tiers that are one kernel."""
    return choose(node, usual, [tier for tier in TIERS if not tier.rewrites])


def with_graph_tiers(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """The same values up to rounding; convolutions whose tier is several nodes are those.

    Args:
        outputs: of a plan, simplified.
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
            choice = choose(copied, product_clocks(copied), tiers)
            if choice is not None:
                new[node] = by_tiles(copied, choice.candidate)
    return tuple(new[node] for node in outputs)


def product_clocks(node: Node) -> float:
    """An estimate of the time of the product with windows."""
    a, b = operands_of(node)
    (m, k), n, itemsize = a.shape[-2:], b.shape[-1], itemsize_of(node.dtype)
    return clocks(plan(a.shape[0], m, n, k, itemsize), a.shape[0], m, n, itemsize)
