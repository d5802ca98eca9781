"""Trains a multi-layer perceptron on MNIST and prints its accuracy on the test images.

By default 784-128-10 with ReLU; `python examples/mlp.py --help` lists what can be changed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import recipe
from matplotlib import pyplot as plt

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.data import MNIST, DataLoader
from tinygrad_cuda.utils.metrics import accuracy


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = recipe.parser(
        __doc__, "mlp", epochs=5, batch_size=128, lr=0.1, smoke="one epoch of 60 steps",
        target="stop at this test accuracy, in percent",
    )  # fmt: skip
    parser.add_argument("--layers", type=recipe.positive, nargs="*", default=[128], metavar="N",
                        help="sizes of hidden layers (default: 128)")  # fmt: skip
    parser.add_argument("--momentum", type=float, default=0.9, help="(default: %(default)s)")
    args = recipe.parse(parser, argv)
    if args.smoke:
        args.epochs, args.max_batches = 1, args.max_batches or 60
    return args


def build(hidden: list[int]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    sizes = [784, *hidden, 10]
    model = nn.Sequential(nn.Flatten())
    for number, (inputs, outputs) in enumerate(pairwise(sizes)):
        if number:
            model.append(nn.ReLU())
        model.append(nn.Linear(inputs, outputs))
    return model


@tc.no_grad()
def draw_predictions(model: nn.Module, dataset: MNIST, path: Path, count: int = 40) -> None:
    """The first test images with what the model takes them for."""
    model.eval()
    images, labels = next(iter(DataLoader(dataset, batch_size=count)))
    chance, guess = (part.cpu().numpy() for part in model(images).softmax(1).max(1))
    figure, grid = plt.subplots(5, 8, figsize=(9, 6.8), layout="constrained")
    figure.suptitle("The first test images and what the model says")
    for axes, image, label, number, share in zip(
        grid.flat, dataset.data[:count], labels.tolist(), guess, chance
    ):
        axes.imshow(image, cmap="gray_r")
        color = "black" if number == label else "tab:red"
        wrong = "" if number == label else f", is {label}"
        axes.set_title(f"{number} ({share:.0%}){wrong}", fontsize=9, color=color)
    for axes in grid.flat:
        axes.axis("off")
    caption = "Above each image the likeliest digit and its probability; red where it is wrong."
    recipe.save(figure, path, caption + recipe.caveat(dataset))


def main() -> int:
    args = arguments()
    train_set, test_set = recipe.mnist(args)
    model = build(args.layers)
    recipe.describe(f"{'-'.join(map(str, [784, *args.layers, 10]))} with ReLU", model)
    batches = recipe.loader(args, train_set)
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    of = recipe.caveat(test_set)
    history, report = recipe.train(
        args, model, nn.CrossEntropyLoss(), optimizer, batches,
        validation=DataLoader(test_set, batch_size=2000), metrics={"accuracy": accuracy},
        scheduler=optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(batches)),
        scheduler_interval="step", monitor="val_accuracy", mode="max", compile=True,
        target=None if args.target is None else args.target / 100,
        show=lambda row: f"epoch {row['epoch'] + 1}  loss {row['train_loss']:.4f}  test accuracy "
        f"{100 * row['val_accuracy']:.2f} %{of}",
    )  # fmt: skip
    recipe.draw_losses(history, report, args.out / "loss.png", "MLP: loss while training")
    draw_predictions(model, test_set, args.out / "predictions.png")
    reached = 100 * history["val_accuracy"][-1] >= (args.target or 0)
    return recipe.missed(args, reached, " %")


if __name__ == "__main__":
    recipe.run(main)
