"""What a workload is, defined once in NumPy and in a small vocabulary that every peer speaks.

A workload's functions take a `net` (see peers/vocabulary.py): `net.linear(x, "fc")` and the like.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
NONE: Arrays = {}
# What products of float32 are computed in, and the suffix of a workload's name: without tf32
# permitted, with it, and in bfloat16 under autocast.
PRECISIONS = {"bf16": "_bf16", "tf32": "_tf32", "ieee": ""}


@dataclass(frozen=True)
class Rule:
    """How parameters are updated.

    Attributes:
        kind: "sgd", "adam" or "adamw", with PyTorch's formulas and default constants.
        rate: the learning rate.
        momentum: of "sgd".
        decay: weight decay; None is the kind's default.
    """

    kind: str
    rate: float
    momentum: float = 0.0
    decay: float | None = None

    @property
    def bytes_per_parameter(self) -> int:
        """The parameter and its state in float32, each read and written once."""
        values = 3 if self.kind.startswith("adam") else 2 if self.momentum else 1
        return 2 * 4 * values


@dataclass(frozen=True)
class Training:
    """Whole training steps: forward, backward and update, on a fresh batch each.

    Attributes:
        loss: (net, *batch) to a scalar.
        parameters: initial values by name.
        batches: host data; steps take them in turn.
        buffers: what is not trained, running statistics and tables.
        together: steps of one call, for peers that can run many; whole rounds of the batches.
        precision: of products, see PRECISIONS.
        images: whether channels-last batches and weights are another variant of peers.
    """

    loss: Callable[..., Any]
    parameters: Arrays
    rule: Rule
    batches: Sequence[tuple[Array, ...]]
    buffers: Arrays = field(default_factory=dict)
    together: int = 100
    precision: str = "ieee"
    images: bool = False
    goal = 0.7  # our time over the fastest peer's


@dataclass(frozen=True)
class ModelTraining:
    """Whole training steps of a module, which libraries with PyTorch's names build by one text.

    Batches lie on the device, so that no step waits for the bus.

    Attributes:
        model: (library) to a module; called with a batch, it returns the loss.
        rule: how parameters are updated.
        batches: host data; steps take them in turn.
        precision: of products, see PRECISIONS.
        deviation: the standard deviation of initial matrices; None is uniform by fan-in.
        images: whether channels-last batches and weights are another variant of peers.

    Its `goal` is our time over the fastest peer's.
    """

    model: Callable[[Any], Any]
    rule: Rule
    batches: Sequence[tuple[Array, ...]]
    precision: str = "ieee"
    deviation: float | None = None
    images: bool = False

    @property
    def goal(self) -> float:
        return 0.6 if self.precision == "ieee" else 1.0


@dataclass(frozen=True)
class Repetition:
    """A function applied again and again to its own result, such as reverse diffusion.

    Attributes:
        advance: (net, *state) to the next state.
        state: initial values.
        together: steps of one call, for peers that can run many.
    """

    advance: Callable[..., Any]
    parameters: Arrays
    buffers: Arrays
    state: tuple[Array, ...]
    together: int = 1000


@dataclass(frozen=True)
class Function:
    """One function of data on the device, or that and its gradients.

    Attributes:
        function: (net, *inputs) to one array.
        inputs: floating ones get gradients.
        cotangent: what is passed back, shaped as the result; None measures the function alone.
        dtype: "float32" or "bfloat16": what floating inputs and the cotangent are cast to.
    """

    function: Callable[..., Any]
    inputs: tuple[Array, ...]
    cotangent: Array | None = None
    dtype: str = "float32"


@dataclass(frozen=True)
class Update:
    """An optimizer's step alone, the gradients given.

    Attributes:
        gradients: by the parameters' names.
    """

    parameters: Arrays
    gradients: Arrays
    rule: Rule


@dataclass(frozen=True)
class Operation:
    """One product, convolution or attention, its operands in memory and in no cache.

    Attributes:
        family: "matmul", "convolution" or "attention".
        function: (net, *inputs) to one array.
        shapes: of the inputs, standard normal values.
        flops: of one call; a multiply-add is 2.
        dtype: "bfloat16", "float16" or "float32".
        precision: of float32, "ieee" or "tf32".
        gradient: the input whose gradient alone is timed, or ALL: the function and the gradients
            of all inputs; None times the function alone.
        result: shape of the result, where there is a gradient.
        goal: ours over the peer's TFLOP/s.
    """

    family: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    flops: float
    dtype: str = "bfloat16"
    precision: str = "ieee"
    gradient: int | None = None
    result: tuple[int, ...] = ()
    goal: float = 0.9

    @property
    def images(self) -> bool:
        return self.family == "convolution"

    @property
    def sets(self) -> int:
        """Sets of operands that calls take in turn, so that none is left in the cache."""
        size = 4 if self.dtype == "float32" else 2
        nbytes = size * sum(map(prod, (*self.shapes, self.result)))
        return min(max(1, -(-COLD_BYTES // nbytes)), SETS_AT_MOST)

    def inputs(self) -> tuple[Array, ...]:
        return tuple(normal(shape, seed) for seed, shape in enumerate(self.shapes))

    def cotangent(self) -> Array:
        return normal(self.result, len(self.shapes))


ALL = -1
# Three times the L2 cache of an H200, which has 50 MB.
COLD_BYTES, SETS_AT_MOST = 150_000_000, 12
Workload = Training | ModelTraining | Repetition | Function | Operation | Update
# Makes a workload; True asks for tiny shapes.
Maker = Callable[[bool], Workload]


class Initial:
    """Initial values by layer, PyTorch's default distributions, drawn by NumPy."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.values: dict[str, Array] = {}

    def _layer(self, name: str, shape: tuple[int, ...]) -> None:
        bound = 1 / np.sqrt(np.prod(shape[1:]))
        for part, size in (("weight", shape), ("bias", shape[:1])):
            drawn = self.rng.uniform(-bound, bound, size)
            self.values[f"{name}.{part}"] = drawn.astype(np.float32)

    def linear(self, name: str, inputs: int, outputs: int) -> None:
        self._layer(name, (outputs, inputs))

    def conv2d(self, name: str, inputs: int, outputs: int, kernel: int) -> None:
        self._layer(name, (outputs, inputs, kernel, kernel))

    def norm(self, name: str, channels: int) -> None:
        self.values[f"{name}.weight"] = np.ones(channels, np.float32)
        self.values[f"{name}.bias"] = np.zeros(channels, np.float32)


Shapes = tuple[tuple[str, tuple[int, ...]], ...]


@functools.lru_cache(maxsize=1)
def drawn(shapes: Shapes, deviation: float | None) -> dict[str, Array]:
    """Initial parameters of a module: matrices at random, weights of norms 1, biases 0.

    Args:
        shapes: by the parameters' names.
        deviation: see `ModelTraining`.
    """
    rng = np.random.default_rng(0)
    values: dict[str, Array] = {}
    for name, shape in shapes:
        if len(shape) == 1:
            one = "weight" in name
            values[name] = np.full(shape, float(one), np.float32)
        elif deviation is not None:
            values[name] = rng.standard_normal(shape, np.float32) * np.float32(deviation)
        else:
            bound = np.float32(1 / np.sqrt(np.prod(shape[1:])))
            values[name] = (2 * rng.random(shape, np.float32) - 1) * bound
    return values


@functools.lru_cache(maxsize=4)
def normal(shape: tuple[int, ...], seed: int = 0) -> Array:
    """Standard normal float32 values, not to be written to."""
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    values.flags.writeable = False
    return values
