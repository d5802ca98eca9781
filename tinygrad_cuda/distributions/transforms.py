"""distributions.transforms: invertible functions of each element, with their derivatives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinygrad_cuda.core.errors import ArgumentError
from tinygrad_cuda.distributions import constraints
from tinygrad_cuda.distributions.constraints import Constraint
from tinygrad_cuda.tensors.tensor import Tensor


class Transform:
    """The base of transforms: subclasses write `_call`, `_inverse` and `log_abs_det_jacobian`.

    Attributes:
        bijective: whether there is an inverse.
        domain, codomain: the sets of arguments and of results.

    Args:
        cache_size: 1 remembers the last result, whose inverse is its argument without rounding.
    """

    bijective = False
    domain: Constraint = constraints.real
    codomain: Constraint = constraints.real

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ArgumentError(
                "Transform", "cache_size is out of range", expect="0 or 1", actual=str(cache_size)
            )
        self._cache_size = cache_size
        self._last: tuple[Any, Any] = (None, None)

    def __call__(self, x: Tensor) -> Tensor:
        if self._cache_size and self._last[0] is x:
            cached: Tensor = self._last[1]
            return cached
        y = self._call(x)
        self._last = (x, y) if self._cache_size else self._last
        return y

    @property
    def inv(self) -> Transform:
        """The inverse transform."""
        return _Inverse(self)

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

    @property
    def sign(self) -> Any:
        """1 where results grow with arguments, -1 where they fall."""
        raise NotImplementedError(f"{type(self).__name__} has no sign")

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm of ``|dy / dx|`` of each element."""
        raise NotImplementedError(f"{type(self).__name__} has no log_abs_det_jacobian")

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Inverse(Transform):
    def __init__(self, base: Transform) -> None:
        super().__init__()
        self.base, self.bijective = base, base.bijective
        self.domain, self.codomain = base.codomain, base.domain

    def __call__(self, x: Tensor) -> Tensor:
        return self.base._inv_call(x)

    @property
    def inv(self) -> Transform:
        return self.base

    def _inv_call(self, y: Tensor) -> Tensor:
        return self.base(y)

    @property
    def sign(self) -> Any:
        return self.base.sign

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self.base.log_abs_det_jacobian(y, x)


class ComposeTransform(Transform):
    """Transforms one after another."""

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.parts = list(parts)
        self.bijective = all(part.bijective for part in self.parts)
        if self.parts:
            self.domain, self.codomain = self.parts[0].domain, self.parts[-1].codomain

    def _call(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def _inverse(self, y: Tensor) -> Tensor:
        for part in reversed(self.parts):
            y = part._inv_call(y)
        return y

    @property
    def sign(self) -> Any:
        sign: Any = 1
        for part in self.parts:
            sign = sign * part.sign
        return sign

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        total: Tensor = x * 0.0
        for part in self.parts[:-1]:
            between = part(x)
            total = total + part.log_abs_det_jacobian(x, between)
            x = between
        return total + self.parts[-1].log_abs_det_jacobian(x, y) if self.parts else total


class AffineTransform(Transform):
    """``loc + scale * x``; the dimensions of an event only count."""

    bijective = True

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc, self.scale, self.event_dim = loc, scale, event_dim

    def _call(self, x: Tensor) -> Tensor:
        result: Tensor = self.loc + self.scale * x
        return result

    def _inverse(self, y: Tensor) -> Tensor:
        result: Tensor = (y - self.loc) / self.scale
        return result

    @property
    def sign(self) -> Any:
        if isinstance(self.scale, Tensor):
            return self.scale.sign()
        return (self.scale > 0) - (self.scale < 0)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        scale = self.scale
        log = scale.abs().log() if isinstance(scale, Tensor) else math.log(abs(scale))
        result: Tensor = x * 0.0 + log
        return result.flatten(-self.event_dim).sum(dim=-1) if self.event_dim else result


class ExpTransform(Transform):
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
        self.exponent = exponent

    def _call(self, x: Tensor) -> Tensor:
        return x.pow(self.exponent)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.pow(1 / self.exponent)

    @property
    def sign(self) -> Any:
        return AffineTransform(0, self.exponent).sign

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        result: Tensor = (self.exponent * y / x).abs().log()
        return result


class SigmoidTransform(Transform):
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


class SoftplusTransform(Transform):
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


class TanhTransform(Transform):
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


class AbsTransform(Transform):
    """``|x|``, of which there are two arguments; the inverse gives the positive one."""

    codomain = constraints.nonnegative

    def _call(self, x: Tensor) -> Tensor:
        return x.abs()

    def _inverse(self, y: Tensor) -> Tensor:
        return y


def softplus(x: Tensor) -> Tensor:
    """``log(1 + exp(x))`` for numbers of any size."""
    return x.clamp(min=0.0) + (-x.abs()).exp().log1p()


def _inside(p: Tensor) -> Tensor:
    """Probabilities a rounding away from 0 and 1."""
    wide = p.dtype.itemsize == 8
    tiny, near = (2.0**-1022, 1 - 2.0**-52) if wide else (2.0**-126, 1 - 2.0**-23)
    return p.clamp(tiny, near)
