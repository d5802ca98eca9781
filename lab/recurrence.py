"""Recurrent steps in one kernel beside cuDNN's layers: ways to divide units and sequences.

    python -m lab.recurrence OUT.json [--seconds S]
    python -m lab.recurrence OUT.json --precision tf32x3 --cases all    beside float32 units

Ours is the kernel of the steps alone, of states that lie in memory; torch's a whole layer by cuDNN,
with the products of inputs and the gradients of weights, and beside it those products alone.
States and gradients are compared with NumPy's in float64. `--cases all` times float32 units and the
precision side by side over a range of sizes, by which the choice between them is fitted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/unit"))

from programs import Inputs  # noqa: E402

from lab.matrix_units import Runner  # noqa: E402
from tinygrad_cuda.backend.cuda import compiler  # noqa: E402
from tinygrad_cuda.core import dtypes  # noqa: E402
from tinygrad_cuda.core.config import settings  # noqa: E402
from tinygrad_cuda.graph.node import Node  # noqa: E402
from tinygrad_cuda.graph.ops import recurrence as rc  # noqa: E402
from tinygrad_cuda.graph.ops.common import output  # noqa: E402
from tinygrad_cuda.lowering import lower  # noqa: E402
from tinygrad_cuda.lowering.codegen import skeleton as fill_module  # noqa: E402
from tinygrad_cuda.lowering.skeletons.recurrence import recurrence as skeleton  # noqa: E402
from tinygrad_cuda.lowering.skeletons.recurrence import tiles  # noqa: E402
from tinygrad_cuda.lowering.target import Target  # noqa: E402

TARGET = Target.h200()


class Case(NamedTuple):
    """A layer: LSTM or GRU, steps, sequences, units and the dtype of states."""

    cell: str
    steps: int
    batch: int
    units: int
    dtype: str


CASES = tuple(
    Case(cell, *sizes, dtype)
    for dtype in ("float32", "bfloat16")
    for cell, *sizes in (
        ("lstm", 35, 64, 650), ("lstm", 100, 32, 512), ("gru", 100, 32, 512),
        ("lstm", 35, 64, 1024), ("lstm", 50, 512, 256), ("lstm", 100, 1, 512),
    )
)  # fmt: skip


def shapes_of(case: Case) -> list[tuple[int, ...]]:
    """Of the cotangents of states, the gates and the weight."""
    rows, count = (case.steps, case.batch), 4 if case.cell == "lstm" else 3
    return [(*rows, case.units), (*rows, count * case.units), (count * case.units, case.units)]


@lru_cache(maxsize=1)
def arrays_of(case: Case) -> list[Any]:
    """Normal numbers in these shapes."""
    rng, scales = np.random.default_rng(0), (1.0, 1.0, case.units**-0.5)
    return [s * rng.standard_normal(shape) for s, shape in zip(scales, shapes_of(case))]


def recorded(case: Case) -> tuple[Any, dict[str, Node]]:
    """The program of a layer's steps and of their gradients, and its inputs."""
    new, dtype = Inputs(), getattr(dtypes, case.dtype)
    g, gates, weight = (new(*shape, dtype=dtype) for shape in shapes_of(case))
    state = new(case.batch, case.units, dtype=dtype)
    how = {"reverse": False}
    if case.cell == "lstm":
        whole = rc.lstm(gates, weight, state, state, **how)
        out, cells, active = (output(whole, index=k) for k in range(3))
        none = new(case.steps, case.batch, case.units)
        back = rc.lstm_backward(g, none, active, cells, state, weight, **how)
        results = [out, output(back, index=0)]
    else:
        bias = new(case.units, dtype=dtype)
        whole = rc.gru(gates, weight, bias, state, **how)
        out, active = (output(whole, index=k) for k in range(2))
        back = rc.gru_backward(g, active, out, state, weight, **how)
        results = [out, output(back, index=0)]
    return new.program(*results), dict(zip(("g", "gates", "weight"), (g, gates, weight)))


