"""autocast, GradScaler and vmap on the GPU: the same dtypes, decisions and values as on the CPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.nn import functional as F

RNG = np.random.default_rng(3)
X = RNG.standard_normal((12, 1, 8, 8)).astype(np.float32)
Y = RNG.integers(0, 3, 12)


def network(device: str) -> Any:
    tc.manual_seed(0)
    model = tc.nn.Sequential(
        tc.nn.Conv2d(1, 4, 3, padding=1), tc.nn.GroupNorm(2, 4), tc.nn.ReLU(), tc.nn.MaxPool2d(2),
        tc.nn.Flatten(), tc.nn.Linear(64, 16), tc.nn.GELU(), tc.nn.Linear(16, 3),
    )  # fmt: skip
    return model.to(device)


def mixed(device: str, dtype: Any, factors: tuple[float, ...]) -> tuple[list[Any], list[float]]:
    """Losses and scales of steps under autocast, the input of each times a factor."""
    model = network(device)
    optimizer = tc.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = tc.amp.GradScaler(device, init_scale=2.0**8, growth_interval=2)
    losses, scales = [], []
    for factor in factors:
        x, y = tc.tensor(X * np.float32(factor), device=device), tc.tensor(Y, device=device)
        optimizer.zero_grad()
        with tc.autocast(device, dtype=dtype):
            logits = model(x)
            assert logits.dtype is dtype
            loss = F.cross_entropy(logits, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    assert all(p.grad.dtype is tc.float32 for p in model.parameters())
    return losses, scales


@pytest.mark.parametrize("dtype", [tc.bfloat16, tc.float16])
def test_mixed_precision_follows_the_cpu(cuda_device: str, dtype: Any) -> None:
    factors = (1.0, 1.0, 1.0, math.inf, 1.0, 1.0)
    losses, scales = mixed(cuda_device, dtype, factors)
    expected, same = mixed("cpu", dtype, factors)
    assert scales == same == [256.0, 512.0, 512.0, 256.0, 256.0, 512.0]
    assert not math.isfinite(losses[3])
    finite = [k for k, factor in enumerate(factors) if math.isfinite(factor)]
    np.testing.assert_allclose(
        [losses[k] for k in finite], [expected[k] for k in finite], rtol=2e-2
    )


def test_gradients_of_each_sample_are_those_of_the_cpu(cuda_device: str) -> None:
    found = []
    for device in (cuda_device, "cpu"):
        model = network(device)

        def loss_of(parameters: Any, x: Any, y: Any, model: Any = model) -> Any:
            out = tc.func.functional_call(model, parameters, (x.unsqueeze(0),))
            return F.cross_entropy(out, y.unsqueeze(0))

        parameters = {name: p.detach() for name, p in model.named_parameters()}
        x, y = tc.tensor(X, device=device), tc.tensor(Y, device=device)
        gradients = tc.vmap(tc.func.grad(loss_of), (None, 0, 0))(parameters, x, y)
        found.append({name: g.cpu().numpy() for name, g in gradients.items()})
    ours, expected = found
    for name, g in expected.items():
        np.testing.assert_allclose(ours[name], g, rtol=1e-4, atol=1e-5)
