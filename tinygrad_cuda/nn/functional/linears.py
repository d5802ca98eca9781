"""The linear map and dropout, on which other layers are built."""

from __future__ import annotations

import math

from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.nn.smooth import where
from tinygrad_cuda.tensors import math as tm
from tinygrad_cuda.tensors.arguments import plain_number
from tinygrad_cuda.tensors.autocast import in_half
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.call_replay import templated
from tinygrad_cuda.tensors.layout import strides_like
from tinygrad_cuda.tensors.random import draw_keep_mask
from tinygrad_cuda.tensors.tensor import Tensor


@templated
@in_half
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``input @ weight.T + bias``.

    Args:
        input: shape (..., in).
        weight: shape (out, in), or (in,).
        bias: shape (out,).

    Raises:
        ShapeError: the last size of input is not that of weight.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([[1.0, 2.0]], device="cpu")
        >>> linear(x, tc.tensor([[3.0, 4.0]], device="cpu")).tolist()
        [[11.0]]
    """
    if not input.ndim or input.shape[-1] != weight.shape[-1]:
        raise ShapeError(
            "linear",
            "the input does not fit the weight",
            expect=f"(..., {weight.shape[-1]})",
            actual=f"input: {tuple(input.shape)}  weight: {tuple(weight.shape)}",
            hint=_flatten_hint(tuple(input.shape), weight.shape[-1]),
        )
    output = input @ weight.T
    return output if bias is None else output + bias


def _flatten_hint(shape: tuple[int, ...], features: int) -> str | None:
    for start in range(len(shape) - 1):
        if math.prod(shape[start:]) == features:
            fitting = (*shape[:start], features)
            return f"input.flatten({start}) has shape {fitting} and would fit"
    return None


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zeroes elements with probability `p` and scales the rest by ``1 / (1 - p)``.

    Args:
        input: any shape.
        p: the probability of a zero.
        training: without it the input itself is returned.

    Raises:
        ArgumentError: `p` is no probability.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.ones(1000, device="cpu")
        >>> sorted(set(dropout(x, 0.5).tolist())), dropout(x, 0.5, training=False) is x
        ([0.0, 2.0], True)
    """
    p = plain_number("dropout", "p", p)
    if not 0.0 <= p <= 1.0:
        raise ArgumentError("dropout", "p is no probability", expect="0 <= p <= 1", actual=str(p))
    if not training or p == 0.0:
        return input
    mask = wrap(draw_keep_mask(input.node, 1.0 - p))
    scaled = input * (1.0 / (1.0 - p)) if p < 1.0 else input
    dropped = where(mask, scaled, 0.0)
    if inplace:
        return tm.store("dropout", input, dropped.node)
    return strides_like(dropped, input)
