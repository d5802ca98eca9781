"""GELU by tanh, ``x sigmoid(2 u)`` with ``u = sqrt(2 / pi) (x + 0.044715 x^3)``.

Its derivative stands in the epilogues of a transformer's products. From the rows of the value it
would be a sum of four terms, and lose digits where the sigmoid is near 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tinygrad_cuda.graph.node import Node, gradient_mode, mode
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops.common import GradientRule, custom, full_like, require_dtype

LINEAR = math.sqrt(8.0 / math.pi)
CUBIC = 0.044715 * LINEAR


def gelu_tanh(x: Node) -> Node:
    """The value, elementwise.

    Raises:
        DTypeError: the operand is of integers.
    """
    require_dtype("gelu", x, "float")
    if not (mode.now.gradients and x.requires_grad):
        return _value(x)
    with gradient_mode(False):
        value = _value(x)
    return custom(value, x, results=1, function=_Derivative())


def _polynomial(square: Node, cubic: float) -> Node:
    scaled = ew.mul(square, full_like(square, cubic))
    return ew.add(scaled, full_like(square, LINEAR))


def _value(x: Node) -> Node:
    slope = _polynomial(ew.mul(x, x), CUBIC)
    return ew.mul(x, ew.sigmoid(ew.mul(x, slope)))


@dataclass(frozen=True)
class _Derivative(GradientRule):
    def __call__(self, node: Node, *gs: Node | None) -> Sequence[Node | None]:
        (g,), x = gs, node.sources[1]
        assert g is not None
        positive = ew.gt(x, full_like(x, 0))
        # Where x > 0 the derivative is 1 less that of -x, whose sigmoid has all its digits.
        # By abs it is no instruction, but has no slope at 0, of which a second gradient asks.
        again = mode.now.gradients
        low = ew.where(positive, ew.neg(x), x) if again else ew.neg(ew.abs(x))
        square = ew.mul(x, x)
        share = ew.sigmoid(ew.mul(low, _polynomial(square, CUBIC)))
        rest = ew.sub(full_like(x, 1), share)
        # First with the share, which is 0 where the other factors are largest.
        steep = ew.mul(ew.mul(share, low), ew.mul(rest, _polynomial(square, 3 * CUBIC)))
        slope = ew.add(share, steep)
        return (ew.mul(g, ew.where(positive, ew.sub(full_like(x, 1), slope), slope)),)
