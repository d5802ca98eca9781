"""winograd_transforms: the transforms around products of planes, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import movement
from tinygrad_cuda.graph.ops.winograd import PARTS, TAPS, TransformPart, tiles_of, winograd
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import Evaluator, Lane, Scope, Stores, is_wide
from tinygrad_cuda.lowering.codegen.skeleton import (
    THREADS,
    KernelParams,
    Stage,
    comment,
    fill,
    stem,
    wrapped,
)
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.target import Target

NEAR = 128  # neighbouring outputs of a block in memory at least, where channels allow it
FEW = 4  # neighbouring tiles that a block loads at least when more blocks are needed
PITCH = THREADS + 8  # elements from row to row of shared memory, against bank conflicts


def winograd_stages(kernel: Kernel) -> list[Stage]:
    """The one stage of a transform."""
    (node,) = kernel.anchors
    return [_planes(kernel, node) if node.op is winograd else _images(kernel, node)]


def _part_of(node: Node) -> TransformPart:
    return PARTS[node.attributes["form"]][node.attributes["part"]]


def _sum(line: tuple[float, ...], names: Sequence[str]) -> str:
    """The sum of products of names with numbers; zeros, ones and signs cost nothing.

    Terms without a factor come first: each of the others then costs one instruction.
    """
    text = ""
    terms = [(number, name) for number, name in zip(line, names, strict=True) if number]
    for number, name in sorted(terms, key=lambda term: abs(term[0]) != 1):
        factor, sign = f"{float(f'{number:.9g}')!r}f", "-" if number < 0 else "+"
        if abs(number) != 1:
            text = f"tgc_fma({factor}, {name}, {text})" if text else f"{factor} * {name}"
        elif text:
            text = f"{text} {sign} {name}"
        else:
            text = f"-{name}"[number > 0 :]
    return text


def _transformed(part: TransformPart, each: Sequence[str]) -> str:
    """The matrix on both sides of the tile in `from`; `each` takes what comes out at f, g."""
    columns = [f"from[{u}][v]" for u in range(part.size)]
    rows = [f"half[f][{v}]" for v in range(part.size)]
    lines = list(enumerate(part.matrix))
    return fill(
        "winograd_transforms.cuh",
        "tile",
        size=part.size,
        lines=len(part.matrix),
        down=[f"half[{f}][v] = {_sum(line, columns)};" for f, line in lines],
        across=[f"to[{f}] = {_sum(line, rows)};" for f, line in lines],
        each=each,
    )


def _planes(kernel: Kernel, node: Node) -> Stage:
    """From images, evaluated inline where they are cheap, to planes."""
    part, (x,) = _part_of(node), node.sources
    _, channels, image_tiles = node.shape
    images, _, height, width = x.shape
    beyond, lines = part.size - part.step, len(part.matrix)
    rows, columns = (height - beyond) // part.step, (width - beyond) // part.step
    words = KernelParams()
    writer = Evaluator(words, set(kernel.reads), is_wide(kernel), kernel.narrowed)
    outer, row, load = Scope("image", "channel", "tile_y", "tile_x"), Scope("u"), Scope("v")
    image, channel = ix.variable("image", images), ix.variable("channel", channels)
    y = ix.variable("tile_y", rows) * part.step + ix.variable("u", part.size)
    z = ix.variable("tile_x", columns) * part.step
    first, run = _run(part, x)
    v = ix.variable("v", run)
    writer.scopes, writer.lane = [outer, row, load], Lane(v, 1 if run % 2 else run)
    value = writer.value(x, (image, channel, y, z + first + v))
    load.lines.append(f"from[u][{f'{first} + ' if first else ''}v] = {value};")
    writer.scopes, writer.lane = [outer, row], None
    for column in (*range(first), *range(first + run, part.size)):
        value = writer.value(x, (image, channel, y, z + column))
        row.lines.append(f"from[u][{column}] = {value};")
    store = Scope("g")
    writer.scopes = [Scope("channel", "image_tile"), Scope("f"), store]
    plane = ix.variable("f", lines) * lines + ix.variable("g", lines)
    at = (plane, channel, ix.variable("image_tile", image_tiles))
    stores = Stores(writer, kernel)
    stores.put(node, ix.flatten(at, node.shape), "to[g]")
    body = fill(
        "winograd_transforms.cuh",
        "planes",
        thread_tile=_thread_tile(
            writer, channels * image_tiles, image_tiles, rows * columns, columns, outer.lines
        ),
        size=part.size,
        row=row.lines,
        run=run,
        load=load.lines,
        tile=_transformed(part, store.lines),
    )
    return _stage(kernel, node, body, words, -(-channels * image_tiles // THREADS), 0)


def _run(part: TransformPart, x: Node) -> tuple[int, int]:
    """The neighbours of a tile's row that may be one vector: the first, and their number."""
    left = x.attributes["starts"][3] if x.op is movement.pad else 0
    first = left % part.step if isinstance(left, int) else 0
    return (first, part.step) if first + part.step <= part.size else (0, part.size)


