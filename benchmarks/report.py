"""What was measured, as text, as a page of the documentation, and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks import matrix_report
from benchmarks.tables import (
    OURS,
    Json,
    best,
    gigabytes,
    measured,
    number,
    rows_of,
    table,
    time_text,
)

ADDITION = "torch: one 64 x 64 addition, us"  # the yardstick of a GPU's host
USUAL = 8.7  # what it takes on the host for which the goals of host overhead were set


def row_cells(row: Json, floor: float | None, copied: bool) -> list[str]:
    """One line of the details; `copied`: the floor is that of bytes, as of a copy."""
    device = row["device"] or (row["wall"] if row["together"] > 1 else None)
    over = f"{device['median'] / floor:.2f}" if device and floor else "-"
    share = f"{100 * floor / device['median']:.0f}" if device and floor and copied else "-"
    same = "-" if row["difference"] is None else f"{row['difference']:.0e}"
    if not row["agrees"]:
        same = f"DIFFERS: {same}"
    steps = f" x {row['together']}" if row["together"] > 1 else ""
    return [
        row["workload"], row["title"] + steps, time_text(row["wall"]), time_text(row["device"]),
        "-" if floor is None else number(floor), over, share, gigabytes(row.get("peak")),
        "-" if row["first"] is None else f"{row['first']:.2f}", same,
    ]  # fmt: skip


DETAILS = (
    "workload", "variant", "wall us", "device us", "floor us", "over floor", "% of copy", "peak GB",
    "first 3 calls s", "difference",
)  # fmt: skip


def details(found: Json) -> str:
    """Every row that was measured, and why the others were not."""
    rows = measured(found["rows"])
    floors, copied = found["floors"], found.get("copied", ())
    cells = [row_cells(row, floors[row["workload"]], row["workload"] in copied) for row in rows]
    text = table(DETAILS, cells)
    reasons: dict[str, list[str]] = {}
    for row in found["rows"]:
        if row["wall"] is None:
            name = f"{row['workload']} ({row['title']})"
            reasons.setdefault(row["failure"], []).append(name)
    lines = [f"- {reason}: {', '.join(names)}" for reason, names in reasons.items()]
    return "\n".join([text, "", "Not measured:", "", *lines] if lines else [text])


def names_of(found: Json) -> list[str]:
    """Workloads whose wall time counts: not of operations that `matrix_report` lists."""
    names = dict.fromkeys(row["workload"] for row in found["rows"])
    return [name for name in names if name not in found.get("sweeps", {})]


def ratios(found: Json) -> str:
    """Ours beside the fastest peer, a call a step and many steps a call."""
    lines = []
    for name in names_of(found):
        rows = rows_of(found, name)
        for together in (False, True):
            ours, peer = (best(rows, mine, together) for mine in (True, False))
            if ours is None or peer is None:
                continue
            lines.append([
                name + (" (many steps a call)" if together else ""),
                f"{number(ours['wall']['median'])} ({ours['title']})",
                f"{number(peer['wall']['median'])} ({peer['title']})",
                f"{ours['wall']['median'] / peer['wall']['median']:.2f}",
                device_ratio(rows, ours),
            ])  # fmt: skip
    return table(
        ("workload", "ours, wall us", "best peer, wall us", "ours / peer", "device: ours / peer"),
        lines,
    )


def device_ratio(rows: Sequence[Json], ours: Json) -> str:
    """Our device time over the least of the peers that have one."""
    times = [
        row["device"]["median"] for row in measured(rows)
        if row["device"] and not row["variant"].startswith(OURS)
    ]  # fmt: skip
    if not times or not ours["device"]:
        return "-"
    return f"{ours['device']['median'] / min(times):.2f}"


def other_tables(found: Json) -> str:
    """Host overhead and start of a process."""
    parts = []
    for key, title in (("host", "Host overhead"), ("start", "Start of a process")):
        if found.get(key):
            heads = ["what", "median (quartiles)"]
            lines = [[what, time_text(times)] for what, times in found[key].items()]
            yardstick = found[key].get(ADDITION)
            if yardstick and "gpu" in found["about"]:
                heads.append(f"if that addition took {USUAL}")
                for line, times in zip(lines, found[key].values()):
                    line.append(number(times["median"] * USUAL / yardstick["median"]))
            parts.append(f"## {title}\n\n{table(heads, lines)}\n")
    return "\n".join(parts)


def summary(found: Json) -> str:
    """What the command prints at the end."""
    about = "\n".join(f"{key}: {value}" for key, value in found["about"].items())
    text = f"{about}\n"
    if found["rows"]:
        text += f"\n{details(found)}\n\n{ratios(found)}\n"
    return f"{text}\n{other_tables(found)}\n{matrix_report.tables(found)}"


SUITE = "## The suite\n"  # the heading before its tables
PAGE = """# Benchmarks

Generated by `python -m benchmarks --report FILE.json ...` from the results of
`python -m benchmarks --json FILE.json`; not edited by hand.

{matrix_units}{suite}
{about}

