"""The standard's extension for Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinygrad_cuda.array_api.operands import array
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.tensors import fourier
from tinygrad_cuda.tensors.tensor import Tensor

Axes = int | Sequence[int] | None


def _one(name: str, transform: Callable[..., Tensor], text: str) -> Any:
    def function(
        x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward"
    ) -> Tensor:
        return transform(array(name, x), n, axis, norm)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = text
    return function


def _several(name: str, transform: Callable[..., Tensor], text: str) -> Any:
    def function(
        x: Tensor, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
        norm: str = "backward",
    ) -> Tensor:  # fmt: skip
        return transform(array(name, x), s, axes, norm)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = text
    return function


fft = _one("fft", fourier.fft, "The Fourier transform along an axis, X[k] = sum x[j] w^(jk).")
ifft = _one("ifft", fourier.ifft, "The inverse Fourier transform along an axis.")
rfft = _one("rfft", fourier.rfft, "The first n // 2 + 1 elements of a real array's transform.")
irfft = _one("irfft", fourier.irfft, "The inverse of `rfft`: real elements from half a spectrum.")
hfft = _one("hfft", fourier.hfft, "The real transform of an array of which half is given.")
ihfft = _one("ihfft", fourier.ihfft, "The inverse of `hfft`: half of what has a real spectrum.")
fftn = _several("fftn", fourier.fftn, "The Fourier transform along several axes.")
ifftn = _several("ifftn", fourier.ifftn, "The inverse Fourier transform along several axes.")
rfftn = _several("rfftn", fourier.rfftn, "Half of a real array's transform along several axes.")
irfftn = _several("irfftn", fourier.irfftn, "The inverse of `rfftn`, whose elements are real.")


def fftfreq(n: int, /, *, d: float = 1.0, dtype: DType | None = None, device: Any = None) -> Tensor:
    """The frequency of each element of `fft`, in cycles per unit of the distance d."""
    return fourier.fftfreq(n, d, dtype=dtype, device=device)


def rfftfreq(
    n: int, /, *, d: float = 1.0, dtype: DType | None = None, device: Any = None
) -> Tensor:
    """The frequency of each element of `rfft`, in cycles per unit of the distance d."""
    return fourier.rfftfreq(n, d, dtype=dtype, device=device)


def fftshift(x: Tensor, /, *, axes: Axes = None) -> Tensor:
    """The array with the frequency 0 in the middle of each axis."""
    return fourier.fftshift(array("fftshift", x), axes)


def ifftshift(x: Tensor, /, *, axes: Axes = None) -> Tensor:
    """The inverse of `fftshift`: the frequency 0 at the beginning of each axis."""
    return fourier.ifftshift(array("ifftshift", x), axes)


__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft",
    "irfftn", "rfft", "rfftfreq", "rfftn",
]  # fmt: skip
