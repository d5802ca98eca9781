"""Recurrent layers: RNN, LSTM (Hochreiter and Schmidhuber, 1997), GRU (Cho et al., 2014).

The products with the inputs of all steps are one, and the steps of a layer are one op (graph/ops/
recurrence.py). Cells, and layers whose outputs are projected, are recorded step by step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import int64
from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.graph.node import Op
from tinygrad_cuda.graph.ops import recurrence
from tinygrad_cuda.graph.ops.common import output
from tinygrad_cuda.graph.ops.elementwise import cast
from tinygrad_cuda.nn import init
from tinygrad_cuda.nn.functional.linears import dropout, linear
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.nn.packed import PackedSequence
from tinygrad_cuda.nn.parameter import Parameter
from tinygrad_cuda.tensors.autocast import in_half, operands_in_half
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.call_replay import templated
from tinygrad_cuda.tensors.creation import empty, tensor, zeros
from tinygrad_cuda.tensors.shaping import cat, stack
from tinygrad_cuda.tensors.tensor import Tensor

State = tuple[Tensor, ...]
# input, first state, suffix of the parameters, whether it runs backwards -> outputs, last state
Along = Callable[[Tensor, State, str, bool], tuple[Tensor, State]]

# One step --------------------------------------------------------------------------------------


@templated
def _simple(inputs: Tensor, recurrent: Tensor, relu: bool) -> Tensor:
    """``h' = tanh(W x + U h)``, or ReLU."""
    total = inputs + recurrent
    return total.relu() if relu else total.tanh()


def _lstm(inputs: Tensor, recurrent: Tensor, state: State) -> State:
    """``c' = f c + i g``, ``h' = o tanh(c')``; gates i, f, o and the candidate g."""
    gates = inputs + recurrent
    memory = _lstm_memory(gates, state[1])
    return _lstm_output(gates, memory), memory


# Two functions, since a template has one result.


@templated
def _lstm_memory(gates: Tensor, memory: Tensor) -> Tensor:
    i, f, g, _ = gates.chunk(4, -1)
    return f.sigmoid() * memory + i.sigmoid() * g.tanh()


@templated
def _lstm_output(gates: Tensor, memory: Tensor) -> Tensor:
    return gates.chunk(4, -1)[3].sigmoid() * memory.tanh()


def _gru(inputs: Tensor, recurrent: Tensor, state: State) -> State:
    return (_gru_state(inputs, recurrent, state[0]),)


@templated
def _gru_state(inputs: Tensor, recurrent: Tensor, state: Tensor) -> Tensor:
    """``h' = (1 - z) n + z h``, ``n = tanh(x_n + r h_n)``; reset gate r, update gate z."""
    (x_r, x_z, x_n), (h_r, h_z, h_n) = inputs.chunk(3, -1), recurrent.chunk(3, -1)
    reset, update = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
    new = (x_n + reset * h_n).tanh()
    return new + update * (state - new)


# All steps --------------------------------------------------------------------------------------


@in_half
def _all_steps(row: Op, operands: Sequence[Tensor], **how: Any) -> State:
    """The states after each step, (L, N, H) of each kind, by one op."""
    node = row(*(operand.node for operand in operands), **how)
    dtype = node.dtype
    if len(node.outputs) == 1:
        return (wrap(node),)
    count = 2 if row is recurrence.lstm else 1
    parts = [output(node, index=k) for k in range(count)]
    return tuple(wrap(part if part.dtype is dtype else cast(part, dtype=dtype)) for part in parts)


class Padding:
    """Positions of packed rows in (L, N, C), sequences of falling lengths side by side.

    Behind its end a sequence repeats its last row, so that what is not finite stays its own.

    Args:
        counts: sequences that reach each step.
        like: gives the device.
    """

    def __init__(self, counts: list[int], like: Tensor) -> None:
        self.shape = len(counts), counts[0]
        numbers = np.asarray(counts)
        first = np.concatenate([[0], np.cumsum(numbers)[:-1]])  # row of each step
        steps, sequences = np.indices(self.shape)
        ends = (numbers[:, None] > np.arange(counts[0])).sum(0) - 1
        own = np.minimum(steps, ends)
        self._like = like
        self._rows = self._index(first[own] + sequences)
        self._places = self._index((steps * counts[0] + sequences)[steps <= ends])
        turned = np.where(steps <= ends, ends - steps, steps)
        self._turned = self._index(turned * counts[0] + sequences)
        self._ends = self._index(ends * counts[0] + sequences[0])

    def _index(self, positions: Any) -> Tensor:
        return tensor(positions.reshape(-1), dtype=int64, device=self._like.device)

    def padded(self, data: Tensor) -> Tensor:
        """(L, N, C) of packed rows."""
        return data.index_select(0, self._rows).reshape(*self.shape, data.shape[-1])

    def packed(self, whole: Tensor) -> Tensor:
        """The packed rows of (L, N, C)."""
        return whole.flatten(0, 1).index_select(0, self._places)

    def reversed(self, whole: Tensor) -> Tensor:
        """Each sequence from its end to its beginning."""
        return whole.flatten(0, 1).index_select(0, self._turned).reshape(whole.shape)

    def last(self, states: Tensor) -> Tensor:
        """The last state (N, H) of each sequence."""
        return states.flatten(0, 1).index_select(0, self._ends)


