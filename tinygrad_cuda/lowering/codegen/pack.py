"""Stages to launches: independent small stages share one, a block's number picks the stage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tinygrad_cuda.core.errors import describe_site
from tinygrad_cuda.graph.ops.reduction import ReductionOp
from tinygrad_cuda.lowering.codegen.skeleton import FOLDER, THREADS, KernelParam, Stage, fill, named
from tinygrad_cuda.lowering.target import Target

WORDS = 4096 // 8  # of a kernel's parameters
STAGES = 12  # of different kinds in one launch: the compiler's time grows faster than their number
NAME = "TGC_NAME"


@dataclass(eq=False)
class PackedLaunch:
    """One kernel launch: a stage, or several that do not depend on each other.

    Attributes:
        stages: in the order of their blocks.
        name: of the kernel.
        text: of the kernel and its stages.
        words: its parameters.
        blocks: of its grid.
        threads: of a block.
        shared: bytes of shared memory of a block.
    """

    stages: list[Stage]
    name: str
    text: str
    words: list[KernelParam]

    def __post_init__(self) -> None:
        self.blocks = sum(stage.blocks for stage in self.stages)
        self.shared = max(stage.shared for stage in self.stages)
        self.threads = self.stages[0].threads

    @property
    def together(self) -> bool:
        """Whether its blocks wait for each other."""
        return self.stages[0].kernel.grid is not None

    @property
    def moved(self) -> int:
        """Bytes between it and memory at least."""
        return sum(stage.moved for stage in self.stages)

    @property
    def site(self) -> str:
        """The user's lines behind it."""
        sites = dict.fromkeys(
            describe_site(node.site) for stage in self.stages for node in stage.kernel.stores
        )
        return "; ".join(sites)

    def __str__(self) -> str:
        kinds = "+".join(stage.kernel.kind for stage in self.stages)
        shapes = ", ".join(str(node.shape) for stage in self.stages for node in stage.kernel.stores)
        return f"{self.name:<60} {kinds:<24} {self.blocks:>6} x {self.threads}  {shapes}"


def packed(kernels: Sequence[list[Stage]], target: Target) -> list[PackedLaunch]:
    """Launches in an order of execution.

    Stages wait for all stages of the kernels before theirs. Those that are ready at the same
    time, and too small to fill a GPU, go into one launch.
    """
    level: dict[Stage, int] = {}
    last: dict[object, int] = {}
    for stages in kernels:
        kernel = stages[0].kernel
        start = max((last[before] + 1 for before in kernel.before), default=0)
        for stage in stages:
            level[stage] = start
            start += 1
        last[kernel] = start - 1
    _gather_updates(kernels, level)
    launches: list[PackedLaunch] = []
    for number in sorted(set(level.values())):
        ready = [stage for stage, own in level.items() if own == number]
        launches += _merged(ready, target)
    return launches


def _gather_updates(kernels: Sequence[list[Stage]], level: dict[Stage, int]) -> None:
    """The updates that nobody waits for move to the end, where one launch takes them all."""
    needed = {before for stages in kernels for before in stages[0].kernel.before}
    last = max(level.values(), default=0)
    for stage in level:
        if stage.kernel.update and stage.kernel not in needed:
            level[stage] = last


def _merged(stages: list[Stage], target: Target) -> list[PackedLaunch]:
    small_grid = 2 * target.multiprocessors  # up to so many blocks leave multiprocessors idle
    groups: list[list[Stage]] = []
    for stage in stages:
        single = stage.alone or stage.threads != THREADS
        if single or (stage.blocks > small_grid and not stage.kernel.update):
            groups.append([stage])
            continue
        for group in groups:
            fits = sum(len(s.words) for s in (*group, stage)) <= WORDS
            kinds = {s.name for s in (*group, stage)}
            fits = fits and (stage.kernel.update or len(kinds) <= STAGES)
            of_a_sort = group[0].kernel.update == stage.kernel.update
            of_a_sort = of_a_sort and group[0].threads == stage.threads
            small = stage.kernel.update or (group[0].blocks <= small_grid and not group[0].alone)
            small = small and (
                stage.kernel.update or _crowd(group[0], target) == _crowd(stage, target)
            )
            if fits and of_a_sort and small:
                group.append(stage)
                break
        else:
            groups.append([stage])
    return [_launch(group) for group in groups]


def _crowd(stage: Stage, target: Target) -> int:
    """How many of its blocks share a multiprocessor: those of others must leave them registers."""
    return stage.dense if stage.alone or stage.blocks > target.multiprocessors else 1


