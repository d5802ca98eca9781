"""tc.onnx: ONNX files are not written; programs may ask whether one is being written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.names import missing_from

__all__ = ["export", "is_in_onnx_export"]


def is_in_onnx_export() -> bool:
    """False."""
    return False


def export(*args: Any, **options: Any) -> NoReturn:
    """Refused: there is no writer of ONNX files.

    Raises:
        ArgumentError: always.
    """
    raise ArgumentError(
        "onnx.export", "there is no writer of ONNX files", expect="tc.save", actual="an export",
        hint="tc.save(module.state_dict(), path) writes safetensors, which PyTorch reads",
    )  # fmt: skip


if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
