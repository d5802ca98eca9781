"""Bernoulli, Categorical, Geometric: by probabilities or by logits; Poisson by its rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinygrad_cuda.core.dtypes import int64
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.distributions import constraints
from tinygrad_cuda.distributions.distribution import Distribution, together, uniform
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.tensors.creation import arange, eye
from tinygrad_cuda.tensors.distributions import poisson
from tinygrad_cuda.tensors.indexing.selecting import one_hot, where
from tinygrad_cuda.tensors.special import xlogy
from tinygrad_cuda.tensors.tensor import Tensor


def _one_of(op: str, probs: Any, logits: Any) -> None:
    if (probs is None) == (logits is None):
        raise ArgumentError(
            op, "probabilities or logits", expect="one of probs and logits",
            actual="none" if probs is None else "both",
        )  # fmt: skip


class Bernoulli(Distribution):
    r"""One with probability p, else zero.

    .. math:: \log p(x) = x \log p + (1 - x) \log (1 - p)

    Args:
        probs: p, a Tensor or number; or else
        logits: :math:`\log p - \log (1 - p)`.
        validate_args: whether parameters and values are looked at and checked.

    Raises:
        ArgumentError: both or none are given, or a probability is out of range.
    """

    arg_constraints: Any = {"probs": constraints.unit_interval, "logits": constraints.real}
    support: Any = constraints.boolean
    has_enumerate_support = True

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        _one_of("Bernoulli", probs, logits)
        (given,) = together(logits if probs is None else probs)
        super().__init__(given.shape, (), validate_args)
        if probs is None:
            self.logits, self.probs = given, given.sigmoid()
            return
        self.check((given >= 0).logical_and(given <= 1), "probs", "0 <= probs <= 1")
        tiny = 2.0**-23 if given.dtype.itemsize < 8 else 2.0**-52
        bounded = given.clamp(tiny, 1.0 - tiny)
        self.probs, self.logits = given, bounded.log() - (-bounded).log1p()

    @property
    def mode(self) -> Tensor:
        """The likeliest value."""
        likelier = (self.probs >= 0.5).to(self.probs.dtype)
        result: Tensor = where(self.probs == 0.5, math.nan, likelier)
        return result

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Zero and one."""
        values = arange(2, dtype=self.probs.dtype, device=self.probs.device)
        return for_batch(values, self.batch_shape, expand)

    @property
    def mean(self) -> Tensor:
        """The probability."""
        return self.probs

    @property
    def variance(self) -> Tensor:
        """p (1 - p)."""
        result: Tensor = self.probs * (1.0 - self.probs)
        return result

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability.

        Raises:
            ArgumentError: a value is neither 0 nor 1.
        """
        self.check((value == 0).logical_or(value == 1), "value", "0 or 1")
        return value * self.logits - softplus(self.logits)

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return softplus(self.logits) - self.probs * self.logits

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Zeros and ones of the parameters' dtype."""
        with gradient_mode(False):
            drawn = uniform(self.probs, self.shape_of(sample_shape))
            result: Tensor = (drawn < self.probs).to(self.probs.dtype)
            return result


