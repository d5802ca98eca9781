"""Runs an instrument's programs in worker processes and shrinks those that fail.

An instrument is a module with ``generate(seed) -> program``, a list of steps, and
``check(program, device)``, which returns None or a text ``kind: difference``. Its steps mean
something without the others, so that a failing program can be shrunk by leaving steps out. An
instrument may have a dict ``events``, whose counts are summed over a campaign's programs.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from accepted import RULES

Program = list[Any]
INSTRUMENTS = (
    "graphs",
    "repeats",
    "loops",
    "slow",
    "watched",
    "traps",
    "special",
    "products",
    "interrupts",
    "files",
    "mutants",
)


def load(name: str) -> Any:
    """The module of an instrument."""
    return importlib.import_module(name)


class Outcome(NamedTuple):
    """What one seed gave; `difference` is None where the program was right."""

    seed: int
    difference: str | None
    seconds: float
    events: dict[str, int]


def kind(difference: str | None) -> str | None:
    """The word before the colon: programs of one kind fail in one way."""
    return difference and difference.split(":", 1)[0]


def accepted(difference: str | None) -> str | None:
    """The rule that a difference falls under; an unknown rule is an error of the instrument."""
    if difference is None or kind(difference) != "accepted":
        return None
    name = difference.split(":", 1)[1].split()[0]
    if name not in RULES:
        raise KeyError(f"{name} is no rule of tests/fuzz/accepted.py")
    return name


def judge(instrument: Any, program: Program, device: str) -> str | None:
    """`check`, where an exception that it lets through is a difference too."""
    try:
        difference: str | None = instrument.check(program, device)
    except Exception as error:
        return f"raised {type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}"
    return difference


def serve(name: str, device: str, pipe: Connection) -> None:
    """A worker: answers each seed or program with its difference."""
    instrument = load(name)
    while (request := pipe.recv()) is not None:
        program = instrument.generate(request) if isinstance(request, int) else request
        events = getattr(instrument, "events", {})
        events.clear()
        pipe.send((judge(instrument, program, device), events))


class Worker:
    """A process that judges programs; one that hangs or dies is replaced."""

    def __init__(self, name: str, device: str, limit: float) -> None:
        self.name, self.device, self.limit = name, device, limit
        self.events: dict[str, int] = {}
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        arguments = (self.name, self.device, other)
        self.process = context.Process(target=serve, args=arguments, daemon=False)
        self.process.start()
        other.close()

    def send(self, request: int | Program) -> None:
        self.request, self.since, self.before = request, time.monotonic(), self.computed()
        self.pipe.send(request)

    def receive(self) -> str | None:
        """The answer; a worker that gives none is stopped and started again."""
        left = self.limit - (time.monotonic() - self.since)
        answer: str | None
        self.events = {}
        try:
            if self.pipe.poll(max(0.0, left)):
                answer, self.events = self.pipe.recv()
                return answer
            answer = f"hung: no answer in {self.limit:.0f} s{self.spent()}"
        except (EOFError, ConnectionError):
            self.process.join(5)
            answer = f"died: exit status {self.process.exitcode}"
        self.stop()
        self.start()
        return answer

    def computed(self) -> float:
        """Seconds of its processor so far, where the system says so in /proc."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        if not stat.exists():
            return 0.0
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def spent(self) -> str:
        """A worker that waits for a lock computes nothing, one that starves does so at a load."""
        seconds, load = self.computed() - self.before, os.getloadavg()[0]
        return f", {seconds:.0f} s of computing at a load of {load:.0f}"

    def overdue(self) -> bool:
        return time.monotonic() - self.since > self.limit

    def stop(self) -> None:
        if self.process.is_alive() and self.process.pid:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()
        self.pipe.close()


def campaign(
    name: str, device: str, seeds: Iterable[int], jobs: int, limit: float, until: float
) -> Iterator[Outcome]:
    """The outcome of each seed, in the order in which they end; none begins after `until`."""
    waiting = iter(seeds)
    workers: list[Worker] = []

    def begin(worker: Worker) -> bool:
        seed = next(waiting, None) if time.monotonic() < until else None
        if seed is not None:
            worker.send(seed)
        return seed is not None

    try:
        for _ in range(jobs):
            workers.append(Worker(name, device, limit))
        busy = [worker for worker in workers if begin(worker)]
        while busy:
            ready = wait([worker.pipe for worker in busy], timeout=1.0)
            for worker in [w for w in busy if w.pipe in ready or w.overdue()]:
                seed, since = worker.request, worker.since
                difference = worker.receive()
                took = time.monotonic() - since
                yield Outcome(int(seed), difference, took, worker.events)
                if not begin(worker):
                    busy.remove(worker)
    finally:
        for worker in workers:
            worker.stop()


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """A part of the program that still fails, from which no single step can be left out (ddmin)."""
    size = max(1, len(program) // 2)
    while True:
        start, shorter = 0, False
        while start < len(program):
            candidate = program[:start] + program[start + size :]
            if candidate and fails(candidate):
                program, shorter = candidate, True
            else:
                start += size
        if size == 1 and not shorter:
            return program
        size = max(1, size // 2)


def minimise(name: str, device: str, seed: int, limit: float) -> str:
    """The shortest program found that fails as this seed's does, and what it gives."""
    instrument = load(name)
    program = instrument.generate(seed)
    worker = Worker(name, device, limit)

    def answer(candidate: Program) -> str | None:
        worker.send(candidate)
        return worker.receive()

    try:
        wanted = kind(answer(program))
        if wanted is None:
            return f"seed {seed}: no difference when run alone"
        program = shrink(program, lambda candidate: kind(answer(candidate)) == wanted)
        difference = answer(program)
    finally:
        worker.stop()
    text = getattr(instrument, "show", lambda steps: "\n".join(map(repr, steps)))(program)
    return f"seed {seed}, {len(program)} steps:\n{text}\n-> {difference}"


def summary(outcomes: list[Outcome], seconds: float) -> str:
    """Counts, the failing seeds by kind, and seconds."""
    rules = Counter(name for o in outcomes if (name := accepted(o.difference)))
    failed = [o for o in outcomes if o.difference and not accepted(o.difference)]
    lines = [f"{len(outcomes)} programs, {len(failed)} differences, {seconds:.0f} s"]
    events = sum((Counter(outcome.events) for outcome in outcomes), Counter[str]())
    lines += [f"  {count} {name}" for name, count in sorted(events.items())]
    lines += [f"  accepted by the rule {name}: {count}" for name, count in rules.items()]
    kinds: dict[str, list[int]] = {}
    for outcome in failed:
        kinds.setdefault(str(kind(outcome.difference)), []).append(outcome.seed)
    for name, seeds in sorted(kinds.items(), key=lambda pair: -len(pair[1])):
        shown = " ".join(map(str, sorted(seeds)[:12]))
        lines.append(f"  {name}: {len(seeds)}, seeds {shown}{' ...' if len(seeds) > 12 else ''}")
    return "\n".join(lines)
