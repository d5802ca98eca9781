"""vmap: a function of one example as a function of a batch of them.

The function is recorded once, for one example; its graph is then recorded again for the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.core.trees import leaves, rebuilt, spread
from tinygrad_cuda.engine.vmap_trace import Recording
from tinygrad_cuda.graph.batching import Rewriting, example, leading, placed
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.shaping import cat
from tinygrad_cuda.tensors.tensor import Tensor

RANDOMNESS = ("error", "different", "same")


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """A function that applies `func` to each example along a dimension of its arguments.

    ``vmap(f)(x)[i] = f(x[i])``, computed for all examples together: `func` is recorded for one of
    them, and each operation is then replaced by its form for a batch. So it may not look at
    values, write what differs between examples to Tensors from outside, or depend on how many
    examples there are. vmaps nest, and `tc.func.grad` inside gives a gradient for each example.

    Args:
        func: takes Tensors (nested in tuples, lists and dicts as you like) and returns such.
        in_dims: the dimension that counts the examples, or None for an argument that is the same
            for all; one for all positional arguments, or a tuple with one (or a structure) for
            each. Keyword arguments are the same for all, as in PyTorch.
        out_dims: where the new dimension goes in the results; None for a result that is the same
            for all. One for all, or a structure like that of the result.
        randomness: what a random function inside does: ``error``, ``different`` (draws for each
            example) or ``same`` (draws once).
        chunk_size: compute so many examples at a time, with less memory.

    Raises:
        ShapeError: a dimension does not exist, or the counts of examples differ.
        ArgumentError: an argument to map is no Tensor, the structures do not match, a value was
            looked at inside, a random function was called, or an operation has no rule.

    Example:
        >>> import tinygrad_cuda as tc
        >>> rows = tc.tensor([[1.0, 2.0], [3.0, 4.0]], device="cpu")
        >>> v = tc.tensor([1.0, 10.0], device="cpu")
        >>> tc.vmap(tc.dot, in_dims=(0, None))(rows, v).tolist()
        [21.0, 43.0]
        >>> per_sample = tc.vmap(tc.func.grad(lambda w, x: (w * x).sum() ** 2), in_dims=(None, 0))
        >>> per_sample(v, rows).tolist()
        [[42.0, 84.0], [258.0, 344.0]]
    """
    if randomness not in RANDOMNESS:
        raise ArgumentError(
            "vmap", "unknown randomness", expect=", ".join(map(repr, RANDOMNESS)),
            actual=repr(randomness),
        )  # fmt: skip
    if chunk_size is not None and chunk_size < 1:
        raise ArgumentError(
            "vmap", "no example at a time", expect="chunk_size >= 1", actual=str(chunk_size)
        )

    @functools.wraps(func)
    def mapped(*args: Any, **options: Any) -> Any:
        call = _BatchedCall(args, options, in_dims)
        if chunk_size is None or call.size <= chunk_size:
            return _run(func, call, call.given, call.size, out_dims, randomness)
        parts = [
            _run(func, call, call.part(first, count), count, out_dims, randomness)
            for first in range(0, call.size, chunk_size)
            for count in [min(chunk_size, call.size - first)]
        ]
        return _joined(parts, out_dims)

    return mapped


class _BatchedCall:
    """The arguments of one call, flat, with the dimension along which each is mapped."""

    def __init__(self, args: tuple[Any, ...], options: dict[str, Any], in_dims: Any) -> None:
        self.like, self.options = args, options
        self.given = leaves(args)
        if isinstance(in_dims, list):
            in_dims = tuple(in_dims)
        try:
            self.dims = spread(in_dims, args)
        except ValueError:
            raise ArgumentError(
                "vmap",
                "in_dims do not match the arguments",
                expect=f"an int, None or a tuple of {len(args)}, one for each argument",
                actual=repr(in_dims),
            ) from None
        sizes: dict[int, int] = {}
        for position, (value, dim) in enumerate(zip(self.given, self.dims)):
            if dim is not None:
                self.dims[position] = _checked_dim(position, value, dim)
                sizes[position] = value.shape[self.dims[position]]
        if len(set(sizes.values())) != 1:
            raise ShapeError(
                "vmap",
                "the counts of examples differ" if sizes else "nothing is mapped",
                expect="one count in all mapped arguments",
                actual=", ".join(f"{n} in argument {k}" for k, n in sizes.items())
                or "no Tensor with a dimension in in_dims",
            )
        self.size = next(iter(sizes.values()))

    def part(self, first: int, count: int) -> list[Any]:
        """The arguments for some of the examples."""
        return [
            value if dim is None else value.narrow(dim, first, count)
            for value, dim in zip(self.given, self.dims)
        ]


def _checked_dim(position: int, value: Any, dim: Any) -> int:
    if not isinstance(value, TensorBase):
        raise ArgumentError(
            "vmap",
            f"argument {position} is mapped, and is no Tensor",
            expect="a Tensor, or None in in_dims",
            actual=f"{type(value).__name__} with in_dims {dim!r}",
        )
    rank = len(value.shape)
    if not isinstance(dim, int) or not -rank <= dim < rank:
        raise ShapeError(
            "vmap",
            f"argument {position} has no dimension {dim}",
            expect=f"-{rank} <= dim < {rank}" if rank else "at least one dimension, or None",
            actual=f"{dim!r}, shape {tuple(value.shape)}",
        )
    return dim % rank


def _run(
    func: Callable[..., Any], call: _BatchedCall, given: list[Any], size: int, out_dims: Any,
    randomness: str,
) -> Any:  # fmt: skip
    """Records the function for one example, and its graph again for all."""
    replaced: dict[Node, Node] = {}
    with Recording(randomness) as recording:
        values = []
        for value, dim in zip(given, call.dims):
            if dim is None:
                values.append(value)
                continue
            whole = leading(value.node, dim)
            one = example.leaf(whole.shape[1:], whole.dtype, whole.device)
            one.requires_grad = whole.requires_grad
            replaced[one] = whole
            recording.examples.add(one)
            values.append(wrap(one))
        returned = func(*rebuilt(call.like, iter(values)), **call.options)
        flat = [_output(value) for value in leaves(returned)]
        draws = recording.draws
    rewriting = Rewriting(replaced, size, draws)
    rewriting(flat)
    dims = _out_dims(out_dims, returned)
    results = [_placed(rewriting, node, dim) for node, dim in zip(flat, dims)]
    return rebuilt(returned, iter(results))


def _output(value: Any) -> Node:
    if not isinstance(value, TensorBase):
        raise ArgumentError(
            "vmap",
            "the function returned something other than Tensors",
            expect="a Tensor, or tuples, lists and dicts of them",
            actual=type(value).__name__,
        )
    return value.node


def _out_dims(out_dims: Any, result: Any) -> list[Any]:
    try:
        return spread(out_dims, result)
    except ValueError:
        raise ArgumentError(
            "vmap",
            "out_dims do not match the results",
            expect="an int, None, or a structure like that of the results",
            actual=repr(out_dims),
        ) from None


def _placed(rewriting: Rewriting, node: Node, dim: Any) -> Tensor:
    """A result with the new dimension where it is wanted."""
    if dim is None:
        if node in rewriting.rewritten:
            raise ArgumentError(
                "vmap",
                "a result differs from example to example",
                expect="an int in out_dims",
                actual=f"None, for a result of shape {node.shape}",
            )
        return wrap(node)
    rank = len(node.shape) + 1
    if not -rank <= dim < rank:
        raise ShapeError(
            "vmap",
            f"a result cannot have the new dimension at {dim}",
            expect=f"-{rank} <= dim < {rank}",
            actual=f"{dim}, for a result of shape {node.shape}",
        )
    return wrap(placed(rewriting.batched(node), dim % rank))


def _joined(parts: list[Any], out_dims: Any) -> Any:
    """The results of all chunks as one."""
    dims = _out_dims(out_dims, parts[0])
    columns = zip(*map(leaves, parts))
    whole = [
        column[0] if dim is None else cat(column, dim) for column, dim in zip(columns, dims)
    ]  # fmt: skip
    return rebuilt(parts[0], iter(whole))
