"""Reverse mode on bare nodes: how often rules run, what is built, what stays usable afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.backend.cpu.backend import CpuBackend
from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.dtypes import DType, float32, float64, int64
from tinygrad_cuda.core.errors import GradientError
from tinygrad_cuda.graph.gradient import backward, history
from tinygrad_cuda.graph.node import (
    Node,
    Op,
    current_site,
    gradient_mode,
    made_by,
    node_made,
    topological,
)
from tinygrad_cuda.graph.ops import common, contraction, indexing
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.graph.program import Program
from tinygrad_cuda.graph.rewrite import simplify

SHAPE = (2, 3)


def leaf(slot: int = 0, shape: tuple[int, ...] = SHAPE, dtype: DType = float64) -> Node:
    """A variable as a parameter makes it: a buffer that requires a gradient."""
    value = common.buffer.leaf(shape, dtype, CPU, slot=slot)
    return node_made(common.variable, (value,), {}, value.outputs, CPU, True, current_site())


def ones(node: Node) -> Node:
    return common.full_like(node, 1)


def data(slot: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray[Any, Any]:
    return np.random.default_rng(slot).normal(size=shape)


def evaluate(*outputs: Node) -> list[Any]:
    """The values, with `data(slot)` in each buffer; autograd's identities are erased first."""
    simple = simplify(outputs)
    inputs = {n.attributes["slot"]: n for n in topological(simple) if n.op is common.buffer}
    arrays = [
        data(slot, inputs[slot].shape) if slot in inputs else None
        for slot in range(max(inputs, default=-1) + 1)
    ]
    program = Program(CPU, simple, tuple(inputs.values()))
    return CpuBackend(CPU).compile(program).run(arrays, [])


def names(*outputs: Node) -> list[str]:
    return sorted(node.op.name for node in topological(outputs))


def counted(calls: list[str], name: str = "twice") -> Op:
    """A test-only row, 2 x, that notes each run of its gradient rule."""

    def rule(g: Node, out: Node, x: Node) -> Node:
        calls.append(name)
        return ew.add(g, g)

    return Op(name, "elementwise", common.same, numpy=lambda x: x + x, gradient=(rule,))


def node_for(function: Callable[..., Any], *sources: Node, results: int = 1) -> Node:
    """A custom node over nodes whose gradients `function` supplies."""
    values = tuple(common.detach(source) for source in sources[:results])
    return common.custom(*values, *sources, results=results, function=function)


# Values ----------------------------------------------------------------------------------------


@pytest.mark.smoke("graph")
def test_every_path_adds_up() -> None:
    """d/dx of x*x + sin(x)*y, by hand."""
    x, y = leaf(0), leaf(1)
    out = ew.add(ew.mul(x, x), ew.mul(ew.sin(x), y))
    found = backward([out], [ones(out)])
    assert list(found) == [y, x] or list(found) == [x, y]
    gx, gy = evaluate(found[x], found[y])
    np.testing.assert_allclose(gx, 2 * data(0) + np.cos(data(0)) * data(1), rtol=1e-14)
    np.testing.assert_allclose(gy, np.sin(data(0)), rtol=1e-14)


def test_several_outputs_with_their_seeds() -> None:
    """sum_k seed_k * d out_k / d x; an output may also lie on the way to another one."""
    x = leaf()
    first = ew.mul(x, x)
    second = ew.sin(first)
    seeds = [common.full_like(x, 3.0), common.full_like(x, 5.0)]
    (g,) = evaluate(backward([first, second], seeds)[x])
    a = data(0)
    np.testing.assert_allclose(g, (3 + 5 * np.cos(a * a)) * 2 * a, rtol=1e-13)


def test_the_same_output_twice() -> None:
    x = leaf()
    out = ew.sin(x)
    (g,) = evaluate(backward([out, out], [ones(out), ones(out)])[x])
    np.testing.assert_allclose(g, 2 * np.cos(data(0)), rtol=1e-14)


def test_a_variable_that_is_an_output_gets_its_seed() -> None:
    x = leaf()
    seed = ones(x)
    assert backward([x], [seed]) == {x: seed}


