"""Results that nobody holds are returned again with their memory; whoever holds a part keeps it."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.backend import registry
from tinygrad_cuda.engine.cell import Cell
from tinygrad_cuda.replay.dirty_tracking import UnseenCell

steady = sys.modules["tinygrad_cuda.capture.fast_replay"]


pytestmark = pytest.mark.usefixtures("kernel_device")


def detached(x: Any) -> Any:
    return ((x * weight).sum().detach(), x + 1)


def plain(x: Any) -> Any:
    with tc.no_grad():
        return ((x * weight).sum(), x + 1)


weight: Any = None


@pytest.fixture(params=[detached, plain], ids=lambda f: f.__name__)
def call(request: pytest.FixtureRequest, kernel_device: str) -> Any:
    """A compiled function in a steady loop, whose last results nobody holds."""
    global weight
    weight = tc.tensor([1.0, 2.0])
    compiled = tc.compile(request.param)
    for k in range(5):
        compiled(tc.full((2,), float(k)))
    return compiled


@pytest.mark.fast_paths
def test_what_nobody_holds_comes_again(call: Any) -> None:
    seen = set()
    for k in range(8):
        total, more = call(tc.full((2,), float(k)))
        cell, node = total.cell, total.cell.node
        seen.add((id(total), id(cell), id(node), id(node.storage)))
        del cell, node
        if k % 2:
            assert more.tolist() == [k + 1.0] * 2
    assert len(seen) == 2  # one is held while the next is made
    assert total.item() == 21.0


@pytest.mark.fast_paths
def test_what_nobody_looks_at_comes_again(call: Any) -> None:
    seen = set()
    for k in range(8):
        total, _ = call(tc.full((2,), float(k)))
        seen.add(id(total))
    assert len(seen) == 2 and type(total.cell) is UnseenCell
    assert total.item() == 21.0
    assert type(total.cell) is Cell
    del total
    assert call(tc.ones(2))[0].item() == 3.0


def itself(x: Any) -> Any:
    return x


def a_node(x: Any) -> Any:
    """The value alone; the handle goes."""
    node = x.cell.node
    return lambda: tc.tensor(registry.get(node.device).to_host(node.storage, (), node.dtype))


def a_cell(x: Any) -> Any:
    cell, chain = x.cell, x.chain

    def shown() -> Any:
        tensor = tc.zeros(())
        tensor.cell, tensor.chain = cell, chain
        return tensor

    return shown


def a_storage(x: Any) -> Any:
    node = x.cell.node
    storage, dtype, device = node.storage, node.dtype, node.device
    return lambda: tc.tensor(registry.get(device).to_host(storage, (), dtype))


HOLDERS: list[Callable[[Any], Any]] = [
    itself,
    a_node,
    a_cell,
    a_storage,
    lambda x: x.detach(),
    lambda x: x.reshape(1),
    lambda x: x * 1.0,  # pending
    lambda x: x.clone(),
    lambda x: tc.stack([x, x])[0],
    lambda x: x.detach().requires_grad_(),
]


@pytest.mark.parametrize("hold", HOLDERS)
def test_whoever_holds_a_part_keeps_its_value(call: Any, hold: Callable[[Any], Any]) -> None:
    kept = [hold(call(tc.full((2,), float(k)))[0]) for k in range(7)]
    for _ in range(3):
        call(tc.full((2,), 50.0))
    found = [x() if callable(x) else x for x in kept]
    assert [x.detach().reshape(()).item() for x in found] == [3.0 * k for k in range(7)]


def write(x: Any) -> Any:
    x.add_(1)


def make_a_leaf(x: Any) -> Any:
    x.requires_grad_()


def give_it_a_gradient(x: Any) -> Any:
    x.grad = tc.ones(())


def show_another(x: Any) -> Any:
    x.data = tc.zeros(())


def look(x: Any) -> Any:
    x.item()


@pytest.mark.parametrize("change", [write, make_a_leaf, give_it_a_gradient, show_another, look])
def test_what_was_changed_does_not_come_again(call: Any, change: Callable[[Any], Any]) -> None:
    for k in range(6):
        total, _ = call(tc.full((2,), float(k)))
        assert total.item() == 3.0 * k
        assert not total.requires_grad and total.grad is None
        change(total)


def test_a_weak_reference_dies_with_its_tensor(call: Any) -> None:
    watched = weakref.ref(call(tc.ones(2))[0])
    for _ in range(6):
        again = call(tc.ones(2))[0]
    assert watched() is not again


def test_one_value_in_two_tensors() -> None:
    def twice(x: Any) -> Any:
        total = (x * 2).sum()
        return total, total.detach(), total.reshape(1), total

    compiled, kept = tc.compile(twice), []
    for k in range(8):
        a, b, c, d = compiled(tc.full((2,), float(k)))
        assert a is d and a is not b
        assert a.item() == b.item() == c.item() == 4.0 * k
        kept.append(b)
        del kept[:-3]
    assert [x.item() for x in kept] == [20.0, 24.0, 28.0]


def test_what_is_written_through_a_detached_result_is_its_own() -> None:
    """Each replay's `detach` has a history of its own, as each plain call's has."""
    factor = tc.tensor([3.0, 4.0], requires_grad=True)
    compiled = tc.compile(lambda x: (x * 2).detach())
    kept = []
    for k in range(1, 7):
        result = compiled(tc.full((2,), float(k)))
        assert not result.requires_grad and result.tolist() == [2.0 * k] * 2
        result.mul_(factor)
        assert result.requires_grad and result.tolist() == [6.0 * k, 8.0 * k]
        kept.append(result)
    sum(result.sum() for result in kept).backward()
    assert factor.grad is not None and factor.grad.tolist() == [42.0, 42.0]


@pytest.mark.fast_paths
def test_large_results_go_back_to_the_pool() -> None:
    compiled = tc.compile(lambda x: x + 1)
    x = tc.zeros(200, 200)
    for _ in range(6):
        compiled(x)
    (result,) = compiled._fast.new
    assert not result.earlier
