"""Values that share memory on emu: a gradient of logits with the logits, others with results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import optim
from tinygrad_cuda.backend.emu.compiler import toolchain
from tinygrad_cuda.backend.launch.executable import LoweredExecutable
from tinygrad_cuda.core.errors import DeviceError
from tinygrad_cuda.engine.plan import cache as plans
from tinygrad_cuda.nn import functional as F


@pytest.fixture(autouse=True)
def emulated() -> Iterator[None]:
    try:
        toolchain()
    except DeviceError as error:
        pytest.skip(str(error))
    plans.clear()
    yield
    plans.clear()


def executables() -> list[LoweredExecutable]:
    found = [plan for entry in plans.entries.values() for plan in entry.plans.values()]
    return [plan for plan in found if isinstance(plan, LoweredExecutable)]


def step(device: str, loss: Any, rows: int, classes: int, dtype: str) -> list[Any]:
    """A layer before the loss: its value, and the gradients of the layer."""
    rng = np.random.default_rng(0)
    arrays = (rng.standard_normal(shape) for shape in ((rows, 24), (24, classes)))
    x, w = (
        tc.tensor(a.astype(np.float32), device=device).to(getattr(tc, dtype)).requires_grad_()
        for a in arrays
    )
    labels = tc.tensor(rng.integers(0, classes, rows), device=device)
    value = loss(x @ w, labels)
    value.backward()
    return [t.detach().to(tc.float32).numpy() for t in (value, x.grad, w.grad)]


def smooth(logits: Any, labels: Any) -> Any:
    return F.cross_entropy(logits, labels, label_smoothing=0.1)


LOSSES = {"cross_entropy": F.cross_entropy, "smooth": smooth}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", list(LOSSES))
@pytest.mark.parametrize(("rows", "classes"), [(80, 9000), (700, 1000), (2000, 640)])
def test_a_gradient_is_stored_over_the_logits(
    rows: int, classes: int, name: str, dtype: str
) -> None:
    """Rows read again in each loop, rows that a block holds, and rows of a warp."""
    own, expected = (step(d, LOSSES[name], rows, classes, dtype) for d in ("emu", "cpu"))
    taken = [pair for plan in executables() for pair in plan.arena.over.items()]
    assert [old.shape for _, old in taken] == [(rows, classes)]
    tolerance = 1e-4 if dtype == "float32" else 2e-2
    for found, wanted in zip(own, expected):
        np.testing.assert_allclose(found, wanted, atol=tolerance * np.abs(wanted).max())


# Memory of results --------------------------------------------------------------------------------


def trained(device: str) -> list[Any]:
    """Losses of two steps, and the gradients and parameters behind them."""
    tc.manual_seed(0)
    rng = np.random.default_rng(0)
    shapes = ((24, 44000), (44000, 30))  # gradients of 4 MiB and more
    weights = [
        tc.tensor(0.02 * rng.standard_normal(s).astype(np.float32), device=device).requires_grad_()
        for s in shapes
    ]
    rule = optim.Adam(weights, lr=1e-3)
    losses = []
    for _ in range(2):
        x = tc.tensor(rng.standard_normal((8, 24)).astype(np.float32), device=device)
        rule.zero_grad()
        hidden = F.gelu(x @ weights[0])
        value = ((hidden * F.softmax(hidden, dim=1)) @ weights[1]).square().mean()
        value.backward()
        rule.step()
        losses.append(value.detach())
    results = [*losses, *(w.grad for w in weights), *(w.detach() for w in weights)]
    return [t.numpy() for t in results]


def test_gradients_hold_other_values_until_they_are_written() -> None:
    own, expected = trained("emu"), trained("cpu")
    assert any(plan.arena.inside for plan in executables())
    for found, wanted in zip(own, expected):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())
