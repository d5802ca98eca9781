"""What a kernel stores: vectors where neighbours are neighbours, and the guard of an assign."""

from __future__ import annotations

import re
from math import prod

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import Evaluator
from tinygrad_cuda.lowering.codegen.index import Index
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.schedule.resources import THREADS


class Stores:
    """The stores of a kernel's body.

    Attributes:
        after: statements that follow the lane loop: the vectors that it filled.
    """

    def __init__(self, writer: Evaluator, kernel: Kernel) -> None:
        self.writer = writer
        self.kernel = kernel
        self.after: list[str] = []
        for node in kernel.stores:
            while node.op is common.assign:
                node = node.sources[1]
            writer.stored.add(node)

    def put(self, node: Node, index: Index, value: str, condition: str = "") -> None:
        """Stores `value` as element `index` of a node, if `condition` holds."""
        writer = self.writer
        depth = len(writer.scopes) - 1
        if node.dtype.is_half:  # the store rounds; of float32, a cast keeps the rounded value
            value = writer.unrounded.get(value, value)
        value, condition = self._guarded(node, index, value, condition)
        pointer = writer.words.write(node)
        test = f"if ({condition}) " if condition else ""
        lane = writer.lane
        vector = lane is not None and lane.width > 1
        if vector:
            assert lane is not None
            split = ix.split_lane(index, lane.variable)
            fits = lane.width * node.dtype.itemsize <= 16
            if fits and split and split[0] == 1 and ix.divisible(split[1], lane.width):
                name = writer.fresh(f"{pointer.removeprefix('p.')}x{lane.width}")
                ctype = node.dtype.c
                if node.dtype.is_half:  # rounded in pairs
                    writer.scopes[-2].lines.append(f"float {name}[{lane.width}];")
                    writer.scopes[-1].lines.append(f"{name}[{lane.name}] = {value};")
                    self.after.append(
                        f"{test}tgc_store_vector({pointer}, {writer.index_text(split[1])}, "
                        f"tgc_rounded<{ctype}>({name}));"
                    )
                    return
                writer.scopes[-2].lines.append(f"tgc_vector<{ctype}, {lane.width}> {name};")
                writer.scopes[-1].lines.append(
                    f"{name}.at[{lane.name}] = tgc_to_storage<{ctype}>({value});"
                )
                self.after.append(
                    f"{test}tgc_store_vector({pointer}, {writer.index_text(split[1])}, {name});"
                )
                return
        line = f"{test}tgc_store({pointer}, {writer.index_text(index)}, {value});"
        writer.scopes[depth].lines.append(line)

    def _guarded(self, node: Node, index: Index, value: str, condition: str) -> tuple[str, str]:
        """An assign keeps the old value while an error waits to be reported."""
        if node.op is not common.assign:
            return value, condition
        writer = self.writer
        memo = writer.scopes[0].memo
        if "failed" not in memo:
            text = f"tgc_load({writer.words.error()}, 0) != 0ull"
            writer.scopes[0].lines.append(f"const bool failed = {text};")
            memo["failed"] = "failed"
        if node in self.kernel.overwrites:
            return value, f"!failed && {condition}" if condition else "!failed"
        old = node
        while old.op is common.assign:
            old = old.sources[0]
        if old.op is not common.buffer:
            return value, condition
        return f"failed ? {writer.load(old, index, ())} : {value}", condition


def is_wide(kernel: Kernel) -> bool:
    """Whether some index of the kernel may pass 2**31."""
    nodes = [*kernel.stores, *kernel.reads, *kernel.nodes]
    nodes += [source for node in kernel.nodes for source in node.sources]
    return kernel.numel + THREADS * 8 > ix.INT_MAX or any(
        prod(shape) > ix.INT_MAX for node in nodes for shape, _ in node.outputs
    )


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
