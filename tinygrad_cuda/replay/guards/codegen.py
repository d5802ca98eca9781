"""Whether a call's arguments and the Python values around it are as its program recorded them.

A function of its own asks this for each program, written once as text: a loop over arguments and
names would take twice as long as what it looks at.
It belongs to fast_replay; without it a compiled call of denoiser_sample takes 226 % longer (H200).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tinygrad_cuda.engine.cell import Cell
from tinygrad_cuda.replay.generated_functions import guard_from, refusal
from tinygrad_cuda.replay.guards.values import MAPPINGS, RAW, Contents, Inside, Names

SINGLY = 32  # elements of a container that are looked at by an instruction each
Look = Callable[[tuple[Any, ...]], list[Any] | None]


def looking(
    args: Sequence[Any], names: Names, around: dict[str, Any], others: Sequence[str]
) -> Look:
    """A function that gives the storages of a call's arguments, or None if anything differs.

    Args:
        args: of a call that has just been replayed: Tensors without a history.
        names: what the function reads besides.
        around: further values, by the names that the text has for them; of these ``state`` holds
            the cells that are no arguments.
        others: further conditions of another call, as text.
    """
    constants: dict[str, Any] = {**around, "Cell": Cell}
    count = len(args)
    # Of another count of arguments ValueError is raised.
    lines = [f"{_each('a{}', count)}, = args" if count else refusal("args")]
    for number, tensor in enumerate(args):
        lines += _argument(number, tensor, constants)
    if count > 1:  # two of the arguments' cells may not be one
        lines.append(refusal(f"len({{{_each('c{}', count)}}}) != {count}"))
    lines += _names(names, constants)
    lines.append(refusal(*others))
    lines.append(f"return [{_each('s{}', count)}]")
    look: Look = guard_from("look(args)", lines, constants)
    return look


def _argument(number: int, tensor: Any, constants: dict[str, Any]) -> list[str]:
    """An argument must be another Tensor like this one, and not the function's state."""
    a, c, n, s = (f"{letter}{number}" for letter in "acns")
    kind, outputs, device = f"kind{number}", f"outputs{number}", f"device{number}"
    node = tensor.cell.node
    constants |= {
        kind: type(tensor), outputs: node.outputs, device: node.device,
        f"strides{number}": tensor._strides,
    }  # fmt: skip
    return [
        refusal(
            f"type({a}) is not {kind}",
            f"{a}.chain",
            f"{a}._strides != strides{number}" if tensor._strides else f"{a}._strides",
        ),
        f"{c} = {a}.cell",
        # The function's own state is tracked, so that its cells are no plain ones.
        refusal(f"type({c}) is not Cell and {c} in state"),
        f"{n} = {c}.node",
        f"{s} = {n}.storage",
        refusal(
            f"{s} is None",
            f"{n}.device is not {device}",
            f"{n}.requires_grad",
            f"{n}.outputs is not {outputs} and {n}.outputs != {outputs}",
        ),
    ]


def _names(names: Names, constants: dict[str, Any]) -> list[str]:
    """What the function names must be what it was."""
    lines = []
    for number, named in enumerate(names.values):
        constants |= {
            f"owner{number}": named.owner, f"value{number}": named.value, f"name{number}": named,
        }  # fmt: skip
        lines.append(refusal(named.differs(number)))
    for number, contents in enumerate(names.contents):
        lines += _holds(number, contents, constants)
    return lines


def _holds(number: int, contents: Contents, constants: dict[str, Any]) -> list[str]:
    """A container must hold the same things, a dictionary by the same keys."""
    container, items, holder = contents.container, contents.items, f"holder{number}"
    if len(items) > SINGLY or issubclass(type(container), (*RAW, Inside, weakref.ref)):
        constants[holder] = contents
        return [refusal(f"not {holder}.holds()")]
    constants[holder] = container
    if issubclass(type(container), MAPPINGS):
        keys, values = items[: len(items) // 2], items[len(items) // 2 :]
        lines = _are(holder, f"key{number}", keys, constants)
        return [*lines, *_are(f"{holder}.values()", f"item{number}", values, constants)]
    return _are(holder, f"item{number}", items, constants)


def _are(now: str, name: str, elements: list[Any], constants: dict[str, Any]) -> list[str]:
    """What can be iterated must give these things; ValueError says that it gives more or less."""
    if not elements:
        return [refusal(f"len({now})")]
    constants |= {f"{name}_{number}": element for number, element in enumerate(elements)}
    numbers = range(len(elements))
    return [
        f"{_each('i{}', len(elements))}, = {now}",
        refusal(*(f"i{number} is not {name}_{number}" for number in numbers)),
    ]


def _each(pattern: str, count: int) -> str:
    return ", ".join(pattern.format(number) for number in range(count))
