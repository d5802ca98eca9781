"""Whether the kernel that tuning chooses is the quickest: beside each tier's best, and the model's.

    python -m lab.tuned OUT.json [--only 4096 ...] [--formats bf16 tf32 float32] [--seconds 60]

Each shape is tuned, unless the cache folder has its choice. Then the whole plan is run as programs
run it, by CUDA graphs, with the tuned kernel, with the model's and with the quickest one of each
tier, in turns, behind a write that empties the L2 cache. The ratio is the tuned time over the least
other one; the exit status is 1 where one is above 1.03. `--device emu` tries the command itself.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import tinygrad_cuda as tc
from lab.convolutions import CASES
from lab.convolutions import Case as Convolution
from lab.matrix_units import PRODUCTS, Inputs, operands
from lab.matrix_units import Case as Product
from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.launch.executable import LoweredExecutable
from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import TgcError
from tinygrad_cuda.graph.ops import contraction
from tinygrad_cuda.graph.ops.convolution import convolution
from tinygrad_cuda.graph.ops.movement import permute
from tinygrad_cuda.graph.program import Program
from tinygrad_cuda.lowering.algorithms import options
from tinygrad_cuda.lowering.lower import Lowered, lower
from tinygrad_cuda.lowering.tuning import TuningProblem
from tinygrad_cuda.lowering.tuning_table import OneChoice, Tuned

TURNS = 5
WARM_UP = 3  # runs: the first one by single launches, the second one makes the graph
WORTH = 1.03  # times the best other kernel that the tuned one may take
# A dtype, and how exact its products are.
FORMATS = {
    "bf16": (dtypes.bfloat16, "highest"),
    "tf32": (dtypes.float32, "high"),
    "float32": (dtypes.float32, "highest"),
}
SMALL = (Product(1, 40, 24, 48, "NT"), Convolution("c16 8 3x3", 2, 16, 8, 16, 3))


class Row(NamedTuple):
    """A shape's times.

    Attributes:
        name: of the shape and the dtype.
        choice: the tuned kernel.
        model: the one that the model of time takes.
        times: medians of the plan in microseconds, by what makes it.
        seconds: that tuning took.
    """

    name: str
    choice: str
    model: str
    times: dict[str, float]
    seconds: float

    @property
    def ratio(self) -> float:
        """Of the tuned plan over the best other one."""
        return self.times["tuned"] / min(t for name, t in self.times.items() if name != "tuned")

    def __str__(self) -> str:
        each = ", ".join(f"{name} {time:.1f}" for name, time in self.times.items())
        return f"{self.name}: ratio {self.ratio:.3f}, {self.choice}; us: {each}"


def program_of(case: Product | Convolution, dtype: DType, last: bool = True) -> Program:
    """A product or a convolution over its operands.

    Args:
        last: whether images, weight and result of a convolution lie with the channels last.
    """
    inputs = Inputs()
    if isinstance(case, Product):
        a, b = (inputs(*shape, dtype=dtype) for shape in operands(case))
        x = contraction.transpose(a) if case.layout[0] == "T" else a
        y = contraction.transpose(b) if case.layout[1] == "T" else b
        return inputs.program(contraction.matmul(x, y))

    def operand(n: int, c: int, h: int, w: int) -> Any:
        if not last:
            return inputs(n, c, h, w, dtype=dtype)
        return permute(inputs(n, h, w, c, dtype=dtype), axes=(0, 3, 1, 2))

    x, w = (operand(*case.shapes[name]) for name in "xw")
    node = convolution(x, w, **case.geometry._asdict())
    return inputs.program(permute(node, axes=(0, 2, 3, 1)) if last else node)


def alone(
    program: Program, problem: TuningProblem, tuned: Tuned, machine: Any
) -> Iterator[tuple[str, Lowered]]:
    """The program by the quickest kernel of each tier, as it was measured, and by the model's."""
    yield "model", lower(program, replace(machine.target, tuning=None))
    named = {
        f"{one.tier} {one.cut}".strip(): one
        for one in options(problem.node, machine.target, problem.last)
    }
    tiers = dict.fromkeys(named[name].tier for name, _ in tuned.times if name in named)
    for tier in tiers:
        name = next(n for n, _ in tuned.times if n in named and named[n].tier == tier)
        forced = Tuned(problem.name, tier, named[name].cut, 1.0, "", 1.0)
        table = OneChoice(forced, machine.target.tuning.libraries)
        yield name, lower(program, replace(machine.target, tuning=table))


