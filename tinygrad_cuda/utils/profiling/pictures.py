"""Pictures of a recording: memory over kernels, kernels below the roof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from math import ceil, floor, log10
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tinygrad_cuda.utils.profiling.roofline import MeasuredRoof

CAPTION = 145  # letters of a line below the picture: as many as its width holds
NAMED = 10  # kernels of a roofline that have numbers
APART = 17  # pixels of the figure between two numbers; two digits are 14 wide


class RooflinePoint(NamedTuple):
    """A kernel below a roof.

    Attributes:
        name: of the kernel, and its shape.
        intensity: FLOPs for each byte of memory.
        rate: FLOP/s.
        share: of the time of all kernels.
    """

    name: str
    intensity: float
    rate: float
    share: float


# Colours that stay apart for colour-blind readers (Okabe and Ito).
_COLOURS = {
    "other": "#999999", "input": "#56b4e9", "scratch": "#f0e442", "forward": "#009e73",
    "backward": "#d55e00", "update": "#cc79a7",
}  # fmt: skip
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))


def shortened(line: str) -> str:
    """A line that ends in dots instead of being cut off at the picture's edge."""
    return line if len(line) <= CAPTION else line[: CAPTION - 4] + " ..."


def memory(file: IO[bytes], kind: str, series: Mapping[str, Sequence[int]], caption: str) -> None:
    """Bytes in memory over the kernels, stacked by category.

    Args:
        file, kind: where it goes, and ``png`` or ``svg``.
        series: of each category the bytes at each kernel.
        caption: what stands below it.
    """
    memory_figure(series, caption).savefig(file, format=kind, dpi=110)


def memory_figure(series: Mapping[str, Sequence[int]], caption: str) -> Any:
    """The figure of `memory`: each kernel is one wide, its number in the middle."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.add_subplot()
    totals = [sum(column) for column in zip(*series.values())]
    highest = max(totals, default=1)
    scale, unit = next((s, u) for s, u in _UNITS if highest >= s or s == 1)
    shown = {name: [v / scale for v in values] for name, values in series.items() if any(values)}
    if shown:
        edges = [k - 0.5 for k in range(len(totals) + 1)]
        axes.stackplot(
            edges, *([*values, values[-1]] for values in shown.values()), labels=list(shown),
            step="post", colors=[_COLOURS[name] for name in shown],
        )  # fmt: skip
        worst = max(range(len(totals)), key=totals.__getitem__)
        axes.axvline(worst, color="black", linewidth=0.8, linestyle="--", label="peak")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), reverse=True, frameon=False)
    axes.set_title("Memory at each kernel, by the plan")
    axes.set_xlabel("kernel, in order of execution")
    axes.locator_params(axis="x", integer=True)
    axes.set_ylabel(unit)
    axes.margins(x=0)
    axes.set_ylim(bottom=0)
    _write_below(figure, caption)
    return figure


def _write_below(figure: Any, text: str) -> None:
    lines = "\n".join(shortened(line) for line in text.splitlines())
    figure.supxlabel(lines, x=0.01, ha="left", family="monospace", fontsize=8)


def roofline(
    file: IO[bytes], kind: str, points: Sequence[RooflinePoint], roof: MeasuredRoof
) -> None:
    """Kernels below the roof of a device: FLOP/s over FLOPs for each byte, logarithmic axes.

    Args:
        file, kind: where it goes, and ``png`` or ``svg``.
        points: those that take most of the time first.
        roof: of the device.
    """
    roofline_figure(points, roof).savefig(file, format=kind, dpi=110)


def roofline_figure(points: Sequence[RooflinePoint], roof: MeasuredRoof) -> Any:
    """The figure of `roofline`."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, NullFormatter

    figure = Figure(figsize=(11, 7), layout="constrained")
    axes = figure.add_subplot(xscale="log", yscale="log")
    _roof_lines(axes, points, roof)
    ridge = roof.flops / roof.bandwidth
    for point in points:
        colour = "input" if point.intensity < ridge else "backward"
        at = point.intensity, point.rate
        area = 40 + 1200 * point.share
        axes.scatter(*at, s=area, alpha=0.6, color=_COLOURS[colour], edgecolor="black")
    axes.set_title(f"Kernels below the roof of {roof.device} (area: share of the time)")
    axes.set_xlabel("FLOPs for each byte of memory")
    axes.set_ylabel("FLOP/s")
    low, high = axes.get_ylim()
    axes.set_ylim(10 ** floor(log10(low)), 10 ** ceil(log10(high)))  # two labels at least
    axes.yaxis.set_major_formatter(EngFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(which="major", alpha=0.3)
    axes.legend(loc="lower right", frameon=False, title="measured on this device")
    names = [f"{n + 1:>2} {100 * p.share:5.1f} %  {p.name}" for n, p in enumerate(points[:NAMED])]
    _write_below(figure, "\n".join(names))
    _number(figure, axes, points[:NAMED])
    return figure


def _number(figure: Any, axes: Any, points: Sequence[RooflinePoint]) -> None:
    """Writes numbers on points; one that would cover another moves to the right of it."""
    figure.draw_without_rendering()  # where points stand is settled now
    taken: list[tuple[float, float]] = []
    for number, point in enumerate(points, 1):
        at = point.intensity, point.rate
        x, y = axes.transData.transform(at)
        free = next(
            x + shift
            for shift in count(0, APART)
            if all(abs(x + shift - a) >= APART or abs(y - b) >= APART for a, b in taken)
        )
        taken.append((free, y))
        axes.annotate(
            str(number), at, xytext=((free - x) * 72 / figure.dpi, 0), ha="center", va="center",
            textcoords="offset points", fontsize=8,
        )  # fmt: skip


def _roof_lines(axes: Any, points: Sequence[RooflinePoint], roof: MeasuredRoof) -> None:
    """What memory permits, and the products of float32 and of bfloat16."""
    ridges = roof.flops / roof.bandwidth, roof.half_flops / roof.bandwidth
    intensities = [*ridges, *(point.intensity for point in points)]
    low, high = min(intensities) / 4, max(intensities) * 4
    text = f"memory: {_scaled(roof.bandwidth)}B/s"
    axes.plot([low, max(ridges)], [low * roof.bandwidth, max(ridges) * roof.bandwidth],
              color="black", label=text)  # fmt: skip
    for name, flops, ridge, style in (
        ("float32", roof.flops, ridges[0], "--"), ("bfloat16", roof.half_flops, ridges[1], ":"),
    ):  # fmt: skip
        text = f"{name} products: {_scaled(flops)}FLOP/s"
        axes.plot([ridge, high], [flops, flops], color="black", linestyle=style, label=text)


def _scaled(number: float) -> str:
    for scale, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if number >= scale:
            return f"{number / scale:.3g} {letter}"
    return f"{number:.3g} "
