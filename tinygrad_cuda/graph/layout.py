"""Where the boxes of a picture stand: nested boxes, each a stack of layers of what it contains.

Layers follow the edges, their order the barycenter heuristic (Sugiyama, Tagawa and Toda, 1981).
Each box is laid out by itself, from the inside outwards, so no two boxes overlap. The numbers are
pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

LETTER, LINE = 6.1, 13.0  # of the monospaced letters, wide and high
PADDING, GAP, LAYER_GAP = 8.0, 14.0, 22.0
TITLE = 16.0  # the height of a box's name
LANE = 10.0  # the width that an edge takes where it passes a layer
LONGEST = 36  # letters of a line
CHUNK = 100  # units of a box; more are cut into runs
SWEEPS = 4
PHASES = ("forward", "backward", "update")


class Box:
    """A node, or a group of boxes.

    Attributes:
        name: of the group; of a node its number.
        kind: ``node``, ``phase``, ``module``, ``kernel``, ``run`` or ``picture``.
        lines: what is written in it.
        key: of a node, in the graph.
        children: of a group, in the order of their first nodes.
        layers: the children and the lanes of edges that pass, from top to bottom.
        lanes: for an edge between two children, the lanes by which it passes other layers.
        x, y, width, height: of the rectangle, in the picture.
    """

    def __init__(self, name: str, kind: str, lines: Sequence[str] = (), key: Any = None) -> None:
        self.name, self.kind, self.key = name, kind, key
        self.lines = [_cut(line) for line in lines]
        self.parent: Box | None = None
        self.children: list[Box] = []
        self.layers: list[list[Box]] = []
        self.lanes: dict[tuple[Box, Box], list[Box]] = {}
        self.data: dict[str, Any] = {}
        self.x = self.y = self.width = self.height = 0.0

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"

    @property
    def center(self) -> tuple[float, float]:
        """The middle of the rectangle."""
        return self.x + self.width / 2, self.y + self.height / 2

    def add(self, child: Box) -> Box:
        """Puts a box into this one."""
        child.parent = self
        self.children.append(child)
        return child

    def walk(self) -> Iterator[Box]:
        """This box and all inside it, outer ones first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def path(self) -> list[Box]:
        """The boxes around this one, the outermost first, and itself."""
        around: list[Box] = [self]
        while (outer := around[-1].parent) is not None:
            around.append(outer)
        return around[::-1]


