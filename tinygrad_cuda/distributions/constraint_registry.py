"""distributions.constraint_registry: the transform from real numbers to a set of values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tinygrad_cuda.core.errors import DTypeError
from tinygrad_cuda.distributions import constraints, transforms
from tinygrad_cuda.distributions.constraints import Constraint
from tinygrad_cuda.distributions.transforms import Transform

__all__ = ["ConstraintRegistry", "biject_to", "transform_to"]

Factory = Callable[[Any], Transform]


class ConstraintRegistry:
    """Transforms to sets of values, by the class of the set.

    Example:
        >>> import tinygrad_cuda as tc
        >>> transform = transform_to(constraints.positive)
        >>> transform(tc.zeros(2, device="cpu")).tolist()
        [1.0, 1.0]
    """

    def __init__(self) -> None:
        self._registry: dict[type, Factory] = {}

    def register(self, constraint: Any, factory: Factory | None = None) -> Any:
        """Enters what makes the transform to a set, directly or as a decorator.

        Args:
            constraint: a class of constraints, or one of the class.
            factory: takes the constraint.

        Raises:
            DTypeError: `constraint` is none; also a TypeError.
        """
        if factory is None:
            return lambda function: self.register(constraint, function)
        kind = constraint if isinstance(constraint, type) else type(constraint)
        if not issubclass(kind, Constraint):
            raise DTypeError(
                "register", "not a constraint", expect="a Constraint, or a class of them",
                actual=repr(constraint),
            )  # fmt: skip
        self._registry[kind] = factory
        return factory

    def __call__(self, constraint: Constraint) -> Transform:
        """The transform to a set.

        Raises:
            NotImplementedError: none is known.
        """
        factory = self._registry.get(type(constraint))
        if factory is None:
            raise NotImplementedError(f"no transform to {constraint} is registered")
        return factory(constraint)


biject_to = ConstraintRegistry()
transform_to = ConstraintRegistry()


def _of_both(*kinds: Any) -> Callable[[Callable[..., Transform]], Any]:
    """Enters a function of a constraint and a registry into both, for some classes."""

    def enter(function: Callable[..., Transform]) -> Any:
        for registry in (biject_to, transform_to):
            for kind in kinds:
                registry.register(kind, partial(function, registry=registry))
        return function

    return enter


@_of_both(constraints.real)
def _real(constraint: Any, registry: ConstraintRegistry) -> Transform:
    return transforms.identity_transform


@_of_both(constraints.independent)
def _independent(constraint: Any, registry: ConstraintRegistry) -> Transform:
    inner = registry(constraint.base_constraint)
    return transforms.IndependentTransform(inner, constraint.reinterpreted_batch_ndims)


# Those of `positive` and `nonnegative`, too: they are of the same classes, as in PyTorch.
@_of_both(constraints.greater_than, constraints.greater_than_eq)
def _above(constraint: Any, registry: ConstraintRegistry) -> Transform:
    shift = transforms.AffineTransform(constraint.lower_bound, 1)
    return transforms.ComposeTransform([transforms.ExpTransform(), shift])


@_of_both(constraints.less_than)
def _below(constraint: Any, registry: ConstraintRegistry) -> Transform:
    shift = transforms.AffineTransform(constraint.upper_bound, -1)
    return transforms.ComposeTransform([transforms.ExpTransform(), shift])


@_of_both(constraints.interval, constraints.half_open_interval)
def _between(constraint: Any, registry: ConstraintRegistry) -> Transform:
    low, high = constraint.lower_bound, constraint.upper_bound
    if isinstance(low, int | float) and isinstance(high, int | float) and (low, high) == (0, 1):
        return transforms.SigmoidTransform()
    stretch = transforms.AffineTransform(low, high - low)
    return transforms.ComposeTransform([transforms.SigmoidTransform(), stretch])


@_of_both(constraints.corr_cholesky)
def _corr_cholesky(constraint: Any, registry: ConstraintRegistry) -> Transform:
    return transforms.CorrCholeskyTransform()


@_of_both(constraints.cat)
def _cat(constraint: Any, registry: ConstraintRegistry) -> Transform:
    parts = [registry(part) for part in constraint.cseq]
    return transforms.CatTransform(parts, constraint.dim, constraint.lengths)


@_of_both(constraints.stack)
def _stack(constraint: Any, registry: ConstraintRegistry) -> Transform:
    return transforms.StackTransform([registry(c) for c in constraint.cseq], constraint.dim)


biject_to.register(constraints.simplex, lambda _: transforms.StickBreakingTransform())
transform_to.register(constraints.simplex, lambda _: transforms.SoftmaxTransform())
transform_to.register(constraints.lower_cholesky, lambda _: transforms.LowerCholeskyTransform())
for _kind in (constraints.positive_definite, constraints.positive_semidefinite):
    transform_to.register(_kind, lambda _: transforms.PositiveDefiniteTransform())
