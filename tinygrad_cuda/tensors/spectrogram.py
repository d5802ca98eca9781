"""Short-time Fourier transforms: spectra of overlapping pieces of a signal, and the way back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError
from tinygrad_cuda.tensors import complex_numbers, creation, fourier, math, shaping, windows
from tinygrad_cuda.tensors.arguments import no_tensor, require_real
from tinygrad_cuda.tensors.base import TensorBase

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = ["istft", "stft"]

SMALLEST_ENVELOPE = 1e-11  # of the windows' sum of squares, as in PyTorch


def _sizes(op: str, n_fft: int, hop: int | None, length: int | None) -> tuple[int, int]:
    """The distance of pieces and the window's length."""
    hop = n_fft // 4 if hop is None else hop
    length = n_fft if length is None else length
    if n_fft < 1 or hop < 1 or not 0 < length <= n_fft:
        raise ArgumentError(
            op, "the sizes do not fit", expect="n_fft, hop_length >= 1, 0 < win_length <= n_fft",
            actual=f"n_fft {n_fft}, hop_length {hop}, win_length {length}",
        )  # fmt: skip
    return hop, length


def _window(op: str, window: Tensor | None, n_fft: int, length: int, like: Tensor) -> Tensor:
    """The window in the middle of n_fft elements; ones if none is given."""
    if window is None:
        dtype = like.dtype.to_real()
        window = creation.ones(length, dtype=dtype, device=like.device)
    if tuple(window.shape) != (length,):
        raise ShapeError(
            op, "the window does not fit", expect=f"shape ({length},), that of win_length",
            actual=str(tuple(window.shape)),
        )  # fmt: skip
    before = (n_fft - length) // 2
    return shaping.pad(window, (before, n_fft - length - before)) if length < n_fft else window


