"""Whole training steps, text generation and data loading."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.cpu.case import Call, Case, Library, integers, normal


def _fill(lib: Library, module: Any) -> Any:
    """Equal parameters in both libraries: uniform, by fan-in."""
    draw = np.random.default_rng(0)
    with lib.no_grad():
        for parameter in module.parameters():
            shape = tuple(parameter.shape)
            bound = 1 / math.sqrt(np.prod(shape[1:]) if len(shape) > 1 else shape[0])
            parameter.copy_(lib.tensor(draw.uniform(-bound, bound, shape).astype(np.float32)))
    return module


def _training(lib: Library, model: Any, data: Any, labels: Any, optimizer: str = "Adam") -> Call:
    """A step with cross entropy; gives the loss."""
    model = _fill(lib, model)
    x, y = lib.tensor(data), lib.tensor(labels)
    update = getattr(lib.optim, optimizer)(model.parameters(), lr=1e-3)

    def step() -> Any:
        update.zero_grad()
        logits = model(x)
        loss = lib.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
        loss.backward()
        update.step()
        return loss.detach()

    return step


def mlp(lib: Library) -> Call:
    """784-256-128-10, batch 64, Adam."""
    nn = lib.nn
    model = nn.Sequential(
        nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    return _training(lib, model, normal(64, 784), integers(10, 64))


def lenet(lib: Library) -> Call:
    """LeNet-5 on 28 x 28 images, batch 64, Adam."""
    nn = lib.nn
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip
    return _training(lib, model, normal(64, 1, 28, 28), integers(10, 64))


def _residual(lib: Library, width: int) -> Any:
    nn = lib.nn

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            return lib.functional.relu(x + self.body(x))

    return Residual()


def resnet(lib: Library) -> Call:
    """Two residual blocks at 16 and two at 32 channels on 32 x 32 images, batch 16, SGD."""
    nn = lib.nn
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        _residual(lib, 16), _residual(lib, 16),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), _residual(lib, 32), _residual(lib, 32),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    return _training(lib, model, normal(16, 3, 32, 32), integers(10, 16), "SGD")


def _last(lib: Library) -> Any:
    class Last(lib.nn.Module):
        """An LSTM whose last output is classified."""

        def __init__(self) -> None:
            super().__init__()
            self.lstm = lib.nn.LSTM(32, 64, batch_first=True)
            self.head = lib.nn.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(x)[0][:, -1])

    return Last()


def lstm(lib: Library) -> Call:
    """An LSTM of 64 units over 32 steps of 32 features, batch 32, Adam."""
    return _training(lib, _last(lib), normal(32, 32, 32), integers(10, 32))


def gpt(lib: Library, symbols: int, width: int, heads: int, layers: int, context: int) -> Any:
    """A GPT as nanoGPT writes it: attention of products, a mask and softmax."""
    nn, functional = lib.nn, lib.functional

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project_in = nn.Linear(width, 3 * width)
            self.project_out = nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            shape = (batch, length, heads, width // heads)
            q, k, v = (
                part.view(shape).transpose(1, 2) for part in self.project_in(x).split(width, dim=2)
            )
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.project_out(y.transpose(1, 2).contiguous().view(batch, length, width))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention = Attention()
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.symbols, self.places = nn.Embedding(symbols, width), nn.Embedding(context, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, symbols, bias=False)

        def forward(self, text: Any) -> Any:
            x = self.symbols(text) + self.places(lib.arange(text.shape[1]))
            return self.head(self.norm(self.blocks(x)))

    return GPT()


def transformer(lib: Library) -> Call:
    """A GPT of 2 blocks of width 128, 4 heads, 64 positions, batch 8, AdamW."""
    text = integers(65, 8, 65)
    model = gpt(lib, 65, 128, 4, 2, 64)
    return _training(lib, model, text[:, :-1].copy(), text[:, 1:].copy(), "AdamW")


def generate(lib: Library) -> Call:
    """16 characters from a prompt of 32, each by a whole forward pass and a draw."""
    model = _fill(lib, gpt(lib, 65, 128, 4, 2, 64))
    prompt = lib.tensor(integers(65, 1, 32))

    def write() -> Any:
        text = prompt
        with lib.no_grad():
            for _ in range(16):
                logits = model(text[:, -64:])[:, -1, :] / 0.8
                best, _ = lib.topk(logits, 10)
                logits[logits < best[:, [-1]]] = -float("inf")
                drawn = lib.multinomial(lib.functional.softmax(logits, dim=-1), num_samples=1)
                text = lib.cat((text, drawn), dim=1)
        return text

    return write


def to_tensor(lib: Library) -> Call:
    """ToTensor and Normalize of one 32 x 32 x 3 picture."""
    picture = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    mean, std = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
    if lib.name == "ours":
        transforms = lib.data.transforms
        compose = transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean, std)])
        return lambda: compose(picture)

    def as_torchvision() -> Any:
        # What torchvision 0.28's two transforms call.
        image = lib.from_numpy(picture.transpose((2, 0, 1))).contiguous()
        image = image.to(dtype=lib.get_default_dtype()).div(255)
        shift = lib.as_tensor(mean, dtype=image.dtype, device=image.device).view(-1, 1, 1)
        scale = lib.as_tensor(std, dtype=image.dtype, device=image.device).view(-1, 1, 1)
        if bool((scale == 0).any()):
            raise ValueError("std is zero")
        return image.clone().sub_(shift).div_(scale)

    return as_torchvision


def loader(lib: Library) -> Call:
    """An epoch of DataLoader over 512 samples in shuffled batches of 64, no workers."""
    data = lib.data if lib.name == "ours" else lib.utils.data
    dataset = data.TensorDataset(lib.tensor(normal(512, 1, 28, 28)), lib.tensor(integers(10, 512)))
    batches = data.DataLoader(dataset, batch_size=64, shuffle=True)

    def epoch() -> Any:
        last = None
        for x, _ in batches:
            last = lib.force(x)
        return last

    return epoch


def item(lib: Library) -> Call:
    """Reading 64 elements of a tensor of 4096, one after another."""
    x = lib.tensor(normal(64, 64))

    def read() -> Any:
        return sum(x[i, 3].item() for i in range(64))

    return read


STEPS = (
    Case("LSTM step", lstm, 3), Case("LeNet step", lenet, 2),
    Case("transformer step", transformer, 2), Case("MLP step", mlp, 2),
    Case("ResNet step", resnet, 2),
    # Of the residual stream: 39.5 positions on average. Each is gone over in 186 calls of NumPy.
    Case("generate 16 characters", generate, 2, 16 * 79 * 128 // 2, 245, compared=False),
    Case("ToTensor + Normalize", to_tensor, 3, 3072, 3),
    Case("DataLoader epoch", loader, 2, compared=False),
    Case("64 x x[i, j].item()", item, 3, 64),
)  # fmt: skip
