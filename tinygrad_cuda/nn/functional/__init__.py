"""Layers without state, as functions, a file a family.

Compositions of ops only: fusion makes kernels of them and gradients follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.nn.functional.activations import (
    alpha_dropout,
    bilinear,
    celu,
    celu_,
    cosine_similarity,
    dropout1d,
    dropout2d,
    dropout3d,
    elu,
    elu_,
    feature_alpha_dropout,
    gelu,
    glu,
    gumbel_softmax,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    hardtanh_,
    leaky_relu,
    leaky_relu_,
    log_softmax,
    logsigmoid,
    mish,
    pairwise_distance,
    pdist,
    prelu,
    relu,
    relu6,
    relu_,
    rrelu,
    rrelu_,
    selu,
    selu_,
    sigmoid,
    silu,
    softmax,
    softmin,
    softplus,
    softshrink,
    softsign,
    tanh,
    tanhshrink,
    threshold,
    threshold_,
)
from tinygrad_cuda.nn.functional.attention import (
    multi_head_attention_forward,
    scaled_dot_product_attention,
)
from tinygrad_cuda.nn.functional.convolutions import (
    conv1d,
    conv2d,
    conv3d,
    conv_tbc,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from tinygrad_cuda.nn.functional.embeddings import (
    embedding,
    embedding_bag,
)
from tinygrad_cuda.nn.functional.linears import (
    dropout,
    linear,
)
from tinygrad_cuda.nn.functional.losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cosine_embedding_loss,
    cross_entropy,
    ctc_loss,
    gaussian_nll_loss,
    hinge_embedding_loss,
    huber_loss,
    kl_div,
    l1_loss,
    linear_cross_entropy,
    margin_ranking_loss,
    mse_loss,
    multi_margin_loss,
    multilabel_margin_loss,
    multilabel_soft_margin_loss,
    nll_loss,
    poisson_nll_loss,
    smooth_l1_loss,
    soft_margin_loss,
    triplet_margin_loss,
    triplet_margin_with_distance_loss,
)
from tinygrad_cuda.nn.functional.normalizations import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    local_response_norm,
    normalize,
    rms_norm,
)
from tinygrad_cuda.nn.functional.pooling import (
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
    fractional_max_pool2d,
    fractional_max_pool2d_with_indices,
    fractional_max_pool3d,
    fractional_max_pool3d_with_indices,
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
from tinygrad_cuda.nn.functional.private import (
    GRID_SAMPLE_INTERPOLATION_MODES as GRID_SAMPLE_INTERPOLATION_MODES,
)
from tinygrad_cuda.nn.functional.private import (
    GRID_SAMPLE_PADDING_MODES as GRID_SAMPLE_PADDING_MODES,
)
from tinygrad_cuda.nn.functional.private import (
    _canonical_mask as _canonical_mask,
)
from tinygrad_cuda.nn.functional.private import (
    _get_softmax_dim as _get_softmax_dim,
)
from tinygrad_cuda.nn.functional.private import (
    _in_projection as _in_projection,
)
from tinygrad_cuda.nn.functional.private import (
    _in_projection_packed as _in_projection_packed,
)
from tinygrad_cuda.nn.functional.private import (
    _mha_shape_check as _mha_shape_check,
)
from tinygrad_cuda.nn.functional.private import (
    _none_or_dtype as _none_or_dtype,
)
from tinygrad_cuda.nn.functional.private import (
    _verify_batch_size as _verify_batch_size,
)
from tinygrad_cuda.nn.functional.private import (
    _verify_spatial_size as _verify_spatial_size,
)
from tinygrad_cuda.nn.functional.sampling import (
    affine_grid,
    grid_sample,
    max_unpool1d,
    max_unpool2d,
    max_unpool3d,
)
from tinygrad_cuda.nn.functional.vision import (
    channel_shuffle,
    interpolate,
    pixel_shuffle,
    pixel_unshuffle,
    upsample,
    upsample_bilinear,
    upsample_nearest,
)
from tinygrad_cuda.nn.tuples import (
    _list_with_default as _list_with_default,
)
from tinygrad_cuda.nn.tuples import (
    _pair as _pair,
)
from tinygrad_cuda.nn.tuples import (
    _quadruple as _quadruple,
)
from tinygrad_cuda.nn.tuples import (
    _single as _single,
)
from tinygrad_cuda.nn.tuples import (
    _triple as _triple,
)
from tinygrad_cuda.tensors.arguments import checked_names
from tinygrad_cuda.tensors.indexing.selecting import (
    one_hot,
)
from tinygrad_cuda.tensors.shaping import (
    pad,
)
from tinygrad_cuda.tensors.windows import (
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


globals().update(checked_names(globals(), __name__, __all__))

if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
