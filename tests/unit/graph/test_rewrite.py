"""Each rewrite rule fires where it should, keeps the values, and leaves look-alikes alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinygrad_cuda.backend.cpu.backend import CpuBackend
from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.dtypes import (
    ALL,
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int32,
    uint8,
)
from tinygrad_cuda.core.errors import Site
from tinygrad_cuda.graph.node import Node, node_made, topological
from tinygrad_cuda.graph.ops import common, contraction, indexing, random, scan
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.graph.ops.convolution import convolution as convolve
from tinygrad_cuda.graph.ops.convolution import convolution_input_gradient
from tinygrad_cuda.graph.ops.windows import padded
from tinygrad_cuda.graph.program import Argument, Program
from tinygrad_cuda.graph.rewrite import RULES, simplify

NAN, INF = math.nan, math.inf


def finite(x: Node) -> Node:
    """Ones and zeros: padding times an infinite weight would be NaN."""
    return ew.cast(ew.gt(x, const(0, x)), dtype=x.dtype)


def windows_at(pad: int = 0) -> dict[str, Any]:
    """The attributes of a plain convolution of images."""
    return {"stride": (1, 1), "padding": ((pad, pad),) * 2, "dilation": (1, 1), "groups": 1}


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-3, 7.25, -1e4, INF, -INF, NAN]


def buffer(slot: int = 0, shape: tuple[int, ...] = (3, 4), dtype: DType = float32) -> Node:
    return common.buffer.leaf(shape, dtype, CPU, slot=slot)


def const(value: Any, like: Node) -> Node:
    return common.full_like(like, value)


def values(node: Node, seed: int = 0) -> np.ndarray[Any, Any]:
    """Data for a buffer: special values first, then random ones."""
    rng = np.random.default_rng([seed, node.attributes["slot"]])
    count = math.prod(node.shape)
    dtype = node.dtype
    if dtype is bool_:
        flat = rng.integers(0, 2, count).astype(bool)
    elif dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        flat = rng.integers(info.min, info.max, count, dtype=dtype.numpy, endpoint=True)
        flat[: min(count, 3)] = [0, 1, info.min][: min(count, 3)]
    else:
        flat = rng.normal(size=count) * 3
        chosen = rng.permutation(SPECIAL)[:count]
        flat[: len(chosen)] = chosen
        flat = flat.astype(dtype.numpy)
    return flat.reshape(node.shape)


def evaluate(outputs: tuple[Node, ...], arguments: list[Any] | None = None) -> list[Any]:
    nodes = topological(outputs)
    inputs = {n.attributes["slot"]: n for n in nodes if n.op is common.buffer}
    slots = max(inputs, default=-1) + 1
    arrays = [values(inputs[k]) if k in inputs else None for k in range(slots)]
    program = Program(CPU, outputs, tuple(inputs.values()))
    return CpuBackend(CPU).compile(program).run(arrays, arguments or [])


def assert_same(before: Any, after: Any, tolerance: float = 0.0) -> None:
    assert before.dtype == after.dtype
    assert before.shape == after.shape
    if before.dtype.kind not in "iub":
        before, after = before.astype(np.float64), after.astype(np.float64)
        if tolerance == 0.0:
            finite = ~np.isnan(before)
            np.testing.assert_array_equal(np.signbit(before[finite]), np.signbit(after[finite]))
    np.testing.assert_allclose(after, before, rtol=tolerance, atol=0)


X, Y, Z = buffer(0), buffer(1), buffer(2)
B, C = buffer(0, dtype=bool_), buffer(1, dtype=bool_)
I, J, U = buffer(0, dtype=int32), buffer(1, dtype=int32), buffer(0, dtype=uint8)
H = buffer(0, dtype=float16)
THIN = buffer(0, (3, 1, 4))
ONES = (1, 1)


class Case(NamedTuple):
    """A graph, the rules that must fire on it, and what is left of it."""

    rule: str
    build: Callable[[], Node]
    left: str
    tolerance: float = 0.0


def two(node: Node, index: int) -> Node:
    return common.output(node, index=index)


def pair() -> Node:
    return common.custom(ew.sin(X), ew.cos(Y), Z, results=2, function=lambda *g: g)


def expand(x: Node, *shape: int) -> Node:
    return mv.expand(x, shape=shape)


def pad(x: Node, starts: tuple[int, ...], shape: tuple[int, ...], value: float = 0.0) -> Node:
    return mv.pad(x, starts=starts, shape=shape, steps=(1,) * len(shape), value=value)


def cut(x: Node, starts: tuple[Any, ...], shape: tuple[int, ...], *steps: int) -> Node:
    return mv.slice_(x, starts=starts, shape=shape, steps=steps or (1,) * len(shape))


def windows(x: Node) -> Node:
    return mv.unwindow(x, axis=0, over=1, length=9, stride=2, dilation=1)


CASES = [
    Case("variable", lambda: ew.sin(common.variable(X)), "buffer sin"),
    Case("detach", lambda: ew.sin(common.detach(X)), "buffer sin"),
    Case("custom", lambda: common.with_history(ew.sin(X), ew.cos(Y)), "buffer sin"),
    Case("custom", lambda: ew.neg(pair()), "buffer sin neg"),
    Case("custom output", lambda: two(pair(), 1), "buffer cos"),
    Case("custom output", lambda: two(common.detach(pair()), 1), "buffer cos"),
    Case("empty", lambda: ew.sin(buffer(0, (0, 4))), "constant"),
    Case("empty", lambda: rd.sum(buffer(0, (0, 4)), axes=(1,)), "constant"),
    Case("fold constants", lambda: ew.add(const(1.5, X), const(0.1, X)), "constant"),
    Case("fold constants", lambda: ew.mul(const(1.1, H), const(1.1, H)), "constant"),
    Case("fold constants", lambda: ew.cast(const(-1.7, X), dtype=uint8), "constant"),
    Case("fold constants", lambda: ew.div(const(0, X), const(0, X)), "constant"),
    Case("fold constants", lambda: ew.add(const(2**31 - 1, I), const(1, I)), "constant"),
    Case("fold constants", lambda: ew.exp(const(1, X)), "constant", 1e-6),
    Case("x + 0", lambda: ew.add(X, const(-0.0, X)), "buffer"),
    Case("x + 0", lambda: ew.add(const(0, I), I), "buffer"),
    Case("x + 0", lambda: ew.add(B, const(False, B)), "buffer"),
    Case("x + 0", lambda: ew.add(ew.abs(X), const(0.0, X)), "buffer abs"),
    Case("x + 0", lambda: ew.add(ew.cast(I, dtype=float32), const(0.0, X)), "buffer cast"),
    Case("x + -y", lambda: ew.add(X, ew.neg(Y)), "buffer buffer sub"),
    Case("x + -y", lambda: ew.add(ew.neg(X), Y), "buffer buffer sub"),
    Case("x - 0", lambda: ew.sub(X, const(0.0, X)), "buffer"),
    Case("0 - x", lambda: ew.sub(const(0, I), I), "buffer neg"),
    Case("0 - x", lambda: ew.sub(const(0, U), U), "buffer neg"),
    Case("0 - x", lambda: ew.sub(const(-0.0, X), X), "buffer neg"),
    Case("x - -y", lambda: ew.sub(X, ew.neg(Y)), "buffer buffer add"),
    Case("x - x", lambda: ew.sub(I, I), "constant"),
    Case("x * 1", lambda: ew.mul(const(1, X), X), "buffer"),
    Case("x * 1", lambda: ew.mul(B, const(True, B)), "buffer"),
    Case("x * -1", lambda: ew.mul(X, const(-1, X)), "buffer neg"),
    Case("x * 0", lambda: ew.mul(I, const(0, I)), "constant"),
    Case("x * 0", lambda: ew.mul(B, const(False, B)), "constant"),
    Case("-x * -y", lambda: ew.mul(ew.neg(X), ew.neg(Y)), "buffer buffer mul"),
    Case("-x * -y", lambda: ew.div(ew.neg(X), ew.neg(Y)), "buffer buffer div"),
    Case("-x * c", lambda: ew.mul(const(3.5, X), ew.neg(X)), "buffer constant mul"),
    Case("-x * c", lambda: ew.mul(const(3, U), ew.neg(U)), "buffer constant mul"),
    Case(
        "(x + c) + d",
        lambda: ew.add(const(2**31 - 1, I), ew.add(I, const(9, I))),
        "buffer constant add",
    ),
    Case(
        "(x + c) + d", lambda: ew.mul(ew.mul(const(77, I), I), const(9, I)), "buffer constant mul"
    ),
    Case("x / 1", lambda: ew.div(X, const(1, X)), "buffer"),
    Case("x / 2^k", lambda: ew.div(X, const(-8, X)), "buffer constant mul"),
    Case("x / 2^k", lambda: ew.div(H, const(0.125, H)), "buffer constant mul"),
    Case("x ** c", lambda: ew.pow(X, const(2, X)), "buffer mul", 1e-7),
    Case("x ** c", lambda: ew.pow(I, const(2, I)), "buffer mul"),
    Case("x ** c", lambda: ew.pow(X, const(1, X)), "buffer"),
    Case("x ** c", lambda: ew.pow(X, const(0, X)), "constant"),
    Case("--x", lambda: ew.neg(ew.neg(X)), "buffer"),
    Case("abs", lambda: ew.abs(ew.abs(X)), "buffer abs"),
    Case("abs", lambda: ew.abs(ew.neg(X)), "buffer abs"),
    Case("abs", lambda: ew.abs(ew.neg(I)), "buffer abs"),
    Case("round twice", lambda: ew.floor(ew.round(X)), "buffer round"),
    Case("max(x, x)", lambda: ew.maximum(X, X), "buffer"),
    Case("x and x", lambda: ew.logical_and(B, B), "buffer"),
    Case("x and x", lambda: ew.bitwise_or(I, I), "buffer"),
    Case("x xor x", lambda: ew.bitwise_xor(I, I), "constant"),
    Case("x and true", lambda: ew.logical_and(B, const(True, B)), "buffer"),
    Case("x and true", lambda: ew.logical_and(const(False, B), B), "constant"),
    Case("x and true", lambda: ew.logical_or(B, const(True, B)), "constant"),
    Case("x and true", lambda: ew.logical_or(B, const(False, B)), "buffer"),
    Case("x and true", lambda: ew.logical_xor(B, const(False, B)), "buffer"),
    Case("x and true", lambda: ew.logical_xor(B, const(True, B)), "buffer logical_not"),
    Case("x and true", lambda: ew.bitwise_and(I, const(-1, I)), "buffer"),
    Case("x and true", lambda: ew.bitwise_and(I, const(0, I)), "constant"),
    Case("x and true", lambda: ew.bitwise_or(U, const(255, U)), "constant"),
    Case("x and true", lambda: ew.bitwise_xor(I, const(-1, I)), "buffer bitwise_not"),
    Case("x and true", lambda: ew.bitwise_xor(B, const(True, B)), "buffer bitwise_not"),
    Case("not not x", lambda: ew.logical_not(ew.logical_not(B)), "buffer"),
    Case("not not x", lambda: ew.bitwise_not(ew.bitwise_not(I)), "buffer"),
    Case("not x == y", lambda: ew.logical_not(ew.eq(X, Y)), "buffer buffer ne"),
    Case("not x == y", lambda: ew.logical_not(ew.lt(I, J)), "buffer buffer ge"),
    Case("x < x", lambda: ew.lt(X, X), "constant"),
    Case("x < x", lambda: ew.le(I, I), "constant"),
    Case("x < x", lambda: ew.ne(I, I), "constant"),
    Case("where(true, x, y)", lambda: ew.where(const(True, B), I, J), "buffer"),
    Case("where(true, x, y)", lambda: ew.where(const(False, B), I, J), "buffer"),
    Case("where(c, x, x)", lambda: ew.where(ew.eq(X, Y), Y, Y), "buffer"),
    Case(
        "where(not c, x, y)",
        lambda: ew.where(ew.logical_not(ew.lt(X, Y)), X, Y),
        "buffer buffer lt where",
    ),
    Case(
        "where(c, where(c, x, y), z)",
        lambda: ew.where(ew.lt(X, Y), ew.where(ew.lt(X, Y), X, Z), Y),
        "buffer buffer lt where",
    ),
    Case(
        "where(c, where(c, x, y), z)",
        lambda: ew.where(ew.lt(X, Y), X, ew.where(ew.lt(X, Y), Z, Y)),
        "buffer buffer lt where",
    ),
    Case("where(c, true, false)", lambda: ew.where(B, const(True, B), const(False, B)), "buffer"),
    Case(
        "where(c, true, false)",
        lambda: ew.where(B, const(False, B), const(True, B)),
        "buffer logical_not",
    ),
    Case("cast to its own dtype", lambda: ew.cast(X, dtype=float32), "buffer"),
    Case("widen and cast", lambda: ew.cast(ew.cast(H, dtype=float32), dtype=float16), "buffer"),
    Case("widen and cast", lambda: ew.cast(ew.cast(H, dtype=float32), dtype=int32), "buffer cast"),
    Case("identity", lambda: mv.reshape(X, shape=(3, 4)), "buffer"),
    Case("identity", lambda: mv.permute(X, axes=(0, 1)), "buffer"),
    Case("identity", lambda: mv.permute(buffer(0, (3, 1, 1)), axes=(0, 2, 1)), "buffer"),
    Case("identity", lambda: expand(X, 3, 4), "buffer"),
    Case("identity", lambda: cut(X, (0, 0), (3, 4)), "buffer"),
    Case("identity", lambda: pad(X, (0, 0), (3, 4)), "buffer"),
    Case("identity", lambda: mv.flip(THIN, axes=(1,)), "buffer"),
    Case("constant moved", lambda: mv.reshape(const(2, X), shape=(12,)), "constant"),
    Case("constant moved", lambda: mv.permute(const(2, X), axes=(1, 0)), "constant"),
    Case("constant moved", lambda: expand(const(2, THIN), 3, 5, 4), "constant"),
    Case("constant moved", lambda: cut(const(2, X), (1, 1), (2, 2)), "constant"),
    Case("constant moved", lambda: mv.flip(const(2, X), axes=(1,)), "constant"),
    Case("constant moved", lambda: pad(const(NAN, X), (1, 1), (5, 6), NAN), "constant"),
    Case("constant moved", lambda: windows(expand(const(0, THIN), 3, 3, 4)), "constant"),
    Case(
        "reshape twice",
        lambda: mv.reshape(mv.reshape(X, shape=(12,)), shape=(2, 6)),
        "buffer reshape",
    ),
    Case(
        "permute twice",
        lambda: mv.permute(mv.permute(buffer(0, (2, 3, 4)), axes=(1, 2, 0)), axes=(2, 1, 0)),
        "buffer permute",
    ),
    Case("permute twice", lambda: mv.permute(mv.permute(X, axes=(1, 0)), axes=(1, 0)), "buffer"),
    Case("expand twice", lambda: expand(expand(buffer(0, ONES), 3, 1), 3, 5), "buffer expand"),
    Case("flip twice", lambda: mv.flip(mv.flip(X, axes=(0,)), axes=(0, 1)), "buffer flip"),
    Case("flip twice", lambda: mv.flip(mv.flip(X, axes=(0,)), axes=(0,)), "buffer"),
    Case("slice of pad", lambda: cut(pad(X, (1, 2), (5, 7)), (1, 2), (3, 4)), "buffer"),
    Case("slice of pad", lambda: cut(pad(X, (2, 3), (8, 9), 2), (1, 3), (5, 5)), "buffer pad"),
    Case(
        "slice of pad",
        lambda: cut(
            mv.pad(X, starts=(2, 1), shape=(9, 12), steps=(2, 3), value=1), (0, 1), (8, 10)
        ),
        "buffer pad",
    ),
    Case(
        "slice twice",
        lambda: cut(cut(buffer(0, (20, 9)), (1, 2), (6, 7), 3, 1), (1, 0), (2, 3), 2, 2),
        "buffer slice",
    ),
    Case(
        "pad twice",
        lambda: mv.pad(
            mv.pad(X, starts=(1, 0), shape=(5, 7), steps=(1, 2), value=2),
            starts=(2, 1), shape=(18, 9), steps=(3, 1), value=2,
        ),
        "buffer pad",
    ),
    Case(
        "window of unwindow",
        lambda: mv.window(
            windows(buffer(0, (4, 3))), axis=0, over=1, length=4, stride=2, dilation=1
        ),
        "buffer",
    ),
    Case("reduce nothing", lambda: rd.sum(buffer(0, (2, 0)), axes=(1,)), "constant"),
    Case("reduce nothing", lambda: rd.prod(buffer(0, (2, 0)), axes=(1,)), "constant"),
    Case("reduce nothing", lambda: rd.all(buffer(0, (2, 0), bool_), axes=(1,)), "constant"),
    Case("reduce one element", lambda: rd.max(THIN, axes=(1,)), "buffer"),
    Case("reduce one element", lambda: rd.sum(I, axes=()), "buffer"),
    Case("reduce one element", lambda: rd.argmax(THIN, axes=(1,)), "constant"),
    Case("reduce constant", lambda: rd.sum(const(0.1, X), axes=(0, 1)), "constant", 1e-6),
    Case("reduce constant", lambda: rd.sum(const(2**31 - 1, I), axes=(0,)), "constant"),
    Case("reduce constant", lambda: rd.prod(const(-77, I), axes=(0, 1)), "constant"),
    Case("reduce constant", lambda: rd.prod(const(1, X), axes=(0,)), "constant"),
    Case("reduce constant", lambda: rd.min(const(NAN, X), axes=(0,)), "constant"),
    Case("reduce constant", lambda: rd.any(const(True, B), axes=(0,)), "constant"),
    Case("reduce constant", lambda: rd.argmin(const(4, X), axes=(0,)), "constant"),
    Case("reduce expanded", lambda: rd.max(expand(THIN, 3, 5, 4), axes=(1,)), "buffer"),
    Case(
        "reduce expanded",
        lambda: rd.sum(expand(THIN, 3, 5, 4), axes=(1,)),
        "buffer constant mul",
        1e-6,
    ),
    Case(
        "reduce expanded",
        lambda: rd.max(expand(THIN, 3, 5, 4), axes=(2,)),
        "buffer max expand",
    ),
    Case(
        "running sums and orders",
        lambda: scan.cumsum(X, axis=len(X.shape) - 1),
        "buffer expand pad reshape reshape sum window",
        1e-6,
    ),
    Case("matmul over nothing", lambda: contraction.matmul(buffer(0, (2, 0)), buffer(1, (0, 3))),
         "constant"),
    Case(
        "convolution over nothing",
        lambda: convolve(buffer(0, (2, 0, 5, 5)), buffer(1, (3, 0, 3, 3)), **windows_at()),
        "constant",
    ),
    Case(
        "input gradient",  # a flipped kernel, with its channels exchanged
        lambda: convolution_input_gradient(
            buffer(0, (2, 3, 5, 5)), finite(buffer(1, (3, 4, 3, 3))), size=(5, 5), **windows_at(1)
        ),
        "buffer buffer constant gt cast reshape permute reshape flip convolution",
        1e-4,
    ),
    Case(
        "input gradient",  # with a stride: a convolution for each phase
        lambda: convolution_input_gradient(
            buffer(0, (2, 3, 2)), buffer(1, (3, 4, 2)), size=(4,), stride=(2,),
            padding=((0, 0),), dilation=(1,), groups=1,
        ),
        "buffer buffer add" + 2 * " slice reshape permute reshape convolution pad",
        1e-5,
    ),
    Case(
        "convolution of padding",
        lambda: convolve(padded(buffer(0, (2, 4, 5, 5)), ((1, 0), (2, 1))),
                         buffer(1, (3, 4, 3, 3)), **windows_at(1)),
        "buffer buffer convolution",
        1e-5,
    ),
]  # fmt: skip


def ops(outputs: tuple[Node, ...]) -> str:
    return " ".join(node.op.name for node in topological(outputs))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_rule(case: Case) -> None:
    """The rule fires, what is left is what it promises, and the values are equal."""
    before = case.build()
    counts: dict[str, int] = {}
    after = simplify([before], counts)
    assert counts.get(case.rule), counts
    # Identities of autograd have no reference, so they are compared by a graph without them.
    assert sorted(ops(after).split()) == sorted(case.left.split())
    assert (after[0].shape, after[0].dtype) == (before.shape, before.dtype)
    if all(node.op.kind != "identity" for node in topological([before])):
        assert_same(evaluate((before,))[0], evaluate(after)[0], case.tolerance)


def test_every_rule_has_a_case() -> None:
    assert {rule.name for rule in RULES} == {case.rule for case in CASES}
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(
    "build",
    [
        lambda: ew.add(X, const(0.0, X)),
        lambda: ew.sub(X, const(-0.0, X)),
        lambda: ew.sub(const(0.0, X), X),
        lambda: ew.mul(X, const(0.0, X)),
        lambda: ew.sub(X, X),
        lambda: ew.add(ew.add(X, const(1, X)), const(2, X)),
        lambda: ew.div(X, const(3, X)),
        lambda: ew.div(X, const(2.0**-149, X)),
        lambda: ew.abs(ew.neg(U)),
        lambda: ew.logical_not(ew.lt(X, Y)),
        lambda: ew.eq(X, X),
        lambda: ew.cast(ew.cast(X, dtype=float16), dtype=float32),
        lambda: ew.cast(ew.cast(I, dtype=float32), dtype=int32),
        lambda: ew.cast(ew.cast(I, dtype=float64), dtype=float16),
        lambda: ew.cast(ew.cast(X, dtype=int32), dtype=float32),
        lambda: pad(const(1, X), (1, 1), (5, 6), 0),
        lambda: pad(const(-0.0, X), (1, 1), (5, 6), 0.0),
        lambda: pad(pad(X, (1, 1), (5, 6), 0.0), (0, 0), (7, 7), 1.0),
        lambda: cut(pad(X, (1, 2), (5, 7)), (0, 2), (3, 4)),
        lambda: rd.sum(expand(buffer(0, (1, 4), float16), 2049, 4), axes=(0,)),
        lambda: rd.prod(const(1.5, X), axes=(0,)),
        lambda: convolve(padded(buffer(0, (2, 4, 5, 5)), ((1, 0), (2, 1)), 1.0),
                         buffer(1, (3, 4, 3, 3)), **windows_at(1)),
        lambda: cut(pad(X, (2, 3), (8, 9), 2), (1, 4), (5, 5)),
        lambda: cut(pad(X, (2, 3), (8, 9), 2), (1, 2), (3, 6)),
        lambda: cut(pad(X, (2, 3), (8, 9), 2), (0, 0), (4, 9), 2, 1),
    ],
)  # fmt: skip
def test_no_rule(build: Callable[[], Node]) -> None:
    """Patterns that look alike but would change a value stay."""
    counts: dict[str, int] = {}
    before = build()
    after = simplify([before], counts)
    assert counts == {}
    assert after == (before,)


def test_an_argument_is_not_a_literal() -> None:
    """A number that each run supplies does not fold, though it moves like any constant."""
    varying = common.full_like(X, Argument(0))
    counts: dict[str, int] = {}
    after = simplify([ew.mul(X, ew.add(varying, const(1, X)))], counts)
    assert counts == {}
    small = common.full_like(THIN, Argument(0))
    moved = rd.sum(expand(small, 3, 5, 4), axes=(1,))
    (result,) = simplify([moved], counts)
    assert ops((result,)) == "constant constant mul"
    assert_same(evaluate((moved,), [2.5])[0], evaluate((result,), [2.5])[0])
    starts = {"starts": (Argument(0), 0), "shape": (2, 4), "steps": (1, 1)}
    first = node_made(mv.slice_, (X,), starts, (((2, 4), float32),), CPU, False, None)
    assert ops(simplify([cut(first, (1, 0), (1, 4))])) == "buffer slice slice"
    assert evaluate(after, [3.0])[0][0, 1] == values(X)[0, 1] * 4


def test_common_subexpressions() -> None:
    """Equal structure is one node, also with operands exchanged; different numbers are not."""
    counts: dict[str, int] = {}
    a = ew.add(ew.mul(X, Y), ew.mul(Y, X))
    assert ops(simplify([a], counts)) == "buffer buffer mul add"
    assert counts == {"common_subexpression": 1}
    assert ops(simplify([ew.sub(ew.div(X, Y), ew.div(Y, X))])) == "buffer buffer div div sub"
    for one, other in ((1, 2), (0.0, -0.0), (1.0, 1.0 + 2**-20)):
        graph = ew.mul(ew.maximum(X, const(one, X)), ew.maximum(X, const(other, X)))
        assert ops(simplify([graph])).split().count("constant") == 2
    for one, other in ((1, 1.0), (NAN, NAN), (0.1, float(np.float32(0.1)))):
        graph = ew.mul(ew.maximum(X, const(one, X)), ew.maximum(X, const(other, X)))
        assert ops(simplify([graph])) == "buffer constant maximum mul"


def test_random_leaves_are_equal_by_their_attributes() -> None:
    def leaf(number: int, shape: tuple[int, ...] = (3, 4), dtype: DType = float32) -> Node:
        return random.random_uniform.leaf(shape, dtype, CPU, seed=7, number=number)

    assert ops(simplify([ew.mul(leaf(1), leaf(1))])) == "random_uniform mul"
    assert ops(simplify([ew.mul(leaf(1), leaf(2))])) == "random_uniform random_uniform mul"
    assert len(set(simplify([leaf(1), leaf(1, (12,)), leaf(1, dtype=float64)]))) == 3
    normal = random.random_normal.leaf((3, 4), float32, CPU, seed=7, number=1)
    assert len(set(simplify([leaf(1), normal]))) == 2


def test_buffers_and_assigns_are_kept_apart() -> None:
    """An input is itself; two assigns are two requests for storage."""
    first = common.assign(X, ew.add(X, const(1, X)))
    second = common.assign(X, ew.add(X, const(1, X)))
    a, b, c = simplify([first, second, X])
    assert a is not b
    assert a.sources[1] is b.sources[1]
    assert a.sources[0] is X
    assert c is X
    (kept,) = simplify([common.assign(X, X)])
    assert kept.op is common.assign


def test_dead_sources_of_custom_are_not_visited() -> None:
    dead = ew.sin(Y)
    counts: dict[str, int] = {}
    (result,) = simplify([common.with_history(X, ew.neg(ew.neg(dead)))], counts)
    assert result is X
    assert counts == {"custom": 1}


def test_check_index_is_not_folded() -> None:
    index = indexing.check_index(const(9, I), limit=4, what="label", code=0)
    assert ops(simplify([index])) == "constant check_index"


def test_history_and_lines() -> None:
    """The result needs no gradient, and each node keeps the line of the node it came from."""
    x = common.variable(X)
    x.requires_grad = True
    y = ew.neg(ew.sub(ew.sin(x), ew.neg(x)))
    (result,) = simplify([y])
    for node in topological([result]):
        assert not node.requires_grad
        assert node.site is not None
        assert Site(*node.site).filename == __file__
    assert result.site == y.site


def test_deep_chains() -> None:
    """100,000 nodes in a row: no recursion, neither where nothing nor where all is erased."""
    kept, erased = X, X
    for _ in range(50_000):
        kept = ew.sin(kept)
        erased = common.detach(ew.neg(erased))
    result = simplify([kept, erased])
    assert len(topological(result[:1])) == 50_001
    assert result[1] is X


# Random graphs -------------------------------------------------------------------------------

UNARY = (ew.neg, ew.abs, ew.floor, ew.trunc, ew.sign)
BINARY = (ew.add, ew.sub, ew.mul, ew.div, ew.maximum, ew.minimum)
COMPARE = (ew.eq, ew.ne, ew.lt, ew.ge)
LITERALS = (0, 1, -1, 2, -0.0, 3.5, NAN, 0.25)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Node, ...]:
    """Graphs of rows whose references are exact, over special values and a few shapes."""
    dtype = draw(st.sampled_from((float32, float64, float16, bfloat16, int32, uint8, int8)))
    shapes = st.sampled_from(((2, 3), (1, 3), (3, 1), (2, 1, 3), (0, 2)))
    pool = [buffer(0, draw(shapes), dtype), buffer(1, draw(shapes), dtype)]
    for _ in range(draw(st.integers(1, 14))):
        pool.append(_grow(draw, pool))
    return tuple(pool[-3:])


def _grow(draw: st.DrawFn, pool: list[Node]) -> Node:
    x = draw(st.sampled_from(pool))
    partners = [node for node in pool if node.shape == x.shape and node.dtype is x.dtype]
    literals = [value for value in LITERALS if x.dtype.is_floating or value in (0, 1, -1, 2)]
    partner = draw(st.sampled_from([*partners, const(draw(st.sampled_from(literals)), x)]))
    kind = draw(st.sampled_from(("unary", "binary", "where", "cast", "move", "reduce")))
    if kind == "unary":
        allowed = UNARY if x.dtype.is_floating else (ew.neg, ew.abs, ew.sign)
        return draw(st.sampled_from(allowed))(x)
    if kind == "binary":
        op = draw(st.sampled_from(BINARY))
        if op is ew.div and not x.dtype.is_floating:
            op = ew.add
        return op(*draw(st.permutations((x, partner))))
    if kind == "where":
        condition = draw(st.sampled_from(COMPARE))(x, partner)
        if draw(st.booleans()):
            condition = ew.logical_not(condition)
        if draw(st.booleans()):
            condition = const(draw(st.booleans()), condition)
        return ew.where(condition, *draw(st.permutations((x, partner))))
    if kind == "cast":
        wide = draw(st.sampled_from([t for t in ALL if t.is_floating or not x.dtype.is_floating]))
        there = ew.cast(x, dtype=wide)
        return ew.cast(there, dtype=x.dtype) if wide.is_floating == x.dtype.is_floating else x
    if kind == "reduce":
        axes = tuple(a for a in range(len(x.shape)) if draw(st.booleans()))
        if 0 in x.shape:
            return x
        return draw(st.sampled_from((rd.max, rd.min)))(x, axes=axes)
    return _move(draw, x)


def _move(draw: st.DrawFn, x: Node) -> Node:
    rank = len(x.shape)
    kind = draw(st.sampled_from(("reshape", "permute", "expand", "flip", "pad", "slice")))
    if kind == "reshape":
        return mv.reshape(x, shape=draw(st.sampled_from((x.shape + (1,), (math.prod(x.shape),)))))
    if kind == "permute":
        return mv.permute(x, axes=tuple(draw(st.permutations(range(rank)))))
    if kind == "expand":
        return expand(x, *(draw(st.sampled_from((1, 2))) if n == 1 else n for n in x.shape))
    if kind == "flip":
        return mv.flip(x, axes=tuple(a for a in range(rank) if draw(st.booleans())))
    starts = tuple(draw(st.integers(0, 1)) for _ in range(rank))
    if kind == "pad":
        larger = tuple(n + s + draw(st.integers(0, 1)) for n, s in zip(x.shape, starts))
        return pad(x, starts, larger, draw(st.sampled_from((0, 1, 2))))
    starts = tuple(min(s, max(n - 1, 0)) for s, n in zip(starts, x.shape))
    return cut(x, starts, tuple(n - s if n else 0 for n, s in zip(x.shape, starts)))


@settings(max_examples=400)
@given(graphs())
def test_random_graphs_keep_their_values(outputs: tuple[Node, ...]) -> None:
    """Bit for bit (besides the payload of NaN), and a second pass finds nothing more."""
    after = simplify(outputs)
    for one, other in zip(evaluate(outputs), evaluate(after)):
        assert_same(one, other)
    counts: dict[str, int] = {}
    assert simplify(after, counts) == after
    assert counts == {}