def expected(case: Case) -> list[Any]:
    """States and the gradients by gates, in float64."""
    g, gates, weight = arrays_of(case)
    state = np.zeros((case.batch, case.units))
    if case.cell == "lstm":
        out, cells, active = rc.lstm.numpy(gates, weight, state, state, reverse=False)
        zeros = np.zeros_like(out)
        return [
            out,
            rc.lstm_backward.numpy(g, zeros, active, cells, state, weight, reverse=False)[0],
        ]
    out, active = rc.gru.numpy(gates, weight, np.zeros(case.units), state, reverse=False)
    return [out, rc.gru_backward.numpy(g, active, out, state, weight, reverse=False)[0]]


# Hidden units and sequences between which float32 units and split products change places.
RANGE = tuple(
    Case(cell, 35, batch, units, "float32")
    for cell in ("lstm", "gru") for units in (128, 256, 384, 512, 650, 1024)
    for batch in (16, 64, 128)
)  # fmt: skip


def _fitting(node: Node) -> list[tiles.RecurrenceTile]:
    return tiles.tiles_for(tiles.sizes_of(node), TARGET, tiles.unit_of(node, TARGET))


def candidates(case: Case) -> list[int]:
    """Numbers of parts for which both kernels fit."""
    program, _ = recorded(case)
    fitting = [{t.parts for t in _fitting(node.sources[0])} for node in program.outputs]
    return sorted(set.union(*fitting))


class Variant(NamedTuple):
    """Parts of the sequences, 0 as chosen; slots of a ring; halves of k at most; unrolled turns."""

    parts: int = 0
    slots: int = tiles.SLOTS
    halves: int = 2
    unrolled: int = 1


VARIANTS = tuple(
    Variant(0, slots, halves, unrolled)
    for slots in (2, 3) for halves in (1, 2) for unrolled in (1, 2)
)  # fmt: skip


@contextmanager
def changed(variant: Variant) -> Iterator[None]:
    """The skeleton's text and the tiles' limits as a variant has them."""
    sections, slots, halves = fill_module._sections, tiles.SLOTS, tiles.HALVES
    again = "#pragma unroll 1\n    for (int start"

    def unrolled(file: str) -> dict[str, str]:
        found = sections(file)
        text = again.replace("unroll 1", f"unroll {variant.unrolled}")
        return {name: one.replace(again, text) for name, one in found.items()}

    fill_module._sections = unrolled
    tiles.SLOTS, tiles.HALVES = variant.slots, tuple(range(1, variant.halves + 1))
    skeleton.SLOTS = variant.slots
    try:
        yield
    finally:
        fill_module._sections, tiles.SLOTS, tiles.HALVES = sections, slots, halves
        skeleton.SLOTS = slots


def lowered(case: Case, variant: Variant) -> tuple[Any, Any, dict[str, Node]]:
    """The program in one variant."""
    program, inputs = recorded(case)
    parts = variant.parts
    chosen = skeleton.tile_of

    def forced(node: Node, target: Target) -> Any:
        fitting = [tile for tile in _fitting(node) if tile.parts == parts]
        return min(fitting, key=lambda t: t.clocks) if fitting else chosen(node, target)

    skeleton.tile_of = forced
    try:
        with changed(variant):
            return lower.lower(program, TARGET), program, inputs
    finally:
        skeleton.tile_of = chosen


def memory_of(made: Any, program: Any, inputs: dict[str, Node], case: Case, torch: Any) -> Any:
    """Every value's memory: inputs, zeros for states and between blocks, nan for results."""
    names = dict(zip(("g", "gates", "weight"), arrays_of(case)))
    kind = getattr(torch, case.dtype)
    memory: dict[Any, Any] = {}
    for node in program.inputs:
        own = next((name for name, given in inputs.items() if given is node), None)
        dtype = getattr(torch, node.dtype.name)
        memory[node] = (
            torch.zeros(node.shape, device="cuda", dtype=dtype) if own is None
            else torch.tensor(names[own], device="cuda", dtype=kind)
        )  # fmt: skip
    for launch in made.launches:
        for word in launch.words:
            if word.kind == "exchange":
                memory[word.operand] = torch.zeros(
                    word.operand.nbytes, dtype=torch.uint8, device="cuda"
                )
            elif word.kind == "value" and word.operand not in memory:
                dtype = getattr(torch, word.operand.dtype.name)
                memory[word.operand] = torch.full(
                    word.operand.shape, float("nan"), device="cuda", dtype=dtype
                )
    return memory


