"""Node, the immutable unit of the graph, the Op that makes it, and gradient mode.

A node is a value, never a storage; realizing it gives it a storage and may free its sources.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import (
    PACKAGE_FOLDER,
    DeviceError,
    RawSite,
    describe_site,
    is_internal,
)
from tinygrad_cuda.core.locks import new_lock
from tinygrad_cuda.core.observer import LineScope, Scopes, scopes
from tinygrad_cuda.core.shapes import Shape

Outputs = tuple[tuple[Shape, DType], ...]
Gradient = Callable[..., Any]


class Mode:
    """What is on while one thread records.

    Attributes:
        gradients: whether history is recorded.
        site: the line that nodes carry instead of the caller's: gradient nodes have that of the
            forward node they belong to.
        finite: whether every value is looked at, to find what is not finite.
        unchecked: how many steps were not looked at before this one, by a sampled `detect_nan`.
        repro: the folder for the operands of an op that makes such a value, or None.
        judging: the seconds that looking has taken in this thread.
    """

    __slots__ = ("gradients", "site", "finite", "unchecked", "repro", "judging")

    def __init__(self) -> None:
        self.gradients = True
        self.site: RawSite | None = None
        self.finite = False
        self.unchecked = 0
        self.repro: str | None = None
        self.judging = 0.0


class _Thread(threading.local):
    # An object of its own: an attribute of a thread-local object is slow to read, and is read once.
    def __init__(self) -> None:
        self.now = Mode()


mode = _Thread()


class gradient_mode:
    """Switches the recording of history on or off inside a `with` block."""

    __slots__ = ("enabled", "old")

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled

    def __enter__(self) -> None:
        now = mode.now
        self.old = now.gradients
        now.gradients = self.enabled

    def __exit__(self, *error: object) -> None:
        mode.now.gradients = self.old


class recorded_at:
    """Nodes made inside a `with` block carry this line instead of the caller's."""

    __slots__ = ("site", "old")

    def __init__(self, site: RawSite | None) -> None:
        self.site = site

    def __enter__(self) -> None:
        now = mode.now
        self.old = now.site
        now.site = self.site

    def __exit__(self, *error: object) -> None:
        mode.now.site = self.old


# Whether a file is not the user's. By name: a code object takes far longer to hash.
_internal: dict[str, bool] = {}


def current_site() -> RawSite | None:
    """The user's line: a code object and an offset; formatted only when somebody reads it."""
    return mode.now.site or site_of(sys._getframe(1))


# The user's code of the last lookup: most often the next line is in it, too.
_users_code: CodeType | None = None


def site_of(frame: FrameType | None) -> RawSite | None:
    """The innermost position in the user's code, from `frame` outwards."""
    global _users_code
    while frame is not None:
        code = frame.f_code
        if code is _users_code:
            return (code, frame.f_lasti)
        filename = code.co_filename
        try:
            internal = _internal[filename]
        except KeyError:
            internal = filename.startswith(PACKAGE_FOLDER) or is_internal(filename)
            _internal[filename] = internal
        if not internal:
            if Scopes.root is not None:  # a profiler asks in which Module the line was passed
                scope = scopes.here
                assert scope is not None
                return (scope.code(code), frame.f_lasti)
            _users_code = code
            return (code, frame.f_lasti)
        frame = frame.f_back
    return None


def record_scopes(root: LineScope | None) -> None:
    """Lines carry the scope that they are passed in, from here on; with None no longer."""
    global _users_code
    Scopes.root = root
    _users_code = None


# Two threads that look at one call record it once.
_recording = new_lock()


class Node:
    """One operation applied to sources; hashable by identity.

    Attributes:
        op: the row of the op table.
        sources: the nodes it reads. A result other than the first of a node with several is read
            through an ``output`` node, so a source is always a node. A result of a call that is
            not recorded yet has none until somebody looks.
        attributes: structure (axes, shapes) and numbers (constants, slice starts), by name.
        shape, dtype: of the first output; `outputs` has all. Nodes of one spec share it.
        device: where the value lives.
        requires_grad: fixed here: gradient mode was on and some source has it.
        site: the user's line.
        storage: the realized value, or None while it is pending.
        spent: the line of the backward pass that consumed its history, or None.
        piece: the call that will record its sources, while it is pending; or None.
        watchers: what sees its cotangent; set by `gradient.watch` only.
    """

    __slots__ = (
        "op",
        "sources",
        "attributes",
        "shape",
        "dtype",
        "outputs",
        "device",
        "requires_grad",
        "site",
        "storage",
        "spent",
        "piece",
        "watchers",
        "__weakref__",
    )

    op: Op
    sources: tuple[Node, ...]
    attributes: dict[str, Any]
    shape: Shape
    dtype: DType
    outputs: Outputs
    device: Device
    requires_grad: bool
    site: RawSite | None
    storage: Any
    spent: RawSite | None
    piece: Any
    watchers: list[Callable[[Node], Node | None]]

    @property
    def label(self) -> str:
        """The op's name, or that of the Function behind a custom node."""
        name: str = self.attributes.get("name", self.op.name)
        return name

    def __repr__(self) -> str:
        numbers = "".join(f" {name}={value}" for name, value in self.attributes.items())
        return f"<{self.op.name}{numbers} {self.shape} {self.dtype.name} {self.device}>"


