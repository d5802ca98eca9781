"""tc.determinism_report: which ops of a step give the same bits, run to run and between devices.

The plans of one call of the step are run again from the same operands: each op alone, and whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.base import NoMemory
from tinygrad_cuda.backend.cpu.rows import evaluate, resolved
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import Device, as_device
from tinygrad_cuda.core.differences import BitDifference, bit_difference
from tinygrad_cuda.core.errors import ArgumentError, DeviceError, OutOfMemoryError, describe_site
from tinygrad_cuda.engine import realize
from tinygrad_cuda.engine.trace import Trace
from tinygrad_cuda.graph.node import Node, node_made, origin_of, with_sources
from tinygrad_cuda.graph.ops import common, random, reduction
from tinygrad_cuda.graph.program import Number, Program
from tinygrad_cuda.replay.switches import switches
from tinygrad_cuda.utils.plans import noting_plans

Array = np.ndarray[Any, Any]
Run = list[Array]
Pair = tuple[str, str]

KINDS = ("cpu", "emu", "cuda")
BATCH = 64  # ops in one program: a translation unit that a compiler makes in seconds
SELECTING = ("where", "maximum", "minimum", "gather", "scatter", "order")
# Elementwise ops that hand bits on: copies, parts of pairs, checks.
COPIES = frozenset(("check_index", "check_unit", "complex", "contiguous", "imag", "real"))
# Functions whose result IEEE 754 or the prelude fixes to the bit.
EXACT = frozenset((
    "abs", "ceil", "copysign", "floor", "nextafter", "rint", "sqrt", "tgc_abs", "tgc_isfinite",
    "tgc_isnan", "tgc_max", "tgc_min", "tgc_sign", "trunc",
))  # fmt: skip


@dataclass(frozen=True)
class OpBits:
    """One op of one line.

    Attributes:
        name: of the op.
        line: of the user's program.
        count: how often the step computes it.
        runs: by device, how two runs of it differ at most.
        devices: by pair of devices, how its results there differ at most.
        reason: why these bits are the same, or not.
    """

    name: str
    line: str
    count: int
    runs: Mapping[str, BitDifference]
    devices: Mapping[Pair, BitDifference]
    reason: str


class DeterminismReport:
    """Which ops and results have the same bits; its text is a table.

    Attributes:
        ops: each op alone, given the same operands on every device.
        results: what the step's plans give, fused as each device runs them.
        compared: names of the devices.
        notes: what was not compared.
    """

    def __init__(
        self, ops: list[OpBits], results: list[OpBits], compared: list[str], notes: list[str]
    ) -> None:
        self.ops, self.results = ops, results
        self.compared, self.notes = compared, notes

    @property
    def run_to_run(self) -> bool:
        """Whether each run gave the bits of the one before, on every device."""
        rows = (*self.ops, *self.results)
        return all(one.same for row in rows for one in row.runs.values())

    def same_on(self, first: str, second: str) -> bool:
        """Whether two devices gave the same bits for every op alone.

        Args:
            first, second: names of devices, such as ``cpu`` and ``emu``.

        Raises:
            ArgumentError: the report does not compare these.
        """
        pairs = list(combinations(self.compared, 2))
        pair = next((p for p in pairs if set(p) == {first, second}), None)
        if pair is None:
            raise ArgumentError(
                "same_on", "these devices were not compared",
                expect=f"two of {', '.join(self.compared)}", actual=f"{first}, {second}",
            )  # fmt: skip
        return all(row.devices[pair].same for row in self.ops)

    def __str__(self) -> str:
        pairs = list(combinations(self.compared, 2))
        titles = [*(f"{name} again" for name in self.compared), *(f"{a} = {b}" for a, b in pairs)]
        lines = ["each op alone, from the same operands:"]
        lines += _table(self.ops, ["op", "count", *titles, "why", "line"], self.compared, pairs)
        lines += ["", "what the step gives, fused:"]
        lines += _table(self.results, ["result of", "count", *titles, "", "line"],
                        self.compared, pairs)  # fmt: skip
        verdict = "the same bits" if self.run_to_run else "other bits"
        lines += ["", f"run to run: {verdict} on {', '.join(self.compared)}", *self.notes]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<DeterminismReport: {len(self.ops)} ops on {', '.join(self.compared)}>"


def determinism_report(
    step: Callable[..., Any],
    *args: Any,
    runs: int = 2,
    devices: Sequence[Any] | None = None,
    **options: Any,
) -> DeterminismReport:
    """Says which ops of a step give the same bits, run to run and on which devices, and why.

    The step is called once, as in training: it changes what it changes. Its plans are then run
    from copies of their inputs on every device. Each op is run alone, from the same operands
    everywhere, so that no op is blamed for another; then each plan is run as that device fuses it.
    On ``emu`` the threads take another order in every run, which shows a missing barrier. Kernels
    of `tc.RawKernel` are not ops, and are not compared. NaNs count as equal.

    Args:
        step: called with `args` and `options`; what it records is compared.
        *args: its arguments.
        runs: how often everything is run on each device, at least 2.
        devices: devices, or their names; by default all of ``cpu``, ``emu``, ``cuda`` that can be
            used here.
        **options: its arguments by name.

    Raises:
        ArgumentError: `runs` is less than 2, or the step computes nothing.
        DeviceError: one of `devices` cannot be used here.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([[1.0, 2.0], [3.0, 4.0]], device="cpu")
        >>> report = tc.determinism_report(lambda: (x @ x).relu().sum().item(), devices=["cpu"])
        >>> [row.name for row in report.ops], report.run_to_run
        (['matmul', 'le', 'where', 'sum'], True)
    """
    if runs < 2:
        raise ArgumentError(
            "determinism_report", "one run has nothing to be compared with",
            expect="runs >= 2", actual=f"runs={runs}",
        )  # fmt: skip
    chosen, notes = _usable(devices)
    realize.realize_all()  # what was recorded before is no part of the step
    with switches.only(), _noted_plans() as plans:
        result = step(*args, **options)
        realize.realize_all()
        del result
    if not plans:
        raise ArgumentError(
            "determinism_report", "the step computes nothing",
            expect="a step that computes Tensors", actual=getattr(step, "__name__", repr(step)),
        )  # fmt: skip
    alone, whole = _Rows(chosen), _Rows(chosen)
    for plan in plans:
        for program, values in plan.single_ops():
            alone.add(program, *_compared(program, values, plan.numbers, chosen, runs))
        program = plan.program
        whole.add(program, *_compared(program, plan.values, plan.numbers, chosen, runs))
    names = [str(device) for device in chosen]
    return DeterminismReport(alone.rows(), whole.rows(), names, notes)


def _usable(devices: Sequence[Any] | None) -> tuple[list[Device], list[str]]:
    """The devices to compare, and what is said of those that are left out."""
    if devices is not None:
        chosen = [as_device(device) for device in devices]
        for device in chosen:
            registry.get(device)
        return chosen, []
    chosen, notes = [], []
    for kind in KINDS:
        if not registry.usable(kind):
            notes.append(f"{kind}: not compared, there is none")
            continue
        device = as_device(kind)
        try:
            registry.get(device)
            chosen.append(device)
        except DeviceError as error:
            notes.append(f"{kind}: not compared, {str(error).splitlines()[0]}")
    return chosen, notes


# What the step computes --------------------------------------------------------------------------


class NotedPlan:
    """A plan as it was before it ran, with copies of its inputs.

    Args:
        device: where it runs.
        wanted: nodes without a value.

    Attributes:
        program: the plan's own graph.
        numbers: its arguments.
        values: its inputs.
    """

    def __init__(self, device: Device, wanted: list[Node]) -> None:
        trace = Trace(wanted)
        number_of = trace.value_numbers.__getitem__
        inputs = set(map(number_of, trace.inputs))
        outputs = [v for v in dict.fromkeys(map(number_of, wanted)) if v not in inputs]
        varying = set(trace.always)
        # The nodes behind all values, in the order of the trace; results with several parts too.
        everything = trace.program(device, list(range(len(trace.owners))), {}, varying)
        self.nodes = everything.outputs
        results = [everything.outputs[value] for value in outputs]
        results = [node for node in results if len(node.outputs) == 1]
        self.program = Program(device, tuple(results), everything.inputs, {})
        self.numbers: list[Number] = [trace.numbers[i] for i in sorted(varying)]
        backend = registry.get(device)
        self.values = [
            np.array(backend.to_host(storage, node.shape, node.dtype))
            for storage, node in zip(trace.storages(), trace.inputs)
        ]

    def single_ops(self) -> Iterator[tuple[Program, list[Array]]]:
        """Programs of ops that do not depend on one another, with the operands of all."""
        values: dict[Node, Any] = {}
        batch: list[Node] = []
        for node in self.nodes:
            sources = [values[source] for source in node.sources]
            if node.op is common.buffer:
                values[node] = self.values[node.attributes["slot"]]
            else:
                values[node] = evaluate(_with_numbers(node, self.numbers), sources)
                if _makes_bits(node):
                    batch.append(node)
        for start in range(0, len(batch), BATCH):
            yield _apart(self.program.device, batch[start : start + BATCH], values)


def _with_numbers(node: Node, numbers: Sequence[Number]) -> Node:
    """A node whose attributes are numbers alone."""
    attributes = {name: resolved(value, numbers) for name, value in node.attributes.items()}
    return node_made(
        node.op, node.sources, attributes, node.outputs, node.device, False, node.site
    )  # fmt: skip


def _makes_bits(node: Node) -> bool:
    """Whether an op's results are not just those of its sources, or a number of the program."""
    if node.op.kind == "leaf":
        return node.op in random.ROWS
    return node.op.kind not in ("identity", "movement") and node.op.name not in COPIES


