"""What the lowering knows of a machine: plain numbers that a backend fills.

No other file of the lowering holds a number of a machine, asks a driver or takes a time.
"""

from __future__ import annotations

from dataclasses import dataclass

# Of every NVIDIA GPU since sm_75.
WARP = 32  # threads
BANKS = 32  # of shared memory, 4 bytes wide
SCHEDULERS = 4  # of a multiprocessor, each of which starts one warp's instruction a clock
LANES = 128  # float32 multiply-adds of a multiprocessor in a clock
BLOCK_SHARED = 64 << 10  # bytes of shared memory that a block may have on each of them
# Assumed of every target: kernels keep their text from GPU to GPU of a generation.
SHARED = 200 << 10  # bytes of shared memory for all blocks of a multiprocessor
MULTIPROCESSORS = 132  # products and convolutions are cut for a GPU of the largest kind


@dataclass(frozen=True)
class Target:
    """One machine.

    Attributes:
        name: for a reader.
        multiprocessors: how many it has.
        block_shared: bytes of shared memory that one block may ask for.
        co_resident: pairs of blocks on a multiprocessor and blocks that then run at one time on
            the machine; empty if blocks cannot wait for each other.
        large: bytes of a value of which the L2 cache keeps only the part that was touched last.
    """

    name: str
    multiprocessors: int
    block_shared: int
    co_resident: tuple[tuple[int, int], ...]
    large: int = 16 << 20

    @classmethod
    def h200(cls) -> Target:
        """An H200 (sm_90): 132 multiprocessors, 227 KiB of shared memory for a block."""
        return cls("H200", 132, 227 << 10, ((1, 132), (2, 264)))

    @classmethod
    def emu(cls) -> Target:
        """The emulator: an H200 whose blocks run one after another."""
        return cls("emu", 132, 227 << 10, ((1, 1), (2, 1)))