def _launch(group: list[Stage]) -> PackedLaunch:
    if len(group) == 1:
        return PackedLaunch(group, group[0].name, group[0].text, list(group[0].words))
    # Stages of one text stand side by side: the kernel holds it once, however many they are.
    alike: dict[str, list[Stage]] = {}
    for stage in group:
        alike.setdefault(stage.name, []).append(stage)
    params, choices, start = [], [], 0
    for number, stages in enumerate(alike.values()):
        stage, count = stages[0], len(stages)
        own = f"virtual_block - {start}" if start else "virtual_block"
        block = own
        start += stage.blocks * count
        test = f"if (virtual_block < {start}) " if number < len(alike) - 1 else ""
        place = f"p.stage{number}"
        if count > 1 and stage.blocks == 1:
            place, block = f"{place}[{own}]", "0"
        elif count > 1:
            own = f"({own})" if start else own
            place, block = f"{place}[{own} / {stage.blocks}]", f"{own} % {stage.blocks}"
        params.append(f"{stage.name}_params stage{number}{f'[{count}]' if count > 1 else ''};")
        prefix = "else " if number else ""
        choices.append(f"{prefix}{test}{stage.name}_stage({block}, {place}, smem);")
    group = [stage for stages in alike.values() for stage in stages]
    text = fill(
        "stage.cuh",
        "pack",
        comment=f"{len(group)} independent stages in one launch of {start} x {THREADS} threads.",
        name=NAME,
        params=params,
        choices=choices,
    )
    stem = "pack_update" if group[0].kernel.update else "pack"
    name, text = named(stem, text)
    text = "\n".join(dict.fromkeys(stage.text for stage in group)) + "\n" + text
    return PackedLaunch(group, name, text, [word for stage in group for word in stage.words])


@lru_cache(maxsize=1)
def prelude() -> str:
    """The text before the kernels of every translation unit."""
    return (FOLDER / "device.cuh").read_text()


@lru_cache(maxsize=1)
def random_prelude() -> str:
    """What kernels with random numbers need besides."""
    return (FOLDER / "random.cuh").read_text()


@lru_cache(maxsize=1)
def special_prelude() -> str:
    """What kernels with rare special functions need besides."""
    return (FOLDER / "special.cuh").read_text()


@lru_cache(maxsize=1)
def grid_reduce_prelude() -> str:
    """What kernels of all blocks together need."""
    return (FOLDER / "grid_reduce_device.cuh").read_text()


@lru_cache(maxsize=1)
def mma_prelude() -> str:
    """What kernels on matrix units need."""
    return (FOLDER / "mma.cuh").read_text()


@lru_cache(maxsize=1)
def tma_prelude() -> str:
    """What kernels need whose copies an mbarrier counts, and clusters."""
    return (FOLDER / "tma.cuh").read_text()


@lru_cache(maxsize=1)
def wgmma_prelude() -> str:
    """What kernels need besides whose products a warpgroup makes."""
    return (FOLDER / "wgmma.cuh").read_text()


# The names that mma.cuh, tma.cuh and wgmma.cuh define for kernels.
MMA_NAMES = re.compile(
    r"\btgc_(mma_|ldmatrix_|load_x4\b|tf32\b|tf32_split\b|pack_(bf16|fp16)\b|exp2_short\b"
    r"|copy_async16\b)"
)
TMA_NAMES = re.compile(
    r"\btgc_(tensor_map\b|barrier_|proxy_fence\b|tma_|stmatrix_|named_barrier|cluster_)"
)
WGMMA_NAMES = re.compile(r"\btgc_(wgmma_|registers_(take|give)\b)")


def translation_unit(launches: Sequence[PackedLaunch], target: Target) -> str:
    """All that the compiler gets: each stage once, each kernel once."""
    texts: dict[str, None] = {}
    for launch in launches:
        for stage in launch.stages:
            texts[stage.text] = None
    wrappers: dict[str, None] = {}
    for launch in launches:
        if len(launch.stages) > 1:
            head = "\n".join(dict.fromkeys(stage.text for stage in launch.stages)) + "\n"
            texts[launch.text.removeprefix(head)] = None
        dense = min(_crowd(stage, target) for stage in launch.stages)
        text = fill("stage.cuh", "kernel", name=launch.name, threads=launch.threads, dense=dense)
        wrappers[text] = None
    body = "\n".join((*texts, *wrappers))
    before = prelude() + (random_prelude() if "tgc_random" in body else "")
    before += special_prelude() if "tgc_special_" in body else ""
    before += grid_reduce_prelude() if "tgc_grid_" in body else ""
    before += mma_prelude() if MMA_NAMES.search(body) else ""
    wgmma = wgmma_prelude() if WGMMA_NAMES.search(body) else ""
    before += tma_prelude() if wgmma or TMA_NAMES.search(body) else ""
    before += wgmma
    before += "".join(_functors(launches))
    return f"{before}\n{body}"


def _functors(launches: Sequence[PackedLaunch]) -> dict[str, None]:
    """What reductions combine with, where their rows bring it along."""
    kernels = (stage.kernel for launch in launches for stage in launch.stages)
    ops = (node.op for kernel in kernels for node in kernel.anchors)
    return {op.cuda.device: None for op in ops if isinstance(op, ReductionOp)}


PRELUDES = (
    prelude,
    random_prelude,
    special_prelude,
    grid_reduce_prelude,
    mma_prelude,
    tma_prelude,
    wgmma_prelude,
)
_printed: set[str] = set()


def printed(source: str) -> str:
    """A unit for TGC_DEBUG=4: a prelude that was printed before is one line."""
    for make in PRELUDES:
        text = make()
        if text in source:
            if text in _printed:
                source = source.replace(text, f"// {make.__name__}: as printed before\n", 1)
            _printed.add(text)
    return source
