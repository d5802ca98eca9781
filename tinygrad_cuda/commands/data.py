"""`python -m tinygrad_cuda data mnist`: a data set as the examples read it."""

from __future__ import annotations

import argparse

from tinygrad_cuda.data import MNIST


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds its options."""
    parser.add_argument("name", choices=["mnist"], help="the data set")
    parser.add_argument(
        "--root", metavar="FOLDER",
        help="look and fetch here; else $TGC_DATA and the cache folder are searched",
    )  # fmt: skip
    parser.add_argument(
        "--no-download", action="store_true", help="fail where there are no files, instead"
    )


def run(options: argparse.Namespace) -> int:
    """0 if both halves are there.

    Raises:
        DataError: they are not, and cannot be fetched.
    """
    for train in (True, False):
        images = MNIST(options.root, train=train, download=not options.no_download)
        half = "training" if train else "test"
        print(f"{len(images):>6} {half} images: {images.source}")
    return 0
