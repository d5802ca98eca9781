"""Names that code only writes to: such a list or counter changes nothing that the code computes.

It is seen from the instructions, those of Python 3.11 to 3.14; what is not known counts as read.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType

# Methods of lists, dictionaries, sets and deques that give nothing back.
WRITERS = frozenset({
    "add", "append", "appendleft", "clear", "extend", "extendleft", "insert", "update",
})  # fmt: skip
# Instructions whose argument is no name, or of a variable that is about to have a value.
NAMELESS = frozenset({"LOAD_CONST", "RETURN_CONST", "KW_NAMES", "MAKE_CELL", "STORE_FAST"})
# By a letter each, the instructions of ``x += 1``, ``self.x += 1`` and ``x[1] += 1``.
COUNTING = {
    "LOAD_CONST": "c", "LOAD_SMALL_INT": "c", "+=": "+", "COPY": "d", "SWAP": "w", "[]": "[",
    "BINARY_SUBSCR": "[", "STORE_GLOBAL": "s", "STORE_DEREF": "s", "STORE_NAME": "s",
    "STORE_ATTR": "s", "STORE_SUBSCR": "s",
}  # fmt: skip
COUNTS = ("c+s", "c+ws", "cdd[c+wws")
STORES = {dis.opmap[f"STORE_{kind}"] for kind in ("GLOBAL", "DEREF", "NAME", "ATTR", "SUBSCR")}


def codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions and comprehensions inside."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


@lru_cache(maxsize=4096)
def only_written(code: CodeType) -> frozenset[str]:
    """Names that a function only writes to: ``log.append(1)``, ``calls += 1``, ``n["a"] += 1``."""
    written: set[str] = set()
    read: set[str] = set()
    for part in codes(code):
        if WRITERS.isdisjoint(part.co_names) and STORES.isdisjoint(part.co_code[::2]):
            read.update(part.co_names, part.co_freevars, part.co_varnames)
            continue
        steps = list(dis.get_instructions(part))
        counted = 0  # up to here, as part of a write
        for number, step in enumerate(steps):
            if number < counted or step.opname in NAMELESS:
                continue
            if isinstance(step.argval, tuple):  # two variables by one instruction
                read.update(step.argval)
            elif isinstance(step.argval, str) and not _hands_on(step, part):
                length = _writes(step.argval, steps[number + 1 : number + 10])
                (written if length else read).add(step.argval)
                counted = number + 1 + length
    return frozenset(written - read)


def _hands_on(step: dis.Instruction, code: CodeType) -> bool:
    """Whether an instruction takes a cell for a function inside, which says what becomes of it."""
    cells = (*code.co_freevars, *code.co_cellvars)
    return step.opname == "LOAD_CLOSURE" or (step.opname == "LOAD_FAST" and step.argval in cells)


def _writes(name: str, after: list[dis.Instruction]) -> int:
    """How many instructions after one that loads a name make a write to it, and no more; or 0."""
    if after and after[0].opname in ("LOAD_METHOD", "LOAD_ATTR") and after[0].argval in WRITERS:
        return 1
    found = ""
    for step in after:
        kind = "[]" if step.argrepr == "[]" else step.opname
        inplace = kind == "BINARY_OP" and step.argrepr.endswith("=")
        found += COUNTING.get("+=" if inplace else kind, "?")
        if kind.startswith("STORE_"):
            stored = kind == "STORE_SUBSCR" or step.argval == name
            return len(found) if stored and found in COUNTS else 0
    return 0
