"""Functions that are written as text: the one file with `exec`.

A guard asks some hundred questions of a call, in a compiled step of 20 us. As a loop over a list of
questions it takes three times as long as they do: each look-up of what to ask costs more than the
answer (`argument_guards` and `plan_guards` in docs/measurements.md).
"""

from __future__ import annotations

from typing import Any


def function_from(text: str, names: dict[str, Any]) -> Any:
    """The function that a text defines.

    Args:
        text: ``def name(...)`` and a body.
        names: the globals of the function.
    """
    defined: dict[str, Any] = {}
    exec(compile(text, "<a generated function>", "exec"), names, defined)
    (function,) = defined.values()
    return function
