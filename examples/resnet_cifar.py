"""Trains the residual network of He et al. (2015) for CIFAR-10, with random crops and flips.

By default ResNet-20: three stages of three blocks with 16, 32 and 64 channels, trained by SGD with
momentum and one cycle of learning rates. `--smoke` takes less than a minute on two cores.
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
from tinygrad_cuda.data import CIFAR10, DataLoader
from tinygrad_cuda.data import transforms as T
from tinygrad_cuda.nn import functional as F
from tinygrad_cuda.utils.metrics import accuracy

# Means and standard deviations of the pixels, by channel.
NORMALIZE = T.Normalize([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])


class Block(nn.Module):
    """Two 3x3 convolutions with batch norm, and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: tc.Tensor) -> tc.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Pictures of 3 x 32 x 32 to ten logits: stages at 32, 16 and 8 pixels, then their mean."""

    def __init__(self, width: int = 16, blocks: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.stages = nn.Sequential()
        inputs = width
        for stage in range(3):
            for number in range(blocks):
                outputs = width << stage
                self.stages.append(Block(inputs, outputs, 2 if stage and not number else 1))
                inputs = outputs
        self.head = nn.Linear(inputs, 10)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: tc.Tensor) -> tc.Tensor:
        return self.head(self.stages(F.relu(self.norm(self.stem(x)))).mean((2, 3)))


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = recipe.parser(
        __doc__, "resnet_cifar", epochs=30, batch_size=128, lr=0.4,
        smoke="20 small steps of a network with 4 channels, 500 tests",
        target="stop at this test accuracy, in percent", data="CIFAR-10's files (binary version)",
    )  # fmt: skip
    add = parser.add_argument
    add("--width", type=recipe.positive, metavar="N",
        help="channels of the first stage (default: 16; 4 with --smoke)")  # fmt: skip
    add("--blocks", type=recipe.positive, metavar="N",
        help="blocks a stage; depth 6 N + 2 (default: 3; 1 with --smoke)")  # fmt: skip
    add("--max-test", type=recipe.positive, metavar="N", help="test on the first N pictures only")
    add("--workers", type=int, default=2, metavar="N",
        help="threads that prepare pictures (default: %(default)s)")  # fmt: skip
    add("--weight-decay", type=float, default=5e-4, help="(default: %(default)s)")
    args = recipe.parse(parser, argv)
    if args.smoke:
        args.epochs, args.max_batches = 1, args.max_batches or 20
        args.max_test, args.batch_size = args.max_test or 500, min(args.batch_size, 32)
    args.width = args.width or (4 if args.smoke else 16)
    args.blocks = args.blocks or (1 if args.smoke else 3)
    return args


@tc.no_grad()
def predict(model: ResNet, dataset: CIFAR10) -> np.ndarray:
    """The likeliest class of each picture."""
    model.eval()
    loader = DataLoader(dataset, batch_size=500)
    return np.concatenate([model(images).argmax(1).cpu().numpy() for images, _ in loader])


def draw_confusion(guesses: np.ndarray, dataset: CIFAR10, path: Path) -> None:
    """How often each class is taken for each other."""
    counts = np.zeros((10, 10))
    np.add.at(counts, (dataset.targets, guesses), 1)
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    figure, axes = plt.subplots(figsize=(7, 6.4), layout="constrained")
    shown = axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    for row in range(10):
        for column in range(10):
            color = "white" if shares[row, column] > 50 else "black"
            axes.text(column, row, f"{shares[row, column]:.0f}", ha="center", va="center",
                      fontsize=8, color=color)  # fmt: skip
    axes.set_xticks(range(10), dataset.classes, rotation=45, ha="right")
    axes.set_yticks(range(10), dataset.classes)
    axes.set(xlabel="what the network says", ylabel="what it is", title="CIFAR-10: confusion")
    figure.colorbar(shown, ax=axes, shrink=0.8, label="percent of the row")
    recipe.save(figure, path, f"Shares of {len(guesses):,} test pictures, in percent of their "
                "class; the diagonal is right.")  # fmt: skip


def draw_guesses(guesses: np.ndarray, dataset: CIFAR10, path: Path) -> None:
    """The first test pictures and what they are taken for."""
    figure, grid = plt.subplots(4, 8, figsize=(9, 6), layout="constrained")
    figure.suptitle("The first test pictures and what the network says")
    for number, axes in enumerate(grid.flat):
        axes.axis("off")
        if number < len(guesses):
            right = guesses[number] == dataset.targets[number]
            axes.imshow(dataset.data[number].transpose(1, 2, 0))
            axes.set_title(dataset.classes[guesses[number]], fontsize=8,
                           color="black" if right else "tab:red")  # fmt: skip
    recipe.save(figure, path, "Red where it is wrong.")


def main() -> int:
    args = arguments()
    augment = T.Compose([T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), NORMALIZE])
    train_set = CIFAR10(args.data, train=True, transform=augment, download=True)
    test_set = CIFAR10(args.data, train=False, transform=NORMALIZE, download=True)
    if args.max_test:
        test_set.data, test_set.targets = (
            array[: args.max_test] for array in (test_set.data, test_set.targets)
        )
    print(f"data: CIFAR-10, {len(train_set):,} pictures to train on, {len(test_set):,} to test")
    model = ResNet(args.width, args.blocks)
    recipe.describe(f"ResNet-{6 * args.blocks + 2}", model)
    batches = recipe.loader(args, train_set, drop_last=True, num_workers=args.workers)
    optimizer = optim.SGD(
        model.parameters(), lr=args.lr, momentum=0.9, weight_decay=args.weight_decay, nesterov=True
    )
    history, report = recipe.train(
        args, model, nn.CrossEntropyLoss(), optimizer, batches,
        validation=DataLoader(test_set, batch_size=500), metrics={"accuracy": accuracy},
        scheduler=optim.lr_scheduler.OneCycleLR(optimizer, args.lr, args.epochs * len(batches)),
        scheduler_interval="step", monitor="val_accuracy", mode="max", compile=True,
        target=None if args.target is None else args.target / 100,
        show=lambda row: f"epoch {row['epoch'] + 1}  loss {row['train_loss']:.4f}  test accuracy "
        f"{100 * row['val_accuracy']:.2f} %",
    )  # fmt: skip
    recipe.draw_losses(history, report, args.out / "loss.png", "ResNet: loss while training")
    guesses = predict(model, test_set)
    draw_confusion(guesses, test_set, args.out / "confusion.png")
    draw_guesses(guesses, test_set, args.out / "guesses.png")
    reached = 100 * history["val_accuracy"][-1] >= (args.target or 0)
    return recipe.missed(args, reached, " %")


if __name__ == "__main__":
    recipe.run(main)
