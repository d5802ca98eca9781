"""tc.onnx: models to and from ONNX files; needs the extra `onnx`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.onnx.export import export, is_in_onnx_export
from tinygrad_cuda.onnx.load import load

__all__ = ["export", "is_in_onnx_export", "load"]

if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
