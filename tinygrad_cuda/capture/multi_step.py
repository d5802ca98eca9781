"""tc.compile and tc.loop: calls that are replayed, singly or many behind one another.

Of many replays in one call the host enqueues one after the other and never waits for the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from tinygrad_cuda.backend import registry
from tinygrad_cuda.capture.compiled import ATTEMPTS, Compiled, Ready
from tinygrad_cuda.capture.multi_step_replay import MultiStepReplay, whole_words
from tinygrad_cuda.capture.results import Result
from tinygrad_cuda.capture.signature import Given
from tinygrad_cuda.core.device import CPU, Device
from tinygrad_cuda.core.errors import ArgumentError, OutOfMemoryError, ShapeError
from tinygrad_cuda.core.interrupts import indivisible
from tinygrad_cuda.core.trees import leaves, rebuilt
from tinygrad_cuda.engine.capture import duplicate
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.tensors.base import TensorBase, wrap

MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "inductor",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
    steps: int | None = None,
) -> Any:
    """A function or Module that is recorded once for each signature and then replayed.

    A whole training step may be compiled. The first call runs as it is (a second one where an
    optimizer makes its state in the first); from then on a call checks that nothing has changed
    and launches the recorded plans, the same as without `compile`, to the same bits.

    Each call does again: the computation; writes to parameters, buffers, gradients and other
    Tensors; ``optimizer.step()`` with its step counts, with the rates of the moment; a
    scheduler's ``step()``; the numbers taken from random Generators. Other Python code runs
    while recording only. Python values that it reads (globals, variables of closures, defaults,
    attributes, what containers and NumPy arrays hold), itself or in the functions, methods and
    Modules that it calls, up to those of libraries, are looked at before each replay: if one is
    another, the function is recorded again. If a call changes one that it reads, that is an
    error; to count and to append is not repeated. What cannot be looked at without reading it is
    refused with the line: the clock, files, random numbers of Python and NumPy, iterators from
    outside, ``eval``. Pass such values as arguments.
    Arguments are Tensors (their values may differ), or Python values (each makes a program of its
    own).

    Args:
        model: a function, method or Module (the outermost one: what comes back is no Module that
            another could hold); left out where it is used as a decorator with ().
        fullgraph, dynamic, options: accepted as in PyTorch; a program is always whole, and of
            one shape.
        backend: accepted by name; "eager" returns the function as it is, as PyTorch's does.
        mode: one of PyTorch's; each is the same here.
        disable: return the function as it is.
        steps: how many steps one call makes; see `Steps`. Tensor arguments then hold the data of
            all steps along their first dimension, and results those of all steps.

    Raises:
        CompileError: at a call: a value is looked at inside, something is read that a replay
            would not read again, or calls leave things behind that no replay can make.
        ArgumentError: `steps` is below 1, `mode` is none of PyTorch's, or `backend` is a function.

    Example:
        >>> import tinygrad_cuda as tc
        >>> model = tc.nn.Linear(3, 1).to("cpu")
        >>> optimizer = tc.optim.SGD(model.parameters(), lr=0.1)
        >>> @tc.compile
        ... def step(x, y):
        ...     loss = ((model(x) - y) ** 2).mean()
        ...     loss.backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        ...     return loss.detach()
        >>> x, y = tc.ones(4, 3, device="cpu"), tc.zeros(4, 1, device="cpu")
        >>> losses = [step(x, y) for _ in range(5)]
        >>> losses[4].item() < losses[0].item()
        True
    """
    if model is None:
        return functools.partial(
            compile, fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode,
            options=options, disable=disable, steps=steps,
        )  # fmt: skip
    _check_forms(backend, mode)
    if disable or backend == "eager":
        return model
    return Compiled(model) if steps is None else Steps(model, steps)


def _check_forms(backend: Any, mode: str | None) -> None:
    """Refuses what would be another program in PyTorch."""
    if not isinstance(backend, str):
        raise ArgumentError(
            "compile",
            "a backend is a function",
            expect='the name of a backend, such as "inductor"',
            actual=type(backend).__name__,
            hint="there is one compiler; func and to_networkx give the graph",
        )
    if mode not in MODES:
        raise ArgumentError(
            "compile", "not a mode", expect=", ".join(map(repr, MODES)), actual=repr(mode)
        )


class Steps(Compiled):
    """A function that one call repeats; ``tc.compile(function, steps=n)`` makes it.

    Each Tensor argument holds the data of all steps along its first dimension, and each Tensor of
    the result the results of all steps along a new first one. Other arguments are the same in
    every step, other results are those of the last. Steps are replayed one behind the other: a
    slice is copied, the step's plans are started, its results are copied into the whole; the host
    does not wait. If a step raises, those before it are done.

    Args:
        function: one step.
        count: how many steps a call makes.
    """

    def __init__(self, function: Callable[..., Any], count: int) -> None:
        if count < 1:
            raise ArgumentError("compile", "no steps", expect="steps >= 1", actual=str(count))
        super().__init__(function)
        self.count = count

    def __call__(self, *args: Any, **options: Any) -> Any:
        given = leaves((args, options))
        data = {k: self._data(k, x) for k, x in enumerate(given) if isinstance(x, TensorBase)}

        def step(number: int, slice_of: Callable[[Node, int], Any]) -> Any:
            values = [slice_of(data[k], number) if k in data else x for k, x in enumerate(given)]
            return rebuilt((args, options), iter(values))

        result = _Results(self.count)
        misses = 0
        while result.done < self.count:
            if misses < ATTEMPTS and self._chained(step, list(data.values()), result):
                continue
            misses += 1
            one_args, one_options = step(result.done, _slice)
            result.take(super().__call__(*one_args, **one_options))
        return result.whole()

    def _chained(self, step: Any, data: list[Node], result: _Results) -> bool:
        """Does as many of the steps that remain as one recorded program can; whether any."""
        if not all(whole_words(node.shape[1:], node.dtype.itemsize) for node in data):
            return False
        with self._lock, indivisible:
            ready = self.ready(*step(result.done, _part))
            if ready is None:
                return False
            sources = [x.source for x in ready.turns.results]
            if min(sources, default=0) < 0 or len(set(sources)) < len(sources):
                return False
            try:
                return self._run_turns(ready, data, result)
            except OutOfMemoryError as error:
                raise ready.turns.program.named(error) from None

    def _run_turns(self, ready: Ready, data: list[Node], result: _Results) -> bool:
        """Runs the steps that remain, as far as they are of one program."""
        turns = ready.turns
        if not result.expect(turns):
            return False
        first, targets = result.done, result.targets(turns)

        def put(turn: int, values: list[Any]) -> None:
            for number, node in enumerate(data):
                values[number] = _row(node, first + turn)
            for number, whole in targets:
                values[number] = _row(whole.node, first + turn)

        done, values = turns.run(ready.frame, self.count - first, put)
        turns.finish(ready.given, values)
        result.done += done
        return True

    def _data(self, number: int, tensor: Any) -> Node:
        node: Node = tensor.detach().realized()
        if not node.shape or node.shape[0] != self.count:
            raise ShapeError(
                "compile",
                f"tensor {number} among the arguments is not the data of {self.count} steps",
                expect=f"({self.count}, ...)",
                actual=str(node.shape),
                hint="what all steps share is read from outside the function",
            )
        return node

    def __reduce__(self) -> Any:
        return Steps, (self.function, self.count)


def _row(data: Node, step: int) -> Any:
    """The memory of one step within that of all."""
    if data.device is CPU:
        return data.storage[step]
    nbytes = prod(data.shape[1:]) * data.dtype.itemsize
    backend: Any = registry.get(data.device)
    return backend.part(data.storage, step * nbytes, nbytes)


def _part(data: Node, step: int) -> Any:
    """What one step gets of the data, where it is: for steps that do not write to it."""
    node = common.buffer.leaf(data.shape[1:], data.dtype, data.device)
    node.storage = _row(data, step)
    return wrap(node)


def _slice(data: Node, step: int) -> Any:
    """A copy of it, since a step may write to it."""
    part = _part(data, step)
    node = part.cell.node
    node.storage = duplicate(data.device, node.storage)
    return part


class _Whole:
    """The results of all steps in one piece of memory.

    Args:
        count: how many steps there are.
        outputs, device: of the result of one.
        memory: given a number of bytes, where they shall be; left out, anywhere.
    """

    def __init__(self, count: int, outputs: Any, device: Device, memory: Any = None) -> None:
        self.one = outputs
        ((shape, dtype),) = outputs
        self.node = common.buffer.leaf((count, *shape), dtype, device)
        if device is CPU:
            self.node.storage = np.empty(self.node.shape, dtype.numpy)
        else:
            backend: Any = registry.get(device)
            nbytes = count * prod(shape) * dtype.itemsize
            self.node.storage = (memory or backend.allocate)(nbytes)

    def take(self, step: int, value: Any) -> None:
        """The result of a step."""
        node = value.detach().realized()
        if node.outputs != self.one:
            raise ShapeError(
                "compile", "steps return different shapes", expect=str(self.one[0][0]),
                actual=str(node.shape),
            )  # fmt: skip
        if node.device is CPU:
            self.node.storage[step] = node.storage
        else:
            backend: Any = registry.get(node.device)
            backend.copy(_row(self.node, step), node.storage)


class _Results:
    """What the steps of one call have returned so far.

    Args:
        count: how many steps there will be.

    Attributes:
        done: how many there were.
    """

    def __init__(self, count: int) -> None:
        self.count, self.done = count, 0
        self.structure: Any = None
        self.leaves: list[Any] = []

    def take(self, result: Any) -> None:
        """What the next step has returned."""
        flat = leaves(result)
        if not self.done:
            self.structure, self.leaves = result, list(flat)
            for k, x in enumerate(flat):
                if isinstance(x, TensorBase):
                    tensor: Any = x
                    one = tensor.detach()
                    self.leaves[k] = _Whole(self.count, one.node.outputs, one.node.device)
        for k, value in enumerate(flat):
            if isinstance(self.leaves[k], _Whole):
                self.leaves[k].take(self.done, value)
            else:
                self.leaves[k] = value
        self.done += 1

    def expect(self, turns: MultiStepReplay) -> bool:
        """Allocates memory for what a program returns; whether its results fit to those so far."""
        flat = turns.program.leaves
        for x in turns.results:
            if len(x.outputs) != 1 or not whole_words(x.outputs[0][0], x.outputs[0][1].itemsize):
                return False
        if not self.done:
            self.structure, self.leaves = turns.program.structure, list(flat)
            for k, x in enumerate(flat):
                if isinstance(x, Result):
                    memory = partial(turns.memory, x.source)
                    self.leaves[k] = _Whole(self.count, x.outputs, x.device, memory)
        before = [m.one if isinstance(m, _Whole) else None for m in self.leaves]
        if before != [x.outputs if isinstance(x, Result) else None for x in flat]:
            return False
        self.leaves = [m if isinstance(m, _Whole) else x for m, x in zip(self.leaves, flat)]
        return True

    def targets(self, turns: MultiStepReplay) -> list[tuple[int, _Whole]]:
        """Which value of a replay goes where."""
        pairs = zip(turns.program.leaves, self.leaves)
        return [(x.source, whole) for x, whole in pairs if isinstance(x, Result)]

    def whole(self) -> Any:
        """The results of all steps, in the structure of one."""
        flat = [wrap(x.node) if isinstance(x, _Whole) else x for x in self.leaves]
        return rebuilt(self.structure, iter(flat))


# Loops ------------------------------------------------------------------------------------------

# The functions that were looped last stay compiled.
_compiled = functools.lru_cache(maxsize=64)(Compiled)


def loop(n: int, fn: Callable[..., Any], *state: Any) -> Any:
    """Applies a function n times to its own results: ``state = fn(*state)``.

    The function is compiled at its first use and replayed; the results of one turn are the
    arguments of the next, and the host never waits for the device. Random numbers advance from
    turn to turn. What changes with the turn, such as a time step, is a Tensor of the state.

    Args:
        n: how many times.
        fn: takes as many Tensors as it returns, of the same shapes; see `tc.compile` for what it
            may do.
        state: the first arguments.

    Returns:
        What the last call returned; the state itself if n is 0.

    Raises:
        ArgumentError: the function returns another number of values than it takes.

    Example:
        >>> import tinygrad_cuda as tc
        >>> def halve(x, count):
        ...     return x / 2, count + 1
        >>> x, count = tc.loop(10, halve, tc.tensor(1024.0, device="cpu"), tc.tensor(0))
        >>> x.item(), count.item()
        (1.0, 10)
    """
    call = fn if isinstance(fn, Compiled) else _compiled(fn)
    result: Any = state[0] if len(state) == 1 else state
    done = misses = 0
    while done < n:
        if misses < ATTEMPTS:
            turns, latest = _turned(call, state, n - done)
            if turns:
                done, result = done + turns, latest
                state = result if isinstance(result, tuple) else (result,)
                continue
            misses += 1
        result = call(*state)
        done += 1
        values = result if isinstance(result, tuple) else (result,)
        if len(values) != len(state):
            raise ArgumentError(
                "loop", "the function returns another number of values than it takes",
                expect=str(len(state)), actual=str(len(values)),
            )  # fmt: skip
        state = values
    return result


def _turned(call: Compiled, state: tuple[Any, ...], count: int) -> tuple[int, Any]:
    """Turns of a loop with a recorded program: how many, and what the last one returned."""
    with call._lock:
        ready = call.ready(state, {})
        if ready is None or not _goes_round(ready.turns, ready.given):
            return 0, None
        try:
            return _turn_round(ready, count)
        except OutOfMemoryError as error:
            raise ready.turns.program.named(error) from None


def _turn_round(ready: Ready, count: int) -> tuple[int, Any]:
    """Runs turns whose results are the next one's arguments."""
    turns, given, frame = ready
    results = turns.results
    # A result is written to one buffer while the turn reads the other.
    buffers = {
        x.source: [turns.memory(sign * x.source, turns.sizes[x.source]) for sign in (1, -1)]
        for x in results
        if x.source >= 0
    }
    arguments = frame.values[: len(given.cells)]

    def put(turn: int, values: list[Any]) -> None:
        for number, x in enumerate(results):
            handed = turn and x.source >= 0
            values[number] = buffers[x.source][(turn - 1) % 2] if handed else arguments[number]
        for source, pair in buffers.items():
            values[source] = pair[turn % 2]

    done, values = turns.run(frame, count, put)
    return done, turns.program.build(turns.finish(given, values))


def _goes_round(turns: MultiStepReplay, given: Given) -> bool:
    """Whether the results of a turn can be the arguments of the next, and of the same program."""
    lists = turns.results, turns.program.leaves, given.tensors, given.cells
    if len(set(map(len, lists))) > 1 or given.views:
        return False
    for number, (x, tensor) in enumerate(zip(turns.results, given.tensors)):
        if x.given >= 0:
            if x.given != number:
                return False
            continue
        node = tensor.cell.node
        same = x.outputs == node.outputs and x.device is node.device and not x.requires_grad
        if not same or x.steps != tuple([step[0] for step in tensor.chain]):
            return False
    return True
