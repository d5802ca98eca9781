"""ONNX operators that reduce axes, and normalizations over them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import bool_
from tinygrad_cuda.nn import functional as F
from tinygrad_cuda.onnx.operators.call import NodeCall, Operator, Value, axes_of, wide
from tinygrad_cuda.tensors import functions as T
from tinygrad_cuda.tensors.tensor import Tensor

Array = np.ndarray[Any, Any]


def _reduction(function: Callable[[Tensor, list[int], bool], Tensor]) -> Operator:
    """A reduction over axes, all of them where none are given."""

    def run(call: NodeCall, x: Tensor, axes: Array | None = None) -> Value:
        dims = axes_of(call, axes)
        if not dims:
            if call.get("noop_with_empty_axes", 0):
                # Still elementwise: a sum of squares of one element is its square.
                return function(x.unsqueeze(0), [0], False)
            dims = list(range(x.ndim))
        if not x.ndim:
            return function(x.reshape(1), [0], False)
        return function(x, dims, bool(call.get("keepdims", 1)))

    return Operator(run, host=(1,))


def _sum(x: Tensor, dims: list[int], keep: bool) -> Value:
    return T.sum(x, dims, keepdim=keep).to(x.dtype)


def _mean(x: Tensor, dims: list[int], keep: bool) -> Value:
    if x.dtype.is_floating:
        return T.mean(x, dims, keepdim=keep)
    count = prod(x.shape[dim] for dim in dims)
    return T.div(_sum(x, dims, keep), count, rounding_mode="trunc")


def _prod(x: Tensor, dims: list[int], keep: bool) -> Value:
    dtype = x.dtype
    for dim in sorted((dim % x.ndim for dim in dims), reverse=True):
        x = T.prod(x, dim, keepdim=keep)
    return x.to(dtype)


def _extreme(name: str) -> Callable[[Tensor, list[int], bool], Tensor]:
    def run(x: Tensor, dims: list[int], keep: bool) -> Value:
        if not prod(x.shape[dim] for dim in dims):
            # The value that every other one beats.
            largest = name == "amin"
            value: Any = float("inf") if largest else -float("inf")
            if not x.dtype.is_floating:
                limits = np.iinfo(x.dtype.numpy) if x.dtype is not bool_ else None
                value = largest if limits is None else limits.max if largest else limits.min
            sums = T.sum(x, dims, keepdim=keep)
            return T.full_like(sums, value, dtype=x.dtype)
        if x.dtype is bool_:
            return getattr(T, name)(x.int(), dims, keepdim=keep).bool()
        result: Tensor = getattr(T, name)(x, dims, keepdim=keep)
        return result

    return run


def _log_sum_exp(x: Tensor, dims: list[int], keep: bool) -> Value:
    return T.logsumexp(x, dims, keepdim=keep)


def _softmax(logarithm: bool) -> Operator:
    """Before opset 13 all axes from `axis` on are one."""
    function = T.log_softmax if logarithm else T.softmax

    def run(call: NodeCall, x: Tensor) -> Value:
        if call.opset >= 13:
            return function(x, call.get("axis", -1))
        axis = call.get("axis", 1) % x.ndim
        rows = x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))
        return function(rows, 1).reshape(x.shape)

    return Operator(run)


def _layer_norm(
    call: NodeCall, x: Tensor, scale: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    axis = call.get("axis", -1) % x.ndim
    dims = list(range(axis, x.ndim))
    own = wide(x)
    mean = own.mean(dims, keepdim=True)
    centered = own - mean
    inverse = T.rsqrt((centered * centered).mean(dims, keepdim=True) + call.get("epsilon", 1e-5))
    y = (centered * inverse).to(x.dtype) * scale
    return (y if bias is None else y + bias), mean, inverse


def _rms_norm(call: NodeCall, x: Tensor, scale: Tensor) -> Value:
    axis = call.get("axis", -1) % x.ndim
    dims = list(range(axis, x.ndim))
    own = wide(x)
    inverse = T.rsqrt((own * own).mean(dims, keepdim=True) + call.get("epsilon", 1e-5))
    return (own * inverse).to(x.dtype) * scale


def _by_channel(x: Tensor, vector: Tensor) -> Value:
    return vector.reshape(1, -1, *[1] * (x.ndim - 2))


def _instance_norm(call: NodeCall, x: Tensor, scale: Tensor, bias: Tensor) -> Value:
    return F.instance_norm(x, weight=scale, bias=bias, eps=call.get("epsilon", 1e-5))


def _group_norm(call: NodeCall, x: Tensor, scale: Tensor, bias: Tensor) -> Value:
    groups = call.get("num_groups")
    if scale.shape[0] == groups != x.shape[1]:
        # Before opset 21 a group has one scale.
        each = x.shape[1] // groups
        scale, bias = (v.repeat_interleave(each) for v in (scale, bias))
    return F.group_norm(x, groups, scale, bias, call.get("epsilon", 1e-5))


def _batch_norm(
    call: NodeCall, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> Any:
    """With `training_mode` by the batch's own values, and the running ones moved."""
    epsilon = call.get("epsilon", 1e-5)
    if not call.get("training_mode", 0):
        factor = scale * T.rsqrt(variance + epsilon)
        return x * _by_channel(x, factor) + _by_channel(x, bias - mean * factor)
    dims = [0, *range(2, x.ndim)]
    own = x.mean(dims)
    spread = x.var(dims, unbiased=False)
    momentum = call.get("momentum", 0.9)
    y = (x - _by_channel(x, own)) * _by_channel(x, scale * T.rsqrt(spread + epsilon))
    return (
        y + _by_channel(x, bias),
        mean * momentum + own * (1 - momentum),
        variance * momentum + spread * (1 - momentum),
    )


