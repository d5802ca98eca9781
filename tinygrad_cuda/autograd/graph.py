"""tc.autograd.graph: hooks on what is saved for backward.

Operations save nothing of their own: a gradient is more graph. So the hooks see what a custom
`Function` gives to `save_for_backward`, and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tinygrad_cuda.graph.versions import versions
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.grad_fn import GradientFunction
from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "Node",
    "disable_saved_tensors_hooks",
    "increment_version",
    "save_on_cpu",
    "saved_tensors_hooks",
]

Node = GradientFunction

Hooks = tuple[Callable[[Any], Any], Callable[[Any], Any]]


class _Active(threading.local):
    def __init__(self) -> None:
        self.stack: list[Hooks] = []
        self.disabled_message = ""


active = _Active()


class saved_tensors_hooks:
    """A block in which what a `Function` saves is packed, and unpacked when backward reads it.

    Args:
        pack_hook: of a Tensor, returns what is saved.
        unpack_hook: of what was saved, returns the Tensor.

    Raises:
        RuntimeError: inside `disable_saved_tensors_hooks`.
    """

    def __init__(self, pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any]) -> None:
        self._hooks = (pack_hook, unpack_hook)

    def __enter__(self) -> None:
        if active.disabled_message:
            raise RuntimeError(active.disabled_message)
        active.stack.append(self._hooks)

    def __exit__(self, *raised: object) -> None:
        active.stack.pop()


class save_on_cpu(saved_tensors_hooks):
    """A block in which what a `Function` saves waits for backward on the host.

    Args:
        pin_memory: accepted as in PyTorch.
        device_type: accepted as in PyTorch.
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        super().__init__(
            lambda tensor: (tensor.device, tensor.cpu()), lambda saved: saved[1].to(saved[0])
        )


@contextmanager
def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
    """A block in which setting hooks is an error with this message."""
    before, active.disabled_message = active.disabled_message, error_message
    try:
        yield
    finally:
        active.disabled_message = before


def increment_version(tensor: Tensor | Iterable[Tensor]) -> None:
    """Informs `check_versions` that Tensors were written in a way that it does not see.

    Gradients use the values as recorded all the same.

    Args:
        tensor: one or several.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.ones(2, device="cpu", requires_grad=True)
        >>> with tc.autograd.check_versions(True):
        ...     y = x.exp()
        ...     y.data.mul_(2)  # data hides a write
        ...     tc.autograd.graph.increment_version(y)
        ...     y.sum().backward()
        Traceback (most recent call last):
        ...
        tinygrad_cuda.GradientError: [backward] a value that the gradient needs was modified ...
        ...
    """
    for one in (tensor,) if isinstance(tensor, TensorBase) else tensor:
        if versions.on:
            versions.touched(one)
