"""Products, convolutions and attention of random shapes and layouts on each tier of the kernels.

A program's first step names the tier that makes every product it takes, with a tile, a number of
slices of k and a number of multiprocessors that are drawn, whatever the cost model says; or else a
library, or the tuner by a clock that draws. Results and gradients are compared with NumPy in
float64 on the same values.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import tinygrad_cuda as tc
from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.launch import tuner
from tinygrad_cuda.backend.launch.tuning_cache import TuningCache
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import as_device
from tinygrad_cuda.engine import plan as plans
from tinygrad_cuda.lowering import algorithms
from tinygrad_cuda.lowering.schedule import fuse_product_columns
from tinygrad_cuda.lowering.skeletons.contract import mma_tiles
from tinygrad_cuda.lowering.skeletons.contract.tile_heuristics import split_k
from tinygrad_cuda.lowering.skeletons.conv.depthwise import depthwise_cuts_of

F = tc.nn.functional
Array = np.ndarray[Any, Any]
Step = tuple[Any, ...]

LONG = {"cpu": 1_000, "emu": 1_000, "cuda": 2_000}
HALVES = ("bfloat16", "float16")
FLOATS = ("float32",)
# Of the largest element: what one rounding of a result may be, and what operands lose.
EPSILON = {"bfloat16": 2.0**-8, "float16": 2.0**-10, "float32": 2.0**-19}
TF32 = 2.0**-9
LEAST = 0.02
VANISHING = 1e-12


class Forced(NamedTuple):
    """The dtypes that a tier takes, and the precision that permits it."""

    dtypes: tuple[str, ...]
    precision: str = "highest"


TIERS = {
    "wgmma tma": Forced(HALVES),
    "wgmma": Forced(HALVES),
    "mma": Forced(HALVES),
    "wgmma tma tf32": Forced(FLOATS, "high"),
    "wgmma tf32": Forced(FLOATS, "high"),
    "wgmma tf32x3": Forced(FLOATS, "tf32x3"),
    "mma tf32x3": Forced(FLOATS, "tf32x3"),
    "register_tiled": Forced(("float32", "bfloat16")),
}
SIZES = (1, 2, 3, 7, 8, 16, 24, 31, 33, 63, 64, 65, 72, 96, 127, 128, 129, 136, 200)
# Rows of these many elements are of 16 bytes each, which TMA asks for.
ALIGNED = (8, 16, 24, 64, 72, 96, 128, 136, 200, 264)
MOST = 600_000  # products of one program
THIN = 0.15  # share of programs that convolve few channels a group
NETWORKS = 0.1  # and of those with several convolutions
SAME = 12  # one operand in so many is one value for all its elements, which has no gradient
# Behind equal values their gradients are 0 but for rounding.
CANCELLING = {"attention", "convolutions", "softmax"}
DEPTHWISE = (algorithms.DEPTHWISE, algorithms.DEPTHWISE_GRADIENT)
# How often each tier made a product, summed over a campaign's programs.
events: dict[str, int] = dict.fromkeys(TIERS, 0)


# Programs -----------------------------------------------------------------------------------------


def generate(seed: int) -> list[Step]:
    """A tier, a product, what is done with its result, and perhaps a backward pass."""
    share = random.Random(f"groups {seed}").random()
    if share < THIN:
        return of_thin_groups(seed)
    if share > 1 - NETWORKS:
        return of_several_convolutions(seed)
    draw = random.Random(seed)
    name = draw.choice(list(TIERS))
    dtype = draw.choice(TIERS[name].dtypes)
    steps: list[Step] = [("tier", name, draw.getrandbits(32))]
    kind = draw.choice(("matmul", "matmul", "batched", "linear", "convolution", "attention"))
    steps.append(("product", kind, dtype, draw.getrandbits(32)))
    for _ in range(draw.choice((0, 0, 1, 1, 2, 3))):
        steps.append(("epilogue", draw.choice(list(EPILOGUES)), draw.getrandbits(32)))
    if draw.random() < 0.6:
        steps.append(("backward", draw.getrandbits(32)))
    return steps


def of_thin_groups(seed: int) -> list[Step]:
    """A convolution of few channels a group, whose kernels have cuts that are drawn."""
    draw = random.Random(f"thin groups {seed}")
    dtype = draw.choice((*HALVES, *FLOATS))
    steps: list[Step] = [("groups", draw.getrandbits(32))]
    steps.append(("product", "thin groups", dtype, draw.getrandbits(32)))
    for _ in range(draw.choice((0, 0, 1, 2))):
        steps.append(("epilogue", draw.choice(list(EPILOGUES)), draw.getrandbits(32)))
    return [*steps, ("backward", draw.getrandbits(32))] if draw.random() < 0.8 else steps


def of_several_convolutions(seed: int) -> list[Step]:
    """Convolutions one behind another, whose values lie with the channels last between them."""
    draw = random.Random(f"convolutions {seed}")
    name = draw.choice([name for name in TIERS if TIERS[name].precision != "tf32x3"])
    dtype = draw.choice(TIERS[name].dtypes)
    steps: list[Step] = [("tier", name, draw.getrandbits(32))]
    steps.append(("product", "convolutions", dtype, draw.getrandbits(32)))
    return [*steps, ("backward", draw.getrandbits(32))] if draw.random() < 0.9 else steps


class Leaves:
    """The random operands of a run, the same ones for each device and dtype."""

    def __init__(self, dtype: str, device: str, exact: bool, same: bool) -> None:
        self.rounded = getattr(tc, dtype)
        self.dtype = tc.float64 if exact else self.rounded
        self.device = device
        self.same = same  # whether some are one value for all their elements
        self.every: list[Any] = []

    def __call__(self, draw: random.Random, *shape: int) -> Any:
        seed = draw.getrandbits(32)
        same = self.same and seed % SAME == 0
        values = np.random.default_rng(seed).standard_normal((1,) * len(shape) if same else shape)
        rounded = tc.tensor(values, dtype=self.rounded, device="cpu").to(self.dtype)
        if same:
            return rounded.to(self.device).expand(*shape)
        leaf = rounded.to(self.device).requires_grad_()
        self.every.append(leaf)
        return leaf


def operand(leaves: Leaves, draw: random.Random, *shape: int) -> Any:
    """A tensor of a shape, in memory, or as a view or an expression of what is there."""
    *batch, rows, columns = shape
    kind = draw.randrange(9)
    if kind == 0:
        return leaves(draw, *batch, columns, rows).transpose(-1, -2)
    if kind == 1:
        first = draw.randrange(9)
        return leaves(draw, *batch, rows + 3, columns + first)[..., 2:-1, first:]
    if kind == 2:
        return leaves(draw, *batch, rows, 2 * columns)[..., ::2]
    if kind == 3:
        return leaves(draw, *batch, 1, columns).expand(*shape)
    if kind == 4 and batch:
        return leaves(draw, rows, *batch, columns).movedim(0, -2)
    if kind == 5 and batch:
        return leaves(draw, rows, columns).expand(*shape)
    if kind == 6:
        return leaves(draw, *shape).sigmoid() - 0.5
    return leaves(draw, *shape)


# Products -----------------------------------------------------------------------------------------


def sizes(draw: random.Random, count: int, most: int = MOST) -> list[int]:
    """Lengths whose product is not above `most`."""
    while True:
        lengths = draw.choice((SIZES, ALIGNED, ALIGNED))
        chosen = [draw.choice(lengths) for _ in range(count)]
        if int(np.prod(chosen)) <= most:
            return chosen


def _matmul(leaves: Leaves, draw: random.Random) -> Any:
    m, n, k = sizes(draw, 3)
    return operand(leaves, draw, m, k) @ operand(leaves, draw, k, n)


def _batched(leaves: Leaves, draw: random.Random) -> Any:
    m, n, k = sizes(draw, 3, MOST // 4)
    first, second = draw.choice((((3,), (3,)), ((2, 2), (2, 2)), ((3,), (1,)), ((2,), ())))
    return operand(leaves, draw, *first, m, k) @ operand(leaves, draw, *second, k, n)


def _linear(leaves: Leaves, draw: random.Random) -> Any:
    m, n, k = sizes(draw, 3)
    bias = leaves(draw, n) if draw.random() < 0.7 else None
    return F.linear(operand(leaves, draw, m, k), operand(leaves, draw, n, k), bias)


def _convolution(leaves: Leaves, draw: random.Random) -> Any:
    groups = draw.choice((1, 1, 1, 2))
    channels, outputs = (groups * draw.choice((1, 3, 4, 8, 16, 24, 32)) for _ in "co")
    height, width, kernel = draw.randint(3, 9), draw.randint(3, 9), draw.choice((1, 2, 3))
    x = leaves(draw, draw.choice((1, 2, 3)), channels, height, width)
    if draw.random() < 0.5:
        x = x.contiguous(memory_format=tc.channels_last)
    weight = leaves(draw, outputs, channels // groups, kernel, kernel)
    options = {"stride": draw.choice((1, 1, 2)), "padding": draw.choice((0, 1))}
    dilation = draw.choice((1, 1, 2)) if kernel == 2 else 1
    bias = leaves(draw, outputs) if draw.random() < 0.4 else None
    return F.conv2d(x, weight, bias, groups=groups, dilation=dilation, **options)


def _thin_groups(leaves: Leaves, draw: random.Random) -> Any:
    """One channel or a few in each group, multipliers 1 to 4, windows of any form."""
    inner, outputs = draw.choice(((1, 1), (1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (4, 1), (3, 4)))
    while True:
        images, groups = draw.choice((1, 2, 3)), draw.choice((2, 3, 4, 5, 8, 16, 33))
        size = [draw.randint(1, 15) for _ in "hw"]
        kernel = [draw.choice((1, 2, 3, 3, 5, 7)) for _ in "hw"]
        terms = images * groups * inner * outputs * int(np.prod(size)) * int(np.prod(kernel))
        if terms <= MOST // 4:
            break
    stride, dilation = ([draw.choice((1, 1, 2, 3)) for _ in "hw"] for _ in "sd")
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    least = [max(0, (r - n + 2) // 2) for r, n in zip(reach, size, strict=True)]
    padding = [draw.randint(few, max(few, r)) for few, r in zip(least, reach, strict=True)]
    x = leaves(draw, images, groups * inner, *size)
    if draw.random() < 0.5:
        x = x.contiguous(memory_format=tc.channels_last)
    weight = leaves(draw, groups * outputs, inner, *kernel)
    bias = leaves(draw, groups * outputs) if draw.random() < 0.4 else None
    return F.conv2d(
        x, weight, bias, tuple(stride), tuple(padding), tuple(dilation), groups=groups
    )  # fmt: skip


def _filtered(
    leaves: Leaves, draw: random.Random, x: Any, outputs: int, stride: int, last: bool = False
) -> Any:
    """A convolution that leaves magnitudes about as they are.

    Only the last one's bias has a gradient: behind others may stand a norm, in which it cancels.
    """
    kernel, groups = draw.choice((1, 2, 3)), draw.choice((1, 1, 1, 2))
    if x.shape[1] % groups or outputs % groups:
        groups = 1
    inner = x.shape[1] // groups
    weight = leaves(draw, outputs, inner, kernel, kernel) * (inner * kernel * kernel) ** -0.5
    bias = leaves(draw, outputs) if draw.random() < 0.3 else None
    if bias is not None and not last:
        bias = bias.detach()
    return F.conv2d(x, weight, bias, stride, kernel // 2, groups=groups)


def _residual(leaves: Leaves, draw: random.Random, x: Any) -> Any:
    """A block whose shortcut has one tap, perhaps with a stride."""
    outputs, stride = draw.choice((8, 16, 24)), draw.choice((1, 2))
    weight = leaves(draw, outputs, x.shape[1], 1, 1) * x.shape[1] ** -0.5
    y = _filtered(leaves, draw, x, outputs, stride)
    shortcut = F.conv2d(x, weight, None, stride)
    rows, columns = (min(a, b) for a, b in zip(y.shape[2:], shortcut.shape[2:]))
    return (y[..., :rows, :columns] + shortcut[..., :rows, :columns]) * 0.7


BETWEEN: dict[str, Callable[[Leaves, random.Random, Any], Any]] = {
    "scale": lambda leaves, draw, x: x * (leaves(draw, x.shape[1], 1, 1) * 0.2 + 1),
    "tanh": lambda leaves, draw, x: x.tanh(),
    "silu": lambda leaves, draw, x: F.silu(x),
    "norm": lambda leaves, draw, x: F.group_norm(x, 1, eps=0.5),
    "channel norm": lambda leaves, draw, x: F.batch_norm(x, None, None, training=True, eps=0.5),
    "pool": lambda leaves, draw, x: F.avg_pool2d(x, 2, 1) if min(x.shape[2:]) > 2 else x,
    "enlarged": lambda leaves, draw, x: F.interpolate(x[..., :4, :4], scale_factor=2),
    "flipped": lambda leaves, draw, x: x.flip(draw.choice((2, 3))),
    "turned": lambda leaves, draw, x: x.transpose(2, 3),
    "padded": lambda leaves, draw, x: F.pad(x, (1, 0, 0, 2), value=0.5),
    "joined": lambda leaves, draw, x: tc.cat([x, x * 0.5], 1) if x.shape[1] < 17 else x,
    "residual": _residual,
}


def _convolutions(leaves: Leaves, draw: random.Random) -> Any:
    """A network of images of few channels."""
    channels = draw.choice((1, 1, 2, 3, 3, 8, 16))
    x = leaves(draw, draw.choice((1, 2, 3)), channels, draw.randint(4, 9), draw.randint(4, 9))
    if draw.random() < 0.3:
        x = x.contiguous(memory_format=tc.channels_last)
    for _ in range(draw.choice((2, 3, 4))):
        x = _filtered(leaves, draw, x, draw.choice((8, 16, 24, 32)), draw.choice((1, 1, 2)))
        for _ in range(draw.choice((0, 1, 1, 2))):
            x = BETWEEN[draw.choice(list(BETWEEN))](leaves, draw, x)
    return _filtered(leaves, draw, x, draw.choice((1, 8, 16)), 1, last=True)


def _attention(leaves: Leaves, draw: random.Random) -> Any:
    heads, shared = draw.choice(((1, 1), (2, 1), (2, 2), (4, 2)))
    t, s = draw.choice((1, 5, 16, 33, 64, 70)), draw.choice((1, 7, 16, 40, 64, 90))
    width = draw.choice((16, 32, 40, 64))

    def lines(count: int, length: int) -> Any:
        if draw.random() < 0.5:
            return leaves(draw, 2, length, count, width).transpose(1, 2)
        return leaves(draw, 2, count, length, width)

    q, k, v = lines(heads, t), lines(shared, s), lines(shared, s)
    kind = draw.choice(("all", "all", "causal", "mask"))
    mask = None
    if kind == "mask":
        visible = np.random.default_rng(draw.getrandbits(32)).random((t, s)) < 0.7
        mask = tc.tensor(visible, device=leaves.device)
    causal = kind == "causal" and t <= s
    return F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, enable_gqa=heads != shared)


PRODUCTS: dict[str, Callable[[Leaves, random.Random], Any]] = {
    "matmul": _matmul,
    "batched": _batched,
    "linear": _linear,
    "convolution": _convolution,
    "thin groups": _thin_groups,
    "convolutions": _convolutions,
    "attention": _attention,
}


# What is done with a result. No function has a kink: a rounding may not decide a slope. -----------


def _masked(y: Any, leaves: Leaves, draw: random.Random) -> Any:
    chosen = np.random.default_rng(draw.getrandbits(32)).random(tuple(y.shape)) < 0.8
    return tc.where(tc.tensor(chosen, device=leaves.device), y, 0.25)


EPILOGUES: dict[str, Callable[[Any, Leaves, random.Random], Any]] = {
    "bias": lambda y, leaves, draw: y + leaves(draw, y.shape[-1]),
    "column": lambda y, leaves, draw: y * leaves(draw, y.shape[-2], 1),
    "residual": lambda y, leaves, draw: y + leaves(draw, *y.shape),
    "scale": lambda y, leaves, draw: y * 0.375,
    "gelu": lambda y, leaves, draw: F.gelu(y, approximate=draw.choice(("none", "tanh"))),
    "tanh": lambda y, leaves, draw: (y * 0.125).tanh(),
    "mask": _masked,
    "softmax": lambda y, leaves, draw: y.softmax(-1) * 4,
    "transposed": lambda y, leaves, draw: y.transpose(-1, -2),
    "flat": lambda y, leaves, draw: y.reshape(-1, y.shape[-1]),
    "joined": lambda y, leaves, draw: tc.cat([y, leaves(draw, *y.shape[:-1], 5)], -1),
    "part": lambda y, leaves, draw: y[..., :, : max(1, y.shape[-1] - 1)],
    "padded": lambda y, leaves, draw: F.pad(y, (1, 2)),
    "column sums": lambda y, leaves, draw: y + y.sum(-2, keepdim=True) * 0.125,
    "row sums": lambda y, leaves, draw: y + y.sum(-1, keepdim=True) * 0.125,
}


# Runs ---------------------------------------------------------------------------------------------


def run(program: list[Step], device: str, exact: bool) -> list[Array]:
    """The result, and the gradients of the operands where the program asks for them."""
    leaves: Leaves | None = None
    y: Any = None
    gradients: list[Any] = []
    for step in program:
        draw = random.Random(step[-1])
        if step[0] == "product":
            leaves = Leaves(step[2], device, exact, not CANCELLING & {one[1] for one in program})
            y = PRODUCTS[step[1]](leaves, draw)
        elif leaves is not None and step[0] == "epilogue":
            y = EPILOGUES[step[1]](y, leaves, draw)
        elif leaves is not None and step[0] == "backward":
            leaves.same = False
            if y.requires_grad:
                (y * leaves(draw, *y.shape).detach()).sum().backward()
            gradients = [leaf.grad for leaf in leaves.every if leaf.grad is not None]
    results = [] if y is None else [y, *gradients]
    return [tensor.detach().double().cpu().numpy() for tensor in results]


def _free(propose: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    """A tier's proposal that takes no time."""

    def proposed(problem: Any) -> Any:
        candidate = propose(problem)
        if isinstance(candidate, algorithms.Candidate):
            events[name] = events.get(name, 0) + (name in TIERS)
            return candidate._replace(clocks=0)
        return candidate

    return proposed