class Layout:
    """Boxes of a graph.

    Args:
        graph: a DiGraph in topological order. Its nodes may have ``label``, ``phase``,
            ``module`` (the names of the modules around it, outermost first) and ``kernel``.

    Attributes:
        root: the box around all.
        nodes: the box of each node.
        edges: the edges of the graph, as boxes.
    """

    def __init__(self, graph: Any) -> None:
        self.root = Box("", "picture")
        self.nodes: dict[Any, Box] = {}
        self._build(graph)
        for box in list(self.root.walk()):
            if box.kind != "picture":
                _divide(box)
        self.edges = [(self.nodes[a], self.nodes[b]) for a, b in graph.edges]
        self._arrange()

    def _build(self, graph: Any) -> None:
        groups: dict[Any, Box] = {}
        phases = sorted(
            {data.get("phase") for _, data in graph.nodes(data=True)} & set(PHASES),
            key=PHASES.index,
        )
        for phase in phases or [""]:
            groups[phase,] = self.root.add(Box(phase, "phase"))
        kernels = graph.graph.get("kernels", {})
        for number, (key, data) in enumerate(graph.nodes(data=True), 1):
            box = groups[data.get("phase") if phases else "",]
            path: tuple[Any, ...] = (box.name,)
            for name in data.get("module") or ():
                path = (*path, name)
                if path not in groups:
                    groups[path] = box.add(Box(name, "module"))
                box = groups[path]
            if (kernel := data.get("kernel")) is not None:
                path = (*path, ("kernel", kernel))
                if path not in groups:
                    groups[path] = box.add(Box(kernels.get(kernel, str(kernel)), "kernel"))
                box = groups[path]
            node = Box(str(number), "node", str(data.get("label", key)).split("\n"), key)
            node.data = data
            self.nodes[key] = box.add(node)

    def _arrange(self) -> None:
        """Layers of each group, from the edges between what it contains."""
        between: dict[Box, dict[tuple[Box, Box], None]] = {}
        paths = {box: box.path() for box in self.nodes.values()}
        for before, after in self.edges:
            first, second = paths[before], paths[after]
            depth = next(d for d, (a, b) in enumerate(zip(first, second)) if a is not b)
            group = first[depth - 1]
            between.setdefault(group, {})[first[depth], second[depth]] = None
        for box in self.root.walk():
            if box.kind == "picture":
                box.layers = [box.children]  # phases side by side
            elif box.children:
                _layer(box, list(between.get(box, ())))

    def place(self, closed: set[Box]) -> None:
        """Gives each box its rectangle.

        Args:
            closed: groups that show their name alone.
        """
        for box in reversed(list(self.root.walk())):
            _measure(box, closed)
        _set_corners(self.root, 0.0, 0.0, closed)

    def shown(self, closed: set[Box]) -> Iterator[Box]:
        """The boxes to draw, outer ones first; of closed groups none of the inside."""
        stack = [self.root]
        while stack:
            box = stack.pop()
            yield box
            if box not in closed:
                stack += reversed(box.children)

    def closed_for(self, most: int) -> set[Box]:
        """Which groups to close so that at most so many boxes are left, if that is possible."""
        closed: set[Box] = set()
        groups = [box for box in self.root.walk() if box.children and box.kind != "picture"]
        depths = {box: len(box.path()) for box in groups}
        for depth in sorted(set(depths.values()), reverse=True):
            if sum(1 for _ in self.shown(closed)) <= most:
                break
            closed |= {box for box in groups if depths[box] == depth}
        return closed

    def lines(self, closed: set[Box]) -> dict[tuple[Box, Box], list[Box]]:
        """The edges between boxes that are shown, each with the lanes that it takes."""
        seen = {box: box for box in self.shown(closed)}
        lines: dict[tuple[Box, Box], list[Box]] = {}
        for before, after in self.edges:
            first, second = before.path(), after.path()
            ends = _last_shown(first, seen), _last_shown(second, seen)
            if ends[0] is ends[1] or ends in lines:
                continue
            depth = next(d for d, (a, b) in enumerate(zip(first, second)) if a is not b)
            lines[ends] = first[depth - 1].lanes.get((first[depth], second[depth]), [])
        return lines


def _last_shown(path: list[Box], seen: dict[Box, Box]) -> Box:
    return next(box for box in reversed(path) if box in seen)


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def _divide(box: Box) -> None:
    """Cuts a group of very many boxes into runs, which can be closed."""
    if len(box.children) <= CHUNK:
        return
    children, box.children = box.children, []
    for start in range(0, len(children), CHUNK):
        part = children[start : start + CHUNK]
        run = box.add(Box(f"{start + 1} to {start + len(part)}", "run"))
        for child in part:
            run.add(child)
    _divide(box)


# Layers --------------------------------------------------------------------------------------


def _layer(box: Box, edges: list[tuple[Box, Box]]) -> None:
    """Layers of a group by longest paths; what nobody feeds stands above its first reader."""
    order = _order_of(box.children, edges)
    # Groups may feed each other; an edge against this order counts for nothing.
    forward = sorted(
        ((a, b) for a, b in edges if order[a] < order[b]), key=lambda e: (order[e[0]], order[e[1]])
    )
    depth = dict.fromkeys(box.children, 0)
    for a, b in forward:
        depth[b] = max(depth[b], depth[a] + 1)
    fed = {b for _, b in forward}
    readers: dict[Box, list[Box]] = {}
    for a, b in forward:
        readers.setdefault(a, []).append(b)
    for child in box.children:
        if child not in fed and child in readers:
            depth[child] = max(0, min(depth[reader] for reader in readers[child]) - 1)
    box.layers = [[] for _ in range(max(depth.values()) + 1)]
    for child in box.children:
        box.layers[depth[child]].append(child)
    _order(box.layers, _with_lanes(box, forward, depth))


