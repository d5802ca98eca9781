"""Dropout (Srivastava et al., 2014)."""

from __future__ import annotations

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.nn import functional
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.tensors.tensor import Tensor


class _Dropout(Module):
    """The probability, checked once."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ArgumentError(
                type(self).__name__, "p is no probability", expect="0 <= p <= 1", actual=str(p)
            )
        self.p = p
        self.inplace = inplace

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """While training, zeroes elements with probability `p` and scales the rest by 1 / (1 - p).

    Args:
        p: the probability of a zero.
        inplace: write to the input.

    Raises:
        ArgumentError: `p` is no probability.
    """

    def forward(self, input: Tensor) -> Tensor:
        return functional.dropout(input, self.p, self.training, self.inplace)


class Dropout1d(_Dropout):
    """`Dropout` of whole channels of (N, C, L)."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.dropout1d(input, self.p, self.training, self.inplace)


class Dropout2d(_Dropout):
    """`Dropout` of whole channels of (N, C, H, W)."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.dropout2d(input, self.p, self.training, self.inplace)


class Dropout3d(_Dropout):
    """`Dropout` of whole channels of (N, C, D, H, W)."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.dropout3d(input, self.p, self.training, self.inplace)


class AlphaDropout(_Dropout):
    """Dropout that keeps mean and variance of `SELU`'s outputs."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.alpha_dropout(input, self.p, self.training, self.inplace)


class FeatureAlphaDropout(_Dropout):
    """`AlphaDropout` of whole channels."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.feature_alpha_dropout(input, self.p, self.training, self.inplace)


_DropoutNd = _Dropout  # PyTorch's name, which programs import
