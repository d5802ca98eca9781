"""Draws pictures of the pages anew: `python docs/images/make.py`, or with the names of some.

It needs the extra ``plot``. What is measured is measured on this machine, on the device that the
picture's caption names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.profiler import profile, schedule
from tinygrad_cuda.utils.profiling import pictures
from tinygrad_cuda.utils.profiling.averages import roofline_points
from tinygrad_cuda.utils.profiling.roofline import measure

FOLDER = Path(__file__).parent


def training_step(path: Path) -> None:
    """The step of looking_inside.md, on cpu."""
    model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = tc.optim.SGD(model.parameters(), lr=0.1)
    x, target = tc.rand(32, 784), tc.zeros(32, 10)
    tc.realize(x, target, *model.parameters())

    def step() -> tc.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        return loss

    tc.draw(step, path)


def memory_timeline(path: Path) -> None:
    """One step of a deep perceptron, on emu: its allocator is asked, as that of a GPU is."""
    with tc.device("emu"):
        model = nn.Sequential(*(nn.Sequential(nn.Linear(128, 128), nn.ReLU()) for _ in range(4)))
        optimizer = tc.optim.SGD(model.parameters(), lr=0.1)
        x, target = tc.rand(512, 128), tc.rand(512, 128)
        tc.realize(x, target, *model.parameters())
        with profile(profile_memory=True, with_modules=True) as p:
            loss = nn.functional.mse_loss(model(x), target)
            loss.backward()
            optimizer.step()
            loss.item()
    p.export_memory_timeline(path)


def roofline(path: Path) -> None:
    """Steps of NumPy, on cpu, below what this machine's memory and products do.

    `export_roofline` draws those of a GPU; what it measures there is measured here on cpu.
    """
    model = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = tc.optim.Adam(model.parameters())
    x, labels = tc.rand(512, 784), tc.randint(0, 10, (512,))
    with profile(schedule=schedule(wait=1, warmup=2, active=5, repeat=1)) as p:
        for _ in range(8):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), labels).backward()
            optimizer.step()
            p.step()
    roof = measure(as_device("cpu"), "the processor, by NumPy", nbytes=1 << 26, side=1024)
    with path.open("wb") as file:
        pictures.roofline(file, "png", roofline_points(p.recorder.kernels, p.works), roof)


def climb(path: Path) -> None:
    """The rungs of matmul.md, by the numbers in its tables: rows that have a time of an H200."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    text = (FOLDER.parent / "matmul.md").read_text(encoding="utf-8")
    titles = ("products, 4096^3", "convolution 3 x 3, forward", "attention, 4096 x 128, forward")
    tables = rung_tables(text)
    heights = [len(table) + 1 for table in tables]
    figure, parts = pyplot.subplots(
        len(tables), 1, figsize=(7.5, 4.6), sharex=True, height_ratios=heights
    )
    for part, title, table in zip(parts, titles, tables, strict=True):
        names, rates, shares = zip(*table, strict=True)
        bars = part.barh(names, rates, color="#4477aa", height=0.6)
        labels = [f"{rate:g}  ({share:.0%})" for rate, share in zip(rates, shares, strict=True)]
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        part.bar_label(bars, labels, padding=4, fontsize=8, bbox=ground)
        part.invert_yaxis()
        part.set_title(title, fontsize=9, loc="left")
        part.spines[["top", "right"]].set_visible(False)
        library = rates[-1] / shares[-1]
        part.axvline(library, color="#cc6677", linestyle="--", zorder=0)
        part.tick_params(labelsize=8)
    parts[0].set_xlim(0, 900)
    parts[-1].set_xlabel("TFLOP/s of bfloat16 on an H200 (share of the library: the dashed line)")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def rung_tables(text: str) -> list[list[tuple[str, float, float]]]:
    """Rung, TFLOP/s and share of the library of each table that has them."""
    tables: list[list[tuple[str, float, float]]] = []
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| rung |"):
            inside = "TFLOP/s" in line
            if inside:
                tables.append([])
        elif not line.startswith("|"):
            inside = False
        elif inside and cells[2][:1].isdigit():
            rates, shares = ([float(x) for x in cell.split(" to ")] for cell in cells[2:4])
            row = (cells[0], sum(rates) / len(rates), sum(shares) / len(shares))
            tables[-1].append(row)
    return tables


PICTURES: dict[str, Callable[[Path], None]] = {
    "training_step": training_step,
    "memory_timeline": memory_timeline,
    "roofline": roofline,
    "climb": climb,
}


def main(names: list[str], folder: Path = FOLDER) -> None:
    """Draws the pictures of these names, or all of them, into a folder."""
    for name in names or PICTURES:
        with tc.device("cpu"):
            PICTURES[name](folder / f"{name}.png")
        _shrink(folder / f"{name}.png")


def _shrink(path: Path) -> None:
    """Few colours are a quarter of the bytes; matplotlib brings Pillow."""
    from PIL import Image

    with Image.open(path) as image:
        few = image.convert("RGB").quantize(48, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
