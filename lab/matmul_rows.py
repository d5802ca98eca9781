"""Products beside cuBLAS, by launch: what the package chooses, in every layout and dtype.

    python -m lab.matmul_rows OUT.json [--only 4096x4096x4096 ...] [--formats bf16 fp16 tf32]
                              [--seconds 50] [--others]

Operands lie in memory as PyTorch has them, so that our times include launches that turn an operand
of tf32 along k; each launch is timed, too. `--others` times more cuts where one is in question.
Results are compared with torch's. Times are medians behind a write that empties the L2 cache.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from lab.convolutions import Launches, about
from lab.matrix_units import (
    TARGET,
    Case,
    Inputs,
    Runner,
    lowered,
    operands,
    stages_of,
)
from tinygrad_cuda.backend.cuda import compiler
from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.graph.ops import contraction
from tinygrad_cuda.lowering import lower
from tinygrad_cuda.lowering.lower import Lowered
from tinygrad_cuda.lowering.skeletons.contract.mma_tiles import CLUSTER_TILES, TMA_TILES
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import ProductCut, split_k

# A dtype, how exact its products are, and torch's dtype.
FORMATS: dict[str, tuple[DType, str, str]] = {
    "bf16": (dtypes.bfloat16, "highest", "bfloat16"),
    "fp16": (dtypes.float16, "highest", "float16"),
    "tf32": (dtypes.float32, "high", "float32"),
}
LAYOUTS = ("NT", "NN", "TN", "TT")
SQUARES = tuple(Case(1, n, n, n, layout) for n in (4096, 8192) for layout in LAYOUTS)
HALF = (
    Case(1, 16384, 2304, 768, "NT"),
    Case(1, 16384, 3072, 768, "NT"),
    Case(1, 16384, 50304, 768, "NT"),
    Case(1, 64, 4096, 4096, "NT"),
    Case(1, 8192, 768, 3072, "NT"),
    Case(96, 1024, 1024, 64, "NT"),
    Case(1, 768, 3072, 16384, "TN"),
    Case(1, 768, 3072, 8192, "TN"),
    Case(1, 2304, 768, 8192, "TN"),
    Case(1, 768, 768, 8192, "TN"),
    Case(1, 384, 1536, 16384, "TN"),
    Case(1, 8192, 768, 50304, "NN"),
)


class Row(NamedTuple):
    """A product to measure: by a cut, or by what the package chooses."""

    case: Case
    format: str
    cut: ProductCut[Any] | None = None

    @property
    def label(self) -> str:
        case = self.case
        batches = f"{case.batches} x " if case.batches > 1 else ""
        return f"{batches}{case.m} x {case.n} x {case.k} {case.layout} {self.format}"

    @property
    def by(self) -> str:
        """Which cut, for a reader."""
        if self.cut is None:
            return "chosen"
        tile = self.cut.tile
        kind = " ping-pong" if tile.ping_pong else ""
        shares, slices = self.cut.shares, self.cut.slices
        where = " in a cluster" if self.cut.cluster else ""
        split = f"stream-K {shares}" if shares else f"split-K {slices}{where}"
        return f"{tile.m} x {tile.n} x {tile.k}{kind}, {split}"


def rows_of(formats: list[str], others: bool) -> list[Row]:
    """The rows of a run, the shortest products first."""
    rows = [Row(case, name) for name in formats for case in SQUARES]
    rows += [Row(case, "bf16") for case in HALF if "bf16" in formats]
    if others and "bf16" in formats:
        rows += [Row(case, "bf16", cut) for case in HALF for cut in other_cuts(case)]
    return sorted(rows, key=lambda row: (row.case.flops, row.label))


def other_cuts(case: Case) -> list[ProductCut[Any]]:
    """Plans in question beside the chosen one: of products with few tiles of outputs."""
    if case.m <= 64:
        slices = [split_k(TMA_TILES[number], case.k, count)
                  for number, count in ((4, 1), (4, 4), (6, 1), (6, 2))]  # fmt: skip
        return [*slices, replace(split_k(CLUSTER_TILES[0], case.k, 2), cluster=True)]
    if case.layout != "TN":
        return []
    cuts: list[ProductCut[Any]] = []
    for tile in TMA_TILES[:2]:
        tiles = -(-case.m // tile.m) * -(-case.n // tile.n)
        even = TARGET.multiprocessors // tiles
        cuts += [split_k(tile, case.k, count) for count in dict.fromkeys((3, even)) if count > 1]
        cuts += [ProductCut(tile, case.k, 1, TARGET.multiprocessors)]
    return cuts


def chosen(case: Case, dtype: DType, precision: str) -> Lowered:
    """The launches that the package makes."""
    inputs = Inputs()
    a, b = (inputs(*shape, dtype=dtype) for shape in operands(case))
    x = contraction.transpose(a) if case.layout[0] == "T" else a
    y = contraction.transpose(b) if case.layout[1] == "T" else b
    before, settings.matmul_precision = settings.matmul_precision, precision
    try:
        return lower.lower(inputs.program(contraction.matmul(x, y)), TARGET)
    finally:
        settings.matmul_precision = before


def made_of(row: Row) -> Lowered:
    dtype, precision, _ = FORMATS[row.format]
    if row.cut is None:
        return chosen(row.case, dtype, precision)
    made: Lowered = lowered(row.case, row.cut, stages_of(row.cut), dtype)
    return made


def memory_of(made: Lowered, a: Any, b: Any, out: Any, torch: Any) -> dict[Any, Any]:
    """The tensors of a program's values and of what its launches leave each other."""
    words = [word for launch in made.launches for word in launch.words]
    nodes = {word.memory for word in words if word.kind in ("value", "map")}
    (result,) = made.schedule.outputs
    by_slot = sorted(
        (node for node in nodes if "slot" in node.attributes),
        key=lambda node: node.attributes["slot"],
    )
    bound = {result: out, **dict(zip(by_slot, (a, b), strict=True))}
    for node in nodes - bound.keys():
        nbytes = prod(node.shape) * node.dtype.itemsize
        bound[node] = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    for word in words:
        if word.kind == "exchange" and word.operand not in bound:
            bound[word.operand] = torch.zeros(word.operand.nbytes, dtype=torch.uint8, device="cuda")
    return bound


