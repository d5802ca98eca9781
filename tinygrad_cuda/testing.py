"""tc.testing: what tests of programs call, by PyTorch's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad_cuda.core.dtypes import as_dtype, finfo, iinfo, int64
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.names import missing_from
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.complex_numbers import complex
from tinygrad_cuda.tensors.creation import as_tensor
from tinygrad_cuda.tensors.random import rand, randint
from tinygrad_cuda.tensors.tensor import Tensor

__all__ = ["assert_allclose", "assert_close", "make_tensor"]

Text = str | Callable[[str], str] | None
# The dtype's name -> relative and absolute tolerance, PyTorch's.
TOLERANCES = {
    "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7), "complex64": (1.3e-6, 1e-5), "complex128": (1e-7, 1e-7),
}  # fmt: skip


class _Comparison:
    """Tolerances and options of one `assert_close`, applied to every pair of values."""

    def __init__(
        self, rtol: float | None, atol: float | None, equal_nan: bool, attributes: list[str],
        text: Text,
    ) -> None:  # fmt: skip
        if (rtol is None) != (atol is None):
            raise ArgumentError(
                "assert_close", "one tolerance without the other", expect="rtol and atol, or none",
                actual=f"rtol={rtol}, atol={atol}",
            )  # fmt: skip
        self.rtol, self.atol, self.equal_nan = rtol, atol, equal_nan
        self.attributes, self.text = attributes, text

    def fail(self, what: str, path: str) -> AssertionError:
        whole = f"{what}\n\nThe failure occurred for item {path}" if path else what
        text = self.text(whole) if callable(self.text) else self.text
        return AssertionError(whole if text is None else text)

    def compare(self, actual: Any, expected: Any, path: str = "") -> None:
        if isinstance(actual, TensorBase) and isinstance(expected, TensorBase):
            self.tensors(actual, expected, path)  # type: ignore[arg-type]
        elif _is_sequence(actual) and _is_sequence(expected):
            if len(actual) != len(expected):
                text = f"The length of the sequences mismatch: {len(actual)} != {len(expected)}"
                raise self.fail(text, path)
            for k, pair in enumerate(zip(actual, expected)):
                self.compare(*pair, f"{path}[{k}]")
        elif isinstance(actual, Mapping) and isinstance(expected, Mapping):
            if set(actual) != set(expected):
                texts = [
                    f"Missing keys in the {name} mapping: {sorted(keys, key=repr)}"
                    for name, keys in (
                        ("actual", set(expected) - set(actual)),
                        ("expected", set(actual) - set(expected)),
                    )
                    if keys
                ]
                text = "The keys of the mappings do not match:"
                raise self.fail("\n".join([text, *texts]), path)
            for key in actual:
                self.compare(actual[key], expected[key], f"{path}[{key!r}]")
        else:
            self.plain(actual, expected, path)

    def plain(self, actual: Any, expected: Any, path: str) -> None:
        """Numbers and arrays by their values; anything else by ``==``."""
        if actual is None or expected is None or isinstance(actual, str):
            if actual is not expected and actual != expected:
                raise self.fail(f"Object comparison failed. {actual!r} != {expected!r}", path)
            return
        if isinstance(actual, TensorBase) or isinstance(expected, TensorBase):
            raise TypeError(
                f"no comparison of {type(actual).__name__} and {type(expected).__name__}"
            )
        if "dtype" in self.attributes and type(actual) is not type(expected):
            raise self.fail(f"The (d)types do not match: {type(actual)} != {type(expected)}.", path)
        self.tensors(
            as_tensor(actual, device="cpu"), as_tensor(expected, device="cpu"), path,
            "Scalars" if np.ndim(actual) == 0 else "Tensor-likes",
        )  # fmt: skip

    def tensors(
        self, actual: Tensor, expected: Tensor, path: str, what: str = "Tensor-likes"
    ) -> None:
        for name in ("shape", *self.attributes):
            ours, theirs = (_attribute(value, name) for value in (actual, expected))
            if ours != theirs:
                label = "stride()" if name == "stride" else name
                text = f"The values for attribute {label!r} do not match: {ours} != {theirs}."
                raise self.fail(text, path)
        rtol, atol = self.tolerances(actual, expected)
        a, b = (_wide(value) for value in (actual, expected))
        with np.errstate(all="ignore"):
            distance = np.abs(a - b).astype(np.float64)
            size = np.abs(b).astype(np.float64)
            close = (a == b) | (np.isfinite(distance) & (distance <= atol + rtol * size))
            if self.equal_nan:
                close = close | ((a != a) & (b != b))
            if close.all():
                return
            relative = distance / size
        raise self.fail(_report(what, close, distance, relative, rtol, atol, (a, b)), path)

    def tolerances(self, actual: Tensor, expected: Tensor) -> tuple[float, float]:
        if self.rtol is not None and self.atol is not None:
            return self.rtol, self.atol
        names = [value.dtype.name for value in (actual, expected)]
        pairs = [TOLERANCES.get(name, (0.0, 0.0)) for name in names]
        return max(r for r, _ in pairs), max(a for _, a in pairs)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _attribute(value: Tensor, name: str) -> Any:
    return value.stride() if name == "stride" else getattr(value, name)


def _wide(value: Tensor) -> np.ndarray[Any, Any]:
    """The numbers in the widest type of their kind, so that distances do not overflow."""
    array: np.ndarray[Any, Any] = value.detach().cpu().array()
    if array.dtype.kind in "iub":
        wide = array.astype(object) if array.dtype.itemsize > 4 else array.astype(np.int64)
    else:
        wide = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    return wide


def _report(
    what: str, close: Any, distance: Any, relative: Any, rtol: float, atol: float, pair: Any
) -> str:
    exact = rtol == atol == 0
    head = f"{what} are not {'equal' if exact else 'close'}!"
    limits = ["" if exact else f" (up to {limit} allowed)" for limit in (atol, rtol)]
    if what == "Scalars":
        lines = [
            f"Expected {pair[1].item()} but got {pair[0].item()}.",
            f"Absolute difference: {distance.item()}{limits[0]}",
            f"Relative difference: {relative.item()}{limits[1]}",
        ]
        return "\n".join([head, "", *lines])
    wrong = int((~close).sum())
    lines = [f"Mismatched elements: {wrong} / {close.size} ({100 * wrong / close.size:.1f}%)"]
    for kind, numbers, limit in zip(("absolute", "relative"), (distance, relative), limits):
        shown = np.where(close, -1.0, np.nan_to_num(numbers, nan=np.inf))
        where = np.unravel_index(int(shown.argmax()), close.shape)
        index = tuple(int(k) for k in where)
        lines.append(f"Greatest {kind} difference: {numbers[where]} at index {index}{limit}")
    return "\n".join([head, "", *lines])


def assert_close(
    actual: Any, expected: Any, *, allow_subclasses: bool = True, rtol: float | None = None,
    atol: float | None = None, equal_nan: bool = False, check_device: bool = True,
    check_dtype: bool = True, check_layout: bool = True, check_stride: bool = False,
    msg: Text = None,
) -> None:  # fmt: skip
    """Raises unless ``|actual - expected| <= atol + rtol * |expected|`` for all elements.

    Args:
        actual, expected: Tensors, numbers, or sequences and mappings of them.
        allow_subclasses, check_layout: accepted as in PyTorch; there is one layout.
        rtol, atol: both or none; by default those of the dtypes, 1.3e-6 and 1e-5 for float32.
        equal_nan: whether NaNs are equal.
        check_device, check_dtype, check_stride: what else has to be equal.
        msg: the error's text, or a function of the one that it would have.

    Raises:
        AssertionError: values, shapes or what else is compared differ.
        TypeError: a Tensor is compared with something else.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([1.0, 2.0], device="cpu")
        >>> tc.testing.assert_close(x + 1e-7, x)
    """
    checks = {"device": check_device, "dtype": check_dtype, "stride": check_stride}
    attributes = [name for name, wanted in checks.items() if wanted]
    _Comparison(rtol, atol, equal_nan, attributes, msg).compare(actual, expected)


def assert_allclose(
    actual: Any, expected: Any, rtol: float | None = None, atol: float | None = None,
    equal_nan: bool = True, msg: str = "",
) -> None:  # fmt: skip
    """The older form of `assert_close`: devices, dtypes and kinds of numbers may differ."""
    values = [as_tensor(value) for value in (actual, expected)]
    assert_close(
        *values, rtol=rtol, atol=atol, equal_nan=equal_nan, check_device=False, check_dtype=False,
        msg=msg or None,
    )  # fmt: skip


def make_tensor(
    *shape: Any, dtype: Any, device: Any, low: float | None = None, high: float | None = None,
    requires_grad: bool = False, noncontiguous: bool = False, exclude_zero: bool = False,
    memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """A Tensor of random numbers: uniform of [low, high), by default what the dtype does well.

    Args:
        shape: sizes, or one sequence of them.
        dtype: Boolean, integers of 0 (unsigned) or -9 to 9, floating and complex of -9 to 9 are the
            defaults, as in PyTorch.
        device: where it is.
        low, high: bounds; those beyond the dtype's range are cut to it.
        requires_grad: for floating and complex dtypes.
        noncontiguous: its elements do not lie side by side, if there are two or more.
        exclude_zero: zeros become the smallest number above.
        memory_format: of the result.

    Raises:
        ArgumentError: low is not below high; integers with requires_grad; both layouts are asked.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = make_tensor(3, 4, dtype=tc.int32, device="cpu", low=2, high=5)
        >>> bool(((x >= 2) & (x < 5)).all())
        True
    """
    kind = as_dtype(dtype)
    sizes = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
    lowest, highest = _bounds(kind, low, high)
    if noncontiguous and memory_format is not None:
        raise ArgumentError(
            "make_tensor", "two layouts are asked for", expect="noncontiguous or memory_format",
            actual=f"noncontiguous=True, memory_format={memory_format}",
        )  # fmt: skip
    if requires_grad and not (kind.is_floating_point or kind.is_complex):
        raise ArgumentError(
            "make_tensor", "only floating and complex Tensors have gradients",
            expect="requires_grad=False", actual=kind.name,
        )  # fmt: skip
    if kind.is_complex:
        parts = (_drawn(sizes, kind.to_real(), device, lowest, highest) for _ in range(2))
        result = complex(*parts)
    else:
        result = _drawn(sizes, kind, device, lowest, highest)
    if exclude_zero:
        smallest = finfo(kind).tiny if kind.is_floating_point or kind.is_complex else 1
        result = result.masked_fill(result == 0, smallest)
    if noncontiguous and result.numel() > 1:
        result = result.repeat_interleave(2, dim=-1)[..., ::2]
    elif memory_format is not None:
        result = result.clone(memory_format=memory_format)
    return result.requires_grad_() if requires_grad else result


def _bounds(dtype: Any, low: float | None, high: float | None) -> tuple[float, float]:
    """The bounds of the numbers, within the dtype's."""
    least: float
    most: float
    number = dtype.is_floating_point or dtype.is_complex
    if dtype.name == "bool":
        least, most, default = 0, 2, (0, 2)
    elif number:
        least, most, default = finfo(dtype).min, finfo(dtype).max, (-9, 9)
    else:
        least, most = iinfo(dtype).min, iinfo(dtype).max
        default = (0, 10) if least == 0 else (-9, 10)
    lowest = default[0] if low is None else low
    highest = default[1] if high is None else high
    if not lowest < highest:
        raise ArgumentError(
            "make_tensor", "low is not below high", expect="low < high",
            actual=f"low={lowest}, high={highest}",
        )  # fmt: skip
    return max(lowest, least), min(highest, most if number else most + 1)


def _drawn(sizes: Any, dtype: Any, device: Any, low: float, high: float) -> Tensor:
    if dtype.is_floating_point:
        drawn: Tensor = rand(sizes, dtype=dtype, device=device) * (high - low) + low
        return drawn
    whole = ceil(low), ceil(high)
    kind = int64 if dtype.name == "bool" else dtype
    numbers: Tensor = randint(*whole, sizes, dtype=kind, device=device).to(dtype)
    return numbers


if not TYPE_CHECKING:  # for a type checker an unknown name stays an error
    __getattr__ = missing_from(__name__, lambda: __all__)
