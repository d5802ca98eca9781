"""How the cpu device computes a node: by its row's reference, or by quicker NumPy calls.

A form gives the same values as the reference, bit for bit but for the sign of a sum that is zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tinygrad_cuda.backend.cpu.pool import pool
from tinygrad_cuda.backend.cpu.rows import HALF, has_argument, reference_of
from tinygrad_cuda.graph.node import Node, Op, node_made
from tinygrad_cuda.graph.ops import common, contraction, convolution, indexing, numeric
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd

Array = np.ndarray[Any, Any]

# Bytes of a value that is computed once, when the plan is made, and stored in it.
STATIC_BYTES = 1 << 16
# Bytes of rearranged values that a second reader reuses instead of computing them again.
MERGED_BYTES = 1 << 26
_ERASED = (common.variable, common.detach)


class Form(NamedTuple):
    """What computes a node.

    Attributes:
        sources: nodes, or arrays that are the same in each run.
        call: of the sources' arrays.
        kind: ``out``: elementwise, the call takes ``out=``; ``map``: elementwise, the call makes
            an array; ``new``: the call makes an array; ``view``: of the first source's memory;
            ``fill``: as ``new``, and takes ``out=``; ``update``: the call changes its first
            argument, which is the result.
        dynamic: attributes that the call takes, some of them numbers that each run supplies.
    """

    sources: tuple[Node | Array, ...]
    call: Callable[..., Any]
    kind: str
    dynamic: dict[str, Any] | None = None


class Forms:
    """Chooses the form of each node of a program.

    Args:
        order: the program's nodes, sources first.
        outputs: those that are wanted.
    """

    def __init__(self, order: Sequence[Node], outputs: Sequence[Node]) -> None:
        self._same: dict[Node, Node] = {}
        self._merge(order)
        # How often values are read.
        self.uses = Counter(map(self.canonical, outputs))
        for node in dict.fromkeys(self._same.values()):
            self.uses.update(map(self.canonical, node.sources))
        # Nodes with one and the same value everywhere, as 0-d arrays.
        self.uniform: dict[Node, Array] = {}
        # Other nodes whose value is the same in each run.
        self.static: dict[Node, Array] = {}
        # Numbers that each run supplies: 0-d nodes for them, with their forms.
        self.numbers: dict[Node, Node] = {}
        self.added: dict[Node, Form] = {}
        self._full: dict[Node, Array] = {}

    def _merge(self, order: Sequence[Node]) -> None:
        """Finds what stands for each node: identities have their source's value, equals one."""
        same, bytes_left = self._same, MERGED_BYTES
        firsts: dict[Any, Node] = {}
        for node in order:
            op = node.op
            if op in _ERASED:
                same[node] = same[node.sources[0]]
            elif op is common.assign:
                same[node] = same[node.sources[1]]
            elif op is common.buffer:
                same[node] = node
            else:
                numbers = op.literals + op.arguments
                attributes = tuple(
                    (name, repr(value) if name in numbers else value)
                    for name, value in node.attributes.items()
                )
                key = (
                    op,
                    tuple([same[source] for source in node.sources]),
                    attributes,
                    node.outputs,
                )
                first = firsts.setdefault(key, node)
                if first is not node and (op is mv.reshape or _copies(op)):
                    # It would stay in memory between its readers.
                    bytes_left -= prod(node.shape) * node.dtype.itemsize
                    first = first if bytes_left >= 0 else node
                same[node] = first

    def canonical(self, node: Node) -> Node:
        """The node that stands for all of this value."""
        return self._same.get(node, node)

    def full(self, node: Node) -> Node | Array:
        """What has the node's value in its whole shape."""
        node = self.canonical(node)
        if node in self.uniform:
            array = self._full.get(node)
            if array is None:
                array = self._full[node] = np.broadcast_to(self.uniform[node], node.shape)
            return array
        return self.static.get(node, node)

    def small(self, node: Node) -> Node | Array:
        """What broadcasts to the node's value."""
        node = self.canonical(node)
        while node not in self.uniform and node.op is mv.expand:
            node = self.canonical(node.sources[0])
        if node in self.uniform:
            return self.uniform[node]
        return self.static[node] if node in self.static else self.numbers.get(node, node)

    def of(self, node: Node) -> Form | None:
        """The form of a canonical node whose sources have theirs; None of a static value."""
        if self._is_static(node):
            return None
        special = _SPECIAL.get(node.op)
        if special is not None:
            form = special(self, node)
            if form is not None:
                return form
        return self._by_row(node)

    def _by_row(self, node: Node) -> Form:
        op, attributes = node.op, node.attributes
        call = reference_of(node)
        if any(map(has_argument, attributes.values())):
            if op is common.constant or op is common.scalar:
                return self._of_number(node)
            sources = tuple(map(self.full, node.sources))
            return Form(sources, call, "new" if op.kind != "movement" else "view", attributes)
        if attributes:
            call = partial(call, **attributes)
        if op.kind == "elementwise":
            row: Any = op.numpy
            if _takes_out(node):
                operands = self._broadcasting(node)
                if isinstance(row, np.ufunc) and _is_sliced(node, operands):
                    row = partial(numeric.by_slices, row)
                return Form(operands, row, "out")
            return Form(tuple(map(self.full, node.sources)), call, "map")
        # A view, or what may be one.
        view = op.kind in ("movement", "identity") and not _copies(op)
        return Form(tuple(map(self.full, node.sources)), call, "view" if view else "new")

    def _of_number(self, node: Node) -> Form:
        """A number of the run, in the node's whole shape."""
        dtype, shape = node.dtype, node.shape
        number = node_made(
            node.op, (), node.attributes, (((), dtype),), node.device, False, node.site
        )
        kind = dtype.numpy
        form = Form((), lambda value: np.asarray(value).astype(kind), "new", node.attributes)
        self.added[number] = form
        self.numbers[node] = number
        return Form((number,), lambda x: np.broadcast_to(x, shape), "view")

    def _broadcasting(self, node: Node) -> tuple[Node | Array, ...]:
        """Sources that together have the node's shape: axes of size 1 are left to NumPy."""
        sources = [self.small(source) for source in node.sources]
        if np.broadcast_shapes(*[source.shape for source in sources]) != node.shape:
            sources[0] = self.full(node.sources[0])
        return tuple(sources)

    def _is_static(self, node: Node) -> bool:
        """Computes what is the same in each run, if it is uniform or small."""
        op, attributes = node.op, node.attributes
        if any(map(has_argument, attributes.values())) or len(node.outputs) > 1:
            return False
        if op is common.constant or op is common.scalar:
            with np.errstate(all="ignore"):
                self.uniform[node] = np.asarray(attributes["value"]).astype(node.dtype.numpy)
            return True
        if op is common.complex_constant:
            number = complex(attributes["real"], attributes["imag"])
            self.uniform[node] = np.asarray(number).astype(node.dtype.numpy)
            return True
        if op.kind == "leaf":
            if op is not common.arange or prod(node.shape) * node.dtype.itemsize > STATIC_BYTES:
                return False
            self.static[node] = reference_of(node)(**attributes)
            return True
        if op in indexing.CHECKS or op.kind in ("kernel", "contraction"):
            return False
        sources = [self.canonical(source) for source in node.sources]
        if self._is_uniform(node, sources):
            return True
        bytes_of = [prod(n.shape) * n.dtype.itemsize for n in (node, *sources)]
        if max(bytes_of) > STATIC_BYTES:
            return False
        if not all(s in self.uniform or s in self.static for s in sources):
            return False
        arrays = [self.full(source) for source in sources]
        with np.errstate(all="ignore"):
            self.static[node] = np.asarray(reference_of(node)(*arrays, **attributes))
        return True

    def _is_uniform(self, node: Node, sources: list[Node]) -> bool:
        """Computes a function or rearrangement of uniform values."""
        op = node.op
        if op.kind not in ("elementwise", "movement") or _fills(op):
            return False
        if 0 in node.shape or not all(source in self.uniform for source in sources):
            return False
        if op.kind == "movement":
            self.uniform[node] = self.uniform[sources[0]]
        else:
            values = [self.uniform[source].reshape(1) for source in sources]
            with np.errstate(all="ignore"):
                value = reference_of(node)(*values, **node.attributes)
            self.uniform[node] = np.asarray(value).reshape(())
        return True


