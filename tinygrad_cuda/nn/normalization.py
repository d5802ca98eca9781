"""Normalization layers; the functions themselves stand in `nn.functional`."""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.core.dtypes import int64
from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.nn import init
from tinygrad_cuda.nn.functional import normalizations as F
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.nn.parameter import Parameter
from tinygrad_cuda.tensors.creation import empty, ones, zeros
from tinygrad_cuda.tensors.tensor import Tensor


class _Norm(Module):
    """Scale, shift and running values of each channel."""

    dims: tuple[int, ...]
    weight: Parameter | None
    bias: Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    _version = 2  # with num_batches_tracked

    def __init__(
        self, num_features: int, eps: float, momentum: float | None, affine: bool,
        track_running_stats: bool, device: Any, dtype: Any, bias: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        for name, wanted in (("weight", affine), ("bias", affine and bias)):
            value = empty(num_features, device=device, dtype=dtype) if wanted else None
            self.register_parameter(name, None if value is None else Parameter(value))
        tracked = track_running_stats
        mean = zeros(num_features, device=device, dtype=dtype) if tracked else None
        variance = ones(num_features, device=device, dtype=dtype) if tracked else None
        self.register_buffer("running_mean", mean)
        self.register_buffer("running_var", variance)
        self.register_buffer(
            "num_batches_tracked", zeros((), device=device, dtype=int64) if tracked else None
        )
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Running mean 0, variance 1, no batch seen; nothing while they are not tracked."""
        if not self.track_running_stats:
            return
        with gradient_mode(False):
            for buffer, value in (
                (self.running_mean, 0), (self.running_var, 1), (self.num_batches_tracked, 0)
            ):  # fmt: skip
                if buffer is not None:
                    buffer.fill_(value)

    def reset_parameters(self) -> None:
        """Scale 1, shift 0, and the running values of the beginning."""
        self.reset_running_stats()
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def _complete_state(self, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        """States of version 1, and those without versions, may lack the number of batches."""
        if self.num_batches_tracked is not None and metadata.get("version", 1) < 2:
            state.setdefault(prefix + "num_batches_tracked", self.num_batches_tracked.detach())

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim not in self.dims:
            raise ShapeError(
                type(self).__name__,
                "the number of dimensions does not fit",
                expect=" or ".join(map(str, self.dims)),
                actual=f"{input.ndim}, input {tuple(input.shape)}",
            )

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, bias={self.bias is not None}, "
            f"track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_Norm):
    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
        affine: bool = True, track_running_stats: bool = True, device: Any = None,
        dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias
        )

    def _tracks(self) -> bool:
        """Whether this call averages into the running values."""
        return self.training and self.track_running_stats

    def _factor(self) -> Any:
        """The share of this batch in the running values; counts the batch."""
        if not self._tracks() or self.num_batches_tracked is None:
            return 0.0 if self.momentum is None else self.momentum
        with gradient_mode(False):
            self.num_batches_tracked.add_(1)
            if self.momentum is not None:
                return self.momentum
            assert self.running_mean is not None
            return 1.0 / self.num_batches_tracked.to(self.running_mean.dtype)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        if self.training:  # before the batch is counted
            F.check_channels(
                "batch_norm", input, running_mean=self.running_mean, weight=self.weight
            )
        factor = self._factor()
        of_batch = self.training or self.running_mean is None
        mean, variance = self.running_mean, self.running_var
        if self.training and not self.track_running_stats:
            mean = variance = None
        return F.batch_norm(
            input, mean, variance, self.weight, self.bias, of_batch, factor, self.eps
        )


class BatchNorm1d(_BatchNorm):
    """`batch_norm` of (N, C) or (N, C, L); see `BatchNorm2d`."""

    dims = (2, 3)


class BatchNorm2d(_BatchNorm):
    r"""`batch_norm` of (N, C, H, W) with a scale and a shift for each channel.

    While training, the moments of the batch are used and averaged into the running values, which
    `eval()` makes it use.

    Args:
        num_features: C.
        eps: added to the variance.
        momentum: the share of a batch in the running values; None for the plain average.
        affine: whether there are a weight and, unless `bias` is false, a bias.
        track_running_stats: whether there are running values; without, every batch uses its own.
        device, dtype: of parameters and buffers.

    Example:
        >>> import tinygrad_cuda as tc
        >>> layer = BatchNorm2d(3, device="cpu")
        >>> layer(tc.rand(4, 3, 5, 5, device="cpu")).shape, list(layer.state_dict())[2:]
        (Size([4, 3, 5, 5]), ['running_mean', 'running_var', 'num_batches_tracked'])
    """

    dims = (4,)


class BatchNorm3d(_BatchNorm):
    """`batch_norm` of (N, C, D, H, W); see `BatchNorm2d`."""

    dims = (5,)


class SyncBatchNorm(_BatchNorm):
    """`BatchNorm2d` of any number of dimensions; the one process sees the whole batch.

    Args:
        num_features, eps, momentum, affine, track_running_stats: as of `BatchNorm2d`.
        process_group: accepted as in PyTorch.
        device, dtype: of parameters and buffers.
    """

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
        affine: bool = True, track_running_stats: bool = True, process_group: Any = None,
        device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias
        )
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ShapeError(
                "SyncBatchNorm", "the number of dimensions does not fit", expect="at least 2",
                actual=f"{input.ndim}, input {tuple(input.shape)}",
            )  # fmt: skip

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """The module, with every batch norm in it as a SyncBatchNorm of the same Tensors."""
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            made = cls(
                module.num_features, module.eps, module.momentum, module.affine,
                module.track_running_stats, process_group, bias=module.bias is not None,
            )  # fmt: skip
            for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
                setattr(made, name, getattr(module, name))
            return made.train(module.training)
        for name, child in module.named_children():
            setattr(module, name, cls.convert_sync_batchnorm(child, process_group))
        return module


class _InstanceNorm(_Norm):
    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
        track_running_stats: bool = False, device: Any = None, dtype: Any = None, *,
        bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias
        )

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        single = input.ndim == min(self.dims)
        output = F.instance_norm(
            input.unsqueeze(0) if single else input, self.running_mean, self.running_var,
            self.weight, self.bias, self.training or not self.track_running_stats,
            0.0 if self.momentum is None else self.momentum, self.eps,
        )  # fmt: skip
        return output.squeeze(0) if single else output


class InstanceNorm1d(_InstanceNorm):
    """`instance_norm` of (N, C, L) or (C, L)."""

    dims = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """`instance_norm` of (N, C, H, W) or (C, H, W)."""

    dims = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """`instance_norm` of (N, C, D, H, W) or (C, D, H, W)."""

    dims = (4, 5)


def _shape(normalized_shape: Any) -> tuple[int, ...]:
    return (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)


class LayerNorm(Module):
    """`layer_norm` over the last axes, with a scale and a shift for each element.

    Args:
        normalized_shape: sizes of these axes.
        eps: added to the variance.
        elementwise_affine: whether there is a weight.
        bias: whether there is a bias too.
        device, dtype: of the parameters.
    """

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True,
        bias: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        for name, wanted in (("weight", elementwise_affine), ("bias", elementwise_affine and bias)):
            value = empty(*self.normalized_shape, device=device, dtype=dtype) if wanted else None
            self.register_parameter(name, None if value is None else Parameter(value))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scale 1, shift 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, "
            f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"
        )


class RMSNorm(Module):
    """`rms_norm` over the last axes, with a scale for each element."""

    weight: Parameter | None

    def __init__(
        self, normalized_shape: Any, eps: float | None = None, elementwise_affine: bool = True,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        scale = (
            ones(*self.normalized_shape, device=device, dtype=dtype) if elementwise_affine else None
        )
        self.register_parameter("weight", None if scale is None else Parameter(scale))

    def reset_parameters(self) -> None:
        """Scale 1."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class GroupNorm(Module):
    """`group_norm`: groups of channels, with a scale and a shift for each channel.

    Args:
        num_groups: must divide num_channels.
        num_channels: C.
        eps: added to the variance.
        affine: whether there are a weight and, unless `bias` is false, a bias.
        device, dtype: of the parameters.

    Raises:
        ArgumentError: num_groups does not divide num_channels.
    """

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True,
        device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if num_groups < 1 or num_channels % num_groups:
            raise ArgumentError(
                "GroupNorm", "num_groups must divide num_channels",
                expect=f"a divisor of {num_channels}", actual=str(num_groups),
            )  # fmt: skip
        self.num_groups, self.num_channels = num_groups, num_channels
        self.eps, self.affine = eps, affine
        scale = ones(num_channels, device=device, dtype=dtype) if affine else None
        shift = zeros(num_channels, device=device, dtype=dtype) if affine and bias else None
        self.register_parameter("weight", None if scale is None else Parameter(scale))
        self.register_parameter("bias", None if shift is None else Parameter(shift))

    def reset_parameters(self) -> None:
        """Scale 1 and shift 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class LocalResponseNorm(Module):
    """`local_response_norm`: each value divided by a power of its neighbours' mean square."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


_NormBase = _Norm  # PyTorch's name, which programs import
