"""The kernels of recurrent layers beside NumPy in float64: states and gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from execution import Batch, change_skeleton, device_or_skip

import tinygrad_cuda as tc
from lab.tf32x3 import KINDS, emulated, errors, in_order, values
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


def eight_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the emulator runs together at most, for more units; an H200 has more."""
    emu = registry.get(tc.device("emu"))
    monkeypatch.setattr(emu, "target", replace(Target.emu(), waiting_blocks=8))


def errors_of(problem: Problem, device: Any, precision: str) -> Array:
    """Largest and mean errors of the states, and of the gradients, over the largest of each."""
    batch = Batch(device)
    with settings.override(matmul_precision=precision):
        problem.record(batch, "one")
        (found,) = batch.run().values()
    off = [np.abs(one - want) / np.abs(want).max() for one, want in zip(found, problem.expected())]
    return np.array([[x.max(), x.mean()] for x in (off[0], off[-2])])


# Cells, sizes, whether the weight has positive numbers alone, whose truncated sums would drift.
FED_BACK = (
    ("lstm", (35, 5, 1), False), ("lstm", (35, 1, 7), False), ("lstm", (20, 9, 64), True),
    ("gru", (20, 9, 64), False), ("rnn", (20, 9, 256), True), ("rnn", (20, 9, 256), False),
    ("gru", (300, 1, 7), False),
)  # fmt: skip


