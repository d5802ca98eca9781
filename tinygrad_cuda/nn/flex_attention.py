"""Attention whose scores a function changes: `nn.attention.flex_attention`, as in PyTorch.

After Dong et al., Flex Attention: A Programming Model for Generating Optimized Attention Kernels,
2024. A mask alone goes to the kernels of `scaled_dot_product_attention`; with a function of the
scores their whole matrix is computed, and the function is fused into what reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt
from typing import Any, NamedTuple

from tinygrad_cuda.core.dtypes import bool_
from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.nn.functional.attention import scaled_dot_product_attention
from tinygrad_cuda.tensors.base import TensorBase
from tinygrad_cuda.tensors.creation import arange, tensor
from tinygrad_cuda.tensors.functions import where
from tinygrad_cuda.tensors.tensor import Tensor

BLOCK = 128  # queries and keys of a block, whose shares are counted
Modification = Callable[..., Any]


def _positions(shape: tuple[int, ...], device: Any) -> list[Tensor]:
    """The indices of batch, head, query and key, each along an axis of its own."""
    sizes = [[-1 if axis == at else 1 for at in range(4)] for axis in range(4)]
    return [
        arange(count, dtype="int32", device=device).reshape(size)
        for count, size in zip(shape, sizes, strict=True)
    ]


def _modified(op: str, result: Any, shape: tuple[int, ...], device: Any) -> Tensor:
    """What a function of positions has returned, for each of them.

    Raises:
        ArgumentError: no Tensor or number, or it does not fit.
    """
    if not isinstance(result, TensorBase):
        if not isinstance(result, bool | int | float):
            raise ArgumentError(
                op, "the function returns no Tensor", expect="a Tensor of each score or position",
                actual=type(result).__name__,
            )  # fmt: skip
        result = tensor(result, device=device)
    made: Any = result
    expanded: Tensor = made.expand(shape)
    return expanded


def create_mask(
    mod_fn: Modification, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int,
    device: Any = None,
) -> Tensor:  # fmt: skip
    """Where queries see keys, by a function of positions.

    Args:
        mod_fn: ``(batch, head, query, key)`` gives a bool of int32 Tensors that broadcast; or a
            function of the score before them: then all is seen that it does not make -inf.
        B, H: batches and heads; 1 if None, where the function does not depend on them.
        Q_LEN, KV_LEN: queries and keys.
        device: of the mask.

    Returns:
        bool, shape (B, H, Q_LEN, KV_LEN).

    Example:
        >>> import tinygrad_cuda as tc
        >>> create_mask(lambda b, h, q, k: q >= k, None, None, 2, 2, device="cpu").tolist()
        [[[[True, False], [True, True]]]]
    """
    shape = (B or 1, H or 1, Q_LEN, KV_LEN)
    at = _positions(shape, device)
    if _takes_scores(mod_fn):
        scores = _modified("create_mask", mod_fn(0.0 * at[2], *at), shape, device)
        seen: Tensor = scores != float("-inf")
    else:
        seen = _modified("create_mask", mod_fn(*at), shape, device).bool()
    return seen


def _takes_scores(function: Modification) -> bool:
    """Whether a function has five arguments without defaults, of which the first is the score."""
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    taken: int = code.co_argcount - hasattr(function, "__self__")
    return taken - len(getattr(function, "__defaults__", None) or ()) == 5


class BlockMask:
    """A function that says which keys a query sees, and for how many it is asked.

    Args:
        mask_mod: as `create_mask` takes it.
        shape: batches, heads, queries and keys; 1 stands for any number of the first two.
        block_size: queries and keys of the blocks that `to_dense` and `sparsity` count.
        device: of `to_dense`.
    """

    def __init__(
        self, mask_mod: Modification, shape: tuple[int, int, int, int], block_size: tuple[int, int],
        device: Any,
    ) -> None:  # fmt: skip
        self.mask_mod, self.shape, self.seq_lengths = mask_mod, shape, shape[2:]
        self.BLOCK_SIZE, self.device = block_size, device

    def to(self, device: Any) -> BlockMask:
        """The same on another device; what the function refers to stays where it is."""
        return BlockMask(self.mask_mod, self.shape, self.BLOCK_SIZE, device)

    def numel(self) -> int:
        """Batches times heads times queries times keys."""
        return prod(self.shape)

    def to_dense(self) -> Tensor:
        """1 for each block of which something is seen: int32, shape (B, H, blocks, blocks)."""
        mask = create_mask(self.mask_mod, *self.shape, self.device)
        rows, columns = (-(-n // size) for n, size in zip(self.seq_lengths, self.BLOCK_SIZE))
        padded = mask.new_zeros(
            *self.shape[:2], rows * self.BLOCK_SIZE[0], columns * self.BLOCK_SIZE[1]
        )
        padded[:, :, : self.shape[2], : self.shape[3]] = mask
        blocks = padded.unflatten(3, (columns, -1)).unflatten(2, (rows, -1))
        seen: Tensor = blocks.any(5).any(3).int()
        return seen

    def sparsity(self) -> float:
        """Per cent of the scores that lie in blocks of which nothing is seen."""
        seen = int(self.to_dense().sum()) * prod(self.BLOCK_SIZE)
        return 100 * (1 - seen / self.numel())

    def __repr__(self) -> str:
        return f"BlockMask(shape={self.shape}, sparsity={self.sparsity():.2f}%)"


def create_block_mask(
    mask_mod: Modification, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int,
    device: Any = None, BLOCK_SIZE: int | tuple[int, int] = BLOCK, _compile: bool = False,
    separate_full_blocks: bool = True, compute_dq_write_order: bool = False,
    dq_kv_order: bool = True,
) -> BlockMask:  # fmt: skip
    """A mask for `flex_attention`, by a function of positions.

    Args:
        mask_mod, B, H, Q_LEN, KV_LEN, device: as of `create_mask`.
        BLOCK_SIZE: of the blocks that are counted.
        _compile, separate_full_blocks, compute_dq_write_order, dq_kv_order: accepted; how blocks
            are passed over is the kernels' affair.

    Example:
        >>> create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 256, 256, device="cpu").sparsity()
        25.0
    """
    size = BLOCK_SIZE if isinstance(BLOCK_SIZE, tuple) else (BLOCK_SIZE, BLOCK_SIZE)
    return BlockMask(mask_mod, (B or 1, H or 1, Q_LEN, KV_LEN), size, device)


class AuxRequest(NamedTuple):
    """What `flex_attention` returns besides: the logarithm of sums, the largest score of a row."""

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """What was asked for: float32, shape (B, H, L)."""

    lse: Tensor | None = None
    max_scores: Tensor | None = None


def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Modification | None = None,
    block_mask: BlockMask | None = None, scale: float | None = None, enable_gqa: bool = False,
    return_lse: bool = False, kernel_options: Any = None, *, return_aux: AuxRequest | None = None,
) -> Any:  # fmt: skip
    r"""``softmax(score_mod(query key.T * scale)) value``, over the keys that a mask shows.

    Args:
        query: shape (B, H, L, E).
        key, value: shapes (B, H, S, E), (B, H, S, V).
        score_mod: ``(score, batch, head, query, key)`` gives the score that counts. It is called
            once, with the scores in float32 and positions as int32 Tensors that broadcast, so it
            must be made of operations element by element and of indexing.
        block_mask: which keys are seen; see `create_block_mask`.
        scale: ``1 / sqrt(E)`` when left out.
        enable_gqa: queries have a multiple of the heads of keys and values.
        return_lse: also return the logarithm of each row's sum of exponentials.
        kernel_options: accepted.
        return_aux: what else to return, as an `AuxOutput`.

    Returns:
        Shape (B, H, L, V), and what was asked for. A query that sees no key gives zeros.

    Raises:
        ShapeError: shapes that do not fit each other, or the mask.

    Example:
        >>> import tinygrad_cuda as tc
        >>> q = tc.zeros(1, 1, 2, 4, device="cpu")
        >>> v = tc.tensor([[[[0.0], [1.0]]]], device="cpu")
        >>> flex_attention(q, q, v, lambda score, b, h, q, k: score + k * 100).tolist()
        [[[[1.0], [1.0]]]]
    """
    mask = _mask_for(query, key, value, block_mask, enable_gqa)
    if return_lse:
        return_aux = AuxRequest(lse=True)
    if score_mod is None and return_aux is None:
        return scaled_dot_product_attention(
            query, key, value, mask, scale=scale, enable_gqa=enable_gqa
        )
    if enable_gqa:
        times = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    scores = query @ key.transpose(-2, -1)
    scores = scores if scores.dtype.itemsize > 4 else scores.float()
    scores = scores * (1 / sqrt(query.shape[-1]) if scale is None else scale)
    if score_mod is not None:
        at = _positions(tuple(scores.shape), query.device)
        made = score_mod(scores, *at)
        scores = _modified("flex_attention", made, tuple(scores.shape), query.device)
    lowest = float("-inf")
    if mask is not None:
        scores = where(mask, scores, lowest)
    nothing = (scores == lowest).all(-1, keepdim=True)
    weights = where(nothing, 0.0, scores).softmax(-1)
    out = where(nothing, 0.0, weights).to(query.dtype) @ value
    if return_aux is None:
        return out
    lse = scores.logsumexp(-1).where(~nothing.squeeze(-1), lowest) if return_aux.lse else None
    if return_lse:
        return out, lse
    return out, AuxOutput(lse, scores.amax(-1) if return_aux.max_scores else None)


def _mask_for(
    query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask | None, grouped: bool
) -> Tensor | None:
    """The mask of these queries and keys.

    Raises:
        ShapeError: shapes that do not fit.
    """
    op = "flex_attention"
    shapes = f"{tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}"
    fits = query.ndim == key.ndim == value.ndim == 4 and key.shape[:3] == value.shape[:3]
    fits = fits and query.shape[0] == key.shape[0] and query.shape[3] == key.shape[3]
    if not fits or (query.shape[1] % key.shape[1] if grouped else query.shape[1] != key.shape[1]):
        raise ShapeError(
            op, "query, key and value do not fit",
            expect="(B, H, L, E), (B, H, S, E), (B, H, S, V)", actual=shapes,
        )  # fmt: skip
    if block_mask is None:
        return None
    wanted = (*query.shape[:3], key.shape[2])
    batches, heads, *lengths = block_mask.shape
    if batches not in (1, wanted[0]) or heads not in (1, wanted[1]) or (*lengths,) != wanted[2:]:
        raise ShapeError(
            op, "the mask is for other queries or keys", expect=str(wanted),
            actual=str(block_mask.shape),
        )  # fmt: skip
    return create_mask(block_mask.mask_mod, *block_mask.shape, query.device)


def noop_mask(batch: Tensor, head: Tensor, token_q: Tensor, token_kv: Tensor) -> Tensor:
    """All keys are seen."""
    return batch.new_ones((), dtype=bool_)


def and_masks(*mask_mods: Modification) -> Modification:
    """What all of the functions show."""

    def shown(*at: Tensor) -> Any:
        result = noop_mask(*at)
        for function in mask_mods:
            result = result & function(*at)
        return result

    return shown


def or_masks(*mask_mods: Modification) -> Modification:
    """What one of the functions shows at least."""

    def shown(*at: Tensor) -> Any:
        result = ~noop_mask(*at)
        for function in mask_mods:
            result = result | function(*at)
        return result

    return shown


__all__ = [
    "AuxOutput", "AuxRequest", "BlockMask", "and_masks", "create_block_mask", "create_mask",
    "flex_attention", "noop_mask", "or_masks",
]  # fmt: skip
