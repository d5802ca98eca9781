"""tc.compile: a Python value that changes between calls, or that a call changes."""

from __future__ import annotations

import cProfile
import functools
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from python_values import TRAPS, Trainer, Trap, set_scale

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.replay.guards.discovery import names_of

pytestmark = pytest.mark.usefixtures("device")

CALLS = 0


class Descent(optim.Optimizer):
    """Gradient descent whose step is all its own, as PyTorch's users write it."""

    def __init__(self, parameters: Any, lr: float, counts: bool = False) -> None:
        super().__init__(parameters, {"lr": lr})
        self.factor, self.counts = 1.0, counts

    @tc.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if self.counts:
                    state = self.state[parameter]
                    state["turns"] = state.get("turns", 0) + 1
                parameter -= group["lr"] * parameter.grad * self.factor


@pytest.fixture(autouse=True)
def scale() -> None:
    set_scale(2.0)


@pytest.mark.parametrize("trap", TRAPS)
def test_a_value_that_changes(trap: Callable[[], Trap]) -> None:
    """The replays after it are those of the new value; before, all are alike."""
    function, change = trap()
    compiled, x = tc.compile(function), tc.tensor([5.0])
    before = [compiled(x).tolist() for _ in range(4)]
    assert before == [function(x).tolist()] * 4
    change()
    after = [compiled(x).tolist() for _ in range(3)]
    assert after == [function(x).tolist()] * 3
    assert (after[0], type(after[0][0])) != (before[0], type(before[0][0]))


@pytest.mark.fast_paths
def test_values_that_stay_need_no_trace() -> None:
    """Nor do those that are set to what they were, and those that no code names."""
    calls: list[None] = []
    trainer = Trainer()

    def step(x: Any) -> Any:
        calls.append(None)
        return trainer.by_list(trainer.by_method(x))

    compiled = tc.compile(step)
    for number in range(6):
        trainer.config.inner.scale = float("2.0")
        trainer.scales[:] = [float("2.0")]
        trainer.epoch = number  # type: ignore[attr-defined]
        assert compiled(tc.ones(1)).tolist() == [4.0]
    assert len(calls) == 1


def test_what_code_inside_changes_and_reads_raises() -> None:
    """A replay would not change it: lists, dictionaries and attributes that helpers write."""
    log: list[int] = []
    table, trainer, turn = {"calls": 0}, Trainer(), 0

    def in_a_list(x: Any) -> Any:
        log.append(1)
        return x * len(log)

    def in_a_dictionary(x: Any) -> Any:
        table["calls"] += 1
        return x * table["calls"]

    def in_an_attribute(x: Any) -> Any:
        trainer.calls = getattr(trainer, "calls", 0) + 1  # type: ignore[attr-defined]
        return x * 2

    def later(x: Any) -> Any:
        nonlocal turn
        turn += 1
        return x * (2 if turn < 100 else 3)

    trainer.calls = 0  # type: ignore[attr-defined]
    helpers = {"log": in_a_list, "table": in_a_dictionary, "calls": in_an_attribute, "turn": later}
    for name, helper in helpers.items():
        call = tc.compile(lambda x, helper=helper: helper(x))
        with pytest.raises(tc.CompileError, match=f"changed the Python value {name}"):
            for _ in range(3):
                call(tc.ones(1))


