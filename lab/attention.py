"""Attention on matrix units beside torch's: tiles of attention/tiles.py for each kernel.

    python -m lab.attention OUT.json [--small] [--float32]

Values and gradients are compared with float64's by torch. Times are medians behind a write that
empties the L2 cache.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/unit"))

from programs import Inputs  # noqa: E402

from lab.matrix_units import Runner  # noqa: E402
from tinygrad_cuda.backend.cuda import compiler  # noqa: E402
from tinygrad_cuda.core import dtypes  # noqa: E402
from tinygrad_cuda.core.config import settings  # noqa: E402
from tinygrad_cuda.graph.ops import elementwise as ew  # noqa: E402
from tinygrad_cuda.graph.ops.attention import (  # noqa: E402
    attention,
    attention_backward,
    no_mask,
    row_sum,
)
from tinygrad_cuda.graph.ops.common import output  # noqa: E402
from tinygrad_cuda.lowering import lower  # noqa: E402
from tinygrad_cuda.lowering.skeletons.attention import attention as skeleton  # noqa: E402
from tinygrad_cuda.lowering.skeletons.attention import tiles  # noqa: E402
from tinygrad_cuda.lowering.target import Target  # noqa: E402

TARGET = Target.h200()
SPILLING = 290  # an estimate of registers: a few of them pass through memory


class Case(NamedTuple):
    """Sizes: batch, heads, tokens, width of a head; the precision of float32; empty: bfloat16."""

    batch: int
    heads: int
    tokens: int
    width: int
    causal: bool
    precision: str = ""

    @property
    def dtype(self) -> str:
        return "float32" if self.precision else "bfloat16"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.batch, self.heads, self.tokens, self.width

    @property
    def flops(self) -> int:
        """Of the forward pass."""
        whole = 4 * self.batch * self.heads * self.tokens**2 * self.width
        return whole // 2 if self.causal else whole


CASES = (
    Case(8, 16, 4096, 128, True), Case(16, 12, 1024, 64, True), Case(8, 12, 1024, 64, True),
    Case(64, 6, 256, 64, True), Case(8, 16, 4096, 128, False), Case(16, 12, 1024, 64, False),
)  # fmt: skip
FLOAT_CASES = tuple(
    Case(*shape, True, precision)
    for shape in ((8, 12, 1024, 64), (4, 16, 2048, 128))
    for precision in ("high", "tf32x3", "ieee")
)


def lowered(case: Case, tile: tiles.AttentionTile | None) -> Any:
    """Forward and backward, with one tile wherever it fits, or with those that are chosen."""
    inputs = Inputs()
    q, k, v, g = (inputs(*case.shape, dtype=dtypes.as_dtype(case.dtype)) for _ in range(4))
    how = {"causal": case.causal, "scale": case.width**-0.5}
    both = attention(q, k, v, no_mask(q), **how)
    out, logsumexp = (output(both, index=index) for index in range(2))
    delta = row_sum(ew.mul(*(ew.cast(x, dtype=dtypes.float32) for x in (g, out))))
    back = attention_backward(g, q, k, v, logsumexp, delta, no_mask(q), **how)
    program = inputs.program(out, *(output(back, index=index) for index in range(3)))
    chosen = skeleton.tile_of
    default = tiles.LONG, tiles.PAIRED, tiles.TMA_TILES, tiles.TMA_GRADIENT_TILES
    if tile is not None:
        forward, gradients = (
            (tile,) if tile in given else () for given in (default[2], default[3])
        )
        tiles.LONG, tiles.PAIRED = 0, 1 << 20
        tiles.TMA_TILES, tiles.TMA_GRADIENT_TILES = forward, gradients

    def forced(part: tiles.AttentionPart, target: Target) -> tiles.AttentionTile | None:
        if tile is None or tile.consumers:
            return chosen(part, target)
        fits = part.shared(tile) <= target.block_shared and part.registers(tile) <= SPILLING
        fits = fits and tile.unit == part.unit
        if fits and tile.wgmma:
            fits = part.has_warpgroups
        return tile if fits else chosen(part, target)

    skeleton.tile_of = forced
    try:
        with settings.override(matmul_precision=case.precision or settings.matmul_precision):
            return lower.lower(program, TARGET), program
    finally:
        skeleton.tile_of = chosen
        tiles.LONG, tiles.PAIRED, tiles.TMA_TILES, tiles.TMA_GRADIENT_TILES = default


def peers(case: Case, runner: Runner, tensors: list[Any], want: list[Any]) -> dict[str, float]:
    """Microseconds of each of torch's kernels that takes the case, forward and with backward.

    Beside them the largest error of a value or a gradient, as `errors` has it.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch, found = runner.torch, {}
    q, k, v, g = tensors
    halves = SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION
    floats = SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH
    torch.set_float32_matmul_precision("high" if case.precision == "high" else "highest")
    for backend in floats if case.precision else halves:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]

        def forward(leaves: list[Any] = leaves) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=case.causal)

        def both(forward: Any = forward, leaves: list[Any] = leaves) -> list[Any]:
            out = forward()
            return [out.detach(), *torch.autograd.grad(out, leaves, g)]

        try:
            with sdpa_kernel(backend):
                with torch.no_grad():
                    found[f"{backend.name} forward"] = runner.time(forward)
                found[f"{backend.name} both"] = runner.time(both)
                found[f"{backend.name} error"] = max(errors(both(), want))
                torch.use_deterministic_algorithms(True)
                found[f"{backend.name} both, deterministic"] = runner.time(both)
        except RuntimeError as error:
            print(backend.name, str(error)[:80])
        finally:
            torch.use_deterministic_algorithms(False)
    return found


