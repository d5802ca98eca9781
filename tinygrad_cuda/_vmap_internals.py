"""tc._vmap_internals: where PyTorch had `vmap` first; older programs import `_vmap` from there."""

from __future__ import annotations

from tinygrad_cuda.autograd.batched import vmap

__all__ = ["vmap"]

_vmap = vmap
