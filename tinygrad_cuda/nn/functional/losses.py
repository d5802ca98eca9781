"""Losses: one number that says how far a prediction is from its target.

Differing shapes are an error here: PyTorch broadcasts them, and the mean over the larger shape is
rarely what was meant.
"""

from __future__ import annotations

from typing import Any

from tinygrad_cuda.core.errors import ArgumentError, DTypeError, ShapeError, user_site
from tinygrad_cuda.core.shapes import broadcast
from tinygrad_cuda.engine.realize import register_check
from tinygrad_cuda.graph.ops import indexing
from tinygrad_cuda.nn.size_average import accepts_size_average
from tinygrad_cuda.nn.smooth import softplus, where
from tinygrad_cuda.tensors.autocast import in_float32
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.creation import arange
from tinygrad_cuda.tensors.layout import copied_strides, strides_like
from tinygrad_cuda.tensors.opmath import rounded_once
from tinygrad_cuda.tensors.templated_calls import templated
from tinygrad_cuda.tensors.tensor import Tensor

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
    if pos_weight is None:
        # softplus(x) - x t, but where t is 1 and x large nothing cancels.
        losses = (1 - target) * input + softplus(-input)
    else:
        # -log s = softplus(-x) and -log(1 - s) = softplus(-x) + x.
        losses = (1 - target) * input + (1 + (pos_weight - 1) * target) * softplus(-input)
    losses = losses if weight is None else losses * weight
    return reduce("binary_cross_entropy_with_logits", losses, reduction)


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


@in_float32
def linear_cross_entropy(
    input: Tensor, linear_weight: Tensor, target: Tensor, *, linear_bias: Tensor | None = None,
    weight: Tensor | None = None, reduction: str = "mean", ignore_index: int | None = None,
    label_smoothing: float = 0.0, options: Any = None,
) -> Tensor:  # fmt: skip
    """`cross_entropy` of the logits ``input linear_weight.T + linear_bias``.

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
    logits = input @ linear_weight.reshape(-1, linear_weight.shape[-1]).T
    logits = logits.reshape(*input.shape[:-1], *classes)
    logits = logits if linear_bias is None else logits + linear_bias
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
