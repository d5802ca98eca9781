"""Attention's kernels on matrix units beside NumPy in float64: values and gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from execution import Batch, device_or_skip

import tinygrad_cuda as tc
from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda.compiler import REPORT, architecture_of, compile_source, resources
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.dtypes import DType, bfloat16, float16, float32
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops.attention import attention, attention_backward, no_mask, row_sum
from tinygrad_cuda.graph.ops.common import output
from tinygrad_cuda.lowering import lower
from tinygrad_cuda.lowering.skeletons.attention import tiles
from tinygrad_cuda.lowering.target import Target

Array = np.ndarray[Any, Any]
TOLERANCE = {"bfloat16": 2**-7, "float16": 2**-10}  # of the largest result
NAMES = ("out", "logsumexp", "dq", "dk", "dv")


@pytest.fixture(params=["emu", "cuda"])
def batch(request: pytest.FixtureRequest) -> Batch:
    return Batch(device_or_skip(request.param, request))


class Problem:
    """Attention of random operands, recorded into a batch, and what float64 makes of it.

    Args:
        shape: of the leading axes.
        sizes: L, S, E and V.
        mask: of the scores, or sizes of 1; everything is seen where it is left out.
        apart: heads lie behind tokens in memory.
        size: of the operands.
        scale: of the scores, 1 / sqrt(E) where it is left out.
        loose: multiplies the tolerance: of steep weights a gradient is a small difference.
    """

    def __init__(
        self, shape: tuple[int, ...], sizes: tuple[int, int, int, int], dtype: DType = bfloat16,
        causal: bool = False, mask: Array | None = None, apart: bool = False, size: float = 1.0,
        loose: float = 1.0, scale: float | None = None,
    ) -> None:  # fmt: skip
        rng = np.random.default_rng(sum(sizes))
        self.queries, self.keys, e, v = sizes
        self.dtype, self.mask, self.apart, self.loose = dtype, mask, apart, loose
        self.how = {"causal": causal, "scale": e**-0.5 if scale is None else scale}
        rows = ((self.queries, e), (self.keys, e), (self.keys, v), (self.queries, v))
        self.arrays = [
            (size * rng.standard_normal((*shape, *row))).astype(dtype.numpy) for row in rows
        ]

    def _input(self, batch: Batch, array: Array) -> Node:
        if not self.apart:
            return batch.input(array)
        axes = (0, 2, 1, 3)
        return mv.permute(batch.input(np.ascontiguousarray(array.transpose(axes))), axes=axes)

    def record(self, batch: Batch, name: str) -> None:
        q, k, v, g = (self._input(batch, array) for array in self.arrays)
        mask = no_mask(q) if self.mask is None else batch.input(self.mask)
        both = attention(q, k, v, mask, **self.how)
        out, logsumexp = (output(both, index=index) for index in range(2))
        delta = row_sum(ew.mul(*(ew.cast(x, dtype=float32) for x in (g, out))))
        back = attention_backward(g, q, k, v, logsumexp, delta, mask, **self.how)
        batch.want(name, [out, logsumexp, *(output(back, index=index) for index in range(3))])

    def expected(self) -> list[Array]:
        q, k, v, g = (array.astype(np.float64) for array in self.arrays)
        mask = np.ones((1,) * q.ndim, bool) if self.mask is None else self.mask
        if mask.dtype != np.bool_:
            mask = mask.astype(np.float64)
        out, logsumexp = attention.numpy(q, k, v, mask, **self.how)
        delta = (g * out).sum(-1)
        back = attention_backward.numpy(g, q, k, v, logsumexp, delta, mask, **self.how)
        return [out, logsumexp, *back]

    def compare(self, found: list[Array], name: str) -> None:
        for label, one, want in zip(NAMES, found, self.expected(), strict=True):
            one, finite = one.astype(np.float64), np.isfinite(want)
            np.testing.assert_array_equal(one[~finite], want[~finite], f"{name}, {label}")
            bound = 2e-6 if label == "logsumexp" else self.loose * TOLERANCE[self.dtype.name]
            scale = max(np.abs(want[finite]).max(initial=0), 1 if label == "logsumexp" else 0.05)
            error = np.abs(one[finite] - want[finite]).max(initial=0)
            assert error <= bound * scale, f"{name}, {label}: {error} of {scale}"


def check(batch: Batch, problems: dict[str, Problem]) -> None:
    """All of them in one program."""
    for name, problem in problems.items():
        problem.record(batch, name)
    found = batch.run()
    for name, problem in problems.items():
        problem.compare(found[name], name)


def seen(*shape: int, hidden: tuple[int, ...] = ()) -> Array:
    """A boolean mask, False in whole rows `hidden`."""
    mask = np.random.default_rng(sum(shape)).random(shape) > 0.4
    mask[..., list(hidden), :] = False
    return mask


def test_lengths_and_the_causal_border(batch: Batch) -> None:
    """One token, one less and more than a tile, more keys than queries and fewer."""
    lengths = ((1, 1), (17, 17), (64, 64), (65, 65), (200, 200), (1, 130), (130, 1), (40, 300))
    check(batch, {
        f"{length} {causal}": Problem((2,), (*length, 32, 32), (bfloat16, float16)[k % 2], causal)
        for k, length in enumerate(lengths)
        for causal in (False, True)
    })  # fmt: skip


def test_widths_of_heads(batch: Batch) -> None:
    """Every width, values of another one, and so wide ones that keys and values are apart."""
    widths = ((48, 48), (64, 64), (80, 80), (96, 96), (112, 48), (32, 128), (256, 256))
    check(batch, {f"{e} {v}": Problem((1, 2), (70, 90, e, v), causal=True) for e, v in widths})


def test_masks(batch: Batch) -> None:
    """Of rows, keys, heads; added ones; rows that see nothing; beside the causal border."""
    rng = np.random.default_rng(2)
    added = rng.standard_normal((2, 1, 70, 90)).astype(bfloat16.numpy)
    hiding = np.where(seen(1, 2, 70, 90, hidden=(3, 69)), 0, -np.inf).astype(np.float32)
    masks = {
        "whole": seen(2, 2, 70, 90, hidden=(0, 41)),
        "heads": seen(1, 2, 70, 1),
        "keys": seen(2, 1, 1, 90),
        "added": added,
        "hiding": hiding,
    }
    check(batch, {
        f"{name} {causal}": Problem((2, 2), (70, 90, 48, 32), causal=causal, mask=mask)
        for name, mask in masks.items()
        for causal in (False, True)
    })  # fmt: skip


def test_large_scores_and_tiles_of_falling_and_rising_maxima(batch: Batch) -> None:
    problem = Problem((1, 1), (128, 256, 32, 32), size=6.0, loose=2)
    rising = Problem((1, 1), (128, 256, 32, 32), dtype=float16)
    falling = Problem((1, 1), (128, 256, 32, 32), dtype=float16)
    steps = np.linspace(0.2, 6, 256)[:, None].astype(np.float16)
    rising.arrays[1] = rising.arrays[1] * steps
    falling.arrays[1] = falling.arrays[1] * steps[::-1]
    check(batch, {"large": problem, "rising": rising, "falling": falling})


def test_scales(batch: Batch) -> None:
    """Positive ones are part of the powers; hidden scores stay hidden with any."""
    check(batch, {
        f"{scale} {causal}": Problem((2,), (70, 90, 32, 48), causal=causal, scale=scale)
        for scale in (0.5, 0.0, -0.3, 1e-9)
        for causal in (False, True)
    })  # fmt: skip


@pytest.mark.parametrize("tile", [*tiles.TILES, *tiles.WARPGROUP_TILES], ids=str)
def test_every_tile(
    batch: Batch, tile: tiles.AttentionTile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With loops longer than the ring."""
    rows, columns = tile.rows + 5, tile.columns * (tile.stages + 1) + 3
    module = "tinygrad_cuda.lowering.skeletons.attention.attention.tile_of"
    monkeypatch.setattr(module, lambda part, target: tile)
    widths = ((64, 64), (128, 64)) if tile.wgmma else ((32, 32), (32, 48))
    check(batch, {
        "rows": Problem((2,), (rows, columns, *widths[0]), causal=True),
        "columns": Problem((2,), (columns, rows, *widths[1]), dtype=float16),
    })  # fmt: skip


