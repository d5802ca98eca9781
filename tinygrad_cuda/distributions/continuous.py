"""Normal, Uniform, Laplace, Exponential and their kin: samples that have gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinygrad_cuda.distributions import constraints
from tinygrad_cuda.distributions.distribution import Distribution, together, uniform
from tinygrad_cuda.tensors.indexing.selecting import where
from tinygrad_cuda.tensors.random import randn
from tinygrad_cuda.tensors.tensor import Tensor

EULER = 0.57721566490153286  # the Euler-Mascheroni constant
HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class _Located(Distribution):
    """A density that is symmetric about loc, and stretched by scale."""

    has_rsample = True
    arg_constraints: Any = {"loc": constraints.real, "scale": constraints.positive}
    support: Any = constraints.real

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = together(loc, scale)
        super().__init__(self.loc.shape, (), validate_args)
        self.check(self.scale > 0, "scale", "scale > 0")

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The likeliest value."""
        return self.loc


class Normal(_Located):
    r"""The normal distribution.

    .. math:: \log p(x) = -\frac{(x - \mu)^2}{2 \sigma^2} - \log \sigma - \frac{1}{2} \log 2 \pi

    Args:
        loc: :math:`\mu`, a Tensor or number.
        scale: :math:`\sigma`, above zero.
        validate_args: whether parameters are looked at and checked.

    Raises:
        ArgumentError: a scale is not above zero.

    Example:
        >>> import tinygrad_cuda as tc
        >>> normal = Normal(tc.zeros(2, device="cpu"), 1.0)
        >>> [round(value, 4) for value in normal.log_prob(tc.ones(2, device="cpu")).tolist()]
        [-1.4189, -1.4189]
    """

    @property
    def variance(self) -> Tensor:
        """The square of scale."""
        return self.scale * self.scale

    @property
    def stddev(self) -> Tensor:
        """The scale."""
        return self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density."""
        distance = (value - self.loc) / self.scale
        result: Tensor = -0.5 * distance * distance - self.scale.log() - HALF_LOG_TAU
        return result

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return self.scale.log() + (0.5 + HALF_LOG_TAU)

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a sample of at most `value`."""
        result: Tensor = 0.5 * (1.0 + ((value - self.loc) / (self.scale * math.sqrt(2.0))).erf())
        return result

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`."""
        result: Tensor = self.loc + self.scale * (2.0 * value - 1.0).erfinv() * math.sqrt(2.0)
        return result

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Samples, with gradients to loc and scale."""
        shape, dtype, device = self.shape_of(sample_shape), self.loc.dtype, self.loc.device
        return self.loc + self.scale * randn(*shape, dtype=dtype, device=device)


class Uniform(Distribution):
    """All values from `low` to below `high` with equal density.

    Args:
        low, high: Tensors or numbers.
        validate_args: whether parameters and values are looked at and checked.

    Raises:
        ArgumentError: high is not above low.
    """

    has_rsample = True

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = together(low, high)
        super().__init__(self.low.shape, (), validate_args)
        self.check(self.high > self.low, "high", "high > low")

    @property
    def arg_constraints(self) -> Any:
        """Each bound by the other."""
        return {
            "low": constraints.less_than(self.high), "high": constraints.greater_than(self.low),
        }  # fmt: skip

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        """What lies between the bounds."""
        return constraints.interval(self.low, self.high)

    @property
    def mode(self) -> Tensor:
        """The likeliest value."""
        return self.low * math.nan

    @property
    def mean(self) -> Tensor:
        """The middle."""
        return (self.low + self.high) / 2.0

    @property
    def variance(self) -> Tensor:
        """A twelfth of the square of the width."""
        return (self.high - self.low).pow(2) / 12.0

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density.

        Raises:
            ArgumentError: a value is outside.
        """
        inside = (value >= self.low).logical_and(value <= self.high)
        self.check(inside, "value", "low <= value <= high")
        inside = (value >= self.low).logical_and(value < self.high)
        result: Tensor = where(inside, -(self.high - self.low).log(), -math.inf)
        return result

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return (self.high - self.low).log()

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a sample of at most `value`."""
        return ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`."""
        return value * (self.high - self.low) + self.low

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Samples, with gradients to low and high."""
        return self.icdf(uniform(self.low, self.shape_of(sample_shape)))


