"""`tc.distributions`: probability distributions by PyTorch's names, differentiable."""

from typing import TYPE_CHECKING

from tinygrad_cuda.core.names import also_named, missing_from
from tinygrad_cuda.distributions import (
    continuous,
    discrete,
    distribution,
    divergence,
    gamma,
)
from tinygrad_cuda.distributions.continuous import Exponential, Laplace, Normal, Uniform
from tinygrad_cuda.distributions.discrete import Bernoulli, Categorical
from tinygrad_cuda.distributions.distribution import Distribution, Independent
from tinygrad_cuda.distributions.divergence import kl_divergence
from tinygrad_cuda.distributions.gamma import Beta, Chi2, Dirichlet, Gamma
from tinygrad_cuda.distributions.multivariate_normal import MultivariateNormal

__all__ = [
    "Bernoulli",
    "Beta",
    "Categorical",
    "Chi2",
    "Dirichlet",
    "Distribution",
    "Exponential",
    "Gamma",
    "Independent",
    "Laplace",
    "MultivariateNormal",
    "Normal",
    "Uniform",
    "kl_divergence",
]

# PyTorch has a module for each distribution.
also_named(
    __name__,
    {
        "bernoulli": discrete, "beta": gamma, "categorical": discrete, "chi2": gamma,
        "dirichlet": gamma, "exponential": continuous, "independent": distribution,
        "kl": divergence, "laplace": continuous, "normal": continuous, "uniform": continuous,
    },
)  # fmt: skip

if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
