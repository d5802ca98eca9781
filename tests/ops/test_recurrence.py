"""The kernels of recurrent layers beside NumPy in float64: states and gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from execution import Batch, device_or_skip

import tinygrad_cuda as tc
from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda.compiler import REPORT, architecture_of, compile_source, resources
from tinygrad_cuda.backend.emu.runtime import KernelFault
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.dtypes import DType, bfloat16, float16, float32
from tinygrad_cuda.graph.node import Node, Op
from tinygrad_cuda.graph.ops.common import full, output
from tinygrad_cuda.graph.ops.recurrence import (
    gru,
    gru_backward,
    lstm,
    lstm_backward,
    rnn,
    rnn_backward,
)
from tinygrad_cuda.lowering import lower
from tinygrad_cuda.lowering.codegen import skeleton
from tinygrad_cuda.lowering.skeletons.recurrence import recurrence, tiles
from tinygrad_cuda.lowering.target import Target

Array = np.ndarray[Any, Any]
TOLERANCE = {"float32": 2e-6, "float16": 2**-9, "bfloat16": 2**-6}  # of the largest result
GATES: dict[Op, int] = {lstm: 4, gru: 3, rnn: 1}
CELLS = {"lstm": lstm, "gru": gru, "rnn": rnn}


@pytest.fixture(params=["emu", "cuda"])
def batch(request: pytest.FixtureRequest) -> Batch:
    return Batch(device_or_skip(request.param, request))


class Problem:
    """All steps of a layer and of its gradient, and what float64 makes of them.

    Args:
        op: the row.
        sizes: steps, sequences and units.
        states: whether there are first states; zeros where there are none.
    """

    def __init__(
        self, op: Op, sizes: tuple[int, int, int], dtype: DType = float32, reverse: bool = False,
        states: bool = True, relu: bool = False,
    ) -> None:  # fmt: skip
        rng = np.random.default_rng(sum(sizes))
        steps, batch, units = sizes
        self.op, self.dtype, self.states = op, dtype, states
        self.how: dict[str, Any] = {"reverse": reverse}
        if op is rnn:
            self.how["relu"] = relu
        width = GATES[op] * units

        def some(*shape: int, scale: float = 1.0) -> Array:
            return np.asarray(scale * rng.standard_normal(shape)).astype(dtype.numpy)

        weight = some(width, units, scale=units**-0.5)
        self.bias = [some(units)] if op is gru else []
        first = [some(batch, units) * states for _ in range(2 if op is lstm else 1)]
        self.arrays = [some(steps, batch, width), weight, *self.bias, *first]
        self.gs = [some(steps, batch, units)]
        if op is lstm:
            self.gs.append(some(steps, batch, units).astype(np.float32))

    def record(self, batch: Batch, name: str) -> None:
        nodes = [batch.input(array) for array in self.arrays]
        if not self.states:
            count = 2 + len(self.bias)
            nodes[count:] = [full(0, node.shape, node) for node in nodes[count:]]
        gs = [batch.input(array) for array in self.gs]
        batch.want(name, self.results(gs, nodes))

    def results(self, gs: list[Node], nodes: list[Node]) -> list[Node]:
        node = self.op(*nodes, **self.how)
        if self.op is rnn:
            back = rnn_backward(gs[0], node, nodes[1], **self.how)
            return [node, *(output(back, index=k) for k in range(2))]
        count = len(node.outputs)
        parts = [output(node, index=k) for k in range(count)]
        if self.op is lstm:
            back = lstm_backward(*gs, parts[2], parts[1], nodes[3], nodes[1], **self.how)
        else:
            back = gru_backward(gs[0], parts[1], parts[0], nodes[3], nodes[1], **self.how)
        return [*parts, *(output(back, index=k) for k in range(3))]

    def expected(self) -> list[Array]:
        arrays, gs = ([x.astype(np.float64) for x in xs] for xs in (self.arrays, self.gs))
        assert self.op.numpy is not None
        found = self.op.numpy(*arrays, **self.how)
        if self.op is rnn:
            return [found, *rnn_backward.numpy(gs[0], found, arrays[1], **self.how)]
        if self.op is lstm:
            whole = (*gs, found[2], found[1], arrays[3], arrays[1])
            return [*found, *lstm_backward.numpy(*whole, **self.how)]
        whole = (gs[0], found[1], found[0], arrays[3], arrays[1])
        return [*found, *gru_backward.numpy(*whole, **self.how)]

    def compare(self, found: list[Array], name: str) -> None:
        for number, (one, want) in enumerate(zip(found, self.expected(), strict=True)):
            error = np.abs(one.astype(np.float64) - want).max(initial=0)
            bound = TOLERANCE[self.dtype.name] * max(np.abs(want).max(initial=0), 1)
            assert error <= bound, f"{name}, result {number}: {error} of {np.abs(want).max()}"


def check(batch: Batch, problems: dict[str, Problem]) -> None:
    """All of them in one program."""
    for name, problem in problems.items():
        problem.record(batch, name)
    found = batch.run()
    for name, problem in problems.items():
        problem.compare(found[name], name)


def test_sizes(batch: Batch) -> None:
    """One unit, prime ones, one off a quad, one sequence, more than a tile's."""
    sizes = ((1, 1, 1), (3, 2, 17), (4, 9, 31), (2, 70, 12), (5, 3, 33))
    check(batch, {
        f"{name} {size}": Problem(op, size, reverse=number % 2 == 1)
        for name, op in CELLS.items()
        for number, size in enumerate(sizes)
    })  # fmt: skip


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=repr)
def test_half_types(batch: Batch, dtype: DType) -> None:
    check(batch, {
        f"{name} {reverse}": Problem(op, (4, 10, 36), dtype, reverse)
        for name, op in CELLS.items()
        for reverse in (False, True)
    })  # fmt: skip


