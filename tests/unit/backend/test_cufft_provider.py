"""tc.kernels.provider("cufft"): what it refuses, and what a call is before a library sees it."""

from __future__ import annotations

import builtins
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pretended_cufft import CufftModule, pretended_cufft

import tinygrad_cuda as tc
from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda import driver
from tinygrad_cuda.backend.cuda.libraries import cufft
from tinygrad_cuda.core.config import PROVIDERS, settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.errors import ArgumentError, CudaError, DeviceError
from tinygrad_cuda.lowering.lower import Lowered, lower
from tinygrad_cuda.lowering.providers import PROVIDED
from tinygrad_cuda.lowering.target import Target
from tinygrad_cuda.tensors.inspection import explain_nodes

H200 = Target.h200()


@pytest.fixture
def library() -> Iterator[CufftModule]:
    with pretended_cufft() as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "provider", "")
        with tc.kernels.provider("cufft"):
            yield made


def lowered(*results: Any, provider: str = "cufft") -> Lowered:
    """What an H200 would run."""
    _, program = explain_nodes([result.node for result in results])
    assert program is not None
    with settings.override(provider=provider):
        return lower(program, H200)


def values(*shape: int, dtype: Any = np.complex64) -> Any:
    return tc.tensor(np.zeros(shape, dtype), device="emu")


def kinds(*results: Any) -> list[str]:
    return [launch.stages[0].kernel.kind for launch in lowered(*results).launches]


def call_of(result: Any) -> Any:
    (call,) = (launch.library for launch in lowered(result).launches if launch.library is not None)
    return call


