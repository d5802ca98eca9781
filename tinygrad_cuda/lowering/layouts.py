"""In which order the axes of values lie in memory: with the channels last around convolutions.

A convolution on matrix units reads and stores its images with the channels last. Elementwise
operations, reductions and movements behind it are made of these values in their order, so that the
next one reads what they store; a value is put in another order where the graph ends, or where a
reader has no use for it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import LeafOp, Node, gradient_mode, node_made, recorded_at
from tinygrad_cuda.graph.ops import common, contraction, movement
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops.convolution import ROWS as CONVOLUTIONS
from tinygrad_cuda.graph.ops.convolution import convolution_weight_gradient
from tinygrad_cuda.graph.ops.reduction import ReductionOp

LAST, FIRST = 1, 2  # what readers want: the channels last, or the order of the axes
CHANNELS = 8  # from which on pixels of one are too far apart to be read together
DEPTH = 8  # elementwise operations on values of nothing that are made again in another order


class Arranged(NamedTuple):
    """A value whose axes `axes` are in the order of a node's: ``node = permute(value, axes)``."""

    value: Node
    axes: Shape


class Layouts:
    """Values of a plan that lie in another order than their axes.

    Attributes:
        wants: for each node what its readers want, see `wanted_orders`.
        arranged: for a node the same value in another order, of which readers are made.
        stored: copies of values in another order, by what they are made of.
    """

    def __init__(self, wants: dict[Node, int] | None = None) -> None:
        self.wants = wants or {}
        self.arranged: dict[Node, Arranged] = {}
        self.stored: dict[Any, Node] = {}
        self._parts: dict[Node, Arranged] = {}
        self._others: dict[tuple[Node, Shape], Node] = {}

    def in_last_order(self, node: Node) -> bool:
        """Whether a node's value had better lie with the channels last."""
        return self.wants.get(node, LAST) != FIRST

    def last(self, x: Node) -> Node | None:
        """The same value with the second axis behind all others, if there is one."""
        arranged = self.arranged.get(x)
        if arranged is None or arranged.axes != channels_first(len(x.shape)):
            return None
        return arranged.value

    def put_last(self, x: Node) -> Node:
        """Images with the channels last, of which readers are made; stored so if they are not.

        Enlarged images are stored as well: copies of whole boxes follow strides.
        """
        images, axes = self.last(x), channels_first(len(x.shape))
        if images is None or _enlarged(images):
            images = self._others[x, axes] = ew.contiguous(self.as_arranged(x, axes))
            self.arranged[x] = Arranged(images, axes)
        return images

    def with_channels(self, x: Node, count: int, again: bool = False) -> Node:
        """Images, or a weight, with as many channels: zeros behind those that they have.

        Args:
            again: whether they are made once more, for a reader that comes late.
        """
        key = "channels", x, count, again
        if key not in self.stored:
            starts, ones = (0,) * len(x.shape), (1,) * len(x.shape)
            shape = (x.shape[0], count, *x.shape[2:])
            self.stored[key] = movement.pad(x, starts=starts, shape=shape, steps=ones, value=0)
        return self.stored[key]

    def copy(self, x: Node, axes: Shape, key: Any = None) -> Node:
        """A value with its axes in another order, in memory.

        Args:
            key: what it is made of, where `x` is a new node each time.
        """
        while x.op is movement.permute:  # two readers may each have turned one value
            axes = tuple(x.attributes["axes"][axis] for axis in axes)
            (x,) = x.sources
        if key is None and _keeps(axes) and (x.op is common.buffer or x.op.kind == "elementwise"):
            return x
        key = key or x, axes
        if key not in self.stored:
            self.stored[key] = ew.contiguous(movement.permute(x, axes=axes))
        return self.stored[key]

    def put(self, value: Node, axes: Shape) -> Node:
        """The node of a value whose axes are in this order."""
        node = movement.permute(value, axes=axes)
        self.arranged[node] = Arranged(value, axes)
        return node

    def row_major(self, x: Node) -> Node:
        """Images in the order of their axes, stored so if many channels lie last.

        Kernels on other units read neighbouring pixels of a channel, once for each tap.
        """
        axes = channels_first(len(x.shape))
        turned = x.op is movement.permute and x.attributes["axes"] == axes
        if not turned or x.shape[1] < CHANNELS:
            return x
        return self.copy(x, tuple(range(len(x.shape))))

    def as_arranged(self, x: Node, axes: Shape, depth: int = DEPTH) -> Node:
        """The value whose axes in this order are those of a node."""
        key = x, axes
        if key not in self._others:
            self._others[key] = self._as_arranged(x, axes, depth)
        return self._others[key]

    def _as_arranged(self, x: Node, axes: Shape, depth: int) -> Node:
        back = _inverse(axes)
        shape = tuple(x.shape[axis] for axis in back)
        arranged = self.arranged.get(x)
        if arranged is not None:
            both = tuple(arranged.axes[axis] for axis in back)
            return arranged.value if _keeps(both) else movement.permute(arranged.value, axes=both)
        if x.op is common.constant or x.op is common.scalar:
            assert isinstance(x.op, LeafOp)
            return x.op.leaf(shape, x.dtype, x.device, **x.attributes)
        if x.op is movement.expand:
            return movement.expand(self.as_arranged(x.sources[0], axes, depth), shape=shape)
        if x.op.kind == "elementwise" and depth and all(map(_spread, x.sources)):
            sources = tuple(self.as_arranged(source, axes, depth - 1) for source in x.sources)
            return _like(x, sources, shape)
        return movement.permute(x, axes=back)

    def stored_as_read(self, node: Node) -> tuple[Node, Node, Node] | None:
        """A product that stores its elements in the order in which a node has them, if it can.

        Args:
            node: all that reads the product, behind movements.

        Returns:
            The product, the one instead of it, and the node over that.
        """
        if node not in self.arranged:
            return None
        value, axes = self.arranged[node]
        chain = [value]
        while len(chain) < 4 and chain[-1].op.kind == "movement":
            chain += chain[-1].sources
        if [each.op for each in chain] != [
            movement.reshape,
            movement.permute,
            movement.reshape,
            contraction.matmul,
        ]:
            return None
        _, permuted, split, product = chain
        order, attributes = permuted.attributes["axes"], product.attributes
        if not _keeps(attributes["axes"]) or order[-1] != len(order) - 1:
            return None
        inner = {"split": split.shape, "axes": order, "shape": value.shape}
        with gradient_mode(False), recorded_at(product.site):
            whole = node_made(
                product.op, product.sources, {**attributes, **inner}, value.outputs,
                product.device, False, product.site,
            )  # fmt: skip
            return product, whole, self.put(whole, axes)

    def rearranged(self, node: Node, made: Node) -> Node:
        """A node over its new sources: made of values in another order, where these lie so.

        Args:
            node: of the plan.
            made: the same over its new sources.
        """
        with gradient_mode(False), recorded_at(made.site):
            if made.op is common.output:
                part = self._parts.get(made.sources[0])
                return made if part is None else self._output(made, part)
            if not any(source in self.arranged for source in made.sources):
                self._note_images(made)
                return made
            rule = _RULES.get(made.op) or _KINDS.get(made.op.kind)
            moved = rule(self, made, self.wants.get(node, LAST) == FIRST) if rule else None
            return made if moved is None else moved

    def _output(self, made: Node, part: Arranged) -> Node:
        index = made.attributes["index"]
        return self.put(common.output(part.value, index=index), part.axes)

    def _note_images(self, made: Node) -> None:
        """Images that a program has with the channels last, as it sees them."""
        axes, rank = made.attributes.get("axes"), len(made.shape)
        if made.op is movement.permute and rank > 2 and axes == channels_first(rank):
            self.arranged[made] = Arranged(made.sources[0], axes)

    def _largest(self, made: Node) -> Arranged:
        """The arranged source of most elements."""
        arranged = [source for source in made.sources if source in self.arranged]
        return self.arranged[max(arranged, key=lambda source: prod(source.shape))]

    def parts(self, made: Node, inner: Node, axes: Shape) -> Node:
        """Notes the several results of a node that is made in another order."""
        self._parts[inner] = Arranged(inner, axes)
        return inner


