"""``einops.layers.tinygrad_cuda``: Rearrange, Reduce and EinMix as Modules."""

from __future__ import annotations

from typing import Any

from einops.layers import RearrangeMixin, ReduceMixin
from einops.layers._einmix import _EinmixMixin

from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.nn.parameter import Parameter
from tinygrad_cuda.tensors.creation import zeros
from tinygrad_cuda.tensors.linalg import products
from tinygrad_cuda.tensors.tensor import Tensor

__all__ = ["EinMix", "Rearrange", "Reduce"]


class Rearrange(RearrangeMixin, Module):
    """`einops.rearrange` as a layer."""

    def forward(self, input: Tensor) -> Any:
        apply: Any = self._apply_recipe
        return apply(input)


class Reduce(ReduceMixin, Module):
    """`einops.reduce` as a layer."""

    def forward(self, input: Tensor) -> Any:
        apply: Any = self._apply_recipe
        return apply(input)


class EinMix(_EinmixMixin, Module):
    """A linear map whose axes are named, see einops."""

    def _create_parameters(
        self, weight_shape: Any, weight_bound: float, bias_shape: Any, bias_bound: float
    ) -> None:
        self.weight = Parameter(zeros(*weight_shape).uniform_(-weight_bound, weight_bound))
        self.bias = None
        if bias_shape is not None:
            self.bias = Parameter(zeros(*bias_shape).uniform_(-bias_bound, bias_bound))

    def _create_rearrange_layers(
        self, pre_reshape_pattern: str | None, pre_reshape_lengths: Any,
        post_reshape_pattern: str | None, post_reshape_lengths: Any,
    ) -> None:  # fmt: skip
        self.pre_rearrange = self.post_rearrange = None
        if pre_reshape_pattern is not None:
            self.pre_rearrange = Rearrange(pre_reshape_pattern, **pre_reshape_lengths)
        if post_reshape_pattern is not None:
            self.post_rearrange = Rearrange(post_reshape_pattern, **post_reshape_lengths)

    def forward(self, input: Tensor) -> Any:
        if self.pre_rearrange is not None:
            input = self.pre_rearrange(input)
        result = products.einsum(self.einsum_pattern, input, self.weight)
        if self.bias is not None:
            result += self.bias
        return result if self.post_rearrange is None else self.post_rearrange(result)
