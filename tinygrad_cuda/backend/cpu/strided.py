"""Movements one after another that copy nothing, as one view of the array that they begin with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tinygrad_cuda.backend.cpu.forms import Form, joined
from tinygrad_cuda.core.shapes import Shape, reshape_strides
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import numeric

Array = np.ndarray[Any, Any]

# Movements whose own calls are as quick as making the view.
_QUICK = (mv.reshape, mv.permute)


class Strided:
    """Offset and strides of a view of a contiguous array; of another array, the calls in turn.

    Args:
        calls: what makes the view, one after another.
        base: laid out as a contiguous array of the runs; nothing reads it.
        view: the same of it.
    """

    __slots__ = ("calls", "shape", "dtype", "offset", "strides")

    def __init__(self, calls: Sequence[Callable[..., Any]], base: Array, view: Array) -> None:
        self.calls = tuple(calls)
        self.shape, self.dtype, self.strides = view.shape, view.dtype, view.strides
        self.offset = view.__array_interface__["data"][0] - base.__array_interface__["data"][0]

    def __call__(self, array: Array) -> Array:
        flags = array.flags
        if flags.c_contiguous and flags.owndata:
            return np.ndarray(self.shape, self.dtype, array, self.offset, self.strides)
        for call in self.calls:
            array = call(array)
        return array


class JoinedViews:
    """Views of one array that lie equally far apart, joined by one copy.

    Args:
        views: of the same shape and strides, in their order.
        axis: along which they are joined.
    """

    __slots__ = ("views", "axis", "shape", "result", "strides")

    def __init__(self, views: Sequence[Strided], axis: int, distance: int) -> None:
        self.views, self.axis = tuple(views), axis
        first = views[0]
        before, after = first.shape[:axis], first.shape[axis:]
        # The joined axis as two: which view, and where in it.
        self.shape = (*before, len(views), *after)
        self.strides = (*first.strides[:axis], distance, *first.strides[axis:])
        self.result = (*before, len(views) * after[0], *after[1:])

    def __call__(self, array: Array, out: Array | None = None) -> Array:
        flags, first = array.flags, self.views[0]
        if not (flags.c_contiguous and flags.owndata):
            return joined(self.axis, *[view(array) for view in self.views], out=out)
        view = np.ndarray(self.shape, first.dtype, array, first.offset, self.strides)
        if out is None:
            out = np.empty(self.result, first.dtype)
        numeric.copy_into(out.reshape(self.shape), view)
        return out


class _Path:
    """Movements from a node on, tried with an array that is laid out as its value."""

    def __init__(self, start: Node) -> None:
        self.start = start
        self.base = self.view = _layout(start.shape, start.dtype.numpy)
        self.nodes: list[Node] = []
        self.calls: list[Callable[..., Any]] = []

    def continued(self, node: Node, call: Callable[..., Any]) -> _Path | None:
        """The path with one more movement; None if that copies."""
        if node.op is mv.reshape:
            strides = reshape_strides(self.view.shape, self.view.strides, node.shape)
            if strides is None:
                return None
            view = as_strided(self.view, node.shape, strides, writeable=False)
        else:
            view = call(self.view)
        longer = object.__new__(_Path)
        longer.start, longer.base, longer.view = self.start, self.base, view
        longer.nodes, longer.calls = [*self.nodes, node], [*self.calls, call]
        return longer

    def form(self) -> Form:
        return Form((self.start,), Strided(self.calls, self.base, self.view), "view")


def join_movements(
    order: Sequence[Node], forms: dict[Node, Form], results: Collection[Node]
) -> None:
    """Replaces the forms of movements that nothing else reads by that of the last of them.

    Args:
        order: what is computed, sources first.
        forms: of all of them.
        results: read from outside.
    """
    readers = Counter(
        source for node in order for source in forms[node].sources if isinstance(source, Node)
    )
    readers.update(results)
    paths: dict[Node, _Path] = {}
    for node in order:
        form = forms[node]
        source = form.sources[0] if form.sources else None
        if not isinstance(source, Node) or not _is_movement(node, form):
            continue
        path = paths.get(source) if readers[source] == 1 else None
        if path is None and source.shape and 0 not in source.shape and _is_plain(source):
            path = _Path(source)
        longer = None if path is None else path.continued(node, form.call)
        if longer is None:
            continue
        paths[node] = longer
        if len(longer.nodes) > 1 or node.op not in _QUICK:
            forms[node] = longer.form()
    for node in order:
        form = forms[node]
        if isinstance(form.call, partial) and form.call.func is joined:
            (axis,) = form.call.args
            forms[node] = _as_one_view(form, axis, forms) or form


def _as_one_view(form: Form, axis: int, forms: dict[Node, Form]) -> Form | None:
    """The form of parts that are joined, if all are views of one array at equal distances."""
    parts = [forms.get(part) for part in form.sources if isinstance(part, Node)]
    views = [part.call for part in parts if part is not None and isinstance(part.call, Strided)]
    if len(views) < len(form.sources):
        return None
    base = {id(part.sources[0]) for part in parts if part is not None}
    layouts = {(view.shape, view.strides) for view in views}
    distances = {b.offset - a.offset for a, b in pairwise(views)}
    if len(base) > 1 or len(layouts) > 1 or len(distances) != 1:
        return None
    assert parts[0] is not None
    return Form(parts[0].sources, JoinedViews(views, axis, distances.pop()), "fill")


def _layout(shape: Shape, dtype: np.dtype[Any]) -> Array:
    """An array with a contiguous one's strides and the memory of one element: never to be read.

    Memory of the whole size would count against the step for which the plan is made.
    """
    strides, stride = [], dtype.itemsize
    for size in reversed(shape):
        strides.append(stride)
        stride *= size
    return as_strided(np.empty(1, dtype), shape, strides[::-1], writeable=False)


def _is_movement(node: Node, form: Form) -> bool:
    """Whether a node's value is a view of one source, the same in each run."""
    return (
        form.kind == "view" and form.dynamic is None and len(form.sources) == 1
        and node.op.kind == "movement"
    )  # fmt: skip


def _is_plain(source: Node) -> bool:
    return len(source.outputs) == 1 and source.dtype.numpy.kind in "fiub"
