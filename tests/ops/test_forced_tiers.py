"""tc.kernels.use: products and convolutions by each rung of the climb, against float64 on cpu."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from execution import Batch, device_or_skip

import tinygrad_cuda as tc
from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.config import CONVOLUTION_TIERS, MATMUL_TIERS, settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.dtypes import bfloat16
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.graph.ops import contraction
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops.convolution import convolution
from tinygrad_cuda.lowering.skeletons.contract import contract, mma, plain, tf32x3, tma
from tinygrad_cuda.lowering.skeletons.conv import depthwise, winograd_transforms

Array = np.ndarray[Any, Any]
TOLERANCE = {"float64": 1e-13, "float32": 1e-5, "bfloat16": 2**-8, "float16": 2**-10}
SIZES = [(1, 1, 1), (17, 33, 16), (16, 16, 15), (40, 7, 67)]  # m, n, k


@pytest.fixture(params=["emu", "cuda"])
def device(request: pytest.FixtureRequest) -> Any:
    return device_or_skip(request.param, request)


@pytest.fixture(autouse=True)
def by_time() -> Any:
    yield
    tc.kernels.use("matmul", None)
    tc.kernels.use("convolution", None)


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def check(found: Any, want: Array, dtype: str) -> None:
    error = np.abs(found.double().numpy() - want).max(initial=0)
    assert error <= TOLERANCE[dtype] * max(1.0, np.abs(want).max(initial=0))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("tier", ["naive", "tiled"])
def test_plain_rungs_in_every_layout(device: Any, tier: str, dtype: str) -> None:
    with tc.kernels.use("matmul", tier):
        for m, n, k in SIZES:
            a, b = (tc.tensor(numbers(s, r, k), device=device).to(getattr(tc, dtype))
                    for s, r in ((1, m), (2, n)))  # fmt: skip
            x, y = a.double().numpy(), b.double().numpy()
            check(a @ b.T, x @ y.T, dtype)
            check(b @ a.T, y @ x.T, dtype)
            check(a.T.contiguous().T @ b.T.contiguous(), x @ y.T, dtype)


@pytest.mark.parametrize("tier", ["naive", "tiled"])
def test_plain_rungs_with_batches_prologues_and_epilogues(device: Any, tier: str) -> None:
    with tc.kernels.use("matmul", tier):
        shapes = ((2, 3, 20, 18), (2, 3, 18, 19), (18, 21))
        a, b, w = (tc.tensor(numbers(3, *of), device=device).float() for of in shapes)
        x, y, z = (values.double().numpy() for values in (a, b, w))
        check(a @ b, x @ y, "float32")
        check((a.relu() @ w + 1).tanh(), np.tanh(np.maximum(x, 0) @ z + 1), "float32")
        check(a[:, :, 2:9] @ w[:, 3:], x[:, :, 2:9] @ z[:, 3:], "float32")
        counts = tc.tensor([[1, 2], [3, 4]], device=device)
        assert (counts @ counts).tolist() == [[7, 10], [15, 22]]
        assert (a[:0, 0] @ w).shape == (0, 20, 21)
        leaf = w.clone().requires_grad_()
        (a.reshape(120, 18) @ leaf).sum().backward()
        check(leaf.grad, np.broadcast_to(x.reshape(120, 18).sum(0)[:, None], (18, 21)), "float32")


def kernels_of(tier: str | None, capfd: pytest.CaptureFixture[str], **of: Any) -> str:
    """What TGC_DEBUG=4 prints of a product."""
    tc.kernels.use("matmul", tier)
    a = tc.ones(64, 64, device="emu", **of)
    a.float().numpy()
    with settings.override(debug=4):
        (a @ a).float().numpy()
    printed = capfd.readouterr()
    return printed.out + printed.err


def test_a_plan_of_another_tier_is_not_used(
    capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """The same product again by each rung."""
    device_or_skip("emu", request)
    texts = [kernels_of(tier, capfd) for tier in ("naive", "tiled", "register_tiled")]
    assert "one output a thread" in texts[0]
    assert "tiles of 16 x 16 in shared memory" in texts[1]
    assert "split-K" in texts[2]
    for tier, unit in (("mma", "by mma"), ("wgmma", "by wgmma")):
        assert unit in kernels_of(tier, capfd, dtype=tc.bfloat16)
    assert "one output a thread" in kernels_of("naive", capfd, dtype=tc.bfloat16)


def test_a_with_block_ends_the_choice() -> None:
    before = settings.matmul_tier
    with tc.kernels.use("matmul", "naive"):
        assert settings.matmul_tier == "naive"
        with tc.kernels.use("matmul", None):
            assert settings.matmul_tier == ""
        assert settings.matmul_tier == "naive"
    assert settings.matmul_tier == before


def test_what_a_tier_cannot_make_is_an_error(request: pytest.FixtureRequest) -> None:
    device_or_skip("emu", request)
    assert registry.get(as_device("emu")).target.architecture == (9, 0)
    a = tc.ones(64, 64, device="emu", dtype=tc.float64)
    tc.kernels.use("matmul", "wgmma")
    with pytest.raises(ArgumentError, match="tier 'wgmma' does not make this product"):
        (a @ a).numpy()
    tc.kernels.use("matmul", "naive")
    assert (a @ a).tolist() == [[64.0] * 64] * 64
    with pytest.raises(ArgumentError, match="naive, tiled, register_tiled, mma, wgmma or None"):
        tc.kernels.use("matmul", "fast")
    with pytest.raises(ArgumentError, match="an operation without tiers"):
        tc.kernels.use("conv2d", "naive")
    assert tc.kernels.TIERS == {"matmul": MATMUL_TIERS, "convolution": CONVOLUTION_TIERS}


# Convolutions -------------------------------------------------------------------------------------

# Images, filters, and how windows lie; the rungs that make them, and their gradients, in words.
ANY = ("naive", "tiled", "im2col", "register_tiled")
UNITS = ("mma", "wgmma")
IMAGES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], tuple[str, ...]]] = {
    "square": ((2, 24, 9, 11), (32, 24, 3, 3), {"padding": 1}, (*ANY, *UNITS, "winograd")),
    "dilated": (
        (2, 16, 11, 13), (24, 16, 3, 2), {"stride": (2, 1), "padding": (2, 1), "dilation": (2, 3)},
        (*ANY, *UNITS),
    ),
    "groups": ((2, 16, 7, 9), (32, 8, 3, 3), {"groups": 2, "padding": 1}, (*ANY, *UNITS)),
    "depthwise": (
        (2, 16, 9, 8), (16, 1, 3, 3), {"groups": 16, "padding": 1}, (*ANY, "depthwise"),
    ),
    "one tap": ((3, 16, 5, 7), (40, 16, 1, 1), {}, (*ANY, *UNITS)),
    "few channels": ((3, 2, 13, 17), (4, 2, 5, 5), {"padding": 2}, (*ANY, "direct")),
    "strip": ((3, 16, 29), (8, 16, 4), {"stride": 3, "padding": 2}, (*ANY, *UNITS)),
}  # fmt: skip
CASES = [(name, rung) for name, (*_, rungs) in IMAGES.items() for rung in rungs]


def passes(x: Any, w: Any, b: Any, **at: Any) -> list[Any]:
    """A convolution with an epilogue, and all gradients."""
    convolve = tc.nn.functional.conv2d if x.dim() == 4 else tc.nn.functional.conv1d
    x, w, b = (t.detach().requires_grad_() for t in (x, w, b))
    y = convolve(x, w, b, **at)
    return [y.relu(), y, *tc.autograd.grad((y.tanh() * y).sum(), (x, w, b))]


@pytest.mark.parametrize(("name", "rung"), CASES)
def test_convolutions_by_each_rung(device: Any, name: str, rung: str) -> None:
    shape, filters, at, _ = IMAGES[name]
    half = rung in UNITS
    if half and registry.get(as_device(device)).target.architecture != (9, 0):
        pytest.skip("its matrix units are of sm_90a")
    arrays = numbers(5, *shape), numbers(6, *filters) / 9, numbers(7, filters[0])
    dtype = tc.bfloat16 if half else tc.float32
    given = [tc.tensor(values, device="cpu").to(dtype) for values in arrays]
    want = passes(*(t.double() for t in given), **at)
    with tc.kernels.use("convolution", rung):
        made = passes(*(t.to(device) for t in given), **at)
        for found, exact in zip(made, want, strict=True):
            error = (found.detach().double().cpu() - exact.detach()).abs().max().item()
            assert error <= (2**-6 if half else 2e-5) * exact.detach().abs().max().item()


RUNG_TEXT = {
    "naive": "one output a thread", "tiled": "tiles of 16 x 16 in shared memory",
    "im2col": "contiguous", "register_tiled": "split-K", "mma": "by mma", "wgmma": "by wgmma",
    "winograd": "winograd", "direct": "conv_direct", "depthwise": "conv_depthwise",
}  # fmt: skip


@pytest.mark.parametrize("rung", CONVOLUTION_TIERS)
def test_the_rung_that_is_asked_for_makes_a_convolution(
    rung: str, capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """Also where the same plan was made by another one before."""
    device_or_skip("emu", request)
    name = next(name for name, (*_, rungs) in IMAGES.items() if rung in rungs)
    shape, filters, at, _ = IMAGES[name]
    dtype = tc.bfloat16 if rung in UNITS else tc.float32
    x, w = (tc.ones(*of, device="emu", dtype=dtype).contiguous() for of in (shape, filters))
    x.float().numpy(), w.float().numpy()

    def text(tier: str | None) -> str:
        with tc.kernels.use("convolution", tier), settings.override(debug=4):
            tc.nn.functional.conv2d(x, w, **at).float().numpy()
        printed = capfd.readouterr()
        return printed.out + printed.err

    text(None)
    assert RUNG_TEXT[rung] in text(rung)


def test_rungs_of_products_and_of_convolutions_meet(
    capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """The product of stored columns is one that `use` may give another rung; others are none."""
    device_or_skip("emu", request)
    x, w = tc.ones(2, 4, 6, 6, device="emu"), tc.ones(4, 4, 3, 3, device="emu")
    with tc.kernels.use("matmul", "naive"):
        for rung, by_naive in (("im2col", True), ("tiled", False)):
            with tc.kernels.use("convolution", rung), settings.override(debug=4):
                assert tc.nn.functional.conv2d(x, w).numpy().max() == 36
            printed = capfd.readouterr()
            assert ("one output a thread" in printed.out + printed.err) == by_naive


def test_convolutions_that_a_rung_cannot_make(request: pytest.FixtureRequest) -> None:
    device_or_skip("emu", request)
    x, w = tc.ones(2, 4, 6, 6, device="emu"), tc.ones(4, 4, 3, 3, device="emu")
    for rung, why in (
        ("depthwise", "one group"), ("winograd", "not 3 x 3 windows of many channels"),
        ("wgmma", "no tier of emu's matrix units multiplies float32"),
    ):  # fmt: skip
        text = f"tier '{rung}' does not make this convolution(.|\n)*{why}"
        with tc.kernels.use("convolution", rung), pytest.raises(ArgumentError, match=text):
            tc.nn.functional.conv2d(x, w).numpy()
    with pytest.raises(ArgumentError, match="naive, tiled, im2col, register_tiled, direct"):
        tc.kernels.use("convolution", "fast")
    assert tc.nn.functional.conv2d(x, w).numpy().max() == 36


# Wide indices -------------------------------------------------------------------------------------

WIDE = (contract, plain, mma, tma, tf32x3, depthwise, winograd_transforms)


@pytest.mark.parametrize(
    ("op", "rung"), [(op, rung) for op, rungs in tc.kernels.TIERS.items() for rung in rungs]
)
def test_indices_of_64_bits_have_the_same_values(
    op: str, rung: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """As where a value has more than 2**31 elements: each rung, to the last bit."""
    batch = Batch(device_or_skip("emu", request))
    dtype = bfloat16.numpy if rung in UNITS else np.float32
    if op == "matmul":
        shapes = (2, 33, 72), (2, 72, 40)
        made = contraction.matmul(*(batch.input(numbers(3, *of).astype(dtype)) for of in shapes))
    else:
        case = next(case for case in IMAGES.values() if rung in case[3] and len(case[0]) == 4)
        stride, pads = case[2].get("stride", (1, 1)), case[2].get("padding", 0)
        groups = case[2].get("groups", 1)
        at = {"stride": stride, "padding": ((pads, pads),) * 2, "groups": groups}
        at["dilation"] = (1, 1)
        made = convolution(*(batch.input(numbers(3, *of).astype(dtype)) for of in case[:2]), **at)
    batch.want("", [ew.neg(made)])
    found, texts = [], []
    with settings.override(**{f"{op}_tier": rung}):
        for wide in (False, True):
            for module in WIDE if wide else ():
                monkeypatch.setattr(module, "is_wide", lambda kernel: True)
            plan: Any = registry.get(batch.device).compile(batch.program())
            texts.append([launch.text for launch in plan.launches])
            found.append(batch.runner(plan)(batch.arrays)[""][0])
    assert texts[0] != texts[1]
    np.testing.assert_array_equal(*found)
