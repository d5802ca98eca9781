"""tc.determinism_report: it measures, names the op that differs, and blames no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.core.differences import bit_difference
from tinygrad_cuda.graph.ops import elementwise, reduction
from tinygrad_cuda.utils.determinism import DeterminismReport


def training_step() -> Any:
    tc.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3)).to("cpu")
    optimizer = tc.optim.Adam(model.parameters())
    x, labels = tc.randn(6, 5, device="cpu"), tc.tensor([0, 1, 2, 0, 1, 2], device="cpu")

    def step() -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


def differing(report: DeterminismReport, pair: tuple[str, str]) -> set[str]:
    return {row.name for row in report.ops if not row.devices[pair].same}


@pytest.mark.smoke("utils")
def test_a_training_step() -> None:
    """Arithmetic and Philox agree to the bit, run to run everything does; libraries are named."""
    report = tc.determinism_report(training_step(), devices=["cpu", "emu"])
    assert report.run_to_run
    rows = {(row.name, "backward" in row.line): row for row in report.ops}
    assert rows["matmul", False].count == 2
    for name in ("add", "mul", "sub", "div", "sqrt", "random_uniform"):
        assert rows[name, False].devices["cpu", "emu"].same, name
    assert "Philox" in rows["random_uniform", False].reason
    suspects = {"tanh", "exp", "log", "sum", "matmul"}
    assert differing(report, ("cpu", "emu")) <= suspects
    assert report.same_on("emu", "cpu") == (not differing(report, ("cpu", "emu")))
    # Four parameters, each with two moments.
    assert [row.count for row in report.results if row.name == "assign"] == [12]
    assert "Adam" not in str(report) and "optimizer.step()" in str(report)


@pytest.fixture
def noisy(monkeypatch: pytest.MonkeyPatch) -> None:
    """On cpu a sum has other last bits each time, a difference has one ulp more than it should."""
    draws, total, sub = np.random.default_rng(0), reduction.sum.numpy, elementwise.sub.numpy
    assert total is not None and sub is not None

    def unsteady(x: Any, **attributes: Any) -> Any:
        return total(x, **attributes) * np.float32(1 + 1e-6 * draws.integers(1, 100))

    def moved(a: Any, b: Any, out: Any = None) -> Any:
        result = np.nextafter(sub(a, b), np.float32(np.inf))
        return result if out is None else np.copyto(out, result) or out

    monkeypatch.setattr(reduction.sum, "numpy", unsteady)
    monkeypatch.setattr(elementwise.sub, "numpy", moved)


@pytest.mark.usefixtures("noisy")
def test_planted_differences_are_blamed_on_their_ops() -> None:
    x = tc.tensor([[1.0, 2.5, 3.0], [4.0, 5.0, 6.25]], device="cpu")
    report = tc.determinism_report(
        lambda: ((x - 0.5).sum(1) * 2).abs(), runs=4, devices=["cpu", "emu"]
    )
    rows = {row.name: row for row in report.ops}
    assert not rows["sum"].runs["cpu"].same and rows["sum"].runs["emu"].same
    assert rows["sub"].runs["cpu"].same and rows["sub"].devices["cpu", "emu"].ulps == 1
    assert rows["sub"].reason == "rounded in other steps"
    # What follows from them has the same operands, and is not blamed.
    assert rows["mul"].devices["cpu", "emu"].same and rows["abs"].devices["cpu", "emu"].same
    assert not report.run_to_run and not report.same_on("cpu", "emu")
    assert "run to run: other bits on cpu, emu" in str(report)


def test_reductions_whose_combination_rounds_are_sums() -> None:
    selecting = {op.name for op in reduction.ROWS if op.selects}
    assert selecting == {"max", "min", "any", "all", "argmax", "argmin"}
    x = tc.tensor([[1.0, 2.5, 3.0], [4.0, 5.0, 6.25]], device="cpu")
    report = tc.determinism_report(lambda: (x.var(1), x.amax(1), x.argmin(1)), devices=["cpu"])
    reasons = {row.name: row.reason for row in report.ops}
    assert reasons["max"] == reasons["argmin"] == "selects elements"
    assert reasons["welford"] == "sums agree; their order is fixed"


@pytest.mark.parametrize("device", ["cpu", "emu"])
def test_normals_and_half_types(device: str) -> None:
    def step() -> Any:
        x = tc.randn(40, device=device)
        return (x.bfloat16() * 2 + 1).relu(), x.half().sort()[1]

    report = tc.determinism_report(step, devices=["cpu", "emu"])
    rows = {row.name: row for row in report.ops}
    for name in ("random_normal", "cast", "mul", "where", "order"):
        assert rows[name].devices["cpu", "emu"].same, name
    assert "sine" in rows["random_normal"].reason and report.run_to_run


def test_compiled_functions_and_looks_inside() -> None:
    """A step that looks at a value has two plans; a compiled one, called before, is traced."""
    x = tc.arange(6.0, device="cpu")
    compiled = tc.compile(lambda x: (x * 3).exp())
    for _ in range(3):
        compiled(x)

    def step() -> Any:
        return compiled(x) + (x + 1).sum().item()

    report = tc.determinism_report(step, devices=["cpu"])
    assert {"mul", "exp", "sum", "add"} <= {row.name for row in report.ops}
    assert compiled(x).tolist() == (x * 3).exp().tolist()


def test_what_is_refused() -> None:
    with pytest.raises(tc.ArgumentError, match="computes nothing"):
        tc.determinism_report(lambda: None, devices=["cpu"])
    with pytest.raises(tc.ArgumentError, match="runs=1"):
        tc.determinism_report(lambda: tc.ones(3), runs=1)
    report = tc.determinism_report(lambda: tc.ones(3, device="cpu") + 1, devices=["cpu"])
    with pytest.raises(tc.ArgumentError, match="not compared"):
        report.same_on("cpu", "emu")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_ulps(dtype: str) -> None:
    """Numbers between two others, across zero and powers of two; nans are equal, -0 is not 0."""
    kind = getattr(tc, dtype).numpy
    bits = f"i{np.dtype(kind).itemsize}"
    start = np.array([1.0, -1.0, 0.0, 2.0], kind)
    moved = (start.view(bits) + np.array([3, 3, 1, -2], bits)).view(kind)
    difference = bit_difference(start, moved)
    assert (difference.ulps, difference.elements, difference.of) == (3, 4, 4)
    tiny = np.array([1], bits).view(kind)
    assert bit_difference(tiny, -tiny).ulps == 2
    nan = np.array([np.nan, 1.0], kind)
    assert bit_difference(nan, -nan).elements == 1
    assert bit_difference(nan, nan.copy()).same
    zero = bit_difference(np.array([0.0], kind), np.array([-0.0], kind))
    assert str(zero) == "sign of 0, 1 of 1" and not zero.same
    assert str(bit_difference(np.array([1.0], kind), np.array([np.inf], kind))).startswith("not fi")


def test_differences_of_other_types() -> None:
    a = np.array([1, 5, 7])
    assert bit_difference(a, a + np.array([0, 4, 0]))[:2] == (4, 1)
    assert bit_difference(a == 5, a == 7).elements == 2
    assert bit_difference(a * 1j, a * 1j + 1).elements == 3
    assert bit_difference(a, a[:2]).ulps == float("inf")


def test_views_decide_nothing() -> None:
    """A result behind views and copies is its op's; a view of an input has nobody to be blamed."""
    x = tc.tensor([[1.0, 2.5, 3.0], [4.0, 5.0, 6.25]], device="cpu")
    index = tc.tensor([1, 0], device="cpu")

    def step() -> Any:
        y = x.exp()[index].t().contiguous().reshape(3, 2)[1:]
        return y, x.t().contiguous()

    report = tc.determinism_report(step, devices=["cpu"])
    rows = {row.name: row for row in report.ops}
    assert {"exp", "gather"} <= rows.keys()
    assert not rows.keys() & {"contiguous", "permute", "reshape", "slice", "check_index"}
    assert rows["gather"].reason == "selects elements"
    assert "gather" in [row.name for row in report.results]
