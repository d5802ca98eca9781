"""Dropout (Srivastava et al., 2014)."""

from __future__ import annotations

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.nn import functional
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.tensor.tensor import Tensor


class Dropout(Module):
    """While training, zeroes elements with probability `p` and scales the rest by 1 / (1 - p).

    Args:
        p: the probability of a zero.
        inplace: write to the input.

    Raises:
        ArgumentError: `p` is no probability.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ArgumentError(
                "Dropout", "p is no probability", expect="0 <= p <= 1", actual=str(p)
            )
        self.p = p
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return functional.dropout(input, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"
