"""tc.kernels.provider("cudnn"): what it refuses, and what a call is before a library sees it."""

from __future__ import annotations

import builtins
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pretended_cudnn import CudnnModule, pretended_cudnn

import tinygrad_cuda as tc
from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda import driver
from tinygrad_cuda.backend.cuda.libraries import cudnn
from tinygrad_cuda.core.config import PROVIDERS, decisive, settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.errors import ArgumentError, CudaError, DeviceError
from tinygrad_cuda.lowering.algorithms import PROVIDER_TIERS, TIERS
from tinygrad_cuda.lowering.lower import Lowered, lower
from tinygrad_cuda.lowering.providers import PROVIDED
from tinygrad_cuda.lowering.target import Target
from tinygrad_cuda.nn import functional as F
from tinygrad_cuda.tensors.inspection import explain_nodes

H200 = Target.h200()


@pytest.fixture
def library() -> Iterator[CudnnModule]:
    with pretended_cudnn() as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "provider", "")
        with tc.kernels.provider("cudnn"):
            yield made


def lowered(*results: Any, provider: str = "cudnn") -> Lowered:
    """What an H200 would run."""
    _, program = explain_nodes([result.node for result in results])
    assert program is not None
    with settings.override(provider=provider):
        return lower(program, H200)


def values(*shape: int, dtype: str = "float32") -> Any:
    return tc.tensor(np.zeros(shape, np.float32), device="emu").to(getattr(tc, dtype))


def kinds(*results: Any, provider: str = "cudnn") -> list[str]:
    stages = (s for launch in lowered(*results, provider=provider).launches for s in launch.stages)
    return [stage.kernel.kind for stage in stages]


def calls_of(*results: Any) -> list[Any]:
    launches = lowered(*results).launches
    return [launch.library for launch in launches if launch.library is not None]


def call_of(result: Any) -> Any:
    (call,) = calls_of(result)
    return call


def heads(*shape: int, dtype: str = "bfloat16") -> list[Any]:
    """Queries, keys and values in memory."""
    made = [values(*shape, dtype=dtype).requires_grad_() for _ in range(3)]
    tc.realize(*made)
    return made


def gradients(x: Any, w: Any, **how: Any) -> tuple[Any, Any]:
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    by_input, by_weight = tc.autograd.grad(F.conv2d(x, w, **how).float().sum(), (x, w))
    return by_input, by_weight


# What it refuses ----------------------------------------------------------------------------------


def test_an_absent_package_is_one_error_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name == "cudnn":
            raise ModuleNotFoundError("No module named 'cudnn'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    monkeypatch.setattr(driver, "available", lambda: True)
    with pytest.raises(ArgumentError) as caught:
        tc.kernels.provider("cudnn")
    text = str(caught.value)
    assert "cuDNN is not installed" in text
    assert "pip install 'tinygrad_cuda[cudnn]'" in text
    assert "no package nvidia-cudnn-frontend (No module named 'cudnn')" in text
    assert caught.value.__cause__ is None and settings.provider == ""


def test_an_absent_library_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frontend is there, and finds no libcudnn."""

    def backend_version() -> int:
        raise RuntimeError("Unable to find symbol cudnnGetVersion\n...")

    frontend = SimpleNamespace(backend_version=backend_version)
    monkeypatch.setitem(sys.modules, "cudnn", frontend)  # type: ignore[arg-type]
    monkeypatch.setattr(cudnn, "_load_runtime", lambda: None)
    with pytest.raises(ArgumentError, match=r"pip install 'tinygrad_cuda\[cudnn\]'") as caught:
        cudnn.Cudnn.bindings()
    text = str(caught.value)
    assert "nvidia-cudnn-frontend does not load libcudnn (Unable to find symbol" in text
    assert "..." not in text


def test_libraries_are_loaded_from_where_packages_have_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """But for a cuDNN on the loader's path, which the frontend prefers: two would not agree."""
    from cuda import pathfinder

    names: list[str] = []

    def load(name: str) -> None:
        names.append(name)
        raise pathfinder.DynamicLibNotFoundError(name)

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", load)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{os.pathsep}{tmp_path}")
    cudnn._load_runtime()
    (tmp_path / "libcudnn.so.9").touch()
    cudnn._load_runtime()
    assert names == ["cudart", "cudnn", "cudart"]


def test_there_is_no_provider_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "available", lambda: False)
    with pytest.raises(DeviceError, match="'cudnn' does not run on the devices 'cpu' and 'emu'"):
        tc.kernels.provider("cudnn")
    assert settings.provider == "" and set(PROVIDED) == set(PROVIDERS)


