"""What a function's code loads, and what it only stores to: the one file that reads bytecode.

Neither source nor syntax tree would do: a function may come without its file, and of code from text
there is none. Instructions are those of Python 3.11 to 3.14; what is not understood counts as read.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

from tinygrad_cuda.core.errors import RawSite

GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"})
# Code that names one of these reads attributes by their texts.
_BY_TEXT = "getattr", "hasattr", "attrgetter", "methodcaller", "vars", "__dict__"
BY_TEXT = frozenset((*_BY_TEXT, "__getattribute__"))
VARIABLES = GLOBALS | {"LOAD_DEREF"}
CALL = "CALL" if sys.version_info >= (3, 12) else "PRECALL"
NULL = 1 if sys.version_info >= (3, 13) else -1  # from what is called to its PUSH_NULL
# No trace sees these called; the arguments that say which attributes they read.
NAMING = {"__getattribute__": slice(-1, None), "attrgetter": slice(None),
          "methodcaller": slice(None)}  # fmt: skip
# And code that names one of these may meet an object without an attribute.
MISSING = frozenset({"AttributeError", "suppress", "Exception", "BaseException"})

MATCHED = "__match_args__"  # which attributes ``case Point(x, y)`` compares

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
# Python 3.13 loads and stores two variables at once, and 3.14 borrows them.
TWO_LOADS = ("LOAD_FAST", "LOAD_FAST")
FUSED = {
    "LOAD_FAST_BORROW": ("LOAD_FAST",), "LOAD_FAST_LOAD_FAST": TWO_LOADS,
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": TWO_LOADS,
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}  # fmt: skip
STORES = {dis.opmap[f"STORE_{kind}"] for kind in ("GLOBAL", "DEREF", "NAME", "ATTR", "SUBSCR")}


def instructions(code: CodeType) -> Iterator[dis.Instruction]:
    """The instructions of a function, without those of the functions inside.

    Those of two variables at once are written out.
    """
    for step in dis.get_instructions(code):
        values = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        for name, value in zip(FUSED.get(step.opname, (step.opname,)), values):
            yield step._replace(opname=name, opcode=dis.opmap[name], argval=value)


def codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions and comprehensions inside."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


class Reads(NamedTuple):
    """What the code of a function, and of the functions inside, loads.

    Attributes:
        globals: names of globals and builtins.
        chains: names with the attributes that are loaded one after the other.
        imported: modules that it imports, with what it takes from them.
        texts: its strings.
        sites: of each name, the first instruction that has it.
        catches: whether it may go on where an attribute is missing.
        implied: attributes that its instructions ask for without a name.
    """

    globals: frozenset[str]
    chains: frozenset[tuple[str, ...]]
    imported: frozenset[tuple[str, str]]
    texts: frozenset[str]
    sites: dict[str, RawSite]
    catches: bool
    implied: frozenset[str]


@lru_cache(maxsize=4096)
def reads_of(code: CodeType) -> Reads:
    """What a function's code loads."""
    names: set[str] = set()
    chains: set[tuple[str, ...]] = set()
    imported: set[tuple[str, str]] = set()
    texts: set[str] = set()
    sites: dict[str, RawSite] = {}
    catches, implied = False, set[str]()
    for part in codes(code):
        texts.update(text for text in part.co_consts if isinstance(text, str))
        chain: tuple[str, ...] = ()
        module = last = ""
        catches = catches or not MISSING.isdisjoint(part.co_names)
        for step in instructions(part):
            # A bare ``except:`` drops the exception without a look at it.
            catches = catches or (last == "PUSH_EXC_INFO" and step.opname == "POP_TOP")
            name, last = step.argval, step.opname
            if last == "MATCH_CLASS":
                implied.add(MATCHED)
            if not isinstance(name, str) or step.opname == "LOAD_CONST":
                chain = ()
                continue
            sites.setdefault(name, (part, step.offset))
            if step.opname in ATTRIBUTES:
                chain = (*chain, name) if chain and last != "LOAD_SUPER_ATTR" else ()
            else:
                chain = (name,) if step.opname.startswith("LOAD_") else ()
            if step.opname in GLOBALS:
                names.add(name)
            elif step.opname == "IMPORT_NAME":
                module = name
                imported.add((module, ""))
            elif step.opname == "IMPORT_FROM":
                imported.add((module, name))
            if len(chain) > 1:
                chains.add(chain)
    return Reads(
        frozenset(names), frozenset(chains), frozenset(imported), frozenset(texts), sites, catches,
        frozenset(implied),
    )  # fmt: skip


@lru_cache(maxsize=4096)
def loads_of(code: CodeType) -> list[tuple[str, RawSite, bool]]:
    """The names that a function loads, without the functions inside, and whether for a plain call.

    Else it hands a value on, which C may call then, or calls one of `NAMING` with a computed text.
    """
    steps, called = [*instructions(code)], False
    found: list[tuple[str, RawSite, bool]] = []
    for number, step in enumerate(steps[:-1]):
        name, attribute = step.argval, step.opname in ATTRIBUTES
        # A call is seen by its NULL, which the module has whose attribute is called.
        called = "NULL" in step.argrepr or step.opname == "LOAD_METHOD" or (attribute and called)
        called = called or steps[number + NULL].opname == "PUSH_NULL"
        if attribute or step.opname in VARIABLES:
            after = steps[number + 1 :]
            plain = called and (name not in NAMING or _names_plainly(name, after, code))
            found.append((name, (code, step.offset), plain or after[0].opname in ATTRIBUTES))
    return found


def _names_plainly(name: str, after: list[dis.Instruction], code: CodeType) -> bool:
    """Whether a call of one of `NAMING` has constants, or hands on what its own function got."""
    after = after[after[0].opname == "PUSH_NULL" :]
    given, depth = 0, 0
    while given < len(after) and (after[given].opname, after[given].arg) != (CALL, depth):
        depth += dis.stack_effect(after[given].opcode, after[given].arg, jump=False)
        given += 1
    named = after[:given][NAMING[name]] if given < len(after) else []
    if named and code.co_name == name and named[0].argval == code.co_varnames[1]:
        return code.co_varnames[1] not in [s.argval for s in after if s.opname == "STORE_FAST"]
    return bool(named) and all(step.opname == "LOAD_CONST" for step in named)


@lru_cache(maxsize=4096)
def only_written(code: CodeType) -> frozenset[str]:
    """Names that a function only writes to: ``log.append(1)``, ``calls += 1``, ``n["a"] += 1``."""
    written: set[str] = set()
    read: set[str] = set()
    for part in codes(code):
        if WRITERS.isdisjoint(part.co_names) and STORES.isdisjoint(part.co_code[::2]):
            read.update(part.co_names, part.co_freevars, part.co_varnames)
            continue
        steps = [*instructions(part)]
        counted = 0  # up to here, as part of a write
        for number, step in enumerate(steps):
            if number < counted or step.opname in NAMELESS:
                continue
            if isinstance(step.argval, str) and not _hands_on(step, part):
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
    kinds = ""
    for step in after:
        kind = "[]" if step.argrepr == "[]" else step.opname
        inplace = kind == "BINARY_OP" and step.argrepr.endswith("=")
        kinds += COUNTING.get("+=" if inplace else kind, "?")
        if kind.startswith("STORE_"):
            stored = kind == "STORE_SUBSCR" or step.argval == name
            return len(kinds) if stored and kinds in COUNTS else 0
    return 0
