"""The table from a row of the op table to ONNX nodes.

An exporter takes the writer and the step, writes nodes, and gives the names of the results.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import bool_, float32, int64
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.onnx.recording import Formula, Number, Step
from tinygrad_cuda.onnx.writer import INT64_MAX, Writer, is_zero

Exporter = Callable[[Writer, Step], list[str]]

# Elementwise --------------------------------------------------------------------------------------


def _same(kind: str, **attributes: Any) -> Exporter:
    """An operation that ONNX has."""
    return lambda w, step: [w.add(kind, *w.operands(step), **attributes)]


def _composed(build: Callable[..., str]) -> Exporter:
    """An operation as several of ONNX; `build` takes the writer, the step and operand names."""
    return lambda w, step: [build(w, step, *w.operands(step))]


def _of_bool(kind: str, other: str) -> Exporter:
    """An operation that has another name for booleans."""

    def export(w: Writer, step: Step) -> list[str]:
        return [w.add(other if step.node.dtype is bool_ else kind, *w.operands(step))]

    return export


def _like(w: Writer, step: Step, value: float) -> str:
    return w.constant(value, step.sources[0].node.dtype)


def _floor_divide(w: Writer, step: Step, a: str, b: str) -> str:
    if step.node.dtype.is_floating:
        return w.add("Floor", w.add("Div", a, b))
    return w.add("Div", w.add("Sub", a, w.add("Mod", a, b)), b)


def _remainder(w: Writer, step: Step, a: str, b: str) -> str:
    if not step.node.dtype.is_floating:
        return w.add("Mod", a, b)
    return w.add("Sub", a, w.add("Mul", w.add("Floor", w.add("Div", a, b)), b))


def _atan2(w: Writer, step: Step, y: str, x: str) -> str:
    """The angle of the half plane x > 0, moved by pi where x < 0; at x = 0 that of y's sign."""
    zero, half, whole = (_like(w, step, value) for value in (0, np.pi / 2, np.pi))
    left, above = w.add("Less", x, zero), w.add("GreaterOrEqual", y, zero)
    origin = w.add("Equal", x, zero)
    safe = w.add("Where", origin, _like(w, step, 1), x)
    angle = w.add("Atan", w.add("Div", y, safe))
    turn = w.add("Where", above, whole, w.add("Neg", whole))
    moved = w.add("Where", left, w.add("Add", angle, turn), angle)
    upright = w.add("Mul", w.add("Sign", y), half)
    return w.add("Where", origin, upright, moved)


def _isfinite(w: Writer, step: Step, x: str) -> str:
    return w.add("Not", w.add("Or", w.add("IsNaN", x), w.add("IsInf", x)))


def _trunc(w: Writer, step: Step, x: str) -> str:
    return w.add("Mul", w.add("Sign", x), w.add("Floor", w.add("Abs", x)))


def _copysign(w: Writer, step: Step, a: str, b: str) -> str:
    negative = w.add("Less", b, _like(w, step, 0))
    size = w.add("Abs", a)
    return w.add("Where", negative, w.add("Neg", size), size)


def _where(w: Writer, step: Step) -> list[str]:
    """A choice by x <= 0 between 0 and x is a ReLU."""
    condition, zero, x = step.sources
    if condition.op == "le" and is_zero(zero):
        left, right = condition.sources
        if left is x and is_zero(right):
            return [w.add("Relu", w.value(x))]
    return [w.add("Where", *w.operands(step))]


def _cast(w: Writer, step: Step) -> list[str]:
    return [w.add("Cast", w.value(step.sources[0]), to=w.kind(step.node.dtype))]


