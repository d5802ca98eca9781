"""What a kernel takes of a machine: threads of a row, elements of a thread, registers and memory.

The skeletons are cut by these numbers; the rules of fusion ask them whether a kernel may exist.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops.reduction import ReductionOp
from tinygrad_cuda.lowering.schedule.fusion import LONG_ROW, length_of, rows_of
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.schedule.operands import follows
from tinygrad_cuda.lowering.target import WARP, Target

THREADS = 256  # of every generated kernel, so that any two can share a launch
BLOCKS = 4  # for each multiprocessor, of a reduction that is split
TILED = 60_000  # elements of a map from which on tiles are worth a barrier
AHEAD = 4  # loads of a thread that may be in flight for one row of a sub-warp
PART = 2048  # elements that a block takes at least, of a row that is split
WORTH_PARTS = 96 << 10  # bytes of a row, among few, that are worth a second stage
REGISTER_VALUES = 32  # values of each operand that a thread keeps in registers
WALK_SPARE = 40  # registers of a thread whose warp walks over rows, beside a row and its columns
ROW_BYTES = 4096  # of shared memory, for the reductions of a row that carries columns


def enough_blocks(target: Target) -> int:
    """Blocks of a reduction up to which it is split over more."""
    return BLOCKS * target.multiprocessors


def row_of(node: Node) -> ReductionOp:
    """The row of a reduction."""
    assert isinstance(node.op, ReductionOp), node
    return node.op


def accumulator_bytes(node: Node) -> int:
    """Of the running value of a reduction."""
    return row_of(node).cuda.nbytes(max(node.sources[0].dtype.itemsize, 4))


def row_parts(kernel: Kernel) -> int:
    """How many blocks share a row: several of a long one among few, if one loop makes it all."""
    lines, length = rows_of(kernel.sign), length_of(kernel.sign)
    few = (
        lines < kernel.target.multiprocessors
        and length * sum(n.dtype.itemsize for n in kernel.full_size_values) > WORTH_PARTS
    )
    summed = [node.sources[0] for node in kernel.anchors]
    if (not few and length <= LONG_ROW) or follows((*summed, *kernel.wide_stores), kernel):
        return 1
    return min(-(-length // PART), max(1, enough_blocks(kernel.target) // lines))


def row_width(kernel: Kernel, group: int) -> int:
    """How many neighbours each of the `group` threads of a row takes."""
    last = kernel.sign[-1][0] if kernel.sign else 1
    width = kernel.vector_width(last, rows_of(kernel.sign) * group)
    while group > WARP and width > 1 and length_of(kernel.sign) // width * 4 < group * 3:
        width //= 2
    return width


def row_group(kernel: Kernel) -> int:
    """Threads that share a row: of a short one as few as have something to load."""
    lines, length = rows_of(kernel.sign), length_of(kernel.sign)
    if length > 1024 or (length > 256 and lines < 1024):
        return THREADS
    group, items = WARP, length // row_width(kernel, WARP)
    while group > 1 and group // 2 >= items:
        group //= 2
    # With so many threads each had better load more.
    plenty = enough_blocks(kernel.target) * THREADS
    while group > 1 and lines * group > plenty and -(-items // (group // 2)) <= AHEAD:
        group //= 2
    return group


def scratch_bytes(kernel: Kernel) -> int:
    """Shared memory for the block reductions of a row."""
    return sum(map(accumulator_bytes, kernel.anchors)) * WARP


def stays_on_chip(kernel: Kernel) -> bool:
    """Whether each of many rows is one block's, which holds it in registers."""
    if row_group(kernel) != THREADS or 2 * scratch_bytes(kernel) > ROW_BYTES:
        return False
    return values_of_thread(kernel) <= REGISTER_VALUES


def carrying_threads(kernel: Kernel) -> int:
    """Threads of a row that carry its columns, with the row in registers: 0 if it stays nowhere."""
    if row_group(kernel) == THREADS:
        return THREADS if stays_on_chip(kernel) else 0
    vectors = length_of(kernel.sign) // row_width(kernel, WARP)
    return WARP if vectors >= WARP and values_of_thread(kernel, WARP) <= REGISTER_VALUES else 0


def walk_registers(rows: Kernel, sums: Sequence[Node]) -> int:
    """Registers of a thread whose warp walks over rows and carries column sums."""
    operands = sum(max(node.dtype.itemsize, 4) for node in rows.full_size_reads)
    each = operands + sum(map(accumulator_bytes, sums))
    return values_of_thread(rows, WARP) * each // 4 + WALK_SPARE


def values_of_thread(kernel: Kernel, threads: int = THREADS) -> int:
    """How many elements of a row a thread takes, where so many take the row."""
    width = row_width(kernel, threads)
    return -(-length_of(kernel.sign) // width // threads) * width


def column_blocks(target: Target) -> int:
    """Blocks that walk over rows and carry columns: two for each multiprocessor."""
    return 2 * target.multiprocessors


def column_bytes(kernel: Kernel, node: Node) -> int:
    """Shared memory for the running values of a column kernel's reduction."""
    return -(-rows_of(kernel.sign) * accumulator_bytes(node) // 16) * 16
