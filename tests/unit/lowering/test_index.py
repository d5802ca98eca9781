"""Index expressions: simplification never changes a value, and common cases lose all div and mod.
The oracle is NumPy's own views of np.arange(n).reshape(...)."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.index import Condition, Index

Conditions = list[Condition | bool]


def coordinates(shape: Sequence[int]) -> list[Index]:
    return [ix.variable(f"i{axis}", extent) for axis, extent in enumerate(shape)]


def grids(shape: Sequence[int]) -> dict[str, Any]:
    return {f"i{axis}": grid for axis, grid in enumerate(np.indices(shape))}


def is_affine(index: Index) -> bool:
    return not re.search(r"[/%]", index.expanded().key)


# ---- random chains of movement ops -------------------------------------------------------------


def draw_factors(draw: Any, size: int) -> tuple[int, ...]:
    """A random shape of `size` elements."""
    shape: list[int] = []
    while size > 1 and len(shape) < 4:
        factor = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
        shape.append(factor)
        size //= factor
    return (*shape, size) if size > 1 or not shape else tuple(shape)


def draw_step(draw: Any, view: np.ndarray) -> tuple[str, Any]:
    """A movement op that fits the shape of `view`."""
    shape, rank = view.shape, view.ndim
    kinds = ["reshape", "permute", "flip", "slice", "expand", "pad", "window"]
    kind = draw(st.sampled_from(kinds if rank and view.size < 400 else ["reshape"]))
    axis = draw(st.integers(0, max(rank - 1, 0)))
    if kind == "reshape":
        return kind, draw_factors(draw, view.size)
    if kind == "permute":
        return kind, tuple(draw(st.permutations(range(rank))))
    if kind == "slice":
        start = draw(st.integers(0, shape[axis] - 1))
        step = draw(st.integers(1, 3))
        return kind, (axis, start, draw(st.integers(start + 1, shape[axis])), step)
    if kind == "expand":
        return kind, (draw(st.integers(0, rank)), draw(st.integers(1, 4)))
    if kind == "pad":
        return kind, (axis, draw(st.integers(0, 2)), draw(st.integers(0, 2)))
    if kind == "window":
        return kind, (axis, draw(st.integers(1, shape[axis])))
    return kind, (axis,)


def apply(view: np.ndarray, kind: str, how: Any) -> np.ndarray:
    """The NumPy view (or copy) that the op means; padding is -1."""
    if kind == "reshape":
        return view.reshape(how)
    if kind == "permute":
        return view.transpose(how)
    if kind == "flip":
        return np.flip(view, how[0])
    if kind == "slice":
        axis, start, stop, step = how
        picked: np.ndarray = view[(slice(None),) * axis + (slice(start, stop, step),)]
        return picked
    if kind == "expand":
        axis, extent = how
        new = np.expand_dims(view, axis)
        return np.broadcast_to(new, (*view.shape[:axis], extent, *view.shape[axis:]))
    if kind == "pad":
        axis, before, after = how
        widths = [(before, after) if a == axis else (0, 0) for a in range(view.ndim)]
        return np.pad(view, widths, constant_values=-1)
    axis, length = how
    return sliding_window_view(view, length, axis)


def pull(
    at: list[Index], shape: tuple[int, ...], kind: str, how: Any, out: tuple[int, ...]
) -> tuple[list[Index], Conditions]:
    """Coordinates in the op's source (of `shape`) for coordinates `at` in its result (of `out`)."""
    at = list(at)
    if kind == "reshape":
        return list(ix.unflatten(ix.flatten(at, out), shape)), []
    if kind == "permute":
        return [at[how.index(axis)] for axis in range(len(shape))], []
    axis = how[0]
    if kind == "flip":
        at[axis] = shape[axis] - 1 - at[axis]
    elif kind == "slice":
        at[axis] = at[axis] * how[3] + how[1]
    elif kind == "expand":
        del at[axis]
    elif kind == "window":
        at[axis] = at[axis] + at.pop()
    else:
        moved = at[axis] - how[1]
        guards: Conditions = [ix.nonnegative(moved), ix.below(moved, shape[axis])]
        at[axis] = (
            moved.within(0, shape[axis] - 1) if all(g is not False for g in guards) else moved
        )
        return at, guards
    return at, []


@st.composite
def chains(draw: Any) -> tuple[tuple[int, ...], list[tuple[str, Any]]]:
    shape = draw_factors(draw, draw(st.sampled_from([1, 6, 7, 12, 24, 30, 36, 48, 60])))
    view = np.empty(shape)
    steps = []
    for _ in range(draw(st.integers(1, 6))):
        step = draw_step(draw, view)
        steps.append(step)
        view = apply(view, *step)
    return shape, steps


