"""WINOGRAD: 3 x 3 convolutions as products of planes where that takes less time, and the
transforms around these products."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from tinygrad_cuda.backend.cuda import index as ix
from tinygrad_cuda.backend.cuda.direct import MOST_OUTPUTS, Windows, windows_of
from tinygrad_cuda.backend.cuda.expression import Evaluator, Lane, Scope
from tinygrad_cuda.backend.cuda.store import Stores, comment, is_wide, stem
from tinygrad_cuda.backend.cuda.template import THREADS, Stage, fill, wrapped
from tinygrad_cuda.backend.cuda.tiling import MULTIPROCESSORS, clocks, plan
from tinygrad_cuda.backend.cuda.words import Words
from tinygrad_cuda.core.dtypes import float32
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node, gradient_mode, recorded_at
from tinygrad_cuda.graph.ops import contraction, movement
from tinygrad_cuda.graph.ops.winograd import PARTS, TAPS, Part, tiles_of, unwinograd, winograd
from tinygrad_cuda.graph.order import topological
from tinygrad_cuda.graph.schedule import Kernel

LAUNCH = 5000  # clocks of a multiprocessor that a further kernel takes at least
TRAFFIC = 2000  # bytes between memory and all multiprocessors in a clock
NEAR = 128  # results of a block that are neighbours in memory at least, where that can be had
FEW = 4  # neighbours of a plane that a block loads at least, so that there are more blocks
PITCH = THREADS + 8  # elements from line to line of shared memory, against bank conflicts
GAIN = 0.9  # of the time of the usual product that this may take at most


# The choice ---------------------------------------------------------------------------------


def with_winograd(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """The same values up to rounding; each convolution in the form that takes the least time.

    Args:
        outputs: of a plan whose products have the order of their readers.
    """
    order = topological(outputs)
    new: dict[Node, Node] = {}
    with gradient_mode(False):
        for node in order:
            sources = tuple(new[source] for source in node.sources)
            same = sources == node.sources
            node_now = node if same else Node(
                node.op, sources, node.attributes, node.outputs, node.device, False, node.site
            )  # fmt: skip
            new[node] = node_now
            if node.op is contraction.matmul:
                with recorded_at(node.site):
                    new[node] = _filtered(node_now) or node_now
    return tuple(new[node] for node in outputs)


def _filtered(node: Node) -> Node | None:
    """A convolution's product, or that of its kernel's gradient, by tiles; None if it stays."""
    a, b = node.sources
    if node.dtype is not float32 or prod(node.shape) == 0 or prod(a.shape[:-2]) != 1:
        return None
    channels = a.shape[-2]
    windows = windows_of(b)
    if windows is not None:
        if not _suits(windows, channels) or not _known_order(node, windows, channels):
            return None
        form = form_of(windows, channels, False)
        return _result(node, windows, channels, form) if form else None
    windows = None if node.attributes else windows_of(b, turned=True)
    if windows is None or not _suits(windows, channels):
        return None
    form = form_of(windows, channels, True)
    return _taps(node, windows, channels, form) if form else None


def _suits(windows: Windows, channels: int) -> bool:
    """Whether a problem is one that tiles are made for."""
    ones = windows.stride == windows.dilation == (1, 1)
    few = min(channels, windows.channels) <= MOST_OUTPUTS
    return ones and windows.taps == (TAPS, TAPS) and not few


def _known_order(node: Node, windows: Windows, channels: int) -> bool:
    """Whether the product is stored as it is, or as images, their channels, their rows."""
    if not node.attributes:
        return True
    split = (channels, windows.images, prod(windows.places))
    return (node.attributes["split"], node.attributes["axes"]) == (split, (1, 0, 2))


def form_of(windows: Windows, channels: int, turned: bool) -> int:
    """Results of a tile along an axis where tiles take less time than a product of windows;
    else 0. It depends on shapes only."""
    m, n, k = channels, windows.images * prod(windows.places), TAPS * TAPS * windows.channels
    n, k = (k, n) if turned else (n, k)
    least, best = GAIN * clocks(plan(1, m, n, k, 4), 1, m, n, 4), 0
    for form in PARTS:
        if tiles_of(PARTS[form]["results"], *windows.places)[1] > THREADS:
            continue  # a block has whole rows of tiles
        time = _clocks(windows, channels, form, turned)
        if time < least:
            least, best = time, form
    return best


def _clocks(windows: Windows, channels: int, form: int, turned: bool) -> float:
    """An estimate of the time of all kernels, in clocks of a multiprocessor."""
    rows, columns = tiles_of(PARTS[form]["results"], *windows.places)
    places, planes = windows.images * rows * columns, (form + TAPS - 1) ** 2
    m, n, k = channels, places, windows.channels
    m, n, k = (k, m, n) if turned else (m, n, k)
    product = clocks(plan(planes, m, n, k, 4), planes, m, n, 4)
    operands = 4 * planes * (m * k + k * n + m * n)
    images = 4 * windows.images * prod(windows.places) * (channels + windows.channels)
    moved = operands + images + 4 * TAPS * TAPS * channels * windows.channels
    return max(product, operands / TRAFFIC) + moved / TRAFFIC + 3 * LAUNCH


# Nodes --------------------------------------------------------------------------------------


def _tiles(windows: Windows, form: int) -> Node:
    """The planes of a convolution's input."""
    rows, columns = tiles_of(PARTS[form]["results"], *windows.places)
    x, beyond = windows.inner, TAPS - 1
    shape = (*x.shape[:2], rows * form + beyond, columns * form + beyond)
    return winograd(_inside(x, shape, windows.top, windows.left), form=form, part="images")


