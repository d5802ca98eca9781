"""Initial values: each function writes to a Tensor in place and returns it.

References: Glorot and Bengio (2010) for Xavier, He et al. (2015) for Kaiming.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad_cuda.core.dtypes import float32, float64
from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.core.names import missing_from, public
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.tensors import creation
from tinygrad_cuda.tensors.creation import empty
from tinygrad_cuda.tensors.linalg.factorizing import qr
from tinygrad_cuda.tensors.special import erfinv
from tinygrad_cuda.tensors.tensor import Tensor

_GAINS = {
    "linear": 1.0,
    "conv1d": 1.0,
    "conv2d": 1.0,
    "conv3d": 1.0,
    "conv_transpose1d": 1.0,
    "conv_transpose2d": 1.0,
    "conv_transpose3d": 1.0,
    "sigmoid": 1.0,
    "tanh": 5.0 / 3.0,
    "relu": math.sqrt(2.0),
    "selu": 3.0 / 4.0,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor by which initial values grow so that a nonlinearity keeps the variance.

    Args:
        nonlinearity: ``linear``, ``sigmoid``, ``tanh``, ``relu``, ``leaky_relu``, ``selu``, ...
        param: the negative slope of ``leaky_relu``; 0.01 when left out.

    Raises:
        ArgumentError: the name is unknown.

    Example:
        >>> round(calculate_gain("relu"), 4)
        1.4142
    """
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        raise ArgumentError(
            "calculate_gain",
            "unknown nonlinearity",
            expect=", ".join([*_GAINS, "leaky_relu"]),
            actual=repr(nonlinearity),
        )
    return _GAINS[nonlinearity]


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    """How many inputs an output sums over, and how many outputs an input reaches."""
    shape = tuple(tensor.shape)
    if len(shape) < 2:
        raise ShapeError(
            "init",
            "fan in and fan out need two dimensions",
            expect="(out, in) or (out, in, *kernel)",
            actual=str(shape),
        )
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


def _correct_fan(tensor: Tensor, mode: str) -> int:
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    if mode not in ("fan_in", "fan_out"):
        raise ArgumentError("init", "unknown mode", expect="fan_in or fan_out", actual=repr(mode))
    return fan_in if mode == "fan_in" else fan_out


_calculate_correct_fan = _correct_fan  # PyTorch's name


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Tensor:
    """Writes draws from U(a, b)."""
    with gradient_mode(False):
        return tensor.uniform_(a, b, generator=generator)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Tensor:
    r"""Writes draws from N(mean, std\ :sup:`2`)."""
    with gradient_mode(False):
        return tensor.normal_(mean, std, generator=generator)


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Writes one number to every element."""
    with gradient_mode(False):
        return tensor.fill_(val)


def zeros_(tensor: Tensor) -> Tensor:
    """Writes zeros."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Writes ones."""
    return constant_(tensor, 1.0)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    r"""Writes draws from U(-a, a), :math:`a = gain \sqrt{6 / (fan_{in} + fan_{out})}`.

    Args:
        tensor: shape (out, in) or (out, in, \*kernel).
        gain: see `calculate_gain`.
    """
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    bound = gain * math.sqrt(6.0 / max(fan_in + fan_out, 1))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    r"""Writes draws from N(0, s\ :sup:`2`), :math:`s = gain \sqrt{2 / (fan_{in} + fan_{out})}`.

    Args:
        tensor: shape (out, in) or (out, in, \*kernel).
        gain: see `calculate_gain`.
    """
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / max(fan_in + fan_out, 1)), generator)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Any = None,
) -> Tensor:
    r"""Writes draws from U(-b, b), :math:`b = gain \sqrt{3 / fan}`.

    Args:
        tensor: shape (out, in) or (out, in, \*kernel).
        a: the negative slope of a leaky ReLU after this layer.
        mode: ``fan_in`` keeps the variance in the forward pass, ``fan_out`` in the backward pass.
        nonlinearity: what follows this layer; see `calculate_gain`.
    """
    bound = calculate_gain(nonlinearity, a) * math.sqrt(3.0 / max(_correct_fan(tensor, mode), 1))
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Any = None,
) -> Tensor:
    r"""Writes draws from N(0, s\ :sup:`2`), :math:`s = gain / \sqrt{fan}`.

    Args:
        tensor: shape (out, in) or (out, in, \*kernel).
        a: the negative slope of a leaky ReLU after this layer.
        mode: ``fan_in`` keeps the variance in the forward pass, ``fan_out`` in the backward pass.
        nonlinearity: what follows this layer; see `calculate_gain`.
    """
    fan = max(_correct_fan(tensor, mode), 1)
    return normal_(tensor, 0.0, calculate_gain(nonlinearity, a) / math.sqrt(fan), generator)


