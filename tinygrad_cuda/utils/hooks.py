"""tc.utils.hooks: the handle that registering a hook returns."""

from __future__ import annotations

from tinygrad_cuda.tensor.tensor import RemovableHandle

__all__ = ["RemovableHandle"]
