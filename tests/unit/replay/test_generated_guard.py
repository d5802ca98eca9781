"""A path walks over exactly the graphs whose signature is that of its own, and finds the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.engine.realize import realize_all
from tinygrad_cuda.nn import functional as F
from tinygrad_cuda.replay.generated_guard import GuardMatch, guard_over
from tinygrad_cuda.replay.plan_lookup import GraphSignature


def value(*shape: int, dtype: Any = np.float32) -> tc.Tensor:
    return tc.tensor(np.ones(shape, dtype))


def gradients(x: tc.Tensor, y: tc.Tensor, again: bool = False) -> list[tc.Tensor]:
    """Two results of one call, once its structure is known; a second one is made by another line.

    A backward pass from the line of one that is pending would have that realized.
    """
    p, q = x.detach().requires_grad_(), y.detach().requires_grad_()
    if again:
        F.gelu(p * q).sum().backward()
    else:
        F.gelu(p * q).sum().backward()
    assert p.grad is not None and q.grad is not None
    return [p.grad, q.grad]


# What is recorded for two values of one shape, one of another, and a row number.
PROGRAMS: list[Callable[..., list[tc.Tensor]]] = [
    lambda x, y, z, k: [x * y],
    lambda x, y, z, k: [x * x],
    lambda x, y, z, k: [x * x.detach()],
    lambda x, y, z, k: [x * z],
    lambda x, y, z, k: [z * z],
    lambda x, y, z, k: [x + y],
    lambda x, y, z, k: [x * 2.0],
    lambda x, y, z, k: [x * 3.0],
    lambda x, y, z, k: [2.0 * x],
    lambda x, y, z, k: [F.relu(x) + y],
    lambda x, y, z, k: [F.relu(x) + x],
    lambda x, y, z, k: [F.relu(F.relu(x)) + y],
    lambda x, y, z, k: [F.relu(x), F.relu(y)],
    lambda x, y, z, k: [F.relu(x), F.relu(x)],
    lambda x, y, z, k: [F.relu(x)] * 2,
    lambda x, y, z, k: [(a := F.relu(x)) * a],
    lambda x, y, z, k: [F.relu(x) * F.relu(x)],
    lambda x, y, z, k: [(a := F.relu(x)) * y, a],
    lambda x, y, z, k: [(a := x.exp()) * a],
    lambda x, y, z, k: [x.exp() * x.exp()],
    lambda x, y, z, k: [x.exp() * y.exp()],
    lambda x, y, z, k: [x.exp() * y.sin()],
    lambda x, y, z, k: [z.exp() * z.sin()],
    lambda x, y, z, k: [k * k],
    lambda x, y, z, k: [x * 2.0 + y * 2.0],
    lambda x, y, z, k: [(a := x * 2.0) + a],
    lambda x, y, z, k: [x * y * 2.0 + x * y * 2.0],
    lambda x, y, z, k: [(x * y).clamp(0.0, 1.0)],
    lambda x, y, z, k: [(x * y).clamp(max=1.0)],
    lambda x, y, z, k: [tc.full((2, 3), 2.0) * x],
    lambda x, y, z, k: [tc.full((3,), 2.0) * z],
    lambda x, y, z, k: [tc.reshape(x * y, (6,)).exp()],
    lambda x, y, z, k: [tc.reshape(x * y, (3, 2)).exp()],
    lambda x, y, z, k: [x[1:] * 2.0],
    lambda x, y, z, k: [x[:1] * 2.0],
    lambda x, y, z, k: [F.embedding(k, x)],
    lambda x, y, z, k: [tc.index_select(x, 0, k), tc.index_select(y, 0, k)],
    lambda x, y, z, k: gradients(x, y),
    lambda x, y, z, k: gradients(x, y)[::-1],
    lambda x, y, z, k: gradients(x, y)[:1],
    lambda x, y, z, k: gradients(x, y)[1:],
    lambda x, y, z, k: [(g := gradients(x, y))[0] * y, g[1]],
    lambda x, y, z, k: [gradients(x, y)[0] * y],
    lambda x, y, z, k: [*gradients(x, y), *gradients(x, y, True)],
    lambda x, y, z, k: [*gradients(x, y), *gradients(y, x, True)],
    lambda x, y, z, k: gradients(x, y) * 2,
    lambda x, y, z, k: [a * b for a, b in zip(gradients(x, y), gradients(x, y, True))],
    lambda x, y, z, k: [g * g for g in gradients(x, y)],
    lambda x, y, z, k: [gradients(x, y)[0] * gradients(x, y, True)[1]],
    lambda x, y, z, k: [(g := gradients(x, y))[0] * g[1]],
]  # fmt: skip


def described(found: GuardMatch) -> Any:
    things = [list(map(id, getattr(found, name))) for name in ("inputs", "storages", "pending")]
    return things, found.slots, found.calls, found.references, found.numbers, found.codes


def test_a_path_walks_where_an_outline_would_be_the_same() -> None:
    operands = value(2, 3), value(2, 3), value(3), value(2, dtype=np.int64) * 0
    realize_all()
    walks: list[tuple[Callable[[list[Any]], GuardMatch | None], Any]] = []
    walked = 0
    for program in PROGRAMS * 2:
        tensors = program(*operands)  # from now on its calls are known, and wait
        realize_all()
    for program in PROGRAMS * 2:
        tensors = program(*operands)
        wanted = list(dict.fromkeys(tensor.node for tensor in tensors))
        signature = GraphSignature(wanted[0].device, wanted)
        assert signature.key is not None
        walks.append((guard_over(signature, wanted), signature.key))
        for walk, key in walks:
            found = walk(wanted)
            assert (found is not None) == (signature.key == key)
            if found is not None:
                assert described(found) == described(signature)
                walked += 1
        realize_all()
    # Each over itself, and in the second round over that of the first.
    assert walked >= 3 * len(PROGRAMS)


@pytest.mark.fast_paths
def test_a_path_does_not_walk_over_what_has_been_recorded_or_computed() -> None:
    x, y = value(2, 3), value(2, 3)
    first, second, third = (F.gelu(x) * y for _ in range(3))
    walk = guard_over(GraphSignature(x.node.device, [first.node]), [first.node])
    assert walk([second.node]) is not None
    assert second.node.sources[0].sources, "its nodes are recorded"
    assert walk([second.node]) is None
    assert walk([third.node]) is not None
    third.tolist()
    assert walk([third.node]) is None
