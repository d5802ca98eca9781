"""All workloads by name, in the order of the report."""

from __future__ import annotations

from benchmarks.workload import Maker
from benchmarks.workloads import (
    adam,
    denoiser,
    lenet,
    lstm,
    matrix_units,
    mlp,
    normalizations,
    pointwise,
    products,
    resnet,
    resnet18,
    softmaxes,
    sums,
    transformers,
    unet,
    wide_mlp,
)

MODULES = (
    wide_mlp, transformers, resnet18, lstm, matrix_units,
    mlp, lenet, resnet, denoiser, unet, softmaxes, normalizations, pointwise, sums, products, adam,
)  # fmt: skip
WORKLOADS: dict[str, Maker] = {
    name: make for module in MODULES for name, make in module.WORKLOADS.items()
}
