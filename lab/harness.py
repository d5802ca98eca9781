"""What every experiment needs: sources put together and compiled, kernels with their launch shape,
chains of them as CUDA graphs, and the median time of a replay."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tinygrad_cuda.backend.cuda import compiler
from tinygrad_cuda.backend.cuda.driver import DeviceHandle, DriverEvent, KernelHandle
from tinygrad_cuda.backend.cuda.graphs.graph import CudaGraph, KernelNode
from tinygrad_cuda.backend.cuda.pool import Allocation

HERE = Path(__file__).parent
Array = npt.NDArray[Any]

# How kernels stand to their neighbours: the number that experiment.cuh calls TGC_EDGE, and whether
# the graph's edges are programmatic.
PLAIN, SIGNAL_WAIT, WAIT_SIGNAL, WAIT_LATE, NO_SIGNAL, SIGNAL_LATE = range(6)
EDGES = {
    PLAIN: "plain edges",
    SIGNAL_WAIT: "signal, then wait",
    WAIT_SIGNAL: "early loads, wait, then signal",
    WAIT_LATE: "wait, then signal, no early loads",
    NO_SIGNAL: "early loads, wait, no signal",
    SIGNAL_LATE: "early loads, wait, loads, signal",
}


def source(*names: str, tail: str = "", edge: int = PLAIN, defines: Sequence[str] = ()) -> str:
    """One translation unit: the device prelude, experiment.cuh, the named files, then `tail`."""
    prelude = files("tinygrad_cuda.lowering").joinpath("skeletons/device.cuh").read_text()
    head = [f"#define TGC_EDGE {edge}", *(f"#define {define}" for define in defines)]
    texts = [(HERE / name).read_text() for name in ("experiment.cuh", *names)]
    return "\n".join([*head, prelude, *texts, tail])


def words(*values: int | float | Allocation) -> bytes:
    """A parameter struct: addresses and integers as they are, floats as doubles."""
    parts = []
    for value in values:
        if isinstance(value, Allocation):
            parts.append(struct.pack("<Q", value.address))
        else:
            parts.append(struct.pack("<d" if isinstance(value, float) else "<q", value))
    return b"".join(parts)


class Shape(NamedTuple):
    """How a kernel is launched."""

    grid: int
    block: int
    shared: int = 0


@dataclass
class Gpu:
    """A device with what the experiments do to it."""

    device: DeviceHandle

    def functions(self, texts: dict[str, str], names: dict[str, list[str]]) -> dict[Any, Any]:
        """Compiles all texts at once; kernels by (text's key, kernel's name)."""
        binaries = compiler.compile_many(list(texts.values()), self.device.properties.arch)
        found: dict[Any, Any] = {}
        for key, binary in zip(texts, binaries):
            module = self.device.load(binary.cubin)
            for name in names[key]:
                found[key, name] = module.function(name)
        return found

    def put(self, array: Array) -> Allocation:
        """A copy of an array on the device."""
        array = np.ascontiguousarray(array)
        memory = self.device.allocate(array.nbytes)
        self.device.copy_in(memory.address, array)
        return memory

    def empty(self, nbytes: int) -> Allocation:
        """Device memory full of NaN."""
        memory = self.device.allocate(nbytes)
        self.device.fill(memory.address, nbytes, 0xFF)
        return memory

    def get(self, memory: Allocation, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
        """A copy of device memory on the host."""
        array = np.empty(shape, dtype)
        self.device.copy_out(memory.address, array)
        return array

    def chain(self, nodes: Sequence[KernelNode], edge: int, plain_after: int = 0) -> CudaGraph:
        """A graph in which each node follows the one before; `plain_after` > 0 makes every
        edge into nodes 0, n, 2n, ... a plain one."""
        linked = []
        for number, node in enumerate(nodes):
            if number == 0:
                linked.append(node)
            elif edge == PLAIN or (plain_after and number % plain_after == 0):
                linked.append(replace(node, after=(number - 1,)))
            else:
                linked.append(replace(node, after_signal=(number - 1,)))
        return CudaGraph(self.device, linked)

    def time(self, graph: CudaGraph, inner: int = 1, repeats: int = 9) -> float:
        """Median microseconds of a replay, over `repeats` runs of `inner` replays."""
        return self.time_call(graph.launch, inner, repeats)

    def time_call(self, work: Callable[[], Any], inner: int = 1, repeats: int = 9) -> float:
        """Median microseconds of `work`, which submits to the compute stream."""
        for _ in range(3):
            work()
        samples = []
        for _ in range(repeats):
            start, end = DriverEvent(self.device), DriverEvent(self.device)
            start.record()
            for _ in range(inner):
                work()
            end.record()
            samples.append(end.microseconds_since(start) / inner)
        return float(np.median(samples))


def node(function: KernelHandle, shape: Shape, parameters: bytes) -> KernelNode:
    """A kernel of a graph without its edges."""
    return KernelNode(function, shape.grid, shape.block, shape.shared, parameters)


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """An aligned text table."""
    cells = [[f"{c:.2f}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(header), *cells]) for i in range(len(header))]
    lines = [f"\n{title}"]
    for row in [list(header), *cells]:
        lines.append("  " + "  ".join(text.ljust(width) for text, width in zip(row, widths)))
    return "\n".join(lines)
