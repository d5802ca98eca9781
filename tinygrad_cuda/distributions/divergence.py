"""kl_divergence: the expected log ratio of two distributions, in closed form."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.distributions.continuous import (
    EULER,
    Cauchy,
    Exponential,
    Gumbel,
    HalfNormal,
    Laplace,
    Normal,
    Uniform,
)
from tinygrad_cuda.distributions.discrete import (
    Bernoulli,
    Categorical,
    Geometric,
    OneHotCategorical,
    Poisson,
    softplus,
)
from tinygrad_cuda.distributions.distribution import Distribution, Independent
from tinygrad_cuda.distributions.gamma import (
    Beta,
    Dirichlet,
    Gamma,
    beta_divergence,
    dirichlet_divergence,
    gamma_divergence,
)
from tinygrad_cuda.distributions.multivariate_normal import (
    MultivariateNormal,
    normal_divergence,
)
from tinygrad_cuda.distributions.transformed import TransformedDistribution
from tinygrad_cuda.tensors.creation import full_like
from tinygrad_cuda.tensors.indexing.selecting import where
from tinygrad_cuda.tensors.special import digamma, lgamma, xlogy
from tinygrad_cuda.tensors.tensor import Tensor

Rule = Callable[[Any, Any], Any]


class NoClosedFormError(ArgumentError, NotImplementedError):
    """No divergence of two distributions is known; the class is PyTorch's, too."""


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    r"""The Kullback-Leibler divergence of p from q.

    .. math:: \operatorname{E}_{x \sim p}[\log p(x) - \log q(x)]

    Args:
        p, q: of two kinds for which PyTorch has a closed form, or one was registered.

    Raises:
        ArgumentError: there is no closed form here for the two; also a NotImplementedError.

    Example:
        >>> from tinygrad_cuda.distributions import Normal
        >>> round(kl_divergence(Normal(0.0, 1.0), Normal(1.0, 1.0)).item(), 4)
        0.5
    """
    rule = _rule_of(type(p), type(q))
    divergence = None if rule is None else rule(p, q)
    if divergence is None:
        raise NoClosedFormError(
            "kl_divergence", "there is no closed form for the two",
            expect="two kinds for which a rule is registered",
            actual=f"{type(p).__name__} and {type(q).__name__}",
            hint="register_kl adds a rule",
        )  # fmt: skip
    result: Tensor = divergence
    return result


def register_kl(type_p: type, type_q: type) -> Callable[[Rule], Rule]:
    """Makes a function of two distributions the divergence of theirs, as a decorator.

    Args:
        type_p, type_q: their classes; the rule holds for classes derived from them, too.
    """

    def enter(function: Rule) -> Rule:
        _RULES[type_p, type_q] = function
        return function

    return enter


def _rule_of(type_p: type, type_q: type) -> Rule | None:
    """The rule of the nearest classes; by p first, with a warning if by q first it is another."""
    p_order, q_order = type_p.__mro__, type_q.__mro__
    pairs = [pair for pair in _RULES if pair[0] in p_order and pair[1] in q_order]
    if not pairs:
        return None
    distance = {pair: (p_order.index(pair[0]), q_order.index(pair[1])) for pair in pairs}
    by_p = min(pairs, key=distance.__getitem__)
    by_q = min(pairs, key=lambda pair: distance[pair][::-1])
    if _RULES[by_p] is not _RULES[by_q]:
        warnings.warn(
            f"two rules fit kl_divergence of {type_p.__name__} and {type_q.__name__}: "
            f"register_kl({by_p[0].__name__}, {by_q[1].__name__}) says which",
            RuntimeWarning, stacklevel=3,
        )  # fmt: skip
    return _RULES[by_p]


# Of one kind --------------------------------------------------------------------------------------


def _independent(p: Independent, q: Independent) -> Tensor | None:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        return None
    return p.summed(kl_divergence(p.base_dist, q.base_dist))


def _transformed(p: TransformedDistribution, q: TransformedDistribution) -> Tensor | None:
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        return None
    return kl_divergence(p.base_dist, q.base_dist)


def _half_normal(p: HalfNormal, q: HalfNormal) -> Tensor:
    return _normal(p.base_dist, q.base_dist)


def _one_hot(p: OneHotCategorical, q: OneHotCategorical) -> Tensor:
    return _categorical(p._categorical, q._categorical)


def _geometric(p: Geometric, q: Geometric) -> Tensor:
    return -p.entropy() - (-q.probs).log1p() / p.probs - q.logits


def _poisson(p: Poisson, q: Poisson) -> Tensor:
    result: Tensor = p.rate * (p.rate.log() - q.rate.log()) - (p.rate - q.rate)
    return result


