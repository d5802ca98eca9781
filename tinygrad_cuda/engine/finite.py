"""detect_nan: finds the first op that makes a non-finite value from finite ones.

What is about to run is interpreted first, node by node with the NumPy references.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.base import BadIndex
from tinygrad_cuda.backend.cpu.rows import evaluate
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.errors import NonFiniteError, Site
from tinygrad_cuda.engine.repro import write_repro
from tinygrad_cuda.engine.trace import Trace
from tinygrad_cuda.graph.node import Node, mode
from tinygrad_cuda.graph.ops import common

Array = np.ndarray[Any, Any]

# Leaves, identities and movements show values; they do not make them.
MAKERS = frozenset(("elementwise", "reduction", "contraction", "kernel"))


def check_finite(device: Device, trace: Trace, storages: Sequence[Any]) -> None:
    """Computes every value of a trace on the host and judges it.

    Raises:
        NonFiniteError: names the first op whose sources are finite and whose result is not.
    """
    start = time.perf_counter()
    try:
        _judge(device, trace, storages)
    finally:
        mode.now.judging += time.perf_counter() - start


def _judge(device: Device, trace: Trace, storages: Sequence[Any]) -> None:
    program = trace.program(device, list(range(len(trace.owners))), {}, set())
    backend = registry.get(device)
    values: dict[Node, Any] = {}
    finite: dict[Node, bool] = {}
    numbers, leaves = trace.value_numbers, dict[int, Node]()
    if mode.now.unchecked:
        leaves = {numbers[n]: n for n in trace.singles if n.op is common.variable}
    for number, node in enumerate(program.outputs):
        sources = [values[source] for source in node.sources]
        if node.op is common.buffer:
            storage = storages[node.attributes["slot"]]
            values[node] = backend.to_host(storage, node.shape, node.dtype)
        else:
            try:
                values[node] = evaluate(node, sources)
            except BadIndex:
                return  # the run itself reports it
        finite[node] = _is_finite(values[node])
        if number in leaves and not finite[node]:
            raise _missed(leaves[number])
        judged = node.op.kind in MAKERS and all(finite[source] for source in node.sources)
        if judged and not finite[node]:
            error = _error(node, values[node], sources)
            if mode.now.repro is not None:
                error.add_note(f"repro: python {write_repro(mode.now.repro, node, sources, error)}")
            raise error


def _missed(node: Node) -> NonFiniteError:
    return NonFiniteError(
        "detect_nan",
        "a parameter was not finite before this step",
        expect="finite parameters",
        actual=f"a leaf of shape {node.shape} with inf or nan; {mode.now.unchecked} steps were not "
        "looked at since the last one that was",
        site=node.site,
        hint="look at these steps with every=1",
    )


def _is_finite(value: Any) -> bool:
    parts = value if isinstance(value, tuple) else (value,)
    return all(bool(np.isfinite(_wide(part)).all()) for part in parts)


def _wide(value: Any) -> Array:
    array = np.asarray(value)
    wide: Array = array if array.dtype.kind in "biufc" else array.astype(np.float32)
    return wide


def _error(node: Node, value: Any, sources: list[Any]) -> NonFiniteError:
    parts = value if isinstance(value, tuple) else (value,)
    array = next(_wide(part) for part in parts if not _is_finite(part))
    bad = np.argwhere(~np.isfinite(array))
    where = tuple(int(index) for index in bad[0])
    first = array[where]
    forward = Site(*node.site).gradient_of if node.site is not None else ""
    lines = [f"{len(bad)} of {array.size} elements, the first {first}{_at(where)}"]
    for name, source in zip("abcdefgh", sources):
        lines.append(f"{name}: {_summary(_wide(source), where, array.shape)}")
    return NonFiniteError(
        forward or node.op.name,
        f"its gradient ({node.op.name}) is not finite"
        if forward
        else f"made {first} from finite values",
        expect="finite results of finite operands",
        actual="\n".join(lines),
        site=node.site,
        hint="keep the operand inside the function's domain; where() after the fact mends the "
        "value, not the gradient"
        if forward
        else "clamp the operand, or add a small number to it",
    )


def _at(where: tuple[int, ...]) -> str:
    return f" at {list(where)}" if where else ""


def _summary(array: Array, where: tuple[int, ...], shape: tuple[int, ...]) -> str:
    text = f"{array.dtype} {array.shape}"
    if array.size:
        text += f", {array.min():.4g} to {array.max():.4g}"
    if array.shape == shape and shape:
        text += f", there {array[where]:.6g}"
    return text
