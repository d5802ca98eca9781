"""How long the GPU is idle between the kernels of compiled steps, by a profile of it.

Run ``python -m lab.gaps unet_train unet_sample`` on a machine with a GPU and PyTorch,
whose profiler (CUPTI) notes when each kernel of the process begins and ends. A kernel that has been
started early and waits for the one before it counts as busy; no time in which nothing runs does.
"""

from __future__ import annotations

import sys
import time

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.peers.ours import Plain
from benchmarks.tables import table
from benchmarks.workloads import WORKLOADS

WARM, STEPS, REPEATS = 20, 50, 5


def wall(program: Plain) -> float:
    """Microseconds a step, each with a fresh batch from the host where it takes one."""
    program.synchronize()
    start = time.perf_counter()
    for number in range(STEPS):
        program.call(number)
    program.synchronize()
    return (time.perf_counter() - start) / STEPS * 1e6


def idle(spans: list[tuple[float, float]]) -> tuple[float, float]:
    """From the first beginning to the last end, and how much of that is in no span."""
    spans = sorted(spans)
    (begin, at), gaps = spans[0], 0.0
    for start, end in spans[1:]:
        gaps += max(0.0, start - at)
        at = max(at, end)
    return at - begin, gaps


def measured(name: str) -> list[str]:
    """One line of the table."""
    program = Plain(WORKLOADS[name](False), "cuda", True)
    for number in range(WARM):
        program.call(number)
    alone = min(wall(program) for _ in range(REPEATS))
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        wall(program)
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in found.events()
        if event.device_type == DeviceType.CUDA
    ]
    whole, gaps = idle(spans)
    cells = [f"{alone:.1f}", f"{whole / STEPS:.1f}", f"{len(spans) / STEPS:.1f}"]
    return [name, *cells, f"{gaps / STEPS:.1f}", f"{100 * gaps / whole:.2f} %"]


def main(names: list[str]) -> None:
    torch.zeros(1, device="cuda")  # its profiler sees a context that it knows
    heads = ["us a step", "by itself", "in the profile", "kernels", "idle", "of it"]
    print(table(heads, [measured(name) for name in names]))


if __name__ == "__main__":
    main(sys.argv[1:] or ["unet_train", "unet_sample"])
