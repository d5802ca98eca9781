"""The text of a Tensor: values (edges only of large ones), shape, dtype, device, grad.

The layout of numbers is PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.tensors import shaping
from tinygrad_cuda.tensors.creation import defaults

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

Array = np.ndarray[Any, Any]


class Options:
    """What `set_printoptions` sets; the names are PyTorch's."""

    def __init__(self) -> None:
        self.precision = 4
        self.threshold: float = 1000
        self.edgeitems = 3
        self.linewidth = 80
        self.sci_mode: bool | None = None


options = Options()
PROFILES: dict[str, dict[str, Any]] = {
    "default": {},
    "short": {"precision": 2, "edgeitems": 2},
    "full": {"threshold": float("inf")},
}
PREFIX = "tensor("


def text(input: Tensor) -> str:
    """The repr; reads only the edges of a Tensor of more than 1000 elements.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.tensor([1.0, 2.5], device="cpu")
        tensor([1.0000, 2.5000])
    """
    shape, dtype = input.node.shape, input.dtype
    large = prod(shape) > options.threshold
    array = _edges(input) if large else input.detach().array()
    if array.size:
        body = _nested(array, shape if large else array.shape, _formatter(array, dtype), 0)
    else:
        body = "[]"
    notes = []
    if large or (array.size == 0 and len(shape) != 1):
        notes.append(f"shape={tuple(shape)}")
    usual = (defaults.dtype, defaults.dtype.to_complex(), dtypes.int64, dtypes.bool_)
    if dtype not in (usual if array.size else usual[:1]):
        notes.append(f"dtype={dtype!r}")
    if input.device.kind != "cpu":
        notes.append(f"device='{input.device}'")
    if input.requires_grad:
        notes.append("requires_grad=True" if input.is_leaf else f"grad_fn=<{input.node.label}>")
    return _with_notes(PREFIX + body, notes)


def _with_notes(result: str, notes: list[str]) -> str:
    """Notes go on the last line while they fit."""
    used = len(result) - result.rfind("\n") - 1
    for note in notes:
        if used + len(note) + 2 > options.linewidth:
            result += ",\n" + " " * len(PREFIX) + note
            used = len(PREFIX) + len(note)
        else:
            result += ", " + note
            used += len(note) + 2
    return result + ")"


# Values -------------------------------------------------------------------------------------------


def _edges(input: Tensor) -> Array:
    """The first and last elements of every long axis; nothing large is copied."""
    if input.device.kind == "cpu":
        array = input.detach().array()
        return array[np.ix_(*(_shown(size) for size in array.shape))]
    with gradient_mode(False):
        result = input.detach()
        edge = options.edgeitems
        for axis, size in enumerate(input.node.shape):
            if size > 2 * edge:
                front = result.narrow(axis, 0, edge)
                back = result.narrow(axis, size - edge, edge)
                result = shaping.cat((front, back), axis)
        return result.array()


def _shown(size: int) -> list[int]:
    positions, edge = range(size), options.edgeitems
    return [*positions] if size <= 2 * edge else [*positions[:edge], *positions[-edge:]]


def _nested(array: Array, shape: tuple[int, ...], number: Callable[[Any], str], depth: int) -> str:
    """Brackets around brackets; `shape` is that of the whole, which says where dots stand."""
    if not shape:
        return number(array[()])
    indent = len(PREFIX) + depth
    elided = shape[0] > array.shape[0]
    if len(shape) > 1:
        parts = [_nested(part, shape[1:], number, depth + 1) for part in array]
        if elided:
            parts.insert(options.edgeitems, "...")
        return "[" + ("," + "\n" * (len(shape) - 1) + " " * (indent + 1)).join(parts) + "]"
    words = [number(value) for value in array]
    per_line = max(1, (options.linewidth - indent) // (max(map(len, words), default=0) + 2))
    if elided:
        words.insert(options.edgeitems, " ...")
    lines = [", ".join(words[k : k + per_line]) for k in range(0, len(words), per_line)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"


def _formatter(array: Array, dtype: DType) -> Callable[[Any], str]:
    """How each number is written, all equally wide."""
    if dtype.is_complex:
        return _complex_formatter(array, dtype.to_real())
    if not dtype.is_floating:
        write: Callable[[Any], str] = str
        width = max(map(len, map(str, array.reshape(-1).tolist())))
    else:
        wide = array.astype(np.float64)
        sizes = np.abs(wide[np.isfinite(wide) & (wide != 0)])
        write = _float_style(sizes)
        width = max((len(write(value)) for value in wide[np.isfinite(wide) & (wide != 0)]),
                    default=1)  # fmt: skip
    if array.ndim == 0:
        width = 0
    return lambda value: write(value.item()).rjust(width)


def _complex_formatter(array: Array, dtype: DType) -> Callable[[Any], str]:
    """Real and imaginary parts in a style of their own each."""
    real, imag = _formatter(array.real, dtype), _formatter(array.imag, dtype)

    def write(value: Any) -> str:
        second = imag(value.imag).lstrip()
        return f"{real(value.real)}{'' if second[0] in '+-' else '+'}{second}j"

    return write


def _float_style(sizes: Array) -> Callable[[float], str]:
    """Whole numbers, four decimals, or powers of ten, by the finite magnitudes other than 0."""
    if not sizes.size:
        return _whole
    low, high = float(sizes.min()), float(sizes.max())
    whole = bool(np.all(sizes == np.trunc(sizes)))
    digits = options.precision
    wide = high / low > 1000 or high > 1e8 or (not whole and low < 1e-4)
    if wide if options.sci_mode is None else options.sci_mode:
        return lambda value: f"{value:.{digits}e}"
    return _whole if whole else lambda value: f"{value:.{digits}f}"


def _whole(value: float) -> str:
    return f"{value:.0f}." if np.isfinite(value) else f"{value:.0f}"
