"""Losses: regression, classification, margins, divergences and sequences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tinygrad_cuda.core.dtypes import float32, int64
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError, user_site
from tinygrad_cuda.core.shapes import broadcast
from tinygrad_cuda.engine.realize import register_check
from tinygrad_cuda.graph.ops import indexing
from tinygrad_cuda.nn.functional.activations import pairwise_distance
from tinygrad_cuda.nn.functional.linears import linear
from tinygrad_cuda.nn.size_average import accepts_size_average
from tinygrad_cuda.nn.smooth import softplus, where
from tinygrad_cuda.tensors.arguments import require_real
from tinygrad_cuda.tensors.autocast import in_float32, refuse_float16
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.call_replay import templated
from tinygrad_cuda.tensors.creation import arange
from tinygrad_cuda.tensors.indexing.keys import position_node
from tinygrad_cuda.tensors.layout import copied_strides, strides_like
from tinygrad_cuda.tensors.opmath import rounded_once
from tinygrad_cuda.tensors.random import probability_node
from tinygrad_cuda.tensors.reductions import require_float
from tinygrad_cuda.tensors.tensor import Tensor

# Reduction ----------------------------------------------------------------------------------------


REDUCTIONS = ("none", "mean", "sum")


def reduce(op: str, losses: Tensor, reduction: str) -> Tensor:
    """The losses themselves, their mean or their sum."""
    if reduction not in REDUCTIONS:
        raise ArgumentError(
            op, "unknown reduction", expect="'none', 'mean' or 'sum'", actual=repr(reduction)
        )
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


# Distances ----------------------------------------------------------------------------------


def same_shape(op: str, input: Tensor, target: Tensor) -> None:
    """Raises unless both have one shape: nothing is broadcast."""
    a, b = tuple(input.shape), tuple(target.shape)
    if a == b:
        return
    try:
        common: Any = broadcast(op, a, b)
    except ShapeError:
        common = None
    raise ShapeError(
        op,
        "input and target have different shapes",
        expect=f"target {a}",
        actual=f"target {b}",
        hint=None
        if common is None
        else f"broadcasting would have averaged over {common}; if that is meant, expand both to it",
    )


def _same_rank(op: str, *tensors: Tensor) -> None:
    """Raises unless all have as many dimensions; their sizes broadcast."""
    if len({tensor.ndim for tensor in tensors}) > 1:
        raise ShapeError(
            op, "the numbers of dimensions differ", expect="as many dimensions of each",
            actual=", ".join(str(tuple(tensor.shape)) for tensor in tensors),
        )  # fmt: skip


@accepts_size_average
@templated
@in_float32
@rounded_once
def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """``(input - target) ** 2``, averaged over all elements.

    Args:
        input, target: the same shape.
        reduction: ``mean`` over all elements (not over the batch alone), ``sum`` or ``none``.

    Raises:
        ShapeError: the shapes differ; unlike PyTorch, nothing is broadcast.

    Example:
        >>> import tinygrad_cuda as tc
        >>> x = tc.tensor([[1.0, 2.0]], device="cpu")
        >>> mse_loss(x, tc.tensor([[0.0, 0.0]], device="cpu")).item()
        2.5
    """
    require_real("mse_loss", input, target)
    same_shape("mse_loss", input, target)
    difference = input - target
    squares = strides_like(difference * difference, input, target)
    return reduce("mse_loss", squares, reduction)


@accepts_size_average
@templated
@in_float32
@rounded_once
def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """``|input - target|``, averaged over all elements.

    Args:
        input, target: the same shape.
        reduction: ``mean``, ``sum`` or ``none``.

    Raises:
        ShapeError: the shapes differ; unlike PyTorch, nothing is broadcast.
    """
    same_shape("l1_loss", input, target)
    return reduce("l1_loss", (input - target).abs(), reduction)


@templated
@in_float32
@rounded_once
def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0
) -> Tensor:
    """``0.5 d**2`` where ``|d| <= delta``, else ``delta (|d| - 0.5 delta)``; d = input - target.

    Args:
        input, target: the same shape.
        reduction: ``mean``, ``sum`` or ``none``.
        delta: where the parabola ends.

    Raises:
        ShapeError: the shapes differ; unlike PyTorch, nothing is broadcast.
        ArgumentError: delta is not positive.
    """
    require_real("huber_loss", input, target)
    same_shape("huber_loss", input, target)
    if not delta > 0:
        raise ArgumentError(
            "huber_loss", "delta must be positive", expect="delta > 0", actual=str(delta)
        )
    difference = input - target
    size = difference.abs()
    near = ~(size > delta)  # NaN too: its slope is NaN
    # The branch not taken must stay finite: its gradient is 0 times it.
    small = where(near, difference, 0.0)
    losses = where(near, 0.5 * small * small, delta * (size - 0.5 * delta))
    # PyTorch writes them to a tensor like the input, whatever the target's strides.
    return reduce("huber_loss", copied_strides(losses, input), reduction)


@accepts_size_average
@templated
@in_float32
@rounded_once
def smooth_l1_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """``huber_loss(delta=beta) / beta``; `l1_loss` where beta is 0."""
    require_real("smooth_l1_loss", input, target)
    if beta == 0:
        return l1_loss(input, target, reduction)
    losses = huber_loss(input, target, reduction, beta) / beta
    return strides_like(losses, input, target) if reduction == "none" else losses


@accepts_size_average
@templated
@in_float32
@rounded_once
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    r"""``-(w_p t log s + (1 - t) log(1 - s))`` with ``s = sigmoid(input)``, without overflow.

    Args:
        input: logits, any shape.
        target: between 0 and 1, the same shape.
        weight: a factor for each loss; broadcast.
        reduction: ``mean``, ``sum`` or ``none``.
        pos_weight: :math:`w_p`, a factor for the positive part; broadcast.

    Raises:
        ShapeError: the shapes differ.
    """
    same_shape("binary_cross_entropy_with_logits", input, target)
    losses = _logistic(input, target, pos_weight)
    losses = losses if weight is None else losses * weight
    losses._strides = None  # PyTorch writes into 1 - target
    losses = strides_like(losses, target)
    return reduce("binary_cross_entropy_with_logits", losses, reduction)


def _logistic(input: Tensor, target: Tensor, pos_weight: Tensor | None) -> Tensor:
    """``w t softplus(-x) + (1 - t) softplus(x)``; neither it nor its slope cancels at either end.

    Where x is positive it is ``(1 - t) x + (1 - t + w t) log1p(exp(-x))``, else the first term is
    ``-w t x``. A slope of ``1 - t - sigmoid(-x)`` would be 0 from x = -17 on, where t is 0.
    """
    positive = input > 0
    smooth = where(positive, -input, input).exp().log1p()
    if pos_weight is None:
        plain: Tensor = (positive.to(input.dtype) - target) * input + smooth
        return plain
    slope = positive.to(input.dtype) - where(positive, 1, pos_weight) * target
    weighted: Tensor = slope * input + (1 + (pos_weight - 1) * target) * smooth
    return weighted


# Classes ------------------------------------------------------------------------------------


class _Picked:
    """One class of each row picked by its label, which is checked on the device.

    Picking is a comparison with the class numbers, so it fuses with what computes the rows.

    Args:
        op: the loss, for errors.
        input: shape (C,), (N, C) or (N, C, d1, ...).
        target: integers of shape (), (N,) or (N, d1, ...).
        weight: a factor for each class, shape (C,), or None.
        ignore_index: a label whose row does not count.
    """

    def __init__(
        self, op: str, input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int
    ) -> None:
        self.dim = class_dim(op, input)
        classes = input.shape[self.dim]
        if input.ndim == 1 and tuple(target.shape) == (1,):
            target = target.reshape(())  # the label of the one row
        _check_labels(op, input, target, self.dim)
        # A row that does not count keeps neither a loss nor, through `where`, a gradient.
        self.valid = target != ignore_index
        labels = where(self.valid, target, 0)
        code = register_check(op, "target", user_site())
        checked = wrap(
            indexing.check_index(labels.node, limit=classes, what="target", code=code)
        ).unsqueeze(self.dim)
        around = [classes if axis == self.dim else 1 for axis in range(input.ndim)]
        self.onehot = arange(classes, device=input.device).reshape(around) == checked
        self.weight = None
        self.counts = self.valid.to(input.dtype)
        if weight is not None:
            check_weight(op, weight, classes)
            self.weight = weight.reshape(around)
            self.counts = where(self.valid, self.pick(self.weight), 0.0)

    def pick(self, values: Tensor) -> Tensor:
        """The value of each row's class, of target's shape."""
        return where(self.onehot, values, 0.0).sum(self.dim)

    def weighted(self, losses: Tensor) -> Tensor:
        """Losses of rows with the factors of their classes."""
        if self.weight is not None:
            losses = losses * self.pick(self.weight)
        return where(self.valid, losses, 0.0)

    def reduce(self, op: str, losses: Tensor, reduction: str) -> Tensor:
        """Weighted losses reduced; their mean is a weighted one."""
        if reduction == "mean":
            total: Tensor = losses.sum() / self.counts.sum()
            return total
        return reduce(op, losses, reduction)


def class_dim(op: str, input: Tensor) -> int:
    """Which axis counts the classes.

    Raises:
        ShapeError: there is none.
    """
    if input.ndim == 0:
        raise ShapeError(op, "the input has no axis of classes", expect="(N, C)", actual="()")
    return 0 if input.ndim == 1 else 1


def check_weight(op: str, weight: Tensor, classes: int) -> None:
    """Raises unless there is one weight a class."""
    if tuple(weight.shape) != (classes,):
        raise ShapeError(
            op, "one weight per class", expect=f"({classes},)", actual=str(tuple(weight.shape))
        )


def _check_labels(op: str, input: Tensor, target: Tensor, dim: int) -> None:
    shape = tuple(input.shape)
    expected = shape[:dim] + shape[dim + 1 :]
    if tuple(target.shape) != expected:
        raise ShapeError(
            op,
            "the target does not fit the input",
            expect=f"labels {expected}" + (f" or probabilities {shape}"
                                           if op == "cross_entropy" else ""),
            actual=f"target {tuple(target.shape)}  input {shape}",
            hint=_squeeze_hint(tuple(target.shape), expected),
        )  # fmt: skip
    if not target.dtype.is_integer:
        raise DTypeError(
            op, "labels must be integers", expect="an integer dtype", actual=target.dtype.name,
            hint="target.long()",
        )  # fmt: skip


def _squeeze_hint(shape: tuple[int, ...], expected: tuple[int, ...]) -> str | None:
    for dim, size in enumerate(shape):
        if size == 1 and shape[:dim] + shape[dim + 1 :] == expected:
            return f"target.squeeze({dim}) would fit"
    return None


@accepts_size_average
@templated
@in_float32
@rounded_once
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """``-weight[target] * input[target]`` of each row, for rows of log-probabilities.

    Args:
        input: log-probabilities, shape (C,), (N, C) or (N, C, d1, ...).
        target: class numbers, shape (), (N,) or (N, d1, ...).
        weight: a factor for each class, shape (C,).
        ignore_index: a label whose row does not count.
        reduction: ``mean`` (weighted by the factors), ``sum`` or ``none``.

    Raises:
        ShapeError: target does not fit input.
        IndexError: a label is out of range (raised when the value is computed).
    """
    require_real("nll_loss", input, target, weight)
    picked = _Picked("nll_loss", input, target, weight, ignore_index)
    return picked.reduce("nll_loss", picked.weighted(-picked.pick(input)), reduction)


@accepts_size_average
@templated
@in_float32
@rounded_once
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""``-log(softmax(input)[target])`` of each row, for rows of logits.

    Args:
        input: logits, shape (C,), (N, C) or (N, C, d1, ...).
        target: class numbers, shape (), (N,) or (N, d1, ...); or probabilities of input's shape.
        weight: a factor for each class, shape (C,).
        ignore_index: a label whose row does not count.
        reduction: ``mean`` (weighted by the factors), ``sum`` or ``none``.
        label_smoothing: :math:`e`: the target is mixed with the uniform distribution,
            :math:`(1 - e)\,target + e / C`.

    Raises:
        ShapeError: target does not fit input.
        IndexError: a label is out of range (raised when the value is computed).

    Example:
        >>> import tinygrad_cuda as tc
        >>> logits = tc.tensor([[2.0, 0.0], [0.0, 0.0]], device="cpu")
        >>> round(cross_entropy(logits, tc.tensor([0, 1], device="cpu")).item(), 4)
        0.41
    """
    op = "cross_entropy"
    if not 0.0 <= label_smoothing <= 1.0:
        raise ArgumentError(
            op, "label_smoothing is no share", expect="0 <= label_smoothing <= 1",
            actual=str(label_smoothing),
        )  # fmt: skip
    if target.shape == input.shape and (target.dtype.is_floating or input.ndim == 0):
        if ignore_index >= 0:
            raise ArgumentError(
                op, "probabilities have no label to ignore", expect="no ignore_index",
                actual=str(ignore_index),
            )  # fmt: skip
        return _soft_cross_entropy(input, target, weight, reduction, label_smoothing)
    if tuple(target.shape) == tuple(input.shape):
        raise DTypeError(
            op, "a target of the input's shape has probabilities",
            expect="a floating dtype", actual=target.dtype.name,
        )  # fmt: skip
    picked = _Picked(op, input, target, weight, ignore_index)
    # With -log p_k = log sum_j exp(s_j) - s_k no term needs the gradient of another reduction.
    shifted, log_sum = _normalized(input, picked.dim)
    losses = picked.weighted(log_sum - picked.pick(shifted))
    if label_smoothing > 0.0:
        smooth = log_sum.unsqueeze(picked.dim) - shifted
        smooth = smooth if picked.weight is None else smooth * picked.weight
        smooth = where(picked.valid, smooth.sum(picked.dim), 0.0)
        share = label_smoothing / input.shape[picked.dim]
        losses = losses * (1.0 - label_smoothing) + smooth * share
    return picked.reduce(op, losses, reduction)


