"""SPAN: rows too long for a block, held on the chip by all blocks of the GPU together."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, reduction
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import Lane, Scope
from tinygrad_cuda.lowering.codegen.skeleton import THREADS, Exchange, Stage, fill, wrapped
from tinygrad_cuda.lowering.codegen.store import Stores, comment, stem
from tinygrad_cuda.lowering.schedule.fusion import FEW_ROWS, TRANSPARENT, length_of, rows_of
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.skeletons.reduction_accumulators import WARP, Lines, ReductionSpace

WARPS = THREADS // WARP
REGISTERS = {2: 100, 1: 200}  # of a thread for its tile, by blocks on a multiprocessor
RESERVED = 1024  # bytes of shared memory that each block takes besides its own
LEAST_TILE = 1024  # bytes: shorter copies do not keep memory busy
TABLES = 128  # bytes of it for barriers
SUMS = 8  # words of a tile


class Layout(NamedTuple):
    """How the rows are cut, and who makes them.

    Attributes:
        slices: tiles of each run of neighbours, of `tile` elements, in vectors of `width`.
        parts: tiles of a row.
        dense: blocks on a multiprocessor.
        blocks: in all.
        combiners: of them, those with a warp that combines rows.
    """

    slices: int
    tile: int
    width: int
    parts: int
    dense: int
    blocks: int
    combiners: int

    @property
    def makers(self) -> int:
        """Warps that make tiles."""
        return self.blocks * (WARPS - 1) - self.combiners


def span_stage(kernel: Kernel) -> Stage | None:
    """The kernel as one stage; None if its rows do not fit, or need more than one exchange."""
    wide = [node for node in kernel.reads if prod(node.shape) >= kernel.numel]
    layout = _layout(kernel, wide)
    sums = _sums(kernel)
    if layout is None or sums is None:
        return None
    return _Span(kernel, layout, wide, sums).stage()


def _layout(kernel: Kernel, wide: list[Node]) -> Layout | None:
    """The largest tiles for which there is room."""
    rows, run = rows_of(kernel.sign), kernel.sign[-1][0] if kernel.sign else 0
    if not wide or not run or not kernel.sign[-1][1] or rows > FEW_ROWS:
        return None
    width = min(8, 16 // max(n.dtype.itemsize for n in (*wide, *_wide_stores(kernel))))
    outer = length_of(kernel.sign) // run
    for slices in range(1, run // width + 1):
        tile, rest = divmod(run, slices)
        tile_bytes = sum(tile * node.dtype.itemsize for node in wide)
        if tile_bytes < LEAST_TILE:
            break
        if width == 1 or rest or tile % width or any(tile * n.dtype.itemsize % 16 for n in wide):
            continue
        trips = -(-tile // (width * WARP))
        registers = sum(trips * max(1, width * node.dtype.itemsize // 4) for node in wide)
        shared = (WARPS - 1) * tile_bytes + 8 * rows * SUMS + TABLES
        for dense, most in REGISTERS.items():
            room = (kernel.room + RESERVED) // dense - RESERVED
            if registers <= most and shared <= room:
                blocks = kernel.co_resident[dense]
                parts = outer * slices
                found = Layout(slices, tile, width, parts, dense, blocks, min(rows, blocks))
                return found if _flows(found, rows) else None
    return None


def _flows(layout: Layout, rows: int) -> bool:
    """Whether the blocks hold a whole row, so that each tile of it is told before a warp waits for
    it, and not all of them, so that something flows."""
    return layout.parts <= layout.makers and rows * layout.parts >= 2 * layout.makers


def _wide_stores(kernel: Kernel) -> list[Node]:
    return [node for node in kernel.stores if not kernel.is_line(node)]


# Sums ---------------------------------------------------------------------------------------------


class Sums(NamedTuple):
    """What a tile tells of itself.

    Attributes:
        welford: of a row: mean and squared deviations.
        partners: for each sum, what is multiplied with a deviation from that mean in it, if
            something is: a tile takes its own mean, and what that changes follows from the
            partner's sum.
    """

    welford: Node | None
    partners: dict[Node, Node | None]


def _sums(kernel: Kernel) -> Sums | None:
    """The reductions, if all of them can be made in one loop over a tile."""
    deviations = [node for node in kernel.anchors if node.op is reduction.welford]
    sums = [node for node in kernel.anchors if node.op is reduction.sum]
    if len(deviations) > 1 or len(deviations) + len(sums) != len(kernel.anchors):
        return None
    if any(node.sources[0].dtype.compute != "float" for node in kernel.anchors):
        return None
    welford = deviations[0] if deviations else None
    if welford is not None and _loaded(welford.sources[0], kernel) is None:
        return None
    partners: dict[Node, Node | None] = {}
    for node in sums:
        source = node.sources[0]
        if not _follows(source, kernel):
            partners[node] = None
            continue
        partner = _partner(source, welford, kernel)
        if partner is None:
            return None
        partners[node] = partner
    return Sums(welford, partners)


def _loaded(node: Node, kernel: Kernel) -> Node | None:
    """The value in memory whose elements these are."""
    while node not in kernel.reads:
        if node.op is not ew.cast and node.op not in TRANSPARENT:
            return None
        node = node.sources[0]
    return node if prod(node.shape) == kernel.numel else None


def _follows(node: Node, kernel: Kernel) -> bool:
    """Whether a value follows from a reduction of the kernel."""
    stack, seen = [node], {node}
    while stack:
        top = stack.pop()
        if top in kernel.anchors:
            return True
        if top not in kernel.reads:
            new = [source for source in top.sources if source not in seen]
            seen.update(new)
            stack.extend(new)
    return False


def _partner(source: Node, welford: Node | None, kernel: Kernel) -> Node | None:
    """`a` where the source is ``a * (b - mean)``, and nothing else in it follows from a row."""
    if source.op is not ew.mul or welford is None:
        return None
    for one, other in (source.sources, source.sources[::-1]):
        if other.op is not ew.sub or _follows(one, kernel) or _follows(other.sources[0], kernel):
            continue
        mean = other.sources[1]
        while mean.op.kind == "movement" or mean.op in TRANSPARENT:
            mean = mean.sources[0]
        if mean.op is common.output and mean.sources[0] is welford and not mean.attributes["index"]:
            return one
    return None


# Text ---------------------------------------------------------------------------------------------


class _Tiles:
    """Where a loop over a tile finds its operands: in shared memory, or in registers.

    Attributes:
        missed: something is loaded in some other way, or from some other place.
    """

    def __init__(self, wide: list[Node], place: str) -> None:
        self.number = {node: number for number, node in enumerate(wide)}
        self.place = place
        self.form = "tile{}[item]"
        self.missed = False

    def holds(self, node: Node) -> bool:
        """Nothing needs to be kept that is at hand."""
        return False

    def single(self, depth: int) -> None:
        """An element is loaded by itself: of what is one value a row, it may."""
        self.missed |= depth > 0

    def vector(self, node: Node, key: Any, width: int, place: str, names: set[str]) -> str:
        """The text that reads a vector."""
        if node not in self.number or place != self.place:
            self.missed = True
        return self.form.format(self.number.get(node, 0))


class _Span:
    """The text of one kernel."""

    def __init__(self, kernel: Kernel, layout: Layout, wide: list[Node], sums: Sums) -> None:
        self.kernel, self.layout, self.wide, self.sums = kernel, layout, wide, sums
        self.row = Lines(kernel)
        self.writer = self.row.writer
        run = kernel.sign[-1][0]
        self.item = ix.variable("item", layout.tile // layout.width)
        self.v = ix.variable("v", layout.width)
        start = ix.variable("outer", layout.parts // layout.slices) * run
        start = start + ix.variable("slice", layout.slices) * layout.tile
        inside = self.item * layout.width + self.v
        self.flat = ReductionSpace(kernel.sign, self.row.line, start + inside).flat
        self.start = ReductionSpace(kernel.sign, self.row.line, start).flat
        self.tiles = _Tiles(wide, self.writer.index_text(self.flat - self.v))
        self.writer.nearer = self.tiles
        # The words of a tile: mean and deviations first, then sums, those of partners among them.
        self.places: dict[Node, int] = {}
        for node, partner in sums.partners.items():
            self.places[self._sum_of(partner) if partner else node] = 0
            self.places[node] = 0
        first = 2 if sums.welford is not None else 0
        self.places = {node: first + number for number, node in enumerate(self.places)}
        self.count = -(-(first + len(self.places)) // 2) * 2
        self.words = ""

    def _sum_of(self, partner: Node) -> Node:
        """The sum of a partner: one of the kernel's, or the partner itself in its place."""
        return next((n for n in self.sums.partners if n.sources[0] is partner), partner)

    def stage(self) -> Stage | None:
        kernel, layout, row = self.kernel, self.layout, self.row
        if self.count > SUMS:
            return None
        trips = -(-layout.tile // (layout.width * WARP))
        sizes = {
            "parts": layout.parts, "trips": trips, "items": layout.tile // layout.width,
            "width": layout.width, "tile_bytes": self._tile_bytes(),
        }  # fmt: skip
        tiles = row.lines * layout.parts
        known = (WARPS - 1) * self._tile_bytes()
        told = 2  # behind the tickets
        parts_at = told + row.lines * self.count
        words = self.words = row.words.exchange(Exchange(8 * (parts_at + tiles * self.count)))
        places = {"tile": self._places("tile"), "next": self._places("next")}
        send = self._send(sizes, places["next"])
        tell = self._tell(sizes, places["next"])
        combined = self._combined()
        values, make = self._made(sizes)
        if self.tiles.missed:
            return None
        body = fill(
            "grid_reduce.cuh", "body", **sizes, **combined, make=make,
            warps=WARPS, combiners=layout.combiners, blocks=layout.blocks, lines=row.lines,
            tiles=tiles, makers_in_all=layout.makers, count=self.count, words=words, told=told,
            parts_at=parts_at, known=known, threads=THREADS, send=send, tell=tell,
            tiles_declared=self._tiles(), held=self._held(trips), hold=self._hold(),
            places=places["tile"], line_values=values,
        )  # fmt: skip
        about = (
            f"SPAN, {row.lines} rows of {row.length} in {layout.parts} tiles, held by all blocks"
        )
        label = comment(kernel, about, layout.blocks)
        shared = known + 8 * (row.lines * self.count + WARPS)
        stage = wrapped(kernel, stem(kernel), body, row.words.list, layout.blocks, shared, label)
        stage.dense, stage.alone = layout.dense, True
        return stage

    def _tile_bytes(self) -> int:
        return sum(self.layout.tile * node.dtype.itemsize for node in self.wide)

    def _places(self, tile: str) -> list[str]:
        parts, slices = self.layout.parts, self.layout.slices
        if slices == 1:
            return [f"const int outer = {tile} % {parts};"]
        return [
            f"const int part = {tile} % {parts};",
            f"const int outer = part / {slices}, slice = part % {slices};",
        ]

    def _offsets(self) -> list[int]:
        sizes = [self.layout.tile * node.dtype.itemsize for node in self.wide]
        return [sum(sizes[:number]) for number in range(len(sizes))]

    def _vector(self, node: Node) -> str:
        return f"tgc_vector<{node.dtype.c}, {self.layout.width}>"

    def _tiles(self) -> list[str]:
        return [
            f"const {self._vector(node)}* const tile{number} = "
            f"reinterpret_cast<const {self._vector(node)}*>(room + {offset});"
            for number, (node, offset) in enumerate(zip(self.wide, self._offsets()))
        ]

    def _held(self, trips: int) -> list[str]:
        return [f"{self._vector(n)} held{number}[{trips}];" for number, n in enumerate(self.wide)]

    def _hold(self) -> list[str]:
        found = []
        for number in range(len(self.wide)):
            found.append(f"held{number}[k] = tile{number}[item];")
            found.append(f"bits |= tgc_span_bits(held{number}[k]);")
        return found

    def _send(self, sizes: dict[str, Any], places: list[str]) -> list[str]:
        start = self.writer.index_text(self.start)
        copies = [
            f"tgc_span_copy<{self.layout.tile}>(room + {offset}, {self.row.words.read(node)}, "
            f"{start}, bar);"
            for node, offset in zip(self.wide, self._offsets())
        ]
        tiles = self.row.lines * self.layout.parts
        text = fill("grid_reduce.cuh", "send", tiles=tiles, places=places, copies=copies, **sizes)
        return text.splitlines()

    def _open(self) -> Stores:
        """Begins a loop over a tile."""
        writer, row = self.writer, self.row
        row.outer = Scope("line", "outer", "slice")
        writer.scopes = [row.outer, Scope("item"), Scope("v")]
        writer.lane = Lane(self.v, self.layout.width)
        return Stores(writer, self.kernel)

    def _settle(self, values: list[str]) -> None:
        """From here on the reductions have these values, by the words of a tile."""
        welford = self.sums.welford
        if welford is not None:
            self.writer.fields[welford, 0] = values[0]
            self.writer.fields[welford, 1] = values[1]
        for node in self.sums.partners:
            self.writer.anchored[node] = values[self.places[node]]

    def _tell(self, sizes: dict[str, Any], places: list[str]) -> list[str]:
        """The sums of a tile, about its own mean."""
        writer, welford, row = self.writer, self.sums.welford, self.row
        self._open()
        shift, start, taken = list[str](), list[str](), dict[int, str]()
        lane = writer.scopes[2].lines
        if welford is not None:
            source = welford.sources[0]
            value = writer.value(source, ix.unflatten(self.flat, source.shape))
            loaded = _loaded(source, self.kernel)
            assert loaded is not None
            one = f"tgc_element(tile{self.tiles.number[loaded]}[lane % {sizes['items']}], 0)"
            # Not about an infinite mean: the others' difference from it would be infinite too.
            shift = [
                f"float shift = tgc_warp_reduce({one}, tgc_sum_op()) * {1 / WARP}f;",
                "shift = tgc_isfinite(shift) ? shift : 0.0f;",
            ]
            writer.fields[welford, 0] = "shift"
            lane.append(f"const float away = {value} - shift;")
            taken = {0: "s0[v & 1] + away", 1: "tgc_fma(away, away, s1[v & 1])"}
        for node, place in self.places.items():
            source = node.sources[0] if node in self.sums.partners else node
            value = writer.value(source, ix.unflatten(self.flat, source.shape))
            taken[place] = f"s{place}[v & 1] + {value}"
        for place, text in taken.items():
            start.append(f"float s{place}[2] = {{0.0f, 0.0f}};")
            lane.append(f"s{place}[v & 1] = {text};")
        combine = [
            f"float t{place} = tgc_warp_reduce(s{place}[0] + s{place}[1], tgc_sum_op());"
            for place in sorted(taken)
        ]
        if welford is not None:
            combine += [
                f"const float off = t0 * {1 / self.layout.tile!r}f;",
                "t1 = tgc_max_op()(tgc_fma(-t0, off, t1), 0.0f);",
                "t0 = shift + off;",
            ]
            combine += self._moved("t{}", "off")
        words = [f"t{k}" if k in taken else "0.0f" for k in range(self.count)]
        parts = f"{2 + row.lines * self.count} + next * {self.count}"
        tell = self._told(parts, words)
        loop = self._loop(sizes, "#pragma unroll 4", [])
        text = fill(
            "grid_reduce.cuh", "tell", **sizes, places=places,
            before=shift + row.outer.lines + start, loop=loop, combine=combine, tell=tell,
        )  # fmt: skip
        return text.splitlines()

    def _loop(self, sizes: dict[str, Any], unroll: str, stores: list[str]) -> list[str]:
        """The loop over a tile that the open scopes hold."""
        load, made = (scope.lines for scope in self.writer.scopes[1:])
        text = fill(
            "grid_reduce.cuh",
            "loop",
            unroll=unroll,
            load=load,
            map=made,
            wide_store=stores,
            **sizes,
        )
        return text.splitlines()

    def _moved(self, name: str, by: str) -> list[str]:
        """Sums about one mean from those about another one, `by` below it."""
        return [
            f"{name.format(self.places[node])} = tgc_fma(-{by}, "
            f"{name.format(self.places[self._sum_of(partner)])}, "
            f"{name.format(self.places[node])});"
            for node, partner in self.sums.partners.items()
            if partner is not None
        ]

    def _told(self, place: str, words: list[str]) -> list[str]:
        return [
            f"tgc_span_tell({self.words}, {place} + {k}, {words[k]}, {words[k + 1]}, turn);"
            for k in range(0, self.count, 2)
        ]

    def _combined(self) -> dict[str, list[str]]:
        """What combines the parts of a row, and stores what is one value a row."""
        row, add, finals = self.row, list[str](), list[str]()
        parts = self.layout.parts
        if self.sums.welford is not None:
            add += [
                "const float away = a[k][0] - first;",
                f"sum[1] += tgc_fma(away * away, {float(self.layout.tile)}f, a[k][1]);",
                "sum[0] += away;",
            ]
            finals += [
                f"const float off = sum[0] * {1 / parts!r}f;",
                "const float apart = sum[0] * off;",
                f"sum[1] = tgc_fma(-apart, {float(self.layout.tile)}f, sum[1]);",
                "sum[1] = tgc_max_op()(sum[1], 0.0f);",
                "sum[0] = first + off;",
            ]
            finals += self._moved("sum[{}]", "off")
        for node, place in self.places.items():
            partner = self.sums.partners.get(node)
            part = f"a[k][{place}]"
            if partner is not None:
                part = f"tgc_fma(a[k][{self.places[self._sum_of(partner)]}], away, {part})"
            add.append(f"sum[{place}] += {part};")
        tell = self._told(f"2 + line * {self.count}", [f"sum[{k}]" for k in range(self.count)])
        self._settle([f"sum[{k}]" for k in range(self.count)])
        row.outer = Scope("line")
        made, stored = row.finish() if row.line_stores else ([], [])
        return {
            "add": add, "finals": finals, "tell_totals": tell, "epilogue": made, "store": stored,
        }  # fmt: skip

    def _made(self, sizes: dict[str, Any]) -> tuple[list[str], list[str]]:
        """The loop over a tile whose row is known, and what stands before it."""
        writer, row = self.writer, self.row
        stores = self._open()
        self.tiles.form = "held{}[k]"
        self._settle([f"totals[{k}]" for k in range(self.count)])
        for node in row.wide_stores:
            value = writer.value(node, ix.unflatten(self.flat, node.shape))
            stores.put(node, self.flat, value)
        return row.outer.lines, self._loop(sizes, "#pragma unroll", stores.after)


__all__ = ["span_stage"]
