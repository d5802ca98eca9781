"""Sums that skip NaN, spreads, counts and histograms: nansum, aminmax, cov, bincount, histc, ..."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tinygrad_cuda.core.dtypes import float64, int64
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError
from tinygrad_cuda.core.shapes import as_int, normalize_axes, normalize_axis
from tinygrad_cuda.engine.cell import detached
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, elementwise, indexing, movement
from tinygrad_cuda.graph.ops import reduction as ops
from tinygrad_cuda.tensors import math, reductions
from tinygrad_cuda.tensors.arguments import require_real
from tinygrad_cuda.tensors.autocast import in_float32
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.creation import DTypeLike, buffer_node
from tinygrad_cuda.tensors.layout import another
from tinygrad_cuda.tensors.opmath import rounded, rounded_once, widened
from tinygrad_cuda.tensors.promotion import as_float, to_dtype, to_shape
from tinygrad_cuda.tensors.reductions import cast, cumsum, require_float
from tinygrad_cuda.tensors.shaping import join, slice_axis
from tinygrad_cuda.tensors.special import logaddexp

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "aminmax", "bincount", "corrcoef", "cov", "cumulative_trapezoid", "dist", "gradient", "histc",
    "histogram", "histogramdd", "logcumsumexp", "nanmean", "nansum", "renorm", "std_mean",
    "trapezoid", "trapz",
]  # fmt: skip


class MinMax(NamedTuple):
    """What `aminmax` gives."""

    min: Tensor
    max: Tensor


# Without NaN --------------------------------------------------------------------------------------


def _without_nan(node: Node) -> Node:
    if not node.dtype.is_floating:
        return node
    return elementwise.where(elementwise.isnan(node), common.full_like(node, 0), node)


def nansum(
    input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: DTypeLike = None
) -> Tensor:
    """`sum` of the elements that are not NaN.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.nansum(tc.tensor([1.0, float("nan")], device="cpu")).item()
        1.0
    """
    require_real("nansum", input)
    return reductions.sum(wrap(_without_nan(input.node)), dim, keepdim, dtype=dtype)


def nanmean(
    input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: DTypeLike = None
) -> Tensor:
    """`mean` of the elements that are not NaN; NaN where there are none."""
    node = require_float("nanmean", cast(input.node, dtype))
    here = wrap(elementwise.logical_not(elementwise.isnan(detached(node))))
    count = reductions.sum(here, dim, keepdim)
    # A half type holds neither every sum nor every count.
    mean = math.div(nansum(wrap(widened(node)), dim, keepdim), count)
    return wrap(rounded(mean.node, node.dtype))


# Extremes and spread ------------------------------------------------------------------------------


def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> MinMax:
    """The smallest and the largest element, of all or along `dim`; equal ones share gradients."""
    if dim is None and keepdim:
        every = tuple(range(input.ndim))
        return MinMax(reductions.amin(input, every, True), reductions.amax(input, every, True))
    return MinMax(reductions.amin(input, dim, keepdim), reductions.amax(input, dim, keepdim))


def std_mean(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`std` and `mean` in one pass."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    wide = wrap(widened(input.node)) if input.dtype.is_half else input
    variance, mean = reductions.var_mean(wide, dim, unbiased, keepdim, correction=correction)
    if wide is not input:
        mean = wrap(rounded(mean.node, input.dtype))
    return wrap(rounded(reductions._safe_sqrt(variance.node), input.dtype)), mean


@rounded_once
def cov(
    input: Tensor,
    *,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    """The covariance matrix of variables in rows and observations in columns.

    Args:
        correction: 1 divides by n - 1.
        fweights: how often each observation counts, integers.
        aweights: how much each observation weighs.
    """
    if input.ndim > 2:
        raise ShapeError(
            "cov", "needs a vector or a matrix", expect="1-d or 2-d", actual=str(tuple(input.shape))
        )
    rows = input if input.ndim == 2 else input.reshape(1, -1)
    rows = wrap(as_float(rows.node))
    weights = None
    for given_weights in (fweights, aweights):
        if given_weights is not None:
            weights = given_weights if weights is None else weights * given_weights
    total: Any = rows.shape[1] if weights is None else weights.sum()
    scale = total
    if weights is None:
        mean = rows.sum(1) / total
        scale = max(total - correction, 0)
        centered = rows - mean.unsqueeze(1)
        product = centered @ centered.mH
    else:
        mean = (rows * weights).sum(1) / total
        scale = total - correction
        if aweights is not None:
            scale = total - correction * (weights * aweights).sum() / total
        scale = math.clamp(wrap(as_float(scale.node)), min=0)
        centered = rows - mean.unsqueeze(1)
        product = (centered * weights) @ centered.mH
    result: Tensor = product / scale
    return result if rows.shape[0] != 1 else result.reshape(())


@rounded_once
def corrcoef(input: Tensor) -> Tensor:
    """The correlation matrix of variables in rows and observations in columns."""
    covariance = cov(input)
    if covariance.ndim == 0:
        return covariance / covariance
    variances = covariance.diagonal()
    spread = (variances.real if variances.dtype.is_complex else variances).sqrt()
    result = covariance / spread.unsqueeze(1) / spread.unsqueeze(0)
    if not result.dtype.is_complex:
        return math.clamp(result, -1, 1)
    parts = [math.clamp(part, -1, 1).node for part in (result.real, result.imag)]
    return wrap(elementwise.complex_(*parts))


@in_float32
@rounded_once
def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The p-norm of the difference."""
    return reductions.norm(math.sub(input, other), p)