@contextmanager
def forced(name: str, device: str, number: int) -> Iterator[None]:
    """All products that a tier can make are made by it, with tiles that are drawn."""
    draw, backend = random.Random(number), registry.get(as_device(device))
    names = ("TIERS", "WORTH_A_COPY", "WORTH_A_SPLIT", "SPLIT_K")
    before = {name: getattr(algorithms, name) for name in names}
    chosen, target = mma_tiles.quickest_cut, backend.target
    worth, join = fuse_product_columns.WORTH, fuse_product_columns.join

    def quickest_cut(product: Any, machine: Any, tiles: Any) -> Any:
        fitting = [tile for tile in tiles if tile.shared <= machine.block_shared]
        return split_k(draw.choice(fitting), product.k, draw.choice((1, 1, 2, 3)))

    def counted(*parts: Any) -> None:
        events["columns"] = events.get("columns", 0) + 1
        join(*parts)

    algorithms.TIERS = tuple(
        replace(tier, propose=_free(tier.propose, tier.name))
        if tier.name in (name, "channels last")
        else tier
        for tier in algorithms.TIERS
    )
    algorithms.WORTH_A_COPY = algorithms.WORTH_A_SPLIT = 0
    algorithms.SPLIT_K = dict.fromkeys(algorithms.SPLIT_K, 0)
    mma_tiles.quickest_cut = quickest_cut
    fuse_product_columns.WORTH, fuse_product_columns.join = 0, counted
    few = draw.choice((1, 2, 3, target.multiprocessors))
    backend.target = replace(target, multiprocessors=few)
    try:
        with settings.override(matmul_precision=TIERS[name].precision):
            forget()
            yield
    finally:
        for saved, value in before.items():
            setattr(algorithms, saved, value)
        mma_tiles.quickest_cut = chosen
        fuse_product_columns.WORTH, fuse_product_columns.join = worth, join
        backend.target = target
        forget()


