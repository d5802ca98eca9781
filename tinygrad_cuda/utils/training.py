"""`fit`: the usual training loop, with validation, checkpoints, logs, and exact resume."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tinygrad_cuda.capture import compile as compiled
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import ArgumentError, DataError
from tinygrad_cuda.nn.utils import clip_grad_norm_
from tinygrad_cuda.optim.lr_scheduler import ReduceLROnPlateau
from tinygrad_cuda.tensors.shaping import stack
from tinygrad_cuda.tensors.tensor import Tensor
from tinygrad_cuda.utils.checkpoints import load, save
from tinygrad_cuda.utils.training_logs import History, TensorBoard
from tinygrad_cuda.utils.training_losses import Loss, Losses, Step, evaluate
from tinygrad_cuda.utils.training_state import Streams, read_state, write_state

FETCHED = 256  # losses that may wait on the device before they are read
LAST, BEST, TABLE = "last.safetensors", "best.safetensors", "log.csv"


class Callback:
    """What a run calls; subclasses write what they need."""

    def on_step(self, run: Run) -> None:
        """A step has been done, and counted in ``run.step``."""

    def on_validation(self, run: Run) -> None:
        """A row has been entered as the last of ``run.history``: at an epoch's end, or within it
        by ``validate_every``."""

    def on_epoch(self, run: Run) -> None:
        """An epoch has been validated; its row is the last of ``run.history``."""


class Run:
    """The present training run: what callbacks see.

    Attributes:
        model, optimizer: as given to `fit`.
        epoch: the number of the current epoch, from 0.
        batch: how many batches of it are done.
        step: how many batches are done in all.
        history: the epochs that have ended, and validations within them.
        reached: whether the last of them reaches the target.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.model, self.optimizer = options["model"], options["optimizer"]
        self.epoch = self.batch = self.step = 0
        self.history = History()
        self.stopped = self.reached = False
        self._streams = Streams()
        self._losses: list[float] = []
        self._entered = 0  # losses of this epoch that are part of a row
        self._waiting: list[Tensor] = []
        self._waited = 0  # rows without a better one
        self._best = math.inf
        self._best_state: dict[str, Tensor] | None = None

    def stop(self) -> None:
        """Ends the run after this step, or this epoch's validation."""
        self.stopped = True

    # Losses ---------------------------------------------------------------------------------------

    def take(self, loss: Tensor) -> None:
        """One more loss; it is read later, so that nobody waits for the device."""
        self._waiting.append(loss)
        self.batch += 1
        self.step += 1
        if len(self._waiting) >= FETCHED:
            self.fetch()

    def fetch(self) -> list[float]:
        """The losses of this epoch as numbers.

        Raises:
            DataError: one of them is not finite.
        """
        if self._waiting:
            values = stack([loss.detach().float() for loss in self._waiting]).tolist()
            self._waiting = []
            for number, value in enumerate(values, len(self._losses)):
                if not math.isfinite(value):
                    raise DataError(
                        "fit", "the loss is not finite", expect="a finite loss",
                        actual=f"{value} in epoch {self.epoch}, batch {number}",
                        hint="a smaller learning rate, clip_grad_norm=..., or tc.autograd."
                        "detect_anomaly() to find the operation",
                    )  # fmt: skip
            self._losses += values
        return self._losses

    # Checkpoints ----------------------------------------------------------------------------------

    def _parts(self) -> dict[str, Any]:
        names = ("model", "optimizer", "scheduler", "scaler", "ema", "loader", "validation")
        return {name: self.options[name] for name in names}

    def save(self) -> None:
        """Writes the checkpoint from which the run can go on."""
        if self.options["folder"] is not None:
            counts = {
                "epoch": self.epoch, "batch": self.batch, "step": self.step,
                "losses": self.fetch(), "entered": self._entered, "rows": self.history.rows,
                "stopped": self.stopped, "waited": self._waited, "best": self._best,
            }  # fmt: skip
            write_state(
                self.options["folder"] / LAST, self._streams, self._parts(), {"run": counts}
            )

    def load(self, path: Path) -> None:
        """Goes on where a checkpoint was written."""
        counts = read_state(path, self._streams, self._parts())["run"]
        self.epoch, self.batch, self.step = counts["epoch"], counts["batch"], counts["step"]
        self._losses, self.history = counts["losses"], History(counts["rows"])
        self._entered = counts["entered"]
        self._waited, self._best = counts["waited"], counts["best"]
        self.stopped = counts["stopped"]
        self._look_at_target()

    # Epochs ---------------------------------------------------------------------------------------

    def fresh_losses(self) -> list[float]:
        """Losses of this epoch since the last row."""
        losses = self.fetch()[self._entered :]
        self._entered = len(self._losses)
        return losses

    def enter(self, row: dict[str, float]) -> bool:
        """Enters a row; whether it is the best so far."""
        if self.history.rows and row.keys() != self.history.rows[0].keys():
            raise DataError(
                "fit", "the run had other metrics before", expect=", ".join(self.history.rows[0]),
                actual=", ".join(row),
            )  # fmt: skip
        self.history.rows.append(row)
        value = self._signed(row[self.options["monitor"]])
        better: bool = value < self._best - self.options["min_delta"]
        self._waited = 0 if better else self._waited + 1
        if better:
            self._best = value
        patience = self.options["patience"]
        if patience is not None and self._waited >= patience:
            self.stopped = True
        self._look_at_target()
        return better

    def _signed(self, value: float) -> float:
        """A number of which less is better."""
        return value if self.options["mode"] == "min" else -value

    def _look_at_target(self) -> None:
        target = self.options["target"]
        if target is not None and self.history.rows:
            value = self.history.rows[-1][self.options["monitor"]]
            self.reached = self._signed(value) <= self._signed(target)

    def next_epoch(self) -> None:
        """Counts an epoch."""
        self.epoch += 1
        self.batch, self._losses, self._entered = 0, [], 0

    # The best -------------------------------------------------------------------------------------

    def _averaged(self) -> Any:
        ema = self.options["ema"]
        return self.model if ema is None else ema.module

    def keep_best(self) -> None:
        """Writes the state of the model, or keeps a copy of it where there is no folder."""
        state = self._averaged().state_dict()
        if self.options["folder"] is not None:
            save(state, self.options["folder"] / BEST)
        elif self.options["patience"] is not None:
            self._best_state = {name: value.detach().clone() for name, value in state.items()}

    def restore_best(self) -> None:
        """Puts the best state back into the model; after the last checkpoint."""
        folder = self.options["folder"]
        if folder is not None and (folder / BEST).exists():
            self._averaged().load_state_dict(load(folder / BEST))
        elif self._best_state is not None:
            self._averaged().load_state_dict(self._best_state)


