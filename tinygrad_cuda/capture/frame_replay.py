"""The present replay: the cells it touches, the plans it runs, the gradients it leaves.

It is in `capture` since every captured program runs by it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter, is_
from typing import Any

from tinygrad_cuda.capture.results import Fresh, OutputSpec
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.errors import describe_site
from tinygrad_cuda.core.reference_counts import LISTED, NAMED, reference_count
from tinygrad_cuda.engine.capture import CapturedRun, duplicate
from tinygrad_cuda.engine.cell import Cell
from tinygrad_cuda.engine.realize import lock_of, realize_cell
from tinygrad_cuda.graph.node import NO_ATTRIBUTES, Node, node_made
from tinygrad_cuda.graph.ops import common

Writes = list[tuple[int, OutputSpec]]  # numbers of cells, and what they hold afterwards
node_of = attrgetter("node")
storage_of = attrgetter("storage")
outputs_of = attrgetter("outputs")


class ReplayFrame:
    """The present replay.

    Attributes:
        cells: the cells, by their number in the program.
        nodes: their values at the beginning.
        values: their storages, the constants, then the outputs of each run.
    """

    __slots__ = ("cells", "nodes", "values")

    def __init__(self, cells: list[Cell]) -> None:
        self.cells = cells
        self.nodes: list[Node] = list(map(node_of, cells))
        self.values: list[Any] = list(map(storage_of, self.nodes))
        if any(map(is_, self.values, repeat(None))):
            self._settle()

    def _settle(self) -> None:
        """Some value is another thread's, or could not be computed."""
        for cell in self.cells:
            if cell.node.storage is None:
                if cell.error is not None:
                    raise cell.error.anew()
                realize_cell(cell)
        self.nodes = list(map(node_of, self.cells))
        self.values = list(map(storage_of, self.nodes))

    def own(self, indices: list[int]) -> None:
        """Gives cells storages that nobody else can read, since they will be overwritten."""
        for index in indices:
            if self.cells[index].aliases is not None:
                self.cells[index].forget_aliases()
        nodes = list(map(reference_count, self.nodes))
        storages = list(map(reference_count, self.values))
        for index in indices:
            # Besides the lists: the cell refers to the node, the node to the storage.
            if nodes[index] - LISTED > 1 or storages[index] - LISTED > 1:
                self._copy(index)

    def _copy(self, index: int) -> None:
        old = self.nodes[index]
        storage = duplicate(old.device, old.storage)
        node = node_made(common.buffer, (), NO_ATTRIBUTES, old.outputs, old.device, False, old.site)
        node.storage = storage
        self.cells[index].node = self.nodes[index] = node
        self.values[index] = storage
        if settings.debug >= 3:
            line = describe_site(old.site)
            print(f"compile: copied before it is overwritten: {line}", file=sys.stderr)

    def write(self, writes: Writes) -> None:
        """Puts new values into cells that were there before."""
        cells, nodes, values = self.cells, self.nodes, self.values
        for index, output_spec in writes:
            new, node = values[output_spec.source], nodes[index]
            if new is node.storage:
                continue
            cell = cells[index]
            if cell.aliases is not None:
                cell.forget_aliases()
            # This variable, the list and the cell: nobody else has this node.
            alone = reference_count(node) == NAMED + 2 and type(cell) is Cell
            if alone and not (output_spec.requires_grad or node.requires_grad):
                node.storage = new
            else:
                cell.put(output_spec.node(new))


class RunEvent:
    """Runs one plan, and writes what it computed for cells; signals wait meanwhile."""

    __slots__ = (
        "device", "lock", "executable", "inputs", "numbers", "writes", "copies", "unused", "spare",
    )  # fmt: skip

    def __init__(
        self, run: CapturedRun, inputs: list[int], writes: Writes, unused: list[int]
    ) -> None:
        self.device, self.lock, self.executable = run.device, lock_of(run.device), run.executable
        self.copies = [slot for slot, source in enumerate(run.inputs) if source[0] == "copy"]
        self.inputs, self.numbers, self.writes = inputs, run.numbers, writes
        # Outputs that nobody sees, such as gradients dropped by zero_grad(): their memory stays
        # with the program, which spares asking for it in each call. That of gradients which are
        # replaced comes here just before the run.
        self.unused = [] if run.device is CPU else unused
        self.spare: dict[int, Any] = {}

    def __call__(self, frame: ReplayFrame) -> None:
        values = frame.values
        storages = [values[number] for number in self.inputs]
        for slot in self.copies:
            storages[slot] = duplicate(self.device, storages[slot])
        with self.lock:
            results = self.executable.run(storages, self.numbers, self.spare)
        values += results
        self.spare = {output: results[output] for output in self.unused}
        frame.write(self.writes)


@dataclass(slots=True, eq=False)
class GradientSlot:
    """A leaf whose gradient a call leaves as a fresh Tensor, or drops.

    Attributes:
        none: the call leaves no gradient.
        run, output: what computes the new gradient, if its memory may be the old one's.
    """

    leaf: Any
    output_spec: OutputSpec | None
    build: Callable[[Fresh], Any]
    none: bool
    previous: Any = None
    run: RunEvent | None = None
    output: int = 0

    def drop(self) -> None:
        """Frees the old gradient's memory before the plan wants it, if nobody else holds it."""
        leaf, output_spec = self.leaf, self.output_spec
        old, leaf.grad = leaf.grad, None
        if old is None or output_spec is None or old.chain:
            return
        cell = old.cell
        node = cell.node
        counts = reference_count(old), reference_count(cell), reference_count(node)
        # This variable; for the others the attribute besides.
        if counts != (NAMED, NAMED + 1, NAMED + 1):
            return
        if type(cell) is Cell and node.outputs == output_spec.outputs and not node.requires_grad:
            if cell.aliases is not None:
                cell.forget_aliases()
            storage, node.storage = node.storage, None
            self.previous = old
            if self.run is not None and reference_count(storage) == NAMED:
                self.run.spare[self.output] = storage

    def leave(self, fresh: Fresh) -> None:
        """Sets the new gradient."""
        previous, self.previous = self.previous, None
        if previous is None or self.output_spec is None:
            self.leaf.grad = self.build(fresh)
        else:
            previous.cell.node.storage = fresh.values[self.output_spec.source]
            self.leaf.grad = previous
