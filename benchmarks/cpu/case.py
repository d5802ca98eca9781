"""What one row of the table measures: the same text run with our names and with PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Call = Callable[[], Any]


@dataclass(frozen=True)
class Library:
    """A library with PyTorch's names.

    Attributes:
        name: "ours" or "torch".
        api: the package.
        force: computes what a lazy result stands for.
    """

    name: str
    api: Any
    force: Callable[[Any], Any]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.api, name)

    @property
    def functional(self) -> Any:
        """`nn.functional`."""
        return self.api.nn.functional


@dataclass(frozen=True)
class Case:
    """A row.

    Attributes:
        name: as the table has it.
        make: prepares data and gives the call to time; its result is forced and compared.
        goal: the largest ratio of times, ours over PyTorch's, that is good.
        elements: by which the time is divided for "ns an element".
        passes: how often our NumPy calls go over arrays of that many elements.
        compared: whether both libraries compute the same values.
    """

    name: str
    make: Callable[[Library], Call]
    goal: float
    elements: int = 0
    passes: float = 0
    compared: bool = True


def normal(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Standard normal values."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def integers(high: int, *shape: int, seed: int = 1) -> npt.NDArray[np.int64]:
    """Uniform integers below `high`."""
    return np.random.default_rng(seed).integers(0, high, shape)
