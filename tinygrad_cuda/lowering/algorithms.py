"""Which kernel makes a product or a convolution: THE table of tiers, compared by one model of time.

Times are estimates in clocks of a multiprocessor. They depend on shapes, dtype, layout and target.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any, NamedTuple

from tinygrad_cuda.core.config import ROUNDED, SPLIT, settings
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.graph.node import (
    Node,
    Op,
    gradient_mode,
    recorded_at,
    topological,
    with_sources,
)
from tinygrad_cuda.graph.ops import attention, common, fft, movement, recurrence
from tinygrad_cuda.graph.ops.contraction import matmul
from tinygrad_cuda.graph.ops.convolution import ROWS as CONVOLUTIONS
from tinygrad_cuda.graph.ops.convolution import (
    convolution,
    convolution_input_gradient,
    convolution_weight_gradient,
)
from tinygrad_cuda.graph.rewrite.convolutions import by_blocks, by_spreading
from tinygrad_cuda.lowering.codegen.index import INT_MAX
from tinygrad_cuda.lowering.codegen.skeleton import Stage
from tinygrad_cuda.lowering.layouts import LAST, Layouts, channels_first, wanted_orders
from tinygrad_cuda.lowering.schedule.cost import flops
from tinygrad_cuda.lowering.schedule.kernel_dag import Choice, Kernel
from tinygrad_cuda.lowering.skeletons.attention import library as attention_library
from tinygrad_cuda.lowering.skeletons.attention import tiles as attention_tiles
from tinygrad_cuda.lowering.skeletons.contract import mma_tiles, tma
from tinygrad_cuda.lowering.skeletons.contract.contract import (
    direct_stages,
    tiled_stages,
    weight_gradient_stages,
)
from tinygrad_cuda.lowering.skeletons.contract.library import (
    CUBLAS,
    DTYPES,
    LibraryCut,
    compute_of,
    library_stages,
    with_matrices,
)
from tinygrad_cuda.lowering.skeletons.contract.loads import (
    is_row_major,
    lie_along_k,
    table_overflows,
)
from tinygrad_cuda.lowering.skeletons.contract.mma import carries_columns, mma_stages
from tinygrad_cuda.lowering.skeletons.contract.plain import PlainCut, plain_stages
from tinygrad_cuda.lowering.skeletons.contract.tf32x3 import (
    FINE_SPLIT_TILES,
    MMA_SPLIT_TILES,
    WGMMA_SPLIT_TILES,
    tf32x3_stages,
)
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import (
    FEW_ROWS,
    Product,
    ProductCut,
    clocks,
    cuts_of,
    itemsize_of,
    quickest_cut,
)
from tinygrad_cuda.lowering.skeletons.contract.tma import tma_stages
from tinygrad_cuda.lowering.skeletons.conv import channels_last, depthwise, im2col, tap_sums
from tinygrad_cuda.lowering.skeletons.conv import library as conv_library
from tinygrad_cuda.lowering.skeletons.conv.channels_last import ChannelsLast
from tinygrad_cuda.lowering.skeletons.conv.depthwise import (
    DepthwiseCut,
    depthwise_cut_of,
    depthwise_stages,
    depthwise_weight_stages,
)
from tinygrad_cuda.lowering.skeletons.conv.direct import DirectCut, direct_cut_of
from tinygrad_cuda.lowering.skeletons.conv.im2col import Im2col
from tinygrad_cuda.lowering.skeletons.conv.library import (
    CUDNN,
    ConvolutionCut,
    convolution_stages,
)
from tinygrad_cuda.lowering.skeletons.conv.tap_sums import TapSums
from tinygrad_cuda.lowering.skeletons.conv.weight_gradient import (
    WeightGradientCut,
    weight_gradient_cut_of,
)
from tinygrad_cuda.lowering.skeletons.conv.windows import (
    IMPLICIT,
    Windows,
    operands_of,
    windows_of,
)
from tinygrad_cuda.lowering.skeletons.conv.winograd import Tiles, by_tiles, tiles_of_least_time
from tinygrad_cuda.lowering.skeletons.fft import fft as fft_kernels
from tinygrad_cuda.lowering.skeletons.fft import library as fft_library
from tinygrad_cuda.lowering.skeletons.recurrence import tiles as recurrence_tiles
from tinygrad_cuda.lowering.target import Target
from tinygrad_cuda.lowering.tuning import Decision, TuningProblems, cut_text
from tinygrad_cuda.lowering.tuning_table import Tuned

# Operations of a product on matrix units from which on its operands are stored before. On an H200
# loads through registers take 1 us longer for each 1e9, a kernel that stores an operand 3 us.
WORTH_A_COPY = 2e9
LOADED_ONCE = 128  # rows or columns of a result that one tile has
UNCOUNTED = 1500  # clocks of a product's beginning and end that its model leaves out
TF32, TMA_TF32 = "wgmma tf32", "wgmma tma tf32"
MN_MAJOR = "wgmma tma tf32 MN-major"
PREDICTED = 1.25  # clocks of that tier over its model's where a copy along k is measured, it is not
# Clocks of tiles that gather windows with k over the pixels by index, over those of a matrix:
# 256 x 2304 x 12544 by wgmma takes 69 us on an H200, 35 were estimated.
GATHERED = 1.5
# Values of k from which on a split product errs less than a sum of float32: uniform numbers and
# e^4N decide, whose sums the units' accumulators truncate (lab/tf32x3.py).
SPLIT_K = {"mma": 64, "wgmma": 192}
FINE_K = 256  # values of k below which sums of wgmma are to be short for that
SPLIT_WINDOWS = False  # whether several taps are, whose loads have not been timed
# Operations from which on a product is split: of fewer, launches decide more than arithmetic.
WORTH_A_SPLIT = 2.5e8
CHANNELS_LAST = "channels last"
INNER = ": "  # between it and the tier of its product
DEPTHWISE, DEPTHWISE_GRADIENT = "depthwise", "depthwise weight gradient"
NO_WINDOWS = "no overlapping windows of one group"


class Problem(NamedTuple):
    """What a choice depends on.

    Attributes:
        node: the product, the convolution, or its weight gradient.
        a, b: the matrices that it multiplies.
        product: their sizes.
        windows: those of a convolution's input, which tiers but the product need.
        target: the machine.
        last: whether its images lie with the channels last, for other readers.
    """

    node: Node
    a: Node
    b: Node
    product: Product
    windows: Windows | None
    target: Target
    last: bool = False

    @property
    def flops(self) -> int:
        """Its additions and multiplications."""
        return 2 * prod(self.product[:4])

    @property
    def channels(self) -> int:
        """Of a convolution's result, where it has one group."""
        return self.product.m


