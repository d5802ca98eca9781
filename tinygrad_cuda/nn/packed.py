"""Sequences of unequal lengths: padded to one Tensor, or packed step by step without padding.

Lengths are numbers of the host; what they select is recorded as one gather.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import int64
from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.tensors.creation import tensor
from tinygrad_cuda.tensors.shaping import cat, stack
from tinygrad_cuda.tensors.tensor import Tensor


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The order that undoes one; None of None.

    Example:
        >>> import tinygrad_cuda as tc
        >>> invert_permutation(tc.tensor([2, 0, 1], device="cpu")).tolist()
        [1, 2, 0]
    """
    return None if permutation is None else permutation.argsort()


class PackedSequence(NamedTuple):
    """Sequences without padding: the first elements of all, then the second of those that have one.

    Attributes:
        data: the elements, shape (sum of lengths, ...).
        batch_sizes: how many sequences reach each step, int64 on the cpu, never growing.
        sorted_indices: the sequences' numbers from long to short; None if they came so.
        unsorted_indices: where each sequence stands in that order.
    """

    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None = None
    unsorted_indices: Tensor | None = None

    def to(self, *targets: Any, **options: Any) -> PackedSequence:
        """The same with its data, and its orders, as ``data.to(...)`` has them."""
        data = self.data.to(*targets, **options)
        orders = (
            None if order is None else order.to(data.device)
            for order in (self.sorted_indices, self.unsorted_indices)
        )  # fmt: skip
        return PackedSequence(data, self.batch_sizes, *orders)

    def cpu(self) -> PackedSequence:
        """``to("cpu")``."""
        return self.to("cpu")

    def cuda(self, device: Any = None) -> PackedSequence:
        """``to("cuda")``, or to another GPU."""
        return self.to("cuda" if device is None else device)

    def double(self) -> PackedSequence:
        """``to(tc.float64)``; so do the other names of dtypes."""
        return self.to(dtypes.float64)

    def float(self) -> PackedSequence:
        """``to(tc.float32)``."""
        return self.to(dtypes.float32)

    def half(self) -> PackedSequence:
        """``to(tc.float16)``."""
        return self.to(dtypes.float16)

    def long(self) -> PackedSequence:
        """``to(tc.int64)``."""
        return self.to(dtypes.int64)

    def int(self) -> PackedSequence:
        """``to(tc.int32)``."""
        return self.to(dtypes.int32)

    def short(self) -> PackedSequence:
        """``to(tc.int16)``."""
        return self.to(dtypes.int16)

    def char(self) -> PackedSequence:
        """``to(tc.int8)``."""
        return self.to(dtypes.int8)

    def byte(self) -> PackedSequence:
        """``to(tc.uint8)``."""
        return self.to(dtypes.uint8)

    def pin_memory(self) -> PackedSequence:
        """The same with its data in pinned memory, where there is any."""
        return self._replace(data=self.data.pin_memory())

    def is_pinned(self) -> bool:
        """Whether the data are in pinned memory."""
        return bool(self.data.is_pinned())

    @property
    def is_cuda(self) -> bool:
        """Whether the data are on a GPU."""
        return bool(self.data.is_cuda)


