"""What the host pays to launch: single kernels, CUDA graphs, and new addresses in a graph.

Run ``python lab/host_path.py`` on a machine with a GPU; it prints a table. A graph of
60 kernels with 200 pointer arguments stands for a training step whose buffers moved.
"""

from __future__ import annotations

import ctypes
import platform
import statistics
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tinygrad_cuda.backend.cuda import compiler
from tinygrad_cuda.backend.cuda import driver as runtime
from tinygrad_cuda.backend.cuda.graphs.graph import CudaGraph, KernelNode

KERNELS, REPEATS = 60, 25
POINTERS = [4 if number % 3 == 0 else 3 for number in range(KERNELS)]  # 200 in all
N = 256
SOURCE = """
// out = first + second (+ third) / 2, n floats by one block; correct behind either kind of edge
#if __CUDA_ARCH__ >= 900
#define WAIT asm volatile("griddepcontrol.launch_dependents; griddepcontrol.wait;" ::: "memory")
#else
#define WAIT
#endif
struct three { float* out; const float* first; const float* second; };
struct four { float* out; const float* first; const float* second; const float* third; };
struct one { long long nanoseconds; };
extern "C" __global__ void spin(const __grid_constant__ one p) {
    long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < p.nanoseconds);
}
extern "C" __global__ void add3(const __grid_constant__ three p) {
    WAIT;
    p.out[threadIdx.x] = p.first[threadIdx.x] + p.second[threadIdx.x];
}
extern "C" __global__ void add4(const __grid_constant__ four p) {
    WAIT;
    p.out[threadIdx.x] =
        p.first[threadIdx.x] + p.second[threadIdx.x] + 0.5f * p.third[threadIdx.x];
}
"""


def row(what: str, figure: str) -> None:
    print(f"{what:<78} {figure:>12}", flush=True)


def host_time(work: Callable[[], None], per: int, settle: Callable[[], None]) -> float:
    """Median microseconds of host time for one of the `per` things that `work` does."""
    times = []
    for turn in range(REPEATS + 5):
        settle()
        start = time.perf_counter()
        work()
        if turn >= 5:
            times.append(time.perf_counter() - start)
    settle()
    return statistics.median(times) / per * 1e6


class Step:
    """60 kernels, each reading its predecessor's output and two or three leaves."""

    def __init__(self, gpu: runtime.DeviceHandle, module: runtime.LoadedModule) -> None:
        self.gpu = gpu
        self.functions = [module.function(f"add{count}") for count in POINTERS]
        rng = np.random.default_rng(0)
        # Two complete sets of buffers, so that every address can change.
        self.leaf_values = rng.standard_normal((2, 4, N)).astype(np.float32)
        self.leaves = [[self.upload(values) for values in half] for half in self.leaf_values]
        self.outputs = [[gpu.allocate(4 * N) for _ in range(KERNELS)] for _ in range(2)]

    def upload(self, values: np.ndarray) -> runtime.Allocation:
        memory = self.gpu.allocate(values.nbytes)
        self.gpu.copy_in(memory.address, values)
        return memory

    def words(self, number: int, half: int) -> bytes:
        """The parameters of a kernel over one of the two sets of buffers."""
        leaves = self.leaves[half]
        before = self.outputs[half][number - 1] if number else leaves[3]
        pointers = [
            self.outputs[half][number],
            before,
            leaves[number % 3],
            leaves[(number + 1) % 3],
        ]
        addresses = [memory.address for memory in pointers[: POINTERS[number]]]
        return struct.pack(f"<{len(addresses)}Q", *addresses)

    def expected(self, half: int) -> np.ndarray:
        leaves = self.leaf_values[half]
        value = leaves[3]
        for number in range(KERNELS):
            value = value + leaves[number % 3]
            if POINTERS[number] == 4:
                value = value + np.float32(0.5) * leaves[(number + 1) % 3]
        return value

    def graph(self, edges: str) -> CudaGraph:
        """The kernels in a chain, each waiting for the one before over one kind of edge."""
        chain = [(number - 1,) if number else () for number in range(KERNELS)]
        none: list[tuple[int, ...]] = [()] * KERNELS
        return self.build(*(chain, none) if edges == "plain" else (none, chain))

    def build(self, after: list[tuple[int, ...]], after_signal: list[tuple[int, ...]]) -> CudaGraph:
        nodes = [
            KernelNode(
                function, 1, N, 0, self.words(number, 0), after[number], after_signal[number]
            )
            for number, function in enumerate(self.functions)
        ]
        return CudaGraph(self.gpu, nodes)

    def check(self, half: int, what: str) -> None:
        result = np.zeros(N, np.float32)
        self.gpu.copy_out(self.outputs[half][-1].address, result)
        if not np.allclose(result, self.expected(half), rtol=1e-4, atol=1e-3):
            raise SystemExit(f"{what}: wrong result")

    def poison(self) -> None:
        for half in self.outputs:
            for memory in half:
                self.gpu.fill(memory.address, 4 * N, 0xFF)


