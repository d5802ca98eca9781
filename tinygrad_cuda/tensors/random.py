"""Random tensors: a Generator on the host numbers them, Philox gives the same bits on any device.

A random node is recomputed from its seed and number wherever it is needed; no mask is stored.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad_cuda.core.device import CPU, Device, as_device
from tinygrad_cuda.core.dtypes import DType, as_dtype, float32, iinfo, int64
from tinygrad_cuda.core.errors import ArgumentError, CompileError, DTypeError
from tinygrad_cuda.core.locks import new_lock
from tinygrad_cuda.core.shapes import Shape, as_shape
from tinygrad_cuda.engine.capture import capturing, repeated, watching
from tinygrad_cuda.engine.realize import UNIT, register_check
from tinygrad_cuda.engine.vmap_trace import note_draw, tracing
from tinygrad_cuda.graph.node import Node, current_site
from tinygrad_cuda.graph.ops import common, elementwise, philox
from tinygrad_cuda.graph.ops import random as ops
from tinygrad_cuda.graph.ops.indexing import check_unit
from tinygrad_cuda.tensors.arguments import plain_number
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.creation import (
    DeviceLike,
    DTypeLike,
    as_leaf,
    buffer_node,
    get_default_dtype,
    resolve_device,
)
from tinygrad_cuda.tensors.layout import copied_strides
from tinygrad_cuda.tensors.promotion import promote, to_dtype, to_shape

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "Generator", "bernoulli", "default_generator", "get_rng_state", "initial_seed",
    "manual_seed", "normal", "rand", "rand_like", "randint", "randint_like", "randn",
    "randn_like", "randperm", "seed", "set_rng_state",
]  # fmt: skip


# Generators ---------------------------------------------------------------------------------------


class Generator:
    """A stream of random numbers: a seed and the number of the next random node.

    Both live on the host, so the state is read without waiting for a device, and the same seed
    gives the same bits everywhere.

    Args:
        device: accepted for PyTorch's sake; a Generator serves every device.

    Example:
        >>> import tinygrad_cuda as tc
        >>> g = tc.Generator().manual_seed(7)
        >>> a = tc.rand(3, generator=g, device="cpu")
        >>> b = tc.rand(3, generator=g.manual_seed(7), device="cpu")
        >>> a.tolist() == b.tolist()
        True
    """

    def __init__(self, device: DeviceLike = None) -> None:
        self.device = CPU if device is None else as_device(device)
        self._lock = new_lock()
        self._seed = 67280421310721
        self._next = self._orders = 0

    def manual_seed(self, seed: int) -> Generator:
        """Restarts the stream of `seed` (taken modulo 2**64)."""
        with self._lock:
            self._seed, self._next, self._orders = int(seed) % 2**64, 0, 0
        if (capture := capturing()) is not None:
            capture.seeded(self)
            repeated(self.manual_seed, seed)
        return self

    def seed(self) -> int:
        """Begins a stream with an unpredictable seed, and returns it.

        Raises:
            CompileError: inside a compiled function.
        """
        _refuse_inside("seed")
        seed = secrets.randbits(64)
        self.manual_seed(seed)
        return seed

    def initial_seed(self) -> int:
        """The seed of the stream.

        Raises:
            CompileError: inside a compiled function.
        """
        _refuse_inside("initial_seed")
        return self._seed

    def take(self) -> tuple[int, int]:
        """The seed and the number of the next random node."""
        with self._lock:
            number = self._next
            self._next = number + 1
            seed = self._seed
        capture = capturing()
        return (seed, number) if capture is None else capture.draw(self, seed, number)

    def take_order(self) -> int:
        """How many orders of data had their seed from here since `manual_seed`; counts one more.

        They are no random nodes, so that loading data changes no other numbers.
        """
        with self._lock:
            number = self._orders
            self._orders = number + 1
        return number

    def reserve(self, count: int) -> tuple[int, int]:
        """The seed, and the first of `count` numbers of random nodes in a row."""
        with self._lock:
            first = self._next
            self._next = first + count
            return self._seed, first

    def get_state(self) -> Tensor:
        """Seed and next number as a uint8 Tensor on cpu."""
        seed, number = self.position()
        node = buffer_node(_state_of(seed, number), CPU)
        if (capture := capturing()) is not None:
            position = capture.peek(self, seed, number)
            capture.drawn_on_host(node.storage, _state_of, CPU, *position)
        return wrap(node)

    def clone_state(self) -> Generator:
        """Another Generator, whose stream is at the same place."""
        twin = Generator(self.device)
        twin.set_state(self.get_state())
        return twin

    def set_state(self, state: Tensor) -> None:
        """Goes back (or on) to where `get_state` was called.

        Raises:
            ArgumentError: the Tensor is not the state of a Generator.
        """
        capture = capturing()
        if capture is not None and capture.draws(state.realized().storage):
            # Not a look at a value: a replay sets the position of that moment, too.
            array: np.ndarray[Any, Any] = np.asarray(state.realized().storage)
        else:
            array = state.array()
        if array.dtype != np.uint8 or array.shape != (16,):
            raise ArgumentError(
                "set_state",
                "not the state of a Generator",
                expect="16 bytes (uint8)",
                actual=f"{array.shape} {array.dtype}",
            )
        seed, number = np.ascontiguousarray(array).view("<u8").tolist()
        if capture is not None:
            capture.rewound(self, seed, number)
        with self._lock:
            self._seed, self._next = seed, number

    def position(self) -> tuple[int, int]:
        """The seed and the number that comes next."""
        with self._lock:
            return self._seed, self._next


def _state_of(seed: int, number: int) -> np.ndarray[Any, Any]:
    """The state of a Generator as bytes."""
    return np.array([seed, number], dtype="<u8").view(np.uint8)


def _refuse_inside(op: str) -> None:
    if capturing() is not None:
        raise CompileError(
            op,
            "a seed is a Python number that a replay would not read again",
            expect="manual_seed(number), or the state as a Tensor: get_state()",
            actual=f"{op}() while the function is traced",
            hint=f"call {op}() outside the compiled function",
        )


default_generator = Generator()


def manual_seed(seed: int) -> Generator:
    """Restarts the default stream of random numbers; the same on every device.

    Example:
        >>> import tinygrad_cuda as tc
        >>> _ = tc.manual_seed(0)
        >>> x = tc.rand(2, device="cpu")
        >>> _ = tc.manual_seed(0)
        >>> x.equal(tc.rand(2, device="cpu"))
        True
    """
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Seeds the default stream with an unpredictable number, and returns it."""
    return default_generator.seed()


