"""MNIST: read from a folder, fetched from its mirrors, or generated digits where asked for.

A user's own files are checked by their structure, fetched ones by checksum as well.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import DataError
from tinygrad_cuda.data.dataset import ImageDataset
from tinygrad_cuda.data.digits import generated_digits
from tinygrad_cuda.data.download import download as fetch
from tinygrad_cuda.data.idx import read_idx

Array = NDArray[Any]

MIRRORS = [
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
]
# Images and labels, and the md5 of each compressed file.
FILES = {
    True: {
        "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    },
    False: {
        "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
    },
}
GENERATED = {True: (60_000, 0), False: (10_000, 1)}  # number of images, seed


class MNIST(ImageDataset):
    """Handwritten digits: 60,000 images to train on and 10,000 to test, 28 by 28 pixels.

    A sample is (image, label): float32 of shape (1, 28, 28) between 0 and 1, and an int64 digit.
    ``data`` (uint8) and ``targets`` (int64) are the arrays behind them; ``source`` says in words
    where they come from.

    Args:
        root: the folder to look in, and to download to. Left out, ``$TGC_DATA`` and the cache
            folder are searched, and the cache folder receives the download.
        train: the training images, else the test images.
        transform: applied to the image; see `tinygrad_cuda.data.transforms`.
        target_transform: applied to the label.
        download: fetch the files when they are nowhere.
        synthetic: where there are no files and none can be fetched, generate digits instead;
            ``source`` and a line on stderr say so. Only without root.

    Raises:
        DataError: there are no files, they are damaged, or they cannot be fetched.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        train: bool = True,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        download: bool = False,
        *,
        synthetic: bool = False,
    ) -> None:
        images, labels, self.source = _load(root, train, download, synthetic)
        super().__init__(images, labels, transform, target_transform)
        self.train = train


def load_mnist(
    root: str | os.PathLike[str] | None = None,
    train: bool = True,
    download: bool = True,
    *,
    synthetic: bool = False,
) -> tuple[Array, Array]:
    """The arrays of MNIST; the arguments are those of `MNIST`.

    Returns:
        images, uint8 of shape (n, 28, 28); labels, int64 of shape (n,).

    Raises:
        DataError: there are no files, they are damaged, or they cannot be fetched.
    """
    images, labels, _ = _load(root, train, download, synthetic)
    return images, labels


def _load(
    root: str | os.PathLike[str] | None, train: bool, download: bool, synthetic: bool = False
) -> tuple[Array, Array, str]:
    """The arrays, and where they come from."""
    folder = _find(root, train)
    if folder is not None:
        return (*_read(folder, train), f"MNIST from {folder}")
    looked = "looked in " + ", ".join(map(str, _folders(root)))
    if root is not None and download:
        _fetch(Path(root) / "MNIST" / "raw", train)
        return _load(root, train, download=False)
    reason = _fetch_all(settings.cache_dir / "data" / "mnist") if download else looked
    if reason is None:
        return _load(None, train, download=False)
    if _find(root, not train) is not None:
        # Real digits for one half and generated ones for the other would measure nothing.
        raise DataError(
            "MNIST",
            "only half of the files are there",
            expect="images and labels of both halves",
            actual=reason,
        )
    if synthetic and root is None:
        return _generated(train, reason)
    raise _missing(train, reason if not download else f"{reason}; {looked}", download)


def _missing(train: bool, reason: str, download: bool) -> DataError:
    fetched = "and cannot be fetched" if download else "and download=True is not given"
    return DataError(
        "MNIST",
        f"the files are not on this machine {fetched}",
        expect=" and ".join(f"{name}[.gz]" for name in FILES[train]),
        actual=reason,
        hint=("" if download else "download=True fetches them; ")
        + "TGC_DATA names a folder that has them; synthetic=True generates digits instead",
    )


def _generated(train: bool, reason: str) -> tuple[Array, Array, str]:
    n, seed = GENERATED[train]
    print(
        f"MNIST is neither in the folder nor was it fetched ({reason}): "
        f"{n:,} generated digits to {'train on' if train else 'test on'} instead",
        file=sys.stderr,
    )
    return (*generated_digits(n, seed), "generated digits")


def _folders(root: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Every folder that may hold the files, first choice first."""
    if root is not None:
        bases = [Path(root).expanduser()]
    else:
        bases = [settings.data] if settings.data is not None else []
        bases.append(settings.cache_dir / "data")
    for base in bases:
        yield from (base, base / "mnist", base / "MNIST" / "raw")


def _find(root: str | os.PathLike[str] | None, train: bool) -> Path | None:
    for folder in _folders(root):
        if all(_existing(folder, name) for name in FILES[train]):
            return folder
    return None


def _existing(folder: Path, name: str) -> Path | None:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    return None


def _read(folder: Path, train: bool) -> tuple[Array, Array]:
    paths = [path for name in FILES[train] if (path := _existing(folder, name))]
    images, labels = map(read_idx, paths)
    if images.ndim != 3 or images.shape[1:] != (28, 28) or images.dtype != np.uint8:
        _refuse(paths[0], "uint8 images of shape (n, 28, 28)", images)
    if labels.shape != images.shape[:1] or labels.dtype != np.uint8:
        _refuse(paths[1], f"{len(images)} uint8 labels, as many as images", labels)
    if labels.size and labels.max() > 9:
        _refuse(paths[1], f"labels from 0 to 9, not {labels.max()}", labels)
    return images, labels.astype(np.int64)


def _refuse(path: Path, expect: str, array: Array) -> None:
    raise DataError(
        "MNIST",
        f"{path} does not hold MNIST",
        expect=expect,
        actual=f"{array.dtype} of shape {array.shape}",
    )


def _fetch(folder: Path, train: bool) -> None:
    for name, md5 in FILES[train].items():
        if _existing(folder, name) is None:
            print(f"fetching {name}.gz to {folder}", file=sys.stderr)
            fetch([f"{mirror}{name}.gz" for mirror in MIRRORS], folder / f"{name}.gz", md5)


@cache
def _fetch_all(folder: Path) -> str | None:
    """Fetches all files once in a process; returns why that failed, or None."""
    try:
        for train in FILES:
            _fetch(folder, train)
    except DataError as error:
        return str(getattr(error.__cause__, "reason", None) or error.__cause__)
    return None
