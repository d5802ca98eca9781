"""Convolution layers and their transposes."""

from __future__ import annotations

import math
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.nn import init
from tinygrad_cuda.nn.functional import convolutions as F
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.nn.parameter import Parameter
from tinygrad_cuda.nn.windows import per_axis
from tinygrad_cuda.tensors.creation import empty
from tinygrad_cuda.tensors.shaping import pad
from tinygrad_cuda.tensors.tensor import Tensor

_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate",
          "circular": "circular"}  # fmt: skip


class _Conv(Module):
    """What all of them share: the arguments, the parameters and their first values."""

    rank: int
    padding: Any
    transposed = False
    weight: Parameter
    bias: Parameter | None

    def _setup(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any, padding: Any,
        dilation: Any, groups: int, bias: bool, padding_mode: str, device: Any, dtype: Any,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ArgumentError(
                name,
                "groups must divide the channels",
                expect="in_channels and out_channels divisible by groups",
                actual=f"{in_channels} and {out_channels} by {groups}",
            )
        if padding_mode not in _MODES or (self.transposed and padding_mode != "zeros"):
            raise ArgumentError(
                name,
                "unknown padding_mode",
                expect="'zeros'" if self.transposed else ", ".join(map(repr, _MODES)),
                actual=repr(padding_mode),
            )
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size = per_axis(name, "kernel_size", kernel_size, self.rank, 1)
        self.stride = per_axis(name, "stride", stride, self.rank, 1)
        self.padding = (
            padding if isinstance(padding, str) else per_axis(name, "padding", padding, self.rank)
        )
        self.dilation = per_axis(name, "dilation", dilation, self.rank, 1)
        self.groups, self.padding_mode = groups, padding_mode
        ends = (
            (in_channels, out_channels // groups) if self.transposed
            else (out_channels, in_channels // groups)
        )  # fmt: skip
        self.weight = Parameter(empty(*ends, *self.kernel_size, device=device, dtype=dtype))
        if bias:
            self.bias = Parameter(empty(out_channels, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new values from U(-k, k) with ``k = 1 / sqrt(inputs of an output)``."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in = math.prod(self.weight.shape[1:])
            bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
            init.uniform_(self.bias, -bound, bound)

    def _extended(self, input: Tensor) -> Tensor:
        """The input with its borders, where they are not zeros."""
        pads = F.padding_pairs(
            type(self).__name__, self.padding, self.kernel_size, self.stride, self.dilation
        )
        return pad(input, F.stretched(pads), _MODES[self.padding_mode])

    @property
    def _reversed_padding_repeated_twice(self) -> list[int]:
        """Both ends of each axis, the last axis first, as `nn.functional.pad` takes them."""
        pads = F.padding_pairs(
            type(self).__name__, self.padding, self.kernel_size, self.stride, self.dilation
        )
        return list(F.stretched(pads))

    def extra_repr(self) -> str:
        text = (f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
                f"stride={self.stride}")  # fmt: skip
        nothing = (0,) * self.rank
        if self.padding != nothing:
            text += f", padding={self.padding}"
        if self.dilation != (1,) * self.rank:
            text += f", dilation={self.dilation}"
        if getattr(self, "output_padding", nothing) != nothing:
            text += f", output_padding={self.output_padding}"
        text += f", groups={self.groups}" if self.groups != 1 else ""
        text += ", bias=False" if self.bias is None else ""
        if self.padding_mode != "zeros":
            text += f", padding_mode={self.padding_mode}"
        return text


class _Forward(_Conv):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1,
        padding: Any = 0, dilation: Any = 1, groups: int = 1, bias: bool = True,
        padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._setup(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode, device, dtype,
        )  # fmt: skip
        self.output_padding = (0,) * self.rank

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, self.weight, self.bias)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution with another weight and bias; subclasses call it, as in PyTorch."""
        padding = self.padding
        if self.padding_mode != "zeros":
            input, padding = self._extended(input), 0
        convolve = (F.conv1d, F.conv2d, F.conv3d)[self.rank - 1]
        return convolve(input, weight, bias, self.stride, padding, self.dilation, self.groups)


class Conv1d(_Forward):
    """`conv1d` with a weight (O, C / groups, K) and a bias (O,) of its own; see `Conv2d`."""

    rank = 1


class Conv2d(_Forward):
    """`conv2d` with a weight (O, C / groups, K, L) and a bias (O,) of its own.

    Args:
        in_channels, out_channels: C and O.
        kernel_size, stride, padding, dilation: an integer or one for each axis; padding may be
            ``"same"`` or ``"valid"``.
        groups: channels fall into so many groups, each convolved by itself.
        bias: whether there is one.
        padding_mode: ``zeros``, ``reflect``, ``replicate`` or ``circular``.
        device, dtype: of the parameters.

    Where and with what errors large 3 x 3 kernels are summed by tiles, see `conv2d`.

    Raises:
        ArgumentError: groups does not divide the channels, or an argument is out of range.

    Example:
        >>> import tinygrad_cuda as tc
        >>> layer = Conv2d(1, 6, 5, padding=2, device="cpu")
        >>> layer, layer(tc.zeros(8, 1, 28, 28, device="cpu")).shape
        (Conv2d(1, 6, kernel_size=(5, 5), stride=(1, 1), padding=(2, 2)), Size([8, 6, 28, 28]))
    """

    rank = 2


class Conv3d(_Forward):
    """`conv3d` with a weight (O, C / groups, K, L, M) and a bias (O,) of its own; see `Conv2d`."""

    rank = 3


class _Transposed(_Conv):
    transposed = True

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1,
        padding: Any = 0, output_padding: Any = 0, groups: int = 1, bias: bool = True,
        dilation: Any = 1, padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.output_padding = per_axis(
            type(self).__name__, "output_padding", output_padding, self.rank
        )
        self._setup(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode, device, dtype,
        )  # fmt: skip

    def _enlarge(self, function: Any, input: Tensor, output_size: Any) -> Tensor:
        extra = self.output_padding
        if output_size is not None:
            wanted = tuple(output_size)[-self.rank :]
            least = [
                (n - 1) * s - 2 * p + d * (k - 1) + 1
                for n, s, p, d, k in zip(
                    input.shape[-self.rank :], self.stride, self.padding, self.dilation,
                    self.kernel_size,
                )
            ]  # fmt: skip
            extra = per_axis(
                type(self).__name__, "output_size", tuple(a - b for a, b in zip(wanted, least)),
                self.rank,
            )  # fmt: skip
        result: Tensor = function(
            input, self.weight, self.bias, self.stride, self.padding, extra, self.groups,
            self.dilation,
        )  # fmt: skip
        return result


class ConvTranspose1d(_Transposed):
    """`conv_transpose1d` with a weight (C, O / groups, K) and a bias (O,) of its own."""

    rank = 1

    def forward(self, input: Tensor, output_size: Any = None) -> Tensor:
        return self._enlarge(F.conv_transpose1d, input, output_size)


class ConvTranspose2d(_Transposed):
    """`conv_transpose2d` with a weight (C, O / groups, K, L) and a bias (O,) of its own."""

    rank = 2

    def forward(self, input: Tensor, output_size: Any = None) -> Tensor:
        return self._enlarge(F.conv_transpose2d, input, output_size)


class ConvTranspose3d(_Transposed):
    """`conv_transpose3d` with a weight (C, O / groups, K, L, M) and a bias (O,) of its own."""

    rank = 3

    def forward(self, input: Tensor, output_size: Any = None) -> Tensor:
        return self._enlarge(F.conv_transpose3d, input, output_size)


_ConvNd, _ConvTransposeNd = _Conv, _Transposed  # PyTorch's names, which programs import