def measure_single_launches(gpu: runtime.DeviceHandle, step: Step) -> None:
    words = [step.words(number, 0) for number in range(KERNELS)]
    jobs = list(zip(step.functions, words))

    def ours() -> None:
        for function, data in jobs:
            gpu.launch(function, 1, N, 0, data)

    ours()
    step.check(0, "single launches")
    row("one kernel, Device.launch (us)", f"{host_time(ours, KERNELS, gpu.synchronize):.2f}")

    function, data = jobs[1]
    buffer = ctypes.create_string_buffer(data, len(data))
    pointer = (ctypes.c_void_p * 1)(ctypes.addressof(buffer))
    address, handle, stream = ctypes.addressof(pointer), function.handle, gpu.stream
    binding = gpu.driver.cuLaunchKernel

    def raw() -> None:
        for _ in range(KERNELS):
            binding(handle, 1, 1, 1, N, 1, 1, 0, stream, address, 0)

    row("one kernel, the bare binding call (us)", f"{host_time(raw, KERNELS, gpu.synchronize):.2f}")
    library = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
    library.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
    number, flow = int(handle), int(stream)

    def through_ctypes() -> None:
        for _ in range(KERNELS):
            library(number, 1, 1, 1, N, 1, 1, 0, flow, address, None)

    figure = host_time(through_ctypes, KERNELS, gpu.synchronize)
    row("one kernel, libcuda through ctypes (us)", f"{figure:.2f}")


def measure_graph(gpu: runtime.DeviceHandle, step: Step, edges: str) -> None:
    name = f"graph of {KERNELS} kernels, {edges} edges"
    start = time.perf_counter()
    graph = step.graph(edges)
    row(f"{name}: build, instantiate, upload (us)", f"{(time.perf_counter() - start) * 1e6:.0f}")
    row(f"{name}: launch, host (us)", f"{host_time(graph.launch, 1, gpu.synchronize):.2f}")
    device_time = replay_time(gpu, graph)
    row(f"{name}: replay, GPU (us)", f"{device_time:.1f}")
    row(f"{name}: replay, GPU, a kernel (us)", f"{device_time / KERNELS:.3f}")
    prove_updates(step, graph, name)
    measure_updates(gpu, step, graph, name)


def prove_updates(step: Step, graph: CudaGraph, name: str) -> None:
    """Moves every kernel to the other buffers and back; the results must follow."""
    for half in (1, 0, 1, 0):
        step.poison()
        for number in range(KERNELS):
            graph.update(number, step.words(number, half))
        graph.launch()
        step.check(half, f"{name}, after updates")
    if graph.updates != 4 * KERNELS:
        raise SystemExit(f"{name}: {graph.updates} updates were counted, not {4 * KERNELS}")


