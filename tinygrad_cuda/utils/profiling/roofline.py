"""What a GPU can do at most, measured there once: bytes and operations a second."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.dtypes import DType, bfloat16, float32
from tinygrad_cuda.core.observer import watched
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.random import Generator, rand
from tinygrad_cuda.utils.profiling.recorder import ProfileRecorder
from tinygrad_cuda.utils.profiling.work import KernelWork

COPIED = 1 << 28  # bytes read, and as many written: far more than any L2
SIDE = 4096  # of the matrices that are multiplied
TURNS = 4  # of each measurement; the first one compiles, the quickest counts


class MeasuredRoof(NamedTuple):
    """The most that a device did in a small measurement.

    Attributes:
        device: its name.
        bandwidth: bytes a second of a kernel that reads and writes long arrays.
        flops: operations a second of a product of float32 matrices, as the settings permit it.
        half_flops: of a product of bfloat16 matrices.
    """

    device: str
    bandwidth: float
    flops: float
    half_flops: float

    def peak(self, half: bool) -> float:
        """Operations a second of kernels that multiply matrices of half types, or of others."""
        return self.half_flops if half else self.flops

    def least_seconds(self, work: KernelWork) -> float:
        """The shortest time for the FLOPs and bytes of a kernel."""
        return max(work.flops / self.peak(work.half), work.nbytes / self.bandwidth)


_measured: dict[Device, MeasuredRoof] = {}


def roof_of(device: Device) -> MeasuredRoof | None:
    """The roof of a GPU, measured at first use and remembered on disk; None of other devices."""
    if device.kind != "cuda":
        return None
    roof = _measured.get(device)
    if roof is None:
        backend: Any = registry.get(device)
        roof = _read(backend.target.name) or measure(device, backend.target.name, COPIED, SIDE)
        _measured[device] = roof
        _write(roof)
    return roof


def measure(device: Device, name: str, nbytes: int, side: int) -> MeasuredRoof:
    """Runs a long elementwise kernel and two products, each alone, and takes the quickest turn.

    Args:
        device: where.
        name: of the device.
        nbytes: of the array that is read and of the one that is written.
        side: of the square matrices.
    """
    long = rand(nbytes // 4, device=device, generator=Generator())
    single, half = _square(side, float32, device), _square(side, bfloat16, device)
    _ = [x.realized() for x in (long, single, half)]
    copied = _quickest(lambda: long + 1.0)
    flops = 2.0 * side**3
    return MeasuredRoof(
        name, 2.0 * long.nbytes / copied, flops / _quickest(lambda: single @ single),
        flops / _quickest(lambda: half @ half),
    )  # fmt: skip


def _square(side: int, dtype: DType, device: Device) -> Any:
    return rand(side, side, dtype=dtype, device=device, generator=Generator())


def _quickest(make: Any) -> float:
    """Seconds of the device for what computes a tensor, the least of some turns."""
    recorder = ProfileRecorder(False, False, False, True)
    recorder.keep = True
    times = []
    before, watched.observer = watched.observer, recorder
    try:
        for _ in range(TURNS):
            recorder.clear()
            result: TensorBase = make()
            result.realized()
            times.append(sum(run.nanoseconds for run in recorder.kernels))
    finally:
        watched.observer = before
    return 1e-9 * max(min(times[1:]), 1.0)


def _path(name: str) -> Path:
    return settings.cache_dir / "roof" / (re.sub(r"\W+", "_", name) + ".json")


def _read(name: str) -> MeasuredRoof | None:
    """What was measured on such a device before; None where that is not there or damaged."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        roof = MeasuredRoof(**json.loads(_path(name).read_text(encoding="utf-8")))
        if roof.device == name and min(roof[1:]) > 0:
            return roof
    return None


def _write(roof: MeasuredRoof) -> None:
    if not settings.cache:
        return
    path = _path(roof.device)
    with contextlib.suppress(OSError):  # a folder that cannot be written: it is measured again
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(roof._asdict()), encoding="utf-8")
        beside.replace(path)
