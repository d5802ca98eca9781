"""The graph of one example as the graph of a batch: what `vmap` does to what it has recorded.

Everything that depends on the example is recorded again with a leading axis, by its op's rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from weakref import WeakValueDictionary

from tinygrad_cuda.core.errors import ArgumentError, GradientError
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import (
    LeafOp,
    Node,
    gradient_mode,
    recorded_at,
    topological,
)
from tinygrad_cuda.graph.ops import common, movement, reduction

# One example of a batch: it has a shape and a dtype but never a value, so it is in no plan and
# not in the table.
example = LeafOp("example", "leaf", common.no_inference)


def dependent(roots: Iterable[Node], on: Callable[[Node], bool]) -> set[Node]:
    """The nodes, behind the roots or among them, whose values depend on leaves chosen by `on`."""
    dependents: set[Node] = set()
    for node in topological(roots, stop=lambda node: node.storage is not None):
        if on(node) or (node.storage is None and not dependents.isdisjoint(node.sources)):
            dependents.add(node)
    return dependents


class Rewriting:
    """Records again what depends on some nodes, with others instead of them.

    Args:
        replaced: nodes and what stands for them.
        size: the size of a leading axis that the replacements have, or None if they have none.
        draws: whether a random leaf is to be drawn for each example.
    """

    def __init__(
        self,
        replaced: dict[Node, Node],
        size: int | None,
        draws: Callable[[Node], bool] = lambda node: False,
    ) -> None:
        self.rewritten = dict(replaced)
        self.size = size
        self.draws = draws
        self._replaced = replaced
        # Tables of a recorded gradient: weak, since it is part of the recorded graph.
        self._recorded_again: WeakValueDictionary[Node, Node] = WeakValueDictionary()
        self._independent: set[Node] = set()

    def __call__(self, roots: Iterable[Node]) -> list[Node]:
        """The roots as they are now; those that depend on nothing replaced are themselves."""
        roots = list(roots)
        dependents, independent = self.rewritten, self._independent
        for node in topological(roots, stop=self._is_recorded):
            if node in dependents or node in independent:
                continue
            if node.storage is None and node.op.kind == "leaf" and self.draws(node):
                dependents[node] = self._drawn(node)
            elif node.storage is not None or dependents.keys().isdisjoint(node.sources):
                independent.add(node)
            else:
                dependents[node] = self._recorded_again[node] = self._recorded(node)
        return [dependents.get(root, root) for root in roots]

    def _is_recorded(self, node: Node) -> bool:
        return node.storage is not None or node in self.rewritten or node in self._independent

    def batched(self, node: Node) -> Node:
        """What stands for a node, repeated for each example where it is the same for all."""
        mapped = self.rewritten.get(node)
        if mapped is not None:
            return mapped
        return node if self.size is None else movement.batched(node, self.size)

    def _drawn(self, node: Node) -> Node:
        assert isinstance(node.op, LeafOp)
        with recorded_at(node.site):
            shape: Shape = node.shape if self.size is None else (self.size, *node.shape)
            return node.op.leaf(shape, node.dtype, node.device, **node.attributes)

    def _recorded(self, node: Node) -> Node:
        with recorded_at(node.site), gradient_mode(True):
            if node.op.kind == "identity":
                new = self._identity(node)
            elif self.size is None:
                new = node.op(*map(self.batched, node.sources), **node.attributes)
            else:
                new = self._operation(node, self.size)
            if new.requires_grad and not node.requires_grad:
                new = common.detach(new)
                new.requires_grad = False
        _check_hooks(node, new)
        return new

    def _operation(self, node: Node, size: int) -> Node:
        op, attributes = node.op, node.attributes
        if op.kind == "elementwise":
            return op(*map(self.batched, node.sources), **attributes)
        if op.kind == "reduction":
            axes = tuple(axis + 1 for axis in attributes["axes"])
            return op(self.rewritten[node.sources[0]], axes=axes)
        if op.batch is None:
            raise ArgumentError(
                "vmap",
                f"there is no batching rule for {op.name}",
                expect="operations of the op table that have one",
                actual=f"{node.label} of shape {node.shape}",
                site=node.site,
                hint="call the function on each example in a loop, and stack the results",
            )
        if op.kind == "movement":
            return op(self.rewritten[node.sources[0]], **op.batch(size, **attributes))
        sources = tuple(self.rewritten.get(source, source) for source in node.sources)
        on = tuple(source in self.rewritten for source in node.sources)
        new: Node = op.batch(size, sources, on, **attributes)
        return new

    def _identity(self, node: Node) -> Node:
        op = node.op
        if op is common.output:
            return common.output(self.rewritten[node.sources[0]], index=node.attributes["index"])
        if op is common.custom:
            return self._custom(node)
        if op is common.assign:
            # The target is one for all examples, and each example has a value of its own.
            return self.batched(node.sources[1])
        # A leaf inside the function collects no gradient outside.
        new = common.detach(self.rewritten[node.sources[0]])
        new.requires_grad = False
        return new

    def _custom(self, node: Node) -> Node:
        """The same values, and a gradient that is the example's rewritten when it is asked for."""
        count = node.attributes["results"]
        history = node.sources[count:]
        function, outputs = common.function_of(node), node.outputs
        given, fixed, size, draws = self._replaced, self._recorded_again, self.size, self.draws
        apart = tuple(source in self.rewritten for source in history)

        def gradients(*cotangents: Node | None) -> list[Node | None]:
            replaced = {**given, **fixed}
            examples: list[Node | None] = []
            for g, (shape, dtype) in zip(cotangents, outputs):
                one = None
                if g is not None:
                    one = example.leaf(shape, dtype, g.device)
                    one.requires_grad = g.requires_grad
                    replaced[one] = g
                examples.append(one)
            parts = function(*examples)
            again = Rewriting(replaced, size, draws)
            again([part for part in parts if part is not None])
            return [
                None if part is None else _collected(again, part, own)
                for part, own in zip(parts, apart, strict=True)
            ]

        attributes = {**node.attributes, "function": gradients}
        values = [self.batched(value) for value in node.sources[:count]]
        behind = [self.rewritten.get(source, source) for source in history]
        new = common.custom(*values, *behind, **attributes)
        new.requires_grad = any(source.requires_grad for source in behind)
        return new


