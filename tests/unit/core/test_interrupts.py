"""Ctrl-C and fork: a step happens whole or not at all, and a forked child can compute."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.interrupts import indivisible, uninterrupted
from tinygrad_cuda.core.locks import new_lock
from tinygrad_cuda.engine.capture import capturing, watching
from tinygrad_cuda.engine.cell import local
from tinygrad_cuda.engine.realize import lock_of
from tinygrad_cuda.nn import module


@pytest.fixture(autouse=True)
def python_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
    # `lines_of` raises at lines where CPython handles no signal, such as the one that ends a call.
    module._calls.depth = 0


@pytest.fixture
def terminated() -> Iterator[None]:
    """SIGTERM raises, as handlers that save and go do."""

    def handler(number: int, frame: Any) -> None:
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, handler)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(params=["cpu", "emu"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    try:
        registry.get(as_device(request.param))
    except tc.DeviceError as error:
        pytest.skip(str(error))
    tc.set_default_device(request.param)
    yield request.param
    tc.set_default_device(None)


# The block itself ---------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [uninterrupted, indivisible])
def test_a_signal_waits_until_the_block_ends(block: Any) -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt):
        with block, block:
            signal.raise_signal(signal.SIGINT)
            reached.append("inside")
        reached.append("behind")
    assert reached == ["inside"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_check_raises_where_all_can_be_taken_back() -> None:
    with indivisible, uninterrupted:
        uninterrupted.check()
    with pytest.raises(KeyboardInterrupt), uninterrupted:
        signal.raise_signal(signal.SIGINT)
        uninterrupted.check()
        raise AssertionError
    reached = []
    with pytest.raises(KeyboardInterrupt), indivisible, uninterrupted:
        signal.raise_signal(signal.SIGINT)
        uninterrupted.check()
        reached.append("inside")
    assert reached == ["inside"]


def test_the_users_own_handler_is_called_and_stays() -> None:
    calls: list[int] = []

    def own(number: int, frame: Any) -> None:
        calls.append(number)

    signal.signal(signal.SIGINT, own)
    with uninterrupted:
        signal.raise_signal(signal.SIGINT)
        assert not calls
    assert calls == [signal.SIGINT]
    signal.raise_signal(signal.SIGINT)
    assert calls == [signal.SIGINT] * 2
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with uninterrupted:
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_handler_that_calls_the_one_before_ends() -> None:
    calls: list[str] = []
    signal.signal(signal.SIGINT, lambda number, frame: calls.append("first"))
    for name in ("second", "third"):
        with uninterrupted:
            pass
        before: Any = signal.getsignal(signal.SIGINT)

        def handler(number: int, frame: Any, name: str = name, before: Any = before) -> None:
            calls.append(name)
            before(number, frame)

        signal.signal(signal.SIGINT, handler)
    with uninterrupted:
        signal.raise_signal(signal.SIGINT)
        assert not calls
    assert calls == ["third", "second", "first"]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2"])
def test_other_signals_with_handlers_wait(name: str) -> None:
    number, calls = signal.Signals[name], []
    before = signal.signal(number, lambda n, frame: calls.append(n))
    try:
        with uninterrupted:
            signal.raise_signal(number)
            signal.raise_signal(number)
            assert not calls
        assert calls == [number], "as the system does, which counts a waiting signal once"
        signal.raise_signal(number)
        assert calls == [number] * 2
    finally:
        signal.signal(number, before)
    with uninterrupted:
        pass
    assert signal.getsignal(number) is before


def test_a_handler_that_raises_keeps_no_other_from_its_call(terminated: None) -> None:
    reached: list[str] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: reached.append("another"))
    try:
        with pytest.raises(SystemExit) as caught, uninterrupted:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGUSR1)
            reached.append("inside")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert reached == ["inside", "another"]
    assert isinstance(caught.value.__context__, KeyboardInterrupt)


class Replay:
    """In the place of a program's short way: a signal arrives within it."""

    def __init__(self, number: int, reached: list[str]) -> None:
        self.number, self.reached = number, reached

    def replay(self, args: tuple[Any, ...], gradients: bool) -> str:
        signal.raise_signal(self.number)
        self.reached.append("inside")
        return "replayed"