class ResultNode(Node):
    """What a call gives whose nodes are not recorded until somebody looks at its sources.

    A class of its own, so that other attributes cost nothing more; once it has sources it is an
    ordinary node.
    """

    __slots__ = ()

    if not TYPE_CHECKING:

        @property
        def sources(self) -> tuple[Node, ...]:
            """Those of the call that it waits for, which is recorded now."""
            with _recording:
                call = self.piece
                if call is not None:
                    call.expand()
            return _sources.__get__(self)

        @sources.setter
        def sources(self, value: tuple[Node, ...]) -> None:
            _sources.__set__(self, value)
            self.__class__ = Node


_sources: Any = vars(Node)["sources"]


def node_made(
    op: Op,
    sources: tuple[Node, ...],
    attributes: dict[str, Any],
    outputs: Outputs,
    device: Device,
    requires_grad: bool,
    site: RawSite | None,
    outwards: int = 0,
) -> Node:
    """A node without a value; no constructor, since every operation comes here.

    Args:
        outwards: where the user's line is looked for if `site` is None: that many calls outwards
            from here, and from there on.
    """
    if site is None and outwards:
        frame = sys._getframe(outwards)
        code = frame.f_code
        site = (code, frame.f_lasti) if code is _users_code else site_of(frame)
    node = Node()
    node.op = op
    node.sources = sources
    node.attributes = attributes
    node.outputs = outputs
    node.shape, node.dtype = outputs[0]
    node.device = device
    node.requires_grad = requires_grad
    node.site = site
    node.storage = node.spent = node.piece = None
    return node


def with_sources(node: Node, sources: tuple[Node, ...]) -> Node:
    """The node over other values of the same shapes, without a history; itself over its own."""
    if sources == node.sources:
        return node
    return node_made(node.op, sources, node.attributes, node.outputs, node.device, False, node.site)


def holding(op: Op, outputs: Outputs, device: Device, storage: Any, site: RawSite | None) -> Node:
    """A node that has its value."""
    node = Node()
    node.op, node.sources, node.attributes = op, (), NO_ATTRIBUTES
    node.outputs, node.device, node.site, node.storage = outputs, device, site, storage
    node.shape, node.dtype = outputs[0]
    node.requires_grad = False
    node.spent = node.piece = None
    return node


def origin_of(node: Node) -> Node:
    """The node of the op that the user called: not the reshape behind a sum, say."""
    origin = node
    while origin.op.kind == "movement" and origin.sources and origin.sources[0].site == node.site:
        origin = origin.sources[0]
    return origin


def made_by(node: Node) -> str:
    """Which op made a node and on which line, in the user's words."""
    origin = origin_of(node)
    name = origin.label
    if name == origin.op.name:
        name = {"leaf": "a tensor", "identity": "a leaf"}.get(origin.op.kind, name)
    if origin.op.kind == "movement" and not origin.sources:
        # A computed value no longer shows which movement made it.
        name = "a tensor"
    return f"{name} made at {describe_site(node.site)}"


NO_ATTRIBUTES: dict[str, Any] = {}


def topological(roots: Iterable[Node], stop: Callable[[Node], bool] | None = None) -> list[Node]:
    """Every node the roots depend on, sources first; deterministic, and without recursion.

    Args:
        roots: where to start; they come in the order given as far as dependencies allow.
        stop: nodes that are taken but not looked behind.
    """
    order: list[Node] = []
    state: dict[Node, bool] = {}
    for root in roots:
        if root in state:
            continue
        stack = [root]
        while stack:
            node = stack[-1]
            done = state.get(node)
            if done is None:
                state[node] = False
                if stop is None or not stop(node):
                    for source in reversed(node.sources):
                        if source not in state:
                            stack.append(source)
            else:
                stack.pop()
                if not done:
                    state[node] = True
                    order.append(node)
    return order


def same_spec(a: Node, b: Node) -> bool:
    """Whether two nodes have equal outputs; one object has them from then on, seen at a glance."""
    if a.outputs != b.outputs:
        return False
    b.outputs = a.outputs
    return True