def fit(
    model: Any,
    loss: Loss | None,
    optimizer: Any,
    train_loader: Any,
    *,
    epochs: int,
    validation: Iterable[Any] | None = None,
    metrics: Mapping[str, Loss] | None = None,
    scheduler: Any = None,
    scheduler_interval: str = "epoch",
    folder: str | Path | None = None,
    resume: bool = True,
    checkpoint_every: int | None = None,
    validate_every: int | None = None,
    patience: int | None = None,
    min_delta: float = 0.0,
    monitor: str | None = None,
    mode: str = "min",
    target: float | None = None,
    clip_grad_norm: float | None = None,
    accumulate: int = 1,
    ema: Any = None,
    autocast: DType | None = None,
    scaler: Any = None,
    training_step: Step | None = None,
    compile: bool = False,
    callbacks: Sequence[Callback] = (),
    tensorboard: bool = False,
    progress: bool = True,
) -> History:
    """Trains a model, and goes on exactly where an interrupted run was.

    A batch is a sequence whose last entry is the target: ``loss(model(*inputs), target)``. Losses
    stay on the device until a checkpoint or an epoch's end wants them.

    With a folder, a run that was killed and is started again gives the same bytes as one that was
    not: parameters, optimizer, scheduler, averages, random streams (tinygrad_cuda's, Python's and
    NumPy's), the loaders' positions, the table. It goes on from the last checkpoint: the end of the
    last epoch, or the last multiple of ``checkpoint_every`` or ``validate_every`` batches in it.
    Ctrl-C ends after the present step, with a checkpoint.

    Args:
        model: a Module.
        loss: of an output and a target, such as ``nn.CrossEntropyLoss()``; None if
            ``training_step`` computes it.
        optimizer: of the model's parameters.
        train_loader: a DataLoader; with a folder it needs a ``state_dict``, which ours has.
        epochs: how many in all, those of an interrupted run included.
        validation: batches for validation, made without gradients, in evaluation mode.
        metrics: functions of an output and a target by name; means over validation's samples.
        scheduler: of learning rates; stepped after each epoch, a `ReduceLROnPlateau` with the
            monitored number.
        scheduler_interval: ``epoch``, or ``step`` to step it after each optimizer's step.
        folder: for ``last.safetensors`` (all that a run needs to go on), ``best.safetensors`` (the
            best epoch's state dict) and ``log.csv``; made if it is missing.
        resume: go on with the run in the folder, if there is one; else from the beginning.
        checkpoint_every: batches between checkpoints within an epoch.
        validate_every: batches after which to validate within an epoch, too; each is a row.
        patience: end after this many rows (epochs) in a row without a better one. At the end the
            model has the weights of the best one, and so has ``ema``'s module if there is one.
        min_delta: by how much a row must be better to count.
        monitor: what decides which row is better; ``val_loss`` with validation, else
            ``train_loss``.
        mode: ``min`` or ``max``.
        target: end as soon as the monitored number is as good as this.
        clip_grad_norm: the largest norm of all gradients together; see `clip_grad_norm_`.
        accumulate: batches whose gradients are averaged for one step of the optimizer.
        ema: an `AveragedModel`, updated after each step; it is validated, and the best is its.
        autocast: the half dtype in which models and losses compute; see `tc.autocast`.
        scaler: a `GradScaler`.
        training_step: computes the loss of ``(model, batch)`` by your own code, for training and
            validation.
        compile: run each step by `tc.compile`; for whole steps without accumulation or scaler.
        callbacks: called after each step and epoch.
        tensorboard: write events to the folder; needs the extra ``tensorboard``.
        progress: a bar on the terminal, if it is one.

    Returns:
        A table with a row for each epoch or validation: epoch, step, lr, train_loss, val_loss,
        metrics.

    Raises:
        ArgumentError: arguments that exclude each other or make no sense.
        DataError: the loss is not finite, or the folder holds another kind of run.

    Example:
        >>> import tinygrad_cuda as tc
        >>> from tinygrad_cuda.data import DataLoader, TensorDataset
        >>> tc.set_default_device("cpu"); _ = tc.manual_seed(0)
        >>> x = tc.randn(32, 3)
        >>> rows = TensorDataset(x, x.sum(1, keepdim=True))
        >>> loader = DataLoader(rows, batch_size=8, shuffle=True)
        >>> model = tc.nn.Linear(3, 1)
        >>> optimizer = tc.optim.Adam(model.parameters(), lr=0.1)
        >>> history = fit(model, tc.nn.MSELoss(), optimizer, loader, epochs=20, progress=False)
        >>> history["train_loss"][-1] < 0.05
        True
    """
    resumable = folder is not None
    monitor = monitor or ("train_loss" if validation is None else "val_loss")
    options = {
        "model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler,
        "ema": ema, "loader": train_loader if resumable else None,
        "validation": validation if resumable and hasattr(validation, "state_dict") else None,
        "patience": patience, "min_delta": min_delta, "monitor": monitor, "mode": mode,
        "target": target, "folder": None if folder is None else Path(folder),
        "checkpoint_every": checkpoint_every, "validate_every": validate_every,
        "interval": scheduler_interval, "accumulate": accumulate,
    }  # fmt: skip
    _check(
        epochs, accumulate, scheduler_interval, mode, checkpoint_every, validate_every, folder,
        compile, scaler, tensorboard,
    )  # fmt: skip
    _check_names(loss, training_step, validation, metrics, monitor)
    run = Run(options)
    _begin(run, train_loader, resume)
    losses = Losses(loss, training_step, autocast, model)
    step = _TrainingStep(run, losses, clip_grad_norm, accumulate, scaler)
    board = TensorBoard(run.options["folder"], run.step + 1) if tensorboard else None

    def validated() -> dict[str, float]:
        shown = model if ema is None else ema
        return {} if validation is None else losses.evaluate("fit", shown, validation, metrics)

    try:
        with _interruptible() as interrupted:
            loop = _Loop(run, train_loader, step, compile, validated, callbacks, board, interrupted)
            while run.epoch < epochs and not run.stopped and not run.reached:
                loop.epoch(f"epoch {run.epoch + 1}/{epochs}", progress)
    finally:
        if board is not None:
            board.close()
    if patience is not None:
        run.restore_best()
    return run.history


