"""What each fast path saves: `python lab/fast_paths.py --device cuda --rounds 5`.

Each switch of `replay/switches.py` is left out alone, in a process of its own, between runs with
all of them on. For each row: the least time of the host's thread, and of the wall with the device's
work, in us a step; how much more either is without the fast path.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.peers.ours import Plain, Together  # noqa: E402
from benchmarks.workloads import WORKLOADS  # noqa: E402
from tinygrad_cuda.replay.switches import FAST_PATHS  # noqa: E402

# Row: workload, and whether its steps are plain, compiled, or many in a call.
ROWS = {
    f"{name} {kind}": (name, kind)
    for name in ("mlp_64", "denoiser_sample", "denoiser_train", "lenet")
    for kind in ("plain", "compiled", "together")
} | {"adam_124m plain": ("adam_124m", "plain")}
WARM, SECONDS = 40, 0.5
Times = dict[str, tuple[float, float]]


def measured(name: str, kind: str, device: str, smoke: bool) -> tuple[float, float]:
    """The least thread time and the least wall time of a step, us."""
    workload, steps = WORKLOADS[name](smoke), 1
    if kind == "together":
        program: Any = Together(workload, device)
        steps = program.steps
    else:
        program = Plain(workload, device, kind == "compiled")
    for _ in range(3 if kind == "together" else WARM):
        program.call_on_device(0)
    program.synchronize()
    calls = 1 if kind == "together" else 20
    host = wall = float("inf")
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        start, thread = time.perf_counter_ns(), time.thread_time_ns()
        for _ in range(calls):
            program.call_on_device(0)
        host = min(host, (time.thread_time_ns() - thread) / 1e3 / calls / steps)
        program.synchronize()
        wall = min(wall, (time.perf_counter_ns() - start) / 1e3 / calls / steps)
    return host, wall


def run(left_out: str, device: str, smoke: bool) -> Times:
    """All rows in a process of its own, without one fast path."""
    command = [sys.executable, __file__, "--rows", "--device", device, *["--smoke"] * smoke]
    environment = {**os.environ, "TGC_FAST": f"-{left_out}" if left_out else ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    times: Times = json.loads(done.stdout.splitlines()[-1])
    return times


def least(a: Times, b: Times) -> Times:
    """Of two runs the smaller times."""
    return {row: (min(a[row][0], b[row][0]), min(a[row][1], b[row][1])) for row in a}


def table(found: dict[str, Times]) -> str:
    """Rows of Markdown: host and wall without each, relative to all on."""
    base = found[""]
    lines = ["| without | " + " | ".join(base) + " |", "|---" * (len(base) + 1) + "|"]
    lines.append(
        "| nothing, us | " + " | ".join(f"{h:.1f}, {w:.1f}" for h, w in base.values()) + " |"
    )
    for name in [name for name in found if name]:
        cells = [
            f"{100 * (h / base[row][0] - 1):+.0f} %, {100 * (w / base[row][1] - 1):+.0f} %"
            for row, (h, w) in found[name].items()
        ]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(FAST_PATHS), help="fast paths on trial")
    parser.add_argument("--smoke", action="store_true", help="small programs")
    parser.add_argument("--rows", action="store_true", help="this process's own times, as JSON")
    asked = parser.parse_args()
    if asked.rows:
        print(json.dumps({r: measured(*w, asked.device, asked.smoke) for r, w in ROWS.items()}))
        return
    found: dict[str, Times] = {}
    for _ in range(asked.rounds):
        for name in asked.only:
            for left_out in ("", name):
                times = run(left_out, asked.device, asked.smoke)
                found[left_out] = least(found.get(left_out, times), times)
    print(table(found))


if __name__ == "__main__":
    main()
