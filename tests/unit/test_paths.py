"""A path walks over exactly the graphs whose outline is that of its own, and finds the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tinygrad_cuda as tc
from tinygrad_cuda.engine.known import Outline
from tinygrad_cuda.engine.path import Found, Path
from tinygrad_cuda.engine.realize import realize_all
from tinygrad_cuda.nn import functional as F


def value(*shape: int, dtype: Any = np.float32) -> tc.Tensor:
    return tc.tensor(np.ones(shape, dtype))


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
    lambda x, y, z, k: [tc.reshape(x * y, (6,)).exp()],
    lambda x, y, z, k: [tc.reshape(x * y, (3, 2)).exp()],
    lambda x, y, z, k: [x[1:] * 2.0],
    lambda x, y, z, k: [x[:1] * 2.0],
    lambda x, y, z, k: [F.embedding(k, x)],
    lambda x, y, z, k: [tc.index_select(x, 0, k), tc.index_select(y, 0, k)],
]  # fmt: skip


def described(found: Found) -> Any:
    things = [list(map(id, getattr(found, name))) for name in ("inputs", "storages", "pending")]
    return things, found.slots, found.calls, found.numbers, found.codes


def test_a_path_walks_where_an_outline_would_be_the_same() -> None:
    operands = value(2, 3), value(2, 3), value(3), value(2, dtype=np.int64) * 0
    realize_all()
    paths: list[tuple[Path, Any]] = []
    walked = 0
    for program in PROGRAMS * 2:
        tensors = program(*operands)
        wanted = list(dict.fromkeys(tensor.node for tensor in tensors))
        outline = Outline(wanted[0].device, wanted)
        assert outline.key is not None
        paths.append((Path(outline, wanted), outline.key))
        for path, key in paths:
            found = path.walk(wanted)
            assert (found is not None) == (outline.key == key)
            if found is not None:
                assert described(found) == described(outline)
                walked += 1
    # Each over itself, and in the second round over that of the first.
    assert walked >= 3 * len(PROGRAMS)


def test_a_path_does_not_walk_over_what_has_been_recorded_or_computed() -> None:
    x, y = value(2, 3), value(2, 3)
    first, second, third = (F.gelu(x) * y for _ in range(3))
    path = Path(Outline(x.node.device, [first.node]), [first.node])
    assert path.walk([second.node]) is not None
    assert second.node.sources[0].sources, "its nodes are recorded"
    assert path.walk([second.node]) is None
    assert path.walk([third.node]) is not None
    third.tolist()
    assert path.walk([third.node]) is None
