"""NVRTC accepts every kernel of the table without a GPU: a family is one program, each target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import samples
from derivatives import record
from execution import Batch, collected

from tinygrad_cuda.backend.cuda.compiler import compile_source
from tinygrad_cuda.backend.cuda.transfer.pinned_ring import fetch_source
from tinygrad_cuda.backend.launch.executable import LoweredExecutable
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.lowering.codegen.pack import MMA_NAMES
from tinygrad_cuda.lowering.lower import Lowered
from tinygrad_cuda.lowering.target import Target

# Stages that fit share a kernel, and the time of a compilation grows faster than a kernel does.
VALUES = samples.chunks(20)
SMOOTH = samples.chunks(8, differentiate=True)
# What the assembler makes of a kernel is not asked here, only that it takes it: a third faster.
OPTIONS = ("--ptxas-options=-O0",)


class Listing:
    """A machine that has a compiler's input and nothing else: it keeps the source."""

    error = None
    graphs = None
    tensor_map = None

    def __init__(self, architecture: tuple[int, int]) -> None:
        self.target = replace(Target.h200(), architecture=architecture)
        self.sources: list[str] = []

    def load(self, lowered: Lowered) -> None:
        self.sources.append(lowered.source)


def source_of(batch: Batch, architecture: tuple[int, int]) -> list[str]:
    """The translation unit of a program for an H200 of another generation; none where nothing is
    computed."""
    machine = Listing(architecture)
    LoweredExecutable(batch.program(), machine)
    return machine.sources


@pytest.mark.parametrize("name", VALUES)
def test_kernels_of_the_values_compile(name: Any, architectures: list[str]) -> None:
    """Every sample of every row."""
    _compiled(collected(VALUES[name], as_device("cuda")), architectures)


@pytest.mark.parametrize("name", SMOOTH)
def test_kernels_of_the_derivatives_compile(name: Any, architectures: list[str]) -> None:
    """Gradients and second derivatives of every smooth sample."""
    batch = Batch(as_device("cuda"))
    for sample in SMOOTH[name]:
        record(batch, sample)
    _compiled(batch, architectures)


def test_the_kernel_that_fetches_inputs_compiles(architectures: list[str]) -> None:
    for arch in architectures:
        assert compile_source(fetch_source(), arch, OPTIONS).cubin.startswith(b"\x7fELF")


def _compiled(batch: Batch, architectures: list[str]) -> None:
    with_units = source_of(batch, (9, 0))
    for arch in architectures:
        # The text depends on a generation by the instructions that it has.
        older = arch < "sm_80" and any(map(MMA_NAMES.search, with_units))
        for source in source_of(batch, (7, 5)) if older else with_units:
            assert compile_source(source, arch, OPTIONS).cubin.startswith(b"\x7fELF")
