"""Plans looked up by the calls that record them, without a look at what is inside.

A signature lists pending calls and single nodes. Where it was seen before, and nobody else holds
what the plan overwrites, the plan runs as it did then; else it takes the slow path (trace, plan).
Without it a plain step of lenet takes 263 % longer (H200).
"""

from __future__ import annotations

from collections import Counter
from operator import attrgetter, le
from typing import Any

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.errors import TgcError
from tinygrad_cuda.core.reference_counts import LISTED, reference_count
from tinygrad_cuda.core.trees import picking
from tinygrad_cuda.engine import overwrite
from tinygrad_cuda.engine.capture import capturing, watching
from tinygrad_cuda.engine.plan import Entry, cache, key_numbers
from tinygrad_cuda.engine.realize import TracedRun
from tinygrad_cuda.engine.trace import Trace
from tinygrad_cuda.engine.vmap_trace import tracing
from tinygrad_cuda.graph.compare import same_value
from tinygrad_cuda.graph.node import NO_ATTRIBUTES, Node, mode
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.program import Number, structure
from tinygrad_cuda.replay.generated_guard import GuardMatch, guard_over
from tinygrad_cuda.replay.subgraph_template import Deferred
from tinygrad_cuda.replay.switches import switches

_sources_of = attrgetter("sources")


class GraphSignature(GuardMatch):
    """The pending graph behind some roots, with what says whether another is the same.

    Attributes:
        key: equal where the same values are computed of as many storages; None if some node can
            only be taken by a trace.
        always: positions in `numbers` that are never part of the key.
    """

    __slots__ = ("key", "always", "_numbers_of", "_tokens", "_count")

    def __init__(self, device: Device, wanted: list[Node]) -> None:
        super().__init__([], [], [], [], [], [], [], [])
        self.always: list[int] = []
        self._numbers_of: dict[Node, int] = {}
        self._tokens: list[Any] = []
        self._count = 0
        self.key: Any = None
        listed = self._walk(wanted) and not any(map(_sources_of, self.inputs))
        if listed and self._count_calls():
            numbers_of = self._numbers_of
            self.key = (
                device, tuple(self._tokens), tuple([numbers_of[node] for node in wanted])
            )  # fmt: skip
        # References to nodes are counted.
        self._numbers_of = {}

    def _walk(self, wanted: list[Node]) -> bool:
        """Lists all; False where a trace is needed."""
        numbers_of, inputs = self._numbers_of, self.inputs
        slots, storages = self.slots, self.storages
        tokens, calls, pending = self._tokens, self.calls, self.pending
        numbers: dict[int, int] = {}  # of a storage, by its identity
        stack = wanted[::-1]
        while stack:
            node = stack[-1]
            if node in numbers_of:
                stack.pop()
                continue
            piece = node.piece
            sources = node.sources if piece is None else piece.inputs
            if piece is None and node.op is common.custom:
                # The others are there for its gradient alone.
                sources = sources[: node.attributes["results"]]
            ready = True
            for source in sources:
                if source not in numbers_of:
                    storage = source.storage
                    if storage is None:
                        stack.append(source)
                        ready = False
                        continue
                    slot = numbers.setdefault(id(storage), len(storages))
                    if slot == len(storages):
                        if type(storage) is tuple:
                            return False
                        storages.append(storage)
                    numbers_of[source] = ~slot
                    inputs.append(source)
                    slots.append(slot)
            if ready:
                stack.pop()
                if piece is None:
                    self._add_single(node, sources)
                    continue
                tokens.append((piece.origin, tuple([numbers_of[source] for source in sources])))
                if piece.codes:
                    self.codes += [code for _, code in piece.codes]
                calls.append(piece)
                if len(piece.ends) == 1:
                    self.references.append(LISTED + 1)
                    numbers_of[node] = self._count
                    self._count += 1
                    pending.append(node)
                else:
                    self._add_results(piece)
        return True

    def _add_single(self, node: Node, sources: tuple[Node, ...]) -> None:
        numbers_of, op = self._numbers_of, node.op
        read: list[Any] = [numbers_of[source] for source in sources]
        if node.attributes is NO_ATTRIBUTES or (op.kind == "identity" and op is not common.output):
            # What an identity refers to besides is for gradients.
            described: tuple[Any, ...] = ()
        else:
            described = structure(op, node.attributes, self.numbers, self.always)
        read += [source.outputs for source in sources]
        self._tokens.append((op, described, node.outputs, *read))
        numbers_of[node] = self._count
        self._count += 1
        self.pending.append(node)

    def _add_results(self, call: Deferred) -> None:
        """The results of a call, of which some may be gone."""
        numbers_of, pending, first = self._numbers_of, self.pending, self._count
        self._count += len(call.ends)
        ends = [reference() for reference in call.ends]
        alive = [end for end in ends if end is not None]
        numbers_of.update([(end, first + k) for k, end in enumerate(ends) if end is not None])
        pending += alive
        self.references.append(LISTED + len(alive))
        if len(alive) < len(ends):
            self._tokens.append(tuple([k for k, end in enumerate(ends) if end is None]))

    def _count_calls(self) -> bool:
        """Adds the calls that read others' inner nodes; False where these have been recorded."""
        numbers = {call: number for number, call in enumerate(self.calls)}
        read = [other for call in self.calls for other in call.calls]
        for other in read:
            if other in numbers:
                self.references[numbers[other]] += 1
        return numbers.keys() >= {*read}

    def read(self) -> Counter[Node]:
        """How often calls and single nodes refer to each node."""
        counts: Counter[Node] = Counter()
        for call in self.calls:
            counts.update(call.inputs)
        for node in self.pending:
            if node.piece is None:
                counts.update(node.sources)
        return counts

    def starts(self) -> dict[int, tuple[str, int]]:
        """Where numbers that vary come from: by the identity of a node, recorded if need be."""
        starts: dict[int, tuple[str, int]] = {}
        single = inside = 0
        for node in self.pending:
            if node.piece is None:
                numbers: list[Number] = []
                if node.op.kind != "identity":
                    structure(node.op, node.attributes, numbers, [])
                if numbers:
                    starts[id(node)] = "single", single
                    single += len(numbers)
        for call in self.calls:
            if call.codes:
                codes = call.codes
                nodes = call.expand()
                for position, _ in codes:
                    starts[id(nodes[position])] = "inside", inside
                    inside += 1
        return starts