def _lp_normalization(call: NodeCall, x: Tensor) -> Value:
    """A row of zeros stays one."""
    axis, p = call.get("axis", -1), call.get("p", 2)
    size = x.abs().sum(axis, keepdim=True) if p == 1 else (x * x).sum(axis, keepdim=True).sqrt()
    zero = size == 0
    return T.where(zero, T.zeros_like(x), x / T.where(zero, T.ones_like(size), size))


def _mean_variance(call: NodeCall, x: Tensor) -> Value:
    dims = list(call.get("axes", [0, 2, 3]))
    centered = x - x.mean(dims, keepdim=True)
    return centered / (T.sqrt((x * x).mean(dims, keepdim=True)
                              - x.mean(dims, keepdim=True) ** 2) + 1e-9)  # fmt: skip


def _lrn(call: NodeCall, x: Tensor) -> Value:
    """Of a window of channels that begins (size - 1) // 2 before each."""
    size = call.get("size")
    before = (size - 1) // 2
    squares = F.pad((x * x).transpose(1, -1), (before, size - 1 - before)).transpose(1, -1)
    total = squares.narrow(1, 0, x.shape[1])
    for k in range(1, size):
        total = total + squares.narrow(1, k, x.shape[1])
    base = total * (call.get("alpha", 1e-4) / size) + call.get("bias", 1.0)
    return x / base ** call.get("beta", 0.75)


def _nll(call: NodeCall, x: Tensor, labels: Tensor, weight: Tensor | None = None) -> Value:
    """Of log probabilities (N, C, ...) at labels (N, ...)."""
    ignored = call.get("ignore_index")
    labels = labels.long()
    mask = T.ones_like(labels, dtype=bool_) if ignored is None else labels != ignored
    safe = T.where(mask, labels, T.zeros_like(labels))
    values = -x.gather(1, safe.unsqueeze(1)).squeeze(1)
    weights = mask.to(x.dtype)
    if weight is not None:
        weights = weights * weight.index_select(0, safe.reshape(-1)).reshape(safe.shape)
    losses = T.where(mask, values * weights, T.zeros_like(values))
    how = call.get("reduction", "mean")
    if how == "none":
        return losses
    return losses.sum() if how == "sum" else losses.sum() / weights.sum()


def _cross_entropy(
    call: NodeCall, x: Tensor, labels: Tensor, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    logarithms = T.log_softmax(x, 1)
    return _nll(call, logarithms, labels, weight), logarithms


TABLE: dict[str, Operator] = {
    "ReduceSum": _reduction(_sum), "ReduceMean": _reduction(_mean), "ReduceProd": _reduction(_prod),
    "ReduceMax": _reduction(_extreme("amax")), "ReduceMin": _reduction(_extreme("amin")),
    "ReduceL1": _reduction(lambda x, dims, keep: _sum(x.abs(), dims, keep)),
    "ReduceL2": _reduction(
        lambda x, dims, keep: T.sqrt(_sum(x * x, dims, keep).float()).to(x.dtype)
        if not x.dtype.is_floating else T.sqrt(_sum(x * x, dims, keep))
    ),
    "ReduceSumSquare": _reduction(lambda x, dims, keep: _sum(x * x, dims, keep)),
    "ReduceLogSum": _reduction(lambda x, dims, keep: T.log(_sum(x, dims, keep))),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "Softmax": _softmax(False), "LogSoftmax": _softmax(True),
    "LayerNormalization": Operator(_layer_norm), "RMSNormalization": Operator(_rms_norm),
    "InstanceNormalization": Operator(_instance_norm),
    "GroupNormalization": Operator(_group_norm), "BatchNormalization": Operator(_batch_norm),
    "LpNormalization": Operator(_lp_normalization),
    "MeanVarianceNormalization": Operator(_mean_variance), "LRN": Operator(_lrn),
    "NegativeLogLikelihoodLoss": Operator(_nll),
    "SoftmaxCrossEntropyLoss": Operator(_cross_entropy),
}  # fmt: skip
