"""A replay that finds everything as the last one left it: what it looks at, it looks at in bulk.

It does what `Program.frame` and `Program.run` do, for programs and states where nothing has to be
copied, replaced or made anew but the results. Where that is not so, those two do it.
"""

from __future__ import annotations

from itertools import repeat
from operator import attrgetter, is_, itemgetter
from sys import getrefcount
from typing import Any

from tinygrad_cuda.compile.chain import chainable
from tinygrad_cuda.compile.frame import (
    LISTED,
    Frame,
    RunEvent,
    node_of,
    outputs_of,
    storage_of,
)
from tinygrad_cuda.compile.program import Program
from tinygrad_cuda.compile.results import Fresh, Result
from tinygrad_cuda.compile.signature import Given
from tinygrad_cuda.engine.capture import Stale, structure
from tinygrad_cuda.engine.cell import Cell
from tinygrad_cuda.graph.node import mode
from tinygrad_cuda.tensor.autocast import state as autocast
from tinygrad_cuda.tensor.creation import get_default_device, get_default_dtype
from tinygrad_cuda.tensor.tensor import Tensor

MISS: Any = object()  # what a call gives that must go the long way
NOBODY = Frame([])  # for events of the host, which look at no cell
OWN = LISTED + 1  # references to a thing in a list, if one other thing refers to it

cell_of, grad_of, chain_of = attrgetter("cell"), attrgetter("grad"), attrgetter("chain")
aliases_of, needs_grad = attrgetter("aliases"), attrgetter("requires_grad")


