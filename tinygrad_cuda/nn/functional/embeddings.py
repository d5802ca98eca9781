"""Rows of a table chosen by number: embedding and bags of embeddings."""

from __future__ import annotations

from tinygrad_cuda.core.dtypes import DType, int64
from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.graph.ops import indexing
from tinygrad_cuda.nn.smooth import where
from tinygrad_cuda.tensors import reductions
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.creation import arange, ones_like, zeros
from tinygrad_cuda.tensors.indexing.keys import position_node
from tinygrad_cuda.tensors.opmath import rounded, widened
from tinygrad_cuda.tensors.tensor import Tensor


def padding_row(op: str, padding_idx: int | None, count: int) -> int | None:
    """padding_idx counted from the front."""
    if padding_idx is None:
        return None
    if not -count <= padding_idx < count:
        raise ArgumentError(
            op, "padding_idx is no row", expect=f"{-count} <= padding_idx < {count}",
            actual=str(padding_idx),
        )  # fmt: skip
    return padding_idx % count


def refuse_sparse(op: str, sparse: bool) -> None:
    if sparse:
        raise ArgumentError(
            op, "sparse gradients do not exist here", expect="sparse=False", actual="sparse=True"
        )


def _shortened(weight: Tensor, positions: Tensor, max_norm: float, norm_type: float) -> None:
    """Scales the rows that are used, in place, to at most max_norm."""
    with gradient_mode(False):
        table = weight.detach()
        lengths = reductions.norm(table, norm_type, 1, keepdim=True)
        flat = positions.reshape(-1)
        used = zeros(table.shape[0], device=table.device).index_fill(0, flat, 1.0).unsqueeze(1)
        factor = where((used > 0) & (lengths > max_norm), max_norm / (lengths + 1e-7), 1.0)
        weight.copy_(table * factor)


def embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    r"""``weight[input]``.

    Args:
        input: row numbers, any shape.
        weight: shape (V, D).
        padding_idx: a row that gets no gradient.
        max_norm: rows that are used are first scaled, in place, to at most this norm.
        norm_type: the p of that norm.
        scale_grad_by_freq: divide the gradient of a row by how often it occurs in the input.
        sparse: must be False.

    Returns:
        Shape (\*input.shape, D).

    Raises:
        IndexError: a row number is out of range (raised when the value is computed).
        ArgumentError: padding_idx is no row, or sparse gradients are asked for.
        ShapeError: the table is no matrix.

    Example:
        >>> import tinygrad_cuda as tc
        >>> table = tc.tensor([[1.0, 2.0], [3.0, 4.0]], device="cpu")
        >>> embedding(tc.tensor([1, 0], device="cpu"), table).tolist()
        [[3.0, 4.0], [1.0, 2.0]]
    """
    refuse_sparse("embedding", sparse)
    if weight.ndim != 2:
        raise ShapeError(
            "embedding", "the table is no matrix", expect="weight (V, D)",
            actual=str(tuple(weight.shape)),
        )  # fmt: skip
    padding = padding_row("embedding", padding_idx, weight.shape[0])
    checked = position_node("embedding", input, weight.shape[0], weight.node, wrap_negative=False)
    positions = wrap(checked)
    if max_norm is not None:
        _shortened(weight, positions, max_norm, norm_type)
    rows = wrap(indexing.gather(weight.node, checked))
    if scale_grad_by_freq:
        counts = zeros(weight.shape[0], device=weight.device, dtype=weight.dtype)
        flat = positions.reshape(-1)
        counts = counts.index_add(0, flat, ones_like(flat).to(weight.dtype))
        often = wrap(indexing.gather(counts.node, checked)).unsqueeze(-1)
        rows = rows.detach() + (rows - rows.detach()) / often
    if padding is None:
        return rows
    return where((positions == padding).unsqueeze(-1), rows.detach(), rows)


