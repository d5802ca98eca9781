"""`tc.distributions`: probability distributions by PyTorch's names, differentiable."""

from typing import TYPE_CHECKING

from tinygrad_cuda.core.names import also_named, missing_from
from tinygrad_cuda.distributions import (
    constraints,
    continuous,
    discrete,
    distribution,
    divergence,
    gamma,
    mixture,
    relaxed,
    student_t,
    transformed,
    transforms,
)
from tinygrad_cuda.distributions.continuous import (
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
    OneHotCategoricalStraightThrough,
    Poisson,
)
from tinygrad_cuda.distributions.distribution import Distribution, Independent
from tinygrad_cuda.distributions.divergence import kl_divergence, register_kl
from tinygrad_cuda.distributions.gamma import Beta, Chi2, Dirichlet, Gamma
from tinygrad_cuda.distributions.mixture import MixtureSameFamily
from tinygrad_cuda.distributions.multivariate_normal import MultivariateNormal
from tinygrad_cuda.distributions.relaxed import RelaxedBernoulli, RelaxedOneHotCategorical
from tinygrad_cuda.distributions.student_t import StudentT
from tinygrad_cuda.distributions.transformed import LogNormal, TransformedDistribution
from tinygrad_cuda.distributions.transforms import (
    AbsTransform,
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    PowerTransform,
    SigmoidTransform,
    SoftplusTransform,
    TanhTransform,
    Transform,
)

__all__ = [
    "AbsTransform",
    "AffineTransform",
    "Bernoulli",
    "Beta",
    "Categorical",
    "Cauchy",
    "Chi2",
    "ComposeTransform",
    "Dirichlet",
    "Distribution",
    "ExpTransform",
    "Exponential",
    "Gamma",
    "Geometric",
    "Gumbel",
    "HalfNormal",
    "Independent",
    "Laplace",
    "LogNormal",
    "MixtureSameFamily",
    "MultivariateNormal",
    "Normal",
    "OneHotCategorical",
    "OneHotCategoricalStraightThrough",
    "Poisson",
    "PowerTransform",
    "RelaxedBernoulli",
    "RelaxedOneHotCategorical",
    "SigmoidTransform",
    "SoftplusTransform",
    "StudentT",
    "TanhTransform",
    "Transform",
    "TransformedDistribution",
    "Uniform",
    "constraints",
    "kl_divergence",
    "register_kl",
    "transforms",
]

# PyTorch has a module for each distribution.
also_named(
    __name__,
    {
        "bernoulli": discrete, "beta": gamma, "categorical": discrete, "cauchy": continuous,
        "chi2": gamma, "dirichlet": gamma, "exponential": continuous, "geometric": discrete,
        "gumbel": continuous, "half_normal": continuous, "independent": distribution,
        "kl": divergence, "laplace": continuous, "log_normal": transformed,
        "mixture_same_family": mixture, "normal": continuous, "one_hot_categorical": discrete,
        "poisson": discrete, "relaxed_bernoulli": relaxed, "relaxed_categorical": relaxed,
        "studentT": student_t, "transformed_distribution": transformed, "uniform": continuous,
    },
)  # fmt: skip

if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
