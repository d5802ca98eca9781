"""einops takes Tensors: its table of frameworks gets one more when einops is imported.

einops looks for frameworks among the subclasses of a class of its own, so ours can only be
defined once einops is there; and importing tinygrad_cuda is not to import einops.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

_TABLE = "einops._backends"
_LAYERS = "einops.layers.tinygrad_cuda"


class _ThenOurs:
    """Loads einops' table of frameworks, then the module that defines ours.

    Args:
        plain: the loader of the table.
    """

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._plain.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._plain.exec_module(module)
        importlib.import_module(f"{__name__}.backend")


class _Finder:
    """Finds einops' table, and its layers for this framework."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname == _LAYERS:
            return spec_from_file_location(_LAYERS, Path(__file__).with_name("layers.py"))
        if fullname != _TABLE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = _ThenOurs(spec.loader)
            spec.loader = loader
        return spec


sys.meta_path.insert(0, _Finder())
if _TABLE in sys.modules:
    importlib.import_module(f"{__name__}.backend")