def _add(w: Writer, step: Step) -> list[str]:
    """A bias after a product or a convolution is an operand of that."""
    if step.node.dtype is bool_:
        return [w.add("Or", *w.operands(step))]
    first, second = step.sources
    for product, other in ((first, second), (second, first)):
        small = _bias_of(product, other)
        if small is None or product.readers > 1:
            continue
        if product.op == "convolution":
            return [_convolution(w, product, w.value(small))]
        if product.op == "convolution_input_gradient":
            return [_transposed_convolution(w, product, w.value(small))]
        if product.op == "matmul" and _is_linear(product):
            return [_gemm(w, product, w.value(small))]
    return [w.add("Add", *w.operands(step))]


def _bias_of(product: Step, other: Step) -> Step | None:
    """The vector that is added to all rows or channels, before it was expanded."""
    if other.op != "expand" or product.op == "expand":
        return None
    axis = 1 if product.op.startswith("convolution") else len(product.node.shape) - 1
    (small,) = other.sources
    while small.op in ("reshape", "detach", "variable") and small.sources:
        small = small.sources[0]
    shape = other.sources[0].node.shape
    size = product.node.shape[axis]
    expected = tuple(size if k == axis else 1 for k in range(len(shape)))
    return small if shape == expected and small.node.shape == (size,) else None


def _div(w: Writer, step: Step) -> list[str]:
    """``exp(x - max(x)) / sum(exp(x - max(x)))`` is a softmax."""
    exponentials, total = step.sources[0], _before(step.sources[1], "expand", "sum")
    if exponentials.op == "exp" and total is not None and total.sources[0] is exponentials:
        axes = total.attribute("axes")
        difference = exponentials.sources[0]
        if difference.op == "sub" and len(axes) == 1:
            x = difference.sources[0]
            largest = _before(difference.sources[1], "expand", "max")
            if largest is not None and largest.sources[0] is x and (
                largest.attribute("axes") == axes
            ):  # fmt: skip
                return [w.add("Softmax", w.value(x), axis=axes[0])]
    return [w.add("Div", *w.operands(step))]


def _before(step: Step, *ops: str) -> Step | None:
    """The last of a chain of operations, from the outermost inwards; or None."""
    for k, op in enumerate(ops):
        if step.op != op:
            return None
        if k + 1 < len(ops):
            step = step.sources[0]
    return step


# Movements ----------------------------------------------------------------------------------------


def _reshape(w: Writer, step: Step) -> list[str]:
    return [w.add("Reshape", w.value(step.sources[0]), w.target(step.dims()))]


def _permute(w: Writer, step: Step) -> list[str]:
    return [w.add("Transpose", w.value(step.sources[0]), perm=list(step.attribute("axes")))]


def _expand(w: Writer, step: Step) -> list[str]:
    return [w.add("Expand", w.value(step.sources[0]), w.ints(step.dims()))]


def _whole(node: Node, axis: int) -> bool:
    """Whether a slice takes an axis as it is."""
    how = node.attributes
    return (how["starts"][axis], how["steps"][axis]) == (0, 1) and (
        node.shape[axis] == node.sources[0].shape[axis]
    )


def _end(node: Node, axis: int) -> int:
    start, step = node.attributes["starts"][axis], node.attributes["steps"][axis]
    return int(start + (node.shape[axis] - 1) * step + 1 if node.shape[axis] else start)


def _slice(w: Writer, step: Step) -> list[str]:
    axes = [
        axis for axis in range(len(step.node.shape))
        if not all(_whole(node, axis) for node in step.nodes)
    ]  # fmt: skip
    x = w.value(step.sources[0])
    if not axes:
        return [w.add("Identity", x)]
    starts = step.numbers(lambda node: [node.attributes["starts"][a] for a in axes], "its start")
    ends = step.numbers(lambda node: [_end(node, a) for a in axes], "its end")
    steps = [step.attribute("steps")[axis] for axis in axes]
    return [w.add("Slice", x, w.ints(starts), w.ints(ends), w.ints(axes), w.ints(steps))]


def _flip(w: Writer, step: Step) -> list[str]:
    axes = list(step.attribute("axes"))
    count = len(axes)
    lowest = w.ints([-INT64_MAX] * count)
    backwards = w.ints([-1] * count)
    return [w.add("Slice", w.value(step.sources[0]), backwards, lowest, w.ints(axes), backwards)]


