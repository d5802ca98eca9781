"""distributions.transforms: functions of values or of events, with their derivatives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinygrad_cuda.core.dtypes import finfo
from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.core.shapes import broadcast
from tinygrad_cuda.distributions import constraints
from tinygrad_cuda.distributions.constraints import Constraint
from tinygrad_cuda.distributions.utils import tril_matrix_to_vec, vec_to_tril_matrix
from tinygrad_cuda.tensors.base import Size
from tinygrad_cuda.tensors.creation import arange, eye, ones_like, tensor
from tinygrad_cuda.tensors.linalg.factorizing import cholesky
from tinygrad_cuda.tensors.shaping import cat, diag_embed, stack
from tinygrad_cuda.tensors.tensor import Tensor

Shape = tuple[int, ...]


class Transform:
    """The base of transforms: subclasses write `_call`, `_inverse` and `log_abs_det_jacobian`.

    A class says whether it is ``bijective``, and of which sets its arguments (``domain``) and its
    results (``codomain``) are.

    Args:
        cache_size: 1 remembers the last result, whose inverse is its argument without rounding.

    Raises:
        ArgumentError: `cache_size` is neither 0 nor 1.
    """

    bijective: Any = False
    domain: Any = constraints.real
    codomain: Any = constraints.real
    sign: Any

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ArgumentError(
                "Transform", "cache_size is out of range", expect="0 or 1", actual=str(cache_size)
            )
        self._cache_size = cache_size
        self._last: tuple[Any, Any] = (None, None)
        self._inv: Transform | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if self._cache_size and self._last[0] is x:
            cached: Tensor = self._last[1]
            return cached
        y = self._call(x)
        self._last = (x, y) if self._cache_size else self._last
        return y

    def __getattr__(self, name: str) -> Any:
        # Reached for what a transform does not say of itself.
        if name == "sign":
            raise NotImplementedError(f"{type(self).__name__} has no sign")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def event_dim(self) -> int:
        """How many dimensions one argument and its result have, where it is as many.

        Raises:
            ArgumentError: an argument has another number of dimensions than its result.
        """
        count: int = self.domain.event_dim
        if count != self.codomain.event_dim:
            raise ArgumentError(
                "event_dim", "arguments and results differ in their dimensions",
                expect=".domain.event_dim or .codomain.event_dim", actual=".event_dim",
            )  # fmt: skip
        return count

    @property
    def inv(self) -> Transform:
        """The inverse transform."""
        if self._inv is None:
            self._inv = _InverseTransform(self)
        return self._inv

    def with_cache(self, cache_size: int = 1) -> Transform:
        """The same transform that remembers its last result, or does not."""
        if self._cache_size == cache_size:
            return self
        kind: Any = type(self)
        made: Transform = kind(*self._parameters(), cache_size=cache_size)
        return made

    def _parameters(self) -> tuple[Any, ...]:
        """What it was made with, besides the size of its cache."""
        if type(self).__init__ is not Transform.__init__:
            raise NotImplementedError(f"{type(self).__name__} has no with_cache")
        return ()

    def _inv_call(self, y: Tensor) -> Tensor:
        if self._cache_size and self._last[1] is y:
            cached: Tensor = self._last[0]
            return cached
        x = self._inverse(y)
        self._last = (x, y) if self._cache_size else self._last
        return x

    def _call(self, x: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no _call")

    def _inverse(self, y: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no _inverse")

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm of ``|det dy / dx|`` of each argument."""
        raise NotImplementedError(f"{type(self).__name__} has no log_abs_det_jacobian")

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        """The shape of the result of an argument of some shape."""
        return Size(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Shape:
        """The shape of the argument of a result of some shape."""
        return Size(shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Plain(Transform):
    """A transform without parameters: two of one class are equal."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self))

    __hash__ = Transform.__hash__


class _InverseTransform(Transform):
    def __init__(self, transform: Transform) -> None:
        super().__init__(cache_size=transform._cache_size)
        self._inv = self.base = transform

    @property
    def domain(self) -> Any:
        return self.base.codomain

    @property
    def codomain(self) -> Any:
        return self.base.domain

    @property
    def bijective(self) -> Any:
        return self.base.bijective

    @property
    def sign(self) -> Any:
        return self.base.sign

    def with_cache(self, cache_size: int = 1) -> Transform:
        return self.base.with_cache(cache_size).inv

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _InverseTransform) and self.base == other.base

    __hash__ = Transform.__hash__

    def __repr__(self) -> str:
        return f"_InverseTransform({self.base})"

    def __call__(self, x: Tensor) -> Tensor:
        return self.base._inv_call(x)

    def _inv_call(self, y: Tensor) -> Tensor:
        return self.base(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self.base.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        return self.base.inverse_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Shape:
        return self.base.forward_shape(shape)


class ComposeTransform(Transform):
    """Transforms one after another.

    Args:
        parts: the first is the first to be applied.
        cache_size: as of `Transform`, of each part.
    """

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.parts = [part.with_cache(cache_size) if cache_size else part for part in parts]

    def _parameters(self) -> tuple[Any, ...]:
        return (self.parts,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComposeTransform) and self.parts == other.parts

    __hash__ = Transform.__hash__

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> Any:
        """The set of arguments, of as many dimensions as some part needs."""
        if not self.parts:
            return constraints.real
        count = self.parts[-1].codomain.event_dim
        for part in reversed(self.parts):
            count = max(
                count + part.domain.event_dim - part.codomain.event_dim, part.domain.event_dim
            )
        return _widened(self.parts[0].domain, count)

    @constraints.dependent_property(is_discrete=False)
    def codomain(self) -> Any:
        """The set of results, of as many dimensions as some part needs."""
        if not self.parts:
            return constraints.real
        count = self.parts[0].domain.event_dim
        for part in self.parts:
            count = max(
                count + part.codomain.event_dim - part.domain.event_dim, part.codomain.event_dim
            )
        return _widened(self.parts[-1].codomain, count)

    @property
    def bijective(self) -> Any:
        """Whether every part has an inverse."""
        return all(part.bijective for part in self.parts)

    @property
    def sign(self) -> Any:
        """The product of those of the parts."""
        sign: Any = 1
        for part in self.parts:
            sign = sign * part.sign
        return sign

    @property
    def inv(self) -> Transform:
        """The inverses of the parts, the last one first."""
        if self._inv is None:
            self._inv = ComposeTransform([part.inv for part in reversed(self.parts)])
            self._inv._inv = self
        return self._inv

    def __call__(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def _inv_call(self, y: Tensor) -> Tensor:
        return self.inv(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum of those of the parts, each over the dimensions of an event."""
        if not self.parts:
            return x * 0.0
        values = [x]
        for part in self.parts[:-1]:
            values.append(part(values[-1]))
        values.append(y)
        total: Any = 0.0
        count = self.domain.event_dim
        for part, x, y in zip(self.parts, values[:-1], values[1:], strict=True):
            log = part.log_abs_det_jacobian(x, y)
            total = total + summed(log, count - part.domain.event_dim)
            count += part.codomain.event_dim - part.domain.event_dim
        result: Tensor = total
        return result

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        """The shape of the result of an argument of some shape."""
        for part in self.parts:
            shape = part.forward_shape(shape)
        return Size(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Shape:
        """The shape of the argument of a result of some shape."""
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return Size(shape)

    def __repr__(self) -> str:
        inside = ",\n    ".join(map(repr, self.parts))
        return f"{type(self).__name__}(\n    {inside}\n)"


identity_transform = ComposeTransform([])


def _widened(constraint: Constraint, count: int) -> Constraint:
    """The set of events of `count` dimensions whose parts are in a set."""
    more = count - constraint.event_dim
    return constraints.independent(constraint, more) if more > 0 else constraint


class IndependentTransform(Transform):
    """A transform whose last batch dimensions are those of an event.

    Args:
        base_transform: of each value.
        reinterpreted_batch_ndims: how many dimensions.
        cache_size: as of `Transform`.
    """

    def __init__(
        self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        self.base_transform = base_transform.with_cache(cache_size)
        self.reinterpreted_batch_ndims = reinterpreted_batch_ndims

    def _parameters(self) -> tuple[Any, ...]:
        return self.base_transform, self.reinterpreted_batch_ndims

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> Any:
        """Events of the base's arguments."""
        return constraints.independent(self.base_transform.domain, self.reinterpreted_batch_ndims)

    @constraints.dependent_property(is_discrete=False)
    def codomain(self) -> Any:
        """Events of the base's results."""
        return constraints.independent(self.base_transform.codomain, self.reinterpreted_batch_ndims)

    @property
    def bijective(self) -> Any:
        """That of the base."""
        return self.base_transform.bijective

    @property
    def sign(self) -> Any:
        """That of the base."""
        return self.base_transform.sign

    def _call(self, x: Tensor) -> Tensor:
        _require_dimensions(x.shape, self.domain.event_dim)
        return self.base_transform(x)

    def _inverse(self, y: Tensor) -> Tensor:
        _require_dimensions(y.shape, self.codomain.event_dim)
        return self.base_transform.inv(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum over an event."""
        log = self.base_transform.log_abs_det_jacobian(x, y)
        return summed(log, self.reinterpreted_batch_ndims)

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        """That of the base."""
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> Shape:
        """That of the base."""
        return self.base_transform.inverse_shape(shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_transform}, {self.reinterpreted_batch_ndims})"


class ReshapeTransform(Transform):
    """Events in another shape.

    Args:
        in_shape, out_shape: of an argument and of its result.
        cache_size: as of `Transform`.

    Raises:
        ShapeError: the shapes have different numbers of elements.
    """

    bijective = True

    def __init__(
        self, in_shape: Sequence[int], out_shape: Sequence[int], cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        self.in_shape, self.out_shape = Size(in_shape), Size(out_shape)
        if math.prod(self.in_shape) != math.prod(self.out_shape):
            raise ShapeError(
                "ReshapeTransform", "the shapes have different numbers of elements",
                expect=f"{math.prod(self.in_shape)} elements", actual=str(tuple(self.out_shape)),
            )  # fmt: skip

    def _parameters(self) -> tuple[Any, ...]:
        return self.in_shape, self.out_shape

    @constraints.dependent_property
    def domain(self) -> Any:
        """Events of real numbers."""
        return constraints.independent(constraints.real, len(self.in_shape))

    @constraints.dependent_property
    def codomain(self) -> Any:
        """Events of real numbers."""
        return constraints.independent(constraints.real, len(self.out_shape))

    def _call(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[: x.ndim - len(self.in_shape)], *self.out_shape)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.reshape(*y.shape[: y.ndim - len(self.out_shape)], *self.in_shape)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Zeros."""
        return x.new_zeros(x.shape[: x.ndim - len(self.in_shape)])

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        """The shape of the result of an argument of some shape."""
        return _with_event(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Sequence[int]) -> Shape:
        """The shape of the argument of a result of some shape."""
        return _with_event(shape, self.out_shape, self.in_shape)


def _with_event(shape: Sequence[int], old: Shape, new: Shape) -> Shape:
    """A shape with another event at its end."""
    _require_dimensions(shape, len(old))
    cut = len(shape) - len(old)
    if tuple(shape[cut:]) != tuple(old):
        raise ShapeError(
            "ReshapeTransform", "the event has another shape", expect=str(tuple(old)),
            actual=str(tuple(shape[cut:])),
        )  # fmt: skip
    return Size((*shape[:cut], *new))


def _require_dimensions(shape: Sequence[int], count: int) -> None:
    if len(shape) < count:
        raise ShapeError(
            "Transform", "there are too few dimensions", expect=f"{count} or more",
            actual=str(tuple(shape)),
        )  # fmt: skip


class AffineTransform(Transform):
    """``loc + scale * x``.

    Args:
        loc, scale: numbers or Tensors.
        event_dim: how many of the last dimensions are those of an event.
        cache_size: as of `Transform`.
    """

    bijective = True

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc, self.scale, self._event_dim = loc, scale, event_dim

    def _parameters(self) -> tuple[Any, ...]:
        return self.loc, self.scale, self._event_dim

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AffineTransform):
            return False
        return _equal(self.loc, other.loc) and _equal(self.scale, other.scale)

    __hash__ = Transform.__hash__

    @property
    def event_dim(self) -> int:
        """How many dimensions one value has."""
        return self._event_dim

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> Any:
        """Real numbers, or events of them."""
        return _widened(constraints.real, self._event_dim)

    @constraints.dependent_property(is_discrete=False)
    def codomain(self) -> Any:
        """Real numbers, or events of them."""
        return _widened(constraints.real, self._event_dim)

    def _call(self, x: Tensor) -> Tensor:
        result: Tensor = self.loc + self.scale * x
        return result

    def _inverse(self, y: Tensor) -> Tensor:
        result: Tensor = (y - self.loc) / self.scale
        return result

    @property
    def sign(self) -> Any:
        """That of the scale."""
        if isinstance(self.scale, Tensor):
            return self.scale.sign()
        return (self.scale > 0) - (self.scale < 0)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm of the scale's size, summed over an event."""
        scale = self.scale
        wide = isinstance(scale, Tensor)
        log = scale.abs().log() if wide else ones_like(x) * math.log(abs(scale))
        log = summed(log, self._event_dim)
        return log.expand(*x.shape[: x.ndim - self._event_dim])

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        """The shape of the result of an argument of some shape."""
        return _broadcast_with(shape, self.loc, self.scale)

    inverse_shape = forward_shape


def _equal(a: Any, b: Any) -> bool:
    """Whether two parameters, numbers or Tensors, are equal in all their elements."""
    same = a == b
    return bool(same.all().item()) if isinstance(same, Tensor) else bool(same)


def _broadcast_with(shape: Sequence[int], *parameters: Any) -> Shape:
    shapes = [tuple(p.shape) for p in parameters if isinstance(p, Tensor)]
    return Size(broadcast("forward_shape", tuple(shape), *shapes))


class ExpTransform(_Plain):
    """``exp(x)``."""

    bijective = True
    sign = 1
    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return x.exp()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class PowerTransform(Transform):
    """``x ** exponent`` of positive numbers."""

    bijective = True
    domain = codomain = constraints.positive

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.exponent: Tensor = (
            exponent if isinstance(exponent, Tensor) else tensor(float(exponent))
        )

    def _parameters(self) -> tuple[Any, ...]:
        return (self.exponent,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PowerTransform) and _equal(self.exponent, other.exponent)

    __hash__ = Transform.__hash__

    def _call(self, x: Tensor) -> Tensor:
        return x.pow(self.exponent.to(x.device))

    def _inverse(self, y: Tensor) -> Tensor:
        return y.pow(1 / self.exponent.to(y.device))

    @property
    def sign(self) -> Any:
        """That of the exponent."""
        return self.exponent.sign()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm of the derivative's size."""
        result: Tensor = (self.exponent.to(x.device) * y / x).abs().log()
        return result

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        """The shape of the result of an argument of some shape."""
        return _broadcast_with(shape, self.exponent)

    inverse_shape = forward_shape


class SigmoidTransform(_Plain):
    """``1 / (1 + exp(-x))``."""

    bijective = True
    sign = 1
    codomain = constraints.unit_interval

    def _call(self, x: Tensor) -> Tensor:
        return _inside(x.sigmoid())

    def _inverse(self, y: Tensor) -> Tensor:
        y = _inside(y)
        return y.log() - (-y).log1p()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -softplus(-x) - softplus(x)


class SoftplusTransform(_Plain):
    """``log(1 + exp(x))``."""

    bijective = True
    sign = 1
    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return softplus(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return (-(-y).expm1()).log() + y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -softplus(-x)


class TanhTransform(_Plain):
    """``tanh(x)``; give cache_size=1, since the inverse near 1 has lost its digits."""

    bijective = True
    sign = 1
    codomain = constraints.interval(-1.0, 1.0)

    def _call(self, x: Tensor) -> Tensor:
        return x.tanh()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        # log(1 - tanh(x)^2) without a difference of numbers near 1.
        result: Tensor = 2.0 * (math.log(2.0) - x - softplus(-2.0 * x))
        return result


class AbsTransform(_Plain):
    """``|x|``, of which there are two arguments; the inverse gives the positive one."""

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return x.abs()

    def _inverse(self, y: Tensor) -> Tensor:
        return y


class SoftmaxTransform(_Plain):
    """Probabilities of their logarithms, up to a constant; the inverse gives their logarithms."""

    domain = constraints.real_vector
    codomain = constraints.simplex

    def _call(self, x: Tensor) -> Tensor:
        return x.softmax(dim=-1)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        """The same shape, of one dimension or more."""
        _require_dimensions(shape, 1)
        return Size(shape)

    inverse_shape = forward_shape


class StickBreakingTransform(_Plain):
    """n + 1 probabilities of n numbers: each takes a share of what those before have left."""

    bijective = True
    domain = constraints.real_vector
    codomain = constraints.simplex

    def _offset(self, like: Tensor, count: int) -> Tensor:
        steps = arange(count, 0, -1, dtype=like.dtype, device=like.device)
        return steps.log()

    def _call(self, x: Tensor) -> Tensor:
        share = _inside((x - self._offset(x, x.shape[-1])).sigmoid())
        left = (1 - share).cumprod(-1)
        one = ones_like(x[..., :1])
        return cat((share, one), -1) * cat((one, left), -1)

    def _inverse(self, y: Tensor) -> Tensor:
        first = y[..., :-1]
        left = (1 - first.cumsum(-1)).clamp(min=finfo(y.dtype).tiny)
        result: Tensor = first.log() - left.log() + self._offset(y, first.shape[-1])
        return result

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum over an event."""
        x = x - self._offset(x, x.shape[-1])
        return (-x - softplus(-x) + y[..., :-1].log()).sum(-1)

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        """One element more in each event."""
        _require_dimensions(shape, 1)
        return Size((*shape[:-1], shape[-1] + 1))

    def inverse_shape(self, shape: Sequence[int]) -> Shape:
        """One element less in each event."""
        _require_dimensions(shape, 1)
        return Size((*shape[:-1], shape[-1] - 1))


class LowerCholeskyTransform(_Plain):
    """Lower triangular matrices with a positive diagonal, of any matrices."""

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.lower_cholesky

    def _call(self, x: Tensor) -> Tensor:
        return x.tril(-1) + diag_embed(x.diagonal(0, -2, -1).exp())

    def _inverse(self, y: Tensor) -> Tensor:
        return y.tril(-1) + diag_embed(y.diagonal(0, -2, -1).log())


class PositiveDefiniteTransform(_Plain):
    """Positive definite matrices of any matrices, by their Cholesky factors."""

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.positive_definite

    def _call(self, x: Tensor) -> Tensor:
        factor = LowerCholeskyTransform()(x)
        return factor @ factor.mT

    def _inverse(self, y: Tensor) -> Tensor:
        return LowerCholeskyTransform().inv(cholesky(y))


class CorrCholeskyTransform(Transform):
    """Cholesky factors of correlation matrices of n rows, of n (n - 1) / 2 numbers."""

    bijective = True
    domain = constraints.real_vector
    codomain = constraints.corr_cholesky

    def _call(self, x: Tensor) -> Tensor:
        eps = finfo(x.dtype).eps
        r = vec_to_tril_matrix(x.tanh().clamp(min=-1 + eps, max=1 - eps), diag=-1)
        left = (1 - r * r).sqrt().cumprod(-1)
        r = r + eye(r.shape[-1], dtype=r.dtype, device=r.device)
        return r * cat((ones_like(left[..., :1]), left[..., :-1]), -1)

    def _inverse(self, y: Tensor) -> Tensor:
        left = 1 - (y * y).cumsum(-1)
        left = cat((ones_like(left[..., :1]), left[..., :-1]), -1)
        t = tril_matrix_to_vec(y, diag=-1) / tril_matrix_to_vec(left, diag=-1).sqrt()
        return (t.log1p() - (-t).log1p()) / 2

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """That of `x` to the elements below the diagonal."""
        left = tril_matrix_to_vec(1 - (y * y).cumsum(-1), diag=-2)
        breaking = 0.5 * left.log().sum(-1)
        result: Tensor = breaking - 2 * (x + softplus(-2 * x) - math.log(2.0)).sum(-1)
        return result

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        """(..., n, n) of (..., n (n - 1) / 2)."""
        _require_dimensions(shape, 1)
        count = shape[-1]
        size = round((0.25 + 2 * count) ** 0.5 + 0.5)
        if size * (size - 1) // 2 != count:
            raise ShapeError(
                "CorrCholeskyTransform", "no matrix has so many elements below its diagonal",
                expect="n (n - 1) / 2", actual=str(count),
            )  # fmt: skip
        return Size((*shape[:-1], size, size))

    def inverse_shape(self, shape: Sequence[int]) -> Shape:
        """(..., n (n - 1) / 2) of (..., n, n)."""
        _require_dimensions(shape, 2)
        if shape[-1] != shape[-2]:
            raise ShapeError(
                "CorrCholeskyTransform", "the matrix is not square", expect="(..., n, n)",
                actual=str(tuple(shape)),
            )  # fmt: skip
        return Size((*shape[:-2], shape[-1] * (shape[-1] - 1) // 2))


class _BesideEachOther(Transform):
    """Transforms of the parts of a Tensor along a dimension."""

    def __init__(self, tseq: Sequence[Transform], dim: int, cache_size: int) -> None:
        super().__init__(cache_size)
        self.transforms = [t.with_cache(cache_size) if cache_size else t for t in tseq]
        self.dim = dim

    @property
    def bijective(self) -> Any:
        """Whether every transform has an inverse."""
        return all(transform.bijective for transform in self.transforms)

    def _parts(self, value: Tensor) -> Sequence[Tensor]:
        raise NotImplementedError

    def _count(self) -> int:
        return len(self.transforms)

    def _checked(self, value: Tensor) -> Sequence[Tensor]:
        if value.shape[self.dim] != self._count():
            raise ShapeError(
                type(self).__name__, "the parts do not fill the dimension",
                expect=str(self._count()), actual=str(value.shape[self.dim]),
            )  # fmt: skip
        return self._parts(value)

    def _join(self, parts: Sequence[Tensor]) -> Tensor:
        raise NotImplementedError

    def _call(self, x: Tensor) -> Tensor:
        return self._join([t(part) for t, part in zip(self.transforms, self._checked(x))])

    def _inverse(self, y: Tensor) -> Tensor:
        return self._join([t.inv(part) for t, part in zip(self.transforms, self._checked(y))])

    def _logs(self, x: Tensor, y: Tensor) -> list[Tensor]:
        parts = zip(self.transforms, self._checked(x), self._checked(y))
        return [transform.log_abs_det_jacobian(a, b) for transform, a, b in parts]


class CatTransform(_BesideEachOther):
    """Transforms of the parts of a dimension.

    Args:
        tseq: one for each part.
        dim: the dimension.
        lengths: of the parts; 1 each when left out.
        cache_size: as of `Transform`.

    Raises:
        ArgumentError: there is not a length for each transform.
    """

    def __init__(
        self, tseq: Sequence[Transform], dim: int = 0, lengths: Sequence[int] | None = None,
        cache_size: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(tseq, dim, cache_size)
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)
        if len(self.lengths) != len(self.transforms):
            raise ArgumentError(
                "CatTransform", "one length for each transform", expect=str(len(self.transforms)),
                actual=str(len(self.lengths)),
            )  # fmt: skip

    def _parameters(self) -> tuple[Any, ...]:
        return self.transforms, self.dim, self.lengths

    @property
    def event_dim(self) -> int:
        """The largest of the transforms'."""
        return max(transform.event_dim for transform in self.transforms)

    @property
    def length(self) -> int:
        """The size of the dimension."""
        return sum(self.lengths)

    def _count(self) -> int:
        return self.length

    @constraints.dependent_property
    def domain(self) -> Any:
        """Those of the transforms, part by part."""
        return constraints.cat([t.domain for t in self.transforms], self.dim, self.lengths)

    @constraints.dependent_property
    def codomain(self) -> Any:
        """Those of the transforms, part by part."""
        return constraints.cat([t.codomain for t in self.transforms], self.dim, self.lengths)

    def _parts(self, value: Tensor) -> Sequence[Tensor]:
        return value.split(self.lengths, dim=self.dim)

    def _join(self, parts: Sequence[Tensor]) -> Tensor:
        return cat(parts, self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Those of the parts beside each other, or their sum if the dimension is of an event."""
        count = self.event_dim
        logs = [
            summed(log, count - t.event_dim) for t, log in zip(self.transforms, self._logs(x, y))
        ]
        dim = (self.dim - x.ndim if self.dim >= 0 else self.dim) + count
        if dim < 0:
            return cat(logs, dim)
        total = logs[0]
        for log in logs[1:]:
            total = total + log
        return total


class StackTransform(_BesideEachOther):
    """Transforms of each position of a dimension.

    Args:
        tseq: one for each position.
        dim: the dimension.
        cache_size: as of `Transform`.
    """

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(tseq, dim, cache_size)

    def _parameters(self) -> tuple[Any, ...]:
        return self.transforms, self.dim

    @constraints.dependent_property
    def domain(self) -> Any:
        """Those of the transforms, position by position."""
        return constraints.stack([t.domain for t in self.transforms], self.dim)

    @constraints.dependent_property
    def codomain(self) -> Any:
        """Those of the transforms, position by position."""
        return constraints.stack([t.codomain for t in self.transforms], self.dim)

    def _parts(self, value: Tensor) -> Sequence[Tensor]:
        return value.unbind(self.dim)

    def _join(self, parts: Sequence[Tensor]) -> Tensor:
        return stack(parts, self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Those of the transforms, position by position."""
        return stack(self._logs(x, y), self.dim)


class CumulativeDistributionTransform(Transform):
    """The probability of a sample of at most x.

    Args:
        distribution: one with `cdf` and `icdf`.
        cache_size: as of `Transform`.
    """

    bijective = True
    sign = 1
    codomain = constraints.unit_interval

    def __init__(self, distribution: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.distribution = distribution

    def _parameters(self) -> tuple[Any, ...]:
        return (self.distribution,)

    @property
    def domain(self) -> Any:
        """The support of the distribution."""
        return self.distribution.support

    def _call(self, x: Tensor) -> Tensor:
        result: Tensor = self.distribution.cdf(x)
        return result

    def _inverse(self, y: Tensor) -> Tensor:
        result: Tensor = self.distribution.icdf(y)
        return result

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm of the density."""
        result: Tensor = self.distribution.log_prob(x)
        return result


def summed(value: Tensor, count: int) -> Tensor:
    """The sum over the last `count` dimensions, if there are any."""
    return value.flatten(-count).sum(dim=-1) if count > 0 else value


def softplus(x: Tensor) -> Tensor:
    """``log(1 + exp(x))`` for numbers of any size."""
    return x.clamp(min=0.0) + (-x.abs()).exp().log1p()


def _inside(p: Tensor) -> Tensor:
    """Probabilities a rounding away from 0 and 1."""
    wide = p.dtype.itemsize == 8
    tiny, near = (2.0**-1022, 1 - 2.0**-52) if wide else (2.0**-126, 1 - 2.0**-23)
    return p.clamp(tiny, near)
