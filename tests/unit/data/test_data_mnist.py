"""MNIST: where it is looked for, what is refused, and what happens without files or network."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import DataError
from tinygrad_cuda.data import MNIST, Normalize, load_mnist, mnist, write_idx
from tinygrad_cuda.data.digits import generated_digits
from tinygrad_cuda.data.download import download


@pytest.fixture(autouse=True)
def nothing_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither $TGC_DATA nor a filled cache nor a reachable mirror; each test adds what it needs."""
    monkeypatch.setattr(mnist, "MIRRORS", [(tmp_path / "no mirror").as_uri() + "/"])
    mnist._fetch_all.cache_clear()
    with settings.override(data=None, cache_dir=tmp_path / "cache"):
        yield
    mnist._fetch_all.cache_clear()


def write_mnist(folder: Path, n: int = 12, suffix: str = ".gz", halves: str = "both") -> Path:
    """A small MNIST whose labels are 0, 1, ... and whose images carry their label."""
    folder.mkdir(parents=True, exist_ok=True)
    for half, offset in (("train", 0), ("t10k", 100)):
        if halves in ("both", half):
            labels = np.arange(n, dtype=np.uint8) % 10
            images = np.empty((n, 28, 28), dtype=np.uint8)
            images[:] = (labels + offset)[:, None, None]
            write_idx(folder / f"{half}-images-idx3-ubyte{suffix}", images)
            write_idx(folder / f"{half}-labels-idx1-ubyte{suffix}", labels)
    return folder


