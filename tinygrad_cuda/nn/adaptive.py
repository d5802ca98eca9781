"""The softmax for many classes of which few are frequent (Grave et al., 2017), as a layer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.nn.container import ModuleList, Sequential
from tinygrad_cuda.nn.linear import Linear
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.nn.smooth import where
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.indexing.keys import position_node
from tinygrad_cuda.tensors.shaping import cat
from tinygrad_cuda.tensors.tensor import Tensor


class ASMoutput(NamedTuple):
    """The log-probability of each target, and minus their mean."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    r"""Log-probabilities of classes that fall into clusters, the frequent ones first.

    The head decides between the first classes and the clusters, :math:`p(y) = p(cluster)\,p(y\,|\,
    cluster)`; cluster i has a projection to in_features / div_value ** i first. Every cluster is
    computed for every row, so that shapes do not depend on values.

    Args:
        in_features: I, the size of the last axis of the input.
        n_classes: C, in the order of their frequency.
        cutoffs: where clusters begin, increasing, between 1 and C - 1.
        div_value: by what the width shrinks from cluster to cluster.
        head_bias: whether the head has a bias.
        device, dtype: of the parameters.

    Raises:
        ArgumentError: the cutoffs are not increasing, or out of range.

    Example:
        >>> import tinygrad_cuda as tc
        >>> layer = AdaptiveLogSoftmaxWithLoss(8, 20, [4, 10], div_value=2.0, device="cpu")
        >>> layer.log_prob(tc.rand(3, 8, device="cpu")).shape
        Size([3, 20])
    """

    head: Linear
    tail: ModuleList

    def __init__(
        self, in_features: int, n_classes: int, cutoffs: Sequence[int], div_value: float = 4.0,
        head_bias: bool = False, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        ends = [*cutoffs, n_classes]
        if not cutoffs or ends[0] < 1 or any(a >= b for a, b in pairwise(ends)):
            raise ArgumentError(
                "AdaptiveLogSoftmaxWithLoss", "the cutoffs do not fit",
                expect=f"increasing integers from 1 to {n_classes - 1}", actual=str(list(cutoffs)),
            )  # fmt: skip
        self.in_features, self.n_classes, self.cutoffs = in_features, n_classes, ends
        self.div_value, self.head_bias = div_value, head_bias
        self.shortlist_size, self.n_clusters = ends[0], len(ends) - 1
        self.head_size = self.shortlist_size + self.n_clusters
        own = {"device": device, "dtype": dtype}
        self.head = Linear(in_features, self.head_size, head_bias, **own)
        self.tail = ModuleList()
        for number, (first, end) in enumerate(pairwise(ends), 1):
            width = int(in_features // div_value**number)
            self.tail.append(
                Sequential(
                    Linear(in_features, width, False, **own),
                    Linear(width, end - first, False, **own),
                )
            )

    def reset_parameters(self) -> None:
        """Draws new values."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.reset_parameters()

    def forward(self, input_: Tensor, target_: Tensor) -> ASMoutput:
        """The log-probability of each target, and the loss.

        Args:
            input_: shape (N, I) or (I,).
            target_: class numbers, shape (N,) or ().

        Raises:
            ShapeError: the shapes do not fit.
            IndexError: a class is out of range (raised when the value is computed).
        """
        op = "AdaptiveLogSoftmaxWithLoss"
        if target_.ndim > 1 or tuple(input_.shape[:-1]) != tuple(target_.shape):
            raise ShapeError(
                op, "input and target do not fit", expect="(N, I) and (N,), or (I,) and ()",
                actual=f"{tuple(input_.shape)} and {tuple(target_.shape)}",
            )  # fmt: skip
        target = wrap(
            position_node(op, target_, self.n_classes, input_.node, wrap_negative=False)
        )  # fmt: skip
        head = self.head(input_).log_softmax(-1)
        output = _picked(head, where(target < self.shortlist_size, target, 0))
        for number, (first, end) in enumerate(pairwise(self.cutoffs)):
            inside = (target >= first) & (target < end)
            rows = self.tail[number](input_).log_softmax(-1)
            within = _picked(rows, where(inside, target - first, 0))
            scores = head[..., self.shortlist_size + number] + within
            output = where(inside, scores, output)
        return ASMoutput(output, (-output).mean())

    def log_prob(self, input: Tensor) -> Tensor:
        """Log-probabilities of all classes: (N, I) to (N, C)."""
        head = self.head(input).log_softmax(-1)
        parts = [head[..., : self.shortlist_size]]
        for number in range(self.n_clusters):
            column = self.shortlist_size + number
            share = head[..., column : column + 1]
            parts.append(self.tail[number](input).log_softmax(-1) + share)
        return cat(parts, -1)

    def predict(self, input: Tensor) -> Tensor:
        """The class with the highest log-probability of each row: (N, I) to (N,)."""
        return self.log_prob(input).argmax(-1)


def _picked(rows: Tensor, number: Tensor) -> Tensor:
    return rows.gather(-1, number.unsqueeze(-1)).squeeze(-1)