class Steady:
    """The replay of a program for which `steadiable` holds.

    Args:
        program: which has just been replayed.
        given: the arguments of that call.
    """

    def __init__(self, program: Program, given: Given) -> None:
        self.program = program
        self.modes = mode.gradients, get_default_device(), get_default_dtype()
        self.expected = [(type(x), x.cell.node.outputs, x.cell.node.device) for x in given.args]
        (self.event,) = (e for e in program.events if type(e) is RunEvent)
        number = program.events.index(self.event)
        self.before, self.after = program.events[:number], program.events[number + 1 :]
        self._find_cells(len(given.cells))
        self._find_outputs(len(given.cells))
        self.names = [(place, name, value) for name, place, value in program.names]

    def _find_cells(self, arguments: int) -> None:
        """State that is overwritten, then state that is only read; where inputs come from."""
        program = self.program
        own = [place - arguments for place in program.overwritten]
        rest = [place for place in range(len(program.cells)) if place not in own]
        self.own_cells = [program.cells[place] for place in own]
        self.read_cells = [program.cells[place] for place in rest]
        self.own_outputs = [program.outputs[place] for place in own]
        self.read_outputs = [program.outputs[place] for place in rest]
        numbers = [*range(arguments), *(arguments + place for place in (*own, *rest))]
        numbers += range(program.offsets[0] - len(program.constants), program.offsets[0])
        self.inputs = _picked([numbers.index(number) for number in self.event.inputs])

    def _find_outputs(self, arguments: int) -> None:
        """Where the memory of each output comes from: inputs, gradients, hidden, new."""
        program, executable = self.program, self.event.executable
        start, count = program.offsets[0], len(self.event.inputs)
        kept = [gradient for gradient in program.gradients if not gradient.none]
        self.leaves = [gradient.leaf for gradient in kept]
        self.dropped = [gradient.leaf for gradient in program.gradients if gradient.none]
        self.dropped += program.without_gradient
        self.gradient_outputs = [gradient.mould.outputs for gradient in kept if gradient.mould]
        gradients = [gradient.output for gradient in kept]
        self.hidden = self.event.unused
        known = {*gradients, *self.hidden}
        self.new = [n for n, slot in enumerate(executable.results) if slot is None]
        self.new = [number for number in self.new if number not in known]
        others = [*gradients, *self.hidden, *self.new]
        self.outputs = _picked(
            [
                count + others.index(number) if slot is None else slot
                for number, slot in enumerate(executable.results)
            ]
        )
        self.sources = [start + number for number in self.new]
        self.values: list[Any] = [None] * program.offsets[-1]

    def replay(self, args: tuple[Any, ...]) -> Any:
        """What the call returns; or `MISS`, and nothing has happened."""
        given = self._arguments(args)
        if given is None or not self._same_program():
            return MISS
        own_nodes = list(map(node_of, self.own_cells))
        own = list(map(storage_of, own_nodes))
        gradients = list(map(grad_of, self.leaves))
        held = self._gradients(gradients) if gradients else gradients
        if held is None or not self._alone(own_nodes, own):
            return MISS
        read_nodes = list(map(node_of, self.read_cells))
        if list(map(outputs_of, read_nodes)) != self.read_outputs:
            return MISS
        read, spare = list(map(storage_of, read_nodes)), self.event.spare
        if any(map(is_, read, repeat(None))) or any(number not in spare for number in self.hidden):
            return MISS
        program = self.program
        try:
            for step in program.early:
                step.prepare()
        except Stale:
            return MISS
        inputs = self.inputs([*given, *own, *read, *program.constants])
        executable = self.event.executable
        with self.event.lock:
            for event in self.before:
                event(NOBODY)
            new = [executable.room(number) for number in self.new]
            hidden = [spare[number] for number in self.hidden]
            outputs = self.outputs([*inputs, *held, *hidden, *new])
            executable.start(inputs, outputs, self.event.numbers)
        for event in self.after:
            event(NOBODY)
        values = self.values.copy()
        for source, piece in zip(self.sources, new):
            values[source] = piece
        return program.build(Fresh(values, list(args)))

    def _arguments(self, args: tuple[Any, ...]) -> list[Any] | None:
        """The arguments' storages, if they are as those of the program."""
        if len(args) != len(self.expected):
            return None
        found = []
        for tensor, (kind, outputs, device) in zip(args, self.expected):
            if type(tensor) is not kind or tensor.chain:
                return None
            node = tensor.cell.node
            if node.outputs != outputs or node.device is not device or node.requires_grad:
                return None
            if node.storage is None:
                return None
            found.append(node.storage)
        cells = set(map(cell_of, args))
        if len(cells) != len(args) or not self.program.known.isdisjoint(cells):
            return None
        return found

    def _same_program(self) -> bool:
        program = self.program
        gradients, device, dtype = self.modes
        return (
            structure.version == program.version
            and mode.gradients is gradients
            and get_default_device() is device
            and get_default_dtype() is dtype
            and not autocast.on
            and not any(program.hooks)
            and all(
                (place.get(name) if type(place) is dict else place.cell_contents) is value
                for place, name, value in self.names
            )
        )

    def _alone(self, nodes: list[Any], storages: list[Any]) -> bool:
        """Whether nobody else can read what will be overwritten."""
        return (
            list(map(outputs_of, nodes)) == self.own_outputs
            and not any(map(is_, storages, repeat(None)))
            and max(map(getrefcount, nodes), default=0) <= OWN
            and max(map(getrefcount, storages), default=0) <= OWN
            and not any(map(aliases_of, self.own_cells))
            and all(map(is_, map(grad_of, self.dropped), repeat(None)))
        )

    def _gradients(self, tensors: list[Any]) -> list[Any] | None:
        """The old gradients' storages, if nobody else holds any part of them."""
        if not all(map(is_, map(type, tensors), repeat(Tensor))):
            return None
        if max(map(getrefcount, tensors)) > OWN or any(map(chain_of, tensors)):
            return None
        cells = list(map(cell_of, tensors))
        if not all(map(is_, map(type, cells), repeat(Cell))) or any(map(aliases_of, cells)):
            return None
        nodes = list(map(node_of, cells))
        if max(map(getrefcount, cells)) > OWN or max(map(getrefcount, nodes)) > OWN:
            return None
        if list(map(outputs_of, nodes)) != self.gradient_outputs or any(map(needs_grad, nodes)):
            return None
        storages = list(map(storage_of, nodes))
        if max(map(getrefcount, storages)) > OWN or any(map(is_, storages, repeat(None))):
            return None
        return storages


def _picked(places: list[int]) -> Any:
    """A function that takes items at these places out of a list."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: [values[place] for place in places]


def steady(program: Program, given: Given) -> Steady | None:
    """The short way for later calls like this one, which has just been replayed; or None."""
    if program.steady is None:
        program.steady = Steady(program, given) if steadiable(program, given) else False
    return program.steady or None


def steadiable(program: Program, given: Given) -> bool:
    """Whether a replay's checks and its effects can be done in bulk."""
    plain = not given.options and not given.substitutes and not autocast.on
    plain = plain and len(given.args) == len(given.tensors) == len(given.cells)
    if not plain or any(x.chain or x.cell.node.requires_grad for x in given.args):
        return False
    if program.bound or program.leaf_places or program.hooked_before or not chainable(program):
        return False
    if sum(type(event) is RunEvent for event in program.events) != 1:
        return False
    if not all(type(cell) is Cell for cell in program.cells):
        return False
    kept = [gradient for gradient in program.gradients if not gradient.none]
    if any(gradient.run is None for gradient in kept):
        return False
    changed = {id(gradient.leaf) for gradient in program.gradients}
    others = [*program.with_gradient, *program.without_gradient]
    if any(id(leaf) in changed for leaf in others) or program.with_gradient:
        return False
    results = [leaf for leaf in program.leaves if isinstance(leaf, Result)]
    return all(result.given < 0 for result in results)
