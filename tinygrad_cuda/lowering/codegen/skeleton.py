"""Skeletons with holes, filled: text in, text out; and what a filled one is to a launch.

A stage is a filled skeleton with its name, its comment and the structure of its parameters.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.program import Argument
from tinygrad_cuda.lowering.codegen.constant_folding import folded
from tinygrad_cuda.lowering.codegen.library_call import LibraryCall
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.schedule.resources import THREADS as THREADS

FOLDER = Path(__file__).resolve().parents[1] / "skeletons"
_HOLE = re.compile(r"^([ \t]*)@(\w+)@[ \t]*\n", re.MULTILINE)
_WORD = re.compile(r"@(\w+)@")
_LOOP_NAME = re.compile(r"^ *for \(int (\w+) = ", re.MULTILINE)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_NAME = "TGC_NAME"
WIDTH = 112  # characters of a line of generated text
_BREAKS = ((", ", " ? ", " : ", " && ", " || ", " = "), (" + ", " - ", " * ", " / ", " % "))
STATISTICS = frozenset(("mean", "var", "mean_square", "rstd", "rrms"))  # they need no number
MAP_WORDS = 16  # of a tensor map, which lies at a multiple of half its size


class PixelBox(NamedTuple):
    """The pixel box of an im2col tensor map, as cuTensorMapEncodeIm2col has it.

    A copy takes its pixels one after another, a window's tap of each.

    Attributes:
        lower, upper: corners: first pixel, and last one less that of the image; by spatial axis.
        steps: from pixel to pixel.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    steps: tuple[int, ...]


class TensorMap(NamedTuple):
    """What describes a value in memory to TMA: boxes of up to five axes, innermost first.

    Attributes:
        node: the value.
        offset: bytes from its beginning to the first element.
        shape: elements of each axis; what lies outside is zero.
        strides: bytes from one element to the next, of each axis but the first.
        box: elements of each axis that one copy moves.
        swizzle: bytes of a box's row, whose pieces of 16 bytes are exchanged.
        pixels: of an im2col map: a copy moves box[0] channels of box[1] pixels of images with the
            channels last.
    """

    node: Node
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    pixels: PixelBox | None = None


class KernelParam(NamedTuple):
    """Eight bytes of a kernel's parameters, or the first eight of a tensor map.

    Attributes:
        kind: ``value`` (address of a value in memory), ``argument`` (of a number of the program),
            ``scratch`` (of memory between two stages), ``exchange`` (of memory between blocks),
            ``error`` (of the error word), ``map`` (a tensor map) or ``unused``.
        operand: the node, the argument's position and C type, the `Scratch`, the `Exchange` or the
            `TensorMap`.
        text: how the field is declared; empty behind the first eight bytes of a tensor map.
        write: whether the kernel writes there.
    """

    kind: str
    operand: Any
    text: str
    write: bool = False

    @property
    def memory(self) -> Any:
        """What its address is of."""
        if self.kind == "error":
            return "error"
        return self.operand.node if self.kind == "map" else self.operand


@dataclass(eq=False)
class Scratch:
    """Memory between the two stages of a split kernel."""

    nbytes: int


@dataclass(eq=False)
class LibraryWorkspace(Scratch):
    """Memory that a library's call may use while it runs; how much of it, the library decides."""


@dataclass(eq=False)
class Exchange:
    """Memory in which blocks of one kernel tell each other values: zeros before the first run, and
    nobody else's."""

    nbytes: int