@in_float32
@rounded_once
def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """The slices along `dim`, those with a larger p-norm scaled down to `maxnorm`."""
    axis = normalize_axis("renorm", dim, input.ndim)
    others = tuple(k for k in range(input.ndim) if k != axis)

    def norm(x: Node) -> Node:
        return (reductions.norm(wrap(x), p, others, True) if others else math.abs(wrap(x))).node

    node = input.node
    size = norm(detached(node))
    large = elementwise.gt(size, common.full_like(size, maxnorm))
    # Slices that are not scaled are replaced by ones: the norm's infinite slope at 0 is in no
    # gradient.
    scaled = elementwise.where(to_shape(large, node.shape), node, common.full_like(node, 1))
    small = math.div(maxnorm, math.add(wrap(norm(scaled)), 1e-7)).node
    factor = elementwise.where(large, small, common.full_like(small, 1))
    return wrap(elementwise.mul(node, to_dtype(to_shape(factor, node.shape), node.dtype)))


# Along a line -------------------------------------------------------------------------------------


@rounded_once
def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """Running `logsumexp` along `dim`, by doubling (Hillis and Steele, 1986)."""
    node = input.node
    if not node.dtype.is_complex:
        node = require_float("logcumsumexp", node)
    axis = normalize_axis("logcumsumexp", dim, len(node.shape))
    if not node.shape or not prod(node.shape):
        return wrap(another(node))
    distance = 1
    while distance < node.shape[axis]:
        length = node.shape[axis] - distance
        late = slice_axis(node, axis, distance, length)
        early = slice_axis(node, axis, 0, length)
        joined = logaddexp(wrap(late), wrap(early)).node
        head = slice_axis(node, axis, 0, distance)
        node = join([head, joined], axis)
        distance *= 2
    return wrap(another(node) if node is input.node else node)


def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1, dim: int = -1) -> Tensor:
    """The integral along `dim` by the trapezoidal rule; along no elements, zeros of y's dtype."""
    axis = normalize_axis("trapezoid", dim, y.ndim)
    if y.ndim and not y.shape[axis]:
        return y.new_zeros((*y.shape[:axis], *y.shape[axis + 1 :]))
    if x is None:  # PyTorch's order of sums: integers of few bits wrap where its own do
        ends = y.select(axis, 0) + y.select(axis, -1)
        result: Tensor = (y.sum(axis) - ends * 0.5) * dx
        return result
    return _areas("trapezoid", y, x, dx, dim).sum(dim)


trapz = trapezoid


