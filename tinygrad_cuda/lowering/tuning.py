"""What a tuner measures: a product or convolution of a plan as a small program of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from tinygrad_cuda.core import version
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node, gradient_mode, recorded_at, topological, with_sources
from tinygrad_cuda.graph.ops import common, movement
from tinygrad_cuda.graph.ops.contraction import matmul
from tinygrad_cuda.graph.program import Program
from tinygrad_cuda.graph.rewrite.products import readers_of
from tinygrad_cuda.lowering.skeletons.contract.library import end_of_call
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import ProductCut
from tinygrad_cuda.lowering.tuning_table import NONE, Tuned

FUSED = ("elementwise", "reduction")  # what kernels of ours compute behind a product
EPILOGUE = 16  # operations behind a product that its measurement has at most


class TuningProblem(NamedTuple):
    """A product or a convolution with its epilogue, over operands in memory.

    Attributes:
        key: its operations, shapes, dtypes and layouts, and the settings that limit its kernels.
        name: for a reader.
        node: the product or convolution.
        program: which computes it alone.
        plain: whether nothing follows the sum.
        last: whether the result has the channels last.
        libraries: whose calls are candidates, with their versions.
    """

    key: str
    name: str
    node: Node
    program: Program
    plain: bool
    last: bool = False
    libraries: Mapping[str, str] = NONE


class Decision(NamedTuple):
    """A problem of a plan, and the measured choice for it, if any."""

    problem: TuningProblem
    tuned: Tuned | None

    @property
    def tier(self) -> str:
        """The tier that was measured to be quicker than the model's choice, or nothing."""
        return self.tuned.tier if self.tuned else ""


class TuningProblems:
    """Cuts the products and convolutions of a plan out of it.

    Args:
        order: its nodes.
        outputs: of the plan: nodes that epilogues end at.
        libraries: whose calls may be chosen, with their versions.
    """

    def __init__(
        self, order: Sequence[Node], outputs: Sequence[Node], libraries: Mapping[str, str]
    ) -> None:
        self._readers, self._outputs = readers_of(order), set(outputs)
        self._libraries = libraries

    def problem(
        self, node: Node, made: Node, images: Sequence[Node] = (), last: bool = False
    ) -> TuningProblem:
        """The problem of a product or a convolution.

        Args:
            node: of the plan, whose readers are its epilogue.
            made: the same over the operands that kernels would read.
            images: operands that lie with the channels last.
            last: whether readers want the result so.
        """
        over = _Inputs()
        with gradient_mode(False), recorded_at(node.site):
            sources = tuple(
                over.channels_last(source) if source in images else over.cut(source)
                for source in made.sources
            )
            alone = with_sources(made, sources)
            end, names, behind = self._with_epilogue(node, alone, over)
            if last and len(end.shape) > 2:
                rank = len(end.shape)
                end = movement.permute(end, axes=(0, *range(2, rank), 1))
        program = Program(node.device, (end,), tuple(over.inputs))
        library = self._libraries and node.op is matmul and self._ends(node, behind)
        libraries = self._libraries if library else NONE
        key = _key(end, libraries)
        return TuningProblem(key, _name(alone, names), alone, program, not names, last, libraries)

    def _ends(self, node: Node, behind: Node) -> bool:
        """Whether nothing is left that a kernel of ours would compute behind its product, too.

        Such as an optimizer's update of the weight: a library leaves it to another kernel, whose
        time a measurement of the product does not have.
        """
        end = end_of_call(node, self._readers, self._outputs)
        return self._is_read_whole(behind) or self._is_read_whole(end)

    def _is_read_whole(self, node: Node) -> bool:
        """Whether each reader takes a value from memory, as a product does."""
        return all(
            self._is_read_whole(reader)
            if reader.op.kind == "movement"
            else reader.op.kind not in FUSED
            for reader in self._readers[node]
        )

    def _with_epilogue(self, node: Node, made: Node, over: _Inputs) -> tuple[Node, list[str], Node]:
        """The node with the elementwise operations that alone read it, one after another.

        Returns:
            It, the operations' names, and the last of them in the plan.
        """
        names: list[str] = []
        for _ in range(EPILOGUE):
            readers = list(dict.fromkeys(self._readers.get(node, ())))
            if len(readers) != 1 or node in self._outputs:
                break
            (reader,) = readers
            if not _is_epilogue(reader):
                break
            sources = tuple(made if s is node else over.cut(s) for s in reader.sources)
            made, node = with_sources(reader, sources), reader
            names += [reader.op.name] if reader.op.kind == "elementwise" else []
        return made, names, node


