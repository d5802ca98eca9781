"""The command line: `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

import benchmarks.peers.ours as ours
import tinygrad_cuda as tc
from benchmarks import host, matrix_report, report, start
from benchmarks.cpu.report import kept as cpu_section
from benchmarks.floor import floor_of, peak_flops
from benchmarks.harness import (
    COMPARED_MODEL_STEPS,
    LEFT_OUT,
    SMOKE,
    UNAVAILABLE,
    Effort,
    Row,
    compare_losses,
)
from benchmarks.peers import MODULES, installed
from benchmarks.tables import time_text
from benchmarks.worker import Job, made, side_by_side
from benchmarks.workload import (
    PRECISIONS,
    Function,
    ModelTraining,
    Operation,
    Training,
    Workload,
)
from benchmarks.workloads import WORKLOADS
from tinygrad_cuda.backend.cuda import driver as runtime

ROOT = Path(__file__).resolve().parents[1]
EXTRA = ("host", "start")
OPERATIONS = 8  # of one process, where some compile side by side


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Times training steps and operations here and in other frameworks.",
    )
    add = parser.add_argument
    names = ", ".join([*WORKLOADS, *EXTRA])
    add("--only", metavar="NAMES", help=f"some of, with * and ?, separated by commas: {names}")
    add(
        "--peers",
        default="torch,jax,tinygrad",
        help="frameworks beside ours (default: %(default)s)",
    )
    add(
        "--device",
        default="cuda" if tc.cuda.is_available() else "cpu",
        help="cuda or cpu (default: %(default)s)",
    )
    add("--json", type=Path, metavar="FILE", help="write the results to this file, too")
    add("--smoke", action="store_true", help="tiny shapes, 2 steps: only to see that it runs")
    add("--seconds", type=float, default=float("inf"), help="begin no measurement after so long")
    add("--jobs", type=int, default=1, metavar="N",
        help="so many processes compile side by side, then are timed in turn")  # fmt: skip
    add("--without", default="", metavar="PATTERNS", help="such as tinygrad/unet*: left out, named")
    add("--commit", help="what is measured, where there is no git to ask")
    add("--report", type=Path, nargs="+", metavar="FILE",
        help="write the sections of docs/benchmarks.md that these results have")  # fmt: skip
    return parser.parse_args(given)


def commit() -> str:
    """What is checked out, and whether it has changed since."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    state = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True)
    return head.stdout.strip() + " and changes" * bool(state.stdout.strip()) or "unknown"


def about(
    device: str, commit: str, peers: dict[str, ModuleType], missing: dict[str, str]
) -> dict[str, Any]:
    """Where and on what this run measured."""
    results: dict[str, Any] = {
        "commit": commit,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "versions": {name: module.version() for name, module in peers.items()}
        | {"numpy": np.__version__},
        "missing": missing,
        "copy_bytes_per_second": ours.copy_bandwidth(device),
        "peak_flops": peak_flops(device),
    }
    if device == "cuda":
        properties = runtime.device(0).properties
        driver = Path("/proc/driver/nvidia/version")
        results["gpu"] = f"{properties.name}, {properties.multiprocessors} multiprocessors"
        results["driver"] = driver.read_text().split("\n")[0] if driver.exists() else smi()
    return results


