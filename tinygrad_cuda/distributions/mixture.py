"""MixtureSameFamily: one of several distributions of a kind, chosen at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinygrad_cuda.core.errors import ShapeError
from tinygrad_cuda.distributions import constraints
from tinygrad_cuda.distributions.discrete import Categorical
from tinygrad_cuda.distributions.distribution import Distribution
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.tensors.tensor import Tensor


class MixtureSameFamily(Distribution):
    """A mixture of the distributions along the last dimension of a batch.

    Args:
        mixture_distribution: which of them, of shape (...) and as many classes as there are.
        component_distribution: the distributions, of shape (..., classes).
        validate_args: as of `Distribution`.

    Raises:
        ShapeError: the two do not fit.

    Example:
        >>> import tinygrad_cuda as tc
        >>> from tinygrad_cuda.distributions import Categorical, Normal
        >>> weights = Categorical(tc.ones(2, device="cpu"))
        >>> both = MixtureSameFamily(weights, Normal(tc.tensor([-1.0, 3.0], device="cpu"), 1.0))
        >>> both.mean.item(), both.variance.item()
        (1.0, 5.0)
    """

    arg_constraints: Any = {}

    def __init__(
        self, mixture_distribution: Categorical, component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        batch = component_distribution.batch_shape
        classes = mixture_distribution.logits.shape[-1]
        if not batch or batch[-1] != classes or mixture_distribution.batch_shape not in (
            (), batch[:-1]
        ):  # fmt: skip
            raise ShapeError(
                "MixtureSameFamily", "the distributions do not fit", expect=f"(..., {classes})",
                actual=str(batch),
            )  # fmt: skip
        self.mixture_distribution = mixture_distribution
        self.component_distribution = component_distribution
        super().__init__(batch[:-1], component_distribution.event_shape, validate_args)

    @constraints.dependent_property
    def support(self) -> Any:
        """That of the components."""
        inner = self.component_distribution.support
        return constraints.MixtureSameFamilyConstraint(inner)

    def _weights(self) -> Tensor:
        ones = (1,) * len(self.event_shape)
        probs = self.mixture_distribution.probs
        result: Tensor = probs.reshape(*probs.shape, *ones)
        return result

    def _averaged(self, values: Tensor) -> Tensor:
        total: Tensor = (self._weights() * values).sum(dim=-1 - len(self.event_shape))
        return total

    def _for_each(self, value: Tensor) -> Tensor:
        return value.unsqueeze(-1 - len(self.event_shape))

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self._averaged(self.component_distribution.mean)

    @property
    def variance(self) -> Tensor:
        """That within the distributions, and that of their means."""
        within = self._averaged(self.component_distribution.variance)
        apart = self.component_distribution.mean - self._for_each(self.mean)
        return within + self._averaged(apart.pow(2))

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the weighted sum of densities."""
        each = self.component_distribution.log_prob(self._for_each(value))
        result: Tensor = (each + self.mixture_distribution.logits).logsumexp(dim=-1)
        return result

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a sample of at most `value`."""
        each = self.component_distribution.cdf(self._for_each(value))
        total: Tensor = (each * self.mixture_distribution.probs).sum(dim=-1)
        return total

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Samples of all distributions, of which one is taken."""
        with gradient_mode(False):
            event = len(self.event_shape)
            values = self.component_distribution.sample(sample_shape)
            chosen = self.mixture_distribution.sample((*sample_shape,))
            if not self.mixture_distribution.batch_shape and self.batch_shape:
                chosen = self.mixture_distribution.sample((*sample_shape, *self.batch_shape))
            index = chosen.reshape(*chosen.shape, *(1,) * (event + 1))
            index = index.expand(*chosen.shape, 1, *self.event_shape)
            taken: Tensor = values.gather(-1 - event, index)
            return taken.squeeze(-1 - event)