def test_matmul_and_broadcast() -> None:
    """The shapes of gradients are those of their variables."""
    a, b, bias = leaf(0, (4, 3)), leaf(1, (3, 5)), leaf(2, (1, 5))
    out = ew.add(contraction.matmul(a, b), mv.expand(bias, shape=(4, 5)))
    found = backward([out], [ones(out)])
    ga, gb, gbias = evaluate(found[a], found[b], found[bias])
    np.testing.assert_allclose(ga, np.ones((4, 5)) @ data(1, (3, 5)).T)
    np.testing.assert_allclose(gb, data(0, (4, 3)).T @ np.ones((4, 5)))
    np.testing.assert_array_equal(gbias, np.full((1, 5), 4.0))


@pytest.mark.parametrize("wanted", ["mean", "m2", "both"])
def test_welford(wanted: str) -> None:
    """Cotangents of either result or of both, against the formula."""
    x = leaf()
    both = rd.welford(x, axes=(1,))
    mean, m2 = common.output(both, index=0), common.output(both, index=1)
    outputs = {"mean": [mean], "m2": [m2], "both": [mean, m2]}[wanted]
    seeds = [common.full_like(out, 2.0) for out in outputs]
    (g,) = evaluate(backward(outputs, seeds)[x])
    a = data(0)
    expected = np.zeros_like(a)
    if wanted != "m2":
        expected += 2 / 3
    if wanted != "mean":
        expected += 2 * 2 * (a - a.mean(axis=1, keepdims=True))
    np.testing.assert_allclose(g, expected, rtol=1e-13)


def test_both_readers_of_one_result() -> None:
    """Two output nodes of the same number share one place for their cotangents."""
    x = leaf()
    both = rd.welford(x, axes=(1,))
    first, again = common.output(both, index=0), common.output(both, index=0)
    out = ew.add(first, again)
    (g,) = evaluate(backward([out], [ones(out)])[x])
    np.testing.assert_allclose(g, np.full(SHAPE, 2 / 3), rtol=1e-15)


# How often -------------------------------------------------------------------------------------


def test_a_shared_node_is_visited_once() -> None:
    """Ten doublings have 2**10 paths but each rule runs once."""
    calls: list[str] = []
    double = counted(calls)
    x = leaf()
    out = x
    for _ in range(10):
        out = double(out)
        out = ew.add(out, out)
    (g,) = evaluate(backward([out], [ones(out)])[x])
    assert len(calls) == 10
    np.testing.assert_array_equal(g, np.full(SHAPE, 4.0**10))


def test_a_chain_of_100_000() -> None:
    """Neither the walk nor the clean-up of nodes recurses."""
    x = leaf(dtype=float32)
    out = x
    for _ in range(100_000):
        out = ew.neg(out)
    assert len(history([out])) == 100_001
    g = backward([out], [ones(out)])[x]
    assert len(topological([g])) == 100_001
    del out, g


def test_only_wanted_gradients_are_built() -> None:
    """Of two factors and two inputs only the way to the wanted one is differentiated."""
    calls: list[str] = []
    a, b, c = leaf(0, (4, 3)), leaf(1, (3, 5)), leaf(2, (4, 5))
    other = counted(calls, "other")(c)
    out = ew.mul(contraction.matmul(a, b), other)
    found = backward([out], [ones(out)], [a])
    assert list(found) == [a]
    assert calls == []
    # g * other, times the transpose of b: no product with a's transpose, nothing of c's.
    new = [name for name in names(found[a]) if name != "variable"]
    assert new == ["buffer", "buffer", "constant", "matmul", "mul", "other", "permute"]


def test_what_is_not_reached_has_no_entry() -> None:
    x, y = leaf(0), leaf(1)
    out = ew.sin(x)
    assert backward([out], [ones(out)], [y]) == {}


def test_a_wanted_node_inside_the_graph() -> None:
    """Its cotangent, not multiplied on; the nodes behind it are neither run nor spent."""
    calls: list[str] = []
    x = leaf()
    inner = counted(calls)(x)
    out = ew.mul(inner, inner)
    found = backward([out], [ones(out)], [inner])
    assert list(found) == [inner]
    assert calls == []
    assert out.spent is not None
    assert inner.spent is None
    (g,) = evaluate(backward([inner], [found[inner]])[x])
    np.testing.assert_allclose(g, 8 * data(0))
    both = ew.sin(ew.mul(x, x))
    found = backward([both], [ones(both)], [both.sources[0], x])
    gx, g = evaluate(found[x], found[both.sources[0]])
    np.testing.assert_allclose(gx, g * 2 * data(0), rtol=1e-14)