# Layers ----------------------------------------------------------------------------------------


class RNNBase(Module):
    """What `RNN`, `LSTM` and `GRU` share; a module of this class itself is of no use."""

    gates: int
    states = 1

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        proj_size: int = 0, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        sizes = (input_size, hidden_size, num_layers)
        if not all(isinstance(size, Integral) and size >= 1 for size in sizes):
            raise ArgumentError(
                name, "sizes must be positive",
                expect="integers input_size, hidden_size and num_layers >= 1",
                actual=", ".join(map(repr, sizes)),
            )  # fmt: skip
        for what, flag in (("bias", bias), ("batch_first", batch_first)):
            if not isinstance(flag, bool):
                raise ArgumentError(
                    name, f"{what} is no bool", expect="True or False", actual=repr(flag),
                    hint="arguments in another order?",
                )  # fmt: skip
        if isinstance(dropout, bool) or not 0 <= dropout <= 1:
            raise ArgumentError(
                name, "dropout is no probability", expect="a number from 0 to 1",
                actual=repr(dropout),
            )  # fmt: skip
        if proj_size and (self.states != 2 or not 0 < proj_size < hidden_size):
            raise ArgumentError(
                name, "proj_size does not fit", expect="0, or for LSTM less than hidden_size",
                actual=str(proj_size),
            )  # fmt: skip
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, dropout
        self.bidirectional, self.proj_size = bidirectional, proj_size
        output = proj_size or hidden_size
        rows = self.gates * hidden_size
        for layer in range(num_layers):
            width = input_size if layer == 0 else output * self._directions
            for suffix in self._suffixes(layer):
                shapes: dict[str, tuple[int, ...]] = {
                    "weight_ih": (rows, width),
                    "weight_hh": (rows, output),
                }
                if bias:
                    shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
                if proj_size:
                    shapes |= {"weight_hr": (proj_size, hidden_size)}
                for part, shape in shapes.items():
                    value = Parameter(empty(*shape, device=device, dtype=dtype))
                    self.register_parameter(part + suffix, value)
        self.reset_parameters()

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: self._directions]

    def reset_parameters(self) -> None:
        """Draws new values from U(-k, k), ``k = 1 / sqrt(hidden_size)``."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of each layer and direction."""
        suffixes = [s for layer in range(self.num_layers) for s in self._suffixes(layer)]
        return [
            [value for name, value in self._parameters.items() if name.endswith(suffix)]
            for suffix in suffixes
        ]

    @property
    def _flat_weights(self) -> list[Parameter]:
        return [value for values in self.all_weights for value in values]

    def flatten_parameters(self) -> None:
        """Nothing to do: parameters need no common memory here."""

    def _step(self, inputs: Tensor, recurrent: Tensor, state: State) -> State:
        raise NotImplementedError(type(self).__name__)

    def _sequence(
        self, inputs: Tensor, weight: Tensor, bias: Tensor | None, state: State, reverse: bool
    ) -> State:
        """The states after each step, from the products of all inputs, with the biases of both."""
        raise NotImplementedError(type(self).__name__)

    def _input_bias(self, own: Tensor, recurrent: Tensor) -> Tensor:
        """What is added to the products of inputs: both biases, as far as they are just added."""
        return own + recurrent

    @property
    def _carries_padding(self) -> bool:
        """Whether states stay finite behind the end of a sequence, where no gradient comes from."""
        return not self.proj_size

    def _widths(self) -> list[int]:
        return [self.proj_size or self.hidden_size, self.hidden_size][: self.states]

    def _first_state(self, input: Tensor, given: Any, single: bool) -> State:
        """States of shape (layers * directions, N, H)."""
        count = self.num_layers * self._directions
        if given is None:
            return tuple(
                zeros(count, input.shape[1], width, device=input.device, dtype=input.dtype)
                for width in self._widths()
            )
        states = (given,) if isinstance(given, Tensor) else tuple(given)
        states = tuple(state.unsqueeze(1) for state in states) if single else states
        wanted = [(count, input.shape[1], width) for width in self._widths()]
        if [tuple(state.shape) for state in states] != wanted:
            raise ShapeError(
                type(self).__name__, "the first state does not fit",
                expect=", ".join(map(str, wanted)),
                actual=", ".join(str(tuple(state.shape)) for state in states),
            )  # fmt: skip
        return states

    def forward(self, input: Tensor | PackedSequence, hx: Any = None) -> tuple[Any, Any]:
        """All outputs and the last states.

        Args:
            input: shape (L, N, input_size), (N, L, ...) if batch_first, or (L, input_size); or a
                PackedSequence, whose sequences each end where they end.
            hx: the first state, (layers * directions, N, H); for LSTM a pair. Zeros if left out.

        Returns:
            Outputs (L, N, directions * H), packed if the input is, and the states after the last
            step.
        """
        if isinstance(input, PackedSequence):
            return self._packed(input, hx)
        single = input.ndim == 2
        if input.ndim not in (2, 3) or input.shape[-1] != self.input_size:
            raise ShapeError(
                type(self).__name__, "the input does not fit",
                expect=f"(L, N, {self.input_size})", actual=str(tuple(input.shape)),
            )  # fmt: skip
        halved: tuple[Tensor, Any] = operands_in_half(input, hx)
        input, hx = halved
        if single:
            input = input.unsqueeze(1)
        elif self.batch_first:
            input = input.transpose(0, 1)
        first = self._first_state(input, hx, single)
        counts = [input.shape[1]] * input.shape[0]
        by_steps = partial(self._by_steps, counts=counts)
        input, finals = self._layers(input, first, by_steps if self.proj_size else self._whole)
        if single:
            input, finals = input.squeeze(1), [part.squeeze(1) for part in finals]
        elif self.batch_first:
            input = input.transpose(0, 1)
        return input, finals[0] if self.states == 1 else tuple(finals)

    def _packed(self, packed: PackedSequence, hx: Any) -> tuple[PackedSequence, Any]:
        """The same of sequences that end where they end; states in the user's order."""
        data, sizes, order, back = packed
        if data.ndim != 2 or data.shape[-1] != self.input_size:
            raise ShapeError(
                type(self).__name__, "the packed input does not fit",
                expect=f"data of shape (*, {self.input_size})", actual=str(tuple(data.shape)),
            )  # fmt: skip
        data, hx = operands_in_half(data, hx)
        counts = sizes.tolist()
        # Only for its shape: (1, N, C).
        first = self._first_state(data[: counts[0]].unsqueeze(0), hx, False)
        if order is not None and hx is not None:
            first = tuple(part.index_select(1, order) for part in first)
        if self._carries_padding:
            padding = Padding(counts, data)
            along = partial(self._padded, padding=padding)
            whole, finals = self._layers(padding.padded(data), first, along)
            data = padding.packed(whole)
        else:
            data, finals = self._layers(data, first, partial(self._by_steps, counts=counts))
        if back is not None:
            finals = [part.index_select(1, back) for part in finals]
        result = PackedSequence(data, sizes, order, back)
        return result, finals[0] if self.states == 1 else tuple(finals)

    def _layers(self, input: Tensor, first: State, along: Along) -> tuple[Tensor, list[Tensor]]:
        """All layers; `along` makes one in one direction."""
        last: list[State] = []
        for layer in range(self.num_layers):
            if layer:
                input = dropout(input, self.dropout, self.training)
            outputs = []
            for direction, suffix in enumerate(self._suffixes(layer)):
                index = layer * self._directions + direction
                state = tuple(part[index] for part in first)
                output, state = along(input, state, suffix, bool(direction))
                outputs.append(output)
                last.append(state)
            input = outputs[0] if len(outputs) == 1 else cat(outputs, -1)
        return input, [stack([state[k] for state in last]) for k in range(self.states)]

    def _part_of(self, part: str, suffix: str) -> Tensor:
        parameter: Tensor = getattr(self, part + suffix)  # may be parametrized
        return parameter

    def _whole(
        self, input: Tensor, state: State, suffix: str, backwards: bool
    ) -> tuple[Tensor, State]:
        """All steps of sequences of one length by one op."""
        states = self._recurrent_layer(input, self._parts(suffix), state, backwards)
        return states[0], tuple(part[0 if backwards else -1] for part in states)

    def _padded(
        self, input: Tensor, state: State, suffix: str, backwards: bool, padding: Padding
    ) -> tuple[Tensor, State]:
        """The same of sequences that end at steps of their own; a reverse one begins there."""
        input = padding.reversed(input) if backwards else input
        states = self._states(input, self._parts(suffix), state, False)
        last = tuple(padding.last(part) for part in states)
        return padding.reversed(states[0]) if backwards else states[0], last

    def _parts(self, suffix: str) -> Sequence[Tensor]:
        """Both weights of a layer in one direction, and both biases if there are any."""
        names = "weight_ih", "weight_hh", "bias_ih", "bias_hh"
        return [self._part_of(part, suffix) for part in names[: 4 if self.bias else 2]]

    def _recurrent_layer(
        self, input: Tensor, parts: Sequence[Tensor], state: State, reverse: bool
    ) -> State:
        """The layer as a call of its own, whose name `check_versions` looks up."""
        return self._states(input, parts, state, reverse)

    def _states(self, input: Tensor, parts: Sequence[Tensor], state: State, reverse: bool) -> State:
        """The states after each step of a layer in one direction."""
        bias = recurrent = None
        if self.bias:
            recurrent = parts[3]
            bias = self._input_bias(parts[2], recurrent)
        inputs = linear(input, parts[0], bias)
        return self._sequence(inputs, parts[1], recurrent, state, reverse)

    def _by_steps(
        self, input: Tensor, state: State, suffix: str, backwards: bool, counts: list[int]
    ) -> tuple[Tensor, State]:
        """A step after another."""

        def named(part: str) -> Tensor:
            return self._part_of(part, suffix)

        weight, bias = named("weight_hh"), named("bias_hh") if self.bias else None
        projection = named("weight_hr") if self.proj_size else None
        inputs = linear(input, named("weight_ih"), named("bias_ih") if self.bias else None)
        packed = input.ndim == 2
        pieces: Any = inputs.split(counts) if packed else inputs
        outputs: list[Tensor] = []
        steps = range(len(counts))
        for t in reversed(steps) if backwards else steps:
            # Sequences that have ended, or not begun from behind, keep their state.
            rest = tuple(part[counts[t] :] for part in state) if counts[t] < counts[0] else None
            state = state if rest is None else tuple(part[: counts[t]] for part in state)
            state = self._step(pieces[t], linear(state[0], weight, bias), state)
            if projection is not None:
                state = (linear(state[0], projection), *state[1:])
            outputs.append(state[0])
            if rest is not None:
                state = tuple(cat([part, finished]) for part, finished in zip(state, rest))
        outputs = outputs[::-1] if backwards else outputs
        return cat(outputs) if packed else stack(outputs), state

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        for name, usual in (
            ("proj_size", 0), ("num_layers", 1), ("bias", True), ("batch_first", False),
            ("dropout", 0.0), ("bidirectional", False),
        ):  # fmt: skip
            value = getattr(self, name)
            text += "" if value == usual else f", {name}={value}"
        return text


