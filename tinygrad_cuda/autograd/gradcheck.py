"""gradcheck and gradgradcheck: analytic gradients against central differences in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tinygrad_cuda.core.dtypes import float64
from tinygrad_cuda.core.errors import DTypeError, GradientError
from tinygrad_cuda.tensor.backward import as_list, grad
from tinygrad_cuda.tensor.base import TensorBase
from tinygrad_cuda.tensor.creation import tensor

Array = np.ndarray[Any, Any]


class _Worst(NamedTuple):
    output: int
    input: int
    element: str
    analytic: float
    numeric: float


def _differentiable(inputs: Sequence[Any]) -> list[int]:
    return [k for k, x in enumerate(inputs) if isinstance(x, TensorBase) and x.requires_grad]


def _check_inputs(inputs: Sequence[Any], eps: float | None, atol: float | None) -> list[int]:
    places = _differentiable(inputs)
    if not places:
        raise GradientError("gradcheck", "no input requires grad", hint="call requires_grad_()")
    for k in places:
        if inputs[k].dtype is not float64 and (eps is None or atol is None):
            raise DTypeError(
                "gradcheck",
                f"inputs[{k}] is {inputs[k].dtype.name}",
                expect="float64",
                actual=f"{inputs[k].dtype.name}: rounding in a difference of two nearly equal "
                "values is larger than any error worth finding",
                hint="use .double(), or give eps, atol and rtol (eps=1e-2, atol=1e-2, rtol=1e-2)",
            )
    return places


def _floating_outputs(function: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
    outputs = [y for y in as_list(function(*inputs)) if isinstance(y, TensorBase)]
    outputs = [y for y in outputs if y.dtype.is_floating]
    if not outputs:
        raise GradientError("gradcheck", "the function returned no floating tensor")
    return outputs


def _moved(x: Any, change: Array) -> Any:
    values = x.array().astype(np.float64) + change
    return tensor(values.astype(x.dtype.numpy), device=x.device)


def _values(function: Callable[..., Any], inputs: Sequence[Any]) -> list[Array]:
    return [y.detach().array().astype(np.float64) for y in _floating_outputs(function, inputs)]


def _difference(
    function: Callable[..., Any], inputs: Sequence[Any], k: int, change: Array, eps: float
) -> list[Array]:
    """``(f(x + eps u) - f(x - eps u)) / (2 eps)`` for every output."""
    ends = []
    for sign in (1.0, -1.0):
        moved = list(inputs)
        moved[k] = _moved(inputs[k], sign * eps * change).requires_grad_()
        ends.append(_values(function, moved))
    return [(up - down) / (2 * eps) for up, down in zip(*ends)]


def _analytic(
    outputs: list[Any], inputs: Sequence[Any], places: list[int], j: int, seed: Array
) -> list[Array]:
    """The gradients of ``<seed, outputs[j]>`` with respect to the differentiable inputs."""
    found = grad(
        outputs[j],
        [inputs[k] for k in places],
        tensor(seed.astype(outputs[j].dtype.numpy), device=outputs[j].device),
        retain_graph=True,
        allow_unused=True,
    )
    return [
        np.zeros(inputs[k].shape) if g is None else g.detach().array().astype(np.float64)
        for k, g in zip(places, found)
    ]


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    raise_exception: bool = True,
    fast_mode: bool = False,
) -> bool:
    """Compares the gradient of `func` with central differences.

    ``|analytic - numeric| <= atol + rtol * |numeric|`` for each element of the Jacobian, or, with
    `fast_mode`, for one random projection ``v^T J u`` of it.

    Args:
        func: takes `inputs`, returns one or several Tensors.
        inputs: Tensors; those that require grad are checked and must be float64 unless `eps` and
            `atol` are given.
        eps: half the distance of the two points; 1e-6 by default.
        atol, rtol: tolerances; 1e-5 and 1e-3 by default.
        raise_exception: raise at a mismatch instead of returning False.
        fast_mode: check a random projection, two evaluations an input.

    Raises:
        GradientError: a mismatch, with the worst element, both numbers and the op.
        DTypeError: an input is not float64 and no tolerances were given.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.rand(3, dtype=tc.float64, device="cpu").requires_grad_()
        >>> tc.autograd.gradcheck(lambda x: (x * x).sum(), (x,))
        True
    """
    values = as_list(inputs)
    places = _check_inputs(values, eps, atol)
    step = 1e-6 if eps is None else eps
    tolerance = (1e-5 if atol is None else atol, 1e-3 if rtol is None else rtol)
    outputs = _floating_outputs(func, values)
    check = _projection if fast_mode else _jacobian
    worst = check(func, values, places, outputs, step, tolerance)
    if worst is None:
        return True
    if not raise_exception:
        return False
    sweep = _sweep(func, values, worst) if not fast_mode else None
    raise GradientError(
        "gradcheck",
        f"the gradient of output {worst.output} with respect to input {worst.input} is wrong",
        expect=f"{worst.numeric:.10g} by central differences with eps {step:g}",
        actual=f"{worst.analytic:.10g} at {worst.element}, from {outputs[worst.output].node.op.name}"
        + ("" if sweep is None else f"\n{sweep}"),
        hint="if the differences change with eps, the function is not smooth here or not float64",
    )


def _excess(analytic: Array, numeric: Array, tolerance: tuple[float, float]) -> Array:
    atol, rtol = tolerance
    gap = np.abs(analytic - numeric) - (atol + rtol * np.abs(numeric))
    # NaN on one side only is a mismatch; on both it is not for the check to judge.
    one_sided = np.isnan(analytic) != np.isnan(numeric)
    return np.where(one_sided, np.inf, np.nan_to_num(gap, nan=-np.inf))


def _jacobian(
    func: Callable[..., Any],
    inputs: list[Any],
    places: list[int],
    outputs: list[Any],
    step: float,
    tolerance: tuple[float, float],
) -> _Worst | None:
    numeric: dict[tuple[int, int], Array] = {}
    for k in places:
        size = inputs[k].numel()
        columns: list[list[Array]] = []
        for element in range(size):
            change = np.zeros(size)
            change[element] = 1.0
            moved = _difference(func, inputs, k, change.reshape(inputs[k].shape), step)
            columns.append([part.reshape(-1) for part in moved])
        for j, output in enumerate(outputs):
            parts = [column[j] for column in columns]
            empty = np.zeros((output.numel(), 0))
            numeric[j, k] = np.stack(parts, axis=1) if parts else empty
    worst: tuple[float, _Worst] | None = None
    for j, output in enumerate(outputs):
        if not output.requires_grad:
            rows = [[np.zeros(inputs[k].shape) for k in places] for _ in range(output.numel())]
        else:
            rows = []
            for element in range(output.numel()):
                seed = np.zeros(output.numel())
                seed[element] = 1.0
                rows.append(_analytic(outputs, inputs, places, j, seed.reshape(output.shape)))
        for position, k in enumerate(places):
            if not rows:
                continue
            analytic = np.stack([row[position].reshape(-1) for row in rows])
            excess = _excess(analytic, numeric[j, k], tolerance)
            if excess.size and excess.max() > 0 and (worst is None or excess.max() > worst[0]):
                at = np.unravel_index(int(excess.argmax()), excess.shape)
                element_text = (
                    f"output{list(map(int, np.unravel_index(at[0], output.shape)))}, "
                    f"input{list(map(int, np.unravel_index(at[1], inputs[k].shape)))}"
                )
                found = _Worst(j, k, element_text, float(analytic[at]), float(numeric[j, k][at]))
                worst = (float(excess.max()), found)
    return None if worst is None else worst[1]


def _projection(
    func: Callable[..., Any],
    inputs: list[Any],
    places: list[int],
    outputs: list[Any],
    step: float,
    tolerance: tuple[float, float],
) -> _Worst | None:
    random = np.random.default_rng(0)
    for j, output in enumerate(outputs):
        v = random.standard_normal(output.shape)
        if output.requires_grad:
            gradients = _analytic(outputs, inputs, places, j, v)
        else:
            gradients = [np.zeros(inputs[k].shape) for k in places]
        for k, g in zip(places, gradients):
            u = random.standard_normal(inputs[k].shape)
            analytic = np.asarray(np.sum(g * u))
            numeric = np.asarray(np.sum(v * _difference(func, inputs, k, u, step)[j]))
            if _excess(analytic, numeric, tolerance) > 0:
                return _Worst(j, k, "a random projection", float(analytic), float(numeric))
    return None


def _sweep(func: Callable[..., Any], inputs: list[Any], worst: _Worst) -> str:
    """The difference along the worst input's direction for several eps."""
    text = []
    position = [
        int(part) for part in worst.element.split("input[")[1].rstrip("]").split(",") if part
    ]
    change = np.zeros(inputs[worst.input].shape)
    change[tuple(position)] = 1.0
    output = [int(p) for p in worst.element.split("output[")[1].split("]")[0].split(",") if p]
    for step in (1e-3, 1e-4, 1e-5, 1e-6, 1e-7):
        found = _difference(func, inputs, worst.input, change, step)[worst.output]
        text.append(f"eps {step:g}: {float(found[tuple(output)]):.10g}")
    return "\n".join(text)


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    raise_exception: bool = True,
    fast_mode: bool = False,
) -> bool:
    """`gradcheck` of the gradient of `func`: compares second derivatives.

    Args:
        func, inputs, eps, atol, rtol, raise_exception, fast_mode: as in `gradcheck`.
        grad_outputs: seeds of the outputs; random ones by default.

    Raises:
        GradientError: a mismatch, or an op without second derivative.
    """
    values = as_list(inputs)
    places = _check_inputs(values, eps, atol)
    outputs = _floating_outputs(func, values)
    if grad_outputs is None:
        random = np.random.default_rng(1)
        seeds = [
            tensor(
                random.standard_normal(y.shape).astype(y.dtype.numpy),
                device=y.device,
                requires_grad=True,
            )
            for y in outputs
        ]
    else:
        seeds = as_list(grad_outputs)

    def first(*arguments: Any) -> tuple[Any, ...]:
        xs, vs = arguments[: len(values)], arguments[len(values) :]
        xs = tuple(x.detach().requires_grad_() if k in places and not x.requires_grad else x
                   for k, x in enumerate(xs))  # fmt: skip
        found = grad(
            [y for y in _floating_outputs(func, xs) if y.requires_grad],
            [xs[k] for k in places],
            [v for v, y in zip(vs, outputs) if y.requires_grad],
            create_graph=True,
            allow_unused=True,
        )
        return tuple(g for g in found if g is not None)

    return gradcheck(
        first,
        (*values, *seeds),
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
        fast_mode=fast_mode,
    )
