"""PyTorch: eager, the whole step as one CUDA graph, and that with a compiled model (its best)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.peers.program import (
    Memory,
    Program,
    Unavailable,
    Variant,
    host_data,
    in_full_precision,
)
from benchmarks.peers.torchlike import Work
from benchmarks.workload import Array, Function, ModelTraining, Operation, Training, Workload

SLEEP_CYCLES_PER_MICROSECOND = 2000
WARM_UPS = 3


def version() -> str:
    return str(torch.__version__)


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


class Graph(Eager):
    """The whole call captured once; batches are copied into its inputs."""

    def __init__(
        self, workload: Workload, device: str, compiled: bool = False, **options: Any
    ) -> None:
        options |= {"capturable": True, "fused": True}
        if compiled:
            torch._dynamo.reset()
            options["compile"] = torch.compile
        super().__init__(workload, device, **options)
        self.given = tuple(x.detach().clone().requires_grad_(x.requires_grad) for x in self.given)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                self.work.call(*self.given)
        torch.cuda.current_stream().wait_stream(side)
        self.settle()
        self.reset_peak()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = self.work.call(*self.given)
            if self.work.feeds_back:
                for old, new in zip(self.given, self.outputs):
                    old.copy_(new)
        self.captured = super().peak_bytes()
        self._begin_again(workload)

    @torch.no_grad()
    def _begin_again(self, workload: Workload) -> None:
        """Undoes what warming up has done to parameters and optimizer."""
        values = {**self.work.parameters, **self.work.buffers}
        for name, array in self.work.initial.items():
            values[name].copy_(torch.tensor(array))
        if self.work.optimizer is not None:
            for state in self.work.optimizer.state.values():
                for value in state.values():
                    if isinstance(value, torch.Tensor):
                        value.zero_()
        if self.work.feeds_back:
            for x, array in zip(self.given, host_data(workload)[0]):
                x.copy_(torch.tensor(array))

    def call(self, number: int) -> None:
        batches: list[Any] = self.host if self.fresh else self.work.data if self.turns else []
        if batches:
            for x, batch in zip(self.given, batches[number % len(batches)]):
                x.copy_(batch, non_blocking=True)
        self.graph.replay()

    def call_on_device(self, number: int) -> None:
        self.graph.replay()

    def peak_bytes(self) -> int | None:
        """That of the captured call: a replay allocates nothing."""
        return self.captured


def beyond_one_kernel(workload: Workload) -> bool:
    """A graph of one operation is that operation: eager's device time says the same."""
    return not isinstance(workload, Function | Operation)


def not_an_image_alone(workload: Workload) -> bool:
    """A convolution alone is measured where it is fast: with channels last."""
    return not (isinstance(workload, Operation) and workload.images)


def of_images(workload: Workload) -> bool:
    return getattr(workload, "images", False)


def steps_of_images(workload: Workload) -> bool:
    return of_images(workload) and beyond_one_kernel(workload)


def worth_compiling(workload: Workload) -> bool:
    """Compiling takes up to a minute, and saves nothing where float32 units take the time."""
    if isinstance(workload, Operation):
        return False
    if isinstance(workload, ModelTraining) and workload.precision == "ieee":
        return False
    return in_full_precision(workload) or not of_images(workload)


def worth_compiling_channels_last(workload: Workload) -> bool:
    if isinstance(workload, Operation):
        return False
    return of_images(workload) and not in_full_precision(workload)


class Attention(Eager):
    """Attention by one of PyTorch's kernels, which may be asked to add up in a fixed order."""

    def __init__(
        self, workload: Workload, device: str, backend: str, deterministic: bool = False
    ) -> None:
        self.backend = getattr(torch.nn.attention.SDPBackend, backend)
        self.deterministic = deterministic
        # Deterministic mode fills new arrays with NaN unless told otherwise: no part of attention.
        torch.utils.deterministic.fill_uninitialized_memory = False
        super().__init__(workload, device)
        try:
            self.call(0)
        except RuntimeError as error:
            raise Unavailable(str(error)) from error

    def call_on_device(self, number: int) -> None:
        torch.use_deterministic_algorithms(self.deterministic)
        try:
            with torch.nn.attention.sdpa_kernel(self.backend):
                super().call_on_device(number)
        finally:
            torch.use_deterministic_algorithms(False)


def attends(workload: Workload) -> bool:
    return isinstance(workload, Operation) and workload.family == "attention"


def attends_backward(workload: Workload) -> bool:
    return attends(workload) and getattr(workload, "gradient", None) is not None


def attention(title: str, backend: str, deterministic: bool = False) -> Variant:
    build = partial(Attention, backend=backend, deterministic=deterministic)
    runs = attends_backward if deterministic else attends
    return Variant(f"torch {title}" + ", deterministic" * deterministic, build, runs, GPU)


LAST = ", channels-last"
GPU = ("cuda",)
VARIANTS = {
    "torch": Variant("torch eager", Eager, not_an_image_alone),
    "torch_graph": Variant("torch graph", Graph, beyond_one_kernel, GPU),
    "torch_compiled": Variant(
        "torch compiled + graph", partial(Graph, compiled=True), worth_compiling, GPU
    ),
    "torch_last": Variant("torch eager" + LAST, partial(Eager, channels_last=True), of_images),
    "torch_graph_last": Variant(
        "torch graph" + LAST, partial(Graph, channels_last=True), steps_of_images, GPU
    ),
    "torch_compiled_last": Variant(
        "torch compiled + graph" + LAST,
        partial(Graph, compiled=True, channels_last=True), worth_compiling_channels_last, GPU
    ),
    "torch_cudnn": attention("cuDNN", "CUDNN_ATTENTION"),
    "torch_flash": attention("flash", "FLASH_ATTENTION"),
    "torch_cudnn_deterministic": attention("cuDNN", "CUDNN_ATTENTION", True),
    "torch_flash_deterministic": attention("flash", "FLASH_ATTENTION", True),
}  # fmt: skip
