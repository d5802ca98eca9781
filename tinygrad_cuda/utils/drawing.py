"""tc.draw: what is recorded as a picture, with its modules, its phases and its kernels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

from tinygrad_cuda.backend import registry
from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.core.observer import LineScope, ScopedCode, watched
from tinygrad_cuda.core.trees import leaves
from tinygrad_cuda.engine.trace import Trace
from tinygrad_cuda.graph import draw as drawing
from tinygrad_cuda.graph.node import Node, record_scopes, topological
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.lowering.lower import scheduled
from tinygrad_cuda.lowering.target import Target
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.utils.plans import noting_plans
from tinygrad_cuda.utils.profiling.recorder import ProfileRecorder
from tinygrad_cuda.utils.profiling.work import origin, scope_of

# Identities for autograd alone: a picture shows what is behind them.
HIDDEN = (common.variable, common.detach)


def draw(tensors: Any, path: str | Path | None = None) -> Any:
    """The recorded graph as text, or as a picture written to `path`.

    A picture has a box for each module whose call was recorded by `tc.record_modules`, and tells
    forward pass, backward pass and update apart by colour; dashed outlines are kernels (on ``cpu``
    those of an H200). A function is called once, with modules recorded, and everything that it
    computes is drawn: the update of an optimizer's step as well.

    Args:
        tensors: a Tensor, several of them, or a function without arguments, such as
            ``lambda: step(x, y)``.
        path: ``.html`` (a page without anything from outside, in which groups open and close,
            with a search field), ``.svg``, ``.png``, ``.pdf``, ``.dot`` or ``.txt``.

    Returns:
        The text, or the path of the picture.

    Raises:
        ArgumentError: another ending, or a function that computes nothing.

    Example:
        >>> import tempfile
        >>> import tinygrad_cuda as tc
        >>> layer = tc.nn.Linear(4, 3).to("cpu")
        >>> with tc.record_modules():
        ...     y = layer(tc.ones(2, 4, device="cpu"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = tc.draw(y, folder + "/graph.html").read_text()
        >>> "matmul" in page and "Linear" in page
        True
    """
    if callable(tensors) and not isinstance(tensors, TensorBase):
        return _draw_calls(tensors, path)
    nodes = [tensor.node for tensor in leaves(tensors)]
    if path is None:
        return drawing.text(nodes)
    if Path(path).suffix in (".txt", ".dot"):
        return drawing.draw(nodes, path)
    return drawing.draw(joined([DrawnPlan(nodes)]), path)


def _draw_calls(function: Callable[[], Any], path: str | Path | None) -> Path:
    if path is None:
        raise ArgumentError(
            "draw", "a function needs a file to be drawn to", expect="a path", actual="None",
            hint='tc.draw(step, "step.html")',
        )  # fmt: skip
    with record_modules(), recorded_plans() as plans:
        result = inspect.unwrap(function)()
    pending = [t.node for t in leaves(result) if isinstance(t, TensorBase)]
    if pending := [node for node in pending if node.storage is None]:
        plans.append(DrawnPlan(pending))
    if not plans:
        raise ArgumentError(
            "draw", "the function computes nothing", expect="a function that computes Tensors",
            actual=getattr(function, "__name__", type(function).__name__),
        )  # fmt: skip
    return drawing.draw(joined(plans), path)


@contextmanager
def record_modules() -> Iterator[None]:
    """Has `tc.draw` show modules: what is recorded inside a `with` block has the module's path.

    Gradients belong to the module of the forward pass. A profiler with modules does so, too.

    Example:
        >>> import tinygrad_cuda as tc
        >>> model = tc.nn.Sequential(tc.nn.Linear(4, 3), tc.nn.ReLU()).to("cpu")
        >>> with tc.record_modules():
        ...     loss = model(tc.ones(2, 4, device="cpu")).sum()
        ...     loss.backward()
    """
    active = watched.observer
    if isinstance(active, ProfileRecorder) and active.modules:
        yield
        return
    if active is not None:
        raise ArgumentError(
            "record_modules", "a profiler is active that records no modules",
            expect="profile(with_modules=True), or none", actual=repr(active),
        )  # fmt: skip
    recorder = ProfileRecorder(modules=True, lines=False)
    record_scopes(LineScope("user", "", None))
    watched.observer = recorder
    try:
        yield
    finally:
        watched.observer = None
        record_scopes(None)


@contextmanager
def recorded_plans(
    most: int | None = None, before: Callable[[], None] | None = None
) -> Iterator[list[DrawnPlan]]:
    """The plans that this thread realizes inside a `with` block, each as it was before it ran.

    Args:
        most: how many of them are held, the last ones; None: all.
        before: called before each.
    """
    plans: list[DrawnPlan] = []

    def note(device: Device, wanted: list[Node]) -> None:
        if before is not None:
            before()
        plans.append(DrawnPlan(wanted))
        del plans[: -(most or len(plans))]

    with noting_plans(note):
        yield plans


class DrawnPlan:
    """What some nodes depend on, noted before a run drops it.

    Args:
        wanted: the results.

    Attributes:
        order: all nodes with their sources, sources first; a value that is there has none.
        kernels: their titles, by number.
        kernel_of: the number of the kernel in which a node is computed.
        target: the machine of the kernels.
    """

    def __init__(self, wanted: list[Node]) -> None:
        self.wanted = set(wanted)
        pending = [node for node in wanted if node.storage is None]
        stop = _has_value if pending else None
        self.order = [
            (node, () if stop and stop(node) else node.sources)
            for node in topological(wanted, stop)
        ]
        self.names = _parameter_names(node for node, _ in self.order)
        self.kernels: dict[int, str] = {}
        self.kernel_of: dict[Node, int] = {}
        self.target = Target.h200()
        if pending:
            self._schedule(pending)

    def behind(self, results: Iterable[Node]) -> DrawnPlan:
        """The part of the plan that some of its nodes are computed from."""
        part = copy(self)
        part.wanted = set(results)
        needed = set(part.wanted)
        for node, sources in reversed(self.order):
            if node in needed:
                needed.update(sources)
        part.order = [(node, sources) for node, sources in self.order if node in needed]
        used = {number for node, number in self.kernel_of.items() if node in needed}
        part.kernels = {number: title for number, title in self.kernels.items() if number in used}
        return part

    def _schedule(self, pending: list[Node]) -> None:
        device = pending[0].device
        self.target = registry.get(device).target or self.target
        trace = Trace(pending)
        inputs = {trace.value_numbers[node] for node in trace.inputs}
        values = dict.fromkeys(trace.value_numbers[node] for node in pending)
        outputs = [value for value in values if value not in inputs]
        owners = trace.owners
        sites = [node.site for node in owners]
        try:
            # What is made of a node by rewriting has its site: so each comes back to its node.
            for node in owners:
                line = node.site or (draw.__code__, -1)
                code = line[0].code if isinstance(line[0], ScopedCode) else line[0]
                node.site = (ScopedCode(code, LineScope("node", "", None, node)), line[1])
            program = trace.program(device, outputs, {}, set())
        finally:
            for node, site in zip(owners, sites):
                node.site = site
        for number, kernel in enumerate(scheduled(program, self.target).kernels):
            self.kernels[number] = f"kernel {number}: {kernel.kind}"
            for made in kernel.nodes:
                if (scope := scope_of(made.site)) is not None and scope.kind == "node":
                    self.kernel_of.setdefault(scope.owner, number)


def _has_value(node: Node) -> bool:
    return node.storage is not None


def _parameter_names(nodes: Iterable[Node]) -> dict[int, tuple[str, LineScope]]:
    """Parameters and buffers of the modules behind nodes: by storage, name and module."""
    names: dict[int, tuple[str, LineScope]] = {}
    scopes = {scope_of(node.site): None for node in nodes}
    modules = {s: None for scope in scopes if scope is not None for s in scope.outwards()}
    for scope in modules:
        if scope.kind == "module":
            fields = scope.owner.__dict__
            for name, tensor in {**fields["_parameters"], **fields["_buffers"]}.items():
                if isinstance(tensor, TensorBase):
                    node = tensor.cell.node
                    node = node.sources[0] if node.op is common.assign and node.sources else node
                    names[id(node.storage)] = name, scope
    names.pop(id(None), None)
    return names


# The graph of a picture ----------------------------------------------------------------------


def joined(plans: Iterable[DrawnPlan]) -> Any:
    """Plans as one networkx DiGraph for `graph.draw`, numbered in their order."""
    import networkx

    graph = networkx.DiGraph()
    numbers: dict[Node, int] = {}
    titles: dict[Any, str] = {}
    line = drawing.Lines()
    shown: dict[Node, Node] = {}
    values: dict[int, Node] = {}
    for index, plan in enumerate(plans):
        titles |= {(index, number): title for number, title in plan.kernels.items()}
        of_target = f" of {plan.target.name}"
        for node, sources in plan.order:
            if node in shown:
                continue
            # A value that is there is one box, whatever shows it.
            same = values.setdefault(id(node.storage), node) if _has_value(node) else node
            same = sources[0] if node.op in HIDDEN and sources else same
            shown[node] = shown.get(same, same)
            if shown[node] is not node:
                continue
            number = numbers[node] = len(numbers) + 1
            kernel, data = plan.kernel_of.get(node), drawing.data_of(node, line)
            name, scope = plan.names.get(id(node.storage), ("input", scope_of(node.site)))
            begins = _has_value(node) and not sources
            if begins:
                data["label"] = f"{name}\n{node.shape} {node.dtype.name}"
            data["kernel"] = None if kernel is None else (index, kernel)
            data["module"], data["phase"] = _names(scope), origin(node).phase
            if begins and data["phase"] == "update":
                data["phase"] = "forward"  # an earlier step wrote it, and this one reads it
            graph.add_node(number, **data, output=node in plan.wanted)
            for source in dict.fromkeys(map(shown.__getitem__, sources)):
                graph.add_edge(numbers[source], number)
        graph.graph["kernels_of"] = of_target
    graph.graph["kernels"] = titles
    _spread_kernels(graph)
    _find_phases(graph)
    return graph


def _names(scope: LineScope | None) -> tuple[str, ...]:
    """The modules around a line, the outermost first, with their classes."""
    around = [] if scope is None else [s for s in scope.outwards() if s.kind == "module"]
    kinds = [(s.name, type(s.owner).__name__) for s in reversed(around)]
    return tuple(name if name == kind else f"{name} ({kind})" for name, kind in kinds)


def _spread_kernels(graph: Any) -> None:
    """What a kernel's loads are made of belongs to it, where all readers do."""
    nodes = graph.nodes
    for key in reversed(list(graph)):
        data = nodes[key]
        if data["kernel"] is None and (graph.pred[key] or data["kind"] == "leaf"):
            readers = {nodes[reader]["kernel"] for reader in graph.succ[key]}
            if len(readers) == 1 and not _has_value(data["node"]):
                (data["kernel"],) = readers


def _find_phases(graph: Any) -> None:
    """Forward, backward and update, where there are gradients.

    A line says to which it belongs; what depends on later ones, and what they alone read, belongs
    to them, too. Modules of the update are those of its parameters.
    """
    nodes = graph.nodes
    if all(data["phase"] == "forward" for data in nodes.values()):
        for data in nodes.values():
            del data["phase"]
        return
    for key, data in nodes.items():
        before = {nodes[source]["phase"] for source in graph.pred[key]}
        if data["phase"] == "forward" and before & {"backward", "update"}:
            data["phase"] = "update"
        if data["phase"] == "update" and not data["module"]:
            data["module"] = _only(nodes[source]["module"] for source in graph.pred[key])
    for key in reversed(list(graph)):
        data = nodes[key]
        readers = {nodes[reader]["phase"] for reader in graph.succ[key]}
        alone = len(readers) == 1 and not data["module"] and data["phase"] == "forward"
        if alone and (readers == {"update"} or not graph.pred[key]):
            (data["phase"],) = readers
        if not data["module"] and data["phase"] == "update":
            data["module"] = _only(nodes[reader]["module"] for reader in graph.succ[key])


def _only(modules: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """The modules that all who have some agree on."""
    named = {names for names in modules if names}
    return named.pop() if len(named) == 1 else ()