def measure_updates(gpu: runtime.DeviceHandle, step: Step, graph: CudaGraph, name: str) -> None:
    both = [[step.words(number, half) for number in range(KERNELS)] for half in range(2)]
    turn = 0

    def update(count: int) -> None:
        nonlocal turn
        turn += 1
        for number, words in enumerate(both[turn % 2][:count]):
            graph.update(number, words)

    def unchanged() -> None:
        for number, words in enumerate(both[turn % 2]):
            graph.update(number, words)

    figure = host_time(lambda: update(KERNELS), KERNELS, gpu.synchronize)
    row(f"{name}: Graph.update, new addresses, a node (us)", f"{figure:.2f}")
    figure = host_time(unchanged, KERNELS, gpu.synchronize)
    row(f"{name}: Graph.update, same addresses, a node (us)", f"{figure:.3f}")
    call, executable = gpu.driver.cuGraphExecKernelNodeSetParams, graph._executable
    pairs = [(handle, slot.parameters) for handle, slot in zip(graph._handles, graph._slots)]

    def bare() -> None:
        for handle, parameters in pairs:
            call(executable, handle, parameters)

    figure = host_time(bare, KERNELS, gpu.synchronize)
    row(f"{name}: the bare binding call, a node (us)", f"{figure:.2f}")
    for count in (0, 1, 10, KERNELS):

        def update_and_launch(count: int = count) -> None:
            update(count)
            graph.launch()

        figure = host_time(update_and_launch, 1, gpu.synchronize)
        row(f"{name}: {count} updates and a launch, host (us)", f"{figure:.1f}")

        def ten(count: int = count) -> None:
            for _ in range(10):
                update(count)
                graph.launch()

        ten()
        figure = statistics.median(gpu.timed(ten) / 10 for _ in range(REPEATS))
        row(f"{name}: {count} updates and a launch, in a loop (us)", f"{figure:.1f}")


def measure_shapes(gpu: runtime.DeviceHandle, step: Step, kinds: tuple[str, ...]) -> None:
    """The same 60 kernels as parallel chains and as diamonds: what do branches cost or gain?"""
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for width in (1, 2, 4, 8, KERNELS):
        before = [(number - width,) if number >= width else () for number in range(KERNELS)]
        shapes[f"{width} chains, no join"] = before
    for width in (2, 4):
        period = width + 1  # one kernel, then `width` that follow it, then one that follows these
        shapes[f"diamonds of {width}"] = [
            ()
            if number == 0
            else tuple(range(number - width, number))
            if number % period == 0
            else (number - number % period,)
            for number in range(KERNELS)
        ]
    for name, before in shapes.items():
        for edges in kinds:
            after = before if edges == "plain" else [()] * KERNELS
            signal = before if edges == "programmatic" else [()] * KERNELS
            graph = step.build(after, signal)
            figure = host_time(graph.launch, 1, gpu.synchronize)
            row(f"60 kernels, {name}, {edges}: launch, host (us)", f"{figure:.1f}")
            row(f"60 kernels, {name}, {edges}: replay, GPU (us)", f"{replay_time(gpu, graph):.1f}")


def replay_time(gpu: runtime.DeviceHandle, graph: CudaGraph) -> float:
    """Median microseconds of GPU time between the ends of two replays."""

    def ten() -> None:
        for _ in range(10):
            graph.launch()

    ten()
    return statistics.median(gpu.timed(ten) / 10 for _ in range(REPEATS))


