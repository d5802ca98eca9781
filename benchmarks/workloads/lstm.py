"""A language model of two LSTM layers, 650 wide, 35 steps, batch 64, 10,000 words: Adam."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.workload import PRECISIONS, ModelTraining, Rule

LAYERS = 2


def model(words: int, width: int, library: Any) -> Any:
    nn = library.nn

    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(words, width)
            self.lstm = nn.LSTM(width, width, LAYERS)
            self.head = nn.Linear(width, words)

        def forward(self, tokens: Any, following: Any) -> Any:
            hidden, _ = self.lstm(self.words(tokens))
            logits = self.head(hidden).view(-1, words)
            return nn.functional.cross_entropy(logits, following.view(-1))

    return Language()


def training(precision: str, smoke: bool) -> ModelTraining:
    words, width, steps, batch = (11, 6, 3, 2) if smoke else (10_000, 650, 35, 64)
    texts = np.random.default_rng(1).integers(0, words, (4, steps + 1, batch))
    batches = [(text[:-1].copy(), text[1:].copy()) for text in texts]
    rule = Rule("adam", 3e-3)
    return ModelTraining(partial(model, words, width), rule, batches, precision)


WORKLOADS = {
    f"lstm{suffix}": partial(training, precision) for precision, suffix in PRECISIONS.items()
}
