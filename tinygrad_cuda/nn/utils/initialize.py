"""Layers whose parameters are not drawn, because other values follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tinygrad_cuda.core.device import Device
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.tensors.creation import resolve_device

M = TypeVar("M", bound=Module)


def skip_init(
    module_cls: Callable[..., M],
    *args: object,
    device: Device | str | None = None,
    **kwargs: object,
) -> M:
    """A module on a device, made without drawing values that nobody reads.

    Args:
        module_cls: its class, which takes `device`.
        args, kwargs: of its constructor.
        device: where it is wanted.

    Example:
        >>> from tinygrad_cuda import nn
        >>> skip_init(nn.Linear, 3, 1, device="cpu").weight.shape
        Size([1, 3])
    """
    made = module_cls(*args, device="meta", **kwargs)
    return made.to_empty(device=resolve_device(device))
