"""Separates two clouds of points by a straight line, with Rosenblatt's perceptron (1958).

The perceptron's rule is one step of gradient descent on the loss mean(max(0, -y * score)): only
points on the wrong side move the line.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--points", type=int, default=200, help="(default: %(default)s)")
    add("--margin", type=float, default=0.1, help="least distance from the true line")
    add("--lr", type=float, default=0.2, help="(default: %(default)s)")
    add("--max-batches", type=int, default=2000, metavar="N", help="give up after N steps")
    add("--device", help="cpu, cuda, cuda:1, ... or emu (default: a usable GPU, else cpu)")
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    add("--plot", type=Path, metavar="FILE", help="write the decision boundary as a PNG")
    return parser.parse_args()


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


def train(model: nn.Module, x: tc.Tensor, y: tc.Tensor, lr: float, limit: int) -> tuple[int, float]:
    """Steps until every point is on its side, `limit` at most; returns steps and accuracy."""
    optimizer = optim.SGD(model.parameters(), lr=lr)
    accuracy = 0.0
    with tqdm(total=limit, unit="step", leave=False) as bar:
        for step in range(limit + 1):
            margins = y * model(x).squeeze(1)
            accuracy = (margins > 0).float().mean().item()
            if accuracy == 1.0 or step == limit:
                break
            loss = tc.relu(-margins).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            bar.update()
    return step, accuracy


def plot(path: Path, model: nn.Module, points: np.ndarray, labels: np.ndarray) -> None:
    """The points, the line, and the side of each place of the plane."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    line = np.linspace(-2.2, 2.2, 221, dtype=np.float32)
    plane = np.stack(np.meshgrid(line, line), axis=-1)
    with tc.no_grad():
        scores = model(tc.tensor(plane)).squeeze(2).cpu().numpy()
    figure, axes = plt.subplots(figsize=(5.5, 5), layout="constrained")
    axes.contourf(line, line, np.sign(scores), levels=[-2, 0, 2],
                  colors=["tab:blue", "tab:orange"], alpha=0.2)  # fmt: skip
    axes.contour(line, line, scores, levels=[0], colors="black")
    for label, color in ((-1, "tab:blue"), (1, "tab:orange")):
        chosen = points[labels == label]
        axes.scatter(chosen[:, 0], chosen[:, 1], s=14, color=color, label=f"class {label:+d}")
    axes.set(xlabel="$x_1$", ylabel="$x_2$", title="Decision boundary", aspect="equal")
    figure.legend(loc="outside lower center", ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> int:
    args = arguments()
    if args.device:
        tc.set_default_device(args.device)
    tc.manual_seed(args.seed)
    points, labels = separable_points(args.points, args.margin, args.seed)
    model = nn.Linear(2, 1)
    steps, accuracy = train(model, tc.tensor(points), tc.tensor(labels), args.lr, args.max_batches)
    print(f"{len(points)} points, {steps} steps on {tc.get_default_device()}: {accuracy:.1%} right")
    if args.plot:
        plot(args.plot, model, points, labels)
        print(f"picture: {args.plot}")
    return 0 if accuracy == 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())