class Candidate(NamedTuple):
    """What a tier proposes.

    Attributes:
        cut: how its kernel divides the work.
        clocks: an estimate of its time, in clocks of a multiprocessor.
        blocks: of its kernel, where they may be too few.
        tiles: of matrix units, from which the cut was chosen; a tuner tries others of them.
    """

    cut: (
        ProductCut[Any] | PlainCut | ChannelsLast | DepthwiseCut | TapSums | DirectCut
        | WeightGradientCut | Tiles | LibraryCut | ConvolutionCut | Im2col
    )  # fmt: skip
    clocks: float
    blocks: int = 0
    tiles: mma_tiles.Tiles = ()


@dataclass(frozen=True)
class Tier:
    """One way to make a product or a convolution.

    Attributes:
        name: as ``TGC_DEBUG=3`` prints it.
        ops: what it makes.
        propose: its cut of least time, or why there is none.
        stages: those of a kernel with such a cut; None of a tier that is several nodes.
        share: of the product's clocks that it may take at most.
        extra: clocks that it may take on top of that.
        blocks: for each multiprocessor at least: with fewer, many have no work.
        product: whether it makes any product; the quickest of these is what others must beat.
        carries: see `Choice`.
    """

    name: str
    ops: tuple[Op, ...]
    propose: Callable[[Problem], Candidate | str]
    stages: Callable[[Kernel, Any], list[Stage]] | None
    share: float = 1.0
    extra: int = 0
    blocks: float = 0.0
    product: bool = False
    carries: Callable[[Kernel, Sequence[Node], Collection[Node], Any], bool] | None = None

    def product_of(self, node: Node) -> bool:
        """Whether it makes the node as a product."""
        return self.product and node.op in self.ops

    def refusal(self, candidate: Candidate, usual: float, target: Target) -> str:
        """Why it takes more time than the product, whose clocks are `usual`; empty if it wins.

        Of a rung that is asked for, and no product, there is none.
        """
        if usual == inf:
            return ""
        if candidate.blocks < self.blocks * target.multiprocessors:
            return f"{candidate.blocks} blocks for {target.multiprocessors} multiprocessors"
        late = candidate.clocks > self.share * usual + self.extra
        return f"{candidate.clocks:.0f} clocks" if late else ""


def _tiled(problem: Problem) -> Candidate:
    """The tile of least time, before `_with_tables` has seen what it loads."""
    cut = quickest_cut(problem.product, problem.target)
    return Candidate(cut, clocks(cut, problem.product, problem.target))


def _with_tables(cut: ProductCut[Any], problem: Problem) -> ProductCut[Any]:
    """The tile with k halved until its index tables fit in shared memory."""
    while table_overflows(problem.a, problem.b, cut, problem.node.dtype, problem.target):
        cut = cut.halved(problem.product.k)
    return cut


def _of_tiles(problem: Problem, tiles: mma_tiles.Tiles) -> Candidate:
    """The cut of least time of a product on matrix units."""
    cut = mma_tiles.quickest_cut(problem.product, problem.target, tiles)
    return Candidate(cut, mma_tiles.clocks(cut, problem.product, problem.target), tiles=tiles)


def _mma(problem: Problem) -> Candidate | str:
    target = problem.target
    if not problem.node.dtype.is_half:
        return f"{problem.node.dtype.name} is no operand of mma"
    if problem.node.dtype.name not in target.matrix_formats:
        return f"mma of {problem.node.dtype.name} is of sm_80, not of {target.name}"
    asynchronous = target.architecture >= (8, 0)
    tiles = mma_tiles.MMA_TILES if asynchronous else mma_tiles.SYNCHRONOUS_TILES
    return _gathered(problem, _of_tiles(problem, tiles))


def _gathered(problem: Problem, candidate: Candidate) -> Candidate:
    """The candidate with the time that it takes to find windows along k, if there are any."""
    columns = problem.node.attributes.get("windows")
    gathers = columns is not None and columns.windows_along_k
    return candidate._replace(clocks=candidate.clocks * (GATHERED if gathers else 1))


def _wgmma(problem: Problem) -> Candidate | str:
    target = problem.target
    if not problem.node.dtype.is_half:
        return f"{problem.node.dtype.name} is no operand of wgmma"
    if target.architecture != (9, 0):
        return (
            f"no wgmma but on sm_90a, {target.name} is sm_{''.join(map(str, target.architecture))}"
        )
    return _gathered(problem, _of_tiles(problem, mma_tiles.WGMMA_TILES))


def _plain(shared: bool) -> Callable[[Problem], Candidate]:
    """What proposes a kernel without register tiles, whose time is by count."""

    def propose(problem: Problem) -> Candidate:
        return Candidate(PlainCut(shared), problem.flops / problem.target.lanes)

    return propose


def _tma(problem: Problem) -> Candidate | str:
    target = problem.target
    if not problem.node.dtype.is_half:
        return f"{problem.node.dtype.name} is no operand of wgmma"
    if target.architecture != (9, 0):
        return "no wgmma"
    columns = problem.node.attributes.get("windows")
    if problem.flops < WORTH_A_COPY or not tma.describes(problem.a, problem.b, columns=columns):
        return "an operand is no matrix in memory"
    # A slot takes four boxes of windows along k: longer rings keep more of them in flight.
    ping_pong = columns is not None and columns.windows_along_k
    tiles: mma_tiles.Tiles = mma_tiles.JOINING_TILES
    if columns is not None:
        tiles = mma_tiles.TMA_PING_PONG if ping_pong else mma_tiles.TMA_TILES
    return _of_tiles(problem, tiles)


def _tma_tf32(problem: Problem) -> Candidate | str:
    if reason := _k_major_refusal(problem):
        return reason
    first, second = lie_along_k(problem.a, problem.b)
    columns = problem.node.attributes.get("windows")
    if not tma.describes(problem.a, problem.b, (not first, not second), columns, along_k=True):
        return "an operand is no matrix in memory"
    candidate = _of_tiles(problem, mma_tiles.TMA_TF32_TILES)
    return candidate._replace(clocks=candidate.clocks + _k_major_clocks(problem))


def _mn_major(problem: Problem) -> Candidate | str:
    if reason := _tf32_refusal(problem):
        return reason
    if all(lie_along_k(problem.a, problem.b)):
        return "both operands lie along k"
    if not tma.describes(problem.a, problem.b, columns=problem.node.attributes.get("windows")):
        return "an operand is no matrix in memory"
    candidate = _of_tiles(problem, mma_tiles.MN_MAJOR_TILES)
    measured = "windows" in problem.node.attributes
    return candidate._replace(clocks=candidate.clocks * (1 if measured else PREDICTED))


