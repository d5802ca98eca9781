"""Diffusion on MNIST: a tiny denoiser by SGD, and a DDPM U-Net that draws digits.

`--part denoiser` trains two convolutions on pictures of 4 x 64 x 64, `--part unet` a U-Net on
digits of 32 x 32; `--evaluate` lets the network of resnet_mnist.py judge 1000 drawn digits.
`python examples/diffusion.py --smoke` takes less than a minute on two cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from ddpm import Denoiser, Schedule, UNet
from matplotlib import pyplot as plt
from resnet_mnist import NORMALIZE, load_classifier
from tqdm import tqdm

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.data import MNIST, DataLoader
from tinygrad_cuda.nn import functional as F
from tinygrad_cuda.optim.swa_utils import AveragedModel, get_ema_avg_fn

SURE = 0.9  # the probability from which on a drawn digit counts as recognized


class Prepare:
    """Pixels from 0 to 1 become -1 to 1, with two pixels of -1 around: 32 x 32."""

    batched = True

    def __call__(self, images: np.ndarray) -> np.ndarray:
        padding = [(0, 0)] * (images.ndim - 2) + [(2, 2), (2, 2)]
        return np.pad(2 * images - 1, padding, constant_values=-1)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--part", choices=["denoiser", "unet", "both"], default="both")
    add("--epochs", type=int, help="(default: 1 for the denoiser, 36 for the U-Net)")
    add("--batch-size", type=int, default=128, help="images a step (default: %(default)s)")
    add("--lr", type=float, default=1e-3, help="the U-Net's highest rate (default: %(default)s)")
    add("--sgd-lr", type=float, default=0.05, help="the denoiser's (default: %(default)s)")
    add("--width", type=int, help="the U-Net's channels at full size (default: 32; smoke: 8)")
    add("--steps", type=int, help="steps of the diffusion (default: 1000; smoke: 40)")
    add("--ema", type=float, default=0.999, help="decay of the averaged weights")
    add("--max-batches", type=int, metavar="N", help="stop each epoch after N steps")
    add("--load", type=Path, metavar="FILE", help="a trained U-Net, instead of training one")
    add("--evaluate", action="store_true", help="classify drawn digits by resnet_mnist.py's net")
    add("--samples", type=int, default=1000, help="digits to evaluate (default: %(default)s)")
    add("--classifier", type=Path, default=Path("resnet_mnist/resnet.safetensors"), metavar="FILE")
    add("--target", type=float, metavar="SHARE", help="fail if fewer percent are recognized, or "
        "if a class has less than 3 percent")  # fmt: skip
    add("--smoke", action="store_true", help="a few steps of small networks, to see that it works")
    add("--device", help="cpu, cuda, cuda:1, ... or emu (default: a usable GPU, else cpu)")
    add("--data", metavar="DIR", help="folder with MNIST's files (default: $TGC_DATA, the cache)")
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    add("--out", type=Path, default=Path("diffusion"), metavar="DIR", help="for all files")
    args = parser.parse_args()
    if args.smoke:
        args.epochs, args.max_batches = 1, args.max_batches or 8
        args.batch_size = min(args.batch_size, 16)
    args.width = args.width or (8 if args.smoke else 32)
    args.steps = args.steps or (40 if args.smoke else 1000)
    return args


def progress(batches: Any, steps: int, title: str) -> Any:
    """The first batches, with a bar."""
    with tqdm(total=steps, desc=title, unit="batch", leave=False) as bar:
        for number, batch in enumerate(batches):
            if number == steps:
                break
            yield batch
            bar.update()


def questions(schedule: Schedule, count: int) -> tuple[np.ndarray, np.random.Generator]:
    """Steps spread evenly over all, in a fixed random order, and a source of fixed noise."""
    random = np.random.default_rng(1)
    return random.permutation(count) * schedule.steps // count, random


# The small denoiser


def quartets(images: tc.Tensor) -> tc.Tensor:
    """Four digits become the channels of one picture of 64 x 64."""
    return F.interpolate(images.reshape(-1, 4, 32, 32), scale_factor=2)


def train_denoiser(args: argparse.Namespace, schedule: Schedule, data: MNIST, test: MNIST) -> bool:
    """SGD on the squared error of the noise; whether the held-out loss fell from the start."""
    model = Denoiser()
    optimizer = optim.SGD(model.parameters(), lr=args.sgd_lr)
    size = min(args.batch_size, 64)
    pictures = quartets(next(iter(DataLoader(test, batch_size=4 * size)))[0])
    steps_of, random = questions(schedule, size)
    t = tc.tensor(steps_of)
    noise = tc.tensor(random.standard_normal(pictures.shape, dtype=np.float32))
    noisy = schedule.add_noise(pictures, t, noise)

    @tc.compile
    def step(images: tc.Tensor) -> tuple[tc.Tensor, tc.Tensor]:
        """An update; returns its loss before it, and that of the held-out pictures after it."""
        x = quartets(images)
        t = tc.randint(0, schedule.steps, (size,))
        eps = tc.randn_like(x)
        loss = F.mse_loss(model(schedule.add_noise(x, t, eps)), eps)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with tc.no_grad():
            return loss.detach(), F.mse_loss(model(noisy), noise)

    with tc.no_grad():
        held_out = [F.mse_loss(model(noisy), noise)]
    losses: list[tc.Tensor] = []
    loader = DataLoader(data, batch_size=4 * size, shuffle=True, drop_last=True, seed=args.seed)
    steps = min(len(loader), args.max_batches or len(loader))
    for epoch in range(1, (args.epochs or 1) + 1):
        for images, _ in progress(loader, steps, f"denoiser {epoch}"):
            loss, after = step(images)
            losses.append(loss)
            held_out.append(after)
    curve = [float(value) for value in held_out]
    first = ", ".join(f"{value:.4f}" for value in curve[:6])
    print(f"denoiser: held-out loss {first}, ... after each update; {curve[-1]:.4f} at the end")
    draw_curves(
        {"each step": [float(value) for value in losses], "held out": curve},
        "updates", args.out / "denoiser_loss.png",
    )  # fmt: skip
    start = tc.randn(4, 4, 64, 64)
    film, times = film_of(schedule, lambda x, t: model(x), start)
    draw_film(film[:, :1], times, args.out / "denoiser_steps.png")
    print(f"denoiser: after {schedule.steps} reverse steps the standard deviation is "
          f"{film[-1].std():.3f}, from {film[0].std():.3f}")  # fmt: skip
    few = min(10, len(curve) - 1)
    return all(after < before for before, after in pairwise(curve[: few + 1]))


# The U-Net


def train_unet(args: argparse.Namespace, schedule: Schedule, data: MNIST, test: MNIST) -> UNet:
    """Adam on the squared error of the noise; returns the network with averaged weights."""
    model = UNet(args.width, args.steps)
    print(f"U-Net: {sum(p.numel() for p in model.parameters()):,} parameters")
    average = AveragedModel(model, avg_fn=get_ema_avg_fn(args.ema))
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    loader = DataLoader(
        data, batch_size=args.batch_size, shuffle=True, drop_last=True, num_workers=2,
        seed=args.seed,
    )  # fmt: skip
    steps = min(len(loader), args.max_batches or len(loader))
    epochs = args.epochs or 36
    rates = optim.lr_scheduler.OneCycleLR(optimizer, args.lr, epochs * steps, pct_start=0.1)

    @tc.compile
    def step(images: tc.Tensor) -> tc.Tensor:
        t = tc.randint(0, schedule.steps, (images.shape[0],))
        noise = tc.randn_like(images)
        loss = F.mse_loss(model(schedule.add_noise(images, t, noise), t), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        return loss.detach()

    losses: list[float] = []
    held_out: list[float] = []
    start = time.perf_counter()
    for epoch in range(1, epochs + 1):
        fresh = []
        for images, _ in progress(loader, steps, f"U-Net {epoch}"):
            fresh.append(step(images))
            rates.step()
        # Read only now: a number read in the loop would make the program wait for the device.
        losses += [float(loss) for loss in fresh]
        held_out.append(noise_error(average, schedule, test, 32 if args.smoke else 2000))
        print(f"epoch {epoch}  loss {np.mean(losses[-steps:]):.4f}  held-out noise MSE "
              f"{held_out[-1]:.4f}  {time.perf_counter() - start:.1f} s", flush=True)  # fmt: skip
    curves = {"each step": losses, "held out, averaged weights": held_out}
    draw_curves(curves, "epochs", args.out / "unet_loss.png")
    path = args.out / "unet.safetensors"
    saved = {"width": args.width, "steps": args.steps, "model": average.module.state_dict()}
    tc.save(saved, path)
    print(f"checkpoint: {path}")
    return average.module


def load_unet(path: Path) -> UNet:
    """The network that `train_unet` has saved."""
    saved = tc.load(path, map_location=tc.get_default_device())
    model = UNet(saved["width"], saved["steps"])
    model.load_state_dict(saved["model"])
    return model


@tc.no_grad()
def noise_error(model: nn.Module, schedule: Schedule, test: MNIST, count: int) -> float:
    """The squared error of the noise on test images, with fixed noise and steps 0 to T - 1."""
    times, random = questions(schedule, count)
    total, size = 0.0, min(count, 500)
    loader = DataLoader(test, batch_size=size)
    for number, (images, _) in zip(range(count // size), loader):
        t = tc.tensor(times[number * size : (number + 1) * size])
        noise = tc.tensor(random.standard_normal(images.shape, dtype=np.float32))
        guess = model(schedule.add_noise(images, t, noise), t)
        total += F.mse_loss(guess, noise).item() * size
    return total / count


def draw_digits(args: argparse.Namespace, schedule: Schedule, model: UNet) -> None:
    """A grid of samples, and how some of them came about."""
    count = 16 if args.smoke else 64
    film, times = film_of(schedule, model, tc.randn(count, 1, 32, 32))
    draw_grid(film[-1][:, 0], args.out / "samples.png")
    draw_film(film[:, :4, 0], times, args.out / "progress.png")
    print(f"pictures: {args.out / 'samples.png'}, {args.out / 'progress.png'}")


def evaluate(args: argparse.Namespace, schedule: Schedule, model: UNet) -> bool:
    """Lets the classifier judge drawn digits; whether they meet the target."""
    classifier = load_classifier(args.classifier)
    start = time.perf_counter()
    chances, digits = [], []
    for first in range(0, args.samples, 500):
        size = min(500, args.samples - first)
        x = schedule.sample(model, tc.randn(size, 1, 32, 32)).clamp(-1, 1)
        images = NORMALIZE((x.cpu().numpy()[..., 2:-2, 2:-2] + 1) / 2)
        with tc.no_grad():
            chances.append(classifier(tc.tensor(images)).softmax(1).cpu().numpy())
        digits.append(x[:, 0].cpu().numpy())
    chance, drawn = np.concatenate(chances), np.concatenate(digits)
    sure = 100 * float((chance.max(1) > SURE).mean())
    classes = 100 * np.bincount(chance.argmax(1), minlength=10) / len(chance)
    print(f"evaluation: {len(chance):,} samples in {time.perf_counter() - start:.1f} s, {sure:.1f} "
          f"% with probability > {SURE}; classes 0 to 9 in %: "
          + " ".join(f"{share:.1f}" for share in classes))  # fmt: skip
    draw_classes(drawn, chance.argmax(1), classes, args.out / "classes.png")
    return args.target is None or (sure >= args.target and classes.min() >= 3)


# Pictures


def film_of(
    schedule: Schedule, predict: Callable[[tc.Tensor, tc.Tensor], tc.Tensor], start: tc.Tensor
) -> tuple[np.ndarray, list[int]]:
    """All reverse steps from start; x at eleven moments, and these moments (-1 is the end)."""
    last = schedule.steps - 1
    moments = sorted({round(last * share) for share in np.linspace(0, 1, 11)[1:]} | {-1})[::-1]
    film: list[np.ndarray] = []

    def watch(t: int, x: tc.Tensor) -> None:
        if t in moments:
            film.append(x.cpu().numpy())

    schedule.sample(predict, start, watch)
    return np.stack(film), moments


def draw_curves(curves: dict[str, list[float]], unit: str, path: Path) -> None:
    """Losses over the whole training, which all curves span."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    length = max(map(len, curves.values())) if unit == "updates" else min(map(len, curves.values()))
    for number, (name, values) in enumerate(curves.items()):
        places = np.linspace(length / len(values) if unit == "epochs" else 0, length, len(values))
        axes.plot(places, values, label=name, linewidth=1 + number, alpha=0.4 + 0.6 * number)
    axes.set(xlabel=unit, ylabel="squared error of the noise", yscale="log")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def draw_grid(images: np.ndarray, path: Path) -> None:
    """Images of one size in a square."""
    side = int(len(images) ** 0.5)
    rows = images[: side * side].reshape(side, side, *images.shape[1:])
    sheet = np.concatenate(np.concatenate(rows, axis=1), axis=1)
    plt.imsave(path, np.kron(-sheet, np.ones((2, 2)) if side > 4 else np.ones((4, 4))),
               cmap="gray", vmin=-1, vmax=1)  # fmt: skip


