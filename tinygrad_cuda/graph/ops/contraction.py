"""Contractions: the batched matrix product; its gradients are matrix products of transposes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinygrad_cuda.core.errors import DTypeError, ShapeError
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node, Op, Outputs
from tinygrad_cuda.graph.ops import numeric
from tinygrad_cuda.graph.ops.common import require_dtype
from tinygrad_cuda.graph.ops.movement import batched, permute, reshape
from tinygrad_cuda.graph.ops.windows import WindowColumns

Array = np.ndarray[Any, Any]


def _infer_matmul(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    a, b = sources
    require_dtype("matmul", a, "number")
    if a.dtype is not b.dtype:
        raise DTypeError(
            "matmul", "operands have different dtypes", expect=a.dtype.name, actual=b.dtype.name
        )
    if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise ShapeError(
            "matmul",
            "inner dimensions differ",
            expect="a.shape[-1] == b.shape[-2]",
            actual=f"a: {a.shape}  b: {b.shape}",
        )
    return ((a.shape[:-1] + b.shape[-1:], a.dtype),)


def transpose(x: Node) -> Node:
    """Swaps the last two axes."""
    rank = len(x.shape)
    return permute(x, axes=(*range(rank - 2), rank - 1, rank - 2))


def _batch_matmul(size: int, sources: tuple[Node, Node], on: tuple[bool, bool]) -> Node:
    a, b = sources
    if len(b.shape) == 2 and not on[1]:
        # One matrix for all: a single product of all rows.
        rows = reshape(a, shape=(size * a.shape[1], a.shape[2]))
        return reshape(matmul(rows, b), shape=(*a.shape[:2], b.shape[1]))
    return matmul(a if on[0] else batched(a, size), b if on[1] else batched(b, size))


def _product(
    a: Array,
    b: Array,
    split: Shape = (),
    axes: Shape = (),
    shape: Shape = (),
    windows: WindowColumns | None = None,
) -> Array:
    """The product, its elements in another order where a plan wants them so."""
    c = numeric.product(a, b)
    return c.reshape(split).transpose(axes).reshape(shape) if axes else c


# c[.., m, n] = sum over k of a[.., m, k] * b[.., k, n]; batch axes are equal.
# Within a plan its elements may be stored in another order (rewrite/products.py): seen as `split`
# axes, those in the order `axes`, and that as `shape`. Where b is columns of windows, `windows`
# says of which.
matmul: Op = Op(
    "matmul", "contraction", _infer_matmul, numpy=_product, cuda="matmul",
    gradient=(
        lambda g, out, a, b: matmul(g, transpose(b)),
        lambda g, out, a, b: matmul(transpose(a), g),
    ),
    batch=_batch_matmul,
)  # fmt: skip

ROWS: tuple[Op, ...] = (matmul,)