def _decides(node: Node) -> Node:
    """The op whose bits a result has, behind views and copies of it; of an input's, itself."""
    behind = node
    while _hands_on(behind):
        behind = behind.sources[0]
    return node if behind.op is common.buffer else behind


def _hands_on(node: Node) -> bool:
    if len(node.sources) != 1 or node.op is common.assign:
        return node.op.name in ("check_index", "check_unit")
    return node.op.kind in ("movement", "identity") or node.op.name in COPIES


def _apart(
    device: Device, nodes: Sequence[Node], values: Mapping[Node, Any]
) -> tuple[Program, list[Array]]:
    """The program in which each node reads its operands from memory."""
    inputs: dict[Node, Node] = {}
    outputs: list[Node] = []
    for node in nodes:
        for source in node.sources:
            if source not in inputs:
                spec = source.outputs[:1]
                slot = {"slot": len(inputs)}
                inputs[source] = node_made(common.buffer, (), slot, spec, device, False, None)
        single = with_sources(node, tuple(inputs[source] for source in node.sources))
        parts = range(len(node.outputs))
        several = [common.output(single, index=k) for k in parts] if len(parts) > 1 else [single]
        outputs += several
    operands = [np.asarray(values[source]) for source in inputs]
    return Program(device, tuple(outputs), tuple(inputs.values()), {}), operands