@pytest.mark.parametrize("device", ["cpu", "emu"])
def test_other_devices_refuse_convolutions_by_name(device: str, library: CudnnModule) -> None:
    """Nothing else convolves in silence; what is no convolution runs."""
    x, w = tc.ones(1, 2, 4, 4, device=device), tc.ones(3, 2, 3, 3, device=device)
    assert (x @ x).sum().item() == 128
    with pytest.raises(ArgumentError, match=f"'cudnn' does not run on device '{device}'"):
        F.conv2d(x, w).numpy()
    with tc.kernels.provider(None):
        assert F.conv2d(x, w).sum().item() == 12 * 18


def test_the_emulator_refuses_attention_by_name(library: CudnnModule) -> None:
    """On cpu it is recorded as products."""
    q = tc.ones(1, 1, 16, 32, dtype=tc.bfloat16, device="emu")
    with pytest.raises(ArgumentError, match="fused attentions on a CUDA device"):
        F.scaled_dot_product_attention(q, q, q).numpy()
    with tc.kernels.provider(None):
        assert F.scaled_dot_product_attention(q, q, q).float().sum().item() == 16 * 32


def test_no_engine_is_an_error_before_anything_has_changed(library: CudnnModule) -> None:
    x, w = tc.ones(1, 2, 4, 4, device="cuda"), tc.ones(3, 2, 3, 3, device="cuda")
    library.refuses = True
    q = tc.ones(1, 1, 16, 32, dtype=tc.bfloat16, device="cuda")
    with pytest.raises(CudaError, match="cuDNN has no engine for attention"):
        F.scaled_dot_product_attention(q, q, q).cpu()
    with pytest.raises(CudaError, match="cuDNN has no engine for a convolution") as caught:
        F.conv2d(x, w).cpu()
    assert "no engine configuration is left" in str(caught.value)
    assert "in 6 candidates" not in str(caught.value)
    library.refuses = False
    assert F.conv2d(x, w).cpu().sum().item() == 12 * 18


def test_memory_that_is_not_aligned_is_refused(library: CudnnModule) -> None:
    x, w = tc.ones(1, 2, 4, 4, device="cuda"), tc.ones(3, 2, 3, 3, device="cuda")
    F.conv2d(x, w).cpu()
    machine: Any = registry.get(as_device("cuda"))
    (loaded,) = machine._cudnn._graphs.values()
    with pytest.raises(ArgumentError, match="memory of a convolution is not aligned"):
        loaded.start(struct.pack("<3Q", 4100, 8192, 16384), machine.gpu.stream)
    assert len(library.convolutions) == 1


# The choice ---------------------------------------------------------------------------------------


def test_own_kernels_are_the_default() -> None:
    assert settings.provider == "" and set(PROVIDER_TIERS) < set(PROVIDERS)
    assert not {tier.name for tier in TIERS} & set(PROVIDERS)
    x, w = values(2, 8, 9, 9), values(8, 8, 3, 3)
    for provider in ("", "cublas", "cufft"):
        launches = lowered(F.conv2d(x, w), *gradients(x, w), provider=provider).launches
        assert [launch.library for launch in launches] == [None] * len(launches)


def test_a_plan_without_convolutions_is_the_same(library: CudnnModule) -> None:
    """Products, reductions and transforms stay with generated kernels, with the same text."""
    a, b = values(64, 48), values(48, 32)
    for result in (a @ b, (a @ b).relu().sum(0), a.softmax(-1), tc.fft.rfft(a)):
        assert lowered(result).source == lowered(result, provider="").source


def test_the_choice_is_part_of_a_plans_key(library: CudnnModule) -> None:
    x, w = tc.ones(1, 2, 4, 4, device="cuda"), tc.ones(3, 2, 3, 3, device="cuda")
    with_cudnn = decisive(settings)
    with tc.kernels.provider(None):
        assert decisive(settings) != with_cudnn
        F.conv2d(x, w).cpu()
    assert settings.provider == "cudnn" and not library.convolutions
    F.conv2d(x, w).cpu()  # a plan of its own: the trace is the same
    assert library.convolutions == [("fprop", "FLOAT", "winograd")]
    with tc.kernels.use("convolution", "naive"):
        F.conv2d(x, w).cpu()
    assert len(library.convolutions) == 1


