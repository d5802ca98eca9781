"""What a layer keeps for its gradient, beside the tensors that PyTorch saves for it.

Ours is a layer's share of the most memory of a step, so that small arrays and what is released
late count, too: in one plan, and in two where the loss is looked at before `backward()`.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from math import prod
from typing import Any

from benchmarks.cpu.case import Library, normal

Layer = Callable[[Library], Any]
WIDTH, CHANNELS = 64, 8
ROWS, IMAGES, TEXTS = (4096, WIDTH), (16, CHANNELS, 48, 48), (32, 64, WIDTH)
# A layer's share is that of so many in twice as many.
LAYERS = 4


def _linear(then: Callable[[Any], Any]) -> Layer:
    """A linear layer and what follows it."""
    return lambda lib: lib.nn.Sequential(lib.nn.Linear(WIDTH, WIDTH), then(lib.nn))


def _convolution(*then: Callable[[Any], Any]) -> Layer:
    """A convolution and what follows it."""
    return lambda lib: lib.nn.Sequential(
        lib.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), *(part(lib.nn) for part in then)
    )


def _residual(lib: Library) -> Any:
    nn, functional = lib.nn, lib.functional

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)
            self.wide, self.narrow = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            return x + self.narrow(functional.gelu(self.wide(self.norm(x))))

    return Residual()


def _attention(lib: Library) -> Any:
    nn, functional = lib.nn, lib.functional

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project_in, self.project_out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            q, k, v = self.project_in(x).split(WIDTH, dim=-1)
            weights = functional.softmax(q @ k.transpose(-2, -1) / 8.0, -1)
            return self.project_out(weights @ v)

    return Attention()


CASES: dict[str, tuple[Layer, tuple[int, ...]]] = {
    "linear, tanh": (_linear(lambda nn: nn.Tanh()), ROWS),
    "linear, relu": (_linear(lambda nn: nn.ReLU()), ROWS),
    "linear, gelu": (_linear(lambda nn: nn.GELU()), ROWS),
    "linear, silu": (_linear(lambda nn: nn.SiLU()), ROWS),
    "linear, softmax": (_linear(lambda nn: nn.Softmax(-1)), ROWS),
    "linear, log_softmax": (_linear(lambda nn: nn.LogSoftmax(-1)), ROWS),
    "linear, dropout": (_linear(lambda nn: nn.Dropout(0.5)), ROWS),
    "linear, layer_norm": (_linear(lambda nn: nn.LayerNorm(WIDTH)), ROWS),
    "norm, linear, gelu, linear": (_residual, ROWS),
    "attention": (_attention, TEXTS),
    "conv, relu": (_convolution(lambda nn: nn.ReLU()), IMAGES),
    "conv, batch_norm, relu": (
        _convolution(lambda nn: nn.BatchNorm2d(CHANNELS), lambda nn: nn.ReLU()), IMAGES
    ),
    "conv, tanh, max_pool": (
        _convolution(lambda nn: nn.Tanh(), lambda nn: nn.MaxPool2d(3, 1, 1)), IMAGES
    ),
}  # fmt: skip


def most_of_a_step(
    lib: Library, layer: Layer, shape: tuple[int, ...], count: int, look: bool
) -> int:
    """The most bytes of NumPy's arrays during a step with SGD; free arrays are not kept."""
    from tinygrad_cuda.backend.cpu import pool as pooling

    model = lib.nn.Sequential(*(layer(lib) for _ in range(count)))
    update = lib.optim.SGD(model.parameters(), lr=1e-3)
    x, capacity, most = lib.tensor(normal(*shape)), pooling.CAPACITY, 0
    pooling.CAPACITY = 0
    try:
        for _ in range(2):  # the second time there is a plan
            pooling.pool.clear()
            tracemalloc.start()
            update.zero_grad()
            loss = (model(x) ** 2).mean()
            if look:
                loss.item()
            loss.backward()
            update.step()
            loss.item()
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            del loss
    finally:
        pooling.CAPACITY = capacity
    return most


def saved(lib: Library, layer: Layer, shape: tuple[int, ...], count: int) -> int:
    """Bytes of what PyTorch saves for backward, without parameters."""
    model = lib.nn.Sequential(*(layer(lib) for _ in range(count)))
    parameters = {parameter.data_ptr() for parameter in model.parameters()}
    found: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            found[storage.data_ptr()] = storage
        return tensor

    with lib.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = (model(lib.tensor(normal(*shape))) ** 2).mean()
    total = sum(storage.nbytes() for storage in found.values())
    del loss
    return total


def measured(name: str, libraries: list[Library]) -> dict[str, Any]:
    """A row: what a layer keeps, in arrays of its input's size."""
    layer, shape = CASES[name]
    unit = 4 * prod(shape) * LAYERS
    row: dict[str, Any] = {"name": name}
    ours, *others = libraries
    for key, look in (("one plan", False), ("two plans", True)):
        few, many = (
            most_of_a_step(ours, layer, shape, count, look) for count in (LAYERS, 2 * LAYERS)
        )
        row[key] = (many - few) / unit
    for torch in others:
        few, many = (saved(torch, layer, shape, count) for count in (LAYERS, 2 * LAYERS))
        row["torch"] = (many - few) / unit
    return row
