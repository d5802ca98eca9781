"""tc.utils.data: the names of `tc.data`, and its modules', where PyTorch has them."""

from __future__ import annotations

from types import ModuleType

from tinygrad_cuda import data
from tinygrad_cuda.core.names import also_named
from tinygrad_cuda.data import *  # noqa: F403
from tinygrad_cuda.data import dataloader, dataset, sampler, workers

__all__ = data.__all__

_collate = ModuleType(f"{__name__}._utils.collate", "Samples as batches.")
_collate.__dict__["default_collate"] = dataloader.default_collate
_utils = ModuleType(f"{__name__}._utils", "What batches are made by.")
_utils.__dict__["collate"] = _collate
also_named(
    __name__,
    {
        "dataloader": dataloader, "dataset": dataset, "sampler": sampler, "distributed": sampler,
        "_utils": _utils, "_utils.collate": _collate, "worker": workers,
    },
)  # fmt: skip