Rule = Callable[[Layouts, Node, bool], Node | None]


def channels_first(rank: int) -> Shape:
    """The order of a value's axes, channels last, in which they are those of images."""
    return (0, rank - 1, *range(1, rank - 1))


def channels_last(rank: int) -> Shape:
    """The order of images' axes in which the channels are last."""
    return (0, *range(2, rank), 1)


def _inverse(axes: Shape) -> Shape:
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


def _keeps(axes: Shape) -> bool:
    return axes == tuple(range(len(axes)))


def _spread(x: Node) -> bool:
    """Whether a value's elements are made of few others, or of nothing."""
    return (x.op.kind == "leaf" and x.op is not common.buffer) or x.op is movement.expand


def _enlarged(x: Node) -> bool:
    """Whether movements repeat the elements of a value in memory."""
    while x.op.kind == "movement":
        if x.op is movement.expand and x.shape != x.sources[0].shape:
            return True
        (x,) = x.sources
    return False


def _like(made: Node, sources: tuple[Node, ...], shape: Shape, **attributes: Any) -> Node:
    """The op of a node over other sources."""
    outputs = tuple((shape, dtype) for _, dtype in made.outputs)
    changed = {**made.attributes, **attributes} if attributes else made.attributes
    return node_made(made.op, sources, changed, outputs, made.device, False, made.site)


