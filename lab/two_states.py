"""Steps in two states of the code, in turn: `python lab/two_states.py OLD --rounds 20`.

OLD is a checkout of another commit (`git worktree add OLD COMMIT`). Each state has a process of its
own, which waits while the other measures, on the same CPU. A row is a workload of the benchmarks,
recorded by each call (plain), under tc.compile (compiled), or many steps in a call (together), or a
row of the host's; its ratio is the median of the ratios, new over old, of runs side by side.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("plain", "compiled", "together")
HOST = ("recording", "finding", "replaying")  # functions of benchmarks/host.py, in both states
WARM_SECONDS, SECONDS = 0.3, 0.03  # of each row in each state; of a run
Row = tuple[str, str, float, float, float]  # name, kind, us old and new, the ratio


class State:
    """The worker of one state: this file, run by the package and the benchmarks of a folder."""

    def __init__(self, folder: Path, device: str, smoke: bool) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), str(folder), "--worker"]
        self.process = subprocess.Popen(
            [*command, "--device", device, *["--smoke"] * smoke],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH')}"},
        )  # fmt: skip

    def begin(self, *request: Any) -> None:
        assert self.process.stdin is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)

    def end(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a state ended with {self.process.wait()}")
        return json.loads(line)

    def ask(self, *request: Any) -> Any:
        self.begin(*request)
        return self.end()


class Worker:
    """What a state's process does with each request."""

    def __init__(self, device: str, smoke: bool) -> None:
        self.device, self.smoke = device, smoke
        self.program: Any = None
        self.steps, self.number = 1, 0

    def build(self, name: str, kind: str) -> bool:
        """Makes a row's program and runs it until it is warm; False where it has no such kind."""
        from benchmarks.peers.ours import Plain, Together, repeats
        from benchmarks.workloads import WORKLOADS

        self.program = None
        if name not in WORKLOADS:
            return False
        workload: Any = WORKLOADS[name](self.smoke)
        if kind == "together" and not repeats(workload):
            return False
        if kind == "together":
            self.program = Together(workload, self.device)
        else:
            self.program = Plain(workload, self.device, kind == "compiled")
        self.steps = self.program.steps if kind == "together" else 1
        self.run(3)
        until = time.perf_counter() + WARM_SECONDS
        while time.perf_counter() < until:
            self.run(1)
        return True

    def run(self, calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            self.program.call(self.number)
            self.number += 1
        self.program.synchronize()
        return time.perf_counter() - start

    def time(self, cpu: int) -> float:
        """Microseconds of a step, the host included."""
        os.sched_setaffinity(0, {cpu})
        calls, seconds = 1, self.run(1)
        while seconds < SECONDS:
            calls = max(2 * calls, min(1000, int(calls * SECONDS / max(seconds, 1e-6))))
            seconds = self.run(calls)
        return seconds * 1e6 / calls / self.steps

    def host(self, cpu: int) -> dict[str, float]:
        """Microseconds of the host's rows."""
        from benchmarks import host

        self.program = None
        os.sched_setaffinity(0, {cpu})
        found: dict[str, list[float]] = {}
        for name in HOST:
            given = () if name == "recording" else (self.device, self.smoke)
            found |= getattr(host, name)(*given)
        return {name: median(samples) for name, samples in found.items()}


def serve(worker: Worker) -> None:
    for line in sys.stdin:
        name, *given = json.loads(line)
        print(json.dumps(getattr(worker, name)(*given)), flush=True)


def counting(cpu: int) -> float:
    """Seconds of a fixed loop on a CPU: others may be at work there, or its core be shared."""
    own, times = os.sched_getaffinity(0), []
    os.sched_setaffinity(0, {cpu})
    for _ in range(5):
        start = time.perf_counter()
        sum(range(200_000))
        times.append(time.perf_counter() - start)
    os.sched_setaffinity(0, own)
    return median(times)


def rounds_of(states: list[State], request: str, rounds: int, cpus: list[int]) -> list[list[Any]]:
    """What both states measured, side by side; every second round begins with the new one."""
    found: list[list[Any]] = []
    for number in range(rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        pair: list[Any] = [None, None]
        for which in order:
            pair[which] = states[which].ask(request, cpus[number % len(cpus)])
        found.append(pair)
    return found


def row(name: str, kind: str, pairs: list[list[float]]) -> Row:
    old, new = zip(*pairs, strict=True)
    return name, kind, median(old), median(new), median(b / a for a, b in pairs)


def rows(states: list[State], asked: argparse.Namespace, cpus: list[int]) -> Iterator[Row]:
    """Each row that both states have."""
    end = time.monotonic() + asked.seconds
    if asked.host:
        pairs = rounds_of(states, "host", asked.rounds, cpus)
        for name in pairs[0][0]:
            yield row(name, "host", [[one[name] for one in pair] for pair in pairs])
    for name in asked.only:
        for kind in asked.kinds:
            if time.monotonic() > end:
                print(f"out of time before {name}, {kind}")
                return
            for state in states:
                state.begin("build", name, kind)
            built = [state.end() for state in states]  # of both, before either is asked more
            if all(built):
                yield row(name, kind, rounds_of(states, "time", asked.rounds, cpus))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path, help="a checkout of the older state")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=[], help="workloads of the benchmarks")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--host", action="store_true", help="the host's rows, too")
    parser.add_argument("--seconds", type=float, default=1e9, help="no row begins after this time")
    parser.add_argument("--smoke", action="store_true", help="small programs")
    parser.add_argument("--worker", action="store_true", help="this process is a state")
    asked = parser.parse_args()
    if asked.worker:
        sys.path[0] = str(asked.old)  # in place of this file's folder
        serve(Worker(asked.device, asked.smoke))
        return
    states = [State(folder.resolve(), asked.device, asked.smoke) for folder in (asked.old, ROOT)]
    cpus = sorted(sorted(os.sched_getaffinity(0)), key=counting)[:4]
    print("| row | | old, us | new, us | ratio |\n|---|---|---|---|---|")
    for name, kind, old, new, ratio in rows(states, asked, cpus):
        print(f"| {name} | {kind} | {old:.4g} | {new:.4g} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
