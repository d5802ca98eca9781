"""Convolution, and its gradients with respect to input and weight: bilinear ops in a circle.

With ``p = i stride + u dilation - padding``: ``y[n,o,i] = sum x[n,c,p] w[o,c,u]``, of which the
input gradient is ``dx[n,c,p] = sum g[n,o,i] w[o,c,u]`` (a transposed convolution) and the weight
gradient ``dw[o,c,u] = sum g[n,o,i] x[n,c,p]``. The gradients of each are the other two.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tinygrad_cuda.core.errors import DTypeError, ShapeError
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node, Op, Outputs
from tinygrad_cuda.graph.ops import numeric_convolution as numeric
from tinygrad_cuda.graph.ops.common import require_dtype
from tinygrad_cuda.graph.ops.geometry import Geometry
from tinygrad_cuda.graph.ops.movement import batched, permute, reshape

Attributes = dict[str, Any]


def geometry_of(attributes: Attributes) -> Geometry:
    """How windows lie in the input, from the attributes of a node."""
    return Geometry(*(attributes[name] for name in Geometry._fields))


# Shapes -------------------------------------------------------------------------------------------


def _check(op: Op, sources: tuple[Node, ...], x: Shape, w: Shape, y: Shape, at: Geometry) -> None:
    """Raises unless input, weight and result of these shapes belong to one convolution."""
    a, b = sources
    require_dtype(op.name, a, "number")
    if a.dtype is not b.dtype:
        raise DTypeError(
            op.name, "operands have different dtypes", expect=a.dtype.name, actual=b.dtype.name
        )
    rank = len(at.stride)
    right = len(x) == len(w) == len(y) == rank + 2 and x[0] == y[0] and w[0] == y[1]
    right = right and x[1] == w[1] * at.groups and w[0] % at.groups == 0
    if not right or min(y[2:]) < 1 or y[2:] != at.sizes(x[2:], w[2:]):
        raise ShapeError(
            op.name,
            "the shapes are not those of a convolution",
            expect="input (N, C, ...), weight (O, C / groups, ...), result (N, O, ...)",
            actual=f"input: {x}  weight: {w}  result: {y}  {at}",
        )


def _infer_convolution(op: Op, sources: tuple[Node, ...], attributes: Attributes) -> Outputs:
    x, w = sources
    at = geometry_of(attributes)
    result: Shape = ()
    if len(x.shape) == len(w.shape) == len(at.stride) + 2:
        result = (x.shape[0], w.shape[0], *at.sizes(x.shape[2:], w.shape[2:]))
    _check(op, sources, x.shape, w.shape, result, at)
    return ((result, x.dtype),)


def _infer_input_gradient(op: Op, sources: tuple[Node, ...], attributes: Attributes) -> Outputs:
    g, w = sources
    at = geometry_of(attributes)
    shape = (*g.shape[:1], *(n * at.groups for n in w.shape[1:2]), *attributes["size"])
    _check(op, sources, shape, w.shape, g.shape, at)
    return ((shape, g.dtype),)


def _infer_weight_gradient(op: Op, sources: tuple[Node, ...], attributes: Attributes) -> Outputs:
    g, x = sources
    at = geometry_of(attributes)
    shape = (*g.shape[1:2], *(n // at.groups for n in x.shape[1:2]), *attributes["kernel"])
    _check(op, sources, x.shape, shape, g.shape, at)
    return ((shape, g.dtype),)


# Batches of examples ------------------------------------------------------------------------------


def _merged(node: Node) -> Node:
    """(size, N, ...) as (size N, ...)."""
    return reshape(node, shape=(prod(node.shape[:2]), *node.shape[2:]))


def _grouped(node: Node, has_batch: bool) -> Node:
    """Examples as groups of channels: (size, N, C, ...) to (N, size C, ...), or a weight's
    (size, O, ...) to (size O, ...)."""
    if not has_batch:
        return _merged(node)
    size, batch, channels, *rest = node.shape
    node = permute(node, axes=(1, 0, *range(2, len(node.shape))))
    return reshape(node, shape=(batch, size * channels, *rest))


def _ungrouped(node: Node, size: int) -> Node:
    batch, channels, *rest = node.shape
    node = reshape(node, shape=(batch, size, channels // size, *rest))
    return permute(node, axes=(1, 0, *range(2, len(node.shape))))


def _each(size: int, sources: tuple[Node, ...], on: tuple[bool, ...]) -> tuple[Node, ...]:
    return tuple(s if has else batched(s, size) for s, has in zip(sources, on, strict=True))


def _batch_with_weight(
    op: Op, size: int, sources: tuple[Node, ...], on: tuple[bool, ...], attributes: Attributes
) -> Node:
    """One weight for all: more examples; else each example has its groups."""
    if not on[1]:
        node = op(_merged(sources[0]), sources[1], **attributes)
        return reshape(node, shape=(size, node.shape[0] // size, *node.shape[1:]))
    x, w = _each(size, sources, on)
    groups = size * attributes["groups"]
    node = op(_grouped(x, True), _grouped(w, False), **{**attributes, "groups": groups})
    return _ungrouped(node, size)


def _batch_convolution(
    count: int, sources: tuple[Node, ...], on: tuple[bool, ...], **attributes: Any
) -> Node:
    return _batch_with_weight(convolution, count, sources, on, attributes)


def _batch_input_gradient(
    count: int, sources: tuple[Node, ...], on: tuple[bool, ...], **attributes: Any
) -> Node:
    return _batch_with_weight(convolution_input_gradient, count, sources, on, attributes)


def _batch_weight_gradient(
    count: int, sources: tuple[Node, ...], on: tuple[bool, ...], **attributes: Any
) -> Node:
    g, x = (_grouped(source, True) for source in _each(count, sources, on))
    groups = count * attributes["groups"]
    node = convolution_weight_gradient(g, x, **{**attributes, "groups": groups})
    return reshape(node, shape=(count, node.shape[0] // count, *node.shape[1:]))


# Rows ---------------------------------------------------------------------------------------------

# x (N, C, *size), w (O, C / groups, *kernel) -> (N, O, *sizes). Within a plan the channels of each
# of the rows may be last, if the attribute `last` says so (lowering/skeletons/conv).
convolution: Op = Op(
    "convolution", "contraction", _infer_convolution, numpy=numeric.convolution,
    gradient=(
        lambda g, out, x, w, **at: convolution_input_gradient(g, w, size=x.shape[2:], **at),
        lambda g, out, x, w, **at: convolution_weight_gradient(g, x, kernel=w.shape[2:], **at),
    ),
    batch=_batch_convolution,
)  # fmt: skip

# g (N, O, *sizes), w (O, C / groups, *kernel) -> (N, C, *size): the transposed convolution.
convolution_input_gradient: Op = Op(
    "convolution_input_gradient", "contraction", _infer_input_gradient,
    numpy=numeric.input_gradient,
    gradient=(
        lambda h, out, g, w, size, **at: convolution(h, w, **at),
        lambda h, out, g, w, size, **at: convolution_weight_gradient(
            g, h, kernel=w.shape[2:], **at
        ),
    ),
    batch=_batch_input_gradient,
)  # fmt: skip

# g (N, O, *sizes), x (N, C, *size) -> (O, C / groups, *kernel)
convolution_weight_gradient: Op = Op(
    "convolution_weight_gradient", "contraction", _infer_weight_gradient,
    numpy=numeric.weight_gradient,
    gradient=(
        lambda h, out, g, x, kernel, **at: convolution(x, h, **at),
        lambda h, out, g, x, kernel, **at: convolution_input_gradient(
            g, h, size=x.shape[2:], **at
        ),
    ),
    batch=_batch_weight_gradient,
)  # fmt: skip

ROWS: tuple[Op, ...] = (convolution, convolution_input_gradient, convolution_weight_gradient)
