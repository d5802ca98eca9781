"""Choices by measurement on a GPU: values, times, replays, and a second process's bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.backend.launch import tuner
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.nn import functional as F

ROOT = Path(__file__).resolve().parents[2]
# Without a GPU these run on a pretended one.
PRETENDED = ("test_training_with_measured_kernels",)
pytestmark = pytest.mark.usefixtures("on_cpu")

SCRIPT = """
import sys
import numpy as np
import tinygrad_cuda as tc
from tinygrad_cuda.backend.launch import tuner
tuner.PER_TIER = 2
random = np.random.default_rng(0)
x, w = (tc.tensor(random.standard_normal(shape).astype(np.float32), device="cuda")
        for shape in ((512, 640), (384, 640)))
images = tc.tensor(random.standard_normal((16, 64, 16, 16)).astype(np.float32), device="cuda")
taps = tc.tensor(random.standard_normal((64, 64, 3, 3)).astype(np.float32), device="cuda")
half = [v.to(tc.bfloat16) for v in (x, w, images, taps)]
results = (
    x @ w.T, half[0] @ half[1].T, tc.conv2d(images, taps, padding=1),
    tc.conv2d(half[2], half[3], padding=1),
)
for y in results:
    print(hash(y.float().cpu().numpy().tobytes()))
print(*sorted(f"{one.problem}: {one.kernel}" for one in tc.kernels.choices()), sep="; ")
"""


def losses(device: str) -> list[float]:
    """Of six steps of a small network."""
    tc.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)).to(device)
    optimizer = optim.SGD(net.parameters(), lr=0.05)
    x = tc.tensor(np.random.default_rng(1).standard_normal((8, 1, 8, 8)).astype(np.float32))
    x, y = x.to(device), tc.tensor(np.arange(8)).to(device)
    made = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        made.append(loss.item())
    return made


def test_training_with_measured_kernels(
    some_gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans of chosen kernels are replayed as graphs; the losses are those of the model's choices.

    Every problem was timed, and what was chosen took no more than the model's kernel.
    """
    monkeypatch.setattr(settings, "cache_dir", tmp_path)
    monkeypatch.setattr(tuner, "PER_TIER", 1)
    usual = losses(some_gpu)
    try:
        with tc.tune():
            chosen = losses(some_gpu)
        rows = [one for one in tc.kernels.choices() if one.device.startswith("cuda")]
    finally:
        tc.tune("off")
    np.testing.assert_allclose(chosen, usual, rtol=1e-4)
    assert len(rows) >= 4 and not any(one.refused for one in rows)
    for one in rows:
        assert 0 < one.microseconds <= one.model_microseconds and one.times[0][1] > 0


def test_another_process_has_the_same_bits(cuda_device: str, tmp_path: Path) -> None:
    """By the files of the first one; float32 and bfloat16, products and convolutions."""
    outputs: list[Any] = []
    for mode in ("on", "cached", "on"):
        environment = {
            **os.environ, "TGC_CACHE_DIR": str(tmp_path), "TGC_TUNE": mode, "PYTHONHASHSEED": "0",
            "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1] == outputs[2]
    assert outputs[0].splitlines()[-1].count(";") == 3