class _Inputs:
    """Operands as inputs of a program: what is computed is taken to be in memory."""

    def __init__(self) -> None:
        self.inputs: list[Node] = []
        self._made: dict[Node, Node] = {}

    def cut(self, node: Node) -> Node:
        """The same value over inputs: its movements, and what they move."""
        if node not in self._made:
            constant = node.op.kind == "leaf" and node.op is not common.buffer
            if node.op.kind == "movement" and _is_structure(node):
                made = with_sources(node, tuple(map(self.cut, node.sources)))
            elif constant and node.op is not common.scalar and _is_structure(node):
                made = node
            else:
                made = self._input(node.shape, node)
            self._made[node] = made
        return self._made[node]

    def channels_last(self, node: Node) -> Node:
        """Images that lie with the channels last."""
        rank = len(node.shape)
        stored = self._input((node.shape[0], *node.shape[2:], node.shape[1]), node)
        return movement.permute(stored, axes=(0, rank - 1, *range(1, rank - 1)))

    def _input(self, shape: Shape, node: Node) -> Node:
        slot = len(self.inputs)
        self.inputs.append(common.buffer.leaf(shape, node.dtype, node.device, slot=slot))
        return self.inputs[-1]


def _is_epilogue(node: Node) -> bool:
    chained = node.op.kind == "elementwise" or node.op is movement.reshape
    return chained and len(node.outputs) == 1 and _is_structure(node)


def _is_structure(node: Node) -> bool:
    """Whether its attributes are the same in each run, and can be written as text."""
    return all(map(_is_plain, node.attributes.values()))


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str, DType)


def _key(end: Node, libraries: Mapping[str, str]) -> str:
    """All that decides which kernels can make a problem, and how long they take."""
    numbers: dict[Node, int] = {}
    parts = [
        f"tinygrad_cuda {version}", settings.matmul_precision, f"winograd {settings.winograd}",
        f"cudnn_tf32 {settings.cudnn_tf32}", f"provider {settings.provider}",
        f"libraries {libraries}",
    ]  # fmt: skip
    for node in topological([end]):
        numbers[node] = len(numbers)
        attributes = "".join(f" {name}={value!r}" for name, value in node.attributes.items())
        sources = "".join(f" %{numbers[source]}" for source in node.sources)
        parts.append(f"{node.op.name} {node.dtype.name} {node.shape}{attributes}{sources}")
    return "; ".join(parts)


def _name(node: Node, epilogue: Sequence[str]) -> str:
    """A problem for a reader: ``matmul bfloat16 (4096, 4096) @ (4096, 4096) + add, relu``."""
    between = " @ " if node.op is matmul else ", "
    shapes = between.join(str(source.shape) for source in node.sources)
    behind = f" + {', '.join(epilogue)}" if epilogue else ""
    return f"{node.op.name} {node.dtype.name} {shapes}{behind}"


def cut_text(cut: Any) -> str:
    """The cut of a product's kernel as text, one for each of a tier; of other kernels nothing."""
    if not isinstance(cut, ProductCut):
        return ""
    tile = cut.tile
    names = [field.name for field in fields(tile) if field.name not in ("m", "n", "k", "speed")]
    values = [(name, getattr(tile, name)) for name in names]
    form = "".join(f" {n}" if v is True else f" {n} {v}" for n, v in values if v is not False)
    split = f" split-K {cut.slices}" if cut.slices > 1 else ""
    shares = f" stream-K {cut.shares}" if cut.shares else ""
    return f"{tile.m}x{tile.n}x{tile.k}{form}{split}{shares}{' cluster' if cut.cluster else ''}"
