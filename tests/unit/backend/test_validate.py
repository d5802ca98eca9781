"""TGC_VALIDATE=1 compares each kernel with NumPy: skeletons broken on purpose are found at once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import TgcError
from tinygrad_cuda.engine.cell import local
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.graph.ops import common, elementwise
from tinygrad_cuda.lowering.codegen import skeleton
from tinygrad_cuda.nn import functional as F
from tinygrad_cuda.optim.step_replay import _ScalarGroup
from tinygrad_cuda.replay.plan_lookup import PlanEntry
from tinygrad_cuda.tensors.call_replay import templated

pytestmark = pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")


@pytest.fixture(autouse=True)
def validated() -> Iterator[None]:
    """Plans of this file are made under the variable, and forgotten after each test."""
    cache.clear()
    with settings.override(validate=True):
        yield
    cache.clear()


def break_skeleton(monkeypatch: pytest.MonkeyPatch, file: str, right: str, wrong: str) -> None:
    """Has the generator read a skeleton in which `right` is `wrong`."""
    sections = skeleton._sections

    def changed(name: str) -> dict[str, str]:
        found = sections(name)
        if name != file:
            return found
        assert any(right in text for text in found.values()), f"{right!r} is not in {file}"
        return {section: text.replace(right, wrong) for section, text in found.items()}

    monkeypatch.setattr(skeleton, "_sections", changed)


def random(*shape: int, seed: int = 0) -> Any:
    values = np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)
    return tc.tensor(values, device="emu")


def caught(program: Any) -> str:
    with pytest.raises(tc.TgcError, match=r"\[validate\]") as error:
        program()
    local.recorder.pending.clear()  # the traceback holds what failed, which would fail again
    return str(error.value)


def test_right_kernels_pass() -> None:
    """A step of training: contraction, row, column and map kernels, updates in place."""
    tc.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(20, 16, device="emu"), nn.ReLU(), nn.Linear(16, 5, device="emu")
    )
    x, labels = random(12, 20), tc.tensor(np.arange(12) % 5, device="emu")
    for _ in range(2):
        loss = nn.functional.cross_entropy(model(x), labels)
        model.zero_grad()
        loss.backward()
        with tc.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
    assert np.isfinite(loss.item())


def test_rounding_is_no_difference() -> None:
    """The gradient of a bias before a batch norm is zero but for rounding; Adam divides by it."""
    tc.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).to("emu")
    optimizer = tc.optim.Adam(model.parameters(), lr=0.01)
    labels = tc.tensor(np.arange(16) % 3, device="emu")
    for turn in range(4):
        nn.functional.cross_entropy(model(random(16, 6, seed=turn)), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert np.isfinite(model[0].bias.detach().numpy()).all()


def test_a_broken_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last element is not written: its poison shows."""
    break_skeleton(monkeypatch, "map.cuh", "@items@", "@items@ - 1")
    x = random(37)

    def program() -> None:
        y = x * 1.5 + 0.5
        y.numpy()

    text = caught(program)
    assert "kernel 'map_" in text
    assert "y = x * 1.5 + 0.5" in text
    assert "at (36,) of (37,) float32" in text
    assert "1 of 37 elements differ" in text


def test_a_broken_row_reduction(monkeypatch: pytest.MonkeyPatch) -> None:
    break_skeleton(monkeypatch, "row_reduce.cuh", "; item < @items@) {", "; item + 1 < @items@) {")
    x = random(6, 33)

    def program() -> None:
        y = x.sum(1)
        y.numpy()

    text = caught(program)
    assert "kernel 'row_reduce_" in text
    assert "stores another sum than NumPy" in text
    assert "y = x.sum(1)" in text


def test_a_broken_column_reduction(monkeypatch: pytest.MonkeyPatch) -> None:
    break_skeleton(monkeypatch, "column_reduce.cuh", "item = first + down; item < last", "item = first + down; item < last - 1")  # noqa: E501  # fmt: skip
    x = random(33, 6)

    def program() -> None:
        y = x.sum(0)
        y.numpy()

    text = caught(program)
    assert "kernel 'column_reduce_" in text
    assert "y = x.sum(0)" in text


