"""What a training run writes for people: a CSV file, and events for TensorBoard."""

from __future__ import annotations

import csv
import io
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError


class History:
    """One row of numbers for each epoch.

    ``history["val_loss"]`` is the column of that name, ``history.rows[-1]`` the last row.

    Args:
        rows: those that there are already.
    """

    def __init__(self, rows: list[dict[str, float]] | None = None) -> None:
        self.rows = rows if rows is not None else []

    def __getitem__(self, name: str) -> list[float]:
        if not any(name in row for row in self.rows):
            columns = ", ".join(self.rows[0]) if self.rows else "none: no epoch has ended"
            raise ArgumentError(
                "History", "no such column", expect=f"one of {columns}", actual=repr(name)
            )
        return [row[name] for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, float]]:
        return iter(self.rows)

    def best(self, name: str, mode: str = "min") -> dict[str, float]:
        """The row in which a column is least, or greatest for mode ``max``."""
        self[name]
        sign = 1 if mode == "min" else -1
        return min(self.rows, key=lambda row: sign * row[name])

    def write_csv(self, path: Path) -> None:
        """Replaces a file by the whole table, numbers with all their digits."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(self.rows[0]) if self.rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            temporary.write_text(text.getvalue(), encoding="utf-8")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"History({len(self.rows)} epochs)"


class TensorBoard:
    """Scalars for TensorBoard, in a folder.

    Args:
        folder: where event files go.
        first: the first step that will be written; what an interrupted run wrote from there on is
            marked as overtaken.

    Raises:
        ArgumentError: the package tensorboardX is not installed.
    """

    def __init__(self, folder: Path, first: int) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise ArgumentError(
                "fit", "TensorBoard logs need a package that is not installed",
                expect="tensorboardX", actual=str(error),
                hint='pip install "tinygrad_cuda[tensorboard]"',
            ) from None  # fmt: skip
        self._writer: Any = SummaryWriter(str(folder), purge_step=first or None)

    def write(self, row: Mapping[str, float], step: int) -> None:
        """One point of each curve."""
        for name, value in row.items():
            if name not in ("epoch", "step"):
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
