"""Results that share memory with the values of their own step, whatever the caller keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pretended_gpu import pretended_gpu

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.backend.cuda import backend as cuda
from tinygrad_cuda.backend.cuda import driver as runtime
from tinygrad_cuda.backend.cuda.graphs.multi_run_replay import MultiRunGraph
from tinygrad_cuda.backend.emu import backend as emu
from tinygrad_cuda.backend.emu.compiler import toolchain
from tinygrad_cuda.backend.launch.executable import LoweredExecutable
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.errors import DeviceError
from tinygrad_cuda.engine.plan import cache as plans
from tinygrad_cuda.lowering.schedule import arena, order
from tinygrad_cuda.lowering.schedule.memory import plan_memory
from tinygrad_cuda.utils.profiling import recorder

SMALL = 512  # bytes from which on values are laid out here as large ones are
STEPS = 7

Kept = list[tuple[Any, bytes]]  # what a caller holds, and the bytes that it had at first
Keep = Callable[[int, Any, Kept], None]


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Blocks in small programs; the addresses of those that runs had."""
    try:
        toolchain()
    except DeviceError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(arena, "WORTH_A_PART", SMALL)
    monkeypatch.setattr(arena, "WORTH_A_BLOCK", SMALL)
    monkeypatch.setattr(arena, "BLOCK_SHARE", 1.0)
    monkeypatch.setattr(arena, "plan_memory", partial(plan_memory, worth_an_edge=SMALL))
    monkeypatch.setattr(order, "WORTH_AN_ORDER", SMALL)
    addresses: list[int] = []
    for machine in (cuda.CudaBackend, emu.EmuBackend):
        whole: Any = machine.joined

        def noting(self: Any, pieces: Any, whole: Any = whole) -> Any:
            addresses.append(pieces[0].address)
            return whole(self, pieces)

        monkeypatch.setattr(machine, "joined", noting)
    plans.clear()
    yield addresses
    plans.clear()
    tc.set_default_device(None)


def executables() -> list[Any]:
    found = [plan for entry in plans.entries.values() for plan in entry.plans.values()]
    return [plan for plan in found if isinstance(plan, LoweredExecutable)]


def hold(kept: Kept, value: Any) -> None:
    kept.append((value, value.numpy().tobytes()))


def keep_nothing(number: int, net: Any, kept: Kept) -> None:
    """The gradients of a step are gone before the next one."""


def keep_one(number: int, net: Any, kept: Kept) -> None:
    """One gradient of each step, for good."""
    hold(kept, net[number % 2 * 2].weight.grad)


def keep_the_last(number: int, net: Any, kept: Kept) -> None:
    """All gradients, until the next step has been."""
    kept.clear()
    for p in net.parameters():
        hold(kept, p.grad)


def keep_some_steps(number: int, net: Any, kept: Kept) -> None:
    """A view of a gradient from time to time."""
    if number % 3 == 1:
        hold(kept, net[2].weight.grad[3:].T)


KEEPING = [keep_nothing, keep_one, keep_the_last, keep_some_steps]


def trained(device: str, compiled: bool, keep: Keep, drop: bool) -> list[bytes]:
    """Losses, gradients and parameters of some steps; storage a caller holds keeps its bytes."""
    tc.manual_seed(0)
    tc.set_default_device(device)
    net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 64), nn.Linear(64, 8))
    rule = optim.Adam(net.parameters(), lr=0.01)
    rng = np.random.default_rng(0)

    def step(x: Any, y: Any) -> Any:
        if drop:
            rule.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        rule.step()
        return loss.detach()

    call = tc.compile(step) if compiled else step
    kept: Kept = []
    found = []
    for number in range(STEPS):
        pair = (rng.standard_normal((48, n)).astype(np.float32) for n in (16, 8))
        found.append(call(*map(tc.tensor, pair)).numpy().tobytes())
        if drop:  # else gradients are added to what the caller has
            assert all(value.numpy().tobytes() == old for value, old in kept)
        keep(number, net, kept)
    kept += [(value, b"") for p in net.parameters() for value in (p.grad, p.detach())]
    return found + [value.numpy().tobytes() for value, _ in kept]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize("keep", KEEPING)
def test_what_a_caller_keeps_is_not_written_over(
    keep: Keep, drop: bool, compiled: bool, joined: list[int]
) -> None:
    """On the emulator, and on graphs that are replayed; the bits are those without any sharing."""
    own = trained("emu", compiled, keep, drop)
    with pretended_gpu():
        assert trained("cuda", compiled, keep, drop) == own
    plans.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena, "WORTH_A_BLOCK", 1 << 40)
        assert trained("emu", compiled, keep, drop) == own


@pytest.mark.parametrize("compiled", [False, True])
def test_a_loop_has_one_block(compiled: bool, joined: list[int]) -> None:
    """From its second run on, at the same address; the graphs of a compiled one are not asked."""
    with pretended_gpu():
        trained("cuda", compiled, keep_nothing, True)
    assert len(joined) >= (1 if compiled else STEPS - 3)
    assert len(set(joined)) == 1


def test_a_loop_whose_results_are_held_has_two_blocks(joined: list[int]) -> None:
    with pretended_gpu():
        trained("cuda", False, keep_the_last, True)
    assert len(joined) >= STEPS - 3
    assert len(set(joined)) == 2


class Piece:
    def __init__(self, address: int, nbytes: int) -> None:
        self.address, self.nbytes = address, nbytes


def test_a_block_is_counted_once() -> None:
    """Two results, the block that they are, an arena, and what lies behind the arena's values."""
    executable: Any = SimpleNamespace(program=SimpleNamespace(device=as_device("emu")))
    pieces = [(4096, 512), (4608, 1024), (8192, 4096), (4096, 1536), (10240, 2048), (2048, 8)]
    held, _ = recorder._held(executable, [Piece(*piece) for piece in pieces])
    assert held == 512 + 1024 + 4096 + 8


def test_runs_of_a_graph_have_one_arena(joined: list[int]) -> None:
    """A later run needs more of it than those before, since its results lie anywhere."""
    with pretended_gpu():
        trained("cuda", False, keep_nothing, True)
        gpu = runtime.device(0)
        one = max(executables(), key=lambda plan: len(plan.block))
        assert one.block
        before = max(executables(), key=lambda plan: not plan.block)
        runs = MultiRunGraph(gpu, [before, one], 1)
        gpu.empty_cache()
        arenas = []
        for number, program in enumerate(runs.programs):
            memory = program.memory
            program.memory = lambda *given, own=memory: arenas.append(own(*given)) or arenas[-1]
            values = (program.program.inputs, program.schedule.outputs)
            inputs, results = (
                [gpu.allocate(prod(v.shape) * v.dtype.itemsize) for v in part] for part in values
            )
            runs.add(number, inputs, results, [0] * 100)
        addresses = {memory[-4].address for memory in arenas[-2:]}
        assert addresses == {gpu.arena(0).address}
