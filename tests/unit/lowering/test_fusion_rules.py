"""The rules of fusion and the skeletons agree: what the schedule promises can be generated."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from math import prod

import pytest
from programs import Inputs, family, gradients, softmax, variable

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.graph.program import Program
from tinygrad_cuda.lowering import lower
from tinygrad_cuda.lowering.emit import stages
from tinygrad_cuda.lowering.schedule import fuse_column_sums, fuse_grid_reduce, fusion
from tinygrad_cuda.lowering.schedule.kernel_dag import GridTiles, Kernel
from tinygrad_cuda.lowering.target import Target

# Of so few multiprocessors and registers that rows of a few hundred elements are long.
SMALL = replace(Target.h200(), multiprocessors=64, co_resident=((1, 1), (2, 1)))


@pytest.fixture
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "LONG_ROW", 32)
    monkeypatch.setattr(Target, "cached", 0)
    monkeypatch.setattr(fuse_grid_reduce, "LEAST_TILE", 64)
    monkeypatch.setattr(fuse_grid_reduce, "REGISTERS", {2: 8, 1: 24})


Shape = tuple[int, ...]


def of_shape(k: random.Random, new: Inputs, shape: Shape) -> Node:
    """An operand of a shape: as it lies, spread along some axes, or moved."""

    def spread() -> Node:
        return mv.expand(new(*(k.choice((1, size)) for size in shape)), shape=shape)

    def one_a_channel() -> Node:
        return mv.expand(new(*(s if d == 1 else 1 for d, s in enumerate(shape))), shape=shape)

    def reshaped() -> Node:
        return mv.reshape(new(shape[0] * shape[1], prod(shape[2:])), shape=shape)

    def sliced() -> Node:
        axis = k.randrange(len(shape))
        starts = tuple(int(d == axis) for d in range(len(shape)))
        size = tuple(s + start for s, start in zip(shape, starts))
        return mv.slice_(new(*size), starts=starts, shape=shape, steps=(1,) * len(shape))

    def turned() -> Node:
        axes = list(range(len(shape)))
        k.shuffle(axes)
        return mv.permute(new(*(shape[axes.index(d)] for d in range(len(shape)))), axes=tuple(axes))

    def flipped() -> Node:
        return mv.flip(new(*shape), axes=(k.randrange(len(shape)),))

    def counted() -> Node:
        return mv.expand(mv.reshape(new(shape[-1]), shape=(1, 1, shape[-1])), shape=shape)

    def plain() -> Node:
        return new(*shape)

    kinds: list[Callable[[], Node]] = [
        spread, one_a_channel, reshaped, sliced, turned, flipped, counted, plain,
    ]  # fmt: skip
    return k.choices(kinds, weights=(3, 6, 6, 1, 1, 1, 1, 6))[0]()


def normalization(seed: int) -> Program:
    """Statistics of channels, and values that go on with them and with other operands."""
    k, new = random.Random(seed), Inputs()
    shape = (k.choice((2, 4, 5)), k.choice((3, 4, 6)), k.choice((64, 96, 256, 100)))
    shape = k.choice((shape, shape, (1, shape[1], 12 * shape[2])))
    axes = (0, 2)
    x = variable(new(*shape, dtype=k.choice((dtypes.float32, dtypes.float32, dtypes.bfloat16))))
    wide = ew.cast(x, dtype=dtypes.float32) if x.dtype is not dtypes.float32 else x
    if k.random() < 0.3:
        wide = ew.mul(wide, of_shape(k, new, shape))
    both = rd.welford(wide, axes=axes)
    mean = mv.expand(common.output(both, index=0), shape=shape)
    deviations = mv.expand(common.output(both, index=1), shape=shape)
    centered = ew.sub(wide, mean if k.random() < 0.8 else of_shape(k, new, shape))
    y = ew.mul(centered, ew.rsqrt(deviations)) if k.random() < 0.7 else centered
    if k.random() < 0.6:
        y = k.choice((ew.add, ew.mul))(y, of_shape(k, new, shape))
    outputs = [y]
    if k.random() < 0.6:
        outputs.append(rd.sum(ew.mul(of_shape(k, new, shape), centered), axes=axes))
    if k.random() < 0.3:
        outputs.append(ew.exp(ew.mul(y, mv.expand(outputs[-1], shape=shape))))
    if k.random() < 0.2:
        outputs += gradients(rd.sum(ew.mul(y, new(*shape)), axes=(0, 1, 2)), [x])
    return new.program(*outputs)


def forced(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the skeleton can make a kernel whose operands were not looked at."""
    wide = [node for node in kernel.reads if prod(node.shape) >= kernel.numel]
    with monkeypatch.context() as patch:
        patch.setattr(fuse_grid_reduce, "_wide_operands", lambda *_: wide)
        grid = fuse_grid_reduce.grid_tiles(kernel)
    if grid is None:
        return False
    try:
        stages(replace(kernel, grid=grid))
    except AssertionError:
        return False
    return True


