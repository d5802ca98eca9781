"""What all levels train: numbers to begin with, batches, and the tensors that they must reach."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tinygrad_cuda.data import load_mnist

INPUTS, HIDDEN, CLASSES = 784, 128, 10
SAVED = Path(__file__).resolve().parent / "saved.npz"
SOME = 4  # rows of the large weight that are saved


class Unavailable(Exception):
    """This machine lacks what a level needs; the argument says what."""


class Task(NamedTuple):
    """Weights to begin with (rows are outputs), batches (steps, batch, 784), labels, the rate."""

    w1: np.ndarray
    b1: np.ndarray
    w2: np.ndarray
    b2: np.ndarray
    x: np.ndarray
    labels: np.ndarray
    rate: float


class Trained(NamedTuple):
    """The loss of each step, and the weights after the last."""

    losses: np.ndarray
    w1: np.ndarray
    b1: np.ndarray
    w2: np.ndarray
    b2: np.ndarray


def initial(seed: int = 0) -> list[np.ndarray]:
    """Weights and biases, uniform as PyTorch's Linear has them."""
    rng = np.random.RandomState(seed)
    shapes = [((HIDDEN, INPUTS), INPUTS), ((HIDDEN,), INPUTS)]
    shapes += [((CLASSES, HIDDEN), HIDDEN), ((CLASSES,), HIDDEN)]
    return [rng.uniform(-1, 1, shape).astype("f") / np.float32(n**0.5) for shape, n in shapes]


def fixed(steps: int = 3, batch: int = 24) -> Task:
    """A task of random numbers, the same on each machine."""
    rng = np.random.RandomState(1)
    x = rng.uniform(0, 1, (steps, batch, INPUTS)).astype("f")
    labels = rng.randint(0, CLASSES, (steps, batch)).astype(np.int32)
    return Task(*initial(), x, labels, 0.1)


def digits(steps: int, batch: int) -> Task:
    """Batches of MNIST, or of generated digits where its files are not on this machine."""
    images, labels = _images()
    order = np.random.RandomState(2).randint(0, len(images), (steps, batch))
    x = images[order].reshape(steps, batch, INPUTS).astype("f") / np.float32(255)
    return Task(*initial(), x, labels[order].astype(np.int32), 0.1)


@cache
def _images() -> tuple[np.ndarray, np.ndarray]:
    """Read once: that digits are generated is said once, not in each row of the table."""
    return load_mnist(download=False, synthetic=True)


def part(trained: Trained) -> list[np.ndarray]:
    """What is saved and compared."""
    return [trained.losses, trained.w1[:SOME], trained.b1, trained.w2, trained.b2]


def saved() -> tuple[Task, list[np.ndarray]]:
    """The fixed task, and what it must lead to; `save.py` has made the file."""
    with np.load(SAVED) as file:
        return fixed(), [file[name] for name in file.files]


def worst_difference(trained: Trained, expected: list[np.ndarray]) -> float:
    """The largest difference from the saved tensors."""
    return max(float(np.abs(a - b).max()) for a, b in zip(part(trained), expected, strict=True))
