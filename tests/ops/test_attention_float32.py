"""Attention's kernels of float32, by one or three products of tf32, beside NumPy in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from execution import Batch, device_or_skip
from test_attention import NAMES, Problem, batch, lowered, seen, target_of

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda.compiler import REPORT, architecture_of, compile_source, resources
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.dtypes import float32
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops.attention import attention, attention_backward, no_mask, row_sum
from tinygrad_cuda.graph.ops.common import output
from tinygrad_cuda.lowering.skeletons.attention import tiles
from tinygrad_cuda.lowering.target import Target

__all__ = ["batch"]  # the fixture

Array = np.ndarray[Any, Any]
H200 = Target.h200()
BOUNDS = {"high": 2.0**-8, "tf32x3": 2.0**-20, "ieee": 2.0**-19}  # of the largest result
UNITS = {"high": tiles.TF32, "tf32x3": tiles.TF32X3, "ieee": tiles.SIMT}


@pytest.fixture(params=BOUNDS)
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """That of products; the plans of these tests are no user's."""
    with settings.override(matmul_precision=request.param):
        yield request.param


def problem(*args: Any, **how: Any) -> Problem:
    return Problem(*args, dtype=float32, **how)


def errors(one: Problem, found: list[Array], square: bool = False) -> dict[str, float]:
    """Of each result, the largest over its largest element, or the roots of mean squares."""
    result = {}
    for name, got, want in zip(NAMES, found, one.expected(), strict=True):
        finite = np.isfinite(want)
        np.testing.assert_array_equal(got[~finite], want[~finite], name)
        away, size = got[finite] - want[finite], want[finite]
        if square:
            result[name] = float(np.sqrt((away**2).mean() / (size**2).mean()))
        else:
            # A gradient of 0 is the difference of a product of tf32 and a float32 sum.
            result[name] = np.abs(away).max(initial=0) / max(np.abs(size).max(initial=0), 1)
    return result


def check(batch: Batch, problems: dict[str, Problem], precision: str) -> None:
    """All of them in one program, whose attention has kernels of its own."""
    for name, one in problems.items():
        one.record(batch, name)
    found = batch.run()
    for name, one in problems.items():
        for result, error in errors(one, found[name]).items():
            assert error <= one.loose * BOUNDS[precision], f"{name}, {result}: {error}"


def test_lengths_and_the_causal_border(batch: Batch, precision: str) -> None:
    """One token, one less and more than a tile, a prime, more keys than queries and fewer."""
    lengths = ((1, 1), (65, 63), (1, 67), (67, 1), (37, 131), (131, 37))
    check(batch, {
        f"{length} {causal}": problem(
            (2,), (*length, 32, 32), causal=causal, loose=4 if length[1] == 1 else 1
        )
        for length in lengths
        for causal in (False, True)
    }, precision)  # fmt: skip


def test_widths_of_heads(batch: Batch, precision: str) -> None:
    widths = ((48, 48), (64, 64), (112, 48), (32, 128), (176, 176))
    problems = {f"{e} {v}": problem((1, 2), (25, 35, e, v), causal=True) for e, v in widths}
    check(batch, problems, precision)


def test_masks(batch: Batch, precision: str) -> None:
    """Of rows, keys, heads; added ones; rows that see nothing; beside the causal border."""
    rng = np.random.default_rng(2)
    masks = {
        "whole": seen(2, 2, 25, 35, hidden=(0, 21)),
        "heads": seen(1, 2, 25, 1),
        "keys": seen(2, 1, 1, 35),
        "added": rng.standard_normal((2, 1, 25, 35)).astype(np.float32),
        "hiding": np.where(seen(1, 2, 25, 35, hidden=(3, 24)), 0, -np.inf).astype(np.float32),
    }
    check(batch, {
        f"{name} {causal}": problem((2, 2), (25, 35, 32, 48), causal=causal, mask=mask)
        for name, mask in masks.items()
        for causal in (False, True)
    }, precision)  # fmt: skip


def test_large_scores_and_scales(batch: Batch, precision: str) -> None:
    """Scores of some 100 are off by as many last places; hidden ones stay hidden at any scale."""
    problems = {
        f"{scale}": problem((2,), (25, 35, 32, 48), causal=True, scale=scale)
        for scale in (0.5, 0.0, -0.3, 1e-9)
    }
    problems["large"] = problem((1, 1), (64, 128, 32, 32), size=4.0, loose=20)
    check(batch, problems, precision)