def _pad(w: Writer, step: Step) -> list[str]:
    (source,) = step.sources
    x = w.value(source)
    value = w.number(step.number(lambda node: node.attributes["value"], "its value"),
                     step.node.dtype)  # fmt: skip
    steps = step.attribute("steps")
    for axis, stride in enumerate(steps):
        if stride > 1:
            x = _spread(w, source, x, axis, steps, value)
    starts = step.numbers(lambda node: node.attributes["starts"], "its start")
    ends = step.numbers(_rests, "its padding")
    if not any([*starts, *ends]):
        return [w.add("Identity", x)]
    if step.node.dtype is bool_:
        x = w.add("Cast", x, to=w.kind(np.dtype(np.uint8)))
        value = w.add("Cast", value, to=w.kind(np.dtype(np.uint8)))
    x = w.add("Pad", x, w.ints([*starts, *ends]), value)
    if step.node.dtype is bool_:
        x = w.add("Cast", x, to=w.kind(bool_))
    return [x]


def _rests(node: Node) -> list[int]:
    """How many elements follow the input along each axis."""
    how = node.attributes
    return [
        outer - start - ((size - 1) * step + 1 if size else 0)
        for outer, start, size, step in zip(
            node.shape, how["starts"], node.sources[0].shape, how["steps"]
        )
    ]


def _spread(
    w: Writer, source: Step, x: str, axis: int, steps: tuple[int, ...], value: str
) -> str:  # fmt: skip
    """x with ``steps[axis] - 1`` elements of a value between its elements."""

    def shape(node: Node, apart: bool) -> list[int]:
        """With the elements before `axis` spread already, and this one's gaps apart or joined."""
        sizes = [
            (size - 1) * step + 1 if k < axis else size
            for k, (size, step) in enumerate(zip(node.shape, steps))
        ]
        own = [sizes[axis], 1] if apart else [sizes[axis] * steps[axis]]
        return [*sizes[:axis], *own, *sizes[axis + 1 :]]

    rank = len(steps)
    x = w.add("Reshape", x, w.target(source.numbers(lambda node: shape(node, True), "its shape")))
    after = [steps[axis] - 1 if k == axis + 1 else 0 for k in range(rank + 1)]
    x = w.add("Pad", x, w.ints([0] * (rank + 1) + after), value)
    x = w.add("Reshape", x, w.target(source.numbers(lambda node: shape(node, False), "its shape")))
    end = source.number(lambda node: (node.shape[axis] - 1) * steps[axis] + 1, "its shape")
    return w.add("Slice", x, w.ints([0]), w.ints([end]), w.ints([axis]), w.ints([1]))


def _window(w: Writer, step: Step) -> list[str]:
    """A slice for each position of the window, which stand beside each other."""
    how = {name: step.attribute(name) for name in ("axis", "over", "stride", "dilation")}
    axis, over, stride = how["axis"], how["over"], how["stride"]
    x = w.value(step.sources[0])
    parts = []
    for k in range(step.node.shape[over]):
        start = k * how["dilation"]
        end = step.number(
            lambda node, start=start: start + (node.attributes["length"] - 1) * stride + 1,  # type: ignore[misc]
            "its length",
        )
        parts.append(w.add(
            "Slice", x, w.ints([start, k]), w.ints([end, k + 1]), w.ints([axis, over]),
            w.ints([stride, 1]),
        ))  # fmt: skip
    return [parts[0] if len(parts) == 1 else w.add("Concat", *parts, axis=over)]


# Reductions ---------------------------------------------------------------------------------------


def _reduction(kind: str) -> Exporter:
    def export(w: Writer, step: Step) -> list[str]:
        axes = w.ints(step.attribute("axes"))
        return [w.add(kind, w.value(step.sources[0]), axes, keepdims=1)]

    return export


