"""A run that is broken off and started again ends with the same bytes, whatever it is made of."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.data import DataLoader, IterableDataset, TensorDataset
from tinygrad_cuda.data.sampler import WeightedRandomSampler
from tinygrad_cuda.optim import lr_scheduler as rates
from tinygrad_cuda.optim.swa_utils import AveragedModel
from tinygrad_cuda.utils.metrics import accuracy
from tinygrad_cuda.utils.training import Callback, History, fit

FILES = ("last.safetensors", "best.safetensors", "log.csv")
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


def files(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in FILES]


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    tc.set_default_device("cpu")
    yield
    tc.set_default_device(None)


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
        model, optimizer = task()
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        fit(
            model, nn.CrossEntropyLoss(), optimizer, DataLoader(DATA, 4, shuffle=True, seed=1),
            epochs=2, folder=tmp_path / str(seed), validation=DataLoader(DATA, 38), progress=False,
        )  # fmt: skip
        found.append(files(tmp_path / str(seed)))
    assert found[0] == found[1]


# Validation within an epoch, targets, the best weights ----------------------------------------


def task() -> tuple[Any, Any]:
    tc.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    return model, optim.SGD(model.parameters(), lr=0.3, momentum=0.9)


def short(folder: Path | None = None, **options: Any) -> tuple[Any, History]:
    """38 rows in batches of 4: 10 steps an epoch."""
    model, optimizer = task()
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
        model, optimizer = task()
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
    import signal

    class Press(Callback):
        def on_step(self, run: Any) -> None:
            if run.step == 3:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match=r"after step 3; the same call goes on from .*last"):
        short(tmp_path, callbacks=[Press()])
    with pytest.raises(KeyboardInterrupt, match="nothing is kept without a folder"):
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
        model, optimizer = task()
        fit(model, nn.CrossEntropyLoss(), optimizer, loader, epochs=2, accumulate=4, progress=False)
        return [value.tolist() for value in model.state_dict().values()]

    make: Callable[..., DataLoader] = DataLoader
    assert run(make(Stream(), 4)) == run(make(DATA, 4))
