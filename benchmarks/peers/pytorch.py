"""PyTorch: eager, the whole step as one CUDA graph, and that with a compiled model (its best)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.peers import cudnn_attention
from benchmarks.peers.cudnn_attention import CudnnAttention
from benchmarks.peers.program import Variant, host_data, in_full_precision
from benchmarks.peers.pytorch_eager import Attention, Eager
from benchmarks.workload import Function, ModelTraining, Operation, Workload

WARM_UPS = 3


def version() -> str:
    return str(torch.__version__)


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


def attends(workload: Workload) -> bool:
    return isinstance(workload, Operation) and workload.family == "attention"


def attends_backward(workload: Workload) -> bool:
    return attends(workload) and getattr(workload, "gradient", None) is not None


def attention(title: str, backend: str, deterministic: bool = False) -> Variant:
    build = partial(Attention, backend=backend, deterministic=deterministic)
    runs = attends_backward if deterministic else attends
    return Variant(f"torch {title}" + ", deterministic" * deterministic, build, runs, GPU)


def library_attends(workload: Workload) -> bool:
    return attends_backward(workload) and cudnn_attention.installed()


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
    "torch_library": Variant(
        "cuDNN alone", partial(CudnnAttention, deterministic=False), library_attends, GPU
    ),
    "torch_library_deterministic": Variant(
        "cuDNN alone, deterministic", partial(CudnnAttention, deterministic=True),
        library_attends, GPU,
    ),
}  # fmt: skip
