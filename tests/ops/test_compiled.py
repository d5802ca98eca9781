"""NVRTC accepts every kernel of the table without a GPU: a family is one program, each target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import samples
from derivatives import record
from execution import Batch, read
from sampling import Sample

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


def source_of(chosen: Sequence[Sample], add: Callable[[Batch, Sample], Any]) -> list[str]:
    """The translation unit of one family's samples."""
    batch = Batch(as_device("cuda"))
    for sample in chosen:
        add(batch, sample)
    machine = Listing()
    CudaExecutable(batch.program(), machine)
    return machine.sources


def _values(batch: Batch, sample: Sample) -> None:
    nodes = batch.record(sample, [read(batch.input(s.buffer), s) for s in sample.sources])
    batch.want(sample.name, nodes)


def test_kernels_of_the_values_compile(architectures: list[str]) -> None:
    """Every sample of every row."""
    sources = [text for chunk in VALUES.values() for text in source_of(chunk, _values)]
    _compiled(sources, architectures)


def test_kernels_of_the_derivatives_compile(architectures: list[str]) -> None:
    """Gradients and second derivatives of every smooth sample."""
    sources = [text for chunk in SMOOTH.values() for text in source_of(chunk, record)]
    _compiled(sources, architectures)


def _compiled(sources: list[str], architectures: list[str]) -> None:
    assert sources
    for arch in architectures:
        binaries = compile_many(sources, arch)
        assert all(binary.cubin.startswith(b"\x7fELF") for binary in binaries)
