"""RECURRENCE: text of the steps of LSTM, GRU and RNN, and of their gradients, in one kernel."""

from __future__ import annotations

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.ops.recurrence import gru, gru_backward, lstm, lstm_backward
from tinygrad_cuda.lowering.codegen import index as ix
from tinygrad_cuda.lowering.codegen.constant_folding import folded
from tinygrad_cuda.lowering.codegen.expression import Evaluator, Scope, is_wide
from tinygrad_cuda.lowering.codegen.index import Index
from tinygrad_cuda.lowering.codegen.skeleton import (
    THREADS,
    Exchange,
    KernelParams,
    Stage,
    comment,
    fill,
    stem,
    wrapped,
)
from tinygrad_cuda.lowering.schedule.cost import flops
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel
from tinygrad_cuda.lowering.skeletons.recurrence.tiles import (
    PITCH,
    SLOTS,
    WARPS,
    RecurrenceTile,
    tile_of,
)

CUH = "recurrence.cuh"
Result = tuple[int, Index, str]  # number of a result, position of an element, and its value


def recurrence_stages(kernel: Kernel) -> list[Stage]:
    """One stage."""
    (node,) = kernel.anchors
    tile = tile_of(node, kernel.target)
    assert not isinstance(tile, str), tile
    text = _StepsBackward if tile.sizes.backward else _StepsForward
    return [text(kernel, tile).stage()]


def recurrence_tier(kernel: Kernel) -> str:
    """What multiplies in a kernel, how its blocks divide a step, and what asked for the unit."""
    (node,) = kernel.anchors
    tile = tile_of(node, kernel.target)
    assert not isinstance(tile, str), tile
    unit = tile.unit if tile.matrix else "float32 units"
    why = f"{node.dtype.name} at {settings.matmul_precision!r}"
    units = f"{tile.units} of {tile.sizes.units} units a block, {tile.parts} parts"
    return f"{unit}, {units}, {tile.clocks:.0f} clocks ({why})"


