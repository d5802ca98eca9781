"""Fractional max pooling (Graham, 2014): windows a random step apart, as many as are asked for."""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.core.dtypes import int64
from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.nn.windows import per_axis
from tinygrad_cuda.tensors.creation import arange
from tinygrad_cuda.tensors.joining import cat
from tinygrad_cuda.tensors.random import rand
from tinygrad_cuda.tensors.tensor import Tensor


def _starts(sample: Tensor, size: int, count: int, kernel: int) -> Tensor:
    """Where the windows of an axis begin, shape (N, C, count); the last one ends at the end."""
    last: Tensor = sample.new_full((*sample.shape, 1), size - kernel).to(int64)
    if count == 1:
        return last
    step = (size - kernel) / (count - 1)
    places = arange(count - 1, device=sample.device).to(sample.dtype)
    shift = sample.unsqueeze(-1)
    # Both cut to integers, as Graham and PyTorch do.
    first = ((places + shift) * step).to(int64) - (shift * step).to(int64)
    return cat([first, last], -1)


def _pool(
    rank: int, input: Tensor, kernel_size: Any, output_size: Any, output_ratio: Any,
    return_indices: bool, samples: Tensor | None,
) -> Any:  # fmt: skip
    op = f"fractional_max_pool{rank}d"
    if input.ndim not in (rank + 1, rank + 2):
        raise ShapeError(
            op, "the number of dimensions does not fit",
            expect=f"{rank + 2} (or {rank + 1}) dimensions", actual=str(tuple(input.shape)),
        )  # fmt: skip
    sizes = tuple(input.shape[input.ndim - rank :])
    kernel = per_axis(op, "kernel_size", kernel_size, rank, 1)
    if output_size is None:
        if output_ratio is None:
            raise ArgumentError(
                op, "the size is not given", expect="output_size or output_ratio", actual="neither"
            )
        given = output_ratio if isinstance(output_ratio, tuple | list) else (output_ratio,) * rank
        output_size = tuple(int(size * ratio) for size, ratio in zip(sizes, given))
    counts = per_axis(op, "output_size", output_size, rank, 1)
    if any(n + k - 1 > size for n, k, size in zip(counts, kernel, sizes)):
        raise ShapeError(
            op, "the windows do not fit", expect=f"output_size + kernel_size - 1 within {sizes}",
            actual=f"{counts} windows of {kernel}",
        )  # fmt: skip
    planes = tuple(input.shape[: input.ndim - rank])
    if samples is None:
        samples = rand(*planes, rank, dtype=input.dtype, device=input.device)
    elif len(planes) < 2:
        samples = samples[0]  # the others are PyTorch's for the rest of a batch
    samples = samples.reshape(*planes, rank)
    # A number of the flattened plane for each element of each window; PyTorch's samples for two
    # axes come the last axis first.
    order = range(rank) if rank == 3 else reversed(range(rank))
    flat: Any = 0
    for axis, number in enumerate(order):
        begin = _starts(samples[..., number], sizes[axis], counts[axis], kernel[axis])
        inside = begin.unsqueeze(-1) + arange(kernel[axis], device=input.device)
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = counts[axis], kernel[axis]
        flat = flat * sizes[axis] + inside.reshape(*planes, *shape)
    places = flat.flatten(len(planes) + rank)
    seen = input.flatten(len(planes)).gather(-1, places.flatten(len(planes)))
    values, chosen = seen.reshape(places.shape).max(-1)
    if not return_indices:
        return values
    return values, places.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)


def fractional_max_pool2d(
    input: Tensor, kernel_size: Any, output_size: Any = None, output_ratio: Any = None,
    return_indices: bool = False, _random_samples: Tensor | None = None,
) -> Any:  # fmt: skip
    """The largest elements of windows that begin a random fraction apart.

    Args:
        input: shape (N, C, H, W) or (C, H, W).
        kernel_size: of the windows, which may overlap.
        output_size: how many windows along each axis.
        output_ratio: the same as a part of the input's size, between 0 and 1.
        return_indices: also return the positions, in each flattened plane of the input.

    Raises:
        ArgumentError: neither output_size nor output_ratio is given.
        ShapeError: so many windows do not fit.

    Example:
        >>> import tinygrad_cuda as tc
        >>> fractional_max_pool2d(tc.rand(1, 2, 9, 9, device="cpu"), 2, output_ratio=0.6).shape
        Size([1, 2, 5, 5])
    """
    return _pool(
        2, input, kernel_size, output_size, output_ratio, return_indices, _random_samples
    )  # fmt: skip


def fractional_max_pool3d(
    input: Tensor, kernel_size: Any, output_size: Any = None, output_ratio: Any = None,
    return_indices: bool = False, _random_samples: Tensor | None = None,
) -> Any:  # fmt: skip
    """`fractional_max_pool2d` over three axes."""
    return _pool(
        3, input, kernel_size, output_size, output_ratio, return_indices, _random_samples
    )  # fmt: skip


def fractional_max_pool2d_with_indices(
    input: Tensor, kernel_size: Any, output_size: Any = None, output_ratio: Any = None,
    return_indices: bool = False, _random_samples: Tensor | None = None,
) -> Any:  # fmt: skip
    """`fractional_max_pool2d` and the positions, whatever `return_indices` says."""
    return _pool(2, input, kernel_size, output_size, output_ratio, True, _random_samples)


def fractional_max_pool3d_with_indices(
    input: Tensor, kernel_size: Any, output_size: Any = None, output_ratio: Any = None,
    return_indices: bool = False, _random_samples: Tensor | None = None,
) -> Any:  # fmt: skip
    """`fractional_max_pool3d` and the positions, whatever `return_indices` says."""
    return _pool(3, input, kernel_size, output_size, output_ratio, True, _random_samples)
