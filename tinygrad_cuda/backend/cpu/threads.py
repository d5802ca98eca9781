"""How many threads NumPy's matrix products use: those of the BLAS library that NumPy has loaded."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tinygrad_cuda.core.errors import ArgumentError

# Functions of OpenBLAS as NumPy's wheels, 64-bit builds and distributions name them, and MKL's.
_NAMES = (
    ("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
    ("scipy_openblas_get_num_threads", "scipy_openblas_set_num_threads"),
    ("openblas_get_num_threads64_", "openblas_set_num_threads64_"),
    ("openblas_get_num_threads", "openblas_set_num_threads"),
    ("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),
)


@functools.cache
def _library() -> tuple[Callable[[], int], Callable[[int], Any]] | None:
    """What asks and sets the number in the BLAS library that NumPy is linked to.

    A symbol is looked up in NumPy's extension and what it depends on: SciPy loads a library of its
    own with functions of the same names.
    """
    core = "core" if np.__version__.startswith("1.") else "_core"
    try:
        library = ctypes.CDLL(sys.modules[f"numpy.{core}._multiarray_umath"].__file__)
    except OSError:  # linked into the interpreter
        return None
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
    library = _library()
    return int(library[0]()) if library else os.cpu_count() or 1


def set_num_threads(number: int) -> None:
    """Sets the threads of a matrix product on `cpu`.

    It sets those of NumPy's BLAS library. `OMP_NUM_THREADS` (or `OPENBLAS_NUM_THREADS`,
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
    library = _library()
    if library is not None:
        library[1](number)
    elif number != get_num_threads():
        warnings.warn(
            "set_num_threads: NumPy's BLAS library is not one whose threads can be set\n"
            f"  hint:   start the program with OMP_NUM_THREADS={number}",
            RuntimeWarning,
            stacklevel=2,
        )
