"""Samples of convolution and its gradients: every geometry, dtype and view, 1-, 2- and 3-d."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from sampling import NUMBERS, VIEWS, Array, Sample, generator, plain, some

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.graph.node import Op
from tinygrad_cuda.graph.ops.convolution import (
    convolution,
    convolution_input_gradient,
    convolution_weight_gradient,
)
from tinygrad_cuda.graph.ops.geometry import Geometry


class Problem(NamedTuple):
    """Shapes of input and weight, and how windows lie."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    at: Geometry

    @property
    def y(self) -> tuple[int, ...]:
        return (self.x[0], self.w[0], *self.at.sizes(self.x[2:], self.w[2:]))


def _problem(
    x: tuple[int, ...], w: tuple[int, ...], stride: Any = 1, pads: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Problem:  # fmt: skip
    rank = len(x) - 2
    steps, apart = ((n,) * rank if isinstance(n, int) else n for n in (stride, dilation))
    padding = ((pads, pads),) * rank if isinstance(pads, int) else pads
    return Problem(x, w, Geometry(steps, padding, apart, groups))


PROBLEMS = {
    "plain": _problem((2, 3, 7, 6), (4, 3, 3, 3)),
    "padded": _problem((2, 3, 6, 9), (5, 3, 3, 3), pads=1),
    "one side": _problem((1, 2, 6, 5), (3, 2, 2, 3), pads=((0, 1), (2, 0))),
    "strided": _problem((2, 2, 9, 8), (3, 2, 3, 3), stride=2, pads=1),
    "strides": _problem((1, 3, 8, 11), (2, 3, 3, 2), stride=(1, 3)),
    "dilated": _problem((1, 2, 9, 8), (3, 2, 3, 2), dilation=(2, 3), pads=1),
    "both": _problem((1, 2, 12, 9), (2, 2, 3, 3), stride=2, dilation=(2, 1), pads=2),
    "grouped": _problem((2, 4, 6, 6), (6, 2, 3, 3), groups=2, pads=1),
    "depthwise": _problem((2, 3, 5, 6), (3, 1, 3, 3), groups=3, stride=2),
    "points": _problem((3, 5, 4, 3), (7, 5, 1, 1)),
    "strided points": _problem((2, 3, 5, 7), (4, 3, 1, 1), stride=2),
    "patches": _problem((2, 3, 8, 9), (4, 3, 4, 4), stride=4),
    "gaps": _problem((1, 2, 9, 11), (3, 2, 2, 2), stride=4, pads=1),
    "many phases": _problem((1, 2, 8, 12), (3, 2, 3, 4), stride=(3, 4)),
    "line": _problem((2, 3, 11), (4, 3, 3), stride=2, pads=1),
    "volume": _problem((1, 2, 4, 5, 4), (3, 2, 2, 3, 2), stride=(1, 2, 1), pads=1),
    "no image": _problem((0, 3, 5, 5), (2, 3, 3, 3)),
    "no channel": _problem((2, 0, 5, 5), (2, 0, 3, 3)),
    "tiles": _problem((2, 20, 10, 8), (24, 20, 3, 3), pads=1),
    "few": _problem((5, 2, 14, 14), (6, 2, 5, 5), pads=2),
}
SMOOTH = ("one side", "both", "grouped", "many phases", "line", "volume", "patches")
SHOWN = ("transposed", "sliced", "flipped", "reshaped")


def _terms(problem: Problem) -> Iterator[tuple[Any, Any, Any]]:
    """Where x, w and y meet: one slice of each for every tap and group."""
    (o, each, *kernel), at = problem.w, problem.at
    lead, count = o // at.groups, problem.y[2:]
    for tap in product(*map(range, kernel)):
        first = [t * d for t, d in zip(tap, at.dilation)]
        windows = tuple(
            slice(f, f + (m - 1) * s + 1, s) for f, m, s in zip(first, count, at.stride)
        )
        for group in range(at.groups):
            channels = slice(group * each, (group + 1) * each)
            outputs = slice(group * lead, (group + 1) * lead)
            yield (slice(None), channels, *windows), (outputs, slice(None), *tap), outputs


def _wide(problem: Problem, x: Array | None, dtype: Any) -> Array:
    pads = problem.at.padding
    sizes = [n + sum(both) for n, both in zip(problem.x[2:], pads)]
    wide = np.zeros((*problem.x[:2], *sizes), dtype)
    if x is not None:
        wide[_inner(problem)] = x
    return wide


def _inner(problem: Problem) -> Any:
    pads = problem.at.padding
    inner = (slice(before, before + n) for n, (before, _) in zip(problem.x[2:], pads))
    return (slice(None), slice(None), *inner)


def _exact(array: Array) -> Any:
    return np.int64 if array.dtype.kind in "iu" else np.float64


def _convolution(problem: Problem, x: Array, w: Array) -> Array:
    wide = _wide(problem, x, _exact(x))
    y = np.zeros(problem.y, wide.dtype)
    for windows, taps, outputs in _terms(problem):
        y[:, outputs] += np.einsum("nc...,oc->no...", wide[windows], w[taps].astype(wide.dtype))
    return y.astype(x.dtype)


def _input_gradient(problem: Problem, g: Array, w: Array) -> Array:
    wide = _wide(problem, None, _exact(g))
    slope = g.astype(wide.dtype)
    for windows, taps, outputs in _terms(problem):
        wide[windows] += np.einsum("no...,oc->nc...", slope[:, outputs], w[taps].astype(wide.dtype))
    return wide[_inner(problem)].astype(g.dtype)


def _weight_gradient(problem: Problem, g: Array, x: Array) -> Array:
    wide = _wide(problem, x, _exact(x))
    slope = g.astype(wide.dtype)
    dw = np.zeros(problem.w, wide.dtype)
    for windows, taps, outputs in _terms(problem):
        summed = np.einsum("no...,nc...->oc...", slope[:, outputs], wide[windows])
        dw[taps] = summed.sum(tuple(range(2, summed.ndim)))
    return dw.astype(x.dtype)


def _torch(op: Op, problem: Problem, t: Any, a: Any, b: Any) -> Any:
    """By PyTorch's convolution and its derivatives."""
    before, rank = tuple(pads[0] for pads in problem.at.padding), len(problem.at.padding)
    name = {convolution: "", convolution_input_gradient: "_input", convolution_weight_gradient:
            "_weight"}[op]  # fmt: skip
    options = (problem.at.stride, before, problem.at.dilation, problem.at.groups)
    if not name:
        return getattr(t.nn.functional, f"conv{rank}d")(a, b, None, *options)
    function = getattr(t.nn.grad, f"conv{rank}d{name}")
    if name == "_input":
        return function(problem.x, b, a, *options)
    return function(b, problem.w, a, *options)


def _torch_has(problem: Problem, dtype: DType) -> bool:
    """Whether PyTorch takes the padding, and computes in the dtype on the CPU."""
    even = all(before == after for before, after in problem.at.padding)
    return even and 0 not in (*problem.x, *problem.w) and dtype in (dtypes.float32, dtypes.float64)


_FORMULAS = {
    convolution: ("x", "w", {}, _convolution),
    convolution_input_gradient: ("y", "w", {"size": "x"}, _input_gradient),
    convolution_weight_gradient: ("y", "x", {"kernel": "w"}, _weight_gradient),
}


def _sample(op: Op, label: str, problem: Problem, dtype: DType, view: str, **more: Any) -> Sample:
    first, second, sizes, formula = _FORMULAS[op]
    rng = generator(op.name, label)
    arrays = [some(rng, getattr(problem, name), dtype) for name in (first, second)]
    attributes = problem.at._asdict()
    attributes |= {name: getattr(problem, of)[2:] for name, of in sizes.items()}
    return Sample(
        op, label, tuple(VIEWS[view](array) for array in arrays), attributes,
        **{
            "expected": lambda a, b, **_: formula(problem, a, b), "loose": 30.0,
            "torch": (
                (lambda t, a, b, **_: _torch(op, problem, t, a, b))
                if _torch_has(problem, dtype) else None
            ), **more,
        },
    )  # fmt: skip


def samples() -> Iterator[Sample]:
    for op in _FORMULAS:
        for number, (name, problem) in enumerate(PROBLEMS.items()):
            view = SHOWN[number % len(SHOWN)] if number % 2 else "plain"
            yield _sample(op, name, problem, dtypes.float32, view)
        for number, dtype in enumerate(NUMBERS):
            problem = PROBLEMS[("both", "grouped", "padded")[number % 3]]
            yield _sample(op, dtype.name, problem, dtype, "plain")
        for name in SMOOTH:
            problem = PROBLEMS[name]
            yield _sample(
                op, f"smooth {name}", problem, dtypes.float64, "plain", differentiate=True
            )
        yield _infinite(op)


def _infinite(op: Op) -> Sample:
    """An infinite element of an image reaches what it meets, and nothing else."""
    problem = PROBLEMS["padded"]
    sample = _sample(op, "infinite", problem, dtypes.float32, "plain")
    first, second = (source.value.copy() for source in sample.sources)
    image = second if op is convolution_weight_gradient else first
    image[-1, 0, -1, -1] = np.inf
    return _sample_of(sample, first, second)


def _sample_of(sample: Sample, *values: Array) -> Sample:
    return Sample(
        sample.op, sample.label, tuple(map(plain, values)), sample.attributes,
        expected=sample.expected, loose=sample.loose, torch=sample.torch,
    )  # fmt: skip