class Marks:
    """What is to be remembered of a signature while a trace of the same graph runs.

    It refers to no node and no storage: the trace counts who does.
    """

    def __init__(self, signature: GraphSignature, wanted: list[Node]) -> None:
        self.key = signature.key
        self.slots = {id(storage): slot for slot, storage in enumerate(signature.storages)}
        self.input_slots = signature.slots
        read = signature.read()
        self.reads = [read[node] for node in signature.inputs]
        roots = set(wanted)
        self.inner = [k for k, node in enumerate(signature.pending) if node not in roots]
        self.inner_reads = [read[signature.pending[k]] for k in self.inner]
        self.always = set(signature.always)
        self.numbers = signature.numbers
        self.starts = signature.starts()

    def learn(self, run: TracedRun) -> None:
        """Notes how a trace ran what was marked.

        One structure may have several plans: others may refer to a value in one turn alone.
        """
        entries = cache.signatures.setdefault(self.key, PlanEntries())
        entries[:] = [PlanEntry(self, run), *entries[: VARIANTS - 1]]


class PlanEntry:
    """How a plan runs for all graphs of one signature.

    Args:
        marks: of its signature.
        run: by a trace.
    """

    def __init__(self, marks: Marks, run: TracedRun) -> None:
        wanted, trace, outputs, overwrites, self.executable, entry = run
        # Where another number has become an argument since, `entry` has other plans.
        self.entry, self.plans, self.overwrites = entry, entry.plans, overwrites
        slots = [marks.slots[id(storage)] for storage in trace.storages()]
        self.slots, self.storages_of = slots, picking(slots)
        # Results come first, the inputs' storages behind them.
        positions = {value: number for number, value in enumerate(outputs)}
        for node, slot in zip(trace.inputs, slots):
            positions.setdefault(trace.value_numbers[node], len(outputs) + slot)
        self.results = [positions[trace.value_numbers[node]] for node in wanted]
        self._learn_numbers(marks, trace, entry)
        self._learn_targets(marks, trace, outputs, overwrites)
        # Pending values that nobody wants: read inside only.
        self.inner = picking(marks.inner)
        self.inner_counts = [_PICKED + count for count in marks.inner_reads]

    def _learn_numbers(self, marks: Marks, trace: Trace, entry: Entry) -> None:
        """Which numbers of a run come from where; the others must be as they were."""
        origins: list[tuple[str, int] | None] = []
        for owner in trace.owners:
            numbers: list[Number] = []
            if owner.op.kind != "identity" and owner.storage is None:
                structure(owner.op, owner.attributes, numbers, [])
            start = marks.starts.get(id(owner))
            for k in range(len(numbers)):
                origins.append(None if start is None else (start[0], start[1] + k))
        self.arguments = [trace.numbers[position] for position in entry.positions]
        self.single: list[tuple[int, int]] = []
        self.inside: list[tuple[int, int]] = []
        for argument, position in enumerate(entry.positions):
            origin = origins[position]
            if origin is not None:
                kind, number = origin
                (self.single if kind == "single" else self.inside).append((argument, number))
        free = marks.always.union(number for _, number in self.single)
        fixed = [k for k in range(len(marks.numbers)) if k not in free]
        self.fixed = picking(fixed)
        self.fixed_key = key_numbers([marks.numbers[k] for k in fixed])

    def _learn_targets(
        self, marks: Marks, trace: Trace, outputs: list[int], overwrites: dict[int, int]
    ) -> None:
        """For each assign, how often its old value is referred to if nobody else holds it."""
        slots = {trace.value_numbers[node]: slot for node, slot in zip(trace.inputs, self.slots)}
        sharing: dict[int, list[int]] = {}
        for number, slot in enumerate(marks.input_slots):
            sharing.setdefault(slot, []).append(number)
        targets: list[int] = []
        self.target_slots: list[int] = []
        self.target_counts: list[int] = []
        self.slot_counts: list[int] = []
        self.overwritten: list[bool] = []
        self.ranges: list[tuple[int, int]] = []
        self.input_slots = marks.input_slots
        seen: set[int] = set()
        for position, value in enumerate(outputs):
            target = trace.assigns.get(value)
            if target is None or target in seen:
                continue
            seen.add(target)
            slot = slots[target]
            nodes = sharing[slot]
            first = len(targets)
            targets += nodes
            self.target_counts += [_PICKED + marks.reads[k] for k in nodes]
            self.target_slots.append(slot)
            self.slot_counts.append(_PICKED + len(nodes))
            self.overwritten.append(position in overwrites)
            self.ranges.append((first, len(targets)))
        self.targets = picking(targets)
        self.target_storages = picking(self.target_slots)
        self.all_overwritten = all(self.overwritten)

    def fits(self, match: GuardMatch, device: Device) -> bool:
        """Whether numbers and references are such that a trace would find this plan."""
        if self.entry.plans is not self.plans:
            return False
        numbers = self.fixed(match.numbers)
        # Those that a key has as they are need not be made one first.
        if numbers != self.fixed_key and key_numbers(numbers) != self.fixed_key:
            return False
        # Counted from C: no name of a frame refers to a node, call or storage meanwhile.
        if list(map(reference_count, self.inner(match.pending))) != self.inner_counts:
            return False
        if list(map(reference_count, match.calls)) != match.references:
            return False
        if not self.target_slots or device in overwrite.spared:
            return True not in self.overwritten
        if match.slots != self.input_slots:
            return False
        counts = list(map(reference_count, self.targets(match.inputs)))
        in_slots = list(map(reference_count, self.target_storages(match.storages)))
        expected = self.target_counts
        if self.all_overwritten and counts == expected:  # as in most steps: lists are compared
            return in_slots == self.slot_counts or all(map(le, in_slots, self.slot_counts))
        free = [
            counts[first:end] == expected[first:end] and count <= most
            for (first, end), count, most in zip(self.ranges, in_slots, self.slot_counts)
        ]
        return free == self.overwritten

    def numbers(self, match: GuardMatch) -> list[Number]:
        """The numbers of a run."""
        arguments = self.arguments.copy()
        for position, number in self.single:
            arguments[position] = match.numbers[number]
        for position, number in self.inside:
            arguments[position] = match.codes[number]
        return arguments

    def run(self, match: GuardMatch, wanted: list[Node]) -> None:
        """Runs the plan and gives the wanted nodes their values."""
        storages = match.storages
        results = self.executable.run(self.storages_of(storages), self.numbers(match))
        storages_ = [*results, *storages]
        for node, index in zip(wanted, self.results):
            node.storage = storages_[index]
            node.sources = ()
            node.piece = None