# Rules: a node over arranged sources in their order, or None --------------------------------------


def _elementwise(layouts: Layouts, made: Node, first: bool) -> Node | None:
    if first:
        return None
    axes = layouts._largest(made).axes
    sources = tuple(layouts.as_arranged(source, axes) for source in made.sources)
    return layouts.put(_like(made, sources, sources[0].shape), axes)


def _reduction(layouts: Layouts, made: Node, first: bool) -> Node | None:
    value, axes = layouts.arranged[made.sources[0]]
    reduced = [axes[axis] for axis in made.attributes["axes"]]
    assert isinstance(made.op, ReductionOp)
    if made.op.extreme is not None and reduced != sorted(reduced):
        return None  # positions are counted in the order of the axes
    sizes = (1 if axis in reduced else size for axis, size in enumerate(value.shape))
    inner = _like(made, (value,), tuple(sizes), axes=tuple(sorted(reduced)))
    if len(made.outputs) > 1:
        return layouts.parts(made, inner, axes)
    return layouts.put(inner, axes)


def _expand(layouts: Layouts, made: Node, first: bool) -> Node:
    value, axes = layouts.arranged[made.sources[0]]
    shape = tuple(made.shape[axis] for axis in _inverse(axes))
    return layouts.put(movement.expand(value, shape=shape), axes)


def _along_axes(layouts: Layouts, made: Node, first: bool) -> Node | None:
    """A slice or a pad."""
    if first:
        return None
    value, axes = layouts.arranged[made.sources[0]]
    names = [name for name in ("starts", "shape", "steps") if name in made.attributes]
    moved: dict[str, Any] = {
        name: tuple(made.attributes[name][axis] for axis in _inverse(axes)) for name in names
    }
    return layouts.put(made.op(value, **{**made.attributes, **moved}), axes)


def _flip(layouts: Layouts, made: Node, first: bool) -> Node:
    value, axes = layouts.arranged[made.sources[0]]
    turned = tuple(sorted(axes[axis] for axis in made.attributes["axes"]))
    return layouts.put(movement.flip(value, axes=turned), axes)


def _window(layouts: Layouts, made: Node, first: bool) -> Node:
    value, axes = layouts.arranged[made.sources[0]]
    moved = {name: axes[made.attributes[name]] for name in ("axis", "over")}
    return layouts.put(made.op(value, **{**made.attributes, **moved}), axes)


def _permute(layouts: Layouts, made: Node, first: bool) -> Node:
    value, axes = layouts.arranged[made.sources[0]]
    both = tuple(axes[axis] for axis in made.attributes["axes"])
    return value if _keeps(both) else layouts.put(value, both)


def _reshape(layouts: Layouts, made: Node, first: bool) -> Node | None:
    """Axes that are split, joined or of size 1: parts of an axis stay in its place."""
    value, axes = layouts.arranged[made.sources[0]]
    parts = _common_parts(made.sources[0].shape, made.shape)
    if parts is None:
        return None
    old, new, sizes = parts
    # The value with its axes split, and where each part then is.
    order = [part for axis in _inverse(axes) for part in old[axis]]
    split = _shaped(value, tuple(sizes[part] for part in order))
    at = {part: position for position, part in enumerate(order)}
    groups = [[at[part] for part in group] for group in new]
    if any(group != sorted(group) for group in groups):
        return None  # an axis would be joined of parts that lie in another order
    # An axis of size 1 stays behind the one before it, with which it may be joined once expanded.
    before = accumulate(groups, lambda last, group: group[-1:] or last, initial=[-1])
    positions = [(group or last)[0] for group, last in zip(groups, before)]
    target = sorted(range(len(groups)), key=positions.__getitem__)
    joined = movement.permute(split, axes=tuple(p for axis in target for p in groups[axis]))
    joined = joined.sources[0] if _keeps(joined.attributes["axes"]) else joined
    inner = _shaped(joined, tuple(made.shape[axis] for axis in target))
    if _keeps(tuple(target)):
        return inner
    return layouts.put(inner, _inverse(tuple(target)))


