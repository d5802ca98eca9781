"""A tracked cell or leaf notices whoever looks at what it holds, or writes it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.engine.cell import Cell, Leaf
from tinygrad_cuda.engine.shared import ExportedCell
from tinygrad_cuda.replay.dirty_tracking import (
    TrackedCell,
    TrackedLeaf,
    UnseenCell,
    grad_under,
    leave_unseen,
    node_under,
    touches,
    track_writes,
)


@pytest.fixture
def parameter() -> Any:
    made = tc.tensor([1.0, 2.0], device="cpu", requires_grad=True)
    (made * 2).sum().backward()
    made.tolist(), made.grad.tolist()
    return made


def write(x: Any) -> None:
    with tc.no_grad():
        x.add_(1)


def replace(x: Any) -> None:
    x.grad = tc.zeros(2, device="cpu")


LOOKS: dict[str, Callable[[Any], Any]] = {
    "value": lambda x: x.tolist(),
    "operation": lambda x: x + 1,
    "view": lambda x: x.detach()[:1].tolist(),
    "deepcopy": copy.deepcopy,
    "write": write,
    "other handle": lambda x: x.detach().numpy(),
}
GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "grad": lambda x: x.grad,
    "replaced": replace,
    "accumulated": lambda x: (x * 3).sum().backward(),
    "dropped": lambda x: tc.optim.SGD([x], lr=0.1).zero_grad(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_breaks_the_seal_of_a_cell(parameter: Any, look: str) -> None:
    track_writes([parameter.cell], [])
    assert type(parameter.cell) is TrackedCell
    before = touches.count
    LOOKS[look](parameter)
    assert type(parameter.cell) in (Cell, ExportedCell) and touches.count > before


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_at_what_nobody_has_seen_is_not_counted(parameter: Any, look: str) -> None:
    leave_unseen(parameter.cell)
    assert type(parameter.cell) is UnseenCell
    before = touches.count
    LOOKS[look](parameter)
    assert type(parameter.cell) in (Cell, ExportedCell) and touches.count == before
    assert parameter.tolist() == ([2, 3] if look == "write" else [1, 2])


@pytest.mark.parametrize("look", GRADIENTS)
def test_a_look_breaks_the_seal_of_a_leaf(parameter: Any, look: str) -> None:
    leaf = parameter.leaf
    track_writes([], [leaf])
    assert type(leaf) is TrackedLeaf
    before = touches.count
    GRADIENTS[look](parameter)
    assert type(leaf) is Leaf and touches.count > before


def test_values_are_what_they_were(parameter: Any) -> None:
    track_writes([parameter.cell], [parameter.leaf])
    assert parameter.tolist() == [1, 2] and parameter.grad.tolist() == [2, 2]
    write(parameter)
    track_writes([parameter.cell], [])
    write(parameter)
    assert parameter.tolist() == [3, 4]


def test_a_look_from_under_the_seal_breaks_none(parameter: Any) -> None:
    node, gradient = parameter.cell.node, parameter.grad
    track_writes([parameter.cell], [parameter.leaf])
    before = touches.count
    assert node_under(parameter.cell) is node and grad_under(parameter.leaf) is gradient
    assert touches.count == before and type(parameter.cell) is TrackedCell


def test_what_holds_memory_of_somebody_else_is_not_sealed() -> None:
    shared = tc.from_numpy(np.zeros(2, np.float32))
    kind = type(shared.cell)
    track_writes([shared.cell], [])
    assert type(shared.cell) is kind
