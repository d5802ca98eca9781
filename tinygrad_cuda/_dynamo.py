"""tc._dynamo: the settings of PyTorch's tracer, which programs write to; nothing reads them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tinygrad_cuda.compiler import allow_in_graph, disable, is_compiling, reset

__all__ = ["allow_in_graph", "config", "disable", "is_compiling", "mark_dynamic", "reset"]

config = SimpleNamespace(
    suppress_errors=False, verbose=False, cache_size_limit=8, recompile_limit=8,
    optimize_ddp=True, capture_scalar_outputs=False,
)  # fmt: skip


def mark_dynamic(t: Any, index: Any, **options: Any) -> None:
    """Accepted as in PyTorch: each shape is recorded once."""


mark_static = mark_dynamic