def test_all_three_rows_are_calls() -> None:
    x, w = values(2, 8, 9, 9), values(16, 8, 3, 3)
    by_input, by_weight = gradients(x, w, stride=2, padding=1)
    calls = calls_of(F.conv2d(x, w, stride=2, padding=1), by_input, by_weight)
    assert sorted(call.form for call in calls) == ["dgrad", "fprop", "wgrad"]
    with settings.override(matmul_precision="high"):
        calls = calls_of(F.conv2d(x, w, stride=2, padding=1), by_input, by_weight)
    assert sorted(call.form for call in calls) == ["dgrad", "fprop", "wgrad"]


def test_what_no_call_makes_says_why() -> None:
    x, w = values(2, 8, 9, 9), values(8, 8, 3, 3)
    for result, reason in (
        (F.conv2d(x.double(), w.double()), "float64 is no dtype of its convolutions"),
        (F.conv2d(F.pad(x, (1, 0, 0, 0)), w), "padding is not the same at both ends"),
        (F.conv2d(x.int(), w.int()), "int32 is no dtype of its convolutions"),
    ):
        made = lowered(result)
        assert not any(launch.library for launch in made.launches)
        assert any(note.endswith(f"is not by cudnn: {reason}") for note in made.schedule.notes)
        reasons = [k.choice.reason for k in made.schedule.kernels if k.choice]
        assert any(f"not cudnn: {reason}" in text for text in reasons)
        assert not lowered(result, provider="").schedule.notes


def test_explain_shows_which_ran(library: CudnnModule) -> None:
    x, w = tc.ones(2, 8, 9, 9, device="cuda"), tc.ones(8, 8, 3, 3, device="cuda")
    tc.realize(x, w)
    (kernel,) = tc.explain(F.conv2d(x, w)).kernels
    assert "cuDNN fprop of (2, 8, 9, 9) and (8, 8, 3, 3) float32" in kernel.source
    with pytest.raises(tc.CompileError, match="a library's kernels are not compiled here"):
        _ = kernel.registers


# What a call is -----------------------------------------------------------------------------------


def test_what_a_call_convolves() -> None:
    how = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}
    call = call_of(F.conv2d(values(4, 12, 9, 11), values(6, 4, 3, 2), groups=3, **how))
    assert call[:5] == ("cudnn", "fprop", "float32", False, True)
    assert call.first == ((4, 12, 9, 11), (1188, 99, 11, 1), 0)
    assert call.second == ((6, 4, 3, 2), (24, 6, 2, 1), 0)
    assert call.result == ((4, 6, 5, 9), (270, 45, 9, 1), 0)
    assert (call.stride, call.padding, call.dilation) == ((2, 1), (1, 0), (1, 2))
    halves = values(4, 12, 9, 11, dtype="bfloat16"), values(6, 12, 3, 3, dtype="bfloat16")
    call = call_of(F.conv2d(*halves))
    assert call[:5] == ("cudnn", "fprop", "bfloat16", True, True)
    assert call.first == ((4, 12, 9, 11), (1188, 1, 132, 12), 0)
    assert call.second == ((6, 12, 3, 3), (108, 1, 36, 12), 0)
    assert call.result == ((4, 6, 7, 9), (378, 1, 54, 6), 0)
    call = call_of(F.conv1d(values(4, 12, 20), values(6, 12, 5), stride=2, padding=2))
    assert call.first == ((4, 12, 1, 20), (240, 20, 20, 1), 0)
    assert (call.stride, call.padding, call.dilation) == ((1, 2), (0, 2), (1, 1))


def test_precision_decides_the_arithmetic() -> None:
    x, w = values(2, 8, 9, 9), values(8, 8, 3, 3)
    units = {}
    for precision in ("highest", "ieee", "high", "medium", "tf32x3"):
        for allowed in (True, False):
            with settings.override(matmul_precision=precision, cudnn_tf32=allowed):
                units[precision, allowed] = call_of(F.conv2d(x, w)).units
    assert [key for key, on in units.items() if on] == [("high", True), ("medium", True)]
    with settings.override(winograd=False):
        assert not call_of(F.conv2d(x, w)).winograd


def test_engines_by_their_notes(library: CudnnModule) -> None:
    """None whose sums differ from run to run, or have less than float32; nor a huge workspace."""
    x, w = tc.ones(1, 8, 4, 4, device="cuda"), tc.ones(8, 8, 3, 3, device="cuda")
    F.conv2d(x, w).cpu()
    F.conv2d(x.bfloat16(), w.bfloat16()).cpu()
    with settings.override(winograd=False):
        F.conv2d(x, w).cpu()
    assert library.convolutions == [
        ("fprop", "FLOAT", "winograd"), ("fprop", "BFLOAT16", "units"), ("fprop", "FLOAT", "plain"),
    ]  # fmt: skip


