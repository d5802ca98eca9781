"""Linear, Bilinear and Identity."""

from __future__ import annotations

import math
from typing import Any

from tinygrad_cuda.nn import functional, init
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.nn.parameter import Parameter
from tinygrad_cuda.tensors.creation import empty
from tinygrad_cuda.tensors.tensor import Tensor


class Identity(Module):
    """Returns its input; takes and ignores any arguments."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__()

    def forward(self, input: Any) -> Any:
        return input


class Linear(Module):
    r"""``y = x W.T + b``.

    Args:
        in_features: size of the last axis of the input.
        out_features: size of the last axis of the output.
        bias: whether there is a b.
        device, dtype: of the parameters.

    Attributes:
        weight: shape (out_features, in_features), drawn from U(-k, k), :math:`k = 1/\sqrt{in}`.
        bias: shape (out_features,), drawn likewise, or None.

    Example:
        >>> import tinygrad_cuda as tc
        >>> layer = Linear(3, 2, device="cpu")
        >>> layer, layer(tc.ones(5, 3, device="cpu")).shape
        (Linear(in_features=3, out_features=2, bias=True), Size([5, 2]))
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = Parameter(empty(out_features, in_features, device=device, dtype=dtype))
        self.bias = Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None
        if self.bias is None:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new values."""
        # With a = sqrt(5) the bound of kaiming_uniform_ is 1 / sqrt(in_features).
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class NonDynamicallyQuantizableLinear(Linear):
    """`Linear`, under the name of the class that PyTorch's `MultiheadAttention` ends in."""


class Bilinear(Module):
    """``y[o] = x1 W[o] x2 + b[o]``.

    Args:
        in1_features, in2_features, out_features: sizes of the last axes.
        bias: whether there is a b.
        device, dtype: of the parameters.
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in1_features, self.in2_features = in1_features, in2_features
        self.out_features = out_features
        shape = (out_features, in1_features, in2_features)
        self.weight = Parameter(empty(*shape, device=device, dtype=dtype))
        value = Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", value)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new values from U(-k, k), ``k = 1 / sqrt(in1_features)``."""
        bound = 1 / math.sqrt(self.in1_features)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return functional.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )
