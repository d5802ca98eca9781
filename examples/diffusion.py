"""Trains two denoisers by diffusion: two convolutions, and a U-Net that draws digits.

`--part denoiser` trains two convolutions on pictures of 4 x 64 x 64, `--part unet` a U-Net on
digits of 32 x 32; `--evaluate` lets the network of resnet_mnist.py judge 1000 drawn digits.
`python examples/diffusion.py --smoke` takes less than a minute on two cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import recipe
from ddpm import Denoiser, Schedule, UNet
from matplotlib import pyplot as plt
from resnet_mnist import load_classifier

import tinygrad_cuda as tc
from tinygrad_cuda import optim
from tinygrad_cuda.data import MNIST, DataLoader, Dataset
from tinygrad_cuda.nn import functional as F
from tinygrad_cuda.optim.swa_utils import AveragedModel, get_ema_avg_fn

SURE = 0.9  # the probability from which on a drawn digit counts as recognized


class Prepare:
    """Pixels from 0 to 1 become -1 to 1, with two pixels of -1 around: 32 x 32."""

    batched = True

    def __call__(self, images: np.ndarray) -> np.ndarray:
        padding = [(0, 0)] * (images.ndim - 2) + [(2, 2), (2, 2)]
        return np.pad(2 * images - 1, padding, constant_values=-1)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = recipe.parser(
        __doc__, "diffusion", epochs=36, batch_size=128, lr=1e-3,
        smoke="a few steps of small networks",
        target="with --evaluate: percent of digits to be recognized, with 3 or more in each class",
    )  # fmt: skip
    add = parser.add_argument
    add("--part", choices=["denoiser", "unet", "both"], default="both", help="(default: both)")
    add("--sgd-lr", type=recipe.rate, default=0.05, help="the denoiser's rate (%(default)s)")
    add("--width", type=recipe.positive, metavar="N",
        help="the U-Net's channels at full size (default: 32; smoke: 8)")  # fmt: skip
    add("--steps", type=recipe.positive, metavar="N",
        help="steps of the diffusion (default: 1000; smoke: 40)")  # fmt: skip
    add("--ema", type=float, default=0.999, help="decay of the averaged weights (%(default)s)")
    add("--evaluate", action="store_true", help="classify drawn digits by resnet_mnist.py's net")
    add("--samples", type=recipe.positive, default=1000, metavar="N",
        help="digits to evaluate (default: %(default)s)")  # fmt: skip
    add("--classifier", type=Path, default=Path("runs/resnet_mnist/resnet.safetensors"),
        metavar="FILE", help="(default: %(default)s)")  # fmt: skip
    args = recipe.parse(parser, argv)
    if args.evaluate and not args.classifier.is_file():
        parser.error(f"argument --classifier: there is no file {args.classifier}; "
                     "resnet_mnist.py writes it")  # fmt: skip
    if args.smoke:
        args.epochs, args.max_batches = 1, args.max_batches or 8
        args.batch_size = min(args.batch_size, 16)
    args.width = args.width or (8 if args.smoke else 32)
    args.steps = args.steps or (40 if args.smoke else 1000)
    return args


class Questions(Dataset):
    """Images with fixed steps, spread evenly over all, and fixed noise: (noisy, t), noise.

    Args:
        images: of any shape (n, C, H, W).
        schedule: mixes noise and images.
    """

    def __init__(self, images: np.ndarray, schedule: Schedule) -> None:
        random = np.random.default_rng(1)
        count = len(images)
        self.t = random.permutation(count) * schedule.steps // count
        self.noise = random.standard_normal(images.shape, dtype=np.float32)
        signal = np.sqrt(schedule.alphas_bar[self.t])[:, None, None, None]
        part = np.sqrt(1 - schedule.alphas_bar[self.t])[:, None, None, None]
        self.noisy = (signal * images + part * self.noise).astype(np.float32)

    def __len__(self) -> int:
        return len(self.t)

    def batch(self, indices: np.ndarray) -> Any:
        return self.noisy[indices], self.t[indices], self.noise[indices]


def noise_loss(schedule: Schedule, prepare: Callable[[tc.Tensor], tc.Tensor]) -> Callable[..., Any]:
    """The squared error of the noise: of fresh noise on images, or of `Questions`."""

    def loss(model: Any, batch: Any) -> tc.Tensor:
        if len(batch) == 3:
            noisy, t, noise = batch
            return F.mse_loss(model(noisy, t), noise)
        x = prepare(batch[0])
        t = tc.randint(0, schedule.steps, (x.shape[0],))
        noise = tc.randn_like(x)
        return F.mse_loss(model(schedule.add_noise(x, t, noise), t), noise)

    return loss


# The small denoiser


def quartets(images: tc.Tensor) -> tc.Tensor:
    """Four digits become the channels of one picture of 64 x 64."""
    return F.interpolate(images.reshape(-1, 4, 32, 32), scale_factor=2)


def train_denoiser(args: argparse.Namespace, schedule: Schedule, data: MNIST, test: MNIST) -> bool:
    """SGD on the squared error of the noise; whether the held-out loss fell from the start."""
    model, folder = Denoiser(), args.out / "denoiser"
    size = min(args.batch_size, 64)
    pictures = quartets(next(iter(DataLoader(test, batch_size=4 * size)))[0])
    held_out = DataLoader(Questions(pictures.cpu().numpy(), schedule), size)
    loss = noise_loss(schedule, quartets)
    four = argparse.Namespace(**{**vars(args), "batch_size": 4 * size, "load": None, "epochs": 1,
                                 "validate_every": 1})  # fmt: skip
    # What the untrained network has, in the place where validation will ask again.
    with tc.no_grad():
        first = float(np.mean([float(loss(model, batch)) for batch in held_out]))
    history, report = recipe.train(
        four, model, None, optim.SGD(model.parameters(), lr=args.sgd_lr),
        recipe.loader(four, data, drop_last=True), folder=folder, training_step=loss,
        validation=held_out, compile=True, show=None,
    )  # fmt: skip
    curve = [first, *history["val_loss"]]
    shown = ", ".join(f"{value:.4f}" for value in curve[:6])
    print(f"denoiser: held-out loss {shown}, ... after each update")
    print(f"denoiser: held-out loss {curve[-1]:.4f} at the end")
    recipe.draw_losses(
        history, report, folder / "loss.png", "Two convolutions: loss while training",
        "squared error of the noise",
    )  # fmt: skip
    start = tc.randn(4, 4, 64, 64)
    film, times = film_of(schedule, lambda x, t: model(x), start)
    draw_film(film[:, :1], times, folder / "steps.png", "One channel at steps of the sampling")
    print(f"denoiser: after {schedule.steps} reverse steps the standard deviation is "
          f"{film[-1].std():.3f}, from {film[0].std():.3f}")  # fmt: skip
    few = min(10, len(curve) - 1)
    return all(after < before for before, after in pairwise(curve[: few + 1]))


# The U-Net


def train_unet(args: argparse.Namespace, schedule: Schedule, data: MNIST, test: MNIST) -> UNet:
    """Adam on the squared error of the noise; returns the network with averaged weights."""
    model = UNet(args.width, args.steps)
    recipe.describe("U-Net", model)
    average = AveragedModel(model, avg_fn=get_ema_avg_fn(args.ema))
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    batches = recipe.loader(args, data, drop_last=True, num_workers=2)
    count = 32 if args.smoke else 2000
    images = next(iter(DataLoader(test, batch_size=count)))[0].cpu().numpy()
    history, report = recipe.train(
        args, model, None, optimizer, batches, folder=args.out / "unet", ema=average,
        training_step=noise_loss(schedule, lambda images: images), compile=True,
        validation=DataLoader(Questions(images, schedule), min(count, 500)),
        scheduler=optim.lr_scheduler.OneCycleLR(
            optimizer, args.lr, args.epochs * len(batches), pct_start=0.1),
        scheduler_interval="step",
        show=lambda row: f"epoch {row['epoch'] + 1}  loss {row['train_loss']:.4f}  held-out noise "
        f"MSE {row['val_loss']:.4f}",
    )  # fmt: skip
    recipe.draw_losses(
        history, report, args.out / "unet" / "loss.png", "U-Net: loss while training",
        "squared error of the noise",
    )  # fmt: skip
    path = args.out / "unet" / "unet.safetensors"
    saved = {"width": args.width, "steps": args.steps, "model": average.module.state_dict()}
    tc.save(saved, path)
    print(f"network with averaged weights: {path}")
    return average.module


def load_unet(path: Path) -> UNet:
    """The network that `train_unet` has saved."""
    saved = tc.load(path, map_location=tc.get_default_device())
    if not {"width", "steps", "model"} <= saved.keys():
        raise tc.DataError("diffusion", f"{path} is no U-Net of this program", actual="other names",
                           expect="unet.safetensors of an earlier run")  # fmt: skip
    model = UNet(saved["width"], saved["steps"])
    model.load_state_dict(saved["model"])
    return model


def draw_digits(args: argparse.Namespace, schedule: Schedule, model: UNet) -> None:
    """A grid of samples, and how some of them came about."""
    count = 16 if args.smoke else 64
    film, times = film_of(schedule, model, tc.randn(count, 1, 32, 32))
    draw_grid(film[-1][:, 0], args.out / "samples.png")
    draw_film(film[:, :4, 0], times, args.out / "progress.png", "Digits at steps of the sampling")


def evaluate(args: argparse.Namespace, schedule: Schedule, model: UNet) -> bool:
    """Lets the classifier judge drawn digits; whether they meet the target."""
    classifier = load_classifier(args.classifier)
    start = time.perf_counter()
    chances, digits = [], []
    for first in range(0, args.samples, 500):
        size = min(500, args.samples - first)
        x = schedule.sample(model, tc.randn(size, 1, 32, 32)).clamp(-1, 1)
        images = recipe.NORMALIZE((x.cpu().numpy()[..., 2:-2, 2:-2] + 1) / 2)
        with tc.no_grad():
            chances.append(classifier(tc.tensor(images)).softmax(1).cpu().numpy())
        digits.append(x[:, 0].cpu().numpy())
    chance, drawn = np.concatenate(chances), np.concatenate(digits)
    sure = 100 * float((chance.max(1) > SURE).mean())
    classes = 100 * np.bincount(chance.argmax(1), minlength=10) / len(chance)
    print(f"evaluation: {len(chance):,} samples in {time.perf_counter() - start:.1f} s, {sure:.1f} "
          f"% with probability > {SURE}")  # fmt: skip
    print("evaluation: classes 0 to 9 in %: " + " ".join(f"{share:.1f}" for share in classes))
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


def draw_grid(images: np.ndarray, path: Path) -> None:
    """Images of one size in a square."""
    side = int(len(images) ** 0.5)
    rows = images[: side * side].reshape(side, side, *images.shape[1:])
    sheet = np.concatenate(np.concatenate(rows, axis=1), axis=1)
    figure, axes = plt.subplots(figsize=(6.6, 6.2), layout="constrained")
    shown = axes.imshow(sheet, cmap="gray_r", vmin=-1, vmax=1)
    axes.set_title("Digits that the U-Net drew")
    axes.axis("off")
    figure.colorbar(shown, ax=axes, shrink=0.6, label="pixel")
    recipe.save(figure, path, f"{side * side} samples, each from noise of its own.")


def draw_film(film: np.ndarray, times: list[int], path: Path, title: str) -> None:
    """One sample a row, its moments from left to right."""
    frames = film.reshape(len(film), -1, *film.shape[-2:])
    count = frames.shape[1]
    figure, grid = plt.subplots(
        count, len(times), figsize=(len(times), count + 0.9), squeeze=False, layout="constrained"
    )
    figure.suptitle(title, fontsize=11)
    for row in range(count):
        for column, t in enumerate(times):
            axes = grid[row, column]
            shown = axes.imshow(frames[column, row], cmap="gray_r", vmin=-2, vmax=2)
            axes.axis("off")
            if row == 0:
                axes.set_title("result" if t < 0 else f"t = {t}", fontsize=9)
    figure.colorbar(shown, ax=grid, label="pixel")
    recipe.save(figure, path, "One sample a row; t counts the steps that are left.")


def draw_classes(digits: np.ndarray, classes: np.ndarray, shares: np.ndarray, path: Path) -> None:
    """Ten samples of each class, as the classifier sees it."""
    figure, grid = plt.subplots(10, 10, figsize=(7, 7.8), layout="constrained")
    figure.suptitle("Drawn digits by their class")
    for axes in grid.flat:
        axes.axis("off")
    for digit in range(10):
        grid[0, digit].set_title(f"{digit}: {shares[digit]:.1f} %", fontsize=8)
        for axes, image in zip(grid[:, digit], digits[classes == digit]):
            axes.imshow(image, cmap="gray_r", vmin=-1, vmax=1)
    recipe.save(figure, path, "Columns: what the classifier takes the samples for, and its share "
                "of all samples.")  # fmt: skip


def main() -> int:
    args = arguments()
    loaded = None if args.load is None else load_unet(args.load)
    if loaded is not None:
        args.steps = len(loaded.frequencies)
    train_set, test_set = recipe.mnist(args, transform=Prepare())
    # Fewer steps have to be larger, so that they end in noise all the same.
    scale = 1000 / args.steps
    schedule = Schedule(args.steps, 1e-4 * scale, min(0.5, 0.02 * scale))
    if args.part != "unet" and not train_denoiser(args, schedule, train_set, test_set):
        print("the denoiser's loss did not fall from the first update on", file=sys.stderr)
        return 1
    if args.part == "denoiser":
        return 0
    goal, args.target = args.target, None
    model = loaded or train_unet(args, schedule, train_set, test_set)
    model.eval()
    draw_digits(args, schedule, model)
    args.target = goal
    return recipe.missed(args, not args.evaluate or evaluate(args, schedule, model), " %")


if __name__ == "__main__":
    recipe.run(main)
