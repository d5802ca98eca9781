"""Reductions over dimensions: sum, mean, max, var, norm, cumsum, softmax, ...

Each is a row of the op table or a short composition, which the scheduler fuses into one kernel.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from math import inf
from math import prod as count_of
from typing import TYPE_CHECKING, Any, NamedTuple

from tinygrad_cuda.core.dtypes import as_dtype, bool_, int64, uint8
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError
from tinygrad_cuda.core.shapes import is_several, normalize_axes, normalize_axis
from tinygrad_cuda.engine.cell import detached
from tinygrad_cuda.graph.node import Node, Op
from tinygrad_cuda.graph.ops import common, elementwise, movement, scan
from tinygrad_cuda.graph.ops import reduction as ops
from tinygrad_cuda.graph.ops.common import require_dtype
from tinygrad_cuda.tensors.autocast import in_float32
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.call_replay import templated
from tinygrad_cuda.tensors.creation import DTypeLike
from tinygrad_cuda.tensors.layout import another
from tinygrad_cuda.tensors.linalg.factorizing import svdvals
from tinygrad_cuda.tensors.math import maximum, minimum
from tinygrad_cuda.tensors.opmath import rounded, widened
from tinygrad_cuda.tensors.promotion import as_float, to_dtype, to_shape
from tinygrad_cuda.tensors.shaping import movedim

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "all", "amax", "amin", "any", "argmax", "argmin", "count_nonzero", "cumprod", "cumsum",
    "log_softmax", "logsumexp", "max", "mean", "min", "norm", "prod", "softmax", "std", "sum",
    "var", "var_mean",
]  # fmt: skip


Axes = tuple[int, ...]


class Extremes(NamedTuple):
    """What `max` and `min` along a dimension give."""

    values: Tensor
    indices: Tensor


# Arguments ----------------------------------------------------------------------------------------


def _axes(op: str, node: Node, dim: Any, axis: Any) -> Axes:
    if axis is not None and dim is not None:
        raise ArgumentError(
            op,
            "dim and axis are two names of one argument",
            expect="one of them",
            actual=f"dim={dim!r}, axis={axis!r}",
        )
    return normalize_axes(op, dim if axis is None else axis, len(node.shape))


def finish(node: Node, axes: Axes, keep: bool) -> Node:
    """Without the reduced dimensions, or with size 1 in them."""
    if keep or not axes:
        return node
    shape = tuple(size for axis, size in enumerate(node.shape) if axis not in axes)
    return movement.reshape(node, shape=shape)


def cast(node: Node, dtype: DTypeLike) -> Node:
    return node if dtype is None else to_dtype(node, as_dtype(dtype))


def summed_in(node: Node, dtype: DTypeLike) -> Node:
    """Integers and bools are summed in int64."""
    if dtype is not None or node.dtype.category > 1:
        return cast(node, dtype)
    return to_dtype(node, int64)


def require_float(op: str, node: Node) -> Node:
    if not node.dtype.is_floating:
        raise DTypeError(
            op,
            "needs a floating dtype",
            expect="float16, bfloat16, float32 or float64",
            actual=node.dtype.name,
            hint="cast first, e.g. x.float(), or pass dtype=",
        )
    return node


def reduced(row: Op, node: Node, axes: Axes) -> Node:
    return row(node, axes=axes) if axes else another(node)


# Sums and products --------------------------------------------------------------------------------


@templated
@in_float32
def sum(
    input: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike = None,
    axis: Any = None,
    keepdims: bool = False,
) -> Tensor:
    """The sum of the elements along `dim`, or of all.

    Args:
        dim: a dimension or several; None for all. `axis` is another name for it.
        keepdim: keep the reduced dimensions with size 1. `keepdims` is another name for it.
        dtype: cast to this first; integers and bools are summed in int64 otherwise.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.tensor([[1, 2], [3, 4]], device="cpu").sum(dim=0).tolist()
        [4, 6]
    """
    node = summed_in(input.node, dtype)
    axes = _axes("sum", node, dim, axis)
    row = ops.any if node.dtype is bool_ else ops.sum
    return wrap(finish(reduced(row, node, axes), axes, keepdim or keepdims))


@templated
def mean(
    input: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike = None,
    axis: Any = None,
    keepdims: bool = False,
) -> Tensor:
    """The mean of the elements along `dim`, or of all.

    Args:
        dim, keepdim, axis, keepdims: as for `sum`.
        dtype: cast to this first.

    Raises:
        DTypeError: the dtype is not a floating one.
    """
    node = cast(input.node, dtype)
    node = node if node.dtype.is_complex else require_float("mean", node)
    axes = _axes("mean", node, dim, axis)
    # A half type holds neither every sum nor every count.
    result = rounded(ops.mean(widened(node), axes), node.dtype) if axes else another(node)
    return wrap(finish(result, axes, keepdim or keepdims))


@in_float32
def prod(
    input: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike = None,
    axis: int | None = None,
    keepdims: bool = False,
) -> Tensor:
    """The product of the elements along `dim`, or of all; its gradient is exact at zeros."""
    node = summed_in(input.node, dtype)
    axes = _axes("prod", node, dim, axis)
    row = ops.all if node.dtype is bool_ else ops.prod
    return wrap(finish(reduced(row, node, axes), axes, keepdim or keepdims))


def count_nonzero(input: Tensor, dim: Any = None) -> Tensor:
    """How many elements along `dim`, or of all, are not zero."""
    node = to_dtype(_as_bool(input.node), int64)
    axes = _axes("count_nonzero", node, dim, None)
    return wrap(finish(reduced(ops.sum, node, axes), axes, False))


# Truth --------------------------------------------------------------------------------------------


def _as_bool(node: Node) -> Node:
    node = detached(node)
    if node.dtype is bool_:
        return node
    return elementwise.ne(node, common.full_like(node, 0))


def _truth(name: str, row: Op, input: Tensor, dim: Any, axis: Any, keep: bool) -> Tensor:
    node = _as_bool(input.node)
    # As in PyTorch, no dimension here means none; in a sum it means all.
    axes = () if is_several(dim) and not tuple(dim) else _axes(name, node, dim, axis)
    result = finish(reduced(row, node, axes), axes, keep) if axes else another(node)
    # As in PyTorch, bytes give bytes.
    return wrap(to_dtype(result, uint8) if input.dtype is uint8 else result)


def any(
    input: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    axis: Any = None,
    keepdims: bool = False,
) -> Tensor:
    """Whether an element along `dim`, or any at all, is not zero."""
    return _truth("any", ops.any, input, dim, axis, keepdim or keepdims)


def all(
    input: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    axis: Any = None,
    keepdims: bool = False,
) -> Tensor:
    """Whether no element along `dim`, or none at all, is zero."""
    return _truth("all", ops.all, input, dim, axis, keepdim or keepdims)


# Extremes -----------------------------------------------------------------------------------------


def _extreme(
    op: str, row: Op, arg: Op, both: Callable[..., Tensor], input: Tensor, options: dict[str, Any]
) -> Any:
    dim, keep = options["dim"], options["keepdim"]
    if isinstance(dim, TensorBase):
        return both(input, dim)
    node = input.node
    require_dtype(op, node, "real")
    axes = _axes(op, node, dim, options["axis"])
    if dim is None and options["axis"] is None:
        return wrap(finish(reduced(row, node, axes), axes, keep))
    if not axes:
        zero = common.full(0, (), node, int64)
        return Extremes(wrap(another(node)), wrap(zero))
    if len(axes) != 1:
        raise ShapeError(
            op,
            "takes one dimension",
            expect="an int",
            actual=str(dim),
            hint=f"a{op}() reduces several dimensions",
        )
    indices = arg(node, axes=axes)
    values = row(detached(node), axes=axes)
    if node.requires_grad:
        values = common.with_history(values, _chosen(node, indices, axes[0]))
    return Extremes(wrap(finish(values, axes, keep)), wrap(finish(indices, axes, keep)))


def max_at(input: Tensor, choose: Callable[[Tensor], Tensor]) -> Extremes:
    """`max` along the last dimension where `choose` prefers others among equal elements.

    Args:
        choose: given the indices of the first of equal elements, those to which the gradient goes.
    """
    node = input.node
    axes = (len(node.shape) - 1,)
    first = ops.argmax(node, axes=axes)
    chosen = choose(wrap(finish(first, axes, False))).node
    values = ops.max(detached(node), axes=axes)
    if node.requires_grad:
        positions = movement.reshape(chosen, shape=first.shape)
        values = common.with_history(values, _chosen(node, positions, axes[0]))
    return Extremes(wrap(finish(values, axes, False)), wrap(chosen))


def _chosen(node: Node, indices: Node, axis: int) -> Node:
    """``sum(where(position == index, x, 0))``: the gradient goes to the chosen elements alone.

    On a GPU it is one load (`lowering/schedule/one_hot_gather.py`).
    """
    apart = tuple(node.shape[axis] if k == axis else 1 for k in range(len(node.shape)))
    line = common.arange.leaf((node.shape[axis],), int64, node.device, start=0, step=1)
    position = to_shape(movement.reshape(line, shape=apart), node.shape)
    here = elementwise.eq(position, to_shape(indices, node.shape))
    return ops.sum(elementwise.where(here, node, common.full_like(node, 0)), axes=(axis,))


def max(
    input: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    axis: int | None = None,
    keepdims: bool = False,
    other: Tensor | None = None,
) -> Any:
    """The largest element, the largest along a dimension, or the larger of two tensors.

    Args:
        dim: None for all elements; an int for (values, indices) along a dimension, where the
            gradient goes to the selected element; a Tensor for the elementwise form.
        keepdim: keep the reduced dimension with size 1.

    Raises:
        ShapeError: there is nothing to reduce.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([[1, 5], [7, 2]], device="cpu")
        >>> x.max().item(), x.max(dim=1).indices.tolist()
        (7, [1, 0])
    """
    options = {"dim": dim if other is None else other, "keepdim": keepdim or keepdims, "axis": axis}
    return _extreme("max", ops.max, ops.argmax, maximum, input, options)


def min(
    input: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    axis: int | None = None,
    keepdims: bool = False,
    other: Tensor | None = None,
) -> Any:
    """The smallest element, the smallest along a dimension, or the smaller of two tensors.

    Args and results as for `max`.
    """
    options = {"dim": dim if other is None else other, "keepdim": keepdim or keepdims, "axis": axis}
    return _extreme("min", ops.min, ops.argmin, minimum, input, options)


def amax(
    input: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    axis: Any = None,
    keepdims: bool = False,
) -> Tensor:
    """The largest element along several dimensions; equal ones share the gradient."""
    node = input.node
    require_dtype("amax", node, "real")
    axes = _axes("amax", node, dim, axis)
    return wrap(finish(reduced(ops.max, node, axes), axes, keepdim or keepdims))


def amin(
    input: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    axis: Any = None,
    keepdims: bool = False,
) -> Tensor:
    """The smallest element along several dimensions; equal ones share the gradient."""
    node = input.node
    require_dtype("amin", node, "real")
    axes = _axes("amin", node, dim, axis)
    return wrap(finish(reduced(ops.min, node, axes), axes, keepdim or keepdims))


def _position(op: str, row: Op, input: Tensor, dim: int | None, keep: bool) -> Tensor:
    node = detached(input.node)
    require_dtype(op, node, "real")
    axes = tuple(range(len(node.shape)))
    if dim is not None:
        axis = normalize_axis(op, dim, len(node.shape))
        axes = (axis,) if node.shape else ()
    if not axes:
        return wrap(common.full(0, (), node, int64))
    return wrap(finish(row(node, axes=axes), axes, keep))


def argmax(
    input: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    axis: int | None = None,
    keepdims: bool = False,
) -> Tensor:
    """The position of the first largest element, in row-major order or along `dim`; int64."""
    return _position(
        "argmax", ops.argmax, input, dim if axis is None else axis, keepdim or keepdims
    )


def argmin(
    input: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    axis: int | None = None,
    keepdims: bool = False,
) -> Tensor:
    """The position of the first smallest element, in row-major order or along `dim`; int64."""
    return _position(
        "argmin", ops.argmin, input, dim if axis is None else axis, keepdim or keepdims
    )


# Spread -------------------------------------------------------------------------------------------


def _moments(op: str, input: Tensor, dim: Any, correction: float) -> tuple[Node, Node, Axes]:
    """Variance and mean with reduced dimensions of size 1, float32 for half types, and the axes."""
    node = widened(require_float(op, input.node))
    axes = normalize_axes(op, dim, len(node.shape))
    if 0 in (node.shape[axis] for axis in axes):
        # 0 / 0 is NaN, as in PyTorch.
        total = ops.sum(node, axes=axes)
        nothing = elementwise.div(total, common.full_like(total, 0))
        return nothing, nothing, axes
    both = ops.welford(node, axes=axes) if axes else None
    if both is None:
        mean, squares = another(node), elementwise.sub(node, node)
    else:
        mean, squares = common.output(both, index=0), common.output(both, index=1)
    count = count_of(node.shape[axis] for axis in axes)
    # As in PyTorch: too few elements divide by zero and give NaN or infinity.
    divisor = builtins.max(count - correction, 0)
    return elementwise.div(squares, common.full_like(squares, divisor)), mean, axes


def _variance(
    op: str, input: Tensor, dim: Any, unbiased: bool | None, correction: float | None
) -> tuple[Node, Node, Axes]:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None and correction is not None:
        raise ArgumentError(
            op,
            "unbiased and correction exclude each other",
            expect="one of them",
            actual=f"unbiased={unbiased}, correction={correction}",
        )
    if correction is None:
        correction = 1 if unbiased is None or unbiased else 0
    if input.dtype.is_complex:  # the mean of |x - mean|^2
        real, imag = wrap(elementwise.real(input.node)), wrap(elementwise.imag(input.node))
        variance, mean, axes = _moments(op, real, dim, correction)
        other, turned, _ = _moments(op, imag, dim, correction)
        return elementwise.add(variance, other), elementwise.complex_(mean, turned), axes
    return _moments(op, input, dim, correction)


def var(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    axis: Any = None,
    keepdims: bool = False,
) -> Tensor:
    r"""The variance along `dim` or of all elements: ``sum(abs(x - mean)**2) / (n - correction)``.

    Args:
        dim, keepdim, axis, keepdims: as for `sum`.
        unbiased: False is ``correction=0``.
        correction: 1 when left out.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.tensor([1.0, 2.0, 3.0], device="cpu").var().item()
        1.0
    """
    where = dim if axis is None else axis
    variance, _, axes = _variance("var", input, where, unbiased, correction)
    return wrap(rounded(finish(variance, axes, keepdim or keepdims), input.dtype))


def std(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    axis: Any = None,
    keepdims: bool = False,
) -> Tensor:
    """The square root of `var`; its gradient at zero is zero."""
    where = dim if axis is None else axis
    variance, _, axes = _variance("std", input, where, unbiased, correction)
    return wrap(rounded(finish(_safe_sqrt(variance), axes, keepdim or keepdims), input.dtype))


def var_mean(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`var` and `mean` in one pass."""
    variance, mean, axes = _variance("var_mean", input, dim, unbiased, correction)
    results = (finish(variance, axes, keepdim), finish(mean, axes, keepdim))
    return wrap(rounded(results[0], input.dtype)), wrap(rounded(results[1], input.dtype))