def test_operands_that_fill_their_memory_are_not_copied() -> None:
    x, w = values(2, 8, 9, 10), values(8, 8, 3, 3)
    assert kinds(F.conv2d(x, w)) == ["library"]
    assert kinds(F.conv2d(x[1:], w[4:])) == ["library"]
    assert call_of(F.conv2d(x[1:], w[4:])).first.offset == 720
    for one in (x[:, 1:], x.flip(2), x[:1].expand(3, 8, 9, 10), x.transpose(2, 3), x + 1):
        weight = w[:, : one.shape[1]]
        assert kinds(F.conv2d(one, weight))[-1] == "library"
        assert "map" in kinds(F.conv2d(one, weight))
    stored = values(2, 9, 10, 8, dtype="bfloat16"), values(8, 3, 3, 8, dtype="bfloat16")
    tc.realize(*stored)
    result = F.conv2d(*(one.permute(0, 3, 1, 2) for one in stored))
    assert kinds(result.permute(0, 2, 3, 1)) == ["library"]
    pixels = values(2, 8, 1, 1, dtype="bfloat16"), values(6, 8, 1, 1, dtype="bfloat16")
    tc.realize(*pixels)
    assert kinds(F.conv2d(*pixels).flatten(1))[0] == "library"


def test_channels_stay_last_between_calls() -> None:
    """Two ends of a network are turned, whatever its depth; so are its gradients."""
    x = values(2, 8, 9, 9, dtype="bfloat16")
    weights = [values(8, 8, 3, 3, dtype="bfloat16") for _ in range(4)]
    tc.realize(x, *weights)
    y = x
    for w in weights:
        y = F.conv2d(y, w, padding=1).relu()
    made = lowered(y)
    sizes = [k.numel for k in made.schedule.kernels if k.kind == "map" and "contiguous" in repr(k)]
    assert sizes.count(2 * 8 * 81) == 1  # the images; the result is turned as it is rectified
    assert len(calls_of(y)) == 4


def test_calls_of_one_plan_run_one_after_another() -> None:
    """They have one workspace."""
    made = lowered(*(F.conv2d(values(2, 8, 9, 9), values(8, 8, n, n)) for n in (1, 2, 3)))
    calls = [k for k in made.schedule.kernels if k.kind == "library"]
    assert [calls[n] in calls[n + 1].before for n in range(2)] == [True, True]


def test_a_graph_is_built_once_for_a_shape(library: CudnnModule) -> None:
    for turn in range(4):
        x = tc.full((1, 2, 4, 4), float(turn), device="cuda")
        w = tc.ones(3, 2, 3, 3, device="cuda")
        assert F.conv2d(x.exp(), w).cpu().shape == (1, 3, 2, 2)
        assert (F.conv2d(x.exp(), w) * x.sum()).cpu().shape == (1, 3, 2, 2)
    assert len(library.graphs) == 1 and len(library.convolutions) == 8


def test_the_workspace_is_the_pools_and_grows(library: CudnnModule) -> None:
    machine: Any = registry.get(as_device("cuda"))
    x, w = tc.ones(1, 8, 4, 4, device="cuda"), tc.ones(8, 8, 3, 3, device="cuda")
    tc.realize(x, w, x.bfloat16(), w.bfloat16())
    with settings.override(winograd=False):
        F.conv2d(x, w).cpu()
    workspace = machine._cudnn.workspace
    small, before = workspace.of(0), machine.memory_in_use()
    assert small.nbytes == 256
    F.conv2d(x, w).cpu()
    large = workspace.of(0)
    assert large.nbytes == 2048 and machine.memory_in_use() >= before + 2048
    F.conv2d(x.bfloat16(), w.bfloat16()).cpu()  # 1024 bytes of the same memory
    assert workspace.of(0) is large
    assert [c.memory.nbytes for c in machine._cudnn._graphs.values()] == [256, 2048, 2048]


def test_sums_over_nothing_are_no_calls(library: CudnnModule) -> None:
    for shapes in (((0, 2, 4, 4), (3, 2, 3, 3)), ((1, 0, 4, 4), (3, 0, 3, 3))):
        x, w = (tc.ones(*shape, device="cuda") for shape in shapes)
        assert F.conv2d(x, w).cpu().sum().item() == 0
    assert not library.convolutions


# Attention ----------------------------------------------------------------------------------------


def attention(q: Any, k: Any, v: Any, **how: Any) -> tuple[Any, ...]:
    y = F.scaled_dot_product_attention(q, k, v, **how)
    return y, *tc.autograd.grad((y * y).float().sum(), (q, k, v))


