"""gradcheck and gradgradcheck: analytic gradients against central differences in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tinygrad_cuda.autograd.local_rules import Graph, RuleTests, checked_rules
from tinygrad_cuda.autograd.parameters import (
    is_model,
    moved_to,
    parameters_of,
    prepared,
    unchanged_buffers,
)
from tinygrad_cuda.core.dtypes import float64
from tinygrad_cuda.core.errors import DTypeError, GradientError
from tinygrad_cuda.graph.gradient import history
from tinygrad_cuda.graph.node import Node, made_by
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.tensors.backward import as_list, grad
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.complex_numbers import view_as_complex, view_as_real
from tinygrad_cuda.tensors.creation import tensor

Array = np.ndarray[Any, Any]
SWEEP = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7)  # steps for which an error lists the difference quotient
# Directions in which all parameters and inputs are moved at once, and how far: where one step
# agrees, the others crossed a kink or drowned in rounding.
DIRECTIONS = 3
STEPS = (1e-6, 1e-7, 1e-5, 1e-8)


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    raise_exception: bool = True,
    fast_mode: bool = False,
    full: bool = False,
) -> bool:
    """Compares the gradient of `func` with central differences.

    ``|analytic - numeric| <= atol + rtol * |numeric|`` for each element of the Jacobian, or, with
    `fast_mode`, for one random projection ``v^T J u`` of it. A NaN on either side is a mismatch.

    Where `func` has parameters, they are checked with the inputs: those of a Module, or leaves
    that a function refers to in its closure, its globals or its object. Then the derivative in
    three random directions of all of them together is compared, to `rtol` of itself. A Module is
    checked in a copy of float64. At a mismatch the rule of each recorded op is compared
    with differences of that op alone, and what is wrong is named with its line.

    A complex number is checked as its two parts.

    Args:
        func: a Module, or a function; takes `inputs`, returns one or several Tensors.
        inputs: one Tensor or several values; those that require grad are checked and must be
            float64 unless `eps` and `atol` are given.
        eps: half the distance of the two points; 1e-6 by default, several with parameters.
        atol, rtol: tolerances; 1e-5 and 1e-3 by default, 1e-9 and 1e-6 with parameters.
        raise_exception: raise at a mismatch instead of returning False.
        fast_mode: check a random projection, two evaluations an input or parameter.
        full: check each element of the Jacobian where there are parameters, too.

    Raises:
        GradientError: a mismatch, with the worst element, both numbers, the op, and differences
            for several eps; or a function that is not deterministic.
        DTypeError: an input or a parameter is not float64 and no tolerances were given.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.rand(3, dtype=tc.float64, device="cpu").requires_grad_()
        >>> tc.autograd.gradcheck(lambda x: (x * x).sum(), (x,))
        True
        >>> model = tc.nn.Sequential(tc.nn.Linear(3, 2), tc.nn.Tanh()).to("cpu")
        >>> tc.autograd.gradcheck(model, x)
        True
    """
    exact = eps is None or atol is None
    if is_model(func):
        func, inputs = prepared(func, as_list(inputs), exact)
    parameters = parameters_of(func)
    with unchanged_buffers(func):
        func, inputs = _of_parts(func, as_list(inputs))
        check = _Check("gradcheck", func, inputs, eps, atol, rtol, parameters)
        return check.passes(raise_exception, fast_mode, full)


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

    Its outputs are the gradients with respect to the inputs that require grad, in order.

    Args:
        func, inputs, eps, atol, rtol, raise_exception, fast_mode: as in `gradcheck`.
        grad_outputs: seeds of the outputs; random ones by default.

    Raises:
        GradientError: a mismatch, or an op without second derivative.
    """
    func, inputs = _of_parts(func, as_list(inputs))
    first = _Check("gradgradcheck", func, inputs, eps, atol, rtol)
    count, positions = len(first.inputs), first.positions
    seeds = list(first.seeds() if grad_outputs is None else as_list(grad_outputs))

    def gradient(*arguments: Any) -> tuple[Any, ...]:
        xs, vs = list(arguments[:count]), arguments[count:]
        for k in positions:
            if not xs[k].requires_grad:
                xs[k] = xs[k].detach().requires_grad_()
        pairs = [(y, v) for y, v in zip(first.evaluate(xs), vs) if y.requires_grad]
        return grad(
            [y for y, _ in pairs],
            [xs[k] for k in positions],
            [v for _, v in pairs],
            create_graph=True,
            materialize_grads=True,
        )

    check = _Check("gradgradcheck", gradient, (*first.inputs, *seeds), eps, atol, rtol)
    return check.passes(raise_exception, fast_mode)


