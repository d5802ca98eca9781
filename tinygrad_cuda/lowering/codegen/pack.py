"""Stages to launches: independent small stages share one, a block's number picks the stage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tinygrad_cuda.core.errors import describe_site
from tinygrad_cuda.graph.ops.reduction import ReductionOp
from tinygrad_cuda.lowering.codegen.library_call import LibraryCall
from tinygrad_cuda.lowering.codegen.skeleton import FOLDER, THREADS, KernelParam, Stage, fill, named
from tinygrad_cuda.lowering.schedule.fusion import CHEAP_COST
from tinygrad_cuda.lowering.target import Target

WORDS = 4096 // 8  # of a kernel's parameters
STAGES = 12  # of different kinds in one launch: the compiler's time grows faster than their number
# Of a translation unit. On 16 cores a ResNet-18's 106 kernels then compile in the time of the unit
# that takes longest, for as much work in all as in one unit.
UNIT_KERNELS = 4
FULL = 8  # blocks with all threads of a multiprocessor
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
        cluster: blocks that reach each other's shared memory.
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
        self.cluster = self.stages[0].cluster

    @property
    def library(self) -> LibraryCall | None:
        """The library's call that it is, if it is no kernel of ours."""
        return self.stages[0].library

    @property
    def together(self) -> bool:
        """Whether its blocks wait for each other."""
        return self.stages[0].kernel.grid is not None

    @property
    def bytes_moved(self) -> int:
        """Bytes between it and memory at least."""
        return sum(stage.bytes_moved for stage in self.stages)

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
    time, and too small to fill a GPU or hardly longer than a launch, go into one launch.
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
    groups: list[list[Stage]] = []
    for stage in stages:
        short = _fills_little(stage, target) or _is_short_copy(stage, target)
        if stage.alone or stage.threads != THREADS or not (short or stage.kernel.update):
            groups.append([stage])
            continue
        for group in groups:
            fits = sum(len(s.words) for s in (*group, stage)) <= WORDS
            kinds = {s.name for s in (*group, stage)}
            fits = fits and (stage.kernel.update or len(kinds) <= STAGES)
            of_a_sort = group[0].kernel.update == stage.kernel.update
            of_a_sort = of_a_sort and group[0].threads == stage.threads
            small = stage.kernel.update or (
                any(all(rule(s, target) for s in (*group, stage)) for rule in SHORT)
                and not group[0].alone
                and _launch_min_blocks(group[0], target) == _launch_min_blocks(stage, target)
            )
            if fits and of_a_sort and small:
                group.append(stage)
                break
        else:
            groups.append([stage])
    return [_launch(group) for group in groups]


def _fills_little(stage: Stage, target: Target) -> bool:
    """Whether a stage has so few blocks that they leave multiprocessors idle."""
    return stage.blocks <= 2 * target.multiprocessors


def _is_short_copy(stage: Stage, target: Target) -> bool:
    """Whether most of a stage's time is its launch's, and its threads need few registers.

    18 casts of 2.7 to 3.5 MB took 4 us each on an H200, of which bytes take 1 us.
    """
    kernel = stage.kernel
    cheap = kernel.kind == "map" and sum(node.op.cost for node in kernel.nodes) <= CHEAP_COST
    full = target.resident(max(1, stage.shared), FULL) == FULL
    return cheap and full and stage.bytes_moved < target.large


# What makes stages share a launch. Copies of many blocks stay apart from others: the registers of
# those would leave a multiprocessor fewer threads, and so fewer bytes in flight.
SHORT = (_fills_little, _is_short_copy)


def _launch_min_blocks(stage: Stage, target: Target) -> int:
    """Its blocks on a multiprocessor: others of its launch must leave registers for them."""
    return stage.min_blocks_per_sm if stage.alone or stage.blocks > target.multiprocessors else 1


