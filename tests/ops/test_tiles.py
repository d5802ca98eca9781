"""Every tile of a product on the emulator, whether or not some size would get it; and the choice.

One program holds a product for each tile, with sizes that no tile divides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from execution import Batch, device_or_skip

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.dtypes import float32
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, contraction
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops.windows import padded, windows
from tinygrad_cuda.graph.program import Program
from tinygrad_cuda.lowering import algorithms
from tinygrad_cuda.lowering.codegen.skeleton import THREADS
from tinygrad_cuda.lowering.emit import stages
from tinygrad_cuda.lowering.lower import scheduled
from tinygrad_cuda.lowering.skeletons.contract.loads import Source, contiguous_axis, is_row_major
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import (
    TILES,
    Product,
    ProductCut,
    clocks,
    quickest_cut,
    split_k,
)
from tinygrad_cuda.lowering.target import Target

TARGET = Target.h200()


@pytest.mark.parametrize("split", [False, True], ids=["whole", "in parts"])
def test_a_product_of_every_tile(
    split: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    batch = Batch(device_or_skip("emu", request))
    tiles, expected = {}, {}
    rng = np.random.default_rng(3)
    for number, tile in enumerate(TILES):
        k = 2 * tile.k + 101 + number  # by which the choice below knows the tile
        m, n = tile.m + (0 if tile.streamed else 3), tile.n + 5
        tiles[k] = tile
        a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
        expected[str(tile)] = a @ b
        a, b = a.astype(np.float32), b.astype(np.float32)
        turned = (number % 2 == 1, number % 4 > 1 and not tile.streamed)
        operands = [
            contraction.transpose(batch.input(np.ascontiguousarray(x.T))) if turn
            else batch.input(x)
            for x, turn in zip((a, b), turned, strict=True)
        ]  # fmt: skip
        batch.want(str(tile), [contraction.matmul(*operands)])

    def chosen(product: Product, target: Target) -> ProductCut:
        return split_k(tiles[product.k], product.k, 3 if split else 1)

    monkeypatch.setattr(algorithms, "quickest_cut", chosen)
    for name, (found,) in batch.run().items():
        np.testing.assert_allclose(found, expected[name], atol=2e-4, err_msg=name)


@pytest.mark.parametrize("split", [False, True], ids=["whole", "in parts"])
def test_a_product_is_stored_in_the_order_in_which_it_is_read(
    split: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Images and channels change places; the elementwise reader has the product's kernel."""
    batch = Batch(device_or_skip("emu", request))
    rng = np.random.default_rng(4)
    expected = {}
    for run in (12, 10, 9):  # that vectors of four, two and one fit
        a = rng.standard_normal((2, 3, 70)).astype(np.float32)
        b = rng.standard_normal((2, 70, 5 * run)).astype(np.float32)
        bias = rng.standard_normal((5, 6, run)).astype(np.float32)
        y = contraction.matmul(batch.input(a), batch.input(b))
        y = mv.permute(mv.reshape(y, shape=(2, 3, 5, 1, run)), axes=(2, 0, 1, 3, 4))
        y = ew.add(mv.reshape(y, shape=(5, 6, run)), batch.input(bias))
        batch.want(str(run), [y])
        expected[str(run)] = (a @ b).reshape(6, 5, run).transpose(1, 0, 2) + bias
    tile = next(tile for tile in TILES if (tile.m, tile.n) == (8, 32))
    monkeypatch.setattr(algorithms, "quickest_cut", lambda *_: split_k(tile, 70, 2 if split else 1))
    for name, (found,) in batch.run().items():
        np.testing.assert_allclose(found, expected[name], atol=2e-4, err_msg=name)


def test_tiles_give_each_thread_its_results() -> None:
    for tile in TILES:
        assert tile.threads * tile.groups == THREADS
        assert tile.m % (tile.lanes_m * tile.rows) == 0
        assert tile.n % (tile.lanes_n * tile.cols) == 0
        assert tile.k % (2 * tile.groups) == 0, "a step of k is read while another is multiplied"
        assert tile.shared(4) <= TARGET.tile_shared


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 1, 1), (6, 25, 100352), (64, 576, 200704), (4096, 4096, 4096), (64, 10, 128), (1, 7, 0)],
)
def test_the_plan_covers_the_sum_and_none_is_thought_faster(m: int, n: int, k: int) -> None:
    product = Product(1, m, n, k, 4)
    found = quickest_cut(product, TARGET)
    assert found.chunk % found.tile.k == 0
    assert found.chunk * (found.slices - 1) < max(k, 1) <= found.chunk * found.slices
    for tile in TILES:
        if not tile.streamed:
            assert clocks(found, product, TARGET) <= clocks(split_k(tile, k, 1), product, TARGET)
    double = quickest_cut(product._replace(itemsize=8), TARGET).tile
    assert double.rows * double.cols <= 16


