"""Checkpointed functions have the gradients of the functions, and keep less."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.backend.cpu.pool import pool
from tinygrad_cuda.engine.trace import Trace
from tinygrad_cuda.graph.node import topological
from tinygrad_cuda.graph.rewrite import simplify
from tinygrad_cuda.utils.checkpoint import checkpoint, checkpoint_sequential

pytestmark = pytest.mark.usefixtures("on_cpu")
rng = np.random.default_rng(0)
X = rng.standard_normal((6, 4))


def plain(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return function(*args, **options)


def model() -> Any:
    tc.manual_seed(5)
    return nn.Sequential(
        nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 4), nn.Sigmoid()
    ).double()


@pytest.mark.parametrize("look", [False, True])
@pytest.mark.parametrize("needs", [False, True])
def test_gradients_of_input_and_parameters(look: bool, needs: bool) -> None:
    """Three blocks with dropout, whether the loss is looked at before backward or not."""

    def run(call: Any) -> list[Any]:
        block = model()
        x = tc.tensor(X, requires_grad=needs)
        y = x
        for _ in range(3):
            y = call(block, y)
        loss = (y * y).sum()
        if look:
            loss.item()
        loss.backward()
        after = tc.rand(3)  # the stream goes on where it was
        leaves = [*block.parameters(), *([x] if needs else [])]
        return [loss.item(), after.tolist(), *(p.grad.numpy() for p in leaves)]

    for found, wanted in zip(run(checkpoint), run(plain), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


def test_captured_results_other_arguments_and_several_outputs() -> None:
    def run(call: Any) -> list[Any]:
        x, w = tc.tensor(X, requires_grad=True), tc.tensor(X[0], requires_grad=True)
        outside = w.exp()

        def function(n: int, a: Any, index: Any, scale: float = 1.0) -> Any:
            inside = w.sin()
            return a * outside * scale, "text", index + n, (a[index] * inside).sum(), w * 2

        out = call(function, 3, x, tc.tensor([1, 2]), scale=0.5)
        assert out[1] == "text"
        assert out[2].tolist() == [4, 5]
        assert not out[2].requires_grad
        ((out[0] * outside).sum() + out[3] + out[4].sum()).backward()
        return [x.grad.numpy(), w.grad.numpy()]

    for found, wanted in zip(run(checkpoint), run(plain), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_grad_with_create_graph() -> None:
    x = tc.tensor(X, requires_grad=True)

    def function(x: Any) -> Any:
        return checkpoint(lambda x: (x * x).sin() * x, x)

    assert tc.autograd.gradcheck(function, (x,))
    assert tc.autograd.gradgradcheck(function, (x,))


def test_without_gradients_it_is_a_call() -> None:
    x = tc.tensor(X, requires_grad=True)
    with tc.no_grad():
        assert not checkpoint(lambda x: x * 2, x).requires_grad
    assert not checkpoint(lambda x: x * 2, x.detach()).requires_grad


def test_second_pass_needs_retain_graph() -> None:
    x = tc.tensor(X, requires_grad=True)
    y = checkpoint(lambda x: (x * x).exp(), x).sum()
    y.backward(retain_graph=True)
    first = x.grad.numpy().copy()  # the array shows what is added
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * first)
    with pytest.raises(tc.GradientError, match="already used"):
        y.backward()


def test_the_function_runs_again_in_backward_and_keeps_nothing() -> None:
    """Values of the first call are gone after the forward pass was realized."""
    weights = [tc.tensor(rng.standard_normal((4, 4)), requires_grad=True) for _ in range(3)]
    calls = []
    inner = []

    def block(x: Any) -> Any:
        calls.append(1)
        for w in weights:
            x = (x @ w).tanh()
            inner.append(x.node.sources[0])
        return x

    y = checkpoint(block, tc.tensor(X)).sum()
    y.item()
    assert len(calls) == 1
    assert [node.storage for node in inner[:2]] == [None, None]
    y.backward()
    assert len(calls) == 2


def peak(call: Any, look: bool) -> float:
    """The most memory of a step through 36 layers, in activations of one layer."""
    weights = [tc.tensor(rng.standard_normal((8, 8)) / 3, requires_grad=True) for _ in range(36)]
    x = tc.tensor(rng.standard_normal((4000, 8)))

    def block(layers: list[Any], x: Any) -> Any:
        for w in layers:
            x = (x @ w).tanh()
        return x

    pool.clear()  # what lies there would not be counted
    tracemalloc.start()
    y = x
    for k in range(0, 36, 6):
        y = call(partial(block, weights[k : k + 6]), y)
    loss = (y * y).sum()
    if look:
        loss.item()
    loss.backward()
    optim.SGD(weights, lr=0.1).step()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most / (x.numel() * 8)


@pytest.mark.parametrize("look", [False, True])
def test_a_step_needs_less_memory(look: bool) -> None:
    """Six blocks of six layers: six inputs and a block's values instead of all 36; in one plan
    as well as in two."""
    whole, less = peak(plain, look), peak(checkpoint, look)
    assert whole > 36
    assert less < 26
    # Without checkpoints a layer's values go as soon as its gradients are there.
    assert whole < 50


def products(call: Any) -> int:
    """How many matrix products a step of three layers has after equal nodes were merged."""
    weights = [tc.tensor(rng.standard_normal((4, 4)), requires_grad=True) for _ in range(3)]

    def block(x: Any) -> Any:
        for w in weights:
            x = (x @ w).tanh()
        return x

    x = tc.tensor(X, requires_grad=True)
    call(block, x).sum().backward()
    trace = Trace([t.grad.node for t in (x, *weights)])
    outputs = [trace.value_numbers[t.grad.node] for t in (x, *weights)]
    program = trace.program(x.device, outputs, {}, set(trace.always))
    nodes = topological(simplify(program.outputs))
    return sum(node.op.kind == "contraction" for node in nodes)


def test_the_second_computation_is_not_merged_with_the_first() -> None:
    """In one plan the values of the first would stay otherwise."""
    assert products(plain) == 3 + 6

    def both(block: Any, x: Any) -> Any:
        return checkpoint(block, x) ** 2  # its gradient reads the first output

    assert products(both) == 3 + 3 + 6


@pytest.mark.parametrize("segments", [1, 2, 5])
def test_sequential(segments: int) -> None:
    def run(call: Any) -> list[Any]:
        block = model()
        x = tc.tensor(X, requires_grad=True)
        call(block, x).sum().backward()
        return [x.grad.numpy(), *(p.grad.numpy() for p in block.parameters())]

    found = run(lambda block, x: checkpoint_sequential(block, segments, x))
    for a, b in zip(found, run(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    with pytest.raises(tc.ArgumentError, match="number of segments"):
        checkpoint_sequential(model(), 9, tc.tensor(X))
