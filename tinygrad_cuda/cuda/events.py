"""Streams and events by PyTorch's names: one stream computes, events are those of the driver."""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda import driver
from tinygrad_cuda.backend.cuda.handles import DriverEvent
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

    `record` has everything pending launched, and waits for nothing: the GPU notes the time when it
    comes there.

    Args:
        enable_timing: whether `elapsed_time` may be asked.
        blocking, interprocess: accepted as in PyTorch.

    Example:
        >>> import tinygrad_cuda as tc
        >>> start, end = (tc.cuda.Event(enable_timing=True) for _ in range(2))
        >>> if tc.cuda.is_available():
        ...     start.record()
        ...     y = tc.rand(1000, 1000, device="cuda") @ tc.rand(1000, 1000, device="cuda")
        ...     end.record()
        ...     end.synchronize()
        ...     assert start.elapsed_time(end) > 0
    """

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self._timing = enable_timing
        self._event: DriverEvent | None = None

    def record(self, stream: Any = None) -> None:
        """Marks the end of what has been asked for so far.

        Raises:
            DeviceError: there is no usable GPU.
        """
        device = as_device("cuda") if stream is None else stream.device
        gpu = runtime_of(device)
        realize(device)
        if self._event is None:
            self._event = DriverEvent(gpu, self._timing)
        self._event.record()

    def query(self) -> bool:
        """Whether the GPU has come here, or nothing was recorded; does not wait."""
        return self._event is None or self._event.done()

    def synchronize(self) -> None:
        """Waits until the GPU has come here."""
        if self._event is not None:
            self._event.synchronize()

    def wait(self, stream: Any = None) -> None:
        """Does nothing: there is one stream, in whose order everything runs."""

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds of the GPU from this event to another; waits for both.

        Raises:
            ArgumentError: one of both has no timing, or was not recorded.
        """
        events = (("this one", self), ("the other", end_event))
        untimed = [name for name, event in events if not event._timing]
        if untimed:
            raise ArgumentError(
                "elapsed_time", "an event has no timing",
                expect="cuda.Event(enable_timing=True) of both", actual=f"not {untimed[0]}",
            )  # fmt: skip
        if self._event is None or end_event._event is None:
            raise ArgumentError(
                "elapsed_time", "an event was not recorded", expect="record() of both",
                actual="none of this one" if self._event is None else "none of the other",
            )  # fmt: skip
        return end_event._event.microseconds_since(self._event) / 1000.0


class Stream:
    """The one stream that computes; a block ``with stream:`` changes nothing.

    Args:
        device, priority: accepted as in PyTorch.

    Example:
        >>> import tinygrad_cuda as tc
        >>> stream = tc.cuda.current_stream()
        >>> (stream.cuda_stream != 0) == tc.cuda.is_available()
        True
    """

    def __init__(self, device: Any = None, priority: int = 0, **options: Any) -> None:
        self.device: Device = as_device("cuda" if device is None else device)

    @property
    def cuda_stream(self) -> int:
        """The driver's handle (`CUstream`) of recorded work's stream; 0 where there is no GPU.

        A library that is called with it runs after what was launched: `realize` what it reads.
        """
        return int(runtime_of(self.device).stream) if driver.available() else 0

    @property
    def stream_id(self) -> int:
        """`cuda_stream`, by which PyTorch tells streams apart."""
        return self.cuda_stream

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.device == self.device

    def __hash__(self) -> int:
        return hash(self.device)

    def synchronize(self) -> None:
        """Waits for all work on the GPU."""
        runtime_of(self.device).synchronize()

    def query(self) -> bool:
        """Whether all work is done; does not wait."""
        return DriverEvent(runtime_of(self.device), timing=False).record().done()

    def wait_stream(self, stream: Stream) -> None:
        """Does nothing: there is one stream."""

    def wait_event(self, event: Event) -> None:
        """Does nothing: there is one stream."""

    def record_event(self, event: Event | None = None) -> Event:
        """Records an event, a new one if none is given."""
        recorded = Event() if event is None else event
        recorded.record(self)
        return recorded

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *raised: object) -> None:
        pass


class StreamContext:
    """A block in which nothing changes: there is one stream.

    Args:
        stream: a `Stream`, or None.

    Raises:
        ArgumentError: it is another library's stream, on which nothing can be launched.
    """

    def __init__(self, stream: Stream | None) -> None:
        require_own("stream", stream)
        self.stream = stream

    def __enter__(self) -> None:
        pass

    def __exit__(self, *raised: object) -> None:
        pass


def require_own(op: str, stream: Any) -> None:
    """Raises unless it is the one stream, or None.

    Raises:
        ArgumentError: it is another.
    """
    if stream is not None and not isinstance(stream, Stream):
        raise ArgumentError(
            op, "work can be launched on one stream only", expect="tc.cuda.Stream or None",
            actual=type(stream).__name__,
            hint="the other library can work on ours: tc.cuda.current_stream().cuda_stream",
        )  # fmt: skip