def smi() -> str:
    """The driver's version as nvidia-smi has it."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip()


def chosen(only: str | None) -> list[str]:
    """The names that fit; one that fits nothing is an error."""
    names = [*WORKLOADS, *EXTRA]
    if only is None:
        return names
    patterns = only.split(",")
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in names):
            sys.exit(f"--only: no workload is called {pattern!r}; there are {', '.join(names)}")
    return [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]


def say(row: Row) -> None:
    wall, device = (time_text(t and vars(t)) for t in (row.wall, row.device))
    state = row.failure or f"wall {wall}, device {device} us, difference {row.difference}"
    warning = "" if row.agrees else "  DIFFERS"
    print(f"{row.workload:<24} {row.title:<24} {state}{warning}", file=sys.stderr, flush=True)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measures what was asked for; results are written after each workload."""
    names, end = chosen(args.only), time.time() + args.seconds
    wanted = ["ours", *(name for name in args.peers.split(",") if name)]
    if unknown := set(wanted) - set(MODULES):
        sys.exit(f"--peers: unknown {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}")
    peers, missing = installed(wanted)
    for name, why in missing.items():
        print(f"not installed, so not measured: {name} ({why})", file=sys.stderr)
    results: dict[str, Any] = {
        "about": about(args.device, args.commit or commit(), peers, missing),
        "floors": {}, "programs": {}, "sweeps": {}, "images": [], "copied": [], "rows": [],
    }  # fmt: skip
    results["about"]["repeats"] = (SMOKE if args.smoke else Effort()).repeats
    workloads = [name for name in names if name in WORKLOADS]
    operations = [name for name in workloads if describe(name, made(name, args.smoke), results)]
    models = [name for name in workloads if name not in operations]
    with tempfile.TemporaryDirectory() as folder:
        start_job = partial(
            Job, device=args.device, smoke=args.smoke, folder=folder, end=end, without=args.without
        )
        # All peers on whole models, then on single operations: where `--seconds` ends a run early,
        # what there is has been measured beside its peers.
        for group in (models, operations):
            plan = planned(group, peers, args.jobs, results, start_job)
            for row in rows_of(plan, args.jobs):
                say(row)
                results["rows"].append(row.as_json())
                write(args.json, results)
            if group is models:
                measure_host(names, list(peers), args, results)
    results["rows"].sort(key=lambda row: workloads.index(row["workload"]))
    compare_losses(results["rows"])
    write(args.json, results)
    return results


def describe(name: str, workload: Workload, results: dict[str, Any]) -> bool:
    """Writes down what the workload must do and its goal; True of one function."""
    if isinstance(workload, Training | ModelTraining) and in_matrix_report(workload):
        results["programs"][name] = workload.goal
    if isinstance(workload, Operation):
        about = {"family": workload.family, "flops": workload.flops, "goal": workload.goal}
        results["sweeps"][name] = about
    if getattr(workload, "images", False):
        results["images"].append(name)
    floor, bandwidth = floor_of(workload), results["about"]["copy_bytes_per_second"]
    peak = results["about"]["peak_flops"] or float("inf")
    results["floors"][name] = floor and floor.microseconds(bandwidth, peak)
    if floor and floor.moves(bandwidth, peak):
        results["copied"].append(name)
    return isinstance(workload, Function | Operation)


class Plan(NamedTuple):
    """Jobs that build and compile at the same time, and those that have the machine alone."""

    side_by_side: list[Job]
    alone: list[Job]


def planned(
    names: list[str], peers: Iterable[str], jobs: int, results: dict[str, Any], start_job: Any
) -> Plan:
    """Every peer's jobs; what others are compared with comes first: PyTorch where it is there.

    With `jobs` above 1 programs and operations of `matrix_report` compile side by side. cuDNN
    chooses algorithms by time, so that PyTorch's convolutions only fill the compiler's caches so.
    """
    together = [n for n in names if jobs > 1 and n in results["programs"] | results["sweeps"]]
    plan = Plan([], [])
    for peer in sorted(peers, key=lambda peer: peer != "torch"):
        rest = [name for name in names if name not in together]
        for group in grouped(together, results):
            chosen_by_time = peer == "torch" and group[0] in results["images"]
            if chosen_by_time:
                rest += group
            if not chosen_by_time or group[0] in results["programs"]:
                plan.side_by_side.append(start_job(peer, group, compiles=chosen_by_time))
        plan.alone.append(start_job(peer, rest))
    # Both libraries time the same operations one after the other: clocks change with the heat.
    plan.side_by_side.sort(key=lambda job: job.names if job.names[0] in results["sweeps"] else [])
    return plan