@pytest.mark.parametrize("inside", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_root_is_the_folder_or_holds_it(tmp_path: Path, inside: str, suffix: str) -> None:
    write_mnist(tmp_path / "data" / inside, suffix=suffix)
    images, labels = load_mnist(tmp_path / "data", train=False)
    assert images.shape == (12, 28, 28)
    assert images.dtype == np.uint8
    assert labels.dtype == np.int64
    np.testing.assert_array_equal(images[:, 3, 3], labels + 100)


def test_order_of_the_places(tmp_path: Path) -> None:
    """root, then $TGC_DATA, then the cache folder."""
    write_mnist(tmp_path / "cache" / "data" / "mnist", n=3)
    assert len(MNIST()) == 3
    with settings.override(data=write_mnist(tmp_path / "named", n=4)):
        assert len(MNIST()) == 4
        assert len(MNIST(write_mnist(tmp_path / "root", n=5))) == 5
    with settings.override(data=tmp_path / "empty"):
        assert len(MNIST()) == 3


def test_samples_and_batches(tmp_path: Path) -> None:
    """A sample is (float32 (1, 28, 28) in [0, 1], int64); a batch holds the same values."""
    data = MNIST(write_mnist(tmp_path / "root"))
    image, label = data[7]
    assert image.shape == (1, 28, 28)
    assert image.dtype == np.float32
    assert image[0, 0, 0] == np.float32(7) / np.float32(255)
    assert label == 7
    assert label.dtype == np.int64
    images, labels = data.batch(np.array([7, 2]))
    np.testing.assert_array_equal(images[0], image)
    np.testing.assert_array_equal(labels, [7, 2])
    np.testing.assert_array_equal(data[-1][0], data[11][0])
    assert repr(data) == "MNIST(12 images of 28x28)"


def test_transforms_agree_between_sample_and_batch(tmp_path: Path) -> None:
    """A transform for one image and one for batches give a batch the same values."""
    root = write_mnist(tmp_path / "root")
    normalize = Normalize([0.1307], [0.3081])
    at_once = MNIST(root, transform=normalize, target_transform=lambda label: 9 - label)
    singly = MNIST(root, transform=lambda image: normalize(image))
    indices = np.array([3, 3, 8])
    images, labels = at_once.batch(indices)
    np.testing.assert_array_equal(images, singly.batch(indices)[0])
    np.testing.assert_array_equal(images[2], at_once[8][0])
    np.testing.assert_array_equal(labels, [6, 6, 1])


def test_not_found_without_download(tmp_path: Path) -> None:
    """The error lists the files and every folder that was searched."""
    with pytest.raises(DataError) as error:
        MNIST(tmp_path / "root")
    text = str(error.value)
    assert "train-images-idx3-ubyte[.gz]" in text
    for folder in ("root", "root/mnist", "root/MNIST/raw"):
        assert str(tmp_path / folder) in text
    assert "TGC_DATA" in text
    with pytest.raises(DataError, match="cache"):
        MNIST()


def test_downloads_into_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """download=True puts checked files where PyTorch puts them; the second time nothing is done."""
    mirror = write_mnist(tmp_path / "mirror", n=6)
    monkeypatch.setattr(mnist, "MIRRORS", [mirror.as_uri() + "/"])
    files = {
        train: {
            name: hashlib.md5((mirror / f"{name}.gz").read_bytes()).hexdigest() for name in names
        }
        for train, names in mnist.FILES.items()
    }
    monkeypatch.setattr(mnist, "FILES", files)
    assert len(MNIST(tmp_path / "root", download=True)) == 6
    folder = tmp_path / "root" / "MNIST" / "raw"
    assert sorted(path.name for path in folder.iterdir()) == [
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
    ]
    monkeypatch.setattr(mnist, "MIRRORS", [])
    assert len(MNIST(tmp_path / "root", download=True)) == 6


def test_downloads_both_halves_into_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = write_mnist(tmp_path / "mirror", n=6)
    monkeypatch.setattr(mnist, "MIRRORS", [mirror.as_uri() + "/"])
    fetched = []

    def unchecked(urls: list[str], path: Path, md5: str) -> Path:
        fetched.append(path.name)
        return download(urls, path, hashlib.md5((mirror / path.name).read_bytes()).hexdigest())

    monkeypatch.setattr(mnist, "fetch", unchecked)
    assert len(MNIST(train=True, download=True)) == len(MNIST(train=False, download=True)) == 6
    assert len(fetched) == 4


def test_wrong_files_on_the_mirror_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is fetched must be MNIST to the byte."""
    mirror = write_mnist(tmp_path / "mirror")
    monkeypatch.setattr(mnist, "MIRRORS", [mirror.as_uri() + "/"])
    with pytest.raises(DataError, match="the checksum is"):
        MNIST(tmp_path / "root", download=True)
    assert not list((tmp_path / "root" / "MNIST" / "raw").iterdir())


def test_without_network_the_files_are_missing() -> None:
    """Nothing else is trained on in silence: the error says why, where and what to do."""
    for load in (lambda: MNIST(download=True), lambda: load_mnist(), lambda: MNIST(train=False)):
        with pytest.raises(DataError, match="the files are not on this machine") as caught:
            load()
        assert "looked in" in str(caught.value)
        assert "synthetic=True generates digits instead" in str(caught.value)
        assert "TGC_DATA" in str(caught.value)
    with pytest.raises(DataError, match=r"cannot be fetched\n(.*\n)* *actual: .*No such file"):
        MNIST(download=True)


def test_generated_digits_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """One line says so; they are the same in each run, those to test on by seed 1."""
    test = MNIST(train=False, download=True, synthetic=True)
    assert test.source == "generated digits"
    assert len(test) == 10_000
    for found, expected in zip((test.data, test.targets), generated_digits(10_000, seed=1)):
        np.testing.assert_array_equal(found, expected)
    lines = [line for line in capsys.readouterr().err.splitlines() if "generated digits" in line]
    assert len(lines) == 1
    assert "10,000 generated digits to test on instead" in lines[0]
    assert "No such file" in lines[0]  # why MNIST could not be fetched


def test_named_root_is_never_replaced_by_generated_digits(tmp_path: Path) -> None:
    """A wrong --data is an error, not another data set."""
    with pytest.raises(DataError, match="could not be fetched"):
        MNIST(tmp_path / "typo", download=True, synthetic=True)


def test_no_mix_of_real_and_generated(tmp_path: Path) -> None:
    """Real digits to train on and generated ones to test on would measure nothing."""
    with settings.override(data=write_mnist(tmp_path / "half", halves="train")):
        assert len(MNIST(train=True, download=True)) == 12
        with pytest.raises(DataError, match="only half of the files"):
            MNIST(train=False, download=True, synthetic=True)


def test_real_files_come_before_generated_digits(tmp_path: Path) -> None:
    with settings.override(data=write_mnist(tmp_path / "data", n=4)):
        assert len(MNIST(synthetic=True)) == 4


@pytest.mark.parametrize(
    ("name", "array", "text"),
    [
        ("train-images-idx3-ubyte.gz", np.zeros((12, 32, 32), np.uint8), "(n, 28, 28)"),
        ("train-images-idx3-ubyte.gz", np.zeros((12, 28, 28), np.float32), "uint8 images"),
        ("train-labels-idx1-ubyte.gz", np.zeros(11, np.uint8), "12 uint8 labels"),
        ("train-labels-idx1-ubyte.gz", np.full(12, 10, np.uint8), "0 to 9, not 10"),
    ],
)
def test_files_of_another_kind(tmp_path: Path, name: str, array: np.ndarray, text: str) -> None:
    """A user's files are checked by structure; the error names the file."""
    root = write_mnist(tmp_path / "root")
    write_idx(root / name, array)
    with pytest.raises(DataError) as error:
        MNIST(root)
    assert name in str(error.value)
    assert text in str(error.value)


def test_truncated_file(tmp_path: Path) -> None:
    root = write_mnist(tmp_path / "root", suffix="")
    path = root / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="is truncated"):
        MNIST(root)


def test_real_mnist(data_dir: Path) -> None:
    """The published sizes, counts and mean."""
    with settings.override(data=data_dir):
        train, test = MNIST(train=True), MNIST(train=False)
    assert (len(train), len(test)) == (60_000, 10_000)
    assert np.bincount(test.targets).tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip
    assert train.targets[:5].tolist() == [5, 0, 4, 1, 9]
    assert train.data.mean() / 255 == pytest.approx(0.1307, abs=1e-4)
