"""ONNX operators of single elements."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import bool_
from tinygrad_cuda.nn import functional as F
from tinygrad_cuda.onnx.operators.call import NodeCall, Operator, Value
from tinygrad_cuda.tensors import functions as T
from tinygrad_cuda.tensors.tensor import Tensor


def _plain(function: Callable[..., Any]) -> Operator:
    """A function of Tensors that needs no attributes."""
    return Operator(lambda call, *operands: function(*operands))


def _folded(function: Callable[..., Any]) -> Operator:
    """A function of two operands for any number of them."""
    return Operator(lambda call, *operands: functools.reduce(function, operands))


def _with(function: Callable[..., Any], **attributes: Any) -> Operator:
    """A function that takes these attributes, in this order, with their defaults."""
    return Operator(
        lambda call, x: function(x, *(call.get(name, value) for name, value in attributes.items()))
    )


def _div(call: NodeCall, a: Tensor, b: Tensor) -> Value:
    """Whole numbers are divided towards zero, as in C."""
    if a.dtype.is_floating:
        return T.div(a, b)
    return T.div(a, b, rounding_mode="trunc")


def _mod(call: NodeCall, a: Tensor, b: Tensor) -> Value:
    return T.fmod(a, b) if call.get("fmod", 0) else T.remainder(a, b)


def _pow(call: NodeCall, a: Tensor, b: Tensor) -> Value:
    if a.dtype is b.dtype:
        return T.pow(a, b)
    if not a.dtype.is_floating and b.dtype.is_floating:
        return T.pow(a.to(b.dtype), b).to(a.dtype)
    return T.pow(a, b.to(a.dtype))


def _shift(call: NodeCall, a: Tensor, b: Tensor) -> Value:
    left = call.get("direction") == "LEFT"
    return T.bitwise_left_shift(a, b) if left else T.bitwise_right_shift(a, b)


def _clip(
    call: NodeCall, x: Tensor, low: Tensor | None = None, high: Tensor | None = None
) -> Value:
    """The lower bound, then the upper one, which wins."""
    smallest = call.get("min") if low is None else low
    largest = call.get("max") if high is None else high
    for function, bound in ((T.maximum, smallest), (T.minimum, largest)):
        if bound is not None:
            bound = bound if isinstance(bound, Tensor) else T.full_like(x, bound)
            x = function(x, bound)
    return x


def _isinf(call: NodeCall, x: Tensor) -> Value:
    both = call.get("detect_positive", 1), call.get("detect_negative", 1)
    if both == (1, 1):
        return T.isinf(x)
    if both == (0, 0):
        return T.zeros_like(x, dtype=bool_)
    return T.isposinf(x) if both[0] else T.isneginf(x)


def _prelu(call: NodeCall, x: Tensor, slope: Tensor) -> Value:
    return T.where(x < 0, x * slope, x)


def _shrink(call: NodeCall, x: Tensor) -> Value:
    bias, bound = call.get("bias", 0.0), call.get("lambd", 0.5)
    if not x.dtype.is_floating:
        bias, bound = int(bias), bound
    zero = T.zeros_like(x)
    return T.where(x < -bound, x + bias, T.where(x > bound, x - bias, zero))


def _gelu(call: NodeCall, x: Tensor) -> Value:
    return F.gelu(x, approximate=call.get("approximate", "none"))


def _cast(call: NodeCall, x: Tensor, like: Tensor | None = None) -> Value:
    return x.to(call.dtype(call.get("to")) if like is None else like.dtype)


def _where(call: NodeCall, condition: Tensor, a: Tensor, b: Tensor) -> Value:
    return T.where(condition, a, b)


def _mean(call: NodeCall, *operands: Tensor) -> Value:
    return functools.reduce(T.add, operands) / len(operands)


def _hard_sigmoid(x: Tensor, alpha: float, beta: float) -> Value:
    return T.clamp(x * alpha + beta, 0.0, 1.0)


def _selu(x: Tensor, alpha: float, gamma: float) -> Value:
    return T.where(x > 0, x * gamma, (T.exp(x) - 1) * (alpha * gamma))


def _celu(x: Tensor, alpha: float) -> Value:
    return F.celu(x, alpha)


def _elu(x: Tensor, alpha: float) -> Value:
    return T.where(x > 0, x, (T.exp(T.clamp(x, max=0.0)) - 1) * alpha)


def _leaky(x: Tensor, alpha: float) -> Value:
    return T.where(x < 0, x * alpha, x)


def _thresholded(x: Tensor, alpha: float) -> Value:
    return T.where(x > alpha, x, T.zeros_like(x))


def _swish(x: Tensor, alpha: float) -> Value:
    return x * T.sigmoid(x * alpha)


def _swiglu(call: NodeCall, a: Tensor, b: Tensor) -> Value:
    return _swish(a, call.get("alpha", 1.0)) * b


def _bits(call: NodeCall, x: Tensor) -> Value:
    """The same bits as another dtype of that size."""
    dtype = call.dtype(call.get("to"))
    return x.view(dtype)


def _dropout(
    call: NodeCall, x: Tensor, ratio: np.ndarray[Any, Any] | None = None,
    training: np.ndarray[Any, Any] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The identity, unless `training_mode` is true and the ratio above 0."""
    if training is not None and bool(training) and (ratio is None or float(ratio) > 0):
        raise call.refused("training_mode=True", "a model that is exported for inference")
    return x, T.ones_like(x, dtype=bool_)


