"""One peer measured in a process of its own: two frameworks in one would share a GPU's context.

`python -m benchmarks.worker` is that process; it reads a `Job` and writes a row a line.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path

from benchmarks.harness import SMOKE, Effort, Row, Suite, Times
from benchmarks.peers import MODULES
from benchmarks.workload import Repetition, Training, Workload
from benchmarks.workloads import WORKLOADS

MARK = "row: "


def made(name: str, smoke: bool) -> Workload:
    """A workload, in tiny shapes and with few steps a call for a smoke test."""
    workload = WORKLOADS[name](smoke)
    if smoke and isinstance(workload, Training | Repetition):
        return replace(workload, together=SMOKE.compared)
    return workload


@dataclass(frozen=True)
class Job:
    """Which workloads one peer shall run; see `Suite`."""

    peer: str
    names: list[str]
    device: str
    smoke: bool
    folder: str
    end: float = float("inf")
    without: str = ""

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
        for name in self.names:
            yield from suite.rows(name, made(name, self.smoke), variants)


def _process(job: Job, left: list[str]) -> Generator[Row, None, int]:
    """Rows of a process; takes the names of finished workloads from `left`."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.worker"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        with process.stdin as out:
            out.write(json.dumps(asdict(job)))
        for line in process.stdout:
            if not line.startswith(MARK):
                continue
            found = json.loads(line.removeprefix(MARK))
            while left[0] != found["workload"]:
                left.pop(0)
            for part in ("wall", "device"):
                found[part] = found[part] and Times(**found[part])
            yield Row(**found)
        code = process.wait()
    if code == 0:
        left.clear()
    return code


if __name__ == "__main__":
    for row in Job(**json.load(sys.stdin)).here():
        print(MARK + json.dumps(row.as_json()), flush=True)
