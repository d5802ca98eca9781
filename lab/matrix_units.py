"""Tiles of products on matrix units beside cuBLAS: each tile of mma_tiles.py on each product.

    python -m lab.matrix_units OUT.json [--products 0 5 ...] [--seconds 120]

Every result is compared with torch's. Times are medians behind a write that empties the L2 cache.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/unit"))

from programs import Inputs  # noqa: E402

from tinygrad_cuda.backend.cuda import compiler  # noqa: E402
from tinygrad_cuda.backend.cuda import driver as gpu_driver  # noqa: E402
from tinygrad_cuda.core import dtypes  # noqa: E402
from tinygrad_cuda.graph.ops import contraction  # noqa: E402
from tinygrad_cuda.lowering import algorithms, lower  # noqa: E402
from tinygrad_cuda.lowering.skeletons.contract import mma_tiles, tile_heuristics  # noqa: E402
from tinygrad_cuda.lowering.skeletons.contract.mma import mma_stages  # noqa: E402
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import (  # noqa: E402
    Product,
    ProductCut,
    split_k,
)
from tinygrad_cuda.lowering.skeletons.contract.tma import tma_stages  # noqa: E402
from tinygrad_cuda.lowering.target import Target  # noqa: E402

TARGET = Target.h200()
REPEATS = 7
FLUSH = 256 << 20  # bytes that are written before each launch: five times the L2 cache


class Case(NamedTuple):
    """A product: sizes, and whether A and B lie transposed."""

    batches: int
    m: int
    n: int
    k: int
    layout: str

    @property
    def flops(self) -> int:
        return 2 * self.batches * self.m * self.n * self.k


PRODUCTS = (
    Case(1, 4096, 4096, 4096, "NT"),
    Case(1, 4096, 4096, 4096, "NN"),
    Case(1, 4096, 4096, 4096, "TN"),
    Case(1, 8192, 8192, 8192, "NT"),
    Case(1, 8192, 8192, 8192, "NN"),
    Case(1, 16384, 2304, 768, "NT"),
    Case(1, 16384, 3072, 768, "NT"),
    Case(1, 16384, 50304, 768, "NT"),
    Case(1, 768, 3072, 16384, "TN"),
    Case(1, 8192, 768, 3072, "NT"),
    Case(1, 8192, 768, 3072, "NN"),
    Case(1, 64, 4096, 4096, "NT"),
    Case(96, 1024, 1024, 64, "NT"),
    Case(96, 1024, 64, 1024, "NN"),
    Case(1, 2048, 2048, 2048, "NT"),
    Case(1, 1024, 1024, 1024, "NT"),
    Case(1, 512, 512, 512, "NT"),
    Case(1, 16384, 384, 384, "NT"),
    Case(1, 64, 128, 784, "NT"),
    Case(1, 256, 512, 512, "NN"),
)


def operands(case: Case) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes in memory."""
    batch = (case.batches,) if case.batches > 1 else ()
    a = (case.k, case.m) if case.layout[0] == "T" else (case.m, case.k)
    b = (case.n, case.k) if case.layout[1] == "T" else (case.k, case.n)
    return batch + a, batch + b


def lowered(
    case: Case, cut: ProductCut[Any], stages: Any, dtype: dtypes.DType = dtypes.bfloat16
) -> Any:
    """The launches of a product with this cut."""
    inputs = Inputs()
    shape_a, shape_b = operands(case)
    a, b = (inputs(*shape, dtype=dtype) for shape in (shape_a, shape_b))
    x = contraction.transpose(a) if case.layout[0] == "T" else a
    y = contraction.transpose(b) if case.layout[1] == "T" else b
    tier = algorithms.Tier(
        "forced", (contraction.matmul,), lambda _: algorithms.Candidate(cut, 0.0), stages,
        product=True,
    )  # fmt: skip
    before, algorithms.TIERS = algorithms.TIERS, (tier,)
    try:
        return lower.lower(inputs.program(contraction.matmul(x, y)), TARGET)
    finally:
        algorithms.TIERS = before


def stages_of(cut: ProductCut[Any]) -> Any:
    """What makes a product's kernels with a cut."""
    return tma_stages if isinstance(cut.tile, mma_tiles.TmaTile) else mma_stages


