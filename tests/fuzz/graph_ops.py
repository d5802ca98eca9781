"""The operations of the random graphs: each is one program text for torch and for us.

A row is a function of the library, its operands and a source of numbers, which chooses arguments
that suit the operands' shapes and dtypes; most are legal, and what is not both libraries refuse.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

FLOATS = ("float32", "float64", "float16", "bfloat16")
USUAL = ("int8", "uint8", "int16", "int32", "int64")
UNSIGNED = ("uint16", "uint32", "uint64")  # drawn seldom: torch has few operations on them
INTEGERS = (*USUAL, *UNSIGNED)
DTYPES = (*FLOATS, *USUAL, "bool")


def dtype_name(x: Any) -> str:
    """The name of a tensor's dtype without its library."""
    return str(x.dtype).rpartition(".")[2]


def seldom_unsigned(k: random.Random, dtype: str) -> str:
    """Another name for one in a few integer dtypes; all other draws are those without it."""
    return k.choice(UNSIGNED) if dtype in USUAL and k.random() < 0.2 else dtype


class Numbers(random.Random):
    """The arguments of one step, drawn from its number."""

    def flip(self, chance: float = 0.5) -> bool:
        return self.random() < chance

    def number(self, x: Any) -> Any:
        """A Python number that does not change the dtype category of `x` too often."""
        whole = self.choice((2, 3, -1, 5, 7, 0, 1, -3))
        if dtype_name(x) in FLOATS:
            return self.choice((0.5, 1.5, -0.25, 2.0, whole, 0.1, 1 / 3))
        return self.choice((whole, whole, whole, 0.5, 2.5, True))

    def axis(self, x: Any) -> int:
        """A dimension of `x`, counted from either end."""
        rank = max(1, x.dim())
        return self.randrange(-rank, rank)

    def axes(self, x: Any) -> list[int]:
        """Some different dimensions of `x`."""
        rank = max(1, x.dim())
        count = self.randint(1, rank)
        return [a - rank if self.flip(0.3) else a for a in self.sample(range(rank), count)]

    def some(self, x: Any, axis: int) -> int:
        """A valid index along a dimension; 0 where there is none."""
        size = x.shape[axis] if x.dim() else 1
        return self.randrange(-size, size) if size else 0


Function = Callable[..., Any]


class Op(NamedTuple):
    """One row: what the operands are, what is done, and whether the result is rounded."""

    kinds: str
    run: Function
    rounds: bool
    writes: bool
    family: str


OPS: dict[str, Op] = {}


def op(
    name: str, kinds: str, run: Function, family: str, rounds: bool = True, writes: bool = False
) -> None:
    """Adds a row.

    Args:
        name: of the operation.
        kinds: a letter an operand: a any, f floating, i integer, b bool, n not bool, m floating
            with two or more dimensions; a capital letter: of a shape that broadcasts with the
            first operand.
        run: a function of (library, numbers, *operands).
        family: the operation's family, for the balance of programs.
        rounds: whether floating results are rounded, so that runs may differ by a rounding.
        writes: whether the first operand is written.
    """
    assert name not in OPS, name
    OPS[name] = Op(kinds, run, rounds, writes, family)


# What brings operands into an operation's domain -------------------------------------------------


def bounded(lib: Any, x: Any, low: float, high: float) -> Any:
    return x.clamp(low, high)


class Unsuitable(Exception):
    """A step has no meaning for its operands; it is left out."""


def unmoved(x: Any) -> Any:
    return x


class Mover:
    """What a moved run does to what is made of operands: see `graphs`."""

    move: Callable[[Any], Any] = staticmethod(unmoved)


def suited(fits: bool, x: Any) -> Any:
    """`x`, where it fits the operation."""
    if not fits:
        raise Unsuitable("of another kind")
    return x


