"""What the lowering knows of a machine: plain numbers that a backend fills.

No other file of the lowering holds a number of a machine, asks a driver or takes a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tinygrad_cuda.core.config import PROVIDERS
from tinygrad_cuda.lowering.tuning_table import TuningTable

# Of every NVIDIA GPU since sm_75.
WARP = 32  # threads
BANKS = 32  # of shared memory, 4 bytes wide
BLOCK_RESERVED = 1024  # bytes of shared memory that each block takes besides its own
SCHEDULERS = 4  # of a multiprocessor, each of which starts one warp's instruction a clock

REGISTERS = 64 << 10  # of a multiprocessor
REGISTER_UNIT = 256  # registers, in which a warp is given them
# Threads and blocks that a multiprocessor holds at most (CUDA C++ Programming Guide, "Technical
# specifications per compute capability").
_RESIDENT = {
    (7, 5): (1024, 16), (8, 0): (2048, 32), (8, 6): (1536, 16), (8, 9): (1536, 24),
    (9, 0): (2048, 32), (10, 0): (2048, 32), (12, 0): (1536, 24),
}  # fmt: skip
# A GPU of each architecture: multiprocessors, KiB of shared memory of a block and of a
# multiprocessor, MiB of L2 cache, bytes in a clock (NVIDIA's data sheets).
_USUAL = {
    (7, 5): ("T4", 40, 64, 64, 4, 200), (8, 0): ("A100", 108, 163, 164, 40, 1100),
    (8, 6): ("A10", 72, 99, 100, 6, 300), (8, 9): ("L40", 142, 99, 100, 96, 300),
    (9, 0): ("H200", 132, 227, 228, 50, 2000), (10, 0): ("B200", 148, 227, 228, 126, 3300),
    (12, 0): ("RTX 5090", 170, 99, 100, 96, 600),
}  # fmt: skip

# How far a kernel goes with what a machine has; measured on an H200.
TILE_SHARED = 64 << 10  # bytes of shared memory of a tile at most: blocks are to share the rest
L1_CACHE = 28 << 10  # bytes of a multiprocessor's shared memory that are left to its L1 cache
CACHED = 48 << 20  # bytes of what is read again at least: of less the cache keeps most
LARGE = 16 << 20  # bytes of a value that a cache of three times as many does not hold
USABLE = 0.82  # the share of the memory's bandwidth that kernels come by


@dataclass(frozen=True)
class Target:
    """One machine.

    Attributes:
        name: for a reader.
        architecture: the compute capability.
        multiprocessors: how many it has.
        block_shared: bytes of shared memory that one block may ask for.
        shared: bytes of shared memory of a multiprocessor.
        l2: bytes of its L2 cache.
        traffic: bytes between memory and all multiprocessors in a clock.
        co_resident: pairs of blocks on a multiprocessor and blocks that then run at one time on
            the machine; empty if a barrier cannot count copies, as grid_reduce has them.
        waiting_blocks: of a kernel that may wait for each other, one on a multiprocessor; 0: none.
        libraries: names of `config.PROVIDERS` whose calls the backend can launch.
        tuning: choices that were measured; None: the model of time decides alone.
    """

    name: str
    architecture: tuple[int, int]
    multiprocessors: int
    block_shared: int
    shared: int
    l2: int
    traffic: int
    co_resident: tuple[tuple[int, int], ...] = ()
    waiting_blocks: int = 0
    libraries: tuple[str, ...] = ()
    tuning: TuningTable | None = field(default=None, repr=False)

    @property
    def lanes(self) -> int:
        """Float32 multiply-adds of a multiprocessor in a clock."""
        return 128 if self.architecture >= (8, 6) else 64

    @property
    def matrix_lanes(self) -> int:
        """Multiply-adds of 16-bit operands of a multiprocessor's matrix units in a clock.

        NVIDIA's tables of each architecture, dense, with float32 sums.
        """
        return {(8, 0): 1024, (9, 0): 2048, (10, 0): 4096}.get(self.architecture, 512)

    @property
    def matrix_formats(self) -> tuple[str, ...]:
        """The formats of operands that mma.sync multiplies with float32 sums."""
        return ("float16", "bfloat16", "tf32") if self.architecture >= (8, 0) else ("float16",)

    @property
    def tile_shared(self) -> int:
        """Bytes of shared memory that the tile of a product or of a convolution may take."""
        return min(self.block_shared, TILE_SHARED)

    @property
    def large(self) -> int:
        """Bytes of a value of which the L2 cache keeps only the part that was touched last."""
        return min(LARGE, self.l2 // 3)

    @property
    def cached(self) -> int:
        """Bytes of which the L2 cache keeps most until they are read again."""
        return min(CACHED, self.l2)

    def resident(self, shared: int, most: int) -> int:
        """Blocks with so many bytes of shared memory that a multiprocessor has at one time."""
        return max(1, min(most, (self.shared - L1_CACHE) // shared))

    @property
    def sm(self) -> str:
        """The architecture as compilers name it."""
        return "sm_{}{}".format(*self.architecture)

    def occupancy(self, threads: int, registers: int, shared: int) -> float:
        """The share of a multiprocessor's warps that are resident; 0 if no block fits.

        Args:
            threads: of a block.
            registers: of a thread.
            shared: bytes of shared memory of a block.
        """
        most_threads, most_blocks = _RESIDENT.get(self.architecture, (2048, 32))
        warps = -(-threads // WARP)
        of_warp = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
        blocks = min(
            most_blocks,
            most_threads // (warps * WARP),
            REGISTERS // max(of_warp * warps, 1),
            self.shared // (shared + BLOCK_RESERVED) if shared <= self.block_shared else 0,
        )
        return blocks * warps * WARP / most_threads

    @classmethod
    def of_architecture(cls, architecture: tuple[int, int]) -> Target:
        """A usual GPU of an architecture, for which kernels are compiled where there is none."""
        name, multiprocessors, block, shared, l2, traffic = _USUAL[architecture]
        return cls.of_gpu(
            name, architecture, multiprocessors, block << 10, shared << 10, l2 << 20, traffic
        )

    @classmethod
    def of_gpu(
        cls,
        name: str,
        architecture: tuple[int, int],
        multiprocessors: int,
        block_shared: int,
        shared: int,
        l2: int,
        traffic: int,
    ) -> Target:
        """A GPU with these numbers; its architecture says which blocks may wait for each other."""
        # From sm_90 on, a barrier counts copies to shared memory, which co-resident blocks need.
        per_sm = (1, 2) if architecture >= (9, 0) else ()
        return cls(
            name, architecture, multiprocessors, block_shared, shared, l2, traffic,
            co_resident=tuple((blocks, blocks * multiprocessors) for blocks in per_sm),
            waiting_blocks=multiprocessors if architecture >= (8, 0) else 0,
            libraries=PROVIDERS,
        )  # fmt: skip

    @classmethod
    def h200(cls) -> Target:
        """An H200 (sm_90): 132 multiprocessors, 227 KiB of shared memory for a block."""
        return cls.of_architecture((9, 0))

    @classmethod
    def emu(cls) -> Target:
        """The emulator: an H200 whose blocks run one after another, or as many as 4 together."""
        together = ((1, 1), (2, 1))
        return replace(cls.h200(), name="emu", co_resident=together, waiting_blocks=4,
                       libraries=())  # fmt: skip


def traffic_of(bandwidth: float, clock: float) -> int:
    """The bytes that kernels move in a clock, to a hundred: a model's time is no closer.

    Args:
        bandwidth: of the memory at its clock, in bytes a second.
        clock: of the multiprocessors, in Hz.
    """
    return max(100, int(round(USABLE * bandwidth / clock, -2)))


ARCHITECTURES = tuple("sm_{}{}".format(*architecture) for architecture in _USUAL)
