"""detect_nan names the first op that makes inf or nan; TGC_EAGER computes at the call."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.autograd import anomaly
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.engine import realize
from tinygrad_cuda.graph.node import mode as modes

ROOT = Path(__file__).resolve().parents[3]
DEVICES = ["cpu"] + (["emu"] if shutil.which("c++") else [])
F = nn.functional


def leaf(values: Any, device: str = "cpu", dtype: Any = tc.float32) -> Any:
    return tc.tensor(values, dtype=dtype, device=device, requires_grad=True)


def caught(program: Callable[[], Any]) -> str:
    with pytest.raises(tc.NonFiniteError) as error, tc.detect_nan():
        program()
    return str(error.value)


# Forward ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_square_root_of_negative_numbers(device: str) -> None:
    """The loss is nan and so is its gradient; the op and its line are named, not the last one."""
    reached = []

    def program() -> None:
        x = leaf([1.0, 3.0], device)
        shifted = x - 2
        root = shifted.sqrt()
        reached.append("after")
        (root * 3).sum().backward()

    text = caught(program)
    assert text.startswith("[sqrt] made nan from finite values")
    assert "test_anomaly.py" in text
    assert "root = shifted.sqrt()" in text
    assert "1 of 2 elements, the first nan at [0]" in text
    assert "float32 (2,), -1 to 1, there -1" in text
    assert reached == []  # the very call raises, so that a debugger stops there


def test_logarithm_whose_nan_does_not_reach_the_loss() -> None:
    """where() hides it from the loss; the gradient would not have been spared."""

    def program() -> None:
        x = leaf([-1.0, 2.0])
        logarithm = x.log()
        loss = tc.where(x > 0, logarithm, 0.0).sum()
        loss.backward()

    text = caught(program)
    assert text.startswith("[log] made nan from finite values")
    assert "logarithm = x.log()" in text


def test_a_value_that_nobody_uses() -> None:
    def program() -> None:
        leaf([-1.0]).log()

    assert caught(program).startswith("[log]")


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("exp", lambda: leaf([1000.0]).exp()),
        ("div", lambda: leaf([1.0]) / 0.0),
        ("cast", lambda: leaf([1e6]).half()),
        ("mul", lambda: leaf([1e30]) * 1e30),
        ("sum", lambda: (leaf([3e38, 3e38]) * 1.0).sum()),
        ("matmul", lambda: leaf([[3e38, 3e38]]) @ leaf([[1.0], [1.0]])),
        ("pow", lambda: leaf([0.0]) ** -1.0),
    ],
)
def test_infinities_count(name: str, program: Callable[[], Any]) -> None:
    text = caught(program)
    assert f"[{name}] made inf from finite values" in text


def test_half_types() -> None:
    for dtype in (tc.float16, tc.bfloat16):
        assert caught(lambda dtype=dtype: leaf([-1.0], dtype=dtype).sqrt()).startswith("[sqrt]")


# Backward -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_gradient_at_zero_of_a_root(device: str) -> None:
    """Forward is finite everywhere; the error names the forward op and its line."""

    def program() -> None:
        x = leaf([0.0, 4.0], device)
        root = x.sqrt()
        hidden = tc.where(x > 0, root, 0.0)
        hidden.sum().backward()

    text = caught(program)
    assert text.startswith("[sqrt] its gradient")
    assert "root = x.sqrt()  (backward of sqrt)" in text


def test_gradient_of_a_norm_at_zero() -> None:
    def program() -> None:
        x = leaf([[0.0, 0.0]])
        length = (x * x).sum(1).sqrt()
        length.sum().backward()

    text = caught(program)
    assert text.startswith("[sqrt] its gradient")
    assert "length = (x * x).sum(1).sqrt()" in text


def test_a_wrong_function() -> None:
    class Bad(tc.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g / 0.0

    def program() -> None:
        y = Bad.apply(leaf([1.0]))
        y.sum().backward()

    text = caught(program)
    assert text.startswith("[Bad] its gradient (div) is not finite")
    assert "y = Bad.apply(leaf([1.0]))" in text


def test_training_that_explodes() -> None:
    """A learning rate far too large: the step at which it happens, not the end of the loop."""
    tc.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8, device="cpu"), nn.ReLU(), nn.Linear(8, 1, device="cpu"))
    x, y = tc.randn(16, 4, device="cpu"), tc.randn(16, 1, device="cpu")
    steps = []

    def program() -> None:
        for step in range(100):
            loss = F.mse_loss(model(x), y)
            model.zero_grad()
            loss.backward()
            with tc.no_grad():
                for p in model.parameters():
                    p -= 1e4 * p.grad
            steps.append(step)

    text = caught(program)
    assert 1 <= len(steps) < 20
    assert "from finite values" in text or "its gradient" in text


# Nothing else -------------------------------------------------------------------------------------

BIG = [-1000.0, -3.0, 0.0, 2.0, 1000.0]
STABLE: dict[str, Callable[[], Any]] = {
    "softplus": lambda: F.softplus(leaf(BIG)),
    "logsigmoid": lambda: F.logsigmoid(leaf(BIG)),
    "sigmoid": lambda: leaf(BIG).sigmoid(),
    "tanh": lambda: leaf(BIG).tanh(),
    "silu": lambda: F.silu(leaf(BIG)),
    "gelu": lambda: F.gelu(leaf(BIG)),
    "elu": lambda: F.elu(leaf(BIG)),
    "log_softmax": lambda: F.log_softmax(leaf(BIG), -1),
    "logsumexp": lambda: tc.logsumexp(leaf(BIG), -1),
    "cross_entropy": lambda: F.cross_entropy(leaf([BIG, BIG]), tc.tensor([1, -100], device="cpu")),
    "bce": lambda: F.binary_cross_entropy_with_logits(leaf(BIG), tc.ones(5, device="cpu")),
    "huber": lambda: F.huber_loss(leaf(BIG), tc.zeros(5, device="cpu")),
    "powers": lambda: leaf(BIG) ** 2 + leaf(BIG) ** 3,
    "power of zero": lambda: leaf([0.0, 2.0]) ** leaf([2.0, 3.0]),
    "product with zeros": lambda: leaf([0.0, 0.0, 3.0]).prod(),
    "cumulative product": lambda: leaf([0.0, 2.0, 3.0]).cumprod(0),
    "norm": lambda: leaf([0.0, 2.0]).norm(),
    "atan2": lambda: tc.atan2(leaf([0.0, 1.0]), leaf([1.0, 0.0])),
    "abs, clamp, max": lambda: leaf(BIG).abs() + leaf(BIG).clamp(-1, 1) + leaf(BIG).max(),
    "dropout": lambda: F.dropout(leaf(BIG), 0.5),
    "var": lambda: leaf(BIG).var() + leaf(BIG).std(),
}


@pytest.mark.parametrize("name", STABLE)
def test_stable_functions_raise_no_alarm(name: str) -> None:
    """Neither values nor gradients pass through an inf on the way."""
    with tc.detect_nan():
        y = STABLE[name]()
        y.sum().backward()
        assert np.isfinite(y.detach().numpy()).all()


def test_masks_of_infinity_and_data_with_nan_are_no_alarm() -> None:
    """No op made them."""
    with tc.detect_nan():
        mask = tc.tensor([[True, False, True]], device="cpu")
        scores = leaf([[1.0, 2.0, 3.0]]).masked_fill(mask, -float("inf"))
        weights = F.softmax(scores, -1)
        weights.sum().backward()
        assert weights.tolist() == [[0.0, 1.0, 0.0]]
        data = tc.tensor([float("nan"), 1.0], device="cpu")
        assert np.isnan((data * 2).numpy()[0])


def test_nothing_stays_switched_on() -> None:
    with pytest.raises(tc.NonFiniteError), tc.detect_nan():
        leaf([-1.0]).sqrt()
    assert not settings.eager
    assert np.isnan(leaf([-1.0]).sqrt().item())


def test_what_was_recorded_before_is_left_alone() -> None:
    y = leaf([-1.0]).sqrt()
    with tc.detect_nan():
        z = leaf([4.0]).sqrt()
        assert z.item() == 2.0
    assert np.isnan(y.item())


# Forms --------------------------------------------------------------------------------------------


def test_decorators_and_nesting() -> None:
    @tc.detect_nan
    def bare() -> Any:
        return leaf([-1.0]).sqrt()

    @tc.detect_nan()
    def called() -> Any:
        return leaf([-1.0]).sqrt()

    for function in (bare, called):
        with pytest.raises(tc.NonFiniteError):
            function()
    with tc.detect_nan():
        with tc.detect_nan():
            pass
        with pytest.raises(tc.NonFiniteError):
            leaf([-1.0]).sqrt()
    assert np.isnan(leaf([-1.0]).sqrt().item())


def test_switch() -> None:
    """Without eager steps: the error comes with the value and names the op's line."""
    tc.autograd.set_detect_nan(True)
    try:
        y = leaf([-1.0]).sqrt()
        z = y * 2
        with pytest.raises(tc.NonFiniteError, match=r"y = leaf\(\[-1.0\]\).sqrt\(\)"):
            z.item()
    finally:
        y = z = None
        tc.autograd.set_detect_nan(False)
    assert np.isnan(leaf([-1.0]).sqrt().item())


