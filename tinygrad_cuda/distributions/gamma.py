"""Gamma, Beta, Dirichlet and Chi2: everything that is made of gamma variables.

References: Marsaglia and Tsang (2000), A simple method for generating gamma variables; Figurnov,
Mohamed and Mnih (2018), Implicit reparameterization gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import int64
from tinygrad_cuda.distributions import constraints
from tinygrad_cuda.distributions.distribution import Distribution, Shape, together, uniform
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.tensors.creation import tensor, zeros_like
from tinygrad_cuda.tensors.indexing.selecting import one_hot, where
from tinygrad_cuda.tensors.random import randn
from tinygrad_cuda.tensors.special import digamma, gammainc, lgamma, xlogy
from tinygrad_cuda.tensors.tensor import Tensor

# One proposal is accepted with probability 0.95 or more: that all are refused has 2e-16.
PROPOSALS = 12
TINY = {8: 1e-300, 4: 1e-37, 2: 1e-7}  # by bytes: the least sample, so that its log is finite
Array = np.ndarray[Any, Any]


def _proposed(shape: Shape, d: Tensor) -> Tensor:
    """Standard gamma variables of shape parameter d + 1/3, for d of at least 2/3."""
    x = randn(PROPOSALS, *shape, dtype=d.dtype, device=d.device)
    u = 1.0 - uniform(d, (PROPOSALS, *shape))
    v = (1.0 + x / (9.0 * d).sqrt()) ** 3
    positive = v.clamp(min=TINY[d.dtype.itemsize])
    good = (v > 0).logical_and(u.log() < 0.5 * x * x + d - d * v + d * positive.log())
    first = good.logical_and(good.cumsum(0) == 1)
    accepted: Tensor = where(first, v, 0.0).sum(0)
    return d * accepted


def _in_the_tail(alpha: Array, x: Array) -> Array:
    r"""`_path_derivative` far above the mean, where the sum would cancel: an integral.

    .. math:: \int_0^\infty (\log(x + s) - \psi(\alpha)) (1 + s / x)^{\alpha - 1} e^{-s} ds
    """
    from scipy import special

    nodes, weights = np.polynomial.laguerre.laggauss(48)
    rate = 1.0 - (alpha - 1.0) / x
    s = nodes / rate[..., None]
    a, at = (alpha - 1.0)[..., None], x[..., None]
    shape = np.exp(a * (np.log1p(s / at) - s / at))
    logs = np.log(at + s) - special.digamma(alpha)[..., None]
    return np.asarray((weights * shape * logs).sum(-1) / rate)


def _path_derivative(alpha: Array, x: Array) -> Array:
    r"""How a standard gamma variable x moves with its shape parameter, at a fixed quantile.

    .. math:: \frac{dx}{d\alpha} = -\frac{\partial P(\alpha, x)}{\partial \alpha} / p(x)
        = -\frac{x}{\alpha} \sum_n \frac{x^n}{(\alpha + 1) \cdots (\alpha + n)}
          (\log x - \psi(\alpha + n + 1))
    """
    from scipy import special

    tail = x > alpha + 3.0 * np.sqrt(alpha) + 3.0
    if tail.any():
        derivative = np.empty_like(x)
        derivative[tail] = _in_the_tail(alpha[tail], x[tail])
        derivative[~tail] = _path_derivative(alpha[~tail], x[~tail])
        return derivative
    log_x = np.log(x)
    digammas = special.digamma(alpha + 1.0)
    term, total, n = np.ones_like(x), np.zeros_like(x), 0
    while True:
        total += term * (log_x - digammas)
        n += 1
        digammas = digammas + 1.0 / (alpha + n)
        term = term * x / (alpha + n)
        # Behind the largest term they fall faster than a geometric series.
        if np.all((alpha + n > x) & (term * n < 1e-18)) or not np.isfinite(term).all():
            return np.asarray(-x / alpha * total)


def standard_gamma(alpha: Tensor, shape: Shape) -> Tensor:
    """Samples of scale 1, with the gradient of their path to `alpha`.

    Args:
        alpha: the shape parameter, above zero; its gradient is computed on the host.
        shape: of the samples; `alpha` is broadcast to it.
    """
    with gradient_mode(False):
        wide = alpha.detach().expand(*shape)
        small = wide < 1.0
        scaled = _proposed(shape, where(small, wide + 1.0, wide) - 1.0 / 3.0)
        power = where(small, 1.0 / wide, 0.0)
        scaled = scaled * (1.0 - uniform(alpha, shape)).pow(power)
        drawn: Tensor = scaled.clamp(min=TINY[alpha.dtype.itemsize])
    if not alpha.requires_grad:
        return drawn
    with gradient_mode(False):
        a, x = (value.array().astype(np.float64) for value in (wide, drawn))
        slope = tensor(_path_derivative(a, x), dtype=alpha.dtype, device=alpha.device)
    path: Tensor = drawn + (alpha - alpha.detach()) * slope
    return path


class Gamma(Distribution):
    r"""The gamma distribution.

    .. math:: \log p(x) = \alpha \log \beta + (\alpha - 1) \log x - \beta x - \log \Gamma(\alpha)

    Args:
        concentration: :math:`\alpha`, above zero; a Tensor or number.
        rate: :math:`\beta`, above zero.
        validate_args: whether parameters and values are looked at and checked.

    Raises:
        ArgumentError: a parameter is not above zero.

    Example:
        >>> import tinygrad_cuda as tc
        >>> gamma = Gamma(tc.tensor([2.0], device="cpu"), 3.0)
        >>> round(gamma.mean.item(), 4)
        0.6667
    """

    has_rsample = True
    arg_constraints: Any = {"concentration": constraints.positive, "rate": constraints.positive}
    support: Any = constraints.nonnegative

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = together(concentration, rate)
        super().__init__(self.rate.shape, (), validate_args)
        self.check(self.concentration > 0, "concentration", "concentration > 0")
        self.check(self.rate > 0, "rate", "rate > 0")

    @property
    def mean(self) -> Tensor:
        """The concentration by the rate."""
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        """Where the density is greatest."""
        mode: Tensor = ((self.concentration - 1.0) / self.rate).clamp(min=0.0)
        return mode

    @property
    def variance(self) -> Tensor:
        """The concentration by the square of the rate."""
        return self.concentration / self.rate.pow(2.0)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density.

        Raises:
            ArgumentError: a value is negative.
        """
        value = together(value, self.rate)[0]
        self.check(value >= 0, "value", "value >= 0")
        result: Tensor = (
            xlogy(self.concentration, self.rate) + xlogy(self.concentration - 1.0, value)
            - self.rate * value - lgamma(self.concentration)
        )  # fmt: skip
        return result

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a sample of at most `value`.

        Raises:
            ArgumentError: a value is negative.
        """
        value = together(value, self.rate)[0]
        self.check(value >= 0, "value", "value >= 0")
        return gammainc(self.concentration, self.rate * value)

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        a = self.concentration
        result: Tensor = a - self.rate.log() + lgamma(a) + (1.0 - a) * digamma(a)
        return result

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Samples, with gradients to both parameters."""
        return standard_gamma(self.concentration, self.shape_of(sample_shape)) / self.rate


