"""Names of memory layouts, as in PyTorch: what programs say about strides."""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.core.shapes import Shape, contiguous_strides


class layout:
    """How the elements of a Tensor are stored: `strided` is the only one here."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"tinygrad_cuda.{self.name}"

    def __reduce__(self) -> Any:
        return self.name  # by its name in this module


class memory_format(layout):
    """An order of dimensions in memory; values and shapes do not depend on it."""


strided = layout("strided")
sparse_coo = layout("sparse_coo")
contiguous_format = memory_format("contiguous_format")
preserve_format = memory_format("preserve_format")
channels_last = memory_format("channels_last")
channels_last_3d = memory_format("channels_last_3d")
RANKS = {channels_last: 4, channels_last_3d: 5}


def strides_of(shape: Shape, order: memory_format) -> Shape:
    """The strides of a dense Tensor in this order of dimensions."""
    if order not in RANKS:
        return contiguous_strides(shape)
    inner = contiguous_strides((shape[0], *shape[2:], shape[1]))
    return (inner[0], inner[-1], *inner[1:-1])
