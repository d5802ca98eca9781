"""Leaves and identities of the op table, and the small helpers that gradient rules share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tinygrad_cuda.core.device import Device
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import DTypeError, GradientError, RawSite, ShapeError
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import LeafOp, Node, Op, Outputs


def same(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    """The rule of ops whose output is like their first source."""
    return sources[0].outputs


def _first_source(array: Any, *rest: Any, **attributes: Any) -> Any:
    return array


def no_inference(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    raise AssertionError("leaves are given their shape")


# Leaves -------------------------------------------------------------------------------------

# A value in memory. In a plan's own graph `slot` says which input of the plan it is.
buffer = LeafOp("buffer", "leaf", no_inference)
# A number, the same for every element; folded into kernels until it is seen to vary.
constant = LeafOp("constant", "leaf", no_inference, literals=("value",))
# A number that is an argument of its plan from the start: learning rates, loss scales, counts.
scalar = LeafOp("scalar", "leaf", no_inference, arguments=("value",))
# A complex number, the same for every element. Its parts are numbers as those of a `constant`,
# which holds a real number of any dtype, complex ones included.
complex_constant = LeafOp("complex_constant", "leaf", no_inference, literals=("real", "imag"))
# start + step * i along one axis.
arange = LeafOp("arange", "leaf", no_inference, literals=("start", "step"))


# Identities ---------------------------------------------------------------------------------


def _custom_outputs(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    return tuple(source.outputs[0] for source in sources[: attributes["results"]])


def _infer_assign(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    old, new = sources
    if old.outputs != new.outputs:
        raise ShapeError(
            "assign",
            "the new value does not fit the storage",
            expect=f"{old.shape} {old.dtype.name}",
            actual=f"{new.shape} {new.dtype.name}",
        )
    return new.outputs


# Where gradients arrive and stop; `leaf` is the accumulator of the Tensor that owns it.
variable = Op("variable", "identity", same, numpy=_first_source, gradient=(None,))
# Same value, no gradient.
detach = Op("detach", "identity", same, numpy=_first_source, gradient=(None,))
# The first `results` sources are its values; `function` maps their cotangents to cotangents of
# the remaining sources. It runs when the gradient is recorded.
custom = Op("custom", "identity", _custom_outputs, gradient="handled by gradient.py")
# The value of `new`, which asks for the storage of `old`.
assign = Op(
    "assign",
    "identity",
    _infer_assign,
    numpy=lambda old, new: new,
    gradient=(None, lambda g, out, old, new: g),
)


def _infer_output(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    return (sources[0].outputs[attributes["index"]],)


# One result of a node with several.
output = Op(
    "output", "identity", _infer_output,
    numpy=lambda results, index: results[index], gradient="handled by gradient.py",
)  # fmt: skip

ROWS: tuple[Op, ...] = (
    buffer, constant, scalar, complex_constant, arange, variable, detach, custom, assign, output,
)  # fmt: skip


# Helpers ------------------------------------------------------------------------------------


def full(value: Any, shape: Shape, like: Node, dtype: DType | None = None) -> Node:
    """A constant of `shape` on the device of `like`."""
    return number(value, shape, dtype or like.dtype, like.device)


def full_like(node: Node, value: Any) -> Node:
    if type(value) is complex:
        return complex_constant.like(node, real=value.real, imag=value.imag)
    return constant.like(node, value=value)


def number(value: Any, shape: Shape, dtype: DType, device: Device) -> Node:
    """The leaf of a number, real or complex."""
    if type(value) is complex:
        return complex_constant.leaf(shape, dtype, device, real=value.real, imag=value.imag)
    return constant.leaf(shape, dtype, device, value=value)


class GradientRule:
    """A `custom` node's function that knows of nothing but the node, which it is called with.

    Equal ones do the same: such nodes may be recorded from templates.
    """

    def __call__(self, node: Node, *gs: Node | None) -> Sequence[Node | None]:
        """The cotangents of the node's sources after its results."""
        raise NotImplementedError


def function_of(node: Node) -> Callable[..., Sequence[Node | None]]:
    """What maps the cotangents of a `custom` node to those of its sources."""
    function = node.attributes["function"]
    return partial(function, node) if isinstance(function, GradientRule) else function


def spend(node: Node, line: RawSite | None) -> None:
    """A backward pass, begun at this line, has used the node's history."""
    node.spent = line
    if node.storage is not None:
        # The rules have taken what they need of it.
        node.sources = ()
    if node.op is custom:
        # So has its function, which holds values that may then be overwritten, and so do
        # the sources besides its value, which were there for the gradient alone.
        node.attributes = {**node.attributes, "function": _used_up}
        node.sources = node.sources[: node.attributes["results"]]


