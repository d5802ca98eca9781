"""Names Tensors, Modules, optimizers and settings to the guards of compiled functions."""

from __future__ import annotations

from tinygrad_cuda.amp.grad_scaler import GradScaler
from tinygrad_cuda.backend.cpu.threads import get_num_threads
from tinygrad_cuda.backends.cuda import get_float32_matmul_precision
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.data.dataset import Dataset
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.optim.lr_scheduler import LRScheduler
from tinygrad_cuda.optim.optimizer import Optimizer
from tinygrad_cuda.replay.guards.kinds import kinds
from tinygrad_cuda.tensors.autocast import state as autocast
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.settings import get_num_interop_threads


def halves() -> dict[str, DType]:
    """What autocast takes on each kind of device where it is given no dtype."""
    return dict(autocast.defaults)


def fill() -> None:
    """Names the classes and the settings."""
    kinds.tensor, kinds.module, kinds.scaler = TensorBase, Module, GradScaler
    kinds.optimizer, kinds.scheduler, kinds.dataset = Optimizer, LRScheduler, Dataset
    kinds.settings = {
        "allow_tf32": lambda: (settings.matmul_precision, settings.cudnn_tf32),
        "get_float32_matmul_precision": get_float32_matmul_precision,
        "autocast": halves,
        "get_autocast_dtype": halves,
        "get_num_interop_threads": get_num_interop_threads,
        "get_num_threads": get_num_threads,
    }