def _copies(op: Op) -> bool:
    return isinstance(op, mv.MovementOp) and not op.view


def _fills(op: Op) -> bool:
    return isinstance(op, mv.MovementOp) and op.fills


def _is_sliced(node: Node, operands: Sequence[Node | Array]) -> bool:
    """Whether many short rows are computed from one element each of some operand."""
    shape = node.shape
    if len(shape) < 2 or not 2 <= shape[-1] <= SLICES or prod(shape[:-1]) < MANY_ROWS:
        return False
    return any(one.shape and one.shape[-1] == 1 for one in operands)


# The longest row that is computed slice by slice.
SLICES = 8


def _takes_out(node: Node) -> bool:
    """Whether the row's function broadcasts and writes to ``out=``, in the dtype of the node."""
    row: Any = node.op.numpy
    if any(source.dtype.name in HALF for source in node.sources):
        return False
    if node.attributes:
        return False
    return isinstance(row, np.ufunc) or getattr(row, "takes_out", False)


# Rules --------------------------------------------------------------------------------------------


def _number(forms: Forms, node: Node) -> Any:
    """The number that a node is everywhere, or None."""
    value = forms.uniform.get(forms.canonical(node))
    return None if value is None else value.item()


def _is_zero(forms: Forms, node: Node) -> bool:
    """Whether a node is 0 (not -0) everywhere."""
    value = forms.uniform.get(forms.canonical(node))
    return value is not None and not np.any(value.reshape(1).view(f"V{value.itemsize}").tobytes())


