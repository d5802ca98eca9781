"""Recurrent layers whose steps are one op: gradients of each order, batches, edges, replays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from layers import real, torch

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.autograd import gradcheck, gradgradcheck
from tinygrad_cuda.graph.node import topological
from tinygrad_cuda.replay import switches

KINDS = ("LSTM", "GRU", "RNN")


@pytest.fixture(autouse=True)
def on_cpu() -> Any:
    tc.set_default_device("cpu")
    yield
    tc.set_default_device(None)


def made(kind: str, **options: Any) -> Any:
    tc.manual_seed(0)
    return getattr(nn, kind)(3, 4, dtype=tc.float64, **options)


def states(kind: str, result: Any) -> list[Any]:
    output, last = result
    return [output, *(last if kind == "LSTM" else [last])]


def loss_of(kind: str, layer: Any, x: Any) -> Any:
    """A number that every result of a layer is part of."""
    return sum((part * part.cos()).sum() for part in states(kind, layer(x)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_gradient_is_the_plain_one(kind: str) -> None:
    """By the row of the gradient, and by the composition, of which history is recorded."""
    layer = made(kind, num_layers=2, bidirectional=True)
    x = tc.tensor(real(4, 3, 3), requires_grad=True)
    wanted = [x, *layer.parameters()]
    plain = tc.autograd.grad(loss_of(kind, layer, x), wanted)
    recorded = tc.autograd.grad(loss_of(kind, layer, x), wanted, create_graph=True)
    for one, other in zip(plain, recorded, strict=True):
        np.testing.assert_allclose(one.numpy(), other.detach().numpy(), rtol=1e-9, atol=1e-12)
    assert all(not one.requires_grad for one in plain)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_first_and_second_order(kind: str) -> None:
    layer = made(kind)
    shapes = [(4, 2, 3), *[(1, 2, 4)] * (2 if kind == "LSTM" else 1)]
    inputs = [tc.tensor(real(*shape), requires_grad=True) for shape in shapes]

    def function(x: Any, *state: Any) -> Any:
        return tuple(states(kind, layer(x, tuple(state) if kind == "LSTM" else state[0])))

    assert gradcheck(function, tuple(inputs))
    assert gradgradcheck(function, tuple(inputs))


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_steps_are_a_few_nodes(kind: str) -> None:
    """Forward and backward: no node a step."""
    counts = []
    for steps in (5, 100):
        x = tc.tensor(real(steps, 2, 3), requires_grad=True)
        (g,) = tc.autograd.grad(loss_of(kind, made(kind), x), [x])
        counts.append(len(topological([g.node])))
    assert counts[1] <= counts[0] < 120


@pytest.mark.parametrize("kind", KINDS)
def test_examples_of_a_batch(kind: str) -> None:
    """vmap over inputs, and over weights, which differ from example to example."""
    layer = made(kind)
    names = [name for name, _ in layer.named_parameters()]
    weights = [parameter.detach() for parameter in layer.parameters()]
    many = [tc.stack([w, w * 0.5, w + 0.1]) for w in weights]
    x = tc.tensor(real(3, 4, 2, 3))

    def call(x: Any, *parameters: Any) -> Any:
        given = dict(zip(names, parameters, strict=True))
        return tuple(states(kind, tc.func.functional_call(layer, given, (x,))))

    by_inputs = tc.func.vmap(lambda x: call(x, *weights))(x)
    by_both = tc.func.vmap(call)(x, *many)
    for k in range(3):
        one = call(x[k], *weights)
        other = call(x[k], *(w[k] for w in many))
        for found, wanted in zip((*by_inputs, *by_both), (*one, *other), strict=True):
            np.testing.assert_allclose(found[k].numpy(), wanted.detach().numpy(), rtol=1e-10)


def test_gradients_of_each_example() -> None:
    layer = made("LSTM")
    x = tc.tensor(real(3, 4, 2, 3))

    def gradient(x: Any) -> Any:
        return tc.func.grad(lambda x: loss_of("LSTM", layer, x))(x)

    found = tc.func.vmap(gradient)(x)
    for k in range(3):
        wanted = gradient(x[k]).detach().numpy()
        np.testing.assert_allclose(found[k].detach().numpy(), wanted, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_of_zero_and_one(kind: str) -> None:
    layer = made(kind, bidirectional=True)
    for steps, batch in ((1, 1), (3, 0), (1, 2)):
        x = tc.tensor(real(steps, batch, 3), requires_grad=True)
        parts = states(kind, layer(x))
        assert parts[0].shape == (steps, batch, 8) and parts[1].shape == (2, batch, 4)
        (g,) = tc.autograd.grad(sum(part.sum() for part in parts), [x])
        assert g.shape == x.shape


def test_what_is_not_finite_stays_in_its_sequence() -> None:
    """A packed sequence whose last row is nan leaves the others' gradients finite, as in torch."""
    rows = real(4, 3, 3)
    rows[1, 2] = np.nan  # the last row of the shortest one
    found = []
    weights = [parameter.detach().numpy() for parameter in made("GRU").parameters()]
    for lib, make in ((nn, tc.tensor), (torch.nn, torch.tensor)):
        layer = lib.GRU(3, 4, dtype=tc.float64 if lib is nn else torch.float64)
        for parameter, value in zip(layer.parameters(), weights):
            parameter.data.copy_(make(value))
        x = make(rows).requires_grad_()
        packed = lib.utils.rnn.pack_padded_sequence(x, [4, 3, 2])
        output, _ = lib.utils.rnn.pad_packed_sequence(layer(packed)[0])
        output.sum().backward()
        found.append(x.grad.numpy())
    assert np.isfinite(found[0][:, :2]).all()
    np.testing.assert_allclose(found[0][:, :2], found[1][:, :2], rtol=1e-6)


