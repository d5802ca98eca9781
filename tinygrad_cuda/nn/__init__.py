"""Modules: layers, containers, losses, and their initial values."""

from tinygrad_cuda.nn import functional, init
from tinygrad_cuda.nn.activation import (
    ELU,
    GELU,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from tinygrad_cuda.nn.container import ModuleDict, ModuleList, Sequential
from tinygrad_cuda.nn.dropout import Dropout
from tinygrad_cuda.nn.flatten import Flatten, Unflatten
from tinygrad_cuda.nn.linear import Identity, Linear
from tinygrad_cuda.nn.loss import (
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.nn.parameter import Parameter

__all__ = [
    "ELU", "GELU", "BCEWithLogitsLoss", "CrossEntropyLoss", "Dropout", "Flatten", "Hardtanh",
    "HuberLoss", "Identity", "L1Loss", "LeakyReLU", "Linear", "LogSigmoid", "LogSoftmax",
    "MSELoss", "Module", "ModuleDict", "ModuleList", "NLLLoss", "Parameter", "ReLU", "ReLU6",
    "Sequential", "SiLU", "Sigmoid", "SmoothL1Loss", "Softmax", "Softplus", "Tanh", "Unflatten",
    "functional", "init",
]  # fmt: skip
