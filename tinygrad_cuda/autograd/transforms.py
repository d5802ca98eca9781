"""Functions made of functions: gradients, products with Jacobians, Jacobians; they compose.

An input becomes a node of its own; the derivative is recorded by it, and then with the input back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tinygrad_cuda.autograd.batched import vmap
from tinygrad_cuda.core.errors import ArgumentError, GradientError, ShapeError
from tinygrad_cuda.core.trees import leaves, rebuilt
from tinygrad_cuda.engine.cell import detached
from tinygrad_cuda.graph import gradient
from tinygrad_cuda.graph.batching import Rewriting, begins_only_at, marked
from tinygrad_cuda.graph.node import Node, gradient_mode, mode
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.tensors.arguments import require_real
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.creation import eye
from tinygrad_cuda.tensors.tensor import Tensor

Function = Callable[..., Any]
Argnums = int | tuple[int, ...]


def grad(func: Function, argnums: Argnums = 0, has_aux: bool = False) -> Function:
    """The function that gives the gradient of a scalar function by its arguments.

    Args:
        func: returns one 0-d Tensor; with `has_aux` a pair of it and anything else.
        argnums: by which argument; with a tuple, a tuple of gradients. An argument may be a
            nested tuple, list or dict of Tensors, and the gradient has its structure.
        has_aux: return the second of the pair too.

    Raises:
        ShapeError: the function did not return one number.
        GradientError: an argument to differentiate by is not floating.

    Example:
        >>> import tinygrad_cuda as tc
        >>> cube = lambda x: x**3
        >>> tc.func.grad(cube)(tc.tensor(2.0, device="cpu")).item()
        12.0
        >>> tc.func.grad(tc.func.grad(cube))(tc.tensor(2.0, device="cpu")).item()
        12.0
    """
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def gradient_of(*args: Any, **options: Any) -> Any:
        gradients, value = both(*args, **options)
        return (gradients, value[1]) if has_aux else gradients

    return gradient_of


def grad_and_value(func: Function, argnums: Argnums = 0, has_aux: bool = False) -> Function:
    """As `grad`; the function returns the gradient and the value (or the pair with `has_aux`)."""

    @functools.wraps(func)
    def both(*args: Any, **options: Any) -> Any:
        point = _Point("grad", args, argnums)
        result = point.call(func, options)
        value, rest = _pair(result, has_aux)
        if not isinstance(value, TensorBase) or value.node.shape != ():
            raise ShapeError(
                "grad",
                "the function did not return one number",
                expect="a 0-d Tensor",
                actual=f"shape {tuple(value.shape)}"
                if isinstance(value, TensorBase)
                else type(value).__name__,
                hint="reduce it, e.g. .sum() or .mean()",
            )
        require_real("grad", value)
        gradients = point.gradients([value.node], [common.full_like(value.node, 1)])
        outputs = point.as_results([value, *leaves(rest)])
        value, rest = next(outputs), rebuilt(rest, outputs)
        return gradients, (value, rest) if has_aux else value

    return both


def vjp(func: Function, *primals: Any, has_aux: bool = False) -> Any:
    """The value at a point, and the function from cotangents of it to those of the point.

    Args:
        func: takes and returns Tensors, or structures of them.
        primals: the point.
        has_aux: `func` returns a pair; the second of it is returned as a third result.

    Returns:
        The value and a function of cotangents shaped as the value, which returns a tuple.

    Example:
        >>> import tinygrad_cuda as tc
        >>> y, back = tc.func.vjp(lambda x: x * x, tc.tensor([1.0, 2.0], device="cpu"))
        >>> back(tc.ones_like(y))[0].tolist()
        [2.0, 4.0]
    """
    point = _Point("vjp", primals, tuple(range(len(primals))))
    result, aux = _pair(point.call(func, {}), has_aux)
    outputs = [value.node for value in leaves(result)]

    def back(cotangents: Any) -> Any:
        seeds = [seed.node for seed in leaves(cotangents)]
        _check_same("vjp", "cotangents", seeds, "outputs", outputs)
        return point.gradients(outputs, seeds, again=True)

    value = rebuilt(result, point.as_results(leaves(result)))
    return (value, back, rebuilt(aux, point.as_results(leaves(aux)))) if has_aux else (value, back)


def jvp(
    func: Function, primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False
) -> tuple[Any, ...]:
    """The value at a point, and its derivative along a direction: ``J t``.

    Args:
        func: takes and returns Tensors, or structures of them.
        primals: a tuple: the point.
        tangents: a tuple of the same structure: the direction.
        strict: accepted for PyTorch's sake: an output that depends on no primal has zeros.
        has_aux: `func` returns a pair, of which the second is given back as it is, as a third.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x, t = (tc.tensor(v, device="cpu") for v in ([1.0, 2.0], [1.0, 0.5]))
        >>> tc.func.jvp(lambda x: x * x, (x,), (t,))[1].tolist()
        [2.0, 2.0]
    """
    seeds = [tangent.node for tangent in leaves(tangents)]
    _check_same("jvp", "tangents", seeds, "primals", [value.node for value in leaves(primals)])
    value, back, *aux = vjp(func, *primals, has_aux=has_aux)
    # u^T J is linear in u: its derivative by u, along the direction, is J t.
    zeros = [wrap(common.full_like(out.node, 0)) for out in leaves(value)]
    _, forth = vjp(back, rebuilt(value, iter(zeros)))
    (product,) = forth(rebuilt(tuple(primals), iter(map(wrap, seeds))))
    return value, product, *aux


def jacrev(func: Function, argnums: Argnums = 0) -> Function:
    """The function that gives the Jacobian: for each output and argument a Tensor of both shapes.

    All rows are computed together, as a batch of `vjp`.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.func.jacrev(lambda x: x * x)(tc.tensor([1.0, 2.0], device="cpu")).tolist()
        [[2.0, 0.0], [0.0, 4.0]]
    """

    @functools.wraps(func)
    def jacobian(*args: Any, **options: Any) -> Any:
        chosen = argnums if isinstance(argnums, tuple) else (argnums,)

        def of_chosen(*values: Any) -> Any:
            given = list(args)
            for position, value in zip(chosen, values):
                given[position] = value
            return func(*given, **options)

        picked = tuple(args[position] for position in chosen)
        value, back = vjp(of_chosen, *picked)
        outputs = leaves(value)
        blocks = []
        for position, out in enumerate(outputs):

            def rows(row: Any, position: int = position) -> Any:
                seeds = [wrap(common.full_like(other.node, 0)) for other in outputs]
                seeds[position] = row
                return back(rebuilt(value, iter(seeds)))

            rows_of = vmap(rows)(_basis(out))
            parts = [
                part.reshape(*out.shape, *given.shape)
                for part, given in zip(leaves(rows_of), leaves(picked))
            ]
            block = rebuilt(picked, iter(parts))
            blocks.append(block if isinstance(argnums, tuple) else block[0])
        return blocks[0] if isinstance(value, TensorBase) else rebuilt(value, iter(blocks))

    return jacobian


def jacfwd(func: Function, argnums: int = 0) -> Function:
    """As `jacrev` for one argument that is a Tensor; all columns are a batch of `jvp`."""

    @functools.wraps(func)
    def jacobian(*args: Any, **options: Any) -> Any:
        point = args[argnums]

        def of_one(value: Any) -> Any:
            given = list(args)
            given[argnums] = value
            return func(*given, **options)

        def column(direction: Any) -> Any:
            return jvp(of_one, (point,), (direction,))[1]

        blocks = vmap(column, out_dims=-1)(_basis(point))
        parts = [part.reshape(*part.shape[:-1], *point.shape) for part in leaves(blocks)]
        return rebuilt(blocks, iter(parts))

    return jacobian


def hessian(func: Function, argnums: int = 0) -> Function:
    """The function that gives the second derivatives of a scalar function by one argument.

    Example:
        >>> import tinygrad_cuda as tc
        >>> f = lambda x: (x**3).sum()
        >>> tc.func.hessian(f)(tc.tensor([1.0, 2.0], device="cpu")).tolist()
        [[6.0, 0.0], [0.0, 12.0]]
    """
    return jacrev(jacrev(func, argnums), argnums)


def _basis(like: Any) -> Tensor:
    """Every direction of a Tensor's space, one after another."""
    count = like.numel()
    require_real("jacobian", like)
    whole = eye(count, dtype=like.dtype, device=like.device)
    return whole.reshape(count, *like.shape)


