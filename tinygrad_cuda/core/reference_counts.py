"""How often a thing is referred to: the one file that asks the interpreter.

Memory may be overwritten only if nobody else can read it: no other Tensor, no history that a
backward pass may still use, no array and no variable of the user's. No list of ours could name the
last two, but the count has them. A holder of any other kind adds to it, and causes a copy at most.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from sys import getrefcount
from typing import Any

if "t" in sys.abiflags:
    raise ImportError(
        "[import] tinygrad_cuda counts references, which Python without its global lock counts "
        f"otherwise\n  expect: a usual build of Python 3.11 or later\n  actual: {sys.version}, "
        "free-threaded\n  hint:   an environment made by python3 instead of python3t"
    )

# A function of C: no frame of Python refers to its argument meanwhile. The argument counts as one.
reference_count = getrefcount
# What is counted, from C, of a thing that one list refers to and nothing else.
(LISTED,) = map(reference_count, [object()])


def _of_a_variable() -> int:
    thing = object()
    return reference_count(thing)


# What is counted of a thing that one variable refers to and nothing else: from Python 3.14 on the
# argument borrows the variable's reference.
NAMED = _of_a_variable()


def counts_of(things: Sequence[Any]) -> list[int]:
    """How often each is referred to by something else than this list."""
    return [count - LISTED for count in map(reference_count, things)]
