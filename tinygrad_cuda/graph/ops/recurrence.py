"""Recurrent steps over a whole sequence, each layer's loop over time as one op, and its gradient.

Products with the inputs of all steps, and gradients of weights, are ordinary products outside. A
gradient of which history is recorded, and a target whose kernels do not have the dtype or the
sizes, have a composition of other rows: `as_nodes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import DType, bool_, float32
from tinygrad_cuda.core.errors import DTypeError, ShapeError
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node, Op, Outputs, mode, topological
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import numeric
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.graph.ops.common import (
    GradientRule,
    custom,
    full,
    full_like,
    output,
    require_dtype,
    wide,
)
from tinygrad_cuda.graph.ops.contraction import matmul, transpose

Array = np.ndarray[Any, Any]
Cotangents = Sequence[Node | None] | Node


def summing(dtype: DType) -> DType:
    """The dtype of sums and of an LSTM's memory."""
    return float32 if dtype.is_half else dtype


# Shapes -------------------------------------------------------------------------------------------


def _check(op: Op, nodes: dict[str, Node], shapes: dict[str, Shape]) -> None:
    """Operands have these shapes and the first one's dtype."""
    first = next(iter(nodes.values()))
    require_dtype(op.name, first, "float")
    wrong = {name: node for name, node in nodes.items() if node.dtype is not first.dtype}
    if wrong:
        raise DTypeError(
            op.name, "operands have different dtypes", expect=first.dtype.name,
            actual=", ".join(f"{name} {node.dtype.name}" for name, node in wrong.items()),
        )  # fmt: skip
    actual = {name: nodes[name].shape for name in shapes}
    if actual != shapes:
        raise ShapeError(
            op.name, "operands do not fit", expect=_listed(shapes), actual=_listed(actual)
        )


def _listed(shapes: dict[str, Shape]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())


def _sizes(op: Op, gates: Node, weight: Node) -> tuple[int, int, int]:
    """Steps, sequences and hidden units."""
    if len(gates.shape) != 3 or len(weight.shape) != 2 or not gates.shape[0]:
        raise ShapeError(
            op.name, "operands do not fit", expect="gates (T, B, *), T >= 1, and weight (*, H)",
            actual=f"gates {gates.shape}, weight {weight.shape}",
        )  # fmt: skip
    return gates.shape[0], gates.shape[1], weight.shape[1]