def test_other_threads_are_left_alone() -> None:
    found: list[float] = []

    def work() -> None:
        found.append(leaf([-1.0]).sqrt().item())

    with tc.detect_nan():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert np.isnan(found).all()
    assert len(found) == 1


def test_a_bad_index_stays_a_bad_index() -> None:
    rows = tc.tensor([5], device="cpu")
    with pytest.raises(tc.IndexError), tc.detect_nan():
        leaf([1.0])[rows]


# TGC_EAGER ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_eager_computes_each_operation_at_its_call(device: str) -> None:
    x = leaf([1.0, 2.0], device)
    assert (x * 2).cell.node.storage is None
    with settings.override(eager=True):
        y = x * 2
        assert y.cell.node.storage is not None
        z = y.sum()
        assert z.cell.node.storage is not None
        z.backward()
        assert x.grad.cell.node.storage is not None
        w = y.detach()
        w += 1
        assert w.cell.node.storage is not None
    assert x.grad.tolist() == [2.0, 2.0]
    assert w.tolist() == [3.0, 5.0]


@pytest.mark.parametrize("device", DEVICES)
def test_eager_errors_come_at_their_call(device: str) -> None:
    x = leaf([1.0, 2.0], device)
    rows = tc.tensor([0, 7], device=device)
    lines = []
    with settings.override(eager=True), pytest.raises(tc.IndexError, match="actual: 7"):
        lines.append("before")
        y = x[rows]
        lines.append("after")
        y.tolist()
    assert lines == ["before"]