def test_grid_tiles_are_what_the_skeleton_can_make(
    small_is_large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each candidate of random programs, those that were refused for their operands too."""
    tried: list[tuple[Kernel, GridTiles | None]] = []
    rule = fuse_grid_reduce.grid_tiles

    def spied(kernel: Kernel) -> GridTiles | None:
        tried.append((kernel, rule(kernel)))
        return tried[-1][1]

    monkeypatch.setattr(fuse_grid_reduce, "grid_tiles", spied)
    for seed in range(150):
        for kernel in lower.scheduled(normalization(seed), SMALL).kernels:
            for stage in stages(kernel):
                assert stage.min_blocks_per_sm * stage.shared <= SMALL.block_shared
    monkeypatch.setattr(fuse_grid_reduce, "grid_tiles", rule)
    promised = [grid is not None for _, grid in tried]
    assert sum(promised) >= 20
    assert promised == [forced(kernel, monkeypatch) for kernel, _ in tried]


def rows_and_columns(seed: int) -> Program:
    """A softmax or a largest value of rows, and sums of columns of what is made of them."""
    k, new = random.Random(seed), Inputs()
    rows, length = k.choice((300, 41)), k.choice((300, 1027, 2048, 12000))
    x = new(rows, length, dtype=k.choice((dtypes.float32, dtypes.bfloat16)))
    tops = rd.max(x, axes=(1,))
    shares = softmax(x, (1,)) if k.random() < 0.7 else ew.sub(x, mv.expand(tops, shape=x.shape))
    factors = [
        x,
        shares,
        mv.expand(tops, shape=x.shape),
        mv.expand(new(1, length, dtype=x.dtype), shape=x.shape),
    ]
    if rows == length:
        factors += [mv.permute(shares, axes=(1, 0)), mv.flip(x, axes=(0,))]
        factors.append(mv.expand(mv.permute(tops, axes=(1, 0)), shape=x.shape))
    factors.append(mv.expand(mv.flip(tops, axes=(0,)), shape=x.shape))
    sums = [
        k.choice((rd.sum, rd.max))(ew.mul(*k.sample(factors, 2)), axes=(0,))
        for _ in range(k.choice((1, 2)))
    ]
    return new.program(shares, *sums)


def test_carried_columns_and_rows_loaded_ahead_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random programs for a machine of few multiprocessors, on which few rows are many.

    Rows that were refused are loaded otherwise than by vectors, or have no room.
    """
    monkeypatch.setattr(fuse_column_sums, "LEAST", 1)
    monkeypatch.setattr(fuse_column_sums, "COLUMN_REGISTERS", 1 << 20)
    target = replace(SMALL, multiprocessors=2)
    made = [
        kernel
        for seed in range(140)
        for kernel in lower.scheduled(rows_and_columns(seed), target).kernels
    ]
    for kernel in made:
        assert all(stage.shared <= target.block_shared for stage in stages(kernel))
    ahead = [kernel.ahead for kernel in made if kernel.pair]
    assert 10 <= sum(ahead) <= len(ahead) - 10
    assert ahead == [can_load_ahead(kernel) for kernel in made if kernel.pair]


def can_load_ahead(kernel: Kernel) -> bool:
    """Whether the skeleton can make a kernel that is to load its rows ahead."""
    try:
        stages(replace(kernel, ahead=True))
    except AssertionError:
        return False
    return True


MACHINES = {"emu": Target.emu(), "small": SMALL, "tiny": replace(SMALL, multiprocessors=2)}


@pytest.mark.parametrize("name", MACHINES)
def test_the_family_of_programs_is_generated_for_each_machine(
    name: str, small_is_large: None
) -> None:
    for program in family().values():
        for kernel in lower.scheduled(program, MACHINES[name]).kernels:
            text = "\n".join(stage.text for stage in stages(kernel))
            own, _ = kernel.pair or (kernel, None)
            assert ("picked" in text) == bool(own.one_hot)
