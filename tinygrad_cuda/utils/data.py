"""tc.utils.data: the names of `tc.data` where PyTorch has them."""

from tinygrad_cuda import data
from tinygrad_cuda.data import *  # noqa: F403

__all__ = data.__all__
