"""PyTorch as its users write it: each operation launched as it is called."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.peers.program import Memory, Program, Unavailable, host_data
from benchmarks.peers.torchlike import Work
from benchmarks.workload import Array, ModelTraining, Operation, Training, Workload

SLEEP_CYCLES_PER_MICROSECOND = 2000


class Eager(Program):
    """Each operation launched as it is called."""

    def __init__(self, workload: Workload, device: str, **options: Any) -> None:
        self.device = device
        torch.backends.cudnn.benchmark = True
        self.memory = Memory(torch.cuda) if device == "cuda" else None
        if isinstance(workload, ModelTraining) and device == "cuda":
            options.setdefault("fused", True)
        self.work = Work(torch, workload, device, **options)
        self.fresh = isinstance(workload, Training)
        pin = device == "cuda"
        on_host = [
            tuple(self.work.laid_out(torch.tensor(x)) for x in given)
            for given in (host_data(workload) if self.fresh else [])
        ]
        self.host = [tuple(x.pin_memory() if pin else x for x in given) for given in on_host]
        self.given = self.work.data[0]
        self.turns = isinstance(workload, ModelTraining | Operation) and len(self.work.data) > 1

    def call(self, number: int) -> None:
        if self.fresh:
            batch = self.host[number % len(self.host)]
            self.given = tuple(x.to(self.device, non_blocking=True) for x in batch)
        self.call_on_device(number)

    def call_on_device(self, number: int) -> None:
        if self.turns:
            self.given = self.work.data[number % len(self.work.data)]
        self.outputs = self.work.call(*self.given)
        if self.work.feeds_back:
            self.given = self.outputs

    def results(self) -> list[Array]:
        return self.work.on_host(self.outputs)

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def device_microseconds(self, calls: int, host: float) -> float | None:
        if self.device != "cuda":
            return None
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(SLEEP_CYCLES_PER_MICROSECOND * (1.5 * calls * host + 1000)))
        start.record()
        for number in range(calls):
            self.call_on_device(number)
        end.record()
        end.synchronize()
        return 1e3 * start.elapsed_time(end) / calls

    def resume(self) -> None:
        self.work.resume()

    def settle(self) -> None:
        if self.memory is not None:
            torch.cuda.empty_cache()  # of algorithms that were tried; others wait for the memory
            self.memory.settle()

    def reset_peak(self) -> None:
        if self.memory is not None:
            self.memory.reset_peak()

    def peak_bytes(self) -> int | None:
        return None if self.memory is None else self.memory.peak()


class Attention(Eager):
    """Attention by one of PyTorch's kernels, which may be asked to add up in a fixed order."""

    def __init__(
        self, workload: Workload, device: str, backend: str, deterministic: bool = False
    ) -> None:
        self.backend = getattr(torch.nn.attention.SDPBackend, backend)
        self.deterministic = deterministic
        # Deterministic mode fills new arrays with NaN by default: no part of attention.
        torch.utils.deterministic.fill_uninitialized_memory = False
        super().__init__(workload, device)
        try:
            self.call(0)
        except RuntimeError as error:
            if "No available kernel" not in str(error):
                raise
            raise Unavailable(str(error)) from error

    def call_on_device(self, number: int) -> None:
        torch.use_deterministic_algorithms(self.deterministic)
        try:
            with torch.nn.attention.sdpa_kernel(self.backend):
                super().call_on_device(number)
        finally:
            torch.use_deterministic_algorithms(False)