def through(
    shape: tuple[int, ...], steps: list[tuple[str, Any]]
) -> tuple[np.ndarray, Index, Conditions]:
    """(NumPy's answer, our position in the source, guards) for a chain of movement ops."""
    views = [np.arange(int(np.prod(shape))).reshape(shape)]
    for step in steps:
        views.append(apply(views[-1], *step))
    at, guards = coordinates(views[-1].shape), Conditions()
    for source, result, (kind, how) in zip(
        views[-2::-1], views[:0:-1], reversed(steps), strict=True
    ):
        at, more = pull(at, source.shape, kind, how, result.shape)
        guards += more
    return views[-1], ix.flatten(at, shape), guards


@settings(max_examples=600, deadline=None, derandomize=True)
@given(chains())
def test_chains_of_movement_ops_agree_with_numpy(chain: Any) -> None:
    want, position, guards = through(*chain)
    values = grids(want.shape)
    inside = np.ones(want.shape, bool)
    kept = ix.all_of(guards)
    for guard in kept if isinstance(kept, tuple) else [kept]:
        inside &= guard if isinstance(guard, bool) else guard.evaluate(values)
    np.testing.assert_array_equal(inside, want >= 0)
    for index in (position, position.expanded()):
        got = np.broadcast_to(index.evaluate(values), want.shape)
        np.testing.assert_array_equal(got[inside], want[inside])
        if inside.any():
            assert position.low <= got[inside].min()
            assert got[inside].max() <= position.high


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_arithmetic_never_changes_a_value(data: Any) -> None:
    leaves = [
        (ix.variable("a", 6), np.arange(6)),
        (ix.variable("b", 4), np.arange(4)),
        (ix.symbol("s", 1, 5), np.arange(1, 6)),
        (ix.opaque("t[i]", -3, 2), np.arange(-3, 3)),
    ]
    names = ["a", "b", "s", "t[i]"]
    arrays = np.meshgrid(*[values for _, values in leaves], indexing="ij")
    pool = [(leaf, array) for (leaf, _), array in zip(leaves, arrays, strict=True)]
    for _ in range(data.draw(st.integers(1, 12))):
        x, want_x = data.draw(st.sampled_from(pool))
        y, want_y = data.draw(st.sampled_from(pool))
        n = data.draw(st.integers(-4, 12))
        kind = data.draw(st.sampled_from("+-*/%cr"))
        if kind == "/" or kind == "%":
            n = abs(n) + 1
        pool.append(combine(kind, n, (x, want_x), (y, want_y)))
    values = dict(zip(names, arrays, strict=True))
    for index, want in pool:
        np.testing.assert_array_equal(np.broadcast_to(index.evaluate(values), want.shape), want)
        assert index.low <= want.min()
        assert want.max() <= index.high
        for condition, truth in (
            (ix.nonnegative(index), want >= 0),
            (ix.below(index, 3), want < 3),
        ):
            got = condition if isinstance(condition, bool) else condition.evaluate(values)
            np.testing.assert_array_equal(np.broadcast_to(got, want.shape), truth)
        assert_operands_never_negative(index)


def combine(kind: str, n: int, x: tuple[Any, Any], y: tuple[Any, Any]) -> tuple[Any, Any]:
    """The same operation on both halves of (index, array)."""
    operations: dict[str, Callable[[Any, Any], Any]] = {
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "*": lambda a, b: a * n,
        "/": lambda a, b: a // n,
        "%": lambda a, b: a % n,
        "c": lambda a, b: a + n,
        "r": lambda a, b: n - a,
    }
    return operations[kind](x[0], y[0]), operations[kind](x[1], y[1])


def assert_operands_never_negative(index: Index) -> None:
    for _, term in index.terms:
        if isinstance(term, (ix.FloorDiv, ix.Mod)):
            assert 0 <= term.operand.low < term.divisor
            assert_operands_never_negative(term.operand)


# ---- rules -------------------------------------------------------------------------------------

A, B, C = ix.variable("a", 6), ix.variable("b", 4), ix.variable("c", 100)


