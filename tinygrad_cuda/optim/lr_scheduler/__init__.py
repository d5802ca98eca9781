"""Learning rates that change with the step; the rules and their order of use are PyTorch's."""

from typing import TYPE_CHECKING

from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.optim.lr_scheduler.base import LRScheduler
from tinygrad_cuda.optim.lr_scheduler.combined import (
    ChainedScheduler,
    ReduceLROnPlateau,
    SequentialLR,
)
from tinygrad_cuda.optim.lr_scheduler.cyclic import (
    CosineAnnealingWarmRestarts,
    CyclicLR,
    OneCycleLR,
)
from tinygrad_cuda.optim.lr_scheduler.decaying import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)

_LRScheduler = LRScheduler

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]


if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