def test_a_broken_product(monkeypatch: pytest.MonkeyPatch) -> None:
    break_skeleton(
        monkeypatch,
        "contract.cuh",
        "k_begin + @chunk@ < @k@",
        "k_begin + @chunk@ < @k@ - 1",
    )
    break_skeleton(monkeypatch, "contract.cuh", ": @k@;", ": @k@ - 1;")
    a, b = random(9, 21), random(21, 7)

    def program() -> None:
        y = a @ b
        y.numpy()

    text = caught(program)
    assert "kernel 'contract_" in text
    assert "stores another matmul than NumPy" in text
    assert "y = a @ b" in text


def test_the_first_of_several_kernels_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row kernel is wrong; the kernels that use its result are not to blame."""
    break_skeleton(monkeypatch, "row_reduce.cuh", "; item < @items@) {", "; item + 1 < @items@) {")
    x, w = random(6, 33), random(33, 4)

    def program() -> None:
        scores = (x @ w).exp()
        share = x / x.sum(1, keepdim=True)
        (scores.sum() + share.sum()).item()

    assert "kernel 'row_reduce_" in caught(program)


def test_equal_programs_at_two_lines_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    break_skeleton(monkeypatch, "row_reduce.cuh", "; item < @items@) {", "; item + 1 < @items@) {")
    x = random(6, 33)

    def first() -> None:
        y = x.sum(1)
        y.numpy()

    def second() -> None:
        z = x.sum(1)
        z.numpy()

    assert "y = x.sum(1)" in caught(first)
    assert "z = x.sum(1)" in caught(second)
    assert "y = x.sum(1)" in caught(first)


@pytest.mark.parametrize("device", ["cpu", "emu"])
def test_layers_without_gradients_are_as_their_templates(device: str) -> None:
    """A Parameter is detached at once where it is read, and by a pending node of a template."""
    layer = nn.Linear(4, 3).to(device)
    x = tc.ones(5, 4, device=device)
    with tc.no_grad():
        values = [layer(x).tolist() for _ in range(3)]
    assert values == values[:1] * 3


@pytest.mark.parametrize("device", ["cpu", "emu"])
def test_values_that_are_there_already_are_one(device: str) -> None:
    """The mean of one number is its own node, and has its value at once where it is recorded."""
    x = tc.tensor(2.0, device=device, requires_grad=True)
    assert [x.mean().item() for _ in range(3)] == [2.0] * 3


@pytest.mark.parametrize("device", ["cpu", "emu"])
def test_a_view_that_is_read_twice_is_one_input(device: str) -> None:
    """A function's own code records a pending view at each read, its template once."""
    x = tc.arange(14.0, device=device) * 0.5
    label = tc.tensor(3, device=device)
    for _ in range(3):
        logits = x[::2].reshape(7)
        loss = F.cross_entropy(logits, label, reduction="sum", label_smoothing=0.1)
        assert loss.item() == pytest.approx(3.45, abs=0.01)


def test_without_the_variable_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    break_skeleton(monkeypatch, "row_reduce.cuh", "; item < @items@) {", "; item + 1 < @items@) {")
    with settings.override(validate=False):
        x = random(6, 33)
        wrong = x.sum(1).numpy()
    assert not np.allclose(wrong, x.numpy().sum(1))


# Both ways ----------------------------------------------------------------------------------------


def trained(turns: int = 6) -> Any:
    """A loop whose forward and backward passes, plans and steps come round; ends with a weight."""
    tc.manual_seed(0)
    layer = nn.Linear(3, 2)
    optimizer = optim.Adam(layer.parameters(), lr=0.1)
    for turn in range(turns):
        optimizer.zero_grad()
        loss = F.cross_entropy(layer(tc.ones(2, 3) * (turn + 0.5)), tc.tensor([0, 1]))
        loss.backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.5
    return layer.weight.tolist()


def test_what_is_recognised_is_compared_and_right() -> None:
    """Templates, backward passes and plans, found and recorded; then the same values."""
    compared = trained()
    with settings.override(validate=False):
        assert trained() == compared


