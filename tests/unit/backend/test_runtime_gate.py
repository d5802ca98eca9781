"""The gate in front of the driver, and errors made from its codes; no GPU is needed.

Where there is one, the tests about its absence run with the driver hidden.
"""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tinygrad_cuda.backend.cuda import driver as runtime
from tinygrad_cuda.backend.cuda.handles import RECENT, LaunchAttributes
from tinygrad_cuda.core.errors import CudaError, DeviceError

ROOT = Path(__file__).resolve().parents[3]


class Status(int):
    """A driver's return code."""

    name: str

    def __new__(cls, code: int, name: str) -> Status:
        status = super().__new__(cls, code)
        status.name = name
        return status


OK = Status(0, "CUDA_SUCCESS")


def pretended(**calls: Any) -> SimpleNamespace:
    """A driver of the calls given."""
    text = {100: b"no CUDA-capable device is detected", 700: b"an illegal memory access"}
    functions = {
        "cuInit": lambda flags: (OK,),
        "cuDriverGetVersion": lambda: (OK, 13000),
        "cuDeviceGetCount": lambda: (OK, 2),
        "cuGetErrorString": lambda status: (OK, text.get(int(status))),
    }
    return SimpleNamespace(**(functions | calls))


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> runtime._Gate:
    """A gate that nobody has tried yet."""
    fresh = runtime._Gate()
    monkeypatch.setattr(runtime, "_gate", fresh)
    return fresh


def install(monkeypatch: pytest.MonkeyPatch, driver: Any) -> None:
    """Puts a driver, or with None the lack of a binding, where the gate looks."""
    if driver is None:
        monkeypatch.setitem(sys.modules, "cuda.bindings", None)
        return
    package = SimpleNamespace(driver=driver)
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(bindings=package))
    monkeypatch.setitem(sys.modules, "cuda.bindings", package)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)


def test_importing_the_modules_loads_no_cuda() -> None:
    program = (
        "import sys\n"
        "from tinygrad_cuda.backend.cuda import compiler, driver, graphs, handles, pool\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'cuda'])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_this_machine_has_an_answer() -> None:
    """The real driver or its real absence: never an exception, always a sentence."""
    assert runtime.available() in (True, False)
    assert len(runtime.reason().split()) >= 4
    assert (runtime.device_count() > 0) == runtime.available()


@pytest.mark.parametrize(
    ("driver", "text"),
    [
        (None, "cuda-python is not installed"),
        (
            pretended(cuInit=lambda flags: (Status(100, "CUDA_ERROR_NO_DEVICE"),)),
            "finds no usable GPU (CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected)",
        ),
        (
            pretended(cuDriverGetVersion=lambda: (OK, 12040)),
            "too old: it knows CUDA 12.4, and 13.0 (driver 580) or newer is needed",
        ),
        (pretended(cuDeviceGetCount=lambda: (OK, 0)), "finds no GPU"),
    ],
    ids=["no binding", "no device", "old driver", "no GPU"],
)
def test_reasons(
    gate: runtime._Gate, monkeypatch: pytest.MonkeyPatch, driver: Any, text: str
) -> None:
    install(monkeypatch, driver)
    assert not runtime.available()
    assert text in runtime.reason()
    assert runtime.device_count() == 0
    with pytest.raises(DeviceError, match="no GPU can be used in this process") as caught:
        runtime.device()
    assert text in str(caught.value)
    assert "  hint:   use device 'cpu', or 'emu'" in str(caught.value)


def test_no_libcuda(gate: runtime._Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    class DynamicLibNotFoundError(RuntimeError):
        pass

    def no_library(flags: int) -> Any:
        raise DynamicLibNotFoundError("a long text")

    install(monkeypatch, pretended(cuInit=no_library))
    assert runtime.reason() == (
        "the NVIDIA driver is not installed or too old (there is no libcuda)"
    )


def test_the_driver_is_tried_once(gate: runtime._Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def refuse(flags: int) -> Any:
        tries.append(flags)
        return (Status(100, "CUDA_ERROR_NO_DEVICE"),)

    install(monkeypatch, pretended(cuInit=refuse))
    for _ in range(3):
        assert not runtime.available()
        runtime.reason()
    assert len(tries) == 1


def test_a_usable_driver(gate: runtime._Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, pretended())
    assert runtime.available()
    assert runtime.reason() == "2 CUDA GPUs can be used"
    with pytest.raises(DeviceError, match="no such GPU") as caught:
        runtime.device(2)
    assert "actual: cuda:2" in str(caught.value)


def test_a_forked_child_is_told_to_spawn(
    gate: runtime._Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, pretended())
    assert runtime.available()
    gate.after_fork()
    assert not runtime.available()
    with pytest.raises(DeviceError, match="forked after CUDA was initialised") as caught:
        runtime.device()
    assert "get_context('spawn')" in str(caught.value)


def test_a_fork_before_the_first_use_is_harmless(
    gate: runtime._Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, pretended())
    gate.after_fork()
    assert runtime.available()


def bare_device(driver: Any) -> runtime.DeviceHandle:
    """A Device that can call and fail, and nothing else."""
    device = object.__new__(runtime.DeviceHandle)
    device.index, device.driver, device.lost = 0, driver, ""
    device.launches = deque(maxlen=RECENT)
    return device


def test_a_driver_failure_names_code_call_and_hint() -> None:
    status = Status(209, "CUDA_ERROR_NO_BINARY_FOR_GPU")
    device = bare_device(pretended(cuModuleLoadData=lambda data: (status, None)))
    with pytest.raises(CudaError) as caught:
        device.call("cuModuleLoadData", b"")
    lines = str(caught.value).splitlines()
    assert lines[0] == "[cuda] a driver call failed"
    assert lines[1] == "  expect: cuModuleLoadData succeeds"
    assert lines[2] == (
        "  actual: cuModuleLoadData returned 209, CUDA_ERROR_NO_BINARY_FOR_GPU: no description"
    )
    assert lines[-1] == "  hint:   the code was compiled for another GPU model"
    assert device.lost == ""


def test_a_lost_context_lists_the_last_launches_and_stays_lost() -> None:
    status = Status(700, "CUDA_ERROR_ILLEGAL_ADDRESS")
    device = bare_device(pretended(cuStreamSynchronize=lambda stream: (status,)))
    launches = [LaunchAttributes(f"kernel{i}", f"train.py:{i}") for i in range(20)]
    device.launches += [launches[:1], launches[1:8], launches[8:]]
    with pytest.raises(CudaError, match="the context of GPU 0 is lost") as caught:
        device.call("cuStreamSynchronize", None)
    text = str(caught.value)
    assert "cuStreamSynchronize returned 700, CUDA_ERROR_ILLEGAL_ADDRESS: an illegal" in text
    assert "kernel3 " not in text
    assert text.index("kernel4  train.py:4") < text.index("kernel19  train.py:19")
    assert "TGC_SYNC=1" in text
    with pytest.raises(CudaError, match="kernel19"):
        device.enter()
