"""tc.utils.dlpack: `from_dlpack`, and the capsule that older libraries take."""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.tensors.exchange import from_dlpack
from tinygrad_cuda.tensors.tensor import Tensor

__all__ = ["from_dlpack", "to_dlpack"]


def to_dlpack(tensor: Tensor) -> Any:
    """A DLPack capsule of the Tensor, to be taken once; others call ``tensor.__dlpack__()``."""
    return tensor.__dlpack__()