class Chi2(Gamma):
    """The distribution of the sum of `df` squared normal variables.

    Args:
        df: degrees of freedom, above zero; a Tensor or number.
        validate_args: whether parameters and values are looked at and checked.

    Raises:
        ArgumentError: the degrees are not above zero.
    """

    arg_constraints: Any = {"df": constraints.positive}

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        (self.df,) = together(df)
        super().__init__(0.5 * self.df, 0.5, validate_args)


class Dirichlet(Distribution):
    r"""Probabilities that add up to 1.

    .. math:: \log p(x) = \sum_k (\alpha_k - 1) \log x_k + \log \Gamma(\sum_k \alpha_k)
        - \sum_k \log \Gamma(\alpha_k)

    Args:
        concentration: :math:`\alpha` of shape (..., K), above zero.
        validate_args: whether parameters and values are looked at and checked.

    Raises:
        ArgumentError: a concentration is not above zero.

    Example:
        >>> import tinygrad_cuda as tc
        >>> dirichlet = Dirichlet(tc.tensor([1.0, 1.0, 2.0], device="cpu"))
        >>> dirichlet.mean.tolist()
        [0.25, 0.25, 0.5]
    """

    has_rsample = True
    arg_constraints: Any = {"concentration": constraints.independent(constraints.positive, 1)}
    support: Any = constraints.simplex

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        self.concentration = concentration
        shape = tuple(concentration.shape)
        super().__init__(shape[:-1], shape[-1:], validate_args)
        self.check(concentration > 0, "concentration", "concentration > 0")

    @property
    def mode(self) -> Tensor:
        """The likeliest value."""
        above = (self.concentration - 1.0).clamp(min=0.0)
        first = one_hot(zeros_like(above[..., 0]).to(int64), above.shape[-1]).to(above.dtype)
        # As in PyTorch the first corner, where all corners are infinite.
        corners = (self.concentration < 1.0).all(-1, keepdim=True)
        result: Tensor = where(corners, first, above / above.sum(-1, keepdim=True))
        return result

    @property
    def mean(self) -> Tensor:
        """The concentrations by their sum."""
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    @property
    def variance(self) -> Tensor:
        """Of each probability."""
        whole = self.concentration.sum(-1, keepdim=True)
        result: Tensor = (
            self.concentration * (whole - self.concentration) / (whole.pow(2.0) * (whole + 1.0))
        )
        return result

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density.

        Raises:
            ArgumentError: a value is negative, or they do not add up to 1.
        """
        valid = (value >= 0).all(-1).logical_and((value.sum(-1) - 1.0).abs() < 1e-6)
        self.check(valid, "value", "values >= 0 that add up to 1")
        a = self.concentration
        return xlogy(a - 1.0, value).sum(-1) + lgamma(a.sum(-1)) - lgamma(a).sum(-1)

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        a, whole = self.concentration, self.concentration.sum(-1)
        entropy: Tensor = (
            lgamma(a).sum(-1) - lgamma(whole) - (a.shape[-1] - whole) * digamma(whole)
            - ((a - 1.0) * digamma(a)).sum(-1)
        )  # fmt: skip
        return entropy

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Samples, with gradients to the concentrations."""
        drawn = standard_gamma(self.concentration, self.shape_of(sample_shape))
        return drawn / drawn.sum(-1, keepdim=True)


