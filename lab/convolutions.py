"""Convolutions on matrix units beside cuDNN's with channels last, by launch.

    python -m lab.convolutions OUT.json [--only NAME ...] [--formats bf16 tf32] [--seconds 45]

Forward, input gradient and weight gradient of each case. Images, weights and results lie in memory
with the channels last, as cuDNN's do; with `--first` ours lie in the order of their axes, and our
times include the launches that put channels last. Each launch is timed, too. Results are compared
with torch's. Times are medians behind a write that empties the L2 cache. Beside grouped ones stand
cuDNN's times for images in the order of their axes, and what the tier's model predicts. `--cuts N`
times N cuts of each depthwise case besides, drawn from those that the model says are near the best.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from itertools import pairwise
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/unit"))

from programs import Inputs  # noqa: E402

from lab.matrix_units import REPEATS, Runner  # noqa: E402
from tinygrad_cuda.backend.cuda import compiler  # noqa: E402
from tinygrad_cuda.core import dtypes  # noqa: E402
from tinygrad_cuda.core.config import settings  # noqa: E402
from tinygrad_cuda.core.dtypes import DType  # noqa: E402
from tinygrad_cuda.graph.node import Node  # noqa: E402
from tinygrad_cuda.graph.ops.convolution import (  # noqa: E402
    convolution,
    convolution_input_gradient,
    convolution_weight_gradient,
)
from tinygrad_cuda.graph.ops.geometry import Geometry  # noqa: E402
from tinygrad_cuda.graph.ops.movement import permute  # noqa: E402
from tinygrad_cuda.lowering import algorithms, lower  # noqa: E402
from tinygrad_cuda.lowering.lower import Lowered  # noqa: E402
from tinygrad_cuda.lowering.skeletons.conv.depthwise import (  # noqa: E402
    DepthwiseCut,
    depthwise_cuts_of,
)
from tinygrad_cuda.lowering.target import Target  # noqa: E402

TARGET = Target.h200()
PASSES = ("forward", "input", "weight")
# A dtype, and how exact its products are; cuDNN rounds float32 to tf32 in the second alone.
FORMATS = {
    "bf16": (dtypes.bfloat16, "highest"),
    "tf32": (dtypes.float32, "high"),
    "tf32x3": (dtypes.float32, "tf32x3"),
    "ieee": (dtypes.float32, "ieee"),
}


class Case(NamedTuple):
    """Square images and windows."""

    name: str
    images: int
    channels: int
    size: int
    outputs: int
    kernel: int
    stride: int = 1
    groups: int = 1

    @property
    def geometry(self) -> Geometry:
        pad = self.kernel // 2
        return Geometry((self.stride,) * 2, ((pad, pad),) * 2, (1, 1), self.groups)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of input, weight and result."""
        x = (self.images, self.channels, self.size, self.size)
        w = (self.outputs, self.channels // self.groups, self.kernel, self.kernel)
        return {"x": x, "w": w, "y": (*x[:1], w[0], *self.geometry.sizes(x[2:], w[2:]))}

    @property
    def flops(self) -> int:
        images, outputs, *size = self.shapes["y"]
        window = self.shapes["w"][1] * self.kernel**2
        return 2 * images * outputs * size[0] * size[1] * window

    def nbytes(self, itemsize: int) -> int:
        """Of input, weight and result, of which each pass reads two and writes the third."""
        return sum(map(prod, self.shapes.values())) * itemsize


CASES = (
    Case("c128 28 3x3", 128, 128, 28, 128, 3),
    Case("c64 32 3x3", 256, 64, 32, 64, 3),
    Case("c64-128 56 3x3 s2", 128, 64, 56, 128, 3, 2),
    Case("c256-128 28 1x1", 128, 256, 28, 128, 1),
    Case("c64-128 32 1x1 s2", 256, 64, 32, 128, 1, 2),
    Case("c128 16 3x3", 256, 128, 16, 128, 3),
    Case("c256 8 3x3", 256, 256, 8, 256, 3),
    Case("c512 4 3x3", 256, 512, 4, 512, 3),
    Case("c128 28 3x3 depthwise", 128, 128, 28, 128, 3, 1, 128),
    Case("c128 28 3x3 g4", 128, 128, 28, 128, 3, 1, 4),
    Case("c128 56 3x3 depthwise", 32, 128, 56, 128, 3, 1, 128),
    Case("c96 56 7x7 depthwise", 32, 96, 56, 96, 7, 1, 96),  # ConvNeXt
    Case("c240 28 5x5 s2 depthwise", 32, 240, 28, 240, 5, 2, 240),  # MobileNetV3
)
CLOCK = 1980  # of an H200, in MHz
Key = tuple[Case, str, str]  # a case, its pass and its format
PEERS: dict[Key, tuple[float, float | None]] = {}  # cuDNN's microseconds, in either order


def operands(case: Case, direction: str) -> tuple[str, str]:
    """Which two of x, w, y a pass multiplies."""
    return {"forward": ("x", "w"), "input": ("y", "w"), "weight": ("y", "x")}[direction]


def lowered(
    case: Case, direction: str, dtype: DType, precision: str = "high", first: bool = False
) -> Lowered:
    """The launches of one pass; by default float32 as tf32.

    Args:
        first: operands and result lie in the order of their axes.
    """
    inputs = Inputs()

    def operand(name: str) -> Node:
        n, c, h, w = case.shapes[name]
        if first:
            return inputs(n, c, h, w, dtype=dtype)
        return permute(inputs(n, h, w, c, dtype=dtype), axes=(0, 3, 1, 2))

    a, b = map(operand, operands(case, direction))
    at = case.geometry._asdict()
    node: Node
    if direction == "forward":
        node = convolution(a, b, **at)
    elif direction == "input":
        node = convolution_input_gradient(a, b, size=case.shapes["x"][2:], **at)
    else:
        node = convolution_weight_gradient(a, b, kernel=case.shapes["w"][2:], **at)
    if not first:
        node = permute(node, axes=(0, 2, 3, 1))
    before, settings.matmul_precision = settings.matmul_precision, precision
    try:
        return lower.lower(inputs.program(node), TARGET)
    finally:
        settings.matmul_precision = before


def peer(case: Case, direction: str, tensors: dict[str, Any], torch: Any, last: bool = True) -> Any:
    """The same by torch, channels last or not."""
    order = torch.channels_last if last else torch.contiguous_format
    images = {name: t.to(memory_format=order) for name, t in tensors.items()}
    stride, pad = [case.stride] * 2, [case.kernel // 2] * 2
    if direction == "forward":
        conv = torch.nn.functional.conv2d
        return lambda: conv(images["x"], images["w"], None, stride, pad, 1, case.groups)
    mask = [direction == "input", direction == "weight", False]
    backward = torch.ops.aten.convolution_backward
    return lambda: backward(
        images["y"],
        images["x"],
        images["w"],
        None,
        stride,
        pad,
        [1, 1],
        False,
        [0, 0],
        case.groups,
        mask,
    )[direction == "weight"]


class Launches:
    """A lowered program, launch by launch, whose parameters are torch's tensors."""

    def __init__(self, runner: Runner, made: Lowered, cubin: bytes, tensors: dict[Any, Any]):
        self.runner, self.made = runner, made
        self.runs = []
        for launch in made.launches:
            one = type("One", (), {"launches": [launch]})
            self.runs.append(runner.launcher(one, cubin, tensors))

    def __call__(self) -> None:
        for run in self.runs:
            run()

    def each(self) -> list[float]:
        """Median microseconds of each launch, in their order."""
        torch, samples = self.runner.torch, []
        for _ in range(REPEATS):
            self.runner.flush.zero_()
            events = [torch.cuda.Event(enable_timing=True) for _ in range(len(self.runs) + 1)]
            events[0].record()
            for run, event in zip(self.runs, events[1:], strict=True):
                run()
                event.record()
            events[-1].synchronize()
            samples.append([a.elapsed_time(b) * 1e3 for a, b in pairwise(events)])
        return [median(times) for times in zip(*samples, strict=True)]


def about(made: Lowered) -> list[str]:
    """What each launch computes: its name, and a product's tiles."""
    texts = []
    for launch in made.launches:
        comments = [line for line in launch.text.splitlines() if "tiles of" in line]
        texts.append(" | ".join([launch.name, *(line.strip("/ ") for line in comments)]))
    return texts


def cuts_of(made: Lowered, count: int) -> list[DepthwiseCut]:
    """Some of the cuts of at most three times the model's least time, of any number of lanes."""
    (best,) = [k.choice.cut for k in made.schedule.kernels if k.choice]
    assert isinstance(best, DepthwiseCut)
    cuts = list(depthwise_cuts_of(best.grouped, TARGET, best.last))
    cuts = [one for one in cuts if one != best and one.clocks(TARGET) < 3 * best.clocks(TARGET)]
    drawn: list[DepthwiseCut] = []
    random.Random(0).shuffle(cuts)
    lanes = sorted({one.lanes for one in cuts})
    for number in range(count):
        of_lanes = [one for one in cuts if one.lanes == lanes[number % len(lanes)]]
        if of_lanes:
            # Every second one is the model's best of those that are left.
            rank = (lambda one: one.clocks(TARGET)) if number // len(lanes) % 2 == 0 else None
            one = min(of_lanes, key=rank) if rank else of_lanes[0]
            cuts.remove(one)
            drawn.append(one)
    return drawn


def with_cuts(keys: list[Key], first: bool, count: int) -> list[tuple[Key, Lowered]]:
    """The programs of all keys, each with the model's cut, and `count` with others."""
    programs = []
    for key in keys:
        case, direction, name = key
        usual = lowered(case, direction, *FORMATS[name], first)
        programs.append((key, usual))
        for cut in cuts_of(usual, count) if count else ():
            with patch.object(algorithms, "depthwise_cut_of", lambda *_, cut=cut: cut):
                made = lowered(case, direction, *FORMATS[name], first)
            if [k.choice.cut for k in made.schedule.kernels if k.choice] == [cut]:
                programs.append((key, made))
    return programs


def predicted(made: Lowered) -> float | None:
    """Microseconds by the model of a depthwise tier; None of programs with other kernels."""
    cuts = [kernel.choice.cut if kernel.choice else None for kernel in made.schedule.kernels]
    if not all(isinstance(cut, DepthwiseCut) for cut in cuts):
        return None
    return float(sum(cut.clocks(TARGET) for cut in cuts)) / CLOCK


def measure(
    case: Case, direction: str, name: str, made: Lowered, cubin: bytes, runner: Runner, first: bool
) -> dict[str, Any]:
    """One pass of a case: ours by launch, and torch's."""

    def laid_out(tensor: Any) -> Any:
        return (tensor if first else tensor.permute(0, 2, 3, 1)).contiguous()

    torch = runner.torch
    dtype = torch.bfloat16 if name == "bf16" else torch.float32
    torch.backends.cudnn.allow_tf32 = name == "tf32"
    generator = torch.Generator("cuda").manual_seed(0)
    tensors = {
        key: torch.randn(shape, device="cuda", dtype=dtype, generator=generator)
        for key, shape in case.shapes.items()
    }
    other = peer(case, direction, tensors, torch)
    want = laid_out(other())
    if (case, direction, name) not in PEERS:
        other_order = peer(case, direction, tensors, torch, last=False)
        first_time = runner.time(other_order) if case.groups > 1 else None
        PEERS[case, direction, name] = runner.time(other), first_time
    peer_us, first_us = PEERS[case, direction, name]
    out = torch.full_like(want, float("nan"))
    every = [word for launch in made.launches for word in launch.words]
    words = [word for word in every if word.kind in ("value", "map")]
    cuts = [k.choice.cut for k in made.schedule.kernels if k.choice]
    (result,) = made.schedule.outputs
    leaves = {word.memory for word in words if "slot" in word.memory.attributes}
    by_slot = sorted(leaves, key=lambda node: node.attributes["slot"])
    sources = [laid_out(tensors[key]) for key in operands(case, direction)]
    bound = {result: out, **dict(zip(by_slot, sources, strict=True))}
    for item in {word.memory for word in words} - bound.keys():  # values between launches
        nbytes = prod(item.shape) * item.dtype.itemsize
        bound[item] = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    assert any(word.memory is result and word.write for word in words)
    launches = Launches(runner, made, cubin, bound)
    us, each = runner.time(launches), launches.each()
    difference = (out.float() - want.float()).abs().max() / want.float().abs().max()
    return {
        "case": case.name, "pass": direction, "dtype": name, "us": us, "cudnn_us": peer_us,
        "tflops": case.flops / us / 1e6, "cudnn_tflops": case.flops / peer_us / 1e6,
        "cut": [
            [c.rows, c.run, c.lanes, c.vectors, c.slices] if isinstance(c, DepthwiseCut) else str(c)
            for c in cuts
        ],
        "cudnn_first_us": first_us, "predicted_us": predicted(made),
        "gbytes": case.nbytes(dtype.itemsize) / us / 1e3, "difference": float(difference),
        "launches": [[text, round(t, 1)] for text, t in zip(about(made), each, strict=True)],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="parts of the cases' names")
    parser.add_argument("--formats", nargs="*", default=["bf16", "tf32"], choices=FORMATS)
    parser.add_argument("--first", action="store_true", help="ours in the order of their axes")
    parser.add_argument("--cuts", type=int, default=0, help="more cuts of each depthwise case")
    parser.add_argument("--seconds", type=float, default=45.0)
    given = parser.parse_args()
    start = time.monotonic()
    runner = Runner()
    torch = runner.torch
    torch.backends.cudnn.benchmark = True
    chosen = [c for c in CASES if not given.only or any(part in c.name for part in given.only)]
    keys = [(case, direction, name) for name in given.formats
            for case in chosen for direction in PASSES]  # fmt: skip
    programs = with_cuts(keys, given.first, given.cuts)
    binaries = compiler.compile_many([made.source for _, made in programs], "sm_90a")
    print(f"compiled after {time.monotonic() - start:.1f} s", flush=True)
    results = []
    for (key, program), binary in zip(programs, binaries, strict=True):
        if time.monotonic() - start > given.seconds:
            print("out of time before", *key)
            break
        row = measure(*key, program, binary.cubin, runner, given.first)
        results.append(row)
        given.out.write_text(json.dumps(results))
        ratio = row["cudnn_us"] / row["us"]
        print(f"{row['case']}, {row['pass']}, {row['dtype']}: {row['us']:.1f} us "
              f"{row['tflops']:.0f} TFLOP/s, cuDNN {row['cudnn_us']:.1f} us "
              f"{row['cudnn_tflops']:.0f}, {ratio:.2f} of it, difference "
              f"{row['difference']:.1e}, {row['gbytes']:.0f} GB/s")  # fmt: skip
        if row["cudnn_first_us"]:
            print(
                f"    cuDNN, order of axes: {row['cudnn_first_us']:.1f} us"
                + (f"; predicted {row['predicted_us']:.1f} us" if row["predicted_us"] else "")
                + (f"; cut {row['cut']}" if given.cuts else "")
            )
        for text, us in row["launches"]:
            print(f"    {us:7.1f} us {text}", flush=True)


if __name__ == "__main__":
    main()
