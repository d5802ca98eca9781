"""Elementwise ops: one expression each, the same shape in and out.

Broadcasting is an explicit `expand` before the op, so no rule here mentions it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import DType, bool_, float32, float64, uint32, uint64
from tinygrad_cuda.core.errors import DTypeError, ShapeError
from tinygrad_cuda.core.locks import forks_wait
from tinygrad_cuda.graph.node import Gradient, Node, Op, Outputs, SameSpecOp, same_spec
from tinygrad_cuda.graph.ops import numeric
from tinygrad_cuda.graph.ops.common import DOMAINS, full_like, require_dtype


def _infer(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    outputs = sources[0].outputs
    for other in sources:
        if other.outputs is not outputs and not same_spec(sources[0], other):
            if other.shape != sources[0].shape:
                raise _shape_error(op, sources)
            raise DTypeError(
                op.name,
                "operands have different dtypes",
                expect=sources[0].dtype.name,
                actual=other.dtype.name,
            )
    return outputs


def _shape_error(op: Op, sources: tuple[Node, ...]) -> ShapeError:
    shapes = [source.shape for source in sources]
    return ShapeError(op.name, "shapes differ", expect=str(shapes[0]), actual=str(shapes))


def _checked(domain: str, result: DType | None = None) -> Callable[..., Outputs]:
    if domain == "any" and result is None:
        return _infer

    categories = DOMAINS[domain]

    def infer(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
        if sources[0].dtype.category not in categories:
            require_dtype(op.name, sources[0], domain)
        outputs = _infer(op, sources, attributes)
        return outputs if result is None else ((outputs[0][0], result),)

    return infer


def _op(
    name: str,
    numpy: Callable[..., Any],
    cuda: str | Callable[[DType], str],
    *gradient: Gradient | None,
    domain: str = "any",
    result: DType | None = None,
    cost: int = 1,
) -> SameSpecOp:
    return SameSpecOp(
        name,
        "elementwise",
        _checked(domain, result),
        numpy=numpy,
        cuda=cuda,
        gradient=gradient or (None, None),
        cost=cost,
    )


# Arithmetic ---------------------------------------------------------------------------------


def _product_text(t: DType) -> str:
    """C's product of two uint16 is one of int, which it overflows: device.cuh has another."""
    return {"bool": "{0} && {1}", "uint16": "tgc_product({0}, {1})"}.get(t.name, "{0} * {1}")


add: SameSpecOp = _op(
    "add", np.add, lambda t: "{0} || {1}" if t is bool_ else "{0} + {1}",
    lambda g, out, a, b: g,
    lambda g, out, a, b: g,
)  # fmt: skip
sub: SameSpecOp = _op(
    "sub", np.subtract, "{0} - {1}",
    lambda g, out, a, b: g,
    lambda g, out, a, b: neg(g),
    domain="arithmetic",
)  # fmt: skip
mul: SameSpecOp = _op(
    "mul", np.multiply, _product_text,
    lambda g, out, a, b: mul(g, conjugated(b)),
    lambda g, out, a, b: mul(g, conjugated(a)),
)  # fmt: skip
div: SameSpecOp = _op(
    "div", np.true_divide, "{0} / {1}",
    lambda g, out, a, b: div(g, conjugated(b)),
    lambda g, out, a, b: neg(div(mul(g, conjugated(out)), conjugated(b))),
    domain="inexact", cost=4,
)  # fmt: skip
neg: SameSpecOp = _op("neg", np.negative, "-{0}", lambda g, out, x: neg(g), domain="arithmetic")


@numeric.takes_out
def _copy(x: Any, out: Any = None) -> Any:
    if out is None:
        return np.array(x)
    out[...] = x
    return out


# The same values; a plan stores them in the order of this node's axes.
contiguous: SameSpecOp = _op("contiguous", _copy, "{0}", lambda g, out, x: g, cost=0)
reciprocal: SameSpecOp = _op(
    "reciprocal", numeric.reciprocal, lambda t: f"{t.c}(1) / {{0}}" if t.is_complex else "1 / {0}",
    lambda g, out, x: neg(mul(g, conjugated(mul(out, out)))),
    domain="inexact", cost=4,
)  # fmt: skip


