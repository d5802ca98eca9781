"""Integer expressions with ranges, as canonical affine sums over variables, `//` and `%`.
Simplification happens while an expression is being built; index.py puts them to use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import gcd
from typing import Any
from weakref import WeakValueDictionary


class Term:
    """What a coefficient multiplies: an integer in [low, high], named by its structure (`key`)."""

    __slots__ = ("_hash", "high", "key", "low")

    def __init__(self, key: str, low: int, high: int) -> None:
        if low > high:
            raise ValueError(f"index term {key}: empty range [{low}, {high}]")
        self.key, self.low, self.high = key, low, high
        self._hash = hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Term) and self.key == other.key)

    def __repr__(self) -> str:
        return self.key


class AffineLeaf(Term):
    """A value the kernel has under a C name; `name` is an identifier or any C expression."""

    __slots__ = ("name",)

    def __init__(self, name: str, low: int, high: int, mark: str) -> None:
        super().__init__(f"{name}{mark}", low, high)
        self.name = name


class IndexVariable(AffineLeaf):
    """A loop or thread variable: 0 <= v < extent."""

    __slots__ = ("extent",)

    def __init__(self, name: str, extent: int) -> None:
        super().__init__(name, 0, extent - 1, f"<{extent}")
        self.extent = extent


class Symbol(AffineLeaf):
    """A number that a launch supplies, such as a slice's start: low <= s <= high."""

    __slots__ = ()

    def __init__(self, name: str, low: int, high: int) -> None:
        super().__init__(name, low, high, f"@{low}:{high}")


class Opaque(AffineLeaf):
    """A value loaded by the kernel, such as a gather index: C text with low <= value <= high."""

    __slots__ = ()

    def __init__(self, text: str, low: int, high: int) -> None:
        super().__init__(text, low, high, f"?{low}:{high}")


class Compound(Term):
    """A term built on an inner index."""

    __slots__ = ("operand",)
    operand: Index


class FloorDiv(Compound):
    """operand // divisor; the operand is never negative, so C's `/` is the floor."""

    __slots__ = ("divisor",)

    def __init__(self, operand: Index, divisor: int) -> None:
        key = f"({operand.key})/{divisor}"
        super().__init__(key, operand.low // divisor, operand.high // divisor)
        self.operand, self.divisor = operand, divisor


class Mod(Compound):
    """operand % divisor; the operand is never negative, so C's `%` is the floor remainder."""

    __slots__ = ("divisor",)

    def __init__(self, operand: Index, divisor: int) -> None:
        super().__init__(f"({operand.key})%{divisor}", 0, min(divisor - 1, operand.high))
        self.operand, self.divisor = operand, divisor


class Bounded(Compound):
    """An index that lies in [low, high] since a guard is tested before it is used."""

    __slots__ = ()

    def __init__(self, operand: Index, low: int, high: int) -> None:
        super().__init__(f"[{operand.key}]{low}:{high}", low, high)
        self.operand = operand


class Index:
    """sum of coefficient * term + constant, canonical: equal sums are one object.

    Operands of `//` and `%` are shifted by multiples of the divisor until their lowest value is
    in [0, divisor), so negative intermediates never meet C's truncating division.

    Attributes:
        low, high: the range of its values.
        leaves: all variables, symbols and loaded values in it, at any depth.
    """

    __slots__ = ("__weakref__", "_key", "constant", "high", "leaves", "low", "terms")

    terms: tuple[tuple[int, Term], ...]
    constant: int
    low: int
    high: int
    leaves: frozenset[AffineLeaf]
    _key: str | None

    def __new__(cls, terms: tuple[tuple[int, Term], ...], constant: int) -> Index:
        """Use `variable`, `constant`, ... and operators: `terms` must already be canonical."""
        interned = _indices.get((terms, constant))
        if interned is not None:
            return interned
        self = super().__new__(cls)
        low = high = constant
        for coefficient, term in terms:
            if coefficient > 0:
                low += coefficient * term.low
                high += coefficient * term.high
            else:
                low += coefficient * term.high
                high += coefficient * term.low
        self.terms, self.constant, self.low, self.high = terms, constant, low, high
        self.leaves = frozenset().union(*[_leaves_of(term) for _, term in terms])
        self._key = None
        return _indices.setdefault((terms, constant), self)

    @property
    def key(self) -> str:
        """Unique structural text (also the debugging form)."""
        if self._key is None:
            parts = [t.key if c == 1 else f"{c}*{t.key}" for c, t in self.terms]
            if self.constant or not parts:
                parts.append(str(self.constant))
            self._key = "+".join(parts)
        return self._key

    def __repr__(self) -> str:
        return f"Index({self.key})"

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.constant + other) if other else self
        if not other.terms:
            return self + other.constant
        if not self.terms:
            return other + self.constant
        sums = {term: coefficient for coefficient, term in self.terms}
        for coefficient, term in other.terms:
            sums[term] = sums.get(term, 0) + coefficient
        return _build(sums, self.constant + other.constant)

    __radd__ = __add__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Index | int) -> Index:
        return self + (-other)

    def __rsub__(self, other: int) -> Index:
        return self * -1 + other

    def __mul__(self, factor: int) -> Index:
        if factor == 1:
            return self
        if factor == 0:
            return Index((), 0)
        return Index(tuple([(c * factor, t) for c, t in self.terms]), self.constant * factor)

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> Index:
        return divide(self, divisor)[0]

    def __mod__(self, divisor: int) -> Index:
        return divide(self, divisor)[1]

    def __divmod__(self, divisor: int) -> tuple[Index, Index]:
        return divide(self, divisor)

    def within(self, low: int, high: int) -> Index:
        """The same value, which lies in [low, high] wherever it is used (a guard saw to it)."""
        if low <= self.low and self.high <= high:
            return self
        if max(low, self.low) > min(high, self.high):
            # The guard never holds, so any value will do.
            return Index((), low)
        return Index(((1, Bounded(self, max(low, self.low), min(high, self.high))),), 0)

    def expanded(self) -> Index:
        """The same value with the bounds taken off the outermost sum, so that its terms merge."""
        result = self
        while any(isinstance(t, Bounded) for _, t in result.terms):
            parts = [
                (c, t.operand if isinstance(t, Bounded) else _single(t)) for c, t in result.terms
            ]
            result = sum((part * c for c, part in parts), Index((), result.constant))
        return result

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """The number (or array), given a number (or integer array) for the name of each leaf."""
        total: Any = self.constant
        for coefficient, term in self.terms:
            if isinstance(term, AffineLeaf):
                value = values[term.name]
            elif isinstance(term, (FloorDiv, Mod)):
                inner = term.operand.evaluate(values)
                value = (
                    inner // term.divisor if isinstance(term, FloorDiv) else inner % term.divisor
                )
            else:
                assert isinstance(term, Bounded)
                value = term.operand.evaluate(values)
            total = total + coefficient * value
        return total


