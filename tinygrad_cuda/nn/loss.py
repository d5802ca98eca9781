"""Losses as modules; the functions themselves stand in `losses`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

from tinygrad_cuda.core.errors import DTypeError, ShapeError
from tinygrad_cuda.nn.distance import PairwiseDistance
from tinygrad_cuda.nn.functional import losses
from tinygrad_cuda.nn.linear import Linear
from tinygrad_cuda.nn.module import Module
from tinygrad_cuda.nn.size_average import accepts_size_average, reduction_of
from tinygrad_cuda.tensors.tensor import Tensor


class _Loss(Module):
    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        if len(arguments) > 1 and all(isinstance(value, Tensor) for value in arguments[:2]):
            shapes = " and ".join(str(tuple(value.shape)) for value in arguments[:2])
            raise DTypeError(
                cls.__name__, "a loss is made before it is called",
                expect=f"options of {cls.__name__}", actual=f"Tensors of shape {shapes}",
                hint=f"{cls.__name__}()(input, target)",
            )  # fmt: skip
        return super().__new__(cls)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = accepts_size_average(cls.__init__)  # type: ignore[method-assign]

    @accepts_size_average
    def __init__(self, reduction: str = "mean") -> None:
        if isinstance(reduction, bool):  # size_average stood first
            reduction = reduction_of(reduction, None)
        if not isinstance(reduction, str):
            raise DTypeError(
                type(self).__name__, "reduction is no text", expect="mean, sum or none",
                actual=type(reduction).__name__,
            )  # fmt: skip
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


class LinearCrossEntropyLoss(_Weighted):
    """`linear_cross_entropy`: a linear map and the cross-entropy of its logits.

    Args:
        in_features: the size of the last axis of the input.
        num_classes: C.
        out_features: further sizes of the logits, (d1, ...), each position with a label of its own.
        bias: whether the linear map has one.
        device, dtype: of the parameters.
        weight, reduction, ignore_index, label_smoothing, options: as for `linear_cross_entropy`.

    Raises:
        ShapeError: `weight` is not of shape (C,).
    """

    linear: Linear

    def __init__(
        self, in_features: int, num_classes: int, *, out_features: tuple[int, ...] = (),
        bias: bool = False, device: Any = None, dtype: Any = None, reduction: str = "mean",
        weight: Tensor | None = None, ignore_index: int | None = None,
        label_smoothing: float = 0.0, options: Any = None,
    ) -> None:  # fmt: skip
        if weight is not None and tuple(weight.shape) != (num_classes,):
            raise ShapeError(
                "LinearCrossEntropyLoss", "one factor for each class", expect=f"({num_classes},)",
                actual=str(tuple(weight.shape)),
            )  # fmt: skip
        super().__init__(weight, reduction)
        self.num_classes, self.out_features = num_classes, tuple(out_features)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing
        self.linear = Linear(
            in_features, math.prod(out_features, start=num_classes), bias, device, dtype
        )
        self.options = options

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        shape, bias = (self.num_classes, *self.out_features), self.linear.bias
        return losses.linear_cross_entropy(
            input, self.linear.weight.reshape(*shape, -1), target,
            linear_bias=None if bias is None else bias.reshape(shape), weight=self.weight,
            reduction=self.reduction, ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return (
            f"in_features={self.linear.in_features}, num_classes={self.num_classes}, "
            f"out_features={self.out_features}, bias={self.linear.bias is not None}, "
            f"reduction={self.reduction}, ignore_index={self.ignore_index}, "
            f"label_smoothing={self.label_smoothing}, options={self.options}"
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


class KLDivLoss(_Loss):
    """`kl_div`: ``target * (log target - input)``."""

    def __init__(
        self,
        reduction: str = "mean",
        log_target: bool = False,
    ) -> None:
        super().__init__(reduction)
        self.log_target = log_target

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class PoissonNLLLoss(_Loss):
    """`poisson_nll_loss`: ``exp(input) - target * input``."""

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        eps: float = 1e-08,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.log_input = log_input
        self.full = full
        self.eps = eps

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.poisson_nll_loss(
            input,
            target,
            log_input=self.log_input,
            full=self.full,
            eps=self.eps,
            reduction=self.reduction,
        )


class GaussianNLLLoss(_Loss):
    """`gaussian_nll_loss`: for means and variances."""

    def __init__(
        self,
        *,
        full: bool = False,
        eps: float = 1e-06,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.full = full
        self.eps = eps

    def forward(self, input: Tensor, target: Tensor, var: Any) -> Tensor:
        return losses.gaussian_nll_loss(
            input, target, var, full=self.full, eps=self.eps, reduction=self.reduction
        )


class SoftMarginLoss(_Loss):
    """`soft_margin_loss`: ``log(1 + exp(-target * input))``."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.soft_margin_loss(input, target, reduction=self.reduction)


