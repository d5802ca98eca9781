"""Trains LeNet-5 on MNIST and draws its filters and what it looks at.

Two convolutions of 5 by 5 (6 and 16 filters), then 120, 84 and 10 units; trained by Adam.
`python examples/lenet.py --smoke` takes less than a minute on two cores.
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
from tinygrad_cuda.data import MNIST, DataLoader
from tinygrad_cuda.nn import functional as F
from tinygrad_cuda.utils.metrics import accuracy


class LeNet(nn.Module):
    """LeCun et al. (1998), with ReLU and max pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def features(self, x: tc.Tensor) -> tc.Tensor:
        """The maps of the second convolution, shape (N, 16, 10, 10)."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        return F.relu(self.conv2(x))

    def classify(self, maps: tc.Tensor) -> tc.Tensor:
        """Logits from these maps."""
        x = F.max_pool2d(maps, 2).flatten(1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)

    def forward(self, x: tc.Tensor) -> tc.Tensor:
        return self.classify(self.features(x))


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = recipe.parser(
        __doc__, "lenet", epochs=10, batch_size=128, lr=2e-3, smoke="one epoch of 60 steps",
        target="stop at this test accuracy, in percent",
    )  # fmt: skip
    args = recipe.parse(parser, argv)
    if args.smoke:
        args.epochs, args.max_batches = 1, args.max_batches or 60
    return args


def draw_filters(model: LeNet, path: Path) -> None:
    """The kernels of both convolutions: six of one channel, sixteen of six."""
    first, second = (w.detach().cpu().numpy() for w in (model.conv1.weight, model.conv2.weight))
    figure = plt.figure(figsize=(9, 7.6), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=[1, 3])
    upper.suptitle("first convolution: 6 filters of 5 x 5")
    grid = upper.subplots(1, 6)
    for axes, kernel in zip(grid, first[:, 0]):
        shown = axes.imshow(kernel, cmap="RdBu", vmin=-abs(first).max(), vmax=abs(first).max())
        axes.axis("off")
    upper.colorbar(shown, ax=grid, label="weight")
    lower.suptitle("second convolution: 16 filters (columns) of 6 channels (rows)")
    grid = lower.subplots(6, 16)
    for row, channel in zip(grid, second.transpose(1, 0, 2, 3)):
        for axes, kernel in zip(row, channel):
            shown = axes.imshow(kernel, cmap="RdBu", vmin=-abs(second).max(),
                                vmax=abs(second).max())  # fmt: skip
            axes.axis("off")
    lower.colorbar(shown, ax=grid, label="weight")
    recipe.save(figure, path, "Each square is a kernel of 5 x 5 weights: blue adds, red "
                "subtracts.")  # fmt: skip


def attention_maps(model: LeNet, images: tc.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Grad-CAM (Selvaraju et al., 2017): where the maps speak for the chosen class.

    Each map is weighted by the mean of its gradient; the sum's positive part is enlarged to the
    size of the image.
    """
    model.eval()
    maps = model.features(images)
    maps.retain_grad()
    logits = model.classify(maps)
    logits.amax(1).sum().backward()
    weights = maps.grad.mean((2, 3), keepdim=True)
    heat = F.relu((weights * maps).sum(1, keepdim=True)).detach()
    heat = F.interpolate(heat, size=28, mode="bilinear")
    heat = heat / heat.amax((2, 3), keepdim=True).clamp(min=1e-12)
    return heat.squeeze(1).cpu().numpy(), logits.argmax(1).cpu().numpy()


def draw_attention(model: LeNet, dataset: MNIST, path: Path, count: int = 16) -> None:
    """Test images, with the places that speak for their class in colour."""
    images, labels = next(iter(DataLoader(dataset, batch_size=count)))
    heat, guesses = attention_maps(model, images)
    figure, grid = plt.subplots(4, count // 2, figsize=(9, 5.6), layout="constrained")
    figure.suptitle("What LeNet looks at (Grad-CAM)")
    for number in range(count):
        top, bottom = grid[2 * (number // (count // 2)) :, number % (count // 2)][:2]
        top.imshow(dataset.data[number], cmap="gray_r")
        bottom.imshow(dataset.data[number], cmap="gray_r")
        shown = bottom.imshow(heat[number], cmap="jet", alpha=0.55, vmin=0, vmax=1)
        wrong = guesses[number] != labels[number].item()
        top.set_title(str(guesses[number]), fontsize=9, color="tab:red" if wrong else "black")
        top.axis("off")
        bottom.axis("off")
    figure.colorbar(shown, ax=grid, label="share of the strongest")
    recipe.save(figure, path, "Test images with the digit that the network says (red where it is "
                "wrong); below each, where its last maps speak for that digit.")  # fmt: skip


def main() -> int:
    args = arguments()
    train_set, test_set = recipe.mnist(args)
    model = LeNet()
    recipe.describe("LeNet", model)
    batches = recipe.loader(args, train_set)
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    of = recipe.caveat(test_set)
    history, report = recipe.train(
        args, model, nn.CrossEntropyLoss(), optimizer, batches,
        validation=DataLoader(test_set, batch_size=1000), metrics={"accuracy": accuracy},
        scheduler=optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(batches)),
        scheduler_interval="step", monitor="val_accuracy", mode="max", compile=True,
        target=None if args.target is None else args.target / 100,
        show=lambda row: f"epoch {row['epoch'] + 1}  loss {row['train_loss']:.4f}  test accuracy "
        f"{100 * row['val_accuracy']:.2f} %{of}",
    )  # fmt: skip
    recipe.draw_losses(history, report, args.out / "loss.png", "LeNet-5: loss while training")
    draw_filters(model, args.out / "filters.png")
    draw_attention(model, test_set, args.out / "attention.png")
    reached = 100 * history["val_accuracy"][-1] >= (args.target or 0)
    return recipe.missed(args, reached, " %")


if __name__ == "__main__":
    recipe.run(main)
