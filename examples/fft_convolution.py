"""A convolution as a product of spectra beside the direct one, and where it is quicker.

``(signal * kernel)[i] = sum over j of signal[i - j] * kernel[j]``: n * m multiplications directly,
a multiple of (n + m) log(n + m) by the Fourier transform, for any kernel. Both give the gradient by
the kernel, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import tinygrad_cuda as tc

KERNELS = (3, 17, 129, 1025)


def direct(signal: tc.Tensor, kernel: tc.Tensor) -> tc.Tensor:
    """By the definition: `conv1d` does not turn its kernel round, so it is turned before."""
    rows = signal.unsqueeze(1)
    width = kernel.shape[0] - 1
    return tc.nn.functional.conv1d(rows, kernel.flip(0).reshape(1, 1, -1), padding=width)[:, 0]


def by_spectra(signal: tc.Tensor, kernel: tc.Tensor) -> tc.Tensor:
    """With zeros behind both, so that nothing comes in again from the other end."""
    size = signal.shape[-1] + kernel.shape[0] - 1
    points = 1 << (size - 1).bit_length()
    product = tc.fft.rfft(signal, points) * tc.fft.rfft(kernel, points)
    return tc.fft.irfft(product, points)[..., :size]


def timed(
    convolve: Callable[[tc.Tensor, tc.Tensor], tc.Tensor], signal: tc.Tensor, kernel: tc.Tensor
) -> tuple[tc.Tensor, tc.Tensor, float]:
    """The result, the gradient of its mean square by the kernel, and the seconds of the second run.

    The first one compiles.
    """
    for _ in range(2):
        start = time.perf_counter()
        kernel.grad = None
        result = convolve(signal, kernel)
        (result * result).mean().backward()
        result.sum().item()
        seconds = time.perf_counter() - start
    assert kernel.grad is not None
    return result.detach(), kernel.grad, seconds


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--length", type=int, default=7000, help="of a signal (default: %(default)s)"
    )
    parser.add_argument("--signals", type=int, default=8, help="how many (default: %(default)s)")
    parser.add_argument("--device", default=None, help="cpu, cuda or emu")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints a line for each length of the kernel."""
    args = arguments(argv)
    tc.manual_seed(0)
    signal = tc.randn(args.signals, args.length, device=args.device)
    print(f"{args.signals} signals of {args.length} points on {signal.device}")
    print(f"{'kernel':>8} {'direct':>12} {'spectra':>12} {'difference':>12} {'of gradients':>12}")
    for size in KERNELS:
        kernel = (tc.randn(size, device=args.device) / size**0.5).requires_grad_()
        one, slope, slow = timed(direct, signal, kernel)
        other, other_slope, quick = timed(by_spectra, signal, kernel)
        gap = (one - other).abs().max().item() / one.abs().max().item()
        slopes = (slope - other_slope).abs().max().item() / slope.abs().max().item()
        times = f"{slow * 1e3:>9.2f} ms {quick * 1e3:>9.2f} ms"
        print(f"{size:>8} {times} {gap:>12.1e} {slopes:>12.1e}")
        assert max(gap, slopes) < 1e-4, "both are the same convolution"


if __name__ == "__main__":
    main()
