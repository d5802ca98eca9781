"""tc.utils.hooks: the handle that registering a hook returns."""

from __future__ import annotations

from tinygrad_cuda.tensors.tensor import RemovableHandle

__all__ = ["RemovableHandle"]