def _used_up(*gs: Node) -> tuple[Node | None, ...]:
    """Instead of the function of a spent node: every pass is refused there."""
    raise AssertionError("a spent node was differentiated")


@dataclass(frozen=True)
class _OtherHistory(GradientRule):
    passes: bool

    def __call__(self, node: Node, *gs: Node | None) -> Sequence[Node | None]:
        (g,) = gs
        assert g is not None
        return (g if self.passes else full_like(g, 0),)


def with_history(value: Node, history: Node, passes: bool = True) -> Node:
    """The value of one node with the gradient of another, also in `no_grad` (a write there, or
    through ``detach()``); without `passes` that gradient is zero (a write of a constant)."""
    node = custom(value, history, results=1, function=_OtherHistory(passes))
    node.requires_grad = history.requires_grad
    return node


@dataclass(frozen=True)
class _SecondHistory(GradientRule):
    def __call__(self, node: Node, *gs: Node | None) -> Sequence[Node | None]:
        return gs[0], None


def with_second_history(value: Node, history: Node) -> Node:
    """A value with its gradient; a pass visits another history, too, without a gradient (that of
    what was overwritten, or of an operand on which the value does not depend smoothly)."""
    return custom(value, value, history, results=1, function=_SecondHistory())


@dataclass(frozen=True)
class _NothingWritten(GradientRule):
    def __call__(self, node: Node, *gs: Node | None) -> Sequence[Node | None]:
        # After the value twice, as it is and as it is differentiated.
        return gs[0], *(full_like(source, 0) for source in node.sources[2:])


def nothing_written(value: Node, *sources: Node) -> Node:
    """A value into which nothing of the sources was written: they get gradients of zero."""
    if not any(source.requires_grad for source in sources):
        return value
    return custom(value, value, *sources, results=1, function=_NothingWritten())


@dataclass(frozen=True)
class _NoGradient(GradientRule):
    op: str
    problem: str
    hint: str

    def __call__(self, node: Node, *gs: Node | None) -> Sequence[Node | None]:
        raise GradientError(
            self.op, self.problem, expect="an operation with a gradient", actual=self.op,
            hint=self.hint,
        )  # fmt: skip


def without_gradient(value: Node, source: Node, op: str, problem: str, hint: str) -> Node:
    """A value that depends on a source by an operation whose gradient is an error in a pass."""
    if not source.requires_grad:
        return value
    return custom(value, source, results=1, function=_NoGradient(op, problem, hint))


# Categories of dtype (bool 0, integer 1, floating 2, complex 3) by the name of a domain.
DOMAINS: dict[str, tuple[int, ...]] = {
    "any": (0, 1, 2, 3),
    "real": (0, 1, 2),
    "arithmetic": (1, 2, 3),
    "inexact": (2, 3),
    "complex": (3,),
    "float": (2,),
    "number": (1, 2),
    "integer": (1,),
    "integral": (0, 1),
    "bool": (0,),
}


def require_dtype(op: str, node: Node, allowed: str) -> None:
    """Raises unless the dtype belongs to a domain, a key of `DOMAINS`."""
    if node.dtype.category in DOMAINS[allowed]:
        return
    wanted, cast = {
        "real": ("a real dtype", "x.real or x.abs()"),
        "arithmetic": ("a numeric dtype, not bool", "x.float() or x.int()"),
        "inexact": ("a floating or complex dtype", "x.float()"),
        "complex": ("a complex dtype", "x.to(tc.complex64)"),
        "float": ("a floating dtype", "x.float()"),
        "number": ("a numeric dtype, not bool", "x.float() or x.int()"),
        "integer": ("an integer dtype", "x.int() or x.long()"),
        "integral": ("an integer dtype or bool", "x.int() or x.bool()"),
        "bool": ("bool", "x.bool()"),
    }[allowed]
    raise DTypeError(
        op,
        "the dtype is not supported",
        expect=wanted,
        actual=node.dtype.name,
        hint="x.real, x.imag and x.abs() are real" if node.dtype.is_complex
        else f"cast first: {cast}",
    )  # fmt: skip


def wide(dtype: Any) -> Any:
    """The dtype in which the reference computes: float32 for half types."""
    return (
        np.dtype(np.float32)
        if np.dtype(dtype).itemsize == 2 and np.dtype(dtype).kind not in "iu"
        else np.dtype(dtype)
    )
