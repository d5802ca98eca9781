"""kl_divergence: the expected log ratio of two distributions, in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.distributions.continuous import (
    Exponential,
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
    OneHotCategoricalStraightThrough,
    Poisson,
    softplus,
)
from tinygrad_cuda.distributions.distribution import Distribution, Independent
from tinygrad_cuda.distributions.gamma import (
    Beta,
    Chi2,
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
from tinygrad_cuda.distributions.transformed import LogNormal
from tinygrad_cuda.tensors.indexing.selecting import where
from tinygrad_cuda.tensors.tensor import Tensor

Rule = Callable[[Any, Any], Any]


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    r"""The Kullback-Leibler divergence of p from q.

    .. math:: \operatorname{E}_{x \sim p}[\log p(x) - \log q(x)]

    Args:
        p, q: of one kind.

    Raises:
        ArgumentError: there is no closed form here for the two.

    Example:
        >>> from tinygrad_cuda.distributions import Normal
        >>> round(kl_divergence(Normal(0.0, 1.0), Normal(1.0, 1.0)).item(), 4)
        0.5
    """
    own = _own_rule(type(p), type(q))
    if own is not None:
        result: Tensor = own(p, q)
        return result
    if isinstance(p, Independent) and isinstance(q, Independent) and p.count == q.count:
        return p.summed(kl_divergence(p.base_dist, q.base_dist))
    if type(p) is not type(q) or type(p) not in _RULES:
        raise ArgumentError(
            "kl_divergence", "there is no closed form for the two",
            expect=f"two of one kind: {', '.join(kind.__name__ for kind in _RULES)}",
            actual=f"{type(p).__name__} and {type(q).__name__}",
        )  # fmt: skip
    return _RULES[type(p)](p, q)


def register_kl(type_p: type, type_q: type) -> Callable[[Rule], Rule]:
    """Makes a function of two distributions the divergence of theirs, as a decorator.

    Args:
        type_p, type_q: their classes; the rule holds for classes derived from them, too.
    """

    def enter(function: Rule) -> Rule:
        _OWN[type_p, type_q] = function
        return function

    return enter


def _own_rule(type_p: type, type_q: type) -> Rule | None:
    """The rule of the nearest classes that one was registered for."""
    for p in type_p.__mro__:
        for q in type_q.__mro__:
            if (p, q) in _OWN:
                return _OWN[p, q]
    return None


def _half_normal(p: HalfNormal, q: HalfNormal) -> Tensor:
    return _normal(p.base_dist, q.base_dist)


def _log_normal(p: LogNormal, q: LogNormal) -> Tensor:
    return kl_divergence(p.base_dist, q.base_dist)


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


def _uniform(p: Uniform, q: Uniform) -> Tensor:
    ratio = ((q.high - q.low) / (p.high - p.low)).log()
    result: Tensor = where((q.low > p.low).logical_or(q.high < p.high), math.inf, ratio)
    return result


def _exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - ratio.log() - 1.0


def _bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    # Each with q's logits: no difference of large numbers.
    return p.probs * (p.logits - q.logits) + softplus(q.logits) - softplus(p.logits)


def _categorical(p: Categorical, q: Categorical) -> Tensor:
    result: Tensor = (p.probs * (p.logits - q.logits)).sum(dim=-1)
    return result


_OWN: dict[tuple[type, type], Rule] = {}
_RULES: dict[type[Distribution], Callable[[Any, Any], Tensor]] = {
    Normal: _normal,
    Laplace: _laplace,
    Uniform: _uniform,
    Exponential: _exponential,
    Bernoulli: _bernoulli,
    Categorical: _categorical,
    Gamma: gamma_divergence,
    Chi2: gamma_divergence,
    Beta: beta_divergence,
    Dirichlet: dirichlet_divergence,
    MultivariateNormal: normal_divergence,
    HalfNormal: _half_normal,
    LogNormal: _log_normal,
    OneHotCategorical: _one_hot,
    OneHotCategoricalStraightThrough: _one_hot,
    Geometric: _geometric,
    Poisson: _poisson,
}
