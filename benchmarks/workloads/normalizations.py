"""Layer norm and RMS norm over rows of 8192 x 8192, batch norm of 256 x 64 x 56 x 56."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.workload import Function, normal


def layer_norm(net: Any, x: Any, weight: Any, bias: Any) -> Any:
    return net.layer_norm_of(x, weight, bias)


def rms_norm(net: Any, x: Any, weight: Any) -> Any:
    return net.rms_norm_of(x, weight)


def batch_norm(net: Any, x: Any, weight: Any, bias: Any) -> Any:
    return net.batch_norm_of(x, weight, bias)


def over_rows(function: Any, weights: int, backward: bool, dtype: str, smoke: bool) -> Function:
    side = 8 if smoke else 8192
    inputs = (normal((side, side)), *(normal((side,), 2 + number) for number in range(weights)))
    return Function(function, inputs, normal((side, side), 1) if backward else None, dtype)


def over_channels(backward: bool, smoke: bool) -> Function:
    shape = (2, 3, 4, 4) if smoke else (256, 64, 56, 56)
    inputs = (normal(shape), np.ones(shape[1], np.float32), np.zeros(shape[1], np.float32))
    return Function(batch_norm, inputs, normal(shape, 1) if backward else None)


WORKLOADS = {
    f"{name}{suffix}{kind}": partial(over_rows, function, weights, bool(suffix), dtype)
    for name, function, weights in (("layer_norm", layer_norm, 2), ("rms_norm", rms_norm, 1))
    for kind, dtype in (("", "float32"), ("_bf16", "bfloat16"))
    for suffix in ("", "_backward")
}
WORKLOADS |= {
    "batch_norm": partial(over_channels, False),
    "batch_norm_backward": partial(over_channels, True),
}
