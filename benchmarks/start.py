"""A fresh process to the end of its first training step of the perceptron, cold and warm.

`python -m benchmarks.start VARIANT DEVICE` is that process.
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import benchmarks
import tinygrad_cuda
from benchmarks.harness import Times
from benchmarks.peers import installed

REPEATS = {"ours": 3}  # of peers, which take long, one
# NVRTC and the driver keep a cache of their own.
CACHES = (
    "TGC_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "JAX_COMPILATION_CACHE_DIR",
    "CACHEDB",
    "XDG_CACHE_HOME",
)
# One variant of each peer: how its users begin.
FIRST = {"ours": "ours", "torch": "torch", "jax": "jax", "tinygrad": "tinygrad"}


def first_step(variant: str, device: str) -> None:
    """Trains one step and prints the clock when its loss is known."""
    peer = next(name for name, key in FIRST.items() if key == variant)
    found, _ = installed([peer])
    from benchmarks.workloads.mlp import training

    program = found[peer].VARIANTS[variant].build(training(64, False), device)
    program.call(0)
    loss = program.results()[0]
    print(f"{time.time()} {float(loss.reshape(-1)[0])}")


def seconds(variant: str, device: str, cache: Path) -> float:
    """From the start of the process to the end of its step."""
    places = {name: str(cache / name) for name in CACHES}
    start = time.time()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.start", variant, device],
        env={**os.environ, **places}, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    return float(done.stdout.split()[-2]) - start


def starts(peers: Sequence[str], device: str) -> dict[str, Any]:
    """Seconds by peer, with an empty cache of compiled kernels and with a full one."""
    found: dict[str, Any] = {}
    # What pip installs has its bytecode from the start, and so do the peers.
    for package in (tinygrad_cuda, benchmarks):
        compileall.compile_dir(Path(package.__file__ or "").parent, quiet=1)
    for peer in peers:
        cold, warm = [], []
        for _ in range(REPEATS.get(peer, 1)):
            with tempfile.TemporaryDirectory() as folder:
                cold.append(seconds(FIRST[peer], device, Path(folder)))
                warm.append(seconds(FIRST[peer], device, Path(folder)))
        for title, samples in (("cold", cold), ("warm", warm)):
            found[f"{peer}: to the end of the first step, {title} cache, s"] = asdict(
                Times.of(samples)
            )
    return found


if __name__ == "__main__":
    first_step(*sys.argv[1:3])
