"""The hand-written step and rows on a real GPU, right under every kind of graph edge; and the races
that a load above the wait meets are really there, so that the rule against them has a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lab import bandwidth, edges, mlp, products
from lab.harness import (
    EDGES,
    NO_SIGNAL,
    PLAIN,
    SIGNAL_LATE,
    SIGNAL_WAIT,
    WAIT_LATE,
    WAIT_SIGNAL,
    Gpu,
    Shape,
    node,
    source,
    words,
)
from tinygrad_cuda.backend.cuda import driver as runtime

pytestmark = pytest.mark.usefixtures("cuda_device")
STEPS = 20


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    """The first GPU."""
    device = runtime.device()
    if device.properties.capability < (9, 0):
        pytest.skip("programmatic edges begin with sm_90")
    return Gpu(device)


@pytest.fixture(scope="module")
def problem() -> tuple[dict[str, Any], dict[str, Any]]:
    """Data for STEPS steps, and what NumPy makes of them in float64."""
    data = mlp.problem(STEPS)
    return data, mlp.reference(data, STEPS)


def run_steps(gpu: Gpu, edge: int, kernels: tuple[str, ...], data: Any) -> list[dict[str, Any]]:
    """The results of two runs of STEPS steps as one graph."""
    functions = gpu.functions({"mlp": mlp.mlp_source(edge)}, {"mlp": mlp.KERNELS})
    step = mlp.Step(gpu, {name: functions["mlp", name] for name in mlp.KERNELS}, data)
    graph = step.graph(edge, kernels, STEPS)
    results = []
    for _ in range(2):
        step.reset()
        graph.launch()
        results.append(step.result())
    return results


@pytest.mark.parametrize("kernels", [mlp.FUSED, mlp.CUT], ids=["three kernels", "five kernels"])
@pytest.mark.parametrize("edge", EDGES, ids=list(EDGES.values()))
def test_steps_agree_with_numpy(gpu: Gpu, problem: Any, edge: int, kernels: Any) -> None:
    """Parameters, velocities and losses after 20 steps, under each kind of edge; twice."""
    data, wanted = problem
    first, second = run_steps(gpu, edge, kernels, data)
    assert mlp.worst(first, wanted) < 2e-6
    for name in wanted:
        assert (first[name] == second[name]).all(), name


def test_bad_label_leaves_parameters_unchanged(gpu: Gpu, problem: Any) -> None:
    """A label out of range sets the error word, and no update is written."""
    data = dict(problem[0])
    data["labels"] = data["labels"].copy()
    data["labels"][0, 5] = 10
    functions = gpu.functions({"mlp": mlp.mlp_source(PLAIN)}, {"mlp": mlp.KERNELS})
    step = mlp.Step(gpu, {name: functions["mlp", name] for name in mlp.KERNELS}, data)
    step.graph(PLAIN, mlp.FUSED, 1).launch()
    got = step.result()
    for name in ("w1", "b1", "w2", "b2"):
        assert (got[name] == data[name]).all(), name
    error = gpu.get(step.memory["error"], (4,), np.uint64)
    assert error.tolist() == [1, 10, 10, 0]


@pytest.fixture(scope="module")
def edge_kernels(gpu: Gpu) -> dict[int, edges.Edges]:
    """The kernels of edges.cu for every way of signalling."""
    texts = {str(edge): edges.edges_source(edge) for edge in EDGES}
    found = gpu.functions(texts, dict.fromkeys(texts, edges.KERNELS))
    return {
        edge: edges.Edges(gpu, {k: found[str(edge), k] for k in edges.KERNELS}, edge)
        for edge in EDGES
    }


@pytest.mark.parametrize("edge", EDGES, ids=list(EDGES.values()))
@pytest.mark.parametrize("grid", [1, 132, 528])
def test_chains_and_joins_hold(edge_kernels: Any, edge: int, grid: int) -> None:
    """Each of 100 kernels sees what another block of its predecessor wrote; so does each join."""
    assert edge_kernels[edge].chain_is_right(grid)
    assert edge_kernels[edge].diamonds_are_right(grid)


@pytest.mark.parametrize("edge", [SIGNAL_WAIT, WAIT_SIGNAL, SIGNAL_LATE])
def test_a_join_may_mix_kinds_of_edges(edge_kernels: Any, edge: int) -> None:
    """One predecessor by a plain edge, one by a programmatic edge."""
    assert edge_kernels[edge].mixed_joins_are_right(132)


@pytest.mark.parametrize("edge", EDGES, ids=list(EDGES.values()))
def test_reads_after_the_wait_are_never_stale(edge_kernels: Any, edge: int) -> None:
    """However slow the writer is."""
    assert edge_kernels[edge].stale_reads("read_waited") == 0


@pytest.mark.parametrize("edge", [SIGNAL_WAIT, WAIT_SIGNAL, WAIT_LATE])
def test_planted_early_read_is_a_race(edge_kernels: Any, edge: int) -> None:
    """A read above the wait, of what the direct predecessor writes, is detected as stale."""
    assert edge_kernels[edge].stale_reads("read_early") > 0.5


@pytest.mark.parametrize("edge", [PLAIN, NO_SIGNAL])
def test_without_a_signal_the_early_read_is_no_race(edge_kernels: Any, edge: int) -> None:
    """The kernel does not start before its predecessor ended."""
    assert edge_kernels[edge].stale_reads("read_early") == 0


@pytest.mark.parametrize("edge", [WAIT_SIGNAL, WAIT_LATE, SIGNAL_LATE, NO_SIGNAL])
def test_waiting_first_makes_older_values_safe(edge_kernels: Any, edge: int) -> None:
    """Where each kernel waits before it signals, a load above the wait may read what the
    predecessor's predecessor wrote, also when old lines of it lay in the L1 caches."""
    assert edge_kernels[edge].stale_reads_past_relay() == 0
    assert edge_kernels[edge].stale_cache_reads() == 0