class Expected:
    """How a plan would have run that was looked up without a trace, for TGC_VALIDATE.

    It refers to no node and no storage: the trace counts who does.
    """

    def __init__(self, plan: PlanEntry, match: GuardMatch, marks: Marks) -> None:
        self.expected, self.marks = plan, marks
        self.numbers = plan.numbers(match)
        self.storages = list(map(id, plan.storages_of(match.storages)))

    def learn(self, run: TracedRun) -> None:
        """Compares it with the plan of a trace.

        Raises:
            TgcError: they differ.
        """
        wanted, trace, _, overwrites, executable, entry = run
        if entry is not self.expected.entry and overwrites == self.expected.overwrites:
            # A plan of other lines, which TGC_VALIDATE keeps apart.
            self.marks.learn(run)
            return
        numbers = [trace.numbers[position] for position in entry.positions]
        if executable is not self.expected.executable and cache.keeps:
            what, actual = "another plan", "other numbers folded, or other values overwritten"
        elif not same_value(tuple(numbers), tuple(self.numbers)):
            what, actual = "other numbers", f"{self.numbers} instead of {numbers}"
        elif list(map(id, trace.storages())) != self.storages:
            what, actual = "other inputs", "its values in another order, or others"
        else:
            return
        raise TgcError(
            "validate", f"plan_lookup: {what} than by a trace",
            expect="the plan of the same graph on the same values", actual=actual,
            site=wanted[-1].site,
            hint="this is an error of tinygrad_cuda; TGC_FAST=-plan_lookup switches it off",
        )  # fmt: skip


