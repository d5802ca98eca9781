"""What the host pays per recorded node, and per node to find a known plan again.

Run ``python lab/recording.py``; it needs no GPU. Each figure is the best of several
repeats over 1,000 nodes.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tinygrad_cuda as tc
from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.engine.overwrite import overwritable
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.engine.realize import realize_all
from tinygrad_cuda.engine.trace import Trace
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import elementwise

NODES, REPEATS = 1000, 30


def best(work: Callable[[], Any], prepare: Callable[[], Any] = lambda: None) -> float:
    """Microseconds per node."""
    times = []
    for _ in range(REPEATS):
        prepare()
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times) / NODES * 1e6


def nodes(a: Node, b: Node) -> Node:
    """A chain that the user's line makes node by node."""
    for _ in range(NODES // 2):
        a = elementwise.mul(elementwise.add(a, b), b)
    return a


def tensors(a: Any, b: Any) -> Any:
    for _ in range(NODES // 2):
        a = (a + b) * b
    return a


def numbers(a: Any) -> Any:
    # Two nodes an operation: the number is one of its own.
    for _ in range(NODES // 2):
        a = a * 2.0
    return a


def differentiated(a: Any, b: Any) -> Any:
    """What a pass over a history of 1,000 nodes records, per node of the history."""
    return tensors(a, b).sum()


def main() -> None:
    tc.set_default_device("cpu")
    a, b = tc.ones(8).clone(), tc.ones(8).clone()
    w = tc.ones(8, requires_grad=True)
    realize_all()
    na, nb = a.node, b.node
    losses: list[Any] = []

    def pass_over() -> None:
        w.grad = None
        losses.pop().backward()

    root = nodes(na, nb)

    def look_up() -> None:
        trace = Trace([root])
        place = trace.value_numbers[root]
        overwrites = overwritable(trace, [root], [place], trace.storages(), CPU)
        cache.find(CPU, trace, [place], overwrites)

    look_up()
    made = cache.made
    found = best(look_up)
    assert cache.made == made, "the trace was not recognised"
    rows = [
        ("record a node: check, infer, the user's line", best(lambda: nodes(na, nb), realize_all)),
        ("record tensor op tensor", best(lambda: tensors(a, b), realize_all)),
        ("record tensor op number, per node", best(lambda: numbers(a), realize_all)),
        (
            "backward, per node of the history",
            best(pass_over, lambda: (realize_all(), losses.append(differentiated(w, b)))),
        ),
        ("find the plan of a known trace", found),
    ]
    print(f"Python {platform.python_version()}, {platform.machine()}, {NODES} nodes")
    for what, figure in rows:
        print(f"{what:<52} {figure:6.2f} us")


if __name__ == "__main__":
    main()
