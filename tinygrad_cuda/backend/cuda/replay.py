"""A program's launches as one CUDA graph: built from the second run on, only changes written."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from tinygrad_cuda.backend.cuda.frame import Frame
from tinygrad_cuda.backend.cuda.graphs import Graph, KernelNode
from tinygrad_cuda.backend.cuda.pack import Launch
from tinygrad_cuda.backend.cuda.runtime import Device, Module
from tinygrad_cuda.backend.cuda.template import THREADS
from tinygrad_cuda.core.config import settings

PROGRAMMATIC = (9, 0)  # the oldest GPUs whose kernels can wait for each other by themselves


class Label:
    """The user's lines behind a launch, read only when an error names them."""

    __slots__ = ("launch",)

    def __init__(self, launch: Launch) -> None:
        self.launch = launch

    def __str__(self) -> str:
        return self.launch.site


def launch_graph(
    gpu: Device, parts: Sequence[tuple[Module, Launch, tuple[int, ...], bytes]]
) -> Graph:
    """A graph of generated kernels.

    Every generated kernel waits for its predecessors before it touches memory and signals after
    that, so from sm_90 on all edges are programmatic: when a kernel may start, all that stands
    behind its direct predecessors is complete, and it waits for these by itself.

    Args:
        gpu: where it runs.
        parts: for each launch the compiled kernels, the launch, the earlier ones that it waits
            for, and its parameters.
    """
    early = gpu.properties.capability >= PROGRAMMATIC
    return Graph(
        gpu,
        [
            KernelNode(
                unit.function(launch.name),
                launch.blocks,
                THREADS,
                launch.shared,
                words,
                () if early else before,
                before if early else (),
                Label(launch),
            )
            for unit, launch, before, words in parts
        ],
    )


class Replay:
    """A program's launches as a graph.

    Args:
        gpu: where it runs.
        unit: the compiled kernels.
        launches: in order of execution.
        after: for each, the earlier ones that it waits for.
        frame: their parameters, as the first replay needs them.
    """

    def __init__(
        self,
        gpu: Device,
        unit: Module,
        launches: Sequence[Launch],
        after: Sequence[tuple[int, ...]],
        frame: Frame,
    ) -> None:
        self.frame = frame
        parts = [
            (unit, launch, before, frame.words(number))
            for number, (launch, before) in enumerate(zip(launches, after))
        ]
        self.graph = launch_graph(gpu, parts)
        self.count = len(launches)

    def run(self, changed: Iterable[int]) -> None:
        """Writes the parameters of the launches that changed, and starts all."""
        before = self.graph.updates
        for number in changed:
            self.graph.update(number, self.frame.words(number))
        self.graph.launch()
        if settings.debug >= 1:
            updated = self.graph.updates - before
            print(f"replay: {self.count} launches, {updated} updated", file=sys.stderr)