class Op:
    """A row of the op table: shape and dtype rule, NumPy reference, CUDA text and gradient.

    Args:
        name: as the user and the profiler see it.
        kind: ``leaf``, ``identity``, ``elementwise``, ``reduction``, ``movement``,
            ``contraction`` or ``kernel``.
        infer: ``infer(op, sources, attributes) -> outputs``; raises on bad input.
        numpy: the reference: ``numpy(*arrays, **attributes) -> array`` (a tuple for several).
        cuda: an expression in ``{0} {1} ...`` for elementwise ops, a combine for reductions, or
            what the skeleton of the kind asks for.
        gradient: one function per source, ``(g, out, *sources, **attributes) -> node``; None
            for a source without a gradient; a string says why there is none at all.
        literals: attributes that are numbers: in a plan's key at first, arguments once they vary.
        arguments: attributes that are arguments of a plan from the start.
        batch: what `vmap` needs where the kind does not say it. For a movement,
            ``(size, **attributes) -> attributes`` with a leading axis; for a contraction or kernel
            ``(size, sources, batched, **attributes) -> node``, where `batched` says which sources
            have one.
    """

    __slots__ = (
        "name", "kind", "infer", "numpy", "cuda", "gradient", "literals", "arguments", "cost",
        "batch",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        kind: str,
        infer: Callable[[Op, tuple[Node, ...], dict[str, Any]], Outputs],
        *,
        numpy: Callable[..., Any] | None = None,
        cuda: Any = None,
        gradient: tuple[Gradient | None, ...] | Gradient | str = "it is not differentiable",
        literals: tuple[str, ...] = (),
        arguments: tuple[str, ...] = (),
        cost: int = 1,
        batch: Callable[..., Any] | None = None,
    ) -> None:
        self.batch = batch
        self.name = name
        self.kind = kind
        self.infer = infer
        self.numpy = numpy
        self.cuda = cuda
        self.gradient = gradient
        self.literals = literals
        self.arguments = arguments
        self.cost = cost

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def __call__(self, *sources: Node, **attributes: Any) -> Node:
        """Checks, infers and records."""
        outputs = self.infer(self, sources, attributes)
        first = sources[0]
        device = first.device
        needs = first.requires_grad
        if len(sources) > 1:
            for source in sources:
                if source.device is not device:
                    raise _device_error(self, sources)
                if source.requires_grad:
                    needs = True
        now = mode.now
        if needs:
            needs = now.gradients and outputs[0][1].category > 1
        attributes = attributes or NO_ATTRIBUTES
        return node_made(self, sources, attributes, outputs, device, needs, now.site, 2)


class SameSpecOp(Op):
    """An op of one or two sources without attributes, with sources of one shape and dtype.

    Attributes:
        keeping: dtypes of sources that give outputs just like theirs.
    """

    __slots__ = ("keeping",)

    def __init__(self, *row: Any, **options: Any) -> None:
        super().__init__(*row, **options)
        self.keeping: set[DType] = set()

    def __call__(self, *sources: Node) -> Node:  # type: ignore[override]  # without attributes
        first, last = sources[0], sources[-1]
        outputs, device = first.outputs, first.device
        if (
            last.outputs is not outputs
            or last.device is not device
            or first.dtype not in self.keeping
        ):
            outputs = self.inferred(sources)
        now = mode.now
        needs = first.requires_grad or last.requires_grad
        if needs:
            needs = now.gradients and outputs[0][1].category > 1
        return node_made(self, sources, NO_ATTRIBUTES, outputs, device, needs, now.site, 2)

    def inferred(self, sources: tuple[Node, ...]) -> Outputs:
        """Checks sources and infers; what was inferred of a dtype holds for all of that dtype."""
        outputs = self.infer(self, sources, NO_ATTRIBUTES)
        first, last = sources[0], sources[-1]
        if last.device is not first.device:
            raise _device_error(self, sources)
        if outputs == first.outputs:
            self.keeping.add(first.dtype)
        return outputs


class LeafOp(Op):
    """An op without sources: its shape, dtype and device are given."""

    __slots__ = ()

    def __call__(self, *sources: Any, **attributes: Any) -> Node:
        raise TypeError(f"{self.name} is a leaf: make it with leaf()")

    def leaf(self, shape: Shape, dtype: DType, device: Device, **attributes: Any) -> Node:
        """Records a leaf."""
        outputs, site = ((shape, dtype),), mode.now.site
        return node_made(self, (), attributes or NO_ATTRIBUTES, outputs, device, False, site, 2)

    def like(self, node: Node, site: RawSite | None = None, **attributes: Any) -> Node:
        """Records a leaf of a node's shape, dtype and device."""
        site = site or mode.now.site
        return node_made(self, (), attributes, node.outputs[:1], node.device, False, site, 2)


def _device_error(op: Op, sources: tuple[Node, ...]) -> DeviceError:
    return DeviceError(
        op.name,
        "operands are on different devices",
        expect="one device",
        actual="  ".join(
            f"{name}: {source.device} {source.shape}" for name, source in zip("abcdef", sources)
        ),
        hint=f'move one of them: .to("{sources[0].device}") or .to("{sources[-1].device}")',
    )
