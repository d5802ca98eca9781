"""More products: baddbmm, tensordot, kron, cross, cdist, ...: compositions of `matmul`."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError
from tinygrad_cuda.core.shapes import broadcast, normalize_axis
from tinygrad_cuda.engine.cell import detached
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, elementwise
from tinygrad_cuda.tensors import linalg, math, reductions, shaping
from tinygrad_cuda.tensors.autocast import in_float32, in_half, in_widest
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.opmath import rounded, rounded_once, widened
from tinygrad_cuda.tensors.promotion import factor_of, promote, to_shape
from tinygrad_cuda.tensors.shaping import join, slice_axis

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "addbmm", "addmv", "addr", "baddbmm", "cdist", "chain_matmul", "cosine_similarity", "cross",
    "ger", "inner", "kron", "pairwise_distance", "pdist", "tensordot", "vdot",
]  # fmt: skip

Scalar = bool | int | float


# With an addend -----------------------------------------------------------------------------------


def _scaled(op: str, node: Node, factor: Scalar) -> Node:
    if factor == 1:
        return node
    return elementwise.mul(
        node, common.full_like(node, factor_of(op, factor, node.dtype, "the factor"))
    )


def _added(op: str, input: Tensor, product: Node, beta: Scalar, alpha: Scalar) -> Tensor:
    base = input.node
    if base.dtype is not product.dtype:
        raise DTypeError(
            op, "operands have different dtypes", expect=product.dtype.name, actual=base.dtype.name
        )
    if broadcast(op, base.shape, product.shape) != product.shape:
        raise ShapeError(
            op,
            "input does not broadcast to the product",
            expect=str(product.shape),
            actual=str(base.shape),
        )
    dtype = product.dtype
    if alpha != 1 or beta not in (0, 1):
        # Factors and sum round a half type once, after the product has.
        product, base = widened(product), widened(base)
    product = _scaled(op, product, alpha)
    if beta:
        product = elementwise.add(to_shape(_scaled(op, base, beta), product.shape), product)
    return wrap(product if product.dtype is dtype else rounded(product, dtype))


@in_half
def baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Tensor:
    """``beta * input + alpha * (batch1 @ batch2)`` for batches of matrices."""
    return _added("baddbmm", input, linalg.bmm(batch1, batch2).node, beta, alpha)


@in_half
def addbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Tensor:
    """``beta * input + alpha * sum(batch1 @ batch2)`` over the batch, as one product."""
    b, n, m = batch1.shape
    left = batch1.permute(1, 0, 2).reshape(n, b * m)
    right = batch2.reshape(b * m, batch2.shape[2])
    return _added("addbmm", input, linalg.mm(left, right).node, beta, alpha)


@in_half
def addmv(
    input: Tensor, mat: Tensor, vec: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Tensor:
    """``beta * input + alpha * (mat @ vec)``."""
    return _added("addmv", input, linalg.mv(mat, vec).node, beta, alpha)


@in_half
def addr(
    input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Tensor:
    """``beta * input + alpha * outer(vec1, vec2)``."""
    base, product = promote("addr", input, linalg.outer(vec1, vec2))
    return _added("addr", wrap(base), product, beta, alpha)


# Vectors ------------------------------------------------------------------------------------------


@in_widest
def vdot(input: Tensor, other: Tensor) -> Tensor:
    """The inner product of two vectors: `dot`, since nothing is complex."""
    return linalg.dot(input, other)


ger = linalg.outer


@in_widest
def inner(input: Tensor, other: Tensor) -> Tensor:
    """The inner products of vectors in the last dimension of both."""
    if not input.ndim or not other.ndim:
        return math.mul(input, other)
    if input.shape[-1] != other.shape[-1]:
        raise ShapeError(
            "inner",
            "the last dimensions differ",
            expect=str(input.shape[-1]),
            actual=str(other.shape[-1]),
        )
    return tensordot(input, other, ([-1], [-1]))


@in_half
def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The inner products of vectors along `dim`; the others are broadcast."""
    return math.mul(x, y).sum(dim)