@contextmanager
def drawn_cuts(number: int) -> Iterator[None]:
    """Convolutions of few channels a group have kernels of their own, whose cuts are drawn."""
    draw = random.Random(number)
    tiers, chosen = algorithms.TIERS, algorithms.depthwise_cut_of

    def cut_of(grouped: Any, target: Any, last: bool) -> Any:
        cuts = list(depthwise_cuts_of(grouped, target, last))
        events["depthwise"] = events.get("depthwise", 0) + bool(cuts)
        return draw.choice(cuts) if cuts else None

    algorithms.depthwise_cut_of = cut_of
    algorithms.TIERS = tuple(
        replace(tier, propose=_free(tier.propose, tier.name)) if tier.name in DEPTHWISE else tier
        for tier in tiers
    )
    try:
        forget()
        yield
    finally:
        algorithms.TIERS, algorithms.depthwise_cut_of = tiers, chosen
        forget()


def by_library(seed: int, provider: str) -> list[Step]:
    """The program of a seed, whose products a library makes."""
    return [("provider", provider, seed), *generate(seed)[1:]]


@contextmanager
def tuned(device: str, number: int) -> Iterator[None]:
    """Products and convolutions are made by candidates that are drawn, as if they were quickest."""
    draw, backend = random.Random(number), registry.get(as_device(device))
    before = [(owner, name, getattr(owner, name)) for owner, name in (
        (tuner, "PER_TIER"), (tuner, "WITHIN"), (TuningCache, "read"), (TuningCache, "write"),
    )]  # fmt: skip

    def clock(run: Callable[[], None], name: str) -> float:
        run()
        return draw.uniform(1, 2)

    tuner.PER_TIER, tuner.WITHIN = 1, 1e9
    TuningCache.read = lambda self: {}
    TuningCache.write = lambda self, key, choice: None
    backend.measured = clock
    try:
        with tc.tune():
            yield
            events["tuned"] = events.get("tuned", 0) + sum(bool(c.tier) for c in backend.tuned())
    finally:
        tc.tune("off")
        del backend.measured
        for owner, name, value in before:
            setattr(owner, name, value)


