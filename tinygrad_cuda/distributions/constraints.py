"""distributions.constraints: sets of values, by PyTorch's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinygrad_cuda.core.dtypes import bool_, finfo
from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.tensors import creation
from tinygrad_cuda.tensors.indexing.selecting import where
from tinygrad_cuda.tensors.linalg.factorizing import eigvalsh
from tinygrad_cuda.tensors.math import isclose
from tinygrad_cuda.tensors.shaping import cat as joined
from tinygrad_cuda.tensors.shaping import stack as stacked
from tinygrad_cuda.tensors.tensor import Tensor


class Constraint:
    """The base of sets of values.

    Attributes:
        is_discrete: whether its values are apart.
        event_dim: how many of the last dimensions are those of one value.

    Example:
        >>> import tinygrad_cuda as tc
        >>> positive.check(tc.tensor([1.0, -1.0], device="cpu")).tolist()
        [True, False]
    """

    is_discrete: Any = False
    event_dim: Any = 0

    def check(self, value: Tensor) -> Tensor:
        """Whether each value, or each event of values, is in the set."""
        raise NotImplementedError(f"{type(self).__name__} has no check")

    def __repr__(self) -> str:
        return f"{type(self).__name__.lstrip('_')}()"


class _Dependent(Constraint):
    """A set that depends on the parameters of a distribution."""

    def __init__(
        self, *, is_discrete: Any = NotImplemented, event_dim: Any = NotImplemented
    ) -> None:
        self._is_discrete, self._event_dim = is_discrete, event_dim

    @property
    def is_discrete(self) -> Any:
        """Whether its values are apart, if that is known of the class."""
        return _stated("is_discrete", self._is_discrete)

    @property
    def event_dim(self) -> Any:
        """How many dimensions one value has, if that is known of the class."""
        return _stated("event_dim", self._event_dim)

    def __call__(
        self, *, is_discrete: Any = NotImplemented, event_dim: Any = NotImplemented
    ) -> _Dependent:
        """This constraint with `is_discrete` or `event_dim` set."""
        return _Dependent(
            is_discrete=self._is_discrete if is_discrete is NotImplemented else is_discrete,
            event_dim=self._event_dim if event_dim is NotImplemented else event_dim,
        )

    def check(self, value: Tensor) -> Tensor:
        """Refused: the set is not known."""
        raise ArgumentError(
            "check", "what is allowed depends on a distribution's parameters",
            expect="the constraint of a distribution", actual="that of its class",
        )  # fmt: skip


def _stated(name: str, value: Any) -> Any:
    if value is NotImplemented:
        raise NotImplementedError(f".{name} is not known of the class alone")
    return value


class _DependentProperty(property, _Dependent):
    """A property of a distribution that is a constraint; of the class it is a dependent one."""

    def __init__(
        self, fn: Callable[..., Any] | None = None, *, is_discrete: Any = NotImplemented,
        event_dim: Any = NotImplemented,
    ) -> None:  # fmt: skip
        property.__init__(self, fn)
        self._is_discrete, self._event_dim = is_discrete, event_dim

    def __call__(self, fn: Any) -> Any:  # type: ignore[override]  # as PyTorch has it
        """The property of a function, behind ``@dependent_property(event_dim=1)``."""
        return _DependentProperty(fn, is_discrete=self._is_discrete, event_dim=self._event_dim)


def is_dependent(constraint: Any) -> bool:
    """Whether a set depends on the parameters of a distribution."""
    return isinstance(constraint, _Dependent)


class _IndependentConstraint(Constraint):
    """Events of which every value is in a set."""

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        self.base_constraint = base_constraint
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims

    @property
    def is_discrete(self) -> Any:
        return self.base_constraint.is_discrete

    @property
    def event_dim(self) -> Any:
        return self.base_constraint.event_dim + self.reinterpreted_batch_ndims

    def check(self, value: Tensor) -> Tensor:
        inside = self.base_constraint.check(value)
        return _all_of_events(inside, self.reinterpreted_batch_ndims, value, self.event_dim)

    def __repr__(self) -> str:
        return f"IndependentConstraint({self.base_constraint}, {self.reinterpreted_batch_ndims})"


def _all_of_events(inside: Tensor, count: int, value: Tensor, event_dim: int) -> Tensor:
    """Whether all of the last `count` dimensions are true."""
    if inside.ndim < count:
        raise ShapeError(
            "check", "the value has too few dimensions", expect=f"{event_dim} or more",
            actual=str(value.ndim),
        )  # fmt: skip
    return inside.reshape(*inside.shape[: inside.ndim - count], -1).all(dim=-1)


class MixtureSameFamilyConstraint(Constraint):
    """Values that all components of a mixture allow.

    Args:
        base_constraint: that of the components.
    """

    def __init__(self, base_constraint: Constraint) -> None:
        self.base_constraint = base_constraint

    @property
    def is_discrete(self) -> Any:
        """Whether the values of the components are apart."""
        return self.base_constraint.is_discrete

    @property
    def event_dim(self) -> Any:
        """How many dimensions one value has."""
        return self.base_constraint.event_dim

    def check(self, value: Tensor) -> Tensor:
        """Whether each value, or each event of values, is in the set."""
        inside = self.base_constraint.check(value.unsqueeze(-1 - self.event_dim))
        count = inside.ndim - (value.ndim - self.event_dim)
        return _all_of_events(inside, count, value, self.event_dim)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_constraint})"


class _Boolean(Constraint):
    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        result: Tensor = (value == 0).logical_or(value == 1)
        return result


class _OneHot(Constraint):
    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        bits = (value == 0).logical_or(value == 1).all(dim=-1)
        result: Tensor = bits.logical_and(value.sum(dim=-1) == 1)
        return result


class _Bounded(Constraint):
    """A set with a lower or an upper bound, or both; numbers or Tensors.

    Attributes:
        bounds: their names.
    """

    bounds: tuple[str, ...] = ("lower_bound",)

    def __init__(self, *bounds: Any, **named: Any) -> None:
        given = {**dict(zip(self.bounds, bounds, strict=False)), **named}
        if len(bounds) + len(named) != len(self.bounds) or set(given) != set(self.bounds):
            raise TypeError(f"{type(self).__name__.lstrip('_')} takes {', '.join(self.bounds)}")
        vars(self).update(given)

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={getattr(self, name)}" for name in self.bounds)
        return f"{type(self).__name__.lstrip('_')}({inside})"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def _whole(value: Tensor) -> Tensor:
    result: Tensor = value % 1 == 0
    return result


class _GreaterThan(_Bounded):
    def check(self, value: Tensor) -> Tensor:
        result: Tensor = value > self.lower_bound
        return result


class _GreaterThanEq(_Bounded):
    def check(self, value: Tensor) -> Tensor:
        result: Tensor = value >= self.lower_bound
        return result


class _IntegerGreaterThan(_Bounded):
    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return _whole(value).logical_and(value >= self.lower_bound)


class _LessThan(_Bounded):
    bounds = ("upper_bound",)

    def check(self, value: Tensor) -> Tensor:
        result: Tensor = value < self.upper_bound
        return result


class _IntegerLessThan(_LessThan):
    is_discrete = True

    def check(self, value: Tensor) -> Tensor:
        return _whole(value).logical_and(value <= self.upper_bound)


class _Interval(_Bounded):
    bounds = ("lower_bound", "upper_bound")

    def check(self, value: Tensor) -> Tensor:
        result: Tensor = (value >= self.lower_bound).logical_and(value <= self.upper_bound)
        return result


class _IntegerInterval(_Bounded):
    is_discrete = True
    bounds = ("lower_bound", "upper_bound")

    def check(self, value: Tensor) -> Tensor:
        inside = (value >= self.lower_bound).logical_and(value <= self.upper_bound)
        return _whole(value).logical_and(inside)


class _HalfOpenInterval(_Bounded):
    bounds = ("lower_bound", "upper_bound")

    def check(self, value: Tensor) -> Tensor:
        result: Tensor = (value >= self.lower_bound).logical_and(value < self.upper_bound)
        return result


class _Multinomial(_Bounded):
    is_discrete = True
    event_dim = 1
    bounds = ("upper_bound",)
    __repr__ = Constraint.__repr__

    def check(self, value: Tensor) -> Tensor:
        return (value >= 0).all(dim=-1).logical_and(value.sum(dim=-1) <= self.upper_bound)


class _Real(Constraint):
    def check(self, value: Tensor) -> Tensor:
        result: Tensor = value == value
        return result


class _Simplex(Constraint):
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value >= 0).all(dim=-1).logical_and((value.sum(dim=-1) - 1).abs() < 1e-6)


class _Square(Constraint):
    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        square = value.shape[-2] == value.shape[-1]
        return creation.full(value.shape[:-2], square, dtype=bool_, device=value.device)


class _LowerTriangular(Constraint):
    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        result: Tensor = (value.tril() == value).flatten(-2).all(dim=-1)
        return result


class _LowerCholesky(_LowerTriangular):
    def check(self, value: Tensor) -> Tensor:
        return super().check(value).logical_and((value.diagonal(0, -2, -1) > 0).all(dim=-1))


class _CorrCholesky(_LowerCholesky):
    def check(self, value: Tensor) -> Tensor:
        near = finfo(value.dtype).eps * value.shape[-1] * 10
        length = value.detach().square().sum(dim=-1).sqrt()
        return super().check(value).logical_and(((length - 1).abs() <= near).all(dim=-1))


class _Symmetric(_Square):
    def check(self, value: Tensor) -> Tensor:
        if value.shape[-2] != value.shape[-1]:
            return super().check(value)
        return isclose(value, value.mT, atol=1e-6).flatten(-2).all(dim=-1)


def _eigenvalues(matrices: Tensor) -> Tensor:
    """Of symmetric matrices; -1 of those that are not finite, which are neither set's."""
    finite = matrices.isfinite().flatten(-2).all(dim=-1).unsqueeze(-1)
    values: Tensor = where(finite, eigvalsh(where(finite.unsqueeze(-1), matrices, 0.0)), -1.0)
    return values


