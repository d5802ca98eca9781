"""Index arithmetic inside a kernel's loads: guards, and the C text of indices.
Movement ops (reshape, permute, slice, flip, pad, window) become these, and so cost no kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import gcd
from typing import Any

from tinygrad_cuda.lowering.codegen.affine import (
    AffineLeaf,
    Compound,
    FloorDiv,
    Index,
    IndexVariable,
    Mod,
    Term,
    constant,
    divide,
    divisible,
    flatten,
    opaque,
    split_lane,
    symbol,
    unflatten,
    variable,
)

__all__ = [
    "AffineLeaf", "Condition", "FloorDiv", "Index", "IndexVariable", "Mod", "Term", "all_of",
    "below", "constant", "divide", "divisible", "fits_int", "flatten",
    "nonnegative", "opaque", "render", "split_lane", "symbol", "unflatten", "variable",
]  # fmt: skip

INT_MAX = 2**31 - 1  # of C's int
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")


# ---- conditions --------------------------------------------------------------------------------


class Condition:
    """index >= 0, in lowest terms; made by `nonnegative` and `below`."""

    __slots__ = ("index",)

    def __init__(self, index: Index) -> None:
        self.index = index

    def __hash__(self) -> int:
        return hash(self.index) ^ 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and self.index == other.index

    def __repr__(self) -> str:
        return f"Condition({self.index.key} >= 0)"

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        return self.index.evaluate(values) >= 0

    def render(self, wide: bool) -> str:
        """C text with the negative terms on the right, such as `y + 2 >= x` or `i < 7`."""
        k = self.index.constant
        left = Index(tuple([(c, t) for c, t in self.index.terms if c > 0]), 0)
        right = Index(tuple([(-c, t) for c, t in self.index.terms if c < 0]), 0)
        if not left.terms:
            return f"{render(right, wide)} < {render(Index((), k + 1), wide)}"
        return f"{render(left + max(k, 0), wide)} >= {render(right + max(-k, 0), wide)}"


def nonnegative(index: Index) -> Condition | bool:
    """0 <= index, as True or False where the range decides."""
    while True:
        if index.low >= 0 or index.high < 0:
            return index.low >= 0
        index = index.expanded()
        if index.low >= 0 or index.high < 0:
            return index.low >= 0
        divisor = gcd(*(c for c, _ in index.terms))
        if divisor > 1:
            index = Index(
                tuple([(c // divisor, t) for c, t in index.terms]), index.constant // divisor
            )
        c, term = index.terms[0]
        if len(index.terms) > 1 or not isinstance(term, FloorDiv):
            return Condition(index)
        if c > 0:  # x//n + k >= 0  is  x + k*n >= 0
            index = term.operand + index.constant * term.divisor
        else:  # k - x//n >= 0  is  (k+1)*n - 1 - x >= 0
            index = (index.constant + 1) * term.divisor - 1 - term.operand


def below(index: Index, limit: int) -> Condition | bool:
    """index < limit, as True or False where the range decides."""
    return nonnegative(limit - 1 - index)


def all_of(conditions: Iterable[Condition | bool]) -> tuple[Condition, ...] | bool:
    """Their conjunction: False, True, or the conditions left, the stronger of comparable ones."""
    strongest: dict[tuple[tuple[int, Term], ...], Condition] = {}
    for condition in conditions:
        if condition is False:
            return False
        if isinstance(condition, Condition):
            terms = condition.index.terms
            if terms not in strongest or condition.index.constant < strongest[terms].index.constant:
                strongest[terms] = condition
    return tuple(strongest.values()) or True


# ---- C text ------------------------------------------------------------------------------------


def fits_int(index: Index) -> bool:
    """Whether every intermediate of `render(index, wide=False)` fits a 32-bit int."""
    index = index.expanded()
    up, down = max(index.constant, 0), min(index.constant, 0)
    for c, t in index.terms:
        up += max(c * t.low, c * t.high, 0)
        down += min(c * t.low, c * t.high, 0)
        if isinstance(t, Compound) and not fits_int(t.operand):
            return False
        if isinstance(t, (FloorDiv, Mod)) and t.divisor > INT_MAX:
            return False
    return up <= INT_MAX and down >= -INT_MAX


@lru_cache(maxsize=1 << 14)
def render(index: Index, wide: bool) -> str:
    """C text: int arithmetic, or long long if `wide` (literals are `LL`, leaves may be int).

    Raises:
        OverflowError: not `wide`, and some value does not fit an int.
    """
    index = index.expanded()
    if not wide and not fits_int(index):
        raise OverflowError(f"index {index.key} in [{index.low}, {index.high}] needs 64 bits")
    return _render_sum(index, (lambda n: f"{n}LL") if wide else str, wide)[0]


def _render_sum(index: Index, literal: Callable[[int], str], wide: bool) -> tuple[str, bool]:
    """(text, whether it needs parentheses in a product)."""
    positive = [(c, t) for c, t in index.terms if c > 0]
    negative = [(c, t) for c, t in index.terms if c < 0]
    leading = index.constant if not positive and (index.constant > 0 or not negative) else 0
    text = "" if positive else literal(leading) if leading or not negative else ""
    for c, t in positive + negative:
        product = _render_product(abs(c), t, literal, wide, bare=not text)
        text = (f"{text} {'+' if c > 0 else '-'} " if text else "" if c > 0 else "-") + product
    trailing = index.constant - leading
    if trailing:
        text += f" {'+' if trailing > 0 else '-'} {literal(abs(trailing))}"
    alone = len(positive) == 1 and not negative and not trailing
    return text, not (alone or (not positive and not negative and leading >= 0))


def _render_product(
    c: int, term: Term, literal: Callable[[int], str], wide: bool, bare: bool
) -> str:
    """|c| * term; `bare`: it comes first in its sum, so it must carry the width."""
    scale = f" * {literal(c)}" if c != 1 else ""
    if isinstance(term, AffineLeaf):
        text = term.name if _IDENTIFIER.match(term.name) else f"({term.name})"
        return f"(long long){text}" if wide and bare and not scale else text + scale
    assert isinstance(term, Compound)
    text, is_sum = _render_sum(term.operand, literal, wide)
    if is_sum:
        text = f"({text})"
    if isinstance(term, (FloorDiv, Mod)):
        text += f" {'/' if isinstance(term, FloorDiv) else '%'} {literal(term.divisor)}"
    return text + scale
