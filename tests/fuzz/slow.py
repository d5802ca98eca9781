"""Programs with all fast paths and with none: the same bits, errors and places.

A seed's program is one of `loops` or one of `graphs`. It runs twice with everything that recognises
what was seen before, since the second run meets what the first has left, and once without.
"""

from __future__ import annotations

import random
import warnings
from typing import Any

import graphs
import loops
import repeats

Step = tuple[Any, ...]
Program = list[Step]
Trail = list[tuple[str, Any]]

LONG = {"cpu": 3_000, "emu": 300, "cuda": 500}

# Programs by kind; the driver sums them over a campaign.
events: dict[str, int] = {}


def generate(seed: int) -> Program:
    """Two of three are training loops, which come round; the third is a graph."""
    program: Program = graphs.generate(seed) if seed % 3 == 2 else loops.generate(seed)
    return program


def _is_loop(program: Program) -> bool:
    return any(step[0] in ("set", "in", "out") for step in program)


def _loop(program: Program, device: str, compiled: bool) -> Trail:
    import tinygrad_cuda as tc

    options = {**loops.DEFAULTS, **{step[1]: step[2] for step in program if step[0] == "set"}}
    tc.manual_seed(0)
    with tc.autograd.check_versions(options["versions"]):
        result = loops.run(tc, program, device, compiled=compiled)
    trail: Trail = [("the end", (result.place, result.error))]
    for name, x in result.seen:
        trail.append((name, None if x is None else (str(x.dtype), x.shape, x.tobytes())))
    return trail


def _graph(program: Program, device: str) -> Trail:
    import tinygrad_cuda as tc

    first = graphs.Torch()
    first.first(program)
    tc.set_default_device(device)
    try:
        trail: Trail = repeats.Run(device).program(first)
        return trail
    finally:
        tc.set_default_device(None)


def check(program: Program, device: str) -> str | None:
    """None, or the first result that depends on what is recognised."""
    from tinygrad_cuda.replay.switches import switches

    loop = _is_loop(program)
    compiled = loop and any(step[:2] == ("set", "compiled") and step[2] for step in program)
    kind = ("compiled" if compiled else "plain") if loop else "graphs"
    events[f"programs {kind}"] = 1

    def run() -> Trail:
        random.seed(0)
        return _loop(program, device, compiled) if loop else _graph(program, device)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast, again = run(), run()
        with switches.only():
            slow = run()
    return repeats.difference("again", fast, again) or repeats.difference("slow", slow, fast)


def show(program: Program) -> str:
    """The steps, a line each."""
    return "\n".join(map(repr, program))
