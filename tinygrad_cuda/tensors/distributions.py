"""Draws from distributions: multinomial, exponential_, geometric_, log_normal_, poisson, ...

All are made of the uniform and normal numbers of `random`, so they repeat with their Generator.
"""

from __future__ import annotations

import math as _math
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad_cuda.core.dtypes import float64, int64
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError
from tinygrad_cuda.engine.cell import detached
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, elementwise
from tinygrad_cuda.graph.ops import random as ops
from tinygrad_cuda.tensors import random, shaping
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.ordering import topk
from tinygrad_cuda.tensors.promotion import to_dtype, to_shape
from tinygrad_cuda.tensors.random import (
    Generator,
    drawn_on_host,
    normal_node,
    numbered,
    uniform_node,
)
from tinygrad_cuda.tensors.reductions import cumsum
from tinygrad_cuda.tensors.searching import searchsorted
from tinygrad_cuda.tensors.shaping import slice_axis

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "multinomial", "poisson",
]  # fmt: skip


def _open_uniform(node: Node, generator: Generator | None) -> Node:
    """Uniform float64 numbers in (0, 1], whose logarithm is finite."""
    drawn = uniform_node(node.shape, float64, node.device, generator)
    return elementwise.sub(common.full_like(drawn, 1), drawn)


def _stored(input: Tensor, node: Node, op: str) -> Tensor:
    input.write(to_dtype(node, input.dtype), op)
    return input


def _floating(op: str, input: Tensor) -> Node:
    if not input.dtype.is_floating:
        raise DTypeError(
            op,
            "needs a floating dtype",
            expect="float16, bfloat16, float32 or float64",
            actual=input.dtype.name,
        )
    return input.node


