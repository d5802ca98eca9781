"""Function: an operation with a forward and a backward of the user's own."""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.core.errors import ArgumentError, GradientError
from tinygrad_cuda.graph.node import Node, gradient_mode, mode
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.tensor.base import TensorBase, wrap


class Context:
    """What forward hands to backward."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self._saved: tuple[Any, ...] = ()
        self._not_differentiable: tuple[Any, ...] = ()
        self.materialize_grads = True

    def save_for_backward(self, *tensors: Any) -> None:
        """Keeps Tensors for backward; they show their present value there."""
        self._saved = tuple(
            wrap(tensor.node) if isinstance(tensor, TensorBase) else tensor for tensor in tensors
        )

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What `save_for_backward` was given."""
        return self._saved

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Outputs through which no gradient passes."""
        self._not_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """With False, backward sees None instead of zeros for unused outputs."""
        self.materialize_grads = value


class Function:
    """Base of operations with their own derivative.

    Subclasses define two static methods: ``forward(ctx, *inputs)`` and
    ``backward(ctx, *grads)``, which returns one gradient (or None) per input. Both work on
    Tensors, so a backward made of differentiable operations can be differentiated again.

    Example:
        >>> import tinygrad_cuda as tc
        >>> class Cube(tc.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x * x * x
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         (x,) = ctx.saved_tensors
        ...         return g * 3 * x * x
        >>> x = tc.tensor(2.0, device="cpu", requires_grad=True)
        >>> Cube.apply(x).backward()
        >>> x.grad.item()
        12.0
    """

    @staticmethod
    def forward(ctx: Any, *args: Any, **options: Any) -> Any:
        """Computes the outputs."""
        raise GradientError("Function", "forward is not defined")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Computes the gradients of the inputs from those of the outputs."""
        raise GradientError("Function", "backward is not defined")

    @classmethod
    def apply(cls, *args: Any, **options: Any) -> Any:
        """Runs forward and records backward as its derivative."""
        tensors = [value for value in args if isinstance(value, TensorBase)]
        needs = tuple(isinstance(a, TensorBase) and a.requires_grad for a in args)
        ctx = Context(needs)
        with gradient_mode(False):
            outputs = cls.forward(ctx, *args, **options)
        if not (mode.gradients and any(needs)):
            return outputs
        several = isinstance(outputs, tuple)
        values = [value.node for value in (outputs if several else (outputs,))]
        node = common.custom(
            *values,
            *(tensor.node for tensor in tensors),
            results=len(values),
            function=_backward_of(cls, ctx, args, values),
        )
        found = []
        for k, value in enumerate(outputs if several else (outputs,)):
            fixed = any(value is other for other in ctx._not_differentiable)
            if fixed or not value.dtype.is_floating:
                found.append(value)
            elif len(values) == 1:
                found.append(wrap(node))
            else:
                found.append(wrap(common.output(node, index=k)))
        return tuple(found) if several else found[0]


def _backward_of(
    cls: type[Function], ctx: Context, args: tuple[Any, ...], values: list[Node]
) -> Any:
    def function(*gs: Node | None) -> list[Node | None]:
        grads = []
        for g, value in zip(gs, values, strict=True):
            if g is None and ctx.materialize_grads:
                g = common.full_like(value, 0)
            grads.append(None if g is None else wrap(g))
        found = cls.backward(ctx, *grads)
        parts = found if isinstance(found, tuple) else (found,)
        if len(parts) != len(args):
            raise ArgumentError(
                cls.__name__,
                "backward returned the wrong number of gradients",
                expect=f"{len(args)}, one per input of forward",
                actual=str(len(parts)),
            )
        result: list[Node | None] = []
        for value, part in zip(args, parts):
            if isinstance(value, TensorBase):
                result.append(_fitted(cls, part, value.node))
        return result

    return function


def _fitted(cls: type[Function], part: Any, source: Node) -> Node | None:
    if part is None:
        return None
    if part.node.shape != source.shape:
        raise ArgumentError(
            cls.__name__,
            "backward returned a gradient of another shape",
            expect=str(source.shape),
            actual=str(part.node.shape),
        )
    node: Node = part.node
    return node
