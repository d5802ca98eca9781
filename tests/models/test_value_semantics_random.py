"""Random programs of views, writes, looks and backward passes have torch's values at every look.

torch decides which actions are legal: what it refuses, often by its version counter, is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_value_semantics import MODES, running

import tinygrad_cuda as tc

ROWS, COLUMNS = 3, 4
LENGTH = 80
PROGRAMS = 40

# An action: its name and numbers that pick tensors and places.
Action = tuple[str, int, int, int]


def start(lib: Any) -> list[Any]:
    """The tensors a program begins with; two of them are leaves that require grad."""
    data = np.random.default_rng(0).uniform(0.5, 1.5, (4, ROWS, COLUMNS))
    return [lib.tensor(part, dtype=lib.float64, requires_grad=k < 2) for k, part in enumerate(data)]


def _view(x: Any, a: int, b: int) -> Any:
    kind = a % 6
    if kind == 0:
        return x.t()
    if kind == 1:
        return x[b % x.shape[0] :]
    if kind == 2:
        return x[:, : 1 + b % x.shape[1]]
    if kind == 3:
        return x.reshape(x.shape[1], x.shape[0])
    if kind == 4:
        return x[:: 1 + b % 2]
    return x.narrow(1, b % x.shape[1], 1)


def _fit(x: Any, like: Any) -> Any:
    """A number or a tensor that broadcasts to another's shape."""
    return x if tuple(x.shape) == tuple(like.shape) else x.mean()


def act(lib: Any, pool: list[Any], action: Action) -> Any:
    """Does one action; returns what can be seen, if it is a look."""
    name, i, j, k = action
    x, y = pool[i % len(pool)], pool[j % len(pool)]
    if name == "view":
        pool.append(_view(x, j, k))
    elif name == "compute":
        other = _fit(y, x)
        pool.append([x * 0.5 + other, x * other * 0.3, (x - other).tanh(), x / (k % 5 + 2)][k % 4])
    elif name == "product":
        pool.append((x @ y.t() if x.shape[1] == y.shape[1] else x @ x.t()) * 0.2)
    elif name == "copy":
        pool.append([x.clone(), x.detach(), x.detach().clone(), x.contiguous()][k % 4])
    elif name == "write":
        other = _fit(y, x)
        [
            lambda: x.mul_(0.5),
            lambda: x.add_(other),
            lambda: x.copy_(other.detach() * 0.5),
            lambda: x.__setitem__(0, float(k % 3)),
        ][k % 4]()
    elif name == "silent write":
        with lib.no_grad():
            other = _fit(y, x)
            [lambda: x.mul_(0.7), lambda: x.copy_(other), lambda: x.sub_(other * 0.1)][k % 3]()
    elif name == "detached write":
        x.detach().mul_(0.9)
    elif name == "forget":
        if len(pool) > 4:
            del pool[4 + i % (len(pool) - 4)]
    elif name == "clear":
        pool[i % 2].grad = None
    elif name == "backward":
        (x * x).sum().backward(retain_graph=bool(k % 2))
    elif name == "look":
        return np.array(x.detach().numpy())
    elif name == "item":
        return x.sum().item()
    elif name == "gradient":
        g = pool[i % 2].grad
        return None if g is None else np.array(g.numpy())
    return None


NAMES = (
    "view", "view", "compute", "compute", "compute", "product", "copy", "write", "write",
    "silent write", "detached write", "forget", "forget", "clear", "backward", "backward",
    "look", "look", "item", "gradient", "gradient",
)  # fmt: skip


def recorded(seed: int) -> tuple[list[Action], list[Any]]:
    """A program that torch accepts, and what it shows."""
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(seed)
    pool = start(torch)
    actions: list[Action] = []
    seen: list[Any] = []
    for _ in range(LENGTH):
        name = NAMES[int(random.integers(len(NAMES)))]
        i, j, k = (int(n) for n in random.integers(0, 10_000, 3))
        action = (name, i, j, k)
        grads = [None if leaf.grad is None else leaf.grad.clone() for leaf in pool[:2]]
        try:
            value = act(torch, pool, action)
        except RuntimeError:
            # A pass that fails half way may have changed gradients already.
            for leaf, grad in zip(pool[:2], grads):
                leaf.grad = grad
            continue
        actions.append(action)
        seen.append(value)
    return actions, seen


def _same(found: list[Any], wanted: list[Any], actions: list[Action]) -> None:
    for k, (value, expected) in enumerate(zip(found, wanted, strict=True)):
        where = f"action {k} of {actions[: k + 1]}"
        if expected is None:
            assert value is None, where
        else:
            np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-10, err_msg=where)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_random_programs(seed: int, mode: str) -> None:
    """The same actions show the same values."""
    actions, wanted = recorded(seed)
    found: list[Any] = []
    with running(mode):
        pool = start(tc)
        for action in actions:
            try:
                found.append(act(tc, pool, action))
            except tc.GradientError as error:
                if "already used by another backward" not in str(error):
                    raise
                # torch lets a history that saved nothing be used again; we do not.
                break
    _same(found, wanted[: len(found)], actions)


def test_programs_do_something() -> None:
    """The programs are long, and most kinds of action survive in them."""
    programs = [recorded(seed)[0] for seed in range(PROGRAMS)]
    lengths = [len(program) for program in programs]
    assert np.mean(lengths) > 25
    done = {name for program in programs for name, *_ in program}
    assert done == set(NAMES)