class _Loop:
    """The batches of an epoch, and what is done between them."""

    def __init__(
        self, run: Run, loader: Any, step: _TrainingStep, compile: bool,
        validated: Callable[[], dict[str, float]], callbacks: Sequence[Callback],
        board: TensorBoard | None, interrupted: list[bool],
    ) -> None:  # fmt: skip
        self.run, self.loader, self.validated = run, loader, validated
        self.finish = step.finish
        self.step: Callable[..., Tensor] = compiled(step.__call__) if compile else step
        self.callbacks, self.board, self.interrupted = callbacks, board, interrupted

    def epoch(self, title: str, progress: bool) -> None:
        """One epoch, or its rest; ends early if the run does."""
        run, options = self.run, self.run.options
        accumulate, last = options["accumulate"], True
        for batch in _bar(self.loader, title, run.batch, progress):
            last = accumulate == 1 or _is_last(run, self.loader, accumulate)
            run.take(self.step(batch) if accumulate == 1 else self.step(batch, last))
            if last:
                self._after_step()
            for callback in self.callbacks:
                callback.on_step(run)
            if last and self._between():
                return
        if not last:  # a stream's last group is smaller, which is only seen afterwards
            self.finish()
            self._after_step()
        self._end()

    def _after_step(self) -> None:
        options = self.run.options
        if options["ema"] is not None:
            options["ema"].update_parameters(self.run.model)
        if options["scheduler"] is not None and options["interval"] == "step":
            options["scheduler"].step()

    def _between(self) -> bool:
        """Validation and a checkpoint within an epoch, where they are due; whether it ends."""
        run, options = self.run, self.run.options
        validate, due = options["validate_every"], options["checkpoint_every"]
        validate = validate is not None and run.batch % validate == 0 and not self._at_end()
        if validate:
            self._enter()
        due = due is not None and run.batch % due == 0
        if validate or due or self.interrupted or run.stopped:
            run.save()
            self._leave_if_interrupted()
        return run.stopped or run.reached

    def _at_end(self) -> bool:
        """Whether no batch comes any more, so that the epoch's own validation follows."""
        return self.run.batch == _length(self.loader)

    def _enter(self) -> dict[str, float]:
        """Validates, and enters a row."""
        run = self.run
        losses = run.fresh_losses()
        row = {
            "epoch": run.epoch,
            "step": run.step,
            "lr": float(run.optimizer.param_groups[0]["lr"]),
            "train_loss": math.fsum(losses) / len(losses) if losses else math.nan,
            **self.validated(),
        }
        better = run.enter(row)
        if run.options["folder"] is not None:
            run.history.write_csv(run.options["folder"] / TABLE)
        if better:
            run.keep_best()
        if self.board is not None:
            self.board.write(row, run.step)
        for callback in self.callbacks:
            callback.on_validation(run)
        return row

    def _end(self) -> None:
        """The end of an epoch: validation, schedule, checkpoint."""
        run, options = self.run, self.run.options
        scheduler = options["scheduler"]
        row = self._enter()
        run.next_epoch()
        if scheduler is not None and options["interval"] == "epoch":
            if isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step(row[options["monitor"]])
            else:
                scheduler.step()
        for callback in self.callbacks:
            callback.on_epoch(run)
        run.save()
        self._leave_if_interrupted()

    def _leave_if_interrupted(self) -> None:
        if self.interrupted:
            folder = self.run.options["folder"]
            continuation = "nothing is saved without a folder"
            if folder is not None:
                continuation = f"the same call goes on from {folder / LAST}"
            raise KeyboardInterrupt(
                f"fit was interrupted after step {self.run.step}; {continuation}"
            )