def _safe_sqrt(node: Node) -> Node:
    """The square root with gradient zero, not infinite, at zero."""
    zero = common.full_like(node, 0)
    flat = elementwise.eq(node, zero)
    root = elementwise.sqrt(elementwise.where(flat, common.full_like(node, 1), node))
    return elementwise.where(flat, zero, root)


def _root_of_powers(node: Node, order: float, axes: Axes) -> Node:
    """(sum |x|^p)^(1/p) with gradient zero, not NaN, at zeros."""
    zero = elementwise.eq(detached(node), common.full_like(node, 0))
    one = common.full_like(node, 1)
    size = elementwise.where(zero, one, elementwise.abs(node))
    powers = elementwise.pow(size, common.full_like(size, order))
    none = common.full_like(node, 0 if order > 0 else inf)
    total = reduced(ops.sum, elementwise.where(zero, none, powers), axes)
    root_order = common.full_like(total, 1 / order)
    empty = elementwise.eq(detached(total), common.full_like(total, 0))
    root = elementwise.pow(elementwise.where(empty, common.full_like(total, 1), total), root_order)
    return elementwise.where(empty, common.full_like(total, 0 if order > 0 else inf), root)


def _magnitudes(node: Node) -> Node:
    """Complex numbers as their sizes, which have the same norms; others as they are."""
    return elementwise.modulus(node) if node.dtype.is_complex else node