def _mn_major_windows(problem: Problem) -> Candidate | str:
    """Of a weight gradient before it is a product: pixels follow k, channels are neighbours."""
    if reason := _tf32_refusal(problem):
        return reason
    made = channels_last.as_product(problem.node, Layouts(), last=True)
    return _mn_major(problem_of(made, problem.target))


def _tf32(problem: Problem) -> Candidate | str:
    if reason := _k_major_refusal(problem):
        return reason
    candidate = _of_tiles(problem, mma_tiles.TF32_TILES)
    return candidate._replace(clocks=candidate.clocks + _k_major_clocks(problem))


def _k_major_clocks(problem: Problem) -> float:
    """Of the copies along k of a product's operands; a convolution's lie so, with channels last."""
    if problem.node.op is not matmul:
        return 0
    both = zip(problem.node.sources, lie_along_k(problem.a, problem.b), strict=True)
    moved = [2 * prod(node.shape) * node.dtype.itemsize for node, along in both if not along]
    return sum(nbytes / problem.target.traffic + channels_last.LAUNCH for nbytes in moved)


def _tf32_refusal(problem: Problem) -> str:
    node, target = problem.node, problem.target
    rounds = settings.matmul_precision in ROUNDED if node.op is matmul else rounds_convolutions()
    if node.dtype.name != "float32" or not rounds:
        return f"{node.dtype.name} is to be exact"
    if target.architecture != (9, 0):
        return f"wgmma is of sm_90a, not of {target.name}"
    return "too few products" if problem.flops < WORTH_A_COPY else ""


def _k_major_refusal(problem: Problem) -> str:
    return _tf32_refusal(problem) or ("k is not of copies of 4" if problem.product.k % 4 else "")


def _mma_split(problem: Problem) -> Candidate | str:
    if problem.node.dtype.name != "float32":
        return f"{problem.node.dtype.name} is not split"
    return _mma_split_product(problem.product, problem.target)


def _wgmma_split(problem: Problem) -> Candidate | str:
    if problem.node.dtype.name != "float32":
        return f"{problem.node.dtype.name} is not split"
    return _wgmma_split_product(problem.product, problem.target)


def _mma_split_product(product: Product, target: Target) -> Candidate | str:
    if "tf32" not in target.matrix_formats:
        return f"mma of tf32 is of sm_80, not of {target.name}"
    return _split_product(product, target, "mma", MMA_SPLIT_TILES)


def _wgmma_split_product(product: Product, target: Target) -> Candidate | str:
    if target.architecture != (9, 0):
        return f"wgmma is of sm_90a, not of {target.name}"
    tiles = FINE_SPLIT_TILES if product.k < FINE_K else WGMMA_SPLIT_TILES
    return _split_product(product, target, "wgmma", tiles)


def _split_product(
    product: Product, target: Target, unit: str, tiles: mma_tiles.Tiles
) -> Candidate | str:
    if settings.matmul_precision not in SPLIT:
        return "float32 units are asked for"
    if product.k < SPLIT_K[unit]:
        return f"a sum of {product.k} errs less in float32"
    if 2 * prod(product[:4]) < WORTH_A_SPLIT:
        return "too few products"
    cut = mma_tiles.quickest_cut(product, target, tiles)
    return Candidate(cut, mma_tiles.clocks(cut, product, target), tiles=tiles)


def _exact_clocks(product: Product, target: Target) -> float:
    """An estimate of a float32 product's time, operands split or not."""
    split = _wgmma_split_product(product, target), _mma_split_product(product, target)
    times = [candidate.clocks for candidate in split if isinstance(candidate, Candidate)]
    return min([clocks(quickest_cut(product, target), product, target), *times])


def _channels_last(problem: Problem) -> Candidate | str:
    node, target = problem.node, problem.target
    if reason := channels_last.refusal(node):
        return reason
    nbytes = channels_last.moved_bytes(node)
    moved = 0.0 if problem.last else _transpose_clocks(nbytes, target)
    one_tap = prod(channels_last.taps_of(node)) == 1
    windows = node.op is not convolution and not one_tap
    tiers: dict[Callable[[Problem], Candidate | str], str] = {
        _wgmma: "wgmma", _mma: "mma", _mn_major_windows if windows else _tf32: "wgmma",
    }  # fmt: skip
    rung = settings.convolution_tier
    if SPLIT_WINDOWS or rung or not nbytes or (problem.last and one_tap):
        tiers |= {_wgmma_split: "wgmma", _mma_split: "mma"}
    if problem.last and one_tap:
        tiers |= {_tiled: "register_tiled"}
    made = [tier(problem) for tier, unit in tiers.items() if rung in ("", unit)]
    times = [candidate.clocks for candidate in made if isinstance(candidate, Candidate)]
    if not times:
        return f"no tier of {target.name}'s matrix units multiplies {node.dtype.name} as permitted"
    # Kernels of other tiers need a transposed copy of images that lie channels last.
    copied = channels_last.read_bytes(node) if problem.last else 0
    time = min(times) + moved - _transpose_clocks(2 * copied, target)
    exact = settings.winograd and not rounds_convolutions() and not rung
    tiles = _winograd(problem) if exact else ""
    if isinstance(tiles, Candidate) and tiles.clocks < time:
        return f"{time:.0f} clocks, winograd {tiles.clocks:.0f}"
    return Candidate(ChannelsLast(), time)


def _transpose_clocks(nbytes: int, target: Target) -> float:
    """An estimate of the time that a transposed copy of images takes, by the bytes it moves."""
    per_clock = channels_last.SPEED * target.traffic
    return nbytes / per_clock + channels_last.LAUNCH if nbytes else 0.0


def _depthwise(problem: Problem) -> Candidate | str:
    node, target = problem.node, problem.target
    if reason := depthwise.refusal(node):
        return reason
    cut = depthwise_cut_of(depthwise.grouped_of(node), target, problem.last)
    return Candidate(cut, cut.clocks(target)) if cut else "no cut fits a block"


def _tap_sums(problem: Problem) -> Candidate | str:
    node = problem.node
    if reason := tap_sums.refusal(node):
        return reason
    return Candidate(TapSums(), tap_sums.clocks(node, problem.target))


def _im2col(problem: Problem) -> Candidate:
    return Candidate(Im2col(), _tiled(problem).clocks)


def _winograd(problem: Problem) -> Candidate | str:
    windows, target = problem.windows, problem.target
    if windows is None:
        return NO_WINDOWS
    channels = problem.channels
    tiles = tiles_of_least_time(problem.node, windows, channels, target, _exact_clocks)
    return Candidate(tiles, tiles.clocks) if tiles else "not 3 x 3 windows of many channels"