def embedding_bag(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean",
    sparse: bool = False, per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """Sums, means or maxima of bags of rows.

    Args:
        input: row numbers, shape (B, L), or (L,) with `offsets`.
        weight: shape (V, D).
        offsets: where each bag begins, shape (B,), for an input of one dimension.
        max_norm, norm_type, scale_grad_by_freq, sparse: as for `embedding`.
        mode: ``sum``, ``mean`` or ``max``; an empty bag gives zeros.
        per_sample_weights: a factor for each row, of input's shape; for ``sum`` only.
        include_last_offset: the last offset is the end of the last bag.
        padding_idx: a row that does not count.

    Raises:
        ArgumentError: the mode is unknown, or the arguments exclude each other.
        ShapeError: the input has neither one nor two dimensions.
    """
    op = "embedding_bag"
    if mode not in ("sum", "mean", "max"):
        raise ArgumentError(op, "unknown mode", expect="sum, mean or max", actual=repr(mode))
    if per_sample_weights is not None and mode != "sum":
        raise ArgumentError(
            op, "per_sample_weights needs mode='sum'", expect="mode='sum'", actual=repr(mode)
        )
    if input.ndim not in (1, 2) or (input.ndim == 1) != (offsets is not None):
        raise ShapeError(
            op, "input and offsets do not fit", expect="(B, L), or (L,) with offsets",
            actual=f"input {tuple(input.shape)}, "
            + ("no offsets" if offsets is None else f"offsets {tuple(offsets.shape)}"),
        )  # fmt: skip
    rows = embedding(
        input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse
    )  # fmt: skip
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if mode == "mean":
        # A half type holds neither every sum nor every count.
        rows = wrap(widened(rows.node))
    counts = counting(op, input, padding_idx, weight.shape[0])
    if offsets is None:
        if mode == "max":
            return _largest(rows, counts.unsqueeze(1)).squeeze(1)
        total = where(counts.unsqueeze(-1), rows, 0.0).sum(1)
        return _mean_or_sum(total, counts, mode, weight.dtype)
    inside = belonging(offsets, input.shape[0], include_last_offset) & counts
    if mode == "max":
        return _largest(rows, inside)
    # One row after the last bag takes those of no bag.
    number = where(inside.any(0), inside.to(int64).argmax(0), inside.shape[0])
    total = zeros(inside.shape[0] + 1, rows.shape[-1], device=rows.device, dtype=rows.dtype)
    total = total.index_add(0, number, rows)[:-1]
    return _mean_or_sum(total, inside, mode, weight.dtype)


def counting(op: str, input: Tensor, padding_idx: int | None, count: int) -> Tensor:
    """Which elements are not the padding: shape (L,), or (B, L)."""
    padding = padding_row(op, padding_idx, count)
    counts: Tensor = input >= 0 if padding is None else input != padding
    return counts


def belonging(offsets: Tensor, length: int, last: bool) -> Tensor:
    """Which elements belong to which bag: shape (B, L)."""
    positions = arange(length, device=offsets.device)
    first = offsets[:-1] if last else offsets
    count = first.shape[0]
    begun = positions >= first.unsqueeze(1)
    inside: Tensor = begun
    if last:
        inside = inside & (positions < offsets[1:].unsqueeze(1))
    elif count > 1:
        final = arange(count, device=offsets.device).unsqueeze(1) == count - 1
        next_begun = begun.roll(-1, 0) & ~final
        inside = inside & ~next_begun
    return inside


def largest_rows(weight: Tensor, indices: Tensor, inside: Tensor) -> Tensor:
    """For each bag and column the row number of the maximum, (B, D); zeros for an empty bag."""
    chosen = where(inside.unsqueeze(-1), weight[indices], -float("inf"))
    rows = indices[chosen.argmax(1)]
    return where(inside.any(1, keepdim=True), rows, 0)


def _largest(rows: Tensor, inside: Tensor) -> Tensor:
    """The maximum of rows (.., L, D) over those inside, (.., B, L); 0 where none is."""
    if not rows.shape[-2]:
        return rows.new_zeros((*inside.shape[:-1], rows.shape[-1]))
    chosen = where(inside.unsqueeze(-1), rows.unsqueeze(-3), -float("inf"))
    empty = ~inside.any(-1, keepdim=True)
    return where(empty, 0.0, chosen.max(-2).values)


def _mean_or_sum(total: Tensor, inside: Tensor, mode: str, dtype: DType) -> Tensor:
    """The sums (B, D) of rows, over how many are inside, (B, L), for ``mean``."""
    if mode == "sum":
        return total
    counts: Tensor = inside.to(total.dtype).sum(-1, keepdim=True).clamp(min=1.0)
    return wrap(rounded((total / counts).node, dtype))
