"""Batches that are copied to the GPU while it works on the one before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tinygrad_cuda.backend import registry
from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.trees import leaves, rebuilt
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.creation import get_default_device, tensor


def prefetched(batches: Iterable[Any]) -> Iterator[Any]:
    """Batches of arrays as batches of Tensors on the default device, copied one ahead.

    On a GPU the copy of batch k + 1 is asked for before batch k is handed out: it goes through
    pinned memory on a stream of its own, and runs while the GPU computes with batch k. What uses
    a batch waits for its copy on the device; the host never waits. Elsewhere there is nothing to
    overlap, and each batch is made into Tensors when it is handed out.

    Args:
        batches: nested tuples, lists and dicts of arrays; anything else in them stays as it is.
    """
    device = get_default_device()
    start: Any = getattr(registry.get(device), "upload", None)

    def begin(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray | np.generic):
            return leaf
        array = np.asarray(leaf)
        return tensor(array, device=device) if start is None else _Coming(array, start, device)

    waiting: list[Any] = []
    for batch in batches:
        waiting.append(rebuilt(batch, map(begin, leaves(batch))))
        if start is None or len(waiting) > 1:
            yield _arrived(waiting.pop(0))
        for leaf in leaves(waiting):
            if isinstance(leaf, _Coming):
                leaf.upload.wait_for_source()  # the next batch may be made in the same arrays
    while waiting:
        yield _arrived(waiting.pop(0))


class _Coming:
    """An array in flight."""

    __slots__ = ("node", "upload")

    def __init__(self, array: np.ndarray[Any, Any], start: Any, device: Any) -> None:
        self.node = common.buffer.leaf(array.shape, dtypes.from_numpy(array.dtype), device)
        self.upload = start(array)


def _arrived(batch: Any) -> Any:
    """The same structure with Tensors; what the device does from now on waits for the copies."""
    flat = leaves(batch)
    for number, leaf in enumerate(flat):
        if isinstance(leaf, _Coming):
            leaf.node.storage = leaf.upload.settle()
            flat[number] = wrap(leaf.node)
    return rebuilt(batch, iter(flat))