class _Recurrence:
    """The text of one kernel."""

    def __init__(self, kernel: Kernel, tile: RecurrenceTile) -> None:
        self.kernel, self.tile, self.sizes = kernel, tile, tile.sizes
        (self.node,) = kernel.anchors
        self.params = KernelParams()
        self.reader = Evaluator(self.params, set(kernel.reads), is_wide(kernel), kernel.narrowed)
        self.outer = Scope()
        self.stored = {
            store.attributes["index"] if store.op is common.output else 0: store
            for store in kernel.stores
        }
        sizes = self.sizes
        self.t, self.earlier = (ix.variable(name, sizes.steps) for name in ("t", "earlier"))
        self.b, self.unit = ix.variable("b", sizes.batch), ix.variable("unit", sizes.units)
        self.reverse = bool(self.node.attributes["reverse"])
        self.name = self.node.op.name.removesuffix("_backward")

    def stage(self) -> Stage:
        """The stage, from its parts."""
        tile, kernel, sizes = self.tile, self.kernel, self.sizes
        exchange = self.params.exchange(Exchange(self._exchange_bytes))
        steps, weights, weight = self._steps(), self._weight_position(), self._weight()
        body = self._filled(
            "body",
            exchange=exchange,
            weight_position=weights,
            weight_at=self._weight_at,
            multiply=self._multiply(),
            check=self._of_split("check", weight_at=self._weight_at),
            weight_inside=weight[0],
            load_weight=weight[1],
            weight=weight[2],
            outer=[*self.outer.lines, *self._before()],
            steps=steps,
        )
        label = comment(
            kernel,
            f"recurrence, {sizes.steps} steps of {sizes.batch} sequences in {tile.parts} parts, "
            f"{sizes.units} units, {tile.units} a block, {flops(self.node)} FLOPs",
            tile.blocks,
        )
        words = self.params.list
        text = folded(body)
        stage = wrapped(kernel, stem(kernel), text, words, tile.blocks, tile.shared, label)
        stage.alone = stage.waits = True
        return stage

    # Sizes

    @property
    def _flag_words(self) -> int:
        """8-byte words before the states, an even number."""
        return -(-self.tile.blocks * (1 + self.tile.gathers) // 2) * 2

    @property
    def _gate_elements(self) -> int:
        """Of one gate of all sequences, in the exchange."""
        return self.sizes.batch * self.tile.gate_elements

    @property
    def _buffer(self) -> int:
        """Elements of one of two buffers."""
        return self._gate_elements * (self.sizes.gates if self.sizes.backward else 1)

    @property
    def _exchange_bytes(self) -> int:
        states = 2 * self._buffer * (2 if self.tile.mma else 4)
        sums = self.tile.unit_blocks * self.sizes.batch * self.tile.columns
        return 8 * self._flag_words + states + (4 * sums if self.tile.gathers else 0)

    @property
    def _weight_at(self) -> str:
        """The position of a weight in shared memory."""
        if self.tile.matrix:
            return f"column * {self.tile.weight_k} + k"
        return f"(k / 4 * {self.tile.columns} + column) * 4 + k % 4"

    def _multiply(self) -> str:
        tile = self.tile
        if tile.mma:
            unit = {"bfloat16": "bf16", "float16": "fp16"}[self.node.dtype.name]
            return self._filled(
                "multiply_mma", multiply_tiles=f"tgc_mma_{unit}", tiles_of_columns=tile.columns // 8
            )
        if tile.matrix:
            return self._multiply_tf32({"tiles_of_columns": tile.columns // 8})
        rows, columns, halves = tile.lanes
        sizes = {
            "row_lanes": rows, "column_lanes": columns, "halves": halves,
            "half_lanes": rows * columns, "lane_rows": tile.rows // rows,
            "lane_columns": tile.columns // columns,
        }  # fmt: skip
        section = "store_sums" if halves == 1 else "store_sums_of_halves"
        stores = self._filled(section, **sizes).splitlines()
        return self._filled("multiply", store_sums=stores, **sizes)

    def _multiply_tf32(self, sizes: dict[str, object]) -> str:
        """Of rounded operands, or of split ones, whose sums are short and looked at."""
        split = self.tile.unit == "tf32x3"
        products = self._filled("split_products" if split else "rounded_products", **sizes)
        parts = {name: self._filled(name, **sizes) for name in ("begin_part", "add_part")}
        return self._filled(
            "multiply_tf32",
            products=products.splitlines(),
            multiplied=self._of_split("multiplied"),
            set_multiplied=self._of_split("set_multiplied"),
            unroll_turns="#pragma unroll 4" if split else "#pragma unroll",
            **{name: [] if split else part.splitlines() for name, part in parts.items()},
            **sizes,
        )

    def _of_split(self, section: str, **holes: object) -> list[str]:
        """A section that kernels of split products alone have."""
        if self.tile.unit != "tf32x3":
            return []
        return self._filled(section, **holes).splitlines()

    def _filled(self, section: str, **holes: object) -> str:
        tile, sizes = self.tile, self.sizes
        owners = f"first_k / {tile.units}", f"(last_k - 1) / {tile.units}"
        if tile.whole:  # gradients of all gates
            owners = "0", f"first_k < last_k ? {tile.owners - 1} : -1"
        return fill(
            CUH, section,
            **{
                "threads": THREADS, "warps": WARPS, "gates": sizes.gates, "units": tile.units,
                "hidden": sizes.units, "batch": sizes.batch, "unit_blocks": tile.unit_blocks,
                "tiles": tile.tiles, "weights": tile.weights, "columns": tile.columns,
                "rows": tile.rows, "weight_k": tile.weight_k, "groups": tile.groups,
                "staged": tile.staged, "own": tile.own, "flag_words": self._flag_words,
                "warp_elements": tile.warp_steps * tile.step, "slot": tile.rows * PITCH,
                "chunks": tile.chunks, "slots": SLOTS, "together": tile.together,
                "copy_pitch": PITCH, "sum_pitch": tile.sum_pitch,
                "row_elements": tile.row_elements, "part_rows": tile.part_rows,
                "gate_row": tile.gate_elements, "buffer": self._buffer, "first_owner": owners[0],
                "last_owner": owners[1], "k": tile.row_elements if tile.whole else sizes.units,
                "step_count": sizes.steps, "tile_steps": sizes.steps,
                "cluster_units": tile.units * sizes.gates, "second_flags": tile.blocks,
                "storage": self.node.dtype.c,
                "weight_type": self.node.dtype.c if tile.mma else "float",
                "pairs": -(-tile.rows * tile.units // THREADS), "unroll": "#pragma unroll",
                **holes,
            },
        )  # fmt: skip

    # Parts

    def _before(self) -> list[str]:
        """Declarations before the weights are loaded."""
        return []

    def _steps(self) -> str:
        raise NotImplementedError

    def _weight_position(self) -> str:
        raise NotImplementedError

    def _weight(self) -> tuple[str, list[str], str]:
        """Whether a column has weights, statements that load one, and its value."""
        raise NotImplementedError

    # Values

    def _value(self, node: Node, *at: Index) -> tuple[list[str], str]:
        """Statements that load an element, and its value."""
        scope = Scope("t", "earlier", "b", "unit", "gate", "k", "from")
        self.reader.scopes, self.reader.lane = [self.outer, scope], None
        value = self.reader.value(node, at)
        return scope.lines, value

    def _pairs(self, statements: list[str]) -> str:
        """A loop over a thread's sequences and units."""
        return self._filled("pairs", statements=statements) if statements else ""

    def _ahead(self, *values: tuple[list[str], str]) -> str:
        """Loads of a step's operands before its products."""
        lines = []
        for number, (load, value) in enumerate(values):
            lines += [*load, f"ahead[pair][{number}] = {value};"]
        return self._pairs(lines)

    def _store(self, index: int, position: Index, value: str) -> list[str]:
        """The store of an element of a result that is wanted."""
        if index not in self.stored:
            return []
        pointer = self.params.write(self.stored[index])
        return [f"tgc_store({pointer}, {self.reader.index_text(position)}, {value});"]

    def _stored_later(self, apply: list[str], results: list[Result]) -> dict[str, object]:
        """The pointwise part of a step, and the stores behind the flag that others wait for."""
        wanted = [result for result in results if result[0] in self.stored]
        keep, stores = [], list[str]()
        for number, (index, position, value) in enumerate(wanted):
            keep.append(f"made[pair][{number}] = {value};")
            stores += self._store(index, position, f"made[pair][{number}]")
        return {
            "made_count": max(1, len(wanted)),
            "apply": self._pairs([*apply, *keep]),
            "store": self._pairs(stores),
        }

    def _state_at(self, t: Index | None = None) -> Index:
        """The position of a unit's element in (T, B, H), or in (B, H) without a step."""
        row = self.b if t is None else t * self.sizes.batch + self.b
        return row * self.sizes.units + self.unit

    def _gate_at(self, gate: int, count: int) -> Index:
        """The position of a gate's element in (T, B, count * H)."""
        units = self.sizes.units
        return (self.t * self.sizes.batch + self.b) * (count * units) + (self.unit + gate * units)

    def _gate(self, node: Node, gate: int) -> tuple[list[str], str]:
        return self._value(node, self.t, self.b, self.unit + gate * self.sizes.units)


class _StepsForward(_Recurrence):
    """All steps."""

    def _weight_position(self) -> str:
        return self._filled("weights")

    def _weight(self) -> tuple[str, list[str], str]:
        sizes = self.sizes
        k, gate = ix.variable("k", sizes.units), ix.variable("gate", sizes.gates)
        load, value = self._value(self.node.sources[1], gate * sizes.units + self.unit, k)
        inside = f"gate < {sizes.gates} && unit < {sizes.units} && k < {sizes.units}"
        return inside, load, value

    def _steps(self) -> str:
        node, sizes = self.node, self.sizes
        hidden = node.sources[3 if node.op is gru else 2]
        load, state = self._value(hidden, self.b, self.unit)
        memory = ""
        if node.op is lstm:
            more, memory = self._value(node.sources[3], self.b, self.unit)
            load = [*load, *more]
        begin = self._filled(f"begin_{self.name}", memory=memory, state=state)
        gates = [self._gate(node.sources[0], gate) for gate in range(sizes.gates)]
        if node.op is gru:
            gates.append(self._value(node.sources[2], self.unit))
        relu = node.attributes.get("relu")
        function = "tgc_tanh(sum_of_both)"
        if relu:
            function = "sum_of_both <= 0.0f ? 0.0f : sum_of_both"
        apply = self._filled(self.name, function=function).splitlines()
        return self._filled(
            "forward",
            begin=self._pairs([*load, *begin.splitlines()]),
            time=f"{sizes.steps - 1} - step" if self.reverse else "step",
            ahead_count=len(gates),
            ahead=self._ahead(*gates),
            **self._stored_later(apply, self._results()),
        )

    def _results(self) -> list[Result]:
        op, at = self.node.op, self._state_at(self.t)
        states = [(0, at, "state")] + [(1, at, "memory")] * (op is lstm)
        names = {lstm: "i f g o", gru: "reset update candidate inner"}.get(op, "").split()
        last = 2 if op is lstm else 1
        return [*states, *((last, self._gate_at(k, 4), name) for k, name in enumerate(names))]


class _StepsBackward(_Recurrence):
    """The gradient of all steps, the last one first."""

    def _before(self) -> list[str]:
        return self._filled("sum_of_gates").splitlines() if self.tile.gathers else []

    def _weight_position(self) -> str:
        return self._filled("weights_backward" if self.tile.gathers else "weights_whole")

    def _weight(self) -> tuple[str, list[str], str]:
        sizes = self.sizes
        k, gate = ix.variable("k", sizes.units), ix.variable("gate", sizes.gates)
        if not self.tile.gathers:
            source = ix.variable("from", sizes.units)
            load, value = self._value(self.node.sources[-1], gate * sizes.units + source, self.unit)
            inside = f"gate < {sizes.gates} && from < {sizes.units} && column < {self.tile.units}"
            return f"{inside} && unit < {sizes.units}", load, value
        load, value = self._value(self.node.sources[-1], gate * sizes.units + k, self.unit)
        columns = sizes.gates * self.tile.units
        inside = f"column < {columns} && unit < {sizes.units} && k < {sizes.units}"
        return inside, load, value

    def _steps(self) -> str:
        sizes, op = self.sizes, self.node.op
        values = self._operands()
        slope = "by_state * (1.0f - ahead[pair][1] * ahead[pair][1])"
        if self.node.attributes.get("relu"):
            slope = "ahead[pair][1] > 0.0f ? by_state : 0.0f"
        gathers, unit = self.tile.gathers, self.tile.gate_elements
        gates_sum = "gates_sum(b, own)" if gathers else "total(row, own)"
        apply = self._filled(f"{self.name}_backward", slope=slope, gates_sum=gates_sum).splitlines()
        at = f"g * {self._gate_elements} + b * {unit}"
        if not gathers:
            at = f"b * {self.tile.row_elements} + g * {unit}"
        apply += self._filled("exchange_gates", gate_at=at).splitlines()
        finish = self._finish()
        carries = op in (lstm_backward, gru_backward)
        return self._filled(
            "backward",
            begin=self._pairs(["own_states[e] = 0.0f;"] if carries else []),
            time="step" if self.reverse else f"{sizes.steps - 1} - step",
            last=int(bool(finish)),
            own_gate=f" + gate * {self._gate_elements}" if gathers else "",
            gather=self._filled("gather").splitlines() if gathers else [],
            ahead_count=len(values) + carries,
            ahead=self._pairs([*self._ahead_lines(values), *self._earlier(len(values))]),
            **self._stored_later(apply, self._results()),
            finish=self._pairs(finish),
        )  # fmt: skip

    def _operands(self) -> list[tuple[list[str], str]]:
        node = self.node
        if node.op is lstm_backward:
            g, g_cells, active, cells, *_ = node.sources
            two = [self._value(x, self.t, self.b, self.unit) for x in (g, g_cells)]
            gates = [self._gate(active, gate) for gate in range(4)]
            return [*two, *gates, self._value(cells, self.t, self.b, self.unit)]
        g, second = node.sources[:2]
        first = self._value(g, self.t, self.b, self.unit)
        if node.op is gru_backward:
            return [first, *(self._gate(second, gate) for gate in range(4))]
        return [first, self._value(second, self.t, self.b, self.unit)]

    def _ahead_lines(self, values: list[tuple[list[str], str]]) -> list[str]:
        lines = []
        for number, (load, value) in enumerate(values):
            lines += [*load, f"ahead[pair][{number}] = {value};"]
        return lines

    def _earlier(self, number: int) -> list[str]:
        """The memory, or the state, before the step: of the first one it is given."""
        op, sources = self.node.op, self.node.sources
        if op not in (lstm_backward, gru_backward):
            return []
        steps, first = (sources[3], sources[4]) if op is lstm_backward else (sources[2], sources[3])
        load, value = self._value(steps, self.earlier, self.b, self.unit)
        load_first, given = self._value(first, self.b, self.unit)
        target = f"ahead[pair][{number}]"
        earlier = "t + 1" if self.reverse else "t - 1"
        return [
            f"if (step + 1 < {self.sizes.steps}) {{", f"  const int earlier = {earlier};",
            *(f"  {line}" for line in (*load, f"{target} = {value};")), "} else {",
            *(f"  {line}" for line in (*load_first, f"{target} = {given};")), "}",
        ]  # fmt: skip

    def _results(self) -> list[Result]:
        gru_row = self.node.op is gru_backward
        results = []
        for gate in range(self.sizes.gates):
            value = "by_candidate" if gru_row and gate == 2 else f"by_gate[{gate}]"
            results.append((0, self._gate_at(gate, self.sizes.gates), value))
        return [*results, *[(1, self._state_at(self.t), "by_gate[2]")] * gru_row]

    def _finish(self) -> list[str]:
        """The gradients by the states before the first step."""
        op = self.node.op
        hidden = 2 if op is gru_backward else 1
        value = "gates_sum(b, own)" if self.tile.gathers else "total(row, own)"
        value += " + own_states[e]" if op is gru_backward else ""
        stores = self._store(hidden, self._state_at(), value)
        if op is lstm_backward:
            stores += self._store(2, self._state_at(), "own_states[e]")
        return stores


__all__ = ["recurrence_stages", "recurrence_tier"]
