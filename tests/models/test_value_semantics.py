"""Laziness is invisible: programs that look, write and differentiate at awkward moments.

Each runs as it is on torch and here: lazily, eagerly, with a plan cut every few operations, and
with storages overwritten as on a GPU. Values agree, plans stop being made, nodes do not pile up.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import value_programs_history as history
import value_programs_own as own
import value_programs_training as training
import value_programs_writes as writes

import tinygrad_cuda as tc
from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.engine import overwrite
from tinygrad_cuda.engine.cell import Recorder, local
from tinygrad_cuda.engine.plan import cache as plans
from tinygrad_cuda.graph.node import Node

Program = Callable[[Any], Iterator[Any]]

SHARED: tuple[Program, ...] = (*training.PROGRAMS, *history.PROGRAMS, *writes.PROGRAMS)
OWN: tuple[Program, ...] = own.PROGRAMS
MODES = ("lazy", "eager", "cut", "overwriting", "cut and overwriting")
# A thousand turns of a program are run once; other modes see this many.
TURNS = 120
# Looks after which live nodes are counted: that takes longer than most programs.
COUNTED = (4, 5, 8, 12, 24, 40)
# On the emulator a few turns of some programs: each plan is compiled there.
EMULATED_TURNS = 4
EMULATED: tuple[Program, ...] = (
    training.item_before_backward, training.looks_everywhere, training.momentum, training.adam,
    training.accumulation_over_parts, training.gradients_kept, training.adversaries_frozen,
    training.deepcopy_in_mid_training, training.recurrent_state, training.moving_window,
    training.constants_that_vary, history.retained_twice, history.two_losses_retained,
    history.sign_attack, history.gradient_penalty_looked_at, history.hooks,
    history.handed_to_a_thread, history.results_of_a_reduction_with_indices, history.windows,
    writes.views_of_views, writes.writes_by_arrays_and_masks, writes.write_over_a_pending_reader,
    writes.swap_of_values, writes.ping_pong, writes.written_with_history,
    writes.written_unseen_by_history, writes.view_of_a_leaf_kept, writes.data_set_to_another,
    own.dropout, own.operand_written_after_record, own.step_between_record_and_backward,
)  # fmt: skip


@contextmanager
def running(mode: str, device: str = "cpu") -> Iterator[None]:
    """How the engine decides when to compute and where to put values."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        tc.set_default_device(device)
        stack.callback(tc.set_default_device, None)
        if mode == "eager":
            stack.enter_context(settings.override(eager=True))
        if "cut" in mode:
            patch.setattr(Recorder, "limit", 3)
            patch.setattr(local.recorder, "limit", 3)
        if "overwriting" in mode:
            # The reference backend then writes results into the storages that are given up.
            patch.setattr(overwrite, "spared", set())
        yield


@cache
def expected(program: Program) -> list[Any]:
    return list(program(pytest.importorskip("torch")))


def assert_equal(actual: Any, wanted: Any, where: str, tolerance: float = 1e-10) -> None:
    if isinstance(wanted, tuple | list):
        assert len(actual) == len(wanted), where
        for k, (a, w) in enumerate(zip(actual, wanted)):
            assert_equal(a, w, f"{where}[{k}]", tolerance)
    elif wanted is None or isinstance(wanted, bool):
        assert actual is wanted, where
    else:
        assert np.shape(actual) == np.shape(wanted), where
        np.testing.assert_allclose(actual, wanted, rtol=tolerance, atol=tolerance, err_msg=where)


def live_nodes() -> int:
    return sum(type(thing) is Node for thing in gc.get_objects())


def turns(program: Program, limit: int | None = None) -> list[Any]:
    """What the program yields here."""
    found = []
    for values in program(tc):
        found.append(values)
        if len(found) == limit:
            break
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", SHARED, ids=lambda program: program.__name__)
def test_same_values_as_torch(program: Program, mode: str) -> None:
    """Whenever values are computed, and wherever they are put, they are torch's."""
    limit = None if mode == "lazy" else TURNS
    wanted = expected(program)[:limit]
    with running(mode):
        found = turns(program, limit)
    assert_equal(found, wanted, program.__name__)


