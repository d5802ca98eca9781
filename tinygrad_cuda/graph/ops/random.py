"""Random leaves: Philox4x32-10 by (seed, node number, element index); equal on every device."""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.graph.node import LeafOp, Op
from tinygrad_cuda.graph.ops import philox
from tinygrad_cuda.graph.ops.common import no_inference


def _uniform(shape: Shape, dtype: DType, seed: int, number: int) -> Any:
    return philox.uniform(seed, number, shape, dtype.numpy)


def _normal(shape: Shape, dtype: DType, seed: int, number: int) -> Any:
    return philox.normal(seed, number, shape, dtype.numpy)


def _integer(shape: Shape, dtype: DType, seed: int, number: int, low: int, high: int) -> Any:
    return philox.randint(seed, number, shape, low, high).astype(dtype.numpy)


def _leaf(name: str, numpy: Any, literals: tuple[str, ...] = ()) -> LeafOp:
    return LeafOp(
        name, "leaf", no_inference, numpy=numpy, cuda=name,
        literals=literals, arguments=("seed", "number"), cost=16,
    )  # fmt: skip


# Uniform in [0, 1).
random_uniform = _leaf("random_uniform", _uniform)
# Standard normal, by Box and Muller (1958) with our own log, sine and cosine.
random_normal = _leaf("random_normal", _normal)
# Integers in [low, high).
random_integer = _leaf("random_integer", _integer, literals=("low", "high"))

ROWS: tuple[Op, ...] = (random_uniform, random_normal, random_integer)