Each workload is defined once (`benchmarks/workloads/`) and run by every peer that is installed,
with the same shapes, initial values, data and hyper-parameters, in float32 without tf32 unless
`bf16` is in its name. Wall time includes the host and is synchronized at the end of each repeat;
training steps take a fresh batch from the host each, except where one call runs many steps over
data on the device. Device time is that of calls queued behind a busy GPU, on data that lies there
already; it is not taken of JAX and tinygrad, whose streams are their own. Medians of {repeats}
repeats after warming up, quartiles in brackets, each with the measuring thread on a CPU that others
do not slow down at that time (`benchmarks/quick.py`). "First 3 calls" includes making and compiling
the program. "Difference" is that of the losses of the first 20 steps from the median of the peers',
or of the results from the workload's first row, relative to the largest; beyond 1e-4 (2e-2 for
bfloat16) it says DIFFERS.
The floor is the larger of FLOPs over {peak} and bytes over the copy
bandwidth measured in the same run, {bandwidth}: every input and result once, everything
between on the chip; where that is bytes, "% of copy" is the share of this bandwidth that was
reached. Convolutions count as direct ones; algorithms that need fewer FLOPs
(Winograd's) can be below it.

## Ratios

Below 1 ours is faster.

{ratios}

![wall time over the fastest peer's](benchmarks.png)

## All rows

{details}

{others}"""


def page(found: Json, matrix_units: str = "") -> str:
    """docs/benchmarks.md, with this section before the suite's tables."""
    about = found["about"]
    missing = about.get("missing", {})
    aside = ("missing", "copy_bytes_per_second", "peak_flops", "repeats")
    lines = [
        f"- {key}: {matrix_report.plain(value)}" for key, value in about.items() if key not in aside
    ]
    lines += [f"- not installed there: {', '.join(missing)}"] if missing else []
    peak, bandwidth = about.get("peak_flops"), about["copy_bytes_per_second"]
    return PAGE.format(
        matrix_units=matrix_units + "\n\n" * bool(matrix_units), suite=SUITE,
        about="\n".join(lines), repeats=about["repeats"], ratios=ratios(found),
        details=details(found), others=other_tables(found),
        peak=f"{peak / 1e12:.1f} TFLOP/s (the float32 units' peak)" if peak else "the peak",
        bandwidth=f"{bandwidth / 1e12:.2f} TB/s",
    )  # fmt: skip


def plot(found: Json, path: Path) -> None:
    """A dot for each variant of each workload: wall time over that of the best peer a call."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    points: dict[str, tuple[list[float], list[str]]] = {}
    names_shown = [name for name in names_of(found) if measured(rows_of(found, name))]
    for name in names_shown:
        rows = measured(rows_of(found, name))
        base = best(rows, ours=False) or rows[0]
        for row in rows:
            ratios_of, names = points.setdefault(row["title"], ([], []))
            ratios_of.append(row["wall"]["median"] / base["wall"]["median"])
            names.append(name)
    if not points:
        return
    figure, axes = plt.subplots(figsize=(9, 1.5 + 0.25 * len(names_shown)))
    for title, (values, names) in points.items():
        mark = "D" if title.startswith(OURS) else "o"
        axes.plot(values, names, mark, label=title, markersize=5, alpha=0.8)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.grid(axis="y", alpha=0.3)
    axes.set_xlabel("wall time over that of the best peer (one call a step)")
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


# What the README's picture compares, one call a step.
SHOWN = {
    "mlp_64": "MLP: training", "lenet": "LeNet-5: training", "resnet": "ResNet: training",
    "unet_train": "U-Net: training", "unet_sample": "U-Net: sampling",
}  # fmt: skip
BARS = {
    "ours, tc.compile": ("tinygrad_cuda", "tab:purple"),
    "torch compiled + graph": ("PyTorch, compiled + CUDA graph", "tab:green"),
    "JAX jit": ("JAX, jit", "tab:pink"), "tinygrad TinyJit": ("tinygrad, TinyJit", "tab:olive"),
}  # fmt: skip
LONGEST = 3.0  # of the axis; longer bars are cut, with their number


def overview(found: Json, digits: Path, path: Path) -> None:
    """The README's picture: digits that the U-Net drew, and bars of training and sampling."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 4.4), width_ratios=[1, 1.45], layout="constrained"
    )
    left.imshow(plt.imread(digits))
    left.axis("off")
    left.set_title("drawn by a U-Net trained with it", fontsize=11)
    names = [name for name in SHOWN if rows_of(found, name)]
    for number_of, (title, (label, color)) in enumerate(BARS.items()):
        for place, name in enumerate(names):
            times = {row["title"]: row["wall"]["median"] for row in measured(rows_of(found, name))}
            if title not in times or "torch compiled + graph" not in times:
                continue
            ratio = times[title] / times["torch compiled + graph"]
            y = place + 0.2 * number_of - 0.3
            right.barh(y, min(ratio, LONGEST), 0.18, color=color, label="" if place else label)
            right.text(min(ratio, LONGEST) + 0.03, y, f"{ratio:.2f}", va="center", fontsize=7)
    right.set_yticks(range(len(names)), [SHOWN[name] for name in names])
    right.invert_yaxis()
    right.set_xlim(0, LONGEST + 0.3)
    right.set_xlabel(f"wall time over PyTorch's, shorter is better (bars end at {LONGEST:.0f})")
    gpu = found["about"].get("gpu", "unknown GPU").split(",")[0]
    right.set_title(f"a step of float32 on an {gpu}", fontsize=11)
    right.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    figure.savefig(path, dpi=100)
    plt.close(figure)
