"""tc.kernels.provider: what it refuses, and what a call is before a library sees it."""

from __future__ import annotations

import builtins
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pretended_cublas import CublasLt, pretended_cublas

import tinygrad_cuda as tc
from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda import driver
from tinygrad_cuda.backend.cuda.libraries import cublas
from tinygrad_cuda.core.config import PROVIDERS, settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.errors import ArgumentError, CudaError, DeviceError
from tinygrad_cuda.lowering.algorithms import PROVIDER_TIERS, TIERS
from tinygrad_cuda.lowering.codegen.library_call import LibraryMatrix
from tinygrad_cuda.lowering.lower import Lowered, lower
from tinygrad_cuda.lowering.target import Target
from tinygrad_cuda.nn import functional as F
from tinygrad_cuda.tensors.inspection import explain_nodes

H200 = Target.h200()


@pytest.fixture
def library() -> Iterator[CublasLt]:
    with pretended_cublas() as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "provider", "")
        with tc.kernels.provider("cublas"):
            yield made


def lowered(*results: Any, provider: str = "cublas") -> Lowered:
    """What an H200 would run."""
    _, program = explain_nodes([result.node for result in results])
    assert program is not None
    with settings.override(provider=provider):
        return lower(program, H200)


def values(*shape: int) -> Any:
    return tc.tensor(np.zeros(shape, np.float32), device="emu")


def call_of(result: Any) -> Any:
    (launch,) = lowered(result).launches
    return launch.library


@pytest.mark.parametrize("size", [1, 3])
def test_convolutions_stay_with_generated_kernels(size: int) -> None:
    """Also the product of planes that Winograd's tiles make of one."""
    made = lowered(F.conv2d(values(64, 256, 28, 28), values(128, 256, size, size), padding="same"))
    assert not any(launch.library for launch in made.launches)


