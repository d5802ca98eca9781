"""Programs of nodes on a device that runs CUDA text, beside NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinygrad_cuda.backend import registry
from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.device import CPU, Device
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import reduction as rd
from tinygrad_cuda.graph.program import Program

Array = np.ndarray[Any, Any]


class Bench:
    """Inputs, outputs, and a run on both devices."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.nodes: list[Node] = []
        self.arrays: list[Array] = []
        self.rng = np.random.default_rng(7)

    def __call__(self, *shape: int, dtype: DType = dtypes.float32, below: int = 0) -> Node:
        """An input of random values (`below`: integers under this)."""
        if below:
            array = self.rng.integers(0, below, shape)
        elif dtype is dtypes.bool_:
            array = self.rng.integers(0, 2, shape)
        else:
            array = self.rng.uniform(-1, 1, shape) * (1 if dtype.is_floating else 50)
        return self.given(np.asarray(array).astype(dtype.numpy), dtype)

    def given(self, array: Array, dtype: DType) -> Node:
        node = common.buffer.leaf(array.shape, dtype, self.device, slot=len(self.nodes))
        self.nodes.append(node)
        self.arrays.append(array)
        return node

    def compile(self, *outputs: Node, overwrites: dict[int, int] | None = None) -> Any:
        program = Program(self.device, outputs, tuple(self.nodes), overwrites or {})
        return registry.get(self.device).compile(program)

    def run(
        self,
        *outputs: Node,
        overwrites: dict[int, int] | None = None,
        arguments: tuple[Any, ...] = (0, 0),
    ) -> list[Array]:
        backend = registry.get(self.device)
        executable = self.compile(*outputs, overwrites=overwrites)
        storages = [backend.from_host(array) for array in self.arrays]
        found = executable.run(storages, arguments)
        return [backend.to_host(s, n.shape, n.dtype) for s, n in zip(found, outputs)]

    def check(
        self,
        *outputs: Node,
        tolerance: float = 1e-5,
        overwrites: dict[int, int] | None = None,
        arguments: tuple[Any, ...] = (0, 0),
    ) -> None:
        """Both devices agree."""
        found = self.run(*outputs, overwrites=overwrites, arguments=arguments)
        program = Program(CPU, outputs, tuple(self.nodes), {})
        expected = registry.get(CPU).compile(program).run(
            [array.copy() for array in self.arrays], arguments
        )  # fmt: skip
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            if a.dtype.kind in "iub":
                np.testing.assert_array_equal(a, b)
            else:
                wide = [value.astype(np.float64) for value in (a, b)]
                np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)


def spread(x: Node, shape: tuple[int, ...]) -> Node:
    ones = (1,) * (len(shape) - len(x.shape))
    return mv.expand(mv.reshape(x, shape=ones + x.shape), shape=shape)


def softmax(x: Node, axes: tuple[int, ...]) -> Node:
    e = ew.exp(ew.sub(x, mv.expand(rd.max(x, axes=axes), shape=x.shape)))
    return ew.div(e, mv.expand(rd.sum(e, axes=axes), shape=x.shape))