def test_a_wanted_node_needs_no_gradient_of_its_own() -> None:
    """An op without a gradient is an error only where a gradient must pass through it."""
    odd = Op("odd", "elementwise", common.same, gradient="it is odd")
    inner = odd(leaf())
    out = ew.neg(inner)
    assert list(backward([out], [ones(out)], [inner])) == [inner]


# Where gradients stop --------------------------------------------------------------------------


def test_detach_and_variables_stop_gradients() -> None:
    x = leaf()
    inner = ew.sin(x)
    value = node_made(common.variable, (inner,), {}, inner.outputs, CPU, True, None)
    out = ew.mul(value, common.detach(inner))
    found = backward([out], [ones(out)])
    assert list(found) == [value]
    assert not common.detach(inner).requires_grad or x not in found


def test_integers_and_gradient_mode() -> None:
    """History is fixed when a node is made: off inside no-grad, absent for integer results."""
    x = leaf()
    with gradient_mode(False):
        assert not ew.sin(x).requires_grad
    assert not ew.cast(x, dtype=int64).requires_grad
    assert not ew.gt(x, x).requires_grad
    assert ew.sin(x).requires_grad
    out = ew.mul(x, ew.sin(x))
    g = backward([out], [ones(out)])[x]
    assert not g.requires_grad


def test_an_index_gets_no_gradient() -> None:
    table = leaf(0, (5, 2))
    index = common.constant.leaf((3,), int64, CPU, value=4)
    out = indexing.gather(table, index)
    (g,) = evaluate(backward([out], [ones(out)])[table])
    np.testing.assert_array_equal(g, [[0, 0]] * 4 + [[3, 3]])


# custom ----------------------------------------------------------------------------------------


def test_custom_replaces_the_gradient() -> None:
    """The callable runs once, when the gradient is recorded, with the whole cotangent."""
    seen: list[Node] = []

    def triple(g: Node) -> tuple[Node]:
        seen.append(g)
        return (ew.mul(g, common.full_like(g, 3)),)

    x = leaf()
    hooked = node_for(triple, ew.sin(x))
    out = ew.add(hooked, hooked)
    (g,) = evaluate(backward([out], [ones(out)])[x])
    assert len(seen) == 1
    np.testing.assert_allclose(g, 6 * np.cos(data(0)), rtol=1e-14)


def test_custom_with_two_results() -> None:
    """One cotangent a result, None for a result that nothing depends on; None stops a gradient."""
    seen: list[Any] = []

    def swap(g0: Node | None, g1: Node | None) -> tuple[Node | None, Node | None]:
        seen.append((g0, g1))
        return g1, None

    x, y = leaf(0), leaf(1)
    pair = node_for(swap, x, y, results=2)
    second = common.output(pair, index=1)
    out = ew.mul(second, second)
    found = backward([out], [ones(out)])
    assert list(found) == [x]
    assert seen[0][0] is None
    (g,) = evaluate(found[x])
    np.testing.assert_allclose(g, 2 * data(1), rtol=1e-15)


def test_one_result_of_custom_through_output() -> None:
    """A custom node with one result is read directly or through `output`; both add up."""
    x = leaf()
    hooked = node_for(lambda g: (g,), ew.sin(x))
    out = ew.add(hooked, common.output(hooked, index=0))
    (g,) = evaluate(backward([out], [ones(out)])[x])
    np.testing.assert_allclose(g, 2 * np.cos(data(0)), rtol=1e-14)


def test_custom_must_answer_for_each_source() -> None:
    hooked = node_for(lambda g: (g, g), leaf())
    with pytest.raises(ValueError, match="longer"):
        backward([hooked], [ones(hooked)])


def test_custom_is_not_asked_for_what_nobody_wants() -> None:
    def fail(g: Node) -> tuple[Node]:
        raise AssertionError("ran")

    x, y = leaf(0), leaf(1)
    out = ew.mul(node_for(fail, x), y)
    assert list(backward([out], [ones(out)], [y])) == [y]


# Errors ----------------------------------------------------------------------------------------


