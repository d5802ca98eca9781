"""tc.utils.benchmark: what a statement makes is computed within its time."""

from __future__ import annotations

from time import perf_counter

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.utils.benchmark import Measurement, TaskSpec, Timer


@pytest.mark.parametrize("device", ["cpu", "emu"])
@pytest.mark.parametrize("statement", ["x.exp()", "y = x.exp()", "y = x * 2\ny.exp()"])
def test_each_run_is_computed(device: str, statement: str) -> None:
    """The value of the last expression as well as what variables hold: one kernel a run."""
    x = tc.ones(3, 3, device=device)
    tc.realize(x)
    timer = Timer(statement, globals={"x": x}, timer=perf_counter)
    timer.timeit(2)
    with tc.profiler.profile() as p:
        timer.timeit(5)
    (row,) = [row for row in p.key_averages() if row.key == "exp"]
    assert row.count == 5 + 2  # of the warm-up


def test_measurements_by_pytorchs_names() -> None:
    torch = pytest.importorskip("torch.utils.benchmark")
    raw = [0.5, 0.25, 0.375, 1.0, 0.625]
    ours = Measurement(5, raw, TaskSpec("x", "pass", label="a", sub_label="b"))
    theirs = torch.Measurement(5, raw, torch.TaskSpec("x", "pass", label="a", sub_label="b"))
    for name in ("times", "mean", "median", "iqr", "title", "has_warnings"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name)), name
    merged = Measurement.merge([ours, Measurement(5, [2.0], ours.task_spec)])
    assert [one.raw_times for one in merged] == [[*raw, 2.0]]
    assert "Median: 100 ms" in repr(ours)


def test_blocks() -> None:
    seen: list[tuple[int, float]] = []
    timer = Timer("sum(values)", "values = list(range(count))", globals={"count": 100})
    measured = timer.blocked_autorange(lambda n, t: seen.append((n, t)), 0.01)  # type: ignore[arg-type,func-returns-value]
    assert measured.raw_times == [time for _, time in seen]
    assert sum(measured.raw_times) >= 0.01 and measured.number_per_run >= 10
    assert 0 < measured.median < 1e-3
    assert timer.adaptive_autorange(10.0, max_run_time=1.0).median > 0
    assert Timer("tc.ones(3, device='cpu')").timeit(2).number_per_run == 2


def test_threads_are_what_they_were() -> None:
    before = tc.get_num_threads()
    Timer("pass", num_threads=1).timeit(2)
    assert tc.get_num_threads() == before


def test_refusals() -> None:
    with pytest.raises(ArgumentError, match="only Python's text"):
        Timer(lambda: 3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="only Python's text"):
        Timer("int x;", language="cpp")
    with pytest.raises(SyntaxError):
        Timer("x =")