def test_attention_and_its_gradients_are_two_calls() -> None:
    calls = calls_of(*attention(*heads(2, 3, 24, 32), is_causal=True))
    assert [call[:4] for call in calls] == [
        ("cudnn", "forward", "bfloat16", True), ("cudnn", "backward", "bfloat16", True),
    ]  # fmt: skip
    assert [call.scale for call in calls] == [pytest.approx(32**-0.5)] * 2
    rows = ((2, 3, 24, 32), (2304, 768, 32, 1), 0)
    sums = ((2, 3, 24, 1), (72, 24, 1, 1), 0)
    assert calls[0].tensors == (rows, rows, rows, rows, sums)
    assert calls[1].tensors == (*[rows] * 5, sums, rows, rows, rows)
    (call,) = calls_of(F.scaled_dot_product_attention(*heads(2, 3, 24, 32)))
    assert call.tensors == (rows, rows, rows, rows)  # no gradient reads the sums
    three = heads(3, 24, 32)
    (call,) = calls_of(F.scaled_dot_product_attention(*three))
    assert call.tensors[0] == ((3, 1, 24, 32), (768, 768, 32, 1), 0)


def test_heads_that_a_call_can_read_are_not_copied() -> None:
    """Heads beside each other, and others whose columns are neighbours in memory."""
    whole = values(2, 24, 3 * 96, dtype="bfloat16")
    tc.realize(whole)
    q, k, v = (t.reshape(2, 24, 3, 32).transpose(1, 2) for t in whole.chunk(3, -1))
    result = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 24, 96)
    assert kinds(result.relu()) == ["library", "map"]
    tensors = call_of(result.relu()).tensors
    assert [tensor.offset for tensor in tensors] == [0, 96, 192, 0]
    assert tensors[1].strides == (24 * 288, 32, 288, 1)
    assert tensors[3].strides == (24 * 96, 32, 96, 1)
    q, k, v = heads(2, 3, 24, 32)
    (wide, *_) = heads(2, 3, 24, 64)
    assert kinds(F.scaled_dot_product_attention(wide[..., 8:40], k, v)) == ["library"]
    (turned, *_) = heads(2, 3, 32, 24)
    for one in (wide[..., 4:36], q.flip(2), turned.transpose(2, 3), wide[..., ::2]):
        assert kinds(F.scaled_dot_product_attention(one, k, v)) == ["map", "library"]
    (grouped,) = calls_of(
        F.scaled_dot_product_attention(q, k[:, :1].expand(2, 3, 24, 32), v[:, :1].expand_as(v))
    )
    assert grouped.tensors[1].strides == (2304, 768, 32, 1)  # of a copy


def test_a_gradient_that_nobody_reads_has_memory_of_the_plan() -> None:
    q, k, v = heads(2, 3, 24, 32)
    y = F.scaled_dot_product_attention(q, k, v)
    (by_query,) = tc.autograd.grad((y * y).float().sum(), (q,))
    made = lowered(by_query)
    (call,) = (x.library for x in made.launches if x.library and x.library.form == "backward")
    assert len(set(call.words)) == 9
    assert made.arena.nbytes >= 2 * 4 * 2 * 3 * 24 * 32


def test_gradients_of_one_query_stay_with_the_package() -> None:
    """Of one query of one head, cuDNN 9.28 ends the process as it looks for an engine."""
    made = lowered(*attention(*(values(1, 1, n, 32, dtype="bfloat16").requires_grad_()
                                for n in (1, 24, 24))))  # fmt: skip
    calls = [launch.library for launch in made.launches if launch.library]
    assert [call.form for call in calls] == ["forward"]
    (note,) = made.schedule.notes
    assert note.endswith("is not by cudnn: one query has no gradients there")


def test_attention_that_no_call_makes_says_why() -> None:
    q, k, v = heads(2, 3, 24, 32)
    mask = tc.tensor(np.tri(24, dtype=bool), device="emu")
    wide, single = heads(1, 1, 24, 192), heads(1, 1, 24, 32, dtype="float32")
    masked = "scores are masked, or weights are dropped"
    for result, reason in (
        (F.scaled_dot_product_attention(q, k, v, attn_mask=mask), masked),
        (F.scaled_dot_product_attention(q, k, v, dropout_p=0.25), masked),
        (F.scaled_dot_product_attention(*single), "float32 is no dtype of its attention"),
        (F.scaled_dot_product_attention(*wide), "heads of [192] are no multiples of 8 up to 128"),
    ):
        made = lowered(result)
        assert not any(launch.library for launch in made.launches)
        assert any(note.endswith(f"is not by cudnn: {reason}") for note in made.schedule.notes)
        assert made.source == lowered(result, provider="").source