def _inside(x: Node, shape: tuple[int, ...], top: int, left: int) -> Node:
    """x among zeros."""
    if shape == x.shape:
        return x
    return movement.pad(x, starts=(0, 0, top, left), shape=shape, steps=(1,) * 4, value=0)


def _result(node: Node, windows: Windows, channels: int, form: int) -> Node:
    """The convolution itself."""
    kernel = movement.reshape(
        node.sources[0], shape=(channels, windows.channels, TAPS, TAPS)
    )  # fmt: skip
    kernel = movement.permute(kernel, axes=(1, 0, 2, 3))
    kernels = winograd(kernel, form=form, part="kernels")
    planes = contraction.matmul(kernels, _tiles(windows, form))
    shape = (windows.images, channels, *windows.places)
    images = unwinograd(planes, form=form, part="results", shape=shape)
    if not node.attributes and windows.images > 1:  # wanted as it is: channels first
        images = movement.permute(images, axes=(1, 0, 2, 3))
    return movement.reshape(images, shape=node.shape)


def _taps(node: Node, windows: Windows, channels: int, form: int) -> Node:
    """The gradient of its kernel."""
    g = movement.reshape(
        node.sources[0], shape=(channels, windows.images, *windows.places)
    )  # fmt: skip
    g = movement.permute(g, axes=(1, 0, 2, 3))
    rows, columns = tiles_of(PARTS[form]["results"], *windows.places)
    whole = (windows.images, channels, rows * form, columns * form)
    cotangents = winograd(_inside(g, whole, 0, 0), form=form, part="cotangents")
    planes = contraction.matmul(_tiles(windows, form), contraction.transpose(cotangents))
    shape = (channels, windows.channels, TAPS, TAPS)
    taps = unwinograd(planes, form=form, part="taps", shape=shape)
    return movement.reshape(taps, shape=node.shape)


# Text ---------------------------------------------------------------------------------------


def tile_stages(kernel: Kernel) -> list[Stage]:
    """The one stage of a transform."""
    (node,) = kernel.anchors
    return [_planes(kernel, node) if node.op is winograd else _images(kernel, node)]


def _part_of(node: Node) -> Part:
    return PARTS[node.attributes["form"]][node.attributes["part"]]


def _sum(line: tuple[float, ...], names: Sequence[str]) -> str:
    """The sum of products of names with numbers; zeros, ones and signs cost nothing."""
    text = ""
    for number, name in zip(line, names, strict=True):
        if number:
            product = name if abs(number) == 1 else f"{float(f'{abs(number):.9g}')!r}f * {name}"
            sign = "-" if number < 0 else "+"
            text = f"{text} {sign} {product}" if text else f"-{product}"[number > 0 :]
    return text


