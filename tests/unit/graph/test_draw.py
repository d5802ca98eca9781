"""Graphs as networkx views, text, DOT and pictures: right, deterministic, and without recursion."""

from __future__ import annotations

import struct
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import networkx as nx
import pytest

from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.dtypes import bfloat16, float32
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.graph.draw import MOST_SHOWN, dot, draw, text, to_networkx
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd


def buffer(slot: int = 0) -> Node:
    return common.buffer.leaf((2, 3), float32, CPU, slot=slot)


def small() -> Node:
    x, y = buffer(0), buffer(1)
    shared = ew.exp(x)
    return ew.add(ew.mul(shared, ew.sin(y)), ew.neg(shared))


def wide(count: int) -> Node:
    """A residual network: each block reads what it is added to."""
    x = buffer()
    for _ in range(count // 4):
        x = ew.add(x, ew.tanh(ew.mul(ew.sin(x), x)))
    return x


def test_networkx_view() -> None:
    """Numbers follow topological order; data say what each node is; parallel edges are one."""
    x = buffer()
    total = rd.sum(ew.mul(x, x), axes=(1,))
    graph = to_networkx([total])
    assert list(graph) == [1, 2, 3]
    assert nx.is_directed_acyclic_graph(graph)
    assert graph.edges[1, 2]["operands"] == (0, 1)
    data = graph.nodes[3]
    assert data["node"] is total
    assert (data["op"], data["kind"], data["shape"], data["dtype"], data["device"]) == (
        "sum", "reduction", (2, 1), float32, CPU,
    )  # fmt: skip
    assert data["line"].startswith("test_draw.py:")
    assert "total = rd.sum" in data["line"]
    assert data["output"]
    assert not graph.nodes[1]["output"]
    assert data["label"] == "sum axes=(1,)\n(2, 1) float32"


def test_text() -> None:
    """Shared nodes stand once at the margin, the largest operand goes on without indentation."""
    lines = [line.split("  test_draw.py")[0] for line in text([small()]).splitlines()]
    assert lines == [
        "7 add(5, 6) (2, 3) float32",
        "├─ 6 neg(2) (2, 3) float32",
        "5 mul(2, 4) (2, 3) float32",
        "4 sin(3) (2, 3) float32",
        "3 buffer slot=1 (2, 3) float32",
        "2 exp(1) (2, 3) float32 (2 readers)",
        "1 buffer slot=0 (2, 3) float32",
    ]


def test_text_shows_attributes_and_every_node_once() -> None:
    x = ew.cast(mv.permute(buffer(), axes=(1, 0)), dtype=bfloat16)
    hooked = common.custom(x, results=1, function=lambda g: (g,))
    tree = text([hooked, x])
    assert "permute(1) axes=(1, 0) (3, 2) float32" in tree
    assert "cast(2) dtype=bfloat16" in tree
    assert "lambda" not in tree.replace("function=lambda", "")  # the user's line has it, once
    numbers = [line.split()[0] for line in tree.splitlines()]
    assert sorted(numbers) == ["1", "2", "3", "4"]


def test_branches_nest() -> None:
    def tree(depth: int) -> Node:
        return buffer() if depth == 0 else ew.add(tree(depth - 1), tree(depth - 1))

    lines = text([tree(3)]).splitlines()
    assert len(lines) == 15
    assert lines[1].startswith("├─ ")
    assert lines[2].startswith("│  ├─ ")
    assert lines[3].startswith("│  │  ├─ ")
    assert lines[4].startswith("│  │  ") and "buffer" in lines[4]


def test_deep_chain_as_text() -> None:
    """100,000 nodes: no recursion, no growing indentation."""
    x = buffer()
    for _ in range(100_000):
        x = ew.sin(x)
    lines = text([x]).splitlines()
    assert len(lines) == 100_001
    assert max(map(len, lines)) < 120
    assert lines[0].startswith("100001 sin(100000)")


def test_five_thousand_nodes_are_quick() -> None:
    """Text and DOT of a large step in well under two seconds, and text stays narrow."""
    root = wide(5000)
    start = time.perf_counter()
    tree, picture = text([root]), dot([root])
    assert time.perf_counter() - start < 2
    assert len(tree.splitlines()) == 5001
    assert max(map(len, tree.splitlines())) < 160
    assert picture.count("->") == 6 * 1250  # sin, tanh: one; mul, add: two


@pytest.mark.parametrize("kind", ["html", "svg"])
def test_pictures_of_five_thousand_nodes_are_quick(kind: str, tmp_path: Path) -> None:
    """In less than two seconds of the processor, whoever else uses the machine."""
    root = wide(5000)
    start = time.thread_time()
    draw([root], tmp_path / f"graph.{kind}")
    assert time.thread_time() - start < 2


def test_dot() -> None:
    """One line a node and an edge; quotes and backslashes are escaped; outputs are bold."""
    graph = nx.DiGraph()
    graph.add_node("k1", label='say "hi"\\\nnext', kind="reduction")
    graph.add_edge("k1", "k2")
    assert dot(graph).splitlines()[2:] == [
        '  n1 [label="say \\"hi\\"\\\\\\nnext" fillcolor="#c7e9c0"];',
        '  n2 [label="k2" fillcolor="#f0f0f0"];',
        "  n1 -> n2;",
        "}",
    ]
    nodes = dot([small()])
    assert nodes.count(" -> ") == 7
    assert nodes.count("penwidth=2") == 1
    assert nodes == dot([small()])


def test_pictures(tmp_path: Path) -> None:
    """SVG and PNG are well formed, show every op, and are the same each time."""
    pytest.importorskip("matplotlib")
    svg = draw([small()], tmp_path / "graph.svg")
    again = draw([small()], tmp_path / "again.svg")
    assert svg.read_bytes() == again.read_bytes()
    content = svg.read_text(encoding="utf-8")
    ElementTree.fromstring(content)
    for op in ("add", "mul", "sin", "exp", "neg", "buffer"):
        assert f">{op}" in content
    png = draw(to_networkx([small()]), str(tmp_path / "graph.png"))
    assert png.read_bytes().startswith(b"\x89PNG")
    assert draw([small()], tmp_path / "graph.dot").read_text(encoding="utf-8") == dot([small()])
    written = draw([small()], tmp_path / "graph.txt").read_text(encoding="utf-8")
    assert written.startswith("7 add(5, 6)")


def test_pictures_are_as_large_as_their_graphs(tmp_path: Path) -> None:
    """A dot is a pixel: a box beside others is as wide as its letters, and there is a margin."""
    pytest.importorskip("matplotlib")
    for count in (2, 6):
        roots = [ew.exp(buffer(slot)) for slot in range(count)]
        content = draw(roots, tmp_path / f"{count}.png").read_bytes()
        width, height = struct.unpack(">II", content[16:24])
        assert 100 <= width / count < 180
        assert 120 <= height < 250  # two layers


def test_labels_show_no_object() -> None:
    """An attribute that is a function or an object would show its address."""

    class Thing:
        pass

    x = ew.exp(buffer())
    hooked = common.custom(x, results=1, function=lambda g: (g,), name="hook", thing=Thing())
    label = to_networkx([hooked]).nodes[3]["label"]
    assert label == "hook results=1 name=hook\n(2, 3) float32"


def test_what_draw_refuses(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="the ending of the file names no format"):
        draw([small()], tmp_path / "graph.doc")
    with pytest.raises(ArgumentError, match="the ending of the file names no format"):
        draw(to_networkx([small()]), tmp_path / "graph.txt")


def test_a_large_picture_shows_closed_groups(tmp_path: Path) -> None:
    """What nobody could read is cut into runs of nodes, each one box with its count."""
    content = draw([wide(5000)], tmp_path / "graph.svg").read_text(encoding="utf-8")
    assert ">100 nodes<" in content
    assert content.count("<rect") <= MOST_SHOWN
