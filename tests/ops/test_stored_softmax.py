"""A softmax whose probabilities are in memory as an operand: its gradient reads these alone."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import pytest
from programs import Inputs, gradients, scheduled, times, variable

import tinygrad_cuda as tc
from tinygrad_cuda.backend.emu.compiler import toolchain
from tinygrad_cuda.core.errors import DeviceError
from tinygrad_cuda.engine.plan import cache as plans
from tinygrad_cuda.graph.ops import common, contraction
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.lowering import algorithms
from tinygrad_cuda.lowering.skeletons.contract import mma_tiles
from tinygrad_cuda.nn import functional as F

BATCH, TOKENS, WIDTH = 64, 512, 64


@pytest.fixture(autouse=True)
def tf32(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Products of tf32, whatever their size: no estimate prefers the split ones."""
    monkeypatch.setattr(mma_tiles, "clocks", lambda *_: 0.0)
    monkeypatch.setattr(algorithms, "SPLIT", ())
    monkeypatch.setattr(algorithms, "WORTH_A_COPY", 0)
    before = tc.get_float32_matmul_precision()
    tc.set_float32_matmul_precision("high")
    plans.clear()
    yield
    tc.set_float32_matmul_precision(before)
    plans.clear()


def test_a_gradient_of_attention_keeps_one_value_for_each_pair_of_tokens() -> None:
    new = Inputs()
    q, k, v = leaves = [variable(new(BATCH, TOKENS, WIDTH)) for _ in range(3)]
    scores = times(contraction.matmul(q, contraction.transpose(k)), 0.125)
    largest = mv.expand(rd.max(common.detach(scores), axes=(2,)), shape=scores.shape)
    numerators = ew.exp(ew.sub(scores, largest))
    total = mv.expand(rd.sum(numerators, axes=(2,)), shape=scores.shape)
    out = contraction.matmul(ew.div(numerators, total), v)
    loss = rd.sum(ew.mul(out, out), axes=(0, 1, 2))  # its gradient waits for the result
    made = scheduled(new.program(out, *gradients(loss, leaves)))
    done = next(n for n, kernel in enumerate(made.kernels) if made.outputs[0] in kernel.stores)
    pairs = {
        node
        for kernel in made.kernels[: done + 1]
        for node in kernel.stores
        if prod(node.shape) == BATCH * TOKENS * TOKENS
    }
    later = {node for kernel in made.kernels[done + 1 :] for node in kernel.reads}
    assert [node.op for node in pairs & later] == [ew.div]


def attention(device: str) -> list[Any]:
    rng = np.random.default_rng(0)
    q, k, v, g = (
        tc.tensor(rng.standard_normal((2, 128, 64)).astype(np.float32), device=device)
        for _ in range(4)
    )
    for x in (q, k, v):
        x.requires_grad_()
    weights = F.softmax((q @ k.transpose(1, 2)).masked_fill(g[:, :1, :1] > 5, 0.0), dim=2)
    (weights @ v).backward(g)
    return [weights.detach().numpy(), *(x.grad.numpy() for x in (q, k, v))]


def test_the_gradient_is_that_of_the_numerators() -> None:
    try:
        toolchain()
    except DeviceError as error:
        pytest.skip(str(error))
    own = attention("emu")
    seen = [plan.schedule for entry in plans.entries.values() for plan in entry.plans.values()]
    kernels = [kernel for schedule in seen for kernel in schedule.kernels]
    assert any(k.choice is not None and k.choice.copies for k in kernels)
    for found, wanted in zip(own, attention("cpu")):
        # tf32 drops the last 13 bits of both operands: up to 2^-10 of each, in two products.
        np.testing.assert_allclose(found, wanted, atol=6e-3 * np.abs(wanted).max())
