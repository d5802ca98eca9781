"""The kernels of `explain`: source, registers, shared memory, spills, occupancy, machine code."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.backend.cuda.compiler import Resources
from tinygrad_cuda.backend.cuda.kernel_info import KernelInfo
from tinygrad_cuda.lowering.target import Target


def product(device: str) -> tc.Tensor:
    return (tc.ones(64, 32, device=device) @ tc.ones(32, 48, device=device)).relu().sum(1)


@pytest.mark.parametrize("device", ["cpu", "emu"])
def test_kernels_of_explain(device: str) -> None:
    """The text is a text as before; each kernel was compiled by NVRTC, without a GPU."""
    text = product(device).explain()
    assert isinstance(text, str) and text.splitlines()
    assert text.kernels
    for kernel in text.kernels:
        assert f"({kernel.name})" in kernel.source or kernel.name in kernel.source
        assert "__global__" in kernel.source and kernel.arch.startswith("sm_90")
        assert 8 <= kernel.registers <= 255 and kernel.spills == 0
        assert 0 <= kernel.shared_memory <= 227 << 10
        assert 0 < kernel.occupancy <= 1


def test_values_that_are_there_have_no_kernels() -> None:
    x = product("cpu")
    x.numpy()
    assert x.explain().kernels == []


def test_numbers_are_the_assemblers_and_the_launchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of a block is what the text declares and what the launch adds; spills count twice."""
    softmax = tc.rand(64, 300, device="cpu").softmax(1)
    kernels = [*product("cpu").explain().kernels, *softmax.explain().kernels]
    assert any(kernel.shared_memory > 0 for kernel in kernels)
    for kernel in kernels:
        used = kernel.resources
        assert (kernel.registers, kernel.spills) == (used.registers, 0)
        assert kernel.shared_memory == used.shared + kernel.launch.shared
        expected = kernel.target.occupancy(kernel.threads, used.registers, kernel.shared_memory)
        assert kernel.occupancy == expected
    report = Resources(registers=255, stack=96, spill_stores=80, spill_loads=72, shared=512)
    monkeypatch.setattr(KernelInfo, "resources", report)
    kernel = kernels[0]
    assert (kernel.registers, kernel.spills) == (255, 152)
    assert kernel.shared_memory == 512 + kernel.launch.shared
    assert kernel.occupancy == Target.h200().occupancy(kernel.threads, 255, kernel.shared_memory)


def test_occupancy() -> None:
    """By hand: 65,536 registers hold 8 blocks of 256 threads with 32, 4 with 64, 2 with 100."""
    h200 = Target.h200()
    assert h200.occupancy(256, 32, 0) == 1
    assert h200.occupancy(256, 64, 0) == 0.5
    assert h200.occupancy(256, 100, 0) == 0.25
    assert h200.occupancy(256, 32, 100 << 10) == 0.25  # two blocks in 228 KiB
    assert h200.occupancy(256, 32, 228 << 10) == 0  # more than a block may ask for
    assert Target.of_architecture((7, 5)).occupancy(256, 32, 0) == 1  # 4 blocks, 1,024 threads
    assert Target.of_architecture((8, 6)).occupancy(1024, 32, 0) == 1024 / 1536


def test_machine_code_needs_a_disassembler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one the error names both; with one its output is the text."""
    (kernel,) = tc.ones(8).add(1).explain().kernels
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(tc.TgcError, match=r"\[sass\][\s\S]*nvdisasm or cuobjdump on the PATH"):
        _ = kernel.sass
    tool = tmp_path / "nvdisasm"
    tool.write_text('#!/bin/sh\nread -r first < "$2"\necho "$1 disassembled"\n', encoding="utf-8")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    assert kernel.sass == "-c disassembled\n"
