"""Maps whose operands lie along another axis than their output: tiles through shared memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from execution import Batch, device_or_skip
from programs import Inputs, launches, spread

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import DType, bfloat16, float16, float32, float64, int8, int64
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.lowering import lower
from tinygrad_cuda.lowering.skeletons.transpose import TransposeCut, transpose_cut

Array = Any
TILED = "transposing map"

# Shapes and the order of their axes: whole tiles, one off a tile, primes, short axes, more than one
# axis between, axes of 1, several of the input's axes beside each other.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "square": ((256, 256), (1, 0)),
    "one more": ((257, 257), (1, 0)),
    "one less": ((383, 255), (1, 0)),
    "primes": ((331, 211), (1, 0)),
    "channels last": ((4, 64, 16, 32), (0, 2, 3, 1)),
    "channels first": ((4, 16, 32, 64), (0, 3, 1, 2)),
    "small images": ((32, 256, 4, 4), (0, 2, 3, 1)),
    "odd images": ((16, 96, 7, 7), (0, 2, 3, 1)),
    "kernels": ((80, 96, 3, 3), (0, 2, 3, 1)),
    "small kernels": ((128, 161, 2, 2), (0, 2, 3, 1)),
    "many kernels": ((2003, 16, 3, 3), (0, 2, 3, 1)),
    "five by one": ((501, 50, 5), (0, 2, 1)),
    "odd channels": ((11, 33, 16, 16), (0, 2, 3, 1)),
    "short axes": ((300, 16, 18), (0, 2, 1)),
    "reversed": ((40, 48, 56), (2, 1, 0)),
    "between": ((9, 48, 5, 40), (3, 0, 2, 1)),
    "turned": ((70, 3, 5, 66), (3, 1, 2, 0)),
    "ones": ((1, 300, 1, 260, 1), (4, 3, 2, 1, 0)),
    "long": ((20, 4099), (1, 0)),
}


def drawn(shape: tuple[int, ...], dtype: DType) -> Array:
    values = np.random.default_rng(0).integers(-100, 100, shape)
    return values.astype(dtype.numpy)


def check(
    device: str, request: pytest.FixtureRequest, arrays: list[Array], make: Callable[..., Any],
    want: list[Array],
) -> None:  # fmt: skip
    """Every element, bit for bit."""
    batch = Batch(device_or_skip(device, request))
    batch.want("found", make(*map(batch.input, arrays)))
    for found, wanted in zip(batch.run()["found"], want, strict=True):
        np.testing.assert_array_equal(found, wanted)


def labels(*nodes: Node, inputs: Inputs) -> list[str]:
    """The first lines of the kernels on a large GPU."""
    return [launch.text.split("\n")[0] for launch in launches(inputs.program(*nodes))]


@pytest.mark.parametrize("device", ["emu", "cuda"])
@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("dtype", [bfloat16, float32], ids=lambda dtype: dtype.name)
def test_copies_in_another_order(
    name: str, dtype: DType, device: str, request: pytest.FixtureRequest
) -> None:
    shape, axes = CASES[name]
    x = drawn(shape, dtype)
    inputs = Inputs()
    node = ew.contiguous(mv.permute(inputs(*shape, dtype=dtype), axes=axes))
    assert TILED in "\n".join(labels(node, inputs=inputs))
    check(
        device, request, [x], lambda x: [ew.contiguous(mv.permute(x, axes=axes))],
        [x.transpose(axes)],
    )  # fmt: skip


@pytest.mark.parametrize("device", ["emu", "cuda"])
@pytest.mark.parametrize(
    "shape", [(3, 208, 176), (300, 17, 16), (300, 16, 17), (150, 64, 9)], ids=str
)
@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda dtype: dtype.name)
def test_every_dtype(
    dtype: DType, shape: tuple[int, ...], device: str, request: pytest.FixtureRequest
) -> None:
    """Long axes, and the shortest that have a tile, with vectors along one of them."""
    x = drawn(shape, dtype)
    check(
        device, request, [x], lambda x: [ew.contiguous(mv.permute(x, axes=(0, 2, 1)))],
        [x.transpose(0, 2, 1)],
    )  # fmt: skip


@pytest.mark.parametrize("device", ["emu", "cuda"])
@pytest.mark.parametrize(
    ("source", "target"),
    [(float32, bfloat16), (bfloat16, float32), (float64, float16), (int8, int64), (int64, int8)],
    ids=lambda dtype: dtype.name,
)
@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("shape", [(2, 208, 176), (80, 96, 9)], ids=["rows", "runs"])
def test_casts_cross_with_the_values(
    source: DType, target: DType, before: bool, shape: tuple[int, ...], device: str,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    x = drawn(shape, source)

    def make(x: Node) -> list[Node]:
        if before:
            return [ew.contiguous(mv.permute(ew.cast(x, dtype=target), axes=(0, 2, 1)))]
        return [ew.cast(mv.permute(x, axes=(0, 2, 1)), dtype=target)]

    check(device, request, [x], make, [x.transpose(0, 2, 1).astype(target.numpy)])


@pytest.mark.parametrize("device", ["emu", "cuda"])
def test_operands_of_both_orders(device: str, request: pytest.FixtureRequest) -> None:
    """Two that cross, one that lies as the output, one number a channel, one a plane."""
    shape, axes = (4, 80, 9, 24), (0, 2, 3, 1)
    x, y = (drawn(shape, float32) for _ in range(2))
    z = drawn((4, 9, 24, 80), float32)
    scale, shift = drawn((80,), float32), drawn((4,), float32)

    def make(x: Node, y: Node, z: Node, scale: Node, shift: Node) -> list[Node]:
        wide = spread(mv.reshape(scale, shape=(80, 1, 1)), shape)
        crossed = mv.permute(ew.maximum(ew.mul(x, wide), common.full_like(x, 0)), axes=axes)
        near = ew.mul(z, spread(mv.reshape(shift, shape=(4, 1, 1, 1)), z.shape))
        both = ew.add(crossed, near)
        return [both, ew.sub(both, mv.permute(y, axes=axes))]

    wide = np.maximum(x * scale[:, None, None], 0).transpose(axes)
    both = wide + z * shift[:, None, None, None]
    want = [both, both - y.transpose(axes)]
    check(device, request, [x, y, z, scale, shift], make, want)


@pytest.mark.parametrize("device", ["emu", "cuda"])
def test_a_matrix_and_its_transpose(device: str, request: pytest.FixtureRequest) -> None:
    """One operand that is read in both orders."""
    x = drawn((272, 272), float32)
    check(device, request, [x], lambda x: [ew.sub(x, mv.permute(x, axes=(1, 0)))], [x - x.T])


@pytest.mark.parametrize("device", ["emu", "cuda"])
@pytest.mark.parametrize("start", [0, 1, 3, 8])
def test_parts_that_begin_anywhere(start: int, device: str, request: pytest.FixtureRequest) -> None:
    """A slice whose first element is aligned to nothing."""
    x = drawn((300, 280), bfloat16)

    def make(x: Node) -> list[Node]:
        part = mv.slice_(x, starts=(5, start), shape=(280, 256), steps=(1, 1))
        return [ew.contiguous(mv.permute(part, axes=(1, 0)))]

    check(device, request, [x], make, [x[5:285, start : start + 256].T])


@pytest.mark.parametrize("device", ["emu", "cuda"])
def test_padding_does_not_cross(device: str, request: pytest.FixtureRequest) -> None:
    """What is read under a condition is loaded where the output needs it."""
    x = drawn((260, 250), float32)

    def make(x: Node) -> list[Node]:
        wide = mv.pad(x, starts=(2, 3), shape=(264, 256), steps=(1, 1), value=7)
        return [ew.contiguous(mv.permute(wide, axes=(1, 0)))]

    want = np.full((264, 256), 7, np.float32)
    want[2:262, 3:253] = x
    check(device, request, [x], make, [want.T])


@pytest.mark.parametrize("device", ["emu", "cuda"])
@pytest.mark.parametrize("shape", [(0, 300), (300, 0), (1, 1), (1, 70000), (70000, 1), (3, 30000)])
def test_shapes_without_a_tile(
    shape: tuple[int, ...], device: str, request: pytest.FixtureRequest
) -> None:
    """Nothing, vectors and axes shorter than a sector of memory."""
    x = drawn(shape, float32)
    inputs = Inputs()
    node = ew.contiguous(mv.permute(inputs(*shape), axes=(1, 0)))
    assert TILED not in "\n".join(labels(node, inputs=inputs))
    check(device, request, [x], lambda x: [ew.contiguous(mv.permute(x, axes=(1, 0)))], [x.T])


def test_indices_beyond_32_bits() -> None:
    """More than 2**31 elements: positions on an axis are ints, addresses are not."""
    inputs = Inputs()
    x = inputs(3, 40000, 20000, dtype=bfloat16)
    (launch,) = launches(inputs.program(ew.contiguous(mv.permute(x, axes=(0, 2, 1)))))
    assert launch.text.startswith(f"// {TILED}")
    assert "800000000LL" in launch.text and "const int along_out = " in launch.text


def cut_of(shape: tuple[int, ...], axes: tuple[int, ...], dtype: DType) -> TransposeCut:
    """The tiles of a copy on a large GPU."""
    from programs import TARGET

    inputs = Inputs()
    node = ew.contiguous(mv.permute(inputs(*shape, dtype=dtype), axes=axes))
    (kernel,) = lower.scheduled(inputs.program(node), TARGET).kernels
    cut = transpose_cut(kernel)
    assert cut is not None
    return cut


def test_tiles_have_the_shape_of_their_axes() -> None:
    """Short axes are taken whole, and the tile is longer on the other, or has several planes."""
    square = cut_of((8192, 8192), (1, 0), float32)
    assert (square.planes, square.tile_in, square.tile_out) == (1, 64, 64)
    small = cut_of((256, 512, 4, 4), (0, 2, 3, 1), bfloat16)
    assert (small.tile_in, small.tile_out) == (16, 256)
    thin = cut_of((8192, 16, 16), (0, 2, 1), bfloat16)
    assert (thin.planes, thin.tile_in, thin.tile_out) == (16, 16, 16)