def initial_seed() -> int:
    """The seed of the default stream."""
    return default_generator.initial_seed()


def get_rng_state() -> Tensor:
    """The state of the default stream."""
    return default_generator.get_state()


def set_rng_state(new_state: Tensor) -> None:
    """Puts the default stream where `get_rng_state` was called."""
    default_generator.set_state(new_state)


# Nodes --------------------------------------------------------------------------------------------


def numbered(generator: Generator | None, on_host: bool = False) -> dict[str, int]:
    """What makes a random node the next of its stream; `on_host` if NumPy draws instead."""
    seed, number = (generator or default_generator).take()
    if tracing.stack:
        note_draw(seed, number, on_host)
    return {"seed": seed, "number": number}


def drawn_on_host(
    draw: Callable[[int, int], np.ndarray[Any, Any]],
    device: Device,
    generator: Generator | None,
    on_host: bool = False,
) -> Node:
    """A realized node whose value NumPy draws; replays of a compiled function draw it again.

    Args:
        draw: gives the array from a seed and the number of a random node.
        on_host: as `numbered` takes it.
    """
    numbers = numbered(generator, on_host)
    node = buffer_node(draw(numbers["seed"], numbers["number"]), device)
    if watching.on and (capture := capturing()) is not None:
        capture.drawn_on_host(node.storage, draw, device, **numbers)
    return node


def _floating(op: str, dtype: DType) -> DType:
    if not dtype.is_floating:
        raise DTypeError(
            op,
            "random reals need a floating dtype",
            expect="float16, bfloat16, float32 or float64",
            actual=dtype.name,
        )
    return dtype


def uniform_node(
    shape: Shape, dtype: DType, device: Device, generator: Generator | None = None
) -> Node:
    """Uniform numbers in [0, 1)."""
    return ops.random_uniform.leaf(shape, dtype, device, **numbered(generator))


def complex_node(draw: Callable[..., Node], shape: Shape, dtype: DType, *more: Any) -> Node:
    """Complex numbers whose parts are drawn one after another."""
    part = dtype.to_real()
    return elementwise.complex_(draw(shape, part, *more), draw(shape, part, *more))


def normal_node(
    shape: Shape, dtype: DType, device: Device, generator: Generator | None = None
) -> Node:
    """Standard normal numbers."""
    return ops.random_normal.leaf(shape, dtype, device, **numbered(generator))


def draw_keep_mask(like: Node, probability: float, generator: Generator | None = None) -> Node:
    """A bool node that is true with `probability`: a dropout mask, never stored."""
    drawn = uniform_node(like.shape, float32, like.device, generator)
    return elementwise.lt(drawn, common.full_like(drawn, probability))