def _check(
    epochs: int, accumulate: int, interval: str, mode: str, every: int | None,
    validate: int | None, folder: Any, compile: bool, scaler: Any, tensorboard: bool,
) -> None:  # fmt: skip
    def refuse(message: str, expect: str, actual: Any) -> None:
        raise ArgumentError("fit", message, expect=expect, actual=str(actual))

    counts = (1 if count is None else count for count in (accumulate, every, validate))
    if epochs < 0 or min(counts) < 1:
        refuse("a count makes no sense",
               "epochs >= 0; accumulate, checkpoint_every and validate_every >= 1",
               (epochs, accumulate, every, validate))  # fmt: skip
    if interval not in ("epoch", "step"):
        refuse("unknown scheduler_interval", "epoch or step", interval)
    if mode not in ("min", "max"):
        refuse("unknown mode", "min or max", mode)
    if every is not None and folder is None:
        refuse("checkpoints have nowhere to go", "a folder for checkpoint_every", "folder=None")
    for name, count in (("checkpoint_every", every), ("validate_every", validate)):
        if count is not None and count % accumulate:
            refuse("a checkpoint would fall between two steps of the optimizer",
                   f"{name} a multiple of accumulate={accumulate}", count)  # fmt: skip
    if tensorboard and folder is None:
        refuse("TensorBoard's events have nowhere to go", "a folder for tensorboard", "folder=None")
    if compile and (accumulate > 1 or scaler is not None):
        refuse("compile takes whole steps", "accumulate=1 and no scaler with compile=True",
               f"accumulate={accumulate}, scaler={scaler}")  # fmt: skip


