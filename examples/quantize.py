"""Trains LeNet-5 on MNIST and quantizes it to 8 bits for ONNX Runtime.

The model is exported, its activations are measured on images of a DataLoader, and the accuracy of
both files on the test set is printed. `python examples/quantize.py --smoke` takes less than a
minute on two cores; `--provider CUDAExecutionProvider` runs the files on a GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import recipe
from lenet import LeNet

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.data import MNIST, DataLoader, Subset
from tinygrad_cuda.utils.metrics import accuracy

try:
    import onnxruntime
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process
except ImportError:
    sys.exit("this example takes: pip install 'tinygrad_cuda[onnx]'")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = recipe.parser(
        __doc__, "quantize", epochs=3, batch_size=128, lr=2e-3, smoke="one epoch of 60 steps",
        target="the accuracy that 8 bits have to reach, in percent",
    )  # fmt: skip
    parser.add_argument("--calibrate", type=recipe.positive, default=512, metavar="N",
                        help="images to measure activations on (default: %(default)s)")  # fmt: skip
    parser.add_argument("--provider", default="CPUExecutionProvider", metavar="NAME",
                        help="of ONNX Runtime (default: %(default)s)")  # fmt: skip
    args = recipe.parse(parser, argv)
    if args.smoke:
        args.epochs, args.max_batches = 1, args.max_batches or 60
    if args.provider not in onnxruntime.get_available_providers():
        parser.error(f"argument --provider: this ONNX Runtime has no {args.provider}")
    return args


class Calibration(quantization.CalibrationDataReader):
    """Batches of a DataLoader, as ONNX Runtime asks for them."""

    def __init__(self, batches: DataLoader) -> None:
        self.batches = batches
        self.rewind()

    def rewind(self) -> None:
        """From the first batch again."""
        self.remaining: Iterator[Any] = iter(self.batches)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next batch by the input's name, or None after the last."""
        batch = next(self.remaining, None)
        return None if batch is None else {"image": batch[0].numpy()}


def write(model: nn.Module, images: Any, folder: Path) -> tuple[Path, Path]:
    """The model in float32 and in 8 bits: weights by channel, activations by tensor."""
    exact, prepared, small = (folder / f"lenet{part}.onnx" for part in ("", "_folded", "_int8"))
    tc.onnx.export(
        model.cpu(), tc.zeros(1, 1, 28, 28, device="cpu"), exact, input_names=["image"],
        output_names=["logits"], dynamic_axes={"image": {0: "batch"}},
    )  # fmt: skip
    quant_pre_process(exact, prepared, skip_symbolic_shape=True)
    quantization.quantize_static(
        prepared, small, Calibration(DataLoader(images, batch_size=64)), per_channel=True,
        activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8,
    )  # fmt: skip
    prepared.unlink()
    return exact, small


def evaluate(path: Path, images: MNIST, provider: str) -> tuple[float, float]:
    """Accuracy of a file in percent, and seconds."""
    session = onnxruntime.InferenceSession(str(path), providers=[provider])
    right = 0
    began = time.perf_counter()
    for batch, labels in DataLoader(images, batch_size=500):
        (logits,) = session.run(["logits"], {"image": batch.numpy()})
        right += int((logits.argmax(1) == labels.numpy()).sum())
    return 100 * right / len(images), time.perf_counter() - began


def main() -> int:
    args = arguments()
    train_set, test_set = recipe.mnist(args)
    model = LeNet()
    recipe.describe("LeNet", model)
    batches = recipe.loader(args, train_set)
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    of = recipe.caveat(test_set)
    recipe.train(
        args, model, nn.CrossEntropyLoss(), optimizer, batches,
        validation=DataLoader(test_set, batch_size=1000), metrics={"accuracy": accuracy},
        scheduler=optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(batches)),
        scheduler_interval="step", monitor="val_accuracy", mode="max", compile=True,
        show=lambda row: f"epoch {row['epoch'] + 1}  loss {row['train_loss']:.4f}  test accuracy "
        f"{100 * row['val_accuracy']:.2f} %{of}",
    )  # fmt: skip
    count = min(args.calibrate, len(train_set))
    paths = write(model, Subset(train_set, range(count)), args.out)
    print(f"calibrated on {count:,} images")
    for name, path in zip(("float32", "int8"), paths, strict=True):
        reached, seconds = evaluate(path, test_set, args.provider)
        print(f"{name:8} {path.stat().st_size / 1000:7.1f} kB  accuracy {reached:.2f} %{of}  "
              f"{1e6 * seconds / len(test_set):.0f} us an image")  # fmt: skip
    return recipe.missed(args, args.target is None or reached >= args.target, " %")


if __name__ == "__main__":
    recipe.run(main)
