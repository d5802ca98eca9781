"""What a training step on `cpu` holds at most, beside what PyTorch keeps for the gradient."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.backend.cpu.forms import MERGED_BYTES
from tinygrad_cuda.backend.cpu.pool import pool

torch = pytest.importorskip("torch")


def mlp(lib: Any) -> tuple[Any, tuple[int, ...]]:
    layers = [layer for _ in range(6) for layer in (lib.nn.Linear(128, 128), lib.nn.ReLU())]
    return lib.nn.Sequential(*layers, lib.nn.Linear(128, 10)), (4096, 128)


def logarithms(lib: Any) -> tuple[Any, tuple[int, ...]]:
    layers = [part for _ in range(8) for part in (lib.nn.Linear(128, 128), lib.nn.LogSoftmax(-1))]
    return lib.nn.Sequential(*layers), (4096, 128)


def lenet(lib: Any) -> tuple[Any, tuple[int, ...]]:
    nn = lib.nn
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 10),
    ), (512, 1, 28, 28)  # fmt: skip


def transformer(lib: Any) -> tuple[Any, tuple[int, ...]]:
    nn, functional = lib.nn, lib.nn.functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(64), nn.LayerNorm(64)
            self.project, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
            self.mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

        def forward(self, x: Any) -> Any:
            parts = self.project(self.norm1(x)).split(64, dim=2)
            q, k, v = (part.view(*x.shape[:2], 4, 16).transpose(1, 2) for part in parts)
            weights = functional.softmax(q @ k.transpose(2, 3) / 4, dim=-1)
            x = x + self.out((weights @ v).transpose(1, 2).reshape(x.shape))
            return x + self.mlp(self.norm2(x))

    return nn.Sequential(*(Block() for _ in range(4)), nn.Flatten(), nn.Linear(4096, 10)), (
        64, 64, 64,
    )  # fmt: skip


def step_of(lib: Any, make: Callable[[Any], Any]) -> Callable[[], Any]:
    model, shape = make(lib)
    x = lib.tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    y = lib.tensor(np.arange(shape[0]) % 10)

    def step() -> Any:
        model.zero_grad()
        loss = lib.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss.item()

    return step


def kept_by_torch(make: Callable[[Any], Any]) -> int:
    """Bytes of what PyTorch saves for the gradient, each memory once."""
    saved: dict[int, int] = {}

    def note(tensor: Any) -> Any:
        memory = tensor.untyped_storage()
        saved[memory.data_ptr()] = memory.nbytes()
        return tensor

    step = step_of(torch, make)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        step()
    return sum(saved.values())


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("make", "times", "columns"),
    [(mlp, 1.5, 0), (logarithms, 1.3, 0), (lenet, 2, MERGED_BYTES), (transformer, 2.25, 0)],
)
def test_a_step_holds_so_much_more_than_pytorch_keeps(
    make: Callable[[Any], Any], times: float, columns: int
) -> None:
    """The columns of convolutions have a bound; softmax and gelu keep what lies between, too."""
    step = step_of(tc, make)
    for _ in range(3):
        step()
    pool.clear()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    step()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    kept = kept_by_torch(make)
    assert peak - before <= times * kept + columns