def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
) -> Tensor:
    """Spectra of overlapping pieces of signals.

    ``out[.., k, m] = sum over j of window[j] * input[.., m * hop + j] * exp(-2 pi i j k / n_fft)``

    Args:
        input: signals, (L,) or (B, L).
        n_fft: points of a piece.
        hop_length: from piece to piece; n_fft // 4 when left out.
        win_length: of the window; n_fft when left out.
        window: (win_length,); ones when left out.
        center: pieces stand around their time, with n_fft // 2 elements added at both ends.
        pad_mode: how these are made, see `pad`.
        normalized: divide by sqrt(n_fft).
        onesided: the first half of the frequencies; True for real signals when left out.
        return_complex: True, or False for pairs of real numbers in a last dimension.

    Returns:
        (.., frequencies, pieces).

    Raises:
        ShapeError: the signal is shorter than a piece.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.stft(tc.ones(16, device="cpu"), 8, return_complex=True).shape
        Size([5, 9])
    """
    half = _half_spectrum(input, window, onesided, return_complex)
    hop, length = _sizes("stft", n_fft, hop_length, win_length)
    signal = input if input.ndim == 2 else input.unsqueeze(0)
    if center:
        signal = shaping.pad(signal, (n_fft // 2, n_fft // 2), pad_mode)
    if signal.shape[-1] < n_fft:
        raise ShapeError(
            "stft", "the signal is shorter than a piece", expect=f"at least {n_fft} elements",
            actual=str(signal.shape[-1]),
        )  # fmt: skip
    pieces = signal.unfold(-1, n_fft, hop) * _window("stft", window, n_fft, length, input)
    norm = "ortho" if normalized else "backward"
    spectra = (fourier.rfft if half else fourier.fft)(pieces, norm=norm).transpose(-2, -1)
    spectra = spectra if input.ndim == 2 else spectra.squeeze(0)
    if return_complex is False:
        return complex_numbers.view_as_real(spectra.contiguous())
    return spectra


def _half_spectrum(
    input: Tensor, window: Tensor | None, onesided: bool | None, return_complex: bool | None
) -> bool:
    """Checks the signals, and whether the first half of their spectra is wanted."""
    if not isinstance(input, TensorBase):
        raise no_tensor("stft", "input", input)
    if input.ndim not in (1, 2):
        raise ShapeError(
            "stft", "the signal is no row", expect="(L,) or (B, L)", actual=str(tuple(input.shape))
        )
    is_complex = input.dtype.is_complex or (window is not None and window.dtype.is_complex)
    if return_complex is None and not is_complex:
        raise ArgumentError(
            "stft", "return_complex is not given", expect="True or False for real signals",
            actual="None", hint="return_complex=True gives complex numbers",
        )  # fmt: skip
    half = not is_complex if onesided is None else onesided
    if half and is_complex:
        raise ArgumentError(
            "stft", "the spectrum of complex signals has no equal halves", expect="onesided=False",
            actual="onesided=True",
        )  # fmt: skip
    return half


def istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """The signals whose `stft` this is, or that come nearest to it.

    Pieces are added up where they overlap, and divided by the sum of the windows' squares.

    Args:
        input: (.., frequencies, pieces), complex.
        n_fft, hop_length, win_length, window, center, normalized, onesided: as in `stft`.
        length: of the signals.
        return_complex: the signals are complex; then all frequencies are given.

    Raises:
        ArgumentError: some element lies in no window.

    Example:
        >>> import tinygrad_cuda as tc
        >>> signal = tc.arange(16.0, device="cpu")
        >>> again = tc.istft(tc.stft(signal, 8, return_complex=True), 8)
        >>> tc.allclose(again, signal, atol=1e-4)
        True
    """
    _check_spectra(input, n_fft, onesided, return_complex)
    hop, win_length = _sizes("istft", n_fft, hop_length, win_length)
    spectra = (input if input.ndim == 3 else input.unsqueeze(0)).transpose(-2, -1)
    norm = "ortho" if normalized else "backward"
    if return_complex:
        pieces = fourier.ifft(spectra, norm=norm)
    else:  # of whole spectra the second half is not read, as in PyTorch
        pieces = fourier.irfft(spectra[..., : n_fft // 2 + 1], n_fft, norm=norm)
    require_real("istft", window)
    shape = _window("istft", window, n_fft, win_length, input)
    signal = _overlapped(pieces * shape, hop)
    squares = _envelope(shape, pieces.shape[1], hop)
    start, total = n_fft // 2 if center else 0, signal.shape[-1]
    end = total - start if length is None else min(start + length, total)
    _require_envelope(shape, pieces.shape[1], hop, start, end)
    signal = math.div(signal, squares)[:, start:end]
    if length is not None and end - start < length:
        signal = shaping.pad(signal, (0, start + length - end))
    return signal if input.ndim == 3 else signal.squeeze(0)


def _check_spectra(input: Tensor, n_fft: int, onesided: bool | None, return_complex: bool) -> None:
    """Raises unless they are complex, of all frequencies or of the first half."""
    if not isinstance(input, TensorBase):
        raise no_tensor("istft", "input", input)
    if not input.dtype.is_complex:
        raise DTypeError(
            "istft", "the spectra are not complex", expect="complex64 or complex128",
            actual=input.dtype.name, hint="tc.view_as_complex takes pairs of real numbers",
        )  # fmt: skip
    half = input.ndim > 1 and input.shape[-2] != n_fft if onesided is None else onesided
    if half and return_complex:
        raise ArgumentError(
            "istft", "complex signals need all frequencies", expect="onesided=False",
            actual="half of the spectrum",
        )  # fmt: skip
    frequencies = n_fft // 2 + 1 if half else n_fft
    if input.ndim not in (2, 3) or input.shape[-2] != frequencies or not input.shape[-1]:
        raise ShapeError(
            "istft", "the spectra do not fit n_fft", expect=f"(.., {frequencies}, pieces)",
            actual=str(tuple(input.shape)), hint="onesided= says whether half of it is given",
        )  # fmt: skip


def _overlapped(pieces: Tensor, hop: int) -> Tensor:
    """Pieces (B, M, n) added up at multiples of `hop`."""
    batch, count, n = pieces.shape
    total = n + hop * (count - 1)
    columns = pieces.transpose(1, 2)
    return windows.fold(columns, (1, total), (1, n), stride=(1, hop)).reshape(batch, total)


def _envelope(window: Tensor, count: int, hop: int) -> Tensor:
    squares = math.mul(window, window).reshape(1, 1, -1)
    return _overlapped(squares.expand(1, count, window.shape[0]), hop)


def _require_envelope(window: Tensor, count: int, hop: int, start: int, end: int) -> None:
    """Looks at the window, on the host: where no window reaches nothing can be divided."""
    n = window.shape[0]
    shape: Any = window.detach().array()
    total = np.zeros(n + hop * (count - 1))
    for piece in range(count):
        total[piece * hop : piece * hop + n] += np.abs(np.asarray(shape, np.float64)) ** 2
    least = float(total[start:end].min(initial=np.inf))
    if least < SMALLEST_ENVELOPE:
        raise ArgumentError(
            "istft", "some elements lie in no window", expect=f"a sum of squares of the windows "
            f"above {SMALLEST_ENVELOPE} everywhere", actual=f"{least}",
            hint="a smaller hop_length, or center=True",
        )  # fmt: skip
