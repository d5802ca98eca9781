"""A library's call inside a CUDA graph: what it starts is captured, and is a child graph."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from tinygrad_cuda.backend.cuda.handles import DriverCalls, LoadedCall


@dataclass(frozen=True, slots=True)
class CallNode:
    """A library's call as a node.

    Args:
        function: the call.
        words: its parameters; with others it is captured anew.
        after: numbers of earlier nodes that must have ended.
        label: what stands behind it, for errors.
    """

    function: LoadedCall
    words: bytes
    after: tuple[int, ...] = ()
    label: object = None
    after_signal: tuple[int, ...] = ()  # none: a library's kernels wait for no signal

    def slot(self, device: DriverCalls) -> CallSlot:
        """Its parameters in memory."""
        return CallSlot(device, self)


class CallSlot:
    """A library's call, its parameters, and what it starts with them."""

    __slots__ = ("words", "memory", "_call", "_device")

    def __init__(self, device: DriverCalls, node: CallNode) -> None:
        self._device, self._call, self.words = device, node.function, node.words
        self.memory = ctypes.create_string_buffer(node.words, len(node.words))

    def added(self, graph: Any, before: list[Any]) -> Any:
        """The node in a graph, which has a copy of what was captured."""
        inner = self._call.captured(self.words)
        try:
            return self._device.call("cuGraphAddChildGraphNode", graph, before, len(before), inner)
        finally:
            self._device.destroy("cuGraphDestroy", inner)

    def renew(self, executable: Any, handle: Any) -> None:
        """Has the node run with the parameters in `memory`: the same kernels, other addresses."""
        inner = self._call.captured(self.memory.raw)
        try:
            self._device.call("cuGraphExecChildGraphNodeSetParams", executable, handle, inner)
        finally:
            self._device.destroy("cuGraphDestroy", inner)


__all__ = ["CallNode", "CallSlot"]
