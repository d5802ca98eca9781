"""Which operands of a product PyTorch saves: those that it multiplies themselves, or by views.

An operand that has to be copied first, since its dimensions cannot be merged, or summed first,
since a label is its own, is saved as that copy, which nobody else can write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

Arguments = dict[str, Any]


class Operand(NamedTuple):
    """An operand, or a view of one.

    Attributes:
        tensor: what is saved, None for what is computed in between.
        gradual: whether it requires grad.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    tensor: Any
    gradual: bool

    @classmethod
    def of(cls, tensor: Any) -> Operand:
        return cls(tuple(tensor.shape), tuple(tensor.strides), tensor, tensor.requires_grad)

    def copied(self) -> Operand:
        """A copy of it, as far as this matters."""
        return self._replace(tensor=None)

    def permuted(self, order: Sequence[int]) -> Operand:
        """Its dimensions in another order."""
        shape, strides = (tuple(values[k] for k in order) for values in self[:2])
        return self._replace(shape=shape, strides=strides)

    def expanded(self, batch: tuple[int, ...]) -> Operand:
        """The same for each of a batch of matrices."""
        missing = len(batch) + 2 - len(self.shape)
        shape = (1,) * missing + self.shape
        strides = (0,) * missing + self.strides
        strides = tuple(s if n != 1 else 0 for n, s in zip(shape, strides))
        return self._replace(shape=(*batch, *shape[-2:]), strides=strides)

    def merged(self, *groups: Sequence[int]) -> Operand:
        """Each group of dimensions as one, or a copy where that is no view."""
        for group in groups:
            dims = [(self.shape[k], self.strides[k]) for k in group if self.shape[k] != 1]
            if any(s != n * t for (_, s), (n, t) in pairwise(dims)) and 0 not in self.shape:
                return self.copied()
        return self


def _saved(x: Operand, y: Operand) -> Iterator[Any]:
    """Each factor is saved for the gradient of the other one."""
    for one, other in ((x, y), (y, x)):
        if other.gradual and one.tensor is not None:
            yield one.tensor


def _first(arguments: Arguments, *names: str) -> list[Any]:
    """The arguments of these names; the first one whatever its name is."""
    return [next(iter(arguments.values())), *(arguments.get(name) for name in names)]


# matmul -------------------------------------------------------------------------------------------


def matmul(arguments: Arguments) -> list[Any]:
    """``matmul(input, other)``."""
    x, y = _first(arguments, "other")
    return list(_saved(*_multiplied(Operand.of(x), Operand.of(y))))


def linear(arguments: Arguments) -> list[Any]:
    """``linear(input, weight)``: by the transposed weight."""
    x, y = _first(arguments, "weight")
    weight = Operand.of(y)
    weight = weight.permuted((1, 0)) if y.ndim == 2 else weight
    return list(_saved(*_multiplied(Operand.of(x), weight)))


def _multiplied(x: Operand, y: Operand) -> tuple[Operand, Operand]:
    """The factors as they are multiplied: as matrices, or as a batch of them."""
    a, b = len(x.shape), len(y.shape)
    if a <= 2 and b <= 2:
        return x, y
    if _folds(x, y):
        rows = range(max(a, b) - 1)
        if a >= b:
            return x.merged(rows), y
        return x, _transposed(y).merged(rows)
    if a == b == 3 and x.shape[0] != y.shape[0]:
        if x.shape[0] == 1 and x.gradual:
            return _multiplied(x._replace(shape=x.shape[1:], strides=x.strides[1:]), y)
        if y.shape[0] == 1 and y.gradual:
            return _multiplied(x, y._replace(shape=y.shape[1:], strides=y.strides[1:]))
    x = x if a > 1 else x._replace(shape=(1, *x.shape), strides=(0, *x.strides))
    y = y if b > 1 else y._replace(shape=(*y.shape, 1), strides=(*y.strides, 0))
    batch = _batch(x.shape[:-2], y.shape[:-2])
    return x.expanded(batch).merged(range(len(batch))), y.expanded(batch).merged(range(len(batch)))


