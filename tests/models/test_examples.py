"""The examples run as programs of their own: output, pictures and exit codes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tinygrad_cuda.data import generated_digits, write_idx

ROOT = Path(__file__).resolve().parents[2]


def run(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """An example in a process of its own, on cpu unless told otherwise."""
    environment = {**os.environ, "TGC_DEVICE": "cpu", "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / name), *arguments],
        capture_output=True, text=True, env=environment, timeout=300, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small MNIST: generated digits in IDX files."""
    folder = tmp_path_factory.mktemp("mnist")
    for prefix, count, seed in (("train", 1500, 0), ("t10k", 300, 1)):
        images, labels = generated_digits(count, seed)
        write_idx(folder / f"{prefix}-images-idx3-ubyte", images)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", labels.astype(np.uint8))
    return folder


def assert_picture(path: Path) -> None:
    """A PNG of a sensible size that is not blank."""
    image = pytest.importorskip("matplotlib.image").imread(path)
    assert min(image.shape[:2]) > 300
    assert image[..., :3].std() > 0.02


def test_mlp(digits: Path, tmp_path: Path) -> None:
    """Trains, reports its data and the accuracy after each epoch, and draws."""
    done = run(
        "mlp.py", "--data", str(digits), "--layers", "48", "24", "--batch-size", "50",
        "--epochs", "3", "--target", "70", "--plot", str(tmp_path / "pictures"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"data: MNIST from {digits}, 1,500 images to train on, 300 to test" in done.stdout
    assert "784-48-24-10 with ReLU, 39,106 parameters, on cpu" in done.stdout
    found = re.findall(r"epoch (\d)  loss ([\d.]+)  test accuracy ([\d.]+) %", done.stdout)
    assert [epoch for epoch, _, _ in found] == ["1", "2", "3"]
    assert float(found[-1][1]) < float(found[0][1])
    assert "epoch 1:" in done.stderr
    assert_picture(tmp_path / "pictures" / "loss.png")
    assert_picture(tmp_path / "pictures" / "predictions.png")


def without_network(tmp_path: Path) -> dict[str, str]:
    """Variables of a machine that has no data sets and reaches nothing."""
    proxy = "http://127.0.0.1:9"
    return {
        "TGC_DATA": str(tmp_path / "nothing"), "TGC_CACHE_DIR": str(tmp_path / "cache"),
        "http_proxy": proxy, "https_proxy": proxy, "no_proxy": "",
    }  # fmt: skip


def test_generated_digits_are_asked_for_and_named_beside_the_accuracy(tmp_path: Path) -> None:
    """Without them a missing data set ends the program, with the way out."""
    away = without_network(tmp_path)
    refused = run("mlp.py", "--epochs", "1", "--max-batches", "2", **away)
    assert refused.returncode != 0
    assert "the files are not on this machine and cannot be fetched" in refused.stderr
    assert "test accuracy" not in refused.stdout
    done = run("mlp.py", "--synthetic", "--epochs", "1", "--max-batches", "2", **away)
    assert done.returncode == 0, done.stderr
    assert re.search(r"accuracy [\d.]+ % \(of generated digits, not MNIST\)", done.stdout)
    assert "--synthetic" in (ROOT / "Makefile").read_text()


def test_mlp_misses_its_target(digits: Path) -> None:
    """After two steps it knows too little: the exit code says so."""
    done = run("mlp.py", "--data", str(digits), "--epochs", "1", "--max-batches", "2",
               "--target", "99")  # fmt: skip
    assert done.returncode == 1
    assert "the target of 99.0 % was missed" in done.stderr


def test_mlp_repeats_itself(digits: Path) -> None:
    """The same seed prints the same losses and accuracies; another one does not."""

    def numbers(seed: str) -> list[str]:
        done = run("mlp.py", "--data", str(digits), "--epochs", "1", "--max-batches", "3",
                   "--seed", seed)  # fmt: skip
        assert done.returncode == 0, done.stderr
        return re.findall(r"(?:loss|accuracy) [\d.]+", done.stdout)

    assert numbers("1") == numbers("1") != numbers("2")


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_perceptron(seed: str, tmp_path: Path) -> None:
    """Every point ends on its side, and the boundary is drawn."""
    done = run("perceptron.py", "--seed", seed, "--plot", str(tmp_path / "line.png"))
    assert done.returncode == 0, done.stderr
    assert "100.0% right" in done.stdout
    assert_picture(tmp_path / "line.png")


def test_perceptron_gives_up() -> None:
    done = run("perceptron.py", "--max-batches", "1", "--margin", "0.01", "--lr", "0.001")
    assert done.returncode == 1
    assert "1 steps" in done.stdout


def test_mlp_on_the_emulator(digits: Path) -> None:
    """The same program, through generated kernels."""
    done = run("mlp.py", "--data", str(digits), "--device", "emu", "--layers", "8",
               "--batch-size", "16", "--epochs", "1", "--max-batches", "2")  # fmt: skip
    if "no C++ compiler" in done.stderr:
        pytest.skip("no C++ compiler")
    assert done.returncode == 0, done.stderr
    assert "on emu" in done.stdout


def test_mlp_on_cuda(digits: Path, cuda_device: str) -> None:
    done = run("mlp.py", "--data", str(digits), "--device", cuda_device, "--epochs", "3",
               "--batch-size", "50", "--target", "70")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "on cuda:0" in done.stdout


def test_lenet(digits: Path, tmp_path: Path) -> None:
    """Learns in a few steps, draws its filters and where it looks."""
    done = run("lenet.py", "--data", str(digits), "--smoke", "--batch-size", "50",
               "--target", "50", "--out", str(tmp_path / "lenet"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "LeNet, 61,706 parameters, on cpu" in done.stdout
    assert re.search(r"epoch 1  loss [\d.]+  test accuracy [\d.]+ %", done.stdout)
    assert_picture(tmp_path / "lenet" / "filters.png")
    assert_picture(tmp_path / "lenet" / "attention.png")


def test_gpt(tmp_path: Path) -> None:
    """Learns the letters of a given text in a few steps, and writes in its alphabet."""
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question.\n" * 40)
    done = run(
        "gpt.py", "--text", str(tmp_path / "text.txt"), "--smoke", "--layers", "1", "--width", "16",
        "--heads", "2", "--context", "16", "--batch-size", "8", "--steps", "30", "--lr", "0.02",
        "--sample", "9", "--target", "2.65", "--out", str(tmp_path / "gpt"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1,680 characters, 16 different ones" in done.stdout
    assert "model: GPT, 3,680 parameters, on cpu" in done.stdout
    assert len(re.findall(r"step \d+  loss [\d.]+  validation [\d.]+", done.stdout)) == 10
    written = (tmp_path / "gpt" / "sample.txt").read_text()
    assert len(written) == 10
    assert set(written) <= set("to be or not to be, that is the question.\n")
    assert_picture(tmp_path / "gpt" / "loss.png")


def test_vae(digits: Path, tmp_path: Path) -> None:
    """Learns in a few steps; draws what it rebuilds, dreams and passes through."""
    done = run(
        "vae.py", "--data", str(digits), "--smoke", "--max-batches", "25", "--batch-size", "30",
        "--hidden", "64", "--latent", "4", "--lr", "0.01", "--target", "290",
        "--out", str(tmp_path / "vae"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"data: MNIST from {digits}" in done.stdout
    assert re.search(r"negative ELBO [\d.]+ = [\d.]+ rebuilding \+ [\d.]+ div", done.stdout)
    for name in ("reconstructions", "samples", "walk"):
        assert_picture(tmp_path / "vae" / f"{name}.png")


@pytest.fixture(scope="module")
def resnet(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What the residual network's example prints, and its folder."""
    out = tmp_path_factory.mktemp("resnet")
    done = run("resnet_mnist.py", "--data", str(digits), "--smoke", "--batch-size", "16",
               "--max-batches", "4", "--max-test", "50", "--out", str(out))  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, out


def test_resnet(resnet: tuple[str, Path]) -> None:
    """Trains, folds its batch norms to the same logits, saves itself and draws."""
    printed, out = resnet
    assert "ResNet, 19,714 parameters, on cpu" in printed
    assert re.search(r"epoch 1  loss [\d.]+  test accuracy [\d.]+ %", printed)
    assert re.search(r"folded: largest difference \S+ of the largest logit, 50 of 50", printed)
    assert_picture(out / "loss.png")
    assert_picture(out / "doubts.png")


def test_denoiser(digits: Path, tmp_path: Path) -> None:
    """Its loss falls after each update, or the program would fail."""
    done = run("diffusion.py", "--data", str(digits), "--part", "denoiser", "--smoke",
               "--steps", "10", "--max-batches", "4", "--out", str(tmp_path))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "after 10 reverse steps" in done.stdout
    assert_picture(tmp_path / "denoiser_loss.png")


def test_unet(digits: Path, resnet: tuple[str, Path], tmp_path: Path) -> None:
    """Trains, saves, draws, and the residual network judges its samples."""
    done = run("diffusion.py", "--data", str(digits), "--part", "unet", "--smoke", "--evaluate",
               "--steps", "10", "--batch-size", "4", "--max-batches", "2", "--samples", "10",
               "--classifier", str(resnet[1] / "resnet.safetensors"), "--target", "101",
               "--out", str(tmp_path))  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "the target of 101.0 % was missed" in done.stderr
    assert re.search(r"epoch 1 .* held-out noise MSE [\d.]+", done.stdout)
    assert "evaluation: 10 samples in" in done.stdout
    assert (tmp_path / "unet.safetensors").is_file()
    for name in ("unet_loss", "samples", "classes"):
        assert_picture(tmp_path / f"{name}.png")
