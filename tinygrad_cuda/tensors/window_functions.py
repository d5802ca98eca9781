"""Window functions of signal processing: what a piece of a signal is multiplied by."""

from __future__ import annotations

import math as _math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core.dtypes import as_dtype, float64
from tinygrad_cuda.core.errors import ArgumentError, DTypeError
from tinygrad_cuda.tensors.creation import arange, as_leaf, defaults, ones
from tinygrad_cuda.tensors.math import cos, sqrt
from tinygrad_cuda.tensors.special import i0

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window",
]  # fmt: skip


def hann_window(window_length: int, periodic: bool = True, **options: Any) -> Tensor:
    r"""Hann's window: :math:`\frac{1}{2} - \frac{1}{2} \cos(2 \pi n / N)`.

    Args:
        window_length: the number of elements.
        periodic: N is `window_length`, as a Fourier transform wants it; else one less, so that
            the last element equals the first.
        options: ``dtype``, a floating one, ``device``, ``requires_grad``.

    Raises:
        ArgumentError: the length is negative.
        DTypeError: the dtype is not floating.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.hann_window(4, device="cpu").tolist()
        [0.0, 0.5, 1.0, 0.5]
    """
    return hamming_window(window_length, periodic, 0.5, 0.5, **options)


def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46,
    **options: Any,
) -> Tensor:  # fmt: skip
    r"""Hamming's window: :math:`\alpha - \beta \cos(2 \pi n / N)`.

    Arguments are those of `hann_window`.
    """
    return _sampled(
        "hamming_window", window_length, periodic,
        lambda t: alpha - beta * cos(2 * _math.pi * t), **options,
    )  # fmt: skip


def blackman_window(window_length: int, periodic: bool = True, **options: Any) -> Tensor:
    r"""Blackman's window, :math:`0.42 - 0.5 \cos(2 \pi n / N) + 0.08 \cos(4 \pi n / N)`.

    Arguments are those of `hann_window`.
    """
    return _sampled(
        "blackman_window", window_length, periodic,
        lambda t: 0.08 * cos(4 * _math.pi * t) - 0.5 * cos(2 * _math.pi * t) + 0.42, **options,
    )  # fmt: skip


def bartlett_window(window_length: int, periodic: bool = True, **options: Any) -> Tensor:
    r"""A triangle, :math:`1 - |2 n / N - 1|`; arguments as of `hann_window`."""
    return _sampled(
        "bartlett_window", window_length, periodic, lambda t: 1 - (2 * t - 1).abs(), **options
    )


def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, **options: Any
) -> Tensor:
    r"""Kaiser's window, :math:`I_0(\beta \sqrt{1 - (2 n / N - 1)^2}) / I_0(\beta)`.

    Arguments are those of `hann_window`; `beta` is the shape.
    """

    def shape(t: Tensor) -> Tensor:
        inside = 1 - (2 * t - 1).square()
        bound: Tensor = i0(beta * sqrt(inside.clamp(min=0))) / i0(0 * t + beta)
        return bound

    return _sampled("kaiser_window", window_length, periodic, shape, **options)


def _sampled(
    op: str,
    length: int,
    periodic: bool,
    shape: Callable[[Tensor], Tensor],
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """A function of 0 to 1 at `length` places, computed in float64 and rounded once."""
    wanted = defaults.dtype if dtype is None else as_dtype(dtype)
    if not wanted.is_floating:
        raise DTypeError(
            op, "a window has a floating dtype", expect="a floating dtype", actual=wanted.name
        )
    if length < 0:
        raise ArgumentError(
            op, "the length is negative", expect="window_length >= 0", actual=str(length)
        )
    if length <= 1:
        return ones(length, dtype=wanted, device=device, requires_grad=requires_grad)
    places = arange(length, dtype=float64, device=device) / (length if periodic else length - 1)
    return as_leaf(shape(places).to(wanted), requires_grad)