def _direct(problem: Problem) -> Candidate | str:
    windows, target = problem.windows, problem.target
    if refusal := _image_refusal(problem):
        return refusal
    cut = direct_cut_of(windows, problem.channels, target) if windows else None
    return Candidate(cut, cut.clocks(target), cut.blocks) if cut else "no cut fits a block"


def _direct_weight_gradient(problem: Problem) -> Candidate | str:
    windows, target = problem.windows, problem.target
    if refusal := _image_refusal(problem):
        return refusal
    part = weight_gradient_cut_of(windows, problem.channels, target) if windows else None
    return Candidate(part, part.clocks(target), part.blocks) if part else "no cut fits a block"


def _image_refusal(problem: Problem) -> str:
    """Why no kernel keeps images in shared memory: it sums in float32, with 32-bit positions."""
    node = problem.node
    if problem.windows is None:
        return NO_WINDOWS
    if node.dtype.compute != "float":
        return f"{node.dtype.name} is not summed in float32"
    if max(prod(n.shape) for n in (node, *node.sources)) > INT_MAX:
        return "positions take 64 bits"
    return ""


def _cublas(problem: Problem) -> Candidate | str:
    """By cuBLASLt, which has tiles of its own: the time is that of all units at work."""
    node, target = problem.node, problem.target
    if node.dtype.name not in DTYPES:
        return f"{node.dtype.name} is no dtype of its products"
    if node.attributes:
        return "columns of windows are no matrix in memory"
    compute = compute_of(node)
    operands = "tf32" if compute == "COMPUTE_32F_FAST_TF32" else node.dtype.name
    lanes = target.matrix_lanes if operands in target.matrix_formats else target.lanes
    return Candidate(LibraryCut(compute), problem.flops / (2 * lanes * target.multiprocessors))


def _cudnn(problem: Problem) -> Candidate | str:
    """By cuDNN: as with cuBLASLt, the time is that of all units at work."""
    node, target = problem.node, problem.target
    if reason := conv_library.refusal(node):
        return reason
    units = node.dtype.is_half or rounds_convolutions()
    operands = node.dtype.name if node.dtype.is_half else "tf32"
    has = units and operands in target.matrix_formats
    lanes = target.matrix_lanes if has else target.lanes
    cut = ConvolutionCut(units, settings.winograd)
    return Candidate(cut, flops(node) / (2 * lanes * target.multiprocessors))


TF32_TIERS = (TF32, TMA_TF32, MN_MAJOR)


def rounds_convolutions() -> bool:
    """Whether operands of convolutions of float32 may lose mantissa bits, as those of products."""
    return settings.cudnn_tf32 and settings.matmul_precision in ROUNDED


def of_convolutions(tiers: tuple[Tier, ...]) -> tuple[Tier, ...]:
    """Those of some tiers that may make the product of a convolution.

    Not libraries, which multiply as the precision of products permits: that of convolutions is
    another one.
    """
    exact = settings.matmul_precision in ROUNDED and not rounds_convolutions()
    refused = (*PROVIDER_TIERS, *(TF32_TIERS if exact else ()))
    return tuple(tier for tier in tiers if tier.name not in refused)


# Tried in this order; the first that wins against the product is taken. Winograd's transforms are
# launches of their own, and their model the roughest: it has to win by a tenth.
TIERS: tuple[Tier, ...] = (
    Tier(CHANNELS_LAST, IMPLICIT, _channels_last, None),
    Tier(DEPTHWISE, (convolution,), _depthwise, depthwise_stages, extra=UNCOUNTED),
    Tier(
        DEPTHWISE_GRADIENT, (convolution_weight_gradient,), _depthwise, depthwise_weight_stages,
        extra=UNCOUNTED,
    ),
    Tier("sums of taps", IMPLICIT, _tap_sums, None),
    Tier("winograd", IMPLICIT, _winograd, None, share=0.9),
    Tier("direct", (convolution,), _direct, direct_stages, extra=UNCOUNTED, blocks=0.5),
    Tier(
        "direct weight gradient", (convolution_weight_gradient,), _direct_weight_gradient,
        weight_gradient_stages, extra=UNCOUNTED, blocks=0.5,
    ),
    Tier("wgmma tma", (matmul,), _tma, tma_stages, product=True, carries=carries_columns),
    Tier("wgmma", (matmul,), _wgmma, mma_stages, product=True, carries=carries_columns),
    Tier(TMA_TF32, (matmul,), _tma_tf32, tma_stages, product=True, carries=carries_columns),
    Tier(MN_MAJOR, (matmul,), _mn_major, tma_stages, product=True),
    Tier(TF32, (matmul,), _tf32, mma_stages, product=True, carries=carries_columns),
    Tier("wgmma tf32x3", (matmul,), _wgmma_split, tf32x3_stages, product=True),
    Tier("mma", (matmul,), _mma, mma_stages, product=True),
    Tier("mma tf32x3", (matmul,), _mma_split, tf32x3_stages, product=True),
    Tier("implicit GEMM", IMPLICIT, _tiled, tiled_stages, product=True),
    Tier("register_tiled", (matmul,), _tiled, tiled_stages, product=True),
)  # fmt: skip
# Libraries' tiers, by provider: before all others where `tc.kernels.provider` has chosen one, which
# a model of our own kernels' time is not to overrule.
PROVIDER_TIERS: dict[str, tuple[Tier, ...]] = {
    CUBLAS: (Tier(CUBLAS, (matmul,), _cublas, library_stages, share=inf),),
    CUDNN: (Tier(CUDNN, CONVOLUTIONS, _cudnn, convolution_stages, share=inf),),
}
LIBRARY_STAGES = (library_stages, convolution_stages)
# Rungs of the climb that are never the quickest: only `tc.kernels.use` chooses them.
PLAIN_TIERS: tuple[Tier, ...] = (
    Tier("naive", (matmul,), _plain(shared=False), plain_stages, product=True),
    Tier("tiled", (matmul,), _plain(shared=True), plain_stages, product=True),
)


# The same of convolutions; columns that are stored before are read once more, and written.
PLAIN_CONVOLUTIONS: tuple[Tier, ...] = (
    Tier("naive", IMPLICIT, _plain(shared=False), plain_stages, product=True),
    Tier("tiled", IMPLICIT, _plain(shared=True), plain_stages, product=True),
    Tier("im2col", IMPLICIT, _im2col, None, product=True),
)
# The tiers of a convolution's rungs, by the first words of their names.
CONVOLUTION_RUNGS = {
    "register_tiled": "implicit GEMM", "mma": CHANNELS_LAST, "wgmma": CHANNELS_LAST,
}  # fmt: skip


def forced_tiers() -> tuple[Tier, ...]:
    """The tiers of the rung that makes all products; empty if they are chosen by time."""
    return _of_rung(settings.matmul_tier)


