"""Trains a multi-layer perceptron on MNIST and prints its accuracy on the test images.

By default 784-128-10 with ReLU; `python examples/mlp.py --help` lists what can be changed.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.data import MNIST, DataLoader, Normalize
from tinygrad_cuda.nn import functional as F

# Mean and standard deviation of MNIST's pixels.
NORMALIZE = Normalize([0.1307], [0.3081])


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--layers", type=int, nargs="*", default=[128], metavar="N", help="sizes of hidden layers")
    add("--batch-size", type=int, default=128, help="images a step (default: %(default)s)")
    add("--lr", type=float, default=0.1, help="learning rate at first; falls as half a cosine")
    add("--momentum", type=float, default=0.9, help="(default: %(default)s)")
    add("--epochs", type=int, default=5, help="(default: %(default)s)")
    add("--max-batches", type=int, metavar="N", help="stop each epoch after N steps")
    add("--target", type=float, metavar="ACC", help="fail below this accuracy, in percent")
    add("--device", help="cpu, cuda, cuda:1, ... or emu (default: a usable GPU, else cpu)")
    add("--data", metavar="DIR", help="folder with MNIST's files (default: $TGC_DATA, the cache)")
    add("--synthetic", action="store_true",
        help="generated digits if MNIST is not on this machine and cannot be fetched")  # fmt: skip
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    add("--plot", type=Path, metavar="DIR", help="write loss.png and predictions.png there")
    return parser.parse_args()


def build(hidden: list[int]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    sizes = [784, *hidden, 10]
    model = nn.Sequential(nn.Flatten())
    for number, (inputs, outputs) in enumerate(pairwise(sizes)):
        if number:
            model.append(nn.ReLU())
        model.append(nn.Linear(inputs, outputs))
    return model


def train(
    model: nn.Module, loader: DataLoader, optimizer: Any, schedule: Any, steps: int, title: str
) -> list[float]:
    """One epoch; returns the loss of every step."""
    losses: list[tc.Tensor] = []
    model.train()
    with tqdm(total=steps, desc=title, unit="batch", leave=False) as bar:
        for images, labels in loader:
            if len(losses) == steps:
                break
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
            if len(losses) % 50 == 0:
                bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
            bar.update()
    # Read only now: a number read in the loop would make the program wait for the device.
    return [loss.item() for loss in losses]


@tc.no_grad()
def evaluate(model: nn.Module, dataset: MNIST) -> float:
    """The share of images whose class is recognized."""
    model.eval()
    right = tc.zeros(())
    for images, labels in DataLoader(dataset, batch_size=2000):
        right += (model(images).argmax(1) == labels).sum()
    return float(right) / len(dataset)


def plot(folder: Path, losses: list[float], model: nn.Module, dataset: MNIST) -> None:
    """The loss curve, and the first test images with what the model takes them for."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    window = max(1, len(losses) // 50)
    smooth = np.convolve(losses, np.ones(window) / window, mode="valid")
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(losses, color="tab:blue", alpha=0.25, linewidth=0.8, label="each step")
    steps = np.arange(len(smooth)) + window - 1
    axes.plot(steps, smooth, color="tab:blue", label=f"mean of {window}")
    axes.set(xlabel="step", ylabel="cross-entropy", yscale="log", title="Training loss")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(folder / "loss.png", dpi=120)
    plt.close(figure)

    count = 40
    with tc.no_grad():
        images, labels = next(iter(DataLoader(dataset, batch_size=count)))
        chance, guess = (part.cpu().numpy() for part in model(images).softmax(1).max(1))
    figure, grid = plt.subplots(5, 8, figsize=(9, 6.4), layout="constrained")
    for axes, image, label, number, share in zip(
        grid.flat, dataset.data[:count], labels.tolist(), guess, chance
    ):
        axes.imshow(image, cmap="gray_r")
        color = "black" if number == label else "tab:red"
        wrong = "" if number == label else f", is {label}"
        axes.set_title(f"{number} ({share:.0%}){wrong}", fontsize=9, color=color)
        axes.axis("off")
    figure.savefig(folder / "predictions.png", dpi=120)
    plt.close(figure)


def main() -> int:
    args = arguments()
    if args.device:
        tc.set_default_device(args.device)
    tc.manual_seed(args.seed)
    train_set = MNIST(
        args.data, train=True, transform=NORMALIZE, download=True, synthetic=args.synthetic
    )
    test_set = MNIST(
        args.data, train=False, transform=NORMALIZE, download=True, synthetic=args.synthetic
    )
    print(f"data: {train_set.source}, {len(train_set):,} images to train on, {len(test_set):,} "
          "to test")  # fmt: skip
    of = "" if train_set.source.startswith("MNIST") else f" (of {train_set.source}, not MNIST)"
    model = build(args.layers)
    print(f"model: {'-'.join(map(str, [784, *args.layers, 10]))} with ReLU, "
          f"{sum(p.numel() for p in model.parameters()):,} parameters, "
          f"on {tc.get_default_device()}")  # fmt: skip

    loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, seed=args.seed)
    steps = min(len(loader), args.max_batches or len(loader))
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, args.epochs * steps))
    losses: list[float] = []
    accuracy = 0.0
    start = time.perf_counter()
    for epoch in range(1, args.epochs + 1):
        losses += train(model, loader, optimizer, schedule, steps, f"epoch {epoch}")
        accuracy = 100 * evaluate(model, test_set)
        print(
            f"epoch {epoch}  loss {np.mean(losses[-steps:]):.4f}  "
            f"test accuracy {accuracy:.2f} %{of}  {time.perf_counter() - start:.1f} s"
        )
    if args.plot:
        plot(args.plot, losses, model, test_set)
        print(f"pictures: {args.plot / 'loss.png'}, {args.plot / 'predictions.png'}")
    if args.target is not None and accuracy < args.target:
        print(f"the target of {args.target} % was missed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