class Beta(Distribution):
    r"""A probability.

    .. math:: \log p(x) = (\alpha - 1) \log x + (\beta - 1) \log (1 - x) - \log B(\alpha, \beta)

    Args:
        concentration1: :math:`\alpha`, above zero; a Tensor or number.
        concentration0: :math:`\beta`, above zero.
        validate_args: whether parameters and values are looked at and checked.

    Raises:
        ArgumentError: a concentration is not above zero.
    """

    has_rsample = True
    arg_constraints: Any = {
        "concentration1": constraints.positive, "concentration0": constraints.positive,
    }  # fmt: skip
    support: Any = constraints.unit_interval

    def __init__(
        self, concentration1: Any, concentration0: Any, validate_args: bool | None = None
    ) -> None:
        self.concentration1, self.concentration0 = together(concentration1, concentration0)
        super().__init__(self.concentration1.shape, (), validate_args)
        self.check(self.concentration1 > 0, "concentration1", "concentration1 > 0")
        self.check(self.concentration0 > 0, "concentration0", "concentration0 > 0")

    @property
    def mode(self) -> Tensor:
        """The likeliest value."""
        one, zero = ((c - 1.0).clamp(min=0.0) for c in (self.concentration1, self.concentration0))
        # As in PyTorch 1, where both ends are infinite.
        ends = (self.concentration1 < 1.0).logical_and(self.concentration0 < 1.0)
        result: Tensor = where(ends, 1.0, one / (one + zero))
        return result

    @property
    def mean(self) -> Tensor:
        """The share of the first concentration."""
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def variance(self) -> Tensor:
        """The expected square of the distance from the mean."""
        whole = self.concentration1 + self.concentration0
        result: Tensor = self.concentration1 * self.concentration0 / (whole.pow(2) * (whole + 1.0))
        return result

    def log_normalizer(self) -> Tensor:
        """The logarithm of the beta function of both."""
        a, b = self.concentration1, self.concentration0
        return lgamma(a) + lgamma(b) - lgamma(a + b)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density.

        Raises:
            ArgumentError: a value is no probability.
        """
        value = together(value, self.concentration1)[0]
        self.check((value >= 0).logical_and(value <= 1), "value", "0 <= value <= 1")
        a, b = self.concentration1, self.concentration0
        return xlogy(a - 1.0, value) + xlogy(b - 1.0, 1.0 - value) - self.log_normalizer()

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        a, b = self.concentration1, self.concentration0
        result: Tensor = (
            self.log_normalizer() - (a - 1.0) * digamma(a) - (b - 1.0) * digamma(b)
            + (a + b - 2.0) * digamma(a + b)
        )  # fmt: skip
        return result

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Samples, with gradients to both concentrations."""
        shape = self.shape_of(sample_shape)
        first = standard_gamma(self.concentration1, shape)
        return first / (first + standard_gamma(self.concentration0, shape))


def gamma_divergence(p: Gamma, q: Gamma) -> Tensor:
    """The closed form for `kl_divergence`."""
    a, b = p.concentration, q.concentration
    ratio = q.rate / p.rate
    result: Tensor = (
        (a - b) * digamma(a) - lgamma(a) + lgamma(b) - b * ratio.log() + a * (ratio - 1.0)
    )
    return result


def dirichlet_divergence(p: Dirichlet, q: Dirichlet) -> Tensor:
    """The closed form for `kl_divergence`."""
    a, b = p.concentration, q.concentration
    whole = a.sum(-1)
    logs = digamma(a) - digamma(whole).unsqueeze(-1)
    return (
        lgamma(whole) - lgamma(b.sum(-1)) + (lgamma(b) - lgamma(a)).sum(-1)
        + ((a - b) * logs).sum(-1)
    )  # fmt: skip


def beta_divergence(p: Beta, q: Beta) -> Tensor:
    """The closed form for `kl_divergence`."""
    a, b, c, d = p.concentration1, p.concentration0, q.concentration1, q.concentration0
    result: Tensor = (
        q.log_normalizer() - p.log_normalizer() + (a - c) * digamma(a) + (b - d) * digamma(b)
        + (c + d - a - b) * digamma(a + b)
    )  # fmt: skip
    return result