def peers(case: Case, runner: Runner) -> dict[str, float]:
    """Microseconds of cuDNN's layer, and of the products outside the steps."""
    torch, kind = runner.torch, getattr(runner.torch, case.dtype)
    layer = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[case.cell](case.units, case.units)
    layer = layer.to("cuda", kind)
    x = torch.randn(case.steps, case.batch, case.units, device="cuda", dtype=kind)
    x.requires_grad_()
    g = torch.randn_like(x)
    wanted = [x, *layer.parameters()]
    weight = layer.weight_ih_l0.detach()
    rows, gates = (
        x.detach().flatten(0, 1),
        torch.randn(case.steps * case.batch, len(weight), device="cuda", dtype=kind),
    )

    def both() -> None:
        torch.autograd.grad(layer(x)[0], wanted, g)

    return {
        "forward": runner.time(lambda: layer(x)),
        "both": runner.time(both),
        "products forward": runner.time(lambda: rows @ weight.T),
        "products backward": runner.time(lambda: (gates @ weight, gates.T @ rows, gates.T @ rows)),
    }


def measure(case: Case, runner: Runner, variants: Sequence[Variant]) -> dict[str, Any]:
    want, rows = expected(case), []
    made = [lowered(case, variant) for variant in variants]
    binaries = compiler.compile_many([one.source for one, _, _ in made], "sm_90a")
    for variant, (one, program, inputs), binary in zip(variants, made, binaries, strict=True):
        memory = memory_of(one, program, inputs, case, runner.torch)
        times = times_of(one, binary.cubin, memory, runner)
        cuts = [launch.stages[0].label.split(":")[0] for launch in one.launches]
        errors = errors_of(memory, program, want)
        rows.append({"variant": variant, "cuts": cuts, "us": times, "errors": errors})
    return {"case": case, "peers": peers(case, runner), "rows": rows}


def errors_of(memory: Any, program: Any, want: Sequence[Any]) -> list[float]:
    """The largest of the states and of the gradients, over the largest of each."""
    return [
        float(np.abs(memory[node].double().cpu().numpy() - value).max() / np.abs(value).max())
        for node, value in zip(program.outputs, want, strict=True)
    ]


def times_of(made: Any, cubin: bytes, memory: Any, runner: Runner) -> list[float]:
    """Microseconds of each launch."""
    times = []
    for launch in made.launches:
        run = runner.launcher(type("Made", (), {"launches": [launch]}), cubin, memory)
        run()
        run()  # its flags go on from the first run's
        runner.torch.cuda.synchronize()
        times.append(runner.time(run))
    return times


class Way(NamedTuple):
    """A case at a precision: the program, and the clocks of a step, forward and backward."""

    case: Case
    precision: str
    made: Any
    program: Any
    inputs: dict[str, Node]
    clocks: list[float]


def way_of(case: Case, precision: str) -> Way | None:
    """None where no kernel fits."""
    with settings.override(matmul_precision=precision):
        program, _ = recorded(case)
        cuts = [tiles.tile_of(node.sources[0], TARGET) for node in program.outputs]
        clocks = [cut.clocks for cut in cuts if isinstance(cut, tiles.RecurrenceTile)]
        if len(clocks) < len(cuts):
            return None
        return Way(case, precision, *lowered(case, Variant()), clocks)


def chosen_of(case: Case) -> list[str]:
    """The units at `highest`, forward and backward."""
    with settings.override(matmul_precision="highest"):
        program, _ = recorded(case)
        return [tiles.unit_of(node.sources[0], TARGET) for node in program.outputs]


