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


def refusal(*conditions: str) -> str:
    """The line of a guard that refuses what is given where one of these is true."""
    return f"if {' or '.join(conditions)}: return None"


def guard_from(head: str, lines: list[str], names: dict[str, Any]) -> Any:
    """A function that returns None where a line does, or where taking something apart fails.

    Args:
        head: its name and its arguments.
        lines: of its body: a thing of other parts, or without an attribute, may raise in them.
        names: the globals of the function.
    """
    body = "\n        ".join(lines)
    fails = "except (ValueError, AttributeError, KeyError, TypeError):\n        return None"
    return function_from(f"def {head}:\n    try:\n        {body}\n    {fails}\n", names)
