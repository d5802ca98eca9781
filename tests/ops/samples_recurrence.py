"""Samples of the rows of recurrent layers and of their gradients: both directions, views."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from sampling import FLOATS, VIEWS, Array, Sample, generator, plain, some

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.graph.node import Node, Op
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops.common import output
from tinygrad_cuda.graph.ops.recurrence import (
    gru,
    gru_backward,
    lstm,
    lstm_backward,
    rnn,
    rnn_backward,
)

SIZES = ((3, 2, 4), (1, 3, 2), (4, 1, 3))  # T, B, H
GATES: dict[Op, int] = {lstm: 4, gru: 3, rnn: 1}
RESULTS: dict[Op, int] = {
    lstm: 3,
    gru: 2,
    rnn: 1,
    lstm_backward: 3,
    gru_backward: 3,
    rnn_backward: 2,
}


def _parts(node: Node) -> tuple[Node, ...]:
    count = RESULTS[node.op]
    return (node,) if count == 1 else tuple(output(node, index=k) for k in range(count))


def _states(*sources: Node, **how: Any) -> tuple[Node, ...]:
    """Without what is there for gradients; memories as the layer gives them, in its dtype."""
    row = _row(sources, how)
    parts = _parts(row(*sources, **how))
    return parts if len(parts) == 1 else tuple(ew.cast(x, dtype=parts[0].dtype) for x in parts[:-1])


def _row(sources: tuple[Node, ...], how: dict[str, Any]) -> Op:
    gates, weight = sources[0], sources[1]
    if "relu" in how:
        return rnn
    return lstm if gates.shape[-1] == 4 * weight.shape[-1] else gru


def _lstm_gradients(
    g: Node, g_cells: Node, gates: Node, weight: Node, hidden: Node, memory: Node, **how: Any
) -> tuple[Node, ...]:
    _, cells, active = _parts(lstm(gates, weight, hidden, memory, **how))
    return _parts(lstm_backward(g, g_cells, active, cells, memory, weight, **how))


def _gru_gradients(
    g: Node, gates: Node, weight: Node, bias: Node, hidden: Node, **how: Any
) -> tuple[Node, ...]:
    out, active = _parts(gru(gates, weight, bias, hidden, **how))
    return _parts(gru_backward(g, active, out, hidden, weight, **how))


def _rnn_gradients(
    g: Node, gates: Node, weight: Node, hidden: Node, **how: Any
) -> tuple[Node, ...]:
    return _parts(rnn_backward(g, rnn(gates, weight, hidden, **how), weight, **how))


def samples() -> Iterator[Sample]:
    for dtype in FLOATS:
        sizes = SIZES[:1] if dtype.is_half else SIZES
        for number, (steps, batch, units) in enumerate(sizes):
            for op, more in ((lstm, 1), (gru, 0), (rnn, 0)):
                reverse = number == 1 or (number == 2 and op is gru)
                how: dict[str, Any] = {"reverse": reverse}
                if op is rnn:
                    how["relu"] = number == 2
                label = f"{dtype.name} {steps} {batch} {units} {how}"
                rng = generator(op.name, label)
                view = VIEWS[("plain", "transposed", "sliced")[number]]
                gates = some(rng, (steps, batch, GATES[op] * units), dtype)
                weight = some(rng, (GATES[op] * units, units), dtype)
                states = [some(rng, (batch, units), dtype) for _ in range(1 + more)]
                bias = [some(rng, (units,), dtype)] * (op is gru)
                arrays = [gates, weight, *bias, *states]
                g = [some(rng, (steps, batch, units), dtype)]
                if op is lstm:
                    wide = dtypes.float32 if dtype.is_half else dtype
                    g.append(some(rng, (steps, batch, units), wide))
                yield from _pair(op, label, arrays, g, view, how)


def _pair(
    op: Op, label: str, arrays: list[Array], gs: list[Array], view: Any, how: dict[str, Any]
) -> Iterator[Sample]:
    """A row with its gradient's row."""
    double = arrays[0].dtype == np.float64
    sources = tuple(map(view, arrays))
    yield Sample(
        op, label, sources, how, build=_states, differentiate=double and not how.get("relu"),
        expected=_expected if double else None, loose=8,
    )  # fmt: skip
    row, build = {
        lstm: (lstm_backward, _lstm_gradients), gru: (gru_backward, _gru_gradients),
        rnn: (rnn_backward, _rnn_gradients),
    }[op]  # fmt: skip
    expected = partial(_expected_gradients, len(gs)) if double else None
    yield Sample(
        row, label, (*map(plain, gs), *sources), how, build=build, expected=expected, loose=16
    )


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _expected(
    gates: Array, weight: Array, *rest: Array, reverse: bool, inner: Any = None, **how: Any
) -> Any:
    """A sequence and a step at a time; `inner` is added to a GRU's product for its candidate."""
    steps, batch, width = gates.shape
    units = weight.shape[1]
    count = 1 if "relu" in how else width // units
    hidden = rest[1] if count == 3 else rest[0]
    dtype = np.result_type(gates, *rest, *([] if inner is None else [inner]))
    out, cells = np.zeros((steps, batch, units), dtype), np.zeros((steps, batch, units), dtype)
    for b in range(batch):
        h, c = hidden[b], rest[1][b] if count == 4 else None
        for t in range(steps)[:: -1 if reverse else 1]:
            x = [gates[t, b, k * units : (k + 1) * units] for k in range(count)]
            u = [weight[k * units : (k + 1) * units] @ h for k in range(count)]
            if count == 4:
                i, f, o = (_sigmoid(x[k] + u[k]) for k in (0, 1, 3))
                c = f * c + i * np.tanh(x[2] + u[2])
                h, cells[t, b] = o * np.tanh(c), c
            elif count == 3:
                r, z = _sigmoid(x[0] + u[0]), _sigmoid(x[1] + u[1])
                m = u[2] + rest[0] + (0 if inner is None else inner[t, b])
                h = (1 - z) * np.tanh(x[2] + r * m) + z * h
            else:
                h = np.maximum(x[0] + u[0], 0) if how["relu"] else np.tanh(x[0] + u[0])
            out[t, b] = h
    return (out, cells) if count == 4 else out


def _expected_gradients(count: int, *arrays: Array, **how: Any) -> Any:
    """Each element's own, by the imaginary part of a step along it: exact, without differences."""
    gs, (gates, weight, *rest) = arrays[:count], arrays[count:]
    gru_row = gates.shape[-1] == 3 * weight.shape[1] and "relu" not in how

    def loss(gates: Any, inner: Any, rest: list[Any]) -> Any:
        found = _expected(gates, weight, *rest, inner=inner, **how)
        parts = found if isinstance(found, tuple) else (found,)
        return sum((g * part).sum() for g, part in zip(gs, parts, strict=True))

    def slopes(value: Array, call: Any) -> Array:
        result = np.zeros(value.shape)
        for at in np.ndindex(value.shape):
            moved = value.astype(complex)
            moved[at] += 1e-30j
            result[at] = call(moved).imag / 1e-30
        return result

    inner = np.zeros((*gates.shape[:2], weight.shape[1]))
    found = [slopes(gates, lambda x: loss(x, None, rest))]
    if gru_row:
        found.append(slopes(inner, lambda x: loss(gates, x, rest)))
    for number in range(int(gru_row), len(rest)):
        before, after = rest[:number], rest[number + 1 :]
        found.append(
            slopes(rest[number], lambda x, b=before, a=after: loss(gates, None, [*b, x, *a]))
        )
    return tuple(found)
