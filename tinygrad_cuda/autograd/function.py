"""Function: an operation with a forward and a backward of the user's own."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tinygrad_cuda.autograd.graph import active
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, GradientError, ShapeError
from tinygrad_cuda.graph.node import Node, gradient_mode, mode
from tinygrad_cuda.graph.ops import common, elementwise
from tinygrad_cuda.graph.versions import Version, holder_of, version_of, versions
from tinygrad_cuda.tensors.base import TensorBase, wrap


class _Packed(NamedTuple):
    """What `saved_tensors_hooks` keeps instead of a Tensor."""

    value: Any


class Context:
    """What forward hands to backward; attributes of the user's own may be set on it."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.materialize_grads = True
        self._given: tuple[Any, ...] = ()
        self._unpack: Callable[[Any], Any] | None = None
        # Results whose gradient passes through the Function, by the forward value's node.
        self._results: dict[Node, weakref.ref[Node]] = {}
        self._fixed: tuple[Any, ...] = ()
        self._dirty: tuple[Any, ...] = ()
        # While `check_versions` is on: what counts the versions of the saved, and those after
        # forward.
        self._holders: dict[Node, Any] = {}
        self._versions: dict[Node, Version] = {}

    def save_for_backward(self, *tensors: Any) -> None:
        """Keeps Tensors (inputs, outputs or others, or None) for backward, as they are now.

        Raises:
            DTypeError: something else is given.
        """
        for tensor in tensors:
            if tensor is not None and not isinstance(tensor, TensorBase):
                raise DTypeError(
                    "save_for_backward", "keeps Tensors only", expect="Tensors or None",
                    actual=type(tensor).__name__, hint="ctx.name = value keeps anything else",
                )  # fmt: skip
        if active.stack:
            pack, self._unpack = active.stack[-1]
            tensors = tuple(t if t is None else _Packed(pack(t)) for t in tensors)
        self._given = tuple(
            tensor.node if isinstance(tensor, TensorBase) else tensor for tensor in tensors
        )
        if versions.on:
            saved = [tensor for tensor in tensors if isinstance(tensor, TensorBase)]
            self._holders = {tensor.node: holder_of(tensor) for tensor in saved}

    def save_for_forward(self, *tensors: Any) -> None:
        """Keeps Tensors for a `jvp` of PyTorch's forward mode, which nothing here calls."""
        self.saved_for_forward = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What `save_for_backward` was given."""
        return tuple(map(self._restored, self._given))

    def _restored(self, saved: Any) -> Any:
        if isinstance(saved, _Packed):
            assert self._unpack is not None
            return self._unpack(saved.value)
        if not isinstance(saved, Node):
            return saved
        if saved in self._versions:
            versions.demand(self._versions[saved], saved)
        return wrap(self._with_history(saved))

    def count_versions(self) -> None:
        """As in PyTorch, the saved have the versions that they have after forward."""
        self._versions = {node: versions.current(x) for node, x in self._holders.items()}

    def _with_history(self, node: Node) -> Node:
        """An output of forward as the result that carries history."""
        reference = self._results.get(node)
        original = None if reference is None else reference()
        return node if original is None else original

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Outputs through which no gradient passes."""
        self._fixed = tensors

    def mark_dirty(self, *tensors: Any) -> None:
        """Inputs that forward has written to in place, and returns: they become the outputs."""
        self._dirty = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """With False, backward sees None instead of zeros for unused outputs."""
        self.materialize_grads = value


FunctionCtx = Context  # PyTorch's name


class Function:
    """Base of operations with their own derivative.

    Subclasses define two static methods: ``forward(ctx, *inputs)`` and
    ``backward(ctx, *grads)``, which returns one gradient (or None) per input. Both work on
    Tensors, so a backward made of differentiable operations can be differentiated again.
    ``forward(*inputs)`` with ``setup_context(ctx, inputs, output)`` is possible too.

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

    # Given by subclasses; setup_context only where forward takes no ctx.
    forward: Any = None
    backward: Any = None
    setup_context: Any = None

    @classmethod
    def apply(cls, *args: Any, **options: Any) -> Any:
        """Runs forward and records backward as its derivative.

        Raises:
            GradientError: the subclass lacks forward, or (when it is needed) backward.
            ArgumentError: forward returned something other than Tensors; or, when the gradient
                is computed, backward returned the wrong number of gradients.
        """
        if cls.forward is None:
            raise _missing(cls, "forward(ctx, *inputs)")
        needs = tuple(isinstance(a, TensorBase) and a.requires_grad for a in args)
        context = Context(needs)
        # Before forward, which may write to its inputs.
        sources = [value.node for value in args if isinstance(value, TensorBase)]
        with gradient_mode(False):
            if cls.setup_context is None:
                outputs = cls.forward(context, *args, **options)
            else:
                outputs = cls.forward(*args, **options)
                cls.setup_context(context, args, outputs)
        if versions.on:
            context.count_versions()
        several = isinstance(outputs, tuple | list)
        values = list(outputs) if several else [outputs]
        if not any(isinstance(value, TensorBase) for value in values):
            raise ArgumentError(
                cls.__name__,
                "forward returned no Tensor",
                expect="a Tensor or a tuple of them",
                actual=", ".join(type(value).__name__ for value in values),
            )
        _check_dirty(cls, context, values)
        if mode.now.gradients and any(needs):
            values = _recorded(cls, context, args, sources, values)
        return tuple(values) if several else values[0]


def _check_dirty(cls: type[Function], context: Context, values: list[Any]) -> None:
    for tensor in context._dirty:
        if not any(tensor is value for value in values):
            raise ArgumentError(
                cls.__name__, "forward does not return a Tensor that it marked as dirty",
                expect="each Tensor of mark_dirty among the outputs",
                actual=f"{len(values)} other outputs",
            )  # fmt: skip


def once_differentiable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a ``backward`` that is not differentiable itself: asking for that is an error.

    Raises:
        GradientError: the gradient that it gave is differentiated.
    """

    @functools.wraps(fn)
    def backward(ctx: Any, *grads: Any) -> Any:
        with gradient_mode(False):
            gradients = fn(ctx, *grads)
        behind = [g.node for g in grads if isinstance(g, TensorBase) and g.requires_grad]
        if not mode.now.gradients or not behind:
            return gradients
        parts = gradients if isinstance(gradients, tuple | list) else (gradients,)
        ended = tuple(
            _once(fn, part, behind) if isinstance(part, TensorBase) else part for part in parts
        )
        return ended if isinstance(gradients, tuple | list) else ended[0]

    return backward