def cumulative_trapezoid(
    y: Tensor, x: Tensor | None = None, *, dx: float = 1, dim: int = -1
) -> Tensor:
    """Running integrals along `dim` by the trapezoidal rule."""
    return cumsum(_areas("cumulative_trapezoid", y, x, dx, dim), dim)


def _areas(op: str, y: Tensor, x: Tensor | None, dx: float, dim: int) -> Tensor:
    axis = normalize_axis(op, dim, y.ndim)
    length = max(y.shape[axis] - 1, 0)
    width: Any = dx
    if x is not None:
        if x.ndim == 1 and y.ndim > 1:
            x = x.reshape(tuple(-1 if k == axis else 1 for k in range(y.ndim)))
        dimension = axis - y.ndim + x.ndim
        steps = max(x.shape[dimension] - 1, 0)
        width = x.narrow(dimension, 1 if steps else 0, steps) - x.narrow(dimension, 0, steps)
    both = y.narrow(axis, 1 if length else 0, length) + y.narrow(axis, 0, length)
    result: Tensor = both * width / 2
    return result


def gradient(
    input: Tensor, *, spacing: Any = 1, dim: Any = None, edge_order: int = 1
) -> tuple[Tensor, ...]:
    """Slopes along each dimension by central differences, one-sided at the borders.

    Args:
        spacing: the distance of neighbours: one number, or one for each of `dim`; or a vector of
            coordinates for each.
        dim: the dimensions; all when left out.
        edge_order: 1 or 2, the order of the one-sided differences.
    """
    if input.dtype.name in ("uint8", "bool"):
        raise DTypeError(
            "gradient", "differences would wrap", expect="a signed integer or floating dtype",
            actual=input.dtype.name, hint="x.float()",
        )  # fmt: skip
    axes = normalize_axes("gradient", dim, input.ndim)
    input = wrap(as_float(input.node))
    spacing = 1 if spacing is None else spacing
    steps = list(spacing) if isinstance(spacing, list | tuple) else [spacing] * len(axes)
    if len(steps) != len(axes):
        raise ArgumentError(
            "gradient",
            "spacing does not fit the dims",
            expect=f"{len(axes)} numbers or vectors",
            actual=f"{len(steps)}",
        )
    return tuple(_slope(input, axis, step, edge_order) for axis, step in zip(axes, steps))


def _slope(input: Tensor, axis: int, step: Any, edge_order: int) -> Tensor:
    """(f[i+1] (h1/h2) - f[i-1] (h2/h1) + f[i] (h2/h1 - h1/h2)) / (h1 + h2), h1 before, h2 after."""
    size = input.shape[axis]
    if size < edge_order + 1:
        raise ShapeError(
            "gradient", "too few elements", expect=f"{edge_order + 1}", actual=str(size)
        )

    def part(start: int, length: int) -> Any:
        return input.narrow(axis, start, length)

    gaps: Any = step
    varied = isinstance(step, TensorBase) and bool(step.node.shape)
    if varied:
        line: Any = wrap(to_dtype(step.node, input.dtype))
        steps = line.narrow(0, 1, size - 1) - line.narrow(0, 0, size - 1)
        gaps = steps.reshape(tuple(-1 if k == axis else 1 for k in range(input.ndim)))

    def gap(start: int, length: int = 1) -> Any:
        return gaps.narrow(axis, start, length) if varied else gaps

    pieces = [_edge(part, gap, 0, 1, edge_order)]
    if size > 2:
        before, after = gap(0, size - 2), gap(1, size - 2)
        ratio = before / after
        middle = part(2, size - 2) * ratio - part(0, size - 2) / ratio
        if varied:  # of equal distances the element itself has no part
            middle = middle + part(1, size - 2) * (1 / ratio - ratio)
        pieces.append(middle / (before + after))
    pieces.append(_edge(part, gap, size - 1, -1, edge_order))
    return wrap(join([piece.node for piece in pieces], axis))