@pytest.mark.parametrize("packing", [False, True])
def test_a_compiled_step_is_the_plain_one(packing: bool) -> None:
    def losses(compiled: bool) -> list[float]:
        layer = made("LSTM", num_layers=2)
        optimizer = tc.optim.SGD(layer.parameters(), lr=0.1)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            given = nn.utils.rnn.pack_padded_sequence(x, [4, 3, 1]) if packing else x
            output = layer(given)[0]
            loss = ((output.data if packing else output) ** 2).sum()
            loss.backward()
            optimizer.step()
            return loss

        step = tc.compile(step) if compiled else step
        xs = [tc.tensor(real(4, 3, 3) * (k + 1)) for k in range(4)]
        return [step(x).item() for x in xs]

    np.testing.assert_allclose(losses(True), losses(False), rtol=1e-12)


def test_half_states_of_a_float32_layer_are_refused() -> None:
    with pytest.raises(tc.DTypeError, match="operands have different dtypes"):
        nn.LSTM(3, 4)(tc.ones(2, 1, 3), (tc.zeros(1, 1, 4).half(), tc.zeros(1, 1, 4)))


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_gives_half_states(kind: str) -> None:
    layer = getattr(nn, kind)(3, 4)
    x = tc.tensor(real(4, 2, 3).astype(np.float32))
    exact = [part.detach().numpy() for part in states(kind, layer(x))]
    with tc.autocast("cpu", dtype=tc.bfloat16):
        parts = states(kind, layer(x))
    assert {part.dtype for part in parts} == {tc.bfloat16}
    sum(part.float().sum() for part in parts).backward()
    assert all(p.grad is not None and p.grad.dtype is tc.float32 for p in layer.parameters())
    for part, wanted in zip(parts, exact, strict=True):
        assert np.abs(part.float().detach().numpy() - wanted).max() < 0.02


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_zeros_as_first_state_teach_no_template(name: str) -> None:
    """A pass from zeros, then one of the same structure from another state: gradients of both."""
    tc.manual_seed(0)
    layer = getattr(tc.nn, name)(3, 4)
    x = tc.randn(5, 2, 3)

    def gradients(state: tc.Tensor) -> list[list[float]]:
        layer.zero_grad()
        given = (state, state) if name == "LSTM" else state
        layer(x, given)[0].square().sum().backward()
        return [p.grad.flatten().tolist() for p in layer.parameters()]

    other = tc.randn(1, 2, 4)
    first = [gradients(state) for state in (tc.zeros(1, 2, 4), other)]
    with switches.only():
        assert first == [gradients(state) for state in (tc.zeros(1, 2, 4), other)]
