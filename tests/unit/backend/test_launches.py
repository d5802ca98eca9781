"""Launches of a program: their edges, their parameters, and any order of them on the emulator."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from programs import Inputs, family, launches, layer_norm, mlp_step, softmax

from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.launch.executable import LoweredExecutable
from tinygrad_cuda.backend.launch.launch_params import (
    ArgumentBuffer,
    LaunchParams,
    dependencies,
    first_uses,
)
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.errors import DeviceError
from tinygrad_cuda.graph.ops import contraction
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.graph.program import Program
from tinygrad_cuda.lowering import lower
from tinygrad_cuda.lowering.codegen.pack import PackedLaunch
from tinygrad_cuda.lowering.codegen.skeleton import KernelParam, TensorMap
from tinygrad_cuda.lowering.emit import stages
from tinygrad_cuda.lowering.schedule.resources import ROW_BYTES
from tinygrad_cuda.lowering.target import Target

EMU = as_device("emu")
RATE = 0.05


def launched(program: Program) -> list[PackedLaunch]:
    return launches(program)


def behind(after: list[tuple[int, ...]]) -> list[set[int]]:
    """All launches on paths to each."""
    found: list[set[int]] = []
    for before in after:
        found.append(set(before).union(*(found[number] for number in before)))
    return found


# Edges --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*family(), "mlp_step"])
def test_edges_order_whatever_uses_the_same_memory(name: str) -> None:
    """Each reader of a value comes after its writer, and before whoever writes over its place."""
    program = mlp_step() if name == "mlp_step" else family()[name]
    launches = launched(program)
    paths = behind(dependencies(launches))
    places = {
        node: buffer
        for launch in launches
        for stage in launch.stages
        for node, buffer in stage.kernel.overwrites.items()
    }
    pairs = 0
    for number, launch in enumerate(launches):
        for word in launch.words:
            if word.kind not in ("value", "scratch"):
                continue
            for other, later in enumerate(launches[number + 1 :], number + 1):
                for use in later.words:
                    same = use.operand is word.operand and (word.write or use.write)
                    over = use.write and places.get(use.operand) is word.operand
                    if same or over:
                        pairs += 1
                        assert number in paths[other], (launch.name, later.name)
    if name == "mlp_step":
        assert pairs > 10


def test_edges_that_others_imply_are_left_out() -> None:
    after = dependencies(launched(mlp_step()))
    paths = behind(after)
    assert sum(map(len, after)) < sum(map(len, paths))
    for before in after:
        for number in before:
            assert not any(number in paths[other] for other in before)


def test_independent_launches_have_no_edge() -> None:
    new = Inputs()
    a, b = new(512, 1024), new(512, 1024)
    launches = launched(new.program(softmax(a, (1,)), layer_norm(b, new(1024), new(1024))))
    assert len(launches) == 2
    assert dependencies(launches) == [(), ()]


# Parameters ---------------------------------------------------------------------------------------


def test_small_stages_share_a_launch_but_not_with_one_that_fills_registers_twice() -> None:
    new = Inputs()
    large = contraction.matmul(new(1024, 1024), new(1024, 1024))
    small = [contraction.matmul(new(24, 24), new(24, 24)) for _ in range(2)]
    launches = launched(new.program(large, *small))
    homes = {stage.kernel.stores[0]: launch for launch in launches for stage in launch.stages}
    assert homes[small[0]] is homes[small[1]]
    assert homes[large] is not homes[small[0]]


class FakeLaunch:
    """A launch as far as a frame looks at it."""

    def __init__(self, *words: KernelParam) -> None:
        self.words = list(words)


def frame() -> LaunchParams:
    number = 0, "double"
    launches: list[Any] = [
        FakeLaunch(
            KernelParam("value", "x", "float* x"),
            KernelParam("argument", number, "const double* s"),
        ),
        FakeLaunch(
            KernelParam("value", "t", "float* t", True),
            KernelParam("argument", number, "const double* s"),
        ),
        FakeLaunch(
            KernelParam("unused", None, "long long unused"), KernelParam("error", None, "error")
        ),
    ]
    places: dict[Any, Any] = {"x": (0, 0), "t": (1, 256), "error": (2, 0), number: (3, 8)}
    return LaunchParams(launches, places, 4, encoded)


def encoded(tensor: TensorMap, address: int) -> bytes:
    """What stands for a tensor map: the address and the sizes, sixteen words."""
    return struct.pack("<16Q", address + tensor.offset, *tensor.shape, *(0,) * 13)


def test_only_launches_whose_words_moved_change() -> None:
    found = frame()
    assert found.fill([1000, 2000, 3000, 4000]) == {0, 1, 2}
    assert found.words(0) == struct.pack("<QQ", 1000, 4008)
    assert found.words(1) == struct.pack("<QQ", 2256, 4008)
    assert found.words(2) == struct.pack("<QQ", 0, 3000)
    assert found.fill([1000, 2000, 3000, 4000]) == set()
    assert found.fill([1000, 4000, 3000, 4000]) == {1}
    assert found.words(1) == struct.pack("<QQ", 4256, 4008)
    other = found.twin()
    assert other.fill([1, 2, 3, 4]) == {0, 1, 2}
    assert found.words(0) == struct.pack("<QQ", 1000, 4008)


def test_a_tensor_map_moves_with_its_value() -> None:
    node = Inputs()(6, 8)
    tensor = TensorMap(node, 32, (8, 6), (32,), (8, 6), 0)
    rest = [KernelParam("unused", None, "")] * 15
    launch: Any = FakeLaunch(
        KernelParam("map", tensor, "tgc_tensor_map map"), *rest, KernelParam("value", node, "")
    )
    found = LaunchParams([launch], {node: (1, 64)}, 2, encoded)
    for address in (1000, 3000):
        assert found.fill([0, address]) == {0}
        words = struct.unpack("<17Q", found.words(0))
        assert words[:3] == (address + 96, 8, 6)
        assert words[16] == address + 64
    assert found.fill([7, 3000]) == set()


def test_numbers_are_packed_as_the_kernels_read_them() -> None:
    """Zeros of both signs are told apart; integers may be negative or come as floats."""
    first, second = (1, "double"), (0, "long long")
    launches: list[Any] = [
        FakeLaunch(
            KernelParam("argument", first, "const double* s"), KernelParam("value", "x", "float* x")
        ),
        FakeLaunch(
            KernelParam("argument", second, "const long long* n"),
            KernelParam("argument", first, ""),
        ),
        FakeLaunch(KernelParam("argument", (0, "double"), "const double* n")),
    ]
    numbers = ArgumentBuffer(launches)
    assert numbers.table == {first: 0, second: 1, (0, "double"): 2} and numbers.nbytes == 24
    assert numbers.packed([3, 0.5]) == struct.pack("<dqd", 0.5, 3, 3.0)
    assert numbers.packed([-3, -0.0]) == struct.pack("<dqd", -0.0, -3, -3.0)
    assert numbers.packed([2.0, 0.0]) == struct.pack("<dqd", 0.0, 2, 2.0)
    with pytest.raises((struct.error, ValueError)):
        numbers.packed(["text", 0.0])  # type: ignore[list-item]


def test_first_uses() -> None:
    launches: list[Any] = [
        FakeLaunch(KernelParam("value", "x", "x"), KernelParam("value", "t", "t", True)),
        FakeLaunch(KernelParam("value", "t", "t"), KernelParam("scratch", "s", "s", True)),
        FakeLaunch(KernelParam("scratch", "s", "s")),
    ]
    assert first_uses(launches, {"t", "s"}) == [["t"], ["s"], []]


# On the emulator ----------------------------------------------------------------------------------


@pytest.fixture
def machine() -> Any:
    try:
        return registry.get(EMU)
    except DeviceError as error:
        pytest.skip(str(error))


def branches() -> Program:
    """Two chains of products that meet, with intermediates that can share memory."""
    new = Inputs()
    x = new(24, 24)
    sides = []
    for _ in range(2):
        side = x
        for _ in range(4):
            side = ew.tanh(contraction.matmul(side, new(24, 24)))
        sides.append(side)
    return new.program(contraction.matmul(*sides))


def arrays(program: Program) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(7)
    found = []
    for node in program.inputs:
        if node.dtype.is_floating:
            found.append(rng.standard_normal(node.shape).astype(np.float32))
        else:
            found.append(rng.integers(0, 10, node.shape))
    return found


def result(machine: Any, executable: LoweredExecutable, program: Program) -> list[bytes]:
    """The bytes of all outputs; the inputs are fresh, since some are written over."""
    storages = [machine.from_host(array) for array in arrays(program)]
    return [out.bytes.tobytes() for out in executable.run(storages, [RATE])]


@pytest.mark.parametrize("make", [mlp_step, branches])
def test_any_legal_order_gives_the_same_bytes(make: Any, machine: Any) -> None:
    program = make() if make is branches else make(8, (12, 16, 10))
    executable = LoweredExecutable(program, machine)
    expected = result(machine, executable, program)
    orders = set()
    for seed in range(1, 9):
        with settings.override(emu_launches=seed):
            orders.add(tuple(machine.order(executable.after)))
            assert result(machine, executable, program) == expected
    assert all(sorted(order) == list(range(len(executable.launches))) for order in orders)


def test_orders_differ_and_keep_the_edges(machine: Any) -> None:
    after = [(), (), (0,), (1,), (2, 3)]
    orders = set()
    for seed in range(1, 20):
        with settings.override(emu_launches=seed):
            order = tuple(machine.order(after))
        orders.add(order)
        for number, before in enumerate(after):
            assert all(order.index(other) < order.index(number) for other in before)
    assert len(orders) > 2


def test_an_order_that_breaks_an_edge_is_noticed(machine: Any) -> None:
    """What a launch reads before it is written is poison, not what an earlier run left there."""
    program = branches()
    executable = LoweredExecutable(program, machine)
    expected = result(machine, executable, program)
    assert len(executable.launches) > 3
    machine.order = lambda after: range(len(after))[::-1]
    try:
        assert result(machine, executable, program) != expected
    finally:
        del machine.order
    assert result(machine, executable, program) == expected


def test_programs_share_one_arena_that_grows(machine: Any) -> None:
    """A larger program moves it; the smaller one follows at its next run."""
    small, large = mlp_step(4, (6, 5, 10)), mlp_step(16, (64, 96, 10))
    first, second = LoweredExecutable(small, machine), LoweredExecutable(large, machine)
    assert 0 < first.arena.nbytes < second.arena.nbytes
    expected = result(machine, first, small)
    other = result(machine, second, large)
    address = machine.arena(0).address
    for _ in range(3):
        assert result(machine, first, small) == expected
        assert result(machine, second, large) == other
    assert machine.arena(0).address == address


# Rows that carry columns --------------------------------------------------------------------------


def carried(program: Program, shared_bytes: int) -> list[str]:
    """The labels of a program's kernels, for a block of so much shared memory."""
    target = replace(Target.h200(), block_shared=shared_bytes, co_resident=())
    found = lower.scheduled(program, target)
    return [stages(kernel)[0].label for kernel in found.kernels]


def test_columns_that_just_fit_are_carried() -> None:
    """Two sums of 2,048 columns in float32, beside what the reductions of a row need."""
    needed = 2 * 2048 * 4 + ROW_BYTES
    program = family()["layer_norm_gradients_short"]
    assert len(carried(program, needed)) == len(carried(program, 1 << 30)) == 1
    assert len(carried(program, needed - 1)) > 1


def softmax_with_means() -> Program:
    """Its columns are known in the last loop only, the one that stores."""
    new = Inputs()
    shares = softmax(new(8192, 2048), (1,))
    return new.program(shares, rd.sum(shares, axes=(0,)))


@pytest.mark.parametrize("name", ["layer_norm_gradients_short", "softmax_with_means"])
def test_columns_that_are_carried_cost_no_loop_over_the_row(name: str) -> None:
    program = softmax_with_means() if name == "softmax_with_means" else family()[name]
    alone, beside = (
        next(re.search(r"(\d+) loops", text) for text in carried(program, size) if "row_" in text)
        for size in (0, 1 << 30)
    )
    assert alone and beside and alone[1] == beside[1]
