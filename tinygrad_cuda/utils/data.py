"""tc.utils.data: the names of `tc.data`, and its modules', where PyTorch has them."""

from __future__ import annotations

from types import ModuleType

from tinygrad_cuda import data
from tinygrad_cuda.core.names import also_named
from tinygrad_cuda.data import *  # noqa: F403
from tinygrad_cuda.data import dataloader, dataset, sampler, workers
from tinygrad_cuda.data.dataloader import default_convert

__all__ = [*data.__all__, "default_convert"]

_collate = ModuleType(f"{__name__}._utils.collate", "Samples as batches.")
_collate.__dict__["default_collate"] = dataloader.default_collate
_collate.__dict__["default_convert"] = dataloader.default_convert
_utils = ModuleType(f"{__name__}._utils", "What batches are made by.")
_utils.__dict__.update(collate=_collate, worker=workers)
also_named(
    __name__,
    {
        "dataloader": dataloader, "dataset": dataset, "sampler": sampler, "distributed": sampler,
        "_utils": _utils, "_utils.collate": _collate, "_utils.worker": workers,
        "worker": workers,
    },
)  # fmt: skip