def rows_of(plan: Plan, jobs: int) -> Iterator[Row]:
    """Rows of all jobs, `jobs` side by side."""
    for first in range(0, len(plan.side_by_side), jobs):
        yield from side_by_side(plan.side_by_side[first : first + jobs])
    for job in plan.alone:
        yield from job.rows()


def grouped(names: list[str], results: dict[str, Any]) -> list[list[str]]:
    """What one process runs: a program, or some operations that are all convolutions or none.

    Programs come a precision at a time, so that three of much memory are not there together.
    """
    precisions = list(PRECISIONS.values())
    programs = [[name] for name in names if name in results["programs"]]
    programs.sort(key=lambda group: precisions.index(suffix_of(group[0])))
    groups = []
    for images in (False, True):
        chosen = [n for n in names if n in results["sweeps"] and (n in results["images"]) == images]
        groups += [chosen[k : k + OPERATIONS] for k in range(0, len(chosen), OPERATIONS)]
    return programs + groups


def suffix_of(name: str) -> str:
    return next(suffix for suffix in PRECISIONS.values() if name.endswith(suffix))


def in_matrix_report(workload: Training | ModelTraining) -> bool:
    return workload.images or isinstance(workload, ModelTraining)


def measure_host(
    names: list[str], peers: list[str], args: argparse.Namespace, results: dict[str, Any]
) -> None:
    """What is no workload: the host's part of a step, and the start of a process."""
    if "host" in names:
        results["host"] = host.overheads(args.device, args.smoke)
    if "start" in names:
        results["start"] = start.starts(peers, args.device)


def failed(why: str) -> bool:
    """Whether a row without a time is an error."""
    return bool(why) and not why.startswith((LEFT_OUT, UNAVAILABLE))


def write(path: Path | None, results: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(results, indent=1) + "\n")


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Results of several commands as one; of a row measured twice the later one counts."""
    first, *others = parts
    rows = {(row["workload"], row["variant"]): row for row in first["rows"]}
    for results in others:
        rows |= {(row["workload"], row["variant"]): row for row in results["rows"]}
        for key in ("floors", "programs", "sweeps", "host", "start"):
            if key in results:
                first[key] = first.get(key, {}) | results[key]
        first["copied"] += results["copied"]
        for key in ("commit", "date"):
            earlier = first["about"][key].split("; ")
            first["about"][key] = "; ".join(dict.fromkeys([*earlier, results["about"][key]]))
    first["rows"] = list(rows.values())
    compare_losses(first["rows"])
    return first


def write_page(results: dict[str, Any]) -> None:
    """The sections of docs/benchmarks.md that these results have; the others stay."""
    docs = ROOT / "docs"
    page = docs / "benchmarks.md"
    text = page.read_text()
    if matrix_report.tables(results):
        text = matrix_report.with_sections(text, results, COMPARED_MODEL_STEPS, report.SUITE)
        matrix_report.plot(results, docs / matrix_report.PLOT)
    if results["floors"].keys() - results["programs"].keys() - results["sweeps"].keys():
        suite = report.page(results, matrix_report.all_present(text))
        # The section of `python -m benchmarks.cpu` is its own.
        text = f"{suite.rstrip()}\n\n{cpu_section(text)}"
        report.plot(results, docs / "benchmarks.png")
        images = docs / "images"
        report.overview(results, images / "diffusion_samples.png", images / "overview.png")
    page.write_text(text)


def main(given: list[str] | None = None) -> int:
    args = arguments(given)
    if args.report is not None:
        write_page(merged([json.loads(path.read_text()) for path in args.report]))
        return 0
    results = run(args)
    print(report.summary(results))
    if args.json is not None:
        report.plot(results, args.json.with_suffix(".png"))
        matrix_report.plot(results, args.json.with_suffix(f".{matrix_report.PLOT}"))
    bad = [row for row in results["rows"] if not row["agrees"] or failed(row["failure"])]
    for row in bad:
        why = row["failure"] or f"results differ by {row['difference']:.1e}"
        print(f"{row['workload']}, {row['title']}: {why}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
