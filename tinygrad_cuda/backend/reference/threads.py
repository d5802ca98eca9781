"""How many threads NumPy's matrix products use: those of the BLAS library that NumPy has loaded."""

from __future__ import annotations

import ctypes
import functools
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError

# Functions of OpenBLAS as NumPy's wheels, 64-bit builds and distributions name them, and MKL's.
_NAMES = (
    ("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
    ("scipy_openblas_get_num_threads", "scipy_openblas_set_num_threads"),
    ("openblas_get_num_threads64_", "openblas_set_num_threads64_"),
    ("openblas_get_num_threads", "openblas_set_num_threads"),
    ("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),
)
_MAPS = Path("/proc/self/maps")


@functools.cache
def _library() -> tuple[Callable[[], int], Callable[[int], Any]] | None:
    """What asks and sets the number in the loaded library, if it is one of those known."""
    if not _MAPS.exists():
        return None
    lines = (line.split(maxsplit=5) for line in _MAPS.read_text().splitlines())
    paths = dict.fromkeys(parts[5] for parts in lines if len(parts) == 6)
    for path in paths:
        if "blas" not in Path(path).name and "mkl_rt" not in Path(path).name:
            continue
        try:
            library = ctypes.CDLL(path)
        except OSError:  # not a library, or deleted since
            continue
        for asks, sets in _NAMES:
            if hasattr(library, asks) and hasattr(library, sets):
                return getattr(library, asks), getattr(library, sets)
    return None


def get_num_threads() -> int:
    """The threads of a matrix product on `cpu`; everything else there runs in one.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.get_num_threads() >= 1
        True
    """
    found = _library()
    return int(found[0]()) if found else os.cpu_count() or 1


def set_num_threads(number: int) -> None:
    """Sets the threads of a matrix product on `cpu`.

    It is NumPy's BLAS library that is told. `OMP_NUM_THREADS` (or `OPENBLAS_NUM_THREADS`,
    `MKL_NUM_THREADS`) in the environment sets the same number when the program starts.

    Args:
        number: at least 1.

    Raises:
        ArgumentError: `number` is no positive integer.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.set_num_threads(1)
        >>> tc.get_num_threads()
        1
    """
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ArgumentError(
            "set_num_threads", "not a number of threads", expect="an integer of at least 1",
            actual=repr(number),
        )  # fmt: skip
    found = _library()
    if found is not None:
        found[1](number)
    elif number != get_num_threads():
        warnings.warn(
            "set_num_threads: NumPy's BLAS library is not one that can be told\n"
            f"  hint:   start the program with OMP_NUM_THREADS={number}",
            RuntimeWarning,
            stacklevel=2,
        )