def pad_sequence(
    sequences: Iterable[Tensor], batch_first: bool = False, padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:  # fmt: skip
    r"""Sequences as one Tensor, the short ones filled up.

    Args:
        sequences: shapes (length, \*), differing in the length only.
        batch_first: (N, T, \*) instead of (T, N, \*).
        padding_value: what they are filled up with.
        padding_side: ``right``, or ``left`` for fillings before the first element.

    Raises:
        ArgumentError: there are no sequences, or no such side.

    Example:
        >>> import tinygrad_cuda as tc
        >>> parts = [tc.tensor([1, 2, 3], device="cpu"), tc.tensor([4], device="cpu")]
        >>> pad_sequence(parts, batch_first=True).tolist()
        [[1, 2, 3], [4, 0, 0]]
    """
    given = list(sequences)
    if not given or padding_side not in ("left", "right"):
        raise ArgumentError(
            "pad_sequence", "nothing to pad, or no such side",
            expect="at least one sequence; padding_side 'left' or 'right'",
            actual=f"{len(given)} sequences; {padding_side!r}",
        )  # fmt: skip
    longest = max(part.shape[0] for part in given)
    rows = []
    for part in given:
        short = longest - part.shape[0]
        if short:
            filling = part.new_full((short, *part.shape[1:]), padding_value)
            part = cat([part, filling] if padding_side == "right" else [filling, part])
        rows.append(part)
    return stack(rows, 0 if batch_first else 1)


def unpad_sequence(
    padded_sequences: Tensor, lengths: Any, batch_first: bool = False
) -> list[Tensor]:
    """The sequences that `pad_sequence` made one Tensor of.

    Args:
        padded_sequences: shape (T, N, ...), or (N, T, ...) if batch_first.
        lengths: of each; a Tensor is read at the call.
    """
    rows = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    return [rows[row, :length] for row, length in enumerate(_numbers(lengths).tolist())]


def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Padded sequences without their padding, for RNN, LSTM and GRU.

    Args:
        input: shape (T, N, ...), or (N, T, ...) if batch_first.
        lengths: of each sequence, at least 1; a Tensor is read at the call.
        batch_first: N is the first dimension.
        enforce_sorted: the sequences come from long to short; otherwise they are sorted here.

    Raises:
        ShapeError: there is not one length for each sequence.
        ArgumentError: a length is out of range, or they should be sorted and are not.

    Example:
        >>> import tinygrad_cuda as tc
        >>> padded = tc.tensor([[1, 2, 3], [4, 0, 0]], device="cpu")
        >>> packed = pack_padded_sequence(padded, [3, 1], batch_first=True)
        >>> packed.data.tolist(), packed.batch_sizes.tolist()
        ([1, 4, 2, 3], [2, 1, 1])
    """
    op = "pack_padded_sequence"
    rows = input if batch_first else input.transpose(0, 1)
    counts = _checked(op, rows, _numbers(lengths))
    order = np.arange(len(counts)) if enforce_sorted else np.argsort(-counts, kind="stable")
    counts = counts[order]
    if np.any(counts[1:] > counts[:-1]):
        raise ArgumentError(
            op, "the lengths are not sorted", expect="from long to short",
            actual=str(counts.tolist()), hint="enforce_sorted=False sorts them",
        )  # fmt: skip
    sizes = (counts > np.arange(counts[0])[:, None]).sum(1)
    # The positions in the flattened rows, a step at a time.
    positions = np.concatenate([order[:size] * rows.shape[1] + t for t, size in enumerate(sizes)])
    data = rows.flatten(0, 1).index_select(0, tensor(positions, device=input.device))
    if enforce_sorted:
        return PackedSequence(data, tensor(sizes, device="cpu"))
    orders = (tensor(o, device=input.device) for o in (order, np.argsort(order)))
    return PackedSequence(data, tensor(sizes, device="cpu"), *orders)


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Packed sequences padded again, in the order in which they came.

    Args:
        sequence: packed.
        batch_first: (N, T, ...) instead of (T, N, ...).
        padding_value: what they are filled up with.
        total_length: T; the longest length when left out.

    Returns:
        The padded Tensor, and the lengths, int64 on the cpu.

    Raises:
        ArgumentError: total_length is less than the longest.
    """
    sizes = sequence.batch_sizes.numpy()
    steps = len(sizes) if total_length is None else total_length
    if steps < len(sizes):
        raise ArgumentError(
            "pad_packed_sequence", "total_length is too short", expect=f"at least {len(sizes)}",
            actual=str(total_length),
        )  # fmt: skip
    data, count = sequence.data, int(sizes[0])
    # Where a sequence has ended, the row after the last: the filling.
    positions = np.full((steps, count), len(data))
    starts = np.cumsum(sizes) - sizes
    for t, (start, size) in enumerate(zip(starts, sizes)):
        positions[t, :size] = np.arange(start, start + size)
    lengths = (positions < len(data)).sum(0)
    if sequence.unsorted_indices is not None:
        back = sequence.unsorted_indices.cpu().numpy()
        positions, lengths = positions[:, back], lengths[back]
    positions = positions.T if batch_first else positions
    whole = cat([data, data.new_full((1, *data.shape[1:]), padding_value)])
    flat = whole.index_select(0, tensor(positions.reshape(-1), device=data.device))
    return flat.unflatten(0, positions.shape), tensor(lengths, device="cpu")


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    r"""Sequences of shapes (length, \*) packed; see `pack_padded_sequence`."""
    lengths = [part.shape[0] for part in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences that `pack_sequence` packed."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)


def _numbers(lengths: Any) -> np.ndarray[Any, Any]:
    values = lengths.cpu().numpy() if isinstance(lengths, Tensor) else lengths
    return np.asarray(values, int64.numpy).reshape(-1)


def _checked(op: str, rows: Tensor, counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if rows.ndim < 2 or len(counts) != rows.shape[0]:
        raise ShapeError(
            op, "there is not one length for each sequence",
            expect=f"{rows.shape[0]} lengths" if rows.ndim else "two or more dimensions",
            actual=f"{len(counts)} lengths, rows of shape {tuple(rows.shape)}",
        )  # fmt: skip
    if not len(counts) or counts.min() < 1 or counts.max() > rows.shape[1]:
        raise ArgumentError(
            op, "a length is out of range", expect=f"from 1 to {rows.shape[1]}",
            actual=str(counts.tolist()),
        )  # fmt: skip
    return counts
