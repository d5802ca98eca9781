"""tc.backends.mkldnn: Intel's library, which is not used."""

from __future__ import annotations

enabled = False


def is_available() -> bool:
    """False."""
    return False
