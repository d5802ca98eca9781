"""Text of attention on matrix units by mma.sync: forward, and gradients by queries and by keys."""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad_cuda.core.dtypes import bool_
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.ops.attention import attention, dropout_scale, placements_of
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.constant_folding import folded
from tinygrad_cuda.lowering.codegen.expression import Evaluator, Lane, Scope, is_wide
from tinygrad_cuda.lowering.codegen.index_rewrites import Coordinates
from tinygrad_cuda.lowering.codegen.skeleton import (
    THREADS,
    KernelParams,
    Stage,
    comment,
    fill,
    stem,
    wrapped,
)
from tinygrad_cuda.lowering.schedule.cost import flops
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.skeletons.attention.tiles import (
    COPY,
    AttentionPart,
    AttentionTile,
    stored_results,
)
from tinygrad_cuda.lowering.skeletons.contract.loads import zero_outside

CUH = "attention.cuh"
LOG2_E = 1.4426950408889634  # log2(e): scores of base e become those of base 2
UNITS = {"bfloat16": "bf16", "float16": "fp16", "float32": "tf32"}
SLACK = 8.0  # by which scores of base 2 pass the largest one before values are scaled again


@dataclass(frozen=True)
class TileOperand:
    """A matrix that comes into shared memory.

    Attributes:
        name: of the lambda that brings it there.
        node: the value, (*, rows, width).
        position: the variable of its rows.
        rows: of a tile.
        pitch: bytes from row to row of a tile.
    """

    name: str
    node: Node
    position: str
    rows: int
    pitch: int

    @property
    def width(self) -> int:
        return self.node.shape[-1]


