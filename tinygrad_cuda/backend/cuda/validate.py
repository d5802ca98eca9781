"""TGC_VALIDATE=1: what each kernel stores against NumPy.

The first that differs is an error that names kernel, node and line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinygrad_cuda.backend.base import BadIndex, Number, Program
from tinygrad_cuda.backend.cuda.template import Stage
from tinygrad_cuda.backend.reference.backend import ReferenceBackend
from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.errors import TgcError
from tinygrad_cuda.graph.node import Node, origin_of
from tinygrad_cuda.graph.schedule import Schedule

Array = np.ndarray[Any, Any]

# Of the largest magnitude in the value: the order of a sum is free.
TOLERANCE = {"float64": 1e-9, "float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}


class Validator:
    """The reference values of all that a program stores."""

    def __init__(self, program: Program, schedule: Schedule) -> None:
        self.nodes = [node for node in schedule.stored if len(node.outputs) == 1]
        wanted = Program(CPU, tuple(self.nodes), program.inputs, {}, program.arguments)
        self.executable = ReferenceBackend(CPU).compile(wanted)

    def expected(self, inputs: list[Array], arguments: Sequence[Number]) -> dict[Node, Array]:
        """Values by node; none where a bad index ends the program."""
        try:
            return dict(zip(self.nodes, self.executable.run(inputs, arguments)))
        except BadIndex:
            return {}


def compare(stage: Stage, node: Node, found: Array, expected: Array) -> None:
    """Raises where a stored value is not what NumPy says.

    Raises:
        TgcError: names the kernel, the node, the element and the user's line.
    """
    a, b = found.astype(np.float64), expected.astype(np.float64)
    finite = np.abs(b[np.isfinite(b)])
    bound = TOLERANCE.get(node.dtype.name, 0.0) * (finite.max() if finite.size else 0.0)
    with np.errstate(invalid="ignore"):
        wrong = ~((a == b) | (np.abs(a - b) <= bound) | (np.isnan(a) & np.isnan(b)))
    if not wrong.any():
        return
    where = tuple(int(place) for place in np.argwhere(wrong)[0])
    raise TgcError(
        "validate",
        f"kernel '{stage.name}' stores another {origin_of(node).op.name} than NumPy",
        expect=f"{expected[where]} at {where} of {node.shape} {node.dtype.name}",
        actual=f"{found[where]}; {int(wrong.sum())} of {wrong.size} elements differ by more than "
        f"{bound:.3g}",
        site=node.site,
        hint="TGC_DEBUG=4 prints the kernel",
    )
