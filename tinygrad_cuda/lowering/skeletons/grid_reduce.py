"""grid_reduce: rows too long for a block, reduced by all blocks of the GPU together."""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.expression import Lane, Scope, Stores
from tinygrad_cuda.lowering.codegen.skeleton import Exchange, Stage, comment, fill, stem, wrapped
from tinygrad_cuda.lowering.schedule.fuse_grid_reduce import WARPS, loaded
from tinygrad_cuda.lowering.schedule.kernel_dag import GridTiles, Kernel
from tinygrad_cuda.lowering.schedule.resources import THREADS
from tinygrad_cuda.lowering.skeletons.reduction_accumulators import (
    ReductionAccumulators,
    ReductionSpace,
)
from tinygrad_cuda.lowering.target import WARP


def _plus(number: int) -> str:
    return f" + {number}" if number else ""


def grid_reduce_stage(kernel: Kernel) -> Stage:
    """The kernel, of which the schedule says how all blocks share its rows, as one stage."""
    assert kernel.grid is not None
    return _GridReduce(kernel, kernel.grid).stage()


class _Tiles:
    """Where a loop over a tile has its operands: in shared memory, or in registers."""

    def __init__(self, wide: list[Node], index: str) -> None:
        self.number = {node: number for number, node in enumerate(wide)}
        self.index = index
        self.form = "tile{}[item]"

    def holds(self, node: Node) -> bool:
        """Nothing needs registers that is at hand."""
        return False

    def single(self, depth: int) -> None:
        """An element is loaded by itself: of what is one value a row, it may."""
        assert not depth, "the schedule has an operand that does not lie as its rows do"

    def vector(self, node: Node, key: Any, width: int, index: str, names: set[str]) -> str:
        """The text that reads a vector."""
        assert index == self.index, f"{node} does not lie as the schedule says"
        return self.form.format(self.number[node])


class _GridReduce:
    """The text of one kernel."""

    def __init__(self, kernel: Kernel, layout: GridTiles) -> None:
        self.kernel, self.layout, self.wide, self.sums = kernel, layout, layout.wide, layout.sums
        self.slots, self.count = self.sums.slots, self.sums.published
        self.row = ReductionAccumulators(kernel)
        self.writer = self.row.writer
        run = kernel.sign[-1][0]
        self.item = ix.variable("item", layout.tile // layout.width)
        self.v = ix.variable("v", layout.width)
        start = ix.variable("outer", layout.parts // layout.slices) * run
        start = start + ix.variable("slice", layout.slices) * layout.tile
        inside = self.item * layout.width + self.v
        self.flat = ReductionSpace(kernel.sign, self.row.line, start + inside).flat
        self.start = ReductionSpace(kernel.sign, self.row.line, start).flat
        self.tiles = _Tiles(self.wide, self.writer.index_text(self.flat - self.v))
        self.writer.nearer = self.tiles
        self.exchange = ""

    def stage(self) -> Stage:
        kernel, layout, row = self.kernel, self.layout, self.row
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
        stage.min_blocks_per_sm, stage.alone = layout.blocks_per_sm, True
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
        loads = []
        for number in range(len(self.wide)):
            name = f"registers{number}" + "[k]" * (trips > 1)
            loads.append(f"{name} = tile{number}[item];")
            loads.append(f"bits |= tgc_grid_load_bits({name});")
        return loads

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
            operand = loaded(source, self.kernel)
            assert operand is not None
            one = f"tgc_element(tile{self.tiles.number[operand]}[lane % {sizes['items']}], 0)"
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
            f"{name.format(self.slots[self.sums.sum_of(partner)])}, "
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
                part = f"tgc_fma(a[k][{self.slots[self.sums.sum_of(partner)]}], delta, {part})"
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
        for node in self.kernel.wide_stores:
            value = writer.value(node, ix.unflatten(self.flat, node.shape))
            stores.put(node, self.flat, value)
        return row.outer.lines, self._loop(sizes, "#pragma unroll", stores.after)


__all__ = ["grid_reduce_stage"]
