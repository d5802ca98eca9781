"""A decorator for functions that are compositions: called again with equal arguments, they record
the same nodes from a template, and run none of their Python.

It stays in this package: it is the function that users call, and a hook would be one more call.
Without it a plain step of mlp_64 takes 529 % longer (H200).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import RawSite
from tinygrad_cuda.core.interrupts import uninterrupted
from tinygrad_cuda.engine.capture import watching
from tinygrad_cuda.engine.cell import Recorder, local
from tinygrad_cuda.engine.plan import forgetting
from tinygrad_cuda.engine.realize import described_check, register_check
from tinygrad_cuda.engine.vmap_trace import Recording, tracing
from tinygrad_cuda.graph.batching import example
from tinygrad_cuda.graph.compare import require_same
from tinygrad_cuda.graph.node import Node, site_of
from tinygrad_cuda.graph.versions import versions
from tinygrad_cuda.replay.subgraph_template import SubgraphTemplate, only_result
from tinygrad_cuda.replay.switches import switches
from tinygrad_cuda.tensors import autocast
from tinygrad_cuda.tensors.arguments import Parameters, checks_tensors
from tinygrad_cuda.tensors.base import TensorBase, node_of, pending, wrap
from tinygrad_cuda.tensors.creation import defaults

F = TypeVar("F", bound=Callable[..., Any])

# Templates of one function at most; with one more, all are dropped.
CAPACITY = 1024


class _TemplatedCall(NamedTuple):
    """What calls of one kind do.

    Attributes:
        template: of all nodes; its inputs are the Tensors of the call.
        strides: of the Tensor that it gives.
        checks: positions of checks, with the text of each one's error.
    """

    template: SubgraphTemplate
    strides: Any
    checks: list[tuple[int, str, str, str]]


class _RecordedCalls:
    """The calls of one function, by what decides their graphs; None for those without a template.

    Args:
        function: it records the graph.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.parameters = function, Parameters(function)
        self.calls: dict[Any, _TemplatedCall | None] = {}
        _all.append(self)

    def result(
        self, key: Any, args: Any, options: dict[str, Any], nodes: tuple[Node, ...],
        recorder: Recorder, site: RawSite | None,
    ) -> Any:  # fmt: skip
        """What a call returns: from its template, or by the function where it has none."""
        call = self.calls.get(key, _missing)
        if call is _missing:
            self.parameters.check(args, options)
            call = _made(self.function, args, options)
            if len(self.calls) >= CAPACITY:
                self.calls.clear()
            self.calls[key] = call
        if call is None:
            return _in_full(self.function, args, options)
        template, strides, checks = call
        codes: Any = checks
        if checks:
            codes = [(k, register_check(op, what, site, domain)) for k, op, what, domain in checks]
        node = only_result(template, nodes, site, codes)
        result = pending(node, recorder, strides, template.length)
        if settings.validate:
            now = self.function(*args, **options)
            require_same(f"the template of {self.function.__name__}", [(result.node, now.node)])
        return result


_all: list[_RecordedCalls] = []


def _forget() -> None:
    for recorded in _all:
        recorded.calls.clear()


switches.listen(_forget)
forgetting.append(_forget)  # the precision of float32 products decides what attention records


