"""Training programs and single operations that matrix units bound: the page's first sections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.tables import OURS, Json, best, gigabytes, measured, number, rows_of, table

# Marks around the sections of the page, each of which later results replace by itself.
MARKS = {
    "programs": ("<!-- training steps by benchmarks.matrix_report -->", "<!-- end of these -->"),
    "operations": ("<!-- operations by benchmarks.matrix_report -->", "<!-- end of those -->"),
}
FAMILIES = {"matmul": "Products", "convolution": "Convolutions", "attention": "Attention"}
DETERMINISTIC = ", deterministic"
PLOT = "matrix_units.png"

PROGRAMS = (
    "training step", "ours, ms", "PyTorch's best, ms", "ratio", "goal", "ours, GB",
    "that row, GB", "least of PyTorch's, GB", "ratio", "losses differ by",
)  # fmt: skip
OPERATIONS = (
    "operation", "ours", "peer", "ratio", "goal", "other rows", "difference"
)  # fmt: skip


def milliseconds(row: Json) -> str:
    return f"{number(row['wall']['median'] / 1000)} ({row['title'].removeprefix('ours, ')})"


def differing(rows: list[Json]) -> str:
    """The largest difference of some rows: whichever was first, the others are compared with it."""
    differences = [row["difference"] for row in rows if row["difference"] is not None]
    if not differences:
        return "-"
    return f"{max(differences):.0e}" + " DIFFERS" * (not all(row["agrees"] for row in rows))


def program_cells(results: Json, name: str) -> list[str] | None:
    """A training step of ours beside the fastest of PyTorch's and the one of least memory.

    Our memory is the most of our rows': programs of one process share what lies between kernels,
    so that a later one seems to take none.
    """
    rows = measured(rows_of(results, name))
    ours, peer = (best(rows, mine) for mine in (True, False))
    if ours is None or peer is None:
        return None
    peaks = [row["peak"] for row in rows if row["peak"] and not row["variant"].startswith(OURS)]
    least = min(peaks, default=None)
    peak = max(
        [r["peak"] for r in rows if r["peak"] and r["variant"].startswith(OURS)], default=None
    )
    return [
        name, milliseconds(ours), milliseconds(peer),
        f"{ours['wall']['median'] / peer['wall']['median']:.2f}",
        f"{results['programs'][name]:g}", gigabytes(peak), gigabytes(peer["peak"]),
        gigabytes(least), f"{peak / least:.2f}" if peak and least else "-",
        differing([ours]),
    ]  # fmt: skip


def rate(results: Json, row: Json) -> float:
    """TFLOP/s of the device, or of calls where the device has no clock of its own."""
    microseconds = (row["device"] or row["wall"])["median"]
    return float(results["sweeps"][row["workload"]]["flops"]) / microseconds / 1e6


def compared(results: Json, name: str) -> tuple[Json, Json, list[Json]] | None:
    """Our fastest row, the peer's that it is compared with, and all others.

    Where PyTorch has deterministic rows the fastest of these is the peer, for ours are.
    """
    rows = sorted(measured(rows_of(results, name)), key=lambda row: -rate(results, row))
    ours = [row for row in rows if row["variant"].startswith(OURS)]
    peers = [row for row in rows if row not in ours]
    if not ours or not peers:
        return None
    same_bits = [row for row in peers if row["title"].endswith(DETERMINISTIC)]
    peer = (same_bits or peers)[0]
    return ours[0], peer, [row for row in rows if row is not ours[0] and row is not peer]


def ratio_of(results: Json, name: str) -> float | None:
    """Our TFLOP/s over the peer's."""
    chosen = compared(results, name)
    return rate(results, chosen[0]) / rate(results, chosen[1]) if chosen else None


def short(title: str) -> str:
    return title.removeprefix("torch ").replace("eager", "torch")


def operation_cells(results: Json, name: str) -> list[str] | None:
    chosen = compared(results, name)
    if chosen is None:
        return None
    ours, peer, others = chosen
    rates = [f"{number(rate(results, row))} {short(row['title'])}" for row in others]
    return [
        name, f"{number(rate(results, ours))} ({ours['title'].removeprefix('ours, ')})",
        f"{number(rate(results, peer))} ({short(peer['title'])})",
        f"{rate(results, ours) / rate(results, peer):.2f}", f"{results['sweeps'][name]['goal']:g}",
        "; ".join(rates) or "-", differing([ours, peer]),
    ]  # fmt: skip


def program_table(results: Json) -> str:
    lines = [program_cells(results, name) for name in results.get("programs", ())]
    shown = [line for line in lines if line]
    return table(PROGRAMS, shown) if shown else ""


def operation_tables(results: Json) -> str:
    """A table for each family, in TFLOP/s, and what misses its goal."""
    parts = []
    for family, title in FAMILIES.items():
        names = [n for n, about in results.get("sweeps", {}).items() if about["family"] == family]
        lines = [line for name in names if (line := operation_cells(results, name))]
        if lines:
            parts.append(f"### {title}, TFLOP/s\n\n{table(OPERATIONS, lines)}\n")
    return "\n".join(parts)


def programs_below(results: Json) -> list[str]:
    """Programs that miss their goal, with the ratios."""
    missed = []
    for name, goal in results.get("programs", {}).items():
        cells = program_cells(results, name)
        slow = cells and float(cells[3]) > goal
        large = cells and cells[8] != "-" and float(cells[8]) > 1
        if cells and (slow or large):
            missed.append(f"{name} ({cells[3]} in time, {cells[8]} in memory)")
    return missed


