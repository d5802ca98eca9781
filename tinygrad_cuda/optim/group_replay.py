"""A group of parameters that is as its last step left it: compared at once, updated in place.

A few passes in C over lists replace a look at each parameter.
It is in `optim` since it reads states and gradients of each parameter, in one microsecond each.
Without it a plain step of adam_124m takes 106 % longer (H200).
"""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import ref

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.reference_counts import counts_of
from tinygrad_cuda.engine import overwrite
from tinygrad_cuda.engine.cell import Cell, local
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.engine.realize import lock_of, run_again
from tinygrad_cuda.graph.node import Node, mode
from tinygrad_cuda.optim.step_replay import differ
from tinygrad_cuda.replay.plan_lookup import GraphSignature, PlanEntry
from tinygrad_cuda.tensors.tensor import Tensor

State = dict[str, Any]
# How often the plan of a step is looked for that has nothing else in it.
TRIES = 4


class Seen(NamedTuple):
    """What a step finds in a group that is as before.

    Attributes:
        first: the state of the first parameter.
        host: names and values of the host's part of each parameter's state: all have the same.
        given: the gradients' nodes.
        nodes: those of the parameters, and of the Tensors in their states behind them.
    """

    first: State
    host: tuple[tuple[str, Any], ...]
    given: list[Node]
    nodes: list[Node]


class SteadyGroup:
    """What a step has read of a group.

    Args:
        parameters, states: of the group; the states have the same keys.
        kind: what depends on options and the host's state in the updates.
        written: the cells that the updates write, in order.
    """

    def __init__(
        self, parameters: list[Tensor], states: list[State], kind: object, written: list[Cell]
    ) -> None:
        self.parameters, self.states = list(parameters), states
        self.keys = list(map(tuple, self.states))
        values = list(chain.from_iterable(map(dict.values, self.states)))
        self.tensor_indices = [k for k, v in enumerate(values) if isinstance(v, Tensor)]
        self.host_indices = [k for k, v in enumerate(values) if not isinstance(v, Tensor)]
        first = self.states[0]
        self.host_keys = [key for key, v in first.items() if not isinstance(v, Tensor)]
        self.all_tensors = [*parameters, *[values[k] for k in self.tensor_indices]]
        self.cells = list(map(_cell_of, self.all_tensors))
        self.chains = list(map(_chain_of, self.all_tensors))
        self.leaves = [parameter.chain[0][1] for parameter in parameters]
        nodes = [leaf.grad.node for leaf in self.leaves] + list(map(_node_of, self.cells))
        self.facts = list(map(_facts_of, nodes))
        self.device = parameters[0].device
        self.kind, self.written = kind, written
        self.in_place: InPlace | None = None
        self.tries = 0

    def waits(self) -> bool:
        """Whether something is pending, with which the updates make one plan."""
        return bool(local.recorder.pending.get(self.device))

    def look(self, optimizer: Any, parameters: list[Tensor]) -> Seen | None:
        """What the group has, if only values and numbers differ from the last step."""
        if differ(parameters, self.parameters):
            return None
        states = list(map(optimizer.state.get, parameters))
        if differ(states, self.states) or list(map(tuple, states)) != self.keys:
            return None
        values = list(chain.from_iterable(map(dict.values, states)))
        tensors = [*parameters, *[values[k] for k in self.tensor_indices]]
        if differ(tensors, self.all_tensors):
            return None
        cells = list(map(_cell_of, tensors))
        if cells != self.cells or differ(map(_chain_of, tensors), self.chains):
            return None
        gradients = list(map(_grad_of, self.leaves))
        if any(map(_is_none, gradients)) or any(map(_chain_of, gradients)):
            return None
        hosts = [values[k] for k in self.host_indices]
        width = len(hosts) // len(states)
        if Tensor in map(type, hosts) or hosts != hosts[:width] * len(states):
            return None
        given = list(map(_node_of, map(_cell_of, gradients)))
        if any(map(_is_none, map(_storage_of, given))):
            # One may wait in another thread.
            given = [gradient.node for gradient in gradients]
        nodes = list(map(_node_of, cells))
        if any(map(_is_none, map(_storage_of, nodes))):
            return None
        if list(map(_facts_of, chain(given, nodes))) != self.facts:
            return None
        return Seen(states[0], tuple(zip(self.host_keys, hosts)), given, nodes)

    def run(self, seen: Seen, values: list[float]) -> bool:
        """Writes all in place, where nothing is pending; False if the updates are to be recorded.

        Args:
            seen: what there is now.
            values: the numbers of the step.

        Raises:
            IndexError: a label or index of an earlier plan was out of range.
        """
        if self.in_place is None:
            return False
        entry = self.in_place.entry()
        if entry is None:
            self.in_place = None
            return False
        with lock_of(self.device):
            return self.in_place.run(self, entry, seen, values)

    def learn(self, seen: Seen, scalars: dict[Any, list[Node]]) -> None:
        """Looks for the plan of these updates, which have just been recorded.

        Args:
            seen: what they were recorded of.
            scalars: the numbers, as nodes, by kind.
        """
        if self.in_place is None and self.tries < TRIES:
            pending = local.recorder.pending.get(self.device, ())  # shared memory is written
            waiting = [reference() for reference in pending]
            if waiting == self.written:
                self.tries += 1
                self.in_place = _in_place(self, seen, scalars)


