"""Looking at graphs: a networkx view, a text tree, DOT, a page for a browser, and pictures.

Nodes are numbered in topological order, sources first, so the same graph gives the same text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import ArgumentError, RawSite, Site
from tinygrad_cuda.graph.layout import LETTER, LINE, Box, Layout
from tinygrad_cuda.graph.node import Node, topological

PICTURES = (".svg", ".png", ".pdf")
# Of a picture, and of a page as it is opened first; groups are closed until so few are left.
MOST_SHOWN, OPEN_AT_FIRST = 600, 150
HALO = "#f4f4f6"  # around the names of groups, which edges cross
TEMPLATE = Path(__file__).with_name("picture.html")

_PHASES = {"forward": "#c6dbef", "backward": "#fdd0a2", "update": "#c7e9c0"}

_COLORS = {
    "leaf": "#d9d9d9",
    "identity": "#ffffff",
    "elementwise": "#c6dbef",
    "movement": "#fdd0a2",
    "reduction": "#c7e9c0",
    "contraction": "#fbb4ae",
    "kernel": "#dadaeb",
}


def to_networkx(outputs: Sequence[Node]) -> Any:
    """The nodes behind `outputs` as a networkx DiGraph; edges lead from a source to its reader.

    Nodes are the numbers 1, 2, ... in topological order, with the data ``node``, ``op``,
    ``kind``, ``shape``, ``dtype``, ``device``, ``line``, ``gradient`` (whether it is of one),
    ``output`` (whether it is one) and ``label``. Edges have ``operands``: the positions at which
    the reader takes the source.

    Example:
        >>> from tinygrad_cuda.core.device import CPU
        >>> from tinygrad_cuda.core.dtypes import float32
        >>> from tinygrad_cuda.graph.ops import common, elementwise
        >>> x = common.buffer.leaf((3,), float32, CPU, slot=0)
        >>> graph = to_networkx([elementwise.mul(x, x)])
        >>> list(graph.edges(data="operands"))
        [(1, 2, (0, 1))]
    """
    import networkx

    graph = networkx.DiGraph()
    order = topological(outputs)
    numbers = {node: number for number, node in enumerate(order, 1)}
    wanted = set(outputs)
    line = Lines()
    for node, number in numbers.items():
        graph.add_node(number, **data_of(node, line), output=node in wanted)
        operands: dict[Node, tuple[int, ...]] = {}
        for position, source in enumerate(node.sources):
            operands[source] = (*operands.get(source, ()), position)
        for source, positions in operands.items():
            graph.add_edge(numbers[source], number, operands=positions)
    return graph


def data_of(node: Node, line: Lines) -> dict[str, Any]:
    """What a networkx view says of a node, besides whether it is an output."""
    return {
        "node": node,
        "op": node.op.name,
        "kind": node.op.kind,
        "shape": node.shape,
        "dtype": node.dtype,
        "device": node.device,
        "line": line(node.site),
        "gradient": node.site is not None and len(node.site) == 3,
        "label": f"{node.label}{_numbers(node)}\n{node.shape} {node.dtype.name}",
    }


def text(outputs: Sequence[Node]) -> str:
    """The graph as a tree of text: a line a node, readers above what they read.

    Each line has the node's number, its op with the numbers of its sources, its attributes,
    shape, dtype and the user's line. Of the sources that nobody else reads the largest continues
    below at the same depth, the others branch off; a node with several readers stands once, at
    the margin, marked by their count. So a chain of any length is not indented.

    Example:
        >>> from tinygrad_cuda.core.device import CPU
        >>> from tinygrad_cuda.core.dtypes import float32
        >>> from tinygrad_cuda.graph.ops import common, elementwise
        >>> x, y = (common.buffer.leaf((3,), float32, CPU, slot=slot) for slot in (0, 1))
        >>> tree = text([elementwise.add(elementwise.exp(x), elementwise.mul(y, y))])
        >>> print("\\n".join(line.split(" (3,)")[0] for line in tree.splitlines()))
        5 add(2, 4)
        ├─ 4 mul(3, 3)
        │  3 buffer slot=1
        2 exp(1)
        1 buffer slot=0
    """
    order = topological(outputs)
    numbers = {node: number for number, node in enumerate(order, 1)}
    readers = _readers(order)
    sizes = _tree_sizes(order, readers)
    wanted = set(outputs)
    line = Lines()
    lines: list[str] = []
    # A block for each wanted or shared node; all else hangs below its only reader.
    for root in reversed(order):
        if root not in wanted and readers[root] == 1:
            continue
        stack = [(root, "", "")]
        while stack:
            node, first, rest = stack.pop()
            count = f" ({readers[node]} readers)" if readers[node] > 1 else ""
            site = line(node.site)
            lines.append(f"{first}{_described(node, numbers)}{count}{site and '  ' + site}")
            own = [
                source
                for source in dict.fromkeys(node.sources)
                if readers[source] == 1 and source not in wanted
            ]
            if own:
                heavy = max(own, key=sizes.__getitem__)
                stack.append((heavy, rest, rest))
                for source in reversed(own):
                    if source is not heavy:
                        stack.append((source, rest + "├─ ", rest + "│  "))
    return "\n".join(lines)


def dot(graph: Any) -> str:
    """Graphviz DOT text of a networkx view of nodes or kernels, or of the nodes behind outputs.

    Args:
        graph: a DiGraph whose nodes may have ``label`` and ``kind``, or a sequence of Nodes.
    """
    graph = _as_graph(graph)
    names = {key: f"n{number}" for number, key in enumerate(graph, 1)}
    lines = [
        "digraph tinygrad_cuda {",
        '  node [shape=box style="rounded,filled" fontname="Helvetica" fontsize=10];',
    ]
    for key, data in graph.nodes(data=True):
        label = str(data.get("label", key)).replace("\\", "\\\\").replace('"', '\\"')
        label = label.replace("\n", "\\n")
        bold = " penwidth=2" if data.get("output") else ""
        lines.append(f'  {names[key]} [label="{label}" fillcolor="{_color(data)}"{bold}];')
    lines += [f"  {names[before]} -> {names[after]};" for before, after in graph.edges]
    return "\n".join((*lines, "}")) + "\n"


def draw(graph: Any, path: str | Path) -> Path:
    """Writes a graph to a file whose ending says how.

    Args:
        graph: a DiGraph as `dot` takes it, or a sequence of Nodes. For pictures its nodes may
            also have ``phase`` (``forward``, ``backward`` or ``update``), ``module`` (names, the
            outermost first) and ``kernel``, a key of ``graph.graph["kernels"]``, which has titles.
        path: ``.html`` (one page without anything from outside, whose groups open and close),
            ``.svg``, ``.png`` or ``.pdf`` (sources above their readers; groups are closed where
            there are too many), ``.dot``, or ``.txt`` (the tree of `text`, for Nodes only).

    Raises:
        ArgumentError: another ending.
    """
    path = Path(path)
    if path.suffix == ".dot":
        path.write_text(dot(graph), encoding="utf-8")
    elif path.suffix == ".txt" and not hasattr(graph, "nodes"):
        path.write_text(text(graph) + "\n", encoding="utf-8")
    elif path.suffix == ".html":
        path.write_text(page(_as_graph(graph)), encoding="utf-8")
    elif path.suffix in PICTURES:
        _picture(_as_graph(graph), path)
    else:
        raise ArgumentError(
            "draw",
            "the ending of the file names no format",
            expect=".html, .svg, .png, .pdf or .dot (.txt for nodes)",
            actual=path.name,
        )
    return path


# Text ----------------------------------------------------------------------------------------


class Lines:
    """The user's lines as text; each position is looked up once."""

    def __init__(self) -> None:
        self.sites: dict[RawSite, str] = {}

    def __call__(self, site: RawSite | None) -> str:
        if site is None:
            return ""
        text = self.sites.get(site)
        if text is None:
            text = self.sites[site] = str(Site(*site))
        return text


