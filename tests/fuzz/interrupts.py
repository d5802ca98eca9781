"""SIGINT at random moments in a process that trains, then training goes on to the same bits.

A child trains a number of steps. Each signal finds it somewhere; it looks at parameters, buffers,
optimizer and generator, which must all be those before the step or all those behind it, and goes
on from there. In the end all is as in a child that was left alone. Steps ``("fork",)``,
``("spawn",)`` and ``("thread",)`` add processes and threads that compute beside it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import multiprocessing
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

LONG = {"cpu": 60, "emu": 20, "cuda": 20}

ROOT = Path(__file__).resolve().parents[2]
DEFAULTS = {
    "kind": "plain", "optimizer": "Adam", "layers": 2, "turns": 120, "seed": 0, "device": "cpu",
}  # fmt: skip
KINDS = ("plain", "compiled", "whole", "many")
REPLAYED = ("whole", "many")  # a replay happens or does not; a trace may be torn by a signal
OPTIMIZERS = ("SGD", "momentum", "Adam", "AdamW", "RMSprop")
# Of the kinds whose forward pass or host has a state that a step alone does not take back.
WARM = {"whole": 4, "many": 4}
SLOW = os.environ.get("TGC_SLOW") == "1"  # the package is imported in the children alone
Step = tuple[Any, ...]
# Signals that found a child training, by the kind of its steps; the driver sums them.
events: dict[str, int] = {}


# Programs -----------------------------------------------------------------------------------------


def generate(seed: int) -> list[Step]:
    dice = random.Random(seed)
    steps: list[Step] = [
        ("set", "seed", dice.randrange(4)),
        ("set", "kind", dice.choice([k for k in KINDS if not (SLOW and k in REPLAYED)])),
        ("set", "optimizer", dice.choice(OPTIMIZERS)),
        ("set", "layers", dice.choice((1, 2, 3))),
    ]
    steps += [(what,) for what in ("fork", "spawn", "thread") if dice.random() < 0.15]
    # A share of the time that steps take, so that signals fall into any part of them.
    steps += [("signal", round(dice.random() ** 2 * 3, 4)) for _ in range(20)]
    return steps


def options_of(program: list[Step], device: str) -> dict[str, Any]:
    chosen = {step[1]: step[2] for step in program if step[0] == "set"}
    return {**DEFAULTS, **chosen, "device": device}


@functools.lru_cache(maxsize=64)
def left_alone(text: str) -> tuple[list[str], float]:
    """The fingerprints behind each step of a child that nobody disturbs, and seconds a step."""
    with Child(json.loads(text), []) as child:
        answer = child.answer(200)
        while answer and answer[0] == "steps":
            answer = child.answer(200)
        if answer is None or answer[0] != "done":
            raise RuntimeError(f"the reference run ended with {answer}")
        return answer[1:-1], float(answer[-1])


def check(program: list[Step], device: str) -> str | None:
    options = options_of(program, device)
    expected, seconds = left_alone(json.dumps(options, sort_keys=True))
    extras = [step[0] for step in program if step[0] in ("fork", "spawn", "thread")]
    delays = [step[1] * seconds for step in program if step[0] == "signal"]
    with Child({**options, "expected": expected, "extras": extras}, delays) as child:
        difference = child.watched()
    beside = " ".join(["", "beside", *extras]) if extras else ""
    events[f"signals into {options['kind']} steps{beside}"] = child.caught
    return difference


class Child:
    """A training process, and what its lines say."""

    def __init__(self, options: dict[str, Any], delays: list[float]) -> None:
        self.delays, self.caught = delays, 0
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(Path(__file__)), json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdout is not None
        self.lines = self.process.stdout
        self.rest = b""

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def answer(self, limit: float) -> list[str] | None:
        """The next line's words; an empty list at the end, None if nothing comes in time."""
        until = time.monotonic() + limit
        while b"\n" not in self.rest:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.lines], [], [], left)[0]:
                return None
            piece = os.read(self.lines.fileno(), 1 << 16)
            if not piece:
                return []
            self.rest += piece
        line, _, self.rest = self.rest.partition(b"\n")
        return line.decode().split()

    def watched(self) -> str | None:
        """Sends the signals, each when the one before was dealt with; what went wrong, or None."""
        began = self.answer(120)
        if began != ["steps"]:
            return self.ended("did-not-begin", began)
        for delay in self.delays:
            time.sleep(delay)
            if self.process.poll() is not None:
                break
            os.kill(self.process.pid, signal.SIGINT)
            answer = self.answer(60)
            if answer is None:
                return "hung: no answer to a signal within 60 s"
            if not answer or answer[0] == "torn":
                return self.ended("torn", answer)
            if answer[0] == "done":
                return None
            self.caught += 1
        answer = self.answer(120)
        while answer and answer[0] == "caught":
            answer = self.answer(120)
        return None if answer and answer[0] == "done" else self.ended("not-the-same", answer)

    def ended(self, kind: str, answer: list[str] | None) -> str:
        self.process.kill()
        errors = (self.process.communicate()[1] or b"").decode()[-1500:]
        return f"{kind}: {' '.join(answer) if answer else answer}\n{errors}"


