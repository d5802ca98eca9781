"""examples/ddpm.py: its schedule against closed forms, its reverse steps against oracles."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.engine.plan import cache

PATH = Path(__file__).resolve().parents[2] / "examples" / "ddpm.py"


@pytest.fixture(scope="module")
def ddpm() -> ModuleType:
    """The example's module, imported by its path, its tables on cpu."""
    spec = importlib.util.spec_from_file_location("ddpm", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TGC_DEVICE", "cpu")


def test_schedule(ddpm: ModuleType) -> None:
    """alphabar_t is the product of 1 - beta_s; its logarithm's series is near -(t + 1) beta / 2."""
    schedule = ddpm.Schedule()
    beta = 1e-4 + (0.02 - 1e-4) / 999 * np.arange(1000)
    np.testing.assert_allclose(schedule.betas, beta, rtol=1e-13)
    # The sum of log(1 - b) = -b - b^2 / 2 - b^3 / 3 - ..., with the sums of powers of t closed.
    n, a, d = 1000, 1e-4, (0.02 - 1e-4) / 999
    s1, s2, s3 = n * (n - 1) / 2, (n - 1) * n * (2 * n - 1) / 6, (n * (n - 1) / 2) ** 2
    log = -(n * a + d * s1)
    log -= (n * a**2 + 2 * a * d * s1 + d**2 * s2) / 2
    log -= (n * a**3 + 3 * a**2 * d * s1 + 3 * a * d**2 * s2 + d**3 * s3) / 3
    assert np.log(schedule.alphas_bar[-1]) == pytest.approx(log, abs=1e-4)
    assert 1 / np.sqrt(schedule.alphas_bar[-1]) == pytest.approx(157.4, abs=0.05)
    before = np.append(1.0, schedule.alphas_bar[:-1])
    posterior = (1 - before) / (1 - schedule.alphas_bar) * beta
    np.testing.assert_allclose(schedule.sigmas, np.sqrt(posterior), rtol=1e-12)
    assert schedule.sigmas[0] == 0


def test_reverse_step_is_the_posterior(ddpm: ModuleType) -> None:
    """With the true noise the mean is that of q(x_{t-1} | x_t, x_0), another formula."""
    schedule = ddpm.Schedule()
    random = np.random.default_rng(0)
    t = np.array([0, 1, 10, 500, 998, 999])
    x0, eps = random.standard_normal((2, len(t), 1, 4, 4))
    bar, before = (v[t].reshape(-1, 1, 1, 1) for v in (
        schedule.alphas_bar, np.append(1.0, schedule.alphas_bar[:-1])))  # fmt: skip
    beta = schedule.betas[t].reshape(-1, 1, 1, 1)
    x = np.sqrt(bar) * x0 + np.sqrt(1 - bar) * eps
    mean = (
        np.sqrt(before) * beta / (1 - bar) * x0 + np.sqrt(1 - beta) * (1 - before) / (1 - bar) * x
    )
    steps = tc.tensor(t)
    given = [tc.tensor(array, dtype=tc.float32) for array in (x0, eps, np.zeros_like(x0))]
    noisy = schedule.add_noise(given[0], steps, given[1])
    np.testing.assert_allclose(noisy.numpy(), x, atol=1e-5)
    found = schedule.reverse(noisy, steps, given[1], given[2])
    np.testing.assert_allclose(found.numpy(), mean, atol=2e-5)
    # The divisor of a tutorial in circulation is far off: 157 times at the end.
    wrong = (x - beta / np.sqrt(1 - bar) * eps) / np.sqrt(bar)
    assert abs(wrong[-1]).max() > 100 * abs(mean[-1]).max()


def test_an_oracle_leads_back(ddpm: ModuleType) -> None:
    """1000 reverse steps with the noise of a known image end at that image, by one plan a step."""
    schedule = ddpm.Schedule()
    image = tc.tensor(np.random.default_rng(1).uniform(-1, 1, (1, 1, 3, 3)), dtype=tc.float32)
    signal = tc.tensor(np.sqrt(schedule.alphas_bar), dtype=tc.float32)
    noise = tc.tensor(np.sqrt(1 - schedule.alphas_bar), dtype=tc.float32)

    def oracle(x: tc.Tensor, t: tc.Tensor) -> tc.Tensor:
        return (x - signal[t].reshape(-1, 1, 1, 1) * image) / noise[t].reshape(-1, 1, 1, 1)

    made: list[int] = []
    x = schedule.sample(oracle, tc.randn(2, 1, 3, 3), lambda t, x: made.append(cache.made))
    np.testing.assert_allclose(x.numpy(), np.broadcast_to(image.numpy(), x.shape), atol=1e-4)
    assert made[-1] == made[10], "a step that knows its number is a plan of its own"


def test_unet_starts_constant_and_sees_the_time(ddpm: ModuleType) -> None:
    """Its last convolution is a bias at first; with weights there, t changes the result."""
    tc.manual_seed(0)
    model = ddpm.UNet(8, steps=50)
    x = tc.randn(2, 1, 8, 8)
    assert bool((model(x, tc.tensor([3, 40])) == model.last.bias).all())
    with tc.no_grad():
        model.last.weight.add_(tc.randn_like(model.last.weight))
    early, late = (model(x, tc.tensor([t, t])).detach().numpy() for t in (3, 40))
    assert early.shape == x.shape
    assert abs(early - late).max() > 1e-3