# References to what stands in a list of a match, and in a tuple picked from that list.
_PICKED = LISTED + 1
# A guard is written for a structure that has come this often: it costs what some 50 walks save.
STEADY = 16
# Structures at most; with one more, all are dropped. At first sight only the key is.
CAPACITY = 1024
VARIANTS = 4  # plans of a structure, and guards of a hint


class PlanEntries(list[PlanEntry]):
    """How the plans of one structure run, the last one first.

    Attributes:
        runs: how often one of them has run.
    """

    runs = 0


def run_cached_plan(device: Device, wanted: list[Node]) -> bool | Marks | Expected:
    """Runs the plan for what is wanted if it was seen before.

    Else gives what is to be learned of it, or False. First the guards of such roots are asked;
    where none fits, the graph is walked over.

    Args:
        device: where.
        wanted: nodes without a value, each once.
    """
    if settings.debug or settings.sync or mode.now.finite:
        return False
    if tracing.stack or (watching.on and capturing() is not None):
        return False
    if [node for node in wanted if node.requires_grad and node.spent is None]:
        # What a gradient may still pass through is not overwritten.
        return False
    hint = _hint_of(device, wanted)
    for guard, entries in cache.guards.get(hint, ()):
        match = guard(wanted)
        if match is not None:
            if result := _run_fitting(entries, match, device, wanted, hint):
                return result
            del match  # what it refers to is counted below
            break
    signature = GraphSignature(device, wanted)
    if signature.key is None:
        return False
    try:
        entries = cache.signatures.get(signature.key)
    except TypeError:
        # An attribute that cannot be part of a key.
        return False
    if entries is None:
        if len(cache.signatures) >= CAPACITY:
            cache.forget_signatures()
        cache.signatures[signature.key] = PlanEntries()
        return False
    return _run_fitting(entries, signature, device, wanted, hint) or Marks(signature, wanted)


def _run_fitting(
    entries: PlanEntries, match: GuardMatch, device: Device, wanted: list[Node], hint: Any
) -> bool | Expected:
    """Runs the first plan that fits, if one does; a guard is written once they have run often.

    With TGC_VALIDATE it gives what a trace is compared with.
    """
    for entry in entries:
        if entry.fits(match, device):
            if settings.validate:
                return Expected(entry, match, Marks(GraphSignature(device, wanted), wanted))
            entries.runs += 1
            if entries.runs == STEADY and switches.plan_guards:
                guards = cache.guards.setdefault(hint, [])
                guards[VARIANTS - 1 :] = ()
                guards.insert(0, (guard_over(match, wanted), entries))
            entry.run(match, wanted)
            return True
    return False


def _hint_of(device: Device, wanted: list[Node]) -> Any:
    """Which guards are tried. A text that grows has another shape, and so other guards, each turn.

    Three shapes tell such turns apart; that of each node would cost a tenth of a lookup.
    """
    first, middle, last = wanted[0], wanted[len(wanted) // 2], wanted[-1]
    a, b = first.piece, last.piece
    made = first.op if a is None else a.origin, last.op if b is None else b.origin
    return device, len(wanted), made, first.shape, middle.shape, last.shape
