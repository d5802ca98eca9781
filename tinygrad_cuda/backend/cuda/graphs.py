"""CUDA graphs built from kernel nodes and their true dependencies, updated in place and replayed.

An edge is plain, or programmatic: then the later kernel may start early and waits by itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad_cuda.backend.cuda.runtime import Device, Function, Launch
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import ArgumentError

PORT_PROGRAMMATIC = 1  # opens when every block has signalled (griddepcontrol.launch_dependents)


@dataclass(frozen=True, slots=True)
class KernelNode:
    """One kernel of a graph.

    Args:
        function: from `Module.function`.
        grid, block: number of blocks, and of threads in each.
        shared_bytes: dynamic shared memory of a block.
        words: the bytes of the kernel's struct parameter.
        after: numbers of earlier nodes that must have ended.
        after_signal: numbers of earlier nodes that must have signalled or ended (sm_90 and up);
            this kernel executes ``griddepcontrol.wait`` before it reads what they write.
        label: what stands behind the kernel, for errors.
    """

    function: Function
    grid: int
    block: int
    shared_bytes: int
    words: bytes
    after: tuple[int, ...] = ()
    after_signal: tuple[int, ...] = ()
    label: object = None


class Graph:
    """An executable graph of kernels.

    Args:
        device: the GPU.
        nodes: the kernels, each after all that it depends on.

    Raises:
        ArgumentError: a dependency points forward, or parameters have a wrong size.
        CudaError: the driver refused the graph.
    """

    def __init__(self, device: Device, nodes: Sequence[KernelNode]) -> None:
        self.device = device
        self.updates = 0
        self.edges = sum(len(node.after) for node in nodes)
        self.programmatic_edges = sum(len(node.after_signal) for node in nodes)
        self._graph: Any = None
        self._executable: Any = None
        self._account = [Launch(node.function.name, node.label) for node in nodes[-16:]]
        self._set = device.driver.cuGraphExecKernelNodeSetParams
        device.enter()
        self._graph = device.call("cuGraphCreate", 0)
        self._slots = [_Slot(device, node) for node in nodes]
        self._handles: list[Any] = []
        for number, (node, slot) in enumerate(zip(nodes, self._slots)):
            self._check_order(number, node)
            before = [self._handles[other] for other in node.after]
            handle = device.call(
                "cuGraphAddKernelNode", self._graph, before, len(before), slot.parameters
            )
            self._handles.append(handle)
            self._add_programmatic_edges(node, handle)
        self._executable = device.call("cuGraphInstantiate", self._graph, 0)
        device.call("cuGraphUpload", self._executable, device.stream)

    def launch(self, stream: Any = None) -> None:
        """Starts all kernels on a stream, the compute stream if none is named."""
        device = self.device
        device.enter()
        device.launches.extend(self._account)
        device.call("cuGraphLaunch", self._executable, stream or device.stream)
        if settings.sync:
            device.call("cuStreamSynchronize", stream or device.stream)

    def update(self, node: int, words: bytes) -> bool:
        """Sets a kernel's parameters for the launches to come; says whether they differed.

        Launches already under way keep the old ones.

        Raises:
            ArgumentError: `words` has another length than before.
        """
        slot = self._slots[node]
        if slot.words == words:
            return False
        if len(words) != len(slot.words):
            raise ArgumentError(
                "graph.update",
                "the parameters have another size than the kernel's",
                expect=f"{len(slot.words)} bytes",
                actual=f"{len(words)} bytes",
            )
        self.device.enter()
        slot.words = words
        slot.memory.raw = words
        (status,) = self._set(self._executable, self._handles[node], slot.parameters)
        if status:
            raise self.device.error("cuGraphExecKernelNodeSetParams", status)
        self.updates += 1
        return True

    def words(self, node: int) -> bytes:
        """The parameters that the next launch will use."""
        return self._slots[node].words

    def _check_order(self, number: int, node: KernelNode) -> None:
        for other in (*node.after, *node.after_signal):
            if not 0 <= other < number:
                raise ArgumentError(
                    "graph",
                    f"node {number} ({node.function.name}) depends on a node that is not before it",
                    expect=f"numbers from 0 to {number - 1}",
                    actual=str(other),
                )

    def _add_programmatic_edges(self, node: KernelNode, handle: Any) -> None:
        for other in node.after_signal:
            edge = self.device.driver.CUgraphEdgeData()
            kind = self.device.driver.CUgraphDependencyType
            edge.from_port = PORT_PROGRAMMATIC
            edge.type = int(kind.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
            before = self._handles[other]
            self.device.call("cuGraphAddDependencies", self._graph, [before], [handle], [edge], 1)

    def __del__(self) -> None:
        self.device.destroy("cuGraphExecDestroy", self._executable)
        self.device.destroy("cuGraphDestroy", self._graph)


class _Slot:
    """A node's parameters in memory that stays in place, and the driver's description of them."""

    __slots__ = ("words", "memory", "parameters", "_pointer")

    def __init__(self, device: Device, node: KernelNode) -> None:
        node.function.prepare(len(node.words), node.shared_bytes)
        self.words = node.words
        self.memory = ctypes.create_string_buffer(node.words, len(node.words))
        self._pointer = (ctypes.c_void_p * 1)(ctypes.addressof(self.memory))
        parameters = device.driver.CUDA_KERNEL_NODE_PARAMS()
        parameters.func = node.function.handle
        parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ = node.grid, 1, 1
        parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ = node.block, 1, 1
        parameters.sharedMemBytes = node.shared_bytes
        parameters.kernelParams = ctypes.addressof(self._pointer)
        self.parameters = parameters
