"""`tc.distributions`: probability distributions by PyTorch's names, differentiable."""

from typing import TYPE_CHECKING

from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.distributions.continuous import Exponential, Laplace, Normal, Uniform
from tinygrad_cuda.distributions.discrete import Bernoulli, Categorical
from tinygrad_cuda.distributions.distribution import Distribution, Independent
from tinygrad_cuda.distributions.divergence import kl_divergence

__all__ = [
    "Bernoulli",
    "Categorical",
    "Distribution",
    "Exponential",
    "Independent",
    "Laplace",
    "Normal",
    "Uniform",
    "kl_divergence",
]

if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