@in_widest
def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The cross products of vectors of 3 elements along `dim`.

    Args:
        dim: the first dimension of size 3 when left out.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([1, 0, 0], device="cpu")
        >>> tc.cross(x, tc.tensor([0, 1, 0], device="cpu"), dim=0).tolist()
        [0, 0, 1]
    """
    a, b = promote("cross", input, other)
    if dim is None:
        threes = [axis for axis, size in enumerate(a.shape) if size == 3]
        if not threes:
            raise ShapeError(
                "cross",
                "no dimension has size 3",
                expect="a dimension of 3 elements",
                actual=str(a.shape),
            )
        dim = threes[0]
    axis = normalize_axis("cross", dim, len(a.shape))
    if not a.shape or a.shape[axis] != 3:
        raise ShapeError("cross", f"dim {dim} has another size", expect="3", actual=str(a.shape))

    def turned(node: Node, by: int) -> Node:
        return join([slice_axis(node, axis, by, 3 - by), slice_axis(node, axis, 0, by)], axis)

    left = elementwise.mul(turned(a, 1), turned(b, 2))
    right = elementwise.mul(turned(a, 2), turned(b, 1))
    return wrap(elementwise.sub(left, right))


# Tensors ------------------------------------------------------------------------------------------


@in_widest
def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """The sum of products over several dimensions of both, as one matrix product.

    Args:
        dims: how many of the last of `a` meet the first of `b`; or two lists of dimensions.

    Example:
        >>> import tinygrad_cuda as tc
        >>> a = tc.ones(2, 3, 4, device="cpu")
        >>> tuple(tc.tensordot(a, tc.ones(4, 3, device="cpu"), ([1, 2], [1, 0])).shape)
        (2,)
    """
    if hasattr(dims, "tolist"):
        dims = dims.tolist()
    if isinstance(dims, int):
        if not 0 <= dims <= min(a.ndim, b.ndim):
            raise ArgumentError(
                "tensordot",
                "too many dims",
                expect="at most the dimensions of each",
                actual=str(dims),
            )
        of_a, of_b = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    else:
        first, second = ([axes] if isinstance(axes, int) else list(axes) for axes in dims)
        of_a = [normalize_axis("tensordot", axis, a.ndim) for axis in first]
        of_b = [normalize_axis("tensordot", axis, b.ndim) for axis in second]
    if len(of_a) != len(of_b):
        raise ShapeError(
            "tensordot",
            "as many dims of both are needed",
            expect=str(len(of_a)),
            actual=str(len(of_b)),
        )
    for left, right in zip(list(of_a), list(of_b)):
        sizes = a.shape[left], b.shape[right]
        if sizes[0] != sizes[1]:
            if 1 not in sizes:
                raise ShapeError(
                    "tensordot",
                    f"dims {left} and {right} differ",
                    expect=str(sizes[0]),
                    actual=str(sizes[1]),
                )
            # As in PyTorch, a dimension of size 1 is summed over on the other side first.
            if sizes[0] == 1:
                b = b.sum(right, True, dtype=b.dtype)
            else:
                a = a.sum(left, True, dtype=a.dtype)
    rest_a = [axis for axis in range(a.ndim) if axis not in of_a]
    rest_b = [axis for axis in range(b.ndim) if axis not in of_b]
    inside = prod(a.shape[axis] for axis in of_a)
    rows = tuple(a.shape[axis] for axis in rest_a)
    columns = tuple(b.shape[axis] for axis in rest_b)
    left_matrix = a.permute(*rest_a, *of_a).reshape(prod(rows), inside)
    right_matrix = b.permute(*of_b, *rest_b).reshape(inside, prod(columns))
    return linalg.mm(left_matrix, right_matrix).reshape(rows + columns)


def kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product: every element of `input` times all of `other`."""
    rank = max(input.ndim, other.ndim)
    a = input.reshape((1,) * (rank - input.ndim) + tuple(input.shape))
    b = other.reshape((1,) * (rank - other.ndim) + tuple(other.shape))
    apart_a = tuple(size for pair in zip(a.shape, (1,) * rank) for size in pair)
    apart_b = tuple(size for pair in zip((1,) * rank, b.shape) for size in pair)
    product = math.mul(a.reshape(apart_a), b.reshape(apart_b))
    return shaping.reshape(product, tuple(m * n for m, n in zip(a.shape, b.shape)))


@in_half
def chain_matmul(*matrices: Any) -> Tensor:
    """The product of several matrices in the cheapest order; see `multi_dot`."""
    if len(matrices) == 1 and isinstance(matrices[0], list | tuple):
        matrices = tuple(matrices[0])
    if len(matrices) == 1:
        only: Tensor = matrices[0] + 0
        return only
    return multi_dot(matrices)