def _normal(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale).pow(2)
    distance = ((p.loc - q.loc) / q.scale).pow(2)
    result: Tensor = 0.5 * (ratio + distance - 1.0 - ratio.log())
    return result


def _laplace(p: Laplace, q: Laplace) -> Tensor:
    ratio, distance = p.scale / q.scale, (p.loc - q.loc).abs()
    near = ratio * (-distance / p.scale).exp()
    return -ratio.log() + distance / q.scale + near - 1.0


def _cauchy(p: Cauchy, q: Cauchy) -> Tensor:
    apart = (p.scale + q.scale).pow(2) + (p.loc - q.loc).pow(2)
    result: Tensor = apart.log() - (4 * p.scale * q.scale).log()
    return result


def _gumbel(p: Gumbel, q: Gumbel) -> Tensor:
    ratio, apart = p.scale / q.scale, (p.loc - q.loc) / q.scale
    far = (lgamma(1 + ratio) - apart).exp()
    return apart - ratio.log() + ratio * EULER + far - (1 + EULER)


def _uniform(p: Uniform, q: Uniform) -> Tensor:
    ratio = ((q.high - q.low) / (p.high - p.low)).log()
    return _infinite_where((q.low > p.low).logical_or(q.high < p.high), ratio)


def _exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - ratio.log() - 1.0


def _bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    one = p.probs * (softplus(-q.logits) - softplus(-p.logits))
    zero = (1.0 - p.probs) * (softplus(q.logits) - softplus(p.logits))
    one = where(p.probs == 0, 0.0, _infinite_where(q.probs == 0, one))
    zero = where(p.probs == 1, 0.0, _infinite_where(q.probs == 1, zero))
    result: Tensor = one + zero
    return result


def _categorical(p: Categorical, q: Categorical) -> Tensor:
    each = _infinite_where(q.probs == 0, p.probs * (p.logits - q.logits))
    result: Tensor = where(p.probs == 0, 0.0, each).sum(dim=-1)
    return result


# Of two kinds -------------------------------------------------------------------------------------


def _infinite_where(outside: Tensor, value: Tensor) -> Tensor:
    result: Tensor = where(outside, math.inf, value)
    return result


def _never(name: str) -> Rule:
    """The rule where q gives no density to what p does: infinite, of the shape of a parameter."""

    def rule(p: Any, q: Any) -> Tensor:
        return full_like(getattr(p, name), math.inf)

    return rule


def _square_about(q: Normal, mean: Tensor, variance: Tensor) -> Tensor:
    """Minus the expected log density of q, by the mean and variance of p."""
    spread = (variance + (mean - q.loc).pow(2)) / (2.0 * q.scale.pow(2))
    result: Tensor = spread + q.scale.log() + 0.5 * math.log(2 * math.pi)
    return result


def _to_normal(p: Any, q: Normal) -> Tensor:
    result: Tensor = _square_about(q, p.mean, p.variance) - p.entropy()
    return result


def _to_exponential(p: Any, q: Exponential) -> Tensor:
    result: Tensor = q.rate * p.mean - q.rate.log() - p.entropy()
    return result


def _bernoulli_poisson(p: Bernoulli, q: Poisson) -> Tensor:
    return -p.entropy() - (p.probs * q.rate.log() - q.rate)


def _to_gamma(q: Gamma, mean: Tensor, mean_of_log: Tensor) -> Tensor:
    """Minus the expected log density of q, by the means of x and of its logarithm."""
    a = q.concentration
    result: Tensor = lgamma(a) - a * q.rate.log() - (a - 1.0) * mean_of_log + q.rate * mean
    return result


def _beta_gamma(p: Beta, q: Gamma) -> Tensor:
    log = digamma(p.concentration1) - digamma(p.concentration1 + p.concentration0)
    return _to_gamma(q, p.mean, log) - p.entropy()


def _beta_uniform(p: Beta, q: Uniform) -> Tensor:
    value = (q.high - q.low).log() - p.entropy()
    return _infinite_where((q.low > 0).logical_or(q.high < 1), value)


def _exponential_gamma(p: Exponential, q: Gamma) -> Tensor:
    return _to_gamma(q, p.mean, -EULER - p.rate.log()) - p.entropy()


def _gamma_gumbel(p: Any, q: Gumbel) -> Tensor:
    """Of a gamma variable, or an exponential one, whose concentration is 1."""
    a: Any = 1.0 if isinstance(p, Exponential) else p.concentration
    product, start = p.rate * q.scale, q.loc / q.scale
    far = start.exp() * (1.0 + 1.0 / product).pow(-a)
    result: Tensor = a / product - start + far + q.scale.log() - p.entropy()
    return result


