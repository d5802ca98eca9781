"""What TGC_DEBUG=2 prints of a launch: name, shape, time, and how near it came to the roof."""

from __future__ import annotations

from math import prod

from tinygrad_cuda.backend.cuda.pack import Launch
from tinygrad_cuda.graph.cost import flops


def report(launch: Launch, microseconds: float | None) -> str:
    """One aligned line; GFLOP/s and GB/s where there is a time."""
    kinds = "+".join(dict.fromkeys(stage.kernel.kind for stage in launch.stages))
    stored = [node for stage in launch.stages for node in stage.kernel.stores]
    shape = str(stored[0].shape) + (f" +{len(stored) - 1}" if len(stored) > 1 else "")
    line = f"{launch.name:<56} {kinds:<18} {launch.blocks:>6} blocks  {shape:<24}"
    if microseconds is None:
        return line.rstrip()
    nodes = {n for s in launch.stages if not s.second for n in s.kernel.nodes}
    work = sum(flops(node) for node in nodes)
    moved = sum(
        prod(node.shape) * node.dtype.itemsize
        for stage in launch.stages
        for node in (*stage.kernel.stores, *stage.kernel.reads)
    )
    return (
        f"{line} {microseconds:>9.1f} us {work / microseconds / 1e3:>9.1f} GFLOP/s "
        f"{moved / microseconds / 1e3:>8.1f} GB/s"
    )