def _of_rung(rung: str) -> tuple[Tier, ...]:
    """The tiers of products of a rung."""
    every = (*TIERS, *PLAIN_TIERS) if rung else ()
    return tuple(t for t in every if matmul in t.ops and t.name.split(" ")[0] == rung)


def forced_convolutions() -> tuple[Tier, ...]:
    """The tiers of the rung that makes all convolutions; empty if they are chosen by time."""
    rung = settings.convolution_tier
    if not rung:
        return ()
    name = CONVOLUTION_RUNGS.get(rung, rung)
    every = (t for t in (*TIERS, *PLAIN_CONVOLUTIONS) if matmul not in t.ops)
    return tuple(t for t in every if t.name == name or t.name.startswith(f"{name} weight"))


class Composed(NamedTuple):
    """A row with kernels of its own where a target has them, and a composition elsewhere.

    Attributes:
        refusal: why the target has no kernel for a node; empty if it has one.
        as_nodes: its results as the composition.
    """

    refusal: Callable[[Node, Target], str]
    as_nodes: Callable[[Node], tuple[Node, ...]]


def _in_phases(node: Node, target: Target) -> str:
    """Why an input gradient with a stride is one convolution.

    That of few channels a group loads and multiplies nothing but elements of the cotangent. Of
    other groups one of half types always is, and one of float32 on matrix units.
    A convolution for each phase reads the cotangent, and writes the image with zeros, each time:
    513 MB and 14.8e9 operations for 128 x 64 x 56 x 56 with 3 x 3 windows, against 154 MB and
    26.3e9. Matrix units make the latter in half of the time, float32 units do not.
    """
    if 0 not in node.shape and _spread_apart(node) is not None:
        return "few channels a group: elements of the cotangent stand a stride apart"
    units = target.architecture == (9, 0) and rounds_convolutions()
    if node.dtype.name != "float32" or not units or 0 in node.shape:
        return ""
    g, w = node.sources
    large = 2 * prod(g.shape) * prod(w.shape[1:]) >= WORTH_A_COPY
    if not large or g.shape[1] % 4 or by_blocks(node) is None:
        return ""
    return "tf32 takes the phases of its stride as channels"


def _spread_apart(node: Node) -> Node | None:
    """A strided input gradient of few channels a group as one convolution; None for others."""
    if all(step == 1 for step in node.attributes["stride"]):
        return None
    with gradient_mode(False), recorded_at(node.site):
        made = by_spreading(node)
    return None if made is None or depthwise.refusal(made) else made


def _one_convolution(node: Node) -> tuple[Node, ...]:
    made = _spread_apart(node)
    if made is None:
        with gradient_mode(False), recorded_at(node.site):
            made = by_blocks(node)
    assert made is not None, "a stride whose blocks have few zeros"
    return (made,)


COMPOSED: dict[Op, Composed] = {
    convolution_input_gradient: Composed(_in_phases, _one_convolution),
    **dict.fromkeys(attention.ROWS, Composed(attention_tiles.refusal, attention.as_nodes)),
    **dict.fromkeys(fft.ROWS, Composed(fft_kernels.refusal, fft.as_nodes)),
    **dict.fromkeys(recurrence.ROWS, Composed(recurrence_tiles.refusal, recurrence.as_nodes)),
}
BY_CUFFT = Composed(fft_library.refusal, fft_library.as_nodes)


def _composed(node: Node, target: Target) -> Composed | None:
    """How a row becomes others where it has no kernel, or no call of a library, of its own."""
    if node.op in fft.ROWS and fft_library.is_chosen(target):
        return BY_CUFFT
    return COMPOSED.get(node.op)


def allowed() -> tuple[Tier, ...]:
    """The tiers that the settings leave."""
    own = tuple(tier for tier in TIERS if settings.winograd or tier.name != "winograd")
    return PROVIDER_TIERS.get(settings.provider, ()) + own


def _measurable(target: Target) -> tuple[Tier, ...]:
    """The tiers that a tuner measures: those of libraries that are installed as well."""
    libraries = {} if target.tuning is None else target.tuning.libraries
    others = (name for name in libraries if name != settings.provider)
    return (*(tier for name in others for tier in PROVIDER_TIERS[name]), *allowed())


def choose(node: Node, target: Target, tiers: Sequence[Tier] = TIERS, last: bool = False) -> Choice:
    """The first tier that takes less time than the product, or the product.

    Args:
        node: a product, a convolution, or its weight gradient.
        target: the machine.
        tiers: those to choose from, in their order.
        last: whether a convolution's images lie with the channels last anyway.
    """
    problem = problem_of(node, target)._replace(last=last)
    products = {tier: tier.propose(problem) for tier in tiers if tier.product_of(node)}
    times = [c.clocks for c in products.values() if isinstance(c, Candidate)]
    usual = min(times, default=inf)
    refused = ""
    for tier in tiers:
        if node.op in tier.ops:
            candidate = products.get(tier) or tier.propose(problem)
            if isinstance(candidate, str):
                refusal = candidate
            else:
                refusal = tier.refusal(candidate, usual, target)
                if not refusal:
                    reason = f"{tier.name}, {candidate.clocks:.0f} clocks{refused}"
                    return _choice(tier, candidate.cut, problem, reason)
            refused += f"; not {tier.name}: {refusal}"
    raise _refused(node, target, refused)


def _refused(node: Node, target: Target, reasons: str) -> ArgumentError:
    """That a rung which is asked for does not make a node."""
    # What a convolution becomes is made by its rung, which matrix units alone have.
    units = settings.convolution_tier in ("mma", "wgmma") and bool(node.attributes)
    of_product = node.op is matmul and not units
    name, thing, between = ("matmul", "product", " @ ")
    if not of_product:
        name, thing, between = ("convolution", "convolution", ", ")
    rung = settings.matmul_tier if of_product else settings.convolution_tier
    assert rung, f"no tier makes {node.op.name}{reasons}"
    shapes = between.join(str(source.shape) for source in node.sources)
    return ArgumentError(
        "kernels.use", f"tier {rung!r} does not make this {thing}",
        expect=f"a {thing} that it makes",
        actual=f"{node.dtype.name} {shapes} on {target.name}{reasons}", site=node.site,
        hint=f"tc.kernels.use({name!r}, None) leaves the choice to time",
    )  # fmt: skip


def _choice(tier: Tier, cut: Any, problem: Problem, reason: str) -> Choice:
    """The choice of a tier with a cut."""
    if tier.stages is tiled_stages and isinstance(cut, ProductCut):
        cut = _with_tables(cut, problem)
    return Choice(tier.name, cut, tier.stages, reason, _copies(tier, problem), tier.carries)


