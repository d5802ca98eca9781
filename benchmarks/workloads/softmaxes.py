"""Softmax and cross-entropy over rows of 8192 x 8192, forward and with gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.workload import Function, normal


def softmax(net: Any, x: Any) -> Any:
    return net.softmax(x)


def cross_entropy(net: Any, x: Any, labels: Any) -> Any:
    return net.cross_entropy(x, labels)


def softmax_over_rows(backward: bool, dtype: str, smoke: bool) -> Function:
    side = 8 if smoke else 8192
    cotangent = normal((side, side), 1) if backward else None
    return Function(softmax, (normal((side, side)),), cotangent, dtype)


def cross_entropy_over_rows(backward: bool, dtype: str, smoke: bool) -> Function:
    side = 8 if smoke else 8192
    labels = np.random.default_rng(1).integers(0, side, side)
    cotangent = np.array(1, np.float32) if backward else None
    return Function(cross_entropy, (normal((side, side)), labels), cotangent, dtype)


WORKLOADS = {
    f"{name}{suffix}{kind}": partial(make, bool(suffix), dtype)
    for name, make in (("softmax", softmax_over_rows), ("cross_entropy", cross_entropy_over_rows))
    for kind, dtype in (("", "float32"), ("_bf16", "bfloat16"))
    for suffix in ("", "_backward")
}
