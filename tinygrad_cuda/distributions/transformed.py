"""TransformedDistribution and LogNormal: distributions of functions of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinygrad_cuda.distributions.continuous import Normal
from tinygrad_cuda.distributions.distribution import Distribution
from tinygrad_cuda.distributions.transforms import ExpTransform, Transform
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.tensors.tensor import Tensor


class TransformedDistribution(Distribution):
    """The distribution of a function of samples.

    Args:
        base_distribution: what is sampled first.
        transforms: one, or several that follow each other, of each element.
        validate_args: as of `Distribution`.

    Example:
        >>> import tinygrad_cuda as tc
        >>> from tinygrad_cuda.distributions import Normal, TanhTransform
        >>> base = Normal(tc.zeros(2, device="cpu"), 1.0)
        >>> squashed = TransformedDistribution(base, [TanhTransform(cache_size=1)])
        >>> sample = squashed.rsample()
        >>> squashed.log_prob(sample).shape
        Size([2])
    """

    def __init__(
        self, base_distribution: Distribution, transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        self.base_dist = base_distribution
        one = isinstance(transforms, Transform)
        self.transforms: list[Any] = [transforms] if one else list(transforms)  # type: ignore[arg-type]
        self.has_rsample = base_distribution.has_rsample
        super().__init__(
            base_distribution.batch_shape, base_distribution.event_shape, validate_args
        )

    def _through(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Samples of the base, transformed; without gradients."""
        with gradient_mode(False):
            return self._through(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Samples of the base, transformed; with gradients."""
        return self._through(self.base_dist.rsample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density of the argument, minus the log of how far the transforms stretch."""
        count, total = len(self.event_shape), 0.0
        for transform in reversed(self.transforms):
            argument = transform.inv(value)
            stretched = transform.log_abs_det_jacobian(argument, value)
            given = getattr(transform, "event_dim", 0)
            total = total - _summed(stretched, count - given)
            value = argument
        result: Tensor = total + self.base_dist.log_prob(value)
        return result

    def _growing(self) -> Any:
        sign: Any = 1
        for transform in self.transforms:
            sign = sign * transform.sign
        return sign

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a sample of at most `value`."""
        for transform in reversed(self.transforms):
            value = transform.inv(value)
        sign = self._growing()
        result: Tensor = sign * (self.base_dist.cdf(value) - 0.5) + 0.5
        return result

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`."""
        return self._through(self.base_dist.icdf(self._growing() * (value - 0.5) + 0.5))


def _summed(value: Tensor, count: int) -> Tensor:
    return value.flatten(-count).sum(dim=-1) if count > 0 else value


class LogNormal(TransformedDistribution):
    """The distribution of the exponential of a normal variable.

    Args:
        loc, scale: mean and deviation of the logarithm.
        validate_args: whether parameters are looked at and checked.

    Raises:
        ArgumentError: a scale is not above zero.
    """

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        normal = Normal(loc, scale, validate_args=validate_args)
        super().__init__(normal, ExpTransform(), validate_args)
        self.loc, self.scale = normal.loc, normal.scale

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return (self.loc + self.scale.pow(2) / 2.0).exp()

    @property
    def mode(self) -> Tensor:
        """Where the density is largest."""
        return (self.loc - self.scale.square()).exp()

    @property
    def variance(self) -> Tensor:
        """The expected square of the distance from the mean."""
        square = self.scale.pow(2)
        result: Tensor = square.expm1() * (2.0 * self.loc + square).exp()
        return result

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return self.base_dist.entropy() + self.loc
