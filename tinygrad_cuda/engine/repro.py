"""Writes one operation and its operands to a folder, with a script that computes it again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import describe_site
from tinygrad_cuda.graph.node import Node

SCRIPT = '''"""{title}; recorded at {line}"""
import numpy as np
import tinygrad_cuda as tc
from tinygrad_cuda.graph.ops import TABLE
from tinygrad_cuda.tensors.base import wrap
dtypes = {dtypes}
with np.load(__file__.removesuffix("py") + "npz") as values:
    operands = [tc.tensor(values[k], dtype=t, device="cpu") for k, t in dtypes.items()]
with tc.detect_nan():
    wrap({call})
'''


def write_repro(folder: str, node: Node, sources: Sequence[Any], error: Exception) -> Path:
    """Writes ``OP.py`` and ``OP.npz``, and returns the path of the script.

    Args:
        folder: is made if it is not there; files of an earlier op of the same name are replaced.
        node: the op, with the numbers of this run.
        sources: values of its sources.
        error: what is said of it.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder) / f"{node.op.name}.py"
    names = [f"operand{k}" for k in range(len(sources))]
    arrays = {name: _plain(value) for name, value in zip(names, sources)}
    np.savez(path.with_suffix(".npz"), **arrays)
    dtypes = {name: s.dtype for name, s in zip(names, node.sources)}
    options = "".join(f", {name}={_text(value)}" for name, value in node.attributes.items())
    call = f"TABLE[{node.op.name!r}](*(x.node for x in operands){options})"
    if len(node.outputs) > 1:
        call = f"TABLE['output']({call}, index=0)"
    text = SCRIPT.format(
        title=str(error).splitlines()[0], line=describe_site(node.site).replace('"', "'"),
        dtypes="{" + ", ".join(f"{name!r}: {_text(t)}" for name, t in dtypes.items()) + "}",
        call=call,
    )  # fmt: skip
    path.write_text(text, encoding="utf-8")
    return path


def _plain(value: Any) -> Any:
    """A value as NumPy's own dtypes have it; bfloat16 as float32."""
    array = np.asarray(value)
    return array if array.dtype.kind in "biuf" else array.astype(np.float32)


def _text(value: Any) -> str:
    """An attribute as Python text."""
    if isinstance(value, DType):
        return f"tc.{value.name}"
    if isinstance(value, tuple):
        return "(" + "".join(f"{_text(part)}, " for part in value) + ")"
    if isinstance(value, np.generic):
        return repr(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return f"float({str(value)!r})"
    return repr(value)
