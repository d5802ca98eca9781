"""Optimizers and learning-rate schedules."""

from typing import TYPE_CHECKING

from tinygrad_cuda.core.names import also_named, missing_from
from tinygrad_cuda.optim import (
    adam,
    adam_variants,
    adaptive,
    lr_scheduler,
    resilient,
    sgd,
    swa_utils,
)
from tinygrad_cuda.optim.adam import Adam, AdamW
from tinygrad_cuda.optim.adam_variants import Adamax, NAdam, RAdam
from tinygrad_cuda.optim.adaptive import Adadelta, Adagrad, RMSprop
from tinygrad_cuda.optim.hooks import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from tinygrad_cuda.optim.lbfgs import LBFGS
from tinygrad_cuda.optim.lion import Lion
from tinygrad_cuda.optim.optimizer import Optimizer
from tinygrad_cuda.optim.orthogonal import Muon
from tinygrad_cuda.optim.resilient import Adafactor, Rprop
from tinygrad_cuda.optim.sgd import ASGD, SGD

__all__ = [
    "ASGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "LBFGS",
    "Lion",
    "Muon",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
    "lr_scheduler",
    "register_optimizer_step_post_hook",
    "register_optimizer_step_pre_hook",
    "swa_utils",
]


# PyTorch has a module for each optimizer.
also_named(
    __name__,
    {
        "adadelta": adaptive, "adagrad": adaptive, "adamax": adam_variants, "adamw": adam,
        "asgd": sgd, "nadam": adam_variants, "radam": adam_variants, "rmsprop": adaptive,
        "rprop": resilient,
    },
)  # fmt: skip

if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