def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0,
    generator: Any = None,
) -> Tensor:  # fmt: skip
    r"""Writes draws from N(mean, std\ :sup:`2`) that lie between a and b.

    Args:
        tensor: any shape.
        mean, std: of the normal distribution before it is cut.
        a, b: the least and the largest value.
    """

    def below(x: float) -> float:
        return (1.0 + math.erf((x - mean) / std / math.sqrt(2.0))) / 2.0

    low, high = 2 * below(a) - 1, 2 * below(b) - 1
    with gradient_mode(False):
        uniform_(tensor, low, high, generator)
        drawn = erfinv(tensor.detach()) * (std * math.sqrt(2.0)) + mean
        return tensor.copy_(drawn.clamp(a, b))


def eye_(tensor: Tensor) -> Tensor:
    """Writes the identity, a one on the diagonal of a matrix.

    Raises:
        ShapeError: the tensor is no matrix.
    """
    if tensor.ndim != 2:
        raise ShapeError("eye_", "needs a matrix", expect="2-d", actual=str(tuple(tensor.shape)))
    with gradient_mode(False):
        return tensor.copy_(creation.eye(*tensor.shape, device=tensor.device))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    r"""Writes kernels of a convolution that passes channels through unchanged.

    Args:
        tensor: shape (out, in, \*kernel) of three to five dimensions.
        groups: must divide the output channels.

    Raises:
        ShapeError: the shape does not fit.
    """
    shape = tuple(tensor.shape)
    if len(shape) not in (3, 4, 5) or shape[0] % groups:
        raise ShapeError(
            "dirac_", "the shape does not fit", expect=f"(out, in, *kernel), out % {groups} == 0",
            actual=str(shape),
        )  # fmt: skip
    each = shape[0] // groups
    values = np.zeros(shape)
    middle = tuple(size // 2 for size in shape[2:])
    for group in range(groups):
        for channel in range(min(each, shape[1])):
            values[(group * each + channel, channel, *middle)] = 1.0
    with gradient_mode(False):
        return tensor.copy_(values)


def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    r"""Writes a matrix with orthonormal rows or columns, times gain (Saxe et al., 2014).

    Args:
        tensor: shape (out, \*rest); rest counts as one dimension.
        gain: see `calculate_gain`.

    Raises:
        ShapeError: the tensor has fewer than two dimensions.
    """
    if tensor.ndim < 2:
        raise ShapeError(
            "orthogonal_", "needs two dimensions", expect="at least 2-d",
            actual=str(tuple(tensor.shape)),
        )  # fmt: skip
    rows = tensor.shape[0]
    columns = tensor.numel() // max(rows, 1)
    with gradient_mode(False):
        kind = float64 if tensor.dtype is float64 else float32
        flat = empty(rows, columns, device=tensor.device, dtype=kind)
        flat.normal_(generator=generator)
        q, r = qr(flat.T if rows < columns else flat)
        # With the signs of R's diagonal, Q is uniformly distributed.
        q = q * r.diagonal().sign()
        q = q.T if rows < columns else q
        return tensor.copy_(q.reshape(tensor.shape) * gain)


def sparse_(
    tensor: Tensor, sparsity: float, std: float = 0.01, generator: Any = None
) -> Tensor:  # fmt: skip
    """Writes draws from N(0, std ** 2) with a share `sparsity` of zeros in each column.

    Raises:
        ShapeError: the tensor is no matrix.
    """
    if tensor.ndim != 2:
        raise ShapeError("sparse_", "needs a matrix", expect="2-d", actual=str(tuple(tensor.shape)))
    zeros = math.ceil(sparsity * tensor.shape[0])
    with gradient_mode(False):
        normal_(tensor, 0.0, std, generator)
        drawn = empty(*tensor.shape, device="cpu").uniform_(generator=generator).numpy()
        mask = drawn.argsort(0).argsort(0) >= zeros
        return tensor.mul_(_given(mask, tensor))


# Older names ----------------------------------------------------------------------------------


def _old(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function under the name without its last underline, with a warning."""
    new = function.__name__
    old = new.removesuffix("_")

    def older(*args: Any, **options: Any) -> Tensor:
        warnings.warn(
            f"`nn.init.{old}` is now deprecated in favor of `nn.init.{new}`.", FutureWarning, 2
        )
        return function(*args, **options)

    older.__name__ = older.__qualname__ = old
    older.__doc__ = f"`{new}`, under its older name; warns."
    return older


uniform = _old(uniform_)
normal = _old(normal_)
constant = _old(constant_)
xavier_uniform = _old(xavier_uniform_)
xavier_normal = _old(xavier_normal_)
kaiming_uniform = _old(kaiming_uniform_)
kaiming_normal = _old(kaiming_normal_)
eye = _old(eye_)
dirac = _old(dirac_)
orthogonal = _old(orthogonal_)
sparse = _old(sparse_)


def _given(array: Any, like: Tensor) -> Tensor:
    """An array with the dtype and on the device of a Tensor."""
    return creation.tensor(array, dtype=like.dtype, device=like.device)


# PyTorch's names of what writes without a gradient, which these functions do anyway.
_no_grad_uniform_, _no_grad_normal_, _no_grad_trunc_normal_ = uniform_, normal_, trunc_normal_
_no_grad_fill_, _no_grad_zero_ = constant_, zeros_


if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: public(globals()))
