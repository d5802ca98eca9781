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
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.engine import overwrite
from tinygrad_cuda.engine.cell import Recorder
from tinygrad_cuda.engine.plan import cache as plans
from tinygrad_cuda.graph.node import Node

Program = Callable[[Any], Iterator[Any]]

SHARED: tuple[Program, ...] = (*training.PROGRAMS, *history.PROGRAMS, *writes.PROGRAMS)
OWN: tuple[Program, ...] = own.PROGRAMS
MODES = ("lazy", "eager", "cut", "overwriting", "cut and overwriting")
# The emulator runs generated CUDA text: slow, so fewer turns of the same programs.
EMULATED_TURNS = 4


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
        if "overwriting" in mode:
            # The reference backend then writes results into the storages that are given up.
            patch.setattr(overwrite, "spared", set())
        yield


@cache
def expected(program: Program) -> list[Any]:
    return list(program(pytest.importorskip("torch")))


def assert_equal(actual: Any, wanted: Any, where: str) -> None:
    if isinstance(wanted, tuple | list):
        assert len(actual) == len(wanted), where
        for k, (a, w) in enumerate(zip(actual, wanted)):
            assert_equal(a, w, f"{where}[{k}]")
    elif wanted is None or isinstance(wanted, bool):
        assert actual is wanted, where
    else:
        single = np.asarray(wanted).dtype == np.float32
        tolerance = 1e-5 if single else 1e-10
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
    wanted = expected(program)
    with running(mode):
        found = turns(program)
    assert_equal(found, wanted, program.__name__)


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
            for values in program(tc):
                if values is not None:
                    made.append(plans.made)
                    if len(made) > 3:
                        del values
                        nodes.append(live_nodes())
        finally:
            gc.enable()
    assert made[2:] == made[2:3] * len(made[2:]), f"plans made after each look: {np.diff(made)}"
    assert nodes, "the program is too short to show a leak"
    assert set(nodes) == {nodes[0]}, f"live nodes after each look: {nodes}"


@pytest.fixture(scope="module")
def emulator() -> str:
    from tinygrad_cuda.backend import registry
    from tinygrad_cuda.core.device import as_device

    try:
        registry.get(as_device("emu"))
    except tc.DeviceError as error:
        pytest.skip(str(error))
    return "emu"


def _few_turns(program: Program) -> bool:
    return program.__name__ not in (
        # A thousand turns, or arrays shared with NumPy, which are on cpu only.
        "running_loss_attached", "running_loss_detached", "schedule_read_by_number",
        "shared_with_an_array", "array_of_a_batch_reused",
    )  # fmt: skip


@pytest.mark.parametrize(
    "program", [p for p in SHARED if _few_turns(p)], ids=lambda program: program.__name__
)
def test_same_values_on_the_emulator(program: Program, emulator: str) -> None:
    """Generated kernels that overwrite storages give torch's values as well."""
    wanted = expected(program)[:EMULATED_TURNS]
    with running("lazy", emulator):
        found = turns(program, EMULATED_TURNS)
    assert_equal(found, wanted, program.__name__)
