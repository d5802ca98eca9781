"""Text of the forward pass by TMA: one thread copies, and warpgroups multiply in turn."""

from __future__ import annotations

from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops.attention import attention
from tinygrad_cuda.lowering.codegen.constant_folding import folded
from tinygrad_cuda.lowering.codegen.expression import Evaluator, Scope
from tinygrad_cuda.lowering.codegen.skeleton import KernelParams, Stage, TensorMap, fill
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.skeletons.attention.mma import MARKED, ZEROED
from tinygrad_cuda.lowering.skeletons.attention.tiles import (
    CONSUMER_REGISTERS,
    ITEMSIZE,
    PRODUCER_REGISTERS,
    AttentionPart,
    AttentionTile,
)
from tinygrad_cuda.lowering.skeletons.attention.wgmma import BLOCK, SWIZZLE, WarpgroupText
from tinygrad_cuda.lowering.skeletons.contract.loads import Source
from tinygrad_cuda.lowering.skeletons.contract.tma import Matrix, matrix_of

CUH, GRADIENTS = "attention_tma.cuh", "attention_tma_gradients.cuh"
L2_SHARE = 2  # of the cache the part that keys and values of a section of heads may take


def has_maps(kernel: Kernel) -> bool:
    """Whether queries, keys and values lie in memory as matrices of which TMA has maps."""
    (node,) = kernel.anchors
    reader = Evaluator(KernelParams(), set(kernel.reads), True)
    operands = node.sources[: 3 if node.op is attention else 4]
    return all(_matrix(source, reader) is not None for source in operands)


def _matrix(node: Node, reader: Evaluator) -> Matrix | None:
    """An operand's rows in memory."""
    *batch, rows, width = node.shape
    reader.scopes, reader.lane = [Scope("batch"), Scope("k", "row")], None
    matrix = matrix_of(Source("a", node, "row", rows, 1, width, tuple(batch)), reader)
    own = matrix is not None and matrix.along_k and matrix.node.dtype is node.dtype
    return matrix if own else None


