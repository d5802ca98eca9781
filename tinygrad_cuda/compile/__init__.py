"""tc.compile: a function is recorded once a signature and from then on replayed."""

from __future__ import annotations

from tinygrad_cuda.compile.compiled import Compiled, compile

__all__ = ["Compiled", "compile"]