def _check_names(
    loss: Any, training_step: Any, validation: Any, metrics: Mapping[str, Any] | None, monitor: str
) -> None:  # fmt: skip
    def refuse(message: str, expect: str, actual: str) -> None:
        raise ArgumentError("fit", message, expect=expect, actual=actual)

    if (loss is None) == (training_step is None):
        refuse("one thing computes the loss", "loss, or loss=None and training_step",
               "neither" if loss is None else "both")  # fmt: skip
    if metrics and (validation is None or loss is None):
        refuse("metrics have nothing to measure", "validation and a loss of outputs", "neither"
               if validation is None and loss is None else "one of them")  # fmt: skip
    columns = ["train_loss"]
    if validation is not None:
        columns += ["val_loss", *(f"val_{name}" for name in metrics or {})]
    if monitor not in columns:
        refuse("nothing of that name to monitor", ", ".join(columns), monitor)


def _begin(run: Run, loader: Any, resume: bool) -> None:
    """Makes the folder, or goes on with the run in it."""
    folder = run.options["folder"]
    if not run.model.training:
        run.model.train()
    if folder is None:
        return
    if not hasattr(loader, "state_dict"):
        raise ArgumentError(
            "fit", "this loader's position cannot be saved", expect="a loader with state_dict()",
            actual=type(loader).__name__, hint="tinygrad_cuda.data.DataLoader, or folder=None",
        )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    for name in (LAST, BEST, TABLE):
        for torn in folder.glob(f".{name}.*.tmp"):  # a killed run was writing it
            torn.unlink()
        if not resume:
            (folder / name).unlink(missing_ok=True)
    if (folder / LAST).exists():
        run.load(folder / LAST)
    if run.history.rows:
        run.history.write_csv(folder / TABLE)  # as it was at the checkpoint
    else:
        (folder / TABLE).unlink(missing_ok=True)


class _TrainingStep:
    """A batch's loss and gradients, and the optimizer's step after the last of a group."""

    def __init__(
        self, run: Run, losses: Losses, clip: float | None, accumulate: int, scaler: Any
    ) -> None:
        self.model, self.optimizer = run.model, run.optimizer
        self.losses, self.clip, self.accumulate, self.scaler = losses, clip, accumulate, scaler

    def __call__(self, batch: Any, last: bool = True) -> Tensor:
        value = self.losses.compute(self.model, batch, {})["loss"]
        scaled = value / self.accumulate if self.accumulate > 1 else value
        (scaled if self.scaler is None else self.scaler.scale(scaled)).backward()
        if last:
            self.finish()
        return value.detach()

    def finish(self) -> None:
        """Clips, updates the parameters, and drops the gradients."""
        scaler, optimizer = self.scaler, self.optimizer
        if self.clip is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            clip_grad_norm_(self.model.parameters(), self.clip)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()


def _is_last(run: Run, loader: Any, accumulate: int) -> bool:
    """Whether the optimizer steps after the batch that comes now."""
    done = run.batch + 1
    return done % accumulate == 0 or done == _length(loader)


def _length(loader: Any) -> int | None:
    """How many batches an epoch has; None for a stream, which does not know."""
    try:
        return len(loader)
    except TypeError:
        return None


def _bar(loader: Any, title: str, done: int, progress: bool) -> Iterable[Any]:
    rest = iter(loader)
    # None: no bar where standard error is no terminal.
    return tqdm(
        rest, title, _length(loader), initial=done, leave=False, disable=None if progress else True
    )


@contextmanager
def _interruptible() -> Iterator[list[bool]]:
    """Ctrl-C fills the list, so that a step is never left half done; a second one interrupts."""
    pressed: list[bool] = []
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # as of jobs in the background
    if ignored or threading.current_thread() is not threading.main_thread():
        yield pressed
        return

    def press(number: int, frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(True)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


__all__ = ["Callback", "History", "Run", "evaluate", "fit"]
