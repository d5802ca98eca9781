"""tc.backends.openmp: the threads of the host; NumPy's libraries bring their own."""

from __future__ import annotations


def is_available() -> bool:
    """False: no code here is compiled with OpenMP."""
    return False
