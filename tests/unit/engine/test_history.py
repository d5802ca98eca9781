"""Realizations keep of a history what gradients need, no more; one without end warns in time."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.engine import history
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.graph.node import Node


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(history, "_warned", False)
    tc.set_default_device("cpu")
    yield
    tc.set_default_device(None)


def nodes() -> int:
    return sum(type(thing) is Node for thing in gc.get_objects())


def contractions(monkeypatch: pytest.MonkeyPatch, look: str) -> list[int]:
    """How many products each turn of a training loop computes."""
    from tinygrad_cuda.backend.cpu.backend import CpuExecutable

    counts = [0]
    run = CpuExecutable.run

    def counting(self: Any, inputs: Any, arguments: Any) -> Any:
        counts[-1] += sum(node.op.kind == "contraction" for node in self.lowered.nodes)
        return run(self, inputs, arguments)

    monkeypatch.setattr(CpuExecutable, "run", counting)
    x = tc.ones(3, 4)
    w, v = (tc.full(shape, 0.1, requires_grad=True) for shape in ((4, 5), (5, 2)))
    for _ in range(4):
        loss = ((x @ w).tanh() @ v).square().mean()
        if look == "before backward":
            loss.item()
        w.grad = v.grad = None
        loss.backward()
        if look == "before step":
            loss.item()
        with tc.no_grad():
            for p in (w, v):
                p -= 0.1 * p.grad
        w.detach().tolist()
        counts.append(0)
    return counts[:-1]


def test_looking_launches_no_product_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step computes the same products wherever the loss is looked at."""
    assert contractions(monkeypatch, "never") == [5] * 4


@pytest.mark.parametrize("look", ["before backward", "before step"])
def test_looking_launches_no_product_twice_where(
    monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    assert contractions(monkeypatch, look) == [5] * 4


def test_a_history_without_end_warns_once_with_its_line() -> None:
    w = tc.tensor([1.0, 2.0], requires_grad=True)
    total = tc.zeros(2)
    with pytest.warns(RuntimeWarning, match="total \\+= w \\* 0.001") as caught:  # noqa: PT031
        for _ in range(2 * history.OLD):
            total += w * 0.001
            total.sum().item()
    assert len(caught) == 1
    assert "total.item()" not in str(caught[0].message)
    assert "detach()" in str(caught[0].message)


def test_a_detached_total_does_not_warn() -> None:
    w = tc.tensor([1.0, 2.0], requires_grad=True)
    total = tc.zeros(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2 * history.OLD):
            total += (w * 0.001).detach()
            total.sum().item()


def test_an_average_that_forgot_no_grad_warns() -> None:
    w = tc.tensor([1.0], requires_grad=True)
    average = w.detach().clone()
    with pytest.warns(RuntimeWarning, match="average = "):  # noqa: PT031
        for _ in range(2 * history.OLD):
            w.grad = None
            (w * w).sum().backward()
            with tc.no_grad():
                w -= 0.001 * w.grad
            average = 0.9 * average + 0.1 * w
            average.tolist()


def test_a_thousand_steps_without_the_collector() -> None:
    """No reference cycles: live nodes are constant while the collector is off."""
    w = tc.full((4, 4), 0.1, requires_grad=True)
    momentum = tc.zeros(4, 4)
    counts, made = [], []
    gc.collect()
    gc.disable()
    try:
        for turn in range(1000):
            w.grad = None
            x = tc.full((2, 4), 1.0 + turn)
            loss = (x @ w).tanh().square().mean()
            loss.backward()
            with tc.no_grad():
                momentum.mul_(0.9).add_(w.grad)
                w.add_(momentum, alpha=-0.01 / (1 + turn))
            loss.item()
            if turn in (2, 10, 100, 999):
                counts.append(nodes())
                made.append(cache.made)
    finally:
        gc.enable()
    assert counts == counts[:1] * 4
    assert made == made[:1] * 4


def test_a_deep_history_is_differentiated_and_freed() -> None:
    """100,000 operations: no recursion, cut into plans on the way, and nothing is left over."""
    w = tc.tensor([0.5], dtype=tc.float64, requires_grad=True)
    before = nodes()
    x = w * 1.0
    for _ in range(100_000):
        x = x + 0.00001
    x.sum().backward()
    assert w.grad.tolist() == [1.0]
    del x
    # Plans have nodes of their own.
    cache.clear()
    assert nodes() - before < 20


def test_a_sum_that_only_leads_to_a_gradient_is_not_kept() -> None:
    """The largest elements have their gradient through a sum of the chosen ones."""
    x = tc.ones(3, 4, requires_grad=True).exp()
    y = x.max(1)[0] * 2
    assert {node.op.name for node in history.keep_history([y.node])} == {"max", "argmax"}
    y.tolist()
    y.sum().backward()
