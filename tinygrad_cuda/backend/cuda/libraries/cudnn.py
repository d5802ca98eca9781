"""Convolutions by cuDNN, through its frontend: the extra `cudnn`.

A graph of cuDNN is built once for each convolution, with the first engine of its heuristic that
gives the same bits in every run. Calls have one workspace, of the GPU's pool: the schedule lets no
two of them run at the same time.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tinygrad_cuda.backend.cuda.driver import DeviceHandle
from tinygrad_cuda.backend.cuda.libraries.library import Library, SharedWorkspace
from tinygrad_cuda.core.errors import ArgumentError, CudaError
from tinygrad_cuda.lowering.codegen.library_call import LibraryConvolution, LibraryTensor

WORD = 8  # bytes
ALIGNED = 16  # bytes: of the memory of values, whoever has allocated it
WORKSPACE = 1 << 30  # bytes that a call may ask for: engines by FFT would take many times more
ITEMSIZES = {"float16": 2, "bfloat16": 2, "float32": 4}
DATA_TYPES = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT"}
SONAME = "libcudnn.so.9"
# Of a graph's tensors: what a call reads and stores.
FIRST, SECOND, RESULT = 1, 2, 3
# The names of the operands by the form of a convolution, as the frontend has them.
OPERANDS = {"fprop": ("image", "weight"), "dgrad": ("loss", "filter"), "wgrad": ("image", "loss")}
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

    extra, title, file, made = "cudnn", "cuDNN", "libcudnn", "convolutions"
    package = "nvidia-cudnn-frontend"

    def __init__(self, gpu: DeviceHandle) -> None:
        module = self.bindings()
        # The frontend raises one class of its own, and what pybind11 makes of C++'s exceptions.
        super().__init__(gpu, module, Exception)
        self.workspace = SharedWorkspace(gpu.allocate)
        self.handle = self.call("create_handle")
        self._convolutions: dict[LibraryConvolution, LoadedConvolution] = {}

    @staticmethod
    def imported() -> Any:
        _load_runtime()
        import cudnn

        return cudnn

    @staticmethod
    def version_of(module: Any) -> int:
        return int(module.backend_version())

    def convolution(self, convolution: LibraryConvolution) -> LoadedConvolution:
        """A convolution ready to launch; the same object for the same convolution."""
        with self.lock:
            loaded = self._convolutions.get(convolution)
            if loaded is None:
                self.gpu.enter()
                loaded = LoadedConvolution(self, convolution)
                self._convolutions[convolution] = loaded
            return loaded

    def reported(self, what: object, make: Callable[[], Any]) -> Any:
        """What the frontend makes.

        Raises:
            CudaError: it reports a failure.
        """
        try:
            return make()
        except self.failure as error:
            text = str(error).splitlines() or [type(error).__name__]
            raise CudaError(
                self.extra, "cuDNN has no engine for a convolution",
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


class LoadedConvolution:
    """A graph of cuDNN with its engine.

    Args:
        library: which convolves.
        convolution: what.

    Raises:
        CudaError: the library has no engine for it.
    """

    def __init__(self, library: Cudnn, convolution: LibraryConvolution) -> None:
        self.library, self.convolution = library, convolution
        self.name = f"cudnn_{convolution.form}"
        self.graph = library.reported(convolution, self._built)
        self.memory = library.workspace.of(int(self.graph.get_workspace_size()))

    def _built(self) -> Any:
        module, call = self.library.module, self.convolution
        kinds, single = module.data_type, module.data_type.FLOAT
        kind = getattr(kinds, DATA_TYPES[call.dtype])
        graph = module.pygraph(
            io_data_type=kind, intermediate_data_type=single, compute_data_type=single,
            handle=self.library.handle,
        )  # fmt: skip
        operands = {FIRST: call.first, SECOND: call.second}
        if call.form == "wgrad":  # the frontend takes the images first
            operands = {SECOND: call.second, FIRST: call.first}
        tensors = [self._tensor(graph, uid, tensor, kind) for uid, tensor in operands.items()]
        result = getattr(graph, f"conv_{call.form}")(
            **dict(zip(OPERANDS[call.form], tensors, strict=True)),
            pre_padding=list(call.padding), post_padding=list(call.padding),
            stride=list(call.stride), dilation=list(call.dilation), compute_data_type=single,
        )  # fmt: skip
        result.set_output(True).set_uid(RESULT).set_data_type(kind)
        result.set_dim(list(call.result.shape)).set_stride(list(call.result.strides))
        self._plan(graph)
        return graph

    def _tensor(self, graph: Any, uid: int, tensor: LibraryTensor, kind: Any) -> Any:
        return graph.tensor(
            name=f"operand{uid}", dim=list(tensor.shape), stride=list(tensor.strides),
            data_type=kind, uid=uid,
        )  # fmt: skip

    def _plan(self, graph: Any) -> None:
        """Builds the first of the heuristic's engines that is left."""
        module = self.library.module
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([module.heur_mode.A, module.heur_mode.FALLBACK])
        graph.deselect_numeric_notes([getattr(module.numerical_note, n) for n in self._refused()])
        graph.deselect_workspace_greater_than(WORKSPACE)
        graph.check_support()
        graph.build_plans()

    def _refused(self) -> tuple[str, ...]:
        """Notes of engines that are not to be taken."""
        call = self.convolution
        rounding = () if call.units else ROUNDING
        return (*NEVER, *rounding, *(() if call.winograd else ("WINOGRAD",)))

    def start(self, words: bytes, stream: Any) -> None:
        """Convolves on a stream.

        Args:
            words: of the launch's parameters, 8 bytes each.
            stream: the compute stream, or one that is captured.
        """
        call, library = self.convolution, self.library
        values = struct.unpack(f"<{len(words) // WORD}Q", words)
        addresses = [values[word] for word in call.words]
        for address in addresses:
            if address % ALIGNED:  # another library's memory
                raise ArgumentError(
                    "kernels.provider", "memory of a convolution is not aligned",
                    expect=f"addresses that are multiples of {ALIGNED} bytes",
                    actual=f"{address:#x}", hint="x.clone() has memory of its own",
                )  # fmt: skip
        itemsize = ITEMSIZES[call.dtype]
        offsets = (call.first.offset, call.second.offset, call.result.offset)
        pack = {
            uid: address + offset * itemsize
            for uid, address, offset in zip((FIRST, SECOND, RESULT), addresses, offsets)
        }
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
        """The convolution as a graph of its own, which whoever asks destroys."""
        return self.library.captured(lambda stream: self.start(words, stream))


__all__ = ["Cudnn", "LoadedConvolution"]
