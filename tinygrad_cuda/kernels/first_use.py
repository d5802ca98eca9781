"""An op of the user's at its first use on a device: its kernel's values against the reference's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cpu.rows import evaluate
from tinygrad_cuda.core.errors import TgcError
from tinygrad_cuda.engine.realize import lock_of
from tinygrad_cuda.graph.node import Node, Op, node_made
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.program import Program

Array = np.ndarray[Any, Any]

KINDS = "emu", "cuda"  # devices that run CUDA text
# By the bytes of a floating dtype: relative, and absolute as a part of the largest value.
TOLERANCE = {2: 1e-2, 4: 1e-4, 8: 1e-8}


class FirstUse:
    """Compares an element by element op once for each kind of device and dtype.

    Args:
        points: values of each operand.
    """

    def __init__(self, points: Sequence[Array]) -> None:
        self._points = points
        self._seen: set[tuple[str, str]] = set()

    def __call__(self, op: Op, sources: Sequence[Node]) -> None:
        """Before the op is recorded.

        Raises:
            TgcError: the kernel gives other values than the reference.
        """
        use = sources[0].device.kind, sources[0].dtype.name
        if use not in self._seen:
            check_expression(op, sources, self._points)
            self._seen.add(use)


def check_expression(op: Op, sources: Sequence[Node], points: Sequence[Array]) -> None:
    """Runs an element by element op once by itself, and compares it with NumPy.

    Args:
        op: the row.
        sources: operands of the call, for their dtype and device.
        points: values of each operand; of integers, small ones above zero are taken instead.

    Raises:
        TgcError: the first value that differs.
    """
    device, dtype = sources[0].device, sources[0].dtype
    if dtype.category < 2:
        draws = np.random.default_rng(3)
        points = [draws.integers(1, 8, len(values)) for values in points]
    arrays = [np.asarray(values).astype(dtype.numpy) for values in points]
    spec = ((arrays[0].shape, dtype),)
    inputs = [
        node_made(common.buffer, (), {"slot": slot}, spec, device, False, None)
        for slot in range(len(arrays))
    ]
    outputs = op.infer(op, tuple(inputs), {})
    node = node_made(op, tuple(inputs), {}, outputs, device, False, None)
    backend = registry.get(device)
    with lock_of(device):
        executable = backend.compile(Program(device, (node,), tuple(inputs), {}))
        (storage,) = executable.run([backend.from_host(array) for array in arrays], ())
        actual = backend.to_host(storage, node.shape, node.dtype)
    with np.errstate(all="ignore"):
        expected = np.asarray(evaluate(node, arrays))
    compare(op.name, actual, expected, arrays)


def compare(op: str, actual: Array, expected: Array, operands: Sequence[Array] = ()) -> None:
    """Raises at the first value of a kernel that is not the reference's.

    Args:
        op: its name.
        actual, expected: the kernel's values, and the reference's.
        operands: of an element by element op, which are shown.

    Raises:
        TgcError: there is one.
    """
    wrong = _wrong(actual, expected)
    if not wrong.any():
        return
    where = tuple(int(index) for index in np.argwhere(wrong)[0])
    shown = ", ".join(f"{array[where]}" for array in operands)
    raise TgcError(
        op, "the kernel gives other values than the reference",
        expect=f"{expected[where]} at element {where}" + (f", of {shown}" if shown else ""),
        actual=f"{actual[where]}; {int(wrong.sum())} of {wrong.size} elements differ",
        hint="domain=(low, high) where the text is defined; check=False leaves this out"
        if operands else "check=False leaves this out, for values that no reference has",
    )  # fmt: skip


def _wrong(actual: Array, expected: Array) -> Array:
    """Where two values differ by more than rounding."""
    if expected.dtype.kind in "biu":
        differs: Array = actual != expected
        return differs
    near = TOLERANCE[actual.dtype.itemsize]
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.abs(b[np.isfinite(b)])
    largest = float(finite.max()) if finite.size else 0.0
    close: Array = np.isclose(a, b, rtol=near, atol=near * (largest or 1.0), equal_nan=True)
    return ~close


__all__ = ["KINDS", "FirstUse", "check_expression", "compare"]
