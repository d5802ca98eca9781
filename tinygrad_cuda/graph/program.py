"""A plan's own graph: fresh nodes whose leaves are numbered inputs, free of storages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tinygrad_cuda.core.device import Device
from tinygrad_cuda.graph.node import NO_ATTRIBUTES, Node, Op


class Argument(NamedTuple):
    """Stands in an attribute for a number that each run of the program supplies."""

    position: int


Number = bool | int | float
NOTHING: dict[int, Any] = {}


@dataclass(frozen=True, eq=False)
class Program:
    """A graph to run many times.

    Attributes:
        device: where it runs.
        outputs: the values wanted, in order; an input may itself be wanted.
        inputs: ``buffer`` nodes; number k has the attribute ``slot`` = k.
        overwrites: for an output's position, the input slot whose storage it shall take: nobody
            reads that input after the run. The output is then the node of an ``assign``.

    A run supplies numbers too, to which attributes refer by `Argument`.
    """

    device: Device
    outputs: tuple[Node, ...]
    inputs: tuple[Node, ...]
    overwrites: dict[int, int] = field(default_factory=dict)


def structure(
    op: Op, attributes: dict[str, Any], numbers: list[Any], always: list[int]
) -> tuple[Any, ...]:
    """The attributes that are structure; numbers are set apart, in the order of the names.

    The names are in the key, since calls may give them in any order.

    Args:
        op, attributes: of a node.
        numbers: receives the numbers.
        always: receives the positions of those that are arguments from the start.
    """
    if attributes is NO_ATTRIBUTES:
        return ()
    literals, arguments = op.literals, op.arguments
    if not literals and not arguments:
        return tuple(attributes.items())
    described: list[Any] = []
    for name, value in attributes.items():
        described.append(name)
        if name in literals:
            if type(value) is tuple:
                numbers.extend(value)
                described.append(len(value))
            else:
                numbers.append(value)
        elif name in arguments:
            always.append(len(numbers))
            numbers.append(value)
        else:
            described.append(value)
    return tuple(described)