def errors(found: list[Any], want: list[Any]) -> list[float]:
    """The largest of each result's first heads, over its largest element."""
    return [
        float((one[0, :2].to(other.dtype) - other).abs().max() / other.abs().max())
        for one, other in zip(found, want, strict=True)
    ]


def exact(case: Case, runner: Runner, tensors: list[Any]) -> list[Any]:
    """The value and the gradients of a few heads in float64."""
    torch = runner.torch
    q, k, v, g = (x[0, :2].double() for x in tensors)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    scores = q @ k.mT * case.width**-0.5
    if case.causal:
        scores = scores.masked_fill(~torch.ones_like(scores[0], dtype=bool).tril(), -torch.inf)
    out = scores.softmax(-1) @ v
    return [out.detach(), *torch.autograd.grad(out, leaves, g)]


def candidates(case: Case, small: bool) -> list[Any]:
    """None, for the tiles that are chosen, and those that may be."""
    if not case.precision:
        rest = () if small else (*tiles.WARPGROUP_TILES, *tiles.TILES)
        by_tma = dict.fromkeys((*tiles.TMA_TILES, *tiles.TMA_GRADIENT_TILES))
        return [None, tiles.WARPGROUP_TILES[0], *by_tma, *rest]
    unit = {"high": tiles.TF32, "tf32x3": tiles.TF32X3, "ieee": tiles.SIMT}[case.precision]
    own = [tile for tile in tiles.FLOAT_TILES if tile.unit == unit]
    return [None, *(tile for tile in own if not small or tile.stages == 2)]


def measure(case: Case, runner: Runner, chosen: list[Any]) -> dict[str, Any]:
    torch = runner.torch
    dtype = getattr(torch, case.dtype)
    tensors = [torch.randn(*case.shape, device="cuda", dtype=dtype) for _ in range(4)]
    want = exact(case, runner, tensors)
    made = [lowered(case, tile) for tile in chosen]
    binaries = compiler.compile_many([program.source for program, _ in made], "sm_90a")
    rows = []
    for tile, (program, graph), binary in zip(chosen, made, binaries, strict=True):
        memory = dict(zip(graph.inputs, tensors, strict=True))
        for node in program.schedule.outputs:
            memory[node] = torch.full(node.shape, float("nan"), device="cuda", dtype=dtype)
        for launch in program.launches:
            for word in launch.words:
                if word.kind == "value" and word.operand not in memory:
                    memory[word.operand] = torch.empty(
                        word.operand.shape, device="cuda", dtype=torch.float32
                    )
        steps = {}
        for launch in program.launches:
            kernel = launch.stages[0]
            part = type("Made", (), {"launches": [launch]})
            run = runner.launcher(part, binary.cubin, memory)
            run()
            steps[kernel.label.split(":")[0].removeprefix("attention, ")] = run
        torch.cuda.synchronize()
        off = errors([memory[node] for node in program.schedule.outputs], want)
        times = {name: runner.time(run) for name, run in steps.items()}
        rows.append({"tile": tile, "us": times, "both": sum(times.values()), "errors": off})
    return {"case": case, "peers": peers(case, runner, tensors, want), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--small", action="store_true", help="few cases, and tiles by TMA alone")
    parser.add_argument("--float32", action="store_true", help="cases of float32 instead")
    given = parser.parse_args()
    runner, results = Runner(), []
    cases = FLOAT_CASES if given.float32 else CASES
    few = (3 if given.float32 else 5) if given.small else None
    for case in cases[:few]:
        result = measure(case, runner, candidates(case, given.small))
        results.append(result)
        given.out.write_text(json.dumps(results, default=str))
        print(case)
        for name, took in result["peers"].items():
            if "error" in name:
                print(f"    torch {name}: {took:.1e}")
                continue
            flops = case.flops * (3.5 if "both" in name else 1)
            print(f"    torch {name}: {took:.0f} us, {flops / took / 1e6:.0f} TFLOP/s")
        for row in result["rows"]:
            times = "  ".join(f"{name} {took:.0f}" for name, took in row["us"].items())
            off = " ".join(f"{error:.1e}" for error in row["errors"])
            text = f"    {row['tile']} both {row['both']:.0f} us: {times} errors {off}"
            print(text, flush=True)


if __name__ == "__main__":
    main()
