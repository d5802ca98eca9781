"""tc.custom_op: a differentiable op of the user's, of an expression or of a whole kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tinygrad_cuda.autograd.function import Function
from tinygrad_cuda.autograd.gradcheck import gradcheck
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import ArgumentError, GradientError, ShapeError
from tinygrad_cuda.graph.node import mode
from tinygrad_cuda.kernels.elementwise import Decorator, Domain, as_op, described, input_names
from tinygrad_cuda.kernels.first_use import compare
from tinygrad_cuda.kernels.raw import RawKernel, refuse_where_calls_are_lost
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.creation import empty, tensor

# (g, output, *inputs) -> the gradient of each input; of several outputs g and output are tuples.
OpGradient = Callable[..., Any]
Spec = tuple[tuple[int, ...], DType]


def custom_op(
    cuda: str | RawKernel,
    *,
    numpy: Callable[..., Any],
    gradient: OpGradient | None = None,
    outputs: Callable[..., Any] | None = None,
    launch: Callable[..., Any] | None = None,
    samples: Sequence[Any] | None = None,
    domain: Domain | Mapping[str, Domain] = (-2.0, 2.0),
    check: bool = True,
) -> Decorator:
    """Makes a differentiable op of CUDA text, a NumPy reference and a gradient.

    The parameters of the function below it are the inputs. With an expression, the op is one of
    `kernel`: recorded, fused, compiled, mapped. With a `RawKernel` it is computed at its call, in
    order with recorded work; compiled functions and `vmap` refuse it with the line. On cpu the
    reference is computed. Gradients of gradients follow where `gradient` is made of Tensors.

    Args:
        cuda: ``"y = x * expf(-x)"``, or a `RawKernel`.
        numpy: ``(*arrays) -> array``, or a tuple of several.
        gradient: ``(g, output, *inputs)`` gives one gradient for each input, or None, as Tensors.
            With several outputs, `g` and `output` are tuples.
        outputs: of a whole kernel, ``(*inputs) -> shape``, or a pair of shape and dtype, or a list
            of pairs; the dtype is that of the first input otherwise.
        launch: of a whole kernel, ``(*inputs, *outputs) -> (grid, block, args)`` or
            ``(grid, block, args, shared_mem)``.
        samples: of a whole kernel, float64 arrays at which the shapes and the gradient are
            checked when the op is defined.
        domain: of an expression, as in `kernel`.
        check: compare the kernel's values with the reference's at the first use on ``emu`` and on
            ``cuda``: of a whole kernel those of the first call, of an expression as in `kernel`.
            Values that differ are a `TgcError`.

    Raises:
        ArgumentError: a part is missing, or does not belong to this kind.
        GradientError: the gradient differs from finite differences.
        ShapeError: `outputs` says other shapes or dtypes than the reference gives.

    Example:
        >>> import tinygrad_cuda as tc
        >>> square = tc.RawKernel('''
        ... extern "C" __global__ void square(const float* x, float* y, int n) {
        ...   int i = blockIdx.x * blockDim.x + threadIdx.x;
        ...   if (i < n) y[i] = x[i] * x[i];
        ... }''', "square")
        >>> @tc.custom_op(
        ...     square,
        ...     numpy=lambda x: x * x,
        ...     gradient=lambda g, y, x: 2 * g * x,
        ...     outputs=lambda x: x.shape,
        ...     launch=lambda x, y: (-(-x.numel() // 256), 256, (x, y, x.numel())),
        ...     samples=[np.array([0.5, -1.5])],
        ... )
        ... def squared(x):
        ...     "x * x"
        >>> x = tc.tensor([1.0, 3.0], device="emu", requires_grad=True)
        >>> squared(x).sum().backward()
        >>> x.grad.tolist()
        [2.0, 6.0]
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        names = input_names("custom_op", function)
        if isinstance(cuda, str):
            name = function.__name__
            _refuse(name, "an expression", outputs=outputs, launch=launch, samples=samples)
            rules = None if gradient is None else _each(gradient, names)
            return as_op(function, cuda, numpy, rules, domain, check)
        op = _RawOp(function.__name__, names, cuda, numpy, gradient, outputs, launch)
        op.checked = set() if check else {"emu", "cuda"}
        op.check(samples)

        def apply(*inputs: Any) -> Any:
            return op(*inputs)

        return described(function, apply)

    return decorate


def _refuse(name: str, what: str, **given: Any) -> None:
    unused = [key for key, value in given.items() if value is not None]
    if unused:
        raise ArgumentError(
            name, f"{unused[0]}= does not belong to {what}",
            expect="tc.custom_op(text, numpy=..., gradient=..., domain=...)",
            actual=f"{unused[0]}=",
        )  # fmt: skip


def _each(gradient: OpGradient, names: Sequence[str]) -> list[Callable[..., Any]]:
    """The gradients of single inputs; nobody computes what is not asked for."""

    def single(number: int) -> Callable[..., Any]:
        def rule(g: Any, output: Any, *inputs: Any) -> Any:
            return _as_tuple(gradient(g, output, *inputs))[number]

        return rule

    return [single(number) for number in range(len(names))]


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


class _RawOp:
    """An op of a whole kernel."""

    def __init__(
        self,
        name: str,
        names: tuple[str, ...],
        kernel: Any,
        numpy: Callable[..., Any],
        gradient: OpGradient | None,
        outputs: Callable[..., Any] | None,
        launch: Callable[..., Any] | None,
    ) -> None:
        if not isinstance(kernel, RawKernel) or outputs is None or launch is None:
            raise ArgumentError(
                name, "a whole kernel needs its outputs and how it is launched",
                expect="tc.custom_op(RawKernel(...), numpy=..., outputs=..., launch=...)",
                actual=f"{type(kernel).__name__}, outputs={outputs}, launch={launch}",
            )  # fmt: skip
        self.name, self.names, self.kernel, self.numpy = name, names, kernel, numpy
        self.outputs, self.launch, self.gradient = outputs, launch, gradient
        self.checked: set[str] = set()  # kinds of devices where it gave the reference's values
        members = {"forward": staticmethod(self._forward), "backward": staticmethod(self._backward)}
        self.function: Any = type(name, (Function,), members)

    def __call__(self, *inputs: Any) -> Any:
        if len(inputs) != len(self.names) or not isinstance(inputs[0], TensorBase):
            raise ArgumentError(
                self.name, "the inputs do not fit", expect=f"Tensors {', '.join(self.names)}",
                actual=", ".join(type(value).__name__ for value in inputs) or "none",
            )  # fmt: skip
        refuse_where_calls_are_lost(self.name)
        return self.function.apply(*inputs)

    def _forward(self, ctx: Any, *inputs: Any) -> Any:
        dense: list[Any] = [x.contiguous() if _is_tensor(x) else x for x in inputs]
        specs = self._specs(dense)
        if dense[0].device.kind == "cpu":
            results = [tensor(array, device="cpu") for array in self._reference(dense, specs)]
        else:
            device = dense[0].device
            compared = settings.validate or device.kind not in self.checked
            expected = self._reference(dense, specs) if compared else ()
            results = [empty(*shape, dtype=dtype, device=device) for shape, dtype in specs]
            self.kernel(*self.launch(*dense, *results))
            for array, result in zip(expected, results):
                compare(self.name, result.detach().cpu().numpy(), array)
            self.checked.add(device.kind)
        ctx.inputs = [None if isinstance(x, TensorBase) else x for x in inputs]
        ctx.save_for_backward(*(x for x in inputs if isinstance(x, TensorBase)), *results)
        return results[0] if len(results) == 1 else tuple(results)

    def _backward(self, ctx: Any, *gs: Any) -> Any:
        if self.gradient is None:
            raise GradientError(
                self.name, "the gradient does not exist", expect="custom_op(..., gradient=...)",
                actual="a definition without one", site=mode.now.site,
            )  # fmt: skip
        saved = list(ctx.saved_tensors)
        inputs = [saved.pop(0) if x is None else x for x in ctx.inputs]
        g, output = (gs[0], saved[0]) if len(saved) == 1 else (gs, tuple(saved))
        return _as_tuple(self.gradient(g, output, *inputs))

    def _specs(self, inputs: Sequence[Any]) -> list[Spec]:
        """Shape and dtype of each output."""
        given = self.outputs(*inputs)
        several = given if isinstance(given, list) else [given]
        specs: list[Spec] = []
        for one in several:
            pair = isinstance(one, tuple) and len(one) == 2 and isinstance(one[1], DType)
            shape, dtype = one if pair else (one, inputs[0].dtype)
            specs.append((tuple(shape), dtype))
        return specs

    def _reference(self, inputs: Sequence[Any], specs: list[Spec]) -> list[Any]:
        """What NumPy gives, of the shapes and dtypes that the rule says.

        Raises:
            ShapeError: it gives others.
        """
        arrays = [x.detach().cpu().numpy() if _is_tensor(x) else x for x in inputs]
        results = [np.asarray(result) for result in _as_tuple(self.numpy(*arrays))]
        shown = [(result.shape, result.dtype) for result in results]
        wanted = [(shape, dtype.numpy) for shape, dtype in specs]
        if shown != wanted:
            raise ShapeError(
                self.name, "the reference gives other outputs than the rule says",
                expect=", ".join(f"{shape} {dtype.name}" for shape, dtype in specs),
                actual=", ".join(f"{shape} {dtype}" for shape, dtype in shown),
                hint="outputs=lambda x: (shape, dtype), numpy=lambda x: ....astype(x.dtype)",
            )  # fmt: skip
        return results

    def check(self, samples: Sequence[Any] | None) -> None:
        """The rule, the reference and the gradient at some inputs, on cpu."""
        if samples is None:
            if self.gradient is None:
                return
            raise ArgumentError(
                self.name, "a gradient is checked when it is defined",
                expect=f"samples=[...], an array for each of {', '.join(self.names)}",
                actual="none",
            )  # fmt: skip
        inputs = [_sample(value, self.gradient is not None) for value in samples]
        was, mode.now.gradients = mode.now.gradients, True
        try:
            result = self(*inputs)
            if any(value.requires_grad for value in _as_tuple(result)):
                gradcheck(self, inputs)
        finally:
            mode.now.gradients = was


def _is_tensor(value: Any) -> bool:
    return isinstance(value, TensorBase)


def _sample(value: Any, smooth: bool) -> Any:
    if not isinstance(value, np.ndarray | list | TensorBase):
        return value
    result = tensor(np.asarray(value), device="cpu")
    return result.requires_grad_() if smooth and result.dtype.category > 1 else result


__all__ = ["custom_op"]