def measure_memory(gpu: runtime.DeviceHandle, spin: runtime.KernelHandle) -> None:
    def reuse() -> None:
        for _ in range(100):
            gpu.allocate(4096)

    row("allocate and free, from our lists (us)", f"{host_time(reuse, 100, gpu.synchronize):.2f}")

    def driver_pool() -> None:
        for _ in range(100):
            gpu._free_segment(gpu._allocate_segment(1 << 20) or 0)

    figure = host_time(driver_pool, 100, gpu.synchronize)
    row("allocate and free, the driver's stream-ordered pool (us)", f"{figure:.2f}")
    small, memory = np.ones(1024, np.float32), gpu.allocate(1 << 28)

    def copy_small() -> None:
        for _ in range(32):
            gpu.copy_in(memory.address, small)

    figure = host_time(copy_small, 32, gpu.synchronize)
    row("copy 4 KiB to the GPU, Device.copy_in (us)", f"{figure:.2f}")
    pointer = small.__array_interface__["data"][0]

    def copy_pageable() -> None:
        for _ in range(32):
            gpu.driver.cuMemcpyHtoDAsync(memory.address, pointer, small.nbytes, gpu.stream)

    figure = host_time(copy_pageable, 32, gpu.synchronize)
    row("copy 4 KiB to the GPU, pageable, the bare call (us)", f"{figure:.2f}")
    slot, event = gpu.call("cuMemHostAlloc", 4096, 0), runtime.DriverEvent(gpu, timing=False)

    def copy_pinned() -> None:
        for _ in range(32):
            gpu.driver.cuMemcpyHtoDAsync(memory.address, slot, small.nbytes, gpu.stream)

    figure = host_time(copy_pinned, 32, gpu.synchronize)
    row("copy 4 KiB to the GPU, pinned, the bare call (us)", f"{figure:.2f}")
    figure = host_time(lambda: [event.record() for _ in range(32)], 32, gpu.synchronize)
    row("record an event (us)", f"{figure:.2f}")
    figure = host_time(lambda: [event.synchronize() for _ in range(32)], 32, gpu.synchronize)
    row("wait for an event that has passed (us)", f"{figure:.2f}")
    one = np.zeros(1, np.float32)
    figure = host_time(lambda: gpu.copy_out(memory.address, one), 1, gpu.synchronize)
    row("copy 4 bytes from the GPU, Device.copy_out (us)", f"{figure:.1f}")

    def read_pinned() -> None:
        gpu.driver.cuMemcpyDtoHAsync(slot, memory.address, 4, gpu.stream)
        gpu.driver.cuStreamSynchronize(gpu.stream)

    figure = host_time(read_pinned, 1, gpu.synchronize)
    row("copy 4 bytes from the GPU, pinned, the bare calls, waiting (us)", f"{figure:.1f}")
    row("synchronize, nothing pending (us)", f"{host_time(gpu.synchronize, 1, int):.2f}")
    measure_busy_copies(gpu, spin, memory)
    large = np.random.default_rng(0).standard_normal(1 << 26).astype(np.float32)

    def copy_large() -> None:
        gpu.copy_in(memory.address, large)
        gpu.synchronize()

    figure = host_time(copy_large, 1, gpu.synchronize)
    row("copy 256 MiB to the GPU (GB/s)", f"{large.nbytes / figure / 1e3:.1f}")


def measure_busy_copies(
    gpu: runtime.DeviceHandle, spin: runtime.KernelHandle, memory: runtime.Allocation
) -> None:
    """Does a copy to the GPU hold the host up while the stream has 5 ms of work before it?"""

    def work() -> None:
        gpu.synchronize()
        gpu.launch(spin, 1, 1, 0, struct.pack("<q", 5_000_000))

    for nbytes in (4096, 65536, 1 << 20):
        source = np.ones(nbytes, np.uint8)

        def copy(source: np.ndarray = source) -> None:
            gpu.copy_in(memory.address, source)

        figure = host_time(copy, 1, work)
        row(f"copy {nbytes >> 10} KiB behind 5 ms of work, host (us)", f"{figure:.1f}")


def main() -> None:
    if not runtime.available():
        raise SystemExit(f"host_path: {runtime.reason()}")
    gpu = runtime.device(0)
    version = gpu.call("cuDriverGetVersion")
    print(
        f"{gpu.properties.name}, driver for CUDA {version // 1000}.{version % 1000 // 10}, ", end=""
    )
    print(f"{compiler.toolchain()}, Python {platform.python_version()}; {sum(POINTERS)} pointers")
    module = gpu.load(compiler.compile_source(SOURCE, gpu.properties.arch).cubin)
    step = Step(gpu, module)
    measure_single_launches(gpu, step)
    kinds = ("plain", "programmatic") if gpu.properties.capability >= (9, 0) else ("plain",)
    for edges in kinds:
        measure_graph(gpu, step, edges)
    measure_shapes(gpu, step, kinds)
    measure_memory(gpu, module.function("spin"))


if __name__ == "__main__":
    main()
