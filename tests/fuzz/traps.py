"""Compiled functions whose Python values change between calls, against the plain functions.

A program is steps ``("value", kind, path)``, which have the function read one more value in one
more way, ``("call", n)`` and ``("change", n)``, which changes the n-th value. The compiled function
must return what the plain one does; where a value cannot be followed it raises with the line.
"""

from __future__ import annotations

import contextlib
import decimal
import gc
import itertools
import linecache
import os
import random
import signal
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from trap_kinds import KINDS, PATHS, Kind

import tinygrad_cuda as tc
from tinygrad_cuda.tensors.autocast import state

Step = tuple[Any, ...]
# The pairs of kinds and paths, then mixed programs.
LONG = {"cpu": len(KINDS) * len(PATHS) + 1000, "emu": 500, "cuda": 6000}
LOCATED = "  at:     <trap"  # what an error says of a line of the program

_numbers = itertools.count()


def generate(seed: int) -> list[Step]:
    """The first seeds pair each kind with each path, later ones mix several values."""
    pairs = len(KINDS) * len(PATHS)
    if seed < pairs:
        value = ("value", seed // len(PATHS), seed % len(PATHS))
        return [value, ("call", 3), ("change", 0), ("call", 3), ("change", 0), ("call", 2)]
    chance = random.Random(seed)
    steps: list[Step] = [
        ("value", chance.randrange(len(KINDS)), chance.randrange(len(PATHS)))
        for _ in range(chance.randint(1, 4))
    ]
    for _ in range(chance.randint(2, 8)):
        steps.append(("call", chance.randint(1, 4)))
        steps.append(("change", chance.randrange(4)))
    return [*steps, ("call", 2)]


def text_of(program: list[Step]) -> tuple[str, list[Kind]]:
    """The program's source: setups, readers ``read_n(x)``, ``change_n()`` and ``step(x)``."""
    lines = ["import tinygrad_cuda as tc", "from tinygrad_cuda import nn"]
    kinds, sums = [], ["x * 0"]
    for number, (_, kind, path) in enumerate(s for s in program if s[0] == "value"):
        found = KINDS[kind % len(KINDS)]
        kinds.append(found)
        lines += found.setup.replace("_N", f"_{number}").splitlines()
        body = PATHS[path % len(PATHS)][1].replace("EXPR", f"({found.expression})")
        lines += body.replace("_N", f"_{number}").splitlines()
        lines += [f"def change_{number}():"]
        lines += [f"    {line}" for line in found.change.replace("_N", f"_{number}").splitlines()]
        sums.append(f"read_{number}(x)")
    lines += ["def step(x):", f"    return {' + '.join(sums)}"]
    return "\n".join(lines) + "\n", kinds


class World:
    """A fresh namespace in which a program's source has run."""

    def __init__(self, text: str) -> None:
        name = f"trap_{next(_numbers)}"
        file = f"<{name}>"
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        self.module = ModuleType(name)
        self.module.__file__ = file
        sys.modules[name] = self.module
        exec(compile(text, file, "exec"), vars(self.module))

    def close(self) -> None:
        """Forgets the namespace, and closes its files, folders and databases."""
        for value in vars(self.module).values():
            for name in ("cleanup", "close"):
                if type(value).__module__ in ("tempfile", "sqlite3") and hasattr(value, name):
                    getattr(value, name)()
        del sys.modules[self.module.__name__]
        linecache.cache.pop(self.module.__file__ or "", None)


def _called(step: Any, x: Any) -> Any:
    """What a call returned; of an error that a plain call raises, too, its kind."""
    try:
        return step(x).tolist()
    except tc.CompileError:
        raise
    except Exception as error:
        return f"{type(error).__name__} {str(error).splitlines()[:1]}"


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """What a program changes of the process is as before in the end."""
    environment, arguments, library = dict(os.environ), list(sys.argv), dict(vars(textwrap))
    context, folder, draws = decimal.getcontext().copy(), Path.cwd(), np.random.get_state()  # noqa: NPY002
    limit, threads = sys.getrecursionlimit(), tc.get_num_threads()
    handler, halves = signal.getsignal(signal.SIGUSR1), dict(state.defaults)
    try:
        with np.errstate(), warnings.catch_warnings():
            yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        sys.argv[:] = arguments
        decimal.setcontext(context)
        vars(textwrap).update(library)
        os.chdir(folder)
        np.random.set_state(draws)  # noqa: NPY002
        sys.setrecursionlimit(limit)
        tc.set_num_threads(threads)
        signal.signal(signal.SIGUSR1, handler)
        state.defaults.update(halves)
        gc.enable()


@restored()
def ran(text: str, program: list[Step], compiled: bool) -> list[Any]:
    """What each call returned, or the error that ended the run."""
    tc.manual_seed(0)
    world = World(text)
    found: list[Any] = []
    try:
        space = vars(world.module)
        step = tc.compile(space["step"]) if compiled else space["step"]
        count = sum(s[0] == "value" for s in program)
        x = tc.tensor([1.0, -3.0])
        for kind, number, *_ in program:
            if kind == "change" and count:
                space[f"change_{number % count}"]()
            elif kind == "call":
                for _ in range(number):
                    found.append(_called(step, x))
    except tc.CompileError as error:
        found.append(error)
    finally:
        _leave_autocast(vars(world.module))
        world.close()
    return found


def _leave_autocast(space: dict[str, Any]) -> None:
    """Leaves what a program has entered: tests that run next in this process are not to be cast."""
    for thing in space.values():
        while type(thing) is tc.autocast and thing._old:
            thing.__exit__(None, None, None)
    state.on = {}  # whichever of several was left last


def check(program: list[Step], device: str) -> str | None:
    """None if the compiled function is right or says why it is not replayed."""
    tc.set_default_device(device)
    text, kinds = text_of(program)
    if not kinds:
        return None
    got = ran(text, program, compiled=True)
    error = got[-1] if got and isinstance(got[-1], tc.CompileError) else None
    if error is None and any(kind.mode == "refuse" for kind in kinds):
        if sum(s[1] for s in program if s[0] == "call"):
            return "frozen: a value that cannot be followed was not refused"
        return None
    if error is not None:
        if all(kind.mode == "follow" for kind in kinds):
            return f"refused: {error}"
        return None if LOCATED in str(error) else f"unlocated: {error}"
    wanted = ran(text, program, compiled=False)
    return None if repr(got) == repr(wanted) else f"stale: {got} instead of {wanted}"


def show(program: list[Step]) -> str:
    """The source, and what is called in which order."""
    order = [f"# {kind} {number}" for kind, number, *_ in program if kind != "value"]
    return text_of(program)[0] + "\n".join(order)
