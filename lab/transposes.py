"""Copies in another order of axes beside torch's and a plain copy: each size of a tile.

    python -m lab.transposes OUT.json

Values are compared with torch's. Times are medians behind a write that empties the L2 cache; TB/s
counts what is read and what is written.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/unit"))

from programs import Inputs  # noqa: E402

from lab.matrix_units import Runner  # noqa: E402
from tinygrad_cuda.backend.cuda import compiler  # noqa: E402
from tinygrad_cuda.core.dtypes import DType, bfloat16, float32, float64, int8  # noqa: E402
from tinygrad_cuda.graph.ops import elementwise as ew  # noqa: E402
from tinygrad_cuda.graph.ops import movement as mv  # noqa: E402
from tinygrad_cuda.lowering import emit, lower  # noqa: E402
from tinygrad_cuda.lowering.skeletons import transpose  # noqa: E402
from tinygrad_cuda.lowering.target import Target  # noqa: E402

TARGET = Target.h200()
LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)  # channels


class Case(NamedTuple):
    """A copy: the shape that is read, the order of its axes behind it, and both dtypes."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    source: DType
    target: DType

    @property
    def nbytes(self) -> int:
        size = 1
        for extent in self.shape:
            size *= extent
        return size * (self.source.itemsize + self.target.itemsize)

    def __str__(self) -> str:
        shape = " x ".join(map(str, self.shape))
        names = dict.fromkeys((self.source.name, self.target.name))
        return f"{shape} by {self.axes} {' to '.join(names)}"


IMAGES = ((64, 32), (128, 16), (256, 8), (512, 4))  # channels, and pixels of a side
CASES = (
    Case((8192, 8192), (1, 0), float32, float32),
    Case((8192, 8192), (1, 0), bfloat16, bfloat16),
    Case((8192, 3072), (1, 0), float32, float32),
    Case((3072, 768), (1, 0), float32, float32),
    Case((8191, 8193), (1, 0), bfloat16, bfloat16),
    Case((8192, 4096), (1, 0), float64, float64),
    Case((8192, 16384), (1, 0), int8, int8),
    *(Case((256, c, side, side), LAST, bfloat16, bfloat16) for c, side in IMAGES),
    *(Case((256, side, side, c), FIRST, bfloat16, bfloat16) for c, side in IMAGES),
    Case((256, 512, 7, 7), LAST, bfloat16, bfloat16),
    Case((256, 7, 7, 512), FIRST, bfloat16, bfloat16),
    Case((512, 512, 3, 3), LAST, float32, bfloat16),
    Case((256, 64, 56, 56), LAST, float32, bfloat16),
    Case((256, 64, 56, 56), LAST, bfloat16, float32),
)
# Elements of a tile and of its first axis, and blocks that a multiprocessor should hold; the last
# is a map without tiles.
VARIANTS = (
    (4096, 64, 1), (4096, 64, 4), (4096, 64, 6), (4096, 64, 8), (2048, 64, 1), (2048, 64, 8),
    (8192, 64, 1), (0, 0, 1),
)  # fmt: skip


@contextmanager
def variant(elements: int, long: int, min_blocks: int) -> Iterator[None]:
    """Tiles of another size, or none."""
    before = transpose.ELEMENTS, transpose.LONG, transpose.MIN_BLOCKS_PER_SM, emit.TILED
    transpose.ELEMENTS, transpose.LONG, transpose.MIN_BLOCKS_PER_SM = elements, long, min_blocks
    emit.TILED = emit.TILED if elements else 1 << 62
    try:
        yield
    finally:
        transpose.ELEMENTS, transpose.LONG, transpose.MIN_BLOCKS_PER_SM, emit.TILED = before


def lowered(case: Case) -> Any:
    """The launch of a copy."""
    inputs = Inputs()
    x = mv.permute(inputs(*case.shape, dtype=case.source), axes=case.axes)
    x = ew.contiguous(x) if case.source is case.target else ew.cast(x, dtype=case.target)
    return lower.lower(inputs.program(x), TARGET)


def tensors_of(case: Case, runner: Runner, made: Any) -> tuple[Any, Any, dict[Any, Any]]:
    """What is read, what is to be written, and both by their nodes."""
    torch = runner.torch
    kinds = [getattr(torch, dtype.name) for dtype in (case.source, case.target)]
    x = torch.randint(-100, 100, case.shape, device="cuda").to(kinds[0])
    out = torch.empty([case.shape[axis] for axis in case.axes], dtype=kinds[1], device="cuda")
    (launch,) = made.launches
    return x, out, {word.operand: out if word.write else x for word in launch.words}


def measure(case: Case, runner: Runner, programs: list[Any], binaries: list[Any]) -> dict[str, Any]:
    """Each variant, torch's copy in the other order, and torch's copy as it lies."""
    x, out, _ = tensors_of(case, runner, programs[0])
    want = x.permute(case.axes).to(out.dtype).contiguous()
    plain = runner.torch.empty_like(x, dtype=out.dtype)
    found = {
        "torch": runner.time(lambda: out.copy_(x.permute(case.axes))),
        "plain copy": runner.time(lambda: plain.copy_(x)),
    }
    rows = {}
    for name, program, binary in zip(VARIANTS, programs, binaries, strict=True):
        out.zero_()
        (launch,) = program.launches
        tensors = {word.operand: out if word.write else x for word in launch.words}
        run = runner.launcher(program, binary.cubin, tensors)
        rows[str(name)] = runner.time(run)
        if not runner.torch.equal(out, want):
            raise AssertionError(f"{case}: {name} stores other values")
    return {"case": str(case), "bytes": case.nbytes, **found, "ours": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    runner, results = Runner(), []
    made: list[Any] = []
    for how in VARIANTS:
        with variant(*how):
            made.append([lowered(case) for case in CASES])
    texts = [program.source for programs in made for program in programs]
    binaries = compiler.compile_many(texts, "sm_90a")
    for k, case in enumerate(CASES):
        own = [binaries[number * len(CASES) + k] for number in range(len(VARIANTS))]
        result = measure(case, runner, [programs[k] for programs in made], own)
        results.append(result)
        given.out.write_text(json.dumps(results))
        speeds = {name: case.nbytes / us / 1e6 for name, us in result["ours"].items()}
        print(case)
        for name in ("torch", "plain copy"):
            speed = case.nbytes / result[name] / 1e6
            print(f"    {name:<14} {result[name]:8.1f} us {speed:.2f} TB/s")
        for name, speed in speeds.items():
            print(f"    {name:<14} {result['ours'][name]:8.1f} us {speed:.2f} TB/s", flush=True)


if __name__ == "__main__":
    main()