TABLE: dict[str, Operator] = {
    "Abs": _plain(T.abs), "Acos": _plain(T.acos), "Acosh": _plain(T.acosh),
    "Asin": _plain(T.asin), "Asinh": _plain(T.asinh), "Atan": _plain(T.atan),
    "Atanh": _plain(T.atanh), "Ceil": _plain(T.ceil), "Cos": _plain(T.cos),
    "Cosh": _plain(T.cosh), "Erf": _plain(T.erf), "Exp": _plain(T.exp), "Floor": _plain(T.floor),
    "IsNaN": _plain(T.isnan), "Log": _plain(T.log), "Neg": _plain(T.neg),
    "Not": _plain(T.logical_not), "Reciprocal": _plain(T.reciprocal), "Round": _plain(T.round),
    "Sigmoid": _plain(T.sigmoid), "Sign": _plain(T.sign), "Sin": _plain(T.sin),
    "Sinh": _plain(T.sinh), "Sqrt": _plain(T.sqrt), "Tan": _plain(T.tan), "Tanh": _plain(T.tanh),
    "Relu": _plain(T.relu), "Softplus": _plain(F.softplus), "Softsign": _plain(F.softsign),
    "Mish": _plain(F.mish), "BitwiseNot": _plain(T.bitwise_not),
    "Identity": _plain(lambda x: x), "HardSwish": _plain(F.hardswish),
    "Elu": _with(_elu, alpha=1.0), "Celu": _with(_celu, alpha=1.0),
    "LeakyRelu": _with(_leaky, alpha=0.01), "ThresholdedRelu": _with(_thresholded, alpha=1.0),
    "HardSigmoid": _with(_hard_sigmoid, alpha=0.2, beta=0.5),
    "Selu": _with(_selu, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875),
    "Swish": _with(_swish, alpha=1.0), "SwiGLU": Operator(_swiglu), "Gelu": Operator(_gelu),
    "Shrink": Operator(_shrink), "PRelu": Operator(_prelu), "Clip": Operator(_clip),
    "IsInf": Operator(_isinf), "Cast": Operator(_cast), "CastLike": Operator(_cast),
    "Add": _plain(T.add), "Sub": _plain(T.sub), "Mul": _plain(T.mul), "Div": Operator(_div),
    "Mod": Operator(_mod), "Pow": Operator(_pow), "BitShift": Operator(_shift),
    "BitCast": Operator(_bits),
    "And": _plain(T.logical_and), "Or": _plain(T.logical_or), "Xor": _plain(T.logical_xor),
    "BitwiseAnd": _plain(T.bitwise_and), "BitwiseOr": _plain(T.bitwise_or),
    "BitwiseXor": _plain(T.bitwise_xor), "Equal": _plain(T.eq), "Greater": _plain(T.gt),
    "GreaterOrEqual": _plain(T.ge), "Less": _plain(T.lt), "LessOrEqual": _plain(T.le),
    "Max": _folded(T.maximum), "Min": _folded(T.minimum), "Sum": _folded(T.add),
    "Mean": Operator(_mean), "Where": Operator(_where),
    "Dropout": Operator(_dropout, host=(1, 2)),
}  # fmt: skip
