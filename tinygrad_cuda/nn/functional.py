"""Layers without state, as functions: activations, softmax, dropout, linear.

Compositions of ops only: fusion makes kernels of them and gradients follow. Losses stand in
`tinygrad_cuda.nn.losses` and are public here too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.nn.functional_activation import (
    alpha_dropout,
    bilinear,
    celu,
    cosine_similarity,
    dropout1d,
    dropout2d,
    dropout3d,
    feature_alpha_dropout,
    glu,
    gumbel_softmax,
    hardshrink,
    hardsigmoid,
    hardswish,
    implicit_axis,
    mish,
    pairwise_distance,
    pdist,
    prelu,
    rrelu,
    selu,
    softmin,
    softshrink,
    softsign,
    tanhshrink,
    threshold,
)
from tinygrad_cuda.nn.functional_attention import (
    multi_head_attention_forward,
    scaled_dot_product_attention,
)
from tinygrad_cuda.nn.functional_conv import (
    conv1d,
    conv2d,
    conv3d,
    conv_tbc,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from tinygrad_cuda.nn.functional_embedding import (
    embedding,
    embedding_bag,
)
from tinygrad_cuda.nn.functional_fractional import (
    fractional_max_pool2d,
    fractional_max_pool2d_with_indices,
    fractional_max_pool3d,
    fractional_max_pool3d_with_indices,
)
from tinygrad_cuda.nn.functional_inplace import (
    in_place,
)
from tinygrad_cuda.nn.functional_linear import (
    dropout,
    linear,
)
from tinygrad_cuda.nn.functional_normalization import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    local_response_norm,
    normalize,
    rms_norm,
)
from tinygrad_cuda.nn.functional_pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool1d_with_indices,
    adaptive_max_pool2d,
    adaptive_max_pool2d_with_indices,
    adaptive_max_pool3d,
    adaptive_max_pool3d_with_indices,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    lp_pool1d,
    lp_pool2d,
    lp_pool3d,
    max_pool1d,
    max_pool1d_with_indices,
    max_pool2d,
    max_pool2d_with_indices,
    max_pool3d,
    max_pool3d_with_indices,
)
from tinygrad_cuda.nn.functional_sampling import (
    affine_grid,
    grid_sample,
    max_unpool1d,
    max_unpool2d,
    max_unpool3d,
)
from tinygrad_cuda.nn.functional_vision import (
    channel_shuffle,
    interpolate,
    pixel_shuffle,
    pixel_unshuffle,
    upsample,
    upsample_bilinear,
    upsample_nearest,
)
from tinygrad_cuda.nn.losses import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    l1_loss,
    linear_cross_entropy,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)
from tinygrad_cuda.nn.losses_more import (
    binary_cross_entropy,
    cosine_embedding_loss,
    ctc_loss,
    gaussian_nll_loss,
    hinge_embedding_loss,
    kl_div,
    margin_ranking_loss,
    multi_margin_loss,
    multilabel_margin_loss,
    multilabel_soft_margin_loss,
    poisson_nll_loss,
    soft_margin_loss,
    triplet_margin_loss,
    triplet_margin_with_distance_loss,
)
from tinygrad_cuda.nn.smooth import softplus as _softplus
from tinygrad_cuda.nn.smooth import where
from tinygrad_cuda.tensor import math as tm
from tinygrad_cuda.tensor.autocast import in_float32
from tinygrad_cuda.tensor.joining import (
    pad,
)
from tinygrad_cuda.tensor.layout import gives_rows
from tinygrad_cuda.tensor.opmath import rounded_once
from tinygrad_cuda.tensor.selecting import (
    one_hot,
)
from tinygrad_cuda.tensor.templated_calls import templated
from tinygrad_cuda.tensor.tensor import Tensor
from tinygrad_cuda.tensor.windows import (
    fold,
    unfold,
)

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool1d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool2d_with_indices",
    "adaptive_max_pool3d", "adaptive_max_pool3d_with_indices", "affine_grid", "alpha_dropout",
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "batch_norm", "bilinear", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "celu", "celu_", "channel_shuffle", "conv1d", "conv2d",
    "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "cosine_embedding_loss", "cosine_similarity", "cross_entropy", "ctc_loss", "dropout",
    "dropout1d", "dropout2d", "dropout3d", "elu", "elu_", "embedding", "embedding_bag",
    "feature_alpha_dropout", "fold", "fractional_max_pool2d", "fractional_max_pool2d_with_indices",
    "fractional_max_pool3d", "fractional_max_pool3d_with_indices", "gaussian_nll_loss", "gelu",
    "glu", "grid_sample", "group_norm", "gumbel_softmax", "hardshrink", "hardsigmoid", "hardswish",
    "hardtanh", "hardtanh_", "hinge_embedding_loss", "huber_loss", "instance_norm", "interpolate",
    "kl_div", "l1_loss", "layer_norm", "leaky_relu", "leaky_relu_", "linear",
    "linear_cross_entropy", "local_response_norm", "log_softmax", "logsigmoid", "lp_pool1d",
    "lp_pool2d", "lp_pool3d", "margin_ranking_loss", "max_pool1d", "max_pool1d_with_indices",
    "max_pool2d", "max_pool2d_with_indices", "max_pool3d", "max_pool3d_with_indices",
    "max_unpool1d", "max_unpool2d", "max_unpool3d", "mish", "mse_loss",
    "multi_head_attention_forward", "multi_margin_loss", "multilabel_margin_loss",
    "multilabel_soft_margin_loss", "nll_loss", "normalize", "one_hot", "pad", "pairwise_distance",
    "pdist", "pixel_shuffle", "pixel_unshuffle", "poisson_nll_loss", "prelu", "relu", "relu6",
    "relu_", "rms_norm", "rrelu", "rrelu_", "scaled_dot_product_attention", "selu", "selu_",
    "sigmoid", "silu", "smooth_l1_loss", "soft_margin_loss", "softmax", "softmin", "softplus",
    "softshrink", "softsign", "tanh", "tanhshrink", "threshold", "threshold_",
    "triplet_margin_loss", "triplet_margin_with_distance_loss", "unfold", "upsample",
    "upsample_bilinear", "upsample_nearest",
]  # fmt: skip


# Activations --------------------------------------------------------------------------------


@templated
def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """``max(input, 0)``; its derivative at 0 is 0."""
    return input.relu_() if inplace else tm.relu(input)


def _maybe_in_place(input: Tensor, output: Tensor, inplace: bool) -> Tensor:
    return tm.store("inplace", input, output.node) if inplace else output


def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """``min(max(input, min_val), max_val)``; the derivative at a bound is 0.

    Raises:
        ArgumentError: the input is unsigned and a bound negative, or the bounds are exchanged.
    """
    if min_val > max_val:
        raise ArgumentError(
            "hardtanh", "the bounds are exchanged", expect="min_val <= max_val",
            actual=f"{min_val} and {max_val}",
        )  # fmt: skip
    if not input.dtype.is_floating:
        low, high = int(min_val), int(max_val)
        if input.dtype.name == "uint8" and min(low, high) < 0:
            raise ArgumentError(
                "hardtanh", "an unsigned input has no negative bounds", expect="bounds >= 0",
                actual=f"{min_val} and {max_val}",
            )  # fmt: skip
        return _maybe_in_place(input, input.clamp(low, high), inplace)
    inside = tm.logical_and(input > min_val, input < max_val)
    return _maybe_in_place(
        input, where(inside, input, input.detach().clamp(min_val, max_val)), inplace
    )


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """``min(max(input, 0), 6)``."""
    return hardtanh(input, 0.0, 6.0, inplace)


@templated
def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """``input`` where positive, else ``negative_slope * input``."""
    return _maybe_in_place(input, where(input > 0, input, input * negative_slope), inplace)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """``input`` where positive, else ``alpha * (exp(input) - 1)`` (Clevert et al., 2016)."""
    return _maybe_in_place(input, _elu(input, alpha), inplace)


@rounded_once
def _elu(input: Tensor, alpha: float) -> Tensor:
    positive = input > 0
    # The branch not taken must stay finite: its gradient is 0 times it.
    negative = where(positive, 0.0, input)
    return where(positive, input, alpha * negative.expm1())


@templated
@rounded_once
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """``input * P(Z <= input)`` for a standard normal Z (Hendrycks and Gimpel, 2016).

    Args:
        approximate: ``"none"``, or ``"tanh"`` for the authors' approximation.
    """
    if approximate == "tanh":
        inner = (input + input * input * input * 0.044715) * math.sqrt(2.0 / math.pi)
        return input * 0.5 * (inner.tanh() + 1.0)
    if approximate != "none":
        raise ArgumentError(
            "gelu", "unknown approximation", expect="'none' or 'tanh'", actual=repr(approximate)
        )
    return input * 0.5 * ((input * math.sqrt(0.5)).erf() + 1.0)


@templated
def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """``input * sigmoid(input)``."""
    return _maybe_in_place(input, _silu(input), inplace)


@rounded_once
def _silu(input: Tensor) -> Tensor:
    return input * input.sigmoid()


def sigmoid(input: Tensor) -> Tensor:
    """``1 / (1 + exp(-input))``."""
    return tm.sigmoid(input)


def tanh(input: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return tm.tanh(input)


@in_float32
@rounded_once
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """``log(1 + exp(beta * input)) / beta``; ``input`` itself where beta * input > threshold."""
    scaled = input if beta == 1 else input * beta
    smooth = _softplus(scaled)
    return where(scaled > threshold, input, smooth if beta == 1 else smooth / beta)


@gives_rows
@rounded_once
def logsigmoid(input: Tensor) -> Tensor:
    """``log(sigmoid(input))``, without overflow."""
    return -_softplus(-input)


@templated
def softmax(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """``exp(input) / sum(exp(input))`` along `dim`, computed in `dtype` if that is given."""
    return (input if dtype is None else input.to(dtype)).softmax(
        implicit_axis("softmax", dim, input.ndim)
    )


@templated
def log_softmax(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """``input - log(sum(exp(input)))`` along `dim`, computed in `dtype` if that is given."""
    return (input if dtype is None else input.to(dtype)).log_softmax(
        implicit_axis("log_softmax", dim, input.ndim)
    )


# In place -----------------------------------------------------------------------------------

relu_ = in_place(relu)
leaky_relu_ = in_place(leaky_relu)
elu_ = in_place(elu)
selu_ = in_place(selu)
celu_ = in_place(celu)
hardtanh_ = in_place(hardtanh)
threshold_ = in_place(threshold)
rrelu_ = in_place(rrelu)


if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
