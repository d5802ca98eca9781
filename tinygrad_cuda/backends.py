"""tc.backends: switches that PyTorch programs set, and what is true of them here.

Kernels are chosen by measurement and their results do not vary from run to run, in any setting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.names import missing_from


class _Cudnn:
    """``tc.backends.cudnn``: may be read and set; cuDNN itself takes no part.

    Attributes:
        benchmark: accepted; there is no choice that it would change.
        deterministic: always True; setting False is accepted, and changes nothing either.
        enabled: always False, since there is no cuDNN.
        allow_tf32: accepted; convolutions of float32 are computed in float32.
    """

    def __init__(self) -> None:
        self.benchmark = False
        self.allow_tf32 = False

    @property
    def deterministic(self) -> bool:
        return True

    @deterministic.setter
    def deterministic(self, value: bool) -> None:
        # Less is promised then, and nothing has to be done for it.
        pass

    @property
    def enabled(self) -> bool:
        return False

    @enabled.setter
    def enabled(self, value: bool) -> None:
        if value:
            raise ArgumentError(
                "backends", "there is no cuDNN", expect="enabled = False", actual="True"
            )

    def is_available(self) -> bool:
        """Whether cuDNN is used: it is not."""
        return False


cudnn = _Cudnn()


class _Matmul:
    """``tc.backends.cuda.matmul``.

    Attributes:
        allow_tf32: whether less than float32 is permitted, see `set_float32_matmul_precision`.
    """

    @property
    def allow_tf32(self) -> bool:
        return _permitted[0] != "highest"

    @allow_tf32.setter
    def allow_tf32(self, value: bool) -> None:
        _permitted[0] = "high" if value else "highest"


class _Cuda:
    """``tc.backends.cuda``."""

    def __init__(self) -> None:
        self.matmul = _Matmul()


cuda = _Cuda()
_PRECISIONS = ("highest", "high", "medium")
_permitted = ["highest"]


def set_float32_matmul_precision(precision: str) -> None:
    """Permits products of float32 to be less precise; no use is made of the permission.

    Args:
        precision: ``highest``, ``high`` or ``medium``.

    Raises:
        ArgumentError: the word is another one.
    """
    if precision not in _PRECISIONS:
        raise ArgumentError(
            "set_float32_matmul_precision", "unknown precision", expect=", ".join(_PRECISIONS),
            actual=repr(precision),
        )  # fmt: skip
    _permitted[0] = precision


def get_float32_matmul_precision() -> str:
    """What `set_float32_matmul_precision` was given; ``highest`` at first."""
    return _permitted[0]


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Accepted as in PyTorch: every operation gives the same bits each time, in either mode."""


def are_deterministic_algorithms_enabled() -> bool:
    """True."""
    return True


__all__ = [
    "are_deterministic_algorithms_enabled", "cuda", "cudnn", "get_float32_matmul_precision",
    "set_float32_matmul_precision", "use_deterministic_algorithms",
]  # fmt: skip

if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
