"""nn.parallel: wrappers that PyTorch spreads over GPUs; here a module runs on one device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core.names import also_importable, also_named, missing_from
from tinygrad_cuda.nn import replicas
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.nn.replicas import gather, one_device, parallel_apply, replicate, scatter

__all__ = [
    "DataParallel", "DistributedDataParallel", "data_parallel", "gather", "parallel_apply",
    "replicate", "scatter",
]  # fmt: skip


class DataParallel(Module):
    """Calls a module: a batch is not split, since there is one device.

    Args:
        module: whose parameters appear as ``module.*`` in the state dict, as in PyTorch.
        device_ids: at most one.
        output_device, dim: accepted as in PyTorch.

    Raises:
        ArgumentError: several devices are named.

    Example:
        >>> import tinygrad_cuda as tc
        >>> list(DataParallel(tc.nn.Linear(2, 3, device="cpu")).state_dict())
        ['module.weight', 'module.bias']
    """

    def __init__(
        self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0
    ) -> None:
        super().__init__()
        one_device("DataParallel", device_ids)
        self.dim = dim
        self.module = module

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self.module(*inputs, **options)


class DistributedDataParallel(Module):
    """Calls a module: the group has one process, so gradients are the sums over all of them.

    Args:
        module: whose parameters appear as ``module.*`` in the state dict, as in PyTorch.
        device_ids: at most one.
        options: accepted as in PyTorch.

    Raises:
        ArgumentError: several devices are named.
    """

    def __init__(self, module: Module, device_ids: Any = None, **options: Any) -> None:
        super().__init__()
        one_device("DistributedDataParallel", device_ids)
        self.module = module

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self.module(*inputs, **options)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A block in which gradients are not exchanged: they never are."""
        yield


def data_parallel(
    module: Module, inputs: Any, device_ids: Any = None, output_device: Any = None, dim: int = 0,
    module_kwargs: Any = None,
) -> Any:  # fmt: skip
    """One call of a module, as by `DataParallel`."""
    one_device("data_parallel", device_ids)
    return module(*(inputs if isinstance(inputs, tuple) else (inputs,)), **(module_kwargs or {}))


# PyTorch has these in modules of their own, most with the name of a function.
_here = sys.modules[__name__]
also_named(__name__, {"distributed": _here, "scatter_gather": replicas, "_functions": replicas})
also_importable(
    __name__, {"data_parallel": _here, "replicate": replicas, "parallel_apply": replicas}
)

if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
