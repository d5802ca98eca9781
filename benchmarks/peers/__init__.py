"""The frameworks that run the workloads: one adapter each, imported only where it is installed."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType

# By the name on the command line; each module gives VARIANTS, version() and its own `Program`s.
MODULES = {
    "ours": "benchmarks.peers.ours",
    "torch": "benchmarks.peers.pytorch",
    "jax": "benchmarks.peers.with_jax",
    "tinygrad": "benchmarks.peers.with_tinygrad",
}


def installed(names: Sequence[str]) -> tuple[dict[str, ModuleType], dict[str, str]]:
    """The adapters that can be imported, and why each of the others cannot."""
    found: dict[str, ModuleType] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            found[name] = importlib.import_module(MODULES[name])
        except ImportError as error:
            missing[name] = str(error)
    return found, missing