def _floor_divide(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        return np.floor_divide(a, b)
    return np.where(b == 0, np.zeros_like(a), np.floor_divide(a, np.where(b == 0, 1, b)))


def _remainder(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        return np.remainder(a, b)
    return np.where(b == 0, np.zeros_like(a), np.remainder(a, np.where(b == 0, 1, b)))


def _fmod(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        return np.fmod(a, b)
    return np.where(b == 0, np.zeros_like(a), np.fmod(a, np.where(b == 0, 1, b)))


floor_divide: SameSpecOp = _op(
    "floor_divide", _floor_divide, "tgc_floor_divide({0}, {1})", None, None,
    domain="number", cost=8,
)  # fmt: skip
remainder: SameSpecOp = _op(
    "remainder", _remainder, "tgc_remainder({0}, {1})",
    lambda g, out, a, b: g,
    lambda g, out, a, b: neg(mul(g, floor_divide(a, b))),
    domain="number", cost=8,
)  # fmt: skip
fmod: SameSpecOp = _op(
    "fmod", _fmod, "tgc_fmod({0}, {1})",
    lambda g, out, a, b: g,
    lambda g, out, a, b: neg(mul(g, trunc(div(a, b)))),
    domain="number", cost=8,
)  # fmt: skip


def _power_base_gradient(g: Node, out: Node, a: Node, b: Node) -> Node:
    zero = full_like(b, 0)
    slope = mul(b, pow(a, sub(b, full_like(b, 1))))
    return mul(g, where(eq(b, zero), zero, slope))


def _power_exponent_gradient(g: Node, out: Node, a: Node, b: Node) -> Node:
    # 0 ** b is constant for b > 0, and log(0) must not turn that into NaN.
    zero = full_like(a, 0)
    at_zero = logical_and(eq(a, zero), ge(b, full_like(b, 0)))
    safe = where(at_zero, full_like(a, 1), a)
    return where(at_zero, zero, mul(g, mul(out, log(safe))))


pow: SameSpecOp = _op(
    "pow", numeric.power, "tgc_pow({0}, {1})",
    _power_base_gradient,
    _power_exponent_gradient,
    domain="number", cost=20,
)  # fmt: skip


def _half_at_tie(g: Node, beaten: Node, tie: Node) -> Node:
    """None of g where the other operand was chosen, half of it where both were equal.

    NaN beats nothing and is beaten by nothing: all of g, which is NaN as a rule, passes to both.
    """
    half = mul(g, full_like(g, 0.5))
    return where(tie, half, where(beaten, full_like(g, 0), g))


maximum: SameSpecOp = _op(
    "maximum", numeric.maximum, "tgc_max({0}, {1})",
    lambda g, out, a, b: _half_at_tie(g, lt(a, b), eq(a, b)),
    lambda g, out, a, b: _half_at_tie(g, lt(b, a), eq(a, b)),
    domain="real",
)  # fmt: skip
minimum: SameSpecOp = _op(
    "minimum", numeric.minimum, "tgc_min({0}, {1})",
    lambda g, out, a, b: _half_at_tie(g, gt(a, b), eq(a, b)),
    lambda g, out, a, b: _half_at_tie(g, gt(b, a), eq(a, b)),
    domain="real",
)  # fmt: skip

# Comparison and logic -------------------------------------------------------------------------

eq: SameSpecOp = _op("eq", np.equal, "{0} == {1}", result=bool_)
ne: SameSpecOp = _op("ne", np.not_equal, "{0} != {1}", result=bool_)
lt: SameSpecOp = _op("lt", np.less, "{0} < {1}", domain="real", result=bool_)
le: SameSpecOp = _op("le", np.less_equal, "{0} <= {1}", domain="real", result=bool_)
gt: SameSpecOp = _op("gt", np.greater, "{0} > {1}", domain="real", result=bool_)
ge: SameSpecOp = _op("ge", np.greater_equal, "{0} >= {1}", domain="real", result=bool_)
logical_and: SameSpecOp = _op("logical_and", np.logical_and, "{0} && {1}", domain="bool")
logical_or: SameSpecOp = _op("logical_or", np.logical_or, "{0} || {1}", domain="bool")
logical_xor: SameSpecOp = _op("logical_xor", np.logical_xor, "{0} != {1}", domain="bool")
logical_not: SameSpecOp = _op("logical_not", np.logical_not, "!{0}", None, domain="bool")
bitwise_and: SameSpecOp = _op("bitwise_and", np.bitwise_and, "{0} & {1}", domain="integral")
bitwise_or: SameSpecOp = _op("bitwise_or", np.bitwise_or, "{0} | {1}", domain="integral")
bitwise_xor: SameSpecOp = _op("bitwise_xor", np.bitwise_xor, "{0} ^ {1}", domain="integral")
bitwise_not: SameSpecOp = _op(
    "bitwise_not", np.invert, lambda t: "!{0}" if t is bool_ else "~{0}", None, domain="integral"
)
isnan: SameSpecOp = _op("isnan", np.isnan, "tgc_isnan({0})", None, domain="float", result=bool_)
isfinite: SameSpecOp = _op(
    "isfinite", np.isfinite, "tgc_isfinite({0})", None, domain="float", result=bool_
)


def _infer_where(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    require_dtype("where", sources[0], "bool")
    if sources[0].shape != sources[1].shape:
        raise _shape_error(op, sources)
    return _infer(op, sources[1:], attributes)


where: Op = Op(
    "where", "elementwise", _infer_where, numpy=numeric.select, cuda="{0} ? {1} : {2}",
    gradient=(
        None,
        lambda g, out, c, a, b: where(c, g, full_like(g, 0)),
        lambda g, out, c, a, b: where(c, full_like(g, 0), g),
    ),
)  # fmt: skip


def _infer_cast(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    return ((sources[0].shape, attributes["dtype"]),)


def _truncated(x: Any, dtype: DType) -> Any:
    """As CUDA text does: truncate to a signed integer, then keep the low bits."""
    if dtype is not uint64:
        wide = np.int32 if dtype.itemsize < 8 and dtype is not uint32 else np.int64
        return x.astype(wide).astype(dtype.numpy)
    # The upper half, which int64 has not, goes through its lower half, as in C.
    high = x >= 2.0**63
    low = np.where(high, x - 2.0**63, x).astype(np.int64).astype(np.uint64)
    return low ^ (high.astype(np.uint64) << np.uint64(63))


def cast_array(x: Any, dtype: DType) -> Any:
    """The reference of `cast`; of a complex number its real part remains."""
    if x.dtype.kind == "c" and dtype.name != "bool" and not dtype.is_complex:
        x = x.real
    if x.dtype.kind not in "iub" and dtype.category < 2 and dtype.name != "bool":
        with np.errstate(invalid="ignore"):
            return _truncated(x.astype(np.float64), dtype)
    with np.errstate(over="ignore"):
        return x.astype(dtype.numpy)


cast: Op = Op(
    "cast", "elementwise", _infer_cast, numpy=cast_array, cuda="tgc_cast",
    gradient=(lambda g, out, x, dtype: cast(g, dtype=x.dtype),),
)  # fmt: skip

# Rounding and sign ----------------------------------------------------------------------------


def _flat(g: Node, out: Node, x: Node) -> Node:
    """A step function: the derivative is zero almost everywhere."""
    return full_like(g, 0)


floor: SameSpecOp = _op("floor", np.floor, "floor({0})", _flat, domain="float")
ceil: SameSpecOp = _op("ceil", np.ceil, "ceil({0})", _flat, domain="float")
trunc: SameSpecOp = _op("trunc", np.trunc, "trunc({0})", _flat, domain="float")
round: SameSpecOp = _op("round", np.rint, "rint({0})", _flat, domain="float")
abs: SameSpecOp = _op(
    "abs", np.abs, "tgc_abs({0})",
    lambda g, out, x: mul(g, sign(x)),
    domain="number",
)  # fmt: skip


def _sign(x: Any) -> Any:
    return np.subtract(x > 0, x < 0, dtype=x.dtype)


# 0 for NaN, as in PyTorch; so is the slope of |NaN|.
sign: SameSpecOp = _op("sign", _sign, "tgc_sign({0})", _flat, domain="number")

# Exponentials, roots, trigonometry ------------------------------------------------------------


def _times(g: Node, factor: Node, number: float) -> Node:
    return mul(g, mul(factor, full_like(factor, number)))


def _short(name: str) -> Callable[[DType], str]:
    """A function with a quicker form for values that are stored in 16 bits."""
    forms = {"float16": f"tgc_{name}_short({{0}})", "bfloat16": f"tgc_{name}_bfloat16({{0}})"}
    return lambda t: forms.get(t.name, f"tgc_{name}({{0}})")


exp: SameSpecOp = _op(
    "exp", np.exp, _short("exp"),
    lambda g, out, x: mul(g, conjugated(out)),
    domain="inexact", cost=8,
)  # fmt: skip
exp2: SameSpecOp = _op(
    "exp2", np.exp2, "exp2({0})",
    lambda g, out, x: _times(g, out, 0.6931471805599453),
    domain="float", cost=8,
)  # fmt: skip
# Not by out + 1, which is 0 for x below -17: so are the slopes of elu, celu and selu exact.
expm1: SameSpecOp = _op(
    "expm1", numeric.expm1, "expm1({0})",
    lambda g, out, x: mul(g, conjugated(exp(x))),
    domain="inexact", cost=12,
)  # fmt: skip
log: SameSpecOp = _op(
    "log", np.log, "log({0})", lambda g, out, x: div(g, conjugated(x)), domain="inexact", cost=8
)
log2: SameSpecOp = _op(
    "log2", np.log2, "log2({0})",
    lambda g, out, x: div(g, conjugated(mul(x, full_like(x, 0.6931471805599453)))),
    domain="inexact", cost=8,
)  # fmt: skip
log1p: SameSpecOp = _op(
    "log1p", numeric.log1p, "log1p({0})",
    lambda g, out, x: div(g, conjugated(add(x, full_like(x, 1)))),
    domain="inexact", cost=12,
)  # fmt: skip
sqrt: SameSpecOp = _op(
    "sqrt", np.sqrt, "sqrt({0})",
    lambda g, out, x: div(g, conjugated(add(out, out))),
    domain="inexact", cost=6,
)  # fmt: skip
rsqrt: SameSpecOp = _op(
    "rsqrt", numeric.rsqrt, "tgc_rsqrt({0})",
    lambda g, out, x: mul(g, conjugated(div(_times(out, full_like(out, 1), -0.5), x))),
    domain="inexact", cost=6,
)  # fmt: skip
sin: SameSpecOp = _op(
    "sin", np.sin, "sin({0})", lambda g, out, x: mul(g, conjugated(cos(x))),
    domain="inexact", cost=12,
)  # fmt: skip
cos: SameSpecOp = _op(
    "cos", np.cos, "cos({0})", lambda g, out, x: neg(mul(g, conjugated(sin(x)))),
    domain="inexact", cost=12,
)  # fmt: skip
tan: SameSpecOp = _op(
    "tan", np.tan, "tan({0})",
    lambda g, out, x: mul(g, conjugated(add(mul(out, out), full_like(out, 1)))),
    domain="inexact", cost=16,
)  # fmt: skip


def _one_minus_square(out: Node) -> Node:
    return sub(full_like(out, 1), mul(out, out))


asin: SameSpecOp = _op(
    "asin", np.arcsin, "asin({0})",
    lambda g, out, x: mul(g, conjugated(rsqrt(_one_minus_square(x)))),
    domain="inexact", cost=16,
)  # fmt: skip
acos: SameSpecOp = _op(
    "acos", np.arccos, "acos({0})",
    lambda g, out, x: neg(mul(g, conjugated(rsqrt(_one_minus_square(x))))),
    domain="inexact", cost=16,
)  # fmt: skip
atan: SameSpecOp = _op(
    "atan", np.arctan, "atan({0})",
    lambda g, out, x: div(g, conjugated(add(mul(x, x), full_like(x, 1)))),
    domain="inexact", cost=16,
)  # fmt: skip


def _over_squares(g: Node, part: Node, a: Node, b: Node) -> Node:
    """``g * part / (a**2 + b**2)``; 0 at the origin, as in PyTorch, where no angle is defined."""
    squares = add(mul(a, a), mul(b, b))
    zero = full_like(squares, 0)
    origin = eq(squares, zero)
    slope = div(mul(g, part), where(origin, full_like(squares, 1), squares))
    return where(origin, zero, slope)


atan2: SameSpecOp = _op(
    "atan2", np.arctan2, "atan2({0}, {1})",
    lambda g, out, a, b: _over_squares(g, b, a, b),
    lambda g, out, a, b: neg(_over_squares(g, a, a, b)),
    domain="float", cost=20,
)  # fmt: skip
sinh: SameSpecOp = _op(
    "sinh", np.sinh, "sinh({0})", lambda g, out, x: mul(g, conjugated(cosh(x))),
    domain="inexact", cost=16,
)  # fmt: skip
cosh: SameSpecOp = _op(
    "cosh", np.cosh, "cosh({0})", lambda g, out, x: mul(g, conjugated(sinh(x))),
    domain="inexact", cost=16,
)  # fmt: skip
tanh: SameSpecOp = _op(
    "tanh", np.tanh, "tanh({0})",
    lambda g, out, x: mul(g, conjugated(_one_minus_square(out))),
    domain="inexact", cost=12,
)  # fmt: skip


def _special(name: str) -> Callable[..., Any]:
    """A function of scipy.special, which is imported when it first runs."""

    def reference(*arrays: Any) -> Any:
        with forks_wait:
            import scipy.special

        return getattr(scipy.special, name)(*arrays)

    return reference


sigmoid: SameSpecOp = _op(
    "sigmoid", numeric.sigmoid, _short("sigmoid"),
    lambda g, out, x: mul(g, conjugated(mul(out, sub(full_like(out, 1), out)))),
    domain="inexact", cost=12,
)  # fmt: skip
TWO_OVER_SQRT_PI = 1.1283791670955126


@numeric.takes_out
def _erf(x: Any, out: Any = None) -> Any:
    if x.dtype == np.float32:
        return numeric.erf(x, out=out)
    result = _special("erf")(x)
    if out is None:
        return result
    out[...] = result
    return out


erf: SameSpecOp = _op(
    "erf", _erf, "erf({0})",
    lambda g, out, x: mul(g, _times(exp(neg(mul(x, x))), full_like(x, 1), TWO_OVER_SQRT_PI)),
    domain="float", cost=16,
)  # fmt: skip

# Complex numbers ------------------------------------------------------------------------------
# A gradient by z is that by its real part plus i times that by its imaginary part, as in PyTorch:
# a function with a complex derivative multiplies the cotangent by the derivative's conjugate.


def conjugated(x: Node) -> Node:
    """The complex conjugate; a real node itself."""
    return conj(x) if x.dtype.is_complex else x


def _infer_complex(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    if sources[0].dtype not in (float32, float64):
        raise DTypeError(
            "complex", "no complex number has such parts", expect="float32 or float64",
            actual=sources[0].dtype.name, hint="cast first: x.float()",
        )  # fmt: skip
    shape, dtype = _infer(op, sources, attributes)[0]
    return ((shape, dtype.to_complex()),)


def _infer_part(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
    require_dtype(op.name, sources[0], "complex")
    return ((sources[0].shape, sources[0].dtype.to_real()),)


def direction(z: Node) -> Node:
    """z / |z|, and 0 at the origin, where PyTorch has that slope."""
    size = modulus(z)
    origin = eq(size, full_like(size, 0))
    size = where(origin, full_like(size, 1), size)
    return div(z, cast(size, dtype=z.dtype))


conj: SameSpecOp = _op(
    "conj", np.conjugate, "tgc_conj({0})", lambda g, out, z: conj(g), domain="complex"
)
complex_: Op = Op(
    "complex", "elementwise", _infer_complex, numpy=numeric.joined, cuda="tgc_complex_of({0}, {1})",
    gradient=(lambda g, out, a, b: real(g), lambda g, out, a, b: imag(g)),
)  # fmt: skip
# Copies: a result may be written over, and its operand has other readers.
real: Op = Op(
    "real", "elementwise", _infer_part, numpy=lambda z: np.array(z.real), cuda="{0}.re",
    gradient=(lambda g, out, z: cast(g, dtype=z.dtype),),
)  # fmt: skip
imag: Op = Op(
    "imag", "elementwise", _infer_part, numpy=lambda z: np.array(z.imag), cuda="{0}.im",
    gradient=(lambda g, out, z: complex_(full_like(g, 0), g),),
)  # fmt: skip
# |z|: `abs` of complex numbers, whose result is real.
modulus: Op = Op(
    "modulus", "elementwise", _infer_part, numpy=np.abs, cuda="tgc_hypot({0}.re, {0}.im)",
    gradient=(lambda g, out, z: mul(cast(g, dtype=z.dtype), direction(z)),), cost=12,
)  # fmt: skip

ROWS: tuple[Op, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Op))
