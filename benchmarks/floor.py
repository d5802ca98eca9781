"""The least that a workload can take on a device: its FLOPs and bytes over measured rates."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import tinygrad_cuda as tc
from benchmarks.peers.program import in_full_precision
from benchmarks.peers.torchlike import Work
from benchmarks.workload import Repetition, Training, Update, Workload
from tinygrad_cuda.backend.cuda import driver as runtime
from tinygrad_cuda.engine.cell import local
from tinygrad_cuda.engine.realize import realize_all
from tinygrad_cuda.graph.node import topological
from tinygrad_cuda.lowering.schedule import cost

FMAS_PER_MULTIPROCESSOR = 128


@dataclass(frozen=True)
class Floor:
    """What one step must do.

    Attributes:
        flops: of all operations of the recorded step; a multiply-add is 2.
        nbytes: parameters, optimizer state, inputs and results, each once; everything between
            stays on the chip.
    """

    flops: int
    nbytes: int

    def moves(self, bytes_per_second: float, flops_per_second: float) -> bool:
        """Whether memory is what takes the time: the floor is then a copy of so many bytes."""
        return self.nbytes / bytes_per_second > self.flops / flops_per_second

    def microseconds(self, bytes_per_second: float, flops_per_second: float) -> float:
        return 1e6 * max(self.nbytes / bytes_per_second, self.flops / flops_per_second)


def peak_flops(device: str) -> float | None:
    """Multiply-adds in float32 on the ordinary units, twice, a second; None without a GPU."""
    if not device.startswith("cuda"):
        return None
    about = runtime.device(0).properties
    return 2.0 * FMAS_PER_MULTIPROCESSOR * about.multiprocessors * about.clock_hz


def floor_of(workload: Workload) -> Floor | None:
    """FLOPs from the recorded, never computed step; bytes from its definition.

    None where matrix units compute, whose rate is another one, and for modules.
    """
    if not in_full_precision(workload):
        return None
    work = Work(tc, workload, "cpu")
    realize_all()
    local.recorder.call_lines = set()
    given = work.data[0]
    if isinstance(workload, Training):
        loss = workload.loss(work.net, *given)
        results = (loss, *tc.autograd.grad(loss, list(work.parameters.values())))
    elif isinstance(workload, Update):
        results = ()
    else:
        results = work.call(*given)
    order = topological([x.node for x in results], stop=lambda node: node.storage is not None)
    flops = sum(cost.flops(node) for node in order if node.storage is None)
    return Floor(flops, _nbytes(workload, given, results))


def _nbytes(workload: Workload, given: tuple[Any, ...], results: tuple[Any, ...]) -> int:
    if isinstance(workload, Training | Update):
        count = sum(array.size for array in workload.parameters.values())
        total = count * workload.rule.bytes_per_parameter
        if isinstance(workload, Update):
            return total + 4 * count
        return total + sum(map(_size, given))
    total = sum(map(_size, given)) + sum(map(_size, results))
    if isinstance(workload, Repetition):
        return total + sum(array.nbytes for array in workload.parameters.values())
    if workload.cotangent is not None:
        total += _size(results[0])
    return total


def _size(tensor: Any) -> int:
    return prod(tensor.shape) * tensor.dtype.itemsize