def _numbers(node: Node) -> str:
    return "".join(
        f" {name}={value.name if isinstance(value, DType) else value}"
        for name, value in node.attributes.items()
        if _is_plain(value)
    )


def _is_plain(value: Any) -> bool:
    """Whether a value's text says what it is: that of a function or an object has its address."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | DType)


def _described(node: Node, numbers: dict[Node, int]) -> str:
    sources = ", ".join(str(numbers[source]) for source in node.sources)
    sources = f"({sources})" if sources else ""
    return f"{numbers[node]} {node.op.name}{sources}{_numbers(node)} {node.shape} {node.dtype.name}"


def _readers(order: list[Node]) -> dict[Node, int]:
    """How many nodes read each."""
    readers = dict.fromkeys(order, 0)
    for node in order:
        for source in set(node.sources):
            readers[source] += 1
    return readers


def _tree_sizes(order: list[Node], readers: dict[Node, int]) -> dict[Node, int]:
    """Nodes in the tree below each, shared ones left out.

    Going on with the largest keeps the depth of branches below log2 of the number of nodes.
    """
    sizes: dict[Node, int] = {}
    for node in order:
        own = (source for source in set(node.sources) if readers[source] == 1)
        sizes[node] = 1 + sum(sizes[source] for source in own)
    return sizes


# Pictures ------------------------------------------------------------------------------------


def _as_graph(graph: Any) -> Any:
    return graph if hasattr(graph, "nodes") else to_networkx(graph)


def _color(data: dict[str, Any]) -> str:
    phase = data.get("phase")
    return _PHASES[phase] if phase in _PHASES else _COLORS.get(data.get("kind", ""), "#f0f0f0")


def _legend(graph: Any) -> list[tuple[str, str]]:
    """Colours with their meaning, and what the picture is of."""
    data = [data for _, data in graph.nodes(data=True)]
    phases = {d.get("phase") for d in data} & set(_PHASES)
    kinds = {d.get("kind") for d in data}
    colors = _PHASES if phases else _COLORS
    entries = [(color, name) for name, color in colors.items() if name in (phases or kinds)]
    if graph.graph.get("kernels"):
        entries.append(("", "dashed: kernels" + graph.graph.get("kernels_of", "")))
    if any(d.get("module") for d in data):
        entries.append(("", "boxes: modules"))
    return entries


def page(graph: Any) -> str:
    """The text of a page that shows a networkx view; see `draw`."""
    layout = Layout(graph)
    closed = layout.closed_for(OPEN_AT_FIRST)
    numbers = {box: number for number, box in enumerate(layout.nodes.values())}
    data = {
        "root": _as_data(layout.root, closed, numbers, count()),
        "edges": [(numbers[a], numbers[b]) for a, b in layout.edges],
    }
    legend = " · ".join(
        f'<i style="background:{color}"></i>{name}' if color else name
        for color, name in _legend(graph)
    )
    texts = {
        "TITLE": escape(f"{len(graph)} nodes"),
        "LEGEND": legend,
        # In a script only this letter could end it.
        "DATA": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        **_PHASES,
    }
    template = TEMPLATE.read_text(encoding="utf-8")
    return re.sub(r"@(\w+)@", lambda match: texts[match[1]], template)


def _as_data(
    box: Box, closed: set[Box], numbers: dict[Box, int], lanes: Iterator[int]
) -> dict[str, Any]:
    """A group or a node as the page reads it."""
    if box.kind == "node":
        data: dict[str, Any] = {"t": "\n".join(box.lines), "i": numbers[box]}
        data |= {"w": box.data["line"]} if box.data.get("line") else {}
        data |= {"p": box.data["phase"]} if box.data.get("phase") else {}
        data |= {"out": 1} if box.data.get("output") else {}
        return data
    lane_numbers = {lane: next(lanes) for taken in box.lanes.values() for lane in taken}
    order = {child: number for number, child in enumerate(box.children)}
    layers = [
        [
            lane_numbers[child]
            if child.kind == "lane"
            else {"u": order[child], **_as_data(child, closed, numbers, lanes)}
            for child in layer
        ]
        for layer in box.layers
    ]
    nodes = [inside for inside in box.walk() if inside.kind == "node"]
    data = {"n": box.name, "k": box.kind, "l": layers, "c": len(nodes)}
    if box.lanes:
        data["e"] = {
            f"{order[a]} {order[b]}": [lane_numbers[lane] for lane in taken]
            for (a, b), taken in box.lanes.items()
        }
    phase = nodes[0].data.get("phase") if nodes else None
    return data | ({"p": phase} if phase else {}) | ({"o": 1} if box in closed else {})


class Mark(NamedTuple):
    """A rectangle with lines of text, or the corners of an edge (`line`)."""

    x: float
    y: float
    width: float
    height: float
    text: tuple[str, ...] = ()
    fill: str = "none"
    dashed: bool = False
    thick: bool = False
    title: bool = False
    line: tuple[tuple[float, float], ...] = ()


def _shapes(layout: Layout, closed: set[Box], graph: Any) -> list[Mark]:
    """What a picture consists of, what lies behind first."""
    groups, boxes = [], []
    for box in layout.shown(closed):
        rectangle = box.x, box.y, box.width, box.height
        if box.children and box not in closed:
            if box.kind != "picture" and box.name:
                fill = "none" if box.kind == "kernel" else "#5a5a6e"
                dashed = box.kind == "kernel"
                groups.append(Mark(*rectangle, (box.name,), fill, dashed, title=True))
        else:
            nodes = [inside for inside in box.walk() if inside.kind == "node"]
            lines = box.lines or (box.name, f"{len(nodes)} nodes")
            if nodes:
                bold = any(node.data.get("output") for node in nodes)
                boxes.append(Mark(*rectangle, tuple(lines), _color(nodes[0].data), thick=bold))
    edges = [
        Mark(0, 0, 0, 0, dashed=a.path()[1] is not b.path()[1], line=_corners(a, b, lanes))
        for (a, b), lanes in layout.lines(closed).items()
    ]
    legend, left = [], 0.0
    for color, name in _legend(graph):
        width = (len(name) + 3) * LETTER
        legend.append(Mark(left, -30, width, 18, (name,), color or "#ffffff"))
        left += width + 8
    return [*groups, *edges, *boxes, *legend]


def _corners(a: Box, b: Box, lanes: list[Box]) -> tuple[tuple[float, float], ...]:
    """Where an edge begins, passes and ends."""
    if a.path()[1] is not b.path()[1]:
        return (a.x + a.width, a.center[1]), (b.x, b.center[1])
    passed = [(lane.center[0], lane.y + down) for lane in lanes for down in (0.0, lane.height)]
    return (a.center[0], a.y + a.height), *passed, (b.center[0], b.y)


def _picture(graph: Any, path: Path) -> None:
    layout = Layout(graph)
    closed = layout.closed_for(MOST_SHOWN)
    layout.place(closed)
    shapes = _shapes(layout, closed, graph)
    width = max([layout.root.width, *(s.x + s.width for s in shapes)]) + 20
    if path.suffix == ".svg":
        path.write_text(_svg(shapes, width, layout.root.height + 50), encoding="utf-8")
    else:
        _matplotlib(shapes, width, layout.root.height + 50, path)


def _svg(shapes: list[Mark], width: float, height: float) -> str:
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-10 -40 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="DejaVu Sans Mono, monospace" '
        'font-size="10">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8Z" fill="#888"/></marker></defs>',
        '<rect x="-10" y="-40" width="100%" height="100%" fill="#ffffff"/>',
    ]
    titles: list[str] = []  # above the edges, which would strike them out
    for shape in shapes:
        if shape.line:
            style = 'stroke="#c9c2dd" stroke-dasharray="2 3"' if shape.dashed else (
                'stroke="#888" marker-end="url(#tip)"'
            )  # fmt: skip
            lines.append(f'<path d="{_curve(shape)}" fill="none" {style}/>')
            continue
        border = 'stroke-dasharray="4 3" stroke="#555"' if shape.dashed else 'stroke="#999"'
        lines.append(
            f'<rect x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" '
            f'height="{shape.height:.1f}" rx="4" fill="{shape.fill}" {border} '
            f'fill-opacity="{0.06 if shape.title else 1}" '
            f'stroke-width="{2 if shape.thick else 1}"/>'
        )
        for text, x, y, where in _texts(shape):
            style = ' font-weight="bold"' if shape.title and not shape.dashed else ""
            style += (
                f' stroke="{HALO}" stroke-width="3" paint-order="stroke"' if shape.title else ""
            )
            (titles if shape.title else lines).append(
                f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{where}"{style}>{escape(text)}</text>'
            )
    return "\n".join([*lines, *titles, "</svg>"]) + "\n"


def _texts(shape: Mark) -> Iterator[tuple[str, float, float, str]]:
    """Lines of text with the point where each stands."""
    if shape.title:
        yield shape.text[0], shape.x + 6, shape.y + 12, "start"
        return
    top = shape.y + (shape.height - LINE * len(shape.text)) / 2 + LINE - 3
    for number, text in enumerate(shape.text):
        yield text, shape.x + shape.width / 2, top + number * LINE, "middle"


def _curve(shape: Mark) -> str:
    (x, y), *rest = shape.line
    text = f"M{x:.1f} {y:.1f}"
    for x2, y2 in rest:
        if shape.dashed:
            text += f"C{(x + x2) / 2:.1f} {y:.1f} {(x + x2) / 2:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
        else:
            text += f"C{x:.1f} {(y + y2) / 2:.1f} {x2:.1f} {(y + y2) / 2:.1f} {x2:.1f} {y2:.1f}"
        x, y = x2, y2
    return text


def _matplotlib(shapes: list[Mark], width: float, height: float, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patheffects import withStroke

    # Agg has a limit of pixels: a larger picture is scaled down.
    scale = min(1.0, 30_000 / max(width, height))
    figure = Figure(figsize=(width * scale / 100, height * scale / 100))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0), xlim=(-10, width - 10), ylim=(height - 40, -40))
    axes.set_axis_off()
    for order, shape in enumerate(shapes):
        axes.add_patch(_patch(shape, scale, order))
        for text, x, y, where in () if shape.line else _texts(shape):
            axes.text(
                x, y, text.replace("$", r"\$"), ha={"start": "left", "middle": "center"}[where],
                family="monospace", fontsize=7.2 * scale,
                weight="bold" if shape.title and not shape.dashed else "normal",
                zorder=len(shapes) if shape.title else order,
                path_effects=[withStroke(linewidth=2.2 * scale, foreground=HALO)]
                if shape.title else None,
            )  # fmt: skip
    figure.savefig(path, dpi=100)


def _patch(shape: Mark, scale: float, order: int) -> Any:
    """An edge or a rectangle of matplotlib."""
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
    from matplotlib.path import Path as Curve

    if shape.line:
        corners, codes = _bezier(shape)
        style = (":", "#c9c2dd", "-") if shape.dashed else ("-", "#888888", "-|>")
        return FancyArrowPatch(
            path=Curve(corners, codes), linestyle=style[0], color=style[1],
            arrowstyle=style[2], mutation_scale=6 * scale, lw=0.7 * scale, zorder=order,
        )  # fmt: skip
    rgba = (*_rgb(shape.fill), 0.06 if shape.title else 1.0) if shape.fill != "none" else "none"
    return FancyBboxPatch(
        (shape.x, shape.y), shape.width, shape.height, boxstyle="round,pad=0,rounding_size=4",
        facecolor=rgba, edgecolor="#555555" if shape.dashed else "#999999", zorder=order,
        linestyle="--" if shape.dashed else "-", lw=(1.5 if shape.thick else 0.7) * scale,
    )  # fmt: skip


def _rgb(color: str) -> tuple[float, float, float]:
    red, green, blue = bytes.fromhex(color[1:])
    return red / 255, green / 255, blue / 255


def _bezier(shape: Mark) -> tuple[list[tuple[float, float]], list[int]]:
    """The corners and codes of matplotlib for the curve of `_curve`."""
    corners, codes = [shape.line[0]], [1]
    for (x, y), (x2, y2) in pairwise(shape.line):
        middle_x, middle_y = (x + x2) / 2, (y + y2) / 2
        bends = [(middle_x, y), (middle_x, y2)] if shape.dashed else [(x, middle_y), (x2, middle_y)]
        corners += [*bends, (x2, y2)]
        codes += [4, 4, 4]
    return corners, codes