def _batch(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(len(a), len(b))
    padded = ((1,) * (rank - len(s)) + s for s in (a, b))
    return tuple(n if m == 1 else m for m, n in zip(*padded))


def _transposed(x: Operand) -> Operand:
    rank = len(x.shape)
    return x.permuted((*range(rank - 2), rank - 1, rank - 2))


def _folds(x: Operand, y: Operand) -> bool:
    """Whether a batch of matrices is one matrix, since the other factor is one or a vector."""
    large, small = (x, y) if len(x.shape) >= len(y.shape) else (_transposed(y), x)
    if len(large.shape) < 3 or len(small.shape) > 2:
        return False
    if small.gradual:
        return True
    if len(x.shape) == 2:
        return False
    pairs = zip(large.shape[1:-1], large.strides[:-2], large.strides[1:-1])
    return not prod(large.shape) or all(s == n * t for n, s, t in pairs)


# tensordot, inner, multi_dot ----------------------------------------------------------------------


def tensordot(arguments: Arguments) -> list[Any]:
    """``tensordot(a, b, dims)``."""
    x, y, dims = _first(arguments, "b", "dims")
    dims = 2 if dims is None else dims
    if isinstance(dims, int):
        a, b = list(range(x.ndim - dims, x.ndim)), list(range(dims))
    else:
        a, b = ([k] if isinstance(k, int) else list(k) for k in dims)
    return list(_saved(*_contracted(Operand.of(x), Operand.of(y), a, b)))


def inner(arguments: Arguments) -> list[Any]:
    """``inner(input, other)``: over the last dimensions."""
    x, y = map(Operand.of, _first(arguments, "other"))
    if x.shape and y.shape:
        x, y = _contracted(x, y, [-1], [-1])
    return list(_saved(x, y))


def _contracted(x: Operand, y: Operand, a: list[int], b: list[int]) -> tuple[Operand, Operand]:
    a, b = [k % len(x.shape) for k in a], [k % len(y.shape) for k in b]
    summed = [y.shape[k] == 1 for k in b]
    other = [x.shape[k] == 1 and not s for k, s in zip(a, summed)]
    rest = [k for k in range(len(x.shape)) if k not in a]
    more = [k for k in range(len(y.shape)) if k not in b]
    if prod(x.shape[k] for k in rest) * prod(y.shape[k] for k in more) != 1:
        x, y = x.merged(rest, a), y.merged(b, more)
    return x.copied() if any(summed) else x, y.copied() if any(other) else y


def multi_dot(arguments: Arguments) -> list[Any]:
    """``multi_dot(tensors)``: in the order of the fewest products."""
    operands = [Operand.of(x) for x in next(iter(arguments.values()))]
    shapes = [x.shape for x in operands]
    shapes[0] = (1,) * (2 - len(shapes[0])) + shapes[0]
    sizes = [shape[0] for shape in shapes]
    sizes.append(1 if len(shapes[-1]) == 1 else shapes[-1][-1])
    saved: list[Any] = []
    _chain(operands, sizes, saved)
    return saved


def _chain(operands: list[Operand], sizes: list[int], saved: list[Any]) -> Operand:
    if len(operands) == 1:
        return operands[0]
    middle = _cut(sizes)
    x = _chain(operands[:middle], sizes[: middle + 1], saved)
    y = _chain(operands[middle:], sizes[middle:], saved)
    saved += _saved(x, y)
    return Operand((), (), None, x.gradual or y.gradual)


def _cut(sizes: list[int]) -> int:
    """Where a chain of matrices is cut in two; of three matrices at the end, if it costs less."""
    count = len(sizes) - 1
    costs = {(i, i + 1): (0, i) for i in range(count)}
    for length in range(2, count + 1):
        for i in range(count - length + 1):
            j = i + length
            costs[i, j] = min(
                (costs[i, k][0] + costs[k, j][0] + sizes[i] * sizes[k] * sizes[j], k)
                for k in range(i + 1, j)
            )
    if count == 3:
        a, b, c, d = sizes
        return 2 if a * c * (b + d) <= b * d * (a + c) else 1
    return costs[0, count][1]


# einsum -------------------------------------------------------------------------------------------


def einsum(arguments: Arguments) -> list[Any]:
    """``einsum(equation, *operands)``: pairs from the left."""
    equation, tensors = _equation(arguments)
    operands = [Operand.of(x) for x in tensors]
    if len(operands) < 2 or not isinstance(equation, str):
        return []
    parts, output = _labelled(equation, operands)
    sizes: dict[str, int] = {}
    for part, operand in zip(parts, operands):
        for label, n in zip(part, operand.shape):
            sizes[label] = n if sizes.get(label, 1) == 1 else sizes[label]
    saved: list[Any] = []
    labels, x = parts[0], operands[0]
    for number in range(1, len(operands)):
        rest = set("".join(parts[number + 1 :])) - set(output)
        later = output + "".join(sorted(rest))
        x, y, labels = _pair(x, labels, operands[number], parts[number], later)
        saved += _saved(x, y)
        shape = tuple(sizes[label] for label in labels)
        x = Operand(shape, (0,) * len(shape), None, x.gradual or y.gradual)
    return saved


def _equation(arguments: Arguments) -> tuple[Any, list[Any]]:
    first, *rest = arguments.values()
    tensors: list[Any] = []
    for value in rest:
        tensors += value if isinstance(value, list | tuple) else [value]
    if tensors and isinstance(tensors[0], list | tuple):
        tensors = list(tensors[0])
    return first, [x for x in tensors if hasattr(x, "strides")]


def _labelled(equation: str, operands: list[Operand]) -> tuple[list[str], str]:
    """The labels of each operand and of the result, those of an ellipsis spelled out."""
    given, arrow, output = equation.replace(" ", "").partition("->")
    parts = given.split(",")
    longest = ""
    for number, (part, operand) in enumerate(zip(parts, operands)):
        count = len(operand.shape) - len(part.replace("...", ""))
        spelled = "".join(chr(0x3B1 + k) for k in range(count))[::-1]
        parts[number] = part.replace("...", spelled)
        longest = max(longest, spelled, key=len)
    if not arrow:
        joined = given.replace("...", "").replace(",", "")
        output = longest + "".join(sorted(c for c in set(joined) if joined.count(c) == 1))
    return parts, output.replace("...", longest)


def _pair(x: Operand, a: str, y: Operand, b: str, later: str) -> tuple[Operand, Operand, str]:
    """Two operands as they are multiplied, and the labels of the product."""
    x, a = _diagonal(x, a)
    y, b = _diagonal(y, b)
    long_a = {label for label, n in zip(a, x.shape) if n != 1}
    long_b = {label for label, n in zip(b, y.shape) if n != 1}
    own_a = long_a - long_b - set(later)
    own_b = long_b - long_a - set(later)
    x = x.copied() if own_a else x
    y = y.copied() if own_b else y
    summed = (long_a & long_b) - set(later)
    if summed:
        batch = long_a & long_b & set(later)
        order = [*later, *sorted(summed)]
        groups = [[k for k in order if k in g] for g in (batch, long_a - long_b - own_a, summed)]
        x = x.merged(*([a.index(k) for k in group] for group in groups))
        groups[1] = [k for k in order if k in long_b - long_a - own_b]
        y = y.merged(*([b.index(k) for k in group] for group in groups))
    return x, y, "".join(k for k in later if k in a + b)


def _diagonal(x: Operand, labels: str) -> tuple[Operand, str]:
    """A label that is there twice is one dimension, a view."""
    once = "".join(dict.fromkeys(labels))
    shape = tuple(x.shape[labels.index(k)] for k in once)
    strides = tuple(sum(s for c, s in zip(labels, x.strides) if c == k) for k in once)
    return x._replace(shape=shape, strides=strides), once