def _logical(kind: str) -> Exporter:
    """A reduction of booleans, as integers."""

    def export(w: Writer, step: Step) -> list[str]:
        axes = w.ints(step.attribute("axes"))
        x = w.add("Cast", w.value(step.sources[0]), to=w.kind(np.dtype(np.int32)))
        return [w.add("Cast", w.add(kind, x, axes, keepdims=1), to=w.kind(bool_))]

    return export


def _position(kind: str) -> Exporter:
    """Of several axes: along the last, after the others have been joined with it."""

    def export(w: Writer, step: Step) -> list[str]:
        (source,) = step.sources
        axes, rank = step.attribute("axes"), len(step.node.shape)
        x = w.value(source)
        if len(axes) == 1:
            return [w.add(kind, x, axis=axes[0], keepdims=1)]
        others = [axis for axis in range(rank) if axis not in axes]
        x = w.add("Transpose", x, perm=[*others, *axes])
        joined = source.numbers(
            lambda node: [
                *(node.shape[axis] for axis in others), prod(node.shape[axis] for axis in axes)
            ],
            "its shape",
        )  # fmt: skip
        x = w.add(kind, w.add("Reshape", x, w.target(joined)), axis=len(others), keepdims=0)
        return [w.add("Reshape", x, w.target(step.dims()))]

    return export


def _welford(w: Writer, step: Step) -> list[str]:
    axes = w.ints(step.attribute("axes"))
    x = w.value(step.sources[0])
    mean = w.add("ReduceMean", x, axes, keepdims=1)
    return [mean, w.add("ReduceSumSquare", w.add("Sub", x, mean), axes, keepdims=1)]


# Products and convolutions ------------------------------------------------------------------------


def _is_linear(step: Step) -> bool:
    """Whether a product is one of a matrix and a transposed matrix."""
    return len(step.node.shape) == 2 and step.sources[1].op == "permute"


def _gemm(w: Writer, step: Step, *bias: str) -> str:
    a, b = step.sources
    return w.add("Gemm", w.value(a), w.value(b.sources[0]), *bias, transB=1)


def _matmul(w: Writer, step: Step) -> list[str]:
    if _is_linear(step) and step.node.dtype.is_floating:
        return [_gemm(w, step)]
    return [w.add("MatMul", *map(w.value, step.sources))]


def _geometry(step: Step) -> dict[str, Any]:
    padding = step.attribute("padding")
    return {
        "strides": list(step.attribute("stride")),
        "pads": [first for first, _ in padding] + [last for _, last in padding],
        "dilations": list(step.attribute("dilation")),
        "group": step.attribute("groups"),
    }


def _convolution(w: Writer, step: Step, *bias: str) -> str:
    x, weight = map(w.value, step.sources)
    how = _geometry(step)
    if min(how["pads"], default=0) < 0:
        raise step.error("a negative padding", [how["pads"]])
    kernel = list(step.sources[1].node.shape[2:])
    return w.add("Conv", x, weight, *bias, kernel_shape=kernel, **how)


def _transposed_convolution(w: Writer, step: Step, *bias: str) -> str:
    g, weight = step.sources
    how = _geometry(step)
    kernel = list(weight.node.shape[2:])

    def rest(node: Node) -> list[int]:
        sizes = zip(
            node.attributes["size"], node.sources[0].shape[2:], how["strides"],
            node.attributes["padding"], how["dilations"], kernel,
        )  # fmt: skip
        return [
            size - ((own - 1) * stride - first - last + dilation * (k - 1) + 1)
            for size, own, stride, (first, last), dilation, k in sizes
        ]

    output_padding = step.numbers(rest, "its padding")
    return w.add(
        "ConvTranspose", w.value(g), w.value(weight), *bias, kernel_shape=kernel,
        output_padding=output_padding, **how,
    )  # fmt: skip


# Indexing, scans ----------------------------------------------------------------------------------