class _PositiveSemidefinite(_Symmetric):
    def check(self, value: Tensor) -> Tensor:
        symmetric = super().check(value)
        if not symmetric.all().item():
            return symmetric
        return (_eigenvalues(value) >= 0).all(dim=-1)


class _PositiveDefinite(_Symmetric):
    def check(self, value: Tensor) -> Tensor:
        symmetric = super().check(value)
        if not symmetric.all().item():
            return symmetric
        return (_eigenvalues(value) > 0).all(dim=-1)


class _Sequence(Constraint):
    """Sets beside each other along a dimension."""

    def __init__(self, cseq: Sequence[Constraint], dim: int = 0) -> None:
        self.cseq, self.dim = list(cseq), dim

    @property
    def is_discrete(self) -> Any:
        return any(constraint.is_discrete for constraint in self.cseq)

    @property
    def event_dim(self) -> Any:
        return max(constraint.event_dim for constraint in self.cseq)


class _Cat(_Sequence):
    def __init__(
        self, cseq: Sequence[Constraint], dim: int = 0, lengths: Sequence[int] | None = None
    ) -> None:
        super().__init__(cseq, dim)
        self.lengths = [1] * len(self.cseq) if lengths is None else list(lengths)
        if len(self.lengths) != len(self.cseq):
            raise ArgumentError(
                "cat", "one length for each constraint", expect=str(len(self.cseq)),
                actual=str(len(self.lengths)),
            )  # fmt: skip

    def check(self, value: Tensor) -> Tensor:
        parts = value.split(self.lengths, dim=self.dim)
        checks = [constraint.check(part) for constraint, part in zip(self.cseq, parts)]
        return joined(checks, self.dim)


