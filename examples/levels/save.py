"""Writes saved.npz, from NumPy in float64: `python -m examples.levels.save`."""

from __future__ import annotations

import numpy as np

from examples.levels import by_hand, task


def main() -> None:
    """The tensors after three steps on fixed numbers."""
    fixed = task.fixed()
    wide = [np.asarray(value, dtype=np.float64) for value in fixed[:5]]
    trained = by_hand.train(task.Task(*wide, fixed.labels, fixed.rate))
    names = ("losses", "w1", "b1", "w2", "b2")
    parts = [value.astype(np.float32) for value in task.part(trained)]
    np.savez_compressed(task.SAVED, **dict(zip(names, parts)))


if __name__ == "__main__":
    main()