def by_tuning(seed: int) -> list[Step]:
    """The program of a seed, whose kernels are drawn from all that a tuner would measure."""
    return [("tuned", seed), *generate(seed)[1:]]


def forget() -> None:
    """No plan that was made under another choice serves a program."""
    plans.cache.clear()
    for room in plans.forgetting:
        room()


def check(program: list[Step], device: str) -> str | None:
    """None, or what differs from NumPy in float64 by more than roundings."""
    wanted = run(program, "cpu", exact=True)
    if not wanted:
        return None
    tiers = [step for step in program if step[0] == "tier"]
    if program[0][0] == "provider":
        with tc.kernels.provider(program[0][1]):
            results = run(program, device, exact=False)
    elif program[0][0] == "tuned":
        with tuned(device, program[0][1]):
            results = run(program, device, exact=False)
    elif tiers and device != "cpu":
        with forced(tiers[0][1], device, tiers[0][2]):
            results = run(program, device, exact=False)
    elif program[0][0] == "groups" and device != "cpu":
        with drawn_cuts(program[0][1]):
            results = run(program, device, exact=False)
    else:
        results = run(program, device, exact=False)
    dtype = next(step[2] for step in program if step[0] == "product")
    rounded = tiers and TIERS[tiers[0][1]].precision == "high"
    epsilon = TF32 if rounded else EPSILON[dtype]
    network = any(step[:2] == ("product", "convolutions") for step in program)
    # Terms of gradients may cancel to 0: they are as large as the largest of all results.
    most = max((np.abs(want).max(initial=0) for want in wanted), default=0)
    # Gradients of attention pass through three products, and rows of one key cancel to 0.
    # Those of a network pass through all of its convolutions, twice.
    chained = any(step[:2] == ("product", "attention") for step in program)
    allowed = epsilon * (3 + 2 * len(program) + 4 * chained + 12 * network)
    for number, (computed, want) in enumerate(zip(results, wanted, strict=True)):
        name = "result" if number == 0 else f"gradient {number - 1}"
        if computed.shape != want.shape:
            return f"shape of {name}: {computed.shape}, expected {want.shape}"
        error = np.abs(computed - want)
        largest = np.abs(want).max(initial=0)
        # One that vanishes, as behind a softmax of equal values, is a sum of rounded values.
        largest = most if largest < VANISHING * most else max(largest, LEAST * most)
        wrong = ~(error <= allowed * largest)
        if wrong.any():
            at = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error)), error.shape)
            return (
                f"values of {name}: {computed[at]} at {tuple(map(int, at))}, expected {want[at]}, "
                f"largest {largest:.3g}, {wrong.sum()} of {error.size} differ"
            )
    return None