def draw_film(film: np.ndarray, times: list[int], path: Path) -> None:
    """One sample a row, its moments from left to right."""
    frames = film.reshape(len(film), -1, *film.shape[-2:])
    count = frames.shape[1]
    figure, grid = plt.subplots(
        count, len(times), figsize=(len(times), count + 0.3), squeeze=False, layout="constrained"
    )
    for row in range(count):
        for column, t in enumerate(times):
            axes = grid[row, column]
            axes.imshow(frames[column, row], cmap="gray_r", vmin=-2, vmax=2)
            axes.axis("off")
            if row == 0:
                axes.set_title("result" if t < 0 else f"t = {t}", fontsize=9)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def draw_classes(digits: np.ndarray, classes: np.ndarray, shares: np.ndarray, path: Path) -> None:
    """Ten samples of each class, as the classifier sees it."""
    figure, grid = plt.subplots(10, 10, figsize=(7, 7.4), layout="constrained")
    for axes in grid.flat:
        axes.axis("off")
    for digit in range(10):
        grid[0, digit].set_title(f"{digit}: {shares[digit]:.1f} %", fontsize=8)
        for axes, image in zip(grid[:, digit], digits[classes == digit]):
            axes.imshow(image, cmap="gray_r", vmin=-1, vmax=1)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def main() -> int:
    args = arguments()
    if args.device:
        tc.set_default_device(args.device)
    if args.evaluate and not args.classifier.is_file():
        print(f"{args.classifier} is missing: run resnet_mnist.py first", file=sys.stderr)
        return 2
    tc.manual_seed(args.seed)
    train_set = MNIST(args.data, train=True, transform=Prepare(), download=True)
    test_set = MNIST(args.data, train=False, transform=Prepare(), download=True)
    print(f"data: {train_set.source}, {len(train_set):,} images to train on, {len(test_set):,} "
          f"to test; on {tc.get_default_device()}")  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    # Fewer steps have to be larger, so that they end in noise all the same.
    scale = 1000 / args.steps
    schedule = Schedule(args.steps, 1e-4 * scale, min(0.5, 0.02 * scale))
    if args.part != "unet" and not train_denoiser(args, schedule, train_set, test_set):
        print("the denoiser's loss did not fall from the first update on", file=sys.stderr)
        return 1
    if args.part == "denoiser":
        return 0
    model = load_unet(args.load) if args.load else train_unet(args, schedule, train_set, test_set)
    model.eval()
    draw_digits(args, schedule, model)
    if args.evaluate and not evaluate(args, schedule, model):
        print(f"the target of {args.target} % was missed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