def _normal_gumbel(p: Normal, q: Gumbel) -> Tensor:
    apart, ratio = (p.loc - q.loc) / q.scale, (p.scale / q.scale).pow(2)
    far = (0.5 * ratio - apart).exp()
    result: Tensor = apart + far - 0.5 * ratio.log() - 0.5 * (1 + math.log(2 * math.pi))
    return result


def _normal_laplace(p: Normal, q: Laplace) -> Tensor:
    apart = p.loc - q.loc
    scaled = apart / p.scale
    near = math.sqrt(2 / math.pi) * p.scale * (-0.5 * scaled.pow(2)).exp()
    distance = near + apart * (math.sqrt(0.5) * scaled).erf()
    result: Tensor = distance / q.scale - (p.scale / q.scale).log()
    return result - 0.5 * (1 + math.log(0.5 * math.pi))


def _mean_of_log(p: Uniform) -> Tensor:
    width = p.high - p.low
    return (xlogy(p.high, p.high) - xlogy(p.low, p.low) - width) / width


def _uniform_beta(p: Uniform, q: Beta) -> Tensor:
    low, high, width = 1 - p.high, 1 - p.low, p.high - p.low
    of_rest = (xlogy(high, high) - xlogy(low, low) - width) / width
    logs = (q.concentration1 - 1) * _mean_of_log(p) + (q.concentration0 - 1) * of_rest
    value = q.log_normalizer() - logs - width.log()
    return _infinite_where((p.high > 1).logical_or(p.low < 0), value)


def _uniform_exponential(p: Uniform, q: Exponential) -> Tensor:
    return _infinite_where(p.low < 0, _to_exponential(p, q))


def _uniform_gamma(p: Uniform, q: Gamma) -> Tensor:
    value = _to_gamma(q, p.mean, _mean_of_log(p)) - p.entropy()
    return _infinite_where(p.low < 0, value)


def _uniform_gumbel(p: Uniform, q: Gumbel) -> Tensor:
    share = q.scale / (p.high - p.low)
    high, low = (p.high - q.loc) / q.scale, (p.low - q.loc) / q.scale
    result: Tensor = share.log() + 0.5 * (high + low) - share * ((-high).exp() - (-low).exp())
    return result


_RULES: dict[tuple[type, type], Rule] = {
    (Normal, Normal): _normal,
    (Laplace, Laplace): _laplace,
    (Cauchy, Cauchy): _cauchy,
    (Gumbel, Gumbel): _gumbel,
    (Uniform, Uniform): _uniform,
    (Exponential, Exponential): _exponential,
    (Bernoulli, Bernoulli): _bernoulli,
    (Categorical, Categorical): _categorical,
    (Gamma, Gamma): gamma_divergence,
    (Beta, Beta): beta_divergence,
    (Dirichlet, Dirichlet): dirichlet_divergence,
    (MultivariateNormal, MultivariateNormal): normal_divergence,
    (HalfNormal, HalfNormal): _half_normal,
    (OneHotCategorical, OneHotCategorical): _one_hot,
    (Geometric, Geometric): _geometric,
    (Poisson, Poisson): _poisson,
    (Independent, Independent): _independent,
    (TransformedDistribution, TransformedDistribution): _transformed,
    (Bernoulli, Poisson): _bernoulli_poisson,
    (Poisson, Bernoulli): _never("rate"),
    (Beta, Exponential): _to_exponential,
    (Beta, Gamma): _beta_gamma,
    (Beta, Uniform): _beta_uniform,
    (Exponential, Gamma): _exponential_gamma,
    (Exponential, Gumbel): _gamma_gumbel,
    (Gamma, Exponential): _to_exponential,
    (Gamma, Gumbel): _gamma_gumbel,
    (Normal, Gumbel): _normal_gumbel,
    (Normal, Laplace): _normal_laplace,
    (Uniform, Beta): _uniform_beta,
    (Uniform, Exponential): _uniform_exponential,
    (Uniform, Gamma): _uniform_gamma,
    (Uniform, Gumbel): _uniform_gumbel,
    **{(kind, Normal): _to_normal for kind in (Beta, Exponential, Gamma, Gumbel, Laplace, Uniform)},
    **{(Exponential, kind): _never("rate") for kind in (Beta, Uniform)},
    **{(Gamma, kind): _never("concentration") for kind in (Beta, Uniform)},
    **{
        (kind, other): _never("loc")
        for kind in (Gumbel, Laplace, Normal)
        for other in (Beta, Exponential, Gamma, Uniform)
    },
}