@in_float32
def norm(
    input: Tensor,
    p: Any = "fro",
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike = None,
) -> Tensor:
    r"""The p-norm of vectors: ``(sum |x|^p)^(1/p)``, at infinity the largest ``|x|``, at 0 a count.

    Args:
        p: a number, ``float("inf")``, ``-float("inf")``, ``"fro"``, which is 2, or ``"nuc"``, the
            sum of the singular values of a matrix.
        dim: the dimensions of the vectors; None takes all elements as one vector.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.tensor([3.0, 4.0], device="cpu").norm().item()
        5.0
    """
    if isinstance(p, str) and p == "nuc":
        rank = len(input.node.shape)
        rows, columns = (-2, -1) if dim is None else normalize_axes("norm", dim, rank)
        values = svdvals(movedim(wrap(cast(input.node, dtype)), (rows, columns), (-2, -1)))
        total = finish(ops.sum(values.node, axes=(values.ndim - 1,)), (values.ndim - 1,), False)
        ones = tuple(
            1 if k in (rows % rank, columns % rank) else n for k, n in enumerate(input.node.shape)
        )
        return wrap(movement.reshape(total, shape=ones) if keepdim else total)
    narrow = require_float("norm", _magnitudes(cast(input.node, dtype)))
    node = widened(narrow)
    axes = normalize_axes("norm", dim, len(node.shape))
    order = 2.0 if p in ("fro", None) else builtins.float(p)
    if order != 0 and builtins.all(node.shape[axis] == 1 for axis in axes):
        result = reduced(ops.sum, elementwise.abs(node), axes)  # no power that may underflow
    elif order == 2:
        result = _safe_sqrt(reduced(ops.sum, elementwise.mul(node, node), axes))
    elif order == 0:
        zero = elementwise.eq(node, common.full_like(node, 0))
        # The sign has a gradient: zero.
        count = elementwise.where(zero, elementwise.sign(node), common.full_like(node, 1))
        result = reduced(ops.sum, count, axes)
    else:
        size = elementwise.abs(node)
        if order in (inf, -inf):
            result = reduced(ops.max if order > 0 else ops.min, size, axes)
        elif order == 1:
            result = reduced(ops.sum, size, axes)
        else:
            result = _root_of_powers(node, order, axes)
    return wrap(rounded(finish(result, axes, keepdim), narrow.dtype))