class Option(NamedTuple):
    """A kernel that a tuner may measure.

    Attributes:
        tier: its name; of a convolution with the channels last also that of its product.
        cut: as `cut_text`.
        clocks: the estimate.
        row, value: the tier and the cut themselves.
    """

    tier: str
    cut: str
    clocks: float
    row: Tier
    value: Any

    @property
    def modelled(self) -> bool:
        """Whether the clocks are of the model of time, not a bound."""
        return self.row.stages not in LIBRARY_STAGES


def options(
    node: Node, target: Target, last: bool = False, lie_last: bool = False, inner: bool = False
) -> list[Option]:
    """All kernels of all tiers that make a product or a convolution, the quickest first.

    Args:
        last: whether the result of a convolution is to have the channels last.
        lie_last: whether its images lie so.
        inner: whether the node is the product of a convolution.
    """
    problem, made = problem_of(node, target)._replace(last=lie_last), list[Option]()
    for tier in of_convolutions(_measurable(target)) if inner else _measurable(target):
        candidate = tier.propose(problem) if node.op in tier.ops else ""
        if isinstance(candidate, str):
            continue
        if isinstance(candidate.cut, ChannelsLast):
            product = channels_last.as_product(node, Layouts(), last)
            its = options(product, target, inner=True)
            made += [one._replace(tier=f"{tier.name}{INNER}{one.tier}") for one in its]
            continue
        clocks_of = _cuts(candidate, problem)
        made += [Option(tier.name, cut_text(cut), time, tier, cut) for cut, time in clocks_of]
    return sorted(made, key=lambda one: one.clocks)


def _cuts(candidate: Candidate, problem: Problem) -> list[tuple[Any, float]]:
    """The cuts that a tier has chosen from, and their clocks."""
    product, target, best = problem.product, problem.target, candidate.cut
    if not isinstance(best, ProductCut):
        return [(best, candidate.clocks)]
    if candidate.tiles:
        many = mma_tiles.cuts_of(product, target, candidate.tiles)
        least = mma_tiles.clocks(best, product, target)
        extra = candidate.clocks - least  # of what its tier does besides
        return [(cut, mma_tiles.clocks(cut, product, target) + extra) for cut in many]
    return [(cut, clocks(cut, product, target)) for cut in cuts_of(product, target)]


def _measured(
    node: Node, target: Target, tuned: Tuned, inner: bool = False, lie_last: bool = False
) -> Choice | None:
    """The choice that a table has for a node, if its kernel is still made.

    Args:
        inner: whether the node is the product of a convolution with the channels last.
        lie_last: whether its images lie so.
    """
    outer, _, name = tuned.tier.rpartition(INNER)
    if not name or bool(outer) != inner:
        return None
    for one in options(node, target, lie_last=lie_last, inner=inner):
        if (one.tier, one.cut) == (name, tuned.cut):
            reason = f"{name} {one.cut}, measured {tuned.microseconds:.2f} us; "
            reason += f"the model: {tuned.model}, {tuned.model_microseconds:.2f} us"
            return _choice(one.row, one.value, problem_of(node, target), reason)
    return None


def _copies(tier: Tier, problem: Problem) -> bool:
    """Whether its operands are stored before, as they are multiplied."""
    if tier.stages in LIBRARY_STAGES:
        return True
    if problem.flops < WORTH_A_COPY:
        return False
    if tier.stages is tf32x3_stages:  # which loads a computed operand as well, and once here
        return min(problem.product.m, problem.product.n) > LOADED_ONCE
    return tier.stages in (mma_stages, tma_stages)


def problem_of(node: Node, target: Target) -> Problem:
    """What the choice of a node's tier depends on."""
    a, b = operands_of(node)
    *batch, m, k = a.shape
    streams = m <= FEW_ROWS and is_row_major(a, b)
    columns = node.attributes.get("windows")
    repeats = columns.repeats if columns else 1
    rows = columns is not None and columns.side == "a"
    itemsize = itemsize_of(node.dtype)
    product = Product(prod(batch), m, b.shape[-1], k, itemsize, streams, repeats, rows)
    return Problem(node, a, b, product, windows_of(node), target)


class Chosen(NamedTuple):
    """A plan whose products and convolutions have tiers.

    Attributes:
        outputs: the same values up to rounding.
        choices: the tier of each product and convolution.
        decisions: what the target's tuning table says, by the keys of the problems.
    """

    outputs: tuple[Node, ...]
    choices: dict[Node, Choice]
    decisions: dict[str, Decision]


def choose_algorithms(outputs: Sequence[Node], target: Target) -> Chosen:
    """The same values up to rounding, and the tier of each product and convolution.

    A convolution whose tier is several nodes is replaced by those.

    Args:
        outputs: of a plan, simplified.
        target: the machine.
    """
    choosing = _Choosing(topological(outputs), outputs, target)
    new: dict[Node, Node] = {}
    for node in choosing.order:
        made = with_sources(node, tuple(new[source] for source in node.sources))
        if node in choosing.by_library:
            new[node] = choosing.by_call(node, made)
        elif node in choosing.on_units:
            new[node] = choosing.on_matrix_units(node, made)
        elif node in choosing.either:
            new[node] = choosing.as_images_lie(node, made)
        elif node in choosing.thin:
            new[node] = choosing.of_thin_images(node, made)
        elif node.op.kind == "contraction" and 0 not in node.shape:
            new[node] = choosing.by_tier(node, made)
        else:
            new[node] = choosing.rearranged(node, made) if choosing.turns else made
    return Chosen(tuple(new[node] for node in outputs), choosing.choices, choosing.decisions)


