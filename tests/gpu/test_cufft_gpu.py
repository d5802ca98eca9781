"""tc.kernels.provider("cufft"): values, replays and bits of transforms by cuFFT.

Where a GPU and nvmath-python are missing, the pretended GPU runs them with a library in Python.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from pretended_cufft import CufftModule, Type, pretended_cufft

import tinygrad_cuda as tc
from tinygrad_cuda.backend.cuda import driver as runtime
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.engine.plan import cache as plans

Array = np.ndarray[Any, Any]
REAL = runtime.available() and importlib.util.find_spec("nvmath") is not None
TOLERANCE = {np.complex64: 1e-6, np.complex128: 1e-14}
LENGTHS = (2, 3, 16, 45, 64, 97, 1000, 1009, *((4096, 16384, 30030) if REAL else ()))

# A default device chosen while there is a pretended GPU would outlive it.
pytestmark = pytest.mark.usefixtures("on_cpu")


@pytest.fixture
def library() -> Iterator[CufftModule | None]:
    """The library in Python; None where the real one transforms."""
    with contextlib.nullcontext(None) if REAL else pretended_cufft() as made:
        try:
            with tc.kernels.provider("cufft"):
                yield made
        finally:
            tc.kernels.provider(None)


def numbers(seed: int, shape: tuple[int, ...], dtype: Any) -> Array:
    generator = np.random.default_rng(seed)
    real = generator.standard_normal(shape)
    made = real + 1j * generator.standard_normal(shape) if np.iscomplexobj(dtype(0)) else real
    return made.astype(dtype)


def check(found: Any, want: Array) -> None:
    values = found.detach().cpu().numpy()
    assert values.shape == want.shape
    tolerance = TOLERANCE[np.complex64 if values.real.dtype == np.float32 else np.complex128]
    error = np.abs(values - want).max(initial=0)
    assert error <= tolerance * max(1.0, np.abs(want).max(initial=0))


def calls(make: Callable[[], Any], capfd: pytest.CaptureFixture[str]) -> list[str]:
    """The kernels that TGC_DEBUG=3 prints of a plan, by their kinds."""
    plans.clear()
    with settings.override(debug=3):
        make().cpu().numpy()
    printed = capfd.readouterr().out
    return [line.split("<")[1].split()[0] for line in printed.splitlines() if ": <" in line]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("n", LENGTHS)
def test_every_kind_and_length(library: CufftModule | None, n: int, dtype: Any) -> None:
    real = np.float32 if dtype is np.complex64 else np.float64
    z, x = numbers(1, (3, 2, n), dtype), numbers(2, (3, 2, n), real)
    half = numbers(3, (3, 2, n // 2 + 1), dtype)  # with imaginary parts at both ends
    a, b, c = (tc.tensor(values).to("cuda") for values in (z, x, half))
    for norm in ("backward", "ortho", "forward"):
        check(tc.fft.fft(a, norm=norm), np.fft.fft(z.astype(complex), norm=norm))
        check(tc.fft.ifft(a, norm=norm), np.fft.ifft(z.astype(complex), norm=norm))
        check(tc.fft.rfft(b, norm=norm), np.fft.rfft(x.astype(float), norm=norm))
        check(tc.fft.irfft(c, n=n, norm=norm), np.fft.irfft(half.astype(complex), n, norm=norm))
    check(c, half)  # which a library must not write over


def test_views_and_other_dimensions(library: CufftModule | None) -> None:
    """Views are strides of a call, what has none is copied; all calls are nodes of one graph."""
    z, x = numbers(1, (6, 20, 18), np.complex64), numbers(2, (6, 20, 18), np.float32)
    a, b = tc.tensor(z).to("cuda"), tc.tensor(x).to("cuda")
    pairs = (
        (tc.fft.fft(a[:, 2:9, 1:]), np.fft.fft(z[:, 2:9, 1:])),
        (tc.fft.fft(a[0], dim=0), np.fft.fft(z[0], axis=0)),
        (tc.fft.fft(a, dim=1), np.fft.fft(z, axis=1)),
        (tc.fft.fft(a, dim=0), np.fft.fft(z, axis=0)),
        (tc.fft.fft(a.flip(-1)), np.fft.fft(z[:, :, ::-1])),
        (tc.fft.fft(a[:1].expand(4, 20, 18)), np.fft.fft(np.repeat(z[:1], 4, 0))),
        (tc.fft.rfft(b[:, :, 1:]), np.fft.rfft(x[:, :, 1:])),
        (tc.fft.rfft(b[0, :, ::2]), np.fft.rfft(x[0, :, ::2])),
        (tc.fft.rfft(b.exp()), np.fft.rfft(np.exp(x))),
        (tc.fft.fft2(a), np.fft.fft2(z)),
        (tc.fft.ifftn(a), np.fft.ifftn(z)),
        (tc.fft.irfft2(tc.fft.rfft2(b)), x),
        (tc.fft.fft(a[:0]), np.zeros((0, 20, 18))),
        (tc.fft.fft(a[:, :, :1]), z[:, :, :1]),
        (tc.fft.fft(tc.ones(3, 8, device="cuda")), np.fft.fft(np.ones((3, 8)))),
    )
    for found, want in pairs:
        check(found, want)


def test_half_spectra_of_two_readers(library: CufftModule | None) -> None:
    """A call that writes over its operand has one that nobody else reads."""
    x = numbers(4, (5, 24), np.float32)
    spectrum = tc.fft.rfft(tc.tensor(x).to("cuda"))
    back, longer = tc.fft.irfft(spectrum), tc.fft.irfft(spectrum, n=25)
    tc.realize(back, longer, spectrum)
    half = np.fft.rfft(x.astype(float))
    check(spectrum, half)
    check(back, np.fft.irfft(half))
    check(longer, np.fft.irfft(half, 25))


def test_a_factor_is_part_of_the_next_kernel(
    library: CufftModule | None, capfd: pytest.CaptureFixture[str]
) -> None:
    a = tc.tensor(numbers(1, (6, 30), np.complex64)).to("cuda")
    assert calls(lambda: tc.fft.fft(a), capfd) == ["library"]
    assert calls(lambda: tc.fft.ifft(a).abs() + 1, capfd) == ["library", "map"]
    assert calls(lambda: tc.fft.irfft(a), capfd) == ["map", "library", "map"]


def filtered(compiled: bool) -> list[Array]:
    """Steps of gradient descent on a filter in frequencies; each replays as a CUDA graph."""
    x = tc.tensor(numbers(5, (4, 60), np.float32)).to("cuda")
    w = tc.tensor(numbers(6, (31,), np.complex64)).to("cuda").requires_grad_()

    def step(w: Any) -> Any:
        loss = (tc.fft.irfft(tc.fft.rfft(x) * w) - x).square().sum()
        (gradient,) = tc.autograd.grad(loss, (w,))
        return (w - 1e-3 * gradient).detach()

    run, steps = (tc.compile(step) if compiled else step), []
    for _ in range(5):
        w = run(w).requires_grad_()
        steps.append(w.detach().cpu().numpy())
    return steps


def test_graphs_have_the_bits_of_plain_steps(library: CufftModule | None) -> None:
    plain, again, compiled = filtered(False), filtered(False), filtered(True)
    with tc.kernels.provider(None):
        own = filtered(False)
    for one, other, third, ours in zip(plain, again, compiled, own):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, third, rtol=1e-6)
        np.testing.assert_allclose(one, ours, rtol=1e-4, atol=1e-5)


def test_a_compiled_function_follows_the_choice(
    library: CufftModule | None, capfd: pytest.CaptureFixture[str]
) -> None:
    z = numbers(1, (6, 97), np.complex64)
    a = tc.tensor(z).to("cuda")
    function = tc.compile(tc.fft.fft)
    for provider in ("cufft", None, "cufft", None):
        with tc.kernels.provider(provider):
            plans.clear()
            with settings.override(debug=3):
                check(function(a), np.fft.fft(z))
            assert ("tier:  cufft" in capfd.readouterr().out) == (provider == "cufft")
            for _ in range(3):
                check(function(a), np.fft.fft(z))


def test_replays_follow_new_addresses(library: CufftModule | None) -> None:
    """A replayed transform reads what its operands are now, wherever they lie."""
    kept = []
    for turn in range(7):
        z = numbers(10 + turn, (8, 120), np.complex64)
        kept.append((z, tc.fft.ifft(tc.fft.fft(tc.tensor(z).to("cuda")) * 2)))
        kept[-1][1].cpu()
    for z, result in kept:
        check(result, 2 * z)


def test_each_kernel_validates(library: CufftModule | None) -> None:
    x = numbers(7, (6, 60), np.float32)
    with settings.override(validate=True):
        check(tc.fft.irfft(tc.fft.rfft(tc.tensor(x).to("cuda"))) + 1, x + 1)


if REAL:

    def test_the_pretended_library_has_the_numbers_of_the_real_one() -> None:
        from nvmath.bindings import cufft as real

        for member in Type:
            assert int(real.Type[member.name]) == int(member)