def _gather(w: Writer, step: Step) -> list[str]:
    return [w.add("Gather", *map(w.value, step.sources), axis=0)]


def _scatter(**how: str) -> Exporter:
    def export(w: Writer, step: Step) -> list[str]:
        base, index, values = map(w.value, step.sources)
        index = w.add("Cast", index, to=w.kind(int64))
        index = w.add("Unsqueeze", index, w.ints([len(step.sources[1].node.shape)]))
        return [w.add("ScatterND", base, index, values, **how)]

    return export


def _cumsum(w: Writer, step: Step) -> list[str]:
    axis = w.constant(step.attribute("axis"), np.int64)
    return [w.add("CumSum", w.value(step.sources[0]), axis)]


def _order(w: Writer, step: Step) -> list[str]:
    count = w.ints([step.number(lambda node: node.attributes["count"], "its count")])
    largest = int(step.attribute("descending"))
    names = w.add_many("TopK", [w.value(step.sources[0]), count], 2, largest=largest, sorted=1)
    return names[1:]


# Attention and recurrences ------------------------------------------------------------------------


def _attention(w: Writer, step: Step) -> list[str]:
    """Softmax between two products; a row that sees no key gives 0."""
    q, k, v, mask, keep_mask = step.sources
    if step.attribute("dropout") or keep_mask.op != "constant":
        raise step.error("dropout", [step.attribute("dropout")])
    dtype, rank = step.node.dtype, len(step.node.shape)
    scaled = w.add("Mul", w.value(q), w.constant(step.attribute("scale"), dtype))
    swapped = [*range(rank - 2), rank - 1, rank - 2]
    scores = w.add("MatMul", scaled, w.add("Transpose", w.value(k), perm=swapped))
    lowest = w.constant(-np.inf, dtype)
    if step.attribute("causal"):
        sizes = step.numbers(lambda node: (node.shape[-2], node.sources[1].shape[-2]), "its size")
        ones = w.add("Expand", w.constant(1, np.int64), w.ints(sizes))
        seen = w.add("Cast", w.add("Trilu", ones, upper=0), to=w.kind(bool_))
        scores = w.add("Where", seen, scores, lowest)
    masked = mask.op != "constant"
    if masked and mask.node.dtype is bool_:
        scores = w.add("Where", w.value(mask), scores, lowest)
    elif masked:
        scores = w.add("Add", scores, w.value(mask))
    shares = w.add("Softmax", scores, axis=-1)
    if masked:
        shares = w.add("Where", w.add("IsNaN", shares), w.constant(0, dtype), shares)
    values = w.add("MatMul", shares, w.value(v))
    wide = float32 if dtype.is_half else dtype
    scores = w.add("Cast", scores, to=w.kind(wide))
    return [values, w.add("ReduceLogSumExp", scores, w.ints([-1]), keepdims=0)]


def _scan(
    body: Callable[..., tuple[list[str], list[str]]], states: int, weights: int, step: Step,
    w: Writer,
) -> list[str]:  # fmt: skip
    """A recurrence as a Scan over time, of a body that maps states and gates to states."""
    gates, *rest = step.sources
    outer = [w.value(source) for source in rest]
    inner = w.inner()
    dtype = w.kind(step.node.dtype)

    def described(name: str) -> Any:
        return w.helper.make_tensor_value_info(name, dtype, None)

    names = [inner.name("state") for _ in range(states)]
    own = inner.name("gates")
    after, shown = body(inner, step, own, outer[:weights], names)
    # A value may be an output once, and one that nothing has changed not at all.
    results = [inner.add("Identity", name) for name in [*after, *shown]]
    graph = w.helper.make_graph(
        inner.nodes, f"{step.op}_step", [described(name) for name in [*names, own]],
        [described(name) for name in results],
    )  # fmt: skip
    reverse = int(step.attribute("reverse"))
    results = w.add_many(
        "Scan", [*outer[weights:], w.value(gates)], len(results), body=graph, num_scan_inputs=1,
        scan_input_directions=[reverse], scan_output_directions=[reverse] * len(shown),
    )  # fmt: skip
    return results[states:]


