"""Trains a variational autoencoder on MNIST and draws what it rebuilds, dreams and passes through.

Kingma and Welling (2014): a digit becomes a normal distribution over a few numbers, and a draw
from it becomes a digit again. `--smoke` takes less than a minute on two cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from tqdm import tqdm

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.data import MNIST, DataLoader
from tinygrad_cuda.nn import functional as F


class VAE(nn.Module):
    """A layer and a mean and a variance; the same way back to an image."""

    def __init__(self, hidden: int, latent: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU())
        self.mean = nn.Linear(hidden, latent)
        self.log_variance = nn.Linear(hidden, latent)
        self.decoder = nn.Sequential(
            nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, 784),
            nn.Unflatten(1, (1, 28, 28)),
        )  # fmt: skip

    def encode(self, images: tc.Tensor) -> tuple[tc.Tensor, tc.Tensor]:
        """Means and logarithms of variances, each of shape (N, latent)."""
        features = self.encoder(images)
        return self.mean(features), self.log_variance(features)

    def forward(self, images: tc.Tensor) -> tuple[tc.Tensor, tc.Tensor, tc.Tensor]:
        """Logits of the pixels, and the distribution that they were drawn from."""
        mean, log_variance = self.encode(images)
        # A draw as a function of the parameters, so that gradients reach them.
        draw = mean + (log_variance / 2).exp() * tc.randn_like(mean)
        return self.decoder(draw), mean, log_variance

    def decode(self, latent: tc.Tensor) -> tc.Tensor:
        """Images, pixels from 0 to 1."""
        return self.decoder(latent).sigmoid()


def bound(model: VAE, images: tc.Tensor) -> tuple[tc.Tensor, tc.Tensor]:
    """The two parts of the negative evidence lower bound (ELBO), in nats an image.

    What is lost in rebuilding, and the divergence of the distribution from N(0, 1):
    ``-1/2 sum(1 + log s^2 - m^2 - s^2)``.
    """
    logits, mean, log_variance = model(images)
    lost = F.binary_cross_entropy_with_logits(logits, images, reduction="sum")
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
    return lost / len(images), divergence / len(images)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--epochs", type=int, default=20, help="(default: %(default)s)")
    add("--hidden", type=int, default=512, help="width of the layers (default: %(default)s)")
    add("--latent", type=int, default=16, help="numbers a digit becomes (default: %(default)s)")
    add("--batch-size", type=int, default=128, help="images a step (default: %(default)s)")
    add("--lr", type=float, default=2e-3, help="learning rate at first; falls as half a cosine")
    add("--max-batches", type=int, metavar="N", help="stop each epoch after N steps")
    add("--smoke", action="store_true", help="one epoch of 200 steps, to see that it works")
    add("--target", type=float, metavar="NATS", help="fail above this negative ELBO")
    add("--device", help="cpu, cuda, cuda:1, ... or emu (default: a usable GPU, else cpu)")
    add("--data", metavar="DIR", help="folder with MNIST's files (default: $TGC_DATA, the cache)")
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    add("--out", type=Path, default=Path("vae"), metavar="DIR", help="folder for the pictures")
    args = parser.parse_args()
    if args.smoke:
        args.epochs, args.max_batches = 1, args.max_batches or 200
    return args


def train(
    model: VAE, loader: DataLoader, optimizer: Any, schedule: Any, steps: int, title: str
) -> float:
    """One epoch; returns the mean negative ELBO."""
    losses: list[tc.Tensor] = []
    model.train()
    with tqdm(total=steps, desc=title, unit="batch", leave=False) as bar:
        for images, _ in loader:
            if len(losses) == steps:
                break
            loss = sum(bound(model, images))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
            bar.update()
    # Read only now: a number read in the loop would make the program wait for the device.
    return float(np.mean([loss.item() for loss in losses]))


@tc.no_grad()
def evaluate(model: VAE, dataset: MNIST) -> tuple[float, float]:
    """Both parts of the bound on the test images."""
    model.eval()
    parts = [bound(model, images) for images, _ in DataLoader(dataset, batch_size=1000)]
    sizes = [min(1000, len(dataset) - 1000 * number) for number in range(len(parts))]
    lost, divergence = (
        float(np.average([part[which].item() for part in parts], weights=sizes)) for which in (0, 1)
    )
    return lost, divergence


def between(a: tc.Tensor, b: tc.Tensor, steps: int) -> tc.Tensor:
    """Points from a to b on the arc on which lengths stay typical of a normal distribution."""
    cosine = (a * b).sum() / (a.norm() * b.norm())
    angle = cosine.clamp(-0.999, 0.999).acos()
    part = tc.linspace(0, 1, steps, device=a.device).unsqueeze(1)
    return (((1 - part) * angle).sin() * a + (part * angle).sin() * b) / angle.sin()


def save_grid(images: Any, rows: int, columns: int, path: Path, title: str) -> None:
    """Images of 28 by 28 side by side."""
    whole = np.asarray(images).reshape(rows, columns, 28, 28).transpose(0, 2, 1, 3)
    figure, axes = plt.subplots(
        figsize=(columns * 0.55 + 0.2, rows * 0.55 + 0.5), layout="constrained"
    )
    axes.imshow(whole.reshape(rows * 28, columns * 28), cmap="gray_r", vmin=0, vmax=1)
    axes.set_title(title, fontsize=10)
    axes.axis("off")
    figure.savefig(path, dpi=110)
    plt.close(figure)


@tc.no_grad()
def draw(model: VAE, dataset: MNIST, latent: int, folder: Path) -> list[Path]:
    """Reconstructions, samples and a walk, as PNG files."""
    model.eval()
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = next(iter(DataLoader(dataset, batch_size=100)))
    mean, _ = model.encode(images)
    rebuilt = model.decode(mean)

    pairs = tc.stack([images[:48].reshape(4, 12, 28, 28), rebuilt[:48].reshape(4, 12, 28, 28)], 1)
    paths = [folder / name for name in ("reconstructions.png", "samples.png", "walk.png")]
    save_grid(pairs.cpu().numpy(), 8, 12, paths[0], "test digits, and below each what comes back")

    samples = model.decode(tc.randn(120, latent, device=mean.device))
    save_grid(samples.cpu().numpy(), 10, 12, paths[1], "digits from random numbers")

    # From the first 0 of the test images to the first 1, to the first 2, ...
    found = labels.tolist()
    stops = [found.index(digit) for digit in range(10) if digit in found]
    rows = [model.decode(between(mean[a], mean[b], 12)) for a, b in pairwise(stops)]
    walk = tc.cat(rows).cpu().numpy()
    save_grid(walk, len(rows), 12, paths[2], "on the way from one digit to the next")
    return paths


def main() -> int:
    args = arguments()
    if args.device:
        tc.set_default_device(args.device)
    tc.manual_seed(args.seed)
    train_set = MNIST(args.data, train=True, download=True)
    test_set = MNIST(args.data, train=False, download=True)
    print(f"data: {train_set.source}, {len(train_set):,} images to train on, {len(test_set):,} "
          "to test")  # fmt: skip
    model = VAE(args.hidden, args.latent)
    print(f"model: VAE, {args.latent} numbers a digit, "
          f"{sum(p.numel() for p in model.parameters()):,} parameters, "
          f"on {tc.get_default_device()}")  # fmt: skip

    loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, seed=args.seed)
    steps = min(len(loader), args.max_batches or len(loader))
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, args.epochs * steps))
    start = time.perf_counter()
    lost = divergence = 0.0
    for epoch in range(1, args.epochs + 1):
        loss = train(model, loader, optimizer, schedule, steps, f"epoch {epoch}")
        lost, divergence = evaluate(model, test_set)
        print(
            f"epoch {epoch}  loss {loss:.2f}  test: negative ELBO {lost + divergence:.2f} = "
            f"{lost:.2f} rebuilding + {divergence:.2f} divergence  "
            f"{time.perf_counter() - start:.1f} s"
        )
    paths = draw(model, test_set, args.latent, args.out)
    print("pictures: " + ", ".join(map(str, paths)))
    if args.target is not None and not lost + divergence <= args.target:
        print(f"the target of {args.target} nats was missed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
