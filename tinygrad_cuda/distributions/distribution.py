"""The base of distributions, what checks their arguments, and Independent.

A distribution has a batch of parameters and, of each, events of some shape.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.distributions import constraints
from tinygrad_cuda.distributions.constraints import Constraint
from tinygrad_cuda.graph.node import gradient_mode
from tinygrad_cuda.tensors.base import Size
from tinygrad_cuda.tensors.creation import tensor
from tinygrad_cuda.tensors.random import rand
from tinygrad_cuda.tensors.tensor import Tensor

Shape = tuple[int, ...]
T = TypeVar("T", bound="Distribution")


class Distribution:
    """The base of distributions.

    Args:
        batch_shape: the shape of the parameters.
        event_shape: the shape of one sample of one of them.
        validate_args: whether parameters and values are looked at and checked; by default they
            are.
    """

    has_rsample: Any = False
    has_enumerate_support: Any = False

    def __init__(
        self, batch_shape: Sequence[int] = (), event_shape: Sequence[int] = (),
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        self.batch_shape: Shape = Size(batch_shape)
        self.event_shape: Shape = Size(event_shape)
        self.validates = validate_args is not False

    @property
    def arg_constraints(self) -> dict[str, Constraint]:
        """The sets of values that each parameter may have, by its name."""
        raise self._lacks("arg_constraints")

    @property
    def support(self) -> Constraint:
        """The set of values that samples may have."""
        raise self._lacks("support")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values that a sample may have, of shape ``(count, *batch_shape, *event_shape)``.

        Args:
            expand: with False the dimensions of the batch have size 1.
        """
        raise self._lacks("enumerate_support")

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        raise self._lacks("mean")

    @property
    def mode(self) -> Tensor:
        """The likeliest value."""
        raise self._lacks("mode")

    @property
    def variance(self) -> Tensor:
        """The expected square of the distance from the mean."""
        raise self._lacks("variance")

    @property
    def stddev(self) -> Tensor:
        """The root of the variance."""
        root: Tensor = self.variance.sqrt()
        return root

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density or probability at `value`."""
        raise self._lacks("log_prob")

    def entropy(self) -> Tensor:
        """The expected value of minus the log of the probability, in nats."""
        raise self._lacks("entropy")

    def perplexity(self) -> Tensor:
        """The exponential of the entropy."""
        return self.entropy().exp()

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a sample of at most `value`."""
        raise self._lacks("cdf")

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of `cdf`."""
        raise self._lacks("icdf")

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Samples of shape ``(*sample_shape, *batch_shape, *event_shape)``, with gradients."""
        raise self._lacks("rsample")

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Samples as of `rsample`, without gradients."""
        with gradient_mode(False):
            return self.rsample(sample_shape)

    def sample_n(self, n: int) -> Tensor:
        """`n` samples: ``sample((n,))``."""
        return self.sample((n,))

    def expand(self: T, batch_shape: Sequence[int]) -> T:
        """The same distribution with a batch of another shape, to which its own broadcasts.

        Raises:
            ShapeError: it does not broadcast.

        Example:
            >>> import tinygrad_cuda as tc
            >>> normal = tc.distributions.Normal(tc.zeros(3, device="cpu"), 1.0)
            >>> normal.expand((2, 3)).sample().shape
            Size([2, 3])
        """
        wide, own = Size(batch_shape), len(self.batch_shape)
        made = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Distribution):
                setattr(made, name, value.expand((*wide, *value.batch_shape[own:])))
            elif isinstance(value, Tensor) and value.shape[:own] == self.batch_shape:
                setattr(made, name, value.expand(*wide, *value.shape[own:]))
        made.batch_shape = wide
        return made

    def shape_of(self, sample_shape: Sequence[int]) -> Shape:
        """The shape of samples."""
        return (*sample_shape, *self.batch_shape, *self.event_shape)

    def check(self, valid: Tensor, what: str, expect: str) -> None:
        """Raises unless all of `valid` is true; looks at it.

        Raises:
            ArgumentError: a parameter or a value is out of range.
        """
        if self.validates and not bool(valid.all().item()):
            raise ArgumentError(
                type(self).__name__, f"{what} is out of range", expect=expect,
                actual="others among them", hint="validate_args=False leaves out the check",
            )  # fmt: skip

    def _lacks(self, name: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} has no {name}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch {self.batch_shape}, event {self.event_shape})"


def together(*given: Any) -> list[Tensor]:
    """Parameters, numbers or Tensors, broadcast to one shape."""
    first = next((value for value in given if isinstance(value, Tensor)), tensor(0.0))
    made = [
        v if isinstance(v, Tensor) else tensor(float(v), dtype=first.dtype, device=first.device)
        for v in given
    ]
    whole = made[0]
    for other in made[1:]:
        whole = whole + other
    return [value.expand(*whole.shape) for value in made]


def uniform(like: Tensor, shape: Shape) -> Tensor:
    """Numbers of [0, 1) of the dtype and on the device of `like`."""
    return rand(*shape, dtype=like.dtype, device=like.device)


class Independent(Distribution):
    """A distribution whose last batch dimensions are those of an event.

    Args:
        base_distribution: whose samples are taken together.
        reinterpreted_batch_ndims: how many dimensions.
        validate_args: as of `Distribution`.

    Raises:
        ArgumentError: the batch has fewer dimensions.
    """

    def __init__(
        self, base_distribution: Distribution, reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        batch = base_distribution.batch_shape
        count = reinterpreted_batch_ndims
        if not 0 <= count <= len(batch):
            raise ArgumentError(
                "Independent", "the batch has fewer dimensions", expect=f"0 to {len(batch)}",
                actual=str(count),
            )  # fmt: skip
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, count
        cut = len(batch) - count
        event = (*batch[cut:], *base_distribution.event_shape)
        super().__init__(batch[:cut], event, validate_args)

    arg_constraints: Any = {}

    @property
    def has_rsample(self) -> Any:
        """That of the base."""
        return self.base_dist.has_rsample

    @property
    def has_enumerate_support(self) -> Any:
        """That of the base, where no dimension became one of an event."""
        return not self.reinterpreted_batch_ndims and self.base_dist.has_enumerate_support

    @constraints.dependent_property
    def support(self) -> Any:
        """Events of the base's."""
        inner, count = self.base_dist.support, self.reinterpreted_batch_ndims
        return constraints.independent(inner, count) if count else inner

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values of the base."""
        if self.reinterpreted_batch_ndims:
            raise NotImplementedError("all combinations of an event's values are too many")
        return self.base_dist.enumerate_support(expand)

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        return self.base_dist.mean

    @property
    def mode(self) -> Tensor:
        """The likeliest value."""
        return self.base_dist.mode

    @property
    def variance(self) -> Tensor:
        """The variance of each element."""
        return self.base_dist.variance

    def log_prob(self, value: Tensor) -> Tensor:
        """The sum over an event."""
        return self.summed(self.base_dist.log_prob(value))

    def entropy(self) -> Tensor:
        """The sum over an event."""
        return self.summed(self.base_dist.entropy())

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Samples of the base, with gradients."""
        return self.base_dist.rsample(sample_shape)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Samples of the base, without gradients."""
        return self.base_dist.sample(sample_shape)

    def summed(self, value: Tensor) -> Tensor:
        """The sum over the dimensions that became those of an event."""
        if not self.reinterpreted_batch_ndims:
            return value
        total: Tensor = value.sum(dim=tuple(range(-self.reinterpreted_batch_ndims, 0)))
        return total
