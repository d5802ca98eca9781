"""Trains LeNet-5 on MNIST and draws its filters and what it looks at.

Two convolutions of 5 by 5 (6 and 16 filters), then 120, 84 and 10 units; trained by Adam.
`python examples/lenet.py --smoke` takes less than a minute on two cores.
"""

from __future__ import annotations

import argparse
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

# Mean and standard deviation of MNIST's pixels.
NORMALIZE = Normalize([0.1307], [0.3081])


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


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--epochs", type=int, default=10, help="(default: %(default)s)")
    add("--batch-size", type=int, default=128, help="images a step (default: %(default)s)")
    add("--lr", type=float, default=2e-3, help="learning rate at first; falls as half a cosine")
    add("--max-batches", type=int, metavar="N", help="stop each epoch after N steps")
    add("--smoke", action="store_true", help="one epoch of 60 steps, to see that it works")
    add("--target", type=float, metavar="ACC", help="fail below this accuracy, in percent")
    add("--device", help="cpu, cuda, cuda:1, ... or emu (default: a usable GPU, else cpu)")
    add("--data", metavar="DIR", help="folder with MNIST's files (default: $TGC_DATA, the cache)")
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    add("--out", type=Path, default=Path("lenet"), metavar="DIR", help="folder for the pictures")
    args = parser.parse_args()
    if args.smoke:
        args.epochs, args.max_batches = 1, args.max_batches or 60
    return args


def train(
    model: LeNet, loader: DataLoader, optimizer: Any, schedule: Any, steps: int, title: str
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
            bar.update()
    # Read only now: a number read in the loop would make the program wait for the device.
    return [loss.item() for loss in losses]


@tc.no_grad()
def evaluate(model: LeNet, dataset: MNIST) -> float:
    """The percentage of images whose class is recognized."""
    model.eval()
    right = tc.zeros(())
    for images, labels in DataLoader(dataset, batch_size=1000):
        right += (model(images).argmax(1) == labels).sum()
    return 100 * float(right) / len(dataset)


def draw_filters(model: LeNet, path: Path) -> None:
    """The kernels of both convolutions: six of one channel, sixteen of six."""
    first, second = (w.detach().cpu().numpy() for w in (model.conv1.weight, model.conv2.weight))
    figure = plt.figure(figsize=(9, 7), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=[1, 3])
    upper.suptitle("first convolution: 6 filters of 5 x 5")
    for axes, kernel in zip(upper.subplots(1, 6), first[:, 0]):
        axes.imshow(kernel, cmap="RdBu", vmin=-abs(first).max(), vmax=abs(first).max())
        axes.axis("off")
    lower.suptitle("second convolution: 16 filters (columns) of 6 channels (rows)")
    for row, channel in zip(lower.subplots(6, 16), second.transpose(1, 0, 2, 3)):
        for axes, kernel in zip(row, channel):
            axes.imshow(kernel, cmap="RdBu", vmin=-abs(second).max(), vmax=abs(second).max())
            axes.axis("off")
    figure.savefig(path, dpi=110)
    plt.close(figure)


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
    figure, grid = plt.subplots(4, count // 2, figsize=(9, 5), layout="constrained")
    for number in range(count):
        top, bottom = grid[2 * (number // (count // 2)) :, number % (count // 2)][:2]
        top.imshow(dataset.data[number], cmap="gray_r")
        bottom.imshow(dataset.data[number], cmap="gray_r")
        bottom.imshow(heat[number], cmap="jet", alpha=0.55, vmin=0, vmax=1)
        wrong = guesses[number] != labels[number].item()
        top.set_title(str(guesses[number]), fontsize=9, color="tab:red" if wrong else "black")
        top.axis("off")
        bottom.axis("off")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> int:
    args = arguments()
    if args.device:
        tc.set_default_device(args.device)
    tc.manual_seed(args.seed)
    train_set = MNIST(args.data, train=True, transform=NORMALIZE, download=True)
    test_set = MNIST(args.data, train=False, transform=NORMALIZE, download=True)
    print(f"data: {train_set.source}, {len(train_set):,} images to train on, {len(test_set):,} "
          "to test")  # fmt: skip
    model = LeNet()
    print(f"model: LeNet, {sum(p.numel() for p in model.parameters()):,} parameters, "
          f"on {tc.get_default_device()}")  # fmt: skip

    loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, seed=args.seed)
    steps = min(len(loader), args.max_batches or len(loader))
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, args.epochs * steps))
    accuracy = 0.0
    start = time.perf_counter()
    for epoch in range(1, args.epochs + 1):
        losses = train(model, loader, optimizer, schedule, steps, f"epoch {epoch}")
        accuracy = evaluate(model, test_set)
        print(
            f"epoch {epoch}  loss {np.mean(losses):.4f}  "
            f"test accuracy {accuracy:.2f} %  {time.perf_counter() - start:.1f} s"
        )
    args.out.mkdir(parents=True, exist_ok=True)
    draw_filters(model, args.out / "filters.png")
    draw_attention(model, test_set, args.out / "attention.png")
    print(f"pictures: {args.out / 'filters.png'}, {args.out / 'attention.png'}")
    if args.target is not None and accuracy < args.target:
        print(f"the target of {args.target} % was missed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
