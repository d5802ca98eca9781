"""tc.compile and tc.loop: calls that are replayed, singly or many behind one another.

Of many replays in one call the host enqueues one after the other and never waits for the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tinygrad_cuda.backend import registry
from tinygrad_cuda.compile.compiled import Compiled
from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.core.trees import leaves, rebuilt
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.tensor.base import TensorBase, wrap


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    disable: bool = False,
    steps: int | None = None,
) -> Any:
    """A function or Module that is recorded once for each signature and then replayed.

    A whole training step may be compiled. The first call runs as it is (a second one where an
    optimizer makes its state in the first); from then on a call checks that nothing has changed
    and launches the plans that are known, the same as without `compile`, to the same bits.

    Each call does again: the computation; writes to parameters, buffers, gradients and other
    Tensors; ``optimizer.step()`` with its step counts, with the rates of the moment; a
    scheduler's ``step()``; the numbers taken from random Generators. Other Python code runs
    while recording only: numbers, lists and attributes that it reads are constants, and if it
    changes some, that is an error. Arguments are Tensors (their values may differ), or Python
    values (each makes a program of its own).

    Args:
        model: a function, method or Module (the outermost one: what comes back is no Module that
            another could hold); left out where it is used as a decorator with ().
        fullgraph, dynamic, mode: accepted as in PyTorch; a program is always whole, and of one
            shape.
        disable: return the function as it is.
        steps: how many steps one call makes; see `Steps`. Tensor arguments then hold the data of
            all steps along their first dimension, and results those of all steps.

    Raises:
        CompileError: at a call: a value is looked at inside, or calls leave things behind that
            no replay can make.
        ArgumentError: `steps` is below 1.

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
            compile, fullgraph=fullgraph, dynamic=dynamic, mode=mode, disable=disable, steps=steps
        )
    if disable:
        return model
    return Compiled(model) if steps is None else Steps(model, steps)


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
        whole: list[Any] = []
        for step in range(self.count):
            values = [_slice(data[k], step) if k in data else x for k, x in enumerate(given)]
            one_args, one_options = rebuilt((args, options), iter(values))
            result = super().__call__(*one_args, **one_options)
            found = leaves(result)
            if not whole:
                whole = [_Whole(self.count, x) if isinstance(x, TensorBase) else x for x in found]
            for place, value in zip(whole, found):
                if isinstance(place, _Whole):
                    place.take(step, value)
        tensors = [x.tensor() if isinstance(x, _Whole) else last for x, last in zip(whole, found)]
        return rebuilt(result, iter(tensors))

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

    def __deepcopy__(self, memo: dict[int, Any]) -> Steps:
        return Steps(super().__deepcopy__(memo).function, self.count)


def _copy(node: Node, target: Any, target_offset: int, source: Any, offset: int) -> None:
    """Copies as many bytes as a node has, behind the work so far."""
    nbytes = prod(node.shape) * node.dtype.itemsize
    backend: Any = registry.get(node.device)
    if nbytes:
        target = backend.part(target, target_offset, nbytes)
        backend.copy(target, backend.part(source, offset, nbytes))


def _slice(data: Node, step: int) -> Any:
    """What one step gets of the data: a copy, since a step may write to it."""
    node = common.buffer.leaf(data.shape[1:], data.dtype, data.device)
    if data.device.kind == "cpu":
        node.storage = np.array(data.storage[step], order="C")
    else:
        nbytes = prod(node.shape) * node.dtype.itemsize
        backend: Any = registry.get(node.device)
        node.storage = backend.allocate(nbytes)
        _copy(node, node.storage, 0, data.storage, step * nbytes)
    return wrap(node)


class _Whole:
    """The results of all steps in one piece of memory.

    Args:
        count: how many steps there are.
        like: the result of one.
    """

    def __init__(self, count: int, like: Any) -> None:
        one = like.detach().node
        self.one = one.outputs
        self.node = common.buffer.leaf((count, *one.shape), one.dtype, one.device)
        if one.device.kind == "cpu":
            self.node.storage = np.empty(self.node.shape, one.dtype.numpy)
        else:
            backend: Any = registry.get(one.device)
            self.node.storage = backend.allocate(count * prod(one.shape) * one.dtype.itemsize)

    def take(self, step: int, value: Any) -> None:
        """The result of a step."""
        node = value.detach().realized()
        if node.outputs != self.one:
            raise ShapeError(
                "compile", "steps return different shapes", expect=str(self.one[0][0]),
                actual=str(node.shape),
            )  # fmt: skip
        if node.device.kind == "cpu":
            self.node.storage[step] = node.storage
        else:
            nbytes = prod(node.shape) * node.dtype.itemsize
            _copy(node, self.node.storage, step * nbytes, node.storage, 0)

    def tensor(self) -> Any:
        return wrap(self.node)


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
    for _ in range(n):
        result = call(*state)
        found = result if isinstance(result, tuple) else (result,)
        if len(found) != len(state):
            raise ArgumentError(
                "loop", "the function returns another number of values than it takes",
                expect=str(len(state)), actual=str(len(found)),
            )  # fmt: skip
        state = found
    return result
