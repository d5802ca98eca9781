"""Backends are made at first use; a GPU's driver begins while its backend is imported."""

from __future__ import annotations

import threading

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda import driver as runtime
from tinygrad_cuda.core.device import as_device


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, threading.Thread]]:
    """Of which GPUs the driver makes contexts ahead, and in which threads; none has one here."""
    found: list[tuple[int, threading.Thread]] = []
    begin = runtime.begin

    def noted(index: int) -> None:
        found.append((index, threading.current_thread()))
        begin(index)

    monkeypatch.setattr(runtime, "begin", noted)
    monkeypatch.setattr(runtime, "_gate", runtime._Gate())
    monkeypatch.setattr(runtime._Gate, "_try", lambda gate: "this test has no driver")
    monkeypatch.setattr(registry, "_backends", {})
    return found


def test_only_the_gpu_that_is_asked_for_begins(begun: list[tuple[int, threading.Thread]]) -> None:
    """A context takes hundreds of megabytes of a GPU; the error is that of the asking thread."""
    for index in (3, 0):
        with pytest.raises(tc.DeviceError, match="this test has no driver"):
            registry.get(as_device(f"cuda:{index}"))
        number, thread = begun.pop()
        assert number == index
        assert thread is not threading.current_thread()
        assert not thread.is_alive()


def test_other_devices_begin_no_driver(begun: list[tuple[int, threading.Thread]]) -> None:
    assert registry.get(as_device("cpu")) is registry.get(as_device("cpu"))
    assert not begun