def _edge(part: Any, gap: Any, at: int, towards: int, edge_order: int) -> Any:
    """The slope at a border, from the two or three elements next to it."""
    near = gap(min(at, at + towards))
    if edge_order == 1:
        return (part(at + towards, 1) - part(at, 1)) * towards / near
    far = gap(min(at + towards, at + 2 * towards))
    first = -(2 * near + far) / (near * (near + far))
    second = (near + far) / (near * far)
    third = -near / (far * (near + far))
    total = part(at, 1) * first + part(at + towards, 1) * second + part(at + 2 * towards, 1) * third
    return total * towards


# Counts -------------------------------------------------------------------------------------------


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each integer occurs in a vector, or the sum of its weights; realizes the input.

    Raises:
        ArgumentError: an element is negative.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.bincount(tc.tensor([0, 2, 2], device="cpu")).tolist()
        [1, 0, 2]
    """
    node = input.node
    if len(node.shape) != 1 or node.dtype.category != 1:
        raise DTypeError(
            "bincount",
            "needs a vector of integers",
            expect="1-d, an integer dtype",
            actual=f"{node.shape} {node.dtype.name}",
        )
    if minlength < 0:
        raise ArgumentError(
            "bincount", "minlength is negative", expect="minlength >= 0", actual=str(minlength)
        )
    values = input.array()
    if values.size and values.min() < 0:
        raise ArgumentError(
            "bincount", "an element is negative", expect="elements >= 0", actual=str(values.min())
        )
    length = max(int(values.max()) + 1 if values.size else 0, minlength)
    if weights is None:
        amounts = common.full(1, node.shape, node, int64)
    else:
        amounts = detached(weights.node)
        if amounts.shape != node.shape:
            raise ShapeError(
                "bincount",
                "the weights do not fit",
                expect=str(node.shape),
                actual=str(amounts.shape),
            )
        if amounts.dtype.name != "float32":
            amounts = to_dtype(amounts, float64)
    if not values.size:
        return wrap(common.full(0, (length,), node, int64))
    zeros = common.full(0, (length,), amounts)
    return wrap(indexing.scatter_add(zeros, to_dtype(node, int64), amounts))


def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements lie in each of `bins` equal intervals of [min, max].

    Args:
        min, max: equal numbers stand for the smallest and the largest element.
    """
    bins = as_int("histc", bins, "bins")
    if bins < 1:
        raise ArgumentError("histc", "bins is not positive", expect="bins >= 1", actual=str(bins))
    node = detached(require_float("histc", input.node))
    flat = movement.reshape(node, shape=(prod(node.shape),))
    empty = common.full(0, (bins,), node)
    if not prod(node.shape):
        return wrap(empty)
    low, high = common.full(min, (1,), node), common.full(max, (1,), node)
    if min == max:
        low, high = ops.min(flat, axes=(0,)), ops.max(flat, axes=(0,))
        equal = elementwise.eq(low, high)
        one = common.full_like(low, 1)
        low, high = (
            elementwise.where(equal, elementwise.sub(low, one), low),
            elementwise.where(equal, elementwise.add(high, one), high),
        )
    low, high = to_shape(low, flat.shape), to_shape(high, flat.shape)
    inside = elementwise.logical_and(elementwise.ge(flat, low), elementwise.le(flat, high))
    # In PyTorch's order, which decides the bins of half types.
    distance = elementwise.mul(elementwise.sub(flat, low), common.full_like(flat, bins))
    bucket = elementwise.floor(elementwise.div(distance, elementwise.sub(high, low)))
    bucket = to_dtype(elementwise.where(inside, bucket, common.full_like(bucket, 0)), int64)
    # Among integers: half types do not have every number of a bin.
    bucket = elementwise.minimum(bucket, common.full_like(bucket, bins - 1))
    counted = indexing.scatter_add(empty, bucket, to_dtype(inside, node.dtype))
    return wrap(counted)


# Histograms ---------------------------------------------------------------------------------------

Array = np.ndarray[Any, Any]


class Histogram(NamedTuple):
    """What `histogram` gives."""

    hist: Tensor
    bin_edges: Tensor


class HistogramDD(NamedTuple):
    """What `histogramdd` gives."""

    hist: Tensor
    bin_edges: tuple[Tensor, ...]


