"""Trains a small residual network on MNIST, then folds its batch norms for inference.

Six 3x3 convolutions in three residual blocks with batch norm and max pooling, trained by Adam with
one cycle of learning rates. `python examples/resnet_mnist.py --smoke` takes less than a minute.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import recipe
from matplotlib import pyplot as plt

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.data import MNIST, DataLoader
from tinygrad_cuda.nn import functional as F
from tinygrad_cuda.nn.utils import fuse_conv_bn_eval
from tinygrad_cuda.utils.metrics import accuracy


class Block(nn.Module):
    """Two 3x3 convolutions with batch norm, and a shortcut around them (He et al., 2015)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn1: nn.Module = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2: nn.Module = nn.BatchNorm2d(outputs)
        same = inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, x: tc.Tensor) -> tc.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))

    def fold(self) -> None:
        """Puts both batch norms into the convolutions before them; for inference only."""
        self.conv1, self.bn1 = fuse_conv_bn_eval(self.conv1, self.bn1), nn.Identity()
        self.conv2, self.bn2 = fuse_conv_bn_eval(self.conv2, self.bn2), nn.Identity()


class ResNet(nn.Module):
    """Images of 28 x 28 to ten logits: blocks at 28, 14 and 7 pixels, then their mean."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.width = width
        self.stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(width)
        self.block1 = Block(width, width)
        self.block2 = Block(width, 2 * width)
        self.block3 = Block(2 * width, 4 * width)
        self.head = nn.Linear(4 * width, 10)

    def forward(self, x: tc.Tensor) -> tc.Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = F.max_pool2d(self.block1(x), 2)
        x = F.max_pool2d(self.block2(x), 2)
        return self.head(self.block3(x).mean((2, 3)))

    def folded(self) -> ResNet:
        """A copy for inference, without batch norm: seven norms' work is in the weights."""
        model = copy.deepcopy(self).eval()
        model.stem, model.norm = fuse_conv_bn_eval(model.stem, model.norm), nn.Identity()
        for block in (model.block1, model.block2, model.block3):
            block.fold()
        return model


def save_classifier(model: ResNet, path: Path) -> None:
    """A safetensors file with the weights and what is needed to build the network."""
    tc.save({"width": model.width, "model": model.state_dict()}, path)


def load_classifier(path: Path) -> ResNet:
    """The network of `save_classifier` on the default device, folded."""
    saved = tc.load(path, map_location=tc.get_default_device())
    model = ResNet(saved["width"])
    model.load_state_dict(saved["model"])
    return model.eval().folded()


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = recipe.parser(
        __doc__, "resnet_mnist", epochs=3, batch_size=128, lr=0.01,
        smoke="20 small steps, 8 channels, 300 tests",
        target="stop at this test accuracy, in percent",
    )  # fmt: skip
    add = parser.add_argument
    add("--width", type=recipe.positive, metavar="N",
        help="channels of the first block (default: 32; 8 with --smoke)")  # fmt: skip
    add("--max-test", type=recipe.positive, metavar="N", help="test on the first N images only")
    args = recipe.parse(parser, argv)
    if args.smoke:
        args.epochs, args.max_batches = 1, args.max_batches or 20
        args.max_test, args.batch_size = args.max_test or 300, min(args.batch_size, 64)
    args.width = args.width or (8 if args.smoke else 32)
    return args


@tc.no_grad()
def predict(model: ResNet, dataset: MNIST, batch_size: int = 1000) -> np.ndarray:
    """The logits of all images, shape (n, 10)."""
    model.eval()
    loader = DataLoader(dataset, batch_size=batch_size)
    return np.concatenate([model(images).cpu().numpy() for images, _ in loader])


@tc.no_grad()
def speed(model: ResNet, images: tc.Tensor, repeats: int = 5) -> float:
    """Images a second, inference only: the median over some batches that are on the device."""
    model.eval()
    times = []
    for _ in range(repeats + 3):
        start = time.perf_counter()
        model(images).amax().item()
        times.append(time.perf_counter() - start)
    return len(images) / float(np.median(times[3:]))


def compare_folded(model: ResNet, dataset: MNIST, logits: np.ndarray) -> bool:
    """Checks the folded network against the trained one, and prints what folding gains."""
    folded = model.folded()
    fast = predict(folded, dataset)
    error = float(abs(fast - logits).max() / abs(logits).max())
    same = int((fast.argmax(1) == logits.argmax(1)).sum())
    images, _ = next(iter(DataLoader(dataset, batch_size=max(1, len(dataset) // 10))))
    before, after = (speed(network, images) for network in (model, folded))
    print(
        f"folded: largest difference {error:.1e} of the largest logit, {same:,} of "
        f"{len(dataset):,} classes the same\n"
        f"folded: {after:,.0f} images/s instead of {before:,.0f}"
    )
    return error < 1e-4


def draw_doubts(logits: np.ndarray, dataset: MNIST, path: Path, count: int = 40) -> None:
    """The test images that the network likes least as what they are."""
    chances = np.exp(logits - logits.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    right = chances[np.arange(len(chances)), dataset.targets]
    figure, grid = plt.subplots(5, 8, figsize=(9, 7), layout="constrained")
    figure.suptitle("The test images that the network doubts most")
    for axes, number in zip(grid.flat, np.argsort(right, kind="stable")[:count]):
        guess = int(chances[number].argmax())
        wrong = guess != dataset.targets[number]
        axes.imshow(dataset.data[number], cmap="gray_r")
        axes.set_title(
            f"{guess} ({chances[number, guess]:.0%}), {dataset.targets[number]}",
            fontsize=8, color="tab:red" if wrong else "black",
        )  # fmt: skip
    for axes in grid.flat:
        axes.axis("off")
    recipe.save(figure, path, "Above each image: what the network says (and how surely), what it "
                "is; red where these differ.")  # fmt: skip


def main() -> int:
    args = arguments()
    train_set, test_set = recipe.mnist(args)
    if args.max_test:
        test_set.data, test_set.targets = (
            array[: args.max_test] for array in (test_set.data, test_set.targets)
        )
    model = ResNet(args.width)
    recipe.describe("ResNet", model)
    # A short last batch would be another plan, and its batch statistics are the noisiest.
    batches = recipe.loader(args, train_set, drop_last=True)
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    of = recipe.caveat(test_set)
    history, report = recipe.train(
        args, model, nn.CrossEntropyLoss(), optimizer, batches,
        validation=DataLoader(test_set, batch_size=1000), metrics={"accuracy": accuracy},
        scheduler=optim.lr_scheduler.OneCycleLR(optimizer, args.lr, args.epochs * len(batches)),
        scheduler_interval="step", monitor="val_accuracy", mode="max", compile=True,
        target=None if args.target is None else args.target / 100,
        show=lambda row: f"epoch {row['epoch'] + 1}  loss {row['train_loss']:.4f}  test accuracy "
        f"{100 * row['val_accuracy']:.2f} %{of}",
    )  # fmt: skip
    logits = predict(model, test_set)
    equal = compare_folded(model, test_set, logits)
    save_classifier(model, args.out / "resnet.safetensors")
    print(f"classifier: {args.out / 'resnet.safetensors'}")
    recipe.draw_losses(history, report, args.out / "loss.png", "ResNet: loss while training")
    draw_doubts(logits, test_set, args.out / "doubts.png")
    if not equal:
        print("the folded network differs from the trained one", file=sys.stderr)
        return 1
    reached = 100 * history["val_accuracy"][-1] >= (args.target or 0)
    return recipe.missed(args, reached, " %")


if __name__ == "__main__":
    recipe.run(main)
