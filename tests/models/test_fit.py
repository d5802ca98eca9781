"""`fit`: the bits of a loop by hand, exact resume after a kill, logs, refusals."""

from __future__ import annotations

import csv
import random
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fit_program
import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.data import DataLoader, IterableDataset, TensorDataset
from tinygrad_cuda.data.sampler import WeightedRandomSampler
from tinygrad_cuda.optim import lr_scheduler as rates
from tinygrad_cuda.optim.swa_utils import AveragedModel
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
    with pytest.raises(tc.ArgumentError, match="position cannot be saved"):
        fit(model, LOSS, optimizer, batches, epochs=1, folder=tmp_path)
    fit(model, LOSS, optimizer, batches, epochs=1, progress=False)


# Resumed runs end with the same bytes -------------------------------------------------------------


ROWS = 38
X = np.random.default_rng(0).standard_normal((ROWS, 6)).astype(np.float32)
DATA = TensorDataset(X, X[:, :3].argmax(1))


class Stream(IterableDataset):
    """The same rows, without a length."""

    def __iter__(self) -> Iterator[Any]:
        return (DATA[number] for number in range(ROWS))


class PowerCut(Exception):
    """What ends a run."""


class Cut(Callback):
    """Raises after a step, or at the end of an epoch before its checkpoint."""

    def __init__(self, where: str, number: int) -> None:
        self.where, self.number = where, number

    def on_step(self, run: Any) -> None:
        if self.where == "step" and run.step == self.number:
            raise PowerCut

    def on_epoch(self, run: Any) -> None:
        if self.where == "epoch" and run.epoch == self.number:
            raise PowerCut


def weighted() -> DataLoader:
    return DataLoader(DATA, 4, sampler=WeightedRandomSampler(np.arange(ROWS) + 1.0, ROWS))


# Each: options of fit; what needs the model, the optimizer or a fresh start is a function.
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "compile": {"compile": True},
    "validate_every": {"validate_every": 3},
    "plateau": {"scheduler": lambda o: rates.ReduceLROnPlateau(o, patience=0)},
    "one cycle": {
        "scheduler": lambda o: rates.OneCycleLR(o, 0.1, 40), "scheduler_interval": "step",
    },
    "chain": {
        "scheduler": lambda o: rates.SequentialLR(
            o, [rates.LinearLR(o, 0.1, total_iters=2), rates.ExponentialLR(o, 0.9)], [2]),
    },
    "patience": {"patience": 1},
    "target": {"target": 0.9},
    "scaler": {
        "scaler": lambda: tc.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3),
        "autocast": tc.float16,
    },
    "ema": {"ema": lambda model: AveragedModel(model, use_buffers=True)},
    "weighted": {"loader": weighted},
    "stream": {"loader": lambda: DataLoader(Stream(), 4)},
    # 10 batches in groups of 4: the last one of an epoch is smaller, and no length says so.
    "stream in groups": {"loader": lambda: DataLoader(Stream(), 4), "accumulate": 4},
    "workers": {"loader": lambda: DataLoader(DATA, 4, shuffle=True, num_workers=2)},
    "nadam": {"optimizer": lambda p: optim.NAdam(p)},
    "adafactor": {"optimizer": lambda p: optim.Adafactor(p)},
}  # fmt: skip


def train(options: dict[str, Any], folder: Path, cut: Cut | None = None, epochs: int = 4) -> Any:
    tc.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3))
    options = dict(options)
    optimizer = options.pop("optimizer", lambda p: optim.Adam(p, lr=0.02))(model.parameters())
    loader = options.pop("loader", lambda: DataLoader(DATA, 4, shuffle=True))()
    given: dict[str, tuple[Any, ...]] = {"scheduler": (optimizer,), "ema": (model,), "scaler": ()}
    made = {name: options[name](*given[name]) for name in options.keys() & given.keys()}
    return fit(
        model, nn.CrossEntropyLoss(), optimizer, loader, epochs=epochs, folder=folder,
        checkpoint_every=4, validation=DataLoader(DATA, 16, shuffle=True),
        metrics={"accuracy": accuracy}, callbacks=[] if cut is None else [cut], progress=False,
        **{**options, **made},
    )  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_the_same_bytes(name: str, tmp_path: Path) -> None:
    """Broken off within an epoch, and between its files and its checkpoint; or prolonged."""
    options = RUNS[name]
    history = train(options, tmp_path / "whole")
    wanted = files(tmp_path / "whole")
    ends = len(history) if name in ("patience", "target") else 99
    for where, number in (("step", 7), ("epoch", min(2, ends))):
        folder = tmp_path / where
        with pytest.raises(PowerCut):
            train(options, folder, Cut(where, number))
        train(options, folder)
        assert files(folder) == wanted
    train(options, tmp_path / "prolonged", epochs=1)
    train(options, tmp_path / "prolonged")
    assert files(tmp_path / "prolonged") == wanted


def test_streams_that_nobody_seeds_or_draws_from_are_no_part_of_it(tmp_path: Path) -> None:
    """Each process has another state of Python's and NumPy's default streams."""
    found = []
    for seed in (1, 2):
        model, optimizer = classifier()
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        fit(
            model, nn.CrossEntropyLoss(), optimizer, DataLoader(DATA, 4, shuffle=True, seed=1),
            epochs=2, folder=tmp_path / str(seed), validation=DataLoader(DATA, 38), progress=False,
        )  # fmt: skip
        found.append(files(tmp_path / str(seed)))
    assert found[0] == found[1]


