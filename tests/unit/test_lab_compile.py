"""Every hand-written experiment compiles without a GPU, without spills, in its claimed form."""

from __future__ import annotations

import pytest

from lab import bandwidth, edges, mlp, products
from lab.harness import EDGES, PLAIN, WAIT_SIGNAL, source
from tinygrad_cuda.backend.cuda import compiler

ARCH = "sm_90"
MULTIPROCESSORS = 132


def resources(text: str) -> dict[str, compiler.Resources]:
    """Registers and spills of every kernel in a translation unit."""
    return compiler.resources(compiler.compile_source(text, ARCH, compiler.REPORT).log)


@pytest.mark.parametrize("edge", EDGES, ids=list(EDGES.values()))
def test_step_and_edges_compile(edge: int) -> None:
    """The step and the edge kernels, for every way of signalling, with nothing in local memory."""
    found = resources(mlp.mlp_source(edge)) | resources(edges.edges_source(edge))
    assert set(found) == {*mlp.KERNELS, *edges.KERNELS}
    assert all(r.stack == r.spill_stores == 0 for r in found.values()), found


def test_every_launch_shape_compiles() -> None:
    """All variants of MAP, ROW, COL and sums; each has a grid that covers its data."""
    maps = [*bandwidth.maps(MULTIPROCESSORS), *bandwidth.sums(MULTIPROCESSORS)]
    maps += bandwidth.other_maps()
    columns, rows = bandwidth.columns(), bandwidth.softmaxes(MULTIPROCESSORS)
    pieces = [("maps.cu", maps[0::3]), ("maps.cu", maps[1::3]), ("maps.cu", maps[2::3])]
    pieces += [("maps.cu", columns[0::2]), ("maps.cu", columns[1::2]), ("rows.cu", rows)]
    texts = [source(f, tail=bandwidth.row_text(p), edge=WAIT_SIGNAL) for f, p in pieces]
    for binary, (_, piece) in zip(compiler.compile_many(texts, ARCH, compiler.REPORT), pieces):
        found = compiler.resources(binary.log)
        assert set(found) == {k.name for v in piece for k in v.kernels}
        assert all(r.spill_stores == 0 for r in found.values()), found


def test_batch_norm_compiles() -> None:
    """Two passes, groups and clusters."""
    found = resources(bandwidth.batch_source())
    assert set(found) == set(bandwidth.BATCH_KERNELS)
    assert all(r.spill_stores == 0 for r in found.values()), found


def test_products_compile() -> None:
    """The small products, and the large tile that the generator copies, without a spill."""
    forward = products.forward()
    ends = products.forward_ends(forward).values()
    small = [*forward, *products.weight_gradient(), *ends]
    best = products.large()[0]
    texts = [products.product_source(p, PLAIN) for p in (small, [best])]
    for binary in compiler.compile_many(texts, ARCH, compiler.REPORT):
        found = compiler.resources(binary.log)
        assert all(r.stack == r.spill_stores == 0 for r in found.values()), found
