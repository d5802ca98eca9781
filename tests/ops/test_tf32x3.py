"""float32 products of split operands: each tile against float64, as exact as float32 sums, and
infinities as a float32 sum has them.

One program holds a product for each tile, with sizes that no tile divides, and with sizes whose
operands are copied asynchronously.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from execution import Batch, Results, device_or_skip

import tinygrad_cuda as tc
from lab.tf32x3 import CHUNKS, KINDS, emulated, errors, in_order, values
from tinygrad_cuda.backend.emu.runtime import KernelFault
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import CPU, as_device
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import contraction
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.graph.ops.convolution import convolution
from tinygrad_cuda.graph.ops.windows import padded
from tinygrad_cuda.lowering import algorithms
from tinygrad_cuda.lowering.codegen import skeleton
from tinygrad_cuda.lowering.skeletons.contract import mma_tiles, tf32x3
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import Product, ProductCut, split_k
from tinygrad_cuda.lowering.target import Target

Array = np.ndarray[Any, Any]
TILES = {
    "mma tf32x3": tf32x3.MMA_SPLIT_TILES,
    "wgmma tf32x3": tf32x3.WGMMA_SPLIT_TILES + tf32x3.FINE_SPLIT_TILES[:1],
}
TOLERANCE = 5e-7  # of the sum of magnitudes; of a product with tf32 it is 1e-3


@pytest.fixture(params=["emu", "cuda"])
def batch(request: pytest.FixtureRequest) -> Batch:
    return Batch(device_or_skip(request.param, request))


@pytest.fixture(params=list(TILES))
def repaired_tier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Nothing but one tier makes products, of any size."""
    name: str = request.param
    only = (_tier("channels last"), _tier(name))
    monkeypatch.setattr(algorithms, "TIERS", only)
    monkeypatch.setattr(algorithms, "SPLIT_K", {"mma": 0, "wgmma": 0})
    monkeypatch.setattr(algorithms, "WORTH_A_SPLIT", 0)
    monkeypatch.setattr(settings, "matmul_precision", "tf32x3")
    return name


