"""Attention's kernels on matrix units beside NumPy in float64: values and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from math import prod
from typing import Any

import numpy as np
import pytest
from execution import Batch, change_skeleton, device_or_skip

import tinygrad_cuda as tc
from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda.compiler import REPORT, architecture_of, compile_source, resources
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.dtypes import DType, bfloat16, float16, float32
from tinygrad_cuda.core.errors import TgcError
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops.attention import attention, attention_backward, no_mask, row_sum
from tinygrad_cuda.graph.ops.common import full_like, output
from tinygrad_cuda.graph.ops.random import random_uniform
from tinygrad_cuda.lowering import lower
from tinygrad_cuda.lowering.codegen.index import INT_MAX
from tinygrad_cuda.lowering.skeletons.attention import tiles, tma
from tinygrad_cuda.lowering.skeletons.attention.tma import TmaGradientText, TmaText
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


def by_tma(
    monkeypatch: pytest.MonkeyPatch, tile: tiles.AttentionTile, device: Any, text: Any = TmaText
) -> list[Any]:
    """The forward pass or the gradients by TMA, on two multiprocessors; receives the texts."""
    backend = registry.get(device)
    if backend.target.architecture != (9, 0):
        pytest.skip("TMA and wgmma are of sm_90a")
    monkeypatch.setattr(backend, "target", replace(backend.target, multiprocessors=2))
    forward = text is TmaText
    monkeypatch.setattr(tiles, "LONG", 0)
    monkeypatch.setattr(tiles, "PAIRED", INT_MAX)
    monkeypatch.setattr(tiles, "TMA_TILES", (tile,) if forward else ())
    monkeypatch.setattr(tiles, "TMA_GRADIENT_TILES", () if forward else (tile,))
    made: list[Any] = []
    stage = text.stage
    monkeypatch.setattr(text, "stage", lambda text: made.append(text) or stage(text))
    return made


@pytest.mark.parametrize("tile", tiles.TMA_TILES, ids=str)
def test_the_forward_pass_by_tma(
    batch: Batch, tile: tiles.AttentionTile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loops longer than the ring, several tiles a block, awkward lengths, masks, views."""
    made = by_tma(monkeypatch, tile, batch.device)
    rows, columns = tile.rows + 5, tile.columns * (tile.stages + 1) + 3
    widths = (64, 64) if tile.consumers == 3 else (128, 64)
    mask = seen(2, 1, 70, 90, hidden=(3, 69))
    added = np.random.default_rng(4).standard_normal((1, 2, 1, 90)).astype(float16.numpy)
    problems = {
        "rows": Problem((3,), (rows, columns, *widths), causal=True),
        "columns": Problem((1,), (columns, rows, *widths[::-1]), dtype=float16),
        "few": Problem((2,), (7, 7, *widths), causal=True),
        "prime": Problem((2, 2), (131, 131, 64, 64), causal=True, apart=True),
        "mask": Problem((2, 2), (70, 90, 64, 64), mask=mask),
        "added": Problem((2, 2), (70, 90, 64, 64), dtype=float16, mask=added, scale=-0.3),
    }
    if (tile.columns, tile.stages) == (64, 2):
        problems["wide"] = Problem((1, 2), (70, 90, 256, 256), causal=True)
    check(batch, problems)
    assert len(made) == len(problems)


def test_the_kernel_by_tma_is_for_many_keys() -> None:
    """Of few ones its rounds take longer to begin than they save."""
    for keys, width, found in ((tiles.LONG - 1, 64, 0), (tiles.LONG, 64, 3), (tiles.LONG, 128, 2)):
        made = lowered(Problem((2,), (keys, keys, width, width)), Target.h200())
        assert sum("tgc_tma_load" in launch.text for launch in made.launches) == found


