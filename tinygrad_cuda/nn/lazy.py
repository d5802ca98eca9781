"""Layers that learn the size of their input from the first one that they see.

A lazy layer becomes the ordinary one; its Parameters stay the same objects.
"""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.nn import conv, linear, normalization
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy
from tinygrad_cuda.tensors.tensor import Tensor


class LazyModuleMixin(Module):
    """What lazy layers share: they wait for a first input, or for a state to load.

    Attributes:
        cls_to_become: the class of the layer once it has its sizes.
    """

    cls_to_become: type[Module]
    _waits = False  # not while the ordinary layer's constructor runs

    def _wait(self, device: Any, dtype: Any) -> None:
        """Replaces the layer's parameters and buffers by uninitialized ones."""
        own = {"device": device, "dtype": dtype}
        for name, parameter in self._parameters.items():
            if parameter is not None:
                self._parameters[name] = UninitializedParameter(**own)
        for name, buffer in self._buffers.items():
            if buffer is not None and buffer.ndim:
                self._buffers[name] = UninitializedBuffer(**own)
        self._waits = True
        self.register_load_state_dict_pre_hook(_take_shapes)

    def has_uninitialized_params(self) -> bool:
        """Whether some parameter or buffer has no shape yet."""
        return any(is_lazy(v) for v in (*self._parameters.values(), *self._buffers.values()))

    def reset_parameters(self) -> None:
        """Draws new values, once there are sizes."""
        if self._waits and not self.has_uninitialized_params():
            self.cls_to_become.reset_parameters(self)  # type: ignore[attr-defined]

    def initialize_parameters(self, input: Tensor) -> None:
        """Gives parameters and buffers the shapes that fit `input`, and draws their values."""
        waiting = self.has_uninitialized_params()
        shapes = self._shapes(input)
        for name, value in (*self._parameters.items(), *self._buffers.items()):
            if is_lazy(value):
                value.materialize(shapes[name])
        if waiting:
            self.reset_parameters()

    def _shapes(self, input: Tensor) -> dict[str, tuple[int, ...]]:
        """Sets the sizes from `input`, and returns the shape of each value by name."""
        raise NotImplementedError(type(self).__name__)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        self.initialize_parameters(*inputs, **options)
        hooks = self._state_hooks["load_pre"]
        for number in [number for number, hook in hooks.items() if hook is _take_shapes]:
            del hooks[number]
        del self._waits
        self.__class__ = self.cls_to_become  # type: ignore[assignment]
        return self(*inputs, **options)


def _take_shapes(module: LazyModuleMixin, state: Any, prefix: str, *_: Any) -> None:
    """Before a state is loaded: values that have no shape yet take that of the state."""
    for name, value in (*module._parameters.items(), *module._buffers.items()):
        given = state.get(prefix + name)
        if is_lazy(value) and given is not None:
            value.materialize(tuple(given.shape))


# Linear -------------------------------------------------------------------------------------


