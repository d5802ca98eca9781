"""Rows of memory that others write as well: read there, where a value of all would be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.dtypes import bool_, int32, int64
from tinygrad_cuda.engine.capture import watching
from tinygrad_cuda.engine.realize import check_errors, realize
from tinygrad_cuda.engine.shared import LARGE, holding_array
from tinygrad_cuda.engine.vmap_trace import tracing
from tinygrad_cuda.graph.versions import versions
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.views import seen_through

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

INDICES = (np.dtype(np.int64), np.dtype(np.int32), np.dtype(np.bool_))


def shared_rows(input: Tensor, key: Any) -> Tensor | None:
    """``input[key]`` for one array of integers or bools, as a copy that is made at once.

    None where memory is small or nobody else writes it, for other keys, and of bad ones.
    """
    cell: Any = input.cell
    if watching.on or tracing.stack or versions.on or cell.memory.nbytes < LARGE:
        return None
    if any(op.kind != "movement" for op, _ in input.chain) or input.described().requires_grad:
        return None
    index = _array(key)
    if index is None or not index.ndim:
        return None
    try:
        rows = seen_through(input.chain, cell.memory)[index]
    except IndexError:
        return None  # whose error is another
    return wrap(holding_array(rows))


def _array(key: Any) -> np.ndarray[Any, Any] | None:
    """A key as NumPy's array of integers or bools."""
    if isinstance(key, TensorBase):
        if key.dtype not in (int64, int32, bool_) or key.device is not CPU:
            return None
        node = key.node
        if node.storage is None:
            realize(CPU, (node,))
        check_errors(CPU)
        array: np.ndarray[Any, Any] = np.asarray(node.storage)
        return array
    if isinstance(key, list):
        if not key or not {*map(type, key)} <= {int}:
            return None
        key = np.asarray(key)
    return key if isinstance(key, np.ndarray) and key.dtype in INDICES else None


__all__ = ["shared_rows"]
