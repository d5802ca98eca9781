"""Flatten and Unflatten."""

from __future__ import annotations

from collections.abc import Sequence

from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.tensors.tensor import Tensor


class Flatten(Module):
    """Merges the axes from `start_dim` to `end_dim`; by default all but the batch.

    Example:
        >>> import tinygrad_cuda as tc
        >>> Flatten()(tc.zeros(2, 3, 4, device="cpu")).shape
        Size([2, 12])
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, input: Tensor) -> Tensor:
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Splits the axis `dim` into axes of the given sizes."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        self.dim = dim
        self.unflattened_size = tuple(unflattened_size)

    def forward(self, input: Tensor) -> Tensor:
        return input.unflatten(self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
