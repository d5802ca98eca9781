"""tc.backends.mps: Apple's GPUs, which are not supported."""

from __future__ import annotations


def is_available() -> bool:
    """False."""
    return False


def is_built() -> bool:
    """False."""
    return False