class AttentionText:
    """The text of one kernel.

    Attributes:
        row, column: the variables of rows and columns of the scores: ``query`` and ``key``.
        base: what scores are multiplied by, besides their scale: powers are those of 2.
    """

    base = LOG2_E

    def __init__(self, kernel: Kernel, name: str, part: AttentionPart, tile: AttentionTile) -> None:
        self.kernel, self.name, self.part, self.tile = kernel, name, part, tile
        (self.node,) = kernel.anchors
        self.params = KernelParams()
        reads = set(kernel.reads)
        self.reader = Evaluator(self.params, reads, is_wide(kernel), kernel.narrowed)
        self.outer = Scope("batch")
        self.stored = stored_results(kernel)
        self.placements = placements_of(self.node)
        by_keys = name in ("keys", "values")
        self.row, self.column = ("key", "query") if by_keys else ("query", "key")
        sources = self.node.sources
        if self.node.op is attention:
            self.q, self.k, self.v, self.mask, self.keep_mask = sources
        else:
            self.g, self.q, self.k, self.v, self.logsumexp, self.delta, *masks = sources
            self.mask, self.keep_mask = masks
        self.batch_shape = self.q.shape[:-2]
        self.batch = ix.variable("batch", part.batches)
        self.unit = UNITS[self.node.dtype.name]
        self.vector = COPY // self.node.dtype.itemsize  # elements of an asynchronous copy

    # The kernel

    @property
    def ahead(self) -> int:
        """Tiles of columns that are copied before the loop."""
        return self.tile.stages - 1

    def stage(self) -> Stage:
        """The stage, from its parts."""
        row_operands, ring = self._operands()
        names = [operand.name for operand in (*row_operands, *ring)]
        operands = [self._fetch(operand) for operand in (*row_operands, *ring)]
        bodies = {"forward": self._forward, "queries": self._queries}
        body = bodies.get(self.name, self._keys)()
        block = self._filled(
            "block",
            tile=self._tile_text(),
            tiles=self._tiles,
            rows=self.row,
            tile_rows=self.tile.rows,
            outer=self.outer.lines,
            first_column=self._first_column(),
            last_column=self._last_column(),
            row_bytes=sum(
                self.tile.rows * self.tile.stride(width) for width in self.part.row_widths
            ),
            operands=operands,
            ahead=self.ahead,
            fetch_columns=[
                *(
                    f"fetch_{operand.name}(first, ring + slot * {self._slot}"
                    f"{self._offset(ring, number)});"
                    for number, operand in enumerate(ring)
                ),
                *(self._fetch_sums() if self.row == "key" else ()),
            ],
            fetch_rows=[
                f"fetch_{operand.name}({self.row}_first, smem{self._offset(row_operands, number)});"
                for number, operand in enumerate(row_operands)
            ],
        )
        assert len(set(names)) == len(names)
        # Once more as a whole: sections within sections have loops of one trip, too.
        text = folded("\n".join((block, *body)))
        blocks = self.part.blocks(self.tile)
        return self._stage(text, blocks)

    def _stage(self, text: str, blocks: int) -> Stage:
        part, tile, kernel = self.part, self.tile, self.kernel
        label = comment(
            kernel,
            f"attention, {self.name}: {part.batches} x {part.rows} x {part.columns}, tiles of "
            f"{tile.rows} x {tile.columns}, {tile.stages} slots, {flops(self.node)} FLOPs",
            blocks,
        )
        shared, words = part.shared(tile), self.params.list
        name = stem(kernel) + ("" if self.name == "forward" else f"_{self.name}")
        stage = wrapped(kernel, name, text, words, blocks, shared, label)
        stage.min_blocks_per_sm = part.resident(tile, kernel.target)
        return stage

    def _operands(self) -> tuple[list[TileOperand], list[TileOperand]]:
        """Those of which a block holds its rows, and those whose columns pass through the ring."""
        q, k, v = (("q", self.q), ("k", self.k), ("v", self.v))
        if self.name == "forward":
            return [self._row_operand(*q, 0)], [self._passing(*pair) for pair in (k, v)]
        g = "g", self.g
        if self.name == "queries":
            both, ring = (q, g), (k, v)
        else:
            both, ring = (k, v), (q, g)
        rows = [self._row_operand(*pair, number) for number, pair in enumerate(both)]
        return rows[: len(self.part.row_widths)], [self._passing(*pair) for pair in ring]

    def _row_operand(self, name: str, node: Node, number: int) -> TileOperand:
        pitch = self.tile.stride(self.part.row_widths[min(number, len(self.part.row_widths) - 1)])
        return TileOperand(name, node, self.row, self.tile.rows, pitch)

    def _passing(self, name: str, node: Node) -> TileOperand:
        return TileOperand(
            name, node, self.column, self.tile.columns, self.tile.stride(node.shape[-1])
        )

    def _filled(self, section: str, **holes: object) -> str:
        sizes = {
            "threads": THREADS,
            "groups": self.tile.groups,
            "columns": self.tile.columns,
            "stages": self.tile.stages,
            "warp_rows": self.tile.warp_rows,
            "slot": self._slot,
            "multiply": f"tgc_mma_{self.unit}",
            "pack": f"tgc_pack_{self.unit}",
            "storage": self.node.dtype.c,
            "vector": self.vector,
            "of_base_e": " * 1.44269504f",
            "exp": "tgc_exp2_short",
        }
        return fill(CUH, section, **{**sizes, **holes})

    def _element(self, factor: str, text: str) -> str:
        """An element of a factor; zero where a power's sign says that its weight is dropped."""
        powers = factor == "score" and self.row == "key"
        return f"tgc_unmarked({text})" if powers and self.node.attributes["dropout"] else text

    def _pair(self, factor: str) -> dict[str, str]:
        """Two neighbours of a factor."""
        pair = [self._element(factor, f"pair[{k}]") for k in range(2)]
        return {"first": pair[0], "second": pair[1]}

    @property
    def _slot(self) -> int:
        return self.part.slot(self.tile)

    @property
    def _tiles(self) -> int:
        return -(-self.part.rows // self.tile.rows)

    @property
    def _causal(self) -> bool:
        return bool(self.node.attributes["causal"])

    @property
    def _scale(self) -> float:
        return float(self.node.attributes["scale"])

    def _offset(self, operands: list[TileOperand], number: int) -> str:
        """C text that adds the bytes of the operands before one."""
        nbytes = sum(operand.rows * operand.pitch for operand in operands[:number])
        return f" + {nbytes}" if nbytes else ""

    def _tile_text(self) -> str:
        """The tile of a block: those with the longest way to the causal border come first."""
        own = f"virtual_block % {self._tiles}"
        backwards = self._causal and self.row == "query"
        return f"{self._tiles - 1} - {own}" if backwards else own

    def _first_column(self) -> str:
        if not (self._causal and self.row == "key"):
            return "0"
        return f"key_first / {self.tile.columns} * {self.tile.columns}"

    def _last_column(self) -> str:
        """Behind the last column that some row of the block sees."""
        extent = str(self.part.columns)
        if not (self._causal and self.row == "query"):
            return extent
        last = f"query_first + {self.tile.rows}"
        return f"{last} < {extent} ? {last} : {extent}"

    # Loads

    def _at(self, position: str) -> Coordinates:
        extent = self.q.shape[-2] if position == "query" else self.k.shape[-2]
        return (*ix.unflatten(self.batch, self.batch_shape), ix.variable(position, extent))

    def _fetch(self, operand: TileOperand) -> str:
        """The lambda that brings a tile of an operand to shared memory."""
        chunks = operand.width // self.vector
        count = operand.rows * chunks
        extent = operand.node.shape[-2]
        bounds, copy = self._copy(operand, [f"{operand.position} < {extent}"])
        return self._filled(
            "operand",
            name=operand.name,
            loads=-(-count // THREADS),
            skip=[f"if (chunk >= {count}) break;"] if count % THREADS else [],
            chunks=chunks,
            position=operand.position,
            in_bounds=bounds,
            target=self._target(operand),
            copy=copy,
        )

    def _target(self, operand: TileOperand) -> str:
        """C text of a chunk's bytes in its tile."""
        return f"row * {operand.pitch} + step * {COPY}"

    def _copy(self, operand: TileOperand, bounds: list[str]) -> tuple[str, str]:
        """Bounds, and an asynchronous copy where memory has runs of the operand; else loads."""
        reader, node = self.reader, operand.node
        v, step = ix.variable("v", self.vector), ix.variable("step", operand.width // self.vector)
        at = (*self._at(operand.position), step * self.vector + v)
        base, inner, guard = zero_outside(reader, node, at)
        scopes = [self.outer, Scope(operand.position, "step"), Scope("v")]
        reader.scopes, reader.lane = scopes, None
        if base in reader.memory and base.dtype is node.dtype:
            split = ix.split_lane(ix.flatten(inner, base.shape), v)
            lanes = any(leaf.name == "v" for part in guard for leaf in part.index.leaves)
            if split and split[0] == 1 and ix.divisible(split[1], self.vector) and not lanes:
                bounds += [reader.guard_text(guard)] if guard else []
                pointer, index = self.params.read(base), reader.index_text(split[1])
                copied = self._filled("copied", pointer=pointer, index=index)
                return " && ".join(bounds), copied
        reader.lane = Lane(v, self.vector)
        value = reader.value(node, at)
        load, map_ = scopes[1].lines, scopes[2].lines
        return " && ".join(bounds), self._filled("evaluated", load=load, map=map_, value=value)

    def _sums(self) -> tuple[list[str], str, str]:
        """Statements that load a query's logarithm and delta, and their values."""
        reader, scope = self.reader, Scope("query")
        reader.scopes, reader.lane = [self.outer, scope], None
        values = [reader.value(node, self._at("query")) for node in (self.logsumexp, self.delta)]
        return scope.lines, values[0], values[1]

    def _sums_of_rows(self) -> str:
        """Each thread's logarithms and deltas."""
        load, logsumexp, delta = self._sums()
        return self._filled(
            "rows_of_query", extent=self.part.rows, load=load, logsumexp=logsumexp, delta=delta
        )

    def _fetch_sums(self) -> list[str]:
        """A tile's logarithms and deltas to shared memory, asynchronously if they lie in memory."""
        columns, reader = self.tile.columns, self.reader
        copies = []
        for number, node in enumerate((self.logsumexp, self.delta)):
            target = f"sums + {number * columns}" if number else "sums"
            scope = Scope("query")
            reader.scopes, reader.lane = [self.outer, scope], None
            base, inner, guard = zero_outside(reader, node, self._at("query"))
            if base in reader.memory and base.dtype is node.dtype and not guard:
                index = reader.index_text(ix.flatten(inner, base.shape))
                pointer = self.params.read(base)
                copies += self._filled(
                    "copy_sum", target=target, pointer=pointer, index=index
                ).splitlines()
                continue
            value = reader.value(node, self._at("query"))
            copies += [*scope.lines, f"*({target}) = {value};"]
        text = self._filled(
            "fetch_sums", extent=self.part.columns, sums=self._sums_offset, copy=copies
        )
        return text.splitlines()

    @property
    def _sums_offset(self) -> int:
        """Bytes of a slot before the logarithms of its columns."""
        return self._slot - self.part.sums * self.tile.columns

    # Products

    def _products(self, total: str, a: str, b: str, pitch: int, width: int) -> str:
        """total += a b^T over a width."""
        return self._by_steps(total, a, b, pitch, width, width // 16)

    def _by_steps(self, total: str, a: str, b: str, pitch: int, width: int, steps: int) -> str:
        stride = self.tile.stride
        return self._filled(
            "products", sum=total, a=a, b=b, stride=pitch, stride_b=stride(width), steps=steps
        )

    def _combine(self, total: str, factor: str, b: str, width: int) -> str:
        """total += factor b, whose rows are the columns of the factor."""
        stride = self.tile.stride
        return self._filled(
            "combine",
            sum=total,
            factor=factor,
            b=b,
            stride=stride(width),
            width=width,
            **self._pair(factor),
        )

    def _loop(self, a: str, pitch: int, use: list[str]) -> str:
        """The loop over columns: scores of `a` with the ring's first operand, and their use."""
        return self._filled(
            "loop",
            beyond=self._beyond(),
            scores=self._products("score", a, "columns_slot", pitch, self.q.shape[-1]),
            scale=""
            if self._folds
            else self._filled("scale", factor=f"{self._factor_of_scores!r}f"),
            mask=self._mask(),
            use=use,
        )

    def _beyond(self) -> list[str]:
        """A warp leaves out columns that none of its rows sees."""
        if not self._causal:
            return []
        if self.row == "query":
            last = f"query_first + row_first + {self.tile.warp_rows - 1}"
            return [f"if (column_first > {last}) continue;"]
        return [f"if (column_first + {self.tile.columns - 1} < key_first + row_first) continue;"]

    @property
    def _folds(self) -> bool:
        """Whether powers are those of scores times the scale: nothing is added to them.

        The scale is to be positive, so that hidden scores stay -inf and the largest is the largest.
        """
        usual = 1e-6 < self._scale < 1e6  # and `SLACK` over it is a number
        return usual and (self._unmasked or self.mask.dtype is bool_)

    @property
    def _times(self) -> str:
        return f" * {self._factor_of_scores!r}f" if self._folds else ""

    @property
    def _times_base(self) -> str:
        return f" * {self.base!r}f"

    @property
    def _factor_of_scores(self) -> float:
        return self._scale * self.base

    def _power(self, shift: str) -> str:
        """The exponent of a probability."""
        score = "score[i][j][q]"
        if not self._folds:
            return f"{score} - {shift}"
        return f"tgc_fma({score}, {self._factor_of_scores!r}f, -{shift})"

    @property
    def _unmasked(self) -> bool:
        """Whether every key is seen."""
        return self.mask.op is common.constant and self.mask.attributes["value"] is True

    # Masks

    def _mask(self) -> str:
        """Hides scores, in tiles at a border or everywhere."""
        columns, keys = self.tile.columns, self.k.shape[-2]
        free = self._unmasked
        borders = []
        if self.row == "query" and keys % columns:
            borders.append(f"column_first + {columns} > {keys}")
        if self._causal and self.row == "query":
            borders.append(f"column_first + {columns - 1} > query_first + row_first")
        elif self._causal:
            borders.append(f"column_first < key_first + row_first + {self.tile.warp_rows - 1}")
        if free and not borders:
            return ""
        bounds = [f"key < {keys}"] if self.row == "query" and keys % columns else []
        bounds += ["key <= query"] if self._causal else []
        evaluate = "" if free else self._evaluated_mask()
        if not free:
            bounds = [f"query < {self.q.shape[-2]}", f"key < {keys}"] + bounds[-1:] * self._causal
        text = self._filled(
            "mask",
            row=self.row,
            column=self.column,
            row_tile=f"{self.row}_first",
            column_tile="column_first",
            in_bounds=" && ".join(bounds),
            evaluate=evaluate,
        )
        return self._filled("border", border=" || ".join(borders), mask=text) if free else text

    def _evaluated_mask(self) -> str:
        """Of a score whose position is in bounds."""
        here = self._at_score(self.mask)
        apply = f"score[i][j][q] += {here['value']}{self._times_base};"
        if self.mask.dtype is bool_:
            apply = f"seen = {here['value']};"
        return self._filled("masked", load=here["load"], apply=apply)

    # Dropout

    @property
    def _dropout_scale(self) -> float:
        """What dropout multiplies the remaining weights by; 1 without dropout."""
        return dropout_scale(self.node.attributes["dropout"])

    def _dropped(self, apply: str) -> str:
        """A statement for each score, given `keep`, its keep mask; nothing without dropout.

        A row of Philox's numbers is made again from the score's position, as for the mask of
        `dropout`.
        """
        if not self.node.attributes["dropout"]:
            return ""
        return self._filled(
            "dropped",
            row=self.row,
            column=self.column,
            row_tile=f"{self.row}_first",
            column_tile="column_first",
            in_bounds=f"query < {self.q.shape[-2]} && key < {self.k.shape[-2]}",
            apply=apply,
            **self._at_score(self.keep_mask),
        )

    def _at_score(self, node: Node) -> dict[str, object]:
        """A value as large as the scores, or with sizes of 1, and the statements before it."""
        reader, scope = self.reader, Scope("query", "key")
        reader.scopes, reader.lane = [self.outer, scope], None
        *batch, query = self._at("query")
        whole = (*batch, query, ix.variable("key", self.k.shape[-2]))
        at = [part if size > 1 else ix.constant(0) for part, size in zip(whole, node.shape)]
        value = reader.value(node, tuple(at))
        return {"load": scope.lines, "value": value}

    # The three kernels

    def _powers(self) -> dict[str, object]:
        """What the forward kernels make of scores."""
        return {
            "slack": f"{SLACK / (self._factor_of_scores if self._folds else 1.0)!r}f",
            "times": self._times,
            "power": self._power("shift"),
        }

    def _values(self, width: int) -> str:
        """Sums become values; logarithms are stored."""
        return self._filled(
            "values",
            width=width,
            nothing="NAN" if self._unmasked else "0.0f",  # 0 / 0
            factor=f"{self._dropout_scale!r}f",
            store_rows=self._store_logarithm(),
        )

    def _forward(self) -> list[str]:
        stride = self.tile.stride
        width, pitch = self.v.shape[-1], stride(self.part.row_widths[0])
        values = f"columns_slot + {self.tile.columns * stride(self.q.shape[-1])}"
        online = self._filled(
            "online",
            width=width,
            **self._powers(),
            dropped=self._dropped(ZEROED),
            combine=self._combine("value", "score", values, width),
        )
        sums, end = self._filled("forward", width=width), self._values(width)
        stores = self._store(0, "value", "smem", pitch, "1.0f") if 0 in self.stored else ""
        return [sums, self._loop("smem", pitch, online.splitlines()), end, stores]

    def _store_logarithm(self) -> list[str]:
        if 1 not in self.stored:
            return []
        node = self.stored[1]
        text = self._filled(
            "store_rows",
            logarithm=self._logarithm,
            extent=self.part.rows,
            pointer=self.params.write(node),
            index=self._row_index(1, "query"),
        )
        return text.splitlines()

    def _row_index(self, result: int, position: str) -> str:
        """The first element of a result's row, in the output of which it is a part."""
        _, offset, strides = self.placements[result]
        at = self._at(position)
        steps = (coordinate * stride for coordinate, stride in zip(at, strides))
        return self.reader.index_text(sum(steps, ix.constant(offset)))

    @property
    def _logarithm(self) -> str:
        """Of a row's sum and its largest score."""
        return f"(largest[i][half]{self._times} + tgc_log2(sum)) * 0.69314718f"

    def _queries(self) -> list[str]:
        d, e, stride = self.q.shape[-1], self.v.shape[-1], self.tile.stride
        g = f"smem + {self.tile.rows * stride(d)}"
        values = f"columns_slot + {self.tile.columns * stride(d)}"
        use = self._filled(
            "shares_of_rows",
            power=self._power("shift[i][q / 2]"),
            products=self._products("share", g, values, stride(e), e),
            dropped=self._dropped(self._dropped_gradient),
            combine=self._combine("by_query", "share", "columns_slot", d),
        )
        declare = f"float by_query[{self.tile.groups}][{d // 8}][4] = {{}};"
        loop = self._loop("smem", stride(d), use.splitlines())
        return [
            declare,
            self._sums_of_rows(),
            loop,
            DONE,
            self._store(0, "by_query", "smem", stride(d), self._factor),
        ]

    def _keys(self) -> list[str]:
        d, e, stride = self.q.shape[-1], self.v.shape[-1], self.tile.stride
        values = f"smem + {self.tile.rows * stride(d)}"
        g = f"columns_slot + {self.tile.columns * stride(d)}"
        results = self.part.results
        by_keys = self._filled(
            "by_keys",
            products=self._products("share", values, g, stride(e), e),
            by_share=self._by_share,
            combine=self._combine("by_key", "share", "columns_slot", d),
        )
        use = self._filled(
            "shares_of_columns",
            power=self._power("shift"),
            sums=self._sums_offset,
            beyond_queries=self._beyond_queries,
            dropped=self._dropped(MARKED),
            combine_values=self._combine("by_value", "score", g, e) if 2 in results else "",
            by_keys=by_keys if 1 in results else "",
        )
        pitch = stride(self.part.row_widths[0])
        second = ("smem", pitch) if len(self.part.row_widths) == 1 else (values, stride(e))
        stores = []
        if 1 in results:
            stores.append(self._store(1, "by_key", "smem", pitch, self._factor))
        if 2 in results:
            stores.append(self._store(2, "by_value", *second, f"{self._dropout_scale!r}f"))
        names = {1: "by_key", 2: "by_value"}
        declare = [
            f"float {names[index]}[{self.tile.groups}][{width // 8}][4] = {{}};"
            for index, width in results.items()
        ]
        loop = self._loop("smem", pitch, use.splitlines())
        return ["\n".join(declare), loop, DONE, *stores]

    @property
    def _dropped_gradient(self) -> str:
        """The gradient by a share passes where the keep mask is True."""
        return f"share[i][j][q] = keep ? share[i][j][q] * {self._dropout_scale!r}f : 0.0f;"

    @property
    def _by_share(self) -> str:
        """The gradient by a score from its power, which has a sign where the weight is dropped."""
        if not self.node.attributes["dropout"]:
            return "score[i][j][q] * (share[i][j][q] - delta)"
        factor = f"{self._dropout_scale!r}f"
        return (
            f"fabsf(score[i][j][q]) * "
            f"((tgc_is_marked(score[i][j][q]) ? 0.0f : share[i][j][q] * {factor}) - delta)"
        )

    @property
    def _beyond_queries(self) -> str:
        """Whether a column of a tile is no query."""
        queries = self.part.columns
        return f" || column_first + column >= {queries}" if queries % self.tile.columns else ""

    @property
    def _factor(self) -> str:
        return f"{self._scale!r}f"

    def _store(self, index: int, total: str, staged: str, pitch: int, factor: str) -> str:
        """A result's rows through the warp's own rows of shared memory into memory."""
        node = self.stored[index]
        extent, width = self.part.rows, self.part.results[index]
        return self._filled(
            "store",
            sum=total,
            staged=staged,
            stride=pitch,
            factor=factor,
            width=width,
            rows=self.row,
            position=self.row,
            extent=extent,
            pointer=self.params.write(node),
            index=self._row_index(index, self.row),
        )


ZEROED = "if (!keep) score[i][j][q] = 0.0f;"
MARKED = "score[i][j][q] = keep ? fabsf(score[i][j][q]) : -fabsf(score[i][j][q]);"
# Copies of rows may still be in flight where no column is seen, and so no barrier was passed.
DONE = "tgc_copy_wait<0>();\n__syncthreads();"
