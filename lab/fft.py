"""Fourier transforms beside cuFFT's, by torch: `python -m lab.fft` on a machine with a GPU.

    python -m lab.fft                    # the cases of docs/complex.md
    python -m lab.fft --variants         # other radices, points and blocks of rows of some lengths
    python -m lab.fft --halved           # real rows as complex ones of half their length
    python -m lab.fft --provider         # by tc.kernels.provider("cufft"), with its graph
    python -m lab.fft --counts           # instructions and registers of each, without a GPU

Each case transforms 2^24 complex values (128 MiB read, 128 MiB written) or as many real ones.
Times are medians of runs of 20 calls between two events; GB/s counts what the transform has to
read and to write, so that a second pass over memory shows as half the rate. The error is the
largest difference from torch's result in float64, over the largest value. A variant that is the
quickest of its length is entered in `CUTS` of lowering/skeletons/fft/fft.py; `HALVED` stands there.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tinygrad_cuda as tc
from tinygrad_cuda.backend.cuda.compiler import REPORT, compile_source, resources
from tinygrad_cuda.engine.plan import cache as plans
from tinygrad_cuda.engine.realize import explain
from tinygrad_cuda.lowering.lower import Lowered, lower
from tinygrad_cuda.lowering.skeletons.fft.fft import CUTS, HALVED, FftCut, cut_of
from tinygrad_cuda.lowering.target import Target

VALUES = 1 << 24
CALLS, RUNS = 20, 9


class Case(NamedTuple):
    """A transform of torch's name, and the shape of its input."""

    name: str
    shape: tuple[int, ...]
    real: bool = False
    dim: int | None = None

    def __str__(self) -> str:
        along = "" if self.dim is None else f" along {self.dim}"
        return f"{self.name} of {' x '.join(map(str, self.shape))}{along}"

    @property
    def how(self) -> dict[str, int]:
        """Its arguments."""
        return {} if self.dim is None else {"dim": self.dim}


LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 1 << 16, 1 << 20)
CASES = (
    *(Case("fft", (VALUES // n, n)) for n in (*LENGTHS, 1000, 1009, 1331)),
    *(Case("rfft", (VALUES // n, n), True) for n in (256, 1024, 4096)),
    *(Case("irfft", (VALUES // n, n // 2 + 1)) for n in (256, 4096)),
    Case("fft2", (64, 512, 512)),
    Case("fft", (64, 512, 512), dim=1),
)
# Candidates for CUTS, by the points of a row.
VARIANTS: dict[int, tuple[FftCut, ...]] = {
    64: (FftCut((8, 8), 4096, blocks=4), FftCut((4, 16), 4096, blocks=4)),
    256: (
        FftCut((16, 16), 4096, blocks=3), FftCut((16, 16), 2048, blocks=8, threads=128),
        FftCut((16, 16), 8192, blocks=2, threads=512), FftCut((8, 8, 4), 2048, blocks=6),
        FftCut((16, 16), 4096, "computed", 4),
    ),
    512: (FftCut((8, 8, 8), 4096, blocks=4), FftCut((16, 8, 4), 4096, blocks=4)),
    1024: (
        FftCut((16, 16, 4), 4096, blocks=4), FftCut((4, 16, 16), 4096, blocks=4),
        FftCut((16, 8, 8), 4096, blocks=3), FftCut((16, 8, 8), 2048, blocks=8, threads=128),
        FftCut((16, 8, 8), 8192, blocks=2, threads=512), FftCut((8, 8, 4, 4), 2048, blocks=6),
        FftCut((16, 8, 8), 4096, "computed", 4),
    ),
    2048: (
        FftCut((16, 16, 8), 4096, blocks=3), FftCut((8, 16, 16), 4096, blocks=4),
        FftCut((16, 16, 8), 2048, blocks=8, threads=128),
    ),
    4096: (
        FftCut((16, 16, 16), 4096, blocks=3), FftCut((8, 8, 8, 8), 4096, blocks=4),
        FftCut((8, 8, 8, 8), 4096, blocks=3, threads=512),
        FftCut((16, 16, 16), 4096, "computed", 4),
    ),
    8192: (
        FftCut((16, 16, 8, 4), 8192, blocks=1, threads=1024),
        FftCut((8, 16, 16, 4), 8192, blocks=2, threads=512),
        FftCut((16, 8, 8, 8), 8192, blocks=2, threads=512),
    ),
    16384: (
        FftCut((4, 16, 16, 16), 16384, blocks=1, threads=1024),
        FftCut((16, 16, 8, 8), 16384, blocks=1, threads=1024),
    ),
    1000: (
        FftCut((5, 5, 5, 8), 4096, blocks=4, threads=224), FftCut((8, 5, 5, 5), 4096, blocks=4),
        FftCut((5, 5, 5, 8), 2048, blocks=8, threads=128),
    ),
}  # fmt: skip


# A machine with a GPU -----------------------------------------------------------------------------


def seconds(library: Any, call: Callable[[], Any]) -> float:
    """Of one call, the median of the runs."""
    times: list[float] = []
    for _ in range(RUNS + 2):
        start, end = (library.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / CALLS)
    return median(times[2:])


class Measured:
    """A case on the GPU: its input, what torch makes of it and in which time."""

    def __init__(self, case: Case) -> None:
        import torch

        self.case, self.torch = case, torch
        dtype = torch.float32 if case.real else torch.complex64
        generator = torch.Generator("cuda").manual_seed(0)
        self.theirs = torch.randn(case.shape, dtype=dtype, device="cuda", generator=generator)
        self.ours = tc.from_numpy(self.theirs.cpu().numpy()).to("cuda")
        transform = partial(getattr(torch.fft, case.name), self.theirs, **case.how)
        self.other = seconds(torch, transform)
        wide = self.theirs.to(torch.float64 if case.real else torch.complex128)
        self.wide = getattr(torch.fft, case.name)(wide, **case.how)
        self.largest = self.wide.abs().max()
        self.error = self.error_of(transform())
        self.nbytes = self.theirs.nbytes + self.wide.nbytes // 2

    def error_of(self, result: Any) -> float:
        """The largest difference from torch's result in float64, over the largest value."""
        theirs = self.torch.as_tensor(result, device="cuda")
        error: float = ((theirs - self.wide).abs().max() / self.largest).item()
        return error

    def row(self, label: str = "") -> str:
        """What our kernels take for it."""
        function = tc.compile(partial(getattr(tc.fft, self.case.name), **self.case.how))
        error = self.error_of(function(self.ours).numpy())
        own, rate = seconds(tc, partial(function, self.ours)), self.nbytes / 1e9
        made = lowered(self.case, "cuda")
        return (
            f"| {label or self.case} | {own * 1e6:.0f} | {rate / own:.0f} | {self.other * 1e6:.0f} "
            f"| {rate / self.other:.0f} | {self.other / own:.2f} | {registers(made)} "
            f"| {error:.1e} | {self.error:.1e} |"
        )


# Any machine --------------------------------------------------------------------------------------


def lowered(case: Case, device: str = "emu") -> Lowered:
    """What an H200 runs for it."""
    x = tc.empty(*case.shape, dtype=tc.float32 if case.real else tc.complex64, device=device)
    tc.realize(x)
    _, program = explain([getattr(tc.fft, case.name)(x, **case.how).node])
    assert program is not None
    return lower(program, Target.h200())


def registers(made: Lowered) -> str:
    """Of each kernel, and bytes of its spills if there are any."""
    texts = []
    for unit in made.units():
        for used in resources(compile_source(unit, "sm_90", REPORT).log).values():
            spill = f" ({used.spill_stores} spilled)" if used.spill_stores else ""
            texts.append(f"{used.registers}{spill}")
    return " + ".join(texts) or "a call"


@contextlib.contextmanager
def by(n: int, cut: FftCut) -> Iterator[None]:
    """Rows of n points are transformed so."""
    before = CUTS.get((n, 4))
    CUTS[n, 4] = cut
    plans.clear()
    try:
        yield
    finally:
        del CUTS[n, 4]
        if before is not None:
            CUTS[n, 4] = before
        plans.clear()


def described(cut: FftCut) -> str:
    """For a table."""
    return (
        f"{' '.join(map(str, cut.radices))}, {cut.points} points, {cut.threads} threads, "
        f"{cut.blocks} blocks, roots {cut.roots}"
    )


def rows_of(cases: tuple[Case, ...], variants: bool) -> Iterator[tuple[Case, str, FftCut | None]]:
    """Each case, or each variant of its length, the present one first."""
    for case in cases:
        n = case.shape[-1]
        if not variants:
            yield case, "", None
        elif n in VARIANTS and case.name == "fft" and case.dim is None:
            for cut in (cut_of(n, 4), *VARIANTS[n]):
                yield case, f"{n}: {described(cut)}", cut


def counts(variants: bool) -> None:
    """Registers and shared memory of each, without a GPU."""
    print("| transform | kernels | registers | shared memory |")
    print("|---|---|---|---|")
    for case, label, cut in rows_of(CASES, variants):
        with by(case.shape[-1], cut) if cut else contextlib.nullcontext():
            made = lowered(case)
            shared = " + ".join(str(launch.shared) for launch in made.launches)
            grids = " + ".join(f"{one.blocks} x {one.threads}" for one in made.launches)
            print(f"| {label or case} | {grids} | {registers(made)} | {shared} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("variants", "provider", "counts", "halved"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    if options.halved:
        HALVED.update(("rfft", "irfft"))
    if options.counts:
        counts(options.variants)
        return
    head = ("transform", "us", "GB/s", "cuFFT us", "GB/s", "cuFFT's time / ours", "registers")
    print(f"| {' | '.join((*head, 'error', 'cuFFT'))} |\n{'|---' * 9}|")
    measured: Measured | None = None
    with tc.kernels.provider("cufft") if options.provider else contextlib.nullcontext():
        for case, label, cut in rows_of(CASES, options.variants):
            if measured is None or measured.case != case:
                measured = None  # frees its memory before the next
                measured = Measured(case)
            with by(case.shape[-1], cut) if cut else contextlib.nullcontext():
                print(measured.row(label), flush=True)


if __name__ == "__main__":
    main()
