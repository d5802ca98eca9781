"""Products with Jacobians and Hessians of functions, and those matrices whole.

All are gradients of gradients; the rows of a matrix are recorded together and run as one plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError, DTypeError, GradientError, ShapeError
from tinygrad_cuda.graph import gradient
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.tensors.arguments import require_real
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.creation import arange, ones_like, zeros, zeros_like
from tinygrad_cuda.tensors.math import eq
from tinygrad_cuda.tensors.shaping import stack
from tinygrad_cuda.tensors.tensor import Tensor

Tensors = tuple[Tensor, ...]
Function = Callable[..., Any]


def vjp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """The outputs, and a vector times the Jacobian: ``v^T J``.

    Args:
        func: takes Tensors, returns one or a tuple of them.
        inputs: a Tensor or a tuple of them: the point.
        v: of the outputs' shapes; may be left out for one output of one element.
        create_graph: make the results differentiable.
        strict: raise where an output does not depend on the inputs, instead of giving zeros.

    Returns:
        The outputs, and one Tensor per input, in the form of each.

    Raises:
        ShapeError: `v` has other shapes. GradientError: see `strict`.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([1.0, 2.0], device="cpu")
        >>> _, g = tc.autograd.functional.vjp(lambda x: x * x, x, tc.ones_like(x))
        >>> g.tolist()
        [2.0, 4.0]
    """
    call = _FunctionalCall("vjp", func, inputs, create_graph, strict)
    seeds = call.vector(v, call.outputs, "outputs")
    products = call.gradients(call.outputs, call.inputs, seeds, create_graph)
    return call.finish(call.outputs, products, call.several_inputs)


def jvp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """The outputs, and the Jacobian times a vector: ``J v``, by differentiating ``u^T J`` by u.

    Args:
        func: takes Tensors, returns one or a tuple of them.
        inputs: a Tensor or a tuple of them: the point.
        v: of the inputs' shapes; may be left out for one input of one element.
        create_graph: make the results differentiable.
        strict: raise where an output does not depend on the inputs, instead of giving zeros.

    Returns:
        The outputs, and one Tensor per output, in the form of the outputs.

    Raises:
        ShapeError: `v` has other shapes. GradientError: see `strict`.
    """
    call = _FunctionalCall("jvp", func, inputs, create_graph, strict)
    direction = call.vector(v, call.inputs, "inputs")
    products = call.forward(call.outputs, call.inputs, direction, create_graph)
    return call.finish(call.outputs, products, call.several_outputs)


def vhp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """The output of a scalar function, and a vector times its Hessian: ``v^T H``.

    Args:
        func: takes Tensors, returns one Tensor of one element.
        inputs: a Tensor or a tuple of them: the point.
        v: of the inputs' shapes; may be left out for one input of one element.
        create_graph: make the results differentiable.
        strict: raise where a derivative does not depend on the inputs, instead of giving zeros.

    Raises:
        ShapeError: `v` has other shapes, or the output has several elements.
        GradientError: see `strict`.
    """
    call = _FunctionalCall("vhp", func, inputs, create_graph, strict, scalar=True)
    direction = call.vector(v, call.inputs, "inputs")
    slope = call.gradients(call.outputs, call.inputs, None, True)
    products = call.gradients(slope, call.inputs, direction, create_graph)
    return call.finish(call.outputs, products, call.several_inputs)


def hvp(
    func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """The output of a scalar function, and its Hessian times a vector: ``H v``.

    The Hessian is symmetric where the function is smooth; `vhp` gives the same, for less.

    Args:
        func, inputs, v, create_graph, strict: as of `vhp`.

    Raises:
        ShapeError, GradientError: as `vhp`.
    """
    call = _FunctionalCall("hvp", func, inputs, create_graph, strict, scalar=True)
    direction = call.vector(v, call.inputs, "inputs")
    slope = call.gradients(call.outputs, call.inputs, None, True)
    products = call.forward(slope, call.inputs, direction, create_graph)
    return call.finish(call.outputs, products, call.several_inputs)


def jacobian(
    func: Function,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """The Jacobian: for each output and input a Tensor of the output's and the input's shape.

    Args:
        func: takes Tensors, returns one or a tuple of them.
        inputs: a Tensor or a tuple of them: the point.
        create_graph: make the result differentiable.
        strict: raise where an output does not depend on an input, instead of giving zeros.
        vectorize: accepted for PyTorch's sake; all rows are one plan in any case.
        strategy: "reverse-mode"; or, with `vectorize`, "forward-mode": rows come out the same.

    Returns:
        A Tensor; with several inputs a tuple; with several outputs a tuple of those.

    Raises:
        GradientError: see `strict`. ArgumentError: another strategy.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([1.0, 2.0], device="cpu")
        >>> tc.autograd.functional.jacobian(lambda x: x * x, x).tolist()
        [[2.0, 0.0], [0.0, 4.0]]
    """
    if strategy != "reverse-mode" and not (strategy == "forward-mode" and vectorize):
        raise ArgumentError(
            "jacobian", "there is no such strategy",
            expect="'reverse-mode', or with vectorize=True 'forward-mode'",
            actual=f"{strategy!r}, vectorize={vectorize}",
        )  # fmt: skip
    call = _FunctionalCall("jacobian", func, inputs, create_graph, strict)
    rows = [
        tuple(call.as_result(block) for block in _blocks(call, output, create_graph))
        for output in call.outputs
    ]
    parts = [row if call.several_inputs else row[0] for row in rows]
    return tuple(parts) if call.several_outputs else parts[0]


def hessian(
    func: Function,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """The Hessian of a scalar function: for each two inputs a Tensor of both shapes.

    Args:
        func: takes Tensors, returns one Tensor of one element.
        inputs, create_graph, strict, vectorize, outer_jacobian_strategy: as of `jacobian`.

    Raises:
        ShapeError: the output has several elements. GradientError, ArgumentError: as `jacobian`.
    """

    def slope(*point: Tensor) -> Tensors:
        call = _FunctionalCall("hessian", func, point, True, strict, scalar=True)
        return call.gradients(call.outputs, call.inputs, None, True)

    blocks = jacobian(slope, inputs, create_graph, strict, vectorize, outer_jacobian_strategy)
    return blocks if isinstance(inputs, tuple) else blocks[0]


def _blocks(call: _FunctionalCall, output: Tensor, create_graph: bool) -> list[Tensor]:
    """The derivatives of one output by each input."""
    require_real(call.op, output, *call.inputs)
    count = output.numel()
    positions = arange(count, device=output.device)
    rows = []
    for j in range(count):
        seed = eq(positions, j).to(output.dtype).reshape(output.shape)
        rows.append(call.gradients((output,), call.inputs, (seed,), create_graph))
    blocks = []
    for k, point in enumerate(call.inputs):
        shape = (*output.shape, *point.shape)
        if rows:
            blocks.append(stack([row[k] for row in rows]).reshape(shape))
        else:
            blocks.append(zeros(shape, dtype=point.dtype, device=point.device))
    return blocks


class _FunctionalCall:
    """A function evaluated at a point, with history from the point on."""

    def __init__(
        self, op: str, func: Function, inputs: Any, create_graph: bool, strict: bool,
        scalar: bool = False,
    ) -> None:  # fmt: skip
        self.op, self.create_graph, self.strict = op, create_graph, strict
        self.several_inputs = isinstance(inputs, tuple)
        given = self._tensors(inputs, "inputs")
        with gradient_mode(True):
            # A node of its own in either case: the function may use the same Tensor otherwise too.
            self.inputs: Tensors = tuple(
                x * 1 if create_graph and x.requires_grad else x.detach().requires_grad_()
                for x in given
            )
            outputs = func(*self.inputs)
        self.several_outputs = isinstance(outputs, tuple)
        self.outputs = self._tensors(outputs, "outputs of the function")
        if scalar and (self.several_outputs or self.outputs[0].numel() != 1):
            raise ShapeError(
                op, "the function is not scalar", expect="one Tensor of one element",
                actual=", ".join(f"shape {tuple(out.shape)}" for out in self.outputs),
            )  # fmt: skip
        if strict:
            self._check([out if out.requires_grad else None for out in self.outputs], "output")

    def _tensors(self, given: Any, what: str) -> Tensors:
        tensors = given if isinstance(given, tuple) else (given,)
        for k, tensor in enumerate(tensors):
            if not isinstance(tensor, TensorBase):
                raise DTypeError(
                    self.op, f"the {what} must be Tensors", expect="a Tensor or a tuple of them",
                    actual=f"{type(tensor).__name__} at position {k}",
                )  # fmt: skip
        return tensors

    def vector(self, v: Any, like: Tensors, what: str) -> Tensors | None:
        """The given vector, or None for the number one."""
        if v is None:
            if len(like) != 1 or like[0].numel() != 1:
                raise ArgumentError(
                    self.op, f"v is missing: the {what} have several elements",
                    expect=f"v with shapes {[tuple(x.shape) for x in like]}", actual="None",
                )  # fmt: skip
            return None
        vectors = self._tensors(v, "vectors in v")
        if [tuple(x.shape) for x in vectors] != [tuple(x.shape) for x in like]:
            raise ShapeError(
                self.op, f"v has other shapes than the {what}",
                expect=str([tuple(x.shape) for x in like]),
                actual=str([tuple(x.shape) for x in vectors]),
            )  # fmt: skip
        return vectors

    def gradients(
        self, outputs: Sequence[Tensor], inputs: Tensors, seeds: Tensors | None, create: bool
    ) -> Tensors:
        """One gradient per input; zeros where the outputs do not depend on it.

        Unlike `autograd.grad` it cuts no plan: rows of a matrix come from one line.
        """
        given = [ones_like(out) for out in outputs] if seeds is None else seeds
        pairs = [
            (out.node, seed.to(out.dtype).node)
            for out, seed in zip(outputs, given)
            if out.requires_grad
        ]
        gradients = gradient.backward(
            [node for node, _ in pairs],
            [seed for _, seed in pairs],
            [x.node for x in inputs],
            create_graph=create,
            retain_graph=True,
        )
        parts = [wrap(gradients[x.node]) if x.node in gradients else None for x in inputs]
        if self.strict:
            self._check(parts, "derivative")
        return tuple(zeros_like(x) if p is None else p for p, x in zip(parts, inputs))

    def forward(
        self, outputs: Sequence[Tensor], inputs: Tensors, direction: Tensors | None, create: bool
    ) -> Tensors:
        """The derivatives of the outputs along a direction.

        ``u^T J`` is linear in u, so its derivative by u, times the direction, is ``J v``.
        """
        with gradient_mode(True):
            dummies = tuple(zeros_like(out).detach().requires_grad_() for out in outputs)
        row = self.gradients(outputs, inputs, dummies, True)
        return self.gradients(row, dummies, direction, create)

    def _check(self, parts: Sequence[Tensor | None], what: str) -> None:
        for k, part in enumerate(parts):
            if part is None:
                raise GradientError(
                    self.op, f"{what} {k} does not depend on the inputs",
                    expect="a dependence, since strict=True", actual="none",
                    hint="strict=False gives zeros",
                )  # fmt: skip

    def as_result(self, tensor: Tensor) -> Tensor:
        """A result, without history unless it is wanted."""
        return tensor if self.create_graph else tensor.detach()

    def finish(self, outputs: Tensors, results: Tensors, several: bool) -> tuple[Any, Any]:
        values = tuple(map(self.as_result, outputs))
        parts = tuple(map(self.as_result, results))
        return values if self.several_outputs else values[0], parts if several else parts[0]
