"""Gradient checkpointing: a function's inner values are dropped and computed again in backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinygrad_cuda.core.dtypes import float32
from tinygrad_cuda.core.errors import ArgumentError, user_site
from tinygrad_cuda.engine.cell import Leaf, detached
from tinygrad_cuda.graph import gradient
from tinygrad_cuda.graph.node import Node, gradient_mode, mode
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.indexing.selecting import where
from tinygrad_cuda.tensors.random import default_generator
from tinygrad_cuda.tensors.tensor import Tensor


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """Calls `function`, and calls it again in backward instead of keeping what it computed.

    Gradients reach the arguments and everything else that the function uses, such as the
    parameters of a Module. What it does besides (running statistics of a batch norm) it does
    twice, as in PyTorch.

    Args:
        function: takes `args` and `kwargs`; returns a Tensor, or a tuple or list with Tensors.
        args: Tensors or anything else. What depends on none of the Tensors here stays in memory.
        use_reentrant: accepted for PyTorch's sake; there is one implementation here.
        preserve_rng_state: draw the same random numbers again.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([2.0], device="cpu", requires_grad=True)
        >>> checkpoint(lambda x: x.exp() * x, x).sum().backward()
        >>> round(x.grad.item(), 3)
        22.167
    """
    if not mode.now.gradients:
        return function(*args, **kwargs)
    again = _Again(function, args, kwargs, preserve_rng_state)
    starts = [Leaf().variable(detached(node)) for node in again.inputs]
    result = function(*again.with_inputs(starts), **kwargs)
    several = isinstance(result, tuple | list)
    values = list(result) if several else [result]
    positions = [k for k, v in enumerate(values) if isinstance(v, TensorBase) and v.requires_grad]
    nodes = [values[k].node for k in positions]
    again.positions = positions
    again.leaves = [
        node
        for node in gradient.history(nodes)
        if node.op is common.variable and node not in starts
    ]
    _spend(nodes, starts)
    if nodes and any(node.requires_grad for node in (*again.inputs, *again.leaves)):
        values_of = [detached(node) for node in nodes]
        whole = common.custom(
            *values_of, *again.inputs, *again.leaves,
            results=len(nodes), function=again, name="checkpoint",
        )  # fmt: skip
        results = [whole] if len(nodes) == 1 else [
            common.output(whole, index=k) for k in range(len(nodes))
        ]  # fmt: skip
    else:
        results = [detached(node) for node in nodes]
    for position, node in zip(positions, results):
        values[position] = wrap(node)
    return type(result)(values) if several else values[0]


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, **kwargs: Any
) -> Any:
    """Applies functions one after another, in `segments` parts that are each checkpointed.

    Args:
        functions: a Sequential or a sequence of functions of one argument.
        segments: how many parts; the last one takes the rest, and stays in memory.
        input: the first argument.

    Raises:
        ArgumentError: there are more segments than functions, or none.
    """
    steps = list(functions.children() if hasattr(functions, "children") else functions)
    if not 1 <= segments <= len(steps):
        raise ArgumentError(
            "checkpoint_sequential", "the number of segments is out of range",
            expect=f"1 to {len(steps)}", actual=str(segments),
        )  # fmt: skip
    size = len(steps) // segments
    for begin in range(0, size * (segments - 1), size):
        input = checkpoint(_chain(steps[begin : begin + size]), input, **kwargs)
    return _chain(steps[size * (segments - 1) :])(input)


def _chain(steps: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        for step in steps:
            value = step(value)
        return value

    return run


def _spend(outputs: list[Node], starts: list[Node]) -> None:
    """Marks what was computed from the arguments as used, so that all of it is freed.

    Only that is certain to have been made by this call.
    """
    line = user_site() or (_spend.__code__, 0)
    inner = set(starts)
    for node in gradient.history(outputs):
        if node.op is not common.variable and any(source in inner for source in node.sources):
            inner.add(node)
    for node in inner.difference(starts):
        node.spent = line


class _Again:
    """The cotangents of inputs and leaves from those of the outputs, by a second call."""

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, preserve: bool
    ) -> None:
        self.function, self.args, self.kwargs = function, list(args), kwargs
        self.state = default_generator.get_state() if preserve else None
        self.slots = [
            k for k, a in enumerate(args) if isinstance(a, TensorBase) and a.dtype.category > 1
        ]
        self.inputs: list[Node] = [args[k].node for k in self.slots]
        for k in self.slots:
            self.args[k] = None  # a Tensor would hold its cell, whatever is written there later
        self.positions: list[int] = []
        self.leaves: list[Node] = []

    def with_inputs(self, nodes: list[Node]) -> list[Any]:
        """The arguments, with other values instead of floating Tensors."""
        args = list(self.args)
        for slot, node in zip(self.slots, nodes):
            args[slot] = wrap(node)
        return args

    def __call__(self, *cotangents: Node | None) -> list[Node | None]:
        create = mode.now.gradients
        first = next(g for g in cotangents if g is not None)
        with gradient_mode(True):
            starts = [_after(node if create else detached(node), first) for node in self.inputs]
            if not create:
                starts = [Leaf().variable(node) for node in starts]
            result = self._run(starts)
        values = list(result) if isinstance(result, tuple | list) else [result]
        pairs = [
            (values[position].node, g)
            for position, g in zip(self.positions, cotangents)
            if g is not None and values[position].requires_grad
        ]
        ends = [*starts, *self.leaves]
        gs = gradient.backward(
            [node for node, _ in pairs], [g for _, g in pairs], ends,
            create_graph=create, retain_graph=create,
        )  # fmt: skip
        return [gs.get(node) for node in ends]

    def _run(self, starts: list[Node]) -> Any:
        if self.state is None:
            return self.function(*self.with_inputs(starts), **self.kwargs)
        present = default_generator.get_state()
        default_generator.set_state(self.state)
        try:
            return self.function(*self.with_inputs(starts), **self.kwargs)
        finally:
            default_generator.set_state(present)


def _after(node: Node, g: Node) -> Node:
    """The value itself, but to be read only when the cotangent `g` is there.

    Without that a plan with forward and backward in it would find the second computation equal to
    the first, and keep its values. The choice is an argument of the plan, which nothing folds.
    """
    value = wrap(node)
    shape = (1,) * value.ndim
    chosen = wrap(common.scalar.leaf(shape, float32, node.device, value=1.0)) != 0
    cotangent: Tensor = wrap(g).detach().flatten()[:1]
    other = (cotangent == cotangent).to(value.dtype).reshape(shape).expand(value.shape)
    result: Node = where(chosen, value, other).node
    return result


def get_device_states(*args: Any) -> tuple[list[int], list[Tensor]]:
    """The devices of the Tensors given, and the state of random numbers on each, as PyTorch has it.

    There is one stream of random numbers, on the host: no GPU has a state of its own.
    """
    return [], []


def set_device_states(devices: Sequence[int], states: Sequence[Tensor], **options: Any) -> None:
    """Accepted as in PyTorch: what `get_device_states` gives is empty."""
