"""Rows that registers do not hold, in shared memory from their first loop on, to be read once."""

from __future__ import annotations

from math import prod
from typing import Any

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.lowering.schedule.fusion import length_of
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.schedule.resources import scratch_bytes
from tinygrad_cuda.lowering.skeletons.reduction_accumulators import ReductionAccumulators
from tinygrad_cuda.lowering.target import BLOCK_RESERVED

STAY = False  # whether rows do: no GPU has run these kernels yet
BLOCKS = 2  # on a multiprocessor: one loads a row while the other stores its own


def has_room(kernel: Kernel) -> bool:
    """Whether a multiprocessor holds the rows of two blocks, as they lie in memory."""
    if not STAY:
        return False
    limit = kernel.target.shared // BLOCKS - BLOCK_RESERVED
    return _offset(kernel) + _row_bytes(kernel) <= min(limit, kernel.target.block_shared)


def _row_bytes(kernel: Kernel) -> int:
    length = length_of(kernel.sign)
    return sum(_aligned(length * node.dtype.itemsize) for node in kernel.full_size_reads)


def _offset(kernel: Kernel) -> int:
    return _aligned(scratch_bytes(kernel))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 16) * 16


class SharedRows:
    """Where a block has its row: a thread stores there what it loads, and reads that alone.

    Args:
        row: the row kernel.
        items: vectors of a row, each of which is the same thread's in all loops.

    Attributes:
        declare: the statements that name the operands' rows.
        nbytes: of shared memory.
    """

    def __init__(self, row: ReductionAccumulators, items: int) -> None:
        self.row, self.items = row, items
        self.nbytes = _offset(row.kernel)
        self.names: dict[Any, str] = {}
        self.declare: list[str] = []

    def holds(self, node: Node) -> bool:
        """Whether values stay in registers from loop to loop."""
        return False

    def single(self, depth: int) -> None:
        """An element is loaded by itself, from memory."""

    def vector(self, node: Node, key: Any, width: int, index: str, names: set[str]) -> str:
        """The text that reads a vector: from memory in the first loop that needs it."""
        load = "tgc_load_vector" + "_lasting" * (node in self.row.writer.lasting)
        text = f"{load}<{width}>({self.row.words.read(node)}, {index})"
        if prod(node.shape) < self.row.kernel.numel or not {"row", "item"} >= names >= {"item"}:
            return text
        if key in self.names:
            return f"{self.names[key]}[item]"
        name = self.names[key] = self.row.writer.fresh(f"row_{self.row.words.name(node)}")
        vector = f"tgc_vector<{node.dtype.c}, {width}>"
        self.declare.append(
            f"{vector}* const {name} = reinterpret_cast<{vector}*>(smem + {self.nbytes});"
        )
        self.nbytes += _aligned(self.items * width * node.dtype.itemsize)
        return f"tgc_stage_vector({name} + item, {text})"


__all__ = ["SharedRows", "has_room"]