class InPlace(NamedTuple):
    """A plan that does nothing but the updates of a group, each in the storage of what it replaces.

    Attributes:
        entry: the plan; weak, so that it goes when plans are forgotten.
        positions: of each storage that it takes: in the gradients' nodes and those of the
            parameters and states behind them.
        numbers: which argument takes which number of a step.
    """

    entry: ref[PlanEntry]
    positions: list[int]
    numbers: list[tuple[int, int]]

    def run(self, steady: SteadyGroup, entry: PlanEntry, seen: Seen, values: list[float]) -> bool:
        """Runs it, if nobody but the cells holds what is overwritten: no node is made then."""
        device, nodes = steady.device, seen.nodes
        if device in overwrite.spared or mode.now.finite:
            return False
        if settings.debug or settings.validate or settings.sync:
            return False
        for cell in steady.cells:
            if cell.aliases is not None:
                cell.forget_aliases()
        storages = list(map(_storage_of, nodes))
        once = [1] * len(nodes)
        if counts_of(nodes) != once or counts_of(storages) != once:
            return False
        storages = [*map(_storage_of, seen.given), *storages]
        if any(map(_is_none, storages)):
            return False
        arguments = entry.arguments.copy()
        for argument, number in self.numbers:
            arguments[argument] = float(values[number])
        inputs = [storages[k] for k in self.positions]
        run_again(lock_of(device), entry.executable, inputs, arguments, {})
        return True


def _in_place(steady: SteadyGroup, seen: Seen, scalars: dict[Any, list[Node]]) -> InPlace | None:
    """The plan of a group's updates, if there is one that overwrites all that they write."""
    wanted = list(map(_node_of, steady.written))
    signature = GraphSignature(steady.device, wanted)
    try:
        entries = cache.signatures.get(signature.key, ())
    except TypeError:
        # An attribute that cannot be part of a key.
        return None
    at = {id(node): index for index, node in enumerate(chain(seen.given, seen.nodes))}
    which = {id(node): k for nodes in scalars.values() for k, node in enumerate(nodes)}
    starts = signature.starts()
    # A scalar is one number.
    numbers = {starts[node][1]: k for node, k in which.items() if node in starts}
    cells = {cell: index for index, cell in enumerate(steady.cells, len(seen.given))}
    if len(signature.storages) != len(signature.inputs) or len(numbers) != len(signature.numbers):
        return None
    positions = [at[id(node)] for node in signature.inputs]
    for entry in entries:
        plain = all(entry.overwritten) and not (entry.fixed_key or entry.inside)
        if plain and len(entry.target_slots) == len(wanted) == len(set(entry.results)):
            # Each result takes the storage of what it replaces, not of another one.
            targets = [positions[entry.target_slots[position]] for position in entry.results]
            if targets == [cells[cell] for cell in steady.written]:
                pairs = [(argument, numbers[number]) for argument, number in entry.single]
                return InPlace(ref(entry), [positions[slot] for slot in entry.slots], pairs)
    return None


_cell_of, _chain_of, _grad_of = attrgetter("cell"), attrgetter("chain"), attrgetter("grad")
_node_of, _storage_of = attrgetter("node"), attrgetter("storage")
_facts_of = attrgetter("requires_grad", "device", "outputs")


def _is_none(value: Any) -> bool:
    return value is None