class HingeEmbeddingLoss(_Loss):
    """`hinge_embedding_loss`: distances small where target is 1, large where it is -1."""

    def __init__(
        self,
        margin: float = 1.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.margin = margin

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.hinge_embedding_loss(
            input, target, margin=self.margin, reduction=self.reduction
        )


class MarginRankingLoss(_Loss):
    """`margin_ranking_loss`: input1 above input2 where target is 1."""

    def __init__(
        self,
        margin: float = 0.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.margin = margin

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return losses.margin_ranking_loss(
            input1, input2, target, margin=self.margin, reduction=self.reduction
        )


class CosineEmbeddingLoss(_Loss):
    """`cosine_embedding_loss`: vectors are pulled together where target is 1."""

    def __init__(
        self,
        margin: float = 0.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.margin = margin

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return losses.cosine_embedding_loss(
            input1, input2, target, margin=self.margin, reduction=self.reduction
        )


class TripletMarginLoss(_Loss):
    """`triplet_margin_loss`: the anchor nearer to positive than to negative."""

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-06,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.margin = margin
        self.p = p
        self.eps = eps
        self.swap = swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return losses.triplet_margin_loss(
            anchor,
            positive,
            negative,
            margin=self.margin,
            p=self.p,
            eps=self.eps,
            swap=self.swap,
            reduction=self.reduction,
        )


class CTCLoss(_Loss):
    """`ctc_loss`: minus the log-probability of all alignments."""

    def __init__(
        self,
        blank: int = 0,
        reduction: str = "mean",
        zero_infinity: bool = False,
    ) -> None:
        super().__init__(reduction)
        self.blank = blank
        self.zero_infinity = zero_infinity

    def forward(
        self, log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any
    ) -> Tensor:
        return losses.ctc_loss(
            log_probs,
            targets,
            input_lengths,
            target_lengths,
            blank=self.blank,
            reduction=self.reduction,
            zero_infinity=self.zero_infinity,
        )


class TripletMarginWithDistanceLoss(_Loss):
    """`triplet_margin_with_distance_loss`: `TripletMarginLoss` with a distance of one's own."""

    def __init__(
        self, *, distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
        margin: float = 1.0, swap: bool = False, reduction: str = "mean",
    ) -> None:  # fmt: skip
        super().__init__(reduction)
        self.distance_function: Callable[[Tensor, Tensor], Tensor]
        self.distance_function = distance_function or PairwiseDistance()
        self.margin, self.swap = margin, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return losses.triplet_margin_with_distance_loss(
            anchor, positive, negative, distance_function=self.distance_function,
            margin=self.margin, swap=self.swap, reduction=self.reduction,
        )  # fmt: skip


class BCELoss(_Weighted):
    """`binary_cross_entropy`: for independent yes-or-no targets and probabilities."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.binary_cross_entropy(input, target, self.weight, self.reduction)


class MultiLabelSoftMarginLoss(_Weighted):
    """`multilabel_soft_margin_loss`: several classes may be right at once."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.multilabel_soft_margin_loss(input, target, self.weight, self.reduction)


class MultiMarginLoss(_Weighted):
    """`multi_margin_loss`: the support vector machine's loss for several classes."""

    def __init__(
        self, p: int = 1, margin: float = 1.0, weight: Tensor | None = None,
        reduction: str = "mean",
    ) -> None:  # fmt: skip
        super().__init__(weight, reduction)
        self.p, self.margin = p, margin

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.multi_margin_loss(
            input, target, self.p, self.margin, self.weight, self.reduction
        )


class MultiLabelMarginLoss(_Loss):
    """`multilabel_margin_loss`: every right class above every wrong one."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.multilabel_margin_loss(input, target, self.reduction)


_WeightedLoss = _Weighted  # PyTorch's name, which programs import