class KernelParams:
    """The parameters of a stage, in the order of their first use, and its variables' names."""

    def __init__(self) -> None:
        self.list: list[KernelParam] = []
        self._names: dict[Any, str] = {}
        self._counts: dict[str, int] = {}  # parameters of each stem
        self._variables: dict[str, int] = {}  # variables of each stem

    def fresh(self, stem: str) -> str:
        """A name that no variable has yet: exp0, exp1; `mean` and the parameter in0 come bare."""
        number = self._variables.get(stem, 0)
        self._variables[stem] = number + 1
        bare = stem in STATISTICS or stem[-1].isdigit()
        if bare and not number:
            return stem
        return f"{stem}_{number}" if bare else f"{stem}{number}"

    def _add(self, key: Any, stem: str, kind: str, operand: Any, ctype: str, write: bool) -> str:
        if key not in self._names:
            number = self._counts.get(stem, 0)
            self._counts[stem] = number + 1
            name = stem if stem == "error" else f"{stem}{number}"
            self.list.append(KernelParam(kind, operand, f"{ctype} {name}", write))
            self._names[key] = f"p.{name}"
        return self._names[key]

    def read(self, node: Node) -> str:
        return self._add(("in", node), "in", "value", node, f"const {node.dtype.c}*", False)

    def name(self, node: Node) -> str:
        """What an operand is called: its parameter's name."""
        return self.read(node).removeprefix("p.")

    def write(self, node: Node) -> str:
        return self._add(("out", node), "out", "value", node, f"{node.dtype.c}*", True)

    def sums(self, node: Node) -> str:
        """The memory of an output that has a part of its sum before a later stage stores it."""
        return self._add(("out", node), "out", "value", node, f"{node.dtype.c}*", False)

    def argument(self, argument: Argument, ctype: str) -> str:
        """A number of the program, which lies in memory; see `wrapped`."""
        operand = argument.position, ctype
        pointer = self._add(
            (argument, ctype), "number", "argument", operand, f"const {ctype}*", False
        )
        return pointer.removeprefix("p.")

    def number(self, value: Any, ctype: str) -> str:
        """A number of a node's attribute: a word if runs may change it, else a literal."""
        if isinstance(value, Argument):
            return self.argument(value, ctype)
        return str(float(value)) if ctype == "double" else f"{int(value)}LL"

    def scratch(self, scratch: Scratch, ctype: str, write: bool) -> str:
        return self._add(scratch, "partial", "scratch", scratch, f"{ctype}*", write)

    def exchange(self, memory: Exchange) -> str:
        return self._add(memory, "words", "exchange", memory, "unsigned long long*", True)

    def tensor_maps(self, maps: Sequence[TensorMap]) -> list[str]:
        """Tensor maps, before all other parameters, which end at a map's alignment."""
        names = [f"map_{self.name(tensor.node)}" for tensor in maps]
        if len(set(names)) < len(names):  # one value with both operands
            names = [f"{name}_{number}" for number, name in enumerate(names)]
        rest = KernelParam("unused", None, "")
        for name, tensor in zip(reversed(names), reversed(maps)):
            word = KernelParam("map", tensor, f"tgc_tensor_map {name}")
            self.list[:0] = [word, *[rest] * (MAP_WORDS - 1)]
        self.list += [rest] * (-len(self.list) % (MAP_WORDS // 2))
        return [f"p.{name}" for name in names]

    def error(self) -> str:
        return self._add("error", "error", "error", None, "unsigned long long*", True)


@dataclass(eq=False)
class Stage:
    """One generated device function and how it is launched, alone or packed with others."""

    kernel: Kernel
    name: str
    text: str
    blocks: int
    shared: int
    words: list[KernelParam]
    label: str
    second: bool = False
    after: list[Stage] = field(default_factory=list)
    min_blocks_per_sm: int = 1  # the second argument of __launch_bounds__
    alone: bool = False  # its blocks take a multiprocessor each, though they are few
    threads: int = THREADS  # of a block
    waits: bool = False  # its blocks wait for each other
    cluster: int = 1  # blocks that reach each other's shared memory
    library: LibraryCall | None = None  # the call that makes it; then there is no text

    @property
    def bytes_moved(self) -> int:
        """Bytes between it and memory at least."""
        return _bytes_of(self.words)

    def stores(self, node: Node) -> bool:
        """Whether this stage of its kernel is the one that stores a node."""
        return any(word.write and word.operand is node for word in self.words)


def _bytes_of(words: list[KernelParam]) -> int:
    """Bytes of what a stage reads and writes, each value once."""
    values: list[Node] = [word.operand for word in words if word.kind == "value"]
    scratch: list[Scratch] = [word.operand for word in words if word.kind == "scratch"]
    parts = [part for part in scratch if not isinstance(part, LibraryWorkspace)]
    sizes = [prod(node.shape) * node.dtype.itemsize for node in values]
    return sum(sizes) + sum(part.nbytes for part in parts)


@lru_cache(maxsize=16)
def _sections(file: str) -> dict[str, str]:
    """The parts of a skeleton file; each begins with a line `//@ name`."""
    (path,) = FOLDER.rglob(file)
    parts = re.split(r"^//@ (\w+)\n", path.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def fill(file: str, section: str, **holes: object) -> str:
    """A section of a skeleton with its holes filled.

    A hole alone on its line takes any number of lines, indented as it is; none removes the line.
    What stands within a line comes first, see `constant_folding`; `@widened@x` is x as `index`.
    """

    if "index" in holes:
        holes["widened"] = "" if holes["index"] == "int" else f"({holes['index']})"

    def inline(line: str) -> str:
        if "@" not in line or _HOLE.fullmatch(line):
            return line
        return _WORD.sub(lambda match: str(holes[match[1]]), line)

    text = "".join(map(inline, _sections(file)[section].splitlines(keepends=True)))
    text = folded(text, _words(text, holes))

    def lines(match: re.Match[str]) -> str:
        indent, own = match[1], _joined(holes[match[2]]).splitlines()
        return "".join(
            [f"{line}\n" if not line or line[0] == "#" else f"{indent}{line}\n" for line in own]
        )

    return _HOLE.sub(lines, text)


def _words(text: str, holes: dict[str, object]) -> frozenset[tuple[str, str]]:
    """Which statements of which hole, alone on its line, have words that tie them to a loop."""
    ties = {"break", "continue", *_LOOP_NAME.findall(text)}
    return frozenset(
        (f"@{hole}@", word)
        for _, hole in _HOLE.findall(text)
        for word in ties.intersection(_IDENTIFIER.findall(_joined(holes[hole])))
    )


def _joined(statements: Any) -> str:
    return statements if isinstance(statements, str) else "\n".join(map(str, statements))


def named(stem: str, text: str) -> tuple[str, str]:
    """The name of a stage by its structure, and its text with the name put in."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    name = f"{stem}_{digest}"
    lines = text.replace(_NAME, name).split("\n")
    if max(map(len, lines)) > WIDTH:
        lines = [part for line in lines for part in _broken(line)]
    return name, "\n".join(lines)


def _broken(line: str) -> list[str]:
    """A line in pieces of at most `WIDTH` characters, broken behind an operator or a comma."""
    if len(line) <= WIDTH or line.startswith("#"):
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    comment = line.lstrip().startswith("//")
    start, breaks = (f"{indent}//   ", ((" ",),)) if comment else (f"{indent}    ", _BREAKS)
    pieces = []
    while len(line) > WIDTH:
        least = len(start) + 24  # or else the piece is too short to break there
        cuts = (max(line.rfind(m, least, WIDTH) + len(m) for m in marks) for marks in breaks)
        cut = next((cut for cut in cuts if cut > least), 0)
        if not cut:
            break
        pieces.append(line[:cut].rstrip())
        line = start + line[cut:]
    return [*pieces, line]


def stem(kernel: Kernel) -> str:
    """The readable part of a kernel's name: its kind and its most telling ops."""
    silent = {"reshape", "permute", "expand", "cast", "assign", "output", "slice"}
    names = [node.op.name for node in kernel.nodes if node.op.name not in silent]
    anchors = [node.op.name for node in kernel.anchors] or names
    chosen = list(dict.fromkeys(anchors + names))[:5] or ["copy"]
    return re.sub(r"\W", "", "_".join(dict.fromkeys([kernel.kind, *chosen])))


def comment(kernel: Kernel, shape: str, blocks: int) -> str:
    """What stands above a kernel: what it makes and its launch; `wrapped` adds what it moves."""
    made = "; ".join(f"{node.op.name} {node.shape} {node.dtype.name}" for node in kernel.stores)
    names = " ".join(node.op.name for node in kernel.nodes if node.op.kind != "movement")
    return f"{shape}: {names or 'copy'}.\nStores {made}.\nGrid {blocks} x {THREADS} threads"


def wrapped(
    kernel: Kernel,
    stem: str,
    body: str,
    words: list[KernelParam],
    blocks: int,
    shared: int,
    label: str,
    second: bool = False,
) -> Stage:
    """A stage around a body: its comment, its parameter structure and its device function.

    Numbers of the program are loaded before anything else, each into a variable of its own. A
    kernel that begins at the end of its space has its blocks the other way round.
    """
    numbers = [word.text for word in words if word.kind == "argument"]
    loads = [f"{text.replace('*', '')} = tgc_load(p.{text.split()[-1]}, 0);" for text in numbers]
    if kernel.reverse and kernel.pair is None and not second:
        loads.insert(0, f"virtual_block = {blocks - 1} - virtual_block;")
    about = f"{label}, {_bytes_of(words)} bytes moved at least."
    text = fill(
        "stage.cuh",
        "stage",
        comment=[f"// {line}" for line in about.splitlines()],
        name=_NAME,
        params=[f"{word.text};" for word in words if word.text] or ["long long unused;"],
        body="\n".join([*loads, body]),
    )
    if not words:
        words = [KernelParam("unused", None, "long long unused")]
    name, text = named(stem, text)
    return Stage(kernel, name, text, blocks, shared, words, label, second)
