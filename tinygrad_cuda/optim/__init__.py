"""Optimizers and learning-rate schedules."""

from tinygrad_cuda.optim import lr_scheduler
from tinygrad_cuda.optim.adam import Adam, AdamW
from tinygrad_cuda.optim.optimizer import Optimizer
from tinygrad_cuda.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "lr_scheduler"]
