"""The training loop: the bits of a loop by hand, exact resume after a kill, logs, refusals."""

from __future__ import annotations

import csv
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fit_program
import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.data import DataLoader, TensorDataset
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.utils.metrics import accuracy
from tinygrad_cuda.utils.training import Callback, History, fit

FILES = ("last.safetensors", "best.safetensors", "log.csv")


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    tc.set_default_device("cpu")
    tc.manual_seed(0)
    yield
    tc.set_default_device(None)


def task(dropout: float = 0.0) -> tuple[Any, Any, Any]:
    """A model, its optimizer and rows with three classes."""
    tc.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3))
    optimizer = optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((24, 4)).astype(np.float32)
    return model, optimizer, TensorDataset(x, x[:, :3].argmax(1))


def weights(model: Any) -> list[bytes]:
    return [value.numpy().tobytes() for value in model.state_dict().values()]


LOSS = nn.CrossEntropyLoss()


@pytest.mark.parametrize("compile", [False, True])
def test_a_loop_by_hand_gives_the_same_bits(compile: bool) -> None:
    model, optimizer, data = task(dropout=0.2)
    losses = []
    for _ in range(4):
        total = []
        for x, y in DataLoader(data, 8, shuffle=True, seed=3):
            optimizer.zero_grad()
            loss = LOSS(model(x), y)
            loss.backward()
            optimizer.step()
            total.append(loss.item())
        losses.append(sum(total) / 3)
        break
    wanted = weights(model)
    model, optimizer, data = task(dropout=0.2)
    loader = DataLoader(data, 8, shuffle=True, seed=3)
    history = fit(model, LOSS, optimizer, loader, epochs=1, compile=compile, progress=False)
    assert weights(model) == wanted
    assert history["train_loss"] == pytest.approx(losses, rel=1e-12)
    assert model.training


def test_validation_metrics_and_files(tmp_path: Path) -> None:
    model, optimizer, data = task()
    history = fit(
        model, LOSS, optimizer, DataLoader(data, 8, shuffle=True), epochs=12, folder=tmp_path,
        validation=DataLoader(data, 10), metrics={"accuracy": accuracy}, progress=False,
    )  # fmt: skip
    assert len(history) == 12
    assert history["val_accuracy"][-1] > 0.9
    assert history["step"] == list(range(3, 39, 3))
    model.eval()
    x, y = data.tensors
    assert history["val_loss"][-1] == pytest.approx(
        LOSS(model(tc.tensor(x)), tc.tensor(y)).item(), 1e-5
    )
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["val_loss"]) for row in rows] == history["val_loss"]
    best = history.best("val_loss")
    assert best["val_loss"] == min(history["val_loss"])
    other, _, _ = task()
    other.load_state_dict(tc.load(tmp_path / "best.safetensors"))
    fit(other, LOSS, optim.SGD(other.parameters(), lr=0.1), DataLoader(data, 8), epochs=0)
    assert LOSS(other(tc.tensor(x)), tc.tensor(y)).item() == pytest.approx(best["val_loss"], 1e-5)
    with pytest.raises(tc.ArgumentError, match="val_accuracy"):
        _ = history["accuracy"]


# Going on -----------------------------------------------------------------------------------------


def files(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in FILES]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    tc.set_default_device("cpu")
    fit_program.train(folder)
    return folder


