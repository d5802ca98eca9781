"""MultivariateNormal: by covariance, precision or Cholesky factor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.shapes import broadcast
from tinygrad_cuda.distributions import constraints
from tinygrad_cuda.distributions.continuous import HALF_LOG_TAU
from tinygrad_cuda.distributions.distribution import Distribution
from tinygrad_cuda.tensors.linalg.factorizing import cholesky, inv, solve_triangular
from tinygrad_cuda.tensors.random import randn
from tinygrad_cuda.tensors.tensor import Tensor


class MultivariateNormal(Distribution):
    r"""The normal distribution of vectors.

    .. math:: \log p(x) = -\tfrac{1}{2} (x - \mu)^T \Sigma^{-1} (x - \mu)
        - \tfrac{1}{2} \log \det \Sigma - \tfrac{n}{2} \log 2 \pi

    Args:
        loc: :math:`\mu`, shape (..., n).
        covariance_matrix: :math:`\Sigma`, shape (..., n, n); or else
        precision_matrix: its inverse; or else
        scale_tril: its lower Cholesky factor.
        validate_args: whether parameters are looked at and checked.

    Raises:
        ArgumentError: none or several of the matrices are given, or a factor's diagonal is not
            above zero.

    Example:
        >>> import tinygrad_cuda as tc
        >>> normal = MultivariateNormal(tc.zeros(2, device="cpu"), tc.eye(2, device="cpu"))
        >>> round(normal.log_prob(tc.ones(2, device="cpu")).item(), 4)
        -2.8379
    """

    has_rsample = True
    arg_constraints: Any = {
        "loc": constraints.real_vector, "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }  # fmt: skip
    support: Any = constraints.real_vector

    def __init__(
        self, loc: Tensor, covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None, scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        given = [m for m in (covariance_matrix, precision_matrix, scale_tril) if m is not None]
        if len(given) != 1:
            raise ArgumentError(
                "MultivariateNormal", "one matrix says how values spread",
                expect="one of covariance_matrix, precision_matrix and scale_tril",
                actual=f"{len(given)} of them",
            )  # fmt: skip
        size = given[0].shape[-1]
        shape = broadcast("MultivariateNormal", tuple(loc.shape), (*given[0].shape[:-2], size))
        super().__init__(shape[:-1], shape[-1:], validate_args)
        self.loc = loc.expand(*shape)
        if scale_tril is not None:
            factor = scale_tril
            diagonal = factor.diagonal(0, -2, -1)
            self.check((diagonal > 0).all(-1), "scale_tril", "a diagonal above zero")
        else:
            factor = cholesky(given[0] if precision_matrix is None else inv(given[0]))
        self._unbroadcast = factor
        self.scale_tril = factor.expand(*shape, size)

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self.loc

    mode = mean

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance of each two elements."""
        return self.scale_tril @ self.scale_tril.mT

    @property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        return inv(self.covariance_matrix)

    @property
    def variance(self) -> Tensor:
        """The variance of each element."""
        variance: Tensor = self.scale_tril.pow(2.0).sum(-1)
        return variance

    def half_log_det(self) -> Tensor:
        """Half the logarithm of the covariance's determinant."""
        result: Tensor = self.scale_tril.diagonal(0, -2, -1).log().sum(-1)
        return result

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density."""
        distance = value - self.loc
        factor = self._unbroadcast
        shape = broadcast("log_prob", tuple(distance.shape[:-1]), tuple(factor.shape[:-2]))
        size = factor.shape[-1]
        if factor.ndim == 2:
            # One factor for all: the vectors are the columns of one right side.
            columns = distance.reshape(-1, size).mT
            solved = solve_triangular(factor, columns, upper=False).mT.reshape(*shape, size)
        else:
            wide = factor.expand(*shape, size, size)
            right = distance.expand(*shape, size).unsqueeze(-1)
            solved = solve_triangular(wide, right, upper=False).squeeze(-1)
        result: Tensor = -0.5 * solved.pow(2.0).sum(-1) - self.half_log_det() - size * HALF_LOG_TAU
        return result

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        return self.half_log_det() + self.event_shape[0] * (0.5 + HALF_LOG_TAU)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Samples, with gradients to both parameters."""
        shape = self.shape_of(sample_shape)
        drawn = randn(*shape, dtype=self.loc.dtype, device=self.loc.device)
        spread: Tensor = (self.scale_tril @ drawn.unsqueeze(-1)).squeeze(-1)
        return self.loc + spread


def normal_divergence(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    """The closed form for `kl_divergence`."""
    size = p.event_shape[0]
    shape = broadcast("kl_divergence", p.batch_shape, q.batch_shape)
    factor = q.scale_tril.expand(*shape, size, size)
    ratio = solve_triangular(factor, p.scale_tril.expand(*shape, size, size), upper=False)
    apart = (q.loc - p.loc).expand(*shape, size).unsqueeze(-1)
    moved = solve_triangular(factor, apart, upper=False)
    spread: Any = ratio.pow(2.0).sum((-2, -1)) + moved.pow(2.0).sum((-2, -1)) - size
    result: Tensor = q.half_log_det() - p.half_log_det() + 0.5 * spread
    return result