def runner(
    program: Program, lowered: Lowered, memory: tuple[list[Any], list[Any]], machine: Any
) -> Callable[[], None]:
    """What runs a program as plans are run, over its operands and results."""
    run = partial(LoweredExecutable(program, machine, lowered).start, *memory, ())
    for _ in range(WARM_UP):
        run()
    return run


def memory_of(program: Program, machine: Any) -> tuple[list[Any], list[Any]]:
    """Random operands, and room for the results."""
    random = np.random.default_rng(0)
    inputs = [
        machine.from_host(random.standard_normal(x.shape, np.float32).astype(x.dtype.numpy))
        for x in program.inputs
    ]
    return inputs, [machine.allocate(prod(y.shape) * y.dtype.itemsize) for y in program.outputs]


def measured(case: Product | Convolution, format: str, machine: Any) -> Row:
    """A row, tuned where the cache has no choice for it."""
    dtype, precision = FORMATS[format]
    with settings.override(matmul_precision=precision):
        program, start = program_of(case, dtype), time.monotonic()
        lowered = machine.tuner.lowered(program)
        seconds = time.monotonic() - start
        ((key, decision),) = lowered.schedule.decisions.items()
        tuned = machine.tuner.table.entries[key]
        plans = {"tuned": lowered, **dict(alone(program, decision.problem, tuned, machine))}
    memory = memory_of(program, machine)
    runs = {name: runner(program, plan, memory, machine) for name, plan in plans.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(TURNS):
        for name, run in runs.items():
            times[name].append(machine.measured(run, name))
    return Row(
        f"{label(case)} {format}", tuned.name, tuned.model,
        {name: round(median(each), 3) for name, each in times.items()}, round(seconds, 2),
    )  # fmt: skip


def label(case: Product | Convolution) -> str:
    """A shape for a reader."""
    if isinstance(case, Convolution):
        return f"conv {case.name}"
    batches = f"{case.batches} x " if case.batches > 1 else ""
    return f"{batches}{case.m} x {case.n} x {case.k} {case.layout}"


def main(given: Sequence[str] | None = None) -> int:
    """Measures rows until the time is over; whether one is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="parts of the rows' labels")
    parser.add_argument("--formats", nargs="*", default=["bf16"], choices=FORMATS)
    parser.add_argument("--seconds", type=float, default=60.0, help="after which no row begins")
    parser.add_argument("--device", default="cuda", choices=("cuda", "emu"))
    options = parser.parse_args(given)
    start, rows, worst = time.monotonic(), list[Row](), 0.0
    machine: Any = registry.get(as_device(options.device))
    cases = SMALL if options.device == "emu" else (*PRODUCTS, *CASES)
    named = [(case, format) for format in options.formats for case in cases]
    if options.only:
        named = [pair for pair in named if any(part in label(pair[0]) for part in options.only)]
    with tc.tune():
        for case, format in named:
            if time.monotonic() - start > options.seconds:
                print("out of time before", label(case), format)
                break
            try:
                rows.append(measured(case, format, machine))
            except TgcError as error:
                print(f"{label(case)} {format}: {error}")
                worst = float("inf")
                continue
            worst = max(worst, rows[-1].ratio)
            print(rows[-1], f"(tuned in {rows[-1].seconds:.1f} s)", flush=True)
            options.out.write_text(json.dumps([{**r._asdict(), "ratio": r.ratio} for r in rows]))
    print(f"{len(rows)} rows, the worst ratio {worst:.3f}")
    return int(worst > WORTH)


if __name__ == "__main__":
    sys.exit(main())
