"""Training in mixed precision, by PyTorch's names: autocast, GradScaler, custom_fwd, custom_bwd."""

from typing import TYPE_CHECKING

from tinygrad_cuda.amp.custom_function import custom_bwd, custom_fwd
from tinygrad_cuda.amp.grad_scaler import GradScaler
from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.tensors.autocast import autocast, is_autocast_available

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]


if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
