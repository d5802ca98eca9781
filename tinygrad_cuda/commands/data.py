"""`python -m tinygrad_cuda data mnist`: a data set as the examples read it."""

from __future__ import annotations

import argparse

from tinygrad_cuda.data import MNIST


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds its options."""
    parser.add_argument(
        "name", choices=["mnist"],
        help="mnist: 60,000 handwritten digits to train on and 10,000 to test, 11 MiB to download",
    )  # fmt: skip
    parser.add_argument(
        "--root", metavar="FOLDER",
        help="look for the files in this folder, and download to it (default: the folder "
        "$TGC_DATA, then the cache folder, which receives the download)",
    )  # fmt: skip
    parser.add_argument(
        "--no-download", action="store_true",
        help="only look: where the files are missing, fail with exit status 2",
    )  # fmt: skip
    parser.epilog = (
        "Prints how many images there are, and the folder from which they are read. Files that "
        "are there already are used as they are; else they are downloaded once, and programs that "
        "read the data set find them."
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