def test_signalling_first_makes_older_values_unsafe(edge_kernels: Any) -> None:
    """Where kernels signal before they wait, the same load is a race."""
    assert edge_kernels[SIGNAL_WAIT].stale_reads_past_relay() > 0.5


def test_softmax_row_in_registers(gpu: Gpu) -> None:
    """One block a row, against float64, with values that would overflow without the maximum."""
    line = "SOFTMAX(row, 512, 4, false, 1)\n"
    functions = gpu.functions({"r": source("rows.cu", tail=line)}, {"r": ["row"]})
    x = (40 * np.random.default_rng(1).standard_normal((64, 8192))).astype(np.float32)
    given, out = gpu.put(x), gpu.empty(x.nbytes)
    made = node(functions["r", "row"], Shape(64, 512, 512), words(given, out))
    gpu.chain([made], PLAIN).launch()
    got, wanted = gpu.get(out, x.shape), bandwidth.wanted("softmax 64 x 8192", x)
    assert np.linalg.norm(got - wanted) < 1e-6 * np.linalg.norm(wanted)


def test_column_sum_in_two_stages(gpu: Gpu) -> None:
    """Partials of fixed row ranges, then their sum, across a programmatic edge."""
    lines = "COL_SUM(first, 1024, 512, 4, 256, 8)\nCOL_PARTIALS(last, 512, 8)\n"
    text = source("maps.cu", tail=lines, edge=WAIT_SIGNAL)
    functions = gpu.functions({"c": text}, {"c": ["first", "last"]})
    x = np.random.default_rng(2).standard_normal((1024, 512)).astype(np.float32)
    given, partials, out = gpu.put(x), gpu.empty(8 * 512 * 4), gpu.empty(512 * 4)
    nodes = [
        node(functions["c", "first"], Shape(4 * 8, 256, 4096), words(given, partials)),
        node(functions["c", "last"], Shape(512 // 64, 64), words(partials, out)),
    ]
    gpu.chain(nodes, WAIT_SIGNAL).launch()
    np.testing.assert_allclose(gpu.get(out, (512,)), x.sum(0, dtype=np.float64), atol=1e-4)


def test_batch_norm_in_two_passes(gpu: Gpu) -> None:
    """Statistics by Chan's formula from registers, far from zero mean, and the normalisation."""
    images, channels, plane, splits = 32, 3, 3136, 16
    lines = f"BATCH_STATS(stats, {images}, {channels}, {plane}, {splits}, 7, 224)\n"
    lines += f"BATCH_APPLY(apply, {images}, {channels}, {plane}, {splits}, 4, 7, 448, "
    lines += f"false, false, {channels})\n"
    text = source("rows.cu", tail=lines, edge=WAIT_SIGNAL)
    functions = gpu.functions({"b": text}, {"b": ["stats", "apply"]})
    x = np.random.default_rng(3).standard_normal((images, channels, plane)) + 100
    x = x.astype(np.float32)
    given, out, statistics = gpu.put(x), gpu.empty(x.nbytes), gpu.empty(channels * 8)
    partials = gpu.empty(channels * splits * 8)
    ones, zeros = gpu.put(np.ones(channels, np.float32)), gpu.put(np.zeros(channels, np.float32))
    shape = Shape(channels * splits, 224, 512)
    nodes = [
        node(functions["b", "stats"], shape, words(given, partials, 0)),
        node(
            functions["b", "apply"],
            Shape(channels * (images // 4), 448),
            words(given, partials, ones, zeros, out, statistics, 0),
        ),
    ]
    gpu.chain(nodes, WAIT_SIGNAL).launch()
    exact = x.astype(np.float64)
    mean, variance = exact.mean((0, 2)), exact.var((0, 2))
    np.testing.assert_allclose(
        gpu.get(statistics, (channels, 2)), np.stack([mean, variance], 1), rtol=1e-5
    )
    wanted = (exact - mean[:, None]) / np.sqrt(variance + 1e-5)[:, None]
    np.testing.assert_allclose(gpu.get(out, x.shape), wanted, atol=2e-5)


@pytest.mark.parametrize("macro", ["MATMUL", "MATMUL_ASYNC"])
def test_large_tiles(gpu: Gpu, macro: str) -> None:
    """The large product's text, on a product of three sizes."""
    m, n, k = 256, 384, 208
    sizes = f"{m}, {n}, {k}, 128, 128, 16, 8, 8, 2"
    stages = ", 3" if macro == "MATMUL_ASYNC" else ""
    text = source("contract.cuh", "matmul.cu", tail=f"{macro}(product, {sizes}{stages}, 1)\n")
    functions = gpu.functions({"m": text}, {"m": ["product"]})
    random = np.random.default_rng(4)
    a, b = (random.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    out = gpu.empty(4 * m * n)
    shared = 3 * 4 * (128 * 20 + 16 * 128) if stages else 8 * 16 * (132 + 128)
    parameters = words(gpu.put(a), gpu.put(b), out)
    gpu.chain([node(functions["m", "product"], Shape(6, 256, shared), parameters)], 0).launch()
    wanted = a.astype(np.float64) @ b
    got = gpu.get(out, (m, n))
    assert np.linalg.norm(got - wanted) < 1e-6 * np.linalg.norm(wanted)


@pytest.mark.parametrize("product", products.forward(), ids=lambda p: p.label)
def test_small_products(gpu: Gpu, product: products.Product) -> None:
    """Every tile and split of x @ w.T, with the sum of its partials."""
    ends = products.forward_ends([product])
    text = products.product_source([product, *ends.values()], WAIT_SIGNAL)
    names = [product.name, *(end.name for end in ends.values())]
    functions = gpu.functions({"s": text}, {"s": names})
    random = np.random.default_rng(5)
    x, w = (random.standard_normal(s).astype(np.float32) for s in ((64, 784), (128, 784)))
    given = gpu.put(x), gpu.put(w)
    partials = gpu.empty(product.split * 64 * 128 * 4)
    nodes = [node(functions["s", product.name], product.shape, words(*given, partials))]
    out = partials
    for end in ends.values():
        out = gpu.empty(64 * 128 * 4)
        nodes.append(node(functions["s", end.name], end.shape, words(partials, partials, out)))
    gpu.chain(nodes, WAIT_SIGNAL).launch()
    wanted = x.astype(np.float64) @ w.T
    got = gpu.get(out, (64, 128))
    assert np.linalg.norm(got - wanted) < 1e-6 * np.linalg.norm(wanted)