def resized(x: Any, *shape: int) -> Any:
    """The elements of `x`, repeated or cut to a shape."""
    size = 1
    for n in shape:
        size *= n
    have = x.numel()
    if not have:
        raise Unsuitable("no elements")
    flat = x.reshape(-1)
    if have < size:
        flat = flat.repeat(-(-size // have))
    return Mover.move(flat[:size].reshape(shape))


def definite(lib: Any, x: Any, n: int, *batch: int) -> Any:
    """A well-conditioned square matrix made of the elements of `x`."""
    return resized(x, *batch, n, n).sin() * 0.3 + lib.eye(n, dtype=x.dtype) * 2


def places(x: Any, size: int) -> Any:
    """Indices below `size` from any integers."""
    if size == 0 or not x.numel():
        raise Unsuitable("no valid index")
    return x.long() % size


def narrowed(x: Any) -> Any:
    """`x` in float32, where it is float64."""
    return x.float() if dtype_name(x) == "float64" else x


def kind_like(x: Any, y: Any) -> Any:
    """`y` in the dtype of `x`."""
    return y.to(x.dtype)


# Elementwise -------------------------------------------------------------------------------------


def _unary(name: str, kinds: str, make: Function | None = None, rounds: bool = True) -> None:
    make = make or (lambda lib, x: getattr(lib, name)(x))
    op(name, kinds, lambda lib, k, x: make(lib, x), "elementwise", rounds)


for _name in ["abs", "sign", "neg", "positive", "square", "sgn", "relu"]:
    _unary(_name, "a", rounds=_name == "square")
for _name in [
    "sin",
    "cos",
    "atan",
    "asinh",
    "sigmoid",
    "tanh",
    "erf",
    "erfc",
    "deg2rad",
    "rad2deg",
]:
    _unary(_name, "a")
for _name in ["ceil", "floor", "round", "trunc", "frac"]:
    _unary(_name, "n", rounds=_name == "frac")
for _name in [
    "isnan",
    "isinf",
    "isfinite",
    "signbit",
    "logical_not",
    "isreal",
    "isposinf",
    "isneginf",
]:
    _unary(_name, "a", rounds=False)
_unary("bitwise_not", "i", rounds=False)
_unary("bitwise_not of bool", "b", lambda lib, x: ~x, rounds=False)
for _name in ["exp", "expm1", "exp2", "sinh", "cosh"]:
    _unary(_name, "n", lambda lib, x, _name=_name: getattr(lib, _name)(bounded(lib, x, -3, 3)))
for _name in ["log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal"]:
    _unary(
        _name, "n", lambda lib, x, _name=_name: getattr(lib, _name)(bounded(lib, x.abs(), 1, 50))
    )
    _unary(f"{_name} of float", "f", lambda lib, x, _name=_name: getattr(lib, _name)(x.abs() + 0.3))
# The slope of tanh, 1 - y^2, loses digits where y is near 1.
for _name in ["acos", "asin", "atanh", "erfinv"]:
    _unary(_name, "f", lambda lib, x, _name=_name: getattr(lib, _name)(x.sin() * 0.9))
_unary("acosh", "f", lambda lib, x: lib.acosh(x.abs() + 1.5))
# torch's slope of sinc loses its digits near 0, where two terms cancel.
_unary("sinc", "n", lambda lib, x: lib.sinc(x.abs() + 0.25))
_unary("logit", "f", lambda lib, x: lib.logit(Mover.move(x.sigmoid()), eps=0.05))
_unary("angle", "f", rounds=False)
_unary("nan_to_num", "a", rounds=False)
# torch loses digits of the left tail.
_unary("special.ndtr", "f", lambda lib, x: lib.special.ndtr(bounded(lib, x.abs(), 0, 3)))
for _name in ["log_ndtr", "i0e", "i1", "i1e", "expit"]:
    _unary(
        f"special.{_name}",
        "f",
        lambda lib, x, _name=_name: getattr(lib.special, _name)(bounded(lib, x, -3, 3)),
    )
_unary("special.entr", "f", lambda lib, x: lib.special.entr(x.abs() + 0.2))
# torch's trigamma, the second derivative of lgamma, has ten correct digits in float64.
_unary("polygamma", "f", lambda lib, x: lib.polygamma(1, (x.abs() + 0.5).float()))
_unary("lgamma", "n", lambda lib, x: lib.lgamma(narrowed(bounded(lib, x.abs(), 1, 50))))
_unary("lgamma of float", "f", lambda lib, x: lib.lgamma(narrowed(x.abs() + 0.3)))
_unary("to itself", "a", lambda lib, x: x.to(x.dtype) + 0, rounds=False)

_ACTIVATIONS = (
    "relu relu6 silu mish softplus softsign hardtanh hardswish hardshrink softshrink leaky_relu "
    "logsigmoid"
)
for _name in _ACTIVATIONS.split():
    op(
        f"F.{_name}", "f",
        lambda lib, k, x, _name=_name: getattr(lib.nn.functional, _name)(x), "activation",
    )  # fmt: skip
op(
    "F.gelu", "f",
    lambda lib, k, x: lib.nn.functional.gelu(x, approximate=k.choice(("none", "tanh"))),
    "activation",
)  # fmt: skip
# torch's slope of a float64 is the float32 that is nearest to 1 / 6.
op(
    "F.hardsigmoid", "f",
    lambda lib, k, x: lib.nn.functional.hardsigmoid(narrowed(x)),
    "activation",
)  # fmt: skip
op("F.threshold", "f", lambda lib, k, x: lib.nn.functional.threshold(x, 0.1, -2.0), "activation")
# Away from zero, where a rounding of tanh is all that is left.
op(
    "F.tanhshrink", "f",
    lambda lib, k, x: lib.nn.functional.tanhshrink(x + x.sign()), "activation",
)  # fmt: skip
op(
    "F.elu of alpha", "f",
    lambda lib, k, x: lib.nn.functional.elu(x + 0.25, k.choice((0.5, 2.0))), "activation",
)  # fmt: skip
# Away from zero, where torch's second derivatives are not those of its first.
for _name in ["elu", "selu", "celu"]:
    op(
        f"F.{_name}", "f",
        lambda lib, k, x, _name=_name: getattr(lib.nn.functional, _name)(x + 0.25), "activation",
    )  # fmt: skip
op(
    "F.prelu", "ff",
    lambda lib, k, x, w: lib.nn.functional.prelu(x + 0.25, resized(kind_like(x, w), 1)),
    "activation",
)  # fmt: skip
op(
    "F.glu", "m",
    lambda lib, k, x: lib.nn.functional.glu(lib.cat([x, x * 0.5], 1), 1), "activation",
)  # fmt: skip


def _arithmetic(name: str, kinds: str, make: Function, rounds: bool = True) -> None:
    op(name, kinds, make, "elementwise", rounds)


for _name in ["add", "sub", "mul", "maximum", "minimum", "fmax", "fmin"]:
    _arithmetic(_name, "aA", lambda lib, k, x, y, _name=_name: getattr(lib, _name)(x, y))
# At (0, 0) hypot has no slope.
_arithmetic("hypot", "fF", lambda lib, k, x, y: lib.hypot(x, kind_like(x, y).abs() + 0.25))
for _name in ["logaddexp", "logaddexp2"]:
    _arithmetic(
        _name, "fF",
        lambda lib, k, x, y, _name=_name: getattr(lib, _name)(x, kind_like(x, y)),
    )  # fmt: skip
_arithmetic("add alpha", "nA", lambda lib, k, x, y: lib.add(x, y, alpha=k.choice((2, 3, -1))))
_arithmetic("sub alpha", "nN", lambda lib, k, x, y: lib.sub(x, y, alpha=k.choice((2, -1))))
_arithmetic("rsub", "nN", lambda lib, k, x, y: lib.rsub(x, y))


def _atan2(lib: Any, k: Numbers, x: Any, y: Any) -> Any:
    # torch squares an integer in its own dtype for the gradient.
    return lib.atan2(x.float() if y.requires_grad and dtype_name(x) in INTEGERS else x, y + 0.5)


_arithmetic("atan2", "nN", _atan2)
_arithmetic("copysign", "nN", lambda lib, k, x, y: lib.copysign(x, y.detach() + 0.25))
_arithmetic("xlogy", "nN", lambda lib, k, x, y: lib.xlogy(x, y.abs() + 0.5))
_arithmetic(
    "heaviside", "fF", lambda lib, k, x, y: lib.heaviside(x.round(), kind_like(x, y)).detach()
)
_arithmetic("ldexp", "fI", lambda lib, k, x, y: lib.ldexp(x, y % 4))
_arithmetic("float_power", "nN", lambda lib, k, x, y: lib.float_power(x.abs() + 1, y.clamp(0, 2)))
_arithmetic("lerp", "fF", lambda lib, k, x, y: lib.lerp(x, kind_like(x, y), k.choice((0.25, 0.75))))
_arithmetic(
    "lerp tensor", "fFF", lambda lib, k, x, y, w: lib.lerp(x, kind_like(x, y), kind_like(x, w))
)
_arithmetic("addcmul", "nNN", lambda lib, k, x, y, z: lib.addcmul(x, y, z, value=k.choice((1, 2))))
_arithmetic(
    "addcdiv", "fFF",
    lambda lib, k, x, y, z: lib.addcdiv(x, kind_like(x, y), kind_like(x, z).abs() + 0.5, value=0.5),
)  # fmt: skip
for _name in ["eq", "ne", "lt", "le", "gt", "ge"]:
    _arithmetic(_name, "aA", lambda lib, k, x, y, _name=_name: getattr(lib, _name)(x, y), False)
    _arithmetic(
        f"{_name} number", "a",
        lambda lib, k, x, _name=_name: getattr(x, f"__{_name}__")(k.number(x)), False,
    )  # fmt: skip
for _name in ["and", "or", "xor"]:
    _arithmetic(
        f"logical_{_name}", "aA",
        lambda lib, k, x, y, _name=_name: getattr(lib, f"logical_{_name}")(x, y), False,
    )  # fmt: skip
    for _kind in "ib":
        _arithmetic(
            f"bitwise_{_name} {_kind}", _kind + _kind.upper(),
            lambda lib, k, x, y, _name=_name: getattr(lib, f"bitwise_{_name}")(x, y), False,
        )  # fmt: skip
_arithmetic("left shift", "iI", lambda lib, k, x, y: x << (y % 4), False)
_arithmetic("right shift", "iI", lambda lib, k, x, y: x >> (y % 4), False)
_arithmetic("gcd", "iI", lambda lib, k, x, y: lib.gcd(x, y), False)
_arithmetic("lcm", "iI", lambda lib, k, x, y: lib.lcm(x, y), False)


def _nonzero(k: Numbers, y: Any) -> Any:
    """`y` without zeros."""
    if dtype_name(y) in FLOATS:
        return y.abs() + 0.5
    return y | 1


def _divide(lib: Any, k: Numbers, x: Any, y: Any) -> Any:
    return lib.div(x, _nonzero(k, y), rounding_mode=k.choice((None, None, "floor", "trunc")))


_arithmetic("div", "aN", _divide)
_arithmetic("floor_divide", "nN", lambda lib, k, x, y: x // _nonzero(k, y))
_arithmetic("remainder", "nN", lambda lib, k, x, y: x % _nonzero(k, y))
_arithmetic("fmod", "nN", lambda lib, k, x, y: lib.fmod(x, _nonzero(k, y)))
_arithmetic(
    "pow", "fF", lambda lib, k, x, y: (x.abs() + 0.5) ** bounded(lib, kind_like(x, y), -2, 2)
)
_arithmetic("pow int", "iI", lambda lib, k, x, y: x ** (y % 3))


def _with_number(lib: Any, k: Numbers, x: Any) -> Any:
    """An operator with a Python number on either side."""
    n, sign = k.number(x), k.choice("+-*+-*r")
    if sign == "+":
        return x + n if k.flip() else n + x
    if sign == "-":
        return x - n
    if sign == "r":
        return n - x
    return x * n if k.flip() else n * x


def _divided_number(lib: Any, k: Numbers, x: Any) -> Any:
    """Divisions with a Python number on either side."""
    n, sign = k.number(x) or 3, k.choice(("/", "//", "%", "fmod", "r/", "r//", "r%"))
    y = _nonzero(k, x)
    return {
        "/": lambda: x / n,
        "//": lambda: x // n,
        "%": lambda: x % n,
        "fmod": lambda: lib.fmod(x, n),
        "r/": lambda: n / y,
        "r//": lambda: n // y,
        "r%": lambda: n % y,
    }[sign]()


def _power_number(lib: Any, k: Numbers, x: Any) -> Any:
    if dtype_name(x) not in FLOATS:
        return k.choice((lambda: x**2, lambda: x**3, lambda: 2 ** (x % 5), lambda: x**0))()
    if k.flip(0.3):
        return k.choice((2, 0.5, 3.0)) ** bounded(lib, x, -2, 2)
    if k.flip(0.4):
        return x ** k.choice((2, 3, 1, 0, 4))
    return (x.abs() + 0.5) ** k.choice((0.5, -1, -0.5, 1.7, -2))


_arithmetic("number", "a", _with_number)
_arithmetic("number with bool", "b", _with_number)
_arithmetic("division by number", "n", _divided_number)
_arithmetic("power of number", "n", _power_number)
_arithmetic("clamp", "n", lambda lib, k, x: _clamped(lib, k, x), False)
_arithmetic("clamp tensors", "nN", lambda lib, k, x, y: lib.clamp(x, min=y), False)
# Different bounds: of two equal ones torch gives the gradient to neither.
_arithmetic(
    "clamp two tensors", "nNN",
    lambda lib, k, x, y, z: x.clamp(y, z + 0.125 if dtype_name(z) in FLOATS else z), False,
)  # fmt: skip
_arithmetic("where", "bAA", lambda lib, k, c, x, y: lib.where(c, x, y), False)
# The number is rounded to the dtype.
_arithmetic("where number", "bA", lambda lib, k, c, x: lib.where(c, x, k.number(x)))
_arithmetic("where number first", "bA", lambda lib, k, c, x: lib.where(c, k.number(x), x))
_arithmetic("masked_fill", "aB", lambda lib, k, x, m: x.masked_fill(m, k.choice((0, 1, 2))), False)
_arithmetic("isclose", "fF", lambda lib, k, x, y: lib.isclose(x, kind_like(x, y)), False)
_arithmetic(
    "nextafter", "fF",
    lambda lib, k, x, y: lib.nextafter(x.detach().double(), y.detach().double()),
)  # fmt: skip


def _clamped(lib: Any, k: Numbers, x: Any) -> Any:
    low, high = k.choice(((-1, 1), (0, 3), (-0.5, 0.5), (None, 2), (0.25, None), (1, -1)))
    return x.clamp(min=low, max=high)


# Casts -------------------------------------------------------------------------------------------


def _cast(lib: Any, k: Numbers, x: Any) -> Any:
    to, by_type = k.choice(DTYPES), k.flip()
    to = seldom_unsigned(k, to)
    if dtype_name(x) in FLOATS and to == "bool":
        x = x.round()  # a rounding is not the truth of an element
    if dtype_name(x) in FLOATS and to in INTEGERS:
        x = x.clamp(0 if to.startswith("u") else -100, 100)
    return x.to(getattr(lib, to)) if by_type else x.type(getattr(lib, to))


op("cast", "a", _cast, "cast")
op(
    "cast method",
    "a",
    lambda lib, k, x: getattr(x, k.choice(("float", "double")))(),
    "cast",
)
op("cast to half", "f", lambda lib, k, x: getattr(x, k.choice(("half", "bfloat16")))(), "cast")
op("type_as", "af", lambda lib, k, x, y: x.type_as(y), "cast")
op(
    "cast wraps", "i",
    lambda lib, k, x: x.to(getattr(lib, seldom_unsigned(k, k.choice(USUAL)))), "cast", False,
)  # fmt: skip

# Reductions --------------------------------------------------------------------------------------


def _reduced(name: str, **fixed: Any) -> Function:
    """A reduction over everything, one dimension or several."""

    def run(lib: Any, k: Numbers, x: Any) -> Any:
        choice = k.randrange(4)
        if choice == 0:
            return getattr(lib, name)(x, **fixed)
        dim = k.axis(x) if choice == 1 else k.axes(x)
        return getattr(lib, name)(x, dim=dim, keepdim=k.flip(), **fixed)

    return run


def _along(name: str, **fixed: Any) -> Function:
    """A reduction over one dimension."""

    def run(lib: Any, k: Numbers, x: Any) -> Any:
        result = getattr(lib, name)(x, dim=k.axis(x), keepdim=k.flip(), **fixed)
        return result if hasattr(result, "dim") else tuple(result)

    return run


for _name in ["sum", "nansum"]:
    op(_name, "a", _reduced(_name), "reduction")
for _name in ["mean", "nanmean"]:
    op(_name, "f", _reduced(_name), "reduction")
for _name in ["amax", "amin"]:
    op(_name, "a", _reduced(_name), "reduction", False)
for _name in ["any", "all"]:
    op(_name, "a", _reduced(_name), "reduction", False)
op("count_nonzero", "a", lambda lib, k, x: lib.count_nonzero(x, dim=k.axis(x)), "reduction", False)
for _name in ["max", "min"]:
    op(_name, "a", _along(_name), "reduction", False)
    op(
        f"{_name} of all",
        "a",
        lambda lib, k, x, _name=_name: getattr(x, _name)(),
        "reduction",
        False,
    )
for _name in ["argmax", "argmin"]:
    op(_name, "n", _along(_name), "reduction", False)
    op(
        f"{_name} of all",
        "n",
        lambda lib, k, x, _name=_name: getattr(x, _name)(),
        "reduction",
        False,
    )
for _name in ["median", "nanmedian"]:
    op(_name, "n", _along(_name), "reduction", False)


def _mode(lib: Any, k: Numbers, x: Any) -> Any:
    axis = k.axis(x)
    values, indices = lib.mode(x, dim=axis, keepdim=k.flip())
    # Longer rows torch sorts without an order of equal elements: the rule which_of_equals.
    return (values, indices) if not x.dim() or x.shape[axis] <= 16 else values.detach()


op("mode", "n", _mode, "reduction", False)
op("median of all", "n", lambda lib, k, x: x.median(), "reduction", False)
op("prod", "n", lambda lib, k, x: (x / 4 + 0.5).prod(dim=k.axis(x), keepdim=k.flip()), "reduction")
op("prod of all", "f", lambda lib, k, x: (x * 0.1 + 1).prod(), "reduction")
op("logsumexp", "n", lambda lib, k, x: lib.logsumexp(x, k.axis(x), k.flip()), "reduction")
op(
    "sum to dtype", "a",
    lambda lib, k, x: x.sum(
        k.axis(x), dtype=getattr(lib, k.choice(("float64", "int64", "float32")))
    ), "reduction",
)  # fmt: skip
op("mean of integers", "a", lambda lib, k, x: x.mean(k.axis(x), dtype=lib.float32), "reduction")


def _variance(name: str) -> Function:
    def run(lib: Any, k: Numbers, x: Any) -> Any:
        options: dict[str, Any] = {} if k.flip() else {"correction": k.choice((0, 1, 2))}
        if k.flip(0.3):
            result = getattr(lib, name)(x, **options)
        else:
            result = getattr(lib, name)(x, dim=k.axes(x), keepdim=k.flip(), **options)
        return result if hasattr(result, "dim") else tuple(result)

    return run


for _name in ["var", "std", "var_mean", "std_mean"]:
    op(_name, "f", _variance(_name), "reduction")


@lru_cache
def _trace_is_derived_right() -> bool:
    """torch 2.11 gives an element below the diagonal of a tall matrix a gradient."""
    import torch

    tall = torch.zeros(4, 1, requires_grad=True)
    torch.trace(tall).backward()
    return tall.grad is not None and tall.grad.tolist() == [[1], [0], [0], [0]]


def _trace(lib: Any, k: Numbers, x: Any) -> Any:
    matrix = x[(0,) * (x.dim() - 2)]
    if not _trace_is_derived_right():
        matrix = matrix[: matrix.shape[1]]
    return lib.trace(matrix)


def _norm(lib: Any, k: Numbers, x: Any) -> Any:
    p = k.choice((2, 1, 3, float("inf"), 0.5, 2.0, -float("inf")))
    x = x if p in (2, 1, float("inf")) else x.abs() + 0.5
    if k.flip(0.3):
        return lib.norm(x, p=p)
    if k.flip():
        return lib.norm(x, p=p, dim=k.axis(x), keepdim=k.flip())
    return lib.linalg.vector_norm(x, p, dim=k.axes(x), keepdim=k.flip())


op("norm", "f", _norm, "reduction")
op("aminmax", "n", lambda lib, k, x: tuple(lib.aminmax(x, dim=k.axis(x))), "reduction", False)
op("dist", "fF", lambda lib, k, x, y: lib.dist(x, kind_like(x, y), k.choice((2, 1))), "reduction")


def _quantile(lib: Any, k: Numbers, x: Any) -> Any:
    share, axis = k.choice((0.5, 0.25, 0.9)), k.axis(x)
    interpolation = k.choice(("linear", "lower", "higher", "midpoint"))
    # Longer rows torch sorts without an order of equal elements: the rule which_of_equals.
    x = x if not x.dim() or x.shape[axis] <= 16 else x.detach()
    return lib.quantile(x, share, dim=axis, interpolation=interpolation)


op("quantile", "f", _quantile, "reduction")
op("trace", "m", _trace, "reduction")
op("cov", "m", lambda lib, k, x: lib.cov(x[(0,) * (x.dim() - 2)]), "reduction")
op(
    "histc", "f", lambda lib, k, x: lib.histc(x.detach(), bins=k.choice((4, 7)), min=-3, max=3),
    "reduction", False,
)  # fmt: skip
op("bincount", "i", lambda lib, k, x: lib.bincount(places(x.reshape(-1), 7)), "reduction", False)

# Cumulative, order and softmax -------------------------------------------------------------------

op("cumsum", "a", lambda lib, k, x: lib.cumsum(x, k.axis(x)), "cumulative")
op("cumprod", "n", lambda lib, k, x: lib.cumprod(x / 4 + 1, k.axis(x)), "cumulative")
for _name in ["cummax", "cummin"]:
    op(
        _name, "n", lambda lib, k, x, _name=_name: tuple(getattr(lib, _name)(x, k.axis(x))),
        "cumulative", False,
    )  # fmt: skip
# torch's second derivative lacks what a gradient of 0 adds.
op("logcumsumexp", "f", lambda lib, k, x: lib.logcumsumexp(x.detach(), k.axis(x)), "cumulative")
op(
    "diff",
    "n",
    lambda lib, k, x: lib.diff(x, n=k.choice((1, 1, 2, 0)), dim=k.axis(x)),
    "cumulative",
)
op(
    "trapezoid",
    "f",
    lambda lib, k, x: lib.trapezoid(suited(0 not in x.shape, x), dim=k.axis(x)),
    "cumulative",
)
op("cumulative_trapezoid", "f", lambda lib, k, x: lib.cumulative_trapezoid(x), "cumulative")
for _name in ["softmax", "log_softmax"]:
    op(_name, "f", lambda lib, k, x, _name=_name: getattr(lib, _name)(x, k.axis(x)), "softmax")
    op(
        f"{_name} to dtype", "n",
        lambda lib, k, x, _name=_name: getattr(x, _name)(
            k.axis(x), dtype=getattr(lib, k.choice(("float32", "float64")))
        ), "softmax",
    )  # fmt: skip
op("softmin", "f", lambda lib, k, x: lib.nn.functional.softmin(x, dim=k.axis(x)), "softmax")


def _sorted(lib: Any, k: Numbers, x: Any) -> Any:
    return tuple(lib.sort(x, dim=k.axis(x), descending=k.flip(), stable=True))


def _msort(lib: Any, k: Numbers, x: Any) -> Any:
    # Which of equal elements has the gradient is open in longer columns: the rule which_of_equals.
    return lib.msort(x if not x.dim() or x.shape[0] <= 16 else x.detach())


def _topk(lib: Any, k: Numbers, x: Any) -> Any:
    axis = k.axis(x)
    size = x.shape[axis] if x.dim() else 1
    # Of equal elements either index is right.
    return lib.topk(x.detach(), k.randint(min(1, size), size), dim=axis, largest=k.flip())[0]


op("sort", "a", _sorted, "order", False)
op(
    "argsort", "a",
    lambda lib, k, x: lib.argsort(x, dim=k.axis(x), descending=k.flip(), stable=True),
    "order", False,
)  # fmt: skip
op("topk", "n", _topk, "order", False)
op("msort", "n", _msort, "order", False)
op("kthvalue", "n", lambda lib, k, x: lib.kthvalue(x.detach(), 1, k.axis(x))[0], "order", False)
op(
    "searchsorted", "ff",
    lambda lib, k, x, y: lib.searchsorted(
        x.detach().reshape(-1).sort()[0], kind_like(x, y.detach()), right=k.flip()
    ), "order", False,
)  # fmt: skip
op(
    "bucketize", "f",
    lambda lib, k, x: lib.bucketize(x.detach(), lib.tensor([-1.0, 0.0, 0.5, 2.0]), right=k.flip()),
    "order", False,
)  # fmt: skip
op("unique", "i", lambda lib, k, x: lib.unique(x.long()), "order", False)
op("isin", "iI", lambda lib, k, x, y: lib.isin(x, y), "order", False)

# Shapes and views --------------------------------------------------------------------------------


def move(name: str, kinds: str, run: Function) -> None:
    op(name, kinds, run, "movement", rounds=False)


def _factors(k: Numbers, n: int) -> list[int]:
    """A shape of `n` elements."""
    shape: list[int] = []
    while n > 1 and len(shape) < 4:
        divisors = [d for d in range(1, min(n, 60) + 1) if n % d == 0]
        shape.append(k.choice(divisors))
        n //= shape[-1]
    shape.append(n)
    k.shuffle(shape)
    if n > 0 and k.flip(0.4):
        shape[k.randrange(len(shape))] = -1
    return shape


def _index(k: Numbers, x: Any) -> tuple[Any, ...]:
    """A basic index: slices, numbers, None and Ellipsis."""
    parts: list[Any] = []
    for size in x.shape[: k.randint(0, x.dim())]:
        choice = k.randrange(5)
        if choice == 0 and size:
            parts.append(k.randrange(-size, size))
        elif choice == 1:
            parts.append(slice(None))
        elif choice == 2:
            parts.append(slice(k.randint(0, size), None, k.choice((1, 2, 3))))
        elif choice == 3:
            parts.append(slice(None, -1))
        else:
            parts.append(slice(k.randint(0, size // 2), k.randint(size // 2, size + 1)))
    if k.flip(0.2):
        parts.insert(k.randint(0, len(parts)), None)
    if k.flip(0.2):
        parts.append(Ellipsis)
    return tuple(parts)


def _permuted(k: Numbers, x: Any) -> list[int]:
    return k.sample(range(x.dim()), x.dim())


def _expanded(lib: Any, k: Numbers, x: Any) -> Any:
    sizes = [k.choice((-1, 3)) if n == 1 else k.choice((-1, n)) for n in x.shape]
    return x.expand([*([k.choice((2, 1, 5))] if k.flip() else []), *sizes])


def _split(lib: Any, k: Numbers, x: Any) -> Any:
    axis = k.axis(x)
    size = x.shape[axis] if x.dim() else 1
    choice = k.randrange(4)
    if choice == 0:
        return tuple(x.split(max(1, size // 2), dim=axis))
    if choice == 1:
        first = k.randint(0, size)
        return tuple(x.split([first, size - first], dim=axis))
    if choice == 2:
        return tuple(x.chunk(k.choice((2, 3)), dim=axis))
    return tuple(lib.tensor_split(x, k.choice((2, 3)), dim=axis))


def _narrow(lib: Any, k: Numbers, x: Any) -> Any:
    axis = k.axis(x)
    size = x.shape[axis] if x.dim() else 1
    start = k.randint(0, size)
    return x.narrow(axis, start, k.randint(0, size - start))


def _diagonal(lib: Any, k: Numbers, x: Any) -> Any:
    first, second = k.sample(range(x.dim()), 2)
    return x.diagonal(k.choice((0, 1, -1, 0)), first, second)


def _unfold(lib: Any, k: Numbers, x: Any) -> Any:
    axis = k.axis(x)
    size = x.shape[axis] if x.dim() else 1
    return x.unfold(axis, k.randint(1, max(1, size)), k.choice((1, 2)))


def _squeezed(lib: Any, k: Numbers, x: Any) -> Any:
    choice = k.randrange(3)
    return [lambda: x.squeeze(), lambda: x.squeeze(k.axis(x)), lambda: x.squeeze(tuple(k.axes(x)))][
        choice
    ]()


def _block_diag(lib: Any, k: Numbers, x: Any, y: Any) -> Any:
    # The rule rows_of_empty_vectors.
    passed_over = any(tuple(part.shape) == (0,) for part in (x, y))
    return lib.block_diag(*(part.detach() if passed_over else part for part in (x, y)))


move("reshape", "a", lambda lib, k, x: x.reshape(_factors(k, x.numel())))
move("view", "a", lambda lib, k, x: x.view(_factors(k, x.numel())))
move("view refused or not", "a", lambda lib, k, x: x.view(-1))
move(
    "flatten",
    "a",
    lambda lib, k, x: x.flatten(*sorted(a % max(1, x.dim()) for a in k.axes(x))[:2]),
)
move("ravel", "a", lambda lib, k, x: x.ravel())
move("permute", "a", lambda lib, k, x: x.permute(_permuted(k, x)))
move("transpose", "a", lambda lib, k, x: x.transpose(k.axis(x), k.axis(x)))
move("movedim", "a", lambda lib, k, x: x.movedim(k.axis(x), k.axis(x)))
move("mT", "m", lambda lib, k, x: suited(x.dim() > 1, x).mT)
move("t", "a", lambda lib, k, x: x.t())
move("squeeze", "a", _squeezed)
move("unsqueeze", "a", lambda lib, k, x: x.unsqueeze(k.randint(-x.dim() - 1, x.dim())))
move("expand", "a", _expanded)
move("expand_as", "aA", lambda lib, k, x, y: x.expand_as(y))
move("broadcast_tensors", "aA", lambda lib, k, x, y: tuple(lib.broadcast_tensors(x, y)))
move("repeat", "a", lambda lib, k, x: x.repeat([k.choice((1, 2)) for _ in range(x.dim() + 1)]))
move("tile", "a", lambda lib, k, x: x.tile((k.choice((1, 2)),)))
move(
    "repeat_interleave", "a",
    lambda lib, k, x: x.repeat_interleave(k.choice((1, 2, 3)), dim=k.choice((None, k.axis(x)))),
)  # fmt: skip
move("flip", "a", lambda lib, k, x: x.flip([a for a in k.axes(x) if x.dim()]))
move("roll", "a", lambda lib, k, x: x.roll(k.choice((1, -1, 2)), k.axis(x)))
move("roll of all", "a", lambda lib, k, x: x.roll(k.choice((1, -3))))
move("rot90", "m", lambda lib, k, x: lib.rot90(x, k.choice((1, 2, 3)), [0, 1]))
move("narrow", "a", _narrow)
move("select", "a", lambda lib, k, x: (axis := k.axis(x), x.select(axis, k.some(x, axis)))[1])
move("index", "a", lambda lib, k, x: x[_index(k, x)])
move("unbind", "a", lambda lib, k, x: tuple(x.unbind(k.axis(x)))[:3])
move("split", "a", _split)
move("diagonal", "m", _diagonal)
move("diag_embed", "a", lambda lib, k, x: lib.diag_embed(x, offset=k.choice((0, 1, -1))))
move("diag", "m", lambda lib, k, x: lib.diag(x[(0,) * (x.dim() - 2)], k.choice((0, 1))))
move("tril", "m", lambda lib, k, x: x.tril(k.choice((0, 1, -1))))
move("triu", "m", lambda lib, k, x: x.triu(k.choice((0, 1, -1))))
move("unfold", "a", _unfold)
move("contiguous", "a", lambda lib, k, x: x.contiguous())
move("clone", "a", lambda lib, k, x: x.clone())
move("detach", "a", lambda lib, k, x: x.detach())
move("alias", "a", lambda lib, k, x: x.view_as(x))
move("cat", "aa", lambda lib, k, x, y: lib.cat([x, y], k.axis(x)))
move("cat of like", "aA", lambda lib, k, x, y: lib.cat(lib.broadcast_tensors(x, y), k.axis(x)))
move("stack", "aA", lambda lib, k, x, y: lib.stack(lib.broadcast_tensors(x, y), k.axis(x)))
for _name in ["hstack", "vstack", "dstack", "column_stack"]:
    move(_name, "aA", lambda lib, k, x, y, _name=_name: getattr(lib, _name)([x, y]))
for _name in ["atleast_1d", "atleast_2d", "atleast_3d"]:
    move(_name, "a", lambda lib, k, x, _name=_name: getattr(lib, _name)(x))
move("block_diag", "aa", _block_diag)
move("meshgrid", "aa", lambda lib, k, x, y: tuple(lib.meshgrid(x, y, indexing="ij")))
move("swapaxes", "a", lambda lib, k, x: x.swapaxes(k.axis(x), k.axis(x)))
move("channels_last", "a", lambda lib, k, x: x.contiguous(memory_format=lib.channels_last))
move("to channels_last", "a", lambda lib, k, x: x.to(memory_format=lib.channels_last))
move("unflatten", "a", lambda lib, k, x: x.unflatten(k.axis(x), (-1, 1)))

# Indices -----------------------------------------------------------------------------------------


def pick(name: str, kinds: str, run: Function, rounds: bool = False) -> None:
    op(name, kinds, run, "indexing", rounds)


def _take(name: str) -> Function:
    """An operation along a dimension at valid indices of `x`'s rank or of one dimension."""

    def run(lib: Any, k: Numbers, x: Any, i: Any) -> Any:
        axis = k.axis(x)
        if not x.dim() or not x.numel():
            return None
        at = places(i, x.shape[axis])
        if name == "index_select":
            return x.index_select(axis, resized(at, k.randint(1, 6)))
        sizes = [n if k.flip(0.7) else max(1, n - 1) for n in x.shape]
        sizes[axis] = k.randint(1, 5)
        if name == "gather":
            return x.gather(axis, resized(at, *sizes))
        sizes = list(x.shape)
        sizes[axis] = 2
        return lib.take_along_dim(x, resized(at, *sizes), axis)

    return run


for _name in ["index_select", "gather", "take_along_dim"]:
    pick(_name, "ai", _take(_name))


def _at_list(lib: Any, k: Numbers, x: Any, i: Any) -> Any:
    """Reading by a list, which is a tuple where it holds more than numbers."""
    if x.dim() < 2 or not x.numel():
        return None
    first, second = (places(resized(i, 3), x.shape[axis]) for axis in range(2))
    keys = ([first, second], [first], [0, second], [slice(None), second], [None, 0], [..., [0]])
    return x[keys[k.randrange(len(keys))]]


def _at_tensor(lib: Any, k: Numbers, x: Any, i: Any) -> Any:
    """Reading at tensors of indices, among slices."""
    if not x.dim() or not x.numel():
        return None
    choice = k.randrange(5)
    if choice == 0 or x.dim() == 1:
        return x[places(i, x.shape[0])]
    if choice == 1:
        return x[:, places(resized(i, 3), x.shape[1])]
    if choice == 2:
        return x[places(resized(i, 4), x.shape[0]), places(resized(i, 4), x.shape[1])]
    if choice == 3:
        return x[..., places(resized(i, 2, 2), x.shape[-1])]
    return x[None, places(resized(i, 3, 1), x.shape[0]), 0 if x.shape[1] else None]


def _at_scalar(lib: Any, k: Numbers, x: Any, i: Any) -> Any:
    """Reading at a 0-d tensor: a view, which later steps may write."""
    if not x.dim() or not x.numel():
        return None
    axis = k.randrange(x.dim())
    at = places(i.reshape(-1)[0], x.shape[axis])
    return x[(slice(None),) * axis + (at,)]


pick("index tensor", "ai", _at_tensor)
move("index 0-d tensor", "ai", _at_scalar)
pick(
    "index list", "a", lambda lib, k, x: x[[k.some(x, 0) for _ in range(3)]] if x.numel() else None
)
pick("take", "ai", lambda lib, k, x, i: x.take(places(i, x.numel())) if x.numel() else None)
pick("index list of entries", "ai", _at_list)
pick("index mask", "aB", lambda lib, k, x, m: x[m.expand_as(x)])
pick(
    "index mask of rows",
    "a",
    lambda lib, k, x: x[x[:, 0] > 0] if x.dim() > 1 and x.shape[1] else None,
)
pick("masked_select", "aB", lambda lib, k, x, m: x.masked_select(m))
pick("nonzero", "a", lambda lib, k, x: lib.nonzero(x))
pick("argwhere", "b", lambda lib, k, x: lib.argwhere(x))


def _scattered(lib: Any, k: Numbers, x: Any, i: Any, y: Any) -> Any:
    """Writing along a dimension; indices that do not meet where the result would be open."""
    if not x.dim() or not x.numel() or not y.numel():
        return None
    axis = k.axis(x)
    source = resized(kind_like(x, y), *x.shape)
    mode = k.choice(("scatter", "add", "number", "sum", "amax", "mean", "prod"))
    if mode in ("scatter", "number"):
        # Each index once: those of a rolled arange.
        line = (lib.arange(x.shape[axis]) + 1) % x.shape[axis]
        shape = [1] * x.dim()
        shape[axis] = -1
        at = line.reshape(shape).expand(x.shape)
        return x.scatter(axis, at, k.choice((0, 1)) if mode == "number" else source)
    at = resized(places(i, x.shape[axis]), *x.shape)
    if mode == "add":
        return x.scatter_add(axis, at, source)
    return x.scatter_reduce(axis, at, source, reduce=mode, include_self=k.flip())


def _index_written(lib: Any, k: Numbers, x: Any, i: Any, y: Any) -> Any:
    if not x.dim() or not x.numel() or not y.numel():
        return None
    axis = k.axis(x)
    mode = k.choice(("add", "copy", "fill", "put", "put add"))
    sizes = list(x.shape)
    if mode == "add":
        at, sizes[axis] = places(resized(i, 3), x.shape[axis]), 3
        return x.index_add(axis, at, resized(kind_like(x, y), *sizes), alpha=k.choice((1, 2)))
    at, sizes[axis] = places(resized(i, 1), x.shape[axis]), 1
    if mode == "copy":
        return x.index_copy(axis, at, resized(kind_like(x, y), *sizes))
    if mode == "fill":
        return x.index_fill(axis, at, k.choice((0, 2)))
    return x.index_put((places(resized(i, 1), x.shape[0]),), kind_like(x, y).reshape(-1)[0],
                       accumulate=mode == "put add")  # fmt: skip


pick("scatter", "nin", _scattered, True)
pick("index write", "nin", _index_written, True)
pick(
    "masked_scatter", "aBa",
    lambda lib, k, x, m, y: x.masked_scatter(m, resized(kind_like(x, y), x.numel() or 1))
    if y.numel() else None,
)  # fmt: skip
pick(
    "select_scatter", "a",
    # torch's copy of windows that overlap does so too: writing one slice changes others.
    lambda lib, k, x: lib.select_scatter(suited(not overlapping(x), x), x[0] * 0, 0, -1),
)  # fmt: skip
pick(
    "one_hot", "i",
    lambda lib, k, i: lib.nn.functional.one_hot(places(i, 5), k.choice((5, 7))),
)  # fmt: skip


def _embedded(lib: Any, k: Numbers, w: Any, i: Any) -> Any:
    table = resized(w, 6, k.choice((1, 3)))
    return lib.nn.functional.embedding(places(i, 6), table, padding_idx=k.choice((None, 0, -1)))


def _bag(lib: Any, k: Numbers, w: Any, i: Any) -> Any:
    table = resized(w, 6, 3)
    at = places(resized(i, 2, 4), 6)
    return lib.nn.functional.embedding_bag(at, table, mode=k.choice(("sum", "mean", "max")))


pick("embedding", "fi", _embedded)
pick("embedding_bag", "fi", _bag, True)

# Products ----------------------------------------------------------------------------------------


def product(name: str, kinds: str, run: Function) -> None:
    op(name, kinds, run, "product")


def _fitting_product(lib: Any, k: Numbers, x: Any, y: Any) -> Any:
    """A product of every form; the second operand is cut or repeated to fit."""
    y = kind_like(x, y)
    if x.dim() == 0:
        return None
    inner = x.shape[-1]
    form = k.randrange(5)
    n = k.choice((1, 2, 5, 7))
    shape = [(inner, n), (inner,), (3, inner, n), (inner, n), (1, inner, n)][form]
    if not inner:
        return None
    other = resized(y, *shape)
    if form == 3 and x.dim() == 2:
        return lib.mm(x, other)
    return lib.matmul(x, other) if k.flip() else x @ other


def _batched(lib: Any, k: Numbers, x: Any, y: Any) -> Any:
    a, b = resized(x, 2, 3, 4), resized(kind_like(x, y), 2, 4, k.choice((1, 5)))
    if k.flip():
        return lib.bmm(a, b)
    return lib.baddbmm(a[:, :, :1], a, b, beta=k.choice((1, 2)), alpha=k.choice((1, 3)))


def _added_product(lib: Any, k: Numbers, x: Any, y: Any, z: Any) -> Any:
    n, m, p = k.choice((1, 3)), k.choice((2, 7)), k.choice((1, 4))
    a, b, c = (
        resized(x, n, m),
        resized(kind_like(x, y), m, p),
        resized(kind_like(x, z), p),
    )
    if k.flip(0.3):
        return lib.addmv(resized(c, n), a, resized(b, m))
    return lib.addmm(c, a, b, beta=k.choice((1, 3, 2)), alpha=k.choice((1, 2)))


def _einsum(lib: Any, k: Numbers, x: Any, y: Any) -> Any:
    equation = k.choice(
        ("ij,jk->ik", "ij,ij->", "ij,kj->ki", "bij,bjk->bik", "i,j->ij", "ii->i", "bij->bji",
         "ij->j", "bij,bij->b", "ij,jk->kij", "bij,kj->bik")
    )  # fmt: skip
    sizes = {"i": 3, "j": 3, "k": 2, "b": 2}
    terms = equation.split("->")[0].split(",")
    operands = [resized(t, *(sizes[c] for c in term))
                for term, t in zip(terms, (x, kind_like(x, y)))]  # fmt: skip
    return lib.einsum(equation, *operands)


def _linear(lib: Any, k: Numbers, x: Any, w: Any, b: Any) -> Any:
    if not x.dim() or not x.shape[-1]:
        return None
    n = k.choice((1, 3, 8))
    weight, bias = resized(kind_like(x, w), n, x.shape[-1]), resized(kind_like(x, b), n)
    return lib.nn.functional.linear(x, weight, bias if k.flip() else None)


def _attention(lib: Any, k: Numbers, x: Any, y: Any) -> Any:
    q, kv = resized(x, 2, 3, 4), resized(kind_like(x, y), 2, 5, 4)
    options: dict[str, Any] = k.choice(({}, {"scale": 0.3}, {"is_causal": True}))
    return lib.nn.functional.scaled_dot_product_attention(q, kv, kv * 0.5, **options)


product("matmul", "fn", _fitting_product)
product("matmul of integers", "ii", _fitting_product)
product("matmul as they are", "nn", lambda lib, k, x, y: x @ y)
product("bmm", "ff", _batched)
product("addmm", "fff", _added_product)
product("einsum", "ff", _einsum)
product("linear", "fff", _linear)
product("attention", "ff", _attention)
product("outer", "nn", lambda lib, k, x, y: lib.outer(x.reshape(-1), y.reshape(-1)[:7]))
product("dot", "ff", lambda lib, k, x, y: lib.dot(resized(x, 5), resized(kind_like(x, y), 5)))
# torch's gradient of kron reads the operands as they were written since, unnoticed.
product("kron", "fF", lambda lib, k, x, y: lib.kron(x.clone(), y.clone()))
product("inner", "fF", lambda lib, k, x, y: lib.inner(x, kind_like(x, y)))
product(
    "tensordot", "fF", lambda lib, k, x, y: lib.tensordot(x, kind_like(x, y), dims=k.choice((0, 1)))
)
product(
    "cross", "ff",
    lambda lib, k, x, y: lib.linalg.cross(resized(x, 2, 3), resized(kind_like(x, y), 2, 3)),
)  # fmt: skip
product("vecdot", "fF", lambda lib, k, x, y: lib.linalg.vecdot(x, kind_like(x, y)))
product(
    "bilinear", "fff",
    lambda lib, k, x, y, w: lib.nn.functional.bilinear(
        resized(x, 4, 3), resized(kind_like(x, y), 4, 2), resized(kind_like(x, w), 5, 3, 2)
    ),
)  # fmt: skip
product(
    "cosine_similarity", "fF",
    lambda lib, k, x, y: lib.nn.functional.cosine_similarity(x, kind_like(x, y), dim=k.axis(x)),
)  # fmt: skip
product(
    "cdist", "ff",
    lambda lib, k, x, y: lib.cdist(resized(x, 3, 2), resized(kind_like(x, y), 4, 2) + 20.0),
)  # fmt: skip

# Linear algebra that is stable -------------------------------------------------------------------


def matrix_exp(lib: Any, a: Any) -> Any:
    """`matrix_exp`; torch's gradient of cotangents of size 1: rule size_of_the_cotangent."""
    if lib.__name__ != "torch":
        return lib.linalg.matrix_exp(a)

    class MatrixExp(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Any) -> Any:
            ctx.save_for_backward(a)
            return lib.linalg.matrix_exp(a)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (a,) = ctx.saved_tensors
            n, size = a.shape[-1], g.detach().abs().amax((-2, -1), keepdim=True)
            size = lib.where((size > 0) & size.isfinite(), size, lib.ones_like(size))
            upper = lib.cat([a.mT, g / size], -1)
            lower = lib.cat([lib.zeros_like(a), a.mT], -1)
            return MatrixExp.apply(lib.cat([upper, lower], -2))[..., :n, n:] * size

    return MatrixExp.apply(a)


def _algebra(name: str) -> Function:
    def run(lib: Any, k: Numbers, x: Any, y: Any) -> Any:
        n = k.choice((1, 2, 3, 4))
        a = definite(lib, x, n, *k.choice(((), (), (2,))))
        b = resized(kind_like(x, y), n, 2)
        linalg = lib.linalg
        rows: dict[str, Function] = {
            "inv": lambda: linalg.inv(a),
            "det": lambda: linalg.det(a),
            "slogdet": lambda: tuple(linalg.slogdet(a)),
            "solve": lambda: linalg.solve(a, b),
            "cholesky": lambda: linalg.cholesky(a @ a.mT),
            "eigvalsh": lambda: linalg.eigvalsh(a @ a.mT).detach(),
            "svdvals": lambda: linalg.svdvals(a).detach(),
            "matrix_power": lambda: linalg.matrix_power(a, k.choice((0, 1, 2, 3, -1))),
            "solve_triangular": lambda: linalg.solve_triangular(a.triu(), b, upper=True),
            "matrix_exp": lambda: matrix_exp(lib, a * 0.3),
            "pinv": lambda: linalg.pinv(a),
            "matrix_norm": lambda: linalg.matrix_norm(a, k.choice(("fro", 1, float("inf")))),
            "multi_dot": lambda: linalg.multi_dot([a if a.dim() == 2 else a[0], b, b.mT]),
        }
        return rows[name]()

    return run


for _name in [
    "inv",
    "det",
    "slogdet",
    "solve",
    "cholesky",
    "eigvalsh",
    "svdvals",
    "matrix_power",
    "solve_triangular",
    "matrix_exp",
    "pinv",
    "matrix_norm",
    "multi_dot",
]:
    op(f"linalg.{_name}", "ff", _algebra(_name), "linalg")

# Convolutions, pooling, normalization, interpolation ---------------------------------------------


def image(k: Numbers, x: Any, rank: int) -> Any:
    """A batch of images of `rank` dimensions made of the elements of `x`, or `x` if it is one."""
    if x.dim() == rank + 2 and x.numel() and k.flip(0.7):
        return x
    sizes = [k.choice((4, 5, 6, 7)) for _ in range(rank)]
    return resized(x, k.choice((1, 2)), k.choice((1, 2, 4)), *sizes)


def _convolved(rank: int, transposed: bool) -> Function:
    def run(lib: Any, k: Numbers, x: Any, w: Any, b: Any) -> Any:
        a = image(k, x, rank)
        channels = a.shape[1]
        groups = k.choice([g for g in (1, 1, 2, channels) if channels % g == 0])
        out = groups * k.choice((1, 2, 3))
        kernel = [k.choice((1, 2, 3)) for _ in range(rank)]
        ends = (channels, out // groups) if transposed else (out, channels // groups)
        weight, bias = (
            resized(kind_like(x, w), *ends, *kernel),
            resized(kind_like(x, b), out),
        )
        options: dict[str, Any] = {
            "stride": k.choice((1, 1, 2, 3)), "padding": k.choice((0, 1, 2)),
            "dilation": k.choice((1, 1, 2)), "groups": groups,
        }  # fmt: skip
        if transposed and options["stride"] > 1 and k.flip():
            options["output_padding"] = 1
        elif not transposed and k.flip(0.15):
            options.update(padding=k.choice(("same", "valid")), stride=1)
        function = getattr(lib.nn.functional, f"conv{'_transpose' if transposed else ''}{rank}d")
        with _without_crashes(lib, a):
            return function(a, weight, bias if k.flip() else None, **options)

    return run


def _without_crashes(lib: Any, x: Any) -> AbstractContextManager[Any]:
    """torch 2.11's oneDNN ends the process in convolutions of some small halves (AVX512-FP16)."""
    if lib.__name__ == "torch" and x.dtype == lib.float16:
        switched: AbstractContextManager[Any] = lib.backends.mkldnn.flags(enabled=False)
        return switched
    return nullcontext()


for _rank in (1, 2, 3):
    op(f"conv{_rank}d", "fff", _convolved(_rank, False), "convolution")
    op(f"conv_transpose{_rank}d", "fff", _convolved(_rank, True), "convolution")


def _pooled(name: str, rank: int) -> Function:
    def run(lib: Any, k: Numbers, x: Any) -> Any:
        a = image(k, x, rank)
        function = getattr(lib.nn.functional, f"{name}{rank}d")
        if name.startswith("adaptive"):
            return function(a, k.choice((1, 2, 3)))
        options: dict[str, Any] = {"stride": k.choice((None, 1, 2)), "ceil_mode": k.flip(0.3)}
        size = k.choice((1, 2, 3))
        if name != "lp_pool":
            options["padding"] = k.choice((0, size // 2))
        if name == "max_pool":
            options["dilation"] = k.choice((1, 1, 2))
            if k.flip(0.3):
                return tuple(function(a, size, return_indices=True, **options))
        if name == "avg_pool":
            options["count_include_pad"] = k.flip()
        if name == "lp_pool":
            return function(a.abs() + 0.5, 2.0, size, **options)
        return function(a, size, **options)

    return run


for _name in ["max_pool", "avg_pool", "lp_pool", "adaptive_avg_pool", "adaptive_max_pool"]:
    for _rank in (1, 2, 3):
        op(f"{_name}{_rank}d", "f", _pooled(_name, _rank), "pooling", rounds="max" not in _name)


CENTERED = ("batch_norm", "instance_norm", "layer_norm", "group_norm")


def _normalized(name: str) -> Function:
    def run(lib: Any, k: Numbers, x: Any, w: Any, b: Any) -> Any:
        functional = lib.nn.functional
        if name == "normalize":
            return functional.normalize(x, p=k.choice((2.0, 1.0)), dim=k.axis(x))
        a = image(k, x, k.choice((1, 2)))
        channels = a.shape[1]
        weight, bias = (
            resized(kind_like(x, w), channels),
            resized(kind_like(x, b), channels),
        )
        if k.flip(0.3):
            weight = bias = None
        if name in CENTERED:
            # A row without variance is left with its rounding errors, times 1 / sqrt(eps): such
            # rows are tests/models/test_normalized_rows.py's.
            steps = lib.arange(a.numel()).remainder(5).reshape(a.shape)
            a = a + (steps * 0.375).to(a.dtype)
        if name in ("layer_norm", "rms_norm"):
            shape = list(a.shape[-k.choice((1, 2)) :])
            scale = resized(kind_like(x, w), *shape)
            if name == "rms_norm":
                return functional.rms_norm(a, shape, scale, eps=k.choice((None, 1e-5)))
            return functional.layer_norm(a, shape, scale, None, eps=k.choice((1e-5, 1e-3)))
        if name == "group_norm":
            return functional.group_norm(a, channels, weight, bias)
        if name == "instance_norm":
            return functional.instance_norm(a, weight=weight, bias=bias, eps=1e-2)
        if name == "local_response_norm":
            return functional.local_response_norm(a, 2)
        means = lib.zeros(channels, dtype=x.dtype) + 0.1
        if k.flip():
            return functional.batch_norm(a, means, means + 1, weight, bias, training=False)
        variances = means + 0.9
        result = functional.batch_norm(a, means, variances, weight, bias, training=True, eps=1e-2)
        return result, means, variances

    return run


for _name in [
    "normalize",
    "layer_norm",
    "rms_norm",
    "group_norm",
    "instance_norm",
    "local_response_norm",
    "batch_norm",
]:
    op(_name, "fff", _normalized(_name), "normalization")


def _interpolated(lib: Any, k: Numbers, x: Any) -> Any:
    mode = k.choice(
        ("nearest", "nearest-exact", "linear", "bilinear", "bicubic", "area", "trilinear")
    )
    rank = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}.get(mode) or k.choice((1, 2))
    a = image(k, x, rank)
    options: dict[str, Any] = {"mode": mode}
    if "linear" in mode or mode == "bicubic":
        options["align_corners"] = k.choice((None, False, True))
    if k.flip():
        options["scale_factor"] = k.choice((2, 0.5, 1.0, 1.7))
    else:
        options["size"] = [k.choice((n, 3, 8)) for n in a.shape[2:]]
    return lib.nn.functional.interpolate(a, **options)


def _bytes_interpolated(lib: Any, k: Numbers, x: Any) -> Any:
    a = resized(x, 1, k.choice((1, 2, 4)), k.choice((2, 4, 5)), k.choice((3, 5, 8)))
    size = [k.choice((n, 2, 3, 9)) for n in a.shape[2:]]
    # The remainder of a negative integer is positive in both libraries.
    return lib.nn.functional.interpolate(
        a.remainder(100).to(lib.uint8), size=size, mode=k.choice(("bilinear", "bicubic")),
        align_corners=k.choice((None, False, True)), antialias=k.flip(),
    )  # fmt: skip


def _padded(lib: Any, k: Numbers, x: Any) -> Any:
    mode = k.choice(("constant", "constant", "reflect", "replicate", "circular"))
    if mode == "constant":
        amounts = [k.choice((0, 1, 2, -1)) for _ in range(2 * k.randint(1, max(1, x.dim())))]
        return lib.nn.functional.pad(x, amounts, value=k.choice((0, 1.5, -1)))
    rank = k.choice((1, 2))
    a = image(k, x, rank)
    return lib.nn.functional.pad(a, [k.choice((0, 1, 2)) for _ in range(2 * rank)], mode=mode)


def _sampled(lib: Any, k: Numbers, x: Any, g: Any) -> Any:
    a, grid = resized(x, 1, 2, 4, 5), resized(kind_like(x, g), 1, 3, 3, 2)
    mode = k.choice(("bilinear", "nearest"))
    # The nearest element has no slope in the grid: torch has a gradient of zeros, we have none.
    grid = grid if mode == "bilinear" else grid.detach()
    # torch computes places of half dtypes in these, and errs by parts of an element.
    result = lib.nn.functional.grid_sample(
        _single(a), _single(grid.sin() * 1.1), mode=mode,
        padding_mode=k.choice(("zeros", "border")), align_corners=k.flip(),
    )  # fmt: skip
    return result.to(a.dtype)


def _single(x: Any) -> Any:
    """A half dtype as float32."""
    return x.float() if dtype_name(x) in ("float16", "bfloat16") else x


def _shuffled(lib: Any, k: Numbers, x: Any) -> Any:
    functional = lib.nn.functional
    factor = k.choice((1, 2))
    choice = k.randrange(3)
    if choice == 0:
        a = resized(x, 1, 4, 3, 2)
        return functional.pixel_shuffle(a, factor)
    a = resized(x, 2, 4, 4, 2)
    if choice == 1:
        return functional.pixel_unshuffle(a, factor)
    return functional.channel_shuffle(a, 2)


def _windows(lib: Any, k: Numbers, x: Any) -> Any:
    a = image(k, x, 2)
    columns = lib.nn.functional.unfold(a, 2, padding=1)
    return lib.nn.functional.fold(columns, a.shape[2:], 2, padding=1) if k.flip() else columns


op("interpolate", "f", _interpolated, "vision")
op("interpolate bytes", "i", _bytes_interpolated, "vision", False)
op("pad", "a", _padded, "vision", False)
op("grid_sample", "ff", _sampled, "vision")
op("shuffle", "a", _shuffled, "vision", False)
op("unfold and fold", "f", _windows, "vision")

# Losses ------------------------------------------------------------------------------------------


def _loss(name: str) -> Function:
    def run(lib: Any, k: Numbers, x: Any, y: Any) -> Any:
        options: dict[str, Any] = {"reduction": k.choice(("mean", "sum", "none"))}
        if name in ("smooth_l1_loss",):
            options["beta"] = k.choice((1.0, 0.3))
        if name == "huber_loss":
            options["delta"] = k.choice((1.0, 0.3))
        target = kind_like(x, y).expand_as(x)
        if name.startswith("binary"):
            target = target.sigmoid()
        if name == "binary_cross_entropy":
            x = x.sin() * 0.4 + 0.5
            if lib.__name__ == "torch" and dtype_name(x) == "float64":
                # torch's second derivative adds 1e-12 to divisors. The input first: its layout.
                losses = -(x.log() * target + (1 - x).log() * (1 - target))
                reduction = options["reduction"]
                return losses if reduction == "none" else getattr(losses, reduction)()
        if name == "kl_div":
            # The difference of the logarithms is all that is left, where both are equal.
            x, target = Mover.move(x.log_softmax(-1)), Mover.move(target.softmax(-1))
        if name == "soft_margin_loss":
            target = target.detach().sign()
        if name == "hinge_embedding_loss":
            target = target.detach().sign()
        if name == "poisson_nll_loss":
            x = bounded(lib, x, -2, 2)
        if name == "gaussian_nll_loss":
            return lib.nn.functional.gaussian_nll_loss(x, target, x.abs() + 0.5, **options)
        return getattr(lib.nn.functional, name)(x, target, **options)

    return run


for _name in [
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "kl_div",
    "soft_margin_loss",
    "hinge_embedding_loss",
    "poisson_nll_loss",
    "gaussian_nll_loss",
]:
    op(_name, "fF", _loss(_name), "loss")


def _classified(lib: Any, k: Numbers, x: Any, i: Any, w: Any) -> Any:
    classes = k.choice((2, 3, 7))
    shape = k.choice(((5, classes), (classes,), (2, classes, 3)))
    logits = resized(x, *shape)
    weights = resized(kind_like(x, w), classes)
    labels = places(resized(i, *[n for d, n in enumerate(shape) if d != (len(shape) > 1)]), classes)
    options: dict[str, Any] = {"reduction": k.choice(("mean", "sum", "none"))}
    if k.flip(0.3):
        options["weight"] = weights.detach().abs() + 0.5
    if k.flip(0.3):
        options["ignore_index"] = 1
    if k.flip(0.3):
        axis = 1 if len(shape) > 1 else 0
        return lib.nn.functional.nll_loss(logits.log_softmax(axis), labels, **options)
    if k.flip(0.3):
        options["label_smoothing"] = 0.1
    return lib.nn.functional.cross_entropy(logits, labels, **options)


op("cross_entropy", "fif", _classified, "loss")


def _triplets(lib: Any, k: Numbers, x: Any, y: Any) -> Any:
    a, b = resized(x, 4, 3), resized(kind_like(x, y), 4, 3)
    sign = (b[:, 0].detach() > 0).to(x.dtype) * 2 - 1
    functional = lib.nn.functional
    return k.choice((
        lambda: functional.cosine_embedding_loss(a, b, sign),
        lambda: functional.margin_ranking_loss(a[:, 0], b[:, 0], sign, margin=0.3),
        lambda: functional.triplet_margin_loss(a, b, a * 0.5 + 1),
        lambda: functional.multilabel_soft_margin_loss(a, b.detach().sigmoid()),
        lambda: functional.pairwise_distance(a, b + 3),
    ))()  # fmt: skip


op("other losses", "ff", _triplets, "loss")

# Writes ------------------------------------------------------------------------------------------


def overlapping(x: Any) -> bool:
    """Whether several elements are one, with no stride of 0, which torch would see."""
    if not x.numel() or any(n > 1 and step == 0 for n, step in zip(x.shape, x.stride())):
        return False
    # Most views are nested: a step passes over all that the smaller ones reach.
    reach = 1
    for step, n in sorted((step, n) for n, step in zip(x.shape, x.stride()) if n > 1):
        if step < reach:
            break
        reach = step * (n - 1) + reach
    else:
        return False
    positions = {
        sum(n * step for n, step in zip(index, x.stride()))
        for index in itertools.product(*map(range, x.shape))
    }
    return len(positions) != x.numel()


def write(name: str, kinds: str, run: Function, rounds: bool = True, fills: bool = False) -> None:
    """An operation in place; unless it fills, torch writes overlapping windows in any order."""

    def checked(lib: Any, k: Numbers, x: Any, *others: Any) -> Any:
        return run(lib, k, suited(fills or not overlapping(x), x), *others)

    op(name, kinds, checked, "write", rounds, writes=True)


def _operator_write(lib: Any, k: Numbers, x: Any, y: Any) -> Any:
    sign = k.choice("+-*/")
    if sign == "+":
        x += y
    elif sign == "-":
        x -= y
    elif sign == "*":
        x *= y
    else:
        x /= _nonzero(k, y)
    return x


for _name in ["add_", "sub_", "mul_"]:
    write(_name, "aA", lambda lib, k, x, y, _name=_name: getattr(x, _name)(y))
    write(f"{_name} number", "a", lambda lib, k, x, _name=_name: getattr(x, _name)(k.number(x)))
write("operator write", "nN", _operator_write)
write("div_", "fN", lambda lib, k, x, y: x.div_(_nonzero(k, y)))
write("copy_", "aA", lambda lib, k, x, y: x.copy_(y), False)
write("fill_", "a", lambda lib, k, x: x.fill_(k.choice((0, 1, 2))), False, fills=True)
write("zero_", "a", lambda lib, k, x: x.zero_(), False, fills=True)
write("clamp_", "n", lambda lib, k, x: x.clamp_(min=-1, max=2), False)
write(
    "masked_fill_",
    "aB",
    lambda lib, k, x, m: x.masked_fill_(m, k.choice((0, 1))),
    False,
    fills=True,
)
write("lerp_", "fF", lambda lib, k, x, y: x.lerp_(kind_like(x, y), 0.3))
write("addcmul_", "fFF", lambda lib, k, x, y, z: x.addcmul_(kind_like(x, y), kind_like(x, z)))
for _name in ["relu_", "neg_", "abs_", "sign_"]:
    write(_name, "n", lambda lib, k, x, _name=_name: getattr(x, _name)(), False)
for _name in ["tanh_", "sigmoid_", "sin_", "square_", "floor_"]:
    write(_name, "f", lambda lib, k, x, _name=_name: getattr(x, _name)())
for _name in ["tril_", "triu_"]:
    # torch writes through expansions here, in an order of its own.
    write(
        _name, "m",
        lambda lib, k, x, _name=_name: getattr(suited(0 not in x.stride(), x), _name)(), False,
    )  # fmt: skip


def _set_item(lib: Any, k: Numbers, x: Any, y: Any) -> Any:
    x[_index(k, x)] = kind_like(x, y)
    return None


def _set_part(lib: Any, k: Numbers, x: Any) -> Any:
    x[_index(k, x)] = k.choice((0, 1, 2))
    return None


def _set_at(lib: Any, k: Numbers, x: Any, i: Any) -> Any:
    if not x.dim() or not x.numel():
        return None
    at = places(i.reshape(-1)[:1], x.shape[0])
    x[at[0] if k.flip() else at] = k.choice((0, 1, 2))
    return None


def _set_mask(lib: Any, k: Numbers, x: Any) -> Any:
    x[x > 0.5] = k.choice((0, 1))
    return None


def _scatter_write(lib: Any, k: Numbers, x: Any, i: Any) -> Any:
    if not x.dim() or not x.numel():
        return None
    axis = k.axis(x)
    at = places(resized(i, 1), x.shape[axis])
    shape = list(x.shape)
    shape[axis] = 1
    return k.choice((
        # torch fills expansions, ours refuses them: the rule windows_that_overlap.
        lambda: suited(0 not in x.stride(), x).index_fill_(axis, at, 1),
        lambda: x.index_add_(axis, at, lib.ones(shape, dtype=x.dtype)),
        lambda: x.scatter_(axis, at.reshape([1] * x.dim()).expand(shape), 2),
        lambda: x.scatter_add_(axis, at.reshape([1] * x.dim()).expand(shape),
                               lib.ones(shape, dtype=x.dtype)),
    ))()  # fmt: skip


def _write_data(lib: Any, k: Numbers, x: Any) -> None:
    """A write past torch's record, which then takes the written values for those of forward."""
    x.data.mul_(0.5)
    if hasattr(lib.autograd.graph, "increment_version"):
        lib.autograd.graph.increment_version(x)


write("x[...] = y", "aA", _set_item, False)
write("x[...] = number", "a", _set_part, False, fills=True)
write("x[i] = number", "ai", _set_at, False, fills=True)
write("x[x > 0.5] = number", "n", _set_mask, False, fills=True)
write("scatter write", "ni", _scatter_write)
write("write to view", "n", lambda lib, k, x: (x[_index(k, x)].mul_(2) and None) or None)
write("write to diagonal", "m", lambda lib, k, x: _diagonal(lib, k, x).add_(1))
write("write to transposed", "m", lambda lib, k, x: x.mT[0].copy_(x.mT[-1].clone()), False)
write("write to flattened", "a", lambda lib, k, x: x.view(-1)[1:].fill_(1), False, fills=True)
write("fill_diagonal_", "m", lambda lib, k, x: x.fill_diagonal_(3), False, fills=True)
write("write to data", "f", _write_data)
# A leaf and its views have their shape for good, in torch with gaps in what it refuses.
write("t_", "a", lambda lib, k, x: suited(not x.requires_grad, x).t_(), False)
write("unsqueeze_", "a", lambda lib, k, x: suited(not x.requires_grad, x).unsqueeze_(0), False)
write("squeeze_", "a", lambda lib, k, x: suited(not x.requires_grad, x).squeeze_(), False)
write("transpose_", "m", lambda lib, k, x: suited(not x.requires_grad, x).transpose_(0, -1), False)

# Every letter that picks an operand.
LETTERS = frozenset("".join(row.kinds for row in OPS.values()).lower())
FAMILIES = sorted({row.family for row in OPS.values()})
