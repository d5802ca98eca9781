"""Updates of parameters that were recorded before, recorded again from templates.

The update runs once a step on a stand-in, which yields the step's numbers and whether a recorded
template fits; after that a parameter costs a node for each operation and nothing else.
It stays in this package: it calls `apply_single`, and replaces the loop over parameters.
Without it a plain step of lenet takes 158 % longer (H200).
"""

from __future__ import annotations

from copy import copy
from typing import Any
from weakref import WeakKeyDictionary

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import CompileError, TgcError
from tinygrad_cuda.engine.capture import capturing, watching
from tinygrad_cuda.engine.cell import Cell, local
from tinygrad_cuda.engine.vmap_trace import Recording, tracing
from tinygrad_cuda.graph.batching import example
from tinygrad_cuda.graph.compare import require_same
from tinygrad_cuda.graph.node import Node, current_site
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.versions import versions
from tinygrad_cuda.optim.group_replay import Seen, SteadyGroup
from tinygrad_cuda.optim.step_replay import Absent, dry_run, numeric, wide
from tinygrad_cuda.replay.subgraph_template import Deferred, SubgraphTemplate, Unfit
from tinygrad_cuda.replay.switches import switches
from tinygrad_cuda.tensors import autocast
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.promotion import to_dtype
from tinygrad_cuda.tensors.tensor import Tensor

State = dict[str, Any]

# Updates of single parameters, and the templates of those that are recorded together.
CAPACITY = 1024
_updates: dict[Any, _Update | None] = {}
_templates: dict[tuple[_Update, ...], SubgraphTemplate] = {}
# What stands for a kind of update in keys.
_kinds: dict[Any, object] = {}


# By optimizer: the numbers of its last steps. Weak, and not an attribute, which would be copied.
_past: WeakKeyDictionary[Any, dict[Any, _Numbers]] = WeakKeyDictionary()
# And what its last steps have read of each group.
_last: WeakKeyDictionary[Any, dict[int, SteadyGroup]] = WeakKeyDictionary()
_missing: Any = object()
_PARAMETERS = ("params", "param_names")


def _forget() -> None:
    """Drops all templates, and what steps have read."""
    _updates.clear()
    _templates.clear()
    _kinds.clear()
    _past.clear()
    _last.clear()


switches.listen(_forget)


class _Numbers:
    """The numbers of one step for parameters whose host state is the same."""

    def __init__(
        self, optimizer: Any, group: Any, options: Any, parameter: Tensor, state: State
    ) -> None:
        absent = Absent(parameter)
        given = {k: absent if isinstance(v, Tensor) else v for k, v in state.items()}
        scalars, new = dry_run(optimizer, absent, given, group)
        self.values: dict[Any, float] = {}
        for name, value in scalars:
            self.values.setdefault(name, value)
        self.new_state = {key: value for key, value in new.items() if value is not absent}
        self.names = list(new)
        self.kind = _kinds.setdefault((type(optimizer), options, tuple(absent.log)), object())
        self.by_kind: dict[Any, list[Node]] = {}  # by shape, dtype and device

    def again(self) -> _Numbers:
        """The same for another step."""
        other = copy(self)
        other.by_kind = {}
        return other

    def nodes(self, scalars: Any, dtype: DType, device: Device, ndim: int) -> list[Node]:
        """The scalars in the order in which the update asks for them, made once a kind."""
        kind = (1,) * ndim, dtype, device
        nodes = self.by_kind.get(kind)
        if nodes is None:
            nodes = [scalars.node(kind, value, name) for name, value in self.values.items()]
            self.by_kind[kind] = nodes
        return nodes


