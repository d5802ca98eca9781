"""What operations record does not depend on what was recorded before, nor on other threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.errors import Site
from tinygrad_cuda.engine.cell import local
from tinygrad_cuda.graph.node import Node, Op, mode
from tinygrad_cuda.graph.ops import common, elementwise


def value(dtype: tc.DType = tc.float32, *shape: int) -> tc.Tensor:
    return tc.ones(*(shape or (2, 3)), dtype=dtype, device="cpu")


@pytest.mark.parametrize("function", [tc.exp, tc.sqrt, tc.sigmoid, tc.erf])
def test_dtypes_of_one_function_in_turn(function: Callable[[tc.Tensor], tc.Tensor]) -> None:
    """Integers become floats also when floats came before, and nothing is left of either."""
    for _ in range(2):
        for dtype in (tc.float32, tc.int32, tc.float16, tc.bool, tc.float64):
            found = function(value(dtype))
            expected = dtype if dtype.is_floating else tc.float32
            assert found.dtype is expected
            tolerance = 1e-2 if dtype is tc.float16 else 1e-6
            wanted = function(value(tc.float64)).numpy()
            np.testing.assert_allclose(found.double().numpy(), wanted, rtol=tolerance)


def test_an_operand_that_does_not_fit_is_an_error_each_time() -> None:
    for _ in range(2):
        assert tc.neg(value()).dtype is tc.float32
        with pytest.raises(tc.DTypeError, match="neg"):
            tc.neg(value(tc.bool))
        assert (value(tc.int32) + value(tc.int32)).dtype is tc.int32
        assert (value(tc.int32) / value(tc.int32)).dtype is tc.float32
        assert (value(tc.int32) < value(tc.int32)).dtype is tc.bool


@pytest.mark.parametrize("function", [tc.exp, lambda x: x * 2.0, lambda x: x * x, tc.neg])
def test_history_is_recorded_where_it_is_on(function: Callable[[tc.Tensor], tc.Tensor]) -> None:
    leaf, plain = value().requires_grad_(), value()
    for _ in range(2):
        assert function(leaf).requires_grad and not function(plain).requires_grad
        with tc.no_grad():
            assert not function(leaf).requires_grad
            with tc.enable_grad():
                assert function(leaf).requires_grad
        assert not function(leaf.detach()).requires_grad


@pytest.mark.parametrize("function", [tc.exp, lambda x: x * 2.0, lambda x: x + x, tc.neg])
def test_strides_carry_over(function: Callable[[tc.Tensor], tc.Tensor]) -> None:
    for x in (value(), value().t(), value().t().contiguous(), value().t()):
        assert function(x).stride() == x.stride()


def test_what_is_on_in_one_thread_is_on_in_no_other() -> None:
    """Also for a thread whose first operation comes while another one has its gradients off."""
    leaf = value().requires_grad_()
    found: list[bool] = []

    def record() -> None:
        found.append((leaf * 2.0).requires_grad)
        with tc.no_grad():
            found.append((leaf * 2.0).requires_grad)
            assert local.recorder.mode is mode.now
        found.append(tc.exp(leaf).requires_grad)

    with tc.no_grad():
        thread = threading.Thread(target=record)
        thread.start()
        thread.join()
        assert not (leaf * 2.0).requires_grad
    assert found == [True, False, True]
    assert local.recorder.mode is mode.now and (leaf * 2.0).requires_grad


def test_a_write_is_seen_by_the_next_operation() -> None:
    """Of a pending value, of one that is there, and through a view."""
    x = value()
    view = x[0]
    assert (x * 2.0).sum().item() == 12
    x.add_(1.0)
    assert (view * 2.0).tolist() == [4, 4, 4] and (x + x).sum().item() == 24
    view.zero_()
    assert (x * 2.0).tolist() == [[0, 0, 0], [4, 4, 4]] and tc.neg(view).tolist() == [0, 0, 0]
    assert tc.clamp(x, 1.0, 1.5).tolist() == [[1, 1, 1], [1.5, 1.5, 1.5]]


def test_operators_name_what_they_are_in_errors() -> None:
    for name, function in (("add", lambda a, b: a + b), ("sub", lambda a, b: a - b)):
        with pytest.raises(tc.ShapeError, match=name):
            function(value(), value(tc.float32, 4))


def test_nodes_carry_their_own_lines_by_turns() -> None:
    """The code that was found last is looked at first, and is not taken for another."""
    x = value().node

    def first() -> Node:
        return elementwise.add(x, x)

    def second() -> Node:
        return elementwise.mul(x, x)

    for function in (first, second, second, first):
        for node in (function(), tc.neg(value()).node, function()):
            code = test_nodes_carry_their_own_lines_by_turns.__code__
            found = Site(*node.site) if node.site is not None else None
            assert found is not None
            expected = code if node.op is elementwise.neg else function.__code__
            assert found.code is expected
            assert found.line >= expected.co_firstlineno


@pytest.mark.parametrize("op", [elementwise.add, elementwise.lt, elementwise.div])
def test_an_op_that_knows_a_dtype_looks_at_the_other_source(op: Op) -> None:
    x, device = value().node, Device("emu")
    elsewhere = common.constant.leaf(x.shape, x.dtype, device, value=1.0)
    for _ in range(2):
        assert op(x, value().node).shape == x.shape
        with pytest.raises(tc.ShapeError, match=op.name):
            op(x, value(tc.float32, 4).node)
        with pytest.raises(tc.DTypeError, match=op.name):
            op(x, value(tc.float64).node)
        with pytest.raises(tc.DeviceError, match=op.name):
            op(x, elsewhere)
    with pytest.raises(tc.DTypeError, match="div"):
        elementwise.div(value(tc.int32).node, value(tc.int32).node)


def test_nodes_that_are_alike_share_what_says_so() -> None:
    a, b, other = value().node, value().node, value(tc.float64).node
    assert a.outputs is not b.outputs
    assert elementwise.add(a, b).outputs is a.outputs is b.outputs
    with pytest.raises(tc.DTypeError):
        elementwise.add(a, other)
    assert other.dtype is other.outputs[0][1] is tc.float64