@pytest.mark.parametrize("step", [5, 6])
def test_after_a_kill_every_byte_is_the_same(step: int, whole: Path, tmp_path: Path) -> None:
    """Killed in the middle of an epoch and at its end; the rest in a process of its own."""
    program = [sys.executable, fit_program.__file__, str(tmp_path)]
    killed = subprocess.run([*program, str(step)], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    # What else a kill may leave: half a file, and a row that the checkpoint does not know.
    torn = tmp_path / ".last.safetensors.0.tmp"
    torn.write_bytes(b"half")
    with (tmp_path / "log.csv").open("a") as file:
        file.write("7,7,7\n")
    subprocess.run(program, check=True)
    assert files(tmp_path) == files(whole)
    assert not torn.exists()


def test_interrupts_wait_for_the_step(whole: Path, tmp_path: Path) -> None:
    """Ctrl-C twice in one run, at steps without a checkpoint of their own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for step in (3, 13):
            with pytest.raises(KeyboardInterrupt):
                fit_program.train(tmp_path, step, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        # A job in the background ignores it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert len(fit_program.train(tmp_path, 15, signal.SIGINT)) == fit_program.EPOCHS
    finally:
        signal.signal(signal.SIGINT, before)
    assert files(tmp_path) == files(whole)


def test_more_epochs_and_beginning_anew(tmp_path: Path) -> None:
    def run(epochs: int, **options: Any) -> tuple[History, list[bytes]]:
        model, optimizer, data = task(0.5)
        loader = DataLoader(data, 8, shuffle=True)
        found = fit(model, LOSS, optimizer, loader, epochs=epochs, progress=False, **options)
        return found, weights(model)

    run(2, folder=tmp_path)
    longer = run(5, folder=tmp_path)
    assert longer[1] == run(5)[1] and len(longer[0]) == 5
    assert run(5, folder=tmp_path)[1] == longer[1]
    anew = run(1, folder=tmp_path, resume=False)
    assert len(anew[0]) == 1
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 2
    with pytest.raises(tc.DataError, match="another kind of run"):
        model, optimizer, data = task()
        schedule = optim.lr_scheduler.StepLR(optimizer, 1)
        fit(model, LOSS, optimizer, DataLoader(data), epochs=1, folder=tmp_path, scheduler=schedule)


# What decides when to stop ------------------------------------------------------------------------


def test_early_stopping_and_plateaus(tmp_path: Path) -> None:
    """A rate of 0 never improves: the rate falls at once, and the run ends by its patience."""
    model, optimizer, data = task()
    optimizer.param_groups[0]["lr"] = 0.0
    plateau = optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    history = fit(
        model, LOSS, optimizer, DataLoader(data, 24), epochs=50, patience=3, scheduler=plateau,
        folder=tmp_path, progress=False,
    )  # fmt: skip
    assert len(history) == 4  # the best one, and three without a better one
    assert plateau.num_bad_epochs <= 1
    again = fit(
        model, LOSS, optimizer, DataLoader(data, 24), epochs=50, patience=3, scheduler=plateau,
        folder=tmp_path, progress=False,
    )  # fmt: skip
    assert len(again) == 4


def test_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    """The best of the epochs before it stays."""
    model, optimizer, data = task()
    loader = DataLoader(data, 8)

    class Spoil(Callback):
        def on_step(self, run: Any) -> None:
            if run.step == 4:
                with tc.no_grad():
                    model[0].weight.fill_(float("nan"))

    with pytest.raises(tc.DataError, match="nan in epoch 1, batch 1"):
        fit(
            model, LOSS, optimizer, loader, epochs=3, folder=tmp_path, callbacks=[Spoil()],
            progress=False,
        )  # fmt: skip
    kept = tc.load(tmp_path / "best.safetensors")
    assert all(np.isfinite(value.numpy()).all() for value in kept.values())


def test_callbacks_and_stop() -> None:
    seen: list[tuple[str, int]] = []

    class Watch(Callback):
        def on_step(self, run: Any) -> None:
            seen.append(("step", run.step))
            if run.step == 5:
                run.stop()

        def on_epoch(self, run: Any) -> None:
            seen.append(("epoch", len(run.history)))

    model, optimizer, data = task()
    history = fit(model, LOSS, optimizer, DataLoader(data, 8), epochs=9, callbacks=[Watch()])
    assert seen == [("step", 1), ("step", 2), ("step", 3), ("epoch", 1), ("step", 4), ("step", 5)]
    assert len(history) == 1


# Options ------------------------------------------------------------------------------------------


def test_accumulated_gradients_are_those_of_the_large_batch() -> None:
    def run(size: int, accumulate: int) -> Any:
        model, optimizer, data = task()
        loader = DataLoader(data, size)
        fit(model, LOSS, optimizer, loader, epochs=2, accumulate=accumulate, progress=False)
        return [value.numpy() for value in model.state_dict().values()]

    for whole_batch, parts in zip(run(12, 1), run(4, 3)):
        np.testing.assert_allclose(whole_batch, parts, rtol=1e-5, atol=1e-6)


def test_a_scaler_and_averages() -> None:
    model, optimizer, data = task()
    ema = optim.swa_utils.AveragedModel(model)
    scaler = tc.amp.GradScaler("cpu", init_scale=1024.0)
    history = fit(
        model, LOSS, optimizer, DataLoader(data, 8), epochs=3, scaler=scaler, ema=ema,
        validation=DataLoader(data, 24), clip_grad_norm=0.1, progress=False,
    )  # fmt: skip
    assert int(ema.n_averaged) == 9
    x, y = (tc.tensor(array) for array in data.tensors)
    assert history["val_loss"][-1] == pytest.approx(LOSS(ema(x), y).item(), 1e-6)


@pytest.mark.parametrize("compile", [False, True])
def test_a_step_of_your_own(compile: bool) -> None:
    """It trains to the same bits as the loss that it spells out, and is validated by it."""

    def run(loss: Any, **options: Any) -> tuple[list[bytes], list[float]]:
        model, optimizer, data = task()
        history = fit(
            model, loss, optimizer, DataLoader(data, 8), epochs=2, compile=compile,
            validation=DataLoader(data, 10), progress=False, **options,
        )  # fmt: skip
        return weights(model), history["val_loss"]

    own = run(None, training_step=lambda model, batch: LOSS(model(batch[0]), batch[1]))
    assert own == run(LOSS)


def test_autocast_computes_in_half_precision() -> None:
    """A model and its validation under `tc.autocast`, as a step of one's own writes it."""
    seen = []

    def run(loss: Any, **options: Any) -> list[bytes]:
        model, optimizer, data = task()
        model.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
        loader, other = DataLoader(data, 8), DataLoader(data, 24)
        fit(model, loss, optimizer, loader, epochs=2, validation=other, progress=False, **options)
        return weights(model)

    def step(model: Any, batch: Any) -> Any:
        with tc.autocast("cpu", dtype=tc.bfloat16):
            return LOSS(model(batch[0]), batch[1])

    assert run(LOSS, autocast=tc.bfloat16) == run(None, training_step=step)
    assert seen == [tc.bfloat16] * 16


def test_modes_are_restored() -> None:
    """A layer that was put into evaluation mode stays there through training and validation."""
    model, optimizer, data = task(0.5)
    model[2].eval()
    seen = []
    model[2].register_forward_hook(
        lambda module, *_: seen.append((model.training, module.training))
    )
    fit(
        model, LOSS, optimizer, DataLoader(data, 24), epochs=2, validation=DataLoader(data, 24),
        progress=False,
    )  # fmt: skip
    assert seen == [(True, False), (False, False)] * 2
    assert model.training and not model[2].training


def test_checkpoints_fall_between_accumulated_steps(tmp_path: Path) -> None:
    """Also in an epoch whose number of batches is no multiple of the steps."""
    steps = []

    class Watch(Callback):
        def on_step(self, run: Any) -> None:
            if (tmp_path / "last.safetensors").exists():
                steps.append(tc.load(tmp_path / "last.safetensors")["run"]["step"])

    model, optimizer, data = task()
    fit(
        model, LOSS, optimizer, DataLoader(data, 5), epochs=2, accumulate=2, checkpoint_every=2,
        folder=tmp_path, callbacks=[Watch()], progress=False,
    )  # fmt: skip
    assert steps == [2, 2, 4, 5, 5, 7, 7, 9]


def test_losses_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at each step: that would make the host wait for the device."""
    reads = []
    array = TensorBase.array
    monkeypatch.setattr(TensorBase, "array", lambda self: reads.append(None) or array(self))
    model, optimizer, data = task()
    fit(model, LOSS, optimizer, DataLoader(data, 1), epochs=2, progress=False)
    assert len(reads) == 2


def test_tensorboard_events(tmp_path: Path) -> None:
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    model, optimizer, data = task()
    history = fit(
        model, LOSS, optimizer, DataLoader(data, 8), epochs=2, folder=tmp_path, tensorboard=True,
        progress=False,
    )  # fmt: skip
    (path,) = tmp_path.glob("events.out.tfevents.*")
    content, found = path.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        event = event_pb2.Event.FromString(content[12 : 12 + length])
        found += [(v.tag, event.step, v.simple_value) for v in event.summary.value]
        content = content[16 + length :]
    losses = [value for tag, _, value in found if tag == "train_loss"]
    assert losses == pytest.approx(history["train_loss"], rel=1e-6)
    assert {step for _, step, _ in found} == {3, 6}


def test_tensorboard_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra, before anything is trained."""
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    model, optimizer, data = task()
    before = weights(model)
    with pytest.raises(tc.ArgumentError, match=r"tinygrad_cuda\[tensorboard\]"):
        fit(model, LOSS, optimizer, DataLoader(data), epochs=1, folder=tmp_path, tensorboard=True)
    assert weights(model) == before


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"checkpoint_every": 2}, "nowhere to go"),
        ({"accumulate": 0}, "a count"),
        ({"accumulate": 2, "compile": True}, "whole steps"),
        ({"mode": "least"}, "unknown mode"),
        ({"scheduler_interval": "batch"}, "unknown scheduler_interval"),
        ({"monitor": "val_loss"}, "nothing of that name"),
        ({"metrics": {"accuracy": accuracy}}, "nothing to measure"),
        ({"training_step": lambda model, batch: batch[0].sum()}, "one thing computes"),
        ({"tensorboard": True}, "a folder"),
    ],
)
def test_refusals(options: dict[str, Any], text: str) -> None:
    model, optimizer, data = task()
    with pytest.raises(tc.ArgumentError, match=text):
        fit(model, LOSS, optimizer, DataLoader(data, 8), epochs=1, progress=False, **options)


def test_a_loader_without_a_place(tmp_path: Path) -> None:
    model, optimizer, data = task()
    batches = list(DataLoader(data, 8))
    with pytest.raises(tc.ArgumentError, match="place cannot be kept"):
        fit(model, LOSS, optimizer, batches, epochs=1, folder=tmp_path)
    fit(model, LOSS, optimizer, batches, epochs=1, progress=False)
