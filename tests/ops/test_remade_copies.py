"""Copies that make a value again instead of loading it: the same bits as those that load it."""

from __future__ import annotations

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.lowering import algorithms
from tinygrad_cuda.lowering.schedule import stored_values
from tinygrad_cuda.lowering.schedule.fusion import Group


@pytest.fixture
def transposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products multiply transposed copies, as large ones do."""
    others = tuple(tier for tier in algorithms.TIERS if tier.name != algorithms.MN_MAJOR)
    monkeypatch.setattr(algorithms, "TIERS", others)
    monkeypatch.setattr(algorithms, "WORTH_A_COPY", 0)
    monkeypatch.setattr(stored_values, "WORTH_FREEING", 1 << 10)


def steps() -> list[bytes]:
    """Parameters after steps of a normalized layer with a residual, of products by tf32."""
    cache.clear()
    rng = np.random.default_rng(0)

    def values(*shape: int) -> tc.Tensor:
        return tc.tensor(rng.standard_normal(shape).astype(np.float32) * 0.1, device="emu")

    x, scale, shift = values(512, 256), values(256), values(256)
    weights = [values(256, 256), values(256, 256), values(256, 256)]
    parameters = [parameter.requires_grad_() for parameter in (scale, shift, *weights)]
    optimizer = tc.optim.AdamW(parameters, lr=1e-2)

    def loss() -> tc.Tensor:  # its values are nobody's once it returns
        h = x @ weights[0].T
        normal = tc.nn.functional.layer_norm(h, (256,), scale, shift)
        hidden = tc.nn.functional.gelu(normal @ weights[1].T, approximate="tanh")
        return ((h + hidden @ weights[2].T) ** 2).mean()

    for _ in range(2):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return [parameter.detach().numpy().tobytes() for parameter in parameters]


def test_values_that_a_copy_makes_again_have_the_same_bits(
    transposed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Node] = []
    own = stored_values._StoredValuesBuilder.remade_by_copy

    def noting(values: stored_values._StoredValuesBuilder, group: Group) -> Node | None:
        if (node := own(values, group)) is not None:
            found.append(node)
        return node

    with settings.override(matmul_precision="high", matmul_tier="wgmma"):
        monkeypatch.setattr(stored_values._StoredValuesBuilder, "remade_by_copy", noting)
        remade = steps()
        assert found
        monkeypatch.setattr(stored_values._StoredValuesBuilder, "remade_by_copy", lambda *_: None)
        assert steps() == remade
    cache.clear()
