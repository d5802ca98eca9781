"""The standard's statistics, searches, sorts and sets."""

from __future__ import annotations

from typing import NamedTuple

from tinygrad_cuda.array_api.operands import Axis, array, axes_of, joined_axes, with_kept
from tinygrad_cuda.core import dtypes as D
from tinygrad_cuda.core.dtypes import DType, bool_, int64
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.shapes import normalize_axis
from tinygrad_cuda.graph.ops.common import require_dtype
from tinygrad_cuda.tensors import creation
from tinygrad_cuda.tensors import functions as F
from tinygrad_cuda.tensors.tensor import Tensor


def _total_dtype(x: Tensor, dtype: DType | None) -> DType:
    """That of a sum: as wide as the default dtype of its kind at least."""
    if dtype is not None or x.dtype.category >= 2:
        return dtype or x.dtype
    return D.uint64 if x.dtype.is_integer and not x.dtype.is_signed else int64


def sum(
    x: Tensor, /, *, axis: Axis = None, dtype: DType | None = None, keepdims: bool = False
) -> Tensor:
    """The sum of the elements along axes."""
    axes = axes_of(array("sum", x), axis)
    rows = joined_axes(x.to(_total_dtype(x, dtype)), axes)
    return with_kept(rows.sum(-1, dtype=rows.dtype), x, axes, keepdims)


def prod(
    x: Tensor, /, *, axis: Axis = None, dtype: DType | None = None, keepdims: bool = False
) -> Tensor:
    """The product of the elements along axes."""
    axes = axes_of(array("prod", x), axis)
    rows = joined_axes(x.to(_total_dtype(x, dtype)), axes)
    return with_kept(rows.prod(-1, dtype=rows.dtype), x, axes, keepdims)


