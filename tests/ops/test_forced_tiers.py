"""tc.kernels.use: products of matrices by each rung of the climb, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from execution import device_or_skip

import tinygrad_cuda as tc
from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.config import MATMUL_TIERS, settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.core.errors import ArgumentError

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
    assert tuple(tc.kernels.TIERS["matmul"]) == MATMUL_TIERS
