"""The examples run as programs of their own: output, pictures, checks, Ctrl-C and exit codes."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.data import generated_digits, write_idx

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = {
    path.stem: path for path in sorted((ROOT / "examples").glob("*.py"))
    if path.stem not in ("recipe", "ddpm", "fft_convolution")  # the last one trains nothing
}  # fmt: skip
CLASSES = "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck"


def command(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", str(ROOT / "examples" / name), *arguments]


def environment(**variables: str) -> dict[str, str]:
    own = {"TGC_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **own, **variables}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where examples run, and write what goes by default into ``runs``."""
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(autouse=True)
def inside(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(scratch)


def run(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """An example in a process of its own, on cpu unless told otherwise."""
    return subprocess.run(
        command(name, *arguments), capture_output=True, text=True, env=environment(**variables),
        timeout=300, check=False,
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
    assert min(image.shape[:2]) > 200
    assert image[..., :3].std() > 0.02


def test_mlp(digits: Path, tmp_path: Path) -> None:
    """Trains, reports its data and the accuracy after each epoch, and draws; no bars in a pipe."""
    done = run(
        "mlp.py", "--data", str(digits), "--layers", "48", "24", "--batch-size", "50",
        "--epochs", "3", "--out", str(tmp_path / "run"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"data: MNIST from {digits}, 1,500 images to train on, 300 to test" in done.stdout
    assert "784-48-24-10 with ReLU, 39,106 parameters, on cpu" in done.stdout
    found = re.findall(r"epoch (\d)  loss ([\d.]+)  test accuracy ([\d.]+) %", done.stdout)
    assert [epoch for epoch, _, _ in found] == ["1", "2", "3"]
    assert float(found[-1][1]) < float(found[0][1])
    assert float(found[-1][2]) > 70
    assert done.stderr == ""
    rows = (tmp_path / "run" / "log.csv").read_text().splitlines()
    assert rows[0] == "epoch,step,lr,train_loss,val_loss,val_accuracy"
    assert len(rows) == 4
    assert_picture(tmp_path / "run" / "loss.png")
    assert_picture(tmp_path / "run" / "predictions.png")

    # Its weights are loaded instead of training, and validate as they did.
    best = max(float(row.split(",")[-1]) for row in rows[1:])
    again = run(
        "mlp.py", "--data", str(digits), "--layers", "48", "24", "--out", str(tmp_path / "again"),
        "--load", str(tmp_path / "run" / "best.safetensors"),
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert f"val_accuracy {best:.4f}" in again.stdout
    assert not (tmp_path / "again" / "last.safetensors").exists()


def test_a_run_stops_at_its_target(digits: Path, tmp_path: Path) -> None:
    """As soon as a validation reaches it, which may be within an epoch."""
    done = run(
        "mlp.py", "--data", str(digits), "--batch-size", "50", "--epochs", "9", "--target", "50",
        "--validate-every", "5", "--out", str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [row.split(",") for row in (tmp_path / "log.csv").read_text().splitlines()[1:]]
    assert [int(row[1]) for row in rows] == list(range(5, 5 * len(rows) + 1, 5))
    accuracies = [float(row[-1]) for row in rows]
    assert accuracies[-1] >= 0.5
    assert all(value < 0.5 for value in accuracies[:-1])
    assert len(rows) < 54


def test_ctrl_c_saves_and_says_how_to_go_on(digits: Path, tmp_path: Path) -> None:
    """With no traceback, and the exit code of an interrupted program; the run then goes on."""
    arguments = ["--data", str(digits), "--epochs", "1000", "--max-batches", "2",
                 "--out", str(tmp_path / "my run")]  # fmt: skip
    with subprocess.Popen(
        command("mlp.py", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(),
    ) as child:  # fmt: skip
        assert child.stdout is not None and child.stderr is not None
        for line in child.stdout:
            if line.startswith("epoch 2 "):
                child.send_signal(signal.SIGINT)
                break
        child.stdout.read()
        said = child.stderr.read()
        code = child.wait(timeout=120)
    assert code == 130, said
    assert "Traceback" not in said
    assert f"the same call goes on from {tmp_path / 'my run' / 'last.safetensors'}" in said
    wanted = rf"go on with:  python \S+mlp.py .* --out '{tmp_path}/my run' --resume\n"
    assert re.search(wanted, said)
    rows = len((tmp_path / "my run" / "log.csv").read_text().splitlines())
    done = run("mlp.py", *arguments, "--resume", "--target", "0")
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "my run" / "log.csv").read_text().splitlines()) in (rows, rows + 1)
    assert "the run had ended before; its last row: epoch" in done.stdout
    anew = run("mlp.py", "--data", str(digits), "--epochs", "1", "--max-batches", "1",
               "--out", str(tmp_path / "my run"))  # fmt: skip
    assert "has an earlier run, which is replaced" in anew.stdout
    assert len((tmp_path / "my run" / "log.csv").read_text().splitlines()) == 2


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An example as a module, to look at its arguments."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES[name])
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, made)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize("name", EXAMPLES)
def test_arguments_are_checked_before_work_begins(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All examples take the same ones, and refuse what cannot work with exit code 2."""
    made = module(name, monkeypatch)
    (tmp_path / "file").touch()
    wrong = [
        (["--out", str(tmp_path / "file" / "out")], "--out: cannot write to"),
        (["--load", str(tmp_path / "missing")], "--load: there is no file"),
        (["--max-batches", "0"], "--max-batches: 0 is less than 1"),
        (["--max-batches", "many"], "--max-batches: 'many' is no whole number"),
        (["--batch-size", "-4"], "--batch-size: -4 is less than 1"),
        (["--validate-every", "0"], "--validate-every: 0 is less than 1"),
        (["--lr", "0"], "--lr: 0.0 is not above 0"),
        (["--device", "gpu"], "--device: [device] unknown device"),
        (["--load", str(tmp_path / "file"), "--resume"], "--resume: not together with --load"),
    ]
    if name != "perceptron":
        wrong.append(
            (["--text" if name == "gpt" else "--data", str(tmp_path / "none")], "there is")
        )
    wrong.append((["--steps" if name == "gpt" else "--epochs", "0"], ": 0 is less than 1"))
    before = tc.get_default_device()
    try:
        for arguments, message in wrong:
            with pytest.raises(SystemExit) as ended:
                made.arguments(["--out", str(tmp_path / "out"), *arguments])
            assert ended.value.code == 2
            assert message in capsys.readouterr().err
        made.arguments(["--out", str(tmp_path / "out"), "--smoke", "--seed", "3"])
    finally:
        tc.set_default_device(before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "out"]


def test_outputs_go_where_git_ignores_them() -> None:
    assert "/runs/" in (ROOT / ".gitignore").read_text().splitlines()
    text = "".join(path.read_text() for path in (*EXAMPLES.values(), ROOT / "examples/recipe.py"))
    assert re.findall(r'Path\("([^"]+)"\)', text) == [
        "runs/resnet_mnist/resnet.safetensors", "runs",
    ]  # fmt: skip


def test_convolution_by_spectra_is_the_direct_one() -> None:
    done = run("fft_convolution.py", "--length", "300", "--signals", "2")
    assert done.returncode == 0, done.stderr
    assert "2 signals of 300 points on cpu" in done.stdout and "1025" in done.stdout


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
    assert "Traceback" not in refused.stderr
    assert "; --synthetic generates digits instead" in refused.stderr
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
    done = run("perceptron.py", "--seed", seed, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "100.0% right" in done.stdout
    assert_picture(tmp_path / "boundary.png")


def test_perceptron_gives_up() -> None:
    done = run("perceptron.py", "--epochs", "1", "--margin", "0.01", "--lr", "0.001")
    assert done.returncode == 1, done.stderr
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


def test_quantize(digits: Path, tmp_path: Path) -> None:
    """ONNX Runtime computes the trained network in 8 bits almost as well, from a smaller file."""
    done = run("quantize.py", "--data", str(digits), "--smoke", "--batch-size", "50",
               "--calibrate", "100", "--target", "50", "--out", str(tmp_path))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "calibrated on 100 images" in done.stdout
    reached = dict(re.findall(r"(float32|int8) .* accuracy ([\d.]+) %", done.stdout))
    assert abs(float(reached["float32"]) - float(reached["int8"])) < 4
    exact, small = (tmp_path / f"lenet{part}.onnx" for part in ("", "_int8"))
    assert small.stat().st_size < 0.4 * exact.stat().st_size


def test_gpt(tmp_path: Path) -> None:
    """Learns the letters of a given text in a few steps, and writes in its alphabet."""
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question.\n" * 40)
    done = run(
        "gpt.py", "--text", str(tmp_path / "text.txt"), "--smoke", "--layers", "1", "--width", "16",
        "--heads", "2", "--context", "16", "--batch-size", "8", "--steps", "30", "--lr", "0.02",
        "--sample", "9", "--out", str(tmp_path / "gpt"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1,680 characters, 16 different ones" in done.stdout
    assert "model: GPT, 3,680 parameters, on cpu" in done.stdout
    found = re.findall(r"step \d+  loss [\d.]+  validation ([\d.]+)", done.stdout)
    assert len(found) == 10
    assert float(found[-1]) < 2.65
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
    assert_picture(tmp_path / "denoiser" / "loss.png")
    assert_picture(tmp_path / "denoiser" / "steps.png")


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
    for name in ("unet/loss", "samples", "progress", "classes"):
        assert_picture(tmp_path / f"{name}.png")
    loaded = run("diffusion.py", "--data", str(digits), "--part", "unet", "--smoke", "--load",
                 str(tmp_path / "unet" / "unet.safetensors"), "--out", str(tmp_path))  # fmt: skip
    assert loaded.returncode == 0, loaded.stderr


def test_resnet_cifar(tmp_path: Path) -> None:
    """Learns the colour that each class has in a made-up CIFAR-10; draws what it takes for what."""
    random = np.random.default_rng(0)
    folder = tmp_path / "cifar"
    folder.mkdir()
    for name in (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"):
        labels = random.integers(0, 10, 60)
        pixels = random.integers(0, 60, (60, 3, 1024))
        pixels[np.arange(60), labels % 3] += 15 * labels[:, None]
        records = np.concatenate([labels[:, None], pixels.reshape(60, -1)], 1)
        records.astype(np.uint8).tofile(folder / name)
    (folder / "batches.meta.txt").write_text(CLASSES)
    done = run("resnet_cifar.py", "--data", str(folder), "--smoke", "--max-batches", "9",
               "--out", str(tmp_path / "out"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "data: CIFAR-10, 300 pictures to train on, 60 to test" in done.stdout
    assert "ResNet-8, 5,214 parameters, on cpu" in done.stdout
    found = re.search(r"epoch 1  loss [\d.]+  test accuracy ([\d.]+) %", done.stdout)
    assert found is not None and float(found[1]) >= 10
    for name in ("loss", "confusion", "guesses"):
        assert_picture(tmp_path / "out" / f"{name}.png")
    missing = run("resnet_cifar.py", "--smoke", **without_network(tmp_path))
    assert missing.returncode == 2
    assert "error: " in missing.stderr and "Traceback" not in missing.stderr