def histogram(
    input: Tensor,
    bins: Any = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Histogram:
    """How many elements lie between neighbouring edges; the last bin has both its edges.

    Args:
        bins: how many equal ones, or a vector of rising edges.
        range: the outer edges; the smallest and the largest element when left out.
        weight: what each element counts, of the shape of `input`.
        density: divide so that the integral is 1.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.histogram(tc.tensor([0.0, 1.0, 1.5, 4.0], device="cpu"), 2).hist.tolist()
        [3.0, 1.0]
    """
    hist, edges = histogramdd(
        input.reshape(-1, 1), [bins], range=range,
        weight=None if weight is None else weight.reshape(-1), density=density,
    )  # fmt: skip
    return Histogram(hist, edges[0])


def histogramdd(
    input: Tensor,
    bins: Any,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> HistogramDD:
    """How many points lie in each cell of a grid.

    Args:
        input: (.., d), the points.
        bins: how many for all dimensions, or for each, or vectors of edges.
        range: the outer edges of each dimension, ``[low_0, high_0, low_1, ...]``.
        weight: what each point counts, of the shape of `input` without its last dimension.
        density: divide so that the integral is 1.
    """
    if not input.dtype.is_floating:
        raise DTypeError(
            "histogramdd", "needs a floating dtype", expect="float32 or float64",
            actual=input.dtype.name,
        )  # fmt: skip
    if not input.ndim:
        raise ShapeError("histogramdd", "needs points", expect="(.., d)", actual="()")
    count = input.shape[-1]
    points = input.detach().array().reshape(-1, count)
    chosen = [bins] * count if isinstance(bins, int) else list(bins)
    if len(chosen) != count:
        raise ArgumentError(
            "histogramdd", "bins do not fit", expect=f"{count} of them", actual=str(len(chosen))
        )
    dimensions: list[int] = np.arange(count).tolist()
    edges = [
        _edges(points[:, k], chosen[k], None if range is None else range[2 * k : 2 * k + 2])
        for k in dimensions
    ]
    amounts = None if weight is None else weight.detach().array().reshape(-1)
    counts = _counted(points, edges, amounts)
    if density:
        counts = counts / counts.sum()
        for k, line in enumerate(edges):
            shape = [-1 if axis == k else 1 for axis in dimensions]
            counts = counts / np.diff(line).reshape(shape)
    grid = _buffer(counts, input)
    return HistogramDD(grid, tuple(_buffer(line, input) for line in edges))


def _buffer(array: Array, like: Tensor) -> Tensor:
    return wrap(buffer_node(np.array(array, like.dtype.numpy, order="C"), like.device))


def _edges(values: Array, bins: Any, outer: Sequence[float] | None) -> Array:
    if isinstance(bins, TensorBase):
        return wrap(bins.node).array()
    low, high = outer if outer is not None else (0.0, 1.0)
    if outer is None and values.size:
        low, high = float(values.min()), float(values.max())
    if not np.isfinite(low) or not np.isfinite(high) or low > high or bins < 1:
        raise ArgumentError(
            "histogramdd", "there is no such grid", expect="bins >= 1, finite low <= high",
            actual=f"{bins} bins from {low} to {high}",
        )  # fmt: skip
    if low == high:
        low, high = low - 0.5, high + 0.5
    return np.asarray(np.linspace(low, high, bins + 1), values.dtype)


def _counted(points: Array, edges: list[Array], amounts: Array | None) -> Array:
    shape = tuple(len(line) - 1 for line in edges)
    inside = np.ones(len(points), bool)
    buckets = []
    for column, line in zip(points.T.astype(np.float64), edges):
        line = line.astype(np.float64)  # NumPy does not know where a bfloat16 nan stands
        bucket = np.searchsorted(line, column, side="right") - 1
        bucket = np.where(column == line[-1], len(line) - 2, bucket)
        inside &= (column >= line[0]) & (column <= line[-1])
        buckets.append(bucket)
    counts = np.zeros(shape)
    chosen = tuple(bucket[inside] for bucket in buckets)
    np.add.at(counts, chosen, 1 if amounts is None else amounts[inside])
    return counts
