"""Helpers around modules and parameters, with PyTorch's names."""

from typing import TYPE_CHECKING

from tinygrad_cuda.core.names import also_importable, also_named, missing_from
from tinygrad_cuda.nn import stateless
from tinygrad_cuda.nn.utils import (
    clip,
    fusion,
    initialize,
    parametrizations,
    parametrize,
    prune,
    reparametrize,
    rnn,
    vector,
)
from tinygrad_cuda.nn.utils.clip import (
    clip_grad_norm,
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
)
from tinygrad_cuda.nn.utils.fusion import (
    fuse_conv_bn_eval,
    fuse_conv_bn_weights,
    fuse_linear_bn_eval,
    fuse_linear_bn_weights,
)
from tinygrad_cuda.nn.utils.initialize import skip_init
from tinygrad_cuda.nn.utils.reparametrize import (
    remove_spectral_norm,
    remove_weight_norm,
    spectral_norm,
    weight_norm,
)
from tinygrad_cuda.nn.utils.vector import parameters_to_vector, vector_to_parameters

__all__ = [
    "clip_grad_norm", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_",
    "fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights",
    "get_total_norm", "parameters_to_vector", "parametrizations",
    "parametrize", "prune", "remove_spectral_norm", "remove_weight_norm", "rnn", "skip_init",
    "spectral_norm",
    "vector_to_parameters", "weight_norm",
]  # fmt: skip


# PyTorch's modules, whose names are no functions', or are.
also_named(
    __name__,
    {
        "clip_grad": clip, "convert_parameters": vector, "fusion": fusion, "init": initialize,
        "stateless": stateless,
    },
)  # fmt: skip
also_importable(__name__, {"spectral_norm": reparametrize, "weight_norm": reparametrize})

if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
