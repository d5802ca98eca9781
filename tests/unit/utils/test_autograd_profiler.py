"""tc.autograd.profiler: tc.profiler by its older names."""

from __future__ import annotations

from pathlib import Path

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.autograd.profiler import emit_nvtx, profile, record_function
from tinygrad_cuda.core.errors import ArgumentError, UnknownNameError


def test_a_block(tmp_path: Path) -> None:
    x = tc.ones(1000, device="cpu")
    tc.realize(x)
    with (
        tc.autograd.profiler.profile(record_shapes=True, profile_memory=True, with_stack=True) as p,
        record_function("mine"),
    ):
        y = x.exp()
    averages = {row.key: row for row in p.key_averages()}
    assert averages["exp"].self_cpu_memory_usage == y.nbytes
    assert averages["mine"].count == 1
    assert p.self_cpu_time_total > 0
    assert p.total_average().self_cpu_memory_usage == y.nbytes
    assert {"exp", "mine"} <= {event.name for event in p.function_events}
    assert p.table(sort_by="cpu_time").count("exp") == str(p).count("exp") >= 2
    row = p.table(sort_by="self_cpu_memory_usage", row_limit=1)
    assert "Self CPU Mem" in row and "3.91 KB" in row
    p.export_chrome_trace(tmp_path / "trace.json")
    p.export_stacks(tmp_path / "stacks.txt")


@pytest.mark.parametrize("options", [{}, {"use_cuda": True}, {"use_device": "cuda"}])
def test_kernels_are_asked_for(options: dict[str, bool | str]) -> None:
    x = tc.ones(10, device="emu")
    tc.realize(x)
    with profile(**options) as p:  # type: ignore[arg-type]
        x.exp()
        y = x.exp()
    (row,) = [row for row in p.key_averages() if row.key == "exp"]
    assert (row.self_device_time_total > 0) is bool(options)
    assert y.shape == (10,)


def test_switched_off() -> None:
    with profile(enabled=False) as p, profile() as inner:
        y = tc.ones(3, device="cpu").exp()
    assert inner.key_averages() and y.shape == (3,)
    with pytest.raises(ArgumentError, match="enabled=False"):
        p.key_averages()
    assert repr(p) == "<unfinished profile>"
    with emit_nvtx(enabled=False), pytest.raises(ArgumentError, match="has not ended"):
        profile().table()


def test_refusals() -> None:
    with pytest.raises(ArgumentError, match="no such device"):
        profile(use_device="xpu")
    with pytest.raises(ArgumentError, match="no activities"):
        profile(use_cpu=False)
    with pytest.raises(UnknownNameError, match="emit_itt"):
        tc.autograd.profiler.emit_itt  # noqa: B018
    with pytest.raises(UnknownNameError, match="profilers"):
        tc.autograd.profilers  # noqa: B018


def test_streams() -> None:
    """PyTorch's names for the one stream; another library's is refused with the way out."""
    stream = tc.cuda.current_stream()
    assert tc.cuda.set_stream(stream) is None is tc.cuda.set_stream(None)
    with tc.cuda.stream(stream) as entered, tc.cuda.StreamContext(None):
        assert entered is None
    assert stream == tc.cuda.default_stream() == tc.cuda.Stream()
    assert len({stream, tc.cuda.Stream()}) == 1
    assert stream != tc.cuda.Stream("cuda:1")
    assert stream.stream_id == stream.cuda_stream
    assert (stream.cuda_stream != 0) is tc.cuda.is_available()
    for use in (tc.cuda.stream, tc.cuda.set_stream, tc.cuda.StreamContext):
        with pytest.raises(ArgumentError, match=r"current_stream\(\)\.cuda_stream"):
            use(3)  # type: ignore[operator]
