"""What the examples share: their arguments, a run of `fit` in a folder, and curves of its losses.

Everything that can be wrong with the arguments is seen before work begins.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import tinygrad_cuda as tc
from tinygrad_cuda.data import MNIST, DataLoader, Normalize, RandomSampler
from tinygrad_cuda.utils.training import Callback, History, Run, evaluate, fit

try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
except ImportError:
    sys.exit("the examples draw pictures, which takes: pip install 'tinygrad_cuda[plot]'")

# Mean and standard deviation of MNIST's pixels.
NORMALIZE = Normalize([0.1307], [0.3081])


# Arguments ----------------------------------------------------------------------------------------


def positive(text: str) -> int:
    """A whole number above 0."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def rate(text: str) -> float:
    """A number above 0."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{number} is not above 0")
    return number


def parser(
    description: str | None, name: str, *, epochs: int | None, batch_size: int, lr: float,
    smoke: str, target: str, data: str | None = "MNIST's files",
) -> argparse.ArgumentParser:  # fmt: skip
    """The arguments that all examples take.

    Args:
        description: the example's docstring; its first line is shown.
        name: of the folder in ``runs``.
        epochs: None if the example counts steps instead.
        batch_size, lr: defaults.
        smoke: what a run with --smoke does.
        target: what --target does.
        data: what the folder after --data holds; None if the example takes no such folder.
    """
    made = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    add = made.add_argument
    if epochs is not None:
        add("--epochs", type=positive, default=epochs, metavar="N", help="(default: %(default)s)")
    add("--batch-size", type=positive, default=batch_size, metavar="N",
        help="samples a step (default: %(default)s)")  # fmt: skip
    add("--lr", type=rate, default=lr, help="the highest learning rate (default: %(default)s)")
    add("--max-batches", type=positive, metavar="N", help="end each epoch after N steps")
    add("--validate-every", type=positive, metavar="N", help="validate after N steps, too")
    add("--target", type=float, help=f"{target}; exit code 1 if it is missed")
    add("--smoke", action="store_true", help=smoke)
    if data is not None:
        add("--data", type=Path, metavar="DIR", help=f"folder with {data} (default: $TGC_DATA, the "
            "cache folder, then a download)")  # fmt: skip
    if data == "MNIST's files":
        add("--synthetic", action="store_true", help="generated digits, if MNIST is not on this "
            "machine and cannot be fetched")  # fmt: skip
    add("--load", type=Path, metavar="FILE", help="weights of an earlier run, instead of training")
    add("--resume", action="store_true", help="go on with the run in --out")
    add("--out", type=Path, default=Path("runs") / name, metavar="DIR",
        help="folder for log, checkpoints and pictures (default: %(default)s)")  # fmt: skip
    add("--device", help="cpu, cuda, cuda:1, ... or emu (default: a usable GPU, else cpu)")
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    return made


def parse(made: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments, checked; sets device and seed, and makes the folder."""
    args = made.parse_args(argv)
    for name in ("load", "text"):
        path = getattr(args, name, None)
        if path is not None and not path.is_file():
            made.error(f"argument --{name}: there is no file {path}")
    folder = getattr(args, "data", None)
    if folder is not None and not folder.is_dir():
        made.error(f"argument --data: there is no folder {folder}")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=args.out):
            pass
    except OSError as error:
        made.error(f"argument --out: cannot write to {args.out}: {error.strerror}")
    if args.resume and args.load:
        made.error("argument --resume: not together with --load, which does not train")
    try:
        if args.device:
            tc.set_default_device(args.device)
        tc.zeros(1).tolist()
    except (tc.DeviceError, tc.CompileError) as error:
        made.error(f"argument --device: {error}")
    tc.manual_seed(args.seed)
    return args


def run(main: Callable[[], int]) -> None:
    """Runs an example; Ctrl-C and missing data end it with a line instead of a traceback."""
    try:
        sys.exit(main())
    except tc.DataError as error:
        said = str(error).replace("synthetic=True", "--synthetic")  # what it is called here
        print(f"error: {said}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as stop:
        print(f"\ninterrupted; {stop}" if str(stop) else "\ninterrupted", file=sys.stderr)
        if str(stop):
            again = [word for word in sys.argv if word != "--resume"]
            print(f"go on with:  python {shlex.join([*again, '--resume'])}", file=sys.stderr)
        sys.exit(130)


# Data ---------------------------------------------------------------------------------------------


def mnist(args: argparse.Namespace, transform: Any = NORMALIZE) -> tuple[MNIST, MNIST]:
    """Images to train on and to test, and a line on where they come from."""
    train, test = (
        MNIST(args.data, train=half, transform=transform, download=True, synthetic=args.synthetic)
        for half in (True, False)
    )
    print(f"data: {train.source}, {len(train):,} images to train on, {len(test):,} to test")
    return train, test


def caveat(data: MNIST) -> str:
    """What is said beside an accuracy on other digits than MNIST's."""
    return "" if data.source.startswith("MNIST") else f" (of {data.source}, not MNIST)"


def loader(args: argparse.Namespace, data: Any, **options: Any) -> DataLoader:
    """The batches of an epoch in another order each time, at most ``--max-batches`` of them."""
    count = len(data)
    if args.max_batches is not None:
        count = min(count, args.max_batches * args.batch_size)
    sampler = RandomSampler(data, num_samples=count, seed=args.seed)
    return DataLoader(data, args.batch_size, sampler=sampler, **options)


def describe(name: str, model: Any) -> None:
    """A line with the model's size and device."""
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"model: {name}, {count:,} parameters, on {tc.get_default_device()}")


