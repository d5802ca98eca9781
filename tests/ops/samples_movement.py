"""Samples of the movement rows: formulas from positions of the result to those of the source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sampling import (
    ALL,
    VIEWS,
    Array,
    Sample,
    Source,
    Step,
    edge_values,
    generator,
    plain,
    some,
)

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.graph.node import Node, Op
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as red
from tinygrad_cuda.graph.program import Argument

Position = tuple[int, ...]
Rule = Callable[..., Position | None]


def by_position(shape: Callable[..., Position], rule: Rule) -> Callable[..., Array]:
    """The result's element at `i` is the source's at `rule(i)`; None is the fill value."""

    def expected(x: Array, **attributes: Any) -> Array:
        result = np.zeros(shape(x.shape, **attributes), x.dtype)
        for index in np.ndindex(result.shape):
            place = rule(index, x.shape, **attributes)
            result[index] = attributes.get("value", 0) if place is None else x[place]
        return result

    return expected


def _flat(index: Position, shape: Position) -> int:
    flat = 0
    for i, size in zip(index, shape):
        flat = flat * size + i
    return flat


def _unflat(flat: int, shape: Position) -> Position:
    index: list[int] = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))


def _placed(index: Position, size: Position, starts: Any, steps: Any) -> Position | None:
    place = []
    for i, n, start, step in zip(index, size, starts, steps):
        k, rest = divmod(i - start, step)
        if rest or not 0 <= k < n:
            return None
        place.append(k)
    return tuple(place)


def _at(index: Position, axis: int, i: int) -> Position:
    return index[:axis] + (i,) + index[axis + 1 :]


def _unwound(
    index: Position, size: Position, axis: int, over: int, stride: int, dilation: int, **_: Any
) -> Position | None:
    o, rest = divmod(index[axis] - index[over] * dilation, stride)
    return _at(index, axis, o) if not rest and 0 <= o < size[axis] else None


def _new_length(size: Position, axis: int, length: int, **_: Any) -> Position:
    return _at(size, axis, length)


EXPECTED: dict[Op, Callable[..., Array]] = {
    mv.reshape: by_position(
        lambda size, shape: shape, lambda i, size, shape: _unflat(_flat(i, shape), size)
    ),
    mv.permute: by_position(
        lambda size, axes: tuple(size[axis] for axis in axes),
        lambda i, size, axes: tuple(i[axes.index(axis)] for axis in range(len(size))),
    ),
    mv.expand: by_position(
        lambda size, shape: shape,
        lambda i, size, shape: tuple(0 if n == 1 else k for k, n in zip(i, size)),
    ),
    mv.slice_: by_position(
        lambda size, starts, shape, steps: shape,
        lambda i, size, starts, shape, steps: tuple(
            start + k * step for k, start, step in zip(i, starts, steps)
        ),
    ),
    mv.pad: by_position(
        lambda size, starts, shape, steps, value: shape,
        lambda i, size, starts, shape, steps, value: _placed(i, size, starts, steps),
    ),
    mv.flip: by_position(
        lambda size, axes: size,
        lambda i, size, axes: tuple(
            n - 1 - k if axis in axes else k for axis, (k, n) in enumerate(zip(i, size))
        ),
    ),
    mv.window: by_position(
        _new_length,
        lambda i, size, axis, over, length, stride, dilation: _at(
            i, axis, i[axis] * stride + i[over] * dilation
        ),
    ),
    mv.unwindow: by_position(_new_length, _unwound),
}


def _slice(starts: Position, shape: Position, steps: Position) -> dict[str, Any]:
    return {"starts": starts, "shape": shape, "steps": steps}


def _pad(starts: Position, shape: Position, steps: Position, value: Any) -> dict[str, Any]:
    return {"starts": starts, "shape": shape, "steps": steps, "value": value}


def _window(axis: int, over: int, length: int, stride: int, dilation: int) -> dict[str, Any]:
    return {"axis": axis, "over": over, "length": length, "stride": stride, "dilation": dilation}


# (the source's shape, attributes); every corner of every attribute.
CASES: dict[Op, tuple[tuple[Position, dict[str, Any]], ...]] = {
    mv.reshape: (
        ((7, 13), {"shape": (91,)}),
        ((3, 5, 7), {"shape": (7, 15)}),
        ((6, 4), {"shape": (2, 3, 2, 2)}),
        ((), {"shape": (1, 1)}),
        ((1, 1), {"shape": ()}),
        ((0, 3), {"shape": (5, 0)}),
        ((1, 7), {"shape": (7, 1)}),
    ),
    mv.permute: (
        ((7, 13), {"axes": (1, 0)}),
        ((3, 5, 7), {"axes": (2, 0, 1)}),
        ((2, 3, 4, 5), {"axes": (0, 2, 1, 3)}),
        ((), {"axes": ()}),
        ((0, 3), {"axes": (1, 0)}),
        ((31, 257), {"axes": (1, 0)}),
    ),
    mv.expand: (
        ((1, 13), {"shape": (7, 13)}),
        ((7, 1), {"shape": (7, 13)}),
        ((1, 5, 1), {"shape": (3, 5, 7)}),
        ((), {"shape": ()}),
        ((1,), {"shape": (0,)}),
        ((1, 1), {"shape": (1, 1)}),
    ),
    mv.slice_: (
        ((13,), _slice((3,), (4,), (3,))),
        ((7, 13), _slice((0, 2), (7, 11), (1, 1))),
        ((3, 5, 7), _slice((2, 0, 1), (1, 5, 3), (1, 1, 2))),
        ((7,), _slice((6,), (1,), (5,))),
        ((7, 3), _slice((0, 0), (0, 3), (1, 1))),
        ((), _slice((), (), ())),
        ((0, 3), _slice((0, 1), (0, 2), (1, 1))),
    ),
    mv.pad: (
        ((5,), _pad((2,), (9,), (1,), 0)),
        ((4,), _pad((1,), (13,), (3,), -1.5)),
        ((3, 5), _pad((1, 0), (8, 10), (3, 2), 1)),
        ((2, 3, 4), _pad((0, 1, 0), (2, 5, 4), (1, 1, 1), 7)),
        ((), _pad((), (), (), 3)),
        ((0, 2), _pad((0, 0), (3, 2), (1, 1), 5)),
        ((7,), _pad((0,), (7,), (1,), 0)),
        ((3,), _pad((1,), (5,), (1,), float("inf"))),
    ),
    mv.flip: (
        ((13,), {"axes": (0,)}),
        ((7, 13), {"axes": (0, 1)}),
        ((3, 5, 7), {"axes": (0, 2)}),
        ((3, 5, 7), {"axes": (1,)}),
        ((), {"axes": ()}),
        ((0, 3), {"axes": (0,)}),
    ),
    mv.window: (
        ((13, 3), _window(0, 1, 11, 1, 1)),
        ((13, 3), _window(0, 1, 6, 2, 1)),
        ((2, 13, 3), _window(1, 2, 9, 1, 2)),
        ((2, 14, 3), _window(1, 2, 4, 3, 2)),
        ((3, 7), _window(1, 0, 5, 1, 1)),
        ((5, 1), _window(0, 1, 5, 1, 1)),
        ((1, 1), _window(0, 1, 1, 1, 1)),
        ((3, 2), _window(0, 1, 0, 1, 1)),
    ),
    mv.unwindow: (
        ((11, 3), _window(0, 1, 13, 1, 1)),
        ((6, 3), _window(0, 1, 13, 2, 1)),
        ((2, 9, 3), _window(1, 2, 13, 1, 2)),
        ((2, 4, 3), _window(1, 2, 14, 3, 2)),
        ((3, 5), _window(1, 0, 7, 1, 1)),
        ((5, 1), _window(0, 1, 5, 1, 1)),
        ((0, 2), _window(0, 1, 3, 1, 1)),
    ),
}  # fmt: skip


def samples() -> Iterator[Sample]:
    for op, cases in CASES.items():
        yield from _cases(op, cases)
        yield from _dtypes(op, cases[0])
    yield from _chains()
    yield from _arguments()


def _cases(op: Op, cases: tuple[tuple[Position, dict[str, Any]], ...]) -> Iterator[Sample]:
    for shape, attributes in cases:
        for view in ("plain", "transposed", "sliced"):
            x = some(generator(op.name, shape, view), shape, dtypes.float64)
            small = x.size <= 150 and view != "transposed" and attributes.get("value") != np.inf
            yield _make(op, f"{shape} {_text(attributes)} {view}", VIEWS[view](x), attributes,
                        differentiate=small)  # fmt: skip


def _text(attributes: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}".replace(" ", "") for name, value in attributes.items())


def _dtypes(op: Op, case: tuple[Position, dict[str, Any]]) -> Iterator[Sample]:
    shape, attributes = case
    if "value" in attributes:
        attributes = {**attributes, "value": 1}
    for dtype in ALL:
        x = np.resize(edge_values(dtype), shape).reshape(shape)
        yield _make(op, f"{dtype.name} edges", plain(x), attributes)


def _make(op: Op, label: str, source: Source, attributes: dict[str, Any], **more: Any) -> Sample:
    return Sample(
        op, label, (source,), attributes, expected=EXPECTED[op], exact=True, signs=True, **more
    )


# Rewrites of rewrites: each chain is one load with one index expression, or one that must not be.
CHAINS: tuple[tuple[str, Position, tuple[Step, ...]], ...] = (
    ("transpose, then flatten", (7, 13),
     ((mv.permute, {"axes": (1, 0)}), (mv.reshape, {"shape": (91,)}))),
    ("flatten a slice", (7, 13),
     ((mv.slice_, _slice((1, 2), (3, 5), (2, 2))), (mv.reshape, {"shape": (5, 3)}))),
    ("flip, then flatten, then slice", (5, 7),
     ((mv.flip, {"axes": (1,)}), (mv.reshape, {"shape": (35,)}),
      (mv.slice_, _slice((3,), (6,), (5,))))),
    ("pad, then transpose, then flatten", (3, 5),
     ((mv.pad, _pad((1, 1), (6, 8), (2, 1), 2)), (mv.permute, {"axes": (1, 0)}),
      (mv.reshape, {"shape": (48,)}))),
    ("pad of a pad", (4,),
     ((mv.pad, _pad((1,), (6,), (1,), 3)), (mv.pad, _pad((2,), (13,), (2,), -1)))),
    ("slice through the border of a pad", (5,),
     ((mv.pad, _pad((2,), (9,), (1,), 4)), (mv.slice_, _slice((1,), (4,), (2,))))),
    ("expand, then flatten", (3, 1),
     ((mv.expand, {"shape": (3, 4)}), (mv.reshape, {"shape": (2, 6)}))),
    ("a sliding window", (13,),
     ((mv.reshape, {"shape": (13, 1)}), (mv.expand, {"shape": (13, 4)}),
      (mv.window, _window(0, 1, 5, 2, 1)), (mv.reshape, {"shape": (20,)}))),
    ("a window into a pad", (2, 5),
     ((mv.pad, _pad((0, 2), (2, 9), (1, 1), 0)), (mv.reshape, {"shape": (2, 9, 1)}),
      (mv.expand, {"shape": (2, 9, 3)}), (mv.window, _window(1, 2, 4, 2, 1)))),
    ("window and back", (9, 3),
     ((mv.window, _window(0, 1, 4, 2, 1)), (mv.unwindow, _window(0, 1, 9, 2, 1)))),
)  # fmt: skip


def _chains() -> Iterator[Sample]:
    for label, shape, steps in CHAINS:
        x = some(generator(label), shape, dtypes.float64)
        yield Sample(
            steps[-1][0], label, (plain(x),), build=_builder(steps), expected=_folded(steps),
            exact=True, signs=True, differentiate=True,
        )  # fmt: skip
    # The two operands of one kernel reach one buffer by different ways.
    x = some(generator("symmetric"), (7, 7), dtypes.float64)
    yield Sample(
        mv.permute, "x + x.T", (plain(x),),
        build=lambda n: (ew.add(n, mv.permute(n, axes=(1, 0))),),
        expected=lambda x: x + x.T, exact=True, differentiate=True,
    )  # fmt: skip
    y = some(generator("windows"), (2, 13), dtypes.float64)
    yield Sample(
        mv.window, "a convolution", (plain(y),), build=_convolved,
        expected=lambda y: np.stack(
            [y[:, 2 * o : 2 * o + 3].sum(1) for o in range(6)], 1
        ), differentiate=True,
    )  # fmt: skip


def _convolved(x: Node) -> tuple[Node, ...]:
    wide = mv.expand(mv.reshape(x, shape=(2, 13, 1)), shape=(2, 13, 3))
    total = red.sum(mv.window(wide, **_window(1, 2, 6, 2, 1)), axes=(2,))
    return (mv.reshape(total, shape=(2, 6)),)


def _builder(steps: tuple[Step, ...]) -> Callable[[Node], tuple[Node, ...]]:
    def build(node: Node) -> tuple[Node, ...]:
        for op, attributes in steps:
            node = op(node, **attributes)
        return (node,)

    return build


def _folded(steps: tuple[Step, ...]) -> Callable[[Array], Array]:
    def expected(x: Array) -> Array:
        for op, attributes in steps:
            x = EXPECTED[op](x, **attributes)
        return x

    return expected


def _arguments() -> Iterator[Sample]:
    """Starts and fill values that a run supplies instead of the program."""
    x = some(generator("arguments"), (7, 13), dtypes.float32)
    yield Sample(
        mv.slice_, "starts are arguments", (plain(x),),
        _slice((Argument(0), Argument(1)), (2, 3), (2, 4)), numbers=(3, 1), exact=True,
        expected=lambda x, **_: x[3:7:2, 1:13:4],
    )  # fmt: skip
    yield Sample(
        mv.slice_, "one start is an argument", (VIEWS["sliced"](x),),
        _slice((0, Argument(0)), (7, 1), (1, 1)), numbers=(12,), exact=True,
        expected=lambda x, **_: x[:, 12:],
    )  # fmt: skip
    yield Sample(
        mv.pad, "start and value are arguments", (plain(x),),
        _pad((Argument(0), 0), (9, 13), (1, 1), Argument(1)), numbers=(2, -0.25), exact=True,
        expected=lambda x, **_: np.pad(x, ((2, 0), (0, 0)), constant_values=-0.25),
    )  # fmt: skip
