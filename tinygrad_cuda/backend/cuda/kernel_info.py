"""What a kernel is for a GPU: its source, what it takes, and its machine code; needs no GPU."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cached_property
from pathlib import Path

from tinygrad_cuda.backend.cuda.compiler import (
    REPORT,
    Binary,
    Resources,
    architecture_of,
    compile_source,
    resources,
)
from tinygrad_cuda.core.errors import CompileError
from tinygrad_cuda.lowering.codegen.pack import PackedLaunch, translation_unit
from tinygrad_cuda.lowering.target import Target

DISASSEMBLERS = {"nvdisasm": ["-c"], "cuobjdump": ["-sass"]}


class KernelInfo:
    """One kernel of `explain`, compiled by NVRTC when its numbers are first asked for.

    Args:
        launch: the kernel and its grid.
        target: the machine.

    Attributes:
        name: of the kernel.
        source: CUDA C++, complete.
        arch: what it is compiled for, such as ``sm_90``.
        registers: of a thread.
        shared_memory: bytes of a block.
        spills: bytes that a thread stores to and loads from local memory for want of registers.
        occupancy: the share of a multiprocessor's warps that may be resident.
        sass: the machine code as text.
    """

    def __init__(self, launch: PackedLaunch, target: Target) -> None:
        self.launch, self.target = launch, target
        self.name = launch.name
        self.blocks, self.threads = launch.blocks, launch.threads

    def __repr__(self) -> str:
        return f"<kernel {self.name}: {self.blocks} blocks of {self.threads} threads>"

    @cached_property
    def source(self) -> str:
        """CUDA C++, complete; of a library's call a comment that says which."""
        if self.launch.library is not None:
            return self.launch.text
        return translation_unit([self.launch], self.target)

    @property
    def arch(self) -> str:
        """What it is compiled for."""
        return architecture_of(self.source, self.target.sm)

    @cached_property
    def _binary(self) -> Binary:
        if self.launch.library is not None:
            raise CompileError(
                "explain", "a library's kernels are not compiled here", expect="a generated kernel",
                actual=self.launch.text.strip().removeprefix("// "),
                hint="tc.kernels.provider(None) has generated kernels in their place",
            )  # fmt: skip
        return compile_source(self.source, self.arch, REPORT)

    @property
    def resources(self) -> Resources:
        """What the assembler reports."""
        return resources(self._binary.log)[self.name]

    @property
    def registers(self) -> int:
        """Of a thread."""
        return self.resources.registers

    @property
    def shared_memory(self) -> int:
        """Bytes of a block: what the text declares, and what the launch adds."""
        return self.resources.shared + self.launch.shared

    @property
    def spills(self) -> int:
        """Bytes that a thread stores to and loads from local memory for want of registers."""
        return self.resources.spill_stores + self.resources.spill_loads

    @property
    def occupancy(self) -> float:
        """The share of a multiprocessor's warps that may be resident, by what a block takes."""
        return self.target.occupancy(self.threads, self.registers, self.shared_memory)

    @cached_property
    def sass(self) -> str:
        """The machine code as text.

        Raises:
            CompileError: no disassembler is on the PATH.
        """
        tool = next((name for name in DISASSEMBLERS if shutil.which(name)), None)
        if tool is None:
            raise CompileError(
                "sass", "there is no disassembler", expect="nvdisasm or cuobjdump on the PATH",
                actual="neither", hint="both are in NVIDIA's CUDA toolkit",
            )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.cubin"
            path.write_bytes(self._binary.cubin)
            command = [tool, *DISASSEMBLERS[tool], str(path)]
            result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            raise CompileError(
                "sass", f"{tool} refused the machine code", expect=f"code for {self.arch}",
                actual=result.stderr.strip() or f"exit status {result.returncode}",
                hint="a newer CUDA toolkit has one for newer GPUs",
            )  # fmt: skip
        return result.stdout