@pytest.fixture
def tier(repaired_tier: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same, and what is not finite stays so: what the emulator poisons is not summed again."""
    rewritten(monkeypatch, check="")
    return repaired_tier


def rewritten(monkeypatch: pytest.MonkeyPatch, **sections: str) -> None:
    """Kernels have other texts in place of these."""
    own, texts = {**skeleton._sections(tf32x3.CUH), **sections}, skeleton._sections
    monkeypatch.setattr(
        skeleton, "_sections", lambda file: own if file == tf32x3.CUH else texts(file)
    )


def _tier(name: str) -> algorithms.Tier:
    (found,) = (tier for tier in algorithms.TIERS if tier.name == name)
    return found


class Operands:
    """Random numbers as inputs of a batch, and what products of them are in float64."""

    def __init__(self, batch: Batch, seed: int) -> None:
        self.batch, self.rng = batch, np.random.default_rng(seed)
        self.expected: dict[str, tuple[Array, Array]] = {}

    def __call__(self, *shape: int, turned: bool = False) -> tuple[Node, Array]:
        """A node of this shape and its values; `turned`: memory has the last two axes exchanged."""
        if turned:
            node, array = self(*shape[:-2], shape[-1], shape[-2])
            return contraction.transpose(node), np.swapaxes(array, -1, -2)
        array = self.rng.standard_normal(shape).astype(np.float32)
        return self.batch.input(array), array.astype(np.float64)

    def want(self, name: str, node: Node, exact: Array, magnitude: Array) -> None:
        """An output; it may err by TOLERANCE of `magnitude`."""
        self.batch.want(name, [node])
        self.expected[name] = exact, magnitude

    def compare(self) -> None:
        found: Results = self.batch.run()
        for name, (exact, magnitude) in self.expected.items():
            (result,) = found[name]
            error = (np.abs(result - exact) / magnitude).max(initial=0)
            assert error <= TOLERANCE, f"{name}: {error}"


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("wide", [False, True], ids=["odd sizes", "copied"])
def test_every_tile_in_every_layout(
    tier: str, batch: Batch, slices: int, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    operands, tiles = Operands(batch, 5), {}
    for number, tile in enumerate(TILES[tier]):
        k = 2 * tile.k + (8 * number + 8 if wide else 101 + 2 * number)
        m, n = (tile.m + 8, tile.n + 16) if wide else (tile.m + 3, tile.n + 5)
        assert k not in tiles
        tiles[k] = tile
        for turned_a, turned_b in ((0, 1), (0, 0), (1, 0), (1, 1)) if number < 2 else ((0, 1),):
            a, x = operands(m, k, turned=bool(turned_a))
            b, y = operands(k, n, turned=bool(turned_b))
            name = f"{tile} {turned_a}{turned_b}"
            operands.want(name, contraction.matmul(a, b), x @ y, np.abs(x) @ np.abs(y))

    def quickest_cut(product: Product, target: Target, others: Any) -> ProductCut[Any]:
        return split_k(tiles[product.k], product.k, slices)

    monkeypatch.setattr(mma_tiles, "quickest_cut", quickest_cut)
    operands.compare()


def test_awkward_sizes(tier: str, batch: Batch) -> None:
    """One row, column or product; as many as fill a tile but for one; and none."""
    operands = Operands(batch, 6)
    sizes = (1, 1, 1), (1, 300, 7), (129, 1, 65), (64, 64, 1), (127, 255, 31), (17, 9, 1031)
    for m, n, k in (*sizes, (0, 5, 9), (5, 0, 9)):
        (a, x), (b, y) = operands(m, k), operands(k, n)
        operands.want(f"{m} {n} {k}", contraction.matmul(a, b), x @ y, np.abs(x) @ np.abs(y))
    operands.compare()


def test_prologues_epilogues_batches_and_orders(tier: str, batch: Batch) -> None:
    """Operands that are computed, broadcast or padded; results with bias, activation, residual."""
    operands = Operands(batch, 7)
    (a, x), (b, y) = operands(70, 48), operands(48, 40)
    product = contraction.matmul(ew.exp(a), ew.mul(b, b))
    operands.want("computed", product, np.exp(x) @ y**2, np.exp(x) @ y**2)
    (a, x), (b, y) = operands(3, 65, 72), operands(3, 72, 56)
    operands.want("batch", contraction.matmul(a, b), x @ y, np.abs(x) @ np.abs(y))
    (b, y), (bias, z), (residual, r) = operands(72, 56), operands(56), operands(3, 65, 56)
    shared = mv.expand(mv.reshape(b, shape=(1, 72, 56)), shape=(3, 72, 56))
    wide = mv.expand(mv.reshape(bias, shape=(1, 1, 56)), shape=(3, 65, 56))
    value = ew.add(contraction.matmul(a, shared), wide)
    value = ew.add(ew.maximum(value, ew.sub(wide, wide)), residual)
    magnitude = np.abs(x) @ np.abs(y) + np.abs(z) + np.abs(r)
    operands.want("epilogue", value, np.maximum(x @ y + z, 0) + r, magnitude)
    (b, y) = operands(3, 80, 24)
    wider = np.pad(x, ((0, 0), (1, 0), (3, 5)))
    product = contraction.matmul(padded(a, ((1, 0), (3, 5))), b)
    # The row of zeros has no magnitude.
    operands.want("padded", product, wider @ y, np.abs(wider) @ np.abs(y) + 1e-9)
    (a, x), (b, y) = operands(130, 64), operands(64, 96)
    turned = mv.permute(mv.reshape(contraction.matmul(a, b), shape=(13, 10, 96)), axes=(1, 0, 2))
    magnitude = np.abs(x) @ np.abs(y)
    order = [v.reshape(13, 10, 96).transpose(1, 0, 2) for v in ((x @ y) ** 2, 2 * magnitude**2)]
    operands.want("order", ew.mul(turned, turned), *order)
    sums = rd.sum(contraction.matmul(a, b), axes=(0,))
    operands.want("summed", sums, (x @ y).sum(0)[None], magnitude.sum(0)[None])
    operands.compare()


def whole(batch: Batch) -> tuple[Array, float]:
    """The result of a product of several tiles, operands copied, and its largest error."""
    rng = np.random.default_rng(9)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((136, 264), (144, 264)))
    inputs = map(batch.input, (a, b))
    batch.want("result", [contraction.matmul(next(inputs), contraction.transpose(next(inputs)))])
    (result,) = batch.run()["result"]
    return result, errors(result, a, b.T)[0]


def test_results_do_not_depend_on_when_copies_and_products_take_effect(tier: str) -> None:
    results = []
    for order in range(5):
        with settings.override(emu_order=order):
            results.append(whole(Batch(as_device("emu"))))
    assert all(error <= TOLERANCE for _, error in results)
    assert len({result.tobytes() for result, _ in results}) == 1


# What is changed in the loop of wgmma.
WAIT = "tgc_wgmma_wait<0>();\n"
FAULTS = {
    "products are not waited for": (WAIT, "tgc_wgmma_wait<1>();\n"),
    "the next tile of A is not waited for": ("tgc_copy_wait<@stages@ - 2>", "tgc_copy_wait<9>"),
    "the next tile of B is not shown to wgmma": ("    tgc_proxy_fence();\n", ""),
    "threads do not wait for each other": ("    __syncthreads();  // the next", "  // the next"),
    "the tile of B that is multiplied is written": ("    turn ^= 1;\n", ""),
    "the tile of A that others read is written": ("@, free_slot);", "@, slot);"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_of_the_loop_shows(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the result, or because the emulator stops the kernel, in one order at least."""
    before, after = FAULTS[fault]
    sections = skeleton._sections(tf32x3.CUH)
    start, loop = sections["body"].split("  for (int k_first", 1)
    assert (loop + sections["add"]).count(before) == 1
    body = f"{start}  for (int k_first{loop.replace(before, after)}"
    rewritten(monkeypatch, body=body, add=sections["add"].replace(before, after), check="")
    monkeypatch.setattr(algorithms, "TIERS", (_tier("wgmma tf32x3"),))
    monkeypatch.setattr(algorithms, "WORTH_A_SPLIT", 0)
    monkeypatch.setattr(settings, "matmul_precision", "tf32x3")
    shown = False
    for order in range(5):
        with settings.override(emu_order=order):
            try:
                shown |= not whole(Batch(as_device("emu")))[1] <= TOLERANCE
            except KernelFault:
                shown = True
    assert shown


# N, C, (H, W), O, kernel, stride, pads, dilation, groups
CONVOLUTIONS = (
    (3, 8, (13, 12), 40, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    (2, 16, (9, 16), 24, (3, 2), (2, 1), ((1, 0), (0, 1)), (1, 2), 1),
)


@pytest.mark.parametrize("problem", CONVOLUTIONS)
def test_convolutions(
    tier: str, batch: Batch, problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the same in float64 by NumPy."""
    monkeypatch.setattr(algorithms, "SPLIT_WINDOWS", True)
    n, c, size, o, kernel, stride, pads, dilation, groups = problem
    at = {"stride": stride, "padding": pads, "dilation": dilation, "groups": groups}
    operands, exact = Operands(batch, 8), Batch(CPU)
    (x, x64), (w, w64) = operands(n, c, *size), operands(o, c // groups, *kernel)
    for name, pair in (("exact", (x64, w64)), ("magnitude", (np.abs(x64), np.abs(w64)))):
        exact.want(name, [convolution(*map(exact.input, pair), **at)])
    found = {name: result for name, (result,) in exact.run().items()}
    operands.want("result", convolution(x, w, **at), found["exact"], found["magnitude"])
    operands.compare()


HUGE = float(np.finfo(np.float32).max)


def test_what_is_not_finite_is_that_of_a_float32_sum(repaired_tier: str, batch: Batch) -> None:
    """Infinities, also beside zeros, numbers that are none, and overflow."""
    rng = np.random.default_rng(11)
    a = rng.standard_normal((9, 140)).astype(np.float32)
    b = rng.standard_normal((140, 70)).astype(np.float32)
    a[0, 3], a[1, 5], a[1, 6], a[2, 7] = np.inf, np.inf, -np.inf, np.nan
    a[7, 9] = np.array(0x7FFFFFFF, np.uint32).view(np.float32)  # the GPU's own
    a[3], a[3, 0] = 0, HUGE
    a[6], a[6, 12] = 0, -3.4028e38  # whose high part is an infinity, too
    a[4], a[4, 7], b[:, 68] = 0, np.inf, 0
    a[5], a[5, 3:5], b[3:5] = 0, HUGE, np.clip(b[3:5], -0.49, 0.49)
    b[2, 69], b[11, 66] = -np.inf, np.array(0xFFFFFFFF, np.uint32).view(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        exact = a.astype(np.float64) @ b.astype(np.float64)
        want = exact.astype(np.float32)
        magnitude = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    batch.want("values", [contraction.matmul(batch.input(a), batch.input(b))])
    (found,) = batch.run()["values"]
    for kind in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(kind(found), kind(want))
    finite = np.isfinite(want)
    assert np.isinf(want[3]).any() and finite[3].any() and finite[5].sum() == 68
    assert (np.abs(found[finite] - exact[finite]) <= TOLERANCE * magnitude[finite]).all()


LEAST = dict(algorithms.SPLIT_K)


@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_not_above_those_of_a_float32_sum(tier: str, batch: Batch, kind: str) -> None:
    """From the least k on at which the tier is taken."""
    arrays, rng = {}, np.random.default_rng(12)
    for k in (LEAST[tier.split()[0]], 1024):
        arrays[str(k)] = a, b = values(kind, k, rng)
        batch.want(str(k), [contraction.matmul(batch.input(a), batch.input(b))])
    for name, (found,) in batch.run().items():
        a, b = arrays[name]
        ours, usual = errors(found, a, b), errors(in_order(a, b), a, b)
        assert ours[0] <= usual[0] and ours[1] <= usual[1], (name, ours, usual)


@pytest.mark.parametrize("unit", LEAST)
@pytest.mark.parametrize("kind", KINDS)
def test_truncated_accumulators_leave_errors_below_those_of_a_float32_sum(
    kind: str, unit: str
) -> None:
    """The unit's accumulator truncates, which its twins do not."""
    fine = "wgmma, fine" if unit == "wgmma" else unit
    for k, name in ((LEAST[unit], fine), (algorithms.FINE_K, unit), (1024, unit)):
        a, b = values(kind, k, np.random.default_rng(13))
        ours, usual = errors(emulated(a, b, CHUNKS[name]), a, b), errors(in_order(a, b), a, b)
        assert ours[0] <= usual[0] and ours[1] <= usual[1], (k, ours, usual)


def test_the_precision_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large products alone, and not where float32 units are asked for."""
    h200, a100 = Target.h200(), Target("A100", (8, 0), 108, 163 << 10, 164 << 10, 40 << 20, 1000)

    def tier(precision: str, m: int, n: int, k: int, target: Target = h200) -> str:
        monkeypatch.setattr(settings, "matmul_precision", precision)
        inputs = Batch(CPU)
        a, b = (inputs.input(np.zeros(s, np.float32)) for s in ((m, k), (k, n)))
        return algorithms.choose(contraction.matmul(a, b), target).tier

    large = 4096, 4096, 4096
    assert tier("tf32x3", *large) == "wgmma tf32x3"
    assert tier("tf32x3", *large, a100) == "mma tf32x3"
    assert tier("tf32x3", 4096, 4096, LEAST["wgmma"] - 1) != "wgmma tf32x3"
    assert tier("tf32x3", 4096, 4096, LEAST["mma"] - 1) == "register_tiled"
    assert tier("tf32x3", 64, 128, 784) == "register_tiled"
    assert tier("ieee", *large) == tier("ieee", *large, a100) == "register_tiled"
    assert tier("high", *large) == "wgmma tma tf32"
    old = Target("T4", (7, 5), 40, 64 << 10, 64 << 10, 4 << 20, 200)
    assert tier("tf32x3", *large, old) == "register_tiled"


def test_the_words_are_accepted_and_results_follow_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans and compiled functions that were made before, too."""
    monkeypatch.setattr(mma_tiles, "clocks", lambda *_: 0.0)
    monkeypatch.setattr(algorithms, "WORTH_A_SPLIT", 0)
    rng = np.random.default_rng(10)
    a, b = (rng.random((72, 256)).astype(np.float32) for _ in range(2))
    x, y = tc.tensor(a, device="emu"), tc.tensor(b, device="emu")
    compiled = tc.compile(lambda x, y: x @ y.T)
    found = {}
    try:
        for precision in ("ieee", "tf32x3", "ieee", "tf32x3"):
            tc.set_float32_matmul_precision(precision)
            assert tc.get_float32_matmul_precision() == precision
            assert not tc.backends.cuda.matmul.allow_tf32
            results = {r.numpy().tobytes() for r in (x @ y.T, compiled(x, y), compiled(x, y))}
            assert found.setdefault(precision, results) == results and len(results) == 1
    finally:
        tc.set_float32_matmul_precision("highest")
    assert found["ieee"] != found["tf32x3"]
