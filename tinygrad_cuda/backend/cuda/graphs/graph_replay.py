"""A program's launches as one CUDA graph: built from the second run on, only changes written.

New addresses reach the graph by a cudaGraphExec update of the kernels that read them
(cuGraphExecKernelNodeSetParams); addresses that recur get a graph of their own.

It stays in this package: it is made of calls of the driver.
Without it a compiled step of denoiser_train takes 556 % longer (H200).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tinygrad_cuda.backend.cuda.compiler import compile_source
from tinygrad_cuda.backend.cuda.driver import DeviceHandle
from tinygrad_cuda.backend.cuda.graphs.child_graph import CallNode
from tinygrad_cuda.backend.cuda.graphs.graph import CudaGraph, GraphNode, KernelNode
from tinygrad_cuda.backend.cuda.handles import LoadedKernels
from tinygrad_cuda.backend.cuda.pool import Allocation
from tinygrad_cuda.backend.cuda.transfer.pinned_ring import (
    FetchParams,
    Staged,
    fetch_blocks,
    fetch_source,
)
from tinygrad_cuda.backend.launch.graphs_by_address_replay import Addresses, GraphsByAddress
from tinygrad_cuda.backend.launch.launch_params import LaunchParams
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.lowering.codegen.pack import PackedLaunch
from tinygrad_cuda.lowering.codegen.skeleton import THREADS

PROGRAMMATIC = (9, 0)  # the oldest GPUs whose kernels can wait for each other by themselves


class Label:
    """The user's lines behind a launch, read only when an error names them."""

    __slots__ = ("launch",)

    def __init__(self, launch: PackedLaunch) -> None:
        self.launch = launch

    def __str__(self) -> str:
        return self.launch.site


Part = tuple[LoadedKernels, PackedLaunch, tuple[int, ...], bytes]


def kernel_nodes(
    gpu: DeviceHandle, parts: Sequence[Part], first: KernelNode | None = None
) -> list[GraphNode]:
    """Generated kernels and their edges, for a graph.

    Every generated kernel waits for its predecessors before it touches memory and signals after
    that, so from sm_90 on all edges are programmatic: when a kernel may start, all that stands
    behind its direct predecessors is complete, and it waits for these by itself. Kernels of a
    library neither wait nor signal: edges to and from its calls are plain.

    Args:
        gpu: where it runs.
        parts: for each launch the compiled kernels, the launch, the earlier ones that it waits
            for, and its parameters.
        first: what all of them wait for, node 0 if there is one.
    """
    early = gpu.properties.capability >= PROGRAMMATIC
    nodes: list[GraphNode] = [] if first is None else [first]
    shift = len(nodes)
    for unit, launch, before, words in parts:
        # What waits for others waits for the first one through them.
        predecessors = tuple([shift + other for other in before]) or tuple(range(shift))
        if call := unit.call(launch.name):
            nodes.append(CallNode(call, words, predecessors, Label(launch)))
            continue
        plain = not early or any(isinstance(nodes[other], CallNode) for other in predecessors)
        node = KernelNode(
            unit.function(launch.name),
            launch.blocks,
            launch.threads,
            launch.shared,
            words,
            predecessors if plain else (),
            () if plain else predecessors,
            Label(launch),
        )
        nodes.append(node)
    return nodes


