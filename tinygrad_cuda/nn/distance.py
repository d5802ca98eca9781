"""Distances between pairs of vectors as modules."""

from __future__ import annotations

from tinygrad_cuda.nn.functional import activations as F
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.tensors.tensor import Tensor


class CosineSimilarity(Module):
    """`cosine_similarity`: ``x1 . x2 / (|x1| |x2|)`` along `dim`."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """`pairwise_distance`: the p-norm of ``x1 - x2 + eps`` along the last axis."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)