def test_operands_that_are_views_or_computed(batch: Batch) -> None:
    """Heads behind tokens in memory are copied as they lie; what is computed is loaded."""
    problem = Problem((2, 3), (65, 65, 32, 48), causal=True, apart=True)
    problem.record(batch, "apart")
    computed = Problem((2,), (40, 40, 32, 32), dtype=float16)
    q, k, v = map(batch.input, computed.arrays[:3])
    doubled = [ew.add(x, x) for x in (q, k)]
    node = attention(*doubled, v, no_mask(q), causal=False, scale=computed.how["scale"] / 4)
    batch.want("computed", [output(node, index=0)])
    found = batch.run()
    problem.compare(found["apart"], "apart")
    (one,) = found["computed"]
    want = computed.expected()[0]
    assert np.abs(one.astype(np.float64) - want).max() <= 2**-10 * np.abs(want).max()


@pytest.mark.parametrize("widths", [(32, 48), (64, 128)], ids=["mma", "wgmma"])
def test_results_do_not_depend_on_the_order_of_threads(
    widths: tuple[int, int], request: pytest.FixtureRequest
) -> None:
    """A missing barrier, or a copy that nobody waits for, would show: the same bits are wanted.

    Asynchronous copies and products of warpgroups take effect in another order, too.
    """
    batch = Batch(device_or_skip("emu", request))
    Problem((2,), (70, 150, *widths), causal=True).record(batch, "one")
    run = batch.runner(registry.get(batch.device).compile(batch.program()))
    first = run(batch.arrays)["one"]
    for order in (1, 2, 3):
        with settings.override(emu_order=order):
            again = run(batch.arrays)["one"]
        for one, other in zip(first, again, strict=True):
            assert one.tobytes() == other.tobytes(), f"order {order}"


