"""`python -m tinygrad_cuda graph`: what a script computes as a picture."""

from __future__ import annotations

import argparse
import runpy
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tinygrad_cuda.commands import add_script
from tinygrad_cuda.core.errors import ArgumentError, MissingFileError
from tinygrad_cuda.core.trees import leaves
from tinygrad_cuda.graph.draw import draw as draw_graph
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.utils.drawing import DrawnPlan, draw, joined, record_modules, recorded_plans

PLANS = 16  # of the last ones, in which a variable that is computed is looked for


class _Enough(BaseException):
    """Ends a script; its own handlers of exceptions let it pass."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds its options."""
    add = parser.add_argument
    add("-o", "--output", default="graph.html", metavar="FILE",
        help=".html, .svg, .png or .pdf (default: %(default)s)")  # fmt: skip
    add(
        "--variable",
        metavar="NAME",
        help="draw the Tensor in this variable of the script, instead of what it computed last",
    )
    add(
        "--stop-after",
        type=int,
        metavar="N",
        help="end the script once it has computed values N times, such as after N steps",
    )
    add_script(parser, "a file of Python")


def run(options: argparse.Namespace) -> int:
    """0 if there is a picture.

    Raises:
        MissingFileError: there is no such script.
        ArgumentError: it computes nothing, or the variable is no Tensor.
    """
    if not Path(options.script).is_file():
        raise MissingFileError(
            "graph", "there is no such script", expect="a file of Python", actual=options.script
        )
    before = sys.argv, sys.path[:]
    sys.argv = [options.script, *options.arguments]
    sys.path.insert(0, str(Path(options.script).resolve().parent))
    variables: dict[str, Any] = {}
    try:
        noted = recorded_plans(PLANS if options.variable else 1, _stop(options.stop_after))
        with record_modules(), noted as plans, suppress(_Enough, SystemExit):
            variables = runpy.run_path(options.script, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before
    print(_drawn(options, variables, plans))
    return 0


def _drawn(options: argparse.Namespace, variables: dict[str, Any], plans: list[DrawnPlan]) -> Path:
    if options.variable is not None:
        value = variables.get(options.variable)
        tensors = [leaf for leaf in leaves(value) if isinstance(leaf, TensorBase)]
        if not tensors:
            raise ArgumentError(
                "graph", f"the script ends without a Tensor in {options.variable!r}",
                expect="the name of a global variable",
                actual="no such variable" if value is None else type(value).__name__,
            )  # fmt: skip
        return _drawn_variable(options, tensors, plans)
    if not plans:
        raise ArgumentError(
            "graph", "the script computes nothing", expect="a script that looks at a value",
            actual=options.script, hint="--variable NAME draws what is recorded and not computed",
        )  # fmt: skip
    return draw_graph(joined(plans), options.output)


def _drawn_variable(
    options: argparse.Namespace, tensors: list[TensorBase], plans: list[DrawnPlan]
) -> Path:
    """A variable's graph; of one that was computed, as its plan was before it ran.

    Raises:
        ArgumentError: that plan is none of the last ones.
    """
    nodes = [tensor.node for tensor in tensors]
    computed = {n for n in nodes if n.storage is not None and not n.sources and _is_result(n)}
    if not computed:
        return Path(draw(tensors, options.output))
    parts = [DrawnPlan([node for node in nodes if node not in computed])]
    for plan in reversed(plans):
        here = computed.intersection(node for node, _ in plan.order)
        if here:
            parts.insert(0, plan.behind(here))
            computed -= here
    if computed:
        raise ArgumentError(
            "graph", f"what {options.variable!r} was computed from is not known any more",
            expect=f"a Tensor that is pending, or of the last {PLANS} plans",
            actual=f"{len(computed)} computed before",
            hint="--stop-after N draws the N-th plan; or call tc.draw(x, 'graph.html') in the "
            "script before the value is looked at",
        )  # fmt: skip
    return draw_graph(joined(parts), options.output)


def _is_result(node: Node) -> bool:
    """Whether a value was computed, not given."""
    return node.op.kind != "leaf"


def _stop(after: int | None) -> Any:
    """Called before each plan runs; ends the script at the one after the last."""
    count = 0

    def reached() -> None:
        nonlocal count
        count += 1
        if after is not None and count > after:
            raise _Enough

    return reached
