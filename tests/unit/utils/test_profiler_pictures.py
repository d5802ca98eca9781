"""Pictures of recordings: what stands in them is apart, whole and in its place."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

from tinygrad_cuda.utils.profiling import pictures
from tinygrad_cuda.utils.profiling.pictures import RooflinePoint
from tinygrad_cuda.utils.profiling.roofline import MeasuredRoof

pyplot = pytest.importorskip("matplotlib.pyplot")
DOCS = Path(__file__).resolve().parents[3] / "docs"


def drawn(figure: Any) -> Any:
    figure.draw_without_rendering()
    return figure.axes[0]


def test_numbers_of_kernels_do_not_cover_each_other() -> None:
    """Ten kernels of one kind stand nearly at one point: a 9 was under a 10."""
    points = [RooflinePoint("map (8,)", 0.1 + 0.001 * n, 1e9, 0.1) for n in range(10)]
    figure = pictures.roofline_figure(points, MeasuredRoof("a device", 1e12, 1e13, 1e14))
    texts = drawn(figure).texts
    assert [text.get_text() for text in texts] == [str(n) for n in range(1, 11)]
    extents = [text.get_window_extent() for text in texts]
    for number, extent in enumerate(extents):
        assert not any(extent.overlaps(other) for other in extents[:number])


def test_a_roofline_of_a_narrow_range_has_labels() -> None:
    """Whole decades, in units: rates between 20 and 300 M had one label, with minor ones."""
    points = [RooflinePoint("map (8,)", 1.0, rate, 0.5) for rate in (3e8, 2.5e8)]
    figure = pictures.roofline_figure(points, MeasuredRoof("a device", 1e9, 4e8, 4e8))
    axis = drawn(figure).yaxis
    low, high = figure.axes[0].get_ylim()
    labels = {
        tick.label1.get_text()
        for tick in axis.get_major_ticks()
        if low * 0.99 <= tick.get_loc() <= high * 1.01
    }
    assert {"100 M", "1 G"} <= labels
    assert not any(tick.label1.get_text() for tick in axis.get_minor_ticks())


def test_every_kernel_is_as_wide_in_a_memory_timeline() -> None:
    """The first and the last were half as wide; the line below it ends in the picture."""
    series = {"input": [4, 4, 4], "forward": [1, 5, 2]}
    figure = pictures.memory_figure(series, "peak: " + "x" * 300)
    axes = drawn(figure)
    assert axes.get_xlim() == (-0.5, 2.5)
    assert axes.get_legend().get_texts()[0].get_text() == "peak"
    top = axes.collections[1].get_paths()[0].vertices
    assert {x: max(y for at, y in top if at == x) for x in (-0.5, 2.5)} == {-0.5: 5, 2.5: 6}
    below = figure._supxlabel.get_window_extent()
    assert below.x0 >= 0 and below.x1 <= figure.bbox.x1
    assert below.y1 <= axes.xaxis.label.get_window_extent().y0


def test_pictures_of_pages_can_be_made_anew(tmp_path: Path) -> None:
    """By docs/images/make.py; each that it makes is small, and shown on a page."""
    spec = importlib.util.spec_from_file_location("make", DOCS / "images" / "make.py")
    assert spec is not None and spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    pages = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    for name in make.PICTURES:
        assert f"](images/{name}.png)" in pages
        assert (DOCS / "images" / f"{name}.png").stat().st_size < 120_000
    names = [name for name in make.PICTURES if name != "memory_timeline" or shutil.which("c++")]
    before = pyplot.get_fignums()
    make.main(names, tmp_path)
    assert pyplot.get_fignums() == before  # a figure left open was one of the notebook's test
    assert all((tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in names)