# Running sums and products ------------------------------------------------------------------------


@in_float32
def cumsum(
    input: Tensor, dim: int | None = None, *, dtype: DTypeLike = None, axis: int | None = None
) -> Tensor:
    """Running sums along `dim`: ``out[i] = x[0] + ... + x[i]``.

    Args:
        dtype: cast to this first; integers and bools are summed in int64 otherwise.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.tensor([1, 2, 3], device="cpu").cumsum(0).tolist()
        [1, 3, 6]
    """
    return _cumulative("cumsum", input, dim if axis is None else axis, dtype, True)


@in_float32
def cumprod(
    input: Tensor, dim: int | None = None, *, dtype: DTypeLike = None, axis: int | None = None
) -> Tensor:
    """Running products along `dim`: ``out[i] = x[0] * ... * x[i]``."""
    return _cumulative("cumprod", input, dim if axis is None else axis, dtype, False)


def _cumulative(op: str, input: Tensor, dim: int | None, dtype: DTypeLike, adds: bool) -> Tensor:
    if dim is None:
        raise ArgumentError(op, "dim is missing", expect="a dim", actual="None", hint=f"{op}(0)")
    node = summed_in(input.node, dtype)
    axis = normalize_axis(op, dim, len(node.shape))
    if not node.shape or not count_of(node.shape):
        return wrap(another(node))
    if node.shape[axis] == 1:
        # As in PyTorch the gradient of one element does not depend on it.
        return wrap(another(node))
    wide = widened(node)
    if adds:
        return wrap(rounded(scan.cumsum(wide, axis=axis), node.dtype))
    product = scan.running(wide, axis, ops.prod, 1, elementwise.mul)
    return wrap(rounded(product, node.dtype))