# Validation within an epoch, targets, the best weights ----------------------------------------


def classifier() -> tuple[Any, Any]:
    tc.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    return model, optim.SGD(model.parameters(), lr=0.3, momentum=0.9)


def short(folder: Path | None = None, **options: Any) -> tuple[Any, History]:
    """38 rows in batches of 4: 10 steps an epoch."""
    model, optimizer = classifier()
    history = fit(
        model, nn.CrossEntropyLoss(), optimizer, DataLoader(DATA, 4, shuffle=True, seed=1),
        folder=folder, validation=DataLoader(DATA, 19), metrics={"accuracy": accuracy},
        progress=False, **{"epochs": 2, **options},
    )  # fmt: skip
    return model, history


def test_validation_within_an_epoch(tmp_path: Path) -> None:
    """A row each 5 batches, none twice at the end; training is as without."""
    seen: list[tuple[int, int]] = []

    class Watch(Callback):
        def on_validation(self, run: Any) -> None:
            seen.append((run.epoch, run.step))

    model, history = short(tmp_path, validate_every=5, callbacks=[Watch()])
    assert history["step"] == [5, 10, 15, 20]
    assert history["epoch"] == [0, 0, 1, 1]
    assert seen == [(0, 5), (0, 10), (1, 15), (1, 20)]
    other, plain = short()
    assert plain["val_loss"] == history["val_loss"][1::2]
    assert np.mean(history["train_loss"][:2]) == pytest.approx(plain["train_loss"][0])
    assert [v.tolist() for v in model.state_dict().values()] == [
        v.tolist() for v in other.state_dict().values()
    ]
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 5
    _, third = short(validate_every=3, epochs=1)
    assert third["step"] == [3, 6, 9, 10]


def test_a_target_ends_the_run_at_once(tmp_path: Path) -> None:
    """Also within an epoch; a higher one goes on to what a run without a break gives."""
    options = {"monitor": "val_accuracy", "mode": "max", "validate_every": 2, "epochs": 30}
    _, history = short(tmp_path / "broken", target=0.6, **options)
    assert history["val_accuracy"][-1] >= 0.6 > max(history["val_accuracy"][:-1], default=0.0)
    assert len(short(tmp_path / "broken", target=0.6, **options)[1]) == len(history)
    _, further = short(tmp_path / "broken", target=0.9, **options)
    _, whole = short(tmp_path / "whole", target=0.9, **options)
    assert further["val_accuracy"] == whole["val_accuracy"]
    assert whole["step"][-1] < 300
    assert files(tmp_path / "broken") == files(tmp_path / "whole")


@pytest.mark.parametrize("folder", [True, False])
@pytest.mark.parametrize("averaged", [True, False])
def test_early_stopping_leaves_the_best_weights(
    folder: bool, averaged: bool, tmp_path: Path
) -> None:
    """The model validates as the best row says, whether patience or the epochs ran out."""

    class Spoil(Callback):
        def on_epoch(self, run: Any) -> None:
            run.optimizer.param_groups[0]["lr"] = 30.0  # worse from the second epoch on

    for epochs in (3, 50):
        model, optimizer = classifier()
        ema = AveragedModel(model) if averaged else None
        place = tmp_path / str(epochs) if folder else None

        def run(model: Any = model, ema: Any = ema, place: Any = place, epochs: int = epochs,
                optimizer: Any = optimizer) -> History:  # fmt: skip
            return fit(
                model, nn.CrossEntropyLoss(), optimizer, DataLoader(DATA, 4), epochs=epochs,
                validation=DataLoader(DATA, 38), patience=4, ema=ema, folder=place,
                callbacks=[Spoil()], progress=False,
            )  # fmt: skip

        history = run()
        assert history.best("val_loss") is history.rows[0]
        assert len(history) == min(epochs, 5)
        best = model if ema is None else ema.module
        x, y = (tc.tensor(array) for array in DATA.tensors)
        found = nn.functional.cross_entropy(best(x), y).item()
        assert found == pytest.approx(history["val_loss"][0], 1e-6)
        if folder and epochs == 50:
            # Started again, the run has ended, and leaves the same weights.
            with tc.no_grad():
                model[0].weight.fill_(0.0)
            assert len(run()) == len(history)
            assert nn.functional.cross_entropy(best(x), y).item() == found


def test_interruption_says_how_to_go_on(tmp_path: Path) -> None:
    class Press(Callback):
        def on_step(self, run: Any) -> None:
            if run.step == 3:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match=r"after step 3; the same call goes on from .*last"):
        short(tmp_path, callbacks=[Press()])
    with pytest.raises(KeyboardInterrupt, match="nothing is saved without a folder"):
        short(callbacks=[Press()])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"validate_every": 0}, "a count makes no sense"),
        ({"validate_every": 3, "accumulate": 2}, "between two steps"),
    ],
)
def test_counts_are_checked(options: dict[str, Any], text: str) -> None:
    with pytest.raises(tc.ArgumentError, match=text):
        short(**options)


def test_a_stream_steps_once_more_for_its_last_group() -> None:
    """As a loader that knows its length does."""

    def run(loader: Any) -> list[Any]:
        model, optimizer = classifier()
        fit(model, nn.CrossEntropyLoss(), optimizer, loader, epochs=2, accumulate=4, progress=False)
        return [value.tolist() for value in model.state_dict().values()]

    make: Callable[..., DataLoader] = DataLoader
    assert run(make(Stream(), 4)) == run(make(DATA, 4))
