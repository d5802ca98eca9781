"""CIFAR's binary files: planes in their order, labels checked, archives unpacked by name."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.data import CIFAR10, CIFAR100, DataLoader, load_cifar10
from tinygrad_cuda.data import cifar as module

NAMES = [f"kind{k}" for k in range(100)]


def records(count: int, labels: int, seed: int) -> Any:
    found = np.random.default_rng(seed).integers(0, 10, (count, labels + 3072))
    return found.astype(np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Both data sets, four pictures a file."""
    for kind, labels in ((CIFAR10, 1), (CIFAR100, 2)):
        place = tmp_path / kind.folder
        place.mkdir()
        for seed, name in enumerate((*kind.files[True], *kind.files[False])):
            records(4, labels, seed).tofile(place / name)
        count = kind.labels[-1]
        (place / kind.names_file).write_text("\n".join(NAMES[:count]) + "\n\n")
    return tmp_path


def test_pictures_and_labels_are_those_of_the_files(folder: Path) -> None:
    train, test = CIFAR10(folder), CIFAR10(folder / CIFAR10.folder, train=False)
    assert (len(train), len(test)) == (20, 4)
    raw = records(4, 1, 1)  # the second file
    image, label = train[5]
    assert image.shape == (3, 32, 32) and image.dtype == np.float32 and label == raw[1, 0]
    np.testing.assert_allclose(image[2, 31, 0], raw[1, 1 + 2 * 1024 + 31 * 32] / 255)
    np.testing.assert_array_equal(test.data[3].reshape(-1), records(4, 1, 5)[3, 1:])
    images, labels = load_cifar10(folder, train=False)
    np.testing.assert_array_equal(images, test.data)
    np.testing.assert_array_equal(labels, test.targets)
    assert train.classes[3] == "kind3" and train.class_to_idx["kind3"] == 3
    fine = CIFAR100(folder)
    assert len(fine) == 4 and len(fine.classes) == 100
    np.testing.assert_array_equal(fine.targets, records(4, 2, 0)[:, 1])
    batch, numbers = next(iter(DataLoader(train, batch_size=6)))
    assert tuple(batch.shape) == (6, 3, 32, 32) and numbers.dtype is tc.int64


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-7]), "multiple of 3073 bytes"),
        (lambda path: path.write_bytes(b""), "multiple of 3073 bytes"),
        (lambda path: path.write_bytes(b"\x0b" + path.read_bytes()[1:]), "11 in record 0"),
        (lambda path: path.unlink(), "do not exist"),
    ],
)
def test_damage_is_named(folder: Path, damage: Any, text: str) -> None:
    damage(folder / CIFAR10.folder / "data_batch_3.bin")
    with pytest.raises(tc.DataError, match=text):
        CIFAR10(folder)


def test_no_files_say_where_they_were_looked_for(tmp_path: Path) -> None:
    with pytest.raises(tc.DataError, match="download=True") as caught:
        CIFAR10(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_download_is_unpacked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By names alone: a path inside the archive leads nowhere else."""
    archive = tmp_path / "made.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in (*CIFAR10.files[True], *CIFAR10.files[False], CIFAR10.names_file):
            tar.add(folder / CIFAR10.folder / name, f"../../{name}")
        evil = tarfile.TarInfo("../evil.txt")
        evil.size = 3
        tar.addfile(evil, io.BytesIO(b"no!"))

    def fetched(urls: list[str], path: Path, md5: str) -> None:
        assert urls == [CIFAR10.url] and len(md5) == 32
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(archive.read_bytes())

    monkeypatch.setattr(module, "fetch", fetched)
    fresh = tmp_path / "fresh" / "deep"
    np.testing.assert_array_equal(CIFAR10(fresh, download=True).data, CIFAR10(folder).data)
    assert not list(tmp_path.rglob("evil.txt"))
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(archive.read_bytes()[:2000])
    with pytest.raises(tc.DataError, match="cannot be read"):
        module.unpack(cut, ["data_batch_1.bin"], tmp_path / "out")
    damaged = bytearray(archive.read_bytes())
    for at in range(3000, len(damaged) - 3000, 1000):
        damaged[at] ^= 0xFF
    cut.write_bytes(damaged)
    with pytest.raises(tc.DataError, match="cannot be read"):
        module.unpack(cut, ["data_batch_5.bin"], tmp_path / "out")
    assert not list(tmp_path.rglob("*.part"))
    with pytest.raises(tc.DataError, match=r"without missing\.bin"):
        module.unpack(archive, ["missing.bin"], tmp_path / "out")