@pytest.mark.parametrize("tile", tiles.TMA_GRADIENT_TILES[::3], ids=str)
def test_the_gradients_by_tma(
    batch: Batch, tile: tiles.AttentionTile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the forward pass; both kernels, and dropped weights."""
    made = by_tma(monkeypatch, tile, batch.device, TmaGradientText)
    rows, columns = tile.rows + 5, tile.columns * (tile.stages + 1) + 3
    mask = seen(2, 1, 70, 90, hidden=(3, 69))
    problems = {
        "rows": Problem((3,), (rows, columns, 64, 64), causal=True),
        "columns": Problem((1,), (columns, rows, 64, 64), dtype=float16),
        "few keys": Problem((1,), (90, 7, 64, 64), causal=True),
        "few queries": Problem((1,), (7, 190, 64, 64), causal=True),
        "prime": Problem((2, 2), (131, 131, 64, 64), causal=True, apart=True),
        "mask": Problem((2, 2), (70, 90, 64, 64), mask=mask),
    }
    if tile.stages == 4:
        problems["wide"] = Problem((1, 2), (70, 90, 128, 64), causal=True)
    check(batch, problems)
    assert len(made) == 2 * len(problems)


FAULTS = {
    "no wait for free keys": ("tgc_barrier_wait(empty_k + slot, parity);", ""),
    "no wait for free values": ("tgc_barrier_wait(empty_v + slot, parity);", ""),
    "no wait for free queries": ("tgc_barrier_wait(empty_q, parity_q);", ""),
    "no wait for keys": ("tgc_barrier_wait(full_k + slot, parity);", ""),
    "no wait for values": ("tgc_barrier_wait(full_v + before, parity_before);", ""),
    "no wait for queries": ("tgc_barrier_wait(full_q, parity_q);", ""),
    "another parity of free slots": ("unsigned parity = 1,", "unsigned parity = 0,"),
    "fewer bytes": ("tgc_barrier_expect(full_v + slot, @bytes_v@);",
                    "tgc_barrier_expect(full_v + slot, @bytes_v@ / 2);"),
    "scores are read early": ("tgc_wgmma_wait<1>();", ""),
    "values are scaled early": ("      tgc_wgmma_wait<0>();\n      if (lane == 0) "
                                "tgc_barrier_arrive(empty_v + before);", ""),
    "no wait for the last values": ("@begin_last@\n    tgc_wgmma_wait<0>();", "@begin_last@"),
    "queries are given back early": (
        "    parity_q ^= 1;\n    {\n      const int column_first",
        "    parity_q ^= 1;\n    if (lane == 0) tgc_barrier_arrive(empty_q);\n"
        "    {\n      const int column_first",
    ),
    "no scaling of values": ("value[0][j][q] *= factor[q / 2];", ";"),
}  # fmt: skip


@contextmanager
def changed(
    monkeypatch: pytest.MonkeyPatch, file: str, change: tuple[str, str], order: int
) -> Iterator[Batch]:
    """A batch on the emulator with a changed skeleton."""
    with monkeypatch.context() as patched, settings.override(emu_order=order):
        change_skeleton(patched, file, *change)
        device, own = tc.device("emu"), TmaText if file == tma.CUH else TmaGradientText
        by_tma(patched, tiles.AttentionTile(1, 64, 2, True, 2), device, own)
        yield Batch(device)


def agrees(batch: Batch, want: list[Array]) -> bool:
    """Whether a batch runs and has these results."""
    try:
        (results,) = batch.run().values()
    except TgcError:
        return False
    errors = (np.abs(x.astype(np.float64) - y).max() for x, y in zip(results, want, strict=True))
    scales = (TOLERANCE["bfloat16"] * np.abs(y).max() for y in want)
    return all(error <= scale for error, scale in zip(errors, scales))


def forward_with(monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], order: int) -> bool:
    """Whether the emulator attends right with a changed skeleton."""
    problem = Problem((3,), (257, 257, 64, 64), causal=True, size=2.0)
    with changed(monkeypatch, tma.CUH, change, order) as batch:
        q, k, v = map(batch.input, problem.arrays[:3])
        batch.want("out", [output(attention(q, k, v, no_mask(q), **problem.how), index=0)])
        return agrees(batch, problem.expected()[:1])


GRADIENT_FAULTS = {
    "no wait for a free slot": ("tgc_barrier_wait(empty + slot, parity);\n        "
                                "tgc_barrier_expect", "tgc_barrier_expect"),
    "sums before the slot is free": ("tgc_barrier_wait(empty + slot, parity);\n      "
                                     "float* const sums", "float* const sums"),
    "no wait for free rows": ("tgc_barrier_wait(empty_rows, parity_rows);", ""),
    "no wait for a full slot": ("tgc_barrier_wait(full + slot, parity);", ""),
    "no wait for rows": ("tgc_barrier_wait(full_rows, parity_rows);", ""),
    "no wait for sums": ("@writers@", "1"),
    "scores are read early": ("tgc_wgmma_wait<1>();\n      if (lane == 0", "if (lane == 0"),
    "a slot is given back early": (
        "empty + before);\n      @scores@", "empty + slot);\n      @scores@",
    ),
    "no wait for the last products": ("    tgc_wgmma_wait<0>();\n    if (lane", "    if (lane"),
    "not the first columns": (
        "column_first = first_column;", "column_first = first_column + @columns@;",
    ),
}  # fmt: skip


def gradients_with(monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], order: int) -> bool:
    """The same of the gradients."""
    problem = Problem((3,), (257, 257, 64, 64), causal=True)
    q, k, v, g = problem.arrays
    out, logsumexp, *want = problem.expected()
    delta = (g.astype(np.float64) * out).sum(-1)
    with changed(monkeypatch, tma.GRADIENTS, change, order) as batch:
        sums = [np.asarray(x, np.float32) for x in (logsumexp, delta)]
        nodes = list(map(batch.input, (g, q, k, v, *sums)))
        back = attention_backward(*nodes, no_mask(nodes[1]), **problem.how)
        batch.want("back", [output(back, index=index) for index in range(3)])
        return agrees(batch, want)


@pytest.mark.parametrize("order", range(5))
def test_gradients_are_right_whenever_copies_take_effect(
    order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gradients_with(monkeypatch, ("", ""), order)


@pytest.mark.parametrize("name", GRADIENT_FAULTS)
def test_each_planted_fault_of_gradients_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not all(gradients_with(monkeypatch, GRADIENT_FAULTS[name], k) for k in range(5))


@pytest.mark.parametrize("order", range(5))
def test_right_whenever_copies_take_effect(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads, copies and products in any order that the barriers allow."""
    assert forward_with(monkeypatch, ("", ""), order)


@pytest.mark.parametrize("name", FAULTS)
def test_each_planted_fault_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not all(forward_with(monkeypatch, FAULTS[name], order) for order in range(5))


def heads_last(node: Node) -> Node:
    """(B, H, T, D) as (B, T, H * D)."""
    turned = mv.permute(node, axes=(0, 2, 1, 3))
    return mv.reshape(turned, shape=(*turned.shape[:2], prod(turned.shape[2:])))


def beside(nodes: list[Node], axis: int) -> Node:
    """The values joined along an axis, as `cat` and the gradient of `split` do it."""
    sizes = [node.shape[axis] for node in nodes]
    starts = [sum(sizes[:k]) for k in range(len(nodes))]
    shape = list(nodes[0].shape)
    shape[axis] = sum(sizes)

    def at(start: int) -> tuple[int, ...]:
        return tuple(start if k == axis % len(shape) else 0 for k in range(len(shape)))

    parts = [
        mv.pad(node, starts=at(start), shape=tuple(shape), steps=(1,) * len(shape), value=0)
        for node, start in zip(nodes, starts, strict=True)
    ]
    return reduce(ew.add, parts)


JOINS: dict[str, Any] = {
    "in a row": lambda dq, dk, dv: [beside([heads_last(x) for x in (dq, dk, dv)], -1)],
    "stacked": lambda *gs: [
        mv.permute(
            beside([mv.reshape(x, shape=(1, *x.shape)) for x in gs], 0), axes=(1, 3, 0, 2, 4)
        )
    ],
    "keys and values": lambda dq, dk, dv: [
        ew.neg(heads_last(dq)), beside([heads_last(dk), heads_last(dv)], -1),
    ],
    "one apart": lambda dq, dk, dv: [dv, beside([heads_last(dq), heads_last(dk)], -1)],
    "heads in another order": lambda *gs: [ew.neg(mv.permute(x, axes=(1, 2, 0, 3))) for x in gs],
    "widths first": lambda *gs: [ew.neg(mv.permute(x, axes=(0, 1, 3, 2))) for x in gs],
}  # fmt: skip
# What the kernel of the gradients stores, with B 2, H 3, T 70 and heads of 64.
STORED: dict[str, list[tuple[int, ...]]] = {
    "in a row": [(2, 70, 576)],
    "stacked": [(2, 70, 3, 3, 64)],
    "keys and values": [(2, 70, 3, 64), (2, 70, 384)],
    "one apart": [(2, 70, 384), (2, 3, 70, 64)],
    "heads in another order": [(3, 70, 2, 64)] * 3,
    "widths first": [(2, 3, 70, 64)] * 3,
}


@pytest.mark.parametrize("width", [32, 64], ids=["mma", "wgmma"])
@pytest.mark.parametrize("join", JOINS)
def test_results_lie_as_their_readers_see_them(batch: Batch, join: str, width: int) -> None:
    """Heads beside each other, and gradients in one buffer: same bits as joined afterwards."""
    problem = Problem((2, 3), (70, 70, width, width), causal=True)
    q, k, v, g = map(batch.input, problem.arrays)
    mask = no_mask(q)
    out, logsumexp = (output(attention(q, k, v, mask, **problem.how), index=i) for i in range(2))
    delta = row_sum(ew.mul(*(ew.cast(x, dtype=float32) for x in (g, out))))
    back = attention_backward(g, q, k, v, logsumexp, delta, mask, **problem.how)
    gs = [output(back, index=i) for i in range(3)]
    joined = [heads_last(out), *JOINS[join](*gs)]
    batch.want("placed", joined)
    if width == 64:
        made = lower.scheduled(batch.program(), Target.h200())
        stored = {k.anchors[0].op: k.stores for k in made.kernels if k.kind == "attention"}
        assert sorted(x.shape for x in stored[attention_backward]) == sorted(STORED[join])
        assert stored[attention][0].shape == (2, 70, 3, 64)
    batch.want("plain", [out, logsumexp, *gs])
    found = batch.run()
    problem.compare(found["plain"], f"{join} {width}")
    alone = Batch(batch.device)
    alone.inputs, alone.arrays = batch.inputs, batch.arrays
    alone.want("placed", joined)
    for one, other in zip(alone.run()["placed"], found["placed"], strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("axis", [0, 1])
def test_a_sum_that_covers_an_element_twice_is_no_join(batch: Batch, axis: int) -> None:
    """Gradients of overlapping slices are added where they meet; so is one that leaves a gap."""
    problem = Problem((2, 2), (33, 33, 32, 32))
    q, k, v, g = map(batch.input, problem.arrays)
    out, logsumexp = (
        output(attention(q, k, v, no_mask(q), **problem.how), index=i) for i in range(2)
    )
    delta = row_sum(ew.mul(*(ew.cast(x, dtype=float32) for x in (g, out))))
    back = attention_backward(g, q, k, v, logsumexp, delta, no_mask(q), **problem.how)
    gs = [output(back, index=i) for i in range(3)]
    shape = tuple(2 * n if k == axis else n for k, n in enumerate(gs[0].shape))
    pads = [
        mv.pad(x, starts=tuple(i * (k == axis) for k in range(4)), shape=shape, steps=(1,) * 4,
               value=0)
        for i, x in enumerate(gs)
    ]  # fmt: skip
    batch.want("one", [reduce(ew.add, pads)])
    (found,) = batch.run()["one"]
    want = np.zeros(shape)
    for i, x in enumerate(problem.expected()[2:]):
        rows = [slice(i, i + 2) if k == axis else slice(None) for k in range(4)]
        want[tuple(rows)] += x
    assert np.abs(found.astype(np.float64) - want).max() <= 2**-6 * np.abs(want).max()


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
        if target.architecture < (8, 0):
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


@pytest.mark.parametrize("width", [64, 128, 256])
def test_the_kernels_by_tma_compile_without_spills(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setattr(tiles, "PAIRED", INT_MAX)
    made = lowered(Problem((200,), (600, 600, width, width), causal=True), target_of("sm_90"))
    own = [launch for launch in made.launches if "tgc_tma_load" in launch.text]
    assert len(own) == (1 if width == 256 else 3)
    log = compile_source(made.source, "sm_90a", REPORT).log
    assert "serialized" not in log, log
    assert not any(resources(log)[launch.name].spill_stores for launch in own), log


@pytest.mark.parametrize("width", [32, 64, 128])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_kernels_that_draw_numbers_do_not_spill(arch: str, width: int) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    batch, shape = Batch(tc.device("emu")), (200, 300, width)
    q, k, v, g = (batch.input(np.zeros(shape, bfloat16.numpy)) for _ in range(4))
    drawn = random_uniform.leaf((*shape[:2], shape[1]), float32, batch.device, seed=1, number=2)
    keep_mask = ew.lt(drawn, full_like(drawn, 0.7))
    how = {"causal": True, "scale": 0.1, "dropout": 0.3}
    rows = [batch.input(np.zeros(shape[:2], np.float32)) for _ in range(2)]
    nodes = (
        attention(q, k, v, no_mask(q), keep_mask, **how),
        attention_backward(g, q, k, v, *rows, no_mask(q), keep_mask, **how),
    )
    batch.want("one", [output(x, index=i) for x in nodes for i in range(len(x.outputs))])
    made = lower.lower(batch.program(), target_of(arch))
    log = compile_source(made.source, architecture_of(made.source, arch), REPORT).log
    own = [one for one in made.launches if one.stages[0].kernel.kind == "attention"]
    assert "tgc_random_uniform" in own[0].text and "serialized" not in log
    assert not any(resources(log)[launch.name].spill_stores for launch in own), log


def test_a_machine_without_matrix_units_has_the_composition() -> None:
    older = replace(Target.h200(), architecture=(7, 5))
    kinds = {kernel.kind for kernel in lowered(WIDE, older).schedule.kernels}
    assert "attention" not in kinds
    assert "contract" in kinds
