"""What a GPU can do at most, measured there once: bytes and float32 operations a second."""

from __future__ import annotations

from typing import NamedTuple


class MeasuredRoof(NamedTuple):
    """The most that a device did in a small measurement.

    Attributes:
        device: its name.
        bandwidth: bytes a second of a kernel that copies.
        flops: float32 operations a second of a product of matrices.
    """

    device: str
    bandwidth: float
    flops: float

    def least_seconds(self, flops: float, nbytes: float) -> float:
        """The shortest time for so much work."""
        return max(flops / self.flops, nbytes / self.bandwidth)
