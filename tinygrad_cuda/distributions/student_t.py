"""StudentT: normal samples divided by their own estimated deviation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinygrad_cuda.distributions import constraints
from tinygrad_cuda.distributions.distribution import Distribution, together
from tinygrad_cuda.distributions.gamma import Chi2
from tinygrad_cuda.tensors.indexing.selecting import where
from tinygrad_cuda.tensors.random import randn
from tinygrad_cuda.tensors.special import digamma
from tinygrad_cuda.tensors.tensor import Tensor


class StudentT(Distribution):
    """Student's t-distribution.

    Args:
        df: degrees of freedom, above zero.
        loc, scale: the middle, and how wide it is, above zero.
        validate_args: whether parameters are looked at and checked.

    Raises:
        ArgumentError: degrees or a scale are not above zero.
    """

    has_rsample = True
    arg_constraints: Any = {
        "df": constraints.positive, "loc": constraints.real, "scale": constraints.positive,
    }  # fmt: skip
    support: Any = constraints.real

    def __init__(
        self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None
    ) -> None:
        self.df, self.loc, self.scale = together(df, loc, scale)
        super().__init__(self.df.shape, (), validate_args)
        self.check(self.scale > 0, "scale", "scale > 0")
        self._chi2 = Chi2(self.df, validate_args=validate_args)

    @property
    def mode(self) -> Tensor:
        """The likeliest value."""
        return self.loc

    @property
    def mean(self) -> Tensor:
        """The middle; not a number for up to one degree."""
        result: Tensor = where(self.df <= 1, math.nan, self.loc)
        return result

    @property
    def variance(self) -> Tensor:
        """Infinite for up to two degrees, not a number for up to one."""
        more = where(self.df > 2, self.df, 3.0)
        finite = self.scale.pow(2) * more / (more - 2)
        result: Tensor = where(self.df > 2, finite, where(self.df > 1, math.inf, math.nan))
        return result

    def _log_normalizer(self) -> Tensor:
        roots = self.scale.log() + 0.5 * self.df.log() + 0.5 * math.log(math.pi)
        result: Tensor = roots + (0.5 * self.df).lgamma() - (0.5 * (self.df + 1)).lgamma()
        return result

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density."""
        distance = (value - self.loc) / self.scale
        inside = (distance.pow(2) / self.df).log1p()
        result: Tensor = -0.5 * (self.df + 1) * inside - self._log_normalizer()
        return result

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        more = 0.5 * (self.df + 1)
        result: Tensor = self._log_normalizer() + more * (digamma(more) - digamma(0.5 * self.df))
        return result

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Samples, with gradients."""
        shape, dtype, device = self.shape_of(sample_shape), self.loc.dtype, self.loc.device
        normal = randn(*shape, dtype=dtype, device=device)
        return self.loc + self.scale * normal * (self._chi2.rsample(sample_shape) / self.df).rsqrt()