class Laplace(_Located):
    r"""The Laplace distribution.

    .. math:: \log p(x) = -|x - \mu| / b - \log 2 b

    Args:
        loc: :math:`\mu`, a Tensor or number.
        scale: b, above zero.
        validate_args: whether parameters are looked at and checked.

    Raises:
        ArgumentError: a scale is not above zero.
    """

    @property
    def variance(self) -> Tensor:
        """Twice the square of scale."""
        result: Tensor = 2.0 * self.scale * self.scale
        return result

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density."""
        result: Tensor = -(2.0 * self.scale).log() - (value - self.loc).abs() / self.scale
        return result

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        result: Tensor = 1.0 + (2.0 * self.scale).log()
        return result

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a sample of at most `value`."""
        distance = value - self.loc
        result: Tensor = 0.5 - 0.5 * distance.sign() * (-distance.abs() / self.scale).expm1()
        return result

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`."""
        term = value - 0.5
        result: Tensor = self.loc - self.scale * term.sign() * (-2.0 * term.abs()).log1p()
        return result

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Samples, with gradients to loc and scale."""
        # Of [0, 1) the smallest number is 0, whose sample would be infinite.
        drawn = uniform(self.loc, self.shape_of(sample_shape)).clamp(min=2.0**-25)
        return self.icdf(drawn)


class Exponential(Distribution):
    r"""The exponential distribution.

    .. math:: \log p(x) = \log \lambda - \lambda x

    Args:
        rate: :math:`\lambda`, above zero; a Tensor or number.
        validate_args: whether parameters and values are looked at and checked.

    Raises:
        ArgumentError: a rate is not above zero.
    """

    has_rsample = True
    arg_constraints: Any = {"rate": constraints.positive}
    support: Any = constraints.nonnegative

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = together(rate)
        super().__init__(self.rate.shape, (), validate_args)
        self.check(self.rate > 0, "rate", "rate > 0")

    @property
    def mode(self) -> Tensor:
        """The likeliest value."""
        return self.rate * 0.0

    @property
    def mean(self) -> Tensor:
        """One by the rate."""
        result: Tensor = 1.0 / self.rate
        return result

    @property
    def variance(self) -> Tensor:
        """One by the square of the rate."""
        return self.rate.pow(-2.0)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density.

        Raises:
            ArgumentError: a value is negative.
        """
        self.check(value >= 0, "value", "value >= 0")
        return self.rate.log() - self.rate * value

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        result: Tensor = 1.0 - self.rate.log()
        return result

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a sample of at most `value`."""
        result: Tensor = 1.0 - (-self.rate * value).exp()
        return result

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`."""
        return -(-value).log1p() / self.rate

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Samples, with gradients to the rate."""
        return self.icdf(uniform(self.rate, self.shape_of(sample_shape)))


class HalfNormal(Distribution):
    """The size of a normal variable about zero.

    Args:
        scale: its deviation, above zero.
        validate_args: whether parameters and values are looked at and checked.

    Raises:
        ArgumentError: a scale is not above zero.
    """

    has_rsample = True
    arg_constraints: Any = {"scale": constraints.positive}
    support: Any = constraints.nonnegative

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        self.base_dist = Normal(0.0, scale, validate_args=validate_args)
        self.scale = self.base_dist.scale
        super().__init__(self.scale.shape, (), validate_args)

    @property
    def mode(self) -> Tensor:
        """The likeliest value."""
        return self.scale * 0.0

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def variance(self) -> Tensor:
        """The expected square of the distance from the mean."""
        return self.scale.pow(2) * (1 - 2 / math.pi)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density.

        Raises:
            ArgumentError: a value is below zero.
        """
        self.check(value >= 0, "value", "value >= 0")
        inside = self.base_dist.log_prob(value) + math.log(2)
        result: Tensor = where(value >= 0, inside, -math.inf)
        return result

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return self.base_dist.entropy() - math.log(2)

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a sample of at most `value`."""
        result: Tensor = 2 * self.base_dist.cdf(value) - 1
        return result

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`."""
        return self.base_dist.icdf((value + 1) / 2)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Samples, with gradients to scale."""
        return self.base_dist.rsample(sample_shape).abs()


class Cauchy(_Located):
    """The Cauchy distribution, which has no mean.

    Args:
        loc: where the density is largest.
        scale: half its width at half its height, above zero.
        validate_args: whether parameters are looked at and checked.

    Raises:
        ArgumentError: a scale is not above zero.
    """

    @property
    def mean(self) -> Tensor:
        """Not a number."""
        return self.loc.detach() * math.nan

    @property
    def variance(self) -> Tensor:
        """Infinite."""
        return self.scale.detach() * 0 + math.inf

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density."""
        distance = (value - self.loc) / self.scale
        result: Tensor = -math.log(math.pi) - self.scale.log() - distance.pow(2).log1p()
        return result

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return self.scale.log() + math.log(4 * math.pi)

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a sample of at most `value`."""
        result: Tensor = ((value - self.loc) / self.scale).atan() / math.pi + 0.5
        return result

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`."""
        result: Tensor = (math.pi * (value - 0.5)).tan() * self.scale + self.loc
        return result

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Samples, with gradients to loc and scale."""
        return self.icdf(uniform(self.loc, self.shape_of(sample_shape)))


class Gumbel(_Located):
    """The distribution of the largest of many values.

    Args:
        loc: where the density is largest.
        scale: how wide it is, above zero.
        validate_args: whether parameters are looked at and checked.

    Raises:
        ArgumentError: a scale is not above zero.
    """

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self.loc + self.scale * EULER

    @property
    def variance(self) -> Tensor:
        """The expected square of the distance from the mean."""
        return self.scale.pow(2) * (math.pi**2 / 6)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density."""
        distance = (value - self.loc) / self.scale
        result: Tensor = -(distance + (-distance).exp()) - self.scale.log()
        return result

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return self.scale.log() + (1 + EULER)

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a sample of at most `value`."""
        return (-((self.loc - value) / self.scale).exp()).exp()

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`."""
        return self.loc - self.scale * (-value.log()).log()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Samples, with gradients to loc and scale."""
        drawn = uniform(self.loc, self.shape_of(sample_shape))
        # Neither 0 nor 1, whose values are infinite.
        return self.icdf((1 - drawn).clamp(2.0**-126, 1 - 2.0**-24))