class Updates:
    """The updates of one step of one group.

    Args:
        optimizer: whose step it is.
        group: its options, as numbers.
        scalars: ``scalars.node(kind, value, name)`` makes what `apply_single` takes as ``scalar``.
    """

    def __init__(self, optimizer: Any, group: Any, scalars: Any) -> None:
        self.optimizer = optimizer
        self.group = group
        self.scalars = scalars
        self.site = current_site()
        self.by_shape = "shape" in optimizer.numbers_depend_on
        self.all_options = tuple(
            [option for option in group.items() if option[0] not in _PARAMETERS]
        )
        # Numbers are no structure: the log of the stand-in says what depends on them.
        self.options = tuple([option for option in self.all_options if not numeric(option[1])])
        self.inputs: list[Node] = []
        self.cells: list[Cell] = []
        self.kinds: list[_Update] = []
        self.fresh: list[tuple[Tensor, State]] = []
        self.to_learn: tuple[SteadyGroup, Seen, _Numbers] | None = None
        self._numbers: dict[Any, _Numbers] = {}

    @staticmethod
    def possible(optimizer: Any) -> bool:
        """Whether templates may be used now: updates of ours, recorded without casts or cuts."""
        return (
            switches.update_templates
            and type(optimizer).__module__.startswith("tinygrad_cuda.optim.")
            and not tracing.stack
            and not autocast.state.on
            and not settings.eager
            and not versions.on
        )

    def take(self, parameter: Tensor, gradient: Tensor) -> bool:
        """Takes one parameter on; False if its update is to be recorded without a template."""
        chain = parameter.chain
        if gradient.chain or len(chain) != 1 or chain[0][0] is not common.variable:
            return False
        state = self.optimizer.state.get(parameter)
        first = not state
        if not state:
            state = self.optimizer.init_single(parameter, self.group)
        if watching.on and (capture := capturing()) is not None:
            for tensor in (parameter, *state.values()):
                if isinstance(tensor, Tensor):
                    capture.saw(tensor)
        value, g = parameter.cell.node, gradient.node
        inputs, host, cells = [g, value], [], [parameter.cell]
        for key, content in state.items():
            if not isinstance(content, Tensor):
                host.append((key, content))
            elif content.chain:
                return False
            else:
                cells.append(content.cell)
                inputs.append(content.cell.node)
        for node in inputs:
            if node.requires_grad or (node.storage is None and node is not g):
                return False
        try:
            numbers = self._numbers_for(parameter, state, tuple(host))
            key = (numbers.kind, tuple([node.outputs for node in inputs]), value.device, *state)
            update = _updates.get(key, _missing)
        except (CompileError, TypeError):
            # The update does not run on a stand-in, or an option cannot be part of a key.
            return False
        if update is _missing:
            if len(_updates) >= CAPACITY:
                _forget()
            update = _updates[key] = self._made(inputs, state)
        elif update is not None and settings.validate:
            now = _Update(self.optimizer, self.group, inputs, state)
            pairs = zip(update.results, now.results)
            require_same("the template of an update", pairs, dict(zip(update.inputs, now.inputs)))
        if update is None:
            return False
        inputs += numbers.nodes(self.scalars, wide(value.dtype), value.device, len(value.shape))
        self.inputs += inputs
        self.kinds.append(update)
        self.cells += [cells[position] for position in update.order]
        new = numbers.new_state
        if first:
            # Also the state's Tensors, in the update's own order.
            new = {k: new.get(k, state.get(k)) for k in numbers.names}
        self.fresh.append((parameter, new))
        return True

    def run_in_place(self, number: int, parameters: list[Tensor]) -> bool:
        """Runs the updates of a group as its last step did; False if they are to be recorded."""
        last = _last.get(self.optimizer, {}).get(number)
        if last is None or watching.on or settings.validate or last.waits():
            return False
        seen = last.look(self.optimizer, parameters)
        if seen is None:
            return False
        numbers = self._numbers_for(parameters[0], seen.first, seen.host)
        if numbers.kind is not last.kind:
            return False
        if last.run(seen, list(numbers.values.values())):
            self.fresh = [(parameter, numbers.new_state) for parameter in parameters]
            return True
        self.to_learn = last, seen, numbers
        return False

    def remember(self, number: int, parameters: list[Tensor]) -> None:
        """Keeps what `run_in_place` compares, after all parameters have been taken on."""
        if (
            not switches.group_updates
            or self.to_learn is not None
            or self.by_shape
            or len(self.kinds) != len(parameters)
            or len(self._numbers) != 1
            or local.recorder.pending.get(parameters[0].device)
        ):
            return
        states = list(map(self.optimizer.state.get, parameters))
        (numbers,) = self._numbers.values()
        if not all(states) and (numbers.names or None in states):
            return  # it is made by this step
        if len(set(map(tuple, states))) == 1 and len({p.device for p in parameters}) == 1:
            steady = SteadyGroup(parameters, states, numbers.kind, self.cells)
            _last.setdefault(self.optimizer, {})[number] = steady

    def record(self) -> list[tuple[Tensor, State]]:
        """Records the updates of all parameters taken on; what is new in the state of each."""
        if not self.kinds:
            return self.fresh
        key = tuple(self.kinds)
        template = _templates.get(key)
        if template is None:
            template = _templates[key] = _joined(key)
        lines, device = (self.site,), self.inputs[0].device
        # It has heads: each result is an `assign`, which no other reads.
        results = Deferred(template, tuple(self.inputs), device, lines).results(lines)
        local.recorder.recorded += template.length
        for cell, node in zip(self.cells, results):
            cell.put(node)
        if self.to_learn is not None:
            last, seen, numbers = self.to_learn
            last.learn(seen, numbers.by_kind)
        return self.fresh

    def _numbers_for(self, parameter: Tensor, state: State, host: Any) -> _Numbers:
        """The numbers of this step, computed once for all parameters that share them."""
        shared = host, tuple(parameter.cell.node.shape) if self.by_shape else None
        numbers = self._numbers.get(shared)
        if numbers is None:
            # A rate that stays, and no step counts: all is as it was in the last step.
            past = _past.setdefault(self.optimizer, {})
            key = self.all_options, shared
            if key not in past:
                if len(past) >= 16:
                    past.clear()
                past[key] = _Numbers(self.optimizer, self.group, self.options, parameter, state)
            numbers = self._numbers[shared] = past[key].again()
        return numbers

    def _made(self, inputs: list[Node], state: State) -> _Update | None:
        """The update of one parameter, if it can be recorded from a template."""
        try:
            update = _Update(self.optimizer, self.group, inputs, state)
            _joined((update,))
        except (TgcError, Unfit):
            # An error is raised again, of the Tensors themselves.
            return None
        return update


