"""What TGC_DEBUG=2 prints of kernels: their times and shares of the roofline."""

from __future__ import annotations

from typing import NamedTuple

from tinygrad_cuda.lowering.codegen.pack import PackedLaunch
from tinygrad_cuda.lowering.schedule.cost import flops


class Roofline(NamedTuple):
    """What a machine can do at most: bytes and float32 operations a second."""

    bandwidth: float
    flops: float


def flops_of(launch: PackedLaunch) -> int:
    """Arithmetic results of a launch, by the model of cost."""
    nodes = {n for s in launch.stages if not s.second for n in s.kernel.nodes}
    return sum(flops(node) for node in nodes)


def report(
    launch: PackedLaunch, microseconds: float | None, roofline: Roofline | None = None
) -> str:
    """One aligned line; where there is a time, GFLOP/s, GB/s and the share of what is possible."""
    kinds = "+".join(dict.fromkeys(stage.kernel.kind for stage in launch.stages))
    stored = [node for stage in launch.stages for node in stage.kernel.stores]
    shape = str(stored[0].shape) + (f" +{len(stored) - 1}" if len(stored) > 1 else "")
    line = f"{launch.name:<56} {kinds:<24} {launch.blocks:>6} blocks  {shape:<24}"
    if microseconds is None:
        return line.rstrip()
    work = flops_of(launch)
    bytes_moved = launch.bytes_moved
    text = (
        f"{line} {microseconds:>9.1f} us {work / microseconds / 1e3:>9.1f} GFLOP/s "
        f"{bytes_moved / microseconds / 1e3:>8.1f} GB/s"
    )
    if roofline is None:
        return text
    fastest = 1e6 * max(bytes_moved / roofline.bandwidth, work / roofline.flops)
    return f"{text} {100 * fastest / microseconds:>5.1f} % of roofline"