def _where(forms: Forms, node: Node) -> Form | None:
    if not node.shape:
        return None
    condition, a, b = (forms.canonical(source) for source in node.sources)
    chosen = _number(forms, condition)
    if chosen is not None:
        return Form((forms.full(a if chosen else b),), _same, "view")
    joined = _join(forms, node) or _paste(forms, node)
    if joined is not None:
        return joined
    if _is_relu(forms, node):
        # A result is 0 where its operand is at most 0: the mask is that of the result, which is
        # stored for other gradients, too.
        zero = forms.small(condition.sources[1])
        forms.added[condition] = Form((node, zero), np.less_equal, "out")
        return Form((forms.full(b),), numeric.relu, "out")
    return None


def _is_relu(forms: Forms, node: Node) -> bool:
    """Whether a choice is 0 where its last operand is at most 0, else that."""
    condition, a, b = (forms.canonical(source) for source in node.sources)
    return (
        condition.op is ew.le and _is_zero(forms, a) and _is_zero(forms, condition.sources[1])
        and forms.canonical(condition.sources[0]) is b and b.dtype.name in ("float32", "float64")
    )  # fmt: skip


def _same(array: Array) -> Array:
    return array


def _power(forms: Forms, node: Node) -> Form | None:
    base, exponent = node.sources
    number = _number(forms, exponent)
    if number not in numeric.PRODUCTS or base.dtype.name in HALF:
        return None
    return Form((forms.full(base),), partial(numeric.product_power, int(number)), "out")


def _region(forms: Forms, pad: Node) -> tuple[slice, ...] | None:
    """Where a pad puts its source, if that is the same in each run."""
    if pad.op is not mv.pad or any(map(has_argument, pad.attributes.values())):
        return None
    attributes = pad.attributes
    return mv.slice_key(attributes["starts"], pad.sources[0].shape, attributes["steps"])


