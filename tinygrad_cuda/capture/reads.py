"""What a function's instructions load: globals, and attributes of what a name holds.

It is seen from the instructions, those of Python 3.11 to 3.14.
"""

from __future__ import annotations

import dis
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

from tinygrad_cuda.capture.guard_write_only import codes
from tinygrad_cuda.core.errors import RawSite

GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
# Code that names one of these reads attributes by their texts.
BY_TEXT = frozenset({"getattr", "hasattr", "attrgetter", "methodcaller", "vars", "__dict__"})
# And code that names one of these may meet an object without an attribute.
MISSING = frozenset({"AttributeError", "suppress", "Exception", "BaseException"})

MATCHED = "__match_args__"  # which attributes ``case Point(x, y)`` compares


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
        for step in dis.get_instructions(part):
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
                chain = (*chain, name) if chain else ()
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