# Training -----------------------------------------------------------------------------------------


class Report(Callback):
    """Prints each row of the history, and keeps the losses of all steps for the picture.

    Args:
        show: a row as text; without it nothing is printed.
    """

    def __init__(self, show: Callable[[dict[str, float]], str] | None) -> None:
        self.show, self.start = show, time.perf_counter()
        self.epochs: dict[int, list[float]] = {}
        self.first: dict[int, int] = {}

    def on_validation(self, run: Run) -> None:
        row = run.history.rows[-1]
        losses = list(run.fetch())
        self.epochs[run.epoch], self.first[run.epoch] = losses, run.step - len(losses)
        if self.show is not None:
            seconds = f"{time.perf_counter() - self.start:.1f} s"
            tqdm.write(f"{self.show(row)}  {seconds}", file=sys.stdout)
            sys.stdout.flush()

    def curve(self) -> tuple[list[int], list[float]]:
        """The steps that this process did, and their losses."""
        steps: list[int] = []
        for epoch, losses in self.epochs.items():
            steps += range(self.first[epoch] + 1, self.first[epoch] + 1 + len(losses))
        return steps, [loss for losses in self.epochs.values() for loss in losses]


def train(
    args: argparse.Namespace, model: Any, loss: Any, optimizer: Any, batches: Any, *,
    show: Callable[[dict[str, float]], str] | None, folder: Path | None = None, **options: Any,
) -> tuple[History, Report]:  # fmt: skip
    """Trains by `fit` in the folder of the run, or loads weights and validates them once."""
    folder, report = folder or args.out, Report(show)
    if args.load is not None:
        model.load_state_dict(tc.load(args.load, map_location=tc.get_default_device()))
        found = evaluate(model, loss, options["validation"], options.get("metrics"))
        row = {"epoch": 0, "step": 0, "train_loss": float("nan"), **found}
        print(f"{args.load}: " + ", ".join(f"{k} {v:.4f}" for k, v in found.items()))
        return History([row]), report
    if (folder / "last.safetensors").exists() and not args.resume:
        print(f"{folder} has an earlier run, which is replaced (--resume goes on with it)")
    if args.resume and not (folder / "last.safetensors").exists():
        print(f"{folder} has no run to go on with: it begins")
    callbacks = [report, *options.pop("callbacks", [])]
    history = fit(
        model, loss, optimizer, batches, folder=folder, resume=args.resume, callbacks=callbacks,
        **{"epochs": getattr(args, "epochs", 1), "validate_every": args.validate_every, **options},
    )  # fmt: skip
    if not report.epochs and history.rows:
        last = history.rows[-1]
        text = f"epoch {last['epoch'] + 1}" if show is None else show(last)
        print(f"the run had ended before; its last row: {text}")
    print(f"run: {folder} (log.csv, last.safetensors, best.safetensors)")
    return history, report


def missed(args: argparse.Namespace, reached: bool, unit: str = "") -> int:
    """The exit code: 1 if there is a target, and it is not reached."""
    if args.target is None or reached:
        return 0
    print(f"the target of {args.target}{unit} was missed", file=sys.stderr)
    return 1


# Pictures -----------------------------------------------------------------------------------------


def save(figure: Any, path: Path, caption: str) -> None:
    """Writes a figure with a caption below it, and says where."""
    wide = int(figure.get_figwidth() * 14)
    figure.supxlabel("\n".join(textwrap.wrap(caption, wide)), fontsize=8, color="dimgray")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    print(f"picture: {path}")


def draw_losses(
    history: History, report: Report, path: Path, title: str, ylabel: str = "cross-entropy",
    logarithmic: bool = True,
) -> None:  # fmt: skip
    """The loss of every step, its running mean, and the losses of validation."""
    steps, losses = report.curve()
    if not losses:
        return
    window = max(1, len(losses) // 50)
    smooth = np.convolve(losses, np.ones(window) / window, mode="valid")
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    faint = {"alpha": 0.25, "linewidth": 0.8} if window > 1 else {}
    axes.plot(steps, losses, color="tab:blue", label="each step", **faint)
    if window > 1:
        axes.plot(steps[window - 1 :], smooth, color="tab:blue", label=f"mean of {window} steps")
    if "val_loss" in history.rows[-1]:
        rows = [(row["step"], row["val_loss"]) for row in history]
        axes.plot(*zip(*rows), "o-", color="tab:orange", markersize=4, label="held-out data")
    axes.set(xlabel="step", ylabel=ylabel, title=title)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if logarithmic:
        axes.set_yscale("log")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    save(figure, path, "Losses of the batches trained on, before each update, and of data that is "
         "not trained on" + (" (logarithmic scale)." if logarithmic else "."))  # fmt: skip
