"""tc.kernel: an element by element op from a CUDA expression; it fuses like any other."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import ArgumentError, GradientError, RawSite
from tinygrad_cuda.graph.node import Node, Op, Outputs, SameSpecOp, mode
from tinygrad_cuda.graph.ops import common, elementwise
from tinygrad_cuda.kernels.expressions import (
    ExpressionText,
    Untranslatable,
    as_cuda,
    as_function,
    on_arrays,
    on_tensors,
    parsed,
)
from tinygrad_cuda.kernels.first_use import KINDS, FirstUse
from tinygrad_cuda.tensors.backward import grad
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.creation import tensor
from tinygrad_cuda.tensors.layout import strides_like
from tinygrad_cuda.tensors.promotion import promote, to_dtype, to_shape

SAMPLES = 16  # points at which a gradient is checked
STEP = 1e-5  # between the two points of a difference: its error is about STEP ** 2
TOLERANCE = 1e-5  # of the check: absolute, and relative to the difference

Domain = tuple[float, float]
Rule = Callable[..., Any]  # (g, output, *inputs) -> the gradient, Tensors all
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
# A text or a function for an input; of several inputs by their names, or in their order.
Gradient = str | Rule | Mapping[str, str | Rule | None] | Sequence[str | Rule | None] | None


def kernel(
    text: str,
    *,
    gradient: Gradient = None,
    numpy: Callable[..., Any] | None = None,
    domain: Domain | Mapping[str, Domain] = (-2.0, 2.0),
    check: bool = True,
) -> Decorator:
    """Makes an element by element op from a CUDA expression.

    The parameters of the function below it are the inputs.

    Inputs are broadcast and promoted as those of ``+``; integers become floats where the text has
    a floating number or function. The text is written for float32 and serves every floating
    dtype: ``expf`` and ``0.5`` are those of the inputs' dtype, float32 for half types. On cpu
    NumPy computes the same text. On emu and cuda it becomes part of the kernel of its
    neighbours; it works under `compile` and `vmap` as other ops do.

    Args:
        text: ``"y = x * expf(-x)"``: assignments between semicolons, the last one the output's.
        gradient: for each input a text of the inputs, the output and ``g``, the gradient of the
            output: one text where there is one input, else a dict by name or a list. A function
            ``(g, output, *inputs)`` of Tensors serves instead of a text, None has no gradient.
            Each is compared with finite differences when the op is defined.
        numpy: ``(*arrays) -> array``, for a text that cannot be translated: loops, calls of other
            functions. Such a text is used as it stands, in float32 or float64.
        domain: bounds of the points of that comparison, for all inputs or by name.
        check: compare the text's values with the reference's at such points, once for each dtype
            at the first use on ``emu`` and on ``cuda``; values that differ are a `TgcError`.

    Raises:
        ArgumentError: the text is not understood, and there is no `numpy`.
        GradientError: a gradient differs from finite differences.

    Example:
        >>> import tinygrad_cuda as tc
        >>> @tc.kernel("y = x * expf(-x)", gradient="g * (1 - x) * expf(-x)")
        ... def damped(x):
        ...     "x * exp(-x)"
        >>> x = tc.tensor([0.0, 1.0, 2.0], device="cpu", requires_grad=True)
        >>> damped(x).sum().backward()
        >>> [round(slope, 3) for slope in x.grad.tolist()]
        [1.0, 0.0, -0.135]
    """
    if not isinstance(text, str):
        raise ArgumentError(
            "kernel", "the expression is no text", expect='@tc.kernel("y = ...")',
            actual=f"{type(text).__name__}",
        )  # fmt: skip

    return lambda function: as_op(function, text, numpy, gradient, domain, check)


def as_op(
    function: Callable[..., Any],
    text: str,
    numpy: Callable[..., Any] | None,
    gradient: Gradient,
    domain: Domain | Mapping[str, Domain],
    check: bool,
) -> Callable[..., Any]:
    """The op of a text with the name, the inputs and the description of a function."""
    names = input_names("kernel", function)
    row = elementwise_row(function.__name__, names, text, numpy, gradient)
    if not isinstance(row.op.gradient, str):
        check_gradient(row, domain)
    if check:
        points = [_points(row, number, domain) for number in range(len(names))]
        row = row._replace(unchecked=FirstUse(points))
    return described(function, _by_position(row))


class KernelRow(NamedTuple):
    """An op of the user's.

    Attributes:
        op: the row.
        names: of its inputs.
        floating: integers become floats.
        unchecked: where the text is compared with the reference before its first use.
    """

    op: Op
    names: tuple[str, ...]
    floating: bool
    unchecked: FirstUse | None = None

    def __call__(self, *values: Any) -> Any:
        """The op of Tensors and numbers, broadcast and promoted."""
        nodes = promote(self.op.name, *values, floating=self.floating)
        common.require_dtype(self.op.name, nodes[0], "real")
        if self.unchecked is not None and nodes[0].device.kind in KINDS:
            self.unchecked(self.op, nodes)
        return strides_like(wrap(self.op(*nodes)), *values)


def input_names(op: str, function: Callable[..., Any]) -> tuple[str, ...]:
    """The parameters of the function that describes an op.

    Raises:
        ArgumentError: it is no function, or has parameters that are no plain inputs.
    """
    if not callable(function) or not hasattr(function, "__name__"):
        raise ArgumentError(
            op, "there is no function below the decorator", expect="def name(x, ...):",
            actual=type(function).__name__,
        )  # fmt: skip
    parameters = inspect.signature(function).parameters.values()
    wrong = [str(p) for p in parameters if p.kind not in _PLAIN or p.default is not p.empty]
    if wrong or not parameters:
        raise ArgumentError(
            op, f"the parameters of {function.__name__} are no plain inputs",
            expect="one name for each input, without defaults, * or **",
            actual=", ".join(wrong) or "no parameter",
        )  # fmt: skip
    return tuple(p.name for p in parameters)


_PLAIN = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def described(function: Callable[..., Any], op: Callable[..., Any]) -> Callable[..., Any]:
    """An op with the name and the description of the function above which it stands."""
    for attribute in functools.WRAPPER_ASSIGNMENTS:
        setattr(op, attribute, getattr(function, attribute))
    return op


def _by_position(row: KernelRow) -> Callable[..., Any]:
    names, count = row.names, len(row.names)

    def apply(*inputs: Any, **by_name: Any) -> Any:
        if by_name:
            rest = [name for name in names[len(inputs) :] if name in by_name]
            inputs = (*inputs, *map(by_name.pop, rest))
        if len(inputs) != count or by_name:
            raise ArgumentError(
                row.op.name, "the inputs do not fit", expect=f"{', '.join(names)}",
                actual=f"{len(inputs)} inputs" + "".join(f", {name}=" for name in by_name),
            )  # fmt: skip
        return row(*inputs)

    return apply


# The row ------------------------------------------------------------------------------------------


def elementwise_row(
    name: str,
    names: tuple[str, ...],
    text: str,
    numpy: Callable[..., Any] | None,
    gradient: Gradient,
) -> KernelRow:
    """The op of a text.

    Raises:
        ArgumentError: the text or a gradient is not understood.
    """
    meaning = _meaning(name, names, text, numpy)
    if meaning.output in names:
        raise ArgumentError(
            name, "the text assigns to an input", expect="an output with a name of its own",
            actual=text,
        )  # fmt: skip
    if meaning.integral and meaning.floating:
        raise ArgumentError(
            name, "an operator of integers meets floats", expect="% & | ^ ~ << >> of integers",
            actual=text, hint="cast first: ((int)x % 2), or use fmodf",
        )  # fmt: skip
    op = SameSpecOp(
        name,
        "elementwise",
        _inference(meaning.integral),
        numpy=_of_any_shape(meaning.numpy),
        cuda=meaning.cuda,
        gradient=gradient_rules(name, names, meaning.output, gradient),
        cost=max(meaning.cost, 1),
    )
    return KernelRow(op, names, meaning.floating)


class _Meaning(NamedTuple):
    """What a text says: of arrays, in kernels, its output, the dtypes that it takes, its cost."""

    numpy: Callable[..., Any]
    cuda: Callable[[DType], str]
    output: str
    floating: bool
    integral: bool
    cost: int


def _meaning(
    name: str, names: tuple[str, ...], text: str, numpy: Callable[..., Any] | None
) -> _Meaning:
    try:
        program = parsed(text, names)
    except Untranslatable as reason:
        if numpy is None:
            raise ArgumentError(
                name, "the text cannot be translated to NumPy",
                expect="assignments of arithmetic, comparisons, ?: and functions of <math.h>",
                actual=f"{reason}, in {text!r}",
                hint="give numpy=lambda ...: ..., then the text is used as it stands",
            ) from None  # fmt: skip
        cuda, output = _as_it_stands(name, text, names)
        return _Meaning(numpy, cuda, output, True, False, 16)
    numpy = numpy or on_arrays(program, names)
    facts = program.output, program.floating, program.integral, program.cost
    return _Meaning(numpy, _cuda_text(program, names), *facts)


def _inference(integral: bool) -> Callable[..., Outputs]:
    def infer(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
        if integral:
            common.require_dtype(op.name, sources[0], "integral")
        return elementwise._infer(op, sources, attributes)

    return infer


def _of_any_shape(numpy: Callable[..., Any]) -> Callable[..., Any]:
    """The reference, whose result has the dtype and shape of the operands."""

    def reference(*arrays: Any) -> Any:
        result = np.asarray(numpy(*arrays)).astype(arrays[0].dtype, copy=False)
        shape = arrays[0].shape
        return result if result.shape == shape else np.array(np.broadcast_to(result, shape))

    return reference


def _cuda_text(program: ExpressionText, names: Sequence[str]) -> Callable[[DType], str]:
    return lambda dtype: as_cuda(program, names, dtype.compute)


_OUTPUT = re.compile(r"(?:^|;|\}|\n)\s*(\w+)\s*=(?!=)[^=;]*;?\s*$")


def _as_it_stands(name: str, text: str, names: Sequence[str]) -> tuple[Callable[[DType], str], str]:
    """A text that is not understood, inside a function of its own."""
    match = _OUTPUT.search(text)
    if match is None:
        raise ArgumentError(
            name, "the text does not end with the output", expect="... y = value", actual=text
        )
    output = match[1]
    # A blank before each parenthesis: the generator renames functions that it sees called.
    body = re.sub(r"(\w)\(", r"\1 (", text.rstrip().rstrip(";"))
    body = body.replace("{", "{{").replace("}", "}}").replace("\n", " ")

    def cuda(dtype: DType) -> str:
        whole = f"typedef {dtype.compute} T; T {output}; {body}; return {output};"
        return as_function(whole, names, dtype.compute)

    return cuda, output


# Gradients ----------------------------------------------------------------------------------------


def gradient_rules(
    name: str, names: tuple[str, ...], output: str, gradient: Gradient
) -> tuple[Callable[..., Node] | None, ...] | str:
    """A rule of nodes for each input, or why there is none.

    Raises:
        ArgumentError: a text is not understood, or there are not as many as inputs.
    """
    if gradient is None:
        return "its definition gives none: tc.kernel(..., gradient=...)"
    if isinstance(gradient, str) or callable(gradient):
        gradient = (gradient,)
    if isinstance(gradient, Mapping):
        unknown = [key for key in gradient if key not in names]
        parts = [gradient.get(key) for key in names]
    else:
        unknown, parts = [], list(gradient)
    if unknown or len(parts) != len(names):
        raise ArgumentError(
            name, "the gradients do not fit the inputs",
            expect=f"one for each of {', '.join(names)}",
            actual=f"{', '.join(unknown)} is no input" if unknown else f"{len(parts)} gradients",
            hint=f"gradient={{{', '.join(f'{key!r}: ...' for key in names)}}}",
        )  # fmt: skip
    return tuple(_rule(name, names, output, part) for part in parts)


def _rule(
    name: str, names: tuple[str, ...], output: str, part: str | Rule | None
) -> Callable[..., Node] | None:
    if part is None:
        return None
    if isinstance(part, str):
        part = _of_text(name, names, output, part)
    rule = part

    def on_nodes(g: Node, out: Node, *sources: Node) -> Node:
        value = rule(wrap(g), wrap(out), *map(wrap, sources))
        if isinstance(value, int | float):
            return common.full_like(g, value)
        if not isinstance(value, TensorBase):
            raise GradientError(
                name, "a gradient is no Tensor", expect="a Tensor, or a number",
                actual=type(value).__name__, site=mode.now.site,
            )  # fmt: skip
        return to_shape(to_dtype(value.node, g.dtype), g.shape)

    return on_nodes


def _of_text(name: str, names: tuple[str, ...], output: str, text: str) -> Rule:
    if "g" in (*names, output):
        raise ArgumentError(
            name, "g is the name of the output's gradient", expect="inputs and outputs with others",
            actual=f"{', '.join(names)} -> {output}", hint="give the gradient as a function",
        )  # fmt: skip
    inner = text if re.search(r"(?<![=!<>])=(?!=)", text) else f"slope = {text}"
    try:
        program = parsed(inner, ("g", output, *names))
    except Untranslatable as reason:
        raise ArgumentError(
            name, "the text of the gradient is not understood",
            expect=f"an expression of g, {output} and {', '.join(names)}",
            actual=f"{reason}, in {text!r}",
            hint="give it as a function of Tensors: gradient=lambda g, y, x: ...",
        ) from None  # fmt: skip

    def slope(*values: Any) -> Any:
        return on_tensors(program, dict(zip(("g", output, *names), values)))

    return slope


def check_gradient(
    row: KernelRow, domain: Domain | Mapping[str, Domain], site: RawSite | None = None
) -> None:
    """Compares each gradient with finite differences of the reference, in float64.

    Raises:
        GradientError: they differ, or the reference is not finite there.
    """
    inputs = [_points(row, number, domain) for number in range(len(row.names))]
    op, rules = row.op, row.op.gradient
    assert op.numpy is not None and isinstance(rules, tuple)
    wanted = [number for number, rule in enumerate(rules) if rule is not None]
    if op.infer(op, (_leaf(inputs[0]),) * len(inputs), {})[0][1].category != 2 or not wanted:
        return
    seed = np.random.default_rng(1).uniform(0.5, 1.5, SAMPLES)
    tensors = [tensor(x, device="cpu", requires_grad=True) for x in inputs]
    was, mode.now.gradients = mode.now.gradients, True
    try:
        weight = tensor(seed, device="cpu")
        slopes = grad(row(*tensors), [tensors[k] for k in wanted], weight, allow_unused=True)
    finally:
        mode.now.gradients = was
    for number, slope in zip(wanted, slopes):
        ends = []
        for step in (STEP, -STEP):
            moved = [x + step if k == number else x for k, x in enumerate(inputs)]
            with np.errstate(all="ignore"):
                ends.append(op.numpy(*moved))
        numeric = seed * (ends[0] - ends[1]) / (2 * STEP)
        analytic = np.zeros(SAMPLES) if slope is None else slope.detach().array()
        _compare(row, number, inputs, analytic, numeric, site)


def _leaf(x: Any) -> Node:
    return tensor(x, device="cpu").node


def _points(row: KernelRow, number: int, domain: Domain | Mapping[str, Domain]) -> Any:
    bounds = domain.get(row.names[number], (-2.0, 2.0)) if isinstance(domain, Mapping) else domain
    if len(bounds) != 2 or not bounds[0] < bounds[1]:
        raise ArgumentError(
            row.op.name, "the domain is none", expect="(low, high) with low < high",
            actual=repr(bounds),
        )  # fmt: skip
    low, high = bounds
    inside = 2 * STEP
    return np.random.default_rng(10 + number).uniform(low + inside, high - inside, SAMPLES)


def _compare(
    row: KernelRow, number: int, inputs: list[Any], analytic: Any, numeric: Any, site: Any
) -> None:
    excess = np.abs(analytic - numeric) - TOLERANCE * (1 + np.abs(numeric))
    excess = np.where(np.isnan(excess), np.inf, excess)
    worst = int(excess.argmax())
    if excess[worst] <= 0:
        return
    point = ", ".join(f"{name} = {x[worst]:.6g}" for name, x in zip(row.names, inputs))
    finite = np.isfinite(numeric[worst])
    raise GradientError(
        row.op.name,
        f"the gradient of input {row.names[number]!r} is wrong",
        expect=f"{numeric[worst]:.9g} by central differences" if finite else "finite values",
        actual=f"{analytic[worst]:.9g} by the gradient"
        + ("" if finite else f" and {numeric[worst]} by differences") + f", at {point}",
        site=site,
        hint="give domain=(low, high) where the text is defined" if not finite
        else "g is the gradient of the output: most often a factor of the whole",
    )  # fmt: skip


__all__ = ["check_gradient", "elementwise_row", "kernel"]
