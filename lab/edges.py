"""Host side of edges.cu: what an edge costs, that joins hold, and races that are really there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.harness import PLAIN, Gpu, Shape, node, source, words
from tinygrad_cuda.backend.cuda.graphs.graph import CudaGraph, KernelNode

KERNELS = [
    "chain_step",
    "join_step",
    "slow_write",
    "relay",
    "read_early",
    "read_waited",
    "warm",
    "read_shared_early",
]
LENGTH = 100
THREADS = 256
SLOW = 20_000  # cycles, about 11 us


def edges_source(edge: int) -> str:
    """The translation unit for one way of signalling."""
    return source("edges.cu", edge=edge)


def link(edge: int, *before: int) -> dict[str, tuple[int, ...]]:
    """The edges into a node, as arguments of KernelNode."""
    return {"after" if edge == PLAIN else "after_signal": before}


@dataclass
class Edges:
    """The kernels of edges.cu compiled for one way of signalling."""

    gpu: Gpu
    functions: dict[str, Any]
    edge: int

    def _node(self, name: str, grid: int, parameters: bytes, *before: int) -> KernelNode:
        made = node(self.functions[name], Shape(grid, THREADS), parameters)
        if not before:
            return made
        edges = link(self.edge, *before)
        return KernelNode(made.function, grid, THREADS, 0, parameters, **edges)

    def chain(self, grid: int) -> tuple[CudaGraph, Any]:
        """LENGTH dependent kernels and the buffer that they end in."""
        n = grid * THREADS
        buffers = [self.gpu.put(np.zeros(n, np.float32)) for _ in range(2)]
        nodes = []
        for i in range(LENGTH):
            parameters = words(buffers[i % 2], buffers[1 - i % 2], n)
            nodes.append(self._node("chain_step", grid, parameters, *([i - 1] if i else [])))
        graph = CudaGraph(self.gpu.device, nodes)
        return graph, buffers[0]

    def chain_is_right(self, grid: int, replays: int = 20) -> bool:
        """Whether every element was counted up by every kernel of every replay."""
        graph, buffer = self.chain(grid)
        for _ in range(replays):
            graph.launch()
        got = self.gpu.get(buffer, (grid * THREADS,))
        return bool((got == LENGTH * replays).all())

    def diamonds(self, grid: int, count: int = 25) -> tuple[CudaGraph, Any]:
        """a -> (b, c) -> d, `count` times in a row, and the buffer that they end in."""
        n = grid * THREADS
        start, a, b, c = (self.gpu.put(np.zeros(n, np.float32)) for _ in range(4))
        nodes: list[KernelNode] = []
        for i in range(count):
            k = 4 * i
            nodes += [
                self._node("chain_step", grid, words(start, a, n), *([k - 1] if i else [])),
                self._node("chain_step", grid, words(a, b, n), k),
                self._node("chain_step", grid, words(a, c, n), k),
                self._node("join_step", grid, words(b, c, start), k + 1, k + 2),
            ]
        return CudaGraph(self.gpu.device, nodes), start

    def diamonds_are_right(self, grid: int, count: int = 25, replays: int = 20) -> bool:
        """Whether each join saw both its predecessors."""
        graph, buffer = self.diamonds(grid, count)
        for _ in range(replays):
            graph.launch()
        got = self.gpu.get(buffer, (grid * THREADS,))
        return bool((got == 2 * count * replays).all())

    def mixed_joins_are_right(self, grid: int, count: int = 25) -> bool:
        """Joins with one plain and one programmatic predecessor."""
        n = grid * THREADS
        start, a, b, c = (self.gpu.put(np.zeros(n, np.float32)) for _ in range(4))
        step, join = self.functions["chain_step"], self.functions["join_step"]
        nodes: list[KernelNode] = []
        for i in range(count):
            k = 4 * i
            before = {"after_signal": (k - 1,)} if i else {}
            first = words(start, a, n)
            nodes += [
                KernelNode(step, grid, THREADS, 0, first, **before),
                KernelNode(step, grid, THREADS, 0, words(a, b, n), after_signal=(k,)),
                KernelNode(step, grid, THREADS, 0, words(a, c, n), after=(k,)),
                KernelNode(
                    join,
                    grid,
                    THREADS,
                    0,
                    words(b, c, start),
                    after=(k + 1,),
                    after_signal=(k + 2,),
                ),
            ]
        CudaGraph(self.gpu.device, nodes).launch()
        return bool((self.gpu.get(start, (n,)) == 2 * count).all())

    def stale_reads(self, reader: str, grid: int = 132, rounds: int = 20) -> float:
        """The share of values that a reader behind a slow writer saw too early."""
        n = grid * THREADS
        shared = self.gpu.put(np.zeros(n, np.float32))
        seen = [self.gpu.empty(4 * n) for _ in range(rounds)]
        nodes: list[KernelNode] = []
        for k in range(rounds):
            before = [len(nodes) - 1] if nodes else []
            nodes.append(self._node("slow_write", grid, words(shared, k + 1.0, SLOW), *before))
            nodes.append(self._node(reader, grid, words(shared, seen[k]), len(nodes) - 1))
        return self._stale(nodes, seen, n)

    def stale_reads_past_relay(self, grid: int = 132, rounds: int = 20) -> float:
        """The same for slow writer -> relay -> early reader: what a load hoisted above the wait
        meets when its value comes from the predecessor's predecessor."""
        n = grid * THREADS
        shared, other, more = (self.gpu.put(np.zeros(n, np.float32)) for _ in range(3))
        seen = [self.gpu.empty(4 * n) for _ in range(rounds)]
        nodes: list[KernelNode] = []
        for k in range(rounds):
            before = [len(nodes) - 1] if nodes else []
            nodes.append(self._node("slow_write", grid, words(shared, k + 1.0, SLOW), *before))
            nodes.append(self._node("relay", grid, words(other, more), len(nodes) - 1))
            nodes.append(self._node("read_early", grid, words(shared, seen[k]), len(nodes) - 1))
        return self._stale(nodes, seen, n)

    def stale_cache_reads(self, grid: int = 132, rounds: int = 50) -> float:
        """Every multiprocessor reads a buffer, then it is written, then it is read by a hoisted
        load: the share of values that came from an old line of an L1 cache."""
        n = grid * THREADS
        shared, other, more = (self.gpu.put(np.zeros(max(n, 2048), np.float32)) for _ in range(3))
        seen = [self.gpu.empty(4 * n) for _ in range(rounds)]
        nodes: list[KernelNode] = []
        for k in range(rounds):
            before = [len(nodes) - 1] if nodes else []
            nodes.append(self._node("warm", grid, words(shared, more), *before))
            nodes.append(self._node("slow_write", grid, words(shared, k + 1.0, 0), len(nodes) - 1))
            nodes.append(self._node("relay", grid, words(other, more), len(nodes) - 1))
            reader = self._node("read_shared_early", grid, words(shared, seen[k]), len(nodes) - 1)
            nodes.append(reader)
        return self._stale(nodes, seen, n)

    def _stale(self, nodes: list[KernelNode], seen: list[Any], n: int) -> float:
        graph = CudaGraph(self.gpu.device, nodes)
        graph.launch()
        wrong = [(self.gpu.get(buffer, (n,)) != k + 1).mean() for k, buffer in enumerate(seen)]
        return float(np.mean(wrong))