def _apart(w: Writer, x: str, count: int, units: int) -> list[str]:
    """Each gate's columns."""
    sizes = w.ints([units] * count)
    return w.add_many("Split", [x, sizes], count, axis=1)


def _lstm_step(
    w: Writer, step: Step, gates: str, weights: list[str], states: list[str]
) -> tuple[list[str], list[str]]:
    hidden, memory = states
    total = w.add("Add", gates, w.add("Gemm", hidden, weights[0], transB=1))
    i, f, g, o = _apart(w, total, 4, step.node.shape[2])
    i, f, o = (w.add("Sigmoid", gate) for gate in (i, f, o))
    g = w.add("Tanh", g)
    memory = w.add("Add", w.add("Mul", f, memory), w.add("Mul", i, g))
    hidden = w.add("Mul", o, w.add("Tanh", memory))
    return [hidden, memory], [hidden, memory]


def _gru_step(
    w: Writer, step: Step, gates: str, weights: list[str], states: list[str]
) -> tuple[list[str], list[str]]:
    (hidden,), units = states, step.node.shape[2]
    r, z, n = _apart(w, gates, 3, units)
    own = _apart(w, w.add("Gemm", hidden, weights[0], transB=1), 3, units)
    r = w.add("Sigmoid", w.add("Add", r, own[0]))
    z = w.add("Sigmoid", w.add("Add", z, own[1]))
    n = w.add("Tanh", w.add("Add", n, w.add("Mul", r, w.add("Add", own[2], weights[1]))))
    hidden = w.add("Add", n, w.add("Mul", z, w.add("Sub", hidden, n)))
    return [hidden], [hidden]


def _rnn_step(
    w: Writer, step: Step, gates: str, weights: list[str], states: list[str]
) -> tuple[list[str], list[str]]:
    total = w.add("Add", gates, w.add("Gemm", states[0], weights[0], transB=1))
    hidden = w.add("Relu" if step.attribute("relu") else "Tanh", total)
    return [hidden], [hidden]


# Leaves and identities ----------------------------------------------------------------------------


def _arange(w: Writer, step: Step) -> list[str]:
    size: Number = step.dims()[0]
    start, stride = step.attribute("start"), step.attribute("step")
    dtype = step.node.dtype
    if not isinstance(size, Formula):
        values = start + stride * np.arange(size)
        return [w.constant(values.astype(dtype.numpy))]
    limit = w.number(size, int64)
    count = w.add("Range", w.constant(0, np.int64), limit, w.constant(1, np.int64))
    count = w.add("Cast", count, to=w.kind(dtype))
    scaled = w.add("Mul", count, w.constant(stride, dtype))
    return [w.add("Add", scaled, w.constant(start, dtype))]


def _alias(w: Writer, step: Step) -> list[str]:
    return [w.value(step.sources[0])]


def _result(w: Writer, step: Step) -> list[str]:
    return [step.sources[0].names[step.attribute("index")]]


def _later(w: Writer, step: Step) -> list[str]:
    """A constant has no node of its own where ONNX broadcasts a number."""
    return []


