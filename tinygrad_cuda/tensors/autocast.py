"""autocast: products in a half type, what needs range or precision in float32.

A function says in one line what it wants (`in_half`, `in_float32`, `in_widest`); casts are nodes.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import DType, as_dtype, bfloat16, float16, float32, float64
from tinygrad_cuda.core.errors import ArgumentError, DTypeError
from tinygrad_cuda.engine.capture import watching
from tinygrad_cuda.graph.ops import elementwise
from tinygrad_cuda.tensors.base import TensorBase, wrap

F = TypeVar("F", bound=Callable[..., Any])

# The kinds of devices that cast; the types are PyTorch's, and the emulator stands for a GPU.
DEFAULTS: dict[str, DType] = {"cpu": bfloat16, "cuda": float16, "emu": float16}


class _State(threading.local):
    """What is on in this thread."""

    def __init__(self) -> None:
        # Kind of device -> half type. Empty while nothing is to be cast.
        self.on: dict[str, DType] = {}
        self.defaults = dict(DEFAULTS)


state = _State()


class autocast:
    """Inside, each operation on float32 values picks its dtype, as PyTorch does on CUDA.

    Matrix products, convolutions and linear maps compute in `dtype`; exponentials, logarithms,
    powers, sums, norms and losses in float32; all else in the dtype of its operands. The same
    rule holds on every device. Casts are part of the graph: they are fused like any other
    operation, the same weight is cast once a step, and a gradient passes back in the
    opposite direction. float64 is left alone. A context manager, and a decorator.

    Args:
        device_type: the kind of device whose operations are cast: ``cpu``, ``cuda`` or ``emu``.
        dtype: float16 or bfloat16; bfloat16 on ``cpu``, float16 elsewhere when left out.
        enabled: with False operations inside keep their dtypes, also within another autocast.
        cache_enabled: accepted as in PyTorch; equal casts of a step are one node in any case.

    Raises:
        ArgumentError: there is no such kind of device.
        DTypeError: `dtype` is no half type.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.ones(2, 2, device="cpu")
        >>> with tc.autocast("cpu", dtype=tc.bfloat16):
        ...     y = x @ x
        ...     z = y.softmax(1)
        >>> y.dtype, z.dtype
        (tinygrad_cuda.bfloat16, tinygrad_cuda.float32)
    """

    def __init__(
        self,
        device_type: str,
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        self.device = known_kind("autocast", device_type)
        self.fast_dtype = state.defaults[self.device] if dtype is None else _half(dtype)
        self.enabled = enabled
        self.cache_enabled = cache_enabled
        self._old: list[dict[str, DType]] = []

    def __enter__(self) -> autocast:
        old = state.on
        self._old.append(old)
        state.on = {kind: half for kind, half in old.items() if kind != self.device}
        if self.enabled:
            state.on[self.device] = self.fast_dtype
        watching.count(1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        state.on = self._old.pop()
        watching.count(-1)

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **options: Any) -> Any:
            # One of its own for each call: threads may call at the same time.
            with autocast(self.device, self.fast_dtype, self.enabled, self.cache_enabled):
                return function(*args, **options)

        return wrapper  # type: ignore[return-value]


def known_kind(op: str, device_type: Any) -> str:
    """The kind of device that a name says.

    Raises:
        ArgumentError: it says none.
    """
    if not isinstance(device_type, str) or device_type not in DEFAULTS:
        raise ArgumentError(
            op,
            "no such kind of device",
            expect=", ".join(map(repr, DEFAULTS)),
            actual=repr(device_type),
            hint="without an index: autocast('cuda', dtype=tc.bfloat16)",
        )
    return device_type


def _half(dtype: Any) -> DType:
    half = as_dtype(dtype)
    if half is not float16 and half is not bfloat16:
        raise DTypeError(
            "autocast", "casts to half types only", expect="float16 or bfloat16", actual=half.name
        )
    return half


def is_autocast_available(device_type: str) -> bool:
    """Whether autocast knows that kind of device."""
    return device_type in DEFAULTS


def is_autocast_enabled(device_type: str = "cuda") -> bool:
    """Whether operations of this thread on that kind of device are cast."""
    return known_kind("is_autocast_enabled", device_type) in state.on


def get_autocast_dtype(device_type: str) -> DType:
    """The half type in use there, or the one that would be."""
    kind = known_kind("get_autocast_dtype", device_type)
    return state.on.get(kind) or state.defaults[kind]


def set_autocast_dtype(device_type: str, dtype: Any) -> None:
    """Sets what `autocast` of this thread takes there when it is given no dtype."""
    state.defaults[known_kind("set_autocast_dtype", device_type)] = _half(dtype)


# What a function wants ----------------------------------------------------------------------------


def _policy(name: str, choose: Callable[[dict[str, DType], Any], Callable[[Any], Any]]) -> Any:
    """A decorator; ``choose(on, arguments)`` gives the cast of one Tensor.

    Inside the function nothing more is cast: it is one operation, whatever it is made of.
    """

    def decorator(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **options: Any) -> Any:
            if not watching.on or not (on := state.on):
                return function(*args, **options)
            cast = choose(on, (args, options))
            state.on = {}
            try:
                return function(
                    *[_each(cast, value) for value in args],
                    **{name: _each(cast, value) for name, value in options.items()},
                )
            finally:
                state.on = on

        wrapper.autocast = name  # type: ignore[attr-defined]
        return wrapper  # type: ignore[return-value]

    return decorator


def _each(cast: Callable[[Any], Any], value: Any) -> Any:
    """The Tensors in an argument, cast where they are of a kind and dtype that is cast."""
    if isinstance(value, TensorBase):
        return cast(value)
    if type(value) is tuple or type(value) is list:
        return type(value)([_each(cast, part) for part in value])
    return value


def _concerned(on: dict[str, DType], value: Any) -> bool:
    if not isinstance(value, TensorBase):
        return False
    dtype = value.dtype
    return dtype.is_floating and dtype is not float64 and value.device.kind in on


def _to(value: Any, dtype: DType) -> Any:
    return value if value.dtype is dtype else wrap(elementwise.cast(value.node, dtype=dtype))


def _choose_half(on: dict[str, DType], arguments: Any) -> Callable[[Any], Any]:
    return lambda value: _to(value, on[value.device.kind]) if _concerned(on, value) else value


def _choose_float32(on: dict[str, DType], arguments: Any) -> Callable[[Any], Any]:
    return lambda value: _to(value, float32) if _concerned(on, value) else value


def _choose_widest(on: dict[str, DType], arguments: Any) -> Callable[[Any], Any]:
    kinds: list[DType] = []

    def note(value: Any) -> Any:
        if _concerned(on, value):
            kinds.append(value.dtype)
        return value

    args, options = arguments
    _each(note, args)
    _each(note, list(options.values()))
    if not kinds:
        return lambda value: value
    widest = functools.reduce(dtypes.promote, kinds)
    return lambda value: _to(value, widest) if _concerned(on, value) else value


# Matrix products and what is made of them: fast in a half type, and safe, since sums are float32.
in_half: Callable[[F], F] = _policy("half", _choose_half)
# What needs range or precision: exponentials, logarithms, powers, sums, norms, losses.
in_float32: Callable[[F], F] = _policy("float32", _choose_float32)
# Several operands that must agree.
in_widest: Callable[[F], F] = _policy("widest", _choose_widest)


def operands_in_half(*values: Any) -> Any:
    """The operands as `in_half` casts them, for a layer made of several such operations."""
    on = state.on
    return tuple(_each(_choose_half(on, None), value) for value in values) if on else values


def refuse_float16(hint: str) -> Callable[[F], F]:
    """A decorator that refuses float16 under autocast, for a loss whose gradient overflows in it.

    Args:
        hint: what to use instead.
    """

    def decorator(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **options: Any) -> Any:
            for value in (*args, *options.values()) if state.on else ():
                if _concerned(state.on, value) and value.dtype is float16:
                    raise DTypeError(
                        function.__name__,
                        "is unsafe under autocast: its gradient overflows in float16",
                        expect="float32 or bfloat16",
                        actual="float16",
                        hint=hint,
                    )
            return function(*args, **options)

        return wrapper  # type: ignore[return-value]

    return decorator
