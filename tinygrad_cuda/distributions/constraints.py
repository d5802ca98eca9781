"""distributions.constraints: sets of values by PyTorch's names, for distributions of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinygrad_cuda.tensors.tensor import Tensor


class Constraint:
    """A set of values.

    Args:
        name: how it is shown.
        holds: whether each value, or each event, is in the set.
        event_dim: how many of the last dimensions are those of an event.
        is_discrete: whether its values are apart.
    """

    def __init__(
        self, name: str, holds: Callable[[Tensor], Any], event_dim: int = 0,
        is_discrete: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.holds = name, holds
        self.event_dim, self.is_discrete = event_dim, is_discrete

    def check(self, value: Tensor) -> Tensor:
        """Whether each value is in the set.

        Example:
            >>> import tinygrad_cuda as tc
            >>> positive.check(tc.tensor([1.0, -1.0], device="cpu")).tolist()
            [True, False]
        """
        result: Tensor = self.holds(value)
        return result

    def __repr__(self) -> str:
        return self.name


def greater_than(lower_bound: Any) -> Constraint:
    """Above a bound."""
    return Constraint(f"greater_than({lower_bound})", lambda x: x > lower_bound)


def greater_than_eq(lower_bound: Any) -> Constraint:
    """A bound, or above it."""
    return Constraint(f"greater_than_eq({lower_bound})", lambda x: x >= lower_bound)


def less_than(upper_bound: Any) -> Constraint:
    """Below a bound."""
    return Constraint(f"less_than({upper_bound})", lambda x: x < upper_bound)


def interval(lower_bound: Any, upper_bound: Any) -> Constraint:
    """From one bound to another, both among them."""
    name = f"interval({lower_bound}, {upper_bound})"
    return Constraint(name, lambda x: (x >= lower_bound).logical_and(x <= upper_bound))


def half_open_interval(lower_bound: Any, upper_bound: Any) -> Constraint:
    """From one bound to below another."""
    name = f"half_open_interval({lower_bound}, {upper_bound})"
    return Constraint(name, lambda x: (x >= lower_bound).logical_and(x < upper_bound))


def integer_interval(lower_bound: Any, upper_bound: Any) -> Constraint:
    """Whole numbers from one bound to another."""
    name = f"integer_interval({lower_bound}, {upper_bound})"

    def holds(x: Tensor) -> Any:
        inside = (x >= lower_bound).logical_and(x <= upper_bound)
        return inside.logical_and(x == x.floor())

    return Constraint(name, holds, is_discrete=True)


def independent(base_constraint: Constraint, reinterpreted_batch_ndims: int) -> Constraint:
    """Events of which every value is in a set."""
    count = reinterpreted_batch_ndims

    def holds(x: Tensor) -> Any:
        inside = base_constraint.check(x)
        return inside.flatten(-count).all(dim=-1) if count else inside

    name = f"independent({base_constraint}, {count})"
    event_dim = base_constraint.event_dim + count
    return Constraint(name, holds, event_dim, base_constraint.is_discrete)


def _whole(x: Tensor) -> Any:
    return (x >= 0).logical_and(x == x.floor())


def _adds_up(x: Tensor) -> Any:
    return (x >= 0).all(dim=-1).logical_and((x.sum(dim=-1) - 1).abs() < 1e-6)


def _one_of_them(x: Tensor) -> Any:
    bits = (x == 0).logical_or(x == 1).all(dim=-1)
    return bits.logical_and(x.sum(dim=-1) == 1)


real = Constraint("real", lambda x: x == x)
real_vector = independent(real, 1)
positive = greater_than(0)
nonnegative = greater_than_eq(0)
unit_interval = interval(0.0, 1.0)
boolean = Constraint("boolean", lambda x: (x == 0).logical_or(x == 1), is_discrete=True)
nonnegative_integer = Constraint("nonnegative_integer", _whole, is_discrete=True)
positive_integer = Constraint(
    "positive_integer", lambda x: _whole(x).logical_and(x > 0), is_discrete=True
)
simplex = Constraint("simplex", _adds_up, 1)
one_hot = Constraint("one_hot", _one_of_them, 1, is_discrete=True)
dependent = Constraint("dependent", lambda x: x == x)
