"""Layers that resize or rearrange images: Upsample, PixelShuffle, Unfold, Fold, padding."""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.nn.functional import vision as F
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.tensors.shaping import pad
from tinygrad_cuda.tensors.tensor import Tensor
from tinygrad_cuda.tensors.windows import fold, unfold


class Upsample(Module):
    """`interpolate` with fixed arguments."""

    def __init__(
        self, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
        align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.size, self.mode = size, mode
        if isinstance(scale_factor, tuple | list):
            self.scale_factor: Any = tuple(float(factor) for factor in scale_factor)
        else:
            self.scale_factor = float(scale_factor) if scale_factor else None
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.interpolate(
            input, self.size, self.scale_factor, self.mode, self.align_corners,
            self.recompute_scale_factor,
        )  # fmt: skip

    def extra_repr(self) -> str:
        what = (
            f"size={self.size}" if self.scale_factor is None
            else f"scale_factor={self.scale_factor}"
        )  # fmt: skip
        return f"{what}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """`Upsample` with mode ``nearest``."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """`Upsample` with mode ``bilinear`` and corners aligned."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "bilinear", True)


class PixelShuffle(Module):
    """`pixel_shuffle`: channels become pixels."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """`pixel_unshuffle`: pixels become channels."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """`channel_shuffle`: channels of groups interleaved."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        return F.channel_shuffle(input, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


class Unfold(Module):
    """`unfold`: windows of images as columns."""

    def __init__(
        self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
    ) -> None:
        super().__init__()
        self.kernel_size, self.dilation = kernel_size, dilation
        self.padding, self.stride = padding, stride

    def forward(self, input: Tensor) -> Tensor:
        return unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, "
            f"stride={self.stride}"
        )


class Fold(Unfold):
    """`fold`: columns summed back to images."""

    def __init__(
        self, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0,
        stride: Any = 1,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return fold(
            input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride
        )

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, {super().extra_repr()}"


# Padding ------------------------------------------------------------------------------------


class _Pad(Module):
    rank: int
    mode: str
    value: float | None = None

    def __init__(self, padding: Any) -> None:
        super().__init__()
        self.padding = (padding,) * (2 * self.rank) if isinstance(padding, int) else tuple(padding)

    def forward(self, input: Tensor) -> Tensor:
        return pad(input, self.padding, self.mode, self.value)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ConstantPad1d(_Pad):
    """`pad` of the last axis with `value`."""

    rank, mode = 1, "constant"

    def __init__(self, padding: Any, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad2d(ConstantPad1d):
    """`pad` of the last two axes with `value`."""

    rank = 2


class ConstantPad3d(ConstantPad1d):
    """`pad` of the last three axes with `value`."""

    rank = 3


class ZeroPad1d(ConstantPad1d):
    """`pad` of the last axis with zeros."""

    def __init__(self, padding: Any) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ZeroPad2d(ZeroPad1d):
    """`pad` of the last two axes with zeros."""

    rank = 2


class ZeroPad3d(ZeroPad1d):
    """`pad` of the last three axes with zeros."""

    rank = 3


class ReflectionPad1d(_Pad):
    """`pad` of the last axis, mirrored at the border's element."""

    rank, mode = 1, "reflect"


class ReflectionPad2d(ReflectionPad1d):
    """`pad` of the last two axes, mirrored at the border's elements."""

    rank = 2


class ReplicationPad1d(_Pad):
    """`pad` of the last axis with the border's element."""

    rank, mode = 1, "replicate"


class ReplicationPad2d(ReplicationPad1d):
    """`pad` of the last two axes with the border's elements."""

    rank = 2


class CircularPad1d(_Pad):
    """`pad` of the last axis with elements from the other end."""

    rank, mode = 1, "circular"


class CircularPad2d(CircularPad1d):
    """`pad` of the last two axes with elements from the other end."""

    rank = 2


class ReflectionPad3d(ReflectionPad1d):
    """`pad` of the last three axes, mirrored at the border's elements."""

    rank = 3


class ReplicationPad3d(ReplicationPad1d):
    """`pad` of the last three axes with the border's elements."""

    rank = 3


class CircularPad3d(CircularPad1d):
    """`pad` of the last three axes with elements from the other end."""

    rank = 3


# PyTorch's names of the classes that others are made from.
_ConstantPadNd, _ReflectionPadNd = ConstantPad1d, ReflectionPad1d
_ReplicationPadNd, _CircularPadNd = ReplicationPad1d, CircularPad1d
