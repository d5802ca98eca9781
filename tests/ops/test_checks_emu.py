"""A check of indices, labels and probabilities reports although a rewrite drops what it guards."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import tinygrad_cuda as tc
import tinygrad_cuda.nn.functional as F
from tinygrad_cuda import Tensor

Program = Callable[[Tensor], Tensor]

# From positions 0 and 7, of which one is out of range, to something that a rule simplifies.
FOLDED: dict[str, Program] = {
    "loss of zeros": lambda i: F.cross_entropy(tc.zeros(2, 3), i),
    "picked zeros": lambda i: F.nll_loss(tc.zeros(2, 3), i),
    "integers times 0": lambda i: tc.arange(5)[i] * 0,
    "x ** 0": lambda i: tc.rand(5)[i] ** 0,
    "where(true, x, y)": lambda i: tc.where(tc.full((2,), True), tc.rand(2), tc.rand(5)[i]),
    "x < x": lambda i: (lambda x: x < x)(tc.rand(5)[i]),
    "x - x": lambda i: (lambda x: x - x)(tc.arange(5)[i]),
    "x and false": lambda i: (tc.rand(5) > 0.5)[i] & False,
    "argmax of one": lambda i: tc.rand(5)[i][:, None].argmax(1),
    "the other half": lambda i: F.cross_entropy(tc.zeros(2, 3), i, reduction="none")[:1],
    "one slice": lambda i: (tc.rand(5)[i] * 2)[:1],
    "nothing to read": lambda i: tc.rand(0, 3)[i],
    "two shapes": lambda i: tc.arange(5)[i] * 0 + tc.arange(5)[tc.tensor([[0, 2]] * 2)] * 0,
}


@pytest.fixture(params=["cpu", "emu"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Tensors are made there."""
    before = tc.get_default_device()
    tc.set_default_device(request.param)
    yield request.param
    tc.set_default_device(before)


@pytest.mark.parametrize("name", list(FOLDED))
def test_a_check_survives_the_folding_of_what_it_guards(device: str, name: str) -> None:
    result = FOLDED[name](tc.tensor([0, 7]))
    with pytest.raises(IndexError, match=r"is out of range"):
        result.numpy()


def test_right_indices_of_two_shapes_pass(device: str) -> None:
    table = tc.arange(5)
    rows, picked = table[tc.tensor([0, 2])] * 0, table.take(tc.tensor([[1], [3]])) * 0
    assert (rows + picked + table[tc.tensor(4)] * 0).tolist() == [[0, 0], [0, 0]]


def test_a_write_waits_for_a_check_whose_value_is_folded(device: str) -> None:
    total, index = tc.zeros(3), tc.tensor([0, 7])
    assert total.tolist() == [0, 0, 0]
    total += 1
    unread = tc.arange(5)[index] * 0
    with pytest.raises(IndexError, match=r"index\[1\] is out of range"):
        unread.numpy()
    assert total.tolist() == [0, 0, 0]


@pytest.mark.parametrize("value", [1.5, -0.25, float("nan")])
@pytest.mark.parametrize("what", ["input", "target"])
def test_cross_entropy_takes_probabilities(device: str, what: str, value: float) -> None:
    values = {"input": tc.tensor([0.5, 0.25]), "target": tc.tensor([0.0, 1.0])}
    values[what] = tc.tensor([0.5, value])
    loss = F.binary_cross_entropy(**values)
    with pytest.raises(tc.ArgumentError) as error:
        loss.item()
    text = str(error.value)
    assert f"[binary_cross_entropy] {what}[1] is out of range" in text
    assert f"0 <= {what} <= 1" in text
    assert f"actual: {value}" in text
    assert "test_checks_emu.py" in text


def test_right_probabilities_pass_with_their_gradient(device: str) -> None:
    x = tc.tensor([0.0, 0.25, 1.0], requires_grad=True)
    loss = F.binary_cross_entropy(x, tc.tensor([0.0, 1.0, 1.0]))
    loss.backward()
    assert x.grad is not None
    np.testing.assert_allclose(loss.item(), -np.log(0.25) / 3, rtol=1e-6)
    # PyTorch bounds x (1 - x) from below: a certain and right probability has no slope.
    np.testing.assert_allclose(x.grad.numpy(), [0, -4 / 3, 0], rtol=1e-6)


def test_a_chance_is_a_probability(device: str) -> None:
    drawn = tc.bernoulli(tc.tensor([0.5, 1.5]))
    with pytest.raises(tc.ArgumentError, match=r"\[bernoulli\] input\[1\] is out of range"):
        drawn.numpy()
    with pytest.raises(tc.ArgumentError, match="p is not between 0 and 1"):
        tc.zeros(3).bernoulli_(2)
