"""tc.backends.cudnn: attributes that may be read and set, of which `allow_tf32` decides results.

No convolution goes through cuDNN, whatever ``enabled`` says; `is_available` tells the truth.

`allow_tf32`, True at first as in PyTorch, permits convolutions of float32 to round operands to tf32
where `tc.set_float32_matmul_precision` permits products to. With False they are as exact as with
``highest`` in every precision but ``ieee``, whose units are float32's. What was recorded before is
computed first, as it was permitted then; ``TGC_CUDNN_TF32`` sets the first value.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.engine.plan import decide
from tinygrad_cuda.engine.realize import realize_all

enabled = True
benchmark = False
deterministic = False
benchmark_limit = 10  # PyTorch's default
allow_tf32: bool  # of `_Switches`


class _Switches(ModuleType):
    """The module, an attribute of which is a setting."""

    @property
    def allow_tf32(self) -> bool:
        return settings.cudnn_tf32

    @allow_tf32.setter
    def allow_tf32(self, value: bool) -> None:
        realize_all()
        decide("cudnn_tf32", bool(value))


def is_available() -> bool:
    """Whether cuDNN is used: it is not."""
    return False


def version() -> int | None:
    """None: there is no cuDNN."""
    return None


@contextmanager
def flags(
    enabled: bool = False,
    benchmark: bool = False,
    benchmark_limit: int = 10,
    deterministic: bool = False,
    allow_tf32: bool = True,
) -> Iterator[None]:
    """Sets the attributes for a block.

    Example:
        >>> import tinygrad_cuda as tc
        >>> with tc.backends.cudnn.flags(enabled=False):
        ...     tc.backends.cudnn.enabled
        False
    """
    given = {
        "enabled": enabled, "benchmark": benchmark, "benchmark_limit": benchmark_limit,
        "deterministic": deterministic, "allow_tf32": allow_tf32,
    }  # fmt: skip
    before = {name: getattr(_module, name) for name in given}
    _set(given)
    try:
        yield
    finally:
        _set(before)


def _set(values: dict[str, bool | int]) -> None:
    for name, value in values.items():
        setattr(_module, name, value)


_module = sys.modules[__name__]
_module.__class__ = _Switches