def _launch(group: list[Stage]) -> PackedLaunch:
    if len(group) == 1:
        return PackedLaunch(group, group[0].name, group[0].text, list(group[0].words))
    # Stages of one text stand side by side: the kernel holds it once, however many they are.
    stages_by_name: dict[str, list[Stage]] = {}
    for stage in group:
        stages_by_name.setdefault(stage.name, []).append(stage)
    params, choices, start = [], [], 0
    for number, stages in enumerate(stages_by_name.values()):
        stage, count = stages[0], len(stages)
        own = f"virtual_block - {start}" if start else "virtual_block"
        block = own
        start += stage.blocks * count
        test = f"if (virtual_block < {start}) " if number < len(stages_by_name) - 1 else ""
        params_text = f"p.stage{number}"
        if count > 1 and stage.blocks == 1:
            params_text, block = f"{params_text}[{own}]", "0"
        elif count > 1:
            own = f"({own})" if start else own
            params_text, block = f"{params_text}[{own} / {stage.blocks}]", f"{own} % {stage.blocks}"
        params.append(f"{stage.name}_params stage{number}{f'[{count}]' if count > 1 else ''};")
        prefix = "else " if number else ""
        choices.append(f"{prefix}{test}{stage.name}_stage({block}, {params_text}, smem);")
    group = [stage for stages in stages_by_name.values() for stage in stages]
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
def fft_prelude() -> str:
    """What kernels of Fourier transforms need besides."""
    return (FOLDER / "fft" / "fft_device.cuh").read_text()


@lru_cache(maxsize=1)
def special_prelude() -> str:
    """What kernels with rare special functions need besides."""
    return (FOLDER / "special.cuh").read_text()


@lru_cache(maxsize=1)
def complex_prelude() -> str:
    """What kernels with complex numbers need besides."""
    return (FOLDER / "complex.cuh").read_text()


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
    r"\btgc_(mma_|ldmatrix_|load_(x4|pair)\b|tf32\b|tf32_split(_unsaturated)?\b|pack_(bf16|fp16)\b"
    r"|exp2_short\b|unmarked\b|is_marked\b|copy_async16\b)"
)
TMA_NAMES = re.compile(
    r"\btgc_(tensor_map\b|barrier_|proxy_fence\b|tma_|stmatrix_|named_barrier|cluster_)"
)
WGMMA_NAMES = re.compile(r"\btgc_(wgmma_|registers_(take|give)\b)")


def translation_unit(launches: Sequence[PackedLaunch], target: Target) -> str:
    """All that the compiler gets: each stage once, each kernel once."""
    launches = [launch for launch in launches if launch.library is None]
    texts: dict[str, None] = {}
    for launch in launches:
        for stage in launch.stages:
            texts[stage.text] = None
    wrappers: dict[str, None] = {}
    for launch in launches:
        if len(launch.stages) > 1:
            head = "\n".join(dict.fromkeys(stage.text for stage in launch.stages)) + "\n"
            texts[launch.text.removeprefix(head)] = None
        min_blocks = min(_launch_min_blocks(stage, target) for stage in launch.stages)
        sizes = f"{launch.name}, {launch.threads}, {min_blocks}"
        if launch.cluster > 1:
            wrappers[f"TGC_KERNEL_CLUSTER({sizes}, {launch.cluster})\n"] = None
        else:
            wrappers[f"TGC_KERNEL_MIN_BLOCKS({sizes})\n"] = None
    body = "\n".join((*texts, *wrappers))
    before = prelude() + (random_prelude() if "tgc_random" in body else "")
    before += complex_prelude() if "tgc_complex" in body else ""
    before += fft_prelude() if "tgc_fft_" in body else ""
    before += special_prelude() if "tgc_special_" in body else ""
    before += grid_reduce_prelude() if "tgc_grid_" in body else ""
    before += mma_prelude() if MMA_NAMES.search(body) else ""
    wgmma = wgmma_prelude() if WGMMA_NAMES.search(body) else ""
    before += tma_prelude() if wgmma or TMA_NAMES.search(body) else ""
    before += wgmma
    before += "".join(_functors(launches))
    return f"{before}\n{body}"


def translation_units(launches: Sequence[PackedLaunch], target: Target) -> list[str]:
    """The same in parts of a few kernels, each a `translation_unit`."""
    own = {launch.name: launch for launch in launches if launch.library is None}
    kernels = list(own.values())
    parts = [kernels[n : n + UNIT_KERNELS] for n in range(0, len(kernels), UNIT_KERNELS)]
    return [translation_unit(part, target) for part in parts]


def _functors(launches: Sequence[PackedLaunch]) -> dict[str, None]:
    """What reductions combine with, where their rows bring it along."""
    kernels = (stage.kernel for launch in launches for stage in launch.stages)
    ops = (node.op for kernel in kernels for node in kernel.anchors)
    return {op.cuda.device: None for op in ops if isinstance(op, ReductionOp)}


PRELUDES = (
    prelude,
    random_prelude,
    complex_prelude,
    fft_prelude,
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
