"""tinygrad_cuda: the plain program, and the same program through tc.compile."""

from __future__ import annotations

import struct
import time
from functools import partial
from typing import Any

import numpy as np

import tinygrad_cuda as tc
import tinygrad_cuda.autograd
from benchmarks.peers.program import Memory, Program, Variant, host_data, in_full_precision
from benchmarks.peers.torchlike import Work
from benchmarks.workload import Array, ModelTraining, Operation, Repetition, Training, Workload
from tinygrad_cuda.backend.cuda import driver as runtime
from tinygrad_cuda.backend.cuda.compiler import compile_source
from tinygrad_cuda.backend.cuda.handles import DriverEvent
from tinygrad_cuda.backend.cuda.timing import SOURCE
from tinygrad_cuda.engine.realize import realize_all


def version() -> str:
    return tc.__version__


class Plain(Program):
    """Recorded anew by each call, as a user writes it."""

    def __init__(
        self, workload: Workload, device: str, compiled: bool = False, **options: Any
    ) -> None:
        self.device = device
        self.memory = Memory(tc.cuda) if device.startswith("cuda") else None
        self.work = Work(tc, workload, device, **options)
        realize_all()
        self.step = tc.compile(self.work.call) if compiled else self.work.call
        self.host = host_data(workload)
        self.fresh = isinstance(workload, Training)
        pin = device.startswith("cuda") and self.fresh
        batches = [[tc.tensor(x, device="cpu") for x in given] for given in self.host]
        self.batches = [tuple(x.pin_memory() if pin else x for x in given) for given in batches]
        self.given = self.work.data[0]
        self.turns = isinstance(workload, ModelTraining | Operation)

    def call(self, number: int) -> None:
        if self.fresh:
            batch = self.batches[number % len(self.batches)]
            self.given = tuple(tc.as_tensor(x, device=self.device) for x in batch)
        self.call_on_device(number)

    def call_on_device(self, number: int) -> None:
        if self.turns:
            self.given = self.work.data[number % len(self.work.data)]
        self.outputs = self.step(*self.given)
        realize_all()
        if self.work.feeds_back:
            self.given = self.outputs

    def results(self) -> list[Array]:
        return self.work.on_host(self.outputs)

    def synchronize(self) -> None:
        if self.device.startswith("cuda"):
            tc.cuda.synchronize(self.device)

    def device_microseconds(self, calls: int, host: float) -> float | None:
        if not self.device.startswith("cuda"):
            return None
        gpu = runtime.device(0)

        def submit() -> None:
            for number in range(calls):
                self.call_on_device(number)

        return behind_delay(gpu, submit, calls * host) / calls

    def resume(self) -> None:
        self.work.resume()

    def settle(self) -> None:
        if self.memory is not None:
            self.memory.settle()

    def reset_peak(self) -> None:
        if self.memory is not None:
            self.memory.reset_peak()

    def peak_bytes(self) -> int | None:
        return None if self.memory is None else self.memory.peak()


class Together(Plain):
    """Many steps in one call: `steps=n` over data on the device, or `tc.loop`."""

    def __init__(self, workload: Training | Repetition, device: str) -> None:
        super().__init__(workload, device)
        self.steps, self.fresh = workload.together, False
        if isinstance(workload, Repetition):
            self.step = partial(tc.loop, self.steps, tc.compile(self.work.call))
            return
        self.step = tc.compile(self.work.call, steps=self.steps)
        turns = np.arange(self.steps) % len(self.host)
        stacked = (np.stack(arrays)[turns] for arrays in zip(*self.host))
        self.given = tuple(tc.tensor(array, device=device) for array in stacked)

    def device_microseconds(self, calls: int, host: float) -> float | None:
        """None: a call submits more than the driver's queue takes, and so goes at its pace."""
        return None


def repeats(workload: Workload) -> bool:
    return isinstance(workload, Training | Repetition) and in_full_precision(workload)


def behind_delay(gpu: runtime.DeviceHandle, submit: Any, host: float) -> float:
    """Microseconds of GPU time of what `submit` submits, the GPU kept busy until it all is."""
    delay = gpu.load(compile_source(SOURCE, gpu.properties.arch).cubin).function("tgc_delay")
    nanoseconds = int(1.5e3 * host + 1e6)
    start, end = DriverEvent(gpu), DriverEvent(gpu)
    gpu.launch(delay, 1, 1, 0, struct.pack("<q", nanoseconds), "the delay before timed launches")
    start.record()
    submit()
    end.record()
    return end.microseconds_since(start)


def copy_bandwidth(device: str) -> float:
    """Bytes a second of a big copy on the device, read and written."""
    if not device.startswith("cuda"):
        a = tc.ones(1 << 22, device="cpu").numpy()
        start = time.perf_counter()
        a.copy()
        return 2 * a.nbytes / (time.perf_counter() - start)
    gpu, nbytes = runtime.device(0), 1 << 30
    source, target = gpu.allocate(nbytes), gpu.allocate(nbytes)
    gpu.fill(source.address, nbytes, 1)
    times = [gpu.timed(lambda: gpu.copy(target.address, source.address, nbytes)) for _ in range(9)]
    return 2e6 * nbytes / sorted(times)[4]


def beyond_one_plan(workload: Workload) -> bool:
    """An operation alone is one plan, so that both ways launch the same kernels."""
    return not isinstance(workload, Operation)


def convolves(workload: Workload) -> bool:
    return isinstance(workload, Operation) and workload.images


VARIANTS = {
    "ours": Variant("ours, plain", Plain),
    "ours_last": Variant("ours, channels-last", partial(Plain, channels_last=True), convolves),
    "ours_compiled": Variant("ours, tc.compile", partial(Plain, compiled=True), beyond_one_plan),
    "ours_together": Variant("ours, many steps a call", Together, repeats),
}
