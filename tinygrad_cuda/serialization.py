"""tc.serialization: `save` and `load`, and which classes of a program `load` may rebuild."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.utils.checkpoint_values import (
    add_safe_globals,
    clear_safe_globals,
    get_safe_globals,
    safe_globals,
)
from tinygrad_cuda.utils.checkpoints import load, save
from tinygrad_cuda.utils.torch_file import (
    LoadEndianness,
    get_default_load_endianness,
    set_default_load_endianness,
)

__all__ = [
    "LoadEndianness", "add_safe_globals", "clear_safe_globals", "get_default_load_endianness",
    "get_safe_globals", "load", "safe_globals", "save", "set_default_load_endianness",
]  # fmt: skip

if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
