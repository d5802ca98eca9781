"""Pooling layers; the functions themselves stand in `nn.functional`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.nn.functional import pooling, sampling
from tinygrad_cuda.nn.functional import pooling as F
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.tensors.tensor import Tensor


class _MaxPool(Module):
    _function: Callable[..., Any]

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        return_indices: bool = False, ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Any:
        return type(self)._function(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode,
            self.return_indices,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """`max_pool1d`: the largest element of windows of (N, C, L)."""

    _function = staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPool):
    """`max_pool2d`: the largest element of windows of (N, C, H, W).

    Example:
        >>> import tinygrad_cuda as tc
        >>> MaxPool2d(2)(tc.zeros(1, 3, 8, 6, device="cpu")).shape
        Size([1, 3, 4, 3])
    """

    _function = staticmethod(F.max_pool2d)


class MaxPool3d(_MaxPool):
    """`max_pool3d`: the largest element of windows of (N, C, D, H, W)."""

    _function = staticmethod(F.max_pool3d)


def _each(value: Any, rank: int) -> tuple[Any, ...]:
    """One for each axis, as `repr` shows them."""
    return tuple(value) if isinstance(value, tuple | list) else (value,) * rank


class AvgPool1d(Module):
    """`avg_pool1d`: the mean of windows of (N, C, L)."""

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size: Any = _each(kernel_size, 1)
        self.padding: Any = _each(padding, 1)
        self.stride: Any = self.kernel_size if stride is None else _each(stride, 1)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool1d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
            self.count_include_pad,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(AvgPool1d):
    """`avg_pool2d`: the mean of windows of (N, C, H, W)."""

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)
        self.kernel_size, self.padding = kernel_size, padding
        self.stride = kernel_size if stride is None else stride
        self.divisor_override = divisor_override

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool2d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
            self.count_include_pad, self.divisor_override,
        )  # fmt: skip


class AvgPool3d(AvgPool2d):
    """`avg_pool3d`: the mean of windows of (N, C, D, H, W)."""

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool3d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
            self.count_include_pad, self.divisor_override,
        )  # fmt: skip


class LPPool1d(Module):
    """`lp_pool1d`: ``(sum x ** p) ** (1 / p)`` of windows of (N, C, L)."""

    _function: Callable[..., Tensor] = staticmethod(F.lp_pool1d)

    def __init__(
        self, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
    ) -> None:
        super().__init__()
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = stride
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        return type(self)._function(
            input, self.norm_type, self.kernel_size, self.stride, self.ceil_mode
        )

    def extra_repr(self) -> str:
        return (
            f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"ceil_mode={self.ceil_mode}"
        )


class LPPool2d(LPPool1d):
    """`lp_pool2d`: ``(sum x ** p) ** (1 / p)`` of windows of (N, C, H, W)."""

    _function = staticmethod(F.lp_pool2d)


class _Adaptive(Module):
    _function: Callable[..., Any]

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Any:
        return type(self)._function(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class _AdaptiveAvgPoolNd(_Adaptive):
    """Means, of any number of axes."""


class AdaptiveAvgPool1d(_AdaptiveAvgPoolNd):
    """`adaptive_avg_pool1d`: means of `output_size` windows."""

    _function = staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptiveAvgPoolNd):
    """`adaptive_avg_pool2d`: means of `output_size` windows along each axis."""

    _function = staticmethod(F.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_AdaptiveAvgPoolNd):
    """`adaptive_avg_pool3d`: means of `output_size` windows along each axis."""

    _function = staticmethod(F.adaptive_avg_pool3d)


class AdaptiveMaxPool1d(_Adaptive):
    """`adaptive_max_pool1d`: the largest elements of `output_size` windows."""

    _function = staticmethod(F.adaptive_max_pool1d)

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Any:
        return type(self)._function(input, self.output_size, self.return_indices)


class AdaptiveMaxPool2d(AdaptiveMaxPool1d):
    """`adaptive_max_pool2d`: the largest elements of `output_size` windows along each axis."""

    _function = staticmethod(F.adaptive_max_pool2d)


class MaxUnpool1d(Module):
    """`max_unpool1d`: values at the indices from `MaxPool1d`."""

    rank = 1
    _function: Callable[..., Tensor] = staticmethod(sampling.max_unpool1d)

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        super().__init__()
        self.kernel_size, self.padding = _each(kernel_size, self.rank), _each(padding, self.rank)
        self.stride = self.kernel_size if stride is None else _each(stride, self.rank)

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        return type(self)._function(
            input, indices, self.kernel_size, self.stride, self.padding, output_size
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool2d(MaxUnpool1d):
    """`max_unpool2d`: values at the indices from `MaxPool2d`."""

    rank = 2
    _function = staticmethod(sampling.max_unpool2d)


class MaxUnpool3d(MaxUnpool1d):
    """`max_unpool3d`: values at the indices from `MaxPool3d`."""

    rank = 3
    _function = staticmethod(sampling.max_unpool3d)


class AdaptiveMaxPool3d(AdaptiveMaxPool1d):
    """`adaptive_max_pool3d`: the largest elements of `output_size` windows along each axis."""

    _function = staticmethod(F.adaptive_max_pool3d)


class LPPool3d(LPPool1d):
    """`lp_pool3d`: ``(sum x ** p) ** (1 / p)`` of windows of (N, C, D, H, W)."""

    _function = staticmethod(F.lp_pool3d)


class FractionalMaxPool2d(Module):
    """`fractional_max_pool2d`: the largest elements of windows a random step apart.

    Args:
        kernel_size: of the windows.
        output_size: how many along each axis; or
        output_ratio: a part of the input's size, between 0 and 1.
        return_indices: also return positions.

    Raises:
        ArgumentError: not one of output_size and output_ratio, or a ratio is out of range.
    """

    rank = 2
    _function: Callable[..., Any] = staticmethod(pooling.fractional_max_pool2d)

    def __init__(
        self, kernel_size: Any, output_size: Any = None, output_ratio: Any = None,
        return_indices: bool = False, _random_samples: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        if (output_size is None) == (output_ratio is None):
            raise ArgumentError(
                name, "needs one of two", expect="output_size or output_ratio",
                actual="neither" if output_size is None else "both",
            )  # fmt: skip

        def per(value: Any) -> Any:
            several = value is None or isinstance(value, tuple | list)
            return value if several else (value,) * self.rank

        self.kernel_size, self.return_indices = per(kernel_size), return_indices
        self.output_size, self.output_ratio = per(output_size), per(output_ratio)
        if not all(0 < ratio < 1 for ratio in self.output_ratio or ()):
            raise ArgumentError(
                name, "a ratio is out of range", expect="0 < output_ratio < 1",
                actual=str(output_ratio),
            )  # fmt: skip
        self.register_buffer("_random_samples", _random_samples)

    def forward(self, input: Tensor) -> Any:
        return self._function(
            input, self.kernel_size, self.output_size, self.output_ratio, self.return_indices,
            _random_samples=self._random_samples,
        )  # fmt: skip


class FractionalMaxPool3d(FractionalMaxPool2d):
    """`FractionalMaxPool2d` over three axes."""

    rank = 3
    _function = staticmethod(pooling.fractional_max_pool3d)


_MaxPoolNd = _MaxPool  # PyTorch's name, which programs import


# PyTorch's names of the classes that others are made from.
_AvgPoolNd, _LPPoolNd = AvgPool1d, LPPool1d
_AdaptiveMaxPoolNd, _MaxUnpoolNd = AdaptiveMaxPool1d, MaxUnpool1d