def max(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The largest element along axes."""
    axes = axes_of(array("max", x), axis)
    return with_kept(F.amax(joined_axes(x, axes), -1), x, axes, keepdims)


def min(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The smallest element along axes."""
    axes = axes_of(array("min", x), axis)
    return with_kept(F.amin(joined_axes(x, axes), -1), x, axes, keepdims)


def mean(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean of the elements along axes."""
    axes = axes_of(array("mean", x), axis)
    return with_kept(joined_axes(x, axes).mean(-1), x, axes, keepdims)


def var(
    x: Tensor, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The variance of the elements along axes, over their number less the correction."""
    require_dtype("var", array("var", x).node, "real")
    axes = axes_of(x, axis)
    rows = joined_axes(x, axes)
    centred = rows - rows.mean(-1, keepdim=True)
    count = rows.shape[-1] - correction
    total = (centred * centred).sum(-1)
    result = total / count if count > 0 else total * float("nan")
    return with_kept(result, x, axes, keepdims)


def std(
    x: Tensor, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The standard deviation of the elements along axes."""
    return F.sqrt(var(x, axis=axis, correction=correction, keepdims=keepdims))


def all(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether all elements along axes are true."""
    axes = axes_of(array("all", x), axis)
    return with_kept(F.all(joined_axes(x != 0, axes), -1), x, axes, keepdims)


def any(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether any element along axes is true."""
    axes = axes_of(array("any", x), axis)
    return with_kept(F.any(joined_axes(x != 0, axes), -1), x, axes, keepdims)


def count_nonzero(x: Tensor, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """How many elements along axes are not 0."""
    return sum((array("count_nonzero", x) != 0).to(int64), axis=axis, keepdims=keepdims)


def _one_axis(op: str, x: Tensor, axis: int | None) -> int:
    if axis is None:
        if x.ndim != 1:
            raise ArgumentError(
                op, "which axis?", expect="axis for an array of several", actual="None"
            )
        return 0
    return normalize_axis(op, axis, x.ndim)


def cumulative_sum(
    x: Tensor, /, *, axis: int | None = None, dtype: DType | None = None,
    include_initial: bool = False,
) -> Tensor:  # fmt: skip
    """The sums of the elements up to each one along an axis."""
    along = _one_axis("cumulative_sum", array("cumulative_sum", x), axis)
    wanted = _total_dtype(x, dtype)
    result = F.cumsum(x.to(wanted), along, dtype=wanted)
    return _with_initial(result, along, 0) if include_initial else result


def cumulative_prod(
    x: Tensor, /, *, axis: int | None = None, dtype: DType | None = None,
    include_initial: bool = False,
) -> Tensor:  # fmt: skip
    """The products of the elements up to each one along an axis."""
    along = _one_axis("cumulative_prod", array("cumulative_prod", x), axis)
    wanted = _total_dtype(x, dtype)
    result = F.cumprod(x.to(wanted), along, dtype=wanted)
    return _with_initial(result, along, 1) if include_initial else result


def _with_initial(x: Tensor, axis: int, value: int) -> Tensor:
    shape = [1 if k == axis else n for k, n in enumerate(x.shape)]
    return F.cat([creation.full(shape, value, dtype=x.dtype, device=x.device), x], axis)


def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The n-th differences of neighbours along an axis."""
    return F.diff(array("diff", x), n, axis, prepend, append)


# Searching and sorting ----------------------------------------------------------------------------


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the largest element along an axis, the first of several."""
    axes = axes_of(array("argmax", x), axis)
    return with_kept(F.argmax(joined_axes(x, axes), -1), x, axes, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the smallest element along an axis, the first of several."""
    axes = axes_of(array("argmin", x), axis)
    return with_kept(F.argmin(joined_axes(x, axes), -1), x, axes, keepdims)


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """The indices of the elements that are not 0, one array for each axis."""
    if array("nonzero", x).ndim == 0:
        raise ArgumentError(
            "nonzero", "an array without axes has no indices", expect="an axis", actual="shape ()"
        )
    return tuple(F.nonzero(x, as_tuple=True))


def searchsorted(
    x1: Tensor, x2: Tensor, /, *, side: str = "left", sorter: Tensor | None = None
) -> Tensor:
    """Where the elements of x2 would be put into x1, which is sorted, or is by `sorter`."""
    if sorter is not None:
        x1 = F.index_select(x1, 0, sorter.to(int64))
    dtype = D.promote(x1.dtype, x2.dtype)
    return F.searchsorted(x1.to(dtype), x2.to(dtype), right=side == "right")


def argsort(
    x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    """The indices in the order of the elements along an axis."""
    return F.sort(array("argsort", x), dim=axis, descending=descending, stable=True).indices


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The elements in their order along an axis."""
    return F.sort(array("sort", x), dim=axis, descending=descending, stable=True).values


# Sets ---------------------------------------------------------------------------------------------


class UniqueAll(NamedTuple):
    """What `unique_all` gives."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """What `unique_counts` gives."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """What `unique_inverse` gives."""

    values: Tensor
    inverse_indices: Tensor


def _order(flat: Tensor) -> Tensor:
    """The indices in the order of the elements: of complex ones by real, then imaginary part."""
    if flat.dtype.is_complex:
        first = _order(F.imag(flat))
        return F.index_select(first, 0, _order(F.index_select(F.real(flat), 0, first)))
    flat = flat.to(D.uint8) if flat.dtype is bool_ else flat
    return F.sort(flat, dim=0, stable=True).indices


def unique_all(x: Tensor, /) -> UniqueAll:
    """Each value once, where it comes first, where it is, and how often; NaNs are all distinct."""
    flat = array("unique_all", x).reshape(-1)
    size = flat.shape[0]
    if not size:
        none = creation.zeros((0,), dtype=int64, device=x.device)
        return UniqueAll(flat.clone(), none, none.reshape(tuple(x.shape)), none)
    order = _order(flat)
    ordered = F.index_select(flat, 0, order)
    true = creation.ones((1,), dtype=bool_, device=x.device)
    first = F.cat([true, ordered[1:] != ordered[:-1]], 0)
    starts = F.nonzero(first, as_tuple=True)[0]
    group = F.cumsum(first.to(int64), 0) - 1
    inverse = F.scatter(creation.zeros((size,), dtype=int64, device=x.device), 0, order, group)
    end = creation.full((1,), size, dtype=int64, device=x.device)
    counts = F.cat([starts[1:], end], 0) - starts
    return UniqueAll(
        F.index_select(ordered, 0, starts), F.index_select(order, 0, starts),
        inverse.reshape(tuple(x.shape)), counts,
    )  # fmt: skip


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """Each value once, and how often it is there."""
    unique = unique_all(x)
    return UniqueCounts(unique.values, unique.counts)


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """Each value once, and which of them each element is."""
    unique = unique_all(x)
    return UniqueInverse(unique.values, unique.inverse_indices)


def unique_values(x: Tensor, /) -> Tensor:
    """Each value once, in order."""
    return unique_all(x).values


__all__ = [
    "all", "any", "argmax", "argmin", "argsort", "count_nonzero", "cumulative_prod",
    "cumulative_sum", "diff", "max", "mean", "min", "nonzero", "prod", "searchsorted", "sort",
    "std", "sum", "unique_all", "unique_counts", "unique_inverse", "unique_values", "var",
]  # fmt: skip
