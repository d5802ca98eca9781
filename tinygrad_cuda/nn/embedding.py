"""Embedding and EmbeddingBag: tables of vectors that are trained."""

from __future__ import annotations

from typing import Any, Self

from tinygrad_cuda.core.errors import ShapeError
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.nn import init
from tinygrad_cuda.nn.functional import embeddings as F
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.nn.parameter import Parameter
from tinygrad_cuda.tensors.creation import empty
from tinygrad_cuda.tensors.tensor import Tensor


class _Table(Module):
    weight: Parameter

    def _setup(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None,
        max_norm: float | None, norm_type: float, scale_grad_by_freq: bool, sparse: bool,
        given: Tensor | None, device: Any, dtype: Any,
    ) -> None:  # fmt: skip
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = F.padding_row(type(self).__name__, padding_idx, num_embeddings)
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        F.refuse_sparse(type(self).__name__, sparse)
        if given is not None:
            if tuple(given.shape) != (num_embeddings, embedding_dim):
                raise ShapeError(
                    type(self).__name__, "the given vectors are another table",
                    expect=f"shape {(num_embeddings, embedding_dim)}",
                    actual=f"shape {tuple(given.shape)}",
                )  # fmt: skip
            self.weight = Parameter(given)
            return
        self.weight = Parameter(empty(num_embeddings, embedding_dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new vectors from N(0, 1); that of padding_idx is zero."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with gradient_mode(False):
                self.weight[self.padding_idx] = 0.0

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, **options: Any) -> Self:
        """A table of given vectors, which is not trained unless `freeze` is False."""
        count, width = embeddings.shape
        make: Any = cls
        table: Self = make(count, width, _weight=embeddings, **options)
        table.weight.requires_grad_(not freeze)
        return table

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        if self.padding_idx is not None:
            text += f", padding_idx={self.padding_idx}"
        return text + self._options()

    def _options(self) -> str:
        text = f", max_norm={self.max_norm}" if self.max_norm is not None else ""
        text += f", norm_type={self.norm_type}" if self.norm_type != 2.0 else ""
        return text + (", scale_grad_by_freq=True" if self.scale_grad_by_freq else "")


class Embedding(_Table):
    r"""`embedding`: rows of a trained table.

    Args:
        num_embeddings, embedding_dim: V and D.
        padding_idx: a row of zeros that is not trained.
        max_norm, norm_type, scale_grad_by_freq, sparse: as for `embedding`.
        device, dtype: of the table.

    Example:
        >>> import tinygrad_cuda as tc
        >>> Embedding(10, 3, device="cpu")(tc.tensor([[1, 2], [4, 9]], device="cpu")).shape
        Size([2, 2, 3])
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None,
        max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
        sparse: bool = False, _weight: Tensor | None = None, _freeze: bool = False,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._setup(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq,
            sparse, _weight, device, dtype,
        )  # fmt: skip
        if _freeze:
            self.weight.requires_grad_(False)

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(
            input, self.weight, self.padding_idx, self.max_norm, self.norm_type,
            self.scale_grad_by_freq, self.sparse,
        )  # fmt: skip


class EmbeddingBag(_Table):
    """`embedding_bag`: sums, means or maxima of bags of rows of a trained table."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, max_norm: float | None = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean",
        sparse: bool = False, _weight: Tensor | None = None, include_last_offset: bool = False,
        padding_idx: int | None = None, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.mode, self.include_last_offset = mode, include_last_offset
        self._setup(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq,
            sparse, _weight, device, dtype,
        )  # fmt: skip

    def forward(
        self, input: Tensor, offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        return F.embedding_bag(
            input, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq,
            self.mode, self.sparse, per_sample_weights, self.include_last_offset,
            self.padding_idx,
        )  # fmt: skip

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}{self._options()}, mode={self.mode!r}"
        return text + (f", padding_idx={self.padding_idx}" if self.padding_idx is not None else "")