class Replay:
    """A program's launches as a graph, which may begin by fetching what waits on the host.

    Args:
        gpu: where it runs.
        unit: the compiled kernels.
        launches: in order of execution.
        after: for each, the earlier ones that it waits for.
        frame: their parameters, which nobody else writes.
        fetched: memory of what is fetched, in the order in which `run` gets it.
        numbers: where numbers go that come as parameters, if they do.
    """

    def __init__(
        self,
        gpu: DeviceHandle,
        unit: LoadedKernels,
        launches: Sequence[PackedLaunch],
        after: Sequence[tuple[int, ...]],
        frame: LaunchParams,
        fetched: Sequence[Allocation],
        numbers: Allocation | None,
    ) -> None:
        self.gpu, self.unit, self.launches, self.after = gpu, unit, launches, after
        self.frame, self.fetched, self.numbers = frame, fetched, numbers
        self.graph: CudaGraph | None = None  # the one that was started last
        self._updatable: CudaGraph | None = None  # the one that is updated with new addresses
        self._last_addresses: Addresses = ()  # those of its last update
        self._cached: GraphsByAddress[CudaGraph] = GraphsByAddress()
        self._fetch: FetchParams | None = None
        self.count, self.updated = len(launches), 0

    def run(self, addresses: list[int], staged: Sequence[Staged], numbers: bytes = b"") -> None:
        """Starts all on these addresses; only what differs is written.

        Args:
            addresses: of the frame; what is fetched lies in `fetched`.
            staged: what is fetched.
            numbers: what comes as parameters.
        """
        # What is fetched must be read before another thread can write where it lay.
        with self.gpu.lock:
            if self.graph is None:
                self._begin(addresses, staged, numbers)
            else:
                self._select(tuple(addresses))
                self.relaunch(staged, numbers)
        if settings.debug >= 1:
            print(f"replay: {self.count} launches, {self.updated} updated", file=sys.stderr)

    def _begin(self, addresses: list[int], staged: Sequence[Staged], numbers: bytes) -> None:
        """The first run, which makes the graph."""
        self._last_addresses = tuple(addresses)
        self.frame.fill(addresses)
        self._fetch = fetch = self._fetching(staged, numbers)
        graph = self._updatable = self._built(None if fetch is None else fetch.tobytes())
        if fetch is not None:
            fetch.move(graph.parameters(0))
        self.graph = graph
        graph.launch()

    def _select(self, addresses: Addresses) -> None:
        """Has `graph` be one with these addresses.

        Results alternate between few addresses if the caller holds the last ones. Those that come
        again get a graph of their own, so that nothing of it is written again.
        """
        cached = self._cached
        graph = cached.find(addresses)
        self.updated = 0
        if graph is None:
            graph = self._updatable
            assert graph is not None
            if addresses != self._last_addresses:
                if cached.wanted(addresses):
                    graph = self._twin(graph, addresses)
                    cached.keep(addresses, graph)
                else:
                    self.updated = self._write(graph, self.frame, addresses)
                    self._last_addresses = addresses
        if graph is not self.graph:
            self.graph = graph
            if self._fetch is not None:
                self._fetch.changed = True  # this one has another run's parameters

    def _twin(self, graph: CudaGraph, addresses: Addresses) -> CudaGraph:
        """Another graph, with these addresses."""
        twin = graph.twin()
        if self._fetch is not None:
            twin.parameters(0)  # as those of the first, written in place
        self.updated = self._write(twin, self.frame.twin(), addresses)
        return twin

    def _write(self, graph: CudaGraph, frame: LaunchParams, addresses: Addresses) -> int:
        """Writes new addresses to a graph; the number of kernels that read them."""
        before, first = graph.updates, 0 if self._fetch is None else 1
        for number in frame.fill([*addresses]):
            graph.update(first + number, frame.words(number))
        return graph.updates - before

    def relaunch(self, staged: Sequence[Staged], numbers: bytes) -> None:
        """Starts all on the addresses of the last `run`; only what is fetched differs."""
        graph, fetch = self.graph, self._fetch
        assert graph is not None
        if fetch is None:
            # Nothing is fetched: whoever realizes on the GPU is alone with its graphs in any case.
            graph.launch()
            return
        with self.gpu.lock:
            fetch.fill(staged, numbers)
            graph.launch(None, 0 if fetch.changed else -1)
            fetch.changed = False

    def _fetching(self, staged: Sequence[Staged], numbers: bytes) -> FetchParams | None:
        """Parameters of the kernel that fetches, if there is one."""
        if not self.fetched and self.numbers is None:
            return None
        targets = [(memory.address, x.nbytes) for x, memory in zip(staged, self.fetched)]
        params = FetchParams(targets, self.numbers.address if self.numbers else 0)
        params.fill(staged, numbers)
        return params

    def _built(self, words: bytes | None) -> CudaGraph:
        gpu = self.gpu
        parts = [
            (self.unit, launch, before, self.frame.words(number))
            for number, (launch, before) in enumerate(zip(self.launches, self.after))
        ]
        if words is None:
            return CudaGraph(gpu, kernel_nodes(gpu, parts))
        function = gpu.load(compile_source(fetch_source(), gpu.properties.arch).cubin).function(
            "tgc_fetch"
        )
        blocks = fetch_blocks([memory.nbytes for memory in self.fetched])
        label = "what a graph fetches from the host"
        first = KernelNode(function, blocks, THREADS, 0, words, label=label)
        return CudaGraph(gpu, kernel_nodes(gpu, parts, first))