def _affine(node: Node, scale: float, shift: float) -> Node:
    if scale != 1:
        node = elementwise.mul(node, common.full_like(node, scale))
    return node if shift == 0 else elementwise.add(node, common.full_like(node, shift))


# Functions ----------------------------------------------------------------------------------------


def _options(
    op: str, dtype: DTypeLike, device: DeviceLike, floating: bool = True
) -> tuple[DType, Device]:
    chosen = get_default_dtype() if dtype is None else as_dtype(dtype)
    if floating and not chosen.is_complex:
        _floating(op, chosen)
    return chosen, resolve_device(device)


def rand(
    *sizes: Any,
    size: Any = None,
    generator: Generator | None = None,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """Uniform random numbers in [0, 1).

    Args:
        sizes: the shape, as integers or as one tuple; `size` is the tuple by name.
        generator: the stream to draw from; the default one when left out.
    """
    shape = as_shape("rand", sizes if size is None else (size,))
    chosen, target = _options("rand", dtype, device)
    if chosen.is_complex:
        drawn = complex_node(uniform_node, shape, chosen, target, generator)
        return as_leaf(wrap(drawn), requires_grad)
    return as_leaf(wrap(uniform_node(shape, chosen, target, generator)), requires_grad)


def randn(
    *sizes: Any,
    size: Any = None,
    generator: Generator | None = None,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """Random numbers of the standard normal distribution; arguments as for `rand`."""
    shape = as_shape("randn", sizes if size is None else (size,))
    chosen, target = _options("randn", dtype, device)
    if chosen.is_complex:  # of variance 1, as in PyTorch: 1/2 of each part
        drawn = _affine(complex_node(normal_node, shape, chosen, target, generator), 0.5**0.5, 0)
        return as_leaf(wrap(drawn), requires_grad)
    return as_leaf(wrap(normal_node(shape, chosen, target, generator)), requires_grad)


def randint(
    low: int = 0,
    high: Any = None,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """Random integers in [low, high).

    Args:
        low: the least value; ``randint(high, size)`` counts from 0.
        high: one more than the largest value.
        size: the shape.
        dtype: int64 when left out.

    Raises:
        ArgumentError: the range is empty or exceeds int64.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.randint(3, 6, (100,), device="cpu")
        >>> 3 <= x.min().item() <= x.max().item() < 6
        True
    """
    if size is None:
        low, high, size = 0, low, high
    elif high is None:
        low, high = 0, low
    if not isinstance(size, tuple | list):
        raise ArgumentError(
            "randint", "the size is not a tuple", expect="(2, 3)", actual=repr(size)
        )
    low, high = int(low), int(high)
    if not -(2**63) <= low < high <= 2**63:
        raise ArgumentError(
            "randint",
            "the range is empty or exceeds int64",
            expect="low < high",
            actual=f"low={low}, high={high}",
        )
    chosen = _dtype_of_range(dtype, low, high)
    node = ops.random_integer.leaf(
        as_shape("randint", size),
        int64,
        resolve_device(device),
        **numbered(generator),
        low=low,
        high=high,
    )
    return as_leaf(wrap(to_dtype(node, chosen)), requires_grad)


def _dtype_of_range(dtype: DTypeLike, low: int, high: int) -> DType:
    chosen = int64 if dtype is None else as_dtype(dtype)
    if chosen.is_integer:
        limits = iinfo(chosen)
        if low < limits.min or high - 1 > limits.max:
            raise ArgumentError(
                "randint", f"{chosen.name} does not hold all of the range",
                expect=f"numbers from {limits.min} to {limits.max}",
                actual=f"low={low}, high={high}",
            )  # fmt: skip
    return chosen


def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
) -> Tensor:
    """A random permutation of 0 ... n - 1, drawn on the host: the same on every device."""
    if n < 0:
        raise ArgumentError("randperm", "n is negative", expect="n >= 0", actual=str(n))
    chosen = int64 if dtype is None else as_dtype(dtype)

    def draw(seed: int, number: int) -> np.ndarray[Any, Any]:
        return philox.permutation(seed, number, n).astype(chosen.numpy)

    return wrap(drawn_on_host(draw, resolve_device(device), generator))


def normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
) -> Tensor:
    """Normal random numbers with mean `mean` and standard deviation `std`.

    Args:
        mean, std: numbers, with a `size`; or Tensors, which are broadcast and give the shape.

    Raises:
        ArgumentError: a standard deviation is negative, or numbers come without a size.
    """
    if isinstance(std, int | float) and std < 0:
        raise ArgumentError("normal", "std is negative", expect="std >= 0", actual=str(std))
    if size is not None:
        mean, std = plain_number("normal", "mean", mean), plain_number("normal", "std", std)
    if isinstance(mean, TensorBase) or isinstance(std, TensorBase):
        m, s = promote("normal", mean, std)
        drawn = normal_node(m.shape, _floating("normal", m.dtype), m.device, generator)
        return wrap(elementwise.add(elementwise.mul(drawn, s), m))
    if size is None:
        raise ArgumentError(
            "normal",
            "numbers need a size",
            expect="a size, since mean and std are numbers",
            actual="None",
            hint="normal(0.0, 1.0, (2, 3))",
        )
    chosen, target = _options("normal", dtype, device)
    shape = as_shape("normal", size if isinstance(size, tuple | list) else (size,))
    return wrap(_affine(normal_node(shape, chosen, target, generator), std, mean))


def probability_node(op: str, node: Node, what: str) -> Node:
    """The values of a floating node, which the device checks to lie between 0 and 1."""
    return check_unit(node, what=what, code=register_check(op, what, current_site(), UNIT))


def bernoulli(input: Tensor, *, generator: Generator | None = None) -> Tensor:
    """1 with the probability that each element of `input` gives, else 0.

    Raises:
        ArgumentError: an element is not between 0 and 1, when the result is looked at.
    """
    node = input.node
    _floating("bernoulli", node.dtype)
    wide = to_dtype(node, float32) if node.dtype.itemsize < 4 else node
    chance = probability_node("bernoulli", wide, "input")
    drawn = uniform_node(wide.shape, wide.dtype, wide.device, generator)
    ones = to_dtype(elementwise.lt(drawn, chance), node.dtype)
    return wrap(common.nothing_written(ones, node))


def _like(input: Tensor, dtype: DTypeLike, device: DeviceLike) -> dict[str, Any]:
    return {
        "dtype": input.dtype if dtype is None else dtype,
        "device": input.device if device is None else device,
    }


def rand_like(
    input: Tensor,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """`rand` with the shape, dtype, device and order of dimensions of `input`."""
    options = _like(input, dtype, device)
    drawn = rand(input.node.shape, generator=generator, requires_grad=requires_grad, **options)
    return copied_strides(drawn, input)


def randn_like(
    input: Tensor,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """`randn` with the shape, dtype, device and order of dimensions of `input`."""
    options = _like(input, dtype, device)
    drawn = randn(input.node.shape, generator=generator, requires_grad=requires_grad, **options)
    return copied_strides(drawn, input)


def randint_like(
    input: Tensor,
    low: int | None = None,
    high: int | None = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
) -> Tensor:
    """`randint` with the shape, dtype and device of `input`; one bound alone is `high`.

    Raises:
        ArgumentError: no bound is given.
    """
    options = _like(input, dtype, device)
    if low is None and high is None:
        raise ArgumentError(
            "randint_like", "no bound is given", expect="high", actual="None for both"
        )
    low, high = (0, low) if high is None else (low or 0, high)
    drawn = randint(low, high, input.node.shape, generator=generator, **options)
    return copied_strides(drawn, input)


# In place -----------------------------------------------------------------------------------------


def uniform_(
    input: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Fills the tensor with uniform random numbers in [low, high).

    Raises:
        ArgumentError: ``high < low``.
    """
    if high < low:
        raise ArgumentError(
            "uniform_", "the range is empty", expect="low <= high", actual=f"[{low}, {high})"
        )
    node = input.node
    drawn = uniform_node(node.shape, _floating("uniform_", node.dtype), node.device, generator)
    input.write(_affine(drawn, high - low, low), "uniform_")
    return input


def normal_(
    input: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Fills the tensor with normal random numbers.

    Raises:
        ArgumentError: the standard deviation is negative.
    """
    if std < 0:
        raise ArgumentError("normal_", "std is negative", expect="std >= 0", actual=str(std))
    node = input.node
    drawn = normal_node(node.shape, _floating("normal_", node.dtype), node.device, generator)
    input.write(_affine(drawn, std, mean), "normal_")
    return input


def bernoulli_(input: Tensor, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Fills the tensor with 1, with probability `p` (a number or a Tensor), and 0."""
    node = input.node
    drawn = uniform_node(node.shape, float32, node.device, generator)
    if isinstance(p, TensorBase):
        chance = probability_node("bernoulli_", to_dtype(p.node, float32), "p")
        chance = to_shape(chance, node.shape)
    else:
        if not 0 <= p <= 1:
            raise ArgumentError(
                "bernoulli_", "p is not between 0 and 1", expect="0 <= p <= 1", actual=str(p)
            )
        chance = common.full_like(drawn, p)
    input.write(to_dtype(elementwise.lt(drawn, chance), node.dtype), "bernoulli_")
    return input
