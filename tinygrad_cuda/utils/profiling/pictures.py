"""Pictures of a recording: memory over kernels, kernels below the roof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any

# Colours that stay apart for colour-blind readers (Okabe and Ito).
_COLOURS = {
    "other": "#999999", "input": "#56b4e9", "scratch": "#f0e442", "forward": "#009e73",
    "backward": "#d55e00", "update": "#cc79a7",
}  # fmt: skip
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))


def memory(file: IO[bytes], kind: str, series: Mapping[str, Sequence[int]], caption: str) -> None:
    """Bytes in memory over the kernels, stacked by category.

    Args:
        file, kind: where it goes, and ``png`` or ``svg``.
        series: of each category the bytes at each kernel.
        caption: what stands below it.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.add_subplot()
    totals = [sum(column) for column in zip(*series.values())]
    highest = max(totals, default=1)
    scale, unit = next((s, u) for s, u in _UNITS if highest >= s or s == 1)
    shown = {name: [v / scale for v in values] for name, values in series.items() if any(values)}
    xs = range(len(totals))
    if shown:
        axes.stackplot(
            xs, *shown.values(), labels=list(shown), step="mid",
            colors=[_COLOURS[name] for name in shown],
        )  # fmt: skip
        worst = max(xs, key=totals.__getitem__)
        axes.axvline(worst, color="black", linewidth=0.8, linestyle="--")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), reverse=True, frameon=False)
    axes.set_title("Memory at each kernel, by the plan")
    axes.set_xlabel("kernel, in order of execution\n\n" + caption, loc="left", family="monospace")
    axes.set_ylabel(unit)
    axes.xaxis.label.set_fontsize(7)
    axes.margins(x=0)
    axes.set_ylim(bottom=0)
    figure.savefig(file, format=kind, dpi=110)


def roofline(
    file: IO[bytes], kind: str, points: Sequence[Mapping[str, Any]], bandwidth: float, flops: float,
    device: str,
) -> None:  # fmt: skip
    """Kernels below the roof of a device: FLOP/s over FLOPs a byte, both axes logarithmic.

    Args:
        file, kind: where it goes, and ``png`` or ``svg``.
        points: of each kernel `name`, `intensity` (FLOPs a byte), `rate` (FLOP/s) and `share` of
            the time, largest first.
        bandwidth, flops: the measured roof, bytes and FLOPs a second.
        device: its name.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.add_subplot()
    ridge = flops / bandwidth
    intensities = [p["intensity"] for p in points] + [ridge]
    low, high = min(intensities) / 4, max(intensities) * 8
    axes.plot([low, ridge], [low * bandwidth, flops], color="black", label=_per_second(bandwidth))
    axes.plot([ridge, high], [flops, flops], color="black", linestyle="--", label=_rate(flops))
    for number, point in enumerate(points):
        memory_bound = point["intensity"] < ridge
        axes.scatter(
            point["intensity"], point["rate"], s=30 + 1200 * point["share"], alpha=0.6,
            color=_COLOURS["input"] if memory_bound else _COLOURS["backward"], edgecolor="black",
        )  # fmt: skip
        axes.annotate(str(number + 1), (point["intensity"], point["rate"]), ha="center",
                      va="center", fontsize=8)  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(f"Kernels below the roof of {device}; the area of a dot is its share of time")
    names = "\n".join(f"{n + 1:>2}  {100 * p['share']:4.1f} %  {p['name']}"
                      for n, p in enumerate(points[:10]))  # fmt: skip
    axes.set_xlabel(f"FLOPs for each byte\n\n{names}", loc="left", family="monospace")
    axes.xaxis.label.set_fontsize(7)
    axes.set_ylabel("FLOP/s")
    axes.grid(which="major", alpha=0.3)
    axes.legend(loc="lower right", frameon=False, title="measured on this device")
    figure.savefig(file, format=kind, dpi=110)


def _per_second(bandwidth: float) -> str:
    return f"memory: {bandwidth / 1e9:,.0f} GB/s"


def _rate(flops: float) -> str:
    return f"float32 products: {flops / 1e12:,.1f} TFLOP/s"
