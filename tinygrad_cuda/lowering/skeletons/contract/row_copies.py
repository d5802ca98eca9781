"""Copies of rows that begin at computed positions, or hold zeros at some values of k: windows.

What depends on the row alone, where it begins and which cases of the other axis are zeros, is
computed once a tile of outputs, or by one thread for all that copy the row. A copy then adds two
offsets and tests one bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.affine import AffineLeaf, Compound, Index
from tinygrad_cuda.lowering.codegen.index_rewrites import Guard
from tinygrad_cuda.lowering.skeletons.contract.loads import BITS, separated

OUTSIDE = BITS - 1  # the bit of what lies beyond the other axis: set in each row's mask


@dataclass(frozen=True)
class Rows:
    """An index and its guard, separated into terms of the row and of the other axis.

    Attributes:
        begin: terms of the row alone.
        rest: all others.
        cases: values of the other axis that conditions depend on, counted from 0, each with the
            first of its bits.
        zeros: conditions of a row, with the bits of the cases that are zeros where one fails.
    """

    begin: Index
    rest: Index
    cases: tuple[tuple[Index, int], ...]
    zeros: tuple[tuple[str, int], ...]

    @property
    def computed(self) -> bool:
        """Whether a row's beginning takes more than a multiplication."""
        return any(isinstance(term, Compound) for _, term in self.begin.terms)

    @property
    def case(self) -> str:
        """C text of the bits of a value of the other axis."""
        numbers = [ix.render(case + bit, False) for case, bit in self.cases]
        return " | ".join(f"1u << ({number})" for number in numbers) or "1u"

    @property
    def mask(self) -> list[str]:
        """Statements that add the bits of a row's cases of zeros to its mask."""
        return [f"if (!({test})) zeros |= {bits}u;" for test, bits in self.zeros]


def rows_of(index: Index, guard: Guard, row: Index) -> Rows | None:
    """An index and its guard by axis; None where terms have both, or a mask has too few bits.

    Args:
        index: the position in memory.
        guard: where it is not of zeros.
        row: the variable of the row.
    """
    leaf = row.terms[0][1] if row.terms else None
    if not isinstance(leaf, AffineLeaf):
        return None
    begin, rest, mixed = separated(index.expanded(), leaf)
    bounds: list[tuple[Index, Index | None, int]] = []
    first: dict[Index, int] = {}  # of each case's bits
    used = 0
    for condition in guard:
        own, other, both = separated(condition.index.expanded(), leaf)
        if both or mixed:
            return None
        if not other.terms:
            bounds.append((own + other.constant, None, 0))
            continue
        case, scale = _lowest(other)
        if case not in first:
            first[case] = used
            used += case.high - case.low + 1
        bounds.append((own + other.constant, case, scale))
    if mixed or used > OUTSIDE:
        return None
    cases = tuple((case - case.low, bit) for case, bit in first.items())
    return Rows(begin, rest, cases, _zeros(bounds, first))


def _lowest(index: Index) -> tuple[Index, int]:
    """(case, scale) with scale * case the terms of an index, in lowest terms."""
    scale = gcd(*(c for c, _ in index.terms))
    scale = scale if index.terms[0][0] > 0 else -scale
    return Index(tuple((c // scale, term) for c, term in index.terms), 0), scale


def _zeros(
    bounds: Sequence[tuple[Index, Index | None, int]], first: dict[Index, int]
) -> tuple[tuple[str, int], ...]:
    """Conditions of a row alone, with the bits that fail without them."""
    zeros: dict[str, int] = {}
    for own, case, scale in bounds:
        for value in range(case.low, case.high + 1) if case else (0,):
            holds = ix.nonnegative(own + scale * value)
            if holds is True:
                continue
            text = "false" if holds is False else holds.render(False)
            failing = 1 << first[case] + value - case.low if case else (1 << BITS) - 1
            zeros[text] = zeros.get(text, 0) | failing
    return tuple(zeros.items())
