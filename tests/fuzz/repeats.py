"""Programs that resemble one another, in two orders: what was recognised must change nothing.

A program of `graphs` is changed a little: other values, a dtype, a shape, an argument, a step less.
One process runs the program, the changed one and the program again; another one begins with the
changed one. Each result must have the same bits wherever it stands: in one order it is scheduled
anew, in the other it meets templates, plans and kernels of a program that is almost the same.
"""

from __future__ import annotations

import importlib
import os
import pickle
import random
import traceback
import warnings
from typing import Any

import graphs
from graph_ops import DTYPES, FLOATS, OPS

Step = tuple[Any, ...]
Program = list[Step]
Trail = list[tuple[str, Any]]

# Not on cuda: torch initializes CUDA in the parent, and a context does not survive a fork.
LONG = {"cpu": 5_000, "emu": 500}
CHANGES = ("values", "values", "dtype", "shape", "grad", "argument", "argument", "leave", "other")


def generate(seed: int) -> Program:
    """A program of `graphs`, and after its steps the changes that make the other one."""
    k = random.Random(seed)
    program = graphs.generate(seed)
    changes = [("change", k.choice(CHANGES), k.getrandbits(32)) for _ in range(k.randint(1, 3))]
    return program + changes


def changed(program: Program, kind: str, salt: int) -> Program:
    """The program with one change; the same where it has no step of that kind."""
    k = random.Random(salt)
    leaves = [n for n, step in enumerate(program) if step[0] == "leaf"]
    ops = [n for n, step in enumerate(program) if step[0] == "op"]
    other = list(program)
    if kind == "values":
        for n in leaves:
            other[n] = (*program[n][:-1], k.getrandbits(32))
    elif kind in ("dtype", "shape", "grad") and leaves:
        n = k.choice([n for n in leaves if kind != "grad" or program[n][3] in FLOATS] or leaves)
        name, number, shape, dtype, ties, grad, values = program[n]
        if kind == "dtype":
            dtype = k.choice(DTYPES)
        elif kind == "shape":
            shape = tuple(k.choice((size, size, size + 1, 1)) for size in shape)
        else:
            grad = not grad
        other[n] = (name, number, shape, dtype, ties, grad and dtype in FLOATS, values)
    elif kind == "argument" and ops:
        n = k.choice(ops)
        other[n] = (*program[n][:-1], k.getrandbits(32))
    elif kind == "other" and ops:
        n = k.choice(ops)
        family = OPS[program[n][2]].family
        name = k.choice([name for name in OPS if OPS[name].family == family])
        other[n] = (*program[n][:2], name, *program[n][3:])
    elif kind == "leave" and ops:
        del other[k.choice(ops)]
    return other


class Run(graphs.Ours):
    """A run that goes on where torch would differ, and writes down all that can be seen."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.trail: Trail = []

    def program(self, first: graphs.Torch) -> Trail:
        self.lib.manual_seed(0)
        for done in first.done:
            if all(key in self.pool for key in done.keys):
                self.one(done)
        for key, x in list(self.pool.items()):
            self.write(f"t{key} of {first.operations.get(key)}", x)
        for number, leaf in enumerate(self.leaves):
            if leaf.grad is not None:
                self.write(f"gradient of leaf {number}", leaf.grad)
        return self.trail

    def one(self, done: graphs.Done) -> None:
        step, keys, *_ = done
        if step[0] in ("leaf", "look"):
            self.step(done)
            return
        name = step[2] if step[0] == "op" else step[0]
        try:
            results = graphs._perform(self.lib, step, [self.pool[k] for k in keys], self.leaves)
        except Exception as error:
            self.trail.append((f"{name} {step[1]}", f"{type(error).__name__}: {error}"))
            return
        facts = tuple(graphs.Facts.of(x) for x in results)
        self.trail.append((f"{name} {step[1]}", facts))
        for number in done.made:
            if number < len(results):
                self.pool[step[1] * 16 + number] = results[number]

    def write(self, what: str, x: Any) -> None:
        try:
            values = graphs._values(x)
            seen: Any = (str(values.dtype), values.shape, values.tobytes())
        except Exception as error:
            seen = f"{type(error).__name__}: {error}"
        self.trail.append((what, seen))


def _one_after_another(device: str, order: list[graphs.Torch]) -> list[Trail]:
    import tinygrad_cuda as tc

    tc.set_default_device(device)
    return [Run(device).program(first) for first in order]


def _in_a_child(device: str, order: list[graphs.Torch]) -> list[Trail]:
    """What the programs give, one after the other, in a process that has run nothing before."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            answer: Any = _one_after_another(device, order)
        except BaseException:
            answer = traceback.format_exc(limit=-6)
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if not data:
        raise RuntimeError(f"a run died: exit status {os.waitstatus_to_exitcode(status)}")
    answer = pickle.loads(data)
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return list(answer)


def difference(name: str, one: Trail, two: Trail) -> str | None:
    for (what, a), (other, b) in zip(one, two):
        if what != other:
            return f"{name}: {what} instead of {other}"
        if a != b:
            maker = what.split(" of ")[-1].split(" ")[0]
            kind = "value" if isinstance(a, tuple) and isinstance(b, tuple) else "error"
            return f"{kind} of {maker}: {name}, {what}: {str(a)[:300]} and {str(b)[:300]}"
    return None if len(one) == len(two) else f"{name}: {len(one)} and {len(two)} results"


def check(program: Program, device: str) -> str | None:
    """None, or the first result that depends on what ran before."""
    import torch

    # Before the fork: the import, and one thread in torch.
    importlib.import_module("tinygrad_cuda")
    torch.set_num_threads(1)
    steps = [step for step in program if step[0] != "change"]
    other = steps
    for step in program:
        if step[0] == "change":
            other = changed(other, step[1], step[2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        a, b = graphs.Torch(), graphs.Torch()
        a.first(steps)
        b.first(other)
        one, two, again = _in_a_child(device, [a, b, a])
        two_first, one_second = _in_a_child(device, [b, a])
    return (
        difference("repeated", one, again)
        or difference("the program after the changed one", one, one_second)
        or difference("the changed one after the program", two_first, two)
    )


def show(program: Program) -> str:
    """The steps, the changes last."""
    return "\n".join(map(repr, program))