class RNN(RNNBase):
    """``h' = tanh(W x + b + U h + c)`` along a sequence; see `LSTM` for the arguments.

    Args:
        nonlinearity: ``tanh`` or ``relu``.
    """

    gates = 1

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1,
        nonlinearity: str = "tanh", bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        _check_nonlinearity("RNN", nonlinearity)
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0,
            device, dtype,
        )  # fmt: skip
        self.nonlinearity = nonlinearity

    def _step(self, inputs: Tensor, recurrent: Tensor, state: State) -> State:
        return (_simple(inputs, recurrent, self.nonlinearity == "relu"),)

    def _sequence(
        self, inputs: Tensor, weight: Tensor, bias: Tensor | None, state: State, reverse: bool
    ) -> State:
        relu = self.nonlinearity == "relu"
        return _all_steps(recurrence.rnn, (inputs, weight, *state), relu=relu, reverse=reverse)

    @property
    def _carries_padding(self) -> bool:
        return self.nonlinearity != "relu"


class LSTM(RNNBase):
    """Long short-term memory along a sequence.

    Args:
        input_size, hidden_size: widths of inputs and states.
        num_layers: layers above each other, the outputs of one being the inputs of the next.
        bias: whether the linear maps have one.
        batch_first: (N, L, C) instead of (L, N, C); states are (layers, N, H) all the same.
        dropout: the probability of a zero between layers.
        bidirectional: a second set of layers from the end to the beginning.
        proj_size: the output is projected to this width.
        device, dtype: of the parameters.

    Example:
        >>> import tinygrad_cuda as tc
        >>> output, (h, c) = LSTM(3, 4, batch_first=True, device="cpu")(
        ...     tc.rand(2, 5, 3, device="cpu")
        ... )
        >>> output.shape, h.shape
        (Size([2, 5, 4]), Size([1, 2, 4]))
    """

    gates, states = 4, 2

    def _step(self, inputs: Tensor, recurrent: Tensor, state: State) -> State:
        return _lstm(inputs, recurrent, state)

    def _sequence(
        self, inputs: Tensor, weight: Tensor, bias: Tensor | None, state: State, reverse: bool
    ) -> State:
        return _all_steps(recurrence.lstm, (inputs, weight, *state), reverse=reverse)