def _shaped(x: Node, shape: Shape) -> Node:
    """A reshape, if it changes anything; of a reshape its source's."""
    while x.shape != shape and x.op is movement.reshape:
        (x,) = x.sources
    return x if x.shape == shape else movement.reshape(x, shape=shape)


def _common_parts(
    old: Shape, new: Shape
) -> tuple[list[list[int]], list[list[int]], list[int]] | None:
    """The parts, numbered in their order, that each axis of two shapes of one value has; sizes."""
    sizes: list[int] = []
    of_old: list[list[int]] = [[] for _ in old]
    of_new: list[list[int]] = [[] for _ in new]
    if 0 in old:
        return None
    i = j = 0
    left, right = 1, 1
    while True:
        while left == 1 and i < len(old):
            left, i = old[i], i + 1
        while right == 1 and j < len(new):
            right, j = new[j], j + 1
        if left == right == 1:
            return of_old, of_new, sizes
        size = min(left, right)
        if max(left, right) % size:
            return None
        of_old[i - 1].append(len(sizes))
        of_new[j - 1].append(len(sizes))
        sizes.append(size)
        left, right = left // size, right // size


_RULES: dict[Any, Rule] = {
    movement.expand: _expand,
    movement.slice_: _along_axes,
    movement.pad: _along_axes,
    movement.flip: _flip,
    movement.window: _window,
    movement.unwindow: _window,
    movement.permute: _permute,
    movement.reshape: _reshape,
}
_KINDS: dict[str, Rule] = {"elementwise": _elementwise, "reduction": _reduction}


# What readers want --------------------------------------------------------------------------------


def wanted_orders(
    order: Sequence[Node],
    outputs: Sequence[Node],
    on_units: Container[Node],
    either: Container[Node] = (),
    thin: Container[Node] = (),
) -> dict[Node, int]:
    """For each node whether readers want its channels last, in the order of its axes, or either.

    Args:
        order: the nodes of a plan, sources first.
        outputs: of the plan, stored in the order of their axes.
        on_units: convolutions that read their images with the channels last.
        either: those that read and store images in the order in which they lie.
        thin: those that read images of few channels as they lie, and others with these last.
    """
    wants = dict.fromkeys(order, 0)
    for node in outputs:
        wants[node] |= FIRST
    for node in reversed(order):
        for position, source in enumerate(node.sources):
            if node in thin:
                read = node.op is convolution_weight_gradient and position == 0
                wants[source] |= LAST if read else 0
            else:
                wants[source] |= _wanted_of(node, position, wants[node], on_units, either)
    return wants


def _joins_groups(old: list[list[int]], new: list[list[int]]) -> bool:
    """Whether groups of channels become channels again: ``(N, G, C, *) -> (N, G * C, *)``."""
    return len(new) > 2 and old[1:3] == [new[1][:1], new[1][1:]] and old[3:] == new[2:]


def _wanted_of(
    node: Node, position: int, wants: int, on_units: Container[Node], either: Container[Node]
) -> int:
    """The order in which a node wants one of its sources."""
    op = node.op
    if op in CONVOLUTIONS:
        image = position == 0 or op is convolution_weight_gradient
        if image and node in either:
            return 0 if op is convolution_weight_gradient else wants
        return (LAST if node in on_units else FIRST) if image else 0
    if op.kind == "reduction" or op is common.output:
        return 0
    if op.kind == "elementwise":
        return wants
    if op is movement.permute:
        last = len(node.shape) > 2 and node.attributes["axes"] == channels_last(len(node.shape))
        return LAST if last else wants
    if op is movement.reshape and len(node.sources[0].shape) > 2:
        parts = _common_parts(node.sources[0].shape, node.shape)
        if parts is not None and _joins_groups(parts[0], parts[1]):
            return wants
        joined = parts is None or any(
            len(group) > 1 and group[0] in parts[0][1] for group in parts[1]
        )
        return FIRST if joined else wants
    return wants if op.kind == "movement" else FIRST


__all__ = ["Arranged", "Layouts", "wanted_orders"]
