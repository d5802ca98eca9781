"""Whether a call's arguments and the Python values around it are as its program knows them.

A function of its own asks this for each program, written once as text: a loop over arguments and
names would take twice as long as what it looks at.
Without it a compiled call of denoiser_sample takes 226 % longer (H200).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

import numpy as np

from tinygrad_cuda.engine.cell import Cell
from tinygrad_cuda.replay.generated_functions import function_from
from tinygrad_cuda.replay.guards.values import (
    MAPPINGS,
    NOTHING,
    RAW,
    Contents,
    Fields,
    Inside,
    Names,
    Stable,
    bytes_of,
    items_of,
    same,
)

TOGETHER = 200  # containers from which on they are looked at in a loop
FEW = 3  # cells or names that are compared singly: a set or a tuple costs as much as three
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
    constants: dict[str, Any] = {
        **around, "Cell": Cell, "same": is_, "bytes_of": bytes_of, "items_of": items_of,
        "nothing": NOTHING,
    }  # fmt: skip
    count = len(args)
    # Of another count of arguments ValueError is raised.
    lines = [f"{_each('a{}', count)}, = args" if count else _refuse("args")]
    for number, tensor in enumerate(args):
        lines += _argument(number, tensor, constants)
    if count > 1:
        lines.append(_refuse(*_repeated(count)))
    lines += _names(names, constants)
    lines.append(_refuse(*others))
    lines.append(f"return [{_each('s{}', count)}]")
    # A variable of a closure or an attribute that has been deleted.
    lines = ["try:", *(f"    {line}" for line in lines)]
    lines += ["except (ValueError, AttributeError, KeyError, TypeError):", "    return None"]
    look: Look = function_from("def look(args):\n    " + "\n    ".join(lines), constants)
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
        _refuse(
            f"type({a}) is not {kind}",
            f"{a}.chain",
            f"{a}._strides != strides{number}" if tensor._strides else f"{a}._strides",
        ),
        f"{c} = {a}.cell",
        # The function's own state is tracked, so that its cells are no plain ones.
        _refuse(f"type({c}) is not Cell and {c} in state"),
        f"{n} = {c}.node",
        f"{s} = {n}.storage",
        _refuse(
            f"{s} is None",
            f"{n}.device is not {device}",
            f"{n}.requires_grad",
            f"{n}.outputs is not {outputs} and {n}.outputs != {outputs}",
        ),
    ]


def _repeated(count: int) -> list[str]:
    """Conditions that two of the arguments' cells are one."""
    if count > FEW:
        return [f"len({{{_each('c{}', count)}}}) != {count}"]
    return [f"c{a} is c{b}" for b in range(count) for a in range(b)]


def _names(names: Names, constants: dict[str, Any]) -> list[str]:
    """What the function names must be what it was."""
    lines = []
    for number, named in enumerate(names.values):
        constants |= {f"owner{number}": named.owner, f"value{number}": named.value}
        lines.append(_refuse(named.differs(f"owner{number}", f"value{number}")))
    for number, group in enumerate(names.stable):
        lines += _stable(number, group, constants)
    for number, (owner, missing) in enumerate(names.absent):
        lines += _absent(number, owner, missing, constants)
    if len(names.contents) > TOGETHER:
        constants |= {"contents": names.contents, "items_same": items_same}
        return [*lines, _refuse("not all(map(items_same, contents))")]
    for number, contents in enumerate(names.contents):
        constants[f"holder{number}"] = contents.container
        lines += _holds(number, contents, constants)
    return lines


def _stable(number: int, group: Stable, constants: dict[str, Any]) -> list[str]:
    """Functions, classes and modules that globals must name: of many at once."""
    held = f"dict{number}"
    constants[held] = group.namespace
    if len(group.names) <= FEW:
        constants |= {f"stable{number}_{k}": value for k, value in enumerate(group.values)}
        pairs = enumerate(group.names)
        return [_refuse(*(f"{held}[{name!r}] is not stable{number}_{k}" for k, name in pairs))]
    constants |= {f"get{number}": group.get, f"all{number}": group.values}
    return [_refuse(f"get{number}({held}) != all{number}")]


def _absent(
    number: int, owner: Any, missing: frozenset[str], constants: dict[str, Any]
) -> list[str]:
    """Names that a dictionary, or an object's own, must not have."""
    if not missing:
        return []
    held = f"fields{number}"
    fields = type(owner) is Fields
    constants[held] = owner.thing if fields else owner
    lines = [f"held = {held}.__dict__" if fields else f"held = {held}"]
    if len(missing) <= SINGLY:
        return [*lines, _refuse(*(f"{name!r} in held" for name in sorted(missing)))]
    constants[f"gone{number}"] = missing
    return [*lines, _refuse(f"not held.keys().isdisjoint(gone{number})")]


def items_same(contents: Contents) -> bool:
    """Whether a container holds the same things."""
    now = items_of(contents.container)
    return len(now) == len(contents.items) and all(map(same, now, contents.items))


def _holds(number: int, contents: Contents, constants: dict[str, Any]) -> list[str]:
    """A container must hold the same things, a dictionary by the same keys."""
    holder, contained = f"holder{number}", contents.items
    if issubclass(type(contents.container), weakref.ref):
        constants |= {f"contents{number}": contents, "items_same": items_same}
        return [_refuse(f"not items_same(contents{number})")]
    if isinstance(contents.container, RAW):
        constants[f"items{number}"] = contained
        if isinstance(contents.container, np.ndarray) and contents.container.dtype.hasobject:
            return _are(f"bytes_of({holder})[1:]", f"item{number}", contained[1:], constants)
        return [_refuse(f"bytes_of({holder}) != items{number}")]
    if type(contents.container) is Inside:
        return _are(f"items_of({holder})", f"item{number}", contained, constants)
    if isinstance(contents.container, MAPPINGS):
        keys, values = contained[: len(contained) // 2], contained[len(contained) // 2 :]
        lines = _are(holder, f"key{number}", keys, constants)
        return [*lines, *_are(f"{holder}.values()", f"item{number}", values, constants)]
    return _are(holder, f"item{number}", contained, constants)


def _are(now: str, name: str, elements: list[Any], constants: dict[str, Any]) -> list[str]:
    """What can be iterated must give these things; ValueError says that it gives more or less."""
    if not elements:
        return [_refuse(f"len({now})")]
    if len(elements) > SINGLY:
        constants[name] = elements
        return [_refuse(f"len({now}) != {len(elements)}", f"not all(map(same, {now}, {name}))")]
    constants |= {f"{name}_{number}": element for number, element in enumerate(elements)}
    numbers = range(len(elements))
    return [
        f"{_each('i{}', len(elements))}, = {now}",
        _refuse(*(f"i{number} is not {name}_{number}" for number in numbers)),
    ]


def _refuse(*conditions: str) -> str:
    """Another call, if one of these is true."""
    return f"if {' or '.join(conditions)}: return None"


def _each(pattern: str, count: int) -> str:
    return ", ".join(pattern.format(number) for number in range(count))