@pytest.mark.parametrize(("cell", "sizes", "positive"), FED_BACK, ids=str)
def test_errors_of_split_products_fed_back(
    batch: Batch, cell: str, sizes: tuple[int, int, int], positive: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Beside float32 units: of so many units that split products are chosen, and of fewer."""
    if batch.device.type == "emu":
        eight_blocks(monkeypatch)
    problem = Problem(CELLS[cell], sizes)
    if positive:
        problem.arrays[1] = np.abs(problem.arrays[1]) / np.float32(sizes[2] ** 0.5)
    split, units = (errors_of(problem, batch.device, word) for word in ("tf32x3", "ieee"))
    factor = 1.5 if sizes[2] >= tiles.LEAST_UNITS else 4
    assert (split <= factor * units + 2e-8).all(), (split, units)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("units", [tiles.LEAST_UNITS, 650])
def test_truncated_sums_of_warps_err_no_more_than_a_float32_sum(kind: str, units: int) -> None:
    """The unit's accumulator truncates, which its twin does not."""
    a, b = values(kind, units, np.random.default_rng(13))
    span = -(-units // (16 * tiles.WARPS)) * 16
    parts = [emulated(a[:, k : k + span], b[k : k + span], 8) for k in range(0, units, span)]
    ours = errors(np.sum(parts, axis=0, dtype=np.float32), a, b)
    usual = errors(in_order(a, b), a, b)
    assert ours[0] <= usual[0] and ours[1] <= usual[1], (ours, usual)


HUGE = float(np.finfo(np.float32).max)


def not_finite(op: Op) -> Problem:
    """Infinities of both signs, a number that is none, and sums that overflow."""
    problem = Problem(op, (2, 9, 40))
    weight, state = problem.arrays[1], problem.arrays[2 + len(problem.bias)]
    state[0, 3], state[1, 5], state[2, 7], state[3, 7] = np.inf, -np.inf, np.nan, np.inf
    state[3, 8], state[4, 9], state[5, 11] = -np.inf, HUGE, 3.4028e38
    # Whose low parts are 1.5 of the other sign: that of an infinity's high part overflows, too.
    weight[:, 3] = np.where(np.arange(len(weight)) % 2, 6002.5, -6002.5)
    weight[:, 9] *= 4
    weight[5, 11], weight[7, 13], weight[9, 15] = 0, np.inf, np.nan
    problem.gs[0][1, 6, 4], problem.gs[0][1, 7, 5] = np.inf, np.nan
    return problem


@pytest.mark.parametrize("cell", CELLS)
def test_what_is_not_finite_is_that_of_float32_units(batch: Batch, cell: str) -> None:
    found = {}
    for precision in ("ieee", "tf32x3"):
        one = Batch(batch.device)
        with settings.override(matmul_precision=precision):
            not_finite(CELLS[cell]).record(one, "one")
            (found[precision],) = one.run().values()
    for ours, units in zip(found["tf32x3"], found["ieee"], strict=True):
        np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(units))
        np.testing.assert_allclose(ours, units, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_denormals_of_split_products(batch: Batch, cell: str) -> None:
    """Their high parts are denormal or zero, so a product may lose all of one; none is invented."""
    found = {}
    for precision in ("ieee", "tf32x3"):
        problem, one = Problem(CELLS[cell], (3, 9, 40)), Batch(batch.device)
        problem.arrays[1] *= np.float32(2.0**-130)
        problem.arrays[0] *= np.float32(2.0**-120)
        with settings.override(matmul_precision=precision):
            problem.record(one, "one")
            (found[precision],) = one.run().values()
    for ours, units in zip(found["tf32x3"], found["ieee"], strict=True):
        np.testing.assert_allclose(ours, units, rtol=1e-6, atol=2.0**-126)


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
    change_skeleton(monkeypatch, recurrence.CUH, right, wrong)
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
        by_tf32 = (lstm, float32, "high"), (lstm, float32, "tf32x3"), (gru, float32, "tf32x3")
        for op, dtype, precision in (*kinds, *by_tf32):
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


def units_of(op: Op, sizes: tuple[int, int, int], precision: str, target: Target) -> list[str]:
    """What multiplies forward and backward."""
    problem, inputs = Problem(op, (1, 1, 1)), Batch(tc.device("emu"))
    steps, batch, units = sizes
    shapes = [(steps, batch, GATES[op] * units), (GATES[op] * units, units)]
    shapes += [(units,)] * len(problem.bias) + [(batch, units)] * (2 if op is lstm else 1)
    nodes = [inputs.input(np.broadcast_to(np.float32(0), shape)) for shape in shapes]
    gs = [inputs.input(np.broadcast_to(np.float32(0), sizes)) for _ in problem.gs]
    results = problem.results(gs, nodes)
    with settings.override(matmul_precision=precision):
        rows = [node.sources[0] if node.op is output else node for node in results]
        found = [tiles.tile_of(row, target) for row in (rows[0], rows[-1])]
    return [tile.unit if isinstance(tile, tiles.RecurrenceTile) else tile for tile in found]


# Cells, sizes, the precision, and what multiplies on an H200 forward and backward.
CHOICES = (
    (lstm, (35, 64, 650), "highest", ["tf32x3", "tf32x3"]),
    (lstm, (35, 64, 650), "ieee", ["simt", "simt"]),
    (lstm, (35, 64, 650), "high", ["tf32", "tf32"]),
    (lstm, (100, 32, 512), "highest", ["tf32x3", "tf32x3"]),
    (gru, (100, 32, 512), "highest", ["tf32x3", "tf32x3"]),
    (lstm, (50, 128, 256), "highest", ["tf32x3", "tf32x3"]),
    (lstm, (100, 1, 512), "highest", ["simt", "simt"]),  # a row of 16
    (lstm, (35, 8, 650), "highest", ["simt", "simt"]),
    (lstm, (35, 64, 128), "highest", ["simt", "simt"]),
    (gru, (35, 5, 64), "highest", ["simt", "simt"]),
    (rnn, (35, 1, 1), "highest", ["simt", "simt"]),
    (gru, (35, 5, 64), "tf32x3", ["tf32x3", "tf32x3"]),
)


@pytest.mark.parametrize(("op", "sizes", "precision", "units"), CHOICES, ids=str)
def test_the_precision_and_the_sizes_choose(
    op: Op, sizes: tuple[int, int, int], precision: str, units: list[str]
) -> None:
    """Split products of layers that fill their tiles, where they are predicted to be faster."""
    assert units_of(op, sizes, precision, Target.h200()) == units
    a100 = Target.of_architecture((8, 0))
    assert set(units_of(op, sizes, precision, a100)) == {"simt"}  # where others may spill


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
