"""CIFAR-10 and CIFAR-100 in their binary version: read from a folder, or fetched.

A record is one label byte (CIFAR-100: a coarse and a fine one) and 3072 bytes of pixels, the red,
green and blue plane of 32 rows each.
"""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import DataError
from tinygrad_cuda.data.dataset import ImageDataset
from tinygrad_cuda.data.download import download as fetch

Array = NDArray[Any]

SIDE = 32  # pixels
PIXELS = 3 * SIDE * SIDE


class CIFAR10(ImageDataset):
    """Small colour pictures of ten kinds: 50,000 to train on and 10,000 to test.

    A sample is (image, label): float32 of shape (3, 32, 32) between 0 and 1, and an int64 number.
    ``data`` (uint8) and ``targets`` (int64) are the arrays behind them, ``classes`` the names.

    Source: Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.

    Args:
        root: the folder to look in, and to download to. Left out, ``$TGC_DATA`` and the cache
            folder are searched, and the cache folder receives the download.
        train: the pictures to train on, else those to test.
        transform: applied to the image; see `tinygrad_cuda.data.transforms`.
        target_transform: applied to the label.
        download: fetch the files when they are nowhere.

    Raises:
        DataError: there are no files, they are damaged, or they cannot be fetched.
    """

    url = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    md5 = "c32a1d4ab5d03f1284b67883e8d87530"
    folder = "cifar-10-batches-bin"
    files = {True: tuple(f"data_batch_{k}.bin" for k in range(1, 6)), False: ("test_batch.bin",)}
    names_file = "batches.meta.txt"
    labels: tuple[int, ...] = (10,)  # values of each label byte; the last byte is the target

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        train: bool = True,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        download: bool = False,
    ) -> None:
        folder = self._folder(root, download)
        parts = [self._read(folder / name) for name in self.files[train]]
        images = np.concatenate([pixels for pixels, _ in parts])
        super().__init__(
            images, np.concatenate([labels for _, labels in parts]), transform, target_transform
        )
        self.train = train
        self.classes = self._class_names(folder / self.names_file)
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}

    # Finding --------------------------------------------------------------------------------------

    def _folder(self, root: str | os.PathLike[str] | None, download: bool) -> Path:
        looked = list(self._folders(root))
        for folder in looked:
            if all((folder / name).is_file() for name in self._all_files()):
                return folder
        if not download:
            raise DataError(
                type(self).__name__,
                "the files do not exist",
                expect=", ".join(self._all_files()),
                actual="looked in " + ", ".join(map(str, looked)),
                hint="download=True fetches them; TGC_DATA names a folder that has them",
            )
        base = Path(root).expanduser() if root is not None else settings.cache_dir / "data"
        self._fetch(base)
        return self._folder(base, download=False)

    def _all_files(self) -> tuple[str, ...]:
        return (*self.files[True], *self.files[False], self.names_file)

    def _folders(self, root: str | os.PathLike[str] | None) -> Iterator[Path]:
        if root is not None:
            bases = [Path(root).expanduser()]
        else:
            bases = [settings.data] if settings.data is not None else []
            bases.append(settings.cache_dir / "data")
        for base in bases:
            yield from (base, base / self.folder)

    def _fetch(self, base: Path) -> None:
        archive = base / self.url.rpartition("/")[2]
        print(f"fetching {archive.name} to {base}", file=sys.stderr)
        fetch([self.url], archive, self.md5)
        unpack(archive, self._all_files(), base / self.folder)

    # Reading --------------------------------------------------------------------------------------

    def _read(self, path: Path) -> tuple[Array, Array]:
        record = len(self.labels) + PIXELS
        content = np.fromfile(path, np.uint8)
        if not content.size or content.size % record:
            self._refuse(path, f"a multiple of {record} bytes", f"{content.size} bytes")
        records = content.reshape(-1, record)
        for byte, count in enumerate(self.labels):
            if (most := int(records[:, byte].max())) >= count:
                number = int(records[:, byte].argmax())
                self._refuse(path, f"labels below {count}", f"{most} in record {number}")
        images = records[:, len(self.labels) :].reshape(-1, 3, SIDE, SIDE)
        return images, records[:, len(self.labels) - 1].astype(np.int64)

    def _class_names(self, path: Path) -> list[str]:
        names = path.read_text(encoding="utf-8", errors="replace").split()
        if len(names) != self.labels[-1]:
            self._refuse(path, f"{self.labels[-1]} names", f"{len(names)}")
        return names

    def _refuse(self, path: Path, expect: str, actual: str) -> NoReturn:
        name = type(self).__name__
        raise DataError(
            name, f"{path} does not hold {name}", expect=expect, actual=actual,
            hint="delete it, so that download=True fetches it again",
        )  # fmt: skip


class CIFAR100(CIFAR10):
    """Small colour pictures of a hundred kinds: 50,000 to train on and 10,000 to test.

    Everything else is as in `CIFAR10`; a label is the fine one.
    """

    url = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"
    md5 = "03b5dce01913d631647c71ecec9e9cb8"
    folder = "cifar-100-binary"
    files = {True: ("train.bin",), False: ("test.bin",)}
    names_file = "fine_label_names.txt"
    labels = (20, 100)


def load_cifar10(
    root: str | os.PathLike[str] | None = None, train: bool = True, download: bool = False
) -> tuple[Array, Array]:
    """The arrays of CIFAR-10; the arguments are those of `CIFAR10`.

    Returns:
        images, uint8 of shape (n, 3, 32, 32); labels, int64 of shape (n,).

    Raises:
        DataError: there are no files, they are damaged, or they cannot be fetched.
    """
    dataset = CIFAR10(root, train, download=download)
    return dataset.data, dataset.targets


def unpack(archive: Path, wanted: Sequence[str], folder: Path) -> None:
    """Writes the files of these names into a folder, wherever the archive says they are.

    Raises:
        DataError: one is missing, or the archive is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = set(wanted)
    try:
        _check_stream(archive)
        with tarfile.open(archive) as tar:
            for member in tar:
                name = member.name.rpartition("/")[2]
                source = tar.extractfile(member) if name in missing and member.isfile() else None
                if source is not None:
                    _write(source, folder / name)
                    missing.discard(name)
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise DataError(
            "unpack", f"{archive} cannot be read", expect="a complete tar archive",
            actual=str(error), hint="delete it, so that it is fetched again",
        ) from error  # fmt: skip
    if missing:
        raise DataError(
            "unpack", f"{archive} lacks files", expect=", ".join(wanted),
            actual="without " + ", ".join(sorted(missing)),
        )  # fmt: skip


def _check_stream(archive: Path) -> None:
    """Reads a gzip stream to its end, where its checksum is; the members of a tar have none."""
    with archive.open("rb") as file:
        if file.read(2) != b"\x1f\x8b":
            return
    with gzip.open(archive) as stream:
        while stream.read(1 << 20):
            pass


def _write(source: IO[bytes], path: Path) -> None:
    """The whole file, or none."""
    partial = path.with_name(f"{path.name}.part")
    try:
        with partial.open("wb") as target:
            shutil.copyfileobj(source, target)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