# Those in use.
_indices: WeakValueDictionary[tuple[tuple[tuple[int, Term], ...], int], Index]
_indices = WeakValueDictionary()


def _leaves_of(term: Term) -> Iterable[AffineLeaf]:
    if isinstance(term, AffineLeaf):
        return (term,)
    assert isinstance(term, Compound)
    return term.operand.leaves


# ---- making them -------------------------------------------------------------------------------


def constant(value: int) -> Index:
    """The index that is always `value`."""
    return Index((), value)


def variable(name: str, extent: int) -> Index:
    """A loop variable 0 <= name < extent; of extent 1 it is the constant 0."""
    return Index((), 0) if extent == 1 else _single(IndexVariable(name, extent))


def symbol(name: str, low: int, high: int) -> Index:
    """A kernel argument low <= name <= high; one possible value makes it a constant."""
    return Index((), low) if low == high else _single(Symbol(name, low, high))


def opaque(text: str, low: int, high: int) -> Index:
    """A loaded value, by its C text, low <= value <= high."""
    return Index((), low) if low == high else _single(Opaque(text, low, high))


def _single(term: Term) -> Index:
    return Index(((1, term),), 0)


def _order(pair: tuple[int, Term]) -> tuple[int, str]:
    return (-abs(pair[0]), pair[1].key)


def _build(sums: dict[Term, int], constant: int) -> Index:
    """Canonical sum; puts n*(x//n) + x%n together again."""
    for term, coefficient in sums.items():
        if coefficient and isinstance(term, Mod):
            quotient = term.operand // term.divisor
            whole = coefficient * term.divisor
            for other, times in sums.items():
                joined = _joined(term, other) if times == whole else None
                if joined is not None:
                    rest = {t: c for t, c in sums.items() if t is not term and t is not other}
                    return _build(rest, constant) + joined * coefficient
            if all(sums.get(t) == whole * c for c, t in quotient.terms):
                rest = {t: c for t, c in sums.items() if t != term}
                for _, t in quotient.terms:
                    del rest[t]
                joined = term.operand * coefficient - whole * quotient.constant
                return _build(rest, constant) + joined
    terms = [(c, t) for t, c in sums.items() if c]
    if len(terms) > 1:
        terms.sort(key=_order)
    return Index(tuple(terms), constant)


def _joined(low: Mod, high: Term) -> Index | None:
    """low + n*high with low = x % n, where high is (x//n) % m, or y//n with y % n = x % n."""
    n = low.divisor
    if isinstance(high, Mod) and high.operand == low.operand // n:
        return low.operand % (n * high.divisor)
    if isinstance(high, FloorDiv) and high.divisor == n and high.operand % n == _single(low):
        return high.operand
    return None


