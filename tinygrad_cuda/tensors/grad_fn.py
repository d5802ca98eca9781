"""x.grad_fn: the recorded graph as PyTorch's programs walk it.

An object stands for one recorded node and is made when somebody asks; the names are of the ops
recorded here, by PyTorch's pattern: `MulBackward0`.
"""

from __future__ import annotations

import weakref
from functools import cache
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.core.errors import GradientError, describe_site
from tinygrad_cuda.engine.cell import detached
from tinygrad_cuda.graph.node import Node, made_by
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.creation import as_leaf

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor


class GradientFunction:
    """A node of the recorded graph, seen from its gradient.

    Two that stand for one node are one object while somebody holds it. What PyTorch saves for
    backward (``_saved_self``) is not kept apart here, and there are no hooks, since
    `Tensor.register_hook` sees the same gradients: such names are an AttributeError.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.ones(2, device="cpu", requires_grad=True)
        >>> (x * 2 + 1).grad_fn.name()
        'AddBackward0'
    """

    __slots__ = ("node", "__weakref__")

    def __init__(self, node: Node) -> None:
        self.node = node

    def name(self) -> str:
        """The name of the class."""
        return type(self).__name__

    @property
    def next_functions(self) -> tuple[tuple[GradientFunction | None, int], ...]:
        """Of each operand: its function, or None without a gradient; and which of its results.

        Raises:
            GradientError: a backward pass has used the history, and what it led to is freed.
        """
        node = self.node
        if node.spent is not None and not node.sources[_values(node) :]:
            raise GradientError(
                "next_functions", "the history was already used by a backward pass",
                expect="a history that no pass has used yet",
                actual=f"{made_by(node)}\nwas used by the pass at {describe_site(node.spent)}",
                hint="walk the graph before backward(), or pass retain_graph=True to it",
            )  # fmt: skip
        return tuple(_edge(source) for source in node.sources[_values(node) :])

    @property
    def metadata(self) -> dict[str, Any]:
        """What a program notes about the node, as long as the node lives."""
        return _metadata.setdefault(self.node, {})

    @property
    def requires_grad(self) -> bool:
        """True: a node without a gradient has no function."""
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} object at {id(self):#x}>"


class AccumulateGrad(GradientFunction):
    """Where the gradient of a leaf arrives."""

    __slots__ = ()

    def name(self) -> str:
        """The name that PyTorch gives it."""
        return "torch::autograd::AccumulateGrad"

    @property
    def variable(self) -> Tensor:
        """The leaf."""
        leaf = self.node.attributes["leaf"]
        owner: Tensor | None = None if leaf.owner is None else leaf.owner()
        if owner is None:
            # Nobody holds the Tensor any more, but its value and its gradient are there.
            owner = as_leaf(wrap(detached(self.node)), True, leaf)
        return owner

    @property
    def next_functions(self) -> tuple[tuple[GradientFunction | None, int], ...]:
        """Nothing: a leaf is the end."""
        return ()


def function_of(node: Node) -> GradientFunction:
    """The one object that stands for a node with history."""
    made = _made.get(node)
    if made is None:
        kind = AccumulateGrad if node.op is common.variable else _kind(_title(node))
        made = _made.setdefault(node, kind(node))
    return made


def of_tensor(node: Node) -> GradientFunction:
    """The function of the node that a Tensor holds: of one of several results, that of them all."""
    return function_of(node.sources[0] if node.op is common.output and node.sources else node)


_made: weakref.WeakValueDictionary[Node, GradientFunction] = weakref.WeakValueDictionary()
_metadata: weakref.WeakKeyDictionary[Node, dict[str, Any]] = weakref.WeakKeyDictionary()


def _edge(source: Node) -> tuple[GradientFunction | None, int]:
    if not source.requires_grad:
        return None, 0
    number: int = source.attributes["index"] if source.op is common.output else 0
    return of_tensor(source), number


def _values(node: Node) -> int:
    """How many of the first sources are values of the node and no operands of its gradient."""
    count: int = node.attributes["results"] if node.op is common.custom else 0
    return count


def _title(node: Node) -> str:
    """`MulBackward0` of mul; a program's Function `Scale` is ScaleBackward, as in PyTorch."""
    label = node.label
    if node.op is common.custom and label[:1].isupper():
        return f"{label}Backward"
    words = "".join(part[:1].upper() + part[1:] for part in label.split("_"))
    return f"{words}Backward0"


@cache
def _kind(name: str) -> type[GradientFunction]:
    return type(name, (GradientFunction,), {"__slots__": ()})