def cuts_of(case: Case, tiles: Any) -> list[ProductCut[Any]]:
    """Each tile with the whole sum, and with slices that fill the machine once or twice."""
    found = {}
    for tile in tiles:
        blocks = -(-case.m // tile.m) * -(-case.n // tile.n) * case.batches
        if blocks * tile.m * tile.n > 4 * case.batches * max(case.m, 16) * max(case.n, 16):
            continue
        for waves in (0, 1, 2):
            slices = TARGET.multiprocessors * waves // blocks
            if waves == 0 or 2 <= slices <= case.k // 64:
                cut = split_k(tile, case.k, max(1, slices))
                found[tile, cut.slices] = cut
    return list(found.values())


class Runner:
    """Compiles and times launches beside torch."""

    def __init__(self) -> None:
        import torch
        from cuda.bindings import driver

        self.torch, self.driver, self.gpu = torch, driver, gpu_driver.device()
        torch.zeros(1, device="cuda")
        self.flush = torch.empty(FLUSH, dtype=torch.uint8, device="cuda")

    def ok(self, outcome: Any) -> Any:
        assert int(outcome[0]) == 0, outcome[0]
        return outcome[1] if len(outcome) > 1 else None

    def time(self, work: Any) -> float:
        """Median microseconds, the L2 cache emptied before each."""
        torch = self.torch
        work()
        samples = []
        for _ in range(REPEATS):
            self.flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            end.synchronize()
            samples.append(start.elapsed_time(end) * 1e3)
        return median(samples)

    def launcher(self, made: Any, cubin: bytes, tensors: dict[Any, Any]) -> Any:
        driver = self.driver
        module = self.ok(driver.cuModuleLoadData(cubin))
        calls, keep = [], []
        for launch in made.launches:
            function = self.ok(driver.cuModuleGetFunction(module, launch.name.encode()))
            self.ok(driver.cuFuncSetAttribute(
                function,
                driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                max(launch.shared, 1),
            ))  # fmt: skip
            raw = b""
            for word in launch.words:
                if word.kind == "unused":
                    continue  # a part of a tensor map, or what fills up the parameters
                if word.memory not in tensors:
                    tensors[word.memory] = self.torch.empty(
                        word.memory.nbytes, dtype=self.torch.uint8, device="cuda"
                    )
                address = tensors[word.memory].data_ptr()
                if word.kind == "map":
                    raw += self.gpu.tensor_map(word.operand, address)
                else:
                    raw += struct.pack("<Q", address)
            raw = raw.ljust(8 * len(launch.words), b"\0")
            import ctypes

            buffer = ctypes.create_string_buffer(raw)
            pointer = (ctypes.c_void_p * 1)(ctypes.addressof(buffer))
            keep.append((buffer, pointer))
            sizes = launch.blocks, launch.threads, launch.shared
            calls.append((function, *sizes, ctypes.addressof(pointer)))
        stream = self.torch.cuda.current_stream().cuda_stream

        def run(held: Any = keep) -> None:  # whose memory the parameters are
            for function, blocks, threads, shared, params in calls:
                driver.cuLaunchKernel(
                    function, blocks, 1, 1, threads, 1, 1, shared, stream, params, 0
                )

        return run


def measure(case: Case, tiles: Any, runner: Runner, simt: bool) -> dict[str, Any]:
    """A product with every cut, and cuBLAS."""
    torch = runner.torch
    shape_a, shape_b = operands(case)
    a, b = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in (shape_a, shape_b))
    x = a.transpose(-1, -2) if case.layout[0] == "T" else a
    y = b.transpose(-1, -2) if case.layout[1] == "T" else b
    want = torch.matmul(x, y)
    peer = runner.time(lambda: torch.matmul(x, y, out=want))
    chosen = [(cut, stages_of(cut)) for cut in cuts_of(case, tiles)]
    if simt:
        product = Product(case.batches, case.m, case.n, case.k, 4)
        chosen.append((tile_heuristics.quickest_cut(product, TARGET), algorithms.tiled_stages))
    made = [lowered(case, cut, stages) for cut, stages in chosen]
    binaries = compiler.compile_many([m.source for m in made], "sm_90a")
    rows = []
    for (cut, stages), program, binary in zip(chosen, made, binaries, strict=True):
        out = torch.full_like(want, float("nan"))
        (store,) = {w.operand for launch in program.launches for w in launch.words
                    if w.kind == "value" and w.write}  # fmt: skip
        inputs = {n for launch in program.launches for w in launch.words
                  if w.kind == "value" and not w.write for n in [w.operand]}  # fmt: skip
        by_slot = sorted(inputs, key=lambda node: node.attributes["slot"])
        tensors = {store: out, **dict(zip(by_slot, (a, b), strict=True))}
        run = runner.launcher(program, binary.cubin, tensors)
        took = runner.time(run)
        error = float((out.float() - want.float()).abs().max() / want.float().abs().max())
        tile = cut.tile
        rows.append({
            "tile": [tile.m, tile.n, tile.k, getattr(tile, "stages", 0),
                     type(tile).__name__ + " ping-pong" * getattr(tile, "ping_pong", False)],
            "slices": cut.slices, "chunk": cut.chunk, "us": took,
            "tflops": case.flops / took / 1e6, "error": error,
            "simt": stages is algorithms.tiled_stages,
        })  # fmt: skip
    rows.sort(key=lambda row: row["us"])
    return {"case": list(case), "cublas_us": peer, "cublas_tflops": case.flops / peer / 1e6,
            "rows": rows}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--products", type=int, nargs="*", default=[], help="their numbers")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--more", action="store_true", help="deeper and shallower rings, too")
    parser.add_argument("--sm-90", action="store_true", help="tiles of wgmma alone")
    given = parser.parse_args()
    runner, start, results = Runner(), time.monotonic(), []
    tiles: list[Any] = [*mma_tiles.TMA_TILES, *mma_tiles.WGMMA_TILES]
    if not given.sm_90:
        tiles += mma_tiles.MMA_TILES
    if given.more:
        big = [tile for tile in tiles if tile.m * tile.n >= 128 * 128]
        mma = [tile for tile in big if isinstance(tile, mma_tiles.MmaTile)]
        tiles += [replace(tile, stages=3) for tile in big]
        tiles += [replace(tile, k=64, stages=3) for tile in mma]
        tiles = [tile for tile in tiles if tile.shared <= TARGET.block_shared]
    for case in [PRODUCTS[number] for number in given.products] or PRODUCTS:
        if time.monotonic() - start > given.seconds:
            print("out of time before", case)
            break
        result = measure(case, tiles, runner, simt=case.flops < 2e11)
        results.append(result)
        given.out.write_text(json.dumps(results))
        best = result["rows"][:3]
        print(case, f"cuBLAS {result['cublas_us']:.1f} us {result['cublas_tflops']:.0f} TFLOP/s")
        for row in best + [row for row in result["rows"][3:] if row["simt"]]:
            print("   ", row["tile"], "slices", row["slices"], f"{row['us']:.1f} us",
                  f"{row['tflops']:.0f} TFLOP/s, {result['cublas_us'] / row['us']:.2f} of cuBLAS",
                  f"error {row['error']:.1e}", "simt" * row["simt"], flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