class GRU(RNNBase):
    """Gated recurrent units along a sequence; arguments as for `LSTM`."""

    gates = 3

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0,
            device, dtype,
        )  # fmt: skip

    def _step(self, inputs: Tensor, recurrent: Tensor, state: State) -> State:
        return _gru(inputs, recurrent, state)

    def _input_bias(self, own: Tensor, recurrent: Tensor) -> Tensor:
        first = 2 * self.hidden_size  # the candidate's own is multiplied by the reset gate
        return cat((own[:first] + recurrent[:first], own[first:]))

    def _sequence(
        self, inputs: Tensor, weight: Tensor, bias: Tensor | None, state: State, reverse: bool
    ) -> State:
        width = self.hidden_size
        own = zeros(width, device=weight.device, dtype=weight.dtype) if bias is None else bias
        operands = (inputs, weight, own[-width:], *state)
        return _all_steps(recurrence.gru, operands, reverse=reverse)


def _check_nonlinearity(op: str, name: str) -> None:
    if name not in ("tanh", "relu"):
        raise ArgumentError(
            op, "unknown nonlinearity", expect="'tanh' or 'relu'", actual=repr(name)
        )


# Cells -----------------------------------------------------------------------------------------


class RNNCellBase(Module):
    """What `RNNCell`, `LSTMCell` and `GRUCell` share."""

    gates: int
    states = 1
    weight_ih: Parameter
    weight_hh: Parameter
    bias_ih: Parameter | None
    bias_hh: Parameter | None

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = self.gates * hidden_size
        own: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight_ih = Parameter(empty(rows, input_size, **own))
        self.weight_hh = Parameter(empty(rows, hidden_size, **own))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(empty(rows, **own)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new values from U(-k, k), ``k = 1 / sqrt(hidden_size)``."""
        bound = 1.0 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def _advance(
        self, step: Callable[..., State], input: Tensor, given: Any
    ) -> State:  # fmt: skip
        if input.ndim not in (1, 2) or input.shape[-1] != self.input_size:
            raise ShapeError(
                type(self).__name__, "the input does not fit", expect=f"(N, {self.input_size})",
                actual=str(tuple(input.shape)),
            )  # fmt: skip
        input, given = operands_in_half(input, given)
        if given is None:
            nothing = zeros(
                *input.shape[:-1], self.hidden_size, device=input.device, dtype=input.dtype
            )
            given = (nothing,) * self.states
        state = (given,) if isinstance(given, Tensor) else tuple(given)
        return step(
            linear(input, self.weight_ih, self.bias_ih),
            linear(state[0], self.weight_hh, self.bias_hh),
            state,
        )

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")
        kind = getattr(self, "nonlinearity", "tanh")
        return text if kind == "tanh" else f"{text}, nonlinearity={kind}"


class RNNCell(RNNCellBase):
    """One step of `RNN`: ``h' = tanh(W x + b + U h + c)``, or ReLU."""

    gates = 1

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh",
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        _check_nonlinearity("RNNCell", nonlinearity)
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """The next state, shape (N, H)."""

        def step(inputs: Tensor, recurrent: Tensor, state: State) -> State:
            return (_simple(inputs, recurrent, self.nonlinearity == "relu"),)

        return self._advance(step, input, hx)[0]


class LSTMCell(RNNCellBase):
    """One step of `LSTM`."""

    gates, states = 4, 2

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The next hidden state and memory, each of shape (N, H)."""
        hidden, memory = self._advance(_lstm, input, hx)
        return hidden, memory


class GRUCell(RNNCellBase):
    """One step of `GRU`."""

    gates = 3

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """The next state, shape (N, H)."""
        return self._advance(_gru, input, hx)[0]