# Text ---------------------------------------------------------------------------------------------


def lowered(problem: Problem, target: Target) -> lower.Lowered:
    batch = Batch(tc.device("emu"))
    problem.record(batch, "one")
    return lower.lower(batch.program(), target)


WIDE = Problem((16, 12), (1024, 1024, 64, 64), causal=True)
KILOBYTES = {"sm_80": 163, "sm_90": 227, "sm_100": 227}  # of shared memory that a block may have


def target_of(arch: str) -> Target:
    """A machine of an architecture, with the shared memory that it has."""
    capability = divmod(int(arch.removeprefix("sm_")), 10)
    block = KILOBYTES.get(arch, 99) << 10
    return replace(Target.h200(), architecture=capability, block_shared=block, shared=block + 1024)


@pytest.mark.parametrize("width", [64, 128, 256])
def test_kernels_compile_without_spills(width: int, architectures: list[str]) -> None:
    """On each architecture with matrix units, with the shared memory that it has."""
    pytest.importorskip("cuda.bindings.nvrtc")
    problem = Problem((200,), (300, 300, width, width), causal=True)
    for arch in architectures:
        target = target_of(arch)
        if not target.matrix_lanes:
            continue
        made = lowered(problem, target)
        own = [one for one in made.launches if one.stages[0].kernel.kind == "attention"]
        assert len(own) >= (1 if width == 256 else 3)  # the gradients' rows take up to 203 KiB
        assert all(launch.shared <= target.block_shared for launch in own)
        log = compile_source(made.source, architecture_of(made.source, arch), REPORT).log
        assert "serialized" not in log, log
        used = resources(log)
        spills = {launch.name: used[launch.name].spill_stores for launch in own}
        assert not any(spills.values()), f"{arch}: {spills}"


def test_a_machine_without_matrix_units_has_the_composition() -> None:
    older = replace(Target.h200(), architecture=(7, 5))
    kinds = {kernel.kind for kernel in lowered(WIDE, older).schedule.kernels}
    assert "attention" not in kinds
    assert "contract" in kinds
