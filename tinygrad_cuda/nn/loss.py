"""Losses as modules; the functions themselves stand in `losses`."""

from __future__ import annotations

from tinygrad_cuda.nn import losses
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.tensor.tensor import Tensor


class _Loss(Module):
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction


class MSELoss(_Loss):
    """`mse_loss`: ``(input - target) ** 2``, averaged over all elements."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.mse_loss(input, target, self.reduction)


class L1Loss(_Loss):
    """`l1_loss`: ``|input - target|``, averaged over all elements."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.l1_loss(input, target, self.reduction)


class HuberLoss(_Loss):
    """`huber_loss`: a parabola near zero, straight lines beyond `delta`."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.huber_loss(input, target, self.reduction, self.delta)


class SmoothL1Loss(_Loss):
    """`smooth_l1_loss`: `huber_loss` divided by `beta`."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.smooth_l1_loss(input, target, self.reduction, self.beta)


class _Weighted(_Loss):
    """A loss with factors that move with the module."""

    weight: Tensor | None

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)


class NLLLoss(_Weighted):
    """`nll_loss`: minus the log-probability of the label."""

    def __init__(
        self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__(weight, reduction)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.nll_loss(input, target, self.weight, self.ignore_index, self.reduction)


class CrossEntropyLoss(_Weighted):
    """`cross_entropy`: minus the log of the softmax of the logits at the label.

    Args:
        weight: a factor for each class, shape (C,).
        ignore_index: a label whose row does not count.
        reduction: ``mean``, ``sum`` or ``none``.
        label_smoothing: the share of the uniform distribution in the target.
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, reduction)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.cross_entropy(
            input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing
        )


class BCEWithLogitsLoss(_Weighted):
    """`binary_cross_entropy_with_logits`: for independent yes-or-no targets.

    Args:
        weight: a factor for each loss.
        reduction: ``mean``, ``sum`` or ``none``.
        pos_weight: a factor for the positive part.
    """

    pos_weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__(weight, reduction)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.binary_cross_entropy_with_logits(
            input, target, self.weight, self.reduction, self.pos_weight
        )
