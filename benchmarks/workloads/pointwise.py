"""Chains of pointwise operations on 8192 x 8192: one read and one write if fused."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.workload import Function, normal


def gelu_chain(net: Any, x: Any) -> Any:
    return net.gelu(x) * x + 1.0


def ten(net: Any, x: Any) -> Any:
    y = net.tanh(x * 0.5 + 1.0)
    y = net.relu(y * y - 0.25)
    return net.sqrt(y + 1.0) * x - 3.0


def chain(function: Any, smoke: bool) -> Function:
    side = 8 if smoke else 8192
    return Function(function, (normal((side, side)),))


WORKLOADS = {"gelu_chain": partial(chain, gelu_chain), "ten_pointwise": partial(chain, ten)}