class TmaText(WarpgroupText):
    """The text of the forward kernel.

    Attributes:
        bytes: of the tile of each operand.
    """

    bytes: dict[str, int]

    @property
    def _grid(self) -> int:
        """Blocks: each has a multiprocessor."""
        return min(self.part.blocks(self.tile), self.kernel.target.multiprocessors)

    def stage(self) -> Stage:
        tile, part, blocks = self.tile, self.part, self._grid
        sizes = {"q": (tile.rows, self.q), "k": (tile.columns, self.k), "v": (tile.columns, self.v)}
        self.bytes = {name: rows * x.shape[-1] * ITEMSIZE for name, (rows, x) in sizes.items()}
        last = f"({self._last_column()})"
        head = self._tma_text("tile", **self._position(blocks), last_column=last)
        uses = self._uses()  # before the maps, which follow all other parameters
        body = self._tma_text(
            "body",
            blocks=blocks,
            barriers=part.shared(tile) - tile.barriers,
            readers=4 * tile.consumers,
            few=PRODUCER_REGISTERS[tile.consumers],
            many=CONSUMER_REGISTERS[tile.consumers],
            tile=head,
            **self._loads(),
            **uses,
            outer=self.outer.lines,
        )
        stage = self._stage(folded(body), blocks)
        stage.threads, stage.min_blocks_per_sm = tile.threads, 1
        return stage

    def _tma_text(self, section: str, **holes: object) -> str:
        sizes = {
            "columns": self.tile.columns,
            "stages": self.tile.stages,
            "tile_rows": self.tile.rows,
            "tiles": self.part.blocks(self.tile),
            "tiles_of_head": self._tiles,
            "batches": self.part.batches,
            "width": self.v.shape[-1],
            "last_group": self.tile.consumers - 1,
            "pack": f"tgc_pack_{self.unit}",
            "storage": self.node.dtype.c,
            "block_rows": self.tile.rows * SWIZZLE,
            "block_columns": self.tile.columns * SWIZZLE,
            "advance": fill(CUH, "advance", stages=self.tile.stages),
            **{f"bytes_{name}": count for name, count in self.bytes.items()},
        }
        return fill(CUH, section, **{**sizes, **holes})

    def _position(self, blocks: int) -> dict[str, str]:
        """Which tile of queries a block has in a round; of causal ones those with most keys first.

        Every other round goes backwards through the blocks, so that each has as many keys.
        """
        own = f"round * {blocks} + virtual_block"
        if not self._causal:
            return {"index": own, "position": self._tma_text("rows")}
        heads, ascending = self._heads_of_section(), "rest / heads"
        longest = f"{self._tiles - 1} - {ascending}" if self.row == "query" else ascending
        position = self._tma_text(
            "sections", in_section=heads * self._tiles, heads=heads, own_tile=longest
        )
        turned = f"round * {blocks} + (round % 2 ? {blocks - 1} - virtual_block : virtual_block)"
        return {"index": turned, "position": position}

    def _heads_of_section(self) -> int:
        target, part = self.kernel.target, self.part
        nbytes = part.columns * sum(part.ring) * ITEMSIZE
        return min(part.batches, max(1, target.l2 // (L2_SHARE * nbytes)))

    def _loads(self) -> dict[str, str]:
        """Copies of boxes of each operand, and the names of their maps."""
        nodes = {"q": self.q, "k": self.k, "v": self.v}
        if self.name != "forward":
            nodes["g"] = self.g
        rows = {name: self.bytes[name] // (x.shape[-1] * ITEMSIZE) for name, x in nodes.items()}
        matrices = {}
        for name, node in nodes.items():
            matrix = _matrix(node, self.reader)
            assert matrix is not None, (
                f"the schedule stores {name} otherwise than it was chosen for"
            )
            matrices[name] = matrix
        self.reader.scopes = [self.outer, Scope("query")]
        maps = [_map(matrices[name], nodes[name], rows[name]) for name in nodes]
        holes: dict[str, str] = {}
        for name, text in zip(nodes, self.params.tensor_maps(maps), strict=True):
            holes[f"map_{name}"] = text
            holes[f"load_{name}"] = self._load(name, text, matrices[name], rows[name])
        return holes

    def _target_of(self, name: str) -> tuple[str, str, str]:
        """Where a tile of an operand comes to, the barrier that counts it, and its first row."""
        if name == "q":
            return "smem", "full_q", "query_first"
        return f"ring_{name} + slot * {self.bytes[name]}", f"full_{name} + slot", "key_first"

    def _load(self, name: str, text: str, matrix: Matrix, rows: int) -> str:
        memory, full, first = self._target_of(name)
        at = [first]
        if matrix.apart:
            at.append(self.reader.index_text(matrix.batch))
        return fill(
            CUH,
            "load",
            boxes=self.bytes[name] // (rows * SWIZZLE),
            axes=1 + len(at),
            at=", ".join(at),
            target=memory,
            block=rows * SWIZZLE,
            map=text,
            full=full,
        )

    def _uses(self) -> dict[str, object]:
        """Products, powers and results."""
        d, width = self.q.shape[-1], self.v.shape[-1]
        powers = self._text("powers", **self._powers())
        values = f"columns_1 + ({{}} * {self.bytes['v']} + step * 2048) / 16"
        return {
            "begin_scores": self._products("score", "rows_0", "columns_0 + turn", 0, d),
            "begin_values": self._combine("value", "share", values.format("before"), width),
            "begin_last": self._combine("value", "share", values.format("slot"), width),
            "scores": f"{self._scaled()}{powers}{self._dropped(ZEROED)}",
            "shares": self._packed("share", "score"),
            "results": self._results(),
        }

    def _results(self) -> str:
        """Sums become values; both go to memory."""
        logarithm = values = ""
        if 1 in self.stored:
            logarithm = self._tma_text(
                "logarithm",
                times=self._times,
                pointer=self.params.write(self.stored[1]),
                index=self._row_index(1, "query"),
            )
        if 0 in self.stored:
            pointer = self.params.write(self.stored[0])
            index = self._row_index(0, "query")
            values = self._tma_text(
                "values", sum="value", part="part", pointer=pointer, index=index
            )
        return self._tma_text(
            "results",
            extent=self.part.rows,
            nothing="NAN" if self._unmasked else "0.0f",  # 0 / 0
            factor=f"{self._dropout_scale!r}f",
            logarithm=logarithm,
            values=values,
        )


def _map(matrix: Matrix, node: Node, rows: int) -> TensorMap:
    """Boxes of 64 elements of so many rows; what lies behind the last row is zero."""
    shape, strides = [node.shape[-1], node.shape[-2]], [matrix.stride * ITEMSIZE]
    box = [BLOCK, rows]
    if matrix.apart:
        shape.append(matrix.batch.high + 1)
        strides.append(matrix.apart * ITEMSIZE)
        box.append(1)
    offset = matrix.offset * ITEMSIZE
    return TensorMap(matrix.node, offset, tuple(shape), tuple(strides), tuple(box), SWIZZLE)


class TmaGradientText(TmaText):
    """The text of a kernel of the gradients: by queries, or by keys and values.

    Attributes:
        row_operands: operands of which a block has its rows.
        passing: those whose columns come through the ring.
    """

    def __init__(self, kernel: Kernel, name: str, part: AttentionPart, tile: AttentionTile) -> None:
        super().__init__(kernel, name, part, tile)
        by_queries, by_keys = {"q": self.q, "g": self.g}, {"k": self.k, "v": self.v}
        rows, columns = (by_queries, by_keys) if self.row == "query" else (by_keys, by_queries)
        self.row_operands, self.passing = tuple(rows), tuple(columns)
        sizes = [(tile.rows, rows), (tile.columns, columns)]
        self.bytes = {
            name: count * node.shape[-1] * ITEMSIZE
            for count, nodes in sizes
            for name, node in nodes.items()
        }

    def stage(self) -> Stage:
        tile, part, blocks = self.tile, self.part, self._grid
        head = self._gradient_text(
            "tile",
            **self._position(blocks),
            first_column=self._first_column(),
            last_column=self._last_column(),
        )
        uses = {**self._uses(), "results": self._results()}
        body = self._gradient_text(
            "body",
            blocks=blocks,
            tile=head,
            barriers=part.shared(tile) - tile.barriers,
            readers=4 * tile.consumers,
            few=PRODUCER_REGISTERS[tile.consumers],
            many=CONSUMER_REGISTERS[tile.consumers],
            **self._copies(head),
            **uses,
            outer=self.outer.lines,
        )
        stage = self._stage(folded(body), blocks)
        stage.threads, stage.min_blocks_per_sm = tile.threads, 1
        return stage

    def _copies(self, head: str) -> dict[str, object]:
        """What the third warpgroup does; the maps follow all other parameters."""
        sums = ""
        if self.part.sums:
            columns = self._sums_of_columns()
            sums = self._gradient_text("sums", tile=head, blocks=self._grid, **columns)
        loads = self._loads()
        return {
            "sums": sums,
            "writers": 2 if sums else 1,
            "load_rows": self._blocks_of(loads, self.row_operands),
            "load_columns": self._blocks_of(loads, self.passing),
            "bytes_rows": sum(self.bytes[name] for name in self.row_operands),
            "bytes_columns": sum(self.bytes[name] for name in self.passing),
            "second_rows": self.bytes[self.row_operands[0]],
            "second_columns": self.bytes[self.passing[0]],
        }

    def _gradient_text(self, section: str, **holes: object) -> str:
        sizes = {
            "columns": self.tile.columns,
            "stages": self.tile.stages,
            "slot": self._slot,
            "tile_rows": self.tile.rows,
            "tiles": self.part.blocks(self.tile),
            "rows": self.row,
            "block_rows": self.tile.rows * SWIZZLE,
            "block_columns": self.tile.columns * SWIZZLE,
            "advance": fill(CUH, "advance", stages=self.tile.stages),
        }
        return fill(GRADIENTS, section, **{**sizes, **holes})

    def _blocks_of(self, loads: dict[str, str], names: tuple[str, ...]) -> str:
        return "".join(f"{{\n{loads[f'load_{name}']}}}\n" for name in names)

    def _target_of(self, name: str) -> tuple[str, str, str]:
        if name in self.row_operands:
            offset = (
                f" + {self.bytes[self.row_operands[0]]}" if name == self.row_operands[1] else ""
            )
            return f"smem{offset}", "full_rows", f"{self.row}_first"
        offset = f" + {self.bytes[self.passing[0]]}" if name == self.passing[1] else ""
        return f"ring + slot * {self._slot}{offset}", "full + slot", "column_first"

    def _sums_of_columns(self) -> dict[str, object]:
        load, logsumexp, delta = self._sums()
        return {
            "outer": self.outer.lines, "offset": self._sums_offset, "extent": self.part.columns,
            "load": load, "logsumexp": logsumexp, "delta": delta,
        }  # fmt: skip

    def _uses(self) -> dict[str, object]:
        d, e = self.q.shape[-1], self.v.shape[-1]
        by_rows = self.name == "queries"
        return {
            "declare": self._declared(d, e),
            "begin_scores": self._products("score", "rows_0", "columns_0 + turn", 0, d),
            "begin_shares": self._products("share", "rows_1", "columns_1 + turn", 0, e),
            "scores": self._scaled(),
            "use": self._use_of_rows(d) if by_rows else self._use_of_columns(d, e),
        }

    def _declared(self, d: int, e: int) -> str:
        steps = self.tile.columns // 16
        if self.name == "queries":
            sums = f"float by_query[1][{d // 8}][4] = {{}};\nunsigned moved[{steps}][4];\n"
            return sums + self._sums_of_rows()
        return (
            f"float by_key[1][{d // 8}][4] = {{}}, by_value[1][{e // 8}][4] = {{}};\n"
            f"unsigned weight[{steps}][4], moved[{steps}][4];"
        )

    def _use_of_columns(self, d: int, e: int) -> str:
        return self._gradient_text(
            "shares_of_columns",
            power=self._power("shift"),
            sums=self._sums_offset,
            dropped=self._dropped(MARKED),
            by_share=self._by_share,
            packed_values=self._packed("weight", "score"),
            combine_values=self._combine("by_value", "weight", "columns_1 + turn + step * 128", e),
            packed_keys=self._packed("moved", "share"),
            combine_keys=self._combine("by_key", "moved", "columns_0 + turn + step * 128", d),
        )

    def _results(self) -> str:
        d, e = self.q.shape[-1], self.v.shape[-1]
        sums = {0: ("by_query", d, self._factor), 1: ("by_key", d, self._factor)}
        sums[2] = ("by_value", e, f"{self._dropout_scale!r}f")
        stores = []
        for index in self.part.results:
            name, width, factor = sums[index]
            text = self._tma_text(
                "values", sum=name, part=factor, width=width,
                pointer=self.params.write(self.stored[index]),
                index=self._row_index(index, self.row),
            )  # fmt: skip
            stores.append(f"{{\n{text}}}")
        return self._gradient_text("results", extent=self.part.rows, stores=stores)
