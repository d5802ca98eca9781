"""The text of a Tensor: values (edges only for large ones), shape, dtype, device, grad."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.tensor import joining

if TYPE_CHECKING:
    from tinygrad_cuda.tensor.tensor import Tensor

THRESHOLD = 1000
EDGE = 3


def _edges(input: Tensor) -> np.ndarray[Any, Any]:
    """The first and last elements of every long axis, so that nothing large is copied."""
    result = input.detach()
    with gradient_mode(False):
        for axis, size in enumerate(input.shape):
            if size > 2 * EDGE + 1:
                # One more than is printed, so that NumPy elides the middle by itself.
                front = result.narrow(axis, 0, EDGE + 1)
                back = result.narrow(axis, size - EDGE, EDGE)
                result = joining.cat((front, back), axis)
        return result.array()


def text(input: Tensor) -> str:
    """The repr; gathers only the edges of a Tensor of more than 1000 elements.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.tensor([1.0, 2.5], device="cpu")
        tensor([1.0000, 2.5000])
    """
    shape, dtype = input.node.shape, input.dtype
    large = prod(shape) > THRESHOLD
    array = _edges(input) if large else input.array()
    if dtype in (dtypes.float16, dtypes.bfloat16):
        array = array.astype(np.float32)
    whole = dtype.is_floating and bool(
        np.all(np.isfinite(array)) and np.all(array == np.trunc(array))
        and (array.size == 0 or float(np.abs(array).max()) < 1e5)
    )  # fmt: skip
    formatter: dict[str, Any] = {"float_kind": lambda x: f"{x:.0f}."} if whole else {}
    values = np.array2string(
        array,
        separator=", ",
        precision=4,
        floatmode="maxprec_equal" if whole else "fixed",
        threshold=min(THRESHOLD, array.size - 1) if large else THRESHOLD,
        edgeitems=EDGE,
        prefix="tensor(",
        formatter=formatter or None,
    )
    parts = [values]
    if large or array.size == 0:
        parts.append(f"shape={tuple(shape)}")
    if dtype not in (dtypes.float32, dtypes.int64, dtypes.bool_):
        parts.append(f"dtype={dtype!r}")
    if input.device.kind != "cpu":
        parts.append(f"device='{input.device}'")
    if input.requires_grad:
        leaf = input.leaf is not None
        parts.append("requires_grad=True" if leaf else f"grad_fn=<{input.node.op.name}>")
    return f"tensor({', '.join(parts)})"
