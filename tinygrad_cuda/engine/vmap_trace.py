"""What holds while a function is recorded for inputs without values, which nobody may look at.

`vmap` records its function for one example, `onnx.export` a model for inputs of several sizes.

Each thread has a stack of such recordings, one inside the other.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable

from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.errors import ArgumentError, TgcError
from tinygrad_cuda.engine.capture import watching
from tinygrad_cuda.engine.cell import Cell, local
from tinygrad_cuda.graph.batching import dependent, example
from tinygrad_cuda.graph.node import Node, made_by


class Recording:
    """One call of a function under `vmap`, or of a model that is exported.

    Args:
        randomness: ``error``, ``same`` or ``different``: what a random function does.
        op: the public function that records, for errors.

    Attributes:
        examples: the nodes that stand for one example.
    """

    def __init__(self, randomness: str, op: str = "vmap") -> None:
        self.randomness = randomness
        self.op = op
        self.examples: set[Node] = set()
        self._drawn: set[tuple[int, int]] = set()
        self._before: dict[Device, int] = {}

    def __enter__(self) -> Recording:
        self._before = {device: len(cells) for device, cells in local.recorder.pending.items()}
        tracing.stack.append(self)
        watching.count(1)
        return self

    def __exit__(self, *error: object) -> None:
        tracing.stack.remove(self)
        watching.count(-1)
        self._take_back()

    def depends(self, node: Node) -> bool:
        """Whether a leaf is one of the examples or is drawn for each."""
        return node in self.examples or self.draws(node)

    def draws(self, node: Node) -> bool:
        """Whether a random leaf is drawn for each example."""
        attributes = node.attributes
        return (attributes.get("seed"), attributes.get("number")) in self._drawn

    def drawn(self, seed: int, number: int, on_host: bool) -> None:
        """A random function was called.

        Raises:
            ArgumentError: none may be, or none of its kind.
        """
        if self.randomness == "error":
            if self.op != "vmap":
                raise ArgumentError(
                    self.op,
                    "a random function was called inside",
                    expect="a graph without random numbers",
                    actual="a draw from a generator",
                    hint="pass random Tensors as inputs",
                )
            raise ArgumentError(
                "vmap",
                "a random function was called inside",
                expect="vmap(..., randomness='different') or 'same'",
                actual="randomness='error'",
                hint="'different' draws for each example, 'same' once for all; "
                "model.eval() switches dropout off",
            )
        if on_host and self.randomness == "different":
            raise ArgumentError(
                "vmap",
                "this random function draws on the host, once for all examples",
                expect="randomness='same', or numbers drawn outside and mapped over",
                actual="randomness='different'",
            )
        if self.randomness == "different":
            self._drawn.add((seed, number))

    def made(self, cell: Cell) -> bool:
        """Whether a pending cell began to wait inside."""
        for device, cells in local.recorder.pending.items():
            if any(reference() is cell for reference in cells[self._before.get(device, 0) :]):
                return True
        return False

    def _take_back(self) -> None:
        """Cells that outlive the recording and show one example will never have a value."""
        for device, cells in local.recorder.pending.items():
            first = self._before.get(device, 0)
            alive = [(r, cell) for r in cells[first:] if (cell := r()) is not None]
            dependents = dependent([cell.node for _, cell in alive], self.depends)
            others: list[weakref.ref[Cell]] = []
            for reference, cell in alive:
                if cell.node in dependents:
                    cell.recorder, cell.error = None, _escaped(self.op, cell.node)
                else:
                    others.append(reference)
            cells[first:] = others


class _Tracing(threading.local):
    def __init__(self) -> None:
        self.stack: list[Recording] = []


tracing = _Tracing()


def refuse_examples(nodes: Iterable[Node]) -> list[Node]:
    """Of nodes whose values are asked for those that have none yet.

    Raises:
        ArgumentError: one of them stands for an example.
    """
    wanted = [node for node in nodes if node.storage is None]
    dependents = dependent(wanted, _depends)
    for node in wanted:
        if node in dependents:
            raise ArgumentError(
                tracing.stack[-1].op,
                "a value was looked at inside",
                expect="operations on Tensors: values are computed afterwards",
                actual=made_by(node),
                hint="return the Tensor and look at it outside; tc.where() chooses by value",
            )
    return wanted


def _depends(node: Node) -> bool:
    return node.op is example or any(recording.draws(node) for recording in tracing.stack)


def check_write(op: str, cell: Cell, value: Node) -> None:
    """Refuses to put what differs from example to example into a Tensor from outside.

    Raises:
        ArgumentError: see above.
    """
    roots = (value, cell.node)
    for recording in tracing.stack:
        dependents = dependent(roots, recording.depends)
        if value not in dependents or cell.node in dependents:
            continue
        if cell.node.storage is None and recording.made(cell):
            continue
        raise ArgumentError(
            op,
            f"each example would write its own value to one Tensor outside {recording.op}",
            expect="writes to what the function has made of its inputs",
            actual=f"a tensor of shape {cell.node.shape} that is the same for all examples",
            hint="return the new value; batch norm without running values writes none",
        )


def note_draw(seed: int, number: int, on_host: bool) -> None:
    """A random node has been given a number.

    Raises:
        ArgumentError: a recording allows none.
    """
    for recording in tracing.stack:
        recording.drawn(seed, number, on_host)


def _escaped(op: str, node: Node) -> TgcError:
    return ArgumentError(
        op,
        f"this tensor belongs to one example of a call of {op} that is over",
        expect="values that the function returns",
        actual=made_by(node),
        hint="return it, or take the gradient with tc.func.grad instead of backward()",
    )