def test_an_absent_package_is_one_error_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.startswith("nvmath"):
            raise ModuleNotFoundError("No module named 'nvmath'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    monkeypatch.setattr(driver, "available", lambda: True)
    with pytest.raises(ArgumentError) as caught:
        tc.kernels.provider("cufft")
    text = str(caught.value)
    assert "cuFFT is not installed" in text
    assert "pip install 'tinygrad_cuda[cufft]'" in text
    assert "No module named 'nvmath'" in text
    assert caught.value.__cause__ is None and settings.provider == ""


def test_an_absent_library_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bindings are there, and find no libcufft."""

    def get_version() -> int:
        raise RuntimeError("Failed to dlopen libcufft.so.12\nsearched ...")

    bindings = SimpleNamespace(cufft=SimpleNamespace(get_version=get_version))
    real = builtins.__import__

    def without_library(name: str, *rest: Any) -> Any:
        return bindings if name == "nvmath.bindings" else real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_library)
    with pytest.raises(ArgumentError, match=r"pip install 'tinygrad_cuda\[cufft\]'") as caught:
        cufft.Cufft.bindings()
    assert "Failed to dlopen libcufft.so.12" in str(caught.value)
    assert "searched" not in str(caught.value)


def test_there_is_no_provider_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "available", lambda: False)
    with pytest.raises(DeviceError, match="'cufft' does not run on the devices 'cpu' and 'emu'"):
        tc.kernels.provider("cufft")
    assert settings.provider == "" and set(PROVIDED) == set(PROVIDERS)


@pytest.mark.parametrize("device", ["cpu", "emu"])
def test_other_devices_refuse_transforms_by_name(device: str, library: CufftModule) -> None:
    """Nothing else transforms in silence; what is no transform runs."""
    x = tc.ones(4, 4, device=device)
    assert (x @ x).sum().item() == 64
    with pytest.raises(ArgumentError, match=f"'cufft' does not run on device '{device}'"):
        tc.fft.fft(x).numpy()
    with tc.kernels.provider(None):
        assert tc.fft.fft(x).real.sum().item() == 16


def test_a_with_block_ends_the_choice(library: CufftModule) -> None:
    x = tc.ones(3, 8, dtype=tc.complex64, device="cuda")
    with tc.kernels.provider(None):
        tc.fft.fft(x).cpu()
    assert settings.provider == "cufft" and not library.transforms
    tc.fft.fft(x).cpu()  # a plan of its own: the trace is the same
    assert library.transforms == [("C2C", 8, 3, -1)]
    assert (x.real @ tc.ones(8, 2, device="cuda")).cpu().sum().item() == 48


def test_what_a_call_transforms() -> None:
    call = call_of(tc.fft.fft(values(2, 3, 1009)))
    assert call[1:8] == ("C2C", 1009, 6, 1, 1009, 0, False)
    call = call_of(tc.fft.ifft(values(6, 30, dtype=np.complex128), norm="forward"))
    assert call[1:8] == ("Z2Z", 30, 6, 1, 30, 0, True)
    call = call_of(tc.fft.rfft(values(6, 31, dtype=np.float32)))
    assert call[1:8] == ("R2C", 31, 6, 1, 31, 0, False)
    call = call_of(tc.fft.rfft(values(6, 31, dtype=np.float64)))
    assert call[1:8] == ("D2Z", 31, 6, 1, 31, 0, False)
    call = call_of(tc.fft.irfft(values(6, 16), n=31))
    assert call[1:8] == ("C2R", 31, 6, 1, 16, 0, True)
    call = call_of(tc.fft.irfft(values(6, 16, dtype=np.complex128)))
    assert call[1:8] == ("Z2D", 30, 6, 1, 16, 0, True)


def test_views_are_strides_and_others_are_copied() -> None:
    call = call_of(tc.fft.fft(values(40, 30)[2:10, 4:20]))
    assert call[2:7] == (16, 8, 1, 30, 64)
    call = call_of(tc.fft.fft(values(40, 30).T))
    assert call[2:7] == (40, 30, 30, 1, 0)
    real = values(8, 30, dtype=np.float32)
    assert call_of(tc.fft.rfft(real[:, 2:]))[4:7] == (1, 30, 2)
    assert call_of(tc.fft.rfft(real[:, ::2]))[4:7] == (2, 30, 0)
    assert kinds(tc.fft.rfft(real[:, 1:])) == ["map", "library"]  # no pairs in memory
    assert kinds(tc.fft.fft(values(8, 30).flip(1))) == ["map", "library"]
    assert kinds(tc.fft.fft(values(1, 30).expand(8, 30))) == ["map", "library"]
    assert kinds(tc.fft.fft(values(4, 6, 30).transpose(0, 1))) == ["map", "library"]


def test_factors_and_spectra_are_kernels() -> None:
    assert kinds(tc.fft.fft(values(8, 30))) == ["library"]
    assert kinds(tc.fft.ifft(values(8, 30))) == ["library", "map"]
    assert kinds(tc.fft.ifft(values(8, 30)).abs()) == ["library", "map"]
    assert kinds(tc.fft.irfft(values(8, 16), norm="forward")) == ["map", "library"]
    assert kinds(tc.fft.fft(values(8, 1))) == ["map"]
    spectrum = tc.fft.rfft(values(8, 30, dtype=np.float32))
    assert kinds(tc.fft.irfft(spectrum, norm="forward"), spectrum) == ["library", "map", "library"]


def test_calls_of_one_plan_run_one_after_another() -> None:
    """They have one workspace."""
    made = lowered(*(tc.fft.fft(values(8, n)) for n in (30, 1009, 64)))
    calls = [k for k in made.schedule.kernels if k.kind == "library"]
    assert [calls[n] in calls[n + 1].before for n in range(2)] == [True, True]


def test_own_kernels_are_the_default() -> None:
    assert settings.provider == ""
    launches = lowered(tc.fft.fft(values(8, 8)), provider="").launches
    assert [launch.library for launch in launches] == [None]
    launches = lowered(tc.fft.fft(values(8, 8)), provider="cublas").launches
    assert [launch.library for launch in launches] == [None]


def test_a_plan_is_made_once_for_a_shape(library: CufftModule) -> None:
    for turn in range(4):
        x = tc.full((8, 120), float(turn), device="cuda")
        assert tc.fft.rfft(x.exp()).cpu().shape == (8, 61)
        assert (tc.fft.rfft(x.exp()) * x.sum()).cpu().shape == (8, 61)
    assert len(library.plans) == 1 and len(library.transforms) == 8


def test_the_workspace_is_the_pools_and_grows(library: CufftModule) -> None:
    machine: Any = registry.get(as_device("cuda"))
    small = tc.ones(2, 120, dtype=tc.complex64, device="cuda")
    large = tc.ones(9, 120, dtype=tc.complex64, device="cuda")
    tc.realize(small, large)
    before = machine.memory_in_use()
    for x in (small, large, small):
        tc.fft.fft(x).cpu()
    workspaces = [plan.workspace for plan in library.plans.values()]
    assert len(set(workspaces)) == 2
    assert machine.memory_in_use() >= before + 11 * 120 * 8


def test_memory_that_is_not_aligned_is_refused(library: CufftModule) -> None:
    x = tc.ones(8, 8, device="cuda")
    tc.fft.rfft(x).cpu()
    machine: Any = registry.get(as_device("cuda"))
    (loaded,) = machine._cufft._transforms.values()
    with pytest.raises(ArgumentError, match="memory of a transform is not aligned"):
        loaded.start(struct.pack("<2Q", 4100, 8192), machine.gpu.stream)
    assert len(library.transforms) == 1


def test_no_plan_is_an_error_before_anything_has_changed(library: CufftModule) -> None:
    library.refuses = True
    x = tc.ones(8, 8, dtype=tc.complex64, device="cuda")
    with pytest.raises(CudaError, match="a call of cuFFT failed"):
        tc.fft.fft(x).cpu()
    library.refuses = False
    assert tc.fft.fft(x).cpu().real.sum().item() == 64


def test_a_call_has_no_code_to_show(library: CufftModule) -> None:
    x = tc.ones(8, 8, dtype=tc.complex64, device="cuda")
    x.cpu()
    (kernel,) = tc.explain(tc.fft.fft(x)).kernels
    assert "cuFFT C2C of 8 rows of 8 points" in kernel.source
    with pytest.raises(tc.CompileError, match="a library's kernels are not compiled here"):
        _ = kernel.registers
