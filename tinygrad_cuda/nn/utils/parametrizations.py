"""Weight norm, spectral norm and orthogonal matrices as parametrizations.

References: Salimans and Kingma (2016), Miyato et al. (2018), Lezcano-Casado (2019).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.nn.conv import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from tinygrad_cuda.nn.functional.normalizations import normalize
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.nn.utils.parametrize import register_parametrization
from tinygrad_cuda.nn.utils.reparametrize import lengths
from tinygrad_cuda.tensors.creation import empty, eye, tensor
from tinygrad_cuda.tensors.linalg.factorizing import matrix_exp, qr, solve
from tinygrad_cuda.tensors.shaping import cat
from tinygrad_cuda.tensors.tensor import Tensor

__all__ = ["orthogonal", "spectral_norm", "weight_norm"]


def _weight(op: str, module: Any, name: str) -> Tensor:
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ArgumentError(
            op, f"there is no tensor {name!r}", expect="a parameter or buffer",
            actual=type(module).__name__,
        )  # fmt: skip
    return weight


# Weight norm --------------------------------------------------------------------------------


class _WeightNorm(Module):
    def __init__(self, dim: int | None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, length: Tensor, direction: Tensor) -> Tensor:
        result: Tensor = direction * (length / lengths(direction, self.dim))
        return result

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return lengths(weight, self.dim), weight


def weight_norm(module: Any, name: str = "weight", dim: int | None = 0) -> Any:
    """Makes a weight ``g v / |v|``: lengths (original0) and directions (original1) apart.

    Args:
        module: changed in place.
        name: the parameter.
        dim: the axis along which there is a length each; None for one in all.

    Returns:
        The module. States of the older `tinygrad_cuda.nn.utils.weight_norm` load into it.

    Raises:
        ArgumentError: there is no such parameter.
    """
    register_parametrization(module, name, _WeightNorm(dim), unsafe=True)

    def rename(module: Any, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        old = f"{prefix}{name}_g", f"{prefix}{name}_v"
        if all(key in state for key in old):
            for number, key in enumerate(old):
                state[f"{prefix}parametrizations.{name}.original{number}"] = state.pop(key)

    module.register_load_state_dict_pre_hook(rename)
    return module


# Spectral norm ------------------------------------------------------------------------------


class _SpectralNorm(Module):
    _u: Tensor
    _v: Tensor

    def __init__(self, weight: Tensor, n_power_iterations: int, dim: int, eps: float) -> None:
        super().__init__()
        if n_power_iterations < 1 or not -weight.ndim <= dim < weight.ndim:
            raise ArgumentError(
                "spectral_norm", "an option is out of range",
                expect=f"n_power_iterations >= 1, dim of {weight.ndim} dimensions",
                actual=f"{n_power_iterations} and {dim}",
            )  # fmt: skip
        self.dim, self.eps = dim % weight.ndim, eps
        self.n_power_iterations = n_power_iterations
        if weight.ndim > 1:
            matrix = self._as_matrix(weight.detach())
            own: dict[str, Any] = {"device": weight.device, "dtype": weight.dtype}
            for part, size in zip(("_u", "_v"), matrix.shape):
                start = normalize(empty(size, **own).normal_(), dim=0, eps=eps)
                self.register_buffer(part, start)
            self._refine(matrix, 15)

    def _as_matrix(self, weight: Tensor) -> Tensor:
        return weight.movedim(self.dim, 0).flatten(1)

    def _refine(self, matrix: Tensor, times: int) -> None:
        with gradient_mode(False):
            fixed, left, right = matrix.detach(), self._u.detach(), self._v.detach()
            for _ in range(times):
                left = normalize(fixed @ right, dim=0, eps=self.eps)
                right = normalize(fixed.T @ left, dim=0, eps=self.eps)
            self._u.copy_(left)
            self._v.copy_(right)

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return normalize(weight, dim=0, eps=self.eps)
        matrix = self._as_matrix(weight)
        if self.training:
            self._refine(matrix, self.n_power_iterations)
        # Values of now: the buffers are written again before the gradient is asked for.
        sigma = (self._u.clone() * (matrix @ self._v.clone())).sum()
        result: Tensor = weight / sigma
        return result

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def spectral_norm(
    module: Any, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12,
    dim: int | None = None,
) -> Any:  # fmt: skip
    """Makes a weight ``W / sigma``, sigma an estimate of its largest singular value.

    Args:
        module: changed in place.
        name: the parameter.
        n_power_iterations: how often the singular vectors are refined whenever the weight is
            looked at in training mode.
        eps: added where a vector is divided by its length.
        dim: the axis of the outputs; 0, or 1 for transposed convolutions, when left out.

    Returns:
        The module.

    Raises:
        ArgumentError: there is no such parameter, or an option is out of range.
    """
    weight = _weight("spectral_norm", module, name)
    if dim is None:
        transposed = isinstance(module, ConvTranspose1d | ConvTranspose2d | ConvTranspose3d)
        dim = 1 if transposed else 0
    made = _SpectralNorm(weight, n_power_iterations, dim, eps)
    return register_parametrization(module, name, made)


# Orthogonal matrices ------------------------------------------------------------------------

_MAPS = ("matrix_exp", "cayley", "householder")


class _Orthogonal(Module):
    base: Tensor | None

    def __init__(self, weight: Tensor, orthogonal_map: str, use_trivialization: bool) -> None:
        super().__init__()
        self.shape = tuple(weight.shape)
        self.orthogonal_map = orthogonal_map
        self.use_trivialization = use_trivialization
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.shape[-2] < x.shape[-1]
        x = x.mT if wide else x
        q = _reflections(x) if self.orthogonal_map == "householder" else self._rotation(x)
        if self.use_trivialization:
            q = self.base @ q
        return q.mT if wide else q

    def _rotation(self, x: Tensor) -> Tensor:
        """Columns of a matrix made from a skew-symmetric one."""
        n, k = x.shape[-2:]
        x = x.tril()
        if n != k:
            x = cat([x, x.new_zeros(*x.shape[:-2], n, n - k)], -1)
        skew = x - x.mT
        if self.orthogonal_map == "matrix_exp":
            q = matrix_exp(skew)
        else:
            one = eye(n, dtype=x.dtype, device=x.device)
            q = solve(one - skew * 0.5, one + skew * 0.5)
        return q[..., :k] if n != k else q

    def right_inverse(self, q: Tensor) -> Tensor:
        if tuple(q.shape) != self.shape:
            raise ShapeError(
                "orthogonal", "the matrix has another shape", expect=str(self.shape),
                actual=str(tuple(q.shape)),
            )  # fmt: skip
        wide = q.shape[-2] < q.shape[-1]
        tall = q.mT if wide else q
        if not self.use_trivialization:
            if self.orthogonal_map != "householder":
                raise NotImplementedError(
                    "matrix_exp and cayley have no inverse without use_trivialization"
                )
            packed = _reflectors(tall)
            return packed.mT if wide else packed
        n, k = tall.shape[-2:]
        if n != k:
            drawn = empty(*tall.shape[:-2], n, n - k, dtype=q.dtype, device=q.device).normal_()
            tall = cat([tall, drawn], -1)
        self.base = tall.clone() if n == k and _is_orthogonal(tall) else _orthogonalized(tall)
        start = np.zeros(self.shape, q.dtype.numpy)
        diagonal = np.arange(min(self.shape[-2:]))
        # The diagonal's signs are those of the reflections; minus one gives the identity.
        start[..., diagonal, diagonal] = -1
        return tensor(start, device=q.device)


def _reflections(x: Tensor) -> Tensor:
    """The first columns of a product of Householder reflections, below the diagonal of x."""
    n, k = x.shape[-2:]
    below = x.tril(-1)
    factors = 2.0 / (1.0 + (below * below).sum(-2))
    one = eye(n, k, dtype=x.dtype, device=x.device)
    vectors = below + one
    q = one.expand(*x.shape[:-2], n, k)
    for i in reversed(range(k)):
        v = vectors[..., :, i : i + 1]
        q = q - factors[..., i : i + 1].unsqueeze(-1) * (v @ (v.mT @ q))
    return q * x.detach().diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)


def _reflectors(q: Tensor) -> Tensor:
    """Reflectors of a QR decomposition below the diagonal, and the signs of R on it."""
    packed, factors = np.linalg.qr(q.detach().cpu().numpy(), mode="raw")
    result = np.ascontiguousarray(np.swapaxes(packed, -1, -2))
    diagonal = np.arange(result.shape[-1])
    signs = np.sign(result[..., diagonal, diagonal])
    # LAPACK gives exactly zero where it does not reflect.
    result[..., diagonal, diagonal] = np.where(factors == 0, -signs, signs)
    return tensor(result, dtype=q.dtype, device=q.device)


def _is_orthogonal(q: Tensor) -> bool:
    array = q.detach().cpu().numpy()
    size = array.shape[-1]
    gram = np.swapaxes(array, -1, -2) @ array
    return bool(np.allclose(gram, np.eye(size), atol=10.0 * size * np.finfo(array.dtype).eps))


def _orthogonalized(a: Tensor) -> Tensor:
    """Q of A = QR with no negative number on the diagonal of R."""
    factors = qr(a)
    result: Tensor = factors.Q * factors.R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return result


def orthogonal(
    module: Any, name: str = "weight", orthogonal_map: str | None = None, *,
    use_trivialization: bool = True,
) -> Any:  # fmt: skip
    """Keeps a matrix, or a batch of them, orthogonal: its columns, or rows if it is wide.

    Args:
        module: changed in place.
        name: the parameter; made orthogonal if it is not.
        orthogonal_map: ``matrix_exp`` (for square ones when left out), ``cayley``, or
            ``householder`` (for others).
        use_trivialization: maps are taken around a base, which starts as the present value.

    Returns:
        The module.

    Raises:
        ArgumentError: there is no such parameter, no such map, or it is no matrix.

    Example:
        >>> import tinygrad_cuda as tc
        >>> q = orthogonal(tc.nn.Linear(3, 5, device="cpu")).weight
        >>> (q.T @ q).allclose(tc.eye(3, device="cpu"), atol=1e-5)
        True
    """
    weight = _weight("orthogonal", module, name)
    if weight.ndim < 2:
        raise ArgumentError(
            "orthogonal", "needs a matrix", expect="two or more dimensions",
            actual=str(tuple(weight.shape)),
        )  # fmt: skip
    square = weight.shape[-2] == weight.shape[-1]
    chosen = orthogonal_map or ("matrix_exp" if square else "householder")
    if chosen not in _MAPS:
        raise ArgumentError(
            "orthogonal", "no such map", expect=", ".join(_MAPS), actual=repr(orthogonal_map)
        )
    made = _Orthogonal(weight, chosen, use_trivialization)
    return register_parametrization(module, name, made, unsafe=True)
