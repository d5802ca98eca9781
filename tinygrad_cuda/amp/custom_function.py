"""What a Function of the user's own does under autocast: custom_fwd and custom_bwd."""

from __future__ import annotations

import functools
from typing import Any

from tinygrad_cuda.core.dtypes import DType, as_dtype, float64
from tinygrad_cuda.tensors.autocast import autocast, get_autocast_dtype, is_autocast_enabled
from tinygrad_cuda.tensors.base import TensorBase


def custom_fwd(fwd: Any = None, *, device_type: str, cast_inputs: Any = None) -> Any:
    """Decorates the ``forward`` of a Function: what autocast does inside.

    Without `cast_inputs` the operations inside are cast like any others. With it, the Tensors
    given are cast to that dtype where autocast is on, and nothing inside is cast.

    Args:
        fwd: ``forward(ctx, *inputs)``.
        device_type: the kind of device, as for `autocast`.
        cast_inputs: a floating dtype.

    Example:
        >>> import tinygrad_cuda as tc
        >>> class Cube(tc.autograd.Function):
        ...     @staticmethod
        ...     @tc.amp.custom_fwd(device_type="cpu", cast_inputs=tc.float32)
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x * x * x
        ...     @staticmethod
        ...     @tc.amp.custom_bwd(device_type="cpu")
        ...     def backward(ctx, g):
        ...         (x,) = ctx.saved_tensors
        ...         return g * 3 * x * x
        >>> with tc.autocast("cpu"):
        ...     Cube.apply(tc.ones(2, device="cpu", dtype=tc.bfloat16)).dtype
        tinygrad_cuda.float32
    """
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def forward(ctx: Any, *args: Any, **options: Any) -> Any:
        enabled = is_autocast_enabled(device_type)
        ctx.autocast_dtype = get_autocast_dtype(device_type)
        ctx.autocast_enabled = enabled and cast_inputs is None
        if not enabled or cast_inputs is None:
            return fwd(ctx, *args, **options)
        dtype = as_dtype(cast_inputs)
        given = [_cast(value, device_type, dtype) for value in args]
        named = {name: _cast(value, device_type, dtype) for name, value in options.items()}
        with autocast(device_type, enabled=False):
            return fwd(ctx, *given, **named)

    return forward


def custom_bwd(bwd: Any = None, *, device_type: str) -> Any:
    """Decorates the ``backward`` of a Function: it runs as autocast was in `custom_fwd`.

    Args:
        bwd: ``backward(ctx, *grads)``.
        device_type: the kind of device, as for `autocast`.
    """
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def backward(ctx: Any, *grads: Any) -> Any:
        with autocast(device_type, ctx.autocast_dtype, enabled=ctx.autocast_enabled):
            return bwd(ctx, *grads)

    return backward


def _cast(value: Any, device_type: str, dtype: DType) -> Any:
    """A floating Tensor of that kind of device in `dtype`; float64 and all else as it is."""
    if (
        isinstance(value, TensorBase)
        and value.device.kind == device_type
        and value.dtype.is_floating
        and value.dtype is not float64
    ):
        return value.to(dtype)  # type: ignore[attr-defined]
    if isinstance(value, tuple | list):
        return type(value)([_cast(element, device_type, dtype) for element in value])
    return value
