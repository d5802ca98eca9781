"""`tc.special`: special functions by PyTorch's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.tensor.exponentials import log_softmax, logsumexp, softmax
from tinygrad_cuda.tensor.math import erf, exp2, expm1, log1p, round
from tinygrad_cuda.tensor.special import (
    digamma,
    entr,
    erfc,
    erfinv,
    expit,
    logit,
    ndtr,
    ndtri,
    polygamma,
    sinc,
    xlog1py,
    xlogy,
)
from tinygrad_cuda.tensor.special import lgamma as gammaln
from tinygrad_cuda.tensor.special import mvlgamma as multigammaln

psi = digamma

__all__ = [
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfinv",
    "exp2",
    "expit",
    "expm1",
    "gammaln",
    "log1p",
    "log_softmax",
    "logit",
    "logsumexp",
    "multigammaln",
    "ndtr",
    "ndtri",
    "polygamma",
    "psi",
    "round",
    "sinc",
    "softmax",
    "xlog1py",
    "xlogy",
]


if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
