"""Reductions: an associative combine with an identity, over any set of axes.

The reduced axes stay with size 1, so a cotangent goes back with one `expand`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod as count_of
from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import DType, int64
from tinygrad_cuda.core.errors import ShapeError
from tinygrad_cuda.graph.node import Gradient, Node, Op, Outputs
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import numeric
from tinygrad_cuda.graph.ops.common import full, full_like, output, require_dtype


def reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if axis in axes else size for axis, size in enumerate(shape))


def _checked(
    domain: str, result: DType | None = None, nonempty: bool = False, outputs: int = 1
) -> Callable[..., Outputs]:
    def infer(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
        x, axes = sources[0], attributes["axes"]
        require_dtype(op.name, x, domain)
        if nonempty and count_of(x.shape[axis] for axis in axes) == 0:
            raise ShapeError(
                op.name,
                "nothing to reduce",
                expect="at least one element along the reduced dimensions",
                actual=f"shape {x.shape}, dim {axes}",
            )
        return ((reduced_shape(x.shape, axes), result or x.dtype),) * outputs

    return infer


def _op(
    name: str,
    numpy: Callable[..., Any],
    combine: str,
    gradient: Gradient | None,
    infer: Callable[..., Outputs],
) -> Op:
    return Op(name, "reduction", infer, numpy=numpy, cuda=combine, gradient=(gradient,), cost=2)


def _keep(function: Any) -> Callable[..., Any]:
    return lambda x, axes: function(x, axis=axes, keepdims=True)


def _accumulate(function: Any) -> Callable[..., Any]:
    # NumPy would widen small integers; here the result has the dtype of x and wraps.
    return lambda x, axes: function(x, axis=axes, keepdims=True, dtype=x.dtype)


def _back(g: Node, x: Node) -> Node:
    return mv.expand(g, shape=x.shape)


def _shared_among_ties(g: Node, out: Node, x: Node, axes: tuple[int, ...]) -> Node:
    # NaN is equal to nothing, and is the result where there is one.
    chosen = ew.logical_or(ew.eq(x, _back(out, x)), ew.isnan(x))
    mask = ew.cast(chosen, dtype=x.dtype)
    return ew.mul(_back(ew.div(g, sum(mask, axes=axes)), x), mask)


def _product_of_others(g: Node, out: Node, x: Node, axes: tuple[int, ...]) -> Node:
    """g times the product of all other elements: exact with zeros, at every order.

    Prefix and suffix products by doubling (Hillis and Steele, 1986), one axis at a time.
    """
    for step, axis in enumerate(axes):
        remaining = axes[step + 1 :]
        before, after = mv.shifted(x, axis, 1, 1), mv.shifted(x, axis, -1, 1)
        distance = 1
        while distance < x.shape[axis]:
            before = ew.mul(before, mv.shifted(before, axis, distance, 1))
            after = ew.mul(after, mv.shifted(after, axis, -distance, 1))
            distance *= 2
        others = ew.mul(before, after)
        if not remaining:
            return ew.mul(_back(g, x), others)
        line = prod(x, axes=(axis,))
        g = _product_of_others(g, out, line, remaining)
        return ew.mul(_back(g, x), others)
    return g


sum: Op = _op("sum", numeric.total, "sum", lambda g, out, x, axes: _back(g, x), _checked("number"))
prod: Op = _op("prod", _accumulate(np.prod), "prod", _product_of_others, _checked("number"))
max: Op = _op("max", _keep(np.max), "max", _shared_among_ties, _checked("any", nonempty=True))
min: Op = _op("min", _keep(np.min), "min", _shared_among_ties, _checked("any", nonempty=True))
any: Op = _op("any", _keep(np.any), "any", None, _checked("bool"))
all: Op = _op("all", _keep(np.all), "all", None, _checked("bool"))


def _arg(function: Any) -> Callable[..., Any]:
    def reference(x: Any, axes: tuple[int, ...]) -> Any:
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        count = count_of(x.shape[axis] for axis in axes)
        moved = x.transpose(kept + list(axes)).reshape([x.shape[axis] for axis in kept] + [count])
        return function(moved, axis=-1).astype(np.int64).reshape(reduced_shape(x.shape, axes))

    return reference


# The first position of the extreme value, counted row-major over the reduced axes; NaN wins.
argmax: Op = _op("argmax", _arg(np.argmax), "argmax", None, _checked("any", int64, nonempty=True))
argmin: Op = _op("argmin", _arg(np.argmin), "argmin", None, _checked("any", int64, nonempty=True))


def _welford_gradient(
    gs: tuple[Node | None, Node | None], out: Node, x: Node, axes: tuple[int, ...]
) -> Node:
    g_mean, g_m2 = gs
    total: Node | None = None
    if g_mean is not None:
        count = count_of(x.shape[axis] for axis in axes)
        total = _back(ew.mul(g_mean, full_like(g_mean, 1.0 / count)), x)
    if g_m2 is not None:
        centered = ew.sub(x, _back(output(out, index=0), x))
        part = ew.mul(_back(ew.add(g_m2, g_m2), x), centered)
        total = part if total is None else ew.add(total, part)
    assert total is not None
    return total


# Mean and the sum of squared deviations from it, in one pass (Welford, 1962).
welford: Op = _op(
    "welford", numeric.welford, "welford", _welford_gradient,
    _checked("float", nonempty=True, outputs=2),
)  # fmt: skip

ROWS: tuple[Op, ...] = (sum, prod, max, min, any, all, argmax, argmin, welford)


def mean(x: Node, axes: tuple[int, ...]) -> Node:
    """The sum over `axes` divided by their element count."""
    count = count_of(x.shape[axis] for axis in axes)
    total = sum(x, axes=axes)
    return ew.div(total, full(count, total.shape, total))
