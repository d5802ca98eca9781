"""Launches emulated kernels, and turns what they did wrong into Python errors.

One machine (fiber stacks, shared memory) serves all kernels; launches take turns on it.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tinygrad_cuda.backend.emu.compiler import compile_source
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import ArgumentError, RawSite, TgcError
from tinygrad_cuda.core.locks import new_lock
from tinygrad_cuda.lowering.codegen.skeleton import FOLDER
from tinygrad_cuda.lowering.target import Target

PRELUDE = FOLDER / "device.cuh"
MAX_THREADS = 1024  # of a block, CUDA's limit
MAX_CLUSTER = 8  # blocks, the portable size of a cluster (CUDA C++ Programming Guide)
MAX_TOGETHER = 2048  # threads of blocks that run together
MAX_SHARED = Target.emu().block_shared

Range = tuple[int, int]  # address, bytes


class KernelFault(TgcError):
    """A kernel did what on a GPU would corrupt memory, hang or give undefined values."""


class EmulatedModule:
    """The kernels of one translation unit, compiled for this machine.

    Args:
        source: the prelude and kernels, the text that NVRTC would get.
        options: of the compiler, besides those of all kernels.
        fields: of the parameters, where the source does not spell them out.

    Raises:
        DeviceError: the machine has no C++ compiler.
        CompileError: the compiler refused the source.

    Example:
        >>> source = prelude() + '''
        ... struct twice_params { float* data; long long n; };
        ... __device__ void twice_stage(int virtual_block, const twice_params& p, char* smem) {
        ...   long long i = virtual_block * 32 + threadIdx.x;
        ...   if (i < p.n) tgc_store(p.data, i, 2.0f * tgc_load(p.data, i));
        ... }
        ... TGC_KERNEL(twice, 32)
        ... '''
        >>> x = np.arange(3, dtype=np.float32)
        >>> words = np.array([x.ctypes.data, x.size], np.uint64)
        >>> EmulatedModule(source).launch("twice", 1, 32, 0, words, [(x.ctypes.data, x.nbytes)])
        >>> x
        array([0., 2., 4.], dtype=float32)
    """

    def __init__(
        self, source: str, options: tuple[str, ...] = (), fields: Sequence[str] = ()
    ) -> None:
        self.source = source
        self.fields = list(fields)
        self.path = compile_source(source, options)
        self._library = ctypes.CDLL(str(self.path))
        self._kernels: dict[str, Any] = {}
        _check_layout(self._library)

    def launch(
        self,
        name: str,
        grid: int,
        block: int,
        shared_bytes: int,
        words: np.ndarray[Any, np.dtype[np.uint64]],
        ranges: Sequence[Range],
        thread_order: int | None = None,
        site: RawSite | None = None,
        cluster: int = 1,
        called: str = "",
    ) -> None:
        """Runs a kernel to its end.

        Args:
            name: of the kernel.
            grid: blocks.
            block: threads of a block, at most 1024.
            shared_bytes: dynamic shared memory; every block finds it filled with 0xFF.
            words: the parameter structure as 8-byte words.
            ranges: address and length in bytes of each buffer that the kernel may touch.
            thread_order: seed that permutes the order in which threads run between barriers, and
                when asynchronous copies take effect; 0 runs them in order, copies at their wait.
                ``TGC_EMU_ORDER`` when left out.
            site: the user's line behind the kernel, for errors.
            cluster: blocks that run together and reach each other's shared memory.
            called: the kernel's name in errors, where it is another.

        Raises:
            ArgumentError: the library has no such kernel, or a size is out of range.
            KernelFault: an access outside ``ranges`` or misaligned, a barrier or warp operation
                that not all threads reach, a write past shared memory. Buffers keep what was
                written until then.
        """
        kernel = self._kernel(name)
        _check_sizes(name, grid, block, shared_bytes, cluster)
        words = np.ascontiguousarray(words, np.uint64)
        buffers = np.array(ranges, np.uint64).reshape(-1, 2)
        launch = _Launch(
            words=words.ctypes.data,
            word_count=words.size,
            ranges=buffers.ctypes.data,
            range_count=len(buffers),
            grid=grid,
            block=block,
            shared=shared_bytes,
            order=settings.emu_order if thread_order is None else thread_order,
            cluster=cluster,
        )
        with _turn:
            launch.machine = _machine(self._library)
            failed = kernel(ctypes.byref(launch))
        if failed:
            fields = self.fields or _parameter_names(self.source, name)
            raise _fault(called or name, launch, words, fields, site)

    def _kernel(self, name: str) -> Any:
        kernel = self._kernels.get(name)
        if kernel is None:
            try:
                kernel = self._library[name]
            except AttributeError:
                raise ArgumentError(
                    "emu", "no such kernel", expect=f"a kernel of {self.path.name}", actual=name
                ) from None
            kernel.restype = ctypes.c_longlong
            kernel.argtypes = [ctypes.POINTER(_Launch)]
            self._kernels[name] = kernel
        return kernel


@lru_cache(maxsize=1)
def prelude() -> str:
    """The text that stands before every kernel."""
    return PRELUDE.read_text()


# The structures of device_twin.h ------------------------------------------------------------------


def _fields(names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_longlong) for name in names.split()]


class _Error(ctypes.Structure):
    _fields_ = [
        *_fields("kind block thread"),
        ("base", ctypes.c_ulonglong),
        *_fields("index count size below above write first second third"),
    ]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("machine", ctypes.c_void_p),
        ("words", ctypes.c_void_p),
        ("word_count", ctypes.c_longlong),
        ("ranges", ctypes.c_void_p),
        *_fields("range_count grid block shared order cluster"),
        ("error", _Error),
    ]


_turn = new_lock()  # launches share the machine
_memory: list[mmap.mmap] = []


def _machine(library: ctypes.CDLL) -> int:
    """The address of the machine; its pages cost nothing until a fiber touches them."""
    if not _memory:
        _memory.append(mmap.mmap(-1, _layout(library)[0], flags=_MAP_FLAGS))
    return ctypes.addressof(ctypes.c_char.from_buffer(_memory[0]))


_MAP_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)


def _layout(library: ctypes.CDLL) -> tuple[int, int]:
    layout = (ctypes.c_longlong * 2).in_dll(library, "tgc_emu_layout")
    return layout[0], layout[1]


def _check_layout(library: ctypes.CDLL) -> None:
    size = _layout(library)[1]
    if size != ctypes.sizeof(_Launch):
        raise AssertionError(f"device_twin.h has a launch of {size} bytes, runtime.py another")


def _check_sizes(name: str, grid: int, block: int, shared_bytes: int, cluster: int) -> None:
    for label, value, low, high in (
        ("grid", grid, 1, 2**31 - 1),
        ("block", block, 1, MAX_THREADS),
        ("shared_bytes", shared_bytes, 0, MAX_SHARED),
        ("cluster", cluster, 1, MAX_CLUSTER),
    ):
        if not low <= value <= high:
            raise ArgumentError(
                "emu",
                f"launch of kernel '{name}' with a {label} that no GPU takes",
                expect=f"{low} <= {label} <= {high}",
                actual=f"{label} = {value}",
            )
    if cluster > 1 and (grid % cluster or block % 32 or cluster * block > MAX_TOGETHER):
        raise ArgumentError(
            "emu",
            f"launch of kernel '{name}' in clusters that the emulator does not run",
            expect=f"whole clusters, whole warps, at most {MAX_TOGETHER} threads in a cluster",
            actual=f"grid = {grid}, block = {block}, cluster = {cluster}",
        )


# By the numbers of device_twin_async.h: what a kernel does that is forbidden, and what is expected.
_ASYNC_FAULTS = (
    (
        "uses an mbarrier that is not set",
        "tgc_barrier_init, then a barrier of the block or cluster",
    ),
    ("copies before its mbarrier is fenced", "tgc_barrier_fence after tgc_barrier_init"),
    ("arrives too often at an mbarrier", "as many arrivals a phase as tgc_barrier_init was given"),
    ("reaches a block of its cluster that has ended", "tgc_cluster_sync before a block ends"),
    ("ends while a copy to its shared memory is in flight", "a wait for each phase of an mbarrier"),
    ("multiplies without a fence", "tgc_wgmma_fence before the first product, and after each wait"),
    ("has a descriptor that wgmma cannot read", "one for all lanes, inside shared memory, aligned"),
    ("disagrees about a named barrier", "one number of threads for all, whole warps"),
    ("copies a box of other axes than its tensor map", "as many coordinates as the map has axes"),
)


# What went wrong ----------------------------------------------------------------------------------

_BOUNDS, _MISALIGNED, _DEADLOCK, _BARRIERS, _MASK, _CANARY, _BLOCK_SIZE, _PARAMETERS = range(1, 9)
_SHARED_ACCESS, _ASYNC, _RACE = 9, 10, 11


def _parameter_names(source: str, kernel: str) -> list[str]:
    """The fields of the kernel's parameter structure, as far as the source spells them out."""
    struct = rf"struct\s+{kernel}_params\s*\{{(.*?)\}}"
    match = re.search(rf"TGC_STAGE\({kernel},(.*?)\)|{struct}", source, re.DOTALL)
    if match is None:
        return []
    names: list[str] = []
    for field in (match[1] or match[2]).split(";"):
        names += [re.sub(r".*[\s*&]", "", part.strip()) for part in field.split(",")]
    return [name for name in names if name]