@contextmanager
def _noted_plans() -> Iterator[list[NotedPlan]]:
    """The plans that this thread realizes inside a `with` block, each as it was before it ran."""
    plans: list[NotedPlan] = []

    def note(device: Device, wanted: list[Node]) -> None:
        plan = NotedPlan(device, wanted)
        if plan.program.outputs:
            plans.append(plan)

    with noting_plans(note):
        yield plans


# Runs --------------------------------------------------------------------------------------------


def _compared(
    program: Program,
    values: Sequence[Array],
    numbers: Sequence[Number],
    devices: Sequence[Device],
    runs: int,
) -> tuple[dict[str, list[BitDifference]], dict[Pair, list[BitDifference]]]:
    """How the results differ: by device run to run, and between devices."""
    first: dict[str, Run] = {}
    again: dict[str, list[BitDifference]] = {}
    for device in devices:
        name = str(device)
        first[name], *others = _runs(program, values, numbers, device, runs)
        again[name] = [
            max((bit_difference(one, other) for other in same), default=BitDifference())
            for one, *same in zip(first[name], *others)
        ]
    between = {
        (a, b): list(map(bit_difference, first[a], first[b])) for a, b in combinations(first, 2)
    }
    return again, between


def _runs(
    program: Program,
    values: Sequence[Array],
    numbers: Sequence[Number],
    device: Device,
    runs: int,
) -> list[Run]:
    """The results of each run on one device."""
    backend = registry.get(device)
    moved = Program(device, program.outputs, program.inputs, {})
    results = []
    try:
        executable = backend.compile(moved)
        for number in range(runs):
            storages = [backend.from_host(value) for value in values]
            with settings.override(emu_order=settings.emu_order + number):
                made = executable.run(storages, numbers)
            results.append([
                np.array(backend.to_host(storage, node.shape, node.dtype))
                for storage, node in zip(made, program.outputs)
            ])  # fmt: skip
    except NoMemory as error:
        raise OutOfMemoryError(
            "determinism_report", f"no room on {device} for the ops of a step",
            expect="free memory", actual=str(error), hint="use a smaller batch",
        ) from None  # fmt: skip
    return results