def _pasted(forms: Forms, node: Node) -> tuple[tuple[slice, ...], Node, Node] | None:
    """For ``where(mask, pad(x), rest)`` whose mask is where x is: that region, x, rest."""
    if node.op is not ew.where:
        return None
    mask, placed, rest = (forms.canonical(source) for source in node.sources)
    region, inside = _region(forms, placed), _region(forms, mask)
    if region is None or inside != region or placed.sources[0].shape != mask.sources[0].shape:
        return None
    if _number(forms, mask.sources[0]) is not True or mask.attributes["value"]:
        return None
    return region, placed.sources[0], rest


def _join(forms: Forms, node: Node) -> Form | None:
    """A chain of pasted parts that fill the whole, one behind the other, as `cat` records it."""
    parts: list[tuple[tuple[slice, ...], Node]] = []
    rest, first = node, True
    while True:
        whole = _pasted(forms, rest) if first or forms.uses[rest] == 1 else None
        if whole is None:
            break
        first = False
        region, part, rest = whole
        parts.append((region, part))
    last = _region(forms, rest) if forms.uses[rest] == 1 else None
    if last is None or not parts:
        return None
    parts.append((last, rest.sources[0]))
    shape = node.shape
    axes = [
        axis for axis, size in enumerate(shape)
        if any(region[axis] != slice(0, size, 1) for region, _ in parts)
    ]  # fmt: skip
    if len(axes) != 1:
        return None
    (axis,) = axes
    parts.sort(key=lambda part: part[0][axis].start)
    end = 0
    for region, _ in parts:
        if region[axis].start != end or region[axis].step != 1:
            return None
        end = region[axis].stop
    if end != shape[axis]:
        return None
    sources = tuple(forms.full(part) for _, part in parts)
    return Form(sources, partial(joined, axis), "fill")


def joined(axis: int, *parts: Array, out: Array | None = None) -> Array:
    """The parts one behind the other."""
    return np.concatenate(parts, axis, out=out)


def _paste(forms: Forms, node: Node) -> Form | None:
    pasted = _pasted(forms, node)
    if pasted is None:
        return None
    region, part, rest = pasted
    return Form((forms.full(rest), forms.full(part)), partial(_put, region), "update")


def _put(region: tuple[slice, ...], target: Array, part: Array) -> Array:
    target[region] = part
    return target


def _add(forms: Forms, node: Node) -> Form | None:
    """A sum with what is zero outside a region adds there only."""
    if not node.shape:
        return None
    for a, b in (node.sources, node.sources[::-1]):
        a, b = forms.canonical(a), forms.canonical(b)
        region = _region(forms, b)
        if region is None or forms.uses[b] > 1 or b.attributes["value"] or b.dtype.name in HALF:
            continue
        if a in forms.uniform or a is b:
            continue
        return Form((forms.full(a), forms.full(b.sources[0])), partial(_increase, region), "update")
    return None


def _increase(region: tuple[slice, ...], target: Array, part: Array) -> Array:
    inside = target[region]
    np.add(inside, part, out=inside)
    return target


def _slice(forms: Forms, node: Node) -> Form | None:
    """A slice of ``where(mask, a, b)`` on one side of the mask's border: of a or of b alone."""
    if any(map(has_argument, node.attributes.values())):
        return None
    key = mv.slice_key(node.attributes["starts"], node.shape, node.attributes["steps"])
    source = first = forms.canonical(node.sources[0])
    while source.op is ew.where:
        chosen = _side(forms, forms.canonical(source.sources[0]), key)
        if chosen is None:
            break
        source = forms.canonical(source.sources[1 if chosen else 2])
    if source is first:
        return None
    return Form((forms.full(source),), lambda x: x[key], "view")


def _side(forms: Forms, mask: Node, key: tuple[slice, ...]) -> bool | None:
    """What a mask that is true in a region alone is throughout a slice."""
    region = _region(forms, mask)
    if region is None or _number(forms, mask.sources[0]) is not True or mask.attributes["value"]:
        return None
    if any(part.step != 1 for part in region):
        return None
    pairs = list(zip(key, region))
    if all(a.start >= b.start and a.stop <= b.stop for a, b in pairs):
        return True
    return False if any(a.stop <= b.start or a.start >= b.stop for a, b in pairs) else None


