"""All that decides how a training run goes on, as one value that `tc.save` writes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np

from tinygrad_cuda.core.errors import DataError
from tinygrad_cuda.tensors.random import get_rng_state, set_rng_state
from tinygrad_cuda.utils.checkpoints import load, save

VERSION = 1  # of the file: another one is refused


class Streams:
    """The default random streams of tinygrad_cuda, Python and NumPy during a run.

    Python's and NumPy's are part of a checkpoint only once they have been drawn from since the run
    began: in a program that does not seed them they are different in each process.
    """

    def __init__(self) -> None:
        self._before = {"python": _python_state(), "numpy": _numpy_state()}
        self._drawn: set[str] = set()

    def state(self) -> dict[str, Any]:
        """The positions of the streams; None for those without a draw."""
        now = {"python": _python_state(), "numpy": _numpy_state()}
        self._drawn |= {name for name in now if now[name] != self._before[name]}
        drawn = {name: value if name in self._drawn else None for name, value in now.items()}
        return {"tinygrad_cuda": get_rng_state(), **drawn}

    def load(self, state: dict[str, Any]) -> None:
        """Goes to where `state` was called."""
        set_rng_state(state["tinygrad_cuda"])
        if state["python"] is not None:
            version, words, gauss = state["python"]
            random.setstate((version, tuple(words), gauss))
            self._drawn.add("python")
        if state["numpy"] is not None:
            kind, keys, *rest = state["numpy"]
            np.random.set_state((kind, np.array(keys, np.uint32), *rest))  # noqa: NPY002
            self._drawn.add("numpy")


def _python_state() -> list[Any]:
    version, words, gauss = random.getstate()
    return [version, list(words), gauss]


def _numpy_state() -> list[Any]:
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    return [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)]


def write_state(
    path: Path, streams: Streams, parts: dict[str, Any], rest: dict[str, Any]
) -> None:  # fmt: skip
    """Writes a checkpoint, whole or not at all.

    Args:
        path: the file.
        streams: of random numbers.
        parts: things with a ``state_dict``, or None.
        rest: plain values and Tensors.
    """
    states = {name: part.state_dict() for name, part in parts.items() if part is not None}
    save({"version": VERSION, "parts": states, "random": streams.state(), **rest}, path)


def read_state(path: Path, streams: Streams, parts: dict[str, Any]) -> dict[str, Any]:
    """Reads a checkpoint into the parts; what else it holds.

    Raises:
        DataError: the run had other parts, or the file is damaged.
    """
    loaded = load(path)
    state: dict[str, Any] = loaded if isinstance(loaded, dict) else {}
    wanted = {name for name, part in parts.items() if part is not None}
    saved = state.get("parts")
    if state.get("version") != VERSION or not isinstance(saved, dict) or set(saved) != wanted:
        raise DataError(
            "fit", f"{path} is the checkpoint of another kind of run",
            expect=", ".join(sorted(wanted)),
            actual=", ".join(sorted(saved)) if isinstance(saved, dict) else "no checkpoint of fit",
            hint="another folder, or resume=False to start over",
        )  # fmt: skip
    for name, part in parts.items():
        if part is not None:
            part.load_state_dict(saved[name])
    streams.load(state["random"])
    return state