class _Update:
    """One parameter's update as `Optimizer` records it, of stand-ins that never have a value.

    Args:
        optimizer, group: whose step it is.
        inputs: nodes like gradient and parameter, and the state's Tensors.
        state: the parameter's.

    Attributes:
        inputs: the stand-ins, with those of the step's numbers after them.
        results: what is written.
        order: to what: 0 is the parameter, and after it come the state's Tensors.

    Raises:
        Unfit: the update makes a Tensor that was not in the state.
    """

    def __init__(self, optimizer: Any, group: Any, inputs: list[Node], state: State) -> None:
        with Recording("error"):
            leaves = [example.leaf(node.shape, node.dtype, node.device) for node in inputs]
            dtype, device, ndim = inputs[1].dtype, inputs[1].device, len(inputs[1].shape)
            gradient, parameter, *rest = [widened(wrap(leaf)) for leaf in leaves]
            names = [key for key, content in state.items() if isinstance(content, Tensor)]
            tensors: dict[Any, Tensor] = {}

            def scalar(value: float, *name: Any) -> Tensor:
                if name not in tensors:
                    leaf = example.leaf((1,) * ndim, wide(dtype), device)
                    tensors[name] = wrap(leaf)
                    leaves.append(leaf)
                return tensors[name]

            given = {**state, **dict(zip(names, rest))}
            new, after = optimizer.apply_single(gradient, parameter, given, group, scalar)
            after = {key: content for key, content in after.items() if isinstance(content, Tensor)}
            if not set(names).issuperset(after):
                raise Unfit("a Tensor of the state is made by the update")
            # Each asks for the storage of what it replaces, as every write does.
            self.inputs = leaves
            self.order = [0, *(names.index(key) + 1 for key in after)]
            self.results = [
                common.assign(leaves[leaf + 1], to_dtype(content.node, inputs[leaf + 1].dtype))
                for leaf, content in zip(self.order, (new, *after.values()))
            ]


def _joined(updates: tuple[_Update, ...]) -> SubgraphTemplate:
    """Several updates as one template; each has inputs of its own."""
    inputs: list[Node] = []
    results: list[Node] = []
    for update in updates:
        one = SubgraphTemplate(update.inputs, update.results)
        leaves = [example.leaf(node.shape, node.dtype, node.device) for node in update.inputs]
        nodes = one(leaves, leaves[0].device, (None,))
        inputs += leaves
        results += [nodes[position] for position in one.chosen]
    return SubgraphTemplate(inputs, results)


def widened(value: Tensor) -> Tensor:
    """Half types as float32: an update is computed there and rounded once."""
    dtype = wide(value.dtype)
    return value if dtype is value.dtype else wrap(to_dtype(value.node, dtype))
