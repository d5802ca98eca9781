"""grid_reduce: rows too long for a block, reduced by all blocks of the GPU together."""

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
from tinygrad_cuda.lowering.schedule.fusion import TRANSPARENT, length_of, rows_of
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.skeletons.reduction_accumulators import Lines, ReductionSpace
from tinygrad_cuda.lowering.target import WARP

WARPS = THREADS // WARP
REGISTERS = {2: 100, 1: 200}  # of a thread for its tile, by blocks on a multiprocessor
RESERVED = 1024  # bytes of shared memory that each block takes besides its own
LEAST_TILE = 1024  # bytes: shorter copies do not keep memory busy
TABLES = 128  # bytes of it for barriers
SUMS = 8  # numbers that a tile publishes


def _plus(number: int) -> str:
    return f" + {number}" if number else ""


class Layout(NamedTuple):
    """How the rows are cut, and who makes them.

    Attributes:
        slices: tiles of each run of neighbours, of `tile` elements, in vectors of `width`.
        parts: tiles of a row.
        dense: blocks on a multiprocessor.
        blocks: in all.
        reducers: of them, those with a reducer warp.
    """

    slices: int
    tile: int
    width: int
    parts: int
    dense: int
    blocks: int
    reducers: int

    @property
    def producers(self) -> int:
        """Warps that sum and map tiles."""
        return self.blocks * (WARPS - 1) - self.reducers


def grid_reduce_stage(kernel: Kernel) -> Stage | None:
    """The kernel as one stage; None if its rows do not fit, or need more than one exchange."""
    wide = [node for node in kernel.reads if prod(node.shape) >= kernel.numel]
    layout = _layout(kernel, wide)
    sums = _sums(kernel)
    if layout is None or sums is None:
        return None
    return _GridReduce(kernel, layout, wide, sums).stage()


def _layout(kernel: Kernel, wide: list[Node]) -> Layout | None:
    """The largest tiles for which there is room."""
    rows, run = rows_of(kernel.sign), kernel.sign[-1][0] if kernel.sign else 0
    if not wide or not run or not kernel.sign[-1][1] or rows > kernel.target.multiprocessors:
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
    """Whether the blocks hold a whole row, so that each tile is published before a warp waits for
    its totals, and not all of them, so that something flows."""
    return layout.parts <= layout.producers and rows * layout.parts >= 2 * layout.producers


def _wide_stores(kernel: Kernel) -> list[Node]:
    return [node for node in kernel.stores if not kernel.is_line(node)]


# Sums ---------------------------------------------------------------------------------------------