def multinomial(
    input: Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Positions drawn with the probabilities (up to a factor) that each row of `input` gives.

    Without replacement the largest of ``weight / exponential`` are taken, in this order, which is
    drawing one after the other. The weights are looked at, which realizes the input.

    Args:
        input: a vector or a matrix of weights >= 0.
        num_samples: how many positions of each row.
        replacement: whether a position may come again.

    Returns:
        int64, (num_samples,) or (rows, num_samples).

    Raises:
        ArgumentError: weights are negative, not finite or all zero, or too few without replacement.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.multinomial(tc.tensor([0.0, 1.0], device="cpu"), 2, replacement=True).tolist()
        [1, 1]
    """
    node = detached(_floating("multinomial", input))
    if len(node.shape) not in (1, 2) or not node.shape[-1]:
        raise ShapeError(
            "multinomial",
            "needs rows of weights",
            expect="1-d or 2-d, the last dimension not empty",
            actual=str(node.shape),
        )
    weights = np.asarray(input.array(), np.float64)
    positive = (weights > 0).sum(-1)
    least = 1 if replacement else num_samples
    valid = np.isfinite(weights).all() and (weights >= 0).all() and (positive >= 1).all()
    if num_samples < 1 or not valid or (positive < least).any():
        raise ArgumentError(
            "multinomial",
            "cannot draw from these weights",
            expect=f"finite weights >= 0, at least {least} of each row above 0, samples >= 1",
            actual=f"{num_samples} samples, weights from {weights.min()} to {weights.max()}, "
            f"{positive.min()} above 0",
        )
    wide = to_dtype(node, float64)
    if not replacement:
        times = elementwise.neg(elementwise.log(_open_uniform(wide, generator)))
        times = elementwise.maximum(times, common.full_like(times, 1e-300))
        return topk(wrap(elementwise.div(wide, times)), num_samples, -1).indices
    running = cumsum(wrap(wide), -1).node
    total = slice_axis(running, len(running.shape) - 1, running.shape[-1] - 1, 1)
    shape = (*node.shape[:-1], num_samples)
    drawn = uniform_node(shape, float64, node.device, generator)
    target = elementwise.mul(drawn, to_shape(total, shape))
    return searchsorted(wrap(running), wrap(target), right=True)


def bernoulli(input: Tensor, p: Any = None, *, generator: Generator | None = None) -> Tensor:
    """1 with probability `p`, or with that of each element without `p`, else 0."""
    if p is None:
        return random.bernoulli(input, generator=generator)
    return random.bernoulli_(shaping.clone(input.detach()), p, generator=generator)


def exponential_(input: Tensor, lambd: float = 1, *, generator: Generator | None = None) -> Tensor:
    """Fills the tensor with exponential random numbers of rate `lambd`."""
    if lambd <= 0:
        raise ArgumentError(
            "exponential_", "the rate is not positive", expect="lambd > 0", actual=str(lambd)
        )
    node = _floating("exponential_", input)
    drawn = elementwise.log(_open_uniform(node, generator))
    return _stored(
        input, elementwise.mul(drawn, common.full_like(drawn, -1 / lambd)), "exponential_"
    )


def geometric_(input: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    """Fills the tensor with the number of trials up to the first success of probability `p`."""
    if not 0 < p < 1:
        raise ArgumentError(
            "geometric_", "p is not between 0 and 1", expect="0 < p < 1", actual=str(p)
        )
    drawn = elementwise.log(_open_uniform(input.node, generator))
    trials = elementwise.ceil(elementwise.mul(drawn, common.full_like(drawn, 1 / _math.log1p(-p))))
    one = common.full_like(trials, 1)
    return _stored(input, elementwise.maximum(trials, one), "geometric_")


def log_normal_(
    input: Tensor, mean: float = 1, std: float = 2, *, generator: Generator | None = None
) -> Tensor:
    """Fills the tensor with e to the power of normal random numbers."""
    if std <= 0:
        raise ArgumentError("log_normal_", "std is not positive", expect="std > 0", actual=str(std))
    node = _floating("log_normal_", input)
    drawn = normal_node(node.shape, float64, node.device, generator)
    scaled = elementwise.mul(drawn, common.full_like(drawn, std))
    powers = elementwise.exp(elementwise.add(scaled, common.full_like(scaled, mean)))
    return _stored(input, powers, "log_normal_")


def cauchy_(
    input: Tensor, median: float = 0, sigma: float = 1, *, generator: Generator | None = None
) -> Tensor:
    """Fills the tensor with Cauchy random numbers."""
    if sigma <= 0:
        raise ArgumentError(
            "cauchy_", "sigma is not positive", expect="sigma > 0", actual=str(sigma)
        )
    node = _floating("cauchy_", input)
    drawn = uniform_node(node.shape, float64, node.device, generator)
    centered = elementwise.sub(drawn, common.full_like(drawn, 0.5))
    slope = elementwise.tan(elementwise.mul(centered, common.full_like(drawn, _math.pi)))
    scaled = elementwise.mul(slope, common.full_like(slope, sigma))
    return _stored(input, elementwise.add(scaled, common.full_like(scaled, median)), "cauchy_")


def random_(
    input: Tensor,
    from_: int = 0,
    to: int | None = None,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Fills the tensor with random integers of [from, to), or [0, to) with one argument.

    Without arguments up to the largest integer that the dtype holds exactly.
    """
    node = input.node
    if to is None and from_:
        from_, to = 0, from_
    if to is None:
        exact = {"float64": 2**53, "float32": 2**24, "float16": 2**11, "bfloat16": 2**8, "bool": 1}
        name = node.dtype.name
        if name in exact:
            to = exact[name] + 1
        else:  # draws are of int64, also for uint64
            to = min(int(np.iinfo(node.dtype.numpy).max), 2**63 - 1)
    if to <= from_:
        raise ArgumentError(
            "random_", "the range is empty", expect="from < to", actual=f"[{from_}, {to})"
        )
    drawn = ops.random_integer.leaf(
        node.shape, int64, node.device, low=from_, high=to, **numbered(generator)
    )
    return _stored(input, drawn, "random_")


def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Poisson random numbers with the rates that `input` gives, drawn by NumPy on the host.

    Raises:
        ArgumentError: a rate is negative.
    """
    node = _floating("poisson", input)
    rates = np.asarray(input.array(), np.float64)
    if (rates < 0).any():
        raise ArgumentError(
            "poisson", "a rate is negative", expect="rates >= 0", actual=str(rates.min())
        )

    def draw(seed: int, number: int) -> np.ndarray[Any, Any]:
        return np.random.default_rng([seed, number]).poisson(rates).astype(node.dtype.numpy)

    drawn = drawn_on_host(draw, node.device, generator, on_host=True)
    return wrap(common.nothing_written(drawn, node))