def _once(fn: Callable[..., Any], part: TensorBase, behind: list[Node]) -> Any:
    def refuse(g: Node) -> list[Node | None]:
        raise GradientError(
            fn.__qualname__.removesuffix(".backward"),
            "the backward is differentiable once only",
            expect="a backward without once_differentiable",
            actual="a gradient of its gradient",
            site=mode.now.site,
        )

    return wrap(common.custom(part.node, *behind, results=1, function=refuse, name="once"))


def _recorded(
    cls: type[Function], context: Context, args: tuple[Any, ...], sources: list[Node],
    values: list[Any],
) -> list[Any]:  # fmt: skip
    """The outputs with history, where a gradient passes."""
    positions = [
        position
        for position, value in enumerate(values)
        if isinstance(value, TensorBase)
        and value.dtype.category > 1
        and not any(value is fixed for fixed in context._fixed)
    ]
    if not positions:
        return values
    nodes = [values[position].node for position in positions]
    function = _Backward(cls, context, args, sources, positions, values)
    whole = common.custom(
        *nodes, *sources, results=len(nodes), function=function, name=cls.__name__
    )
    results = list(values)
    for number, (position, node) in enumerate(zip(positions, nodes)):
        result = whole if len(nodes) == 1 else common.output(whole, index=number)
        if any(values[position] is written for written in context._dirty):
            values[position].write(result, cls.__name__)
        else:
            results[position] = wrap(result)
        context._results[node] = weakref.ref(result)
        if node in context._versions:
            context._versions[node] = version_of(results[position])
    return results


class _Backward:
    """From the cotangents of the differentiable outputs to those of the Tensors among the inputs.

    Shapes and dtypes are stored, not the inputs: what backward needs was given to
    `save_for_backward`.
    """

    def __init__(
        self,
        cls: type[Function],
        context: Context,
        args: tuple[Any, ...],
        sources: list[Node],
        positions: list[int],
        values: list[Any],
    ) -> None:
        self.cls, self.context, self.positions = cls, context, positions
        given = iter(sources)
        self.inputs = [
            next(given).outputs[0] if isinstance(value, TensorBase) else None for value in args
        ]
        self.outputs = [
            (value.node.outputs[0], value.node.device) if isinstance(value, TensorBase) else None
            for value in values
        ]

    def __call__(self, *cotangents: Node | None) -> list[Node | None]:
        if self.cls.backward is None:
            raise _missing(self.cls, "backward(ctx, *grads)")
        arrived = dict(zip(self.positions, cotangents))
        grads: list[Any] = [None] * len(self.outputs)
        for index, output in enumerate(self.outputs):
            g = arrived.get(index)
            if g is None and output is not None and self.context.materialize_grads:
                (shape, dtype), device = output
                g = common.constant.leaf(shape, dtype, device, value=0)
            grads[index] = None if g is None else wrap(g)
        gradients = self.cls.backward(self.context, *grads)
        parts = list(gradients) if isinstance(gradients, tuple | list) else [gradients]
        self._check_count(parts)
        return [
            self._fitted(position, part, expected)
            for position, (part, expected) in enumerate(zip(parts, self.inputs))
            if expected is not None
        ]

    def _check_count(self, parts: Sequence[Any]) -> None:
        count = len(self.inputs)
        if len(parts) < count or any(part is not None for part in parts[count:]):
            raise ArgumentError(
                self.cls.__name__,
                "backward returned the wrong number of gradients",
                expect=f"{count}, one per input of forward",
                actual=str(len(parts)),
                site=mode.now.site,
                hint="return None for inputs that are not Tensors",
            )

    def _fitted(self, position: int, part: Any, expected: Any) -> Node | None:
        if part is None:
            return None
        shape, dtype = expected
        if not isinstance(part, TensorBase):
            raise DTypeError(
                self.cls.__name__,
                f"backward returned something else as gradient of input {position}",
                expect=f"a Tensor of shape {shape}, or None",
                actual=f"{type(part).__name__} {part!r}",
                site=mode.now.site,
            )
        node = part.node
        if node.shape != shape:
            raise ShapeError(
                self.cls.__name__,
                f"backward returned a gradient of another shape than input {position}",
                expect=f"shape {shape}",
                actual=f"shape {node.shape}",
                site=mode.now.site,
                hint="sum over what forward broadcast, expand over what it reduced",
            )
        return node if node.dtype is dtype else elementwise.cast(node, dtype=dtype)


def _missing(cls: type[Function], what: str) -> GradientError:
    return GradientError(
        cls.__name__,
        f"the Function has no {what.partition('(')[0]}",
        expect=f"a static method {what}",
        actual=f"methods: {', '.join(k for k in vars(cls) if not k.startswith('_')) or 'none'}",
        site=mode.now.site,
    )


InplaceFunction = NestedIOFunction = Function  # older names of PyTorch's