def side_by_side(given: argparse.Namespace) -> None:
    """Float32 units and another precision over RANGE, as far as the time lasts."""
    began, runner, results = time.perf_counter(), Runner(), []
    words = "ieee", "tf32x3" if given.precision == "highest" else given.precision
    ways = [[way_of(case, word) for word in words] for case in RANGE]
    pairs = [(first, second) for first, second in ways if first and second]
    sources = [way.made.source for pair in pairs for way in pair]
    binaries = iter(compiler.compile_many(sources, "sm_90a"))
    print(f"{len(sources)} programs compiled in {time.perf_counter() - began:.0f} s", flush=True)
    print(f"of each forward, backward: us of {words[0]}, us of {words[1]}, their ratio, predicted")
    for pair in pairs:
        cubins = [next(binaries).cubin for _ in pair]
        case, chosen = pair[0].case, chosen_of(pair[0].case)
        if time.perf_counter() - began > given.seconds:
            print("no time for", case)
            continue
        us, off, want = [], [], expected(case)
        for way, cubin in zip(pair, cubins, strict=True):
            memory = memory_of(way.made, way.program, way.inputs, case, runner.torch)
            us.append(times_of(way.made, cubin, memory, runner))
            off.append(errors_of(memory, way.program, want))
        clocks = [way.clocks for way in pair]
        results.append({"case": case, "us": us, "errors": off, "clocks": clocks, "chosen": chosen})
        given.out.write_text(json.dumps(results, default=str))
        print(line_of(case, us, off, clocks, chosen), flush=True)


def line_of(
    case: Case, us: list[list[float]], off: list[list[float]], clocks: list[list[float]],
    chosen: list[str],
) -> str:  # fmt: skip
    """A case of `side_by_side` as it is printed."""
    text = f"{case.cell:5}{case.units:5} x {case.batch:<4}"
    for first, second, a, b, unit in zip(*us, *clocks, chosen, strict=True):
        mark = "*" if (unit != "simt") != (second < first) else " "
        text += f"{first:6.0f}{second:6.0f}{second / first:6.2f}{b / a:6.2f} {unit:>6}{mark} "
    return text + " errors " + "  ".join(" ".join(f"{e:.0e}" for e in each) for each in off)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=50.0)
    parser.add_argument("--variants", action="store_true", help="of float32's kernel, by two cases")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="cases of this one alone")
    parser.add_argument("--precision", default="highest", help="of products of float32")
    parser.add_argument(
        "--cases", choices=("few", "all"), default="few", help="beside cuDNN, or all"
    )
    given = parser.parse_args()
    if given.cases == "all":
        side_by_side(given)
        return
    with settings.override(matmul_precision=given.precision):
        run(given)


def run(given: argparse.Namespace) -> None:
    """All cases, as far as the time lasts."""
    began, runner, results = time.perf_counter(), Runner(), []
    cases = [case for case in CASES if given.dtype in (None, case.dtype)]
    for case in (CASES[0], CASES[5]) if given.variants else cases:
        if time.perf_counter() - began > given.seconds:
            print("no time for", case)
            continue
        cuts = [Variant(), *(Variant(parts) for parts in candidates(case))]
        result = measure(case, runner, VARIANTS if given.variants else cuts)
        results.append(result)
        given.out.write_text(json.dumps(results, default=str))
        print(case, "torch", {k: round(v) for k, v in result["peers"].items()}, flush=True)
        for row in result["rows"]:
            cuts = [cut.split(" sequences in ")[1] for cut in row["cuts"]]
            took = " ".join(f"{us:.0f}" for us in row["us"])
            errors = " ".join(f"{error:.0e}" for error in row["errors"])
            shown = tuple(row["variant"]) if given.variants else cuts
            print(f"    {took} us  {shown}  errors {errors}", flush=True)


if __name__ == "__main__":
    main()