def test_eager_is_switched_by_its_variable() -> None:
    program = (
        "import tinygrad_cuda as tc\n"
        "x = tc.ones(2, device='cpu') * 3\n"
        "print(x.cell.node.storage is not None)"
    )
    for value, expected in (("1", "True"), ("0", "False")):
        result = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={"TGC_EAGER": value, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout.strip() == expected


# Repros and samples -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "program"),
    [
        ("sqrt", lambda: (leaf([1.0, 3.0]) - 2).sqrt()),
        ("cast", lambda: leaf([1e6]).half()),
        ("sum", lambda: (leaf([[3e38, 3e38]]) * 1.0).sum(1)),
        ("matmul", lambda: leaf([[3e38, 3e38]]) @ leaf([[1.0], [1.0]])),
        ("log", lambda: leaf([0.0], dtype=tc.bfloat16).log()),
        ("div", lambda: leaf([0.0, 4.0]).sqrt().sum().backward()),
    ],
)
def test_a_repro_runs_and_reproduces(op: str, program: Callable[[], Any], tmp_path: Path) -> None:
    """A script of ten lines and an archive; in a new process the same op raises."""
    with pytest.raises(tc.NonFiniteError) as error, tc.detect_nan(repro=tmp_path):
        program()
    script = tmp_path / f"{op}.py"
    assert error.value.__notes__ == [f"repro: python {script}"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{op}.npz", f"{op}.py"]
    assert len(script.read_text().splitlines()) == 10
    with pytest.raises(tc.NonFiniteError, match=rf"^\[{op}\] made .* from finite values"):
        exec(compile(script.read_text(), script, "exec"), {"__file__": str(script)})


def test_a_repro_is_a_program_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(tc.NonFiniteError), tc.detect_nan(repro=tmp_path):
        leaf([-1.0]).log()
    done = subprocess.run(
        [sys.executable, str(tmp_path / "log.py")], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "[log] made nan from finite values" in done.stderr


def test_one_entry_of_several_is_looked_at() -> None:
    """The others run as without: values are pending, and nothing raises."""
    watch = tc.detect_nan(every=3)
    raised = []
    for step in range(7):
        try:
            with watch:
                leaf([-1.0]).log()
        except tc.NonFiniteError:
            raised.append(step)
    assert raised == [0, 3, 6]


def test_a_sampled_step_sees_what_was_missed() -> None:
    """The step in between made a parameter nan; the next look says so, with the count."""
    weight = leaf([1.0])
    watch = tc.detect_nan(every=3)
    for step in range(3):
        with watch:
            (weight * 2).sum().backward()
            with tc.no_grad():
                weight.copy_((weight - 5).log() if step == 1 else weight * 0.5)
    with watch, pytest.raises(tc.NonFiniteError, match="was not finite before this step") as error:
        (weight * 2).sum().backward()
    assert "2 steps were not looked at" in str(error.value)


def test_a_share_of_the_time_bounds_the_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of the test's own: a step takes 1, a look 11; 5 % allow few of them."""
    clock = [0.0]
    monkeypatch.setattr(anomaly.time, "perf_counter", lambda: clock[0])
    watch = tc.detect_nan(sample=0.05)
    looks = []
    for step in range(1000):
        with watch:
            looked = modes.now.finite
            clock[0] += 11.0 if looked else 1.0
        if looked:
            looks.append(step)
    assert looks[0] == 0
    spent = 11 * len(looks)
    assert len(looks) >= 3
    assert spent <= 0.05 * clock[0] + 1


def looks_at(monkeypatch: pytest.MonkeyPatch, step: Callable[[int], None], steps: int) -> list[int]:
    """The entries looked at when each takes a second, and a look as long: a fifth of them."""
    clock = [0.0]
    monkeypatch.setattr(anomaly.time, "perf_counter", lambda: clock[0])
    watch = tc.detect_nan(sample=0.4)
    looks = []
    for number in range(steps):
        with watch:
            if modes.now.finite:
                looks.append(number)
            step(number)
            clock[0] += 1.0
    return looks


def test_a_step_after_a_look_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten seconds four: two looks, and the steps that find the device's queue empty."""
    looks = looks_at(monkeypatch, lambda number: None, 60)
    assert looks[0] == 0
    assert len(looks) == 12


@pytest.mark.parametrize("device", DEVICES)
def test_a_look_runs_the_plan_of_every_step(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No op is launched by itself, nothing is compiled for it, and the values are the same."""
    runs: list[tuple[int, int]] = []
    number = [0]
    found = realize.cache.find

    def find(*arguments: Any) -> Any:
        result = found(*arguments)
        runs.append((number[0], id(result[0])))
        return result

    monkeypatch.setattr(realize.cache, "find", find)
    monkeypatch.setattr(realize, "run_cached_plan", realize.trace_always)
    weights = {name: leaf([0.5, 2.0], device) for name in ("watched", "plain")}

    def step(weight: Any) -> None:
        (weight.exp() * weight).sum().backward()
        with tc.no_grad():
            weight -= 0.01 * weight.grad
        weight.grad = None
        tc.realize(weight)

    def watched(turn: int) -> None:
        number[0] = turn
        step(weights["watched"])

    looks = looks_at(monkeypatch, watched, 12)
    assert looks[:2] == [0, 5]
    plans = {turn: [plan for step, plan in runs if step == turn] for turn in range(12)}
    assert all(plans[turn] == plans[1] for turn in range(2, 12))
    for _ in range(12):
        step(weights["plain"])
    assert weights["watched"].tolist() == weights["plain"].tolist()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("planted", "text"), [(5, r"^\[sqrt\] its gradient"), (6, "was not finite before this step")]
)
def test_a_share_finds_what_was_planted(
    device: str, compiled: bool, planted: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a look the op and its line, forward and backward; between looks the next one says so."""
    weight = leaf([0.5, 2.0], device)
    data = tc.tensor([1.0, 1.0], device=device)

    def step(x: Any) -> None:
        root = (weight * x).sqrt()
        tc.where(weight * x > 0, root, 0.0).sum().backward()
        with tc.no_grad():
            weight.copy_(weight - 0.01 * weight.grad)
        weight.grad = None

    run = tc.compile(step) if compiled else step
    zero = data * 0
    reached: list[int] = []

    def turn(number: int) -> None:
        reached.append(number)
        run(zero if number == planted else data)
        tc.realize(weight)

    with pytest.raises(tc.NonFiniteError, match=text) as error:
        looks_at(monkeypatch, turn, 40)
    if planted == 5:
        assert "root = (weight * x).sqrt()" in str(error.value)
    assert planted <= reached[-1] <= 10


def test_a_share_leaves_values_that_nobody_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not computed in any step; what is alive at the end of the block is."""
    looks_at(monkeypatch, lambda number: (leaf([-1.0]).log(), None)[1], 3)
    alive = []
    with pytest.raises(tc.NonFiniteError, match=r"^\[log\] made nan"):
        looks_at(monkeypatch, lambda number: alive.append(leaf([-1.0]).log()), 3)


def test_schedules_that_make_no_sense() -> None:
    for options in ({"every": 0}, {"sample": 1.5}, {"every": 2, "sample": 0.1}):
        with pytest.raises(tc.ArgumentError, match="detect_nan"):
            tc.detect_nan(**options)


def test_a_decorator_takes_options() -> None:
    @tc.detect_nan(every=2)
    def step() -> None:
        leaf([-1.0]).log()

    with pytest.raises(tc.NonFiniteError):
        step()
    step()


# PyTorch's names ----------------------------------------------------------------------------------


def test_switches_of_anomalies_as_torch() -> None:
    """The same program under both libraries says the same of the two switches."""
    torch = pytest.importorskip("torch")

    def states(lib: Any) -> list[Any]:
        found: list[Any] = []

        def note() -> None:
            found.append((lib.is_anomaly_enabled(), lib.is_anomaly_check_nan_enabled()))

        note()
        for arguments in ((True,), (True, False), (False, False), (False,)):
            lib.set_anomaly_enabled(*arguments)
            note()
        with lib.autograd.set_detect_anomaly(True, check_nan=False):
            note()
            with lib.autograd.set_detect_anomaly(False):
                note()
            note()
        note()
        for wrong in ((1,), (True, 1), ()):
            with pytest.raises(TypeError):
                lib.set_anomaly_enabled(*wrong)
        return found

    assert states(tc) == states(torch)


def test_anomalies_by_the_switch() -> None:
    tc.set_anomaly_enabled(True)
    try:
        with pytest.raises(tc.NonFiniteError):
            tc.tensor([0.0], device="cpu").log().tolist()
    finally:
        tc.set_anomaly_enabled(False)
    assert tc.tensor([0.0], device="cpu").log().tolist() == [-float("inf")]
    with tc.detect_nan():
        assert tc.is_anomaly_enabled()
    assert not tc.is_anomaly_enabled()
