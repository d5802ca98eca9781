"""PTX through RawKernel, on a GPU alone: the driver's assembler makes machine code of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import tinygrad_cuda as tc
from examples.levels.task import CLASSES, HIDDEN, INPUTS, Task, Trained, Unavailable

SOURCE = Path(__file__).with_suffix(".ptx").read_text(encoding="utf-8")
SIGNATURES = {
    "product": "const float* a, const float* b, float* c, const float* bias, const float* mask,"
    "unsigned m, unsigned n, unsigned length, unsigned a_row, unsigned a_k, unsigned b_k,"
    "unsigned b_column, float alpha, float beta, unsigned flags",
    "cross_entropy": "float* z, const int* labels, float* losses, unsigned n, unsigned classes",
}
KERNELS = {name: tc.RawKernel(SOURCE, name, signature=text) for name, text in SIGNATURES.items()}
BIAS, RELU, MASK = 1, 2, 4

# Of an operand: the Tensor, and its strides by row and column as the product sees it.
Matrix = tuple[Any, int, int]


def product(
    a: Matrix, b: Matrix, c: Any, sizes: tuple[int, int, int], alpha: float = 1.0,
    beta: float = 0.0, bias: Any = None, mask: Any = None, flags: int = 0,
) -> None:  # fmt: skip
    """c = alpha a b + beta c, of m rows, n columns, and terms of a sum."""
    m, n, _ = sizes
    pointers = a[0], b[0], c, c if bias is None else bias, c if mask is None else mask
    arguments = (*pointers, *sizes, *a[1:], *b[1:], alpha, beta, flags)
    KERNELS["product"](-(-m * n // 128), 128, arguments)


def train(task: Task) -> Trained:
    """One pass over the batches."""
    if not tc.cuda.is_available():
        raise Unavailable("PTX needs a GPU")
    return on_device(task, "cuda")


def on_device(task: Task, device: str) -> Trained:
    """The forward and backward pass of each batch: eight products and the loss."""
    n = task.labels.shape[1]
    w1, b1, w2, b2 = (tc.tensor(value, device=device) for value in task[:4])
    h, da = (tc.empty(n, HIDDEN, device=device) for _ in range(2))
    z, losses = tc.empty(n, CLASSES, device=device), tc.empty(n, device=device)
    ones = tc.ones(1, device=device), 0, 0
    means = []
    for images, targets in zip(task.x, task.labels):
        x, labels = (tc.tensor(value, device=device) for value in (images, targets))
        first, second, slope = (x, INPUTS, 1), (h, HIDDEN, 1), (z, CLASSES, 1)
        turned, down = (w1, 1, INPUTS), -task.rate
        product(first, turned, h, (n, HIDDEN, INPUTS), bias=b1, flags=BIAS | RELU)
        product(second, (w2, 1, HIDDEN), z, (n, CLASSES, HIDDEN), bias=b2, flags=BIAS)
        KERNELS["cross_entropy"](-(-n // 128), 128, (z, labels, losses, n, CLASSES))
        product(slope, (w2, HIDDEN, 1), da, (n, HIDDEN, CLASSES), mask=h, flags=MASK)
        product((z, 1, CLASSES), second, w2, (CLASSES, HIDDEN, n), down, 1.0)
        product(ones, slope, b2, (1, CLASSES, n), down, 1.0)
        product((da, 1, HIDDEN), first, w1, (HIDDEN, INPUTS, n), down, 1.0)
        product(ones, (da, HIDDEN, 1), b1, (1, HIDDEN, n), down, 1.0)
        means.append(losses.mean())
    weights = (value.cpu().numpy() for value in (w1, b1, w2, b2))
    return Trained(np.array([mean.item() for mean in means]), *weights)
