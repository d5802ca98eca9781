"""Kernels of Fourier transforms beyond the table of samples: each cut, each way to have roots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.engine.plan import cache as plans
from tinygrad_cuda.graph.ops import fft as rows
from tinygrad_cuda.lowering.lower import lower
from tinygrad_cuda.lowering.skeletons.fft import fft
from tinygrad_cuda.lowering.skeletons.fft.fft import FftCut
from tinygrad_cuda.lowering.target import Target
from tinygrad_cuda.tensors.inspection import explain_nodes

Array = np.ndarray[Any, Any]
TOLERANCE = {np.complex64: 4e-7, np.complex128: 1e-15}


@pytest.fixture(autouse=True)
def _own_plans() -> Any:
    plans.clear()
    yield
    plans.clear()


@pytest.fixture(params=["emu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """One that runs kernels."""
    return str(request.param if request.param == "emu" else request.getfixturevalue("cuda_device"))


def numbers(shape: tuple[int, ...], dtype: Any = np.complex64) -> Array:
    rng = np.random.default_rng(sum(shape))
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


def check(found: Any, want: Array, dtype: Any = np.complex64) -> None:
    values = found.cpu().numpy()
    assert values.shape == want.shape
    assert np.abs(values - want).max() <= TOLERANCE[dtype] * np.abs(want).max()


def launches(result: Any) -> list[Any]:
    _, program = explain_nodes([result.node])
    assert program is not None
    return lower(program, Target.h200()).launches


@pytest.mark.parametrize(
    ("n", "cut"),
    [
        (64, FftCut((4, 16), 4096)),
        (64, FftCut((2, 4, 8), 512, threads=128)),
        (256, FftCut((16, 16), 2048, "computed", threads=64)),
        (256, FftCut((4, 4, 4, 4), 8192, blocks=2, threads=512)),
        (1000, FftCut((8, 5, 5, 5), 4096, threads=224)),
        (1024, FftCut((4, 16, 16), 2048, "computed")),
        (4096, FftCut((8, 8, 8, 8), 4096)),
    ],
)
def test_each_cut_transforms(
    n: int, cut: FftCut, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fft.CUTS, (n, 4), cut)
    z = numbers((301 if n <= 256 else 5, n))
    x = tc.tensor(z, device=device)
    check(tc.fft.fft(x), np.fft.fft(z.astype(complex)))
    check(tc.fft.ifft(x.T, dim=0), np.fft.ifft(z.astype(complex).T, axis=0))


@pytest.mark.parametrize("n", [4, 6, 16, 22, 64, 120, 256, 1000])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_real_rows_by_halves(
    n: int, dtype: Any, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fft, "HALVED", {"rfft", "irfft"})
    z = numbers((301 if n <= 64 else 5, n), dtype)
    half = np.ascontiguousarray(z[:, : n // 2 + 1])
    real = tc.tensor(np.ascontiguousarray(z.real), device=device)
    check(tc.fft.rfft(real, norm="ortho"), np.fft.rfft(z.real.astype(float), norm="ortho"), dtype)
    back = tc.fft.irfft(tc.tensor(half, device=device), n=n)
    check(back, np.fft.irfft(half.astype(complex), n), dtype)


@pytest.mark.parametrize("n", [8, 12, 30, 1000])
def test_the_ends_of_real_spectra_have_positive_zeros(n: int) -> None:
    """Of negative numbers a -0 there turned the angle from pi to -pi."""
    spectrum = tc.fft.rfft(-tc.arange(1.0, n + 1, device="emu")).numpy()
    assert not np.signbit(spectrum[[0, -1]].imag).any()


def test_rows_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not finite in one row does not reach another."""
    x = np.random.default_rng(0).standard_normal((300, 64)).astype(np.float32)
    x[17] = np.nan
    for halved in (set(), {"rfft", "irfft"}):
        monkeypatch.setattr(fft, "HALVED", halved)
        plans.clear()
        spectrum = tc.fft.rfft(tc.tensor(x, device="emu"))
        bad = np.isnan(tc.fft.irfft(spectrum).cpu().numpy()).any(-1)
        assert bad.nonzero()[0].tolist() == [17]


def test_long_rows_pass_through_memory_twice() -> None:
    for n in (32768, 20000, 1 << 20):
        made = launches(tc.fft.fft(tc.empty(2, n, dtype=tc.complex64, device="emu")))
        assert [launch.stages[0].kernel.anchors[0].op for launch in made] == [rows.fft_columns] * 2
    for shape, dim in (((8192,), -1), ((16384,), -1), ((300, 200), 0)):
        x = tc.empty(2, *shape, dtype=tc.complex64, device="emu")
        assert len(launches(tc.fft.fft(x, dim=dim + 1 if dim >= 0 else dim))) == 1


@pytest.mark.parametrize("shape", [(8192,), (16384,), (2, 20000), (1 << 17,)])
def test_values_of_long_rows(shape: tuple[int, ...], device: str) -> None:
    z = numbers(shape)
    check(tc.fft.fft(tc.tensor(z, device=device)), np.fft.fft(z.astype(complex)))
    check(tc.fft.ifft(tc.tensor(z, device=device)), np.fft.ifft(z.astype(complex)))


def test_a_small_target_transforms_long_rows_in_parts() -> None:
    x = tc.empty(2, 8192, dtype=tc.complex64, device="emu")
    _, program = explain_nodes([tc.fft.fft(x).node])
    assert program is not None
    assert len(lower(program, Target.of_architecture((7, 5))).launches) == 2


@pytest.mark.parametrize("n", [2, 12, 48, 512, 1000, 1 << 13, 1 << 14, 1331])
def test_radices_make_the_length(n: int) -> None:
    for itemsize in (4, 8):
        radices = fft.cut_of(n, itemsize).radices
        assert np.prod(radices) == n and max(radices) <= 16