def replayed(number: int, reached: list[str]) -> Any:
    """A compiled function whose replays get a signal."""
    compiled: Any = tc.compile(lambda: None)
    compiled._fast = Replay(number, reached)
    return compiled


def test_a_handler_set_between_replays_waits(terminated: None) -> None:
    """Also where nothing but replays run."""
    reached: list[str] = []
    run = replayed(signal.SIGTERM, reached)
    for _ in range(2):
        signal.signal(signal.SIGTERM, lambda number, frame: reached.append("called"))
        assert run() == "replayed"
    assert reached == ["inside", "called"] * 2


def test_a_signal_waits_for_the_replay_and_the_blocks_around_it() -> None:
    reached: list[str] = []
    run = replayed(signal.SIGINT, reached)
    with pytest.raises(KeyboardInterrupt):
        run()
    for block in (uninterrupted, indivisible):
        with pytest.raises(KeyboardInterrupt), block:
            run()
            reached.append("behind")
    assert reached == ["inside", "inside", "behind", "inside", "behind"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_replays_of_other_threads_hold_no_signal() -> None:
    reached: list[str] = []
    begun, done = threading.Event(), threading.Event()

    class Waiting(Replay):
        def replay(self, args: tuple[Any, ...], gradients: bool) -> str:
            begun.set()
            done.wait(60)
            return "replayed"

    run: Any = tc.compile(lambda: None)
    run._fast = Waiting(signal.SIGINT, reached)
    thread = threading.Thread(target=run)
    thread.start()
    begun.wait(60)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        done.set()
        thread.join()


# Steps --------------------------------------------------------------------------------------------


class Training:
    """A small training run, and all that a step of it changes."""

    def __init__(self, compiled: bool) -> None:
        tc.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.optimizer = optim.Adam(self.model.parameters(), lr=0.1)
        self.call = tc.compile(self.step) if compiled else self.step
        self.x = tc.tensor(np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3))

    def step(self, x: tc.Tensor) -> tc.Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def state(self) -> list[bytes]:
        found = [p.detach().numpy().tobytes() for p in self.model.parameters()]
        for parameter in self.model.parameters():
            for value in self.optimizer.state[parameter].values():
                given = value.numpy().tobytes() if isinstance(value, tc.Tensor) else repr(value)
                found.append(given if isinstance(given, bytes) else given.encode())
        return found


