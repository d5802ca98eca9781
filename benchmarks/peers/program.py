"""What the harness asks of every peer: a workload, built and ready to be stepped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.workload import Array, Function, ModelTraining, Operation, Training, Workload


class Program:
    """A workload on one peer's variant.

    Attributes:
        steps: how many steps one call runs.
    """

    steps = 1

    def call(self, number: int) -> None:
        """Submits a call; a training step takes host batch `number`, in turn."""
        raise NotImplementedError

    def call_on_device(self, number: int) -> None:
        """The same call on data that lies on the device already."""
        self.call(number)

    def results(self) -> list[Array]:
        """What the last call computed: the losses of its steps, or the outputs; float32."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Waits for the device."""

    def device_microseconds(self, calls: int, host: float) -> float | None:
        """Device time of a call, or None where it cannot be told from the host's.

        Args:
            calls: how many are measured together.
            host: the wall time of a call, to know how long the host needs to submit them.
        """
        return None

    def settle(self) -> None:
        """Notes the memory that the program holds between calls, after the first ones."""

    def resume(self) -> None:
        """Sets the library's switches, which another program may have changed."""

    def reset_peak(self) -> None:
        """Starts `peak_bytes` anew, where the device counts."""

    def peak_bytes(self) -> int | None:
        """The most device memory that the program held at once since `reset_peak`."""
        return None


class Memory:
    """The memory of one program among others of a process.

    Args:
        cuda: `torch.cuda` or `tc.cuda`.
    """

    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda
        self.own, self.start = 0, cuda.memory_allocated()

    def settle(self) -> None:
        """What came since the start is the program's own between calls."""
        self.own = self.cuda.memory_allocated() - self.start

    def reset_peak(self) -> None:
        self.cuda.reset_peak_memory_stats()
        self.start = self.cuda.memory_allocated()

    def peak(self) -> int:
        """Its own and the most beyond it since `reset_peak`."""
        return self.own + int(self.cuda.max_memory_allocated()) - self.start


class Unavailable(Exception):
    """The library has no such kernel: a row without a time, and no failure of the suite."""


def in_full_precision(workload: Workload) -> bool:
    """Functions of arrays in IEEE float32: what peers without PyTorch's modules run."""
    own = getattr(workload, "precision", "ieee") == "ieee"
    return own and not isinstance(workload, ModelTraining | Operation)


class Variant(NamedTuple):
    """One way to use a peer.

    Attributes:
        title: its name in reports.
        build: makes a Program of a workload, on a device.
        runs: whether the variant can run a workload.
        devices: where it can run.
    """

    title: str
    build: Callable[[Workload, str], Program]
    runs: Callable[[Workload], bool] = lambda workload: True
    devices: tuple[str, ...] = ("cpu", "cuda")


def host_data(workload: Workload) -> list[tuple[Array, ...]]:
    """The arrays of each call, in turn."""
    if isinstance(workload, Training | ModelTraining):
        return list(workload.batches)
    if isinstance(workload, Function):
        return [workload.inputs]
    if isinstance(workload, Operation):
        return [workload.inputs()] * workload.sets
    return [getattr(workload, "state", ())]


def parts(workload: Workload) -> tuple[Any, Any]:
    """Parameters and buffers by name."""
    return getattr(workload, "parameters", {}), getattr(workload, "buffers", {})
