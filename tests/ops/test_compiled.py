"""NVRTC accepts every kernel of the table without a GPU: a family is one program, each target."""

from __future__ import annotations

import samples
from derivatives import record
from execution import Batch, collected

from tinygrad_cuda.backend.cuda.compiler import compile_many
from tinygrad_cuda.backend.cuda.executable import CudaExecutable
from tinygrad_cuda.core.device import as_device

# Stages that fit share a kernel, and the time of a compilation grows faster than a kernel does.
VALUES = samples.chunks(20)
SMOOTH = samples.chunks(8, differentiate=True)


class Listing:
    """A machine that has a compiler's input and nothing else: it keeps the source."""

    error = None

    def __init__(self) -> None:
        self.sources: list[str] = []

    def load(self, source: str) -> None:
        self.sources.append(source)


def source_of(batch: Batch) -> list[str]:
    """The translation unit of a program; none where nothing is computed."""
    machine = Listing()
    CudaExecutable(batch.program(), machine)
    return machine.sources


def test_kernels_of_the_values_compile(architectures: list[str]) -> None:
    """Every sample of every row."""
    batches = [collected(chunk, as_device("cuda")) for chunk in VALUES.values()]
    _compiled(batches, architectures)


def test_kernels_of_the_derivatives_compile(architectures: list[str]) -> None:
    """Gradients and second derivatives of every smooth sample."""
    batches = []
    for chunk in SMOOTH.values():
        batches.append(Batch(as_device("cuda")))
        for sample in chunk:
            record(batches[-1], sample)
    _compiled(batches, architectures)


def _compiled(batches: list[Batch], architectures: list[str]) -> None:
    sources = [text for batch in batches for text in source_of(batch)]
    assert sources
    for arch in architectures:
        binaries = compile_many(sources, arch)
        assert all(binary.cubin.startswith(b"\x7fELF") for binary in binaries)
