"""tc.compile: a function is recorded once a signature and from then on replayed."""

from __future__ import annotations

from tinygrad_cuda.capture import guarded_kinds
from tinygrad_cuda.capture.compiled import Compiled
from tinygrad_cuda.capture.multi_step import Steps, compile, loop
from tinygrad_cuda.nn.module import compiler

compiler.function = compile
guarded_kinds.fill()

__all__ = ["Compiled", "Steps", "compile", "loop"]