def operations_below(results: Json) -> list[str]:
    """Operations that miss their goal, with the ratio."""
    ratios = {name: ratio_of(results, name) for name in results.get("sweeps", {})}
    return [
        f"{name} ({ratio:.2f} of {results['sweeps'][name]['goal']:g})"
        for name, ratio in ratios.items()
        if ratio is not None and ratio < results["sweeps"][name]["goal"]
    ]


def tables(results: Json) -> str:
    """Everything of these sections without the text around it."""
    parts = [part for part in (program_table(results), operation_tables(results)) if part]
    if not parts:
        return ""
    missed = programs_below(results) + operations_below(results)
    return "\n\n".join([*parts, f"Misses its goal: {', '.join(missed) or 'nothing'}."]) + "\n"


TEXTS = {
    "programs": """{begin}
## Where matrix units decide: training steps

{about}

Training programs are modules of one text for both libraries (`benchmarks/workloads/`): a perceptron
of three layers 4096 wide, batch 4096; GPT-2 with 124 M parameters, 8 x 1024 tokens; a GPT of
characters, 6 x 384, 64 x 256 tokens; ResNet-18 on 3 x 32 x 32, batch 256; an LSTM of 2 x 650, 35
steps, batch 64. `_bf16` computes products in bfloat16 under autocast, `_tf32` permits tf32, and
without a suffix neither is permitted. Batches lie on the device; weights and data are equal, and
the first {steps} losses are compared. Times are medians of {repeats} repeats, the host included.
PyTorch runs eagerly, as one captured graph and compiled and captured, with fused optimizers, and
with channels last where there are images: its fastest row counts. Memory is the most that live
tensors held during a step, parameters and optimizer state included; of ours the larger of the plain
and the compiled program's, which share the memory between kernels.

{tables}

Misses its goal: {missed}.

{end}""",
    "operations": """{begin}
## Where matrix units decide: operations

{about}

Operations alone: TFLOP/s of the device, its queue filled behind a delay; calls take sets of
operands in turn that do not fit into the L2 cache together. Products are rows x columns x length;
`nt` is PyTorch's `x @ weight.T`, `t` an operand that lies transposed. `_dx` and `_dw` are gradients
of the input and of the weight alone. Attention is causal; `_backward` counts the function and all
gradients. PyTorch's convolutions have channels last. Where PyTorch has a deterministic kernel, this
is the peer, because ours always give the same bits; its other kernels stand beside it.

{tables}
![TFLOP/s of ours and of PyTorch]({plot})

Misses its goal: {missed}.

{end}""",
}


def sections(results: Json, steps: int) -> dict[str, str]:
    """What stands between the marks of each section that has rows; `steps` losses were compared."""
    about = results["about"]
    shown = ("commit", "date", "gpu", "driver", "versions")
    lines = [f"- {key}: {plain(about[key])}" for key in shown if key in about]
    found = {
        "programs": (program_table(results), programs_below(results)),
        "operations": (operation_tables(results), operations_below(results)),
    }
    return {
        name: TEXTS[name].format(
            begin=MARKS[name][0], end=MARKS[name][1], about="\n".join(lines), steps=steps,
            repeats=about["repeats"], tables=rows, plot=PLOT,
            missed=", ".join(missed) or "nothing",
        )
        for name, (rows, missed) in found.items()
        if rows
    }  # fmt: skip


def with_sections(page: str, results: Json, steps: int, before: str) -> str:
    """The page with these results' sections, in the place of older ones or before a heading."""
    made = {name: present(page, name) for name in MARKS}
    for old in filter(None, made.values()):
        page = page.replace(f"{old}\n\n", "", 1)
    made |= sections(results, steps)
    new = "\n\n".join(filter(None, made.values()))
    return page.replace(before, f"{new}\n\n{before}", 1)


def plain(value: Any) -> str:
    """A value of `about` in one line."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    return " ".join(str(value).split())


def present(page: str, name: str) -> str:
    """A section as a page has it, or nothing."""
    begin, end = MARKS[name]
    start = page.find(begin)
    stop = page.find(end, start)
    return page[start : stop + len(end)] if start >= 0 and stop >= 0 else ""


def all_present(page: str) -> str:
    """All sections that a page has."""
    return "\n\n".join(filter(None, [present(page, name) for name in MARKS]))


def plot(results: Json, path: Path) -> bool:
    """Bars of TFLOP/s, ours above the peer's, a panel for each family; False without rows."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = [name for name in results.get("sweeps", {}) if compared(results, name)]
    families = [f for f in FAMILIES if any(results["sweeps"][n]["family"] == f for n in names)]
    if not families:
        return False
    groups = [[n for n in names if results["sweeps"][n]["family"] == f] for f in families]
    figure, panels = plt.subplots(
        len(groups), 1, figsize=(9, 1.5 + 0.24 * len(names)), squeeze=False,
        height_ratios=[len(group) + 1 for group in groups], layout="constrained",
    )  # fmt: skip
    for axes, family, group in zip(panels[:, 0], families, groups):
        bars(axes, results, group)
        axes.set_title(FAMILIES[family], fontsize=10)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
    panels[-1, 0].set_xlabel("TFLOP/s")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True


def bars(axes: Any, results: Json, names: list[str]) -> None:
    """One panel: a pair of bars for each operation, with the ratio beside."""
    for y, name in enumerate(names):
        chosen = compared(results, name)
        assert chosen is not None
        for row, shift, color, label in (
            (chosen[0], -0.2, "tab:purple", "tinygrad_cuda"),
            (chosen[1], 0.2, "tab:green", "PyTorch"),
        ):
            axes.barh(y + shift, rate(results, row), 0.36, color=color, label="" if y else label)
        ratio = rate(results, chosen[0]) / rate(results, chosen[1])
        end = max(rate(results, row) for row in chosen[:2])
        axes.text(end * 1.01, y, f"{ratio:.2f}", va="center", fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
