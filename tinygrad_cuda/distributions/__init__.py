"""`tc.distributions`: probability distributions by PyTorch's names, differentiable."""

from typing import TYPE_CHECKING

from tinygrad_cuda.core.names import also_named, missing_from
from tinygrad_cuda.distributions import (
    constraint_registry,
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
from tinygrad_cuda.distributions.constraint_registry import biject_to, transform_to
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
    CatTransform,
    ComposeTransform,
    CorrCholeskyTransform,
    CumulativeDistributionTransform,
    ExpTransform,
    IndependentTransform,
    LowerCholeskyTransform,
    PositiveDefiniteTransform,
    PowerTransform,
    ReshapeTransform,
    SigmoidTransform,
    SoftmaxTransform,
    SoftplusTransform,
    StackTransform,
    StickBreakingTransform,
    TanhTransform,
    Transform,
    identity_transform,
)

__all__ = [
    "AbsTransform",
    "AffineTransform",
    "Bernoulli",
    "Beta",
    "CatTransform",
    "Categorical",
    "Cauchy",
    "Chi2",
    "ComposeTransform",
    "CorrCholeskyTransform",
    "CumulativeDistributionTransform",
    "Dirichlet",
    "Distribution",
    "ExpTransform",
    "Exponential",
    "Gamma",
    "Geometric",
    "Gumbel",
    "HalfNormal",
    "Independent",
    "IndependentTransform",
    "Laplace",
    "LogNormal",
    "LowerCholeskyTransform",
    "MixtureSameFamily",
    "MultivariateNormal",
    "Normal",
    "OneHotCategorical",
    "OneHotCategoricalStraightThrough",
    "Poisson",
    "PositiveDefiniteTransform",
    "PowerTransform",
    "RelaxedBernoulli",
    "RelaxedOneHotCategorical",
    "ReshapeTransform",
    "SigmoidTransform",
    "SoftmaxTransform",
    "SoftplusTransform",
    "StackTransform",
    "StickBreakingTransform",
    "StudentT",
    "TanhTransform",
    "Transform",
    "TransformedDistribution",
    "Uniform",
    "biject_to",
    "constraint_registry",
    "constraints",
    "identity_transform",
    "kl_divergence",
    "register_kl",
    "transform_to",
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
