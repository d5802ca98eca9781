"""Trains a small residual network on MNIST, then folds its batch norms for inference.

Six 3x3 convolutions in three residual blocks with batch norm and max pooling, trained by Adam with
one cycle of learning rates. `python examples/resnet_mnist.py --smoke` takes less than a minute.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from tqdm import tqdm

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.data import MNIST, DataLoader, Normalize
from tinygrad_cuda.nn import functional as F
from tinygrad_cuda.nn.utils import fuse_conv_bn_eval

# Mean and standard deviation of MNIST's pixels.
NORMALIZE = Normalize([0.1307], [0.3081])


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


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--epochs", type=int, default=3, help="(default: %(default)s)")
    add("--batch-size", type=int, default=128, help="images a step (default: %(default)s)")
    add("--lr", type=float, default=0.01, help="the highest learning rate (default: %(default)s)")
    add("--width", type=int, help="channels of the first block (default: 32; 8 with --smoke)")
    add("--max-batches", type=int, metavar="N", help="stop each epoch after N steps")
    add("--max-test", type=int, metavar="N", help="test on the first N images only")
    add("--smoke", action="store_true", help="20 small steps, 8 channels, 300 tests")
    add("--target", type=float, metavar="ACC", help="fail below this accuracy, in percent")
    add("--device", help="cpu, cuda, cuda:1, ... or emu (default: a usable GPU, else cpu)")
    add("--data", metavar="DIR", help="folder with MNIST's files (default: $TGC_DATA, the cache)")
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    add("--out", type=Path, default=Path("resnet_mnist"), metavar="DIR", help="for all files")
    args = parser.parse_args()
    if args.smoke:
        args.epochs, args.max_batches = 1, args.max_batches or 20
        args.max_test, args.batch_size = args.max_test or 300, min(args.batch_size, 64)
    args.width = args.width or (8 if args.smoke else 32)
    return args


def train(
    model: ResNet, loader: DataLoader, optimizer: Any, schedule: Any, steps: int, title: str
) -> list[float]:
    """One epoch; returns the loss of every step."""

    @tc.compile
    def step(images: tc.Tensor, labels: tc.Tensor) -> tc.Tensor:
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses: list[tc.Tensor] = []
    model.train()
    with tqdm(total=steps, desc=title, unit="batch", leave=False) as bar:
        for images, labels in loader:
            if len(losses) == steps:
                break
            losses.append(step(images, labels))
            schedule.step()
            bar.update()
    # Read only now: a number read in the loop would make the program wait for the device.
    return [loss.item() for loss in losses]


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
        f"{len(dataset):,} classes the same, {after:,.0f} images/s instead of {before:,.0f}"
    )
    return error < 1e-4


def draw_losses(losses: list[float], steps: int, path: Path) -> None:
    """The loss of every step and its running mean."""
    window = max(1, len(losses) // 50)
    smooth = np.convolve(losses, np.ones(window) / window, mode="valid")
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    epochs = (np.arange(len(losses)) + 1) / steps
    axes.plot(epochs, losses, color="tab:blue", alpha=0.25, linewidth=0.8, label="each step")
    axes.plot(epochs[window - 1 :], smooth, color="tab:blue", label=f"mean of {window}")
    axes.set(xlabel="epoch", ylabel="cross-entropy", yscale="log", title="Training loss")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_doubts(logits: np.ndarray, dataset: MNIST, path: Path, count: int = 40) -> None:
    """The test images that the network likes least as what they are."""
    chances = np.exp(logits - logits.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    right = chances[np.arange(len(chances)), dataset.targets]
    figure, grid = plt.subplots(5, 8, figsize=(9, 6.6), layout="constrained")
    figure.suptitle("least sure: what it says (how surely), what it is")
    for axes, number in zip(grid.flat, np.argsort(right, kind="stable")[:count]):
        guess = int(chances[number].argmax())
        wrong = guess != dataset.targets[number]
        axes.imshow(dataset.data[number], cmap="gray_r")
        axes.set_title(
            f"{guess} ({chances[number, guess]:.0%}), {dataset.targets[number]}",
            fontsize=8, color="tab:red" if wrong else "black",
        )  # fmt: skip
        axes.axis("off")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    args = arguments()
    if args.device:
        tc.set_default_device(args.device)
    tc.manual_seed(args.seed)
    train_set = MNIST(args.data, train=True, transform=NORMALIZE, download=True)
    test_set = MNIST(args.data, train=False, transform=NORMALIZE, download=True)
    if args.max_test:
        test_set.data, test_set.targets = (
            array[: args.max_test] for array in (test_set.data, test_set.targets)
        )
    print(f"data: {train_set.source}, {len(train_set):,} images to train on, {len(test_set):,} "
          "to test")  # fmt: skip
    model = ResNet(args.width)
    print(f"model: ResNet, {sum(p.numel() for p in model.parameters()):,} parameters, "
          f"on {tc.get_default_device()}")  # fmt: skip

    # A short last batch would be another plan, and its batch statistics are the noisiest.
    loader = DataLoader(
        train_set, batch_size=args.batch_size, shuffle=True, drop_last=True, seed=args.seed
    )
    steps = min(len(loader), args.max_batches or len(loader))
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, args.lr, args.epochs * steps)
    logits, accuracy, losses = np.empty((0, 10)), 0.0, []
    start = time.perf_counter()
    for epoch in range(1, args.epochs + 1):
        losses += train(model, loader, optimizer, schedule, steps, f"epoch {epoch}")
        logits = predict(model, test_set)
        accuracy = 100 * float((logits.argmax(1) == test_set.targets).mean())
        print(
            f"epoch {epoch}  loss {np.mean(losses[-steps:]):.4f}  "
            f"test accuracy {accuracy:.2f} %  {time.perf_counter() - start:.1f} s"
        )
    equal = compare_folded(model, test_set, logits)
    args.out.mkdir(parents=True, exist_ok=True)
    save_classifier(model, args.out / "resnet.safetensors")
    draw_losses(losses, steps, args.out / "loss.png")
    draw_doubts(logits, test_set, args.out / "doubts.png")
    print(f"checkpoint: {args.out / 'resnet.safetensors'}")
    print(f"pictures: {args.out / 'loss.png'}, {args.out / 'doubts.png'}")
    if not equal:
        print("the folded network differs from the trained one", file=sys.stderr)
        return 1
    if args.target is not None and accuracy < args.target:
        print(f"the target of {args.target} % was missed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
