"""Functions of `nn.functional` that PyTorch also has at the top, there with positional arguments.

Order and defaults are those of PyTorch's top level: there a loss is not reduced unless asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinygrad_cuda.core.dtypes import float64
from tinygrad_cuda.nn import functional as F
from tinygrad_cuda.nn.functional.embeddings import belonging, counting, largest_rows
from tinygrad_cuda.tensors.arguments import checked_names
from tinygrad_cuda.tensors.tensor import Tensor

REDUCTIONS = ("none", "mean", "sum")
BAGS = ("sum", "mean", "max")


def _word(reduction: Any) -> str:
    """A reduction, which PyTorch's top level numbers."""
    return reduction if isinstance(reduction, str) else REDUCTIONS[reduction]


def embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:  # fmt: skip
    """`nn.functional.embedding` with the table first; a `padding_idx` of -1 means none."""
    padding = None if padding_idx == -1 else padding_idx
    return F.embedding(
        indices, weight, padding, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse
    )


def embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False,
    mode: Any = 0, sparse: bool = False, per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False, padding_idx: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """`nn.functional.embedding_bag` with the table first, and what its gradient needs.

    Args:
        weight: shape (V, D).
        indices: row numbers, shape (L,).
        offsets: where each of B bags begins.
        mode: 0 or ``sum``, 1 or ``mean``, 2 or ``max``.

    Returns:
        The bags (B, D); the bag of each index (L,), none for sums of single precision or less;
        how many rows count in each bag (B,), zeros for sums; and for ``max`` the rows of the
        maxima (B, D), otherwise the counts again.

    Raises:
        ArgumentError: the mode is unknown, or the arguments exclude each other.
        ShapeError: the indices have not one dimension.

    Example:
        >>> import tinygrad_cuda as tc
        >>> table = tc.tensor([[1.0], [2.0], [5.0]], device="cpu")
        >>> rows, begins = (tc.tensor(x, device="cpu") for x in ([0, 2, 1], [0, 2]))
        >>> tc.embedding_bag(table, rows, begins)[0].tolist()
        [[6.0], [2.0]]
    """
    word = mode if isinstance(mode, str) else dict(enumerate(BAGS)).get(mode, mode)
    bags = F.embedding_bag(
        indices, weight, offsets, None, 2.0, scale_grad_by_freq, word, sparse,
        per_sample_weights, include_last_offset, padding_idx,
    )  # fmt: skip
    inside = belonging(offsets, indices.shape[0], include_last_offset)
    of_bag = inside.long().argmax(0).to(indices.dtype)
    if word == "sum":
        # PyTorch's quick sums keep no bag numbers: float64 and padding have none such.
        quick = weight.dtype is not float64 and padding_idx is None
        sizes = indices.new_zeros(bags.shape[0])
        return bags, indices.new_zeros(0) if quick else of_bag, sizes, sizes.clone()
    inside = inside & counting("embedding_bag", indices, padding_idx, weight.shape[0])
    sizes = inside.sum(1).to(indices.dtype)
    if word == "mean":
        return bags, of_bag, sizes, sizes.clone()
    return bags, of_bag, sizes, largest_rows(weight.detach(), indices, inside)


def _dropping(function: Callable[..., Tensor], inplace: bool, name: str) -> Callable[..., Tensor]:
    def drop(input: Tensor, p: float, train: bool) -> Tensor:
        return function(input, p, train, inplace)

    drop.__name__ = drop.__qualname__ = name
    drop.__doc__ = f"`nn.functional.{function.__name__}`{' in place' if inplace else ''}."
    return drop


dropout = _dropping(F.dropout, False, "dropout")
dropout_ = _dropping(F.dropout, True, "dropout_")
alpha_dropout = _dropping(F.alpha_dropout, False, "alpha_dropout")
alpha_dropout_ = _dropping(F.alpha_dropout, True, "alpha_dropout_")
feature_alpha_dropout = _dropping(F.feature_alpha_dropout, False, "feature_alpha_dropout")
feature_alpha_dropout_ = _dropping(F.feature_alpha_dropout, True, "feature_alpha_dropout_")


def batch_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, training: bool, momentum: float, eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:  # fmt: skip
    """`nn.functional.batch_norm`."""
    return F.batch_norm(
        input, running_mean, running_var, weight, bias, training, momentum, eps
    )  # fmt: skip


def instance_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, use_input_stats: bool, momentum: float, eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:  # fmt: skip
    """`nn.functional.instance_norm`."""
    return F.instance_norm(
        input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
    )  # fmt: skip


def adaptive_max_pool1d(input: Tensor, output_size: Any) -> tuple[Tensor, Tensor]:
    """`nn.functional.adaptive_max_pool1d` with the indices."""
    values, indices = F.adaptive_max_pool1d(input, output_size, return_indices=True)
    return values, indices


def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None,
    reduction: Any = 0,
) -> Tensor:  # fmt: skip
    """`nn.functional.binary_cross_entropy_with_logits`; the reduction may be a number."""
    return F.binary_cross_entropy_with_logits(
        input, target, weight, reduction=_word(reduction), pos_weight=pos_weight
    )


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: Any = 0
) -> Tensor:
    """`nn.functional.cosine_embedding_loss`; the reduction may be a number."""
    return F.cosine_embedding_loss(input1, input2, target, margin, reduction=_word(reduction))


def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, reduction: Any = 0
) -> Tensor:
    """`nn.functional.hinge_embedding_loss`; the reduction may be a number."""
    return F.hinge_embedding_loss(input, target, margin, reduction=_word(reduction))


def kl_div(
    input: Tensor, target: Tensor, reduction: Any = 0, *, log_target: bool = False
) -> Tensor:
    """`nn.functional.kl_div`; the reduction may be a number."""
    return F.kl_div(input, target, reduction=_word(reduction), log_target=log_target)


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: Any = 0
) -> Tensor:
    """`nn.functional.margin_ranking_loss`; the reduction may be a number."""
    return F.margin_ranking_loss(input1, input2, target, margin, reduction=_word(reduction))


def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2.0,
    eps: float = 1e-6, swap: bool = False, reduction: Any = 0,
) -> Tensor:  # fmt: skip
    """`nn.functional.triplet_margin_loss`; the reduction may be a number."""
    return F.triplet_margin_loss(
        anchor, positive, negative, margin, p, eps, swap, reduction=_word(reduction)
    )


def poisson_nll_loss(
    input: Tensor, target: Tensor, log_input: bool, full: bool, eps: float, reduction: Any
) -> Tensor:
    """`nn.functional.poisson_nll_loss`; the reduction may be a number."""
    return F.poisson_nll_loss(
        input, target, log_input, full, eps=eps, reduction=_word(reduction)
    )  # fmt: skip


def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0,
    reduction: Any = 0, zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """`nn.functional.ctc_loss`; the reduction may be a number."""
    return F.ctc_loss(
        log_probs, targets, input_lengths, target_lengths, blank, _word(reduction), zero_infinity
    )


NAMES = tuple(
    name for name, value in list(globals().items())
    if name.islower() and not name.startswith("_") and callable(value) and name != "annotations"
)  # fmt: skip
globals().update(checked_names(globals(), __name__, NAMES))
