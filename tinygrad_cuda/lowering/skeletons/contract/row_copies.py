"""Implicit GEMM: a predicate mask of padding, one bit a filter tap.

The operand is windows of an image, copied without im2col. What depends on the row of the product
alone, where it begins and which taps read padding, is computed once a tile of outputs, or by one
thread for all that copy the row. A copy then adds two offsets and tests its bits of the mask.
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
        taps: positions in the filter along each axis of the image, counted from 0, each with the
            first of its bits.
        out_of_bounds: conditions of a row, with the bits of the taps that read padding where one
            fails.
    """

    begin: Index
    rest: Index
    taps: tuple[tuple[Index, int], ...]
    out_of_bounds: tuple[tuple[str, int], ...]

    @property
    def computed(self) -> bool:
        """Whether a row's beginning takes more than a multiplication."""
        return any(isinstance(term, Compound) for _, term in self.begin.terms)

    @property
    def tap_bits(self) -> str:
        """C text of the bits of a tap: one for each axis of the image."""
        numbers = [ix.render(tap + bit, False) for tap, bit in self.taps]
        return " | ".join(f"1u << ({number})" for number in numbers) or "1u"

    @property
    def mark_out_of_bounds(self) -> list[str]:
        """Statements that set the bits of the taps that read padding."""
        return [f"if (!({test})) out_of_bounds |= {bits}u;" for test, bits in self.out_of_bounds]


def implicit_gemm_rows(index: Index, guard: Guard, row: Index) -> Rows | None:
    """An index and its guard by axis; None where terms have both, or a mask has too few bits.

    Args:
        index: the position in memory.
        guard: where it is not padding.
        row: the variable of the row.
    """
    leaf = row.terms[0][1] if row.terms else None
    if not isinstance(leaf, AffineLeaf):
        return None
    begin, rest, mixed = separated(index.expanded(), leaf)
    bounds: list[tuple[Index, Index | None, int]] = []
    first_bit: dict[Index, int] = {}  # of the taps along an axis
    used = 0
    for condition in guard:
        own, other, both = separated(condition.index.expanded(), leaf)
        if both or mixed:
            return None
        if not other.terms:
            bounds.append((own + other.constant, None, 0))
            continue
        tap, scale = _lowest(other)
        if tap not in first_bit:
            first_bit[tap] = used
            used += tap.high - tap.low + 1
        bounds.append((own + other.constant, tap, scale))
    if mixed or used > OUTSIDE:
        return None
    taps = tuple((tap - tap.low, bit) for tap, bit in first_bit.items())
    return Rows(begin, rest, taps, _out_of_bounds(bounds, first_bit))


def _lowest(index: Index) -> tuple[Index, int]:
    """(tap, scale) with scale * tap the terms of an index, in lowest terms."""
    scale = gcd(*(c for c, _ in index.terms))
    scale = scale if index.terms[0][0] > 0 else -scale
    return Index(tuple((c // scale, term) for c, term in index.terms), 0), scale


def _out_of_bounds(
    bounds: Sequence[tuple[Index, Index | None, int]], first_bit: dict[Index, int]
) -> tuple[tuple[str, int], ...]:
    """Conditions of a row alone, with the bits of the taps that need them."""
    needed_by: dict[str, int] = {}
    for own, tap, scale in bounds:
        for value in range(tap.low, tap.high + 1) if tap else (0,):
            holds = ix.nonnegative(own + scale * value)
            if holds is True:
                continue
            text = "false" if holds is False else holds.render(False)
            failing = 1 << first_bit[tap] + value - tap.low if tap else (1 << BITS) - 1
            needed_by[text] = needed_by.get(text, 0) | failing
    return tuple(needed_by.items())
