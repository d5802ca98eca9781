"""Looking at graphs: a networkx view, a text tree, DOT, and pictures by matplotlib.

Nodes are numbered in topological order, sources first, so the same graph gives the same text.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError, RawSite, Site
from tinygrad_cuda.graph.node import Node, topological

PICTURES = (".svg", ".png", ".pdf")
# Beyond this nobody can read a picture; DOT and text have no limit.
MOST_IN_A_PICTURE = 2000

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
    ``kind``, ``shape``, ``dtype``, ``device``, ``line``, ``output`` (whether it is one) and
    ``label``. Edges have ``operands``: the positions at which the reader takes the source.

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
    line = _Lines()
    for node, number in numbers.items():
        graph.add_node(
            number,
            node=node,
            op=node.op.name,
            kind=node.op.kind,
            shape=node.shape,
            dtype=node.dtype,
            device=node.device,
            line=line(node.site),
            output=node in wanted,
            label=f"{node.op.name}{_numbers(node)}\n{node.shape} {node.dtype.name}",
        )
        operands: dict[Node, tuple[int, ...]] = {}
        for position, source in enumerate(node.sources):
            operands[source] = (*operands.get(source, ()), position)
        for source, positions in operands.items():
            graph.add_edge(numbers[source], number, operands=positions)
    return graph


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
    line = _Lines()
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
        graph: a DiGraph as `dot` takes it, or a sequence of Nodes.
        path: ``.svg``, ``.png`` or ``.pdf`` (a picture by matplotlib, sources above their
            readers), ``.dot``, or ``.txt`` (the tree of `text`, for Nodes only).

    Raises:
        ArgumentError: another ending, or more nodes than a picture can show.
    """
    path = Path(path)
    if path.suffix == ".dot":
        path.write_text(dot(graph), encoding="utf-8")
    elif path.suffix == ".txt" and not hasattr(graph, "nodes"):
        path.write_text(text(graph) + "\n", encoding="utf-8")
    elif path.suffix in PICTURES:
        _picture(_as_graph(graph), path)
    else:
        raise ArgumentError(
            "draw",
            "the ending of the file names no format",
            expect=".svg, .png, .pdf or .dot (.txt for nodes)",
            actual=path.name,
        )
    return path


# Text ----------------------------------------------------------------------------------------


class _Lines:
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
        f" {name}={getattr(value, 'name', value)}"
        for name, value in node.attributes.items()
        if not callable(value)
    )


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
    return _COLORS.get(data.get("kind", ""), "#f0f0f0")


def _layers(graph: Any) -> list[list[Hashable]]:
    """Nodes by depth, ordered in each layer by the mean position of their neighbours."""
    import networkx

    layers: list[list[Hashable]] = [
        list(layer) for layer in networkx.topological_generations(graph)
    ]
    height: dict[Hashable, float] = {}

    def settle(layer: list[Hashable]) -> None:
        height.update((key, position - (len(layer) - 1) / 2) for position, key in enumerate(layer))

    for layer in layers:
        settle(layer)
    for sweep in range(4):
        downwards = sweep % 2 == 0
        neighbours = graph.predecessors if downwards else graph.successors

        def mean(key: Hashable) -> float:
            around = [height[other] for other in neighbours(key)]  # noqa: B023 (used at once)
            return sum(around) / len(around) if around else height[key]

        for layer in layers if downwards else reversed(layers):
            layer.sort(key=mean)
            settle(layer)
    return layers


def _picture(graph: Any, path: Path) -> None:
    if len(graph) > MOST_IN_A_PICTURE:
        raise ArgumentError(
            "draw",
            "the graph is too large for a picture",
            expect=f"at most {MOST_IN_A_PICTURE} nodes",
            actual=f"{len(graph)} nodes",
            hint="write .dot or .txt instead",
        )
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    layers = _layers(graph)
    across, down = 2.2, 0.9  # inches between neighbours and between layers
    widest = max((len(layer) for layer in layers), default=1)
    # A longer picture than this is scaled down: Agg has a limit of pixels.
    figure = Figure(figsize=(min(widest * across + 1, 300), min(len(layers) * down + 1, 300)))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_xlim(-widest * across / 2 - 0.5, widest * across / 2 + 0.5)
    axes.set_ylim(-len(layers) * down, down)
    positions = {
        key: ((position - (len(layer) - 1) / 2) * across, -depth * down)
        for depth, layer in enumerate(layers)
        for position, key in enumerate(layer)
    }
    arrow = {"arrowstyle": "-|>", "color": "#636363", "lw": 0.8, "shrinkA": 12, "shrinkB": 12}
    for before, after in graph.edges:
        axes.annotate("", xy=positions[after], xytext=positions[before], arrowprops=arrow)
    for key, data in graph.nodes(data=True):
        axes.text(
            *positions[key],
            str(data.get("label", key)).replace("$", r"\$"),
            ha="center",
            va="center",
            fontsize=7,
            bbox={
                "boxstyle": "round",
                "facecolor": _color(data),
                "edgecolor": "black",
                "linewidth": 1.6 if data.get("output") else 0.6,
            },
        )
    # No date and a fixed salt: the same graph gives the same file.
    with _fixed_ids():
        figure.savefig(path, dpi=100, metadata={"Date": None} if path.suffix == ".svg" else None)


def _fixed_ids() -> Any:
    from matplotlib import rc_context

    return rc_context({"svg.hashsalt": "tinygrad_cuda"})