@in_half
def multi_dot(tensors: Any) -> Tensor:
    """The product of several matrices in the order with the fewest multiplications.

    The first and the last may be vectors.
    """
    found = list(tensors)
    if len(found) < 2:
        raise ArgumentError(
            "multi_dot", "needs at least two tensors", expect="2 or more", actual=str(len(found))
        )
    is_row, is_column = found[0].ndim == 1, found[-1].ndim == 1
    if is_row:
        found[0] = found[0].unsqueeze(0)
    if is_column:
        found[-1] = found[-1].unsqueeze(1)
    sizes = [found[0].shape[0], *(matrix.shape[1] for matrix in found)]
    result = _chain(found, _splits(sizes), 0, len(found) - 1)
    shape = tuple(result.shape)
    return result.reshape(shape[int(is_row) : 1 if is_column else 2])


def _splits(sizes: list[int]) -> dict[tuple[int, int], int]:
    """Where each sub-chain is cut at least cost (dynamic programming over lengths)."""
    count = len(sizes) - 1
    cost = {(k, k): 0 for k in range(count)}
    cuts = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            options = [
                (cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k)
                for k in range(i, j)
            ]
            cost[i, j], cuts[i, j] = min(options)
    return cuts


def _chain(matrices: list[Tensor], cuts: dict[tuple[int, int], int], i: int, j: int) -> Tensor:
    if i == j:
        return matrices[i]
    k = cuts[i, j]
    return linalg.mm(_chain(matrices, cuts, i, k), _chain(matrices, cuts, k + 1, j))


# Distances ----------------------------------------------------------------------------------------


@in_float32
@rounded_once
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: Any = None) -> Tensor:
    """The p-norm distance of each row of `x1` to each row of `x2`.

    Computed from the differences, which is exact for near rows; `compute_mode` changes nothing.

    Args:
        x1, x2: (.., m, k) and (.., n, k); leading dimensions are broadcast.

    Returns:
        (.., m, n)

    Raises:
        DTypeError: an operand is not floating, or the dtypes differ.
    """
    if p < 0:
        raise ArgumentError("cdist", "p is negative", expect="p >= 0", actual=str(p))
    for x in (x1, x2):
        reductions.require_float("cdist", x.node)
    if x1.dtype is not x2.dtype:
        raise DTypeError(
            "cdist", "x1 and x2 have different dtypes", expect=x1.dtype.name, actual=x2.dtype.name
        )
    if x1.shape[-1] != x2.shape[-1]:
        raise ShapeError(
            "cdist", "the rows differ in length", expect=str(x1.shape[-1]), actual=str(x2.shape[-1])
        )
    gap = math.sub(x1.unsqueeze(-2), x2.unsqueeze(-3))
    if not gap.shape[-1]:
        return gap.sum(-1)
    if p == 0:
        return math.clamp(math.ceil(math.abs(gap)), max=1).sum(-1)  # a count; NaN stays
    return reductions.norm(gap, p, -1)


@in_float32
@rounded_once
def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The p-norm distances of all pairs of rows, as a vector: (0, 1), (0, 2), ..."""
    count = input.shape[0]
    rows = [i for i in range(count) for _ in range(i + 1, count)]
    columns = [j for i in range(count) for j in range(i + 1, count)]
    gap = math.sub(input[rows], input[columns])
    return reductions.norm(gap, p, -1)


@in_float32
@rounded_once
def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The p-norm of ``x1 - x2 + eps`` over the last dimension."""
    return reductions.norm(math.add(math.sub(x1, x2), eps), p, -1, keepdim)


def _at_least(size: Tensor, eps: float) -> Tensor:
    """The size or eps; as in PyTorch, the bound does not stop the gradient."""
    node = size.node
    bound = common.full_like(node, eps)
    moved = elementwise.add(elementwise.sub(node, detached(node)), bound)
    return wrap(elementwise.where(elementwise.lt(node, bound), moved, node))


@in_float32
@rounded_once
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle of vectors along `dim`, their lengths taken as at least `eps`."""
    a, b = (wrap(node) for node in promote("cosine_similarity", x1, x2))
    first, second = (_at_least(reductions.norm(x, 2, dim, True), eps) for x in (a, b))
    cosine: Tensor = math.mul(math.div(a, first), math.div(b, second)).sum(dim)
    return cosine