@pytest.mark.fast_paths
def test_what_code_inside_only_counts_is_not_repeated() -> None:
    """As with a print: replays run no Python, and nothing comes of it."""
    log: list[int] = []
    calls: list[None] = []
    table, trainer, turn = {"calls": 0}, Trainer(), 0
    trainer.calls = 0  # type: ignore[attr-defined]

    def step(x: Any, *, calls: list[None] = calls) -> Any:
        nonlocal turn
        turn += 1
        calls.append(None)

        def inside() -> None:
            log.append(1)

        inside()
        log.extend([2, 3])
        table["calls"] += 1
        trainer.calls += 1  # type: ignore[attr-defined]
        trainer.scales.append(5.0)
        set_global()
        return x * 2

    def set_global() -> None:
        global CALLS
        CALLS += 1

    before, compiled = CALLS, tc.compile(lambda x: step(x))
    for _ in range(4):
        assert compiled(tc.ones(1)).tolist() == [2.0]
    counted = [turn, len(calls), len(log) // 3, table["calls"], trainer.calls, CALLS - before]  # type: ignore[attr-defined]
    assert counted == [1] * 6
    assert len(trainer.scales) == 2


def trained(compiled: bool, scheduled: bool, counts: bool = False) -> list[float]:
    """A weight after a few steps of an optimizer of the user's own."""
    weight = nn.Parameter(tc.ones(2))
    optimizer = Descent([weight], lr=0.1, counts=counts)
    schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def step(x: Any) -> None:
        (weight * weight * x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    call = tc.compile(step) if compiled else step
    optimizer.steps = 1  # so that no schedule warns that it goes first
    for number in range(8):
        call(tc.ones(2))
        if scheduled:
            schedule.step()
        elif number == 4:
            optimizer.factor = 0.1
    found: list[float] = weight.tolist()
    return found


@pytest.mark.parametrize("scheduled", [False, True])
def test_an_optimizer_of_the_users_own(scheduled: bool) -> None:
    """Its rate and its attributes are Python values of its step."""
    assert trained(True, scheduled) == trained(False, scheduled)


def test_an_optimizer_that_counts_raises() -> None:
    with pytest.raises(tc.CompileError, match="changed the Python value"):
        trained(True, False, counts=True)


def test_a_table_that_fills_up() -> None:
    """Signatures that each leave an entry behind once are no calls that never become steady."""
    table: dict[int, float] = {}

    def step(x: Any) -> Any:
        size = x.shape[0]
        if size not in table:
            table[size] = 2.0 * size
        return x * table[size]

    compiled = tc.compile(step)
    for _ in range(3):
        for size in range(1, 7):
            assert compiled(tc.ones(size)).tolist() == [2.0 * size] * size


def test_libraries_and_optimizers_are_not_searched() -> None:
    """What they hold is theirs: an optimizer's rates and states are no constants."""
    model = nn.Linear(2, 1)
    optimizer = optim.Adam(model.parameters())
    schedule = optim.lr_scheduler.StepLR(optimizer, 2)

    def step(x: Any) -> None:
        model(x).sum().backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    names = names_of(step, ())
    found = {named.name for named in names.values} - {"__code__"}
    assert found == {"model", "optimizer", "schedule"}
    assert not names.contents


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages", "sources"])
def test_libraries_of_other_environments_are_not_searched(folder: str, tmp_path: Path) -> None:
    """Those of a user, of the system or on PYTHONPATH, which may be as large as torch."""
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "other_library.py").write_text("TABLE = [2.0]\ndef two(): return TABLE[0]")
    program = """
import other_library
from tinygrad_cuda.replay.guards.discovery import names_of
print([named.name for named in names_of(lambda x: x * other_library.two(), ()).values])
"""
    paths = os.pathsep.join([str(tmp_path / folder), str(Path(tc.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": paths}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert ("TABLE" in found.stdout) == (folder == "sources")


def test_what_takes_time_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = dict.fromkeys(map(str, range(6000)), 1.0)
    image = np.ones(1 << 18, np.float64)

    def step(x: Any) -> Any:
        return x * words["7"] * float(image[0])

    monkeypatch.setattr(settings, "debug", 1)
    assert tc.compile(step)(tc.ones(1)).tolist() == [1.0]
    text = capsys.readouterr().err
    assert "step looks at all 6000 items of words before each replay" in text
    assert "step compares all 2097152 bytes of image before each replay" in text


def test_a_list_that_is_an_argument_is_a_value() -> None:
    """Not the list of the first call; what becomes of that one is no matter."""
    calls: list[None] = []
    first = [2.0]

    def step(x: Any, scales: Any) -> Any:
        calls.append(None)
        return x * scales[0]

    compiled = tc.compile(step)
    assert compiled(tc.ones(1), first).tolist() == [2.0]
    first[0] = 7.0
    assert compiled(tc.ones(1), [2.0]).tolist() == [2.0]
    assert compiled(tc.ones(1), scales=first).tolist() == [7.0]
    assert settings.slow or len(calls) == 2


def test_an_object_that_is_an_argument() -> None:
    """It is asked for the names that the function has, by position and by name."""
    config = SimpleNamespace(scale=2.0)
    compiled = tc.compile(lambda x, config: x * config.scale)
    for value in (2.0, 2.0, 3.0, 3.0):
        config.scale = value
        assert compiled(tc.ones(1), config).tolist() == [value]
        assert compiled(tc.ones(1), config=config).tolist() == [value]


def test_an_argument_that_is_in_a_named_list() -> None:
    """Another argument later is not the one in the list."""
    known = [tc.tensor([2.0]), tc.tensor([3.0])]
    compiled = tc.compile(lambda x: x * known[0])
    assert compiled(known[0]).tolist() == [4.0]
    assert compiled(known[1]).tolist() == [6.0]
    assert compiled(known[0]).tolist() == [4.0]


def test_arrays_of_other_libraries_are_refused() -> None:
    """Nobody can tell whether they have changed, but by reading them."""
    torch = pytest.importorskip("torch")
    factor = torch.ones(1)
    with pytest.raises(tc.CompileError, match=r"it names a torch.Tensor(.|\n)*float\(factor\)"):
        tc.compile(lambda x: x * float(factor))(tc.ones(1))


def test_a_profiler_goes_on() -> None:
    """One of C, and one of Python, also where a call is refused."""

    def seen() -> None:
        pass

    profiler = cProfile.Profile()
    profiler.enable()
    try:
        tc.compile(lambda x: x * 2)(tc.ones(1))
        with pytest.raises(tc.CompileError, match="calls time"):
            tc.compile(lambda x: x * time.time())(tc.ones(1))
        seen()
    finally:
        profiler.disable()
    assert any(entry.code is seen.__code__ for entry in profiler.getstats())
    events: list[str] = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        tc.compile(lambda x: x * 2)(tc.ones(1))
        events.clear()
        len(events)
    finally:
        sys.setprofile(None)
    assert "c_call" in events


def test_a_log_and_a_warning_inside() -> None:
    """What they read of the clock does not come back to the function."""
    log = logging.getLogger("compiled")

    def step(x: Any) -> Any:
        log.warning("shape %s", x.shape)
        warnings.warn("once", UserWarning, stacklevel=1)
        return x * 2

    compiled = tc.compile(step)
    with pytest.warns(UserWarning, match="once"):
        assert [compiled(tc.ones(1)).item() for _ in range(3)] == [2.0] * 3


class Sharing:
    """Its methods share names with what its model holds."""

    def __init__(self) -> None:
        self.model = nn.Linear(2, 2)
        self.model.between = nn.LayerNorm(2)
        self.optimizer = optim.Adam(self.model.parameters(), lr=0.1)

    def between(self) -> int:
        return len(self.optimizer.state)

    def step(self, x: Any) -> Any:
        return self.model.between(self.model(x)).sum()

    def counted(self, x: Any) -> Any:
        return x * self.between()


def test_only_what_runs_is_refused() -> None:
    """Names lead to code that no call runs: what it would read is not read."""
    trainer, x = Sharing(), tc.ones(1, 2)
    call = tc.compile(trainer.step)
    for _ in range(3):
        assert call(x).item() == trainer.step(x).item()
    with pytest.raises(tc.CompileError, match=r"reads the state of an optimizer(.|\n)*len\(self"):
        tc.compile(trainer.counted)(x)


class Schooling:
    """Training whose methods share names; one of them does what a replay cannot."""

    def __init__(self) -> None:
        self.weight = nn.Parameter(tc.ones(2))
        self.optimizer = optim.Adam([self.weight], lr=0.1)
        self.epochs = 0
        self.calls: list[None] = []

    def train(self, x: Any) -> Any:
        self.calls.append(None)
        self.optimizer.zero_grad()
        loss = (self.weight * x).square().sum()
        loss.backward()
        self.optimizer.step()
        return loss

    def step(self) -> Any:
        """Ends an epoch."""
        self.epochs += 1
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.5
        return self.optimizer.state[self.weight]["step"]

    def both(self, x: Any) -> Any:
        self.train(x)
        return x * self.step()


def test_methods_that_do_not_run_are_not_read() -> None:
    """Of the same name as one that does: they are neither refused nor compared."""
    plain, task = Schooling(), Schooling()
    compiled = tc.compile(task.train)
    x = tc.tensor([1.0, 2.0])
    for _ in range(4):
        assert [compiled(x).item() for _ in range(3)] == [plain.train(x).item() for _ in range(3)]
        plain.step()
        task.step()
    assert settings.slow or len(task.calls) == 2, "the first call makes the optimizer's state"
    with pytest.raises(tc.CompileError, match=r"state of an optimizer(.|\n)*test_compile_names"):
        tc.compile(Schooling().both)(x)


def test_code_of_other_threads_is_read() -> None:
    """The interpreter does not tell of it, nor of a function whose result is cached."""
    scales = [2.0]

    def run(found: list[float]) -> None:
        found.append(scales[0])

    @functools.cache
    def cached() -> float:
        return helper()

    def helper() -> float:
        return scales[0]

    def by_thread(x: Any) -> Any:
        found: list[float] = []
        thread = threading.Thread(target=run, args=(found,))
        thread.start()
        thread.join()
        return x * found[0]

    by_cache, x = tc.compile(lambda x: x * cached()), tc.ones(1)
    compiled = tc.compile(by_thread)
    for scale in (2.0, 3.0, 4.0):
        scales[0] = scale
        cached.cache_clear()
        assert cached() == scale
        assert [call(x).item() for call in (compiled, by_cache) for _ in range(3)] == [scale] * 6


def test_what_others_change_is_no_fault_of_the_call() -> None:
    """A logger keeps what it was asked until its level is set, between calls, as often as not."""
    logger = logging.getLogger("compiled")
    compiled = tc.compile(lambda x: x * (3.0 if logger.isEnabledFor(10) else 2.0))
    x = tc.ones(1)
    for number in range(8):
        logger.setLevel(30 if number % 2 else 10)
        assert [compiled(x).item() for _ in range(1 + number % 3)] == [2.0 + (number + 1) % 2] * (
            1 + number % 3
        )


def test_what_a_call_changes_itself_is_refused_in_the_end() -> None:
    """However much others change besides."""
    things: dict[str, int] = {"calls": 0}

    def step(x: Any) -> Any:
        things["calls"] += 1
        return x * things["calls"]

    compiled = tc.compile(step)
    with pytest.raises(tc.CompileError, match="3 calls in a row"):
        for _ in range(3):
            compiled(tc.ones(1))
