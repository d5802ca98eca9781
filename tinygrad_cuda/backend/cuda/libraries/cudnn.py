"""Convolutions and attention by cuDNN, through its frontend: the extra `cudnn`.

A graph of cuDNN is built once for each call, with the first engine of its heuristic that gives the
same bits in every run. Calls have one workspace, of the GPU's pool: the schedule lets no
two of them run at the same time.
"""

from __future__ import annotations

import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tinygrad_cuda.backend.cuda.driver import DeviceHandle
from tinygrad_cuda.backend.cuda.libraries.library import Library, SharedWorkspace
from tinygrad_cuda.core.errors import ArgumentError, CudaError
from tinygrad_cuda.lowering.codegen.library_call import (
    LibraryAttention,
    LibraryConvolution,
    LibraryTensor,
)

WORD = 8  # bytes
ALIGNED = 16  # bytes: of the memory of values, whoever has allocated it
WORKSPACE = 1 << 30  # bytes that a call may ask for: engines by FFT would take many times more
ITEMSIZES = {"float16": 2, "bfloat16": 2, "float32": 4}
DATA_TYPES = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT"}
SONAME = "libcudnn.so.9"
# The names of the operands by the form of a convolution, as the frontend has them.
OPERANDS = {"fprop": ("image", "weight"), "dgrad": ("loss", "filter"), "wgrad": ("loss", "image")}
# Of attention: what its call reads and stores, as the frontend says.
ATTENDING = {
    "forward": (("q", "k", "v"), ("o", "stats")),
    "backward": (("q", "k", "v", "o", "dO", "stats"), ("dQ", "dK", "dV")),
}
SUMS = "stats"  # the logarithms of rows' sums, in float32
# Engines that are never taken: sums in another order in each run, or in less than float32.
NEVER = ("NONDETERMINISTIC", "REDUCED_PRECISION_REDUCTION")
# Those that round float32 to tf32 or less.
ROUNDING = ("TENSOR_CORE", "DOWN_CONVERT_INPUTS")


class Cudnn(Library):
    """cuDNN on one GPU.

    Args:
        gpu: whose context, streams and memory it uses.

    Raises:
        ArgumentError: the library is not installed.
        CudaError: it does not start.
    """

    extra, title, file, made = "cudnn", "cuDNN", "libcudnn", "convolutions and attention"
    package = "nvidia-cudnn-frontend"

    def __init__(self, gpu: DeviceHandle) -> None:
        module = self.bindings()
        # The frontend raises one class of its own, and what pybind11 makes of C++'s exceptions.
        super().__init__(gpu, module, Exception)
        self.workspace = SharedWorkspace(gpu.allocate)
        self.handle = self.call("create_handle")
        self._graphs: dict[LibraryConvolution | LibraryAttention, LoadedGraph] = {}

    @staticmethod
    def imported() -> Any:
        _load_runtime()
        import cudnn

        return cudnn

    @staticmethod
    def version_of(module: Any) -> int:
        return int(module.backend_version())

    def graph(self, call: LibraryConvolution | LibraryAttention) -> LoadedGraph:
        """A call ready to launch; the same object for the same call."""
        with self.lock:
            loaded = self._graphs.get(call)
            if loaded is None:
                self.gpu.enter()
                kind = LoadedAttention if isinstance(call, LibraryAttention) else LoadedConvolution
                loaded = self._graphs[call] = kind(self, call)
            return loaded

    def reported(self, title: str, what: object, make: Callable[[], Any]) -> Any:
        """What the frontend makes.

        Raises:
            CudaError: it reports a failure.
        """
        try:
            return make()
        except self.failure as error:
            text = str(error).splitlines() or [type(error).__name__]
            raise CudaError(
                self.extra, f"cuDNN has no engine for {title}",
                expect="one at least that gives the same bits in every run",
                actual=f"{text[0]}  {what}", hint=self.hint(),
            ) from None  # fmt: skip


def _load_runtime() -> None:
    """Loads what the frontend opens by its name alone, from where Python packages have it.

    It searches for cuDNN itself, but in one folder of packages only.
    """
    from cuda.pathfinder import load_nvidia_dynamic_lib

    folders = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    own = any((Path(folder) / SONAME).exists() for folder in folders)  # which the frontend takes
    for name in ("cudart",) if own else ("cudart", "cudnn"):
        try:
            load_nvidia_dynamic_lib(name)
        except (RuntimeError, ValueError):  # not found, or not known to an older version
            continue  # then the frontend says what is missing


