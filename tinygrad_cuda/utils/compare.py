"""`python -m tinygrad_cuda compare SCRIPT`: one script in two frameworks, tensor by tensor.

Each framework runs it in a process of its own; the first that differs is named, and how.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tinygrad_cuda.core.differences import explained, largest_difference
from tinygrad_cuda.utils.compare_recorder import NAMES, load

Array = np.ndarray[Any, Any]
KINDS = ("initial", "forward", "loss", "gradient", "parameter", "buffer")
HERE = "tinygrad_cuda"


class Verdict(NamedTuple):
    """One tensor of both runs.

    Attributes:
        step, kind, name, line: which, and the line of the script that computed it.
        shape: of the reference's value.
        error: ``max|a - b| / max|a|``.
        verdict: ``same``, ``rounding`` or ``differs``.
        relation: how it differs, in words.
    """

    step: int
    kind: str
    name: str
    line: str
    shape: tuple[int, ...]
    error: float
    verdict: str
    relation: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the subcommand."""
    add = parser.add_argument
    add("--against", choices=["torch"], default="torch",
        help="the reference, which must be installed (default: %(default)s)")  # fmt: skip
    add("--steps", type=int, default=3,
        help="optimizer steps after which both runs end (default: %(default)s)")  # fmt: skip
    add("--rtol", type=float, default=1e-4,
        help="relative part of the difference that is allowed: of the largest element, by "
        "absolute value, of the reference's tensor (default: %(default)g)")  # fmt: skip
    add("--atol", type=float, default=1e-6,
        help="absolute part, added to it: in the units of the tensor's own values, for tensors "
        "that are nearly zero (default: %(default)g)")  # fmt: skip
    add("--device",
        help="where tinygrad_cuda computes: cpu, emu or cuda (default: $TGC_DEVICE; else cuda "
        "where there is a GPU, cpu where there is none)")  # fmt: skip
    add("--report", type=Path, metavar="FILE",
        help="write each tensor's difference and verdict to this file, as JSON")  # fmt: skip
    parser.epilog = (
        "The script runs twice, each time in a process of its own: what modules return, losses, "
        "gradients, updated parameters and buffers are compared, and the first tensor that differs "
        "is named with its line. A tensor b agrees with the reference's a where max|a - b| <= "
        "atol + rtol * max|a|. Exit status: 0 if all agree, 1 if something differs, 2 if there is "
        "nothing to compare with."
    )


def command(options: argparse.Namespace) -> int:
    """Runs the subcommand: 0 if all agrees, 1 if something differs, 2 if a run failed."""
    if not options.script.is_file():
        print(f"compare: there is no file {options.script}", file=sys.stderr)
        return 2
    if options.steps < 1:
        print(f"compare: --steps {options.steps} is less than 1", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        records: list[dict[str, Any]] = []
        for name in (options.against, HERE):
            folder = Path(scratch) / name
            folder.mkdir()
            before = str(Path(scratch) / options.against) if records else "-"
            log = _run(name, folder, before, options)
            if log is not None:
                print(f"compare: {name} did not finish\n{log}", file=sys.stderr)
                return 2
            records.append(load(folder))
    return report(options, records[0], records[1])


def _run(name: str, folder: Path, before: str, options: argparse.Namespace) -> str | None:
    """Runs the script in a process; the end of its output if that failed."""
    variables = dict(os.environ)
    if options.device is not None:
        variables["TGC_DEVICE"] = options.device
    module = "tinygrad_cuda.utils.compare_recorder"
    done = subprocess.run(
        [sys.executable, "-m", module, name, str(folder), before, str(options.steps),
         str(options.script), *options.arguments],
        capture_output=True, text=True, env=variables, check=False,
    )  # fmt: skip
    return None if done.returncode == 0 else (done.stdout + done.stderr)[-4000:]


def report(
    options: argparse.Namespace, reference: dict[str, Any], other: dict[str, Any],
    write: Callable[[str], None] = print,
) -> int:  # fmt: skip
    """Compares two records, prints a table, and gives the exit status."""
    verdicts = compared(reference["events"], other["events"], options.rtol, options.atol)
    first = next((v for v in verdicts if v.verdict == "differs"), None)
    write(
        f"{options.script}: {HERE} {other['version']} against {NAMES[0]} {reference['version']}, "
        f"{min(reference['steps'], other['steps'])} steps"
    )
    for line in _table(verdicts):
        write(line)
    for note in dict.fromkeys([*reference["notes"], *other["notes"]]):
        write(f"note: {note}")
    for name, record in ((NAMES[0], reference), (HERE, other)):
        if record["error"]:
            write(f"\n{name} stopped in step {record['steps'] + 1}: {record['error'].rstrip()}")
    apart = _apart(reference["events"], other["events"])
    status = 2 if reference["error"] else 1 if first or apart or other["error"] else 0
    if first is not None:
        write(_described(first, verdicts))
    elif apart:
        write(apart)
    elif not verdicts:
        write("nothing was computed: the script calls no module, backward() or step()")
        status = 2
    elif status == 0:
        write(f"everything agrees to {options.rtol:g} of each tensor's largest element")
    if options.report is not None:
        table = [v._asdict() for v in verdicts]
        _write_report(options.report, status, table, None if first is None else first._asdict())
    return status


def _write_report(path: Path, status: int, table: list[Any], first: Any) -> None:
    text = json.dumps({"status": status, "first": first, "tensors": table}, indent=1)
    path.write_text(text.replace("Infinity", "1e999") + "\n", encoding="utf-8")


def compared(
    reference: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]], rtol: float, atol: float
) -> list[Verdict]:
    """A verdict on each tensor, in the order of the script, up to where the runs part."""
    verdicts: list[Verdict] = []
    counts: dict[int, str] = {}
    largest: dict[int, float] = {}
    noise: set[str] = set()
    for a, b in zip(reference, other):
        if (a["kind"], a["name"], a["step"]) != (b["kind"], b["name"], b["step"]):
            break
        value, error = a["value"], largest_difference(a["value"], b["value"])
        size = float(np.abs(value).max()) if value.size and value.dtype.kind in "fiu" else 0.0
        if a["kind"] == "forward" and value.ndim:
            counts = _counts(a["name"], value.shape)
        verdict, relation = "same", ""
        if error * size > atol + rtol * size or not np.isfinite(error * size):
            numbers = {**counts, **_counts(a["name"], value.shape)}
            verdict, relation = "differs", explained(value, b["value"], numbers)
        if a["kind"] == "gradient":
            largest[a["step"]] = max(size, largest.get(a["step"], 0.0))
            if verdict == "same" and 0 < size < 1e-5 * largest[a["step"]]:
                noise.add(a["name"])
        if a["kind"] == "parameter" and verdict == "differs" and a["name"] in noise:
            verdict = "rounding"
            relation = "its gradient is nothing but rounding, by which the optimizer divides"
        verdicts.append(Verdict(
            a["step"], a["kind"], a["name"], b["line"], value.shape, error, verdict, relation,
        ))  # fmt: skip
    return verdicts