# ---- division ----------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 15)
def divide(index: Index, n: int) -> tuple[Index, Index]:
    """(index // n, index % n), floor division, simplified together so that they recombine."""
    if n < 1:
        raise ValueError(f"index division by {n}: the divisor must be at least 1")
    if n == 1:
        return index, Index((), 0)
    if index.low // n == index.high // n:
        whole = index.low // n
        return Index((), whole), index - whole * n
    quotient, rest = _take_multiples(index, n)
    if rest.high < n:
        return quotient, rest
    if all(c < 0 for c, _ in rest.terms):  # floor((-y-1)/n) = -1 - floor(y/n)
        q, r = divide(-rest - 1, n)
        return quotient - 1 - q, n - 1 - r
    q, r = _divide_by_factor(rest, n) or _divide_term(rest, n)
    return quotient + q, r


def _take_multiples(index: Index, n: int) -> tuple[Index, Index]:
    """(q, rest) with index = n*q + rest, rest's coefficients below n and 0 <= rest.low < n."""
    whole: list[tuple[int, Term]] = []
    left: list[tuple[int, Term]] = []
    for c, t in index.terms:
        q = c // n if c > 0 else -(-c // n)
        if q:
            whole.append((q, t))
        if c != q * n:
            left.append((c - q * n, t))
    rest = _build({t: c for c, t in left}, index.constant) if whole else index
    shift = rest.low // n
    return _build({t: c for c, t in whole}, shift), rest - shift * n


def _divide_by_factor(rest: Index, n: int) -> tuple[Index, Index] | None:
    """With rest = g*a + b, g dividing n and 0 <= b < g: (a // (n/g), g * (a % (n/g)) + b)."""
    factors: set[int] = set()
    for c, _ in rest.terms:
        factors |= {gcd(c, g) for g in factors} | {gcd(c, n)}
    for g in sorted(factors - {1}, reverse=True):
        low = width = 0
        for c, t in rest.terms:
            if c % g:
                low += c * (t.low if c > 0 else t.high)
                width += abs(c) * (t.high - t.low)
        start = (low + rest.constant) % g
        if start + width < g:
            outer = tuple([(c // g, t) for c, t in rest.terms if c % g == 0])
            inner = tuple([(c, t) for c, t in rest.terms if c % g])
            b = Index(inner, start - low)
            q, r = divide(Index(outer, (rest.constant - b.constant) // g), n // g)
            return q, r * g + b
    return None


def _divide_term(rest: Index, n: int) -> tuple[Index, Index]:
    """Division that stays a division, after the rules for nested `//` and `%`."""
    quotient = remainder = None
    if len(rest.terms) == 1 and rest.terms[0][0] == 1:
        term = rest.terms[0][1]
        if isinstance(term, FloorDiv):  # (x//a + k) // n = (x + k*a) // (a*n)
            a = term.divisor
            quotient = (term.operand + rest.constant * a) // (a * n)
        elif isinstance(term, Mod) and term.divisor % n == 0 and rest.constant == 0:
            quotient = (term.operand // n) % (term.divisor // n)
    # c * (x % m) = c * x modulo n wherever n divides c * m
    loose = Index((), rest.constant)
    for c, t in rest.terms:
        fits = isinstance(t, Mod) and (c * t.divisor) % n == 0
        loose = loose + (t.operand if isinstance(t, Mod) and fits else _single(t)) * c
    if loose != rest:
        remainder = loose % n
    return quotient or _single(FloorDiv(rest, n)), remainder or _single(Mod(rest, n))


# Shapes -------------------------------------------------------------------------------------------


def flatten(coordinates: Sequence[Index], shape: Sequence[int]) -> Index:
    """Row-major position of `coordinates` in `shape`."""
    total = Index((), 0)
    for coordinate, extent in zip(coordinates, shape, strict=True):
        total = total * extent + coordinate
    return total


def unflatten(index: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """Row-major coordinates in `shape` of a position 0 <= index < product of shape."""
    coordinates: list[Index] = []
    for axis in range(len(shape) - 1, 0, -1):
        index, coordinate = divide(index, shape[axis])
        coordinates.append(coordinate)
    if shape:
        coordinates.append(index if shape[0] > 1 else Index((), 0))
    return tuple(reversed(coordinates))


def divisible(index: Index, n: int) -> bool:
    """Whether every coefficient and the constant are multiples of n."""
    index = index.expanded()
    return index.constant % n == 0 and all(c % n == 0 for c, _ in index.terms)


def split_lane(index: Index, lane: Index) -> tuple[int, Index] | None:
    """(coefficient, rest) with index = coefficient * lane + rest `lane` not in rest; or None."""
    index = index.expanded()
    ((_, term),) = lane.terms
    coefficient = next((c for c, t in index.terms if t == term), 0)
    rest = index - lane * coefficient
    return None if term in rest.leaves else (coefficient, rest)
