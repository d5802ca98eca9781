"""A training run that test_fit.py kills: ``python fit_program.py FOLDER [STEP]``."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.data import DataLoader, Dataset
from tinygrad_cuda.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tinygrad_cuda.utils.training import Callback, History, Run, fit

EPOCHS = 3


class Noisy(Dataset):
    """Samples with noise from Python's and NumPy's default streams."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> Any:
        x = np.float32([index, 22 - index, 1]) / 22
        noise = random.random() + np.random.random()  # noqa: NPY002
        return x + np.float32(0.01 * noise), index % 3


class Kill(Callback):
    """Ends the process as kill -9 does, after a step."""

    def __init__(self, step: int, number: int) -> None:
        self.step, self.number = step, number

    def on_step(self, run: Run) -> None:
        if run.step == self.step:
            signal.raise_signal(self.number) if self.number != signal.SIGKILL else os.kill(
                os.getpid(), signal.SIGKILL
            )


def train(folder: Path | None, kill: int | None = None, number: int = signal.SIGKILL) -> History:
    """Dropout, momentum, a schedule, an average of the weights, a shuffled loader."""
    tc.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3))
    model.append(nn.Linear(8, 3))
    optimizer = optim.Adam(model.parameters(), lr=0.02)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * 6)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    return fit(
        model, nn.CrossEntropyLoss(), optimizer, DataLoader(Noisy(), 4, shuffle=True),
        epochs=EPOCHS, validation=DataLoader(Noisy(), 11), scheduler=scheduler,
        metrics={"accuracy": tc.utils.metrics.accuracy}, scheduler_interval="step", ema=ema,
        folder=folder, checkpoint_every=None if folder is None else 2, clip_grad_norm=1.0,
        callbacks=[] if kill is None else [Kill(kill, number)], progress=False,
    )  # fmt: skip


if __name__ == "__main__":
    tc.set_default_device("cpu")
    train(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