def test_a_long_sum_is_split_where_its_table_would_not_fit_a_block() -> None:
    x = common.buffer.leaf((64, 512, 28, 28), float32, CPU, slot=0)
    w = common.buffer.leaf((512, 512 * 9), float32, CPU, slot=1)
    wide = windows(padded(x, ((1, 1), (1, 1))), (3, 3), (1, 1), (1, 1), (28, 28))
    columns = mv.reshape(mv.permute(wide, axes=(1, 4, 5, 0, 2, 3)), shape=(512 * 9, 64 * 28 * 28))
    program = Program(CPU, (contraction.matmul(w, columns),), (x, w), {})
    with settings.override(matmul_precision="ieee"):
        (kernel,) = scheduled(program, TARGET).kernels
    assert quickest_cut(Product(1, 512, 64 * 28 * 28, 512 * 9, 4), TARGET).slices == 1
    first, join = stages(kernel)
    assert join.after == [first]
    assert first.shared <= TARGET.tile_shared
    assert "table_b[" in first.text, "columns of windows are found without a table"


@pytest.mark.parametrize(
    ("name", "lines", "k", "turned", "axis"),
    [
        ("a", 64, 96, False, "k"), ("a", 64, 96, True, "m"),
        ("b", 64, 96, False, "n"), ("b", 64, 96, True, "k"),
        ("a", 1, 96, False, "k"), ("b", 1, 96, False, "k"),  # a vector times a matrix
        ("a", 64, 1, False, "m"), ("b", 64, 1, False, "n"),  # an outer product
    ],
)  # fmt: skip
def test_an_operand_is_read_along_the_axis_on_which_it_lies(
    name: str, lines: int, k: int, turned: bool, axis: str
) -> None:
    """So that neighbouring threads read neighbouring elements."""
    shape = (lines, k) if name == "a" else (k, lines)
    stored = common.buffer.leaf(shape[::-1] if turned else shape, float32, CPU, slot=0)
    node = mv.permute(stored, axes=(1, 0)) if turned else stored
    source = Source(name, node, "m" if name == "a" else "n", lines, 64, k, ())
    assert contiguous_axis(source, {stored}) == (axis, 4)


@pytest.mark.parametrize(
    ("make", "streams"),
    [
        (lambda x, y: y, True),
        (lambda x, y: turned(x), False),
        (lambda x, y: ew.neg(turned(x)), False),  # inline
        (lambda x, y: turned(ew.exp(turned(y))), True),  # dear, but each element is read once
        (lambda x, y: ew.exp(turned(x)), True),  # stored by another kernel
        (lambda x, y: ew.mul(turned(x), y), True),
        (lambda x, y: filled(), False),  # computed
        (lambda x, y: ew.mul(turned(x), filled()), False),
    ],
    ids=["plain", "turned", "negated", "turned twice", "dear", "of two", "constant", "constants"],
)
def test_an_operands_layout_is_that_of_what_its_kernel_reads(make: Any, streams: bool) -> None:
    """The choice is made before kernels form."""
    inputs = [
        common.buffer.leaf(shape, float32, CPU, slot=slot)
        for slot, shape in enumerate([(4, 200), (900, 200), (200, 900)])
    ]
    b = make(*inputs[1:])
    node = contraction.matmul(inputs[0], b)
    *_, kernel = scheduled(Program(CPU, (node,), tuple(inputs), {}), TARGET).kernels
    (own,) = kernel.anchors
    read = contiguous_axis(Source("b", own.sources[1], "n", 900, 1, 200, ()), set(kernel.reads))[0]
    assert is_row_major(*node.sources) == (read == "n") == streams


def filled() -> Node:
    return common.constant.leaf((200, 900), float32, CPU, value=0.5)


def turned(node: Node) -> Node:
    return mv.permute(node, axes=(1, 0))
