"""CUDA graphs built from kernels and calls with their true dependencies, updated and replayed.

An edge is plain, or programmatic: then the later kernel may start early and waits by itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad_cuda.backend.cuda.driver import DeviceHandle
from tinygrad_cuda.backend.cuda.graphs.child_graph import CallNode
from tinygrad_cuda.backend.cuda.handles import RECENT, KernelHandle, LaunchAttributes
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

    function: KernelHandle
    grid: int
    block: int
    shared_bytes: int
    words: bytes
    after: tuple[int, ...] = ()
    after_signal: tuple[int, ...] = ()
    label: object = None

    def slot(self, device: DeviceHandle) -> _Slot:
        """Its parameters in memory."""
        return _Slot(device, self)


GraphNode = KernelNode | CallNode


class _Template:
    """A graph as it was described: executable ones are made from it."""

    def __init__(self, device: DeviceHandle, nodes: Sequence[GraphNode]) -> None:
        self.device = device
        self.graph: Any = None
        self.graph = device.call("cuGraphCreate", 0)
        self.account = [LaunchAttributes(n.function.name, n.label) for n in nodes[-RECENT:]]
        self.slots = [node.slot(device) for node in nodes]
        self.handles: list[Any] = []
        for node, slot in zip(nodes, self.slots):
            before = [self.handles[other] for other in node.after]
            handle = slot.added(self.graph, before)
            self.handles.append(handle)
            self._add_programmatic_edges(node, handle)

    def _add_programmatic_edges(self, node: GraphNode, handle: Any) -> None:
        for other in node.after_signal:
            edge = self.device.driver.CUgraphEdgeData()
            kind = self.device.driver.CUgraphDependencyType
            edge.from_port = PORT_PROGRAMMATIC
            edge.type = int(kind.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
            before = self.handles[other]
            self.device.call("cuGraphAddDependencies", self.graph, [before], [handle], [edge], 1)

    def __del__(self) -> None:
        self.device.destroy("cuGraphDestroy", self.graph)


class CudaGraph:
    """An executable graph of kernels.

    Args:
        device: the GPU.
        nodes: the kernels, each after all that it depends on.

    Raises:
        ArgumentError: a dependency points forward, or parameters have a wrong size.
        CudaError: the driver refused the graph.
    """

    _executable: Any = None

    def __init__(self, device: DeviceHandle, nodes: Sequence[GraphNode]) -> None:
        self.device = device
        self.updates = 0
        self.edges = sum(len(node.after) for node in nodes)
        self.programmatic_edges = sum(len(node.after_signal) for node in nodes)
        for number, node in enumerate(nodes):
            self._check_order(number, node)
        device.enter()
        self._make(_Template(device, nodes), [node.words for node in nodes])

    def _make(self, template: _Template, words: list[bytes]) -> None:
        device = self.device = template.device
        self._template = template
        self._words = words
        self._launch = device.driver.cuGraphLaunch
        self._executable = device.call("cuGraphInstantiate", template.graph, 0)
        device.call("cuGraphUpload", self._executable, device.stream)

    def twin(self) -> CudaGraph:
        """Another executable of the same kernels, with the parameters of the description.

        What is updated in one stays as it is in the other.
        """
        other = CudaGraph.__new__(CudaGraph)
        other.updates = 0
        other.edges, other.programmatic_edges = self.edges, self.programmatic_edges
        self.device.enter()
        other._make(self._template, [slot.words for slot in self._template.slots])
        return other

    def launch(self, stream: Any = None, rewritten: int = -1) -> None:
        """Starts all kernels on a stream, the compute stream if none is named.

        Args:
            stream: the stream.
            rewritten: a node whose `parameters` have been written since the last launch.
        """
        device = self.device
        device.enter()
        if rewritten >= 0:
            self._set_parameters(rewritten)
        device.launches.append(self._template.account)
        stream = stream or device.stream
        (status,) = self._launch(self._executable, stream)
        if status:
            raise device.error("cuGraphLaunch", status)
        if settings.sync:
            device.call("cuStreamSynchronize", stream)

    def update(self, node: int, words: bytes) -> bool:
        """Sets a kernel's parameters for the launches to come; says whether they differed.

        Launches already in flight use the old ones.

        Raises:
            ArgumentError: `words` has another length than before.
        """
        written = self._words[node]
        if written == words:
            return False
        if len(words) != len(written):
            raise ArgumentError(
                "graph.update",
                "the parameters have another size than the kernel's",
                expect=f"{len(written)} bytes",
                actual=f"{len(words)} bytes",
            )
        self.device.enter()
        self._template.slots[node].memory.raw = words
        self._set_parameters(node)
        self._words[node] = words
        return True

    def _set_parameters(self, node: int) -> None:
        """Gives the driver a kernel's parameters."""
        template = self._template
        template.slots[node].renew(self._executable, template.handles[node])
        self.updates += 1

    def parameters(self, node: int) -> memoryview:
        """A kernel's parameters, 8 bytes each, to be written in place from now on, not by `update`.

        What is written counts from the next launch on that names the node.
        """
        self._words[node] = b""
        return memoryview(self._template.slots[node].memory).cast("B").cast("Q")

    def words(self, node: int) -> bytes:
        """The parameters that the next launch will use."""
        words: bytes = self._words[node] or self._template.slots[node].memory.raw
        return words

    def _check_order(self, number: int, node: GraphNode) -> None:
        for other in (*node.after, *node.after_signal):
            if not 0 <= other < number:
                raise ArgumentError(
                    "graph",
                    f"node {number} ({node.function.name}) depends on a node that is not before it",
                    expect=f"numbers from 0 to {number - 1}",
                    actual=str(other),
                )

    def __del__(self) -> None:
        self.device.destroy("cuGraphExecDestroy", self._executable)


class _Slot:
    """A node's parameters in memory that stays in place, and the driver's description of them."""

    __slots__ = ("words", "memory", "parameters", "_pointer", "_device", "_set")

    def __init__(self, device: DeviceHandle, node: KernelNode) -> None:
        self._device, self._set = device, device.driver.cuGraphExecKernelNodeSetParams
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

    def added(self, graph: Any, before: list[Any]) -> Any:
        """The node in a graph."""
        call = self._device.call
        return call("cuGraphAddKernelNode", graph, before, len(before), self.parameters)

    def renew(self, executable: Any, handle: Any) -> None:
        """Gives the driver the parameters in `memory`."""
        (status,) = self._set(executable, handle, self.parameters)
        if status:
            raise self._device.error("cuGraphExecKernelNodeSetParams", status)
