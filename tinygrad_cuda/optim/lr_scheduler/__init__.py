"""Learning rates that change with the step; the rules and their order of use are PyTorch's."""

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
