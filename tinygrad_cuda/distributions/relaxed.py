"""RelaxedBernoulli and RelaxedOneHotCategorical: samples near the corners, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinygrad_cuda.distributions import constraints
from tinygrad_cuda.distributions.discrete import Bernoulli, Categorical
from tinygrad_cuda.distributions.distribution import Distribution, together, uniform
from tinygrad_cuda.tensors.tensor import Tensor


def _open(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Numbers between 0 and 1, neither of them."""
    tiny, near = (
        (2.0**-1022, 1 - 2.0**-53) if like.dtype.itemsize == 8 else (2.0**-126, 1 - 2.0**-24)
    )
    return uniform(like, tuple(shape)).clamp(tiny, near)


class RelaxedBernoulli(Distribution):
    """Numbers between 0 and 1 that are nearly one of them, the colder the nearer.

    Args:
        temperature: above zero; 0 would give `Bernoulli`.
        probs, logits, validate_args: as of `Bernoulli`.

    Raises:
        ArgumentError: as by `Bernoulli`.
    """

    has_rsample = True
    arg_constraints: Any = {"probs": constraints.unit_interval, "logits": constraints.real}
    support: Any = constraints.unit_interval

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        base = Bernoulli(probs, logits, validate_args)
        self.probs, self.logits = base.probs, base.logits
        self.temperature = temperature
        super().__init__(base.batch_shape, (), validate_args)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Samples, with gradients to the odds."""
        drawn = _open(self.logits, self.shape_of(sample_shape))
        noise = drawn.log() - (-drawn).log1p()
        result: Tensor = ((noise + self.logits) / self.temperature).sigmoid()
        return result

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density.

        Raises:
            ArgumentError: a value is not between 0 and 1.
        """
        self.check((value >= 0).logical_and(value <= 1), "value", "0 to 1")
        low, high = value.log(), (-value).log1p()
        distance = self.logits - self.temperature * (low - high)
        (heat,) = together(self.temperature)
        above = distance.clamp(min=0.0) + (-distance.abs()).exp().log1p()
        result: Tensor = heat.to(value.device).log() + distance - 2 * above - low - high
        return result


class RelaxedOneHotCategorical(Distribution):
    """Probabilities of which nearly all are zero, the colder the nearer: Gumbel-softmax.

    Args:
        temperature: above zero; 0 would give `OneHotCategorical`.
        probs, logits, validate_args: as of `Categorical`.

    Raises:
        ArgumentError: as by `Categorical`.
    """

    has_rsample = True
    arg_constraints: Any = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support: Any = constraints.simplex

    def __init__(
        self, temperature: Any, probs: Tensor | None = None, logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        base = Categorical(probs, logits, validate_args)
        self.probs, self.logits = base.probs, base.logits
        self.temperature = temperature
        super().__init__(base.batch_shape, self.logits.shape[-1:], validate_args)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Samples, with gradients to the logits."""
        noise = -(-_open(self.logits, self.shape_of(sample_shape)).log()).log()
        result: Tensor = ((self.logits + noise) / self.temperature).softmax(dim=-1)
        return result

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density.

        Raises:
            ArgumentError: a value is negative, or they do not add up to 1.
        """
        near = (value.sum(dim=-1) - 1).abs() < 1e-5
        self.check((value >= 0).all(dim=-1).logical_and(near), "value", "probabilities")
        count = self.event_shape[0]
        (heat,) = together(self.temperature)
        heat = heat.to(device=value.device, dtype=value.dtype)
        scores = self.logits - value.log() * self.temperature
        total = (scores - scores.logsumexp(dim=-1, keepdim=True)).sum(dim=-1)
        factor = (heat * 0 + count).lgamma() + heat.log() * (count - 1)
        result: Tensor = total + factor - value.log().sum(dim=-1)
        return result