class _Choosing:
    """The tiers of a plan's products and convolutions, and the order in which images lie.

    Attributes:
        order: the plan's nodes, sources first.
        choices: of products and convolutions so far.
        by_library: convolutions that a library makes, and whether with the channels last.
        on_units: convolutions that read images with the channels last, and whether these get more
            channels.
        either: those of few channels a group, which take images as they lie.
        thin: those of few channels in all, whose result, or cotangent, has its channels last.
        turns: whether what stands between them lies so, too.
        layouts: values that lie in another order than their axes.
        ends: movements that are all that reads a convolution.
        decisions: of the target's tuning table.
        in_order: those by which a convolution reads images in the order of their axes.
        others: tiers of convolutions that do not read images with the channels last.
        products: tiers of the products that convolutions become.
        convolving: tiers of the rung that makes all convolutions; empty if they are chosen by time.
    """

    def __init__(self, order: list[Node], outputs: Sequence[Node], target: Target) -> None:
        self.order, self.target, self.tiers = order, target, allowed()
        self.convolving = forced_convolutions()
        units = _of_rung(settings.convolution_tier) if self._on_units_alone() else ()
        self.products = of_convolutions(units or self.tiers)
        self.choices: dict[Node, Choice] = {}
        self.decisions: dict[str, Decision] = {}
        table = target.tuning
        self.others = tuple(tier for tier in self.tiers if tier.name != CHANNELS_LAST)
        self.problems = None if table is None else TuningProblems(order, outputs, table.libraries)
        self.in_order: dict[Node, Decision] = {}
        self.by_library = self._of_library(order)
        convolutions = [node for node in order if node.op in IMPLICIT and 0 not in node.shape]
        convolutions = [node for node in convolutions if node not in self.by_library]
        self.on_units = self._first(convolutions)
        self.either = {node for node in convolutions if self._takes_either(node)}
        self.layouts, self.ends, self.thin = Layouts(), set[Node](), set[Node]()
        # Parts of float32 are loaded from either order, and Winograd's tiles beside them from one.
        rounds = rounds_convolutions()
        self.turns = any(node.dtype.is_half or rounds for node in self.on_units)
        self.turns |= any(map(_lie_last, self.either))
        calls = {node for node, last in self.by_library.items() if last}
        self.turns |= bool(calls)
        if self.turns:
            while True:  # images that one convolution reads channels last, others may read so too
                last = calls.union(self.on_units)
                wants = wanted_orders(order, outputs, last, self.either, self.thin)
                count = len(self.on_units) + len(self.thin)
                self.on_units |= self._beside_others(convolutions, wants)
                self.thin |= self._before_others(convolutions, wants)
                if len(self.on_units) + len(self.thin) == count:
                    break
            self.layouts = Layouts(wants)
            self.ends = _only_reordered(order, outputs, self.on_units)

    def _of_library(self, order: Sequence[Node]) -> dict[Node, bool]:
        """Convolutions by calls, which want the channels last on matrix units."""
        made = [node for node in order if conv_library.makes(node, self.target)]
        return {node: node.dtype.is_half or rounds_convolutions() for node in made}

    def _first(self, convolutions: Sequence[Node]) -> dict[Node, bool]:
        """Convolutions that are quicker with the channels last even if images are turned for it."""
        wider_channels = {}
        for node in convolutions:
            if self._lies_last(node):
                wider_channels[node] = False
            elif channels_last.has_few_channels(node):
                wider = channels_last.with_whole_copies(node, Layouts())
                worth = problem_of(wider, self.target).flops >= WORTH_A_COPY
                if (worth or self.convolving) and self._lies_last(wider):
                    wider_channels[node] = True
        return wider_channels

    def _beside_others(
        self, convolutions: Sequence[Node], wants: dict[Node, int]
    ) -> dict[Node, bool]:
        """Convolutions of images that others read with the channels last."""
        others = [node for node in convolutions if node not in self.on_units]
        beside = (n for n in others if any(wants[x] & LAST for x in channels_last.images_of(n)))
        return {node: False for node in beside if self._lies_last(node, True)}

    def _before_others(self, convolutions: Sequence[Node], wants: dict[Node, int]) -> set[Node]:
        """Convolutions of few channels before others that read the channels last, with gradients.

        Stored in the order of its axes, their result would be transposed for its reader, and the
        cotangent transposed back.
        """
        others = [n for n in convolutions if n not in self.on_units and n not in self.either]
        thin = [node for node in others if channels_last.is_thin(node)]
        before = {n for n in thin if n.op is convolution and wants[n] & LAST}
        images = {node.sources[0] for node in before}
        return before.union(n for n in thin if n.op is not convolution and n.sources[1] in images)

    def _lies_last(self, node: Node, anyway: bool = False) -> bool:
        if self.convolving and not self._on_units_alone():
            return False
        problem = problem_of(node, self.target)._replace(last=anyway)
        proposals = [tier.propose(problem) for tier in self.tiers if tier.name == CHANNELS_LAST]
        if not any(isinstance(proposal, Candidate) for proposal in proposals):
            return False
        images = channels_last.images_of(node) if anyway else ()
        if (decision := self._lookup(node, node, images, anyway)) and decision.tier:
            last = decision.tier.startswith(CHANNELS_LAST)
            if not last:
                self.in_order[node] = decision
            return last
        tiers = self.convolving or self.tiers
        return isinstance(choose(node, self.target, tiers, anyway).cut, ChannelsLast)

    def _on_units_alone(self) -> bool:
        """Whether the rung that makes all convolutions is one of matrix units."""
        return any(tier.name == CHANNELS_LAST for tier in self.convolving)

    def _takes_either(self, node: Node) -> bool:
        if node in self.on_units or depthwise.refusal(node):
            return False
        if self.convolving:
            return any(tier.name == DEPTHWISE for tier in self.convolving)
        return isinstance(choose(node, self.target, self.tiers).cut, DepthwiseCut)

    def by_call(self, node: Node, made: Node) -> Node:
        """A convolution by a library, whose result lies as its operands do."""
        last, layouts = self.by_library[node], self.layouts
        choice = choose(made, self.target, self.tiers)
        call = self._chosen(conv_library.with_packed_operands(made, layouts, last), choice)
        if not last:
            return call
        axes = channels_first(len(made.shape))
        if made.op is not convolution_weight_gradient or layouts.in_last_order(node):
            return layouts.put(call, axes)
        return movement.permute(call, axes=axes)

    def as_images_lie(self, node: Node, made: Node) -> Node:
        """A convolution of few channels a group, or its weight gradient, of images as they lie."""
        images, layouts = channels_last.images_of(made), self.layouts
        if not any(map(layouts.last, images)):
            return self.by_tier(node, made)
        own = made.op is convolution
        decision = self._noted(node, made, own and layouts.in_last_order(node))
        choice = self._taken(decision, made, lie_last=True)
        choice = choice or choose(made, self.target, self.convolving or self.tiers, last=True)
        if not isinstance(choice.cut, DepthwiseCut):
            return self.by_tier(node, made, decision)
        axes = channels_first(len(made.shape))
        with gradient_mode(False), recorded_at(made.site):
            if own:
                return layouts.put(self._chosen(depthwise.with_channels_last(made), choice), axes)
            turned = (movement.permute(layouts.put_last(x), axes=axes) for x in images)
            return self._chosen(with_sources(made, tuple(turned)), choice)

    def on_matrix_units(self, node: Node, made: Node) -> Node:
        """A convolution as a product, whose result lies as its readers want it."""
        layouts, last = self.layouts, self.turns and self.layouts.in_last_order(node)
        decision = None if self.on_units[node] else self._noted(node, made, last)
        if decision and decision.tier and not decision.tier.startswith(CHANNELS_LAST):
            return self.by_tier(node, made, decision)
        if self.on_units[node]:
            made = channels_last.with_whole_copies(made, layouts)
        made = channels_last.as_product(made, layouts, last)
        choice = self._taken(decision, made, inner=True) or choose(made, self.target, self.products)
        made = self._chosen(made, choice._replace(copies=True))
        if last:
            made = layouts.put(made, channels_first(len(made.shape)))
        return channels_last.own_part(made, node)

    def of_thin_images(self, node: Node, made: Node) -> Node:
        """A convolution of few channels, or its weight gradient, beside images with these last."""
        layouts, own = self.layouts, made.op is convolution
        if not (layouts.in_last_order(node) if own else layouts.last(made.sources[0])):
            return self.by_tier(node, made)
        product = channels_last.as_thin_product(made, layouts)
        product = self._chosen(product, choose(product, self.target, self.products))
        return layouts.put(product, channels_first(len(made.shape))) if own else product

    def by_tier(self, node: Node, made: Node, decision: Decision | None = None) -> Node:
        """Any other product or convolution, which its tier may replace by several nodes."""
        sources = made.sources
        forced = forced_tiers() if made.op is matmul else self.convolving
        if decision is None and not forced and not self._by_provider(made):
            decision = self.in_order.get(node) or self._noted(node, made)
        tiers = forced or self.tiers
        if made.op in IMPLICIT:
            made = with_sources(made, tuple(map(self.layouts.row_major, made.sources)))
        choice = self._taken(decision, made) or choose(made, self.target, tiers)
        if isinstance(choice.cut, ChannelsLast):  # over what its sources have become
            choice = choose(made, self.target, self.others)
        if made.sources != sources:  # what was turned is stored so, not turned in each load
            choice = choice._replace(copies=True)
        if isinstance(choice.cut, TapSums):
            return tap_sums.as_sums(made)
        if isinstance(choice.cut, Im2col):
            made = im2col.as_product(made, self.layouts)
            tiers = forced_tiers() or self.products
            return self._chosen(made, choose(made, self.target, tiers))
        if isinstance(choice.cut, Tiles):
            made = by_tiles(made, choice.cut)
            (planes,) = made.sources
            self.choices[planes] = choose(planes, self.target, self.products)
        return self._chosen(made, choice)

    def _by_provider(self, made: Node) -> bool:
        """Whether the library that the user has chosen makes it, whatever another kernel takes."""
        tiers = PROVIDER_TIERS.get(settings.provider, ()) if made.op is matmul else ()
        problem = problem_of(made, self.target) if tiers else None
        return problem is not None and any(
            matmul in tier.ops and isinstance(tier.propose(problem), Candidate) for tier in tiers
        )

    def _chosen(self, made: Node, choice: Choice) -> Node:
        """Notes the tier of a node, whose operands it may want along k."""
        if choice.tier == CUBLAS:
            made = with_matrices(made, self.layouts)
        if choice.tier in (TF32, TMA_TF32):
            made = channels_last.k_major(made, lie_along_k(*made.sources), self.layouts)
        self.choices[made] = choice
        return made

    def _noted(self, node: Node, made: Node, last: bool = False) -> Decision | None:
        """What the tuning table has for a node; a problem that it lacks is noted as well.

        Args:
            made: the node over its new sources.
            last: whether its result is to have the channels last.
        """
        images = [x for x in made.sources if self.layouts.last(x) is not None]
        return self._lookup(node, made, images, last, note=True)

    def _lookup(
        self, node: Node, made: Node, images: Sequence[Node], last: bool, note: bool = False
    ) -> Decision | None:
        """The table's choice for a node whose `images` have the channels last."""
        table = self.target.tuning
        if self.problems is None or table is None or (self.convolving and node.op in IMPLICIT):
            return None
        problem = self.problems.problem(node, made, images, last)
        if note:
            self.decisions.setdefault(problem.key, Decision(problem, None))
        return Decision(problem, table.get(problem.key))

    def _taken(
        self, decision: Decision | None, made: Node, inner: bool = False, lie_last: bool = False
    ) -> Choice | None:
        """The measured choice, which is noted; None if there is none."""
        if decision is None or decision.tuned is None:
            return None
        choice = _measured(made, self.target, decision.tuned, inner, lie_last)
        if choice is not None:
            self.decisions[decision.problem.key] = decision
        return choice

    def rearranged(self, node: Node, made: Node) -> Node:
        """A node that multiplies nothing, over values in the order in which they lie."""
        made = self.layouts.rearranged(node, made)
        if node in self.ends and (stored := self.layouts.stored_as_read(made)) is not None:
            product, whole, made = stored
            self.choices[whole] = self.choices.pop(product)
        return made


