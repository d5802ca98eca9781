"""TransformedDistribution and LogNormal: distributions of functions of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinygrad_cuda.core.errors import ShapeError
from tinygrad_cuda.distributions import constraints
from tinygrad_cuda.distributions.continuous import Normal
from tinygrad_cuda.distributions.distribution import Distribution, Independent
from tinygrad_cuda.distributions.transforms import (
    ComposeTransform,
    ExpTransform,
    Transform,
    summed,
)
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

    arg_constraints: Any = {}

    def __init__(
        self, base_distribution: Distribution, transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        one = isinstance(transforms, Transform)
        self.transforms: list[Any] = [transforms] if one else list(transforms)
        whole = ComposeTransform(self.transforms)
        base, shape = base_distribution, base_distribution.shape_of(())
        inside, domain, codomain = len(base.event_shape), whole.domain, whole.codomain
        if len(shape) < domain.event_dim:
            raise ShapeError(
                "TransformedDistribution", "the base has too few dimensions",
                expect=f"{domain.event_dim} or more", actual=str(tuple(shape)),
            )  # fmt: skip
        result = whole.forward_shape(shape)
        if (wide := tuple(whole.inverse_shape(result))) != tuple(shape):
            base = base.expand(wide[: len(wide) - inside])
        if domain.event_dim > inside:
            base = Independent(base, domain.event_dim - inside)
        self.base_dist = base
        count = max(codomain.event_dim, inside + codomain.event_dim - domain.event_dim)
        cut = len(result) - count
        super().__init__(result[:cut], result[cut:], validate_args)

    @property
    def has_rsample(self) -> Any:
        """That of the base."""
        return self.base_dist.has_rsample

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> Any:
        """The results of the last transform."""
        if not self.transforms:
            return self.base_dist.support
        last = self.transforms[-1].codomain
        more = len(self.event_shape) - last.event_dim
        return constraints.independent(last, more) if more > 0 else last

    def expand(self, batch_shape: Sequence[int]) -> Any:
        """The same distribution with a batch of another shape, to which its own broadcasts."""
        made = super().expand(batch_shape)
        shape: Sequence[int] = (*made.batch_shape, *self.event_shape)
        for transform in reversed(self.transforms):
            shape = transform.inverse_shape(shape)
        made.base_dist = self.base_dist.expand(
            shape[: len(shape) - len(self.base_dist.event_shape)]
        )
        return made

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
            count += transform.domain.event_dim - transform.codomain.event_dim
            stretched = transform.log_abs_det_jacobian(argument, value)
            total = total - summed(stretched, count - transform.domain.event_dim)
            value = argument
        density = self.base_dist.log_prob(value)
        result: Tensor = total + summed(density, count - len(self.base_dist.event_shape))
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


class LogNormal(TransformedDistribution):
    """The distribution of the exponential of a normal variable.

    Args:
        loc, scale: mean and deviation of the logarithm.
        validate_args: whether parameters are looked at and checked.

    Raises:
        ArgumentError: a scale is not above zero.
    """

    arg_constraints: Any = {"loc": constraints.real, "scale": constraints.positive}
    support: Any = constraints.positive

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