class Sums(NamedTuple):
    """What a tile publishes.

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


class _GridReduce:
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
        # The numbers of a tile: mean and deviations first, then sums, those of partners among them.
        self.slots: dict[Node, int] = {}
        for node, partner in sums.partners.items():
            self.slots[self._sum_of(partner) if partner else node] = 0
            self.slots[node] = 0
        first = 2 if sums.welford is not None else 0
        self.slots = {node: first + number for number, node in enumerate(self.slots)}
        self.count = -(-(first + len(self.slots)) // 2) * 2
        self.exchange = ""

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
        row_totals = (WARPS - 1) * self._tile_bytes()
        totals_at = 2  # behind the tickets
        parts_at = totals_at + row.lines * self.count
        memory = Exchange(8 * (parts_at + tiles * self.count))
        exchange = self.exchange = row.words.exchange(memory)
        copy = self._copy(sizes, self._position("next"))
        publish = self._publish(sizes, self._position("next"))
        combined = self._combined()
        values, map_tile = self._map_tile(sizes)
        if self.tiles.missed:
            return None
        body = fill(
            "grid_reduce.cuh", "body", **sizes, **combined, map_tile=map_tile,
            warps=WARPS, reducers=layout.reducers, blocks=layout.blocks, rows=row.lines,
            tiles=tiles, all_producers=layout.producers, count=self.count, exchange=exchange,
            totals_at=totals_at, parts_at=parts_at, row_totals=row_totals, threads=THREADS,
            copy=copy, publish=publish, tiles_declared=self._tiles(),
            registers=self._registers(trips), to_registers=self._to_registers(trips),
            position=self._position("tile"), row_values=values,
        )  # fmt: skip
        about = (
            f"grid_reduce, {row.lines} rows of {row.length} in {layout.parts} tiles, "
            "by all blocks together"
        )
        label = comment(kernel, about, layout.blocks)
        shared = row_totals + 8 * (row.lines * self.count + WARPS)
        stage = wrapped(kernel, stem(kernel), body, row.words.list, layout.blocks, shared, label)
        stage.dense, stage.alone = layout.dense, True
        return stage

    def _tile_bytes(self) -> int:
        return sum(self.layout.tile * node.dtype.itemsize for node in self.wide)

    def _position(self, tile: str) -> list[str]:
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
            f"reinterpret_cast<const {self._vector(node)}*>(tiles{_plus(offset)});"
            for number, (node, offset) in enumerate(zip(self.wide, self._offsets()))
        ]

    def _registers(self, trips: int) -> list[str]:
        return [
            f"{self._vector(n)} registers{number}{self._size(trips)};"
            for number, n in enumerate(self.wide)
        ]

    def _size(self, trips: int) -> str:
        return f"[{trips}]" if trips > 1 else ""

    def _to_registers(self, trips: int) -> list[str]:
        found = []
        for number in range(len(self.wide)):
            name = f"registers{number}" + "[k]" * (trips > 1)
            found.append(f"{name} = tile{number}[item];")
            found.append(f"bits |= tgc_grid_load_bits({name});")
        return found

    def _copy(self, sizes: dict[str, Any], position: list[str]) -> list[str]:
        start = self.writer.index_text(self.start)
        copies = [
            f"tgc_grid_copy<{self.layout.tile}>(tiles{_plus(offset)}, {self.row.words.read(node)}, "
            f"{start}, barrier);"
            for node, offset in zip(self.wide, self._offsets())
        ]
        text = fill("grid_reduce.cuh", "copy", position=position, copies=copies, **sizes)
        return text.splitlines()

    def _open(self) -> Stores:
        """Begins a loop over a tile."""
        writer, row = self.writer, self.row
        row.outer = Scope("row", "outer", "slice")
        writer.scopes = [row.outer, Scope("item"), Scope("v")]
        writer.lane = Lane(self.v, self.layout.width)
        return Stores(writer, self.kernel)

    def _settle(self, values: list[str]) -> None:
        """From here on the reductions have these values, by the numbers of a tile."""
        welford = self.sums.welford
        if welford is not None:
            self.writer.fields[welford, 0] = values[0]
            self.writer.fields[welford, 1] = values[1]
        for node in self.sums.partners:
            self.writer.anchored[node] = values[self.slots[node]]

    def _publish(self, sizes: dict[str, Any], position: list[str]) -> list[str]:
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
            lane.append(f"const float delta = {value} - shift;")
            taken = {
                0: "lane_sum0[v & 1] + delta", 1: "tgc_fma(delta, delta, lane_sum1[v & 1])"
            }  # fmt: skip
        for node, slot in self.slots.items():
            source = node.sources[0] if node in self.sums.partners else node
            value = writer.value(source, ix.unflatten(self.flat, source.shape))
            taken[slot] = f"lane_sum{slot}[v & 1] + {value}"
        for slot, text in taken.items():
            start.append(f"float lane_sum{slot}[2] = {{0.0f, 0.0f}};")
            lane.append(f"lane_sum{slot}[v & 1] = {text};")
        combine = [
            f"float tile_sum{slot} = tgc_warp_reduce("
            f"lane_sum{slot}[0] + lane_sum{slot}[1], tgc_sum_op());"
            for slot in sorted(taken)
        ]
        if welford is not None:
            combine += [
                f"const float offset = tile_sum0 * {1 / self.layout.tile!r}f;",
                "tile_sum1 = tgc_max_op()(tgc_fma(-tile_sum0, offset, tile_sum1), 0.0f);",
                "tile_sum0 = shift + offset;",
            ]
            combine += self._moved("tile_sum{}", "offset")
        words = [f"tile_sum{k}" if k in taken else "0.0f" for k in range(self.count)]
        parts = f"{2 + row.lines * self.count} + next * {self.count}"
        publish = self._published(parts, words)
        loop = self._loop(sizes, "#pragma unroll 4", [])
        text = fill(
            "grid_reduce.cuh", "publish", **sizes, position=position,
            before=shift + row.outer.lines + start, loop=loop, combine=combine, publish=publish,
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
            f"{name.format(self.slots[node])} = tgc_fma(-{by}, "
            f"{name.format(self.slots[self._sum_of(partner)])}, "
            f"{name.format(self.slots[node])});"
            for node, partner in self.sums.partners.items()
            if partner is not None
        ]

    def _published(self, first: str, words: list[str]) -> list[str]:
        return [
            f"tgc_grid_publish({self.exchange}, {first}{_plus(k)}, {words[k]}, "
            f"{words[k + 1]}, launch);"
            for k in range(0, self.count, 2)
        ]

    def _combined(self) -> dict[str, list[str]]:
        """What combines the parts of a row, and stores what is one value a row."""
        row, add, finals = self.row, list[str](), list[str]()
        parts = self.layout.parts
        if self.sums.welford is not None:
            add += [
                "const float delta = a[k][0] - first;",
                f"sum[1] += tgc_fma(delta * delta, {float(self.layout.tile)}f, a[k][1]);",
                "sum[0] += delta;",
            ]
            finals += [
                f"const float offset = sum[0] * {1 / parts!r}f;",
                "const float squared = sum[0] * offset;",
                f"sum[1] = tgc_fma(-squared, {float(self.layout.tile)}f, sum[1]);",
                "sum[1] = tgc_max_op()(sum[1], 0.0f);",
                "sum[0] = first + offset;",
            ]
            finals += self._moved("sum[{}]", "offset")
        for node, slot in self.slots.items():
            partner = self.sums.partners.get(node)
            part = f"a[k][{slot}]"
            if partner is not None:
                part = f"tgc_fma(a[k][{self.slots[self._sum_of(partner)]}], delta, {part})"
            add.append(f"sum[{slot}] += {part};")
        publish = self._published(
            f"2 + row * {self.count}", [f"sum[{k}]" for k in range(self.count)]
        )
        self._settle([f"sum[{k}]" for k in range(self.count)])
        row.outer = Scope("row")
        made, stored = row.finish() if row.line_stores else ([], [])
        return {
            "add": add, "finals": finals, "publish_totals": publish, "epilogue": made,
            "store": stored,
        }  # fmt: skip

    def _map_tile(self, sizes: dict[str, Any]) -> tuple[list[str], list[str]]:
        """The loop over a tile whose row has its totals, and what stands before it."""
        writer, row = self.writer, self.row
        stores = self._open()
        self.tiles.form = "registers{}" + "[k]" * (sizes["trips"] > 1)
        self._settle([f"totals[{k}]" for k in range(self.count)])
        for node in row.wide_stores:
            value = writer.value(node, ix.unflatten(self.flat, node.shape))
            stores.put(node, self.flat, value)
        return row.outer.lines, self._loop(sizes, "#pragma unroll", stores.after)


__all__ = ["grid_reduce_stage"]