@dataclass(frozen=True)
class Block:
    """The outputs of a transform to images that a block computes.

    Attributes:
        part: the transform.
        shape: of the images.
        channels, images: numbers of neighbouring channels and images.
        rows: rows of tiles; fewer than an image has only where `images` is 1.
        lanes: neighbouring outputs that are stored together.
    """

    part: TransformPart
    shape: Shape
    channels: int
    images: int
    rows: int
    lanes: int

    @property
    def tiles(self) -> tuple[int, int]:
        """Rows and columns of tiles of an image."""
        return tiles_of(self.part, *self.shape[2:])

    @property
    def plane(self) -> int:
        """Outputs of a channel of an image."""
        return self.shape[2] * self.shape[3]

    @property
    def bands(self) -> int:
        """Blocks that share an image."""
        return -(-self.tiles[0] // self.rows)

    @property
    def channel_groups(self) -> int:
        """Blocks that share the channels of an image."""
        return self.shape[1] // self.channels

    @property
    def blocks(self) -> int:
        return self.channel_groups * self.bands * -(-self.shape[0] // self.images)

    @property
    def run(self) -> int:
        """Outputs of an image that are neighbours in memory."""
        if self.bands > 1:
            return self.rows * self.part.step * self.shape[3]
        return self.channels * self.plane

    @property
    def together(self) -> bool:
        """Whether outputs that are stored together lie in a row of one tile."""
        return self.shape[3] % self.lanes == self.part.step % self.lanes == 0

    @property
    def in_bounds(self) -> str:
        """Tests that an output of the last block is one of the images'."""
        tests = [f"image < {self.shape[0]}"] if self.shape[0] % self.images else []
        if self.bands > 1:
            run, strips = self.run // self.lanes, self.plane // self.lanes
            tests.append(f"band * {run} + run_strip < {strips}")
        return "".join(f" && {test}" for test in tests)

    @property
    def sizes(self) -> dict[str, object]:
        """The sizes that fill the skeleton."""
        rows, columns = self.tiles
        band_tiles = self.rows * columns
        return {
            "threads": THREADS,
            "channel_groups": self.channel_groups,
            "channels_each": self.channels,
            "group_strips": self.channels * self.plane // self.lanes,
            "images": self.shape[0],
            "images_each": self.images,
            "bands": self.bands,
            "band_rows": self.rows,
            "band_tiles": band_tiles,
            "tiles_each": self.images * band_tiles,
            "active": self.channels * self.images * band_tiles,
            "tiles": rows * columns,
            "columns": columns,
            "width": self.shape[3],
            "plane_elements": self.plane,
            "pitch": PITCH,
            "size": self.part.size,
            "lines": self.part.step,
            "turns": -(-self.images * self.run // (self.lanes * THREADS)),
            "run": self.run // self.lanes,
            "vectors": self.images * self.run // self.lanes,
            "run_elements": self.run,
            "lanes": self.lanes,
        }


def block_of(part: TransformPart, shape: Shape, target: Target) -> Block:
    """A block whose outputs are neighbours in memory, with a tile for most of its threads."""
    images, channels, height, width = shape
    rows, columns = tiles_of(part, height, width)
    tiles, plane = rows * columns, height * width
    if tiles > THREADS:
        assert columns <= THREADS, "no convolution with so long rows is computed by tiles"
        lanes = next(wide for wide in (4, 2, 1) if plane % wide == width * part.step % wide == 0)
        return Block(part, shape, 1, 1, THREADS // columns, lanes)
    several = [q for q in (1, 2, 4, 8, 16) if channels % q == 0 and q * tiles <= THREADS // 2]
    near = (q for q in several if q * plane >= NEAR and q * plane % 4 == 0)
    chosen = next(near, 1)
    lanes = next(wide for wide in (4, 2, 1) if chosen * plane % wide == 0)
    groups, each = channels // chosen, min(images, THREADS // (chosen * tiles))
    enough = 2 * target.multiprocessors
    while each > 1 and each * tiles > FEW and groups * -(-images // each) < enough:
        each = -(-each // 2)
    return Block(part, shape, chosen, each, rows, lanes)


def _images(kernel: Kernel, node: Node) -> Stage:
    """From planes to images, through the epilogue into memory."""
    part, (x,) = _part_of(node), node.sources
    block = block_of(part, node.shape, kernel.target)
    words = KernelParams()
    writer = Evaluator(words, set(kernel.reads), is_wide(kernel), kernel.narrowed)
    before, load = Scope("channel", "image_tile"), Scope("f", "g")
    writer.scopes = [before, load]
    plane = ix.variable("f", part.size) * part.size + ix.variable("g", part.size)
    channel = ix.variable("channel", node.shape[1])
    value = writer.value(x, (plane, channel, ix.variable("image_tile", x.shape[2])))
    outer, strip, map_, after = _epilogue(kernel, node, writer, block.lanes)
    lane = "" if block.together or block.lanes == 1 else " + v"
    source = fill("winograd_transforms.cuh", "source", lane=lane, **block.sizes)
    body = fill(
        "winograd_transforms.cuh",
        "images",
        **block.sizes,
        tile=_transformed(
            part, [f"shared[(f * {part.step} + g) * {PITCH} + threadIdx.x] = to[g];"]
        ),
        before=before.lines,
        load=load.lines,
        value=value,
        outer=outer,
        in_bounds=block.in_bounds,
        strip_load=strip,
        strip_source=source if block.together else [],
        lane_source=[] if block.together else source,
        lane_step=f"v * {PITCH}" if block.together and block.lanes > 1 else "0",
        map=map_,
        store=after,
    )
    return _stage(kernel, node, body, words, block.blocks, 4 * part.step**2 * PITCH)


def _epilogue(
    kernel: Kernel, node: Node, writer: Evaluator, lanes: int
) -> tuple[list[str], list[str], list[str], list[str]]:
    """Statements before all outputs, of each strip before its lanes, in them, and after them."""
    images, *inner = node.shape
    strip, v = ix.variable("strip", prod(inner) // lanes), ix.variable("v", lanes)
    flat = ix.variable("image", images) * prod(inner) + strip * lanes + v
    scopes = [Scope(), Scope("image", "strip"), Scope("v")]
    writer.scopes, writer.lane = scopes, Lane(v, lanes)
    stores = Stores(writer, kernel)
    writer.anchored[node] = "total"
    writer.floors = dict.fromkeys(kernel.nodes, 2)
    for stored in kernel.stores:
        stores.put(stored, flat, writer.value(stored, ix.unflatten(flat, stored.shape)))
    return scopes[0].lines, scopes[1].lines, scopes[2].lines, stores.after


def _thread_tile(
    writer: Evaluator, count: int, image_tiles: int, tiles: int, columns: int, outer: Sequence[str]
) -> str:
    """Text that derives the thread's tile and its coordinates."""
    return fill(
        "winograd_transforms.cuh",
        "thread_tile",
        index="long long" if writer.wide else "int",
        threads=THREADS,
        global_threads=count,
        image_tiles=image_tiles,
        tiles=tiles,
        columns=columns,
        outer=outer,
    )


def _stage(
    kernel: Kernel, node: Node, body: str, words: KernelParams, blocks: int, shared: int
) -> Stage:
    form, part = node.attributes["form"], node.attributes["part"]
    label = comment(
        kernel, f"winograd_transforms, F({form} x {form}, {TAPS} x {TAPS}), {part}", blocks
    )
    return wrapped(kernel, f"{stem(kernel)}_{part}", body, words.list, blocks, shared, label)
