"""Tensors that as_tensor moves by its short way are what the ordinary one makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.graph.node import holding
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.tensors import base
from tinygrad_cuda.tensors.base import arrived, wrap


def slots(thing: Any) -> dict[str, Any]:
    """All that an object holds, in slots of its class and of those it derives from."""
    names = [n for kind in type(thing).__mro__ for n in getattr(kind, "__slots__", ())]
    return {n: getattr(thing, n, "unset") for n in names if n != "__weakref__"}


def test_everything_is_set() -> None:
    """Tensor, cell and node hold the same as those of `wrap`."""
    storage = np.ones((2, 3), np.float32)
    given = (((2, 3), tc.float32),), tc.device("cpu"), storage, None
    made, wanted = arrived(*given), wrap(holding(common.buffer, *given))
    for a, b in ((made, wanted), (made.cell, wanted.cell), (made.cell.node, wanted.cell.node)):
        assert type(a) is type(b)
        found, expected = slots(a), slots(b)
        for name in ("cell", "node", "_sources"):
            found.pop(name, None), expected.pop(name, None)
        assert found == expected
    assert made.cell.node.sources == wanted.cell.node.sources == ()


@pytest.mark.parametrize("kind", ["float32", "int64", "bool"])
def test_as_tensor_moves_what_to_moves(kind: str) -> None:
    x = tc.tensor(np.arange(6).reshape(2, 3).astype(kind), device="cpu")
    made, wanted = tc.as_tensor(x, device="emu"), x.to("emu")
    assert made.device == "emu" and made.dtype is wanted.dtype and made.shape == wanted.shape
    assert made.tolist() == wanted.tolist() == x.tolist()
    assert tc.as_tensor(x, dtype=tc.float64, device="emu").dtype is tc.float64


def test_views_and_pending_values_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view, a value elsewhere and what has not been computed are no plain values."""
    x = tc.tensor([[1.0, 2.0], [3.0, 4.0]], device="cpu")
    assert tc.as_tensor(x.T, device="emu").tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert tc.as_tensor(x + 1, device="emu").tolist() == [[2.0, 3.0], [4.0, 5.0]]
    assert tc.as_tensor(x.to("emu") + 1, device="cpu").tolist() == [[2.0, 3.0], [4.0, 5.0]]
    there = x.to("emu")
    assert tc.as_tensor(there, device="cpu").tolist() == x.tolist()
    computed: list[Any] = []
    monkeypatch.setattr(base, "_compute_now", computed.append)
    with settings.override(eager=True):
        tc.as_tensor(x, device="emu")
    assert computed == [there.device]


def test_gradients_come_back() -> None:
    x = tc.tensor([1.0, 2.0], device="cpu", requires_grad=True)
    (tc.as_tensor(x, device="emu") * 3).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3.0, 3.0]
    y = (x * 2).detach()
    assert not tc.as_tensor(y, device="emu").requires_grad


def test_a_value_with_history_keeps_it() -> None:
    """Its cell holds the node itself, without a step in between."""
    x = tc.tensor([1.0, 2.0], device="cpu", requires_grad=True)
    y = x * 2
    assert y.tolist() == [2.0, 4.0] and not y.chain
    tc.as_tensor(y, device="emu").sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 2.0]


def test_a_move_inside_of_a_compiled_function_is_refused() -> None:
    factor = tc.tensor([2.0], device="cpu")
    call = tc.compile(lambda x: x * tc.as_tensor(factor, device="emu"))
    with pytest.raises(tc.CompileError, match="looked at"):
        call(tc.ones(1, device="emu"))