@pytest.mark.parametrize(
    ("built", "wanted"),
    [
        ((A * 4 + B) // 4, A),
        ((A * 4 + B) % 4, B),
        ((C * 8 + A * 4 + B) // 4, C * 2 + A),
        ((A * 4 + B) // 8, A // 2),
        ((A * 4 + B) % 8, A % 2 * 4 + B),
        (C // 3 // 5, C // 15),
        (C % 12 % 4, C % 4),
        (C % 12 // 4, C // 4 % 3),
        ((C % 12 + A) % 4, (C + A) % 4),
        (C // 7 * 7 + C % 7, C),
        (C // 7 * -14 - C % 7 * 2 + A, A - C * 2),
        (C // 4 % 5 + C // 20 * 5, C // 4),
        ((C + 10) // 10, C // 10 + 1),
        ((99 - C) // 10, 9 - C // 10),
        ((99 - C) % 10, 9 - C % 10),
        (B // 4, ix.constant(0)),
        (B % 4, B),
        ((A * 14 + B) % 7, B),
        (A - A, ix.constant(0)),
        (A + B, B + A),
        (A * 0 + 3, ix.constant(3)),
    ],
)
def test_rules(built: Index, wanted: Index) -> None:
    assert built == wanted
    assert hash(built) == hash(wanted)


def test_division_by_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="divisor must be at least 1"):
        A // 0


def test_reshape_roundtrip_is_the_identity() -> None:
    at = coordinates((2, 3, 4, 5))
    for middle in [(120,), (6, 20), (2, 60), (24, 5), (4, 30), (8, 15), (5, 4, 3, 2), (10, 12)]:
        there = ix.unflatten(ix.flatten(at, (2, 3, 4, 5)), middle)
        assert list(ix.unflatten(ix.flatten(there, middle), (2, 3, 4, 5))) == at


def test_transpose_of_merged_axes_has_no_division() -> None:
    # x: (8, 5, 7) seen as (40, 7), transposed to (7, 40), split into (7, 8, 5)
    i, j, k = coordinates((7, 8, 5))
    merged = ix.flatten([j, k], (8, 5))
    assert ix.flatten(ix.unflatten(merged, (8, 5)) + (i,), (8, 5, 7)) == j * 35 + k * 7 + i


def test_nchw_flatten_has_no_division() -> None:
    # x: (N, C, H, W) seen as (N, C*H*W) and back, through a pad of the image
    n, c, y, x = coordinates((2, 3, 10, 10))
    up, left = (y - 1).within(0, 7), (x - 1).within(0, 7)
    flat = ix.unflatten(ix.flatten([n, c, up, left], (2, 3, 8, 8)), (2, 192))
    assert flat[0] == n
    position = ix.flatten(flat, (2, 192)).expanded()
    assert position == n * 192 + c * 64 + y * 8 + x - 9


def test_im2col_of_a_padded_image_has_guards_only() -> None:
    # columns (N*OH*OW, C*KH*KW) of a 3x3 convolution with padding 1 over (N, C, 8, 8)
    n, oy, ox, c, ky, kx = coordinates((2, 8, 8, 3, 3, 3))
    row, column = ix.flatten([n, oy, ox], (2, 8, 8)), ix.flatten([c, ky, kx], (3, 3, 3))
    n, oy, ox = ix.unflatten(row, (2, 8, 8))
    c, ky, kx = ix.unflatten(column, (3, 3, 3))
    y, x = oy + ky - 1, ox + kx - 1
    guards = ix.all_of(
        [ix.nonnegative(y), ix.below(y, 8), ix.nonnegative(x), ix.below(x, 8), ix.below(c, 3)]
    )
    assert isinstance(guards, tuple)
    assert len(guards) == 4
    assert [g.render(False) for g in guards][:2] == ["i1 + i4 >= 1", "i1 + i4 < 9"]
    position = ix.flatten([n, c, y.within(0, 7), x.within(0, 7)], (2, 3, 8, 8))
    assert is_affine(position)
    assert ix.render(position, False) == "i0 * 192 + i3 * 64 + i1 * 8 + i4 * 8 + i2 + i5 - 9"


def test_slice_at_a_runtime_start_stays_affine_and_in_range() -> None:
    start = ix.symbol("s0", 0, 90)
    i, j = coordinates((10, 4))
    rows = ix.unflatten(ix.flatten([i + start, j], (100, 4)), (100, 2, 2))
    assert rows[0] == i + start
    assert (rows[1], rows[2]) == (j // 2, j % 2)
    assert ix.below(i + start, 100) is True
    assert ix.nonnegative(i + start) is True


# ---- conditions --------------------------------------------------------------------------------


def test_conditions_fold_by_range() -> None:
    assert ix.nonnegative(A) is True
    assert ix.below(A, 6) is True
    assert ix.below(A + 6, 6) is False
    assert ix.nonnegative(A - 6) is False
    assert isinstance(ix.below(A, 5), Condition)


def test_conditions_of_divisions_lose_the_division() -> None:
    assert ix.below(C // 4, 5) == ix.below(C, 20)
    assert ix.nonnegative(C // 4 - 3) == ix.nonnegative(C - 12)
    assert ix.below(C * 8 + 3, 20) == ix.below(C, 3)


def test_all_of_keeps_the_stronger_condition() -> None:
    kept = ix.all_of([ix.below(C, 50), ix.below(C, 40), True, ix.below(C, 60)])
    assert kept == (ix.below(C, 40),)
    assert ix.all_of([True, ix.below(A, 6)]) is True
    assert ix.all_of([ix.below(C, 50), ix.below(A + 6, 6)]) is False


# ---- vectors and axes --------------------------------------------------------------------------


def test_multiples_of_four_plus_lane() -> None:
    block, lane = ix.variable("block", 300), ix.variable("lane", 4)
    source = ix.flatten(ix.unflatten(block * 4 + lane, (10, 120)), (10, 120)) + 240
    split = ix.split_lane(source, lane)
    assert split is not None
    assert split[0] == 1
    assert ix.divisible(split[1], 4)
    assert not ix.divisible(split[1] + 2, 4)
    transposed = block + lane * 300
    assert ix.split_lane(transposed, lane) == (300, block)
    assert ix.split_lane((block * 3 + lane) // 4, lane) is None
    assert ix.split_lane((block * 8 + lane) // 4, lane) == (0, block * 2)


def test_leaves() -> None:
    c = ix.IndexVariable("c", 100)
    assert C.leaves == {c}
    assert (C // 7 + A).leaves == {c, ix.IndexVariable("a", 6)}


# ---- C text ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (A * 4 + B + 7, "a * 4 + b + 7"),
        (9 - A, "9 - a"),
        (-A, "-a"),
        ((C + A) // 4 * 3 - B, "(a + c) / 4 * 3 - b"),
        (C // 10 % 3, "c / 10 % 3"),
        (C * 3 // 10, "c * 3 / 10"),
        (A - 3, "a - 3"),
        (ix.constant(-5), "-5"),
        (ix.constant(0), "0"),
        (ix.opaque("in0[k] + 1", 0, 50) * 3, "(in0[k] + 1) * 3"),
        (-A - B - 1, "-a - b - 1"),
    ],
)
def test_render(index: Index, text: str) -> None:
    assert ix.render(index, False) == text


def test_wide_text_is_long_long_and_narrow_text_is_refused_when_it_overflows() -> None:
    big = ix.variable("i", 2**20) * 2**12 + ix.variable("j", 2**12)
    assert ix.render(big, True) == "i * 4096LL + j"
    assert ix.render(A + B, True) == "(long long)a + b"
    assert not ix.fits_int(big)
    assert not ix.fits_int(big // 2**12 * 1 + ix.variable("k", 2**31) * 2 // 7)
    with pytest.raises(OverflowError, match="needs 64 bits"):
        ix.render(big, False)
    assert ix.fits_int(A * 4 + B)


def test_compiled_text_gives_the_same_numbers(tmp_path: Any) -> None:
    a, b = ix.variable("a", 12), ix.variable("b", 10)
    t = ix.opaque("t", -7, 5)
    samples = [
        (a * 7 + b - 9) // 4 * 3 + b,
        (t * 3 - b) % 5 - (t - 4) // 3 * 2,
        (19 - a - b) // 6,
        ((b - 3).within(0, 4) * 3 + a) // 4,
        (a * 10 + b) % 16 // 3 * -5,
        (a - 40) % 9 * 4 - 2 * ((a + t) % 9) + a // 5,
    ]
    lines = [
        f'v = {ix.render(s, wide)}; __builtin_printf("%lld\\n", v);'
        for s in samples
        for wide in (False, True)
    ]
    body = "\n".join(lines)
    source = tmp_path / "index.cpp"
    source.write_text(
        "int main() { long long v; for (int a = 0; a < 12; a++) for (int b = 3; b < 8; b++)"
        f" for (int t = -7; t <= 5; t++) {{ {body} }} }}"
    )
    binary = tmp_path / "index"
    subprocess.run(["g++", "-O1", "-Wall", "-Werror", str(source), "-o", str(binary)], check=True)
    printed = subprocess.run([str(binary)], check=True, capture_output=True, text=True).stdout
    points = itertools.product(range(12), range(3, 8), range(-7, 6))
    wanted = [
        s.evaluate({"a": p[0], "b": p[1], "t": p[2]}) for p in points for s in samples for _ in "nw"
    ]
    assert [int(line) for line in printed.split()] == wanted


def test_parts_of_a_position_join_again() -> None:
    """Row and column of a pixel give its number, whichever of them keeps the images."""
    k, v = ix.variable("k", 100), ix.variable("v", 8)
    pixel = (k * 8 + v) % 784
    for rows, columns in ((k * 8 + v, pixel), (pixel, k * 8 + v), (pixel, pixel)):
        joined = (rows // 28) % 28 * 28 + columns % 28
        assert joined == pixel, joined
    apart = (k * 8 + v) // 28 * 28 + (k * 8 + v + 1) % 28  # of two neighbours
    assert "/28" in apart.key