def _pair(result: Any, has_aux: bool) -> tuple[Any, Any]:
    if not has_aux:
        return result, ()
    if not isinstance(result, tuple) or len(result) != 2:
        raise ArgumentError(
            "grad", "has_aux wants a pair", expect="(value, anything)", actual=type(result).__name__
        )
    return result


def _check_same(
    op: str, what: str, given: Sequence[Node], other: str, like: Sequence[Node]
) -> None:
    shapes, expected = ([node.shape for node in nodes] for nodes in (given, like))
    if shapes != expected:
        raise ShapeError(
            op, f"{what} have other shapes than the {other}", expect=str(expected),
            actual=str(shapes),
        )  # fmt: skip


class _Point:
    """Arguments, those to differentiate by replaced with nodes of their own."""

    def __init__(self, op: str, args: tuple[Any, ...], argnums: Argnums) -> None:
        self.several = isinstance(argnums, tuple)
        chosen = [argnums] if isinstance(argnums, int) else list(argnums)
        for position in chosen:
            if not -len(args) <= position < len(args):
                raise ArgumentError(
                    op,
                    f"there is no argument {position}",
                    expect=f"argnums below {len(args)}",
                    actual=str(argnums),
                )
        self.args = list(args)
        self.inputs: dict[Node, Node] = {}
        self.like = tuple(args[position] for position in chosen)
        for position in chosen:
            marks = [self._mark(op, value) for value in leaves(args[position])]
            self.args[position] = rebuilt(args[position], iter(marks))
        # Whether anybody differentiates what is computed here.
        self.recording = mode.now.gradients

    def _mark(self, op: str, value: Any) -> Tensor:
        if not isinstance(value, TensorBase) or value.dtype.category < 2:
            what = value.dtype.name if isinstance(value, TensorBase) else type(value).__name__
            raise GradientError(
                op,
                "an argument has no gradient",
                expect="floating Tensors, or structures of them",
                actual=what,
                hint="argnums chooses the arguments to differentiate by",
            )
        node = marked(value.node)
        self.inputs[node] = value.node
        return wrap(node)

    def call(self, func: Function, options: dict[str, Any]) -> Any:
        """The function at the point, with history also under `no_grad`."""
        with gradient_mode(True):
            return func(*self.args, **options)

    def gradients(self, outputs: Sequence[Node], seeds: Sequence[Node], again: bool = False) -> Any:
        """The cotangents of the point, in the structure of the chosen arguments.

        Args:
            outputs, seeds: what is differentiated, and its cotangents.
            again: leave the history for another pass.
        """
        pairs = [(out, seed) for out, seed in zip(outputs, seeds) if out.requires_grad]
        further = self.recording and not (
            begins_only_at(set(self.inputs), [out for out, _ in pairs])
            and not any(seed.requires_grad for _, seed in pairs)
        )
        gradients = gradient.backward(
            [out for out, _ in pairs],
            [seed for _, seed in pairs],
            list(self.inputs),
            create_graph=further,
            retain_graph=further or again,
        )
        zero = [gradients.get(node) or common.full_like(node, 0) for node in self.inputs]
        parts = self._with_inputs(zero) if further else [detached(node) for node in zero]
        grads = rebuilt(self.like, iter(map(wrap, parts)))
        return grads if self.several else grads[0]

    def as_results(self, values: Sequence[Any]) -> Any:
        """Results of the function, with the history they have without the marks."""
        nodes = [value.node for value in values if isinstance(value, TensorBase)]
        if self.recording and not begins_only_at(set(self.inputs), nodes):
            nodes = self._with_inputs(nodes)
        else:
            nodes = [detached(node) for node in nodes]
        remaining = iter(nodes)
        return iter(
            [wrap(next(remaining)) if isinstance(value, TensorBase) else value for value in values]
        )

    def _with_inputs(self, nodes: Sequence[Node]) -> list[Node]:
        return Rewriting(self.inputs, None)(nodes)
