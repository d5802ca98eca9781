"""GPT-2 with 124 M parameters, and a small GPT of characters: next tokens, AdamW."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.workload import PRECISIONS, ModelTraining, Rule


@dataclass(frozen=True)
class Shape:
    """Sizes of a GPT and of its batches; `vocabulary` of GPT-2 is filled up to whole tiles."""

    layers: int
    heads: int
    width: int
    context: int
    batch: int
    vocabulary: int


SHAPES = {
    "gpt2": Shape(12, 12, 768, 1024, 8, 50304),
    "char_gpt": Shape(6, 6, 384, 256, 64, 65),
}
TINY = Shape(2, 2, 8, 6, 2, 11)


def block(shape: Shape, library: Any) -> Any:
    """Attention, then two layers for each token; both are added to what comes in."""
    nn, width, size = library.nn, shape.width, shape.width // shape.heads

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.projection = nn.Linear(width, width)
            self.expand = nn.Linear(width, 4 * width)
            self.contract = nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            parts = self.qkv(self.norm1(x)).split(width, dim=2)
            q, k, v = (
                part.view(batch, length, shape.heads, size).transpose(1, 2) for part in parts
            )
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.projection(y.transpose(1, 2).reshape(batch, length, width))
            hidden = nn.functional.gelu(self.expand(self.norm2(x)), approximate="tanh")
            return x + self.contract(hidden)

    return Block()


def model(shape: Shape, library: Any) -> Any:
    nn = library.nn

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(shape.vocabulary, shape.width)
            self.positions = nn.Embedding(shape.context, shape.width)
            self.blocks = nn.ModuleList([block(shape, library) for _ in range(shape.layers)])
            self.norm = nn.LayerNorm(shape.width)
            self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
            self.head.weight = self.words.weight

        def forward(self, tokens: Any, following: Any) -> Any:
            x = self.words(tokens) + self.positions.weight[: tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.norm(x)).view(-1, shape.vocabulary)
            return nn.functional.cross_entropy(logits, following.view(-1))

    return GPT()


def training(name: str, precision: str, smoke: bool) -> ModelTraining:
    shape = TINY if smoke else SHAPES[name]
    size = (4, shape.batch, shape.context + 1)
    texts = np.random.default_rng(1).integers(0, shape.vocabulary, size)
    batches = [(text[:, :-1].copy(), text[:, 1:].copy()) for text in texts]
    rule = Rule("adamw", 3e-4)
    return ModelTraining(partial(model, shape), rule, batches, precision, deviation=0.02)


WORKLOADS = {
    f"{name}{suffix}": partial(training, name, precision)
    for name in SHAPES
    for precision, suffix in PRECISIONS.items()
}
