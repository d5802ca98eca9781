"""Each fast path switched off: the same kernels and the same bits, in whatever combination."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pretended_gpu import pretended_gpu

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.backend.emu.backend import EmuBackend
from tinygrad_cuda.engine import realize
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.graph import gradient
from tinygrad_cuda.lowering.lower import Lowered
from tinygrad_cuda.nn import functional as F
from tinygrad_cuda.replay.switches import FAST_PATHS, chosen, switches

compiles = pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")
TURNS = 20  # a guard is written for a plan that has come 16 times


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The kernel texts of all plans on emu, in the order in which they were made."""
    found: list[str] = []
    load = EmuBackend.load

    def noted(backend: EmuBackend, lowered: Lowered) -> Any:
        found.append(lowered.source)
        return load(backend, lowered)

    monkeypatch.setattr(EmuBackend, "load", noted)
    with switches.only(*switches.on()):
        yield found


def trained(device: str, compiled: bool, turns: int = TURNS) -> list[Any]:
    """All that a training loop with a schedule, a look and a kept loss shows."""
    tc.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)).to(device)
    optimizer = optim.AdamW(model.parameters(), lr=0.05)
    schedule = optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    call = tc.compile(step) if compiled else step
    seen: list[Any] = []
    held: list[Any] = []
    for turn in range(turns):
        x = tc.tensor([[turn, 1.0, -1.0, 0.5], [2.0, turn, 0.0, 1.0]], device=device)
        held.append(call(x, tc.tensor([0, 2], device=device)))
        schedule.step()
        # The number is folded, and an argument from the second turn on.
        seen.append((x * (turn + 0.5)).sum().item())
        if turn % 3 == 0:
            seen.append(held.pop().item())
        if turn % 7 == 6:
            seen.append(model[0].weight.detach().numpy().tobytes())
    seen += [loss.item() for loss in held]
    return [*seen, *(p.detach().numpy().tobytes() for p in model.parameters())]


def in_order(texts: list[str]) -> list[str]:
    """Each text once, where it came first."""
    return list(dict.fromkeys(texts))


@compiles
@pytest.mark.parametrize("compiled", [False, True])
def test_slow_and_fast_have_the_same_kernels_and_bits(texts: list[str], compiled: bool) -> None:
    """All fast paths, and none: the texts first, since bits may agree by chance."""
    fast = trained("emu", compiled)
    kernels = in_order(texts)
    texts.clear()
    with switches.only():
        slow = trained("emu", compiled)
    assert in_order(texts) == kernels
    assert len(texts) >= 2 * TURNS and len(kernels) < TURNS  # each trace was scheduled anew
    assert slow == fast


@pytest.mark.fast_paths
@compiles
@pytest.mark.parametrize("compiled", [False, True])
def test_each_is_switched_off_alone(texts: list[str], compiled: bool) -> None:
    """And the kernels and bits stay what they are without any."""
    with switches.only():
        slow = trained("emu", compiled, 6)
    kernels = in_order(texts)
    for name in FAST_PATHS:
        texts.clear()
        with switches.without(name):
            assert name not in switches.on() and len(switches.on()) == len(FAST_PATHS) - 1
            assert trained("emu", compiled, 6) == slow, name
        assert in_order(texts) == kernels, name


@compiles
@pytest.mark.parametrize("compiled", [False, True])
def test_bits_of_graphs(compiled: bool) -> None:
    """What only a GPU has: graphs, their addresses, and the runs of a steady loop."""
    with pretended_gpu():
        with switches.only():
            slow = trained("cuda", compiled, 8)
        for name in ("", "cuda_graphs", "graphs_by_address", "steady_runs", "output_recycling"):
            with switches.without(name):
                assert trained("cuda", compiled, 8) == slow, name


@pytest.mark.parametrize("compiled", [False, True])
def test_bits_on_cpu(compiled: bool) -> None:
    """Each off alone, and all, where no kernel is compiled."""
    with switches.only():
        slow = trained("cpu", compiled)
    for name in ("", *FAST_PATHS):
        with switches.without(name):
            assert trained("cpu", compiled) == slow, name


@pytest.mark.fast_paths
def test_the_defaults_of_hooks_are_the_slow_way() -> None:
    """What the rooms below have where nobody has filled a hook."""
    with switches.only():
        assert gradient.plain_pass is gradient.pass_by_rules
        assert realize.run_cached_plan is realize.trace_always
        assert not cache.keeps and not type(cache).keeps
    assert gradient.plain_pass is not gradient.pass_by_rules


def test_numbers_stay_arguments() -> None:
    """A trace that is scheduled anew does not fold a number that has varied."""
    with switches.only():
        x = tc.ones(3)
        before = cache.made
        values = [(x * (turn + 0.5)).tolist() for turn in range(5)]
        assert values == [[turn + 0.5] * 3 for turn in range(5)]
        assert cache.made - before <= 3  # the leaf, the number folded, the number as an argument


def test_what_is_chosen() -> None:
    names = FAST_PATHS
    assert chosen(False, ()) == names
    assert chosen(True, ("plan_cache",)) == ()
    assert chosen(False, ("plan_cache", "plan_lookup")) == ("plan_cache", "plan_lookup")
    assert chosen(False, ("-plan_cache",)) == tuple(n for n in names if n != "plan_cache")
    with pytest.warns(UserWarning, match="TGC_FAST: plans is no fast path"):
        assert chosen(False, ("plans", "plan_cache")) == ("plan_cache",)


def test_the_environment_is_read_at_import() -> None:
    program = "from tinygrad_cuda.replay.switches import switches; print(switches.on())"
    for variables, expected in (
        ({"TGC_SLOW": "1"}, ()),
        ({"TGC_FAST": "plan_cache, plan_lookup"}, ("plan_cache", "plan_lookup")),
    ):
        result = subprocess.run(
            [sys.executable, "-c", program], env=variables, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        assert result.stdout.strip() == repr(expected)
