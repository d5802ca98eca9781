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
    """

    def __init__(self) -> None:
        self.benchmark = False

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


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Accepted as in PyTorch: every operation gives the same bits each time, in either mode."""


def are_deterministic_algorithms_enabled() -> bool:
    """True."""
    return True


__all__ = ["are_deterministic_algorithms_enabled", "cudnn", "use_deterministic_algorithms"]

if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