def _counts(name: str, shape: tuple[int, ...]) -> dict[int, str]:
    """Numbers over which a program may take a mean, with what they are."""
    counts = {}
    if shape:
        counts[int(np.prod(shape))] = f"the number of elements of {name} {shape}"
    for axis, n in enumerate(shape):
        counts[n] = f"dimension {axis} of {name} {shape}"
    return counts


def _apart(reference: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> str:
    """Where the two runs computed different things, in words; nothing if they did not."""
    for a, b in zip(reference, other):
        if (a["kind"], a["name"], a["step"]) != (b["kind"], b["name"], b["step"]):
            return (
                f"\nthe runs part in step {a['step']}: torch has the {a['kind']} of {a['name']} at "
                f"{a['line']}\n{HERE} has the {b['kind']} of {b['name']} at {b['line']}"
            )
    if len(reference) == len(other):
        return ""
    more, count = (NAMES[0], reference) if len(reference) > len(other) else (HERE, other)
    extra = count[min(len(reference), len(other))]
    return f"\n{more} goes on with the {extra['kind']} of {extra['name']} at {extra['line']}"


def _table(verdicts: Sequence[Verdict]) -> list[str]:
    """A line for each step and kind: how many tensors, and the one that differs most."""
    rows = [("step", "what", "tensors", "largest difference", "of", "verdict")]
    for step in sorted({v.step for v in verdicts}):
        for kind in KINDS:
            some = [v for v in verdicts if v.step == step and v.kind == kind]
            if some:
                worst = max(some, key=lambda v: (v.verdict == "differs", v.error))
                rows.append((str(step), kind, str(len(some)), f"{worst.error:.1e}", worst.name,
                             worst.verdict))  # fmt: skip
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(part.ljust(w) for part, w in zip(row, widths)).rstrip() for row in rows]


def _described(first: Verdict, verdicts: Sequence[Verdict]) -> str:
    """The first difference as a paragraph."""
    before = verdicts[: verdicts.index(first)]

    def named(v: Verdict) -> str:
        what = "initial value" if v.kind == "initial" else v.kind
        return "the loss" if v.kind == "loss" else f"the {what} of {v.name}"

    lines = [
        f"\nthe first that differs: {named(first)}, shape {first.shape}, in step {first.step}",
        f"  at:     {first.line}",
        f"  how:    {first.relation}",
        f"  by:     {first.error:.2g} of its largest element",
    ]
    if before:
        last = before[-1]
        lines.append(f"  before: {named(last)} agrees, at {last.line}")
    return "\n".join(lines)
