"""Small functions that layers and losses share."""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.tensors.indexing import selecting
from tinygrad_cuda.tensors.tensor import Tensor


def where(condition: Tensor, input: Any, other: Any) -> Tensor:
    """``input`` where the condition holds, else ``other``."""
    chosen: Tensor = selecting.where(condition, input, other)
    return chosen


def softplus(x: Tensor) -> Tensor:
    """``log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))``, with every derivative right at 0 too."""
    # max(x, 0) and -|x| by one comparison, so that both take the left slope at 0: 0 and 1.
    positive = x > 0
    return where(positive, x, 0.0) + where(positive, -x, x).exp().log1p()
