"""Kernels of the user's on a GPU: CUDA C++ through NVRTC, PTX through the driver's assembler."""

from __future__ import annotations

from tinygrad_cuda.backend.cuda.compiler import compile_source
from tinygrad_cuda.backend.cuda.driver import DeviceHandle
from tinygrad_cuda.backend.launch.raw_text import RawLaunch, RawText
from tinygrad_cuda.core.errors import ArgumentError, describe_site
from tinygrad_cuda.lowering.codegen.skeleton import FOLDER


def gpu_source(text: RawText) -> str:
    """What NVRTC gets: the text, behind the prelude where it uses its names."""
    if "tgc_" not in text.source:
        return text.source
    return f'{(FOLDER / "device.cuh").read_text()}\n#line 1 "{text.name}.cu"\n{text.source}'


class LoadedRawKernel:
    """A kernel of the user's, ready on a GPU.

    Raises:
        CompileError: NVRTC refused the text.
        CudaError: the driver refused the PTX, or found no such kernel in it.
        ArgumentError: the compiled kernel takes other parameters than its text declares.
    """

    def __init__(self, text: RawText, gpu: DeviceHandle) -> None:
        if text.is_ptx:
            code = text.source.encode() + b"\0"
        else:
            code = compile_source(gpu_source(text), gpu.properties.arch, text.options).cubin
        self.gpu = gpu
        self.function = gpu.load(code).function(text.name)
        compiled = self.function.parameter_sizes()
        declared = [_size(parameter.letter) for parameter in text.parameters]
        if compiled != declared:
            raise ArgumentError(
                "RawKernel", f"the compiled kernel {text.name} takes other parameters",
                expect=f"{len(compiled)} of {compiled} bytes",
                actual=f"{len(declared)} of {declared} bytes",
                hint="write the signature as the kernel has it",
            )  # fmt: skip

    def launch(self, launch: RawLaunch) -> None:
        """Starts it behind what was started before.

        Raises:
            CudaError: the launch failed.
        """
        self.gpu.launch_raw(
            self.function, launch.grid, launch.block, launch.shared, launch.arguments,
            describe_site(launch.site),
        )  # fmt: skip


def _size(letter: str) -> int:
    return {"?": 1, "b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "f": 4}.get(letter, 8)
