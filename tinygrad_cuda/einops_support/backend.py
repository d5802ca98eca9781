"""What einops does with a Tensor."""

from __future__ import annotations

from typing import Any

from einops._backends import AbstractBackend

from tinygrad_cuda.core.dtypes import int64
from tinygrad_cuda.tensors import creation, shaping
from tinygrad_cuda.tensors.linalg import products
from tinygrad_cuda.tensors.tensor import Tensor


class TinygradCudaBackend(AbstractBackend):
    """The operations of einops on Tensors; einops makes one of it at first use."""

    framework_name = "tinygrad_cuda"

    def is_appropriate_type(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor)

    def from_numpy(self, x: Any) -> Tensor:
        made = creation.tensor(x)
        return made.requires_grad_() if self.is_float_type(made) else made

    def to_numpy(self, x: Tensor) -> Any:
        return x.detach().cpu().numpy()

    def arange(self, start: int, stop: int) -> Tensor:
        return creation.arange(start, stop, dtype=int64)

    def reduce(self, x: Tensor, operation: str, reduced_axes: Any) -> Tensor:
        if operation in ("any", "all", "prod"):
            for axis in sorted(reduced_axes, reverse=True):
                x = getattr(x, operation)(axis)
            return x
        name = {"min": "amin", "max": "amax"}.get(operation, operation)
        reduced: Tensor = getattr(x, name)(tuple(reduced_axes))
        return reduced

    def transpose(self, x: Tensor, axes: Any) -> Tensor:
        return shaping.permute(x, tuple(axes))

    def stack_on_zeroth_dimension(self, tensors: list[Tensor]) -> Tensor:
        return shaping.stack(tensors)

    def add_axis(self, x: Tensor, new_position: int) -> Tensor:
        return shaping.unsqueeze(x, new_position)

    def add_axes(self, x: Tensor, n_axes: int, pos2len: dict[int, int]) -> Tensor:
        sizes = [-1] * n_axes
        for position, length in pos2len.items():
            x = shaping.unsqueeze(x, position)
            sizes[position] = length
        return shaping.expand(x, sizes)

    def tile(self, x: Tensor, repeats: Any) -> Tensor:
        return shaping.repeat(x, repeats)

    def concat(self, tensors: list[Tensor], axis: int) -> Tensor:
        return shaping.cat(tensors, axis)

    def is_float_type(self, x: Tensor) -> bool:
        return x.dtype.is_floating

    def einsum(self, pattern: str, *x: Tensor) -> Tensor:
        return products.einsum(pattern, *x)
