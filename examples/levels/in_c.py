"""C: compiled by the machine's compiler, called through ctypes."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from examples.levels.task import Task, Trained, Unavailable

FLAGS = ("-O3", "-ffast-math", "-march=native", "-shared", "-fPIC")


@cache
def library() -> Any:
    """The compiled function."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Unavailable("there is no C compiler")
    folder = Path(tempfile.mkdtemp(prefix="levels_"))
    source, target = Path(__file__).with_suffix(".c"), folder / "in_c.so"
    subprocess.run([compiler, *FLAGS, str(source), "-o", str(target), "-lm"], check=True)
    loaded = ctypes.CDLL(str(target))
    shutil.rmtree(folder)
    return loaded


def train(task: Task) -> Trained:
    """One pass over the batches."""
    steps, batch = task.labels.shape
    weights = [value.copy() for value in task[:4]]
    losses = np.empty(steps, np.float32)
    arrays = [*weights, np.ascontiguousarray(task.x), task.labels, losses]
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
    if library().train(*pointers, steps, batch, ctypes.c_float(task.rate)):
        raise ValueError("a batch is larger than the program's arrays")
    return Trained(losses, *weights)