def _is_complex(value: Any) -> bool:
    return isinstance(value, TensorBase) and value.dtype.is_complex


def _of_parts(
    function: Callable[..., Any], inputs: list[Any]
) -> tuple[Callable[..., Any], list[Any]]:
    """The function of real numbers that a function of complex ones is: of pairs of parts."""
    complex_at = {k for k, x in enumerate(inputs) if _is_complex(x) and x.requires_grad}
    if not complex_at:
        return function, inputs

    def of_parts(*given: Any) -> Any:
        return function(*(view_as_complex(x) if k in complex_at else x
                          for k, x in enumerate(given)))  # fmt: skip

    parts = [
        view_as_real(x.detach()).clone().requires_grad_() if k in complex_at else x
        for k, x in enumerate(inputs)
    ]
    return of_parts, parts


GradcheckError = GradientError  # PyTorch's name for what a check raises


class _Mismatch(NamedTuple):
    """A number that differs: ``sum(v * d output / d input * u)``.

    Attributes:
        output: which of them.
        points: which inputs and parameters the direction moves, by position.
        element: the positions of `v` and `u` in words.
        analytic, numeric: the number from backward and from differences.
        excess: by how much the tolerance is exceeded.
        u, v: the directions of these and the weights of the output.
    """

    output: int
    points: tuple[int, ...]
    element: str
    analytic: float
    numeric: float
    excess: float
    u: tuple[Array, ...]
    v: Array