def _lines(part: Part, to: str, names: Sequence[str]) -> list[str]:
    """Statements that multiply a line of a tile with the matrix; `{}` in `to` is its row."""
    return [f"{to.format(row)} = {_sum(line, names)};" for row, line in enumerate(part.matrix)]


def _planes(kernel: Kernel, node: Node) -> Stage:
    """From images, or whatever is evaluated in their place, to planes."""
    part, (x,) = _part_of(node), node.sources
    _, channels, places = node.shape
    images, _, height, width = x.shape
    beyond, lines = part.size - part.step, len(part.matrix)
    rows, columns = (height - beyond) // part.step, (width - beyond) // part.step
    words = Words()
    writer = Evaluator(words, set(kernel.reads), is_wide(kernel))
    outer, row, load = Scope("image", "channel", "tile_y", "tile_x"), Scope("u"), Scope("v")
    image, channel = ix.variable("image", images), ix.variable("channel", channels)
    y = ix.variable("tile_y", rows) * part.step + ix.variable("u", part.size)
    z = ix.variable("tile_x", columns) * part.step
    first, run = _run(part, x)
    v = ix.variable("v", run)
    writer.scopes, writer.lane = [outer, row, load], Lane(v, 1 if run % 2 else run)
    value = writer.value(x, (image, channel, y, z + first + v))
    load.lines.append(f"from[u][{first} + v] = {value};")
    writer.scopes, writer.lane = [outer, row], None
    for place in (*range(first), *range(first + run, part.size)):
        value = writer.value(x, (image, channel, y, z + place))
        row.lines.append(f"from[u][{place}] = {value};")
    store = Scope("g")
    writer.scopes = [Scope("channel", "place"), Scope("f"), store]
    plane = ix.variable("f", lines) * lines + ix.variable("g", lines)
    at = (plane, channel, ix.variable("place", places))
    stores = Stores(writer, kernel)
    stores.put(node, ix.flatten(at, node.shape), "to[g]")
    body = fill(
        "winograd.cuh",
        "planes",
        place=_place(writer, channels * places, places, rows * columns, columns, outer.lines),
        size=part.size,
        lines=lines,
        row=row.lines,
        run=run,
        load=load.lines,
        down=_lines(part, "half[{}][v]", [f"from[{u}][v]" for u in range(part.size)]),
        across=_lines(part, "to[{}]", [f"half[f][{v}]" for v in range(part.size)]),
        store=store.lines,
    )
    return _stage(kernel, node, body, words, -(-channels * places // THREADS), 0)


def _run(part: Part, x: Node) -> tuple[int, int]:
    """Which neighbours of a tile's row may be one vector in memory: the first, and how many."""
    left = x.attributes["starts"][3] if x.op is movement.pad else 0
    first = left % part.step if isinstance(left, int) else 0
    return (first, part.step) if first + part.step <= part.size else (0, part.size)


class _Block(NamedTuple):
    """What of the result of a transform to images a block makes.

    Attributes:
        channels, images: how many neighbouring ones; of one image it may be
        rows: so many rows of tiles only.
        lanes: neighbouring results that are stored together.
    """

    channels: int
    images: int
    rows: int
    lanes: int


def _block(part: Part, shape: Shape) -> _Block:
    """A block whose results lie together in memory, with a tile for most of its threads."""
    images, channels, height, width = shape
    rows, columns = tiles_of(part, height, width)
    tiles, plane = rows * columns, height * width
    if tiles > THREADS:
        assert columns <= THREADS, "no convolution with so long rows is made by tiles"
        lanes = next(wide for wide in (4, 2, 1) if plane % wide == width * part.step % wide == 0)
        return _Block(1, 1, THREADS // columns, lanes)
    several = [q for q in (1, 2, 4, 8, 16) if channels % q == 0 and q * tiles <= THREADS // 2]
    near = (q for q in several if q * plane >= NEAR and q * plane % 4 == 0)
    chosen = next(near, 1)
    lanes = next(wide for wide in (4, 2, 1) if chosen * plane % wide == 0)
    parts, each = channels // chosen, min(images, THREADS // (chosen * tiles))
    while each > 1 and each * tiles > FEW and parts * -(-images // each) < 2 * MULTIPROCESSORS:
        each = -(-each // 2)
    return _Block(chosen, each, rows, lanes)


def _images(kernel: Kernel, node: Node) -> Stage:
    """From planes to images, through the epilogue into memory."""
    part, (x,) = _part_of(node), node.sources
    images, channels, height, width = node.shape
    rows, columns = tiles_of(part, height, width)
    block = _block(part, node.shape)
    bands, plane, lanes = -(-rows // block.rows), height * width, block.lanes
    run = block.rows * part.step * width if bands > 1 else block.channels * plane
    words = Words()
    writer = Evaluator(words, set(kernel.reads), is_wide(kernel))
    before, load = Scope("channel", "place"), Scope("f", "g")
    writer.scopes = [before, load]
    plane_at = ix.variable("f", part.size) * part.size + ix.variable("g", part.size)
    at = (plane_at, ix.variable("channel", channels), ix.variable("place", x.shape[2]))
    value = writer.value(x, at)
    strip, v = ix.variable("strip", channels * plane // lanes), ix.variable("v", lanes)
    flat = ix.variable("image", images) * (channels * plane) + strip * lanes + v
    outer, strip_load, map_ = Scope(), Scope("image", "strip"), Scope("v")
    writer.scopes, writer.lane = [outer, strip_load, map_], Lane(v, lanes)
    stores = Stores(writer, kernel)
    writer.anchored[node] = "total"
    writer.floors = dict.fromkeys(kernel.nodes, 2)
    for stored in kernel.stores:
        stores.put(stored, flat, writer.value(stored, ix.unflatten(flat, stored.shape)))
    band_tiles, parts = block.rows * columns, channels // block.channels
    strips = block.channels * plane // lanes
    sizes = {
        "threads": THREADS,
        "channel_groups": parts,
        "several": block.channels,
        "part_strips": strips,
        "images": images,
        "images_each": block.images,
        "bands": bands,
        "band_rows": block.rows,
        "band_tiles": band_tiles,
        "tiles_each": block.images * band_tiles,
        "active": block.channels * block.images * band_tiles,
        "tiles": rows * columns,
        "columns": columns,
        "width": width,
        "plane_elements": plane,
        "pitch": PITCH,
        "size": part.size,
        "lines": part.step,
        "turns": -(-block.images * run // (lanes * THREADS)),
        "run": run // lanes,
        "items": block.images * run // lanes,
        "run_elements": run,
        "lanes": lanes,
    }
    inside = [f"band * {run // lanes} + along < {strips}"] if bands > 1 else []
    inside += [f"image < {images}"] if images % block.images else []
    together = width % lanes == part.step % lanes == 0  # a strip lies in a row of one tile
    place = fill("winograd.cuh", "result", lane="" if together else " + v", **sizes)
    body = fill(
        "winograd.cuh",
        "images",
        **sizes,
        before=before.lines,
        load=load.lines,
        value=value,
        down=_lines(part, "half[{}][v]", [f"from[{u}][v]" for u in range(part.size)]),
        across=_lines(part, "to[{}]", [f"half[f][{v}]" for v in range(part.size)]),
        outer=outer.lines,
        inside=f" && {' && '.join(inside)}" if inside else "",
        strip_load=strip_load.lines,
        strip_place=place if together else [],
        lane_place=[] if together else place,
        lane_step=f"v * {PITCH}" if together else "0",
        map=map_.lines,
        store=stores.after,
    )
    blocks = parts * bands * -(-images // block.images)
    return _stage(kernel, node, body, words, blocks, 4 * part.step**2 * PITCH)


def _place(
    writer: Evaluator, items: int, places: int, tiles: int, columns: int, outer: Sequence[str]
) -> str:
    """Which tile is the thread's, and what it needs to know of it."""
    return fill(
        "winograd.cuh",
        "place",
        index="long long" if writer.wide else "int",
        threads=THREADS,
        items=items,
        places=places,
        tiles=tiles,
        columns=columns,
        outer=outer,
    )


def _stage(kernel: Kernel, node: Node, body: str, words: Words, blocks: int, shared: int) -> Stage:
    form, part = node.attributes["form"], node.attributes["part"]
    label = comment(kernel, f"WINOGRAD F({form} x {form}, {TAPS} x {TAPS}), {part}", blocks)
    return wrapped(kernel, f"{stem(kernel)}_{part}", body, words.list, blocks, shared, label)
