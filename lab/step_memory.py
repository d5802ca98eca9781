"""What a training step of the benchmarks reads, writes and holds in memory.

    python lab/step_memory.py gpt2_bf16 resnet18_bf16
    python lab/step_memory.py gpt2_bf16 --kernels
    python lab/step_memory.py gpt2_bf16 --device cuda

Without a GPU a whole step is lowered as for an H200; nothing is executed. It prints how many bytes
its kernels move, what lies between them at most, and the largest of these values; `--kernels` each
kernel with what it reads and writes. On `cuda` it runs some steps, plain and compiled, and prints
the peak of the memory that tensors take and of what the process has taken, and a step's time.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import tinygrad_cuda as tc  # noqa: E402
from benchmarks.peers.torchlike import Work  # noqa: E402
from benchmarks.workloads import WORKLOADS  # noqa: E402
from tinygrad_cuda.backend import registry  # noqa: E402
from tinygrad_cuda.backend.launch import executable  # noqa: E402
from tinygrad_cuda.core.device import as_device  # noqa: E402
from tinygrad_cuda.core.shapes import readable  # noqa: E402
from tinygrad_cuda.engine.plan import cache as plans  # noqa: E402
from tinygrad_cuda.engine.realize import realize_all  # noqa: E402
from tinygrad_cuda.graph.node import Node  # noqa: E402
from tinygrad_cuda.graph.program import Program  # noqa: E402
from tinygrad_cuda.lowering.lower import Lowered, lower  # noqa: E402
from tinygrad_cuda.lowering.schedule.peak_memory import MemoryUse, memory_use  # noqa: E402
from tinygrad_cuda.lowering.schedule.stored_values import nbytes_of  # noqa: E402
from tinygrad_cuda.lowering.target import Target  # noqa: E402

LISTED = 4 << 20  # bytes of a value from which on `--kernels` lists it
STEPS = 12


class Plan(NamedTuple):
    """A plan and its memory."""

    lowered: Lowered
    memory: MemoryUse


@contextmanager
def pretended_h200() -> Iterator[list[Plan]]:
    """What device ``emu`` lowers meanwhile, as for an H200; nothing is compiled or executed."""
    machine: Any = registry.get(as_device("emu"))
    found: list[Plan] = []
    empty, before = type(machine.allocate(0)), dict(vars(machine))
    plans.clear()
    machine.target = Target.h200()
    machine.load = lambda source: source
    machine.launch = lambda *_: None
    machine.allocate = machine.arena = lambda nbytes: empty(np.empty(nbytes, np.uint8))
    machine.take = lambda nbytes, address: machine.allocate(nbytes)

    def noting(program: Program, target: Target) -> Lowered:
        lowered = lower(program, target)
        found.append(Plan(lowered, memory_use(program.inputs, lowered.schedule, lowered.arena)))
        return lowered

    executable.lower = noting
    precision, rounds = tc.get_float32_matmul_precision(), tc.backends.cudnn.allow_tf32
    try:
        yield found
    finally:
        # A workload sets both for itself.
        tc.set_float32_matmul_precision(precision)
        tc.backends.cudnn.allow_tf32 = rounds
        executable.lower = lower
        vars(machine).clear()
        vars(machine).update(before)
        plans.clear()


def step_of(name: str) -> Plan:
    """The plan of a training step that holds most memory: the step itself."""
    with pretended_h200() as found:
        work = Work(tc, WORKLOADS[name](False), "emu")
        realize_all()
        found.clear()
        results = work.call(*work.data[0])
        realize_all()
        del results
    return max(found, key=lambda plan: plan.memory.arena)


def print_kernels(lowered: Lowered) -> None:
    """Each kernel with what it moves, and the kernels that write and last read large values."""
    kernels = lowered.schedule.kernels
    writers = {node: number for number, k in enumerate(kernels) for node in k.stores}
    last = {node: number for number, k in enumerate(kernels) for node in k.reads}

    def text(node: Node) -> str:
        first = writers.get(node, "an input")
        return (
            f"{node.op.name} {node.shape} {node.dtype.name} {readable(nbytes_of(node))}, "
            f"from {first}, last read by {last.get(node, 'none')}"
        )

    for number, kernel in enumerate(kernels):
        read, written = (sum(map(nbytes_of, part)) for part in (kernel.reads, kernel.stores))
        tier = f" {kernel.choice.tier}" if kernel.choice else ""
        names = " ".join(node.op.name for node in kernel.nodes)
        print(f"{number:>4} {kernel.kind}{tier}: {names}")
        print(f"       reads {readable(read)}, writes {readable(written)}")
        for what, nodes in (("reads", kernel.reads), ("writes", kernel.stores)):
            for node in nodes:
                if nbytes_of(node) >= LISTED:
                    suffix = ", in place" if node in kernel.overwrites else ""
                    print(f"       {what:>6} {text(node)}{suffix}")


def report(name: str, kernels: bool) -> None:
    """A step without a GPU."""
    lowered, memory = step_of(name)
    found = lowered.schedule.kernels
    read = sum(nbytes_of(node) for kernel in found for node in kernel.reads)
    written = sum(nbytes_of(node) for kernel in found for node in kernel.stores)
    print(
        f"{name}: {len(found)} kernels in {len(lowered.launches)} launches, "
        f"read {readable(read)}, write {readable(written)}"
    )
    if kernels:
        print_kernels(lowered)
    print(memory, flush=True)


def run(name: str, compiled: bool, count: int) -> None:
    """Steps on the GPU: their time, and the peaks of what tensors take and of the process."""
    gc.collect()
    tc.cuda.empty_cache()
    free = tc.cuda.mem_get_info()[0]
    work = Work(tc, WORKLOADS[name](False), "cuda")
    step = tc.compile(work.call) if compiled else work.call

    def steps(times: int) -> None:
        for number in range(times):
            results = step(*work.data[number % len(work.data)])
            realize_all()
            del results
        tc.cuda.synchronize()

    steps(4)
    tc.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    steps(count)
    each = (time.perf_counter() - start) / count
    print(
        f"{name} {'compiled' if compiled else 'plain'}: {each * 1e3:.2f} ms a step, "
        f"tensors and arena {readable(tc.cuda.max_memory_allocated())}, "
        f"reserved {readable(tc.cuda.max_memory_reserved())}, "
        f"process {readable(free - tc.cuda.mem_get_info()[0])}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", help="workloads of the benchmarks")
    parser.add_argument("--device", choices=("emu", "cuda"), default="emu")
    parser.add_argument("--kernels", action="store_true", help="each kernel with what it moves")
    parser.add_argument("--steps", type=int, default=STEPS, help="timed on cuda")
    given = parser.parse_args()
    tc.set_default_device(given.device)
    for name in given.names:
        if given.device == "emu":
            report(name, given.kernels)
        else:
            run(name, False, given.steps)
            run(name, True, given.steps)


if __name__ == "__main__":
    main()