def test_every_tile(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts, rows of a lane, sums over one gate or all: a problem with so many steps each."""

    def forced(node: Node, target: Target) -> tiles.RecurrenceTile:
        sizes = tiles.sizes_of(node)
        fitting = tiles.tiles_for(sizes, target, tiles.unit_of(node, target))
        return fitting[(sizes.steps - 2) % len(fitting)]

    monkeypatch.setattr(recurrence, "tile_of", forced)
    check(batch, {
        f"{dtype} {steps}": Problem(lstm, (steps, 35, 20), dtype, reverse=steps % 2 == 1)
        for dtype in (float32, bfloat16)
        for steps in range(2, 12)
    })  # fmt: skip


def test_first_states_of_zeros_and_relu(batch: Batch) -> None:
    check(batch, {
        "lstm": Problem(lstm, (3, 5, 20), states=False),
        "gru": Problem(gru, (3, 5, 20), states=False),
        "relu": Problem(rnn, (3, 5, 20), relu=True),
    })  # fmt: skip


@pytest.mark.parametrize(("precision", "tolerance"), [("high", 2**-9), ("tf32x3", 2e-6)])
def test_float32_by_matrix_units(
    batch: Batch, precision: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the settings permit: rounded operands, or split ones, as exact as float32 units."""
    monkeypatch.setitem(TOLERANCE, "float32", tolerance)
    with settings.override(matmul_precision=precision):
        assert tiles.unit_of(batch.input(np.zeros(1, np.float32)), Target.emu()) != "simt"
        check(batch, {
            f"{name} {size}": Problem(op, size, reverse=number % 2 == 1)
            for name, op in CELLS.items()
            for number, size in enumerate(((3, 9, 37), (4, 40, 24), (2, 5, 130)))
        })  # fmt: skip


@pytest.mark.parametrize("precision", ["ieee", "tf32x3"])
def test_states_and_weights_close_to_the_largest_number(batch: Batch, precision: str) -> None:
    """Whose high part of tf32 cannot be rounded up; beside tiny factors."""
    problems, tiny = {}, 2.0**-126
    for value in (3.4028e38, -3.4028e38, float(np.finfo(np.float32).max)):
        state, weight = (Problem(lstm, (1, 9, 37)) for _ in range(2))
        state.arrays[1][:, 3], state.arrays[2][:, 3] = tiny, value
        weight.arrays[1][5, 3], weight.arrays[2][:, 3] = value, tiny
        weight.gs = [g / 8 for g in weight.gs]  # so that its products with the weight are finite
        problems |= {f"state {value}": state, f"weight {value}": weight}
    with settings.override(matmul_precision=precision):
        check(batch, problems)


def test_many_steps(batch: Batch) -> None:
    """Two buffers take turns often."""
    check(batch, {name: Problem(op, (30, 4, 9)) for name, op in CELLS.items()})


def test_results_do_not_depend_on_the_order_of_threads(request: pytest.FixtureRequest) -> None:
    """Blocks, warps and copies at random moments: a missing wait would show in the bits."""
    batch = Batch(device_or_skip("emu", request))
    assert not orders_that_differ(batch)


@pytest.mark.parametrize(
    ("right", "wrong"),
    {
        "states": ("await(before + step + 1);", ""),
        "gradients": ("await(before + step);", ""),
        "sums of gates": ("if (lane < @gates@)", "if (false)"),
        "the launch before": ("seen = tgc_grid_flag(flags, flag_first + block)", "seen = 0"),
    }.values(),
)  # fmt: skip
def test_a_missing_wait_is_noticed(
    right: str, wrong: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wait of the protocol, left out in turn."""
    sections = {
        name: text.replace(right, wrong)
        for name, text in skeleton._sections(recurrence.CUH).items()
    }
    assert sections != skeleton._sections(recurrence.CUH)
    others = skeleton._sections
    monkeypatch.setattr(
        skeleton, "_sections", lambda file: sections if file == recurrence.CUH else others(file)
    )
    assert orders_that_differ(Batch(device_or_skip("emu", request)))


def test_a_missing_barrier_is_noticed(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that publishes before all of its warps have stored: some are a barrier behind."""
    head = "auto publish = [&](int flag, int steps) {\n"
    plant(monkeypatch, f"{head}  __syncthreads();", head)
    with pytest.raises(KernelFault, match="hangs"):
        orders_that_differ(Batch(device_or_skip("emu", request)))


def plant(monkeypatch: pytest.MonkeyPatch, right: str, wrong: str) -> None:
    """Puts a fault into the skeleton."""
    sections = skeleton._sections
    own = {name: text.replace(right, wrong) for name, text in sections(recurrence.CUH).items()}
    assert own != sections(recurrence.CUH)
    monkeypatch.setattr(
        skeleton, "_sections", lambda file: own if file == recurrence.CUH else sections(file)
    )


def orders_that_differ(batch: Batch) -> list[int]:
    """The orders of threads in which some bits differ from those of the first run, in order."""
    for name, op in CELLS.items():
        for dtype in (float32, bfloat16):
            Problem(op, (4, 9, 24), dtype).record(batch, f"{name} {dtype}")
    run = batch.runner(registry.get(batch.device).compile(batch.program()))
    first, found = run(batch.arrays), []
    for order in (1, 2, 3, 4):
        with settings.override(emu_order=order):
            again = run(batch.arrays)
        bits = [[x.tobytes() for xs in each.values() for x in xs] for each in (first, again)]
        found += [order] * (bits[0] != bits[1])
    return found


# Text ---------------------------------------------------------------------------------------------


def lowered(problem: Problem, target: Target) -> lower.Lowered:
    batch = Batch(tc.device("emu"))
    problem.record(batch, "one")
    return lower.lower(batch.program(), target)


@pytest.mark.parametrize("units", [100, 650, 1024])
def test_kernels_compile_without_spills(units: int, architectures: list[str]) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    for arch in architectures:
        capability = divmod(int(arch.removeprefix("sm_")), 10)
        target = replace(Target.h200(), architecture=capability)
        if capability < (8, 0):
            continue
        kinds = (lstm, float32, "ieee"), (gru, float32, "ieee"), (lstm, bfloat16, "ieee")
        for op, dtype, precision in (*kinds, (lstm, float32, "high"), (lstm, float32, "tf32x3")):
            with settings.override(matmul_precision=precision):
                made = lowered(Problem(op, (35, 64, units), dtype), target)
            own = [one for one in made.launches if one.stages[0].kernel.kind == "recurrence"]
            assert len(own) == 2 and all(one.blocks <= 132 for one in own)
            log = compile_source(made.source, architecture_of(made.source, arch), REPORT).log
            used = resources(log)
            spills = {launch.name: used[launch.name].spill_stores for launch in own}
            assert not any(spills.values()), f"{arch}: {spills}"


def test_half_types_go_to_matrix_units() -> None:
    for op in CELLS.values():
        nodes = [Batch(tc.device("emu")).input(x) for x in Problem(op, (2, 9, 40), bfloat16).arrays]
        tile = tiles.tile_of(op(*nodes, **Problem(op, (2, 9, 40)).how), Target.emu())
        assert isinstance(tile, tiles.RecurrenceTile) and tile.mma and tile.blocks == 4


@pytest.mark.parametrize("backward", [False, True])
def test_float32_units_take_all_sequences_of_a_part_at_one_time(backward: bool) -> None:
    """A second tile of a step waits for all blocks again: 1,074 for 489 us of LSTM's gradient."""
    sizes = tiles.Sizes(steps=35, batch=64, units=650, gates=4, backward=backward)
    fitting = tiles.tiles_for(sizes, Target.h200(), "simt")
    assert min(fitting, key=lambda tile: tile.clocks).tiles == 1


@pytest.mark.parametrize(
    ("target", "units", "reason"),
    [
        (replace(Target.h200(), waiting_blocks=0), 64, "cannot wait for each other"),
        (Target.h200(), 2000, "do not fit in shared memory"),
    ],
)
def test_a_machine_without_the_kernel_has_the_composition(
    target: Target, units: int, reason: str
) -> None:
    problem = Problem(lstm, (2, 2, units))
    node = problem.op(*map(Batch(tc.device("emu")).input, problem.arrays), **problem.how)
    found = tiles.tile_of(node, target)
    assert isinstance(found, str) and reason in found
    made = lowered(problem, target).schedule
    kinds = {kernel.kind for kernel in made.kernels}
    assert [note.split()[0] for note in made.notes] == ["lstm", "lstm_backward"]
    assert all(reason in note for note in made.notes)
    assert "recurrence" not in kinds and "contract" in kinds