class LazyLinear(LazyModuleMixin, linear.Linear):
    """`Linear` that takes in_features from its first input.

    Example:
        >>> import tinygrad_cuda as tc
        >>> layer = LazyLinear(2, device="cpu")
        >>> layer(tc.ones(5, 3, device="cpu")).shape, layer
        (Size([5, 2]), Linear(in_features=3, out_features=2, bias=True))
    """

    cls_to_become = linear.Linear

    def __init__(
        self, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        linear.Linear.__init__(self, 0, out_features, bias, device, dtype)
        self._wait(device, dtype)

    def _shapes(self, input: Tensor) -> dict[str, tuple[int, ...]]:
        self.in_features = input.shape[-1]
        return {"weight": (self.out_features, self.in_features), "bias": (self.out_features,)}


# Convolutions -------------------------------------------------------------------------------


class _LazyConv(LazyModuleMixin, conv._Conv):
    def _shapes(self, input: Tensor) -> dict[str, tuple[int, ...]]:
        name, rank, groups = type(self).__name__, self.rank, self.groups
        if input.ndim not in (rank + 1, rank + 2):
            raise ShapeError(
                name, "the number of dimensions does not fit", expect=f"{rank + 1} or {rank + 2}",
                actual=str(tuple(input.shape)),
            )  # fmt: skip
        channels, outputs = input.shape[-rank - 1], self.out_channels
        if channels % groups:
            raise ArgumentError(
                name, "groups must divide the channels", expect=f"a divisor of {channels}",
                actual=str(groups),
            )  # fmt: skip
        self.in_channels = channels
        ends = (
            (channels, outputs // groups) if self.transposed else (outputs, channels // groups)
        )  # fmt: skip
        return {"weight": (*ends, *self.kernel_size), "bias": (outputs,)}


class _LazyForward(_LazyConv, conv._Forward):
    def __init__(
        self, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1, bias: bool = True, padding_mode: str = "zeros",
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        conv._Forward.__init__(
            self, groups, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode, device, dtype,
        )  # fmt: skip
        self.in_channels = 0
        self._wait(device, dtype)


class _LazyTransposed(_LazyConv, conv._Transposed):
    def __init__(
        self, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0,
        output_padding: Any = 0, groups: int = 1, bias: bool = True, dilation: Any = 1,
        padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        conv._Transposed.__init__(
            self, groups, out_channels, kernel_size, stride, padding, output_padding, groups, bias,
            dilation, padding_mode, device, dtype,
        )  # fmt: skip
        self.in_channels = 0
        self._wait(device, dtype)


class LazyConv1d(_LazyForward, conv.Conv1d):
    """`Conv1d` that takes in_channels from its first input."""

    cls_to_become = conv.Conv1d


class LazyConv2d(_LazyForward, conv.Conv2d):
    """`Conv2d` that takes in_channels from its first input."""

    cls_to_become = conv.Conv2d


class LazyConv3d(_LazyForward, conv.Conv3d):
    """`Conv3d` that takes in_channels from its first input."""

    cls_to_become = conv.Conv3d


class LazyConvTranspose1d(_LazyTransposed, conv.ConvTranspose1d):
    """`ConvTranspose1d` that takes in_channels from its first input."""

    cls_to_become = conv.ConvTranspose1d


class LazyConvTranspose2d(_LazyTransposed, conv.ConvTranspose2d):
    """`ConvTranspose2d` that takes in_channels from its first input."""

    cls_to_become = conv.ConvTranspose2d


class LazyConvTranspose3d(_LazyTransposed, conv.ConvTranspose3d):
    """`ConvTranspose3d` that takes in_channels from its first input."""

    cls_to_become = conv.ConvTranspose3d


# Normalization ------------------------------------------------------------------------------


class _LazyNorm(LazyModuleMixin, normalization._Norm):
    def _shapes(self, input: Tensor) -> dict[str, tuple[int, ...]]:
        self._check_input_dim(input)
        single = len(self.dims) > 1 and isinstance(self, normalization._InstanceNorm)
        axis = 0 if single and input.ndim == min(self.dims) else 1
        self.num_features = input.shape[axis]
        names = ("weight", "bias", "running_mean", "running_var")
        return dict.fromkeys(names, (self.num_features,))


class _LazyBatchNorm(_LazyNorm, normalization._BatchNorm):
    def __init__(
        self, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, device: Any = None, dtype: Any = None, *,
        bias: bool = True,
    ) -> None:  # fmt: skip
        normalization._BatchNorm.__init__(
            self, 0, eps, momentum, affine, track_running_stats, device, dtype, bias=bias
        )
        self._wait(device, dtype)


class _LazyInstanceNorm(_LazyNorm, normalization._InstanceNorm):
    def __init__(
        self, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True,
        track_running_stats: bool = True, device: Any = None, dtype: Any = None, *,
        bias: bool = True,
    ) -> None:  # fmt: skip
        normalization._InstanceNorm.__init__(
            self, 0, eps, momentum, affine, track_running_stats, device, dtype, bias=bias
        )
        self._wait(device, dtype)


class LazyBatchNorm1d(_LazyBatchNorm, normalization.BatchNorm1d):
    """`BatchNorm1d` that takes num_features from its first input."""

    cls_to_become = normalization.BatchNorm1d


class LazyBatchNorm2d(_LazyBatchNorm, normalization.BatchNorm2d):
    """`BatchNorm2d` that takes num_features from its first input."""

    cls_to_become = normalization.BatchNorm2d


class LazyBatchNorm3d(_LazyBatchNorm, normalization.BatchNorm3d):
    """`BatchNorm3d` that takes num_features from its first input."""

    cls_to_become = normalization.BatchNorm3d


class LazyInstanceNorm1d(_LazyInstanceNorm, normalization.InstanceNorm1d):
    """`InstanceNorm1d` that takes num_features from its first input."""

    cls_to_become = normalization.InstanceNorm1d


class LazyInstanceNorm2d(_LazyInstanceNorm, normalization.InstanceNorm2d):
    """`InstanceNorm2d` that takes num_features from its first input."""

    cls_to_become = normalization.InstanceNorm2d


class LazyInstanceNorm3d(_LazyInstanceNorm, normalization.InstanceNorm3d):
    """`InstanceNorm3d` that takes num_features from its first input."""

    cls_to_become = normalization.InstanceNorm3d