class _Stack(_Sequence):
    @property
    def event_dim(self) -> Any:
        count: int = super().event_dim
        return count + 1 if self.dim + count < 0 else count

    def check(self, value: Tensor) -> Tensor:
        parts = value.unbind(self.dim)
        return stacked([c.check(part) for c, part in zip(self.cseq, parts)], self.dim)


dependent = _Dependent()
dependent_property = _DependentProperty
independent = _IndependentConstraint
boolean = _Boolean()
one_hot = _OneHot()
nonnegative_integer = _IntegerGreaterThan(0)
positive_integer = _IntegerGreaterThan(1)
integer_interval = _IntegerInterval
real = _Real()
real_vector = independent(real, 1)
positive = _GreaterThan(0.0)
nonnegative = _GreaterThanEq(0.0)
greater_than = _GreaterThan
greater_than_eq = _GreaterThanEq
less_than = _LessThan
multinomial = _Multinomial
unit_interval = _Interval(0.0, 1.0)
interval = _Interval
half_open_interval = _HalfOpenInterval
simplex = _Simplex()
lower_triangular = _LowerTriangular()
lower_cholesky = _LowerCholesky()
corr_cholesky = _CorrCholesky()
square = _Square()
symmetric = _Symmetric()
positive_semidefinite = _PositiveSemidefinite()
positive_definite = _PositiveDefinite()
cat = _Cat
stack = _Stack
