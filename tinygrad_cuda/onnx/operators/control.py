"""ONNX operators that compute graphs of their own, and those of sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import bool_, int64
from tinygrad_cuda.onnx.operators.call import NodeCall, Operator, Value, ints
from tinygrad_cuda.tensors import functions as T
from tinygrad_cuda.tensors.tensor import Tensor

Array = np.ndarray[Any, Any]


def _if(call: NodeCall, condition: Array) -> tuple[Value, ...]:
    branch = call.get("then_branch" if bool(condition.reshape(-1)[0]) else "else_branch")
    return tuple(call.run(branch, []))


def _loop(
    call: NodeCall, count: Array | None, condition: Array | None, *states: Value
) -> tuple[Value, ...]:  # fmt: skip
    """Results after those of the states are stacked, one row for each turn."""
    body = call.get("body")
    limit = None if count is None or not count.size else ints(count)[0]
    going = condition is None or not condition.size or bool(condition.reshape(-1)[0])
    values, rows, turn = list(states), [], 0
    while going and (limit is None or turn < limit):
        number = T.tensor(turn, dtype=int64, device=call.device)
        flag = T.tensor(going, dtype=bool_, device=call.device)
        results = call.run(body, [number, flag, *values])
        going = bool(on_host(results[0]).reshape(-1)[0])
        values = results[1 : len(values) + 1]
        rows.append(results[len(values) + 1 :])
        turn += 1
    return *values, *(T.stack(list(column)) for column in zip(*rows))


def on_host(value: Value) -> Array:
    """A value as a NumPy array."""
    array: Array = value if isinstance(value, np.ndarray) else value.numpy()
    return array


def _scan(call: NodeCall, *operands: Value) -> tuple[Value, ...]:
    """States first, then what is read row by row."""
    count = call.get("num_scan_inputs")
    states, read = list(operands[: len(operands) - count]), operands[len(operands) - count :]
    results = call.results - len(states)
    axes = call.get("scan_input_axes", [0] * count)
    reverse = call.get("scan_input_directions", [0] * count)
    steps = read[0].shape[axes[0]]
    rows: list[list[Value]] = []
    for t in range(steps):
        parts = [
            x.select(axis, steps - 1 - t if backwards else t)
            for x, axis, backwards in zip(read, axes, reverse)
        ]
        made = call.run(call.get("body"), [*states, *parts])
        states = made[: len(states)]
        rows.append(made[len(states) :])
    backwards = call.get("scan_output_directions", [0] * results)
    out_axes = call.get("scan_output_axes", [0] * results)
    columns = [
        T.stack(list(column)[:: -1 if turn else 1], axis)
        for column, turn, axis in zip(zip(*rows), backwards, out_axes)
    ]
    return *states, *columns


# Sequences ----------------------------------------------------------------------------------------


def _at(call: NodeCall, sequence: list[Value], position: Array) -> Value:
    return sequence[ints(position)[0]]


def _insert(
    call: NodeCall, sequence: list[Value], x: Value, position: Array | None = None
) -> list[Value]:
    made = list(sequence)
    made.insert(len(made) if position is None else ints(position)[0], x)
    return made


def _erase(
    call: NodeCall, sequence: list[Value], position: Array | None = None
) -> list[Value]:  # fmt: skip
    made = list(sequence)
    del made[-1 if position is None else ints(position)[0]]
    return made


def _split_to_sequence(call: NodeCall, x: Tensor, sizes: Array | None = None) -> list[Value]:
    axis = call.get("axis", 0)
    if sizes is None:
        rows: list[Value] = list(x.split(1, axis))
        return rows if call.get("keepdims", 1) else [row.squeeze(axis) for row in rows]
    return list(x.split(ints(sizes) if sizes.ndim else ints(sizes)[0], axis))


def _concat_from(call: NodeCall, sequence: list[Value]) -> Tensor:
    axis = call.get("axis")
    return T.stack(sequence, axis) if call.get("new_axis", 0) else T.cat(sequence, axis)


def _map(call: NodeCall, first: list[Value], *others: Value) -> tuple[list[Value], ...]:
    """The body's results for each element; a Tensor among the others is given to every one."""
    rows = [
        call.run(call.get("body"), [
            x, *(other[k] if isinstance(other, list) else other for other in others)
        ])
        for k, x in enumerate(first)
    ]  # fmt: skip
    return tuple(list(column) for column in zip(*rows))


def _one(function: Any) -> Any:
    return lambda call, *operands: (function(call, *operands),)


TABLE: dict[str, Operator] = {
    "If": Operator(_if, host=(0,)), "Loop": Operator(_loop, host=(0, 1)),
    "Scan": Operator(_scan),
    "SequenceConstruct": Operator(_one(lambda call, *parts: list(parts))),
    "SequenceEmpty": Operator(_one(lambda call: [])),
    "SequenceAt": Operator(_one(_at), host=(1,)),
    "SequenceInsert": Operator(_one(_insert), host=(2,)),
    "SequenceErase": Operator(_one(_erase), host=(1,)),
    "SequenceLength": Operator(lambda call, sequence: np.array(len(sequence), np.int64)),
    "SequenceMap": Operator(_map),
    "SplitToSequence": Operator(_one(_split_to_sequence), host=(1,)),
    "ConcatFromSequence": Operator(_concat_from),
    "Optional": Operator(_one(lambda call, x=None: x)),
    "OptionalHasElement": Operator(lambda call, x=None: np.array(x is not None)),
    "OptionalGetElement": Operator(_one(lambda call, x: x)),
}  # fmt: skip