def _infer(count: int, names: tuple[str, ...]) -> Callable[..., Outputs]:
    """The rule of a row whose steps have `count` gates, with the names of its sources."""

    def rule(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
        nodes = dict(zip(names, sources, strict=True))
        steps, batch, units = _sizes(op, nodes["gates"], nodes["weight"])
        shapes = {
            "gates": (steps, batch, count * units), "weight": (count * units, units),
            "hidden": (batch, units), "memory": (batch, units), "bias": (units,),
        }  # fmt: skip
        _check(op, nodes, {name: shapes[name] for name in names})
        dtype = sources[0].dtype
        states = (steps, batch, units), dtype
        if op is rnn:
            return (states,)
        active = (steps, batch, 4 * units), dtype
        memory = (states[0], summing(dtype))
        return (states, memory, active) if op is lstm else (states, active)

    return rule


def _infer_backward(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    g, weight = sources[0], sources[-1]
    steps, batch, units = g.shape
    rows, dtype = (steps, batch), g.dtype
    state = (batch, units), dtype
    count = weight.shape[0] // units
    gates = (*rows, count * units), dtype
    if op is lstm_backward:
        return gates, state, state
    return (gates, ((*rows, units), dtype), state) if op is gru_backward else (gates, state)


# NumPy --------------------------------------------------------------------------------------------


def _order(steps: int, reverse: bool) -> range:
    return range(steps - 1, -1, -1) if reverse else range(steps)


def _before(t: int, steps: int, reverse: bool) -> int | None:
    """The step before t in the order of the recurrence; None of the first one."""
    before = t + 1 if reverse else t - 1
    return before if 0 <= before < steps else None


def _apart(gates: Array, count: int) -> list[Array]:
    """Each gate's columns."""
    units = gates.shape[-1] // count
    return [gates[..., k * units : (k + 1) * units] for k in range(count)]


def _lstm(
    gates: Array, weight: Array, hidden: Array, memory: Array, reverse: bool
) -> tuple[Array, Array, Array]:
    low, high = gates.dtype, wide(gates.dtype)
    (steps, batch), units = gates.shape[:2], weight.shape[1]
    out, cells = np.empty((steps, batch, units), low), np.empty((steps, batch, units), high)
    active = np.empty((steps, batch, 4 * units), low)
    across, h, c = weight.astype(high, copy=False).T, hidden.astype(high), memory.astype(high)
    for t in _order(steps, reverse):
        total = h @ across
        total += gates[t]
        i, f, g, o = _apart(total, 4)
        numeric.sigmoid(total[:, : 2 * units], out=total[:, : 2 * units])
        np.tanh(g, out=g)
        numeric.sigmoid(o, out=o)
        active[t] = total
        np.multiply(f, c, out=cells[t])
        cells[t] += i * g
        c = cells[t]
        out[t] = o * np.tanh(c)
        h = out[t].astype(high, copy=False)
    return out, cells, active


def _lstm_backward(
    g_out: Array, g_cells: Array, active: Array, cells: Array, memory: Array, weight: Array,
    reverse: bool,
) -> tuple[Array, Array, Array]:  # fmt: skip
    low, high = g_out.dtype, wide(g_out.dtype)
    (steps, batch), units = g_out.shape[:2], weight.shape[1]
    weight = weight.astype(high, copy=False)
    slopes, by_state, carried = _lstm_slopes(
        active.astype(high, copy=False), cells, memory, reverse
    )
    by_gates = slopes if low == high else np.empty(active.shape, low)
    dh, dc = np.zeros(memory.shape, high), np.zeros(memory.shape, high)
    for t in reversed(_order(steps, reverse)):
        dh += g_out[t]
        dc += g_cells[t]
        dc += dh * by_state[t]
        gates = slopes[t].reshape(batch, 4, units)
        gates[:, :3] *= dc[:, None]
        gates[:, 3] *= dh
        if by_gates is not slopes:
            by_gates[t] = slopes[t]
        dc *= carried[t]
        dh = by_gates[t].astype(high, copy=False) @ weight
    return by_gates, dh.astype(low), dc.astype(low)


def _lstm_slopes(
    active: Array, cells: Array, memory: Array, reverse: bool
) -> tuple[Array, Array, Array]:
    """Of all steps: slopes by gates, of memory by the state, and of memory by the one before."""
    slopes = np.empty_like(active)
    i, f, g, o = _apart(active, 4)
    di, df, dg, do = _apart(slopes, 4)
    np.multiply(g, i * (1 - i), out=di)
    np.multiply(f * (1 - f), _shifted(cells, memory, reverse), out=df)
    np.multiply(i, 1 - g * g, out=dg)
    shown = np.tanh(cells)
    np.multiply(shown, o * (1 - o), out=do)
    shown *= shown
    np.subtract(1, shown, out=shown)
    shown *= o
    return slopes, shown, f


def _shifted(states: Array, first: Array, reverse: bool) -> Array:
    """The state before each step."""
    shifted = np.empty_like(states)
    if reverse:
        shifted[-1], shifted[:-1] = first, states[1:]
    else:
        shifted[0], shifted[1:] = first, states[:-1]
    return shifted


def _gru(
    gates: Array, weight: Array, bias: Array, hidden: Array, reverse: bool
) -> tuple[Array, Array]:
    low, high = gates.dtype, wide(gates.dtype)
    (steps, batch), units = gates.shape[:2], weight.shape[1]
    out, active = np.empty((steps, batch, units), low), np.empty((steps, batch, 4 * units), low)
    across, h = weight.astype(high, copy=False).T, hidden.astype(high)
    for t in _order(steps, reverse):
        own = h @ across
        own[:, 2 * units :] += bias
        both = own[:, : 2 * units]
        both += gates[t, :, : 2 * units]
        numeric.sigmoid(both, out=both)
        r, z, inner = _apart(own, 3)
        new = np.tanh(gates[t, :, 2 * units :] + r * inner)
        for part, value in zip(_apart(active[t], 4), (r, z, new, inner), strict=True):
            part[...] = value
        out[t] = new + z * (h - new)
        h = out[t].astype(high, copy=False)
    return out, active


def _gru_backward(
    g_out: Array, active: Array, out: Array, hidden: Array, weight: Array, reverse: bool
) -> tuple[Array, Array, Array]:
    low, high = g_out.dtype, wide(g_out.dtype)
    steps, batch, units = g_out.shape
    weight = weight.astype(high, copy=False)
    r, z, new, m = _apart(active.astype(high, copy=False), 4)
    before = _shifted(out.astype(high, copy=False), hidden, reverse)
    by_new = (1 - z) * (1 - new * new)
    by_update, by_reset = (before - new) * z * (1 - z), m * r * (1 - r)
    by_gates, inner = np.empty((steps, batch, 3 * units), low), np.empty(g_out.shape, low)
    own, dh = np.empty((batch, 3 * units), high), np.zeros(hidden.shape, high)
    for t in reversed(_order(steps, reverse)):
        dh += g_out[t]
        dr, dz, dn = _apart(by_gates[t], 3)
        candidate = dh * by_new[t]
        dn[...] = candidate
        dz[...] = dh * by_update[t]
        dr[...] = candidate * by_reset[t]
        candidate *= r[t]
        inner[t] = candidate
        own[:, : 2 * units] = by_gates[t, :, : 2 * units]
        own[:, 2 * units :] = inner[t]
        dh *= z[t]
        dh += own @ weight
    return by_gates, inner, dh.astype(low)


def _rnn(gates: Array, weight: Array, hidden: Array, relu: bool, reverse: bool) -> Array:
    low, high = gates.dtype, wide(gates.dtype)
    steps, batch, units = gates.shape
    out = np.empty((steps, batch, units), low)
    across, h = weight.astype(high, copy=False).T, hidden.astype(high)
    for t in _order(steps, reverse):
        total = h @ across
        total += gates[t]
        out[t] = numeric.relu(total) if relu else np.tanh(total)
        h = out[t].astype(high, copy=False)
    return out


def _rnn_backward(
    g_out: Array, out: Array, weight: Array, relu: bool, reverse: bool
) -> tuple[Array, Array]:
    low, high = g_out.dtype, wide(g_out.dtype)
    steps, weight = len(g_out), weight.astype(high, copy=False)
    states = out.astype(high, copy=False)
    slopes = None if relu else 1 - states * states
    by_gates, dh = np.empty(g_out.shape, low), np.zeros(g_out.shape[1:], high)
    for t in reversed(_order(steps, reverse)):
        dh += g_out[t]
        by_gates[t] = np.where(states[t] > 0, dh, 0) if slopes is None else dh * slopes[t]
        dh = by_gates[t].astype(high, copy=False) @ weight
    return by_gates, dh.astype(low)


# Compositions -------------------------------------------------------------------------------------
# Operands may have leading axes here, of a batch of sequences and weights.


def _step(node: Node, t: int) -> Node:
    """A step of (*, T, B, W), as (*, B, W)."""
    *lead, _, batch, width = node.shape
    starts = (*(0,) * len(lead), t, 0, 0)
    ones = (1,) * len(node.shape)
    one = mv.slice_(node, starts=starts, shape=(*lead, 1, batch, width), steps=ones)
    return mv.reshape(one, shape=(*lead, batch, width))


def _columns(node: Node, start: int, width: int) -> Node:
    """Columns of (*, W)."""
    shape, ones = (*node.shape[:-1], width), (1,) * len(node.shape)
    return mv.slice_(node, starts=(*(0,) * (len(ones) - 1), start), shape=shape, steps=ones)


def _gates(node: Node, count: int) -> list[Node]:
    units = node.shape[-1] // count
    return [_columns(node, k * units, units) for k in range(count)]


def joined(nodes: Sequence[Node], axis: int) -> Node:
    """The nodes one after another along an axis: halves, each padded and chosen where it lies."""
    if len(nodes) == 1:
        return nodes[0]
    middle = len(nodes) // 2
    first, second = joined(nodes[:middle], axis), joined(nodes[middle:], axis)
    axis %= len(first.shape)
    total = first.shape[axis] + second.shape[axis]
    shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    here = full(True, second.shape, second, bool_)

    def padded(node: Node, start: int, value: Any) -> Node:
        starts, ones = (
            tuple(start if a == axis else 0 for a in range(len(shape))),
            (1,) * len(shape),
        )
        return mv.pad(node, starts=starts, shape=shape, steps=ones, value=value)

    behind = first.shape[axis]
    return ew.where(padded(here, behind, False), padded(second, behind, 0), padded(first, 0, 0))


def _stacked(steps: dict[int, Node]) -> Node:
    """(*, T, B, W) of the steps (*, B, W)."""
    rows = [steps[t] for t in sorted(steps)]
    apart = [mv.reshape(r, shape=(*r.shape[:-2], 1, *r.shape[-2:])) for r in rows]
    return joined(apart, -3)


def _widened(node: Node) -> Node:
    return ew.cast(node, dtype=summing(node.dtype))


def _one_minus(node: Node) -> Node:
    return ew.sub(full_like(node, 1), node)


def _slope_of_tanh(value: Node) -> Node:
    return _one_minus(ew.mul(value, value))


def _slope_of_sigmoid(value: Node) -> Node:
    return ew.mul(value, _one_minus(value))


def _product(*factors: Node) -> Node:
    first, *rest = factors
    for factor in rest:
        first = ew.mul(first, factor)
    return first


def _spread(bias: Node, shape: Shape) -> Node:
    """A bias (*, H) for all sequences."""
    return mv.expand(mv.reshape(bias, shape=(*bias.shape[:-1], 1, bias.shape[-1])), shape=shape)


def _lstm_nodes(
    gates: Node, weight: Node, hidden: Node, memory: Node, reverse: bool
) -> tuple[Node, ...]:
    low, across, h, c = gates.dtype, transpose(weight), hidden, _widened(memory)
    out, cells, active = {}, {}, {}
    for t in _order(gates.shape[-3], reverse):
        total = ew.add(_widened(_step(gates, t)), _widened(matmul(h, across)))
        i, f, g, o = _gates(total, 4)
        i, f, g, o = ew.sigmoid(i), ew.sigmoid(f), ew.tanh(g), ew.sigmoid(o)
        c = ew.add(ew.mul(f, c), ew.mul(i, g))
        h = ew.cast(ew.mul(o, ew.tanh(c)), dtype=low)
        out[t], cells[t] = h, c
        active[t] = ew.cast(joined((i, f, g, o), -1), dtype=low)
    return _stacked(out), _stacked(cells), _stacked(active)


def _lstm_backward_nodes(
    g_out: Node, g_cells: Node, active: Node, cells: Node, memory: Node, weight: Node,
    reverse: bool,
) -> tuple[Node, ...]:  # fmt: skip
    low, steps = g_out.dtype, g_out.shape[-3]
    dh = dc = None
    by_gates = {}
    for t in reversed(_order(steps, reverse)):
        i, f, g, o = map(_widened, _gates(_step(active, t), 4))
        before = _before(t, steps, reverse)
        c = _widened(memory) if before is None else _step(cells, before)
        shown = ew.tanh(_step(cells, t))
        dh_t = _plus(_widened(_step(g_out, t)), dh)
        dc = _plus(_step(g_cells, t), dc)
        dc = ew.add(dc, _product(dh_t, o, _slope_of_tanh(shown)))
        parts = (
            _product(dc, g, _slope_of_sigmoid(i)), _product(dc, c, _slope_of_sigmoid(f)),
            _product(dc, i, _slope_of_tanh(g)), _product(dh_t, shown, _slope_of_sigmoid(o)),
        )  # fmt: skip
        by_gates[t] = ew.cast(joined(parts, -1), dtype=low)
        dc, dh = ew.mul(dc, f), _widened(matmul(by_gates[t], weight))
    assert dh is not None and dc is not None
    return _stacked(by_gates), ew.cast(dh, dtype=low), ew.cast(dc, dtype=low)


def _plus(node: Node, other: Node | None) -> Node:
    return node if other is None else ew.add(node, other)


def _gru_nodes(
    gates: Node, weight: Node, bias: Node, hidden: Node, reverse: bool
) -> tuple[Node, ...]:
    low, across, h = gates.dtype, transpose(weight), hidden
    out, active = {}, {}
    for t in _order(gates.shape[-3], reverse):
        r, z, new = map(_widened, _gates(_step(gates, t), 3))
        own = map(_widened, _gates(matmul(h, across), 3))
        own_r, own_z, own_n = own
        inner = ew.add(own_n, _spread(_widened(bias), own_n.shape))
        r, z = ew.sigmoid(ew.add(r, own_r)), ew.sigmoid(ew.add(z, own_z))
        new = ew.tanh(ew.add(new, ew.mul(r, inner)))
        h = ew.add(new, ew.mul(z, ew.sub(_widened(h), new)))
        h = out[t] = ew.cast(h, dtype=low)
        active[t] = ew.cast(joined((r, z, new, inner), -1), dtype=low)
    return _stacked(out), _stacked(active)


def _gru_backward_nodes(
    g_out: Node, active: Node, out: Node, hidden: Node, weight: Node, reverse: bool
) -> tuple[Node, ...]:
    low, steps = g_out.dtype, g_out.shape[-3]
    dh = None
    by_gates, inner = {}, {}
    for t in reversed(_order(steps, reverse)):
        r, z, new, m = map(_widened, _gates(_step(active, t), 4))
        before = _before(t, steps, reverse)
        h = _widened(hidden if before is None else _step(out, before))
        dh_t = _plus(_widened(_step(g_out, t)), dh)
        by_new = _product(dh_t, _one_minus(z), _slope_of_tanh(new))
        by_z = _product(dh_t, ew.sub(h, new), _slope_of_sigmoid(z))
        by_r = _product(by_new, m, _slope_of_sigmoid(r))
        both = ew.cast(joined((by_r, by_z), -1), dtype=low)
        inner[t] = ew.cast(ew.mul(by_new, r), dtype=low)
        by_gates[t] = joined((both, ew.cast(by_new, dtype=low)), -1)
        own = joined((both, inner[t]), -1)
        dh = ew.add(ew.mul(dh_t, z), _widened(matmul(own, weight)))
    assert dh is not None
    return _stacked(by_gates), _stacked(inner), ew.cast(dh, dtype=low)


def _rnn_nodes(
    gates: Node, weight: Node, hidden: Node, relu: bool, reverse: bool
) -> tuple[Node, ...]:
    low, across, h, out = gates.dtype, transpose(weight), hidden, {}
    for t in _order(gates.shape[-3], reverse):
        total = ew.add(_widened(_step(gates, t)), _widened(matmul(h, across)))
        zero = full_like(total, 0)
        value = ew.where(ew.le(total, zero), zero, total) if relu else ew.tanh(total)
        h = out[t] = ew.cast(value, dtype=low)
    return (_stacked(out),)


def _rnn_backward_nodes(
    g_out: Node, out: Node, weight: Node, relu: bool, reverse: bool
) -> tuple[Node, ...]:
    low, dh, by_gates = g_out.dtype, None, {}
    for t in reversed(_order(g_out.shape[-3], reverse)):
        h = _widened(_step(out, t))
        dh_t = _plus(_widened(_step(g_out, t)), dh)
        zero = full_like(h, 0)
        by_gate = ew.where(ew.gt(h, zero), dh_t, zero) if relu else ew.mul(dh_t, _slope_of_tanh(h))
        by_gates[t] = ew.cast(by_gate, dtype=low)
        dh = _widened(matmul(by_gates[t], weight))
    assert dh is not None
    return _stacked(by_gates), ew.cast(dh, dtype=low)


def as_nodes(node: Node) -> tuple[Node, ...]:
    """The results of a row as the composition that it stands for."""
    return _COMPOSITIONS[node.op](*node.sources, **node.attributes)


# Gradients ----------------------------------------------------------------------------------------


def pullback(outputs: Sequence[Node], gs: Sequence[Node | None], source: Node) -> Node | None:
    """The cotangent of a source from those of outputs, through rows that have one result each."""
    cotangents: dict[Node, Node] = {}
    for node, g in zip(outputs, gs, strict=True):
        if g is not None:
            cotangents[node] = _plus(g, cotangents.get(node))
    order = topological(cotangents, stop=lambda node: node is source or node.storage is not None)
    reached = {source}
    for node in order:
        if node is not source and not reached.isdisjoint(node.sources):
            reached.add(node)
    for node in reversed(order):
        if node is source or node not in reached or node not in cotangents:
            continue
        rules = node.op.gradient
        each = rules if isinstance(rules, tuple) else (rules,) * len(node.sources)
        for own, rule in zip(node.sources, each, strict=True):
            if own in reached and callable(rule):
                part = rule(cotangents[node], node, *node.sources, **node.attributes)
                if part is not None:
                    cotangents[own] = _plus(part, cotangents.get(own))
    return cotangents.get(source)


def _flat(node: Node) -> Node:
    """(T, B, W) as (T * B, W)."""
    steps, batch, width = node.shape
    return mv.reshape(node, shape=(steps * batch, width))


def _part(node: Node, start: int, count: int) -> Node:
    """Steps of (T, B, W), one below another."""
    ones = (1, 1, 1)
    shape = (count, *node.shape[1:])
    return _flat(mv.slice_(node, starts=(start, 0, 0), shape=shape, steps=ones))


def _by_weight(by_gates: Node, out: Node, hidden: Node, reverse: bool) -> Node:
    """The gradient by the weight: the steps' gates times the states before them."""
    steps = by_gates.shape[0]
    last, first = (0, steps - 1) if reverse else (1, 0)
    by_first = matmul(transpose(_part(by_gates, first, 1)), hidden)
    if steps == 1:
        return by_first
    gates, before = _part(by_gates, last, steps - 1), _part(out, 1 - last, steps - 1)
    return _plus(by_first, matmul(transpose(gates), before))


def _lstm_gradients(
    gs: Sequence[Node | None], out: Node, gates: Node, weight: Node, hidden: Node, memory: Node,
    reverse: bool,
) -> dict[str, Callable[[], Node]]:  # fmt: skip
    states, cells, active = (output(out, index=k) for k in range(3))
    g_out, g_cells = (
        full_like(x, 0) if g is None else g for g, x in zip(gs, (states, cells), strict=False)
    )
    whole = lstm_backward(g_out, g_cells, active, cells, memory, weight, reverse=reverse)
    by_gates, by_hidden, by_memory = (output(whole, index=k) for k in range(3))
    return {
        "gates": lambda: by_gates,
        "weight": lambda: _by_weight(by_gates, states, hidden, reverse),
        "hidden": lambda: by_hidden,
        "memory": lambda: by_memory,
    }


def _gru_gradients(
    gs: Sequence[Node | None], out: Node, gates: Node, weight: Node, bias: Node, hidden: Node,
    reverse: bool,
) -> dict[str, Callable[[], Node]]:  # fmt: skip
    states, active = (output(out, index=k) for k in range(2))
    g_out = full_like(states, 0) if gs[0] is None else gs[0]
    whole = gru_backward(g_out, active, states, hidden, weight, reverse=reverse)
    by_gates, inner, by_hidden = (output(whole, index=k) for k in range(3))
    units = weight.shape[1]

    def by_weight() -> Node:
        both = _columns(by_gates, 0, 2 * units)
        rows = [_by_weight(part, states, hidden, reverse) for part in (both, inner)]
        return joined(rows, 0)

    def by_bias() -> Node:
        return mv.reshape(rd.sum(inner, axes=(0, 1)), shape=(units,))

    return {
        "gates": lambda: by_gates, "weight": by_weight, "bias": by_bias,
        "hidden": lambda: by_hidden,
    }  # fmt: skip


def _rnn_gradients(
    gs: Sequence[Node | None], out: Node, gates: Node, weight: Node, hidden: Node, relu: bool,
    reverse: bool,
) -> dict[str, Callable[[], Node]]:  # fmt: skip
    (g,) = gs
    assert g is not None
    whole = rnn_backward(g, out, weight, relu=relu, reverse=reverse)
    by_gates, by_hidden = (output(whole, index=k) for k in range(2))
    return {
        "gates": lambda: by_gates,
        "weight": lambda: _by_weight(by_gates, out, hidden, reverse),
        "hidden": lambda: by_hidden,
    }


def _rule(names: tuple[str, ...], name: str, gradients: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of a source: by the row of the gradient, or by the composition.

    The latter where history is recorded, and for a cotangent of what is there for gradients.
    """

    def rule(gs: Cotangents, out: Node, *sources: Node, **how: Any) -> Node | None:
        every = (gs,) if isinstance(gs, Node) else tuple(gs)
        if mode.now.gradients or (len(every) > 1 and every[-1] is not None):
            source = sources[names.index(name)]
            return pullback(_COMPOSITIONS[out.op](*sources, **how), every, source)
        by_source: Node = gradients(every, out, *sources, **how)[name]()
        return by_source

    return rule


# Batches ------------------------------------------------------------------------------------------


class _Bundle(GradientRule):
    """Of a `custom` node whose values are also its history: cotangents pass."""

    def __call__(self, node: Node, *gs: Node | None) -> Sequence[Node | None]:
        return gs


def _together(values: Sequence[Node]) -> Node:
    """One node with these results."""
    if len(values) == 1:
        return values[0]
    return custom(*values, *values, results=len(values), function=_Bundle())


def _batched(row: Callable[[], Op], sequences: tuple[int, ...]) -> Callable[..., Node]:
    """Sequences of all examples side by side; where weights differ, the composition.

    Args:
        row: the op, once it is made.
        sequences: the sources that have an axis of sequences, which is the last but one.
    """

    def batch(size: int, sources: tuple[Node, ...], on: tuple[bool, ...], **how: Any) -> Node:
        op = row()
        if any(there and k not in sequences for k, there in enumerate(on)):
            own = [x if there else mv.batched(x, size) for x, there in zip(sources, on)]
            return _together(_COMPOSITIONS[op](*own, **how))
        own = [
            _merged(x if on[k] else mv.batched(x, size)) if k in sequences else x
            for k, x in enumerate(sources)
        ]
        node = op(*own, **how)
        count = len(node.outputs)
        results = [node] if count == 1 else [output(node, index=k) for k in range(count)]
        return _together([_parted(result, size) for result in results])

    return batch


def _merged(node: Node) -> Node:
    """(V, *, B, W) as (*, V * B, W)."""
    size, *lead, batch, width = node.shape
    rank = len(node.shape)
    turned = mv.permute(node, axes=(*range(1, rank - 2), 0, rank - 2, rank - 1))
    return mv.reshape(turned, shape=(*lead, size * batch, width))


def _parted(node: Node, size: int) -> Node:
    """(*, V * B, W) as (V, *, B, W)."""
    *lead, batch, width = node.shape
    split = mv.reshape(node, shape=(*lead, size, batch // size, width))
    count = len(lead)
    return mv.permute(split, axes=(count, *range(count), count + 1, count + 2))


# Rows ---------------------------------------------------------------------------------------------

_LSTM, _GRU = ("gates", "weight", "hidden", "memory"), ("gates", "weight", "bias", "hidden")
_RNN = ("gates", "weight", "hidden")
_RECORDED = "a gradient whose history is recorded is a composition of other rows"

# gates (T, B, 4 H): the products of all inputs, with all biases, for the gates i, f, g, o; weight
# (4 H, H); hidden and memory (B, H), before the first step -> hidden states and memories (T, B, H)
# of all steps, and the gates after their functions (T, B, 4 H):
#   c' = f c + i g,  h' = o tanh(c')  with  i, f, o = sigmoid, g = tanh  of  gates + h weight.T
# `reverse`: from the last step to the first. Memories of half types are float32.
lstm: Op = Op(
    "lstm", "kernel", _infer(4, _LSTM), numpy=_lstm,
    gradient=tuple(_rule(_LSTM, name, _lstm_gradients) for name in _LSTM),
    batch=_batched(lambda: lstm, (0, 2, 3)), cost=8,
)  # fmt: skip

# The cotangents of gates, hidden and memory from those of hidden states and of memories.
lstm_backward: Op = Op(
    "lstm_backward", "kernel", _infer_backward, numpy=_lstm_backward, gradient=_RECORDED,
    batch=_batched(lambda: lstm_backward, (0, 1, 2, 3, 4)), cost=16,
)  # fmt: skip

# gates (T, B, 3 H) for r, z, n, with all biases but one; bias (H,) of the product for n ->
# hidden states (T, B, H), and r, z, n and that product (T, B, 4 H):
#   h' = (1 - z) n + z h,  n = tanh(gates + r (h weight.T + bias)),  r, z = sigmoid
gru: Op = Op(
    "gru", "kernel", _infer(3, _GRU), numpy=_gru,
    gradient=tuple(_rule(_GRU, name, _gru_gradients) for name in _GRU),
    batch=_batched(lambda: gru, (0, 3)), cost=8,
)  # fmt: skip

# The cotangents of gates (T, B, 3 H), of the product for n (T, B, H), and of hidden.
gru_backward: Op = Op(
    "gru_backward", "kernel", _infer_backward, numpy=_gru_backward, gradient=_RECORDED,
    batch=_batched(lambda: gru_backward, (0, 1, 2, 3)), cost=16,
)  # fmt: skip

# gates (T, B, H), weight (H, H), hidden (B, H) -> h' = tanh(gates + h weight.T), or ReLU.
rnn: Op = Op(
    "rnn", "kernel", _infer(1, _RNN), numpy=_rnn,
    gradient=tuple(_rule(_RNN, name, _rnn_gradients) for name in _RNN),
    batch=_batched(lambda: rnn, (0, 2)), cost=4,
)  # fmt: skip

# The cotangents of gates and of hidden.
rnn_backward: Op = Op(
    "rnn_backward", "kernel", _infer_backward, numpy=_rnn_backward, gradient=_RECORDED,
    batch=_batched(lambda: rnn_backward, (0, 1)), cost=8,
)  # fmt: skip

FORWARD: tuple[Op, ...] = (lstm, gru, rnn)
ROWS: tuple[Op, ...] = (*FORWARD, lstm_backward, gru_backward, rnn_backward)

_COMPOSITIONS: dict[Op, Callable[..., tuple[Node, ...]]] = {
    lstm: _lstm_nodes,
    lstm_backward: _lstm_backward_nodes,
    gru: _gru_nodes,
    gru_backward: _gru_backward_nodes,
    rnn: _rnn_nodes,
    rnn_backward: _rnn_backward_nodes,
}
