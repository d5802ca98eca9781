"""A few long kernels launched one by one, each ready to begin when the one before it ends.

A graph begins when all before it has ended, which leaves a GPU idle for 1.8 us; a kernel that is
launched by itself on a programmatic edge waits on the GPU (0.5 us, H200). The host pays for each
launch in place of once: no matter where kernels take longer than that.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from tinygrad_cuda.backend.cuda.driver import DeviceHandle, LaunchAttributes
from tinygrad_cuda.backend.cuda.graphs.graph import KernelNode
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.lowering.codegen.pack import PackedLaunch as Planned

MOST = 4  # launches
LONG = 32 << 20  # bytes that a launch moves on average: 8 us of an H200, where the host takes 4


def suits(launches: Sequence[Planned]) -> bool:
    """Whether launches are so few and so long that the GPU need not wait for the host."""
    moved = sum(launch.moved for launch in launches)
    return 0 < len(launches) <= MOST and moved >= LONG * len(launches)


class DependentLaunches:
    """Kernels behind one another on the compute stream of a GPU from sm_90 on.

    Every kernel executes ``griddepcontrol.wait`` before it touches memory, and what it waits for
    is the end of all that was launched before it.

    Args:
        device: the GPU.
        nodes: the kernels, in order.
    """

    def __init__(self, device: DeviceHandle, nodes: Sequence[KernelNode]) -> None:
        self.device = device
        self.updates = 0
        self._account = [LaunchAttributes(node.function.name, node.label) for node in nodes]
        self._words, self._kernels = [], []
        for node in nodes:
            node.function.prepare(len(node.words), node.shared_bytes)
            words = ctypes.create_string_buffer(node.words, len(node.words))
            pointer = (ctypes.c_void_p * 1)(ctypes.addressof(words))
            config = device.programmatic_config(node.grid, node.block, node.shared_bytes)
            self._words.append((words, pointer))
            self._kernels.append((config, node.function.handle, ctypes.addressof(pointer)))

    def launch(self) -> None:
        """Starts all kernels."""
        device = self.device
        device.enter()
        start = device.driver.cuLaunchKernelEx
        with device.lock:
            device.launches.append(self._account)
            for config, function, parameters in self._kernels:
                (status,) = start(config, function, parameters, 0)
                if status:
                    raise device.error("cuLaunchKernelEx", status)
        if settings.sync:
            device.synchronize()

    def update(self, node: int, words: bytes) -> bool:
        """Sets a kernel's parameters for the launches to come; says whether they differed."""
        memory, _ = self._words[node]
        if memory.raw == words:
            return False
        memory.raw = words
        self.updates += 1
        return True
