"""What a kernel does: its ops, FLOPs and bytes by the model of cost, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from tinygrad_cuda.backend.launch.report import flops_of
from tinygrad_cuda.core.errors import RawSite, Site
from tinygrad_cuda.core.observer import LineScope, ScopedCode
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.lowering.codegen.pack import PackedLaunch
from tinygrad_cuda.lowering.schedule.cost import flops
from tinygrad_cuda.lowering.schedule.stored_values import nbytes_of

STEP = "Optimizer.step#"  # how the range of an optimizer's step begins


class Origin(NamedTuple):
    """Where an op comes from.

    Attributes:
        line: file, number and text of the user's line.
        module: the path of the Module whose forward recorded it, or whose gradient it is.
        phase: ``forward``, ``backward`` or ``update``.
        ranges: names of the `record_function` blocks around, innermost first.
        gradient_of: the op whose gradient it is.
    """

    line: str
    module: str
    phase: str
    ranges: tuple[str, ...]
    gradient_of: str


def scope_of(site: RawSite | None) -> LineScope | None:
    """The scope in which a line was passed, where a profiler recorded it."""
    return site[0].scope if site is not None and isinstance(site[0], ScopedCode) else None


def origin(node: Node) -> Origin:
    """Where a node comes from, as far as its line says it."""
    site = node.site
    if site is None:
        return Origin("", "", "forward", (), "")
    scope, shown = scope_of(site), Site(*site)
    ranges = () if scope is None else tuple(scope.ranges)
    phase = "backward" if shown.gradient_of else "forward"
    if any(name.startswith(STEP) for name in ranges):
        phase = "update"
    line = str(shown._replace(gradient_of=""))
    return Origin(line, "" if scope is None else scope.module, phase, ranges, shown.gradient_of)


class KernelWork:
    """A launch, or a NumPy step, as the tables see it.

    Args:
        work: a `PackedLaunch`, the nodes of a NumPy step, or the name of a kernel of others.

    Attributes:
        name: of the kernel; on cpu the ops of the step.
        kind: of the launch's stages; ``numpy`` on cpu.
        nodes: that it computes.
    """

    def __init__(self, work: PackedLaunch | Sequence[Node] | str) -> None:
        self.launch = work if isinstance(work, PackedLaunch) else None
        self.nodes: list[Node] = []
        if isinstance(work, str):
            self.name, self.kind = work, "other"
        elif isinstance(work, PackedLaunch):
            self.name = work.name
            self.kind = "+".join(dict.fromkeys(stage.kernel.kind for stage in work.stages))
            computed = (n for stage in work.stages for n in stage.kernel.nodes)
            self.nodes = [n for n in dict.fromkeys(computed) if n.op is not common.buffer]
        else:
            self.nodes, self.kind = list(work), "numpy"
            self.name = "+".join(node.op.name for node in self.nodes)

    @cached_property
    def stored(self) -> list[Node]:
        """Values that it writes to memory."""
        if self.launch is not None:
            return [node for stage in self.launch.stages for node in stage.kernel.stores]
        inside = {source for node in self.nodes for source in node.sources}
        return [node for node in self.nodes if node not in inside] or self.nodes[-1:]

    @cached_property
    def flops(self) -> int:
        """Arithmetic results, by the model of cost."""
        if self.launch is not None:
            return flops_of(self.launch)
        return sum(map(flops, self.nodes))

    @cached_property
    def nbytes(self) -> int:
        """Bytes between it and memory at least."""
        if self.launch is not None:
            return self.launch.bytes_moved
        if all(node.op.kind == "movement" for node in self.nodes):
            return 0  # views
        inside = set(self.nodes)
        read = {s for node in self.nodes for s in node.sources if s not in inside}
        return sum(map(nbytes_of, [*read, *self.stored]))

    @cached_property
    def half(self) -> bool:
        """Whether it multiplies matrices of a half type."""
        kinds = ("contraction", "kernel")  # the latter: attention and recurrence
        products = (n for n in self.nodes if n.op.kind in kinds and n.sources and flops(n))
        return any(node.sources[0].dtype.itemsize == 2 for node in products)

    @cached_property
    def shares(self) -> list[tuple[Node, float]]:
        """The part of its time that is each node's: as the model of cost weighs them."""
        weights = [_weight(node) for node in self.nodes]
        whole = sum(weights)
        if not whole:
            return [(node, 1.0 / len(self.nodes)) for node in self.nodes]
        return [(node, w / whole) for node, w in zip(self.nodes, weights) if w]

    @property
    def shape(self) -> str:
        """Of what it stores first."""
        return str(tuple(self.stored[0].shape)) if self.stored else ""


def _weight(node: Node) -> int:
    if node.op.kind in ("movement", "leaf", "identity"):
        return 0
    return max(flops(node), prod(node.shape))


class Works:
    """The description of each launch, made once."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, KernelWork]] = {}
        self._origins: dict[Node, Origin] = {}

    def of(self, work: Any) -> KernelWork:
        """The description of a launch or a step."""
        entry = self._made.get(id(work))
        if entry is None:
            entry = self._made[id(work)] = work, KernelWork(work)
        return entry[1]

    def origin(self, node: Node) -> Origin:
        """Where a node comes from."""
        cached = self._origins.get(node)
        if cached is None:
            cached = self._origins[node] = origin(node)
        return cached
