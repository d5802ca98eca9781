"""float32 products by three tf32 products of split operands: their error, and their time.

    python -m lab.tf32x3                                the errors, emulated in NumPy
    python -m lab.tf32x3 --gpu OUT.json [--seconds 50]  measured, beside the float32 units and torch

An error is that of a result against float64, over the sum of the magnitudes of its products: the
largest, and the mean. Times are medians behind a write that empties the L2 cache.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.matrix_units import TARGET, Case, Runner, cuts_of, lowered, operands
from tinygrad_cuda.backend.cuda import compiler
from tinygrad_cuda.core import dtypes
from tinygrad_cuda.lowering.algorithms import tiled_stages
from tinygrad_cuda.lowering.skeletons.contract import tile_heuristics
from tinygrad_cuda.lowering.skeletons.contract.tf32x3 import (
    FINE_SPLIT_TILES,
    MMA_SPLIT_TILES,
    WGMMA_SPLIT_TILES,
    tf32x3_stages,
)
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import Product, split_k

Array = NDArray[Any]
DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096, 32768)  # values of k
FINE_BELOW = 1024  # values of k of products of which tiles of short sums are timed, too
PIECE = 8  # values of k that one instruction multiplies
CHUNKS = {
    "wgmma": 32,
    "wgmma, fine": 16,
    "mma": 8,
}  # values of k that are summed in the unit
SIDE = 64  # rows and columns of a result whose errors are measured

CASES = (
    Case(1, 4096, 4096, 4096, "NT"),
    Case(1, 4096, 4096, 4096, "NN"),
    Case(1, 4096, 4096, 4096, "TN"),
    Case(1, 8192, 8192, 8192, "NT"),
    Case(1, 16384, 2304, 768, "NT"),
    Case(1, 768, 3072, 16384, "TN"),
    Case(1, 8192, 768, 3072, "NT"),
    Case(1, 64, 4096, 4096, "NT"),
    Case(96, 1024, 1024, 64, "NT"),
    Case(96, 1024, 64, 1024, "NN"),
    Case(1, 2048, 2048, 2048, "NN"),
    Case(1, 1024, 1024, 1024, "NT"),
    Case(1, 512, 512, 512, "NT"),
    Case(1, 256, 512, 512, "NN"),
    Case(1, 16384, 384, 384, "NT"),
    Case(1, 384, 1536, 16384, "TN"),
    Case(1, 1024, 128, 784, "NT"),
    Case(1, 4091, 4093, 4095, "NT"),
    Case(36, 128, 6272, 128, "NN"),
    Case(36, 128, 4096, 128, "NN"),
    Case(1, 16384, 512, 128, "NT"),
    Case(1, 4096, 4096, 192, "NT"),
    Case(36, 64, 16384, 64, "NN"),
)


# Errors ------------------------------------------------------------------------------------------


def values(kind: str, k: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Operands (SIDE, k) and (k, SIDE)."""
    shapes = (SIDE, k), (k, SIDE)
    if kind == "uniform":
        a, b = (rng.random(shape) for shape in shapes)
    else:
        a, b = (rng.standard_normal(shape) for shape in shapes)
    if kind in APART:
        a, b = a * APART[kind], b * 2.0**100
    if kind == "wide":
        a, b = np.exp(4 * a), np.exp(4 * b)
    if kind == "cancelling" and k > 1:  # the second half takes away all but a thousandth
        half = k // 2
        a[:, half : 2 * half] = -a[:, :half] * (1 + 1e-3 * rng.standard_normal((SIDE, half)))
        b[half : 2 * half] = b[:half]
    return a.astype(np.float32), b.astype(np.float32)


KINDS = ("normal", "uniform", "wide", "cancelling")
# Of other magnitudes, which decide nothing: those whose low parts are denormal, and denormal ones.
APART = {"tiny": 2.0**-118, "denormal": 2.0**-127}


def errors(result: Array, a: Array, b: Array) -> tuple[float, float]:
    """The largest and the mean."""
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    off = np.abs(result - wide_a @ wide_b) / (np.abs(wide_a) @ np.abs(wide_b))
    return float(off.max()), float(off.mean())


