"""nn.modules: the layers under the names of the modules in which PyTorch has them."""

from __future__ import annotations

from types import ModuleType

from tinygrad_cuda.core.names import also_named
from tinygrad_cuda.nn import (
    activation,
    adaptive,
    attention,
    container,
    conv,
    distance,
    dropout,
    embedding,
    flatten,
    functional,
    lazy,
    linear,
    loss,
    module,
    normalization,
    pooling,
    recurrent,
    transformer,
    tuples,
    vision,
)
from tinygrad_cuda.nn.linear import Linear
from tinygrad_cuda.nn.module import Module

__all__ = ["Linear", "Module", "functional"]


def _joined(name: str, *modules: ModuleType) -> ModuleType:
    """A module with the names of several."""
    made = ModuleType(f"{__name__}.{name}", modules[0].__doc__)
    for one in modules:
        made.__dict__.update({k: v for k, v in vars(one).items() if not k.startswith("__")})
    return made


for _file in (
    activation, adaptive, attention, container, conv, distance, dropout, embedding, flatten, lazy,
    linear, loss, normalization, pooling, recurrent, transformer, vision,
):  # fmt: skip
    for _name, _value in vars(_file).items():
        if isinstance(_value, type) and issubclass(_value, Module) and not _name.startswith("_"):
            globals()[_name] = _value

# PyTorch's module -> the one here that has its layers.
also_named(
    __name__,
    {
        "activation": _joined("activation", activation, attention),
        "adaptive": adaptive,
        "attention": attention,
        "batchnorm": _joined("batchnorm", normalization, lazy),
        "channelshuffle": vision,
        "container": container,
        "conv": _joined("conv", conv, lazy),
        "distance": distance,
        "dropout": dropout,
        "flatten": flatten,
        "fold": vision,
        "instancenorm": _joined("instancenorm", normalization, lazy),
        "lazy": lazy,
        "linear": _joined("linear", linear, lazy),
        "loss": loss,
        "module": module,
        "normalization": normalization,
        "padding": vision,
        "pixelshuffle": vision,
        "pooling": pooling,
        "rnn": recurrent,
        "sparse": embedding,
        "transformer": transformer,
        "upsampling": vision,
        "utils": tuples,
    },
)