def test_an_absent_package_is_one_error_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.startswith("nvmath"):
            raise ModuleNotFoundError("No module named 'nvmath'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    monkeypatch.setattr(driver, "available", lambda: True)
    with pytest.raises(ArgumentError) as caught:
        tc.kernels.provider("cublas")
    text = str(caught.value)
    assert "cuBLASLt is not installed" in text
    assert "pip install 'tinygrad_cuda[cublas]'" in text
    assert "No module named 'nvmath'" in text
    assert caught.value.__cause__ is None and settings.provider == ""


def test_an_absent_library_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bindings are there, and find no libcublasLt."""

    def get_version() -> int:
        raise RuntimeError("Failed to dlopen libcublasLt.so.13\nsearched ...")

    bindings = SimpleNamespace(cublasLt=SimpleNamespace(get_version=get_version))
    real = builtins.__import__

    def without_library(name: str, *rest: Any) -> Any:
        return bindings if name == "nvmath.bindings" else real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_library)
    with pytest.raises(ArgumentError, match=r"pip install 'tinygrad_cuda\[cublas\]'") as caught:
        cublas.CublasLt.bindings()
    assert "Failed to dlopen libcublasLt.so.13" in str(caught.value)
    assert "searched" not in str(caught.value)


def test_there_is_no_provider_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "available", lambda: False)
    with pytest.raises(DeviceError, match="'cublas' does not run on the devices 'cpu' and 'emu'"):
        tc.kernels.provider("cublas")
    with pytest.raises(ArgumentError, match="cublas, cudnn, cufft or None"):
        tc.kernels.provider("mkl")
    assert settings.provider == ""


@pytest.mark.parametrize("device", ["cpu", "emu"])
def test_other_devices_refuse_products_by_name(device: str, library: CublasLt) -> None:
    """Nothing else multiplies in silence; what is no product runs."""
    x = tc.ones(4, 4, device=device)
    assert (x + 1).sum().item() == 32
    with pytest.raises(ArgumentError, match=f"'cublas' does not run on device '{device}'"):
        (x @ x).numpy()
    with tc.kernels.provider(None):
        assert (x @ x).sum().item() == 64


def test_a_with_block_ends_the_choice(library: CublasLt) -> None:
    assert settings.provider == "cublas"
    a = tc.ones(8, 8, device="cuda")
    with tc.kernels.provider(None):
        assert settings.provider == ""
        (a @ a).cpu()
    assert settings.provider == "cublas" and not library.products
    (a @ a).cpu()  # a plan of its own: the trace is the same
    assert len(library.products) == 1
    with tc.kernels.use("matmul", "naive"):
        (a @ a).cpu()
    assert len(library.products) == 1


def test_the_algorithm_is_chosen_once_for_a_shape(library: CublasLt) -> None:
    for turn in range(4):
        a = tc.full((8, 8), float(turn), device="cuda")
        assert (a.exp() @ a).cpu().shape == (8, 8)
        assert (a.exp() @ a + a.sum()).cpu().shape == (8, 8)
    assert library.choices == 1 and len(library.products) == 8
    assert library.preference is not None
    limits = library.preference.attributes
    assert limits["MAX_WORKSPACE_BYTES"] == 32 << 20
    assert limits["REDUCTION_SCHEME_MASK"] == 2  # parts of k in a fixed order, as float32
    assert limits["MIN_ALIGNMENT_A_BYTES"] == limits["MIN_ALIGNMENT_D_BYTES"] == 16


def test_a_view_that_is_not_aligned_says_so(library: CublasLt) -> None:
    a, w = tc.ones(8, 9, device="cuda"), tc.ones(8, 8, device="cuda")
    a.cpu(), w.cpu()
    assert (a[:, 1:] @ w).sum().cpu().item() == 512
    assert library.preference is not None
    assert library.preference.attributes["MIN_ALIGNMENT_A_BYTES"] == 16
    assert library.preference.attributes["MIN_ALIGNMENT_B_BYTES"] == 4


def test_memory_that_is_not_aligned_is_refused(library: CublasLt) -> None:
    """Of another library, say: the algorithm was chosen for aligned memory."""
    a = tc.ones(8, 8, device="cuda")
    (a @ a).cpu()
    machine: Any = registry.get(as_device("cuda"))
    (loaded,) = machine._cublas._products.values()
    words = struct.pack("<3Q", 4100, 8192, 16384)
    with pytest.raises(ArgumentError, match="memory of a product is not aligned"):
        loaded.start(words, machine.gpu.stream)
    assert len(library.products) == 1


def test_no_algorithm_is_an_error_before_anything_has_changed(library: CublasLt) -> None:
    library.refuses = True
    a = tc.ones(8, 8, device="cuda")
    with pytest.raises(CudaError, match="cuBLASLt has no algorithm for a product"):
        (a @ a).cpu()
    library.refuses = False
    assert (a @ a).cpu().sum().item() == 512


def test_what_a_call_multiplies() -> None:
    """By columns, as BLAS counts: the transpose of the result is B's transpose times A's."""
    call = call_of(values(20, 16) @ values(24, 16).T)
    assert call.first == LibraryMatrix(16, 24, 16, 0, 0)
    assert call.second == LibraryMatrix(16, 20, 16, 0, 0)
    assert call.result == LibraryMatrix(24, 20, 24, 480, 0)
    assert call.transposed == (True, False) and call.batches == 1
    call = call_of(values(16, 20).T @ values(16, 24))
    assert call.transposed == (False, True)
    assert (call.first.stride, call.second.stride) == (24, 20)
    call = call_of(values(30, 40)[2:10, 4:20] @ values(16, 8))
    assert call.second == LibraryMatrix(16, 8, 40, 0, 84)
    call = call_of(values(6, 20, 18) @ values(6, 18, 19))
    assert (call.batches, call.first.apart, call.second.apart) == (6, 342, 360)
    call = call_of(values(20, 18) @ values(6, 18, 19))
    assert (call.batches, call.second.apart) == (6, 0)


def test_one_matrix_for_all_batches_is_one_product() -> None:
    call = call_of(values(6, 20, 18) @ values(18, 19).expand(6, 18, 19))
    assert call.batches == 1 and call.second.columns == call.result.columns == 120


@pytest.mark.parametrize("bias", [False, True])
def test_epilogues_are_taken_along(bias: bool) -> None:
    x, w, b = values(5, 7, 64), values(48, 64), values(48) if bias else None
    first = 0 if bias else None
    assert call_of(F.linear(x, w, b))[8:10] == (first, "")
    assert call_of(F.linear(x, w, b).relu())[8:10] == (first, "relu")
    assert call_of(F.gelu(F.linear(x, w, b), approximate="tanh"))[8:10] == (first, "gelu")


def test_other_epilogues_are_kernels_of_their_own() -> None:
    x, w, b = values(5, 7, 64), values(48, 64), values(48)
    y = F.linear(x, w, b)
    for result in (
        F.gelu(y), y.tanh(), y + values(5, 7, 48), y * 2, y.relu() + 1, F.relu6(y),
        F.linear(x, w) + values(5, 7, 1), F.linear(x, w) + values(96)[::2],
    ):  # fmt: skip
        kinds = [launch.stages[0].kernel.kind for launch in lowered(result).launches]
        assert kinds == ["library", "map"]
    launches = lowered(y, y.relu()).launches
    assert launches[0].library is not None and launches[0].library.activation == ""
    assert len(launches) == 2


def test_a_cast_behind_a_product_of_halves_is_a_kernel() -> None:
    """GELU of halves begins with a cast to float32: without the rest it is no epilogue."""
    x, w, b = (values(*shape).bfloat16() for shape in ((5, 64), (48, 64), (48,)))
    y = F.linear(x, w, b)
    for result in (F.gelu(y), y.float(), y.float().sigmoid()):
        *_, call, after = lowered(result).launches
        assert call.library is not None and call.library.activation == ""
        assert call.library.bias == 0 and after.library is None


def test_precision_is_the_arithmetic() -> None:
    computes = {}
    for precision in ("highest", "ieee", "high", "medium", "tf32x3"):
        with settings.override(matmul_precision=precision):
            computes[precision] = call_of(values(8, 8) @ values(8, 8)).compute
    assert computes == {
        "highest": "COMPUTE_32F", "ieee": "COMPUTE_32F_PEDANTIC", "tf32x3": "COMPUTE_32F",
        "high": "COMPUTE_32F_FAST_TF32", "medium": "COMPUTE_32F_FAST_TF32",
    }  # fmt: skip


def test_own_kernels_are_the_default() -> None:
    assert settings.provider == "" and set(PROVIDER_TIERS) < set(PROVIDERS)
    assert not {tier.name for tier in TIERS} & set(PROVIDERS)
    launches = lowered(values(8, 8) @ values(8, 8), provider="").launches
    assert [launch.library for launch in launches] == [None]


def test_a_call_has_no_text_and_its_workspace_is_the_plans() -> None:
    made = lowered(values(8, 8) @ values(8, 8))
    (launch,) = made.launches
    assert made.units() == [] and launch.name not in made.source
    assert made.arena.nbytes == 32 << 20
    assert launch.bytes_moved == 3 * 8 * 8 * 4  # the workspace is not counted as traffic


def test_a_call_has_no_code_to_show(library: CublasLt) -> None:
    a = tc.ones(8, 8, device="cuda")
    a.cpu()
    (kernel,) = tc.explain(a @ a).kernels
    assert "cuBLASLt 1 x 8 x 8 x 8 float32" in kernel.source
    with pytest.raises(tc.CompileError, match="a library's kernels are not compiled here"):
        _ = kernel.registers