def _collected(again: Rewriting, part: Node, own: bool) -> Node:
    """The cotangent of a source: its own for each example, or the sum over all."""
    g = again.batched(part)
    if again.size is None or own:
        return g
    return movement.reshape(reduction.sum(g, axes=(0,)), shape=g.shape[1:])


def _check_hooks(node: Node, new: Node) -> None:
    if new.requires_grad and getattr(node, "watchers", None):
        raise GradientError(
            "vmap",
            "a tensor hook inside the function would see one example of many",
            expect="hooks on the results of vmap, or gradients taken inside the function",
            actual=f"a hook on {node.label} of shape {node.shape}",
            site=node.site,
        )


def leading(node: Node, axis: int) -> Node:
    """The node with an axis moved to the front."""
    if axis == 0:
        return node
    rest = (k for k in range(len(node.shape)) if k != axis)
    return movement.permute(node, axes=(axis, *rest))


def placed(node: Node, axis: int) -> Node:
    """The node with its first axis moved to a position."""
    if axis == 0:
        return node
    axes = list(range(1, len(node.shape)))
    axes.insert(axis, 0)
    return movement.permute(node, axes=tuple(axes))


def marked(node: Node) -> Node:
    """The same value as a node of its own, with history from here on."""
    new = common.custom(node, node, results=1, function=lambda g: (g,), name="input")
    new.requires_grad = True
    return new


def begins_only_at(marks: set[Node], outputs: Iterable[Node]) -> bool:
    """Whether nothing but the marks and what lies behind them gives the outputs a history."""
    stack = [node for node in outputs if node.requires_grad]
    seen: set[Node] = set(stack)
    while stack:
        node = stack.pop()
        behind = [source for source in node.sources if source.requires_grad]
        if node in marks:
            if behind:
                return False
            continue
        if not behind or node.op is common.variable:
            return False
        for source in behind:
            if source not in seen:
                seen.add(source)
                stack.append(source)
    return True