@pytest.mark.fast_paths
def test_a_template_of_another_graph_is_named() -> None:
    """A function that reads a Python value, which is no part of what a call is known by."""
    scale = [2.0]

    @templated
    def scaled(x: tc.Tensor) -> tc.Tensor:
        return x * scale[0] + 1

    scaled(tc.ones(3))
    scale[0] = 3.0
    with pytest.raises(TgcError, match="template of scaled: another graph") as caught:
        scaled(tc.ones(3))
    assert "test_validate.py" in str(caught.value)


@pytest.mark.fast_paths
def test_a_template_of_another_backward_pass_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that has changed behind its row's back."""
    factor = [1.0]

    def rule(g: Any, node: Any, x: Any) -> Any:
        return elementwise.mul(g, elementwise.mul(node, common.full_like(node, factor[0])))

    monkeypatch.setattr(elementwise.exp, "gradient", rule)
    x = tc.ones(3, requires_grad=True)
    x.exp().sum().backward()
    factor[0] = 2.0
    with pytest.raises(TgcError, match="template of a backward pass: another graph"):
        x.exp().sum().backward()


@pytest.mark.fast_paths
def test_what_a_rule_computes_on_the_host_may_be_computed_twice() -> None:
    """The gradient of a system is one that the host solves: each recording has its own values."""
    a = tc.tensor([[2.0, 1.0], [0.0, 4.0]], device="emu", requires_grad=True)
    for _ in range(2):
        a.grad = None
        tc.linalg.solve_triangular(a, tc.ones(2, 1, device="emu"), upper=True).sum().backward()
        np.testing.assert_allclose(a.grad.numpy(), [[-0.1875, -0.125], [0, -0.03125]], rtol=1e-6)


@pytest.mark.fast_paths
def test_what_a_rule_computes_on_the_host_must_be_equal() -> None:
    """A function of the user's whose gradient is another one at each call."""

    class Counted(tc.autograd.Function):
        calls = 0

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            Counted.calls += 1
            return tc.tensor(np.full(3, float(Counted.calls), np.float32), device="emu")

    x = tc.ones(3, device="emu", requires_grad=True)
    with pytest.raises(TgcError, match="template of a backward pass: another graph"):
        Counted.apply(x).sum().backward()


@pytest.mark.fast_paths
def test_a_plan_with_earlier_numbers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup that does not know which numbers vary."""
    learn = PlanEntry._learn_numbers

    def learned(entry: PlanEntry, *plan: Any) -> None:
        learn(entry, *plan)
        entry.single = []

    monkeypatch.setattr(PlanEntry, "_learn_numbers", learned)
    with pytest.raises(TgcError, match="plan_lookup: other numbers than by a trace") as caught:
        trained()
    assert "test_validate.py" in str(caught.value)


@pytest.mark.fast_paths
def test_an_optimizer_with_other_numbers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that are computed wrongly."""
    layer = nn.Linear(3, 2)
    optimizer = optim.Adam(layer.parameters(), lr=0.1)

    @tc.compile
    def step(x: tc.Tensor) -> tc.Tensor:
        optimizer.zero_grad()
        loss = layer(x).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(4):
        step(tc.ones(2, 3))
    compute = _ScalarGroup.compute

    def wrong(group: Any, *given: Any) -> Any:
        new = compute(group, *given)
        group.scalars = [(name, value * 2) for name, value in group.scalars]
        return new

    monkeypatch.setattr(_ScalarGroup, "compute", wrong)
    with pytest.raises(tc.CompileError, match="does something else"):
        for _ in range(3):
            step(tc.ones(2, 3))


@pytest.mark.fast_paths
def test_an_update_of_another_graph_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer that now takes the gradient for the parameter: it asks for the same numbers."""
    trained(2)
    update = optim.Adam.apply_single

    def other(self: Any, g: Any, p: Any, *rest: Any) -> Any:
        return update(self, p, g, *rest)

    monkeypatch.setattr(optim.Adam, "apply_single", other)
    with pytest.raises(TgcError, match="template of an update: another graph"):
        trained(2)