class Categorical(Distribution):
    """One of some classes, by its probability.

    Args:
        probs: of shape (..., classes), not negative; divided by their sum. Or else
        logits: their logarithms, up to a constant.
        validate_args: whether parameters and values are looked at and checked.

    Raises:
        ArgumentError: both or none are given, there is no dimension of classes, or a
            probability is negative.
    """

    arg_constraints: Any = {"probs": constraints.simplex, "logits": constraints.real_vector}
    has_enumerate_support = True

    def __init__(
        self, probs: Tensor | None = None, logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        _one_of("Categorical", probs, logits)
        given: Any = logits if probs is None else probs
        if given.ndim < 1:
            raise ArgumentError(
                "Categorical", "there is no dimension of classes", expect="(..., classes)",
                actual="()",
            )  # fmt: skip
        super().__init__(given.shape[:-1], (), validate_args)
        if probs is None:
            self.logits = given - given.logsumexp(dim=-1, keepdim=True)
            self.probs = self.logits.exp()
            return
        self.check(given >= 0, "probs", "probs >= 0")
        self.probs = given / given.sum(dim=-1, keepdim=True)
        tiny = 2.0**-23 if given.dtype.itemsize < 8 else 2.0**-52
        self.logits = self.probs.clamp(tiny, 1.0 - tiny).log()

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> Any:
        """The numbers of the classes."""
        return constraints.integer_interval(0, self.logits.shape[-1] - 1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """The numbers of the classes."""
        values = arange(self.logits.shape[-1], dtype=int64, device=self.logits.device)
        return for_batch(values, self.batch_shape, expand)

    @property
    def mean(self) -> Tensor:
        """Not a number: classes have no order."""
        result: Tensor = self.probs.sum(dim=-1).detach() * math.nan
        return result

    @property
    def variance(self) -> Tensor:
        """Not a number: classes have no order."""
        return self.mean

    @property
    def mode(self) -> Tensor:
        """The likeliest class."""
        best: Tensor = self.probs.argmax(dim=-1)
        return best

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability of classes.

        Raises:
            ArgumentError: there is no such class.
        """
        count = self.logits.shape[-1]
        self.check((value >= 0).logical_and(value < count), "value", f"0 to {count - 1}")
        shape = (value + 0 * self.logits[..., 0].detach().to(int64)).shape
        index = value.to(int64).expand(*shape).unsqueeze(-1)
        chosen: Tensor = self.logits.expand(*shape, count).gather(-1, index)
        return chosen.squeeze(-1)

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        result: Tensor = -(self.logits * self.probs).sum(dim=-1)
        return result

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Classes, as int64: how many of the running sums of probabilities are passed."""
        with gradient_mode(False):
            drawn = uniform(self.probs, (*self.shape_of(sample_shape), 1))
            sums = self.probs.detach().cumsum(dim=-1)
            # The last sum is 1 up to rounding and is never passed.
            passed: Tensor = (drawn >= sums[..., :-1]).to(int64).sum(dim=-1)
            return passed


class OneHotCategorical(Distribution):
    """One of some classes, as a vector with a one at its place.

    Args:
        probs, logits, validate_args: as of `Categorical`.

    Raises:
        ArgumentError: as by `Categorical`.
    """

    arg_constraints: Any = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support: Any = constraints.one_hot
    has_enumerate_support = True

    def __init__(
        self, probs: Tensor | None = None, logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        self._categorical = Categorical(probs, logits, validate_args)
        super().__init__(
            self._categorical.batch_shape, self._categorical.logits.shape[-1:], validate_args
        )

    @property
    def probs(self) -> Tensor:
        """The probabilities of classes."""
        result: Tensor = self._categorical.probs
        return result

    @property
    def logits(self) -> Tensor:
        """Their logarithms."""
        result: Tensor = self._categorical.logits
        return result

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """The vector of each class."""
        values = eye(self.event_shape[0], dtype=self.probs.dtype, device=self.probs.device)
        return for_batch(values, self.batch_shape, expand)

    @property
    def mean(self) -> Tensor:
        """The probabilities."""
        return self.probs

    @property
    def variance(self) -> Tensor:
        """p (1 - p)."""
        result: Tensor = self.probs * (1.0 - self.probs)
        return result

    @property
    def mode(self) -> Tensor:
        """The vector of the likeliest class."""
        best = one_hot(self._categorical.mode, self.event_shape[0])
        result: Tensor = best.to(self.probs.dtype)
        return result

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability of vectors.

        Raises:
            ArgumentError: a vector has not a single one and zeros.
        """
        bits = (value == 0).logical_or(value == 1).all(dim=-1)
        self.check(bits.logical_and(value.sum(dim=-1) == 1), "value", "one-hot vectors")
        return self._categorical.log_prob(value.argmax(dim=-1))

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return self._categorical.entropy()

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Vectors of the parameters' dtype."""
        drawn = one_hot(self._categorical.sample(sample_shape), self.event_shape[0])
        result: Tensor = drawn.to(self.probs.dtype)
        return result


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """`OneHotCategorical` whose samples pass gradients to the probabilities, as if they were them.

    Args and errors as of `OneHotCategorical`.
    """

    has_rsample = True

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Vectors, with gradients."""
        return self.sample(sample_shape) + (self.probs - self.probs.detach())


class Geometric(Distribution):
    """The number of failures before the first success.

    Args:
        probs: of success, above zero; a Tensor or number. Or else
        logits: the logarithms of its odds.
        validate_args: whether parameters and values are looked at and checked.

    Raises:
        ArgumentError: both or none are given, or a probability is out of range.
    """

    arg_constraints: Any = {"probs": constraints.unit_interval, "logits": constraints.real}
    support: Any = constraints.nonnegative_integer

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        base = Bernoulli(probs, logits, validate_args)
        self.probs, self.logits = base.probs, base.logits
        super().__init__(base.batch_shape, (), validate_args)
        self.check(self.probs > 0, "probs", "probs > 0")

    @property
    def mode(self) -> Tensor:
        """The likeliest value."""
        return self.probs.detach() * 0.0

    @property
    def mean(self) -> Tensor:
        """1 / p - 1."""
        result: Tensor = 1.0 / self.probs - 1.0
        return result

    @property
    def variance(self) -> Tensor:
        """(1 / p - 1) / p."""
        result: Tensor = (1.0 / self.probs - 1.0) / self.probs
        return result

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability.

        Raises:
            ArgumentError: a value is negative or has a fraction.
        """
        self.check((value >= 0).logical_and(value == value.floor()), "value", "whole numbers")
        certain = (self.probs == 1).logical_and(value == 0)
        result: Tensor = value * (-where(certain, 0.0, self.probs)).log1p() + self.probs.log()
        return result

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return (softplus(self.logits) - self.probs * self.logits) / self.probs

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Whole numbers of the parameters' dtype."""
        with gradient_mode(False):
            drawn = uniform(self.probs, self.shape_of(sample_shape)).clamp(min=2.0**-126)
            result: Tensor = (drawn.log() / (-self.probs).log1p()).floor()
            return result


class Poisson(Distribution):
    """How many of independent events happen, of which `rate` are expected.

    Args:
        rate: not negative; a Tensor or number.
        validate_args: whether parameters and values are looked at and checked.

    Raises:
        ArgumentError: a rate is negative.
    """

    arg_constraints: Any = {"rate": constraints.nonnegative}
    support: Any = constraints.nonnegative_integer

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = together(rate)
        super().__init__(self.rate.shape, (), validate_args)
        self.check(self.rate >= 0, "rate", "rate >= 0")

    @property
    def mode(self) -> Tensor:
        """The likeliest value."""
        return self.rate.floor()

    @property
    def mean(self) -> Tensor:
        """The rate."""
        return self.rate

    @property
    def variance(self) -> Tensor:
        """The rate."""
        return self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability.

        Raises:
            ArgumentError: a value is negative or has a fraction.
        """
        self.check((value >= 0).logical_and(value == value.floor()), "value", "whole numbers")
        result: Tensor = xlogy(value, self.rate) - self.rate - (value + 1).lgamma()
        return result

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Whole numbers of the rate's dtype."""
        with gradient_mode(False):
            return poisson(self.rate.expand(*self.shape_of(sample_shape)))


def softplus(logits: Tensor) -> Tensor:
    """``log(1 + exp(logits))`` without overflow."""
    return logits.clamp(min=0.0) + (-logits.abs()).exp().log1p()


def for_batch(values: Tensor, batch_shape: Sequence[int], expand: bool) -> Tensor:
    """Values, or vectors, for each distribution of a batch."""
    count, *event = values.shape
    wide = values.reshape(count, *(1,) * len(batch_shape), *event)
    return wide.expand(count, *batch_shape, *event) if expand else wide