def lines_of(call: Callable[[], Any], at: int, number: int = signal.SIGINT) -> int:
    """Counts the lines of the package that a call runs; a signal arrives at one of them."""
    count = 0

    def local(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        if event == "line":
            count += 1
            if count == at:
                signal.raise_signal(number)
        return local

    def calls(frame: Any, event: str, argument: Any) -> Any:
        return local if "/tinygrad_cuda/" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(calls)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_an_interrupted_step_happens_whole_or_not_at_all(
    device: str, compiled: bool, number: int, terminated: None
) -> None:
    """Wherever the signal falls; and training goes on to the same bits."""
    alone, disturbed = Training(compiled), Training(compiled)
    for _ in range(4):
        alone.call(alone.x)
        disturbed.call(disturbed.x)
    expected = [alone.state()]
    assert disturbed.state() == expected[0]
    length = lines_of(lambda: alone.call(alone.x), at=-1)
    expected.append(alone.state())
    done = 0
    for at in np.linspace(1, length, 40 if device == "cpu" else 12, dtype=int).tolist():
        while len(expected) < done + 2:
            alone.call(alone.x)
            expected.append(alone.state())
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            lines_of(lambda: disturbed.call(disturbed.x), at, number)
        found = disturbed.state()
        assert found in expected[done : done + 2], f"the signal at line {at} of {length}"
        done += found == expected[done + 1]
        assert capturing() is None
        assert watching.on == 0
        assert tc.is_grad_enabled()

    for _ in range(2):
        disturbed.call(disturbed.x)
    while len(expected) < done + 3:
        alone.call(alone.x)
        expected.append(alone.state())
    assert disturbed.state() == expected[done + 2]


def test_a_write_before_an_interrupted_step_is_not_lost() -> None:
    """A step that is taken back would take the pending write with it: it is done to its end."""
    w = tc.tensor([1.0, 2.0], device="cpu", requires_grad=True)
    optimizer = optim.SGD([w], lr=0.5)
    w.grad = tc.ones(2, device="cpu")
    with tc.no_grad():
        w.mul_(10)
    with pytest.raises(KeyboardInterrupt), uninterrupted:
        signal.raise_signal(signal.SIGINT)
        optimizer.step()
    assert w.tolist() == [9.5, 19.5]
    w.grad = tc.ones(2, device="cpu")
    with pytest.raises(KeyboardInterrupt), uninterrupted:
        signal.raise_signal(signal.SIGINT)
        optimizer.step()
    assert w.tolist() == [9.5, 19.5]


# Fork ---------------------------------------------------------------------------------------------


def forked(work: Callable[[], bool]) -> int:
    """The exit status of a child that does some work; 99 if it hangs."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    until = time.monotonic() + 20
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return 99
        select_nothing()


def select_nothing() -> None:
    """Lets others run for a moment."""
    threading.Event().wait(0.001)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_child_computes_whatever_another_thread_held(device: str) -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock_of(as_device(device)):
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    try:
        assert forked(lambda: (tc.ones(3, device=device) * 2).tolist() == [2, 2, 2]) == 0
    finally:
        done.set()
        thread.join()


FORKS = """
import os, signal, sys, threading, time
import tinygrad_cuda as tc

signal.alarm(60)
ended = threading.Event()

def compute():
    while not ended.is_set():
        (tc.ones(200, 200) @ tc.ones(200, 200)).sum().item()

threading.Thread(target=compute).start()
time.sleep(float(sys.argv[1]))
statuses = []
for i in range(5):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        a = tc.ones(200, 200) * i
        os._exit(0 if (a @ a).sum().item() == 200**3 * i * i else 1)
    statuses.append(os.waitpid(child, 0)[1])
ended.set()
print(statuses)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("delay", ["0", "0.3"])
def test_a_fork_beside_a_thread_that_computes(delay: str) -> None:
    """While a backend is imported, and beside products with two threads of BLAS."""
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, delay],
        env={**os.environ, "TGC_DEVICE": "cpu", "OPENBLAS_NUM_THREADS": "2"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert result.stdout == "[0, 0, 0, 0, 0]\n", result.stderr


def test_a_lock_of_the_thread_that_forks_stays_its_own() -> None:
    lock = new_lock()

    def work() -> bool:
        with lock:
            return True

    with lock:
        assert forked(work) == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_signals_wait_in_a_child_that_another_thread_has_forked() -> None:
    """The thread is the child's main one; blocks that the parent's has open are gone."""
    statuses: list[int] = []

    def work() -> bool:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        reached: list[str] = []
        for run in (replayed(signal.SIGINT, reached), lambda: signal.raise_signal(signal.SIGINT)):
            try:
                run()
            except KeyboardInterrupt:
                reached.append("raised")
        return reached == ["inside", "raised", "raised"]

    def fork() -> None:
        assert local.recorder.signals is not uninterrupted
        statuses.append(forked(work))

    with uninterrupted, indivisible:
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
    assert statuses == [0]


def test_a_long_program_on_cpu_ends_at_the_next_step(on_cpu: None) -> None:
    """A Ctrl-C waits for a step of a program at most, and for all of it under `indivisible`."""
    from tinygrad_cuda.engine.plan import cache as plans

    ran: list[str] = []

    def interrupted(values: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        ran.append("first")

    plans.clear()
    x = tc.ones(3)
    assert (x + 1).tolist() == [2, 2, 2]
    (plan,) = (plan for entry in plans.entries.values() for plan in entry.plans.values())
    plan.lowered.steps[:] = [interrupted, lambda values: ran.append("second")]
    with pytest.raises(KeyboardInterrupt), uninterrupted:
        plan._run([])
    assert ran == ["first"]
    with pytest.raises(KeyboardInterrupt), indivisible, uninterrupted:
        plan._run([])
    assert ran == ["first", "first", "second"]
    plans.clear()
