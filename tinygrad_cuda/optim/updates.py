"""Updates of parameters that were recorded before, recorded again from templates.

The update runs once a step on a stand-in, which yields the step's numbers and says whether a known
template fits; after that a parameter costs a node for each operation and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import CompileError
from tinygrad_cuda.engine.capture import capturing, watching
from tinygrad_cuda.engine.cell import local
from tinygrad_cuda.engine.examples import Recording, tracing
from tinygrad_cuda.graph.batching import example
from tinygrad_cuda.graph.node import Node, current_site
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.template import Template, Unfit
from tinygrad_cuda.optim.replay import Absent, dry_run, numeric, wide
from tinygrad_cuda.tensor import autocast
from tinygrad_cuda.tensor.base import wrap
from tinygrad_cuda.tensor.math import to_dtype
from tinygrad_cuda.tensor.tensor import Tensor

State = dict[str, Any]

# Templates kept, each with the order of its writes: the parameter is 0, then the state's Tensors.
CAPACITY = 1024
_templates: dict[Any, tuple[Template, list[int]] | None] = {}
# What stands for a kind of update in keys.
_kinds: dict[Any, object] = {}


_missing: Any = object()
_PARAMETERS = ("params", "param_names")


class _Numbers:
    """The numbers of one step for parameters whose host state is the same."""

    def __init__(
        self, optimizer: Any, group: Any, options: Any, parameter: Tensor, state: State
    ) -> None:
        self.values: dict[Any, float] = {}
        log: list[Any] = []
        absent: Any = Absent(log, parameter)

        def scalar(value: float, *name: Any) -> Any:
            self.values.setdefault(name, value)
            log.append(name[0])
            return absent

        given = {k: absent if isinstance(v, Tensor) else v for k, v in state.items()}
        _, new = dry_run(optimizer, absent, given, group, scalar)
        self.new_state = {key: value for key, value in new.items() if value is not absent}
        self.names = list(new)
        self.kind = _kinds.setdefault((type(optimizer), options, tuple(log)), object())
        self._nodes: dict[Any, list[Node]] = {}

    def nodes(self, scalars: Any, dtype: DType, device: Device, ndim: int) -> list[Node]:
        """The scalars in the order in which the update asks for them, made once a kind."""
        kind = dtype, device, ndim
        found = self._nodes.get(kind)
        if found is None:
            scalar = scalars(*kind)
            found = [scalar(value, *name).node for name, value in self.values.items()]
            self._nodes[kind] = found
        return found


class Updates:
    """The updates of one step of one group.

    Args:
        optimizer: whose step it is.
        group: its options, as numbers.
        scalars: ``scalars(dtype, device, ndim)`` makes what `apply_single` takes as ``scalar``.
    """

    def __init__(
        self, optimizer: Any, group: Any, scalars: Callable[[DType, Device, int], Any]
    ) -> None:
        self.optimizer = optimizer
        self.group = group
        self.scalars = scalars
        self.site = current_site()
        self.by_shape = "shape" in optimizer.numbers_depend_on
        # Numbers are no structure: the log of the stand-in says what depends on them.
        self.options = tuple(
            [item for item in group.items() if item[0] not in _PARAMETERS and not numeric(item[1])]
        )
        self._numbers: dict[Any, _Numbers] = {}

    @staticmethod
    def possible(optimizer: Any) -> bool:
        """Whether templates may be used now: updates of ours, recorded without casts or cuts."""
        return (
            type(optimizer).__module__.startswith("tinygrad_cuda.optim.")
            and not tracing.stack
            and not autocast.state.on
            and not settings.eager
        )

    def record(self, parameter: Tensor, gradient: Tensor) -> State | None:
        """Records the update of one parameter and of its state.

        Returns:
            What is new in the state; None where the update must be recorded in the ordinary way.
        """
        chain = parameter.chain
        if gradient.chain or len(chain) != 1 or chain[0][0] is not common.variable:
            return None
        state = self.optimizer.state.get(parameter)
        first = not state
        if not state:
            state = self.optimizer.init_single(parameter, self.group)
        if watching.on and (capture := capturing()) is not None:
            for tensor in (parameter, *state.values()):
                if isinstance(tensor, Tensor):
                    capture.saw(tensor)
        value, g = parameter.cell.node, gradient.node
        inputs, host, places = [g, value], [], [parameter.cell]
        for key, item in state.items():
            if not isinstance(item, Tensor):
                host.append((key, item))
            elif item.chain:
                return None
            else:
                places.append(item.cell)
                inputs.append(item.cell.node)
        for node in inputs:
            if node.requires_grad or (node.storage is None and node is not g):
                return None
        try:
            numbers = self._numbers_for(parameter, state, tuple(host))
            key = (numbers.kind, tuple([node.outputs for node in inputs]), value.device, *state)
            known = _templates.get(key, _missing)
        except (CompileError, TypeError):
            # The update does not run on a stand-in, or an option cannot be part of a key.
            return None
        if known is _missing:
            if len(_templates) >= CAPACITY:
                _templates.clear()
                _kinds.clear()
            known = _templates[key] = self._made(inputs, state)
        if known is None:
            return None
        template, order = known
        inputs += numbers.nodes(self.scalars, wide(value.dtype), value.device, len(value.shape))
        nodes = template(inputs, value.device, (self.site,))
        local.recorder.recorded += template.length
        for place, found in zip(order, template.chosen):
            places[place].put(nodes[found])
        if not first:
            return numbers.new_state
        # Also the state's Tensors, in the update's own order.
        return {k: numbers.new_state.get(k, state.get(k)) for k in numbers.names}

    def _numbers_for(self, parameter: Tensor, state: State, host: Any) -> _Numbers:
        """The numbers of this step, computed once for all parameters that share them."""
        alike = host, tuple(parameter.cell.node.shape) if self.by_shape else None
        found = self._numbers.get(alike)
        if found is None:
            found = _Numbers(self.optimizer, self.group, self.options, parameter, state)
            self._numbers[alike] = found
        return found

    def _made(self, inputs: list[Node], state: State) -> tuple[Template, list[int]] | None:
        """The update as `Optimizer` records it, of stand-ins that never have a value."""
        with Recording("error"):
            places = [example.leaf(node.shape, node.dtype, node.device) for node in inputs]
            dtype, device, ndim = inputs[1].dtype, inputs[1].device, len(inputs[1].shape)
            gradient, parameter, *rest = [widened(wrap(place)) for place in places]
            names = [key for key, item in state.items() if isinstance(item, Tensor)]
            known: dict[Any, Tensor] = {}

            def scalar(value: float, *name: Any) -> Tensor:
                if name not in known:
                    place = example.leaf((1,) * ndim, wide(dtype), device)
                    known[name] = wrap(place)
                    places.append(place)
                return known[name]

            given = {**state, **dict(zip(names, rest))}
            new, after = self.optimizer.apply_single(gradient, parameter, given, self.group, scalar)
            after = {key: item for key, item in after.items() if isinstance(item, Tensor)}
            if not set(names).issuperset(after):
                return None
            # Each asks for the storage of what it replaces, as every write does.
            order = [0, *(names.index(key) + 1 for key in after)]
            results = [
                common.assign(places[place + 1], to_dtype(item.node, inputs[place + 1].dtype))
                for place, item in zip(order, (new, *after.values()))
            ]
            try:
                return Template(places, results), order
            except Unfit:
                return None


def widened(value: Tensor) -> Tensor:
    """Half types as float32: an update is computed there and rounded once."""
    dtype = wide(value.dtype)
    return value if dtype is value.dtype else wrap(to_dtype(value.node, dtype))
