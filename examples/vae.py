"""Trains a variational autoencoder on MNIST and draws what it rebuilds, dreams and passes through.

Kingma and Welling (2014): a digit becomes a normal distribution over a few numbers, and a draw
from it becomes a digit again. `--smoke` takes less than a minute on two cores.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import recipe
from matplotlib import pyplot as plt

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.data import MNIST, DataLoader, Dataset
from tinygrad_cuda.nn import functional as F

Output = tuple[tc.Tensor, tc.Tensor, tc.Tensor]


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

    def forward(self, images: tc.Tensor) -> Output:
        """Logits of the pixels, and the distribution that they were drawn from."""
        mean, log_variance = self.encode(images)
        # A draw as a function of the parameters, so that gradients reach them.
        draw = mean + (log_variance / 2).exp() * tc.randn_like(mean)
        return self.decoder(draw), mean, log_variance

    def decode(self, latent: tc.Tensor) -> tc.Tensor:
        """Images, pixels from 0 to 1."""
        return self.decoder(latent).sigmoid()


class Images(Dataset):
    """Images that are their own targets."""

    def __init__(self, labelled: MNIST) -> None:
        self.labelled = labelled

    def __len__(self) -> int:
        return len(self.labelled)

    def batch(self, indices: np.ndarray) -> Any:
        images, _ = self.labelled.batch(indices)
        return images, images


def rebuilding(output: Output, images: tc.Tensor) -> tc.Tensor:
    """What is lost in rebuilding, in nats an image."""
    lost = F.binary_cross_entropy_with_logits(output[0], images, reduction="sum")
    return lost / len(images)


def divergence(output: Output, images: tc.Tensor) -> tc.Tensor:
    """The divergence from N(0, 1), in nats an image: ``-1/2 sum(1 + log s^2 - m^2 - s^2)``."""
    _, mean, log_variance = output
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum() / len(images)


def bound(output: Output, images: tc.Tensor) -> tc.Tensor:
    """The negative evidence lower bound (ELBO), in nats an image."""
    return rebuilding(output, images) + divergence(output, images)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = recipe.parser(
        __doc__, "vae", epochs=20, batch_size=128, lr=2e-3, smoke="one epoch of 200 steps",
        target="stop at this negative ELBO, in nats",
    )  # fmt: skip
    add = parser.add_argument
    add("--hidden", type=recipe.positive, default=512, metavar="N",
        help="width of the layers (default: %(default)s)")  # fmt: skip
    add("--latent", type=recipe.positive, default=16, metavar="N",
        help="numbers a digit becomes (default: %(default)s)")  # fmt: skip
    args = recipe.parse(parser, argv)
    if args.smoke:
        args.epochs, args.max_batches = 1, args.max_batches or 200
    return args


def between(a: tc.Tensor, b: tc.Tensor, steps: int) -> tc.Tensor:
    """Points from a to b on the arc on which lengths stay typical of a normal distribution."""
    cosine = (a * b).sum() / (a.norm() * b.norm())
    angle = cosine.clamp(-0.999, 0.999).acos()
    part = tc.linspace(0, 1, steps, device=a.device).unsqueeze(1)
    return (((1 - part) * angle).sin() * a + (part * angle).sin() * b) / angle.sin()


def save_grid(images: Any, rows: int, columns: int, path: Path, title: str, caption: str) -> None:
    """Images of 28 by 28 side by side."""
    whole = np.asarray(images).reshape(rows, columns, 28, 28).transpose(0, 2, 1, 3)
    figure, axes = plt.subplots(
        figsize=(columns * 0.55 + 0.9, rows * 0.55 + 0.9), layout="constrained"
    )
    shown = axes.imshow(whole.reshape(rows * 28, columns * 28), cmap="gray_r", vmin=0, vmax=1)
    axes.set_title(title, fontsize=10)
    axes.axis("off")
    figure.colorbar(shown, ax=axes, shrink=0.6, label="ink")
    recipe.save(figure, path, caption)


@tc.no_grad()
def draw(model: VAE, dataset: MNIST, latent: int, folder: Path) -> None:
    """Reconstructions, samples and a walk, as PNG files."""
    model.eval()
    images, labels = next(iter(DataLoader(dataset, batch_size=100)))
    mean, _ = model.encode(images)
    rebuilt = model.decode(mean)

    pairs = tc.stack([images[:48].reshape(4, 12, 28, 28), rebuilt[:48].reshape(4, 12, 28, 28)], 1)
    save_grid(pairs.cpu().numpy(), 8, 12, folder / "reconstructions.png", "Reconstructions",
              f"Rows of test images; below each, what comes back from its {latent} "
              "numbers.")  # fmt: skip

    samples = model.decode(tc.randn(120, latent, device=mean.device))
    save_grid(samples.cpu().numpy(), 10, 12, folder / "samples.png", "Samples",
              f"Digits decoded from {latent} random numbers each.")  # fmt: skip

    # From the first 0 of the test images to the first 1, to the first 2, ...
    found = labels.tolist()
    stops = [found.index(digit) for digit in range(10) if digit in found]
    rows = [model.decode(between(mean[a], mean[b], 12)) for a, b in pairwise(stops)]
    walk = tc.cat(rows).cpu().numpy()
    save_grid(walk, len(rows), 12, folder / "walk.png", "From digit to digit",
              "Each row goes from a test image of one digit to one of the next.")  # fmt: skip


def main() -> int:
    args = arguments()
    train_set, test_set = recipe.mnist(args, transform=None)
    model = VAE(args.hidden, args.latent)
    recipe.describe(f"VAE, {args.latent} numbers a digit", model)
    batches = recipe.loader(args, Images(train_set))
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    of = recipe.caveat(test_set)
    history, report = recipe.train(
        args, model, bound, optimizer, batches,
        validation=DataLoader(Images(test_set), batch_size=1000),
        metrics={"rebuilding": rebuilding, "divergence": divergence},
        scheduler=optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(batches)),
        scheduler_interval="step", compile=True, target=args.target,
        show=lambda row: f"epoch {row['epoch'] + 1}  loss {row['train_loss']:.2f}  test: negative "
        f"ELBO {row['val_loss']:.2f} = {row['val_rebuilding']:.2f} rebuilding + "
        f"{row['val_divergence']:.2f} divergence{of}",
    )  # fmt: skip
    recipe.draw_losses(
        history, report, args.out / "loss.png", "VAE: loss while training",
        "negative ELBO, nats an image",
    )  # fmt: skip
    draw(model, test_set, args.latent, args.out)
    return recipe.missed(args, history["val_loss"][-1] <= (args.target or 0), " nats")


if __name__ == "__main__":
    recipe.run(main)