class Peers:
    """torch's product of a case: its operands, its result and its time, made once."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.made: tuple[Case, str, Any] | None = None

    def of(self, case: Case, name: str) -> tuple[Any, Any, Any, float]:
        if self.made is None or self.made[:2] != (case, name):
            self.made = None  # its memory first
            self.made = case, name, self._measure(case, name)
        found: tuple[Any, Any, Any, float] = self.made[2]
        return found

    def _measure(self, case: Case, name: str) -> tuple[Any, Any, Any, float]:
        torch = self.runner.torch
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        dtype = getattr(torch, FORMATS[name][2])
        generator = torch.Generator("cuda").manual_seed(0)
        a, b = (
            torch.randn(shape, device="cuda", dtype=dtype, generator=generator)
            for shape in operands(case)
        )
        x = a.transpose(-1, -2) if case.layout[0] == "T" else a
        y = b.transpose(-1, -2) if case.layout[1] == "T" else b
        want = torch.matmul(x, y)
        return a, b, want, self.runner.time(lambda: torch.matmul(x, y, out=want))


def measure(row: Row, made: Lowered, cubin: bytes, runner: Runner, peers: Peers) -> dict[str, Any]:
    """A row: ours by launch, and torch's."""
    torch, case = runner.torch, row.case
    a, b, want, peer = peers.of(case, row.format)
    out = torch.full_like(want, float("nan"))
    memory = memory_of(made, a, b, out, torch)  # which is ours until the last launch
    launches = Launches(runner, made, cubin, memory)
    launches()
    first = out.clone()
    us = runner.time(launches)
    each = launches.each() if len(launches.runs) > 1 else [us]
    again = bool(torch.equal(first, out))
    del memory
    difference = (out.float() - want.float()).abs().max() / want.float().abs().max()
    return {
        "row": row.label, "by": row.by, "us": us, "cublas_us": peer, "ratio": peer / us,
        "tflops": case.flops / us / 1e6, "difference": float(difference),
        "same bits again": again,
        "launches": [[text, round(t, 1)] for text, t in zip(about(made), each, strict=True)],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="parts of the rows' labels")
    parser.add_argument("--formats", nargs="*", default=list(FORMATS), choices=FORMATS)
    parser.add_argument("--seconds", type=float, default=50.0)
    parser.add_argument("--others", action="store_true", help="other cuts than the chosen one")
    given = parser.parse_args()
    start = time.monotonic()
    rows = rows_of(given.formats, given.others)
    if given.only:
        only = [part.replace("x", " x ") for part in given.only]
        rows = [row for row in rows if any(part in row.label for part in only)]
    made = [made_of(row) for row in rows]
    texts = list(dict.fromkeys(one.source for one in made))
    binaries = dict(zip(texts, compiler.compile_many(texts, "sm_90a"), strict=True))
    print(f"{len(texts)} programs compiled after {time.monotonic() - start:.1f} s", flush=True)
    runner, results = Runner(), []
    peers = Peers(runner)
    for row, program in zip(rows, made, strict=True):
        if time.monotonic() - start > given.seconds:
            print("out of time before", row.label)
            break
        result = measure(row, program, binaries[program.source].cubin, runner, peers)
        results.append(result)
        given.out.write_text(json.dumps(results))
        again = "" if result["same bits again"] else ", OTHER BITS AGAIN"
        print(f"{row.label} by {row.by}: {result['us']:.1f} us {result['tflops']:.0f} TFLOP/s, "
              f"cuBLAS {result['cublas_us']:.1f}, {result['ratio']:.2f} of it, "
              f"difference {result['difference']:.1e}{again}")  # fmt: skip
        for text, us in result["launches"]:
            print(f"    {us:7.1f} us {text}", flush=True)


if __name__ == "__main__":
    main()
