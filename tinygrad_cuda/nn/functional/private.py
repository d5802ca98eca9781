"""Names with an underscore that layers of programs take from torch.nn.functional."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import prod
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError
from tinygrad_cuda.nn.functional.linears import linear
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.creation import zeros_like
from tinygrad_cuda.tensors.tensor import Tensor

GRID_SAMPLE_INTERPOLATION_MODES = {"bilinear": 0, "nearest": 1, "bicubic": 2}
GRID_SAMPLE_PADDING_MODES = {"zeros": 0, "border": 1, "reflection": 2}


def _get_softmax_dim(name: str, ndim: int, stacklevel: int) -> int:
    """The axis of a softmax that none was given for."""
    warnings.warn(
        f"Implicit dimension choice for {name} has been deprecated. "
        "Change the call to include dim=X as an argument.",
        stacklevel=stacklevel,
    )
    return 0 if ndim in (0, 1, 3) else 1


def _verify_batch_size(size: Sequence[int]) -> None:
    """Raises where a batch norm would have one value for each channel."""
    if prod((size[0], *size[2:])) == 1:
        raise ArgumentError(
            "batch_norm", "Expected more than 1 value per channel when training",
            expect="a larger batch, or eval()", actual=f"shape {tuple(size)}",
        )  # fmt: skip


def _verify_spatial_size(size: Sequence[int]) -> None:
    """Raises where an instance norm would have one value for each channel."""
    if prod(size[2:]) == 1:
        raise ArgumentError(
            "instance_norm", "Expected more than 1 spatial element when training",
            expect="a larger image, or eval()", actual=f"shape {tuple(size)}",
        )  # fmt: skip


def _none_or_dtype(input: Tensor | None) -> Any:
    """The dtype of a Tensor, None of None."""
    if input is None or isinstance(input, TensorBase):
        return None if input is None else input.dtype
    raise ArgumentError(
        "_none_or_dtype", "no Tensor", expect="a Tensor or None", actual=type(input).__name__
    )


def _canonical_mask(
    mask: Tensor | None, mask_name: str, other_type: Any, other_name: str, target_type: Any,
    check_other: bool = True,
) -> Tensor | None:  # fmt: skip
    """A mask of attention as numbers to add: -inf where a Boolean one is True."""
    if mask is None or mask.dtype.is_floating_point:
        wanted = None if mask is None else mask.dtype
    elif mask.dtype.name == "bool":
        wanted = mask.dtype
    else:
        raise DTypeError(
            mask_name, "a mask is of Booleans or floating", expect="bool or a floating dtype",
            actual=mask.dtype.name,
        )  # fmt: skip
    if mask is None:
        return None
    if check_other and other_type is not None and wanted is not other_type:
        warnings.warn(
            f"Support for mismatched {mask_name} and {other_name} is deprecated. "
            "Use same type for both instead.",
            stacklevel=2,
        )
    if mask.dtype.is_floating_point:
        return mask
    return zeros_like(mask, dtype=target_type).masked_fill_(mask, -float("inf"))


def _in_projection_packed(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor, b: Tensor | None = None
) -> list[Tensor]:
    """Queries, keys and values by one weight of three times as many rows."""
    weights = w.chunk(3)
    biases: Sequence[Tensor | None] = (None,) * 3 if b is None else b.chunk(3)
    return [linear(x, weight, bias) for x, weight, bias in zip((q, k, v), weights, biases)]


def _in_projection(
    q: Tensor, k: Tensor, v: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor,
    b_q: Tensor | None = None, b_k: Tensor | None = None, b_v: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Queries, keys and values by a weight each."""
    return linear(q, w_q, b_q), linear(k, w_k, b_k), linear(v, w_v, b_v)


def _mha_shape_check(
    query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None,
    attn_mask: Tensor | None, num_heads: int,
) -> bool:  # fmt: skip
    """Whether the arguments of an attention have a batch.

    Raises:
        ShapeError: their numbers of axes do not fit, or those of the masks.
    """
    batched = query.ndim == 3
    ranks = {"query": query.ndim, "key": key.ndim, "value": value.ndim}
    fits = query.ndim in (2, 3) and len(set(ranks.values())) == 1
    if key_padding_mask is not None:
        ranks["key_padding_mask"] = key_padding_mask.ndim
        fits = fits and key_padding_mask.ndim == query.ndim - 1
    if attn_mask is not None:
        ranks["attn_mask"] = attn_mask.ndim
        fits = fits and attn_mask.ndim in (2, 3)
    if fits and not batched and attn_mask is not None and attn_mask.ndim == 3:
        fits = tuple(attn_mask.shape) == (num_heads, query.shape[0], key.shape[0])
    if not fits:
        raise ShapeError(
            "multi_head_attention", "the numbers of axes do not fit",
            expect="2-d or 3-d query, key and value alike, a key_padding_mask of one axis less, "
            "a 2-d or 3-d attn_mask",
            actual=", ".join(f"{name}: {rank}-d" for name, rank in ranks.items()),
        )  # fmt: skip
    return batched