EXPORTERS: dict[str, Exporter] = {
    # leaves and identities
    "constant": _later, "scalar": _later, "arange": _arange, "output": _result,
    "variable": _alias, "detach": _alias, "contiguous": _alias, "custom": _alias,
    "check_index": _alias, "check_unit": _alias,
    # arithmetic
    "add": _add, "sub": _same("Sub"), "mul": _of_bool("Mul", "And"), "div": _div,
    "neg": _same("Neg"), "reciprocal": _same("Reciprocal"), "pow": _same("Pow"),
    "floor_divide": _composed(_floor_divide), "remainder": _composed(_remainder),
    "fmod": _same("Mod", fmod=1),
    "maximum": _of_bool("Max", "Or"), "minimum": _of_bool("Min", "And"),
    "abs": _same("Abs"), "sign": _same("Sign"), "floor": _same("Floor"), "ceil": _same("Ceil"),
    "round": _same("Round"), "trunc": _composed(_trunc),
    # comparison and logic
    "eq": _same("Equal"), "lt": _same("Less"), "le": _same("LessOrEqual"), "gt": _same("Greater"),
    "ge": _same("GreaterOrEqual"),
    "ne": _composed(lambda w, step, a, b: w.add("Not", w.add("Equal", a, b))),
    "logical_and": _same("And"), "logical_or": _same("Or"), "logical_xor": _same("Xor"),
    "logical_not": _same("Not"),
    "bitwise_and": _of_bool("BitwiseAnd", "And"), "bitwise_or": _of_bool("BitwiseOr", "Or"),
    "bitwise_xor": _of_bool("BitwiseXor", "Xor"), "bitwise_not": _of_bool("BitwiseNot", "Not"),
    "isnan": _same("IsNaN"), "isfinite": _composed(_isfinite), "where": _where, "cast": _cast,
    # exponentials, roots, trigonometry
    "exp": _same("Exp"), "log": _same("Log"), "sqrt": _same("Sqrt"), "sin": _same("Sin"),
    "cos": _same("Cos"), "tan": _same("Tan"), "asin": _same("Asin"), "acos": _same("Acos"),
    "atan": _same("Atan"), "sinh": _same("Sinh"), "cosh": _same("Cosh"), "tanh": _same("Tanh"),
    "asinh": _same("Asinh"), "acosh": _same("Acosh"), "atanh": _same("Atanh"),
    "sigmoid": _same("Sigmoid"), "erf": _same("Erf"), "atan2": _composed(_atan2),
    "exp2": _composed(lambda w, step, x: w.add("Pow", _like(w, step, 2), x)),
    "expm1": _composed(lambda w, step, x: w.add("Sub", w.add("Exp", x), _like(w, step, 1))),
    "log1p": _composed(lambda w, step, x: w.add("Log", w.add("Add", x, _like(w, step, 1)))),
    "log2": _composed(
        lambda w, step, x: w.add("Mul", w.add("Log", x), _like(w, step, 1 / np.log(2)))
    ),
    "rsqrt": _composed(lambda w, step, x: w.add("Reciprocal", w.add("Sqrt", x))),
    "erfc": _composed(lambda w, step, x: w.add("Sub", _like(w, step, 1), w.add("Erf", x))),
    "copysign": _composed(_copysign),
    "hypot": _composed(lambda w, step, a, b: w.add(
        "Sqrt", w.add("Add", w.add("Mul", a, a), w.add("Mul", b, b))
    )),
    # movements
    "reshape": _reshape, "permute": _permute, "expand": _expand, "slice": _slice, "flip": _flip,
    "pad": _pad, "window": _window,
    # reductions
    "sum": _reduction("ReduceSum"), "prod": _reduction("ReduceProd"),
    "max": _reduction("ReduceMax"), "min": _reduction("ReduceMin"),
    "any": _logical("ReduceMax"), "all": _logical("ReduceMin"),
    "argmax": _position("ArgMax"), "argmin": _position("ArgMin"), "welford": _welford,
    # products, indexing, scans
    "matmul": _matmul,
    "convolution": lambda w, step: [_convolution(w, step)],
    "convolution_input_gradient": lambda w, step: [_transposed_convolution(w, step)],
    "gather": _gather, "scatter": _scatter(), "scatter_add": _scatter(reduction="add"),
    "cumsum": _cumsum, "order": _order,
    # attention and recurrences
    "attention": _attention,
    "lstm": lambda w, step: _scan(_lstm_step, 2, 1, step, w),
    "gru": lambda w, step: _scan(_gru_step, 1, 2, step, w),
    "rnn": lambda w, step: _scan(_rnn_step, 1, 1, step, w),
}  # fmt: skip
