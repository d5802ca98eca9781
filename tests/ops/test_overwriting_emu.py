"""Values stored over what their kernel reads: a gradient of logits over the logits, on emu."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
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
