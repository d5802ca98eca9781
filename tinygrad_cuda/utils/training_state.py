"""All that decides how a training run goes on, as one value that `tc.save` writes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np

from tinygrad_cuda.core.errors import DataError
from tinygrad_cuda.tensor.random import get_rng_state, set_rng_state
from tinygrad_cuda.utils.checkpoints import load, save

VERSION = 1


def random_state() -> dict[str, Any]:
    """The places of tinygrad_cuda's, Python's and NumPy's default streams."""
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    version, words, gauss = random.getstate()
    return {
        "tinygrad_cuda": get_rng_state(),
        "python": [version, list(words), gauss],
        "numpy": [
            str(kind),
            [int(key) for key in keys],
            int(position),
            int(has_gauss),
            float(cached),
        ],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Goes to where `random_state` was called."""
    set_rng_state(state["tinygrad_cuda"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), *rest))  # noqa: NPY002


def write_state(path: Path, parts: dict[str, Any], rest: dict[str, Any]) -> None:
    """Writes a checkpoint, whole or not at all.

    Args:
        path: the file.
        parts: things with a ``state_dict``, or None.
        rest: plain values and Tensors.
    """
    states = {name: part.state_dict() for name, part in parts.items() if part is not None}
    save({"version": VERSION, "parts": states, "random": random_state(), **rest}, path)


def read_state(path: Path, parts: dict[str, Any]) -> dict[str, Any]:
    """Reads a checkpoint into the parts; what else it holds.

    Raises:
        DataError: the run had other parts, or the file is damaged.
    """
    loaded = load(path)
    state: dict[str, Any] = loaded if isinstance(loaded, dict) else {}
    wanted = {name for name, part in parts.items() if part is not None}
    found = state.get("parts")
    if state.get("version") != VERSION or not isinstance(found, dict) or set(found) != wanted:
        raise DataError(
            "fit", f"{path} is the checkpoint of another kind of run",
            expect=", ".join(sorted(wanted)),
            actual=", ".join(sorted(found)) if isinstance(found, dict) else "no checkpoint of fit",
            hint="another folder, or resume=False to begin anew",
        )  # fmt: skip
    for name, part in parts.items():
        if part is not None:
            part.load_state_dict(found[name])
    set_random_state(state["random"])
    return state
