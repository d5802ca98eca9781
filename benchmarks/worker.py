"""One peer measured in a process of its own: two frameworks in one would share a GPU's context.

`python -m benchmarks.worker` is that process; it reads a `Job` and writes a row a line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path

from benchmarks.harness import SMOKE, Effort, Row, Suite, Times
from benchmarks.peers import MODULES
from benchmarks.workload import Repetition, Training, Workload
from benchmarks.workloads import WORKLOADS

MARK, READY = "row: ", "ready"


def made(name: str, smoke: bool) -> Workload:
    """A workload, in tiny shapes and with few steps a call for a smoke test."""
    workload = WORKLOADS[name](smoke)
    if smoke and isinstance(workload, Training | Repetition):
        return replace(workload, together=SMOKE.compared)
    return workload


@dataclass(frozen=True)
class Job:
    """Which workloads one peer shall run; see `Suite`.

    Attributes:
        waits: for the end of input between the first calls of all rows and their times.
        compiles: only what compiled variants need, into the caches on disk; gives no rows.
    """

    peer: str
    names: list[str]
    device: str
    smoke: bool
    folder: str
    end: float = float("inf")
    without: str = ""
    waits: bool = False
    compiles: bool = False

    def rows(self) -> Iterator[Row]:
        """Rows as they come: of a process of its own, or from here for a smoke test."""
        if self.smoke:
            yield from self.here()
            return
        left = list(self.names)
        while left:
            code = yield from _process(replace(self, names=left), left)
            if left:
                yield Row(left.pop(0), self.peer, self.peer, failure=f"the process ended: {code}")

    def here(self) -> Iterator[Row]:
        """Measures in this process."""
        effort = SMOKE if self.smoke else Effort()
        suite = Suite(self.device, effort, Path(self.folder), self.end, self.without)
        found = import_module(MODULES[self.peer]).VARIANTS
        variants = {name: v for name, v in found.items() if self.device in v.devices}
        if self.compiles:
            variants = {name: v for name, v in variants.items() if "compiled" in name}
        workloads = {name: made(name, self.smoke) for name in self.names}
        if not self.waits:
            for name, workload in workloads.items():
                yield from suite.rows(name, workload, variants)
            return
        ready = [
            prepared
            for name, workload in workloads.items()
            for prepared in suite.prepared(name, workload, variants)
        ]
        print(READY, flush=True)
        if self.compiles:
            return
        sys.stdin.read()
        for prepared in ready:
            row = suite.timed(prepared)
            row.first = None  # of processes that compile side by side it says nothing
            yield row


def _process(job: Job, left: list[str]) -> Generator[Row, None, int]:
    """Rows of a process; takes the names of finished workloads from `left`."""
    with _started(job) as process:
        for row in _read(process):
            while left[0] != row.workload:
                left.pop(0)
            yield row
        code = process.wait()
    if code == 0:
        left.clear()
    return code


def side_by_side(jobs: Sequence[Job]) -> Iterator[Row]:
    """Rows of processes that build and compile at the same time, and are timed one after another.

    A process that ends early costs its own rows, not those of the others.
    """
    with ExitStack() as stack:
        processes = [stack.enter_context(_started(replace(job, waits=True))) for job in jobs]
        for process in processes:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(READY):
                    break
        for job, process in zip(jobs, processes):
            assert process.stdin is not None
            process.stdin.close()
            yield from _read(process)
            if code := process.wait():
                yield Row(job.names[0], job.peer, job.peer, failure=f"the process ended: {code}")


def _started(job: Job) -> subprocess.Popen[str]:
    """A process that has read its job."""
    environment = os.environ | ({"TORCHINDUCTOR_COMPILE_THREADS": "3"} if job.waits else {})
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.worker"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps(asdict(job)) + "\n")
    process.stdin.flush()
    return process


def _read(process: subprocess.Popen[str]) -> Iterator[Row]:
    """Rows as a process prints them."""
    assert process.stdout is not None
    for line in process.stdout:
        if not line.startswith(MARK):
            continue
        found = json.loads(line.removeprefix(MARK))
        for part in ("wall", "device"):
            found[part] = found[part] and Times(**found[part])
        yield Row(**found)


if __name__ == "__main__":
    for row in Job(**json.loads(sys.stdin.readline())).here():
        print(MARK + json.dumps(row.as_json()), flush=True)
