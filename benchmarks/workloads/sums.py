"""The sum of 8192 x 8192 values, and the sums of its columns."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.workload import Function, normal


def total(net: Any, x: Any) -> Any:
    return net.sum(x, None)


def columns(net: Any, x: Any) -> Any:
    return net.sum(x, 0)


def reduction(function: Any, smoke: bool) -> Function:
    side = 8 if smoke else 8192
    return Function(function, (normal((side, side)),))


WORKLOADS = {"sum": partial(reduction, total), "column_sum": partial(reduction, columns)}