def _fault(
    name: str, launch: _Launch, words: Any, fields: list[str], site: RawSite | None
) -> KernelFault:
    error = launch.error
    where = f"block {error.block}, thread {error.thread}"
    if error.kind in (_BOUNDS, _MISALIGNED):
        pointer = _pointer_name(error.base, words, fields)
        message, expect, actual = _describe_access(error, where, pointer)
    elif error.kind == _RACE:
        is_global = bool((words == np.uint64(error.base)).any())
        pointer = _pointer_name(error.base, words, fields) if is_global else "shared memory"
        message, expect, actual = _describe_race(error, where, pointer)
    else:
        message, expect, actual = _describe(error, launch, where)
    return KernelFault("emu", f"kernel '{name}' {message}", expect=expect, actual=actual, site=site)


def _pointer_name(base: int, words: Any, fields: list[str]) -> str:
    for number in np.flatnonzero(words == np.uint64(base)).tolist():
        return f"{fields[number]} (word {number})" if number < len(fields) else f"word {number}"
    return f"a pointer to {base:#x} that is no parameter"


def _describe_access(error: _Error, where: str, pointer: str) -> tuple[str, str, str]:
    verb = "writes" if error.write else "reads"
    last = error.index + error.count - 1
    index = f"index {error.index}" if error.count == 1 else f"indices {error.index} to {last}"
    if error.kind == _MISALIGNED:
        size = error.size * error.count
        address = error.base + error.index * error.size
        return (
            f"{verb} {size} bytes at a misaligned address",
            f"an address divisible by {min(size, 16)}",
            f"{address:#x}: {pointer}, {index} of {error.size} bytes, {where}",
        )
    low, limit = -(error.below // error.size), error.above // error.size
    bounds = f"{low} <= index < {limit}" if limit else "a pointer into a buffer of this launch"
    return (
        f"{verb} outside the buffer",
        f"{bounds} for {pointer}, elements of {error.size} bytes",
        f"{index}, limit {limit}, {where}",
    )


def _describe_race(error: _Error, where: str, memory: str) -> tuple[str, str, str]:
    here, there = ("writes" if wrote else "reads" for wrote in (error.write, error.second))
    verb = {"writes": "written", "reads": "read"}[there]
    other = f"thread {error.first}" + (f" of block {error.count}" if error.count >= 0 else "")
    order = (
        "__syncthreads() between the two, or an atomic operation"
        if error.count < 0 else "blocks that write apart from each other, or atomic operations"
    )  # fmt: skip
    return (
        f"{here} what {other} has {verb}, in no order: a race",
        order,
        f"{memory}, index {error.index} of {error.size} bytes, {where}",
    )


def _describe(error: _Error, launch: _Launch, where: str) -> tuple[str, str, str]:
    if error.kind == _DEADLOCK:
        at_barrier = f"{error.first} threads wait at __syncthreads() in line {error.third}"
        return (
            "hangs: threads wait for others that will not come",
            "all threads that have not ended at the same barrier or warp operation",
            f"{at_barrier if error.first else '0 threads wait at a barrier'}, {error.second} at a "
            f"warp operation; block {error.block}",
        )
    if error.kind == _BARRIERS:
        return (
            "has threads that wait at different barriers",
            f"all threads at the __syncthreads() in line {error.first}",
            f"line {error.second} in {where}",
        )
    if error.kind == _MASK:
        return (
            "has lanes that disagree about a warp operation",
            "the same operation with the same mask, which names the calling lane itself",
            f"masks {error.first:#010x} and {error.second:#010x}, lane {error.third}, {where}",
        )
    if error.kind == _CANARY:
        side = "past the end" if error.first >= 0 else "before the start"
        return (
            f"writes {side} of shared memory",
            f"0 <= offset < {launch.shared}",
            f"byte {error.first} was changed; block {error.block}",
        )
    if error.kind == _SHARED_ACCESS:
        verb = "writes" if error.write else "reads"
        return (
            f"{verb} {error.second} bytes that are not aligned in shared memory",
            f"an offset divisible by {error.third}, at most {launch.shared - error.second}",
            f"offset {error.first}, {where}",
        )
    if error.kind == _ASYNC:
        return *_ASYNC_FAULTS[error.first], where
    if error.kind == _BLOCK_SIZE:
        return (
            "was launched with more threads than it is built for",
            f"at most {error.second} threads",
            f"{launch.block}",
        )
    return (
        "got parameters of another size",
        f"{error.first} bytes",
        f"{launch.word_count * 8} bytes ({launch.word_count} words)",
    )
