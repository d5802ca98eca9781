"""Separates two clouds of points by a straight line, with Rosenblatt's perceptron (1958).

The perceptron's rule is one step of gradient descent on the loss mean(max(0, -y * score)): only
points on the wrong side move the line.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import recipe
from matplotlib import pyplot as plt

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.data import DataLoader, TensorDataset


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = recipe.parser(
        __doc__, "perceptron", epochs=2000, batch_size=200, lr=0.2, data=None,
        smoke="the same: it takes a second", target="stop at this share of points, 1 by default",
    )  # fmt: skip
    add = parser.add_argument
    add("--points", type=recipe.positive, default=200, metavar="N", help="(default: %(default)s)")
    add("--margin", type=float, default=0.1, help="least distance from the true line")
    args = recipe.parse(parser, argv)
    args.target = 1.0 if args.target is None else args.target
    return args


def separable_points(count: int, margin: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of the square [-2, 2]^2 with labels -1 and 1 by their side of a random line."""
    random = np.random.default_rng(seed)
    angle, offset = random.uniform(0, 2 * np.pi), random.uniform(-0.5, 0.5)
    normal = np.array([np.cos(angle), np.sin(angle)])
    points = np.empty((0, 2))
    while len(points) < count:
        drawn = random.uniform(-2, 2, (2 * count, 2))
        points = np.concatenate([points, drawn[np.abs(drawn @ normal - offset) > margin]])
    points = points[:count].astype(np.float32)
    return points, np.sign(points @ normal - offset).astype(np.float32)


def criterion(scores: tc.Tensor, y: tc.Tensor) -> tc.Tensor:
    """The mean of what points on the wrong side lack."""
    return tc.relu(-y * scores.squeeze(1)).mean()


def share_right(scores: tc.Tensor, y: tc.Tensor) -> tc.Tensor:
    """The share of points on their side."""
    return (y * scores.squeeze(1) > 0).float().mean()


def draw(path: Path, model: nn.Module, points: np.ndarray, labels: np.ndarray) -> None:
    """The points, the line, and the side of each part of the plane."""
    line = np.linspace(-2.2, 2.2, 221, dtype=np.float32)
    plane = np.stack(np.meshgrid(line, line), axis=-1)
    with tc.no_grad():
        scores = model(tc.tensor(plane)).squeeze(2).cpu().numpy()
    figure, axes = plt.subplots(figsize=(5.5, 5.6), layout="constrained")
    axes.contourf(line, line, np.sign(scores), levels=[-2, 0, 2],
                  colors=["tab:blue", "tab:orange"], alpha=0.2)  # fmt: skip
    axes.contour(line, line, scores, levels=[0], colors="black")
    for label, color in ((-1, "tab:blue"), (1, "tab:orange")):
        chosen = points[labels == label]
        axes.scatter(chosen[:, 0], chosen[:, 1], s=14, color=color, label=f"class {label:+d}")
    axes.set(xlabel="$x_1$", ylabel="$x_2$", title="Decision boundary", aspect="equal")
    axes.legend(loc="upper right")
    recipe.save(figure, path, "Points in the colour of their class, the plane in the colour of the "
                "class that the model gives it; the line is where its score is 0.")  # fmt: skip


def main() -> int:
    args = arguments()
    points, labels = separable_points(args.points, args.margin, args.seed)
    data = TensorDataset(points, labels)
    model = nn.Linear(2, 1)
    recipe.describe("perceptron", model)
    args.batch_size = min(args.batch_size, args.points)
    history, _ = recipe.train(
        args, model, criterion, optim.SGD(model.parameters(), lr=args.lr),
        recipe.loader(args, data), validation=DataLoader(data, len(data)),
        metrics={"accuracy": share_right}, monitor="val_accuracy", mode="max", target=args.target,
        show=None,
    )  # fmt: skip
    last = history.rows[-1]
    print(f"{len(points)} points, {last['step']} steps on {tc.get_default_device()}: "
          f"{last['val_accuracy']:.1%} right")  # fmt: skip
    draw(args.out / "boundary.png", model, points, labels)
    return recipe.missed(args, last["val_accuracy"] >= args.target)


if __name__ == "__main__":
    recipe.run(main)