@pytest.mark.parametrize(
    "tile",
    [tile for tile in tiles.FLOAT_TILES if (tile.stages == 3) == (tile.columns == 32)],
    ids=str,
)
def test_every_tile(
    batch: Batch, tile: tiles.AttentionTile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With loops longer than the ring."""
    rows, columns = tile.rows // 2 + 5, tile.columns * (tile.stages + 1) + 3
    module = "tinygrad_cuda.lowering.skeletons.attention.attention.tile_of"
    monkeypatch.setattr(module, lambda part, target: tile)
    (precision,) = (name for name, unit in UNITS.items() if unit == tile.unit)
    with settings.override(matmul_precision=precision):
        check(batch, {
            "rows": problem((1,), (rows, columns, 32, 32), causal=True),
            "columns": problem((1,), (columns, rows, 32, 48)),
        }, precision)  # fmt: skip


def test_operands_that_are_views_or_computed(batch: Batch, precision: str) -> None:
    """Heads behind tokens in memory are copied as they lie; what is computed is loaded."""
    apart = problem((2, 3), (35, 35, 32, 48), causal=True, apart=True)
    apart.record(batch, "apart")
    computed = problem((2,), (40, 40, 32, 32))
    q, k, v = map(batch.input, computed.arrays[:3])
    doubled = [ew.add(x, x) for x in (q, k)]
    node = attention(*doubled, v, no_mask(q), causal=False, scale=computed.how["scale"] / 4)
    batch.want("computed", [output(node, index=0)])
    found = batch.run()
    assert max(errors(apart, found["apart"]).values()) <= BOUNDS[precision]
    want = computed.expected()[0]
    error = np.abs(found["computed"][0] - want).max() / np.abs(want).max()
    assert error <= BOUNDS[precision]


def test_dropped_weights(batch: Batch, precision: str) -> None:
    """The backward kernels take the same ones as the forward kernel."""
    one, how = problem((2,), (37, 45, 32, 48)), {"causal": True, "scale": 0.2, "dropout": 0.3}
    keep_mask = np.random.default_rng(5).random((2, 37, 45)) < 0.7
    q, k, v, g = map(batch.input, one.arrays)
    masks = no_mask(q), batch.input(keep_mask)
    both = attention(q, k, v, *masks, **how)
    out, logsumexp = (output(both, index=index) for index in range(2))
    delta = row_sum(ew.mul(g, out))
    back = attention_backward(g, q, k, v, logsumexp, delta, *masks, **how)
    batch.want("one", [out, logsumexp, *(output(back, index=index) for index in range(3))])
    q, k, v, g = (array.astype(np.float64) for array in one.arrays)
    arrays = q, k, v, np.ones((1, 1, 1), bool), keep_mask
    value, sums = attention.numpy(*arrays, **how)
    rows = sums, (g * value).sum(-1)
    want = value, sums, *attention_backward.numpy(g, q, k, v, *rows, *arrays[3:], **how)
    for name, got, exact in zip(NAMES, batch.run()["one"], want, strict=True):
        error = np.abs(got - exact).max() / max(np.abs(exact).max(), 1)
        assert error <= 2 * BOUNDS[precision], f"{name}: {error}"


def test_results_do_not_depend_on_the_order_of_threads(
    precision: str, request: pytest.FixtureRequest
) -> None:
    batch = Batch(device_or_skip("emu", request))
    problem((2,), (70, 150, 32, 48), causal=True).record(batch, "one")
    run = batch.runner(registry.get(batch.device).compile(batch.program()))
    first = run(batch.arrays)["one"]
    for order in (1, 2, 3):
        with settings.override(emu_order=order):
            again = run(batch.arrays)["one"]
        for one, other in zip(first, again, strict=True):
            assert one.tobytes() == other.tobytes(), f"order {order}"


# Large and infinite operands ----------------------------------------------------------------------

LARGEST = float(np.finfo(np.float32).max)
LARGE = (3.4028e38, -3.4028e38, 3.4e38, LARGEST, -LARGEST)
TINY = 2.0**-126  # which times one of those is a usual score


def with_columns(queries: int, keys: int, **columns: float) -> Problem:
    """A problem in which a column of q, k, v or g is one number; in a capital's first row alone."""
    one = problem((1,), (queries, keys, 32, 32))
    for name, value in columns.items():
        array = one.arrays["qkvg".index(name.lower())]
        array[0, : 1 if name.isupper() else None, 3] = value
    return one


def test_numbers_close_to_the_largest(batch: Batch, precision: str) -> None:
    """Which the first part of a split number cannot round up: of each operand, forward and back.

    The factors beside them leave the exact results finite.
    """
    problems = {}
    for value in LARGE:
        alone = with_columns(5, 1, v=value, g=0)
        alone.arrays[0][...] = 0  # so that the weight of the one key is 1 in float32, too
        problems[f"v {value}"] = alone
        problems[f"g {value}"] = with_columns(1, 3, g=value, v=0)
        problems[f"q {value}"] = with_columns(1, 3, q=value, k=TINY)
        problems[f"k {value}"] = beside = with_columns(5, 3, K=value, q=TINY)
        beside.arrays[3] /= 16  # so that a gradient's product with the key is finite
    check(batch, problems, precision)


def test_infinite_operands(batch: Batch, precision: str) -> None:
    """Infinities and finite neighbours are those of a float32 sum; a score of -inf hides its key.

    Gradients of scores are left out: there they are differences of infinities.
    """
    problems = {"out, hidden": with_columns(5, 3, q=1.5, K=-np.inf)}
    for value in (np.inf, -np.inf, np.nan):
        problems[f"out, {value}"] = with_columns(5, 3, V=value)
        problems[f"dv, {value}"] = with_columns(5, 3, G=value)
    for name, one in problems.items():
        one.record(batch, name)
    found = batch.run()
    for name, one in problems.items():
        result = NAMES.index(name.split(",")[0])
        with np.errstate(invalid="ignore"):
            got, want = found[name][result], one.expected()[result]
        finite = np.isfinite(want)
        np.testing.assert_array_equal(got[~finite], want[~finite], name)
        error = np.abs(got[finite] - want[finite]).max() / np.abs(want[finite]).max()
        assert error <= BOUNDS[precision], f"{name}: {error}"


# Precision ----------------------------------------------------------------------------------------


def test_split_products_err_no_more_than_float32s(batch: Batch) -> None:
    """Beside the composition of float32 products, against float64: roots of mean squares.

    There are so many heads that no product's sum is divided among blocks, which then errs less.
    """
    found = {}
    for precision in ("ieee", "tf32x3"):
        with settings.override(matmul_precision=precision):
            batch, one = Batch(batch.device), problem((34,), (128, 128, 32, 32))
            one.record(batch, "one")
            found[precision] = errors(one, batch.run()["one"], square=True)
    # A logarithm is rounded once itself: its own half of a last place decides.
    slack = {"logsumexp": 1.1}
    for result, error in found["tf32x3"].items():
        assert error <= slack.get(result, 1) * found["ieee"][result], f"{result}: {found}"


# Text ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [64, 112, 128])
def test_kernels_compile_without_spills(
    width: int, precision: str, architectures: list[str]
) -> None:
    """On each architecture with matrix units, with the shared memory that it has."""
    pytest.importorskip("cuda.bindings.nvrtc")
    one = problem((200,), (300, 300, width, width), causal=True)
    for arch in architectures:
        target = target_of(arch)
        if target.architecture < (8, 0):
            continue
        made = lowered(one, target)
        own = [x for x in made.launches if x.stages[0].kernel.kind == "attention"]
        # The gradients' rows of wide heads take more than 99 KiB, or than 163.
        too_wide = width > (112 if target.block_shared > 100 << 10 else 64)
        assert 3 <= len(own) <= 4 or (too_wide and target.block_shared < 200 << 10)
        assert all(launch.shared <= target.block_shared for launch in own)
        used = resources(
            compile_source(made.source, architecture_of(made.source, arch), REPORT).log
        )
        spills = {launch.name: used[launch.name].spill_stores for launch in own}
        assert not any(spills.values()), f"{arch}: {spills}"


REFUSED = {
    "has no asynchronous copies": ("high", replace(H200, architecture=(7, 5)), 64),
    "no multiples of 16 up to 256": ("high", H200, 24),
    "no tile of queries fits in 101376 bytes": ("high", target_of("sm_89"), 96),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_has_no_kernels_is_composed_and_says_why(reason: str) -> None:
    precision, target, width = REFUSED[reason]
    with settings.override(matmul_precision=precision):
        made = lowered(problem((2,), (40, 40, width, width)), target)
    assert any(reason in note for note in made.schedule.notes), made.schedule.notes
    kinds = [kernel.kind for kernel in made.schedule.kernels]
    assert kinds.count("attention") == ("queries" in reason)  # whose forward pass fits
    assert "contract" in kinds