# Rows --------------------------------------------------------------------------------------------


class _Rows:
    """Sums of ops by name and line; of each the largest difference."""

    def __init__(self, devices: Sequence[Device]) -> None:
        names = [str(device) for device in devices]
        self.columns: list[Any] = [*names, *combinations(names, 2)]
        self._counts: dict[Pair, int] = {}
        self._nodes: dict[Pair, Node] = {}
        self._worst: dict[Pair, dict[Any, BitDifference]] = {}

    def add(
        self,
        program: Program,
        again: Mapping[str, list[BitDifference]],
        between: Mapping[Pair, list[BitDifference]],
    ) -> None:
        """The results of one program."""
        differences: dict[Any, list[BitDifference]] = {**again, **between}
        for number, shown in enumerate(program.outputs):
            first = shown.op is not common.output or shown.attributes["index"] == 0
            node = origin_of(_decides(shown))
            key = node.label, describe_site(node.site)
            self._counts[key] = self._counts.get(key, 0) + first
            self._nodes.setdefault(key, node)
            worst = self._worst.setdefault(key, dict.fromkeys(self.columns, BitDifference()))
            for column in self.columns:
                worst[column] = max(worst[column], differences[column][number])

    def rows(self) -> list[OpBits]:
        """The rows, in the order in which the ops are computed."""
        rows = []
        for key, worst in self._worst.items():
            runs = {c: worst[c] for c in self.columns if isinstance(c, str)}
            devices = {c: worst[c] for c in self.columns if not isinstance(c, str)}
            differs = any(not one.same for one in devices.values())
            reason = _reason(self._nodes[key], differs)
            rows.append(OpBits(key[0], key[1], self._counts[key], runs, devices, reason))
        return rows


def _reason(node: Node, differs: bool) -> str:
    """Why an op has the same bits on all devices, or has not."""
    op = node.op
    if op in random.ROWS:
        own = ", own log, sine and cosine" if op is random.random_normal else ""
        return f"Philox by element number{own}"
    if op.kind == "elementwise":
        return _elementwise(node, differs)
    if op.kind in ("reduction", "contraction") or op.name == "scatter_add" or op.name == "cumsum":
        if isinstance(op, reduction.ReductionOp) and op.selects and not differs:
            return "selects elements"
        return "other order of sums" if differs else "sums agree; their order is fixed"
    if op.name in SELECTING and not differs:
        return "selects elements"
    if op.kind == "kernel":
        return "several sums and functions" if differs else "same operations"
    return "copies"


def _elementwise(node: Node, differs: bool) -> str:
    if not differs:
        if node.op.name in SELECTING:
            return "selects elements"
        return "rounded once, as IEEE 754 says" if node.dtype.category > 1 else "exact"
    text = node.op.cuda(node.sources[0].dtype) if callable(node.op.cuda) else str(node.op.cuda)
    called = [name for name in re.findall(r"([a-z_]\w*)\(", text) if name not in EXACT]
    if called:
        return f"library function {called[0].removeprefix('tgc_')}"
    return "rounded in other steps"


# Text --------------------------------------------------------------------------------------------


def _table(
    rows: Sequence[OpBits], titles: list[str], names: Sequence[str], pairs: Sequence[Pair]
) -> list[str]:
    """Aligned lines."""
    table = [titles]
    for row in rows:
        cells = [str(row.runs[name]) for name in names] + [str(row.devices[p]) for p in pairs]
        table.append([row.name, str(row.count), *cells, row.reason, row.line])
    drop = [k for k, title in enumerate(titles) if not title]
    table = [[cell for k, cell in enumerate(cells) if k not in drop] for cells in table]
    widths = [max(map(len, column)) for column in zip(*table)]
    rule = "  ".join("-" * width for width in widths)
    lines = ["  ".join(c.ljust(w) for c, w in zip(cells, widths)).rstrip() for cells in table]
    return [lines[0], rule, *lines[1:]]


__all__ = ["DeterminismReport", "OpBits", "determinism_report"]