def _order_of(children: list[Box], edges: list[tuple[Box, Box]]) -> dict[Box, int]:
    """A topological order; where boxes feed each other in a ring, the first of them goes first."""
    waits = dict.fromkeys(children, 0)
    readers: dict[Box, list[Box]] = {}
    for a, b in edges:
        waits[b] += 1
        readers.setdefault(a, []).append(b)
    order: dict[Box, int] = {}
    while waits:
        box = next((child for child, count in waits.items() if count == 0), next(iter(waits)))
        del waits[box]
        order[box] = len(order)
        for reader in readers.get(box, ()):
            if reader in waits:
                waits[reader] -= 1
    return order


def _with_lanes(
    box: Box, edges: list[tuple[Box, Box]], depth: dict[Box, int]
) -> list[tuple[Box, Box]]:
    """Edges from layer to layer: one that passes layers has a lane in each of them."""
    links = []
    for a, b in edges:
        passed = []
        for layer in range(depth[a] + 1, depth[b]):
            lane = Box("", "lane")
            lane.parent = box
            box.layers[layer].append(lane)
            passed.append(lane)
        if passed:
            box.lanes[a, b] = passed
        links += list(pairwise([a, *passed, b]))
    return links


def _order(layers: list[list[Box]], links: list[tuple[Box, Box]]) -> None:
    """Sorts each layer by the mean position of its neighbours, downwards and upwards in turn."""
    above: dict[Box, list[Box]] = {}
    below: dict[Box, list[Box]] = {}
    for a, b in links:
        above.setdefault(b, []).append(a)
        below.setdefault(a, []).append(b)
    position: dict[Box, float] = {}
    for layer in layers:
        _number(layer, position)
    for sweep in range(SWEEPS):
        neighbours = below if sweep % 2 else above
        for layer in reversed(layers) if sweep % 2 else layers:
            if len(layer) > 1:
                layer.sort(key=lambda box: _mean(box, neighbours.get(box, ()), position))
                _number(layer, position)


def _number(layer: list[Box], position: dict[Box, float]) -> None:
    position.update((box, i - (len(layer) - 1) / 2) for i, box in enumerate(layer))


def _mean(box: Box, around: Sequence[Box], position: dict[Box, float]) -> float:
    return sum(position[other] for other in around) / len(around) if around else position[box]


# Rectangles ----------------------------------------------------------------------------------


def _measure(box: Box, closed: set[Box]) -> None:
    """Width and height, those of all inside being settled."""
    if not box.children or box in closed:
        lines = box.lines or [box.name, f"{sum(b.kind == 'node' for b in box.walk())} nodes"]
        box.width = max(map(len, lines), default=0) * LETTER + 2 * PADDING
        box.height = len(lines) * LINE + PADDING
        return
    for layer in box.layers:
        height = max(child.height for child in layer if child.kind != "lane")
        for lane in layer:
            if lane.kind == "lane":
                lane.width, lane.height = LANE, height
    title = len(box.name) * LETTER
    rows = [sum(b.width for b in layer) + GAP * (len(layer) - 1) for layer in box.layers]
    heights = [max(b.height for b in layer) for layer in box.layers]
    box.width = max(title, *rows) + 2 * PADDING
    box.height = sum(heights) + LAYER_GAP * (len(heights) - 1) + TITLE + 2 * PADDING


def _set_corners(box: Box, x: float, y: float, closed: set[Box]) -> None:
    """The corner of a box and of all inside: rows are centred."""
    box.x, box.y = x, y
    if not box.children or box in closed:
        return
    top = y + TITLE + PADDING
    for layer in box.layers:
        width = sum(b.width for b in layer) + GAP * (len(layer) - 1)
        left, height = x + (box.width - width) / 2, max(b.height for b in layer)
        for child in layer:
            # Phases stand side by side from the top; in a row boxes share their middle.
            down = 0.0 if box.kind == "picture" else (height - child.height) / 2
            _set_corners(child, left, top + down, closed)
            left += child.width + GAP
        top += height + LAYER_GAP
