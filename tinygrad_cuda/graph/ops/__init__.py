"""THE op table: one row per op, a file a family."""

from __future__ import annotations

from tinygrad_cuda.graph.node import Op
from tinygrad_cuda.graph.ops import (
    attention,
    common,
    contraction,
    convolution,
    elementwise,
    fft,
    indexing,
    movement,
    random,
    recurrence,
    reduction,
    scan,
    special,
    winograd,
)

TABLE: dict[str, Op] = {
    op.name: op
    for family in (
        common,
        elementwise,
        special,
        movement,
        reduction,
        contraction,
        convolution,
        indexing,
        scan,
        random,
        winograd,
        attention,
        recurrence,
        fft,
    )
    for op in family.ROWS
}