def _short_rows(forms: Forms, node: Node) -> Form | None:
    """An extreme of a few elements, as of a pooling window: of their slices, not row by row."""
    source, rank = forms.canonical(node.sources[0]), len(node.shape)
    if not rank or node.attributes["axes"] != (rank - 1,) or source.dtype.name in HALF:
        return None
    if not 2 <= source.shape[-1] <= SHORT or prod(node.shape) < MANY_ROWS:
        return None
    if source.op is mv.reshape:
        # Windows lie in several axes, which need not be copied together.
        apart = forms.canonical(source.sources[0])
        if apart.shape[: rank - 1] == source.shape[:-1]:
            source = apart
    tail = source.shape[rank - 1 :]
    assert isinstance(node.op, rd.ReductionOp) and node.op.by_slices is not None
    call = partial(node.op.by_slices, tail)
    return Form((forms.full(source),), call, "new")


# The longest row that is reduced slice by slice, and from how many rows on.
SHORT, MANY_ROWS = 32, 256


def _reshape(forms: Forms, node: Node) -> Form:
    shape = node.shape
    call = partial(numeric.reshaped, shape, pool)
    return Form((forms.full(node.sources[0]),), call, "view")


def _matmul(forms: Forms, node: Node) -> Form | None:
    a, b = node.sources
    if node.attributes or a.dtype.name in HALF:
        return None
    # A transposed result would be copied wherever rows are wanted.
    call = numeric.turned_product if _is_turned(a, b) else numeric.product
    return Form((forms.full(a), forms.full(b)), call, "fill")


def _is_turned(a: Node, b: Node) -> bool:
    """Whether BLAS is quicker with the transposes: it packs the operand in front in its own order.

    So it is for long sums of few elements, more columns than rows, and for few rows of a large
    weight.
    """
    rows, terms, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    if b.op is not mv.permute:
        return False
    few = 2 <= rows <= FEW_ROWS and terms * columns >= LARGE_WEIGHT and len(b.shape) == 2
    return few or (rows < columns and terms >= MANY_TERMS * columns)


# Terms for each column from which on a product is turned; rows up to which it is, and elements of
# the weight (at 64 rows: 0.84 of the time with 784 x 256 elements, 1.03 with 128 x 128).
MANY_TERMS, FEW_ROWS, LARGE_WEIGHT = 8, 64, 1 << 16


def _convolution(forms: Forms, node: Node) -> Form | None:
    """A convolution or one of its gradients; columns come from the pool."""
    if node.dtype.name in HALF:
        return None
    row: Any = node.op.numpy
    call = partial(row, workspace=pool, **node.attributes)
    return Form(tuple(map(forms.full, node.sources)), call, "fill")


def _placed(forms: Forms, node: Node) -> Form | None:
    """A pad or unwindow."""
    if any(map(has_argument, node.attributes.values())):
        return None
    row: Any = node.op.numpy
    return Form((forms.full(node.sources[0]),), partial(row, **node.attributes), "fill")


def _expand(forms: Forms, node: Node) -> Form:
    shape = node.shape
    return Form((forms.small(node.sources[0]),), lambda x: np.broadcast_to(x, shape), "view")


def _check(forms: Forms, node: Node) -> Form:
    # The values have been checked before the call: all are right.
    return Form((forms.full(node.sources[0]),), lambda value, **_: value, "view", node.attributes)


_SPECIAL: dict[Any, Callable[[Forms, Node], Form | None]] = {
    ew.where: _where,
    ew.add: _add,
    ew.pow: _power,
    mv.expand: _expand,
    mv.slice_: _slice,
    mv.reshape: _reshape,
    mv.pad: _placed,
    mv.unwindow: _placed,
    contraction.matmul: _matmul,
    **dict.fromkeys(convolution.ROWS, _convolution),
    **{row: _short_rows for row in rd.ROWS if row.by_slices is not None},
    indexing.check_index: _check,
    indexing.check_unit: _check,
}