# Exponentials -------------------------------------------------------------------------------------


def _shifted(node: Node, axes: Axes) -> tuple[Node, Node]:
    """x - max x, and the max; the max carries no gradient, since it cancels."""
    largest = reduced(ops.max, detached(node), axes)
    return elementwise.sub(node, to_shape(largest, node.shape)), largest


@in_float32
def logsumexp(input: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    r"""log sum exp x along `dim`, computed as max x + log sum exp(x - max x)."""
    narrow = as_float(input.node)
    node = widened(narrow)
    axes = normalize_axes("logsumexp", dim, len(node.shape))
    if builtins.any(node.shape[axis] == 0 for axis in axes):
        none = elementwise.log(ops.sum(narrow, axes=axes))  # -inf, whose gradient has no element
        return wrap(finish(none, axes, keepdim))
    parts = elementwise.real(node) if node.dtype.is_complex else node
    largest = reduced(ops.max, detached(parts), axes)
    # An infinite maximum would make NaN of infinity minus infinity.
    finite = elementwise.isfinite(largest)
    largest = elementwise.where(finite, largest, common.full_like(largest, 0))
    largest = to_dtype(largest, node.dtype)
    powers = elementwise.exp(elementwise.sub(node, to_shape(largest, node.shape)))
    total = reduced(ops.sum, powers, axes)
    result = finish(elementwise.add(elementwise.log(total), largest), axes, keepdim)
    return wrap(rounded(result, narrow.dtype))


@in_float32
def softmax(input: Tensor, dim: int, dtype: DTypeLike = None) -> Tensor:
    r"""exp(x - max x) / sum exp(x - max x) along `dim`.

    Args:
        dim: the dimension whose elements sum to 1.
        dtype: cast to this first.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.tensor([0.0, 0.0], device="cpu").softmax(0).tolist()
        [0.5, 0.5]
    """
    node = require_float("softmax", cast(input.node, dtype))
    axis = normalize_axis("softmax", dim, len(node.shape))
    axes = (axis,) if node.shape else ()
    if not count_of(node.shape):
        return wrap(another(node))
    powers = elementwise.exp(_shifted(widened(node), axes)[0])
    total = reduced(ops.sum, powers, axes)
    return wrap(rounded(elementwise.div(powers, to_shape(total, node.shape)), node.dtype))


@in_float32
def masked_softmax(input: Tensor) -> Tensor:
    """softmax along the last dimension; zeros, without a gradient, where all of it is -inf."""
    node = widened(require_float("masked_softmax", input.node))
    if not count_of(node.shape):
        return wrap(another(input.node))
    axes = (len(node.shape) - 1,)
    largest = reduced(ops.max, detached(node), axes)
    hidden = elementwise.eq(largest, common.full_like(largest, -inf))
    # Of a hidden row every power is exp(-inf - 0) = 0, and 0 / 1 is 0.
    largest = elementwise.where(hidden, common.full_like(largest, 0), largest)
    powers = elementwise.exp(elementwise.sub(node, to_shape(largest, node.shape)))
    total = reduced(ops.sum, powers, axes)
    total = elementwise.where(hidden, common.full_like(total, 1), total)
    return wrap(rounded(elementwise.div(powers, to_shape(total, node.shape)), input.dtype))


@in_float32
def log_softmax(input: Tensor, dim: int, dtype: DTypeLike = None) -> Tensor:
    r"""x - max x - log sum exp(x - max x) along `dim`: the log of `softmax`, without underflow."""
    node = require_float("log_softmax", cast(input.node, dtype))
    axis = normalize_axis("log_softmax", dim, len(node.shape))
    axes = (axis,) if node.shape else ()
    if not count_of(node.shape):
        return wrap(another(node))
    shifted = _shifted(widened(node), axes)[0]
    total = reduced(ops.sum, elementwise.exp(shifted), axes)
    result = elementwise.sub(shifted, to_shape(elementwise.log(total), node.shape))
    return wrap(rounded(result, node.dtype))
