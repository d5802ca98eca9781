"""nn.parallel: wrappers that PyTorch spreads over GPUs; here a module runs on one device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.names import also_named, missing_from
from tinygrad_cuda.nn.module import Module

__all__ = ["DataParallel", "DistributedDataParallel", "data_parallel"]


def _one_device(op: str, device_ids: Any) -> None:
    """A list of several devices is refused, since all but one would be idle."""
    if device_ids is not None and len(device_ids) > 1:
        raise ArgumentError(
            op, "a module computes on one device", expect="one device", actual=str(device_ids),
            hint="leave device_ids out",
        )  # fmt: skip


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
        _one_device("DataParallel", device_ids)
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
        _one_device("DistributedDataParallel", device_ids)
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
    _one_device("data_parallel", device_ids)
    return module(*(inputs if isinstance(inputs, tuple) else (inputs,)), **(module_kwargs or {}))


# PyTorch has the class in a module of its own.
also_named(__name__, {"distributed": sys.modules[__name__]})

if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