def split(x: Array) -> tuple[Array, Array]:
    """The high and the low part, as tgc_tf32_split_unsaturated and the unit have them."""
    high = ((x.view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32)
    return high, ((x - high).view(np.uint32) & 0xFFFFE000).view(np.float32)


def truncated(x: Array) -> Array:
    """float64 to float32, toward zero."""
    near = x.astype(np.float32)
    far = np.abs(near.astype(np.float64)) > np.abs(x)
    return np.where(far, np.nextafter(near, np.float32(0)), near)


def emulated(a: Array, b: Array, chunk: int) -> Array:
    """Chunks summed in an accumulator that truncates, small products first; then in float32."""
    parts_a, parts_b = split(a), split(b)
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for first in range(0, a.shape[1], chunk):
        steps = range(first, min(first + chunk, a.shape[1]), PIECE)
        sum_ = np.zeros_like(total)
        for pairs in (((1, 0), (0, 1)), ((0, 0),)):
            for step in steps:
                for i, j in pairs:
                    x, y = parts_a[i][:, step : step + PIECE], parts_b[j][step : step + PIECE]
                    sum_ = truncated(sum_ + x.astype(np.float64) @ y.astype(np.float64))
        total += sum_
    return total


def in_order(a: Array, b: Array) -> Array:
    """The float32 sum in the order of k."""
    total = np.zeros((len(a), b.shape[1]), np.float64)
    for k in range(a.shape[1]):  # a product is exact in float64, so that this is a fused one
        total = (total + np.outer(a[:, k].astype(np.float64), b[k])).astype(np.float32)
        total = total.astype(np.float64)
    return total.astype(np.float32)


def error_table(ways: Any) -> list[dict[str, Any]]:
    """Prints and returns the errors of ways to multiply, by kind of values and by k."""
    rng, rows = np.random.default_rng(0), []
    print(f"{'values':12}{'k':>6}  " + "".join(f"{name:>22}" for name in ways))
    for kind in (*KINDS, *APART):
        for k in DEPTHS:
            a, b = values(kind, k, rng)
            found = {name: errors(way(a, b), a, b) for name, way in ways.items()}
            rows.append({"values": kind, "k": k, **found})
            text = "".join(f"{most:>12.1e} /{mean:.1e}" for most, mean in found.values())
            print(f"{kind:12}{k:>6}  {text}", flush=True)
    return rows


# On a GPU ----------------------------------------------------------------------------------------


def launchers(programs: Any, runner: Runner, outs: Any, tensors: Any) -> list[Any]:
    """What runs each program, which reads `tensors`; `outs`: their results."""
    runs = []
    binaries = compiler.compile_many([program.source for program in programs], "sm_90a")
    for out, program, binary, read in zip(outs, programs, binaries, tensors, strict=True):
        words = [word for launch in program.launches for word in launch.words]
        (store,) = {word.operand for word in words if word.kind == "value" and word.write}
        inputs = {word.operand for word in words if word.kind == "value" and not word.write}
        by_slot = sorted(inputs, key=lambda node: node.attributes["slot"])
        bound = {store: out, **dict(zip(by_slot, read, strict=True))}
        runs.append(runner.launcher(program, binary.cubin, bound))
    return runs


def measured_ways(runner: Runner) -> dict[str, Any]:
    """Products of NumPy arrays on the GPU: on float32 units, by torch, by a tile of each."""
    torch = runner.torch
    tiles = {
        "float32 units": (tile_heuristics.TILES[8], tiled_stages),
        "wgmma": (WGMMA_SPLIT_TILES[0], tf32x3_stages),
        "wgmma, fine": (FINE_SPLIT_TILES[0], tf32x3_stages),
        "mma": (MMA_SPLIT_TILES[0], tf32x3_stages),
    }
    keys = [(name, k) for name in tiles for k in DEPTHS]
    programs = [
        lowered(Case(1, SIDE, SIDE, k, "NN"), split_k(tile, k, 1), stages, dtypes.float32)
        for (tile, stages), k in ((tiles[name], k) for name, k in keys)
    ]
    buffers = {k: (torch.empty(SIDE, k, device="cuda"), torch.empty(k, SIDE, device="cuda"))
               for k in DEPTHS}  # fmt: skip
    out = torch.empty((SIDE, SIDE), device="cuda")
    runs = launchers(programs, runner, [out] * len(keys), [buffers[k] for _, k in keys])
    by_key = dict(zip(keys, runs, strict=True))

    def ours(name: str) -> Any:
        def product(a: Array, b: Array) -> Array:
            for buffer, array in zip(buffers[a.shape[1]], (a, b), strict=True):
                buffer.copy_(torch.from_numpy(array))
            out.fill_(float("nan"))
            by_key[name, a.shape[1]]()
            result: Array = out.cpu().numpy()
            return result

        return product

    def cublas(a: Array, b: Array) -> Array:
        result: Array = (torch.from_numpy(a).cuda() @ torch.from_numpy(b).cuda()).cpu().numpy()
        return result

    return {**{name: ours(name) for name in tiles}, "torch": cublas}


def measure(case: Case, runner: Runner) -> dict[str, Any]:
    """A product with every tile, on the float32 units, and by torch."""
    torch = runner.torch
    a, b = (torch.randn(shape, device="cuda") for shape in operands(case))
    x = a.transpose(-1, -2) if case.layout[0] == "T" else a
    y = b.transpose(-1, -2) if case.layout[1] == "T" else b
    want = torch.matmul(x, y)
    peer = runner.time(lambda: torch.matmul(x, y, out=want))
    tiles = WGMMA_SPLIT_TILES + FINE_SPLIT_TILES * (case.k < FINE_BELOW)
    tiles += MMA_SPLIT_TILES if case.flops < 2e10 else MMA_SPLIT_TILES[:1]
    chosen = [(cut, tf32x3_stages) for cut in cuts_of(case, tiles)]
    product = Product(case.batches, case.m, case.n, case.k, 4)
    chosen.append((tile_heuristics.quickest_cut(product, TARGET), tiled_stages))
    outs = [torch.full_like(want, float("nan")) for _ in chosen]
    rows = []
    programs = [lowered(case, cut, stages, dtypes.float32) for cut, stages in chosen]
    runs = launchers(programs, runner, outs, [(a, b)] * len(chosen))
    for (cut, _), out, run in zip(chosen, outs, runs, strict=True):
        took = runner.time(run)
        tile = cut.tile
        rows.append({
            "tile": [tile.m, tile.n, tile.k, getattr(tile, "stages", 0)],
            "unit": getattr(tile, "unit", "float32 units"),
            "summed": getattr(tile, "summed", 0), "slices": cut.slices,
            "chunk": cut.chunk, "us": took, "tflops": case.flops / took / 1e6,
            "error": float((out - want).abs().max() / want.abs().max()),
        })  # fmt: skip
    rows.sort(key=lambda row: row["us"])
    return {"case": list(case), "torch_us": peer, "rows": rows}


def on_gpu(out: Path, seconds: float, few: bool) -> None:
    """Errors, then times, into a file."""
    start, runner = time.monotonic(), Runner()
    found: dict[str, Any] = {"errors": error_table(measured_ways(runner)), "times": []}
    for case in (case for case in CASES if case.k < FINE_BELOW or not few):
        if time.monotonic() - start > seconds:
            print("out of time before", case)
            break
        result = measure(case, runner)
        found["times"].append(result)
        peer, rows = result["torch_us"], result["rows"]
        print(case, f"torch {peer:.1f} us, {case.flops / peer / 1e6:.0f} TFLOP/s")
        for row in rows[:3] + [row for row in rows[3:] if row["unit"] == "float32 units"]:
            print("   ", row["unit"], row["tile"], "summed", row["summed"], "slices",
                  row["slices"], f"{row['us']:.1f} us",
                  f"{row['tflops']:.0f} TFLOP/s, {peer / row['us']:.2f} of torch,",
                  f"differs by {row['error']:.1e}", flush=True)  # fmt: skip
        out.write_text(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", type=Path, metavar="OUT")
    parser.add_argument("--few", action="store_true", help="products of few k alone")
    parser.add_argument("--seconds", type=float, default=50.0)
    given = parser.parse_args()
    if given.gpu:
        on_gpu(given.gpu, given.seconds, given.few)
        return
    ways: dict[str, Any] = {"float32 in order": in_order}
    for unit, chunk in CHUNKS.items():
        ways[unit] = lambda a, b, chunk=chunk: emulated(a, b, chunk)
    error_table(ways)


if __name__ == "__main__":
    main()
