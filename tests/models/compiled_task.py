"""A whole training step, plain and compiled: what the tests of tc.compile run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.nn import functional as F

SIZES = (6, 5, 3)
BATCH = 4


class Task:
    """A model with dropout and batch norm, its optimizer, and a whole step."""

    def __init__(self, kind: str = "SGD", compiled: bool = True, clip: bool = False) -> None:
        tc.manual_seed(1)
        inputs, hidden, outputs = SIZES
        self.model = nn.Sequential(
            nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.3),
            nn.Linear(hidden, outputs),
        )  # fmt: skip
        options = {"momentum": 0.9} if kind == "SGD" else {}
        self.optimizer = getattr(optim, kind)(self.model.parameters(), lr=0.05, **options)
        model, optimizer = self.model, self.optimizer
        self.traced = 0

        def step(x: Any, y: Any) -> Any:
            note()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        def note() -> None:
            self.traced += 1

        self.step: Callable[..., Any] = tc.compile(step) if compiled else step

    def state(self) -> list[bytes]:
        """The bytes of all parameters, buffers and moments."""
        moments = [v for s in self.optimizer.state.values() for v in s.values()]
        kept = [v for v in moments if isinstance(v, tc.Tensor)]
        return [value_bytes(v) for v in (*self.model.state_dict().values(), *kept)]


def value_bytes(tensor: Any) -> bytes:
    return np.ascontiguousarray(tensor.detach().cpu().numpy()).tobytes()


def batch(number: int, size: int = BATCH) -> tuple[Any, Any]:
    rng = np.random.default_rng(number)
    x = rng.standard_normal((size, SIZES[0])).astype(np.float32)
    return tc.tensor(x), tc.tensor(rng.integers(0, SIZES[-1], size))


def both(program: Callable[[Task], list[Any]], **options: Any) -> tuple[Task, Task]:
    """Runs a program plainly and compiled; results and final states must be the same bits."""
    plain = Task(compiled=False, **options)
    wanted = [value_bytes(found) for found in program(plain)]
    compiled = Task(compiled=True, **options)
    assert [value_bytes(found) for found in program(compiled)] == wanted
    assert plain.state() == compiled.state()
    return plain, compiled
