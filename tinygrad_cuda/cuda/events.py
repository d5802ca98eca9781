"""Streams and events by PyTorch's names: one stream computes, an event is a time of the host."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda import driver
from tinygrad_cuda.core.device import Device, as_device
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.engine.realize import realize


def runtime_of(device: Any) -> driver.DeviceHandle:
    """The driver's view of a GPU.

    Raises:
        DeviceError: there is no usable GPU, or not that many.
    """
    chosen = as_device("cuda" if device is None else device)
    registry.get(chosen)
    return driver.device(chosen.index)


class Event:
    """A moment in the work of the GPU.

    `record` has everything pending computed and waits for it, so that times are those of the work.

    Args:
        enable_timing, blocking, interprocess: accepted as in PyTorch.
    """

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self._time: float | None = None

    def record(self, stream: Any = None) -> None:
        """Notes the time at which what has been asked for is done."""
        device = as_device("cuda")
        realize(device)
        runtime_of(device).synchronize()
        self._time = perf_counter()

    def query(self) -> bool:
        """True: `record` has waited."""
        return True

    def synchronize(self) -> None:
        """Does nothing: `record` has waited."""

    def wait(self, stream: Any = None) -> None:
        """Does nothing: there is one stream."""

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to another.

        Raises:
            ArgumentError: one of both was not recorded.
        """
        if self._time is None or end_event._time is None:
            raise ArgumentError(
                "elapsed_time", "an event was not recorded", expect="record() of both",
                actual="none of this one" if self._time is None else "none of the other",
            )  # fmt: skip
        return 1000.0 * (end_event._time - self._time)


class Stream:
    """The one stream that computes; a block ``with stream:`` changes nothing.

    Args:
        device, priority: accepted as in PyTorch.
    """

    def __init__(self, device: Any = None, priority: int = 0, **options: Any) -> None:
        self.device: Device = as_device("cuda" if device is None else device)

    def synchronize(self) -> None:
        """Waits for all work on the GPU."""
        runtime_of(self.device).synchronize()

    def query(self) -> bool:
        """True once all work is done; waits for it."""
        self.synchronize()
        return True

    def wait_stream(self, stream: Stream) -> None:
        """Does nothing: there is one stream."""

    def wait_event(self, event: Event) -> None:
        """Does nothing: there is one stream."""

    def record_event(self, event: Event | None = None) -> Event:
        """Records an event, a new one if none is given."""
        recorded = Event() if event is None else event
        recorded.record()
        return recorded

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *raised: object) -> None:
        pass