class LoadedGraph(ABC):
    """A graph of cuDNN with its engine.

    Args:
        library: which computes.
        call: what.

    Attributes:
        title: what it is, for errors.
        name: of its launches.

    Raises:
        CudaError: the library has no engine for it.
    """

    title = ""

    def __init__(self, library: Cudnn, call: Any) -> None:
        self.library, self.call, self.name = library, call, self._name(call)
        self.kind = getattr(library.module.data_type, DATA_TYPES[call.dtype])
        self.single = library.module.data_type.FLOAT
        self.offsets: list[int] = []  # bytes before each tensor's first element, in their order
        self.graph = library.reported(self.title, call, self._built)
        self.memory = library.workspace.of(int(self.graph.get_workspace_size()))

    @staticmethod
    @abstractmethod
    def _name(call: Any) -> str:
        """The name of its launches."""

    @abstractmethod
    def _describe(self, graph: Any) -> None:
        """Says what the graph computes; tensors have the numbers of the call's words, from 1."""

    @abstractmethod
    def _refused(self) -> tuple[str, ...]:
        """Notes of engines that are not to be taken."""

    def _built(self) -> Any:
        """The graph with the first of the heuristic's engines that is left."""
        module = self.library.module
        graph = module.pygraph(
            io_data_type=self.kind, intermediate_data_type=self.single,
            compute_data_type=self.single, handle=self.library.handle,
        )  # fmt: skip
        self._describe(graph)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([module.heur_mode.A, module.heur_mode.FALLBACK])
        graph.deselect_numeric_notes([getattr(module.numerical_note, n) for n in self._refused()])
        graph.deselect_workspace_greater_than(WORKSPACE)
        graph.check_support()
        graph.build_plans()
        return graph

    def _operand(self, graph: Any, tensor: LibraryTensor, kind: Any) -> Any:
        """The next tensor, which the call reads."""
        return graph.tensor(
            name=f"operand{self._next(tensor, kind)}", dim=list(tensor.shape),
            stride=list(tensor.strides), data_type=kind, uid=len(self.offsets),
        )  # fmt: skip

    def _result(self, result: Any, tensor: LibraryTensor, kind: Any) -> None:
        """The next tensor, which the call stores."""
        result.set_output(True).set_uid(self._next(tensor, kind)).set_data_type(kind)
        result.set_dim(list(tensor.shape)).set_stride(list(tensor.strides))

    def _next(self, tensor: LibraryTensor, kind: Any) -> int:
        itemsize = 4 if kind is self.single else ITEMSIZES[self.call.dtype]
        self.offsets.append(tensor.offset * itemsize)
        return len(self.offsets)

    def start(self, words: bytes, stream: Any) -> None:
        """Computes on a stream.

        Args:
            words: of the launch's parameters, 8 bytes each.
            stream: the compute stream, or one that is captured.
        """
        library = self.library
        values = struct.unpack(f"<{len(words) // WORD}Q", words)
        addresses = [values[word] for word in self.call.words]
        for address in addresses:
            if address % ALIGNED:  # another library's memory
                raise ArgumentError(
                    "kernels.provider", f"memory of {self.title} is not aligned",
                    expect=f"addresses that are multiples of {ALIGNED} bytes",
                    actual=f"{address:#x}", hint="x.clone() has memory of its own",
                )  # fmt: skip
        both = zip(addresses, self.offsets, strict=True)
        pack = {uid: address + offset for uid, (address, offset) in enumerate(both, 1)}
        with library.lock:  # the stream is part of the handle
            library.call("set_stream", library.handle, int(stream))
            try:
                self.graph.execute(pack, self.memory.address, handle=library.handle)
            except library.failure as error:
                raise CudaError(
                    library.extra, "a call of cuDNN failed", expect=f"{self.name} runs",
                    actual=str(error), hint=library.hint(),
                ) from None  # fmt: skip

    def captured(self, words: bytes) -> Any:
        """The call as a graph of its own, which whoever asks destroys."""
        return self.library.captured(lambda stream: self.start(words, stream))


class LoadedConvolution(LoadedGraph):
    """A convolution, or one of its gradients."""

    call: LibraryConvolution
    title = "a convolution"

    @staticmethod
    def _name(call: LibraryConvolution) -> str:
        return f"cudnn_{call.form}"

    def _describe(self, graph: Any) -> None:
        call = self.call
        operands = {
            name: self._operand(graph, tensor, self.kind)
            for name, tensor in zip(OPERANDS[call.form], (call.first, call.second), strict=True)
        }
        result = getattr(graph, f"conv_{call.form}")(
            **operands, pre_padding=list(call.padding), post_padding=list(call.padding),
            stride=list(call.stride), dilation=list(call.dilation),
            compute_data_type=self.single,
        )  # fmt: skip
        self._result(result, call.result, self.kind)

    def _refused(self) -> tuple[str, ...]:
        rounding = () if self.call.units else ROUNDING
        return (*NEVER, *rounding, *(() if self.call.winograd else ("WINOGRAD",)))


class LoadedAttention(LoadedGraph):
    """Attention, or its gradients."""

    call: LibraryAttention
    title = "attention"

    @staticmethod
    def _name(call: LibraryAttention) -> str:
        return f"cudnn_attention_{call.form}"

    def _describe(self, graph: Any) -> None:
        call, (read, stored) = self.call, ATTENDING[self.call.form]
        operands = self._operands(graph, read)
        how: dict[str, Any] = {"attn_scale": call.scale, "use_causal_mask": call.causal}
        results = call.tensors[len(read) :]
        if call.form == "forward":
            how["generate_stats"] = len(results) == len(stored)
            made = graph.sdpa(name=self.name, **operands, **how)
        else:
            how["use_deterministic_algorithm"] = True
            made = graph.sdpa_backward(name=self.name, **operands, **how)
        for name, result, tensor in zip(stored, made, results):  # without sums, one of two
            self._result(result, tensor, self._kind(name))

    def _operands(self, graph: Any, names: Sequence[str]) -> dict[str, Any]:
        tensors = zip(names, self.call.tensors)
        return {name: self._operand(graph, tensor, self._kind(name)) for name, tensor in tensors}

    def _kind(self, name: str) -> Any:
        return self.single if name == SUMS else self.kind

    def _refused(self) -> tuple[str, ...]:
        return NEVER


__all__ = ["Cudnn", "LoadedAttention", "LoadedConvolution", "LoadedGraph"]
