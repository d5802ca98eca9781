# ruff: noqa: N999 (PyTorch's name)
"""tc._C: PyTorch's compiled half, of which there is nothing here; each of its names says so."""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.core.errors import UnknownNameError


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # what the interpreter asks of a module
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise UnknownNameError(
        "_C", f"there is no {name!r}",
        expect=lambda: "public names: this package has no compiled half", actual=name,
        hint=lambda: "call what the public API has for it",
    )  # fmt: skip
