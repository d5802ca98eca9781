"""NumPy: the gradients are written down, one line each."""

from __future__ import annotations

import numpy as np

from examples.levels.task import Task, Trained


def train(task: Task) -> Trained:
    """One pass over the batches."""
    w1, b1, w2, b2 = (value.copy() for value in task[:4])
    losses = []
    for x, labels in zip(task.x, task.labels):
        rows = np.arange(len(x))
        h = np.maximum(x @ w1.T + b1, 0)
        z = h @ w2.T + b2
        z -= z.max(axis=1, keepdims=True)
        p = np.exp(z)
        total = p.sum(axis=1, keepdims=True)
        losses.append(np.mean(np.log(total[:, 0]) - z[rows, labels]))
        dz = p / total
        dz[rows, labels] -= 1
        dz /= len(x)
        da = dz @ w2 * (h > 0)
        w2 -= task.rate * dz.T @ h
        b2 -= task.rate * dz.sum(axis=0)
        w1 -= task.rate * da.T @ x
        b1 -= task.rate * da.sum(axis=0)
    return Trained(np.array(losses), w1, b1, w2, b2)