def templated(function: F) -> F:
    """For functions of Tensors and options whose graph follows from shapes, dtypes and options.

    They return one Tensor, write to none, draw no random numbers and look at no value.
    """

    recorded = _RecordedCalls(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        if (watching.on and (tracing.stack or autocast.state.on)) or settings.eager:
            return function(*args, **options)
        nodes: list[Node] = []
        recorder = local.recorder
        mode = recorder.mode
        key = [mode.gradients, defaults.dtype]
        values = args
        if options:
            key += options
            values += tuple(options.values())
        for value in values:
            if isinstance(value, TensorBase):
                node = node_of(value, recorder)
                nodes.append(node)
                key += (node.outputs, node.requires_grad, node.device, value._strides)
                continue
            kind = type(value)
            if kind in _PLAIN:
                key += (kind, value)
            elif kind is float:
                # As text: a zero and its negative are two numbers.
                key.append(repr(value))
            elif kind is tuple and all(type(element) is int for element in value):
                key.append(value)
            elif kind in _SEQUENCES and all(isinstance(element, TensorBase) for element in value):
                key += (kind, len(value))
                for element in value:
                    node = node_of(element, recorder)
                    nodes.append(node)
                    key += (node.outputs, node.requires_grad, node.device, element._strides)
            else:
                recorded.parameters.check(args, options)
                return function(*args, **options)
        site = mode.site or site_of(sys._getframe(1))
        return recorded.result(tuple(key), args, options, tuple(nodes), recorder, site)

    return checks_tensors(wrapper)  # type: ignore[return-value]


OfTwo = Callable[[Any, Any, Node, Node, Recorder, RawSite | None], Any]


def templated_of_two(function: F) -> OfTwo:
    """`templated` for functions of two Tensors, whose nodes and line are at hand."""
    recorded = _RecordedCalls(function)

    def wrapper(
        a: Any, b: Any, first: Node, second: Node, recorder: Recorder, site: RawSite | None
    ) -> Any:
        if (watching.on and (tracing.stack or autocast.state.on)) or settings.eager:
            return function(a, b)
        key = (
            first.outputs, second.outputs, first.requires_grad, second.requires_grad, first.device,
            second.device, a._strides, b._strides, recorder.mode.gradients, defaults.dtype,
        )  # fmt: skip
        return recorded.result(key, (a, b), {}, (first, second), recorder, site)

    return wrapper


def _in_full(function: Any, args: Any, options: dict[str, Any]) -> Any:
    """A call without a template; to the check of versions it is one operation, too."""
    if not versions.on:
        return function(*args, **options)
    with versions.paused():
        result = function(*args, **options)
    for tensor in result if type(result) in _SEQUENCES else (result,):
        if isinstance(tensor, TensorBase):
            versions.made(tensor.node, tensor.cell)
    return result


_PLAIN = frozenset((int, bool, str, type(None), DType))
_SEQUENCES = frozenset((list, tuple))
_missing: Any = object()


def _made(
    function: Callable[..., Any], args: Any, options: dict[str, Any]
) -> _TemplatedCall | None:
    """A call with stand-ins that never have a value; None if it cannot be repeated."""
    if not switches.templated_calls:
        return None
    tensors: list[TensorBase] = []
    with uninterrupted, Recording("error"):
        stood = [_stand_in(value, tensors) for value in args]
        stood_options = {name: _stand_in(value, tensors) for name, value in options.items()}
        inputs = [tensor.cell.node for tensor in tensors]
        if len({node.device for node in inputs}) != 1:
            return None
        try:
            result = function(*stood, **stood_options)
            if not isinstance(result, TensorBase) or result.chain:
                return None
            if any(t.cell.node is not n or t.cell is result.cell for t, n in zip(tensors, inputs)):
                # It writes in place, or returns a view.
                return None
            template = SubgraphTemplate(inputs, [result.node])
            if template.heads is None:
                return None  # it gives an argument's own node
            checks = [
                (position, *described_check(code)) for position, code in template.checks.items()
            ]
        except Exception:
            # It looks at a value, say; an error of the call itself is raised again.
            return None
        return _TemplatedCall(template, result._strides, checks)


def _stand_in(value: Any, tensors: list[TensorBase]) -> Any:
    """What a call with stand-ins is given for an argument; lists the Tensors made for it."""
    if type(value) in _SEQUENCES:
        return type(value)([_stand_in(element, tensors) for element in value])
    if not isinstance(value, TensorBase):
        return value
    node = value.node
    variable = example.leaf(node.shape, node.dtype, node.device)
    variable.requires_grad = node.requires_grad
    tensor = wrap(variable)
    tensor._strides = value._strides
    tensors.append(tensor)
    return tensor