def linear_cross_entropy(
    input: Tensor, linear_weight: Tensor, target: Tensor, *, linear_bias: Tensor | None = None,
    weight: Tensor | None = None, reduction: str = "mean", ignore_index: int | None = None,
    label_smoothing: float = 0.0, options: Any = None,
) -> Tensor:  # fmt: skip
    """`cross_entropy` of the logits ``input linear_weight.T + linear_bias``.

    Under autocast logits are those of `linear`, of 16 bits, and the loss is float32.

    Args:
        input: shape (N, I) or (I,).
        linear_weight: shape (C, I), or (C, d1, ..., I) for a label at each of d1, ...
        target: labels (N, d1, ...), or probabilities (N, C, d1, ...).
        linear_bias: shape (C, d1, ...).
        weight, reduction, label_smoothing: as for `cross_entropy`.
        ignore_index: a label whose row does not count; -100 when left out.
        options: PyTorch's choices about memory. The result does not depend on them; here they
            change nothing.

    Raises:
        ShapeError: the shapes do not fit.
    """
    classes = linear_weight.shape[:-1]
    if len(classes) > 1 and input.ndim < 2:
        raise ShapeError(
            "linear_cross_entropy", "several labels need a batch", expect="input (N, I)",
            actual=str(tuple(input.shape)),
        )  # fmt: skip
    if linear_bias is not None and tuple(linear_bias.shape) != tuple(classes):
        raise ShapeError(
            "linear_cross_entropy", "linear_bias has not a number for each class",
            expect=str(tuple(classes)), actual=str(tuple(linear_bias.shape)),
        )  # fmt: skip
    bias = None if linear_bias is None else linear_bias.reshape(-1)
    logits = linear(input, linear_weight.reshape(-1, linear_weight.shape[-1]), bias)
    logits = logits.reshape(*input.shape[:-1], *classes)
    ignored = -100 if ignore_index is None else ignore_index
    return cross_entropy(logits, target, weight, ignored, reduction, label_smoothing)


