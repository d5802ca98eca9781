"""Rows of results as Markdown tables, for every page that shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]
OURS = "ours"


def time_text(times: Json | None) -> str:
    """Median microseconds with quartiles."""
    if times is None:
        return "-"
    return f"{number(times['median'])} ({number(times['lower'])}-{number(times['upper'])})"


def number(value: float) -> str:
    """Three significant digits without an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 0.001 else f"{value:.1e}"


def rows_of(found: Json, name: str) -> list[Json]:
    return [row for row in found["rows"] if row["workload"] == name]


def measured(rows: Sequence[Json]) -> list[Json]:
    return [row for row in rows if row["wall"] is not None]


def best(rows: Sequence[Json], ours: bool, together: bool = False) -> Json | None:
    """The fastest of our variants or of the peers', by wall time; whole runs of steps apart."""
    chosen = [
        row for row in measured(rows)
        if row["variant"].startswith(OURS) == ours and (row["together"] > 1) == together
    ]  # fmt: skip
    return min(chosen, key=lambda row: float(row["wall"]["median"]), default=None)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, aligned."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |"
        for row in [header, *rows]
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def gigabytes(nbytes: float | None) -> str:
    return "-" if nbytes is None else f"{nbytes / 1e9:.2f}"