def _lie_last(node: Node) -> bool:
    """Whether a program has images of a convolution with the channels last."""
    for x in channels_last.images_of(node):
        while x.op in (movement.pad, movement.slice_):
            (x,) = x.sources
        last = x.op is movement.permute and x.attributes["axes"] == channels_first(len(x.shape))
        if last and len(x.shape) > 2:
            return True
    return False


def _only_reordered(
    order: Sequence[Node], outputs: Sequence[Node], on_units: Container[Node]
) -> set[Node]:
    """Movements behind a convolution that are all that reads it."""
    count = dict.fromkeys(order, 0)
    for source in (*outputs, *(source for node in order for source in node.sources)):
        count[source] += 1
    ends, inside = set[Node](), {node for node in order if node in on_units and count[node] == 1}
    for node in order:
        if node.op is movement.reshape or node.op is movement.permute:
            (source,) = node.sources
            if source in inside and count[source] == 1:
                inside.add(node)
                ends.add(node)
    return ends


def with_compositions(
    outputs: Sequence[Node], target: Target, notes: list[str]
) -> tuple[Node, ...]:
    """The outputs, in which a row that has no kernel on the target is its composition.

    Args:
        outputs: of a plan, before they are simplified.
        target: the machine.
        notes: receives why there is no kernel for a row.
    """
    parts: dict[Node, tuple[Node, ...]] = {}
    new: dict[Node, Node] = {}
    for node in topological(outputs):
        if node.op is common.output and node.sources[0] in parts:
            new[node] = parts[node.sources[0]][node.attributes["index"]]
            continue
        new[node] = with_sources(node, tuple(new[source] for source in node.sources))
        if node.op is convolution_input_gradient and conv_library.makes(node, target):
            new[node] = conv_library.as_it_is(new[node])
            continue
        if attention_library.makes(new[node], target):
            new[node] = attention_library.with_values(new[node])
            continue
        row = _composed(node, target)
        refusal = row.refusal(node, target) if row is not None else ""
        if row is not None and refusal:
            notes.append(
                f"{node.op.name} {node.shape} {node.dtype.name} is a composition: {refusal}"
            )
            parts[node] = row.as_nodes(new[node])
            new[node] = parts[node][0]
    return tuple(new[node] for node in outputs)