def test_a_missing_gradient_names_op_and_line() -> None:
    """The line is the one that recorded the op, not the one that asked for the gradient."""
    odd = Op("odd", "elementwise", common.same, gradient="nobody wrote it down")
    bad = odd(leaf())
    out = ew.sin(bad)
    with pytest.raises(GradientError) as error:
        backward([out], [ones(out)])
    text = str(error.value)
    assert text.startswith("[odd] the gradient does not exist")
    assert "actual: nobody wrote it down" in text
    assert "test_gradient_nodes.py" in text
    assert "bad = odd(leaf())" in text
    assert "detach()" in text
    assert out.spent is None


def test_history_is_spent_by_one_pass() -> None:
    """A second pass names both lines and the way out; the leaves themselves are never spent."""
    x = leaf()
    inner = ew.sin(x)
    out = ew.mul(inner, inner)
    backward([out], [ones(out)])  # the first pass
    again = ew.neg(inner)  # reads a node of the spent history
    with pytest.raises(GradientError) as error:
        backward([again], [ones(again)])
    text = str(error.value)
    assert "the history was already used by another backward pass" in text
    assert "sin made at test_gradient_nodes.py" in text
    assert "inner = ew.sin(x)" in text
    assert "# the first pass" in text
    assert "retain_graph=True" in text
    assert x.spent is None
    fresh = ew.cos(x)
    assert list(backward([fresh], [ones(fresh)])) == [x]


def test_retained_history_can_be_used_again() -> None:
    x = leaf()
    out = ew.sin(x)
    first = backward([out], [ones(out)], retain_graph=True)[x]
    second = backward([out], [ones(out)])[x]
    np.testing.assert_array_equal(*evaluate(first, second))
    with pytest.raises(GradientError):
        backward([out], [ones(out)])


def test_an_untouched_branch_stays_usable() -> None:
    """Only what a pass went through is spent."""
    x, y = leaf(0), leaf(1)
    left, right = ew.sin(x), ew.cos(y)
    out = ew.mul(left, right)
    backward([out], [ones(out)], [x])
    assert left.spent is not None
    assert right.spent is None
    assert list(backward([right], [ones(right)])) == [y]


# Higher orders ---------------------------------------------------------------------------------


@pytest.mark.smoke("graph")
def test_derivatives_of_any_order() -> None:
    """exp(x) * sin(x): each derivative is the gradient of the one before."""
    x = leaf()
    out = ew.mul(ew.exp(x), ew.sin(x))
    a = data(0)
    for order in range(1, 5):
        out = backward([out], [ones(out)], [x], create_graph=True, retain_graph=True)[x]
        assert out.requires_grad
        expected = np.sqrt(2) ** order * np.exp(a) * np.sin(a + order * math.pi / 4)
        np.testing.assert_allclose(evaluate(out)[0], expected, rtol=1e-11)


def test_second_derivatives_mix() -> None:
    """d2/dxdy of x**2 * y**3, and through welford."""
    x, y = leaf(0), leaf(1)
    out = ew.mul(ew.mul(x, x), ew.mul(y, ew.mul(y, y)))
    gx = backward([out], [ones(out)], [x], create_graph=True, retain_graph=True)[x]
    (gxy,) = evaluate(backward([gx], [ones(gx)], [y])[y])
    np.testing.assert_allclose(gxy, 2 * data(0) * 3 * data(1) ** 2, rtol=1e-13)

    z = leaf()
    m2 = common.output(rd.welford(z, axes=(1,)), index=1)
    g = backward([m2], [ones(m2)], [z], create_graph=True, retain_graph=True)[z]
    v = common.buffer.leaf(SHAPE, float64, CPU, slot=3)
    (product,) = evaluate(backward([g], [v], [z])[z])
    vector = data(3)
    np.testing.assert_allclose(
        product, 2 * (vector - vector.mean(axis=1, keepdims=True)), rtol=1e-12
    )


def test_gradients_carry_the_line_of_their_op() -> None:
    """And its name, so that an error can say whose gradient it was."""
    x = leaf()
    forward = ew.sin(x)
    g = backward([forward], [ones(forward)])[x]
    assert forward.site is not None
    assert g.site == (*forward.site, "sin")


def test_a_value_that_moved_is_not_named_after_its_movement() -> None:
    """The sum that the user called is known only as long as the reshape behind it has a source."""
    total = tc.ones(2, 3).sum()
    assert made_by(total.node).startswith("sum made at test_gradient_nodes.py")
    total.item()
    assert made_by(total.node).startswith("a tensor made at test_gradient_nodes.py")
