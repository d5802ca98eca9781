"""PyTorch's keywords that choose how a step is computed, not what.

A step is one plan here, fused over all parameters; so most of them say what is the case anyway.
"""

from __future__ import annotations

from tinygrad_cuda.core.errors import ArgumentError


def check_choices(
    op: str,
    *,
    foreach: bool | None = None,
    fused: bool | None = None,
    differentiable: bool = False,
) -> None:
    """Accepts what changes no result, and refuses what would.

    Args:
        op: the optimizer's name.
        foreach: all parameters at once; that is so in any case.
        fused: in one kernel; that is so in any case, where addresses fit.
        differentiable: gradients through the step, which is not recorded here.

    Raises:
        ArgumentError: a differentiable step, or `foreach` and `fused` together.
    """
    if differentiable:
        raise ArgumentError(
            op, "a step cannot be differentiable", expect="differentiable=False",
            actual="`fused` does not support `differentiable` either" if fused else "True",
            hint="write the update with Tensors: p2 = p - lr * grad(loss, p, create_graph=True)[0]",
        )  # fmt: skip
    if foreach and fused:
        raise ArgumentError(
            op, "`fused` and `foreach` cannot be `True` together", expect="one of them",
            actual="both",
        )  # fmt: skip
