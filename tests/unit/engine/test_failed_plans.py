"""A plan that fails changes nothing: places keep their values, the rest is computed later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cpu.backend import CpuBackend, CpuExecutable
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.engine import overwrite
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.engine.realize import realize_all


@pytest.fixture(autouse=True, params=["cpu", "cpu, overwriting", "emu"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = request.param.partition(",")[0]
    if "overwriting" in request.param:
        monkeypatch.setattr(overwrite, "spared", set())
    try:
        registry.get(as_device(name))
    except tc.DeviceError as error:
        pytest.skip(str(error))
    tc.set_default_device(name)
    yield name
    tc.set_default_device(None)


def table() -> Any:
    return tc.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


# Bad indices --------------------------------------------------------------------------------------


def test_a_bad_index_names_value_limit_and_line() -> None:
    rows = table()[tc.tensor([2, 0, 7])]
    with pytest.raises(tc.IndexError) as caught:
        rows.tolist()
    text = str(caught.value)
    assert "index[2] is out of range" in text
    assert "< 3" in text
    assert "actual: 7" in text
    assert 'rows = table()[tc.tensor([2, 0, 7])]' in text  # fmt: skip


def test_places_keep_their_values_and_the_session_goes_on() -> None:
    counter, held = tc.tensor([1.0, 2.0]), tc.tensor([5.0])
    clone = held.clone()
    realize_all()
    counter.add_(1)
    held.mul_(2)
    bad = table()[tc.tensor([9])] * 2
    with pytest.raises(tc.IndexError):
        bad.tolist()
    assert counter.tolist() == [1, 2]
    assert held.tolist() == [5]
    assert clone.tolist() == [5]
    counter.add_(1)
    held.mul_(2)
    assert (counter.tolist(), held.tolist(), clone.tolist()) == ([2, 3], [10], [5])


def test_a_write_that_reads_the_bad_index_is_undone() -> None:
    x = table()
    realize_all()
    x[0] = table()[tc.tensor([4])][0]
    x.add_(1)
    with pytest.raises(tc.IndexError):
        x.tolist()
    assert x.tolist() == table().tolist()
    x.add_(1)
    assert x.tolist() == [[2, 3], [4, 5], [6, 7]]


def test_other_values_are_computed_all_the_same() -> None:
    a = table()
    good = a * 2
    bad = a[tc.tensor([5])]
    later = good + 1
    with pytest.raises(tc.IndexError):
        bad.tolist()
    assert good.tolist() == [[2, 4], [6, 8], [10, 12]]
    assert later.tolist() == [[3, 5], [7, 9], [11, 13]]


def test_a_lost_value_stays_lost(device: str) -> None:
    if device != "cpu":
        pytest.skip("a device has computed the value from element 0; only the report is late")
    bad = table()[tc.tensor([5])]
    for _ in range(2):
        with pytest.raises(tc.IndexError):
            bad.tolist()
        with pytest.raises(tc.IndexError):
            (bad * 2).tolist()


def test_a_bad_label_leaves_the_optimizer_unchanged() -> None:
    model = nn.Linear(4, 3)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train(labels: list[int]) -> None:
        optimizer.zero_grad()
        x = tc.tensor(np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32))
        loss = nn.functional.cross_entropy(model(x), tc.tensor(labels))
        loss.backward()
        optimizer.step()
        loss.item()

    train([0, 2])
    before = [p.detach().tolist() for p in model.parameters()]
    with pytest.raises(tc.IndexError, match="3"):
        train([1, 3])
    assert [p.detach().tolist() for p in model.parameters()] == before
    train([1, 2])
    assert [p.detach().tolist() for p in model.parameters()] != before


# Failures of the machine --------------------------------------------------------------------------


class BrokenError(Exception):
    pass


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, device: str) -> pytest.MonkeyPatch:
    """The next run of a plan on cpu fails."""
    if device != "cpu":
        pytest.skip("the failure is injected into the reference backend")

    def fail(*args: Any) -> Any:
        raise BrokenError

    monkeypatch.setattr(CpuExecutable, "run", fail)
    return monkeypatch


def test_a_run_that_fails_can_be_tried_again(broken: pytest.MonkeyPatch) -> None:
    w = tc.tensor([1.0, 2.0], requires_grad=True)
    x = tc.tensor([3.0, 4.0])
    (w * x).sum().backward()
    x.mul_(10)
    with tc.no_grad():
        w -= w.grad
    view = w.detach()[1:]
    for look in (x.tolist, view.tolist, w.grad.tolist):
        with pytest.raises(BrokenError):
            look()
    broken.undo()
    assert view.tolist() == [-2]
    assert w.grad.tolist() == [3, 4]
    assert x.tolist() == [30, 40]
    assert w.tolist() == [-2, -2]


def test_a_compilation_that_fails_can_be_tried_again(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    if device != "cpu":
        pytest.skip("the failure is injected into the reference backend")

    def fail(*args: Any) -> Any:
        raise BrokenError

    x = tc.tensor([3.0, 4.0])
    x.add_(1)
    y = x * 17
    cache.clear()
    made = cache.made
    with monkeypatch.context() as patch:
        patch.setattr(CpuBackend, "compile", fail)
        with pytest.raises(BrokenError):
            y.tolist()
    assert cache.made == made
    assert (y.tolist(), x.tolist()) == ([68, 85], [4, 5])


def test_a_value_that_cannot_be_computed_fails_only_who_looks_at_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After the first error, which any look may meet, other values are there as ever."""
    bad = tc.tensor([1.0, 2.0]).erf()
    written = tc.tensor([3.0])
    cache.clear()
    find = cache.find

    def refusing(device: Any, trace: Any, *rest: Any) -> Any:
        if any(owner.op.name == "erf" for owner in trace.owners):
            raise BrokenError
        return find(device, trace, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(cache, "find", refusing)
        written.add_(1)
        with pytest.raises(BrokenError):
            realize_all()
        for turn in range(3):
            assert (tc.tensor([1.0]) + turn).tolist() == [1 + turn]
            with pytest.raises(BrokenError):
                bad.tolist()
        assert written.tolist() == [4]
        written.mul_(2)
        assert written.tolist() == [8]
    np.testing.assert_allclose(bad.tolist(), [0.8427008, 0.9953223], rtol=1e-6)


def test_an_interrupted_backward_leaves_the_history(device: str) -> None:
    """A hook that raises: nothing has been accumulated, and the pass can be repeated."""
    w = tc.tensor([1.0, 2.0], requires_grad=True)
    hidden = w * 2

    def refuse(g: Any) -> None:
        raise BrokenError

    handle = hidden.register_hook(refuse)
    loss = (hidden * hidden).sum()
    with pytest.raises(BrokenError):
        loss.backward()
    assert w.grad is None
    handle.remove()
    loss.backward()
    assert w.grad.tolist() == [8, 16]