def _normalized(input: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Logits less their largest, and the log of the sum of their exponentials."""
    shifted = input - input.detach().amax(dim, keepdim=True)
    return shifted, shifted.exp().sum(dim).log()


def _soft_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, label_smoothing: float
) -> Tensor:
    """The target is a distribution; the mean is over rows."""
    dim = class_dim("cross_entropy", input)
    classes = input.shape[dim]
    if label_smoothing > 0.0:
        target = target * (1.0 - label_smoothing) + label_smoothing / classes
    shifted, log_sum = _normalized(input, dim)
    terms = (log_sum.unsqueeze(dim) - shifted) * target
    if weight is not None:
        check_weight("cross_entropy", weight, classes)
        around = [classes if axis == dim else 1 for axis in range(input.ndim)]
        terms = terms * weight.reshape(around)
    return reduce("cross_entropy", terms.sum(dim), reduction)


# Losses between distributions, for margins, embeddings and sequences; the usual ones: `losses`


# Distributions ------------------------------------------------------------------------------


@accepts_size_average
@refuse_float16("binary_cross_entropy_with_logits takes the logits, and is safe")
@in_float32
@rounded_once
def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """``-(t log x + (1 - t) log(1 - x))``, each logarithm at least -100.

    Args:
        input: probabilities, any shape.
        target: between 0 and 1, the same shape.
        weight: a factor for each loss; broadcast.
        reduction: ``mean``, ``sum`` or ``none``.

    Raises:
        ShapeError: the shapes differ.
        ArgumentError: an input or a target is not between 0 and 1, when the loss is looked at.
    """
    same_shape("binary_cross_entropy", input, target)
    given = input
    input, target = (
        wrap(probability_node("binary_cross_entropy", x.node, what))
        for x, what in ((input, "input"), (target, "target"))
    )
    losses = _cross_entropy_of_two(input, target)
    losses = losses if weight is None else losses * weight
    result = reduce("binary_cross_entropy", losses, reduction)
    return strides_like(result, given) if reduction == "none" else result


def _cross_entropy_of_two(x: Tensor, target: Tensor) -> Tensor:
    """The losses; their slope is PyTorch's, ``(x - target) / max(x (1 - x), 1e-12)``."""
    other = 1 - x
    edge = x * other < 1e-12
    # Near 0 and 1 the logarithms are constants, beside a line of that slope.
    inner = where(edge, x.detach(), x)
    losses = target * _floored_log(x, inner) + (1 - target) * _floored_log(other, inner, 1)
    low = where(edge, x, 0.0)
    line = (low - low.detach()) * ((x - target).detach() * 1e12)
    result: Tensor = line - losses
    return result


def _floored_log(x: Tensor, inner: Tensor, less: int = 0) -> Tensor:
    """``max(log x, -100)``; x is `inner`, or ``1 - inner`` if `less`, with all its digits."""
    tiny = x <= math.exp(-100)
    inner = where(tiny, 1.0 - less, inner)
    return where(tiny, -100.0, (-inner).log1p() if less else inner.log())


@accepts_size_average
@in_float32
@rounded_once
def kl_div(
    input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """``target * (log target - input)``, with 0 log 0 = 0.

    Args:
        input: log-probabilities, any shape.
        target: probabilities, or their logarithms if `log_target`; both broadcast.
        reduction: ``mean`` over all elements, ``batchmean`` (the sum over input's first size),
            ``sum`` or ``none``.

    Raises:
        ShapeError: the shapes do not broadcast.
    """
    require_real("kl_div", input, target)
    if log_target:
        losses = target.exp() * (target - input)
    else:
        nothing = target == 0
        entropy = where(nothing, 0.0, target * where(nothing, 1.0, target).log())
        losses = entropy - target * input
    if reduction == "batchmean":
        total: Tensor = losses.sum() / (input.shape[0] if input.ndim else 1)
        return total
    return reduce("kl_div", losses, reduction)


@in_float32
@rounded_once
def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Any, full: bool = False, eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    r"""``(log var + (input - target) ** 2 / var) / 2`` with ``var`` at least `eps`.

    Args:
        input: means, shape (\*, D) or any.
        target: the same shape, or one that broadcasts with it.
        var: variances of input's shape, with one of the sizes 1, without the last axis, or a
            number.
        full: add ``log(2 pi) / 2``.
        reduction: ``mean``, ``sum`` or ``none``.

    Raises:
        ShapeError: the shapes do not fit.
        ArgumentError: `var` is a negative number.
    """
    require_real("gaussian_nll_loss", input, target)
    if not isinstance(var, Tensor):
        if var < 0:
            raise ArgumentError(
                "gaussian_nll_loss", "var is negative", expect="var >= 0", actual=str(var)
            )
        var = input.new_full((1,) * input.ndim, float(var))
    elif var.shape != input.shape and tuple(var.shape) == tuple(input.shape[:-1]):
        var = var.unsqueeze(-1)
    elif var.shape != input.shape and not _one_axis_narrower(var, input):
        raise ShapeError(
            "gaussian_nll_loss", "var does not fit", expect=str(tuple(input.shape)),
            actual=str(tuple(var.shape)),
        )  # fmt: skip
    # As in PyTorch, the bound does not stop the gradient.
    var = where(var < eps, var - var.detach() + eps, var)
    difference = input - target
    losses = (var.log() + difference * difference / var) * 0.5
    losses = losses + 0.5 * math.log(2 * math.pi) if full else losses
    return reduce("gaussian_nll_loss", losses, reduction)


def _one_axis_narrower(var: Tensor, input: Tensor) -> bool:
    """Whether the shapes differ in one size alone, which is 1 in `var`."""
    if var.ndim != input.ndim:
        return False
    return [b for a, b in zip(input.shape, var.shape) if a != b] == [1]


@accepts_size_average
@in_float32
@rounded_once
def poisson_nll_loss(
    input: Tensor, target: Tensor, log_input: bool = True, full: bool = False, eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """``exp(input) - target * input``; with rates themselves ``input - target log(input + eps)``.

    Args:
        input: (log-)rates, any shape.
        target: counts; both broadcast.
        log_input: input is the logarithm of the rate.
        full: add Stirling's approximation of ``log(target!)`` where target > 1.

    Raises:
        ShapeError: the shapes do not broadcast.
    """
    require_real("poisson_nll_loss", input, target)
    losses = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:
        large = target > 1
        n = where(large, target, 1.0)
        losses = losses + where(large, n * n.log() - n + 0.5 * (n * (2 * math.pi)).log(), 0.0)
    return reduce("poisson_nll_loss", losses, reduction)


@accepts_size_average
@in_float32
@rounded_once
def soft_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """``log(1 + exp(-target * input))`` for targets 1 and -1."""
    target = target.expand(input.shape)
    require_float("soft_margin_loss", input.node)
    return reduce("soft_margin_loss", softplus(-input * target), reduction)


@accepts_size_average
@in_float32
@rounded_once
def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Binary cross-entropy of logits (N, C) with 0 or 1, averaged over the classes of each row."""
    losses = _logistic(input, target.expand(input.shape), None)
    losses = losses if weight is None else losses * weight
    return reduce("multilabel_soft_margin_loss", losses.mean(-1), reduction)


# Margins ------------------------------------------------------------------------------------


@accepts_size_average
@in_float32
@rounded_once
def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """``input`` where target is 1, ``max(margin - input, 0)`` where it is -1; both broadcast."""
    # Of any other target both, as in PyTorch.
    if not input.dtype.is_floating:
        margin = int(margin)  # integers stay integers
    losses = where(target != -1, input, 0) + where(target != 1, _hinge(margin - input), 0)
    return reduce("hinge_embedding_loss", losses, reduction)


def _hinge(x: Tensor) -> Tensor:
    """``max(x, 0)`` whose derivative is 1 at 0 and 0 at NaN, as that of PyTorch's clamp."""
    return x.clamp(min=0)


@accepts_size_average
@in_float32
@rounded_once
def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """``max(margin - target * (input1 - input2), 0)``: input1 higher where target is 1."""
    _same_rank("margin_ranking_loss", input1, input2, target)
    losses = _hinge(-target * (input1 - input2) + margin)
    return reduce("margin_ranking_loss", losses, reduction)


@accepts_size_average
@in_float32
@rounded_once
def multi_margin_loss(
    input: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The support vector machine's loss: ``sum_j max(margin - x_y + x_j, 0) ** p / C``, j != y.

    Args:
        input: scores, shape (N, C), (C,) or () for one class.
        target: class numbers, shape (N,), or () or (1,) for a single row.
        p: 1 or 2.
        margin: how much higher the score of the right class should be.
        weight: a factor for each right class, shape (C,).
        reduction: ``mean``, ``sum`` or ``none``.

    Raises:
        ArgumentError: p is neither 1 nor 2.
        IndexError: a label is out of range (raised when the value is computed).
    """
    op = "multi_margin_loss"
    if p not in (1, 2):
        raise ArgumentError(op, "unknown power", expect="p=1 or p=2", actual=str(p))
    shape = tuple(target.shape)
    one_row = input.ndim < 2 or (tuple(input.shape[:-1]) == (1,) and not shape)
    single = one_row and target.ndim < 2 and target.numel() == 1
    if single:
        input, target = input.reshape(1, -1), target.reshape(1)
    classes = input.shape[-1] if input.ndim else 1
    if tuple(target.shape) != tuple(input.shape[:-1]):
        raise ShapeError(
            op, "the target does not fit the input", expect=str(tuple(input.shape[:-1])),
            actual=str(tuple(target.shape)),
        )  # fmt: skip
    labels = wrap(position_node(op, target, classes, input.node, wrap_negative=False))
    right = arange(classes, device=input.device) == labels.unsqueeze(-1)
    score = where(right, input, 0.0).sum(-1, keepdim=True)
    margins = input - score + margin
    # As in PyTorch, NaN is no violation.
    losses = where(~right & (margins > 0), margins, 0.0)
    losses = losses * losses if p == 2 else losses
    if weight is not None:
        check_weight(op, weight, classes)
        losses = losses * where(right, weight, 0.0).sum(-1, keepdim=True)
    losses = losses.sum(-1) / classes
    return reduce(op, losses.reshape(shape) if single else losses, reduction)


@accepts_size_average
@in_float32
@rounded_once
def multilabel_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """``sum max(1 - (x_y - x_i), 0) / C`` over right classes y and wrong ones i.

    Args:
        input: scores, shape (N, C) or (C,).
        target: the right classes of each row, ended by -1; the same shape.
        reduction: ``mean``, ``sum`` or ``none``.

    Raises:
        ShapeError: the shapes differ.
        IndexError: a class is out of range (raised when the value is computed).
    """
    op = "multilabel_margin_loss"
    if input.ndim + target.ndim < 2 and input.numel() == target.numel() == 1:
        input, target = input.reshape(1), target.reshape(1)
    same_shape(op, input, target)
    classes = input.shape[-1]
    listed = (target >= 0).to(int64).cumprod(-1) > 0
    chosen = where(listed, target, 0)
    labels = wrap(position_node(op, chosen, classes, input.node, wrap_negative=False))
    right = arange(classes, device=input.device) == labels.unsqueeze(-1)  # (N, J, C)
    right = right & listed.unsqueeze(-1)
    scores = where(right, input.unsqueeze(-2), 0.0).sum(-1, keepdim=True)
    wrong = ~right.any(-2, keepdim=True) & listed.unsqueeze(-1)
    margins = 1.0 - (scores - input.unsqueeze(-2))
    # As in PyTorch, NaN is no violation.
    losses = where(wrong & (margins > 0), margins, 0.0).sum((-2, -1)) / classes
    return reduce(op, losses, reduction)


# Embeddings ---------------------------------------------------------------------------------


@accepts_size_average
@in_float32
def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """``1 - cos`` where target is 1, ``max(cos - margin, 0)`` where it is -1.

    Args:
        input1, input2: shape (N, D) or (D,).
        target: shape (N,) or ().
    """
    require_real("cosine_embedding_loss", input1, input2, target)
    _same_rank("cosine_embedding_loss", input1, input2)
    input1, input2 = (x if x.dtype.is_floating else x.to(float32) for x in (input1, input2))
    return _cosine_losses(input1, input2, target == 1, target == -1, margin, reduction)


@rounded_once
def _cosine_losses(
    input1: Tensor, input2: Tensor, near: Tensor, far: Tensor, margin: float, reduction: str
) -> Tensor:
    # The squared lengths are raised, not bounded as in `cosine_similarity`: PyTorch's formula.
    # Its constant is 1e-12 as a float32, which gradients of rows near zero show in float64.
    eps = 9.999999960041972e-13
    squares = ((input1 * input1).sum(-1) + eps) * ((input2 * input2).sum(-1) + eps)
    similar = (input1 * input2).sum(-1) / squares.sqrt()
    losses = where(near, 1 - similar, 0.0) + where(far, _hinge(similar - margin), 0.0)
    return reduce("cosine_embedding_loss", losses, reduction)


@accepts_size_average
@in_float32
@rounded_once
def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2.0,
    eps: float = 1e-6, swap: bool = False, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """``max(d(anchor, positive) - d(anchor, negative) + margin, 0)`` with the p-norm's distance.

    Args:
        anchor, positive, negative: shape (N, D) or (D,); they broadcast.
        swap: take the distance of positive and negative if it is smaller.
    """
    _same_rank("triplet_margin_loss", anchor, positive, negative)

    def distance(a: Tensor, b: Tensor) -> Tensor:
        return pairwise_distance(a, b, p, eps)

    return triplet_margin_with_distance_loss(
        anchor, positive, negative, distance_function=distance, margin=margin, swap=swap,
        reduction=reduction,
    )  # fmt: skip


@in_float32
def triplet_margin_with_distance_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None, margin: float = 1.0,
    swap: bool = False, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """`triplet_margin_loss` with a distance of the user's own."""
    if not margin > 0:
        raise ArgumentError(
            "triplet_margin_loss", "the margin must be positive", expect="margin > 0",
            actual=str(margin),
        )  # fmt: skip
    distance = pairwise_distance if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = far.minimum(distance(positive, negative))
    return reduce("triplet_margin_loss", _hinge(near - far + margin), reduction)


# Sequences ----------------------------------------------------------------------------------


@in_float32
@rounded_once
def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0,
    reduction: str = "mean", zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """Minus the log-probability of all alignments of targets (Graves et al., 2006).

    Args:
        log_probs: shape (T, N, C), or (T, C), each row normalized, as `log_softmax` makes it; as
            in PyTorch the gradient is that of logits whose log_softmax this is.
        targets: classes, shape (N, S), or all in one row (sum of target_lengths,).
        input_lengths, target_lengths: integers for each of the batch; tensors are read at the call.
        blank: the class that stands for nothing.
        reduction: ``mean`` divides each loss by its target's length, then averages; ``sum``;
            ``none``.
        zero_infinity: a target that does not fit its input counts 0, not infinity (whose
            gradient is NaN).

    Raises:
        ShapeError: lengths do not fit the batch.
    """
    single = log_probs.ndim == 2
    if single:
        log_probs = log_probs.unsqueeze(1)
    inputs, lengths = _numbers(input_lengths), _numbers(target_lengths)
    batch = log_probs.shape[1]
    if len(inputs) != batch or len(lengths) != batch:
        raise ShapeError(
            "ctc_loss", "one length for each of the batch", expect=str(batch),
            actual=f"{len(inputs)} input_lengths, {len(lengths)} target_lengths",
        )  # fmt: skip
    labels = _label_rows(targets, lengths, batch, single)
    losses = _alignments(log_probs, labels, inputs, lengths, blank)
    nothing, impossible = _normalization(log_probs, inputs), losses == float("inf")
    if zero_infinity:
        losses = where(impossible, 0.0, losses + nothing)
    else:
        # As in PyTorch an infinite loss has the gradient NaN: 0 times that of a root at 0.
        nowhere = where(impossible, nothing, 1.0).sqrt() * 0.0
        losses = losses + where(impossible, nowhere, nothing)
    if reduction == "mean":
        divisors = losses.new_tensor([float(max(n, 1)) for n in lengths])
        return reduce("ctc_loss", losses / divisors, "mean")
    return reduce("ctc_loss", losses.squeeze(0) if single else losses, reduction)


def _numbers(lengths: Any) -> list[int]:
    values = lengths.tolist() if isinstance(lengths, Tensor) else lengths
    return [int(n) for n in (values if isinstance(values, list | tuple) else [values])]


def _label_rows(targets: Tensor, lengths: list[int], batch: int, single: bool) -> Tensor:
    """Targets as rows (N, S), filled up with zeros."""
    if targets.ndim == 2:
        return targets
    if single:
        return targets.unsqueeze(0)
    longest, start = max(lengths, default=0), 0
    rows = targets.new_zeros(batch, longest)
    for row, length in enumerate(lengths):
        rows[row, :length] = targets[start : start + length]
        start += length
    return rows


def _alignments(
    log_probs: Tensor, labels: Tensor, inputs: list[int], lengths: list[int], blank: int
) -> Tensor:
    """The forward recursion over states blank, y1, blank, y2, ..., blank."""
    time, batch, classes = log_probs.shape
    count = 2 * labels.shape[1] + 1
    device = log_probs.device
    states = labels.new_full((batch, count), blank)
    if labels.shape[1]:
        states[:, 1::2] = labels
    positions = arange(count, device=device)
    # A state may be reached from two before it unless that is the same class.
    before = states.roll(2, 1)
    skips = (positions >= 2) & (states != before) & (states != blank)
    checked = wrap(position_node("ctc_loss", states, classes, states.node, wrap_negative=False))
    emitted = log_probs.gather(2, checked.unsqueeze(0).expand(time, batch, count))
    never = -float("inf")
    alpha = where(positions < 2, emitted[0], never)
    ends = labels.new_tensor(inputs).unsqueeze(1)
    for t in range(1, time):
        one = where(positions >= 1, alpha.roll(1, 1), never)
        two = where(skips, alpha.roll(2, 1), never)
        moved = _sum_exp((alpha, one, two)) + emitted[t]
        alpha = where(ends > t, moved, alpha)
    last = labels.new_tensor([2 * n for n in lengths]).unsqueeze(1)
    final = (positions == last) | ((positions == last - 1) & (last > 0))
    return -_sum_exp((where(final, alpha, never),), 1)


def _normalization(log_probs: Tensor, inputs: list[int]) -> Tensor:
    """Zero for each of the batch, with the probabilities as its gradient.

    It passes through log_softmax as nothing, since there the sum is constant.
    """
    time = log_probs.shape[0]
    ends = log_probs.new_tensor([float(n) for n in inputs])
    used = arange(time, device=log_probs.device).unsqueeze(1) < ends
    total = where(used, log_probs.exp().sum(-1), 0.0).sum(0)
    result: Tensor = total - total.detach()
    return result


def _sum_exp(terms: tuple[Tensor, ...], dim: int | None = None) -> Tensor:
    """The log of a sum of exponentials that may all be zero, with gradients of 0 there."""
    largest = terms[0].detach()
    for term in terms[1:]:
        largest = largest.maximum(term.detach())
    if dim is not None:
        largest = largest.amax(dim, keepdim=True)
    nothing = largest == -float("inf")
    shift = where(nothing, 0.0, largest)
    total: Any = None
    for term in terms:
        part = where(term == -float("inf"), 0.0, (term - shift).exp())
        total = part if total is None else total + part
    if dim is not None:
        total, nothing, shift = total.sum(dim), nothing.squeeze(dim), shift.squeeze(dim)
    return where(nothing, -float("inf"), where(nothing, 1.0, total).log() + shift)