class _Check:
    """One function at one point.

    What is checked are `points`: first the inputs at `positions`, then the parameters.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        inputs: Any,
        eps: float | None,
        atol: float | None,
        rtol: float | None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        self.name, self.function = name, function
        self.inputs = as_list(inputs)
        self.positions = [
            k for k, x in enumerate(self.inputs) if isinstance(x, TensorBase) and x.requires_grad
        ]
        self.outputs = self.evaluate(self.inputs)
        # Taken before anything is realized.
        nodes = [y.node for y in self.outputs]
        self.graph = Graph(nodes)
        self.points, self.names = self._points(parameters or {}, nodes)
        self.whole = len(self.points) > len(self.positions)
        self._check_points(strict=eps is None or atol is None)
        self.steps = STEPS if self.whole and eps is None else (1e-6 if eps is None else eps,)
        self.eps = self.steps[0]
        self.atol = (1e-9 if self.whole else 1e-5) if atol is None else atol
        self.rtol = (1e-6 if self.whole else 1e-3) if rtol is None else rtol
        self._check_repeats()

    # The point --------------------------------------------------------------------------------

    def _points(self, parameters: dict[str, Any], nodes: list[Node]) -> tuple[list[Any], list[str]]:
        """What is checked, with names: inputs, and parameters that the outputs depend on."""
        points = [self.inputs[k] for k in self.positions]
        names = [f"input {k}" for k in self.positions]
        given = [x.leaf for x in points]
        order = history([node for node in nodes if node.requires_grad])
        reached = {node.attributes["leaf"] for node in order if node.op is common.variable}
        for name, parameter in parameters.items():
            if parameter.leaf in reached and all(parameter.leaf is not leaf for leaf in given):
                points.append(parameter)
                names.append(f"parameter {name}")
        return points, names

    def _check_points(self, strict: bool) -> None:
        if not self.points:
            raise GradientError(
                self.name,
                "no input requires grad",
                expect="at least one Tensor that requires grad",
                actual=f"{len(self.inputs)} inputs, none of them does",
                hint="call requires_grad_() on what shall be checked",
            )
        for name, x in zip(self.names, self.points):
            if x.dtype is not float64 and strict:
                shown = f"inputs[{name[6:]}]" if name.startswith("input ") else name
                raise DTypeError(
                    self.name,
                    f"{shown} is too coarse for differences",
                    expect="float64: a difference of two nearly equal numbers loses half the "
                    "digits",
                    actual=f"{x.dtype.name}, whose rounding would hide any error worth finding",
                    hint="use .double(), or give eps, atol and rtol (1e-2 each for float32)",
                )

    def _check_repeats(self) -> None:
        """The function must give the same value twice, or differences mean nothing."""
        for j, (a, b) in enumerate(zip(self.outputs, self.evaluate(self.inputs))):
            first, second = _float64(a), _float64(b)
            if not np.array_equal(first, second, equal_nan=True):
                raise GradientError(
                    self.name,
                    "the function is not deterministic",
                    expect="the same values from two calls",
                    actual=f"output {j} differs by up to {np.abs(first - second).max():.3g}",
                    hint="seed random numbers inside the function, or leave out dropout",
                )

    def evaluate(self, inputs: Sequence[Any]) -> list[Any]:
        """The floating outputs of the function, complex ones as pairs of their parts."""
        returned = as_list(self.function(*inputs))
        # Of complex numbers the parts.
        returned = [view_as_real(y) if _is_complex(y) else y for y in returned]
        outputs = [y for y in returned if isinstance(y, TensorBase) and y.dtype.is_floating]
        if not outputs:
            raise GradientError(
                self.name,
                "the function returned no floating tensor",
                expect="one floating Tensor or several",
                actual=", ".join(_kind(y) for y in returned) or "nothing",
            )
        return outputs

    def seeds(self) -> Iterator[Any]:
        """A random Tensor that requires grad for each output."""
        random = np.random.default_rng(1)
        for y in self.outputs:
            values = random.standard_normal(y.shape).astype(y.dtype.numpy)
            yield tensor(values, device=y.device, requires_grad=True)

    # Both sides -------------------------------------------------------------------------------

    def difference(self, points: Sequence[int], us: Sequence[Array], eps: float) -> list[Array]:
        """``(f(x + eps u) - f(x - eps u)) / (2 eps)`` for every output; `us` move these points."""
        ends = []
        for step in (eps, -eps):
            moved = list(self.inputs)
            written: list[tuple[Any, Array]] = []
            for k, u in zip(points, us):
                x = self.points[k]
                values = (_float64(x) + step * u).astype(x.dtype.numpy)
                if k < len(self.positions):
                    moved[self.positions[k]] = tensor(values, device=x.device, requires_grad=True)
                else:
                    written.append((x, values))
            with moved_to(written):
                ends.append([_float64(y) for y in self.evaluate(moved)])
        return [(above - below) / (2 * eps) for above, below in zip(*ends)]

    def gradients(self, j: int, v: Array) -> list[Array]:
        """The gradients of ``sum(v * outputs[j])`` for the points."""
        y = self.outputs[j]
        if not y.requires_grad:
            return [np.zeros(x.shape) for x in self.points]
        seed = tensor(v.astype(y.dtype.numpy), device=y.device)
        gradients = grad(y, self.points, seed, retain_graph=True, materialize_grads=True)
        return [_float64(g) for g in gradients]

    def _excess(self, analytic: Array, numeric: Array) -> Array:
        gap = np.abs(analytic - numeric) - (self.atol + self.rtol * np.abs(numeric))
        return np.where(np.isnan(gap), np.inf, gap)

    # The comparison ---------------------------------------------------------------------------

    def passes(self, raise_exception: bool, fast_mode: bool, full: bool = True) -> bool:
        """Whether nothing differs; raises the worst mismatch if that is wanted."""
        if fast_mode:
            mismatches = self._projections()
        elif self.whole and not full:
            mismatches = self._directions()
        else:
            mismatches = self._jacobians()
        worst = max(mismatches, key=lambda mismatch: mismatch.excess, default=None)
        if worst is not None and raise_exception:
            raise self._error(worst)
        return worst is None

    def _directions(self) -> Iterator[_Mismatch]:
        """All points moved at once, by each step until one agrees."""
        random = np.random.default_rng(0)
        points = tuple(range(len(self.points)))
        for _ in range(DIRECTIONS):
            us = tuple(np.asarray(random.standard_normal(x.shape)) for x in self.points)
            vs = [np.asarray(random.standard_normal(y.shape)) for y in self.outputs]
            analytic = [
                float(sum(np.sum(g * u) for g, u in zip(self.gradients(j, v), us)))
                for j, v in enumerate(vs)
            ]
            best: list[_Mismatch | None] = [None] * len(vs)
            for number, eps in enumerate(self.steps):
                slopes = self.difference(points, us, eps)
                for j, (v, slope) in enumerate(zip(vs, slopes)):
                    numeric = float(np.sum(v * slope))
                    excess = float(self._excess(np.asarray(analytic[j]), np.asarray(numeric)))
                    old = best[j]
                    if not number or (old is not None and excess < old.excess):
                        element = f"a random direction of {len(points)} tensors"
                        mismatch = _Mismatch(
                            j, points, element, analytic[j], numeric, excess, us, v
                        )
                        best[j] = mismatch if excess > 0 else None
                if not any(best):
                    break
            yield from filter(None, best)
            if any(best):
                return

    def _jacobians(self) -> Iterator[_Mismatch]:
        numeric = [self._columns(k) for k in range(len(self.points))]
        for j, y in enumerate(self.outputs):
            rows = [self.gradients(j, v) for v in _units(y.shape)]
            for k, x in enumerate(self.points):
                analytic = np.array([row[k].reshape(-1) for row in rows])
                if not analytic.size:
                    continue
                expected = numeric[k][j].reshape(-1, y.numel()).T
                excess = self._excess(analytic, expected)
                at = np.unravel_index(int(excess.argmax()), excess.shape)
                if excess[at] > 0:
                    v, u = _unit(y.shape, int(at[0])), _unit(x.shape, int(at[1]))
                    element = f"output {j}{_index_text(v)}, {self.names[k]}{_index_text(u)}"
                    numbers = float(analytic[at]), float(expected[at]), float(excess[at])
                    yield _Mismatch(j, (k,), element, *numbers, (u,), v)

    def _columns(self, k: int) -> list[Array]:
        """For each output the differences along every element of a point, stacked."""
        units = _units(self.points[k].shape)
        columns = [self.difference((k,), (u,), self.eps) for u in units]
        return [
            np.array([column[j] for column in columns]).reshape(len(columns), *y.shape)
            for j, y in enumerate(self.outputs)
        ]

    def _projections(self) -> Iterator[_Mismatch]:
        random = np.random.default_rng(0)
        for j, y in enumerate(self.outputs):
            v = np.asarray(random.standard_normal(y.shape))
            for k, g in enumerate(self.gradients(j, v)):
                u = np.asarray(random.standard_normal(self.points[k].shape))
                analytic = np.sum(g * u)
                numeric = np.sum(v * self.difference((k,), (u,), self.eps)[j])
                excess = float(self._excess(analytic, numeric))
                if excess > 0:
                    element = f"a random projection of output {j} and {self.names[k]}"
                    numbers = float(analytic), float(numeric), excess
                    yield _Mismatch(j, (k,), element, *numbers, (u,), v)

    def _error(self, worst: _Mismatch) -> GradientError:
        sweep = []
        for eps in SWEEP:
            slope = np.sum(worst.v * self.difference(worst.points, worst.u, eps)[worst.output])
            sweep.append(f"eps {eps:g}: {slope:.10g}")
        what = "gradient" if self.name == "gradcheck" else "second derivative"
        y = self.outputs[worst.output]
        rules = checked_rules(self.graph, [y.node])
        behind = self.names[worst.points[0]] if len(worst.points) == 1 else "its parameters"
        return GradientError(
            self.name,
            f"the {what} of output {worst.output} for {behind} is wrong",
            expect=f"{worst.numeric:.10g} by central differences with eps {self.eps:g}\n"
            + "\n".join(sweep),
            actual=f"{worst.analytic:.10g} by backward, the worst of all, at {worst.element}\n"
            f"from {made_by(y.node)}\n" + _blame(rules),
            site=rules.wrong[0].site if rules.wrong else None,
            hint=_hint(rules),
        )


def _blame(rules: RuleTests) -> str:
    """Which rules are wrong, in words."""
    if rules.wrong:
        return "\n".join(map(str, rules.wrong))
    text = f"each of {rules.tested} rules agrees with differences of its op alone"
    return "\n".join([text, *(f"not compared: {reason}" for reason in rules.untested)])


def _hint(rules: RuleTests) -> str:
    if rules.wrong:
        count = len(rules.wrong)
        return "mend the rule" if count == 1 else f"mend these {count} rules"
    return (
        "if the differences vary with eps, the function is not smooth at this point, or a part of "
        "it is not float64; if not, a value is detached or leaves the graph (numpy(), item())"
    )


def _float64(x: Any) -> Array:
    array: Array = x.detach().array().astype(np.float64)
    return array


def _kind(value: Any) -> str:
    return str(value.dtype.name) if isinstance(value, TensorBase) else type(value).__name__


def _unit(shape: Sequence[int], element: int) -> Array:
    """One at one position, zero elsewhere."""
    array = np.zeros(tuple(shape))
    array.reshape(-1)[element] = 1.0
    return array


def _units(shape: Sequence[int]) -> Iterator[Array]:
    return (_unit(shape, element) for element in range(int(np.prod(shape, dtype=np.int64))))


def _index_text(unit: Array) -> str:
    """Where the one is, as an index; nothing for a 0-d array."""
    return "".join(f"[{', '.join(str(int(i)) for i in at)}]" for at in np.argwhere(unit) if at.size)