class Single:
    """A library whose float64 is float32."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(self.library, "float32" if name == "float64" else name)


@pytest.mark.parametrize(
    "program",
    [p for p in SHARED if p is not writes.array_of_a_batch_reused],  # its array is float64
    ids=lambda program: program.__name__,
)
def test_same_values_as_torch_in_float32(program: Program) -> None:
    """Single precision to 1e-5."""
    limit = TURNS
    with running("lazy"):
        found = [values for values, _ in zip(program(Single(tc)), range(limit))]
    wanted = program(Single(pytest.importorskip("torch")))
    assert_equal(found, [values for values, _ in zip(wanted, range(limit))], program.__name__, 1e-5)


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("program", OWN, ids=lambda program: program.__name__)
def test_same_values_as_lazily(program: Program, mode: str) -> None:
    """Programs that torch has no counterpart for assert our own rules, in every mode alike."""
    with running("lazy"):
        wanted = turns(program)
    with running(mode):
        found = turns(program)
    assert_equal(found, wanted, program.__name__)


@pytest.mark.parametrize("mode", ["lazy", "overwriting"])
@pytest.mark.parametrize("program", [*SHARED, *OWN], ids=lambda program: program.__name__)
def test_no_new_plans_and_no_more_nodes(program: Program, mode: str) -> None:
    """After the third look no plan is made; nodes are freed without the garbage collector."""
    made: list[int] = []
    nodes: list[int] = []
    with running(mode):
        plans.clear()
        gc.collect()
        gc.disable()
        try:
            for turn, values in enumerate(program(tc)):
                if values is not None:
                    made.append(plans.made)
                    if len(made) in COUNTED:
                        del values
                        nodes.append(live_nodes())
                if mode != "lazy" and len(made) >= 5 and turn > TURNS:
                    break
        finally:
            gc.enable()
    assert made[2:] == made[2:3] * len(made[2:]), f"plans made after each look: {np.diff(made)}"
    assert nodes, "the program is too short to show a leak"
    assert set(nodes) == {nodes[0]}, f"live nodes after each look: {nodes}"


@pytest.fixture(scope="module")
def emulator() -> str:
    try:
        registry.get(as_device("emu"))
    except tc.DeviceError as error:
        pytest.skip(str(error))
    return "emu"


@pytest.mark.parametrize("program", EMULATED, ids=lambda program: program.__name__)
def test_same_values_on_the_emulator(program: Program, emulator: str) -> None:
    """Generated kernels that overwrite storages give the same values as well."""
    if program in OWN:
        with running("lazy"):
            wanted = turns(program, EMULATED_TURNS)
    else:
        wanted = expected(program)[:EMULATED_TURNS]
    with running("lazy", emulator):
        found = turns(program, EMULATED_TURNS)
    assert_equal(found, wanted, program.__name__)


def test_two_devices_in_turn(emulator: str) -> None:
    """Traces on two devices grow side by side; values and gradients cross between them."""
    with running("lazy"):
        results = []
        for place in ("cpu", emulator):
            w = tc.tensor(training.random(1, 4, 3), dtype=tc.float64, requires_grad=True)
            v = tc.tensor(training.random(2, 3), dtype=tc.float64, requires_grad=True)
            there = tc.tensor(training.random(3, 3), dtype=tc.float64, device=place)
            found: list[Any] = []
            for turn in range(4):
                w.grad = v.grad = None
                x = tc.tensor(training.random(10 + turn, 5, 4), dtype=tc.float64)
                hidden = (x @ w).to(place)
                here = (v * v).sum()
                scale = v.to(place) * there
                there.mul_(0.5)
                loss = (hidden * scale).square().mean().to("cpu") + here
                loss.backward()
                training.descend(tc, [w, v])
                found.append((loss.item(), training.array(w), training.array(v), there.tolist()))
            results.append(found)
    assert_equal(results[1], results[0], "on two devices")