def show(program: list[Step]) -> str:
    return "\n".join(map(repr, program))


# The child ----------------------------------------------------------------------------------------


class Training:
    """A model, its optimizer, and a step that can be done again."""

    def __init__(self, options: dict[str, Any]) -> None:
        import tinygrad_cuda as tc

        self.tc, self.options, self.kind = tc, options, options["kind"]
        tc.set_default_device(options["device"])
        tc.manual_seed(options["seed"])
        nn, whole = tc.nn, self.kind == "whole"
        layers: list[Any] = [nn.Linear(5, 7)]
        for _ in range(options["layers"]):
            layers += [nn.BatchNorm1d(7), nn.Dropout(0.2)] if whole else [nn.Tanh()]
            layers.append(nn.Linear(7, 7))
        self.model = nn.Sequential(*layers)
        self.generator = tc.default_generator
        self.optimizer = self.make_optimizer(options["optimizer"])
        self.schedule = tc.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.99)
        generator = __import__("numpy").random.default_rng(options["seed"])
        count = options["turns"]
        self.data = generator.normal(size=(count, 4, 5)).astype("float32")
        self.goals = generator.normal(size=(count, 4, 7)).astype("float32")
        self.call = self.one if self.kind == "plain" else tc.compile(self.one)
        self.pair = tc.compile(self.one, steps=2)

    def make_optimizer(self, name: str) -> Any:
        optim, parameters = self.tc.optim, self.model.parameters()
        if name == "momentum":
            return optim.SGD(parameters, lr=0.05, momentum=0.9)
        return getattr(optim, name)(parameters, lr=0.01)

    def one(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        loss = (self.model(x) - y).square().mean()
        loss.backward()
        self.optimizer.step()
        if self.kind == "whole":
            self.schedule.step()
        return loss.detach()

    def take(self, number: int, alone: bool) -> int:
        """The step of this number; how many have been made: two at once for ``many``."""
        tensor = self.tc.tensor
        if self.kind == "many" and not alone and number + 2 <= len(self.data):
            both = slice(number, number + 2)
            self.pair(tensor(self.data[both]), tensor(self.goals[both]))
            return 2
        if self.kind in ("plain", "compiled"):
            self.optimizer.param_groups[0]["lr"] = 0.01 / (1 + number)
        self.call(tensor(self.data[number]), tensor(self.goals[number]))
        return 1

    def fingerprint(self) -> str:
        """Of everything that a step changes."""
        found = hashlib.sha256()
        for value in self.model.state_dict().values():
            found.update(value.detach().cpu().numpy().tobytes())
        for parameter in self.model.parameters():
            for name, value in sorted((self.optimizer.state.get(parameter) or {}).items()):
                given = value.cpu().numpy().tobytes() if hasattr(value, "cpu") else repr(value)
                found.update(
                    name.encode() + (given if isinstance(given, bytes) else given.encode())
                )
        if self.kind == "whole":
            found.update(repr(self.optimizer.param_groups[0]["lr"]).encode())
            found.update(repr(self.schedule.last_epoch).encode())
            found.update(self.generator.get_state().numpy().tobytes())
        return found.hexdigest()[:16]


def say(*words: str) -> None:
    os.write(1, (" ".join(words) + "\n").encode())


def train(options: dict[str, Any]) -> None:
    """The child's whole life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    training = Training(options)
    expected: list[str] | None = options.get("expected")
    seen = [training.fingerprint()]
    number = 0
    warm = WARM.get(training.kind, 0)
    for extra in options.get("extras", ()):
        problem = EXTRAS[extra](options)
        if problem:
            say("torn", extra, problem)
            return
    while number < warm:
        number += training.take(number, alone=True)
        seen.append(training.fingerprint())
    began, first = time.monotonic(), number
    news = ["steps"]
    caught: list[int] = []

    def go_on() -> None:
        nonlocal number
        if expected is not None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        say(*news)
        while number < options["turns"]:
            number += training.take(number, alone=expected is None)
            if expected is None:
                seen.append(training.fingerprint())

    place = {print_: k for k, print_ in enumerate(expected or ())}
    most = 2 if training.kind == "many" else 1
    while True:
        try:
            go_on()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            break
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            at = place.get(training.fingerprint(), -1)
            if not number <= at <= number + most:
                say("torn", f"step {number}, found {at}")
                return
            number = at
            caught.append(at)
            news = ["caught", str(at)]
    last = training.fingerprint()
    if expected is None:
        say("done", *seen, str((time.monotonic() - began) / max(1, number - first)))
    elif last != expected[-1]:
        say("torn", "the end differs")
    else:
        say("done", str(len(caught)))


# Beside it ----------------------------------------------------------------------------------------


def some_work(device: str, turns: int = 20) -> float:
    import tinygrad_cuda as tc

    w = tc.ones(8, 8, device=device, requires_grad=True)
    for _ in range(turns):
        w.grad = None
        ((tc.arange(8.0, device=device) @ w).tanh() * 0.1).sum().backward()
        w.data.sub_(0.1 * w.grad)
    return float(w.sum())


def beside_a_fork(options: dict[str, Any]) -> str | None:
    """Forks while a thread computes: the child can compute, too."""
    stop = threading.Event()
    device = options["device"]
    thread = threading.Thread(target=lambda: _until(stop, device))
    thread.start()
    host = "cpu" if device == "cuda" else device  # a GPU is the parent's alone
    wanted = some_work(host)
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                os._exit(0 if some_work(host) == wanted else 3)
            until = time.monotonic() + 30
            while os.waitpid(child, os.WNOHANG) == (0, 0):
                if time.monotonic() > until:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    return "a forked child hangs"
                time.sleep(0.01)
    finally:
        stop.set()
        thread.join()
    return None


def beside_a_spawn(options: dict[str, Any]) -> str | None:
    """A spawned process computes the same, while this one does."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        answer = pool.apply_async(some_work, ("cpu",))
        mine = some_work("cpu")
        return None if answer.get(60) == mine else "a spawned process computes something else"


def beside_a_thread(options: dict[str, Any]) -> str | None:
    """A thread computes on the same device until the process ends."""
    stop = threading.Event()
    threading.Thread(target=lambda: _until(stop, options["device"]), daemon=True).start()
    return None


def _until(stop: threading.Event, device: str) -> None:
    while not stop.is_set():
        some_work(device, 3)


EXTRAS = {"fork": beside_a_fork, "spawn": beside_a_spawn, "thread": beside_a_thread}

if __name__ == "__main__":
    train(json.loads(sys.argv[1]))
    os._exit(0)  # whatever threads do
