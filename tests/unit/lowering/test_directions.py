"""How passes over large values walk: which begin at the end, how many loads are on their way."""

from __future__ import annotations

import re
from dataclasses import replace

import programs
import pytest
from programs import Inputs, scheduled

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.lowering.emit import stages
from tinygrad_cuda.lowering.target import Target


def normalized(x: Node, passes: int) -> Node:
    """Each pass needs all of the one before it."""
    for _ in range(passes):
        mean = common.output(rd.welford(x, axes=(0, 2, 3)), index=0)
        x = ew.mul(x, mv.expand(mean, shape=x.shape))
    return x


@pytest.fixture(autouse=True)
def no_co_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU on which no kernel holds such rows."""
    monkeypatch.setattr(programs, "TARGET", replace(Target.h200(), co_resident=()))


def directions(batch: int, passes: int) -> list[bool]:
    new = Inputs()
    found = scheduled(new.program(normalized(new(batch, 64, 56, 56), passes)))
    return [kernel.reverse for kernel in found.kernels]


def test_a_second_pass_begins_where_the_first_one_ended() -> None:
    assert directions(256, 1) == [False, True]


def test_a_third_pass_turns_again() -> None:
    assert directions(256, 2) == [False, True, False]


def test_what_a_cache_holds_is_read_from_the_beginning() -> None:
    assert directions(16, 1) == [False, False]


def test_the_reason_says_so_and_the_blocks_are_the_other_way_round() -> None:
    new = Inputs()
    found = scheduled(new.program(normalized(new(256, 64, 56, 56), 1)))
    statistics, values = found.kernels
    assert "begins at the end" in values.reason
    assert "begins at the end" not in statistics.reason
    (stage,) = stages(values)
    assert f"virtual_block = {stage.blocks - 1} - virtual_block;" in stage.text
    assert all("virtual_block = " not in stage.text for stage in stages(statistics))


def test_kernels_of_other_values_keep_their_way() -> None:
    new = Inputs()
    x, y = new(4096, 4096), new(4096, 2048)
    found = scheduled(new.program(ew.exp(x), ew.tanh(y)))
    assert [kernel.reverse for kernel in found.kernels] == [False, False]


def test_the_parts_of_a_row_take_turns_so_that_all_blocks_walk_together() -> None:
    new = Inputs()
    found = scheduled(new.program(rd.sum(new(2, 1 << 20), axes=(1,))))
    parts = stages(found.kernels[0])[0]
    stride = 256 * (parts.blocks // 2)
    assert f"item = part * 256 + thread; item < {1 << 18}; item += {stride})" in parts.text


def turns_of_a_pass_that_stores(operands: int) -> int:
    """How many turns of its loop have their loads on their way together."""
    new = Inputs()
    value = new(4, 1 << 20)
    for _ in range(operands - 1):
        value = ew.mul(value, new(4, 1 << 20))
    value = ew.exp(value)
    (kernel,) = scheduled(new.program(value, rd.sum(value, axes=(1,)))).kernels
    found = re.findall(r"for \(int k = 0; k < (\d+); k\+\+\)", stages(kernel)[0].text)
    assert len(found) == 2 and found[0] == found[1]
    return int(found[0])


def test_as_many_loads_are_on_their_way_before_a_store_as_registers_hold() -> None:
    assert [turns_of_a_pass_that_stores(count) for count in (1, 2, 3)] == [8, 8, 4]
