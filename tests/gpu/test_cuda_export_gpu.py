"""A step exported on a GPU: built by nvcc, it prints the same losses to the bit."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn


def test_an_exported_step_runs_to_the_same_bits(tmp_path: Path) -> None:
    if not tc.cuda.is_available():
        pytest.skip("no usable GPU")
    if shutil.which("nvcc") is None:
        pytest.skip("this machine has no nvcc")
    tc.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4)).to("cuda")
    optimizer = tc.optim.Adam(model.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = tc.compile(step, steps=3)
    x, y = tc.randn(3, 32, 20, device="cuda"), tc.randint(0, 4, (3, 32), device="cuda")
    compiled(x, y)
    path = tmp_path / "mlp.cu"
    tc.export_cuda(compiled, path, x, y)
    command = path.read_text().splitlines()[0].removeprefix("// ")
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "the same bits as when it was exported"
