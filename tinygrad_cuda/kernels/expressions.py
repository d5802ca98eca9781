"""C expressions of the user's: parsed, then evaluated by NumPy or Tensors, or written as CUDA text.

A text is a list of assignments, ``t = expf(-x); y = x * t``; the last one names the output. The
*value type* is the dtype that it computes in: float32 for half types. ``float``, ``double`` and
``T`` name it in casts, numbers with a point have it, and ``expf`` is ``exp`` in it. Integers
without a point are C's: ``1 / 2`` is 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tinygrad_cuda.graph.ops import TABLE
from tinygrad_cuda.tensors import functions as tc
from tinygrad_cuda.tensors.base import TensorBase

# What an expression has: the value type, or C's int, long long or bool.
VALUE, LONG, INT, BOOL = "value", "long", "int", "bool"
_RANKS = (BOOL, INT, LONG, VALUE)
_CASTS = {"float": VALUE, "double": VALUE, "T": VALUE, "int": INT, "bool": BOOL, "long long": LONG}
_INTEGERS = {INT: np.int32, LONG: np.int64, BOOL: np.bool_}


class Untranslatable(Exception):
    """A text is no expression that this file evaluates; the argument says why."""


class CTerm(NamedTuple):
    """A part of an expression.

    Attributes:
        op: ``number``, ``name``, ``call``, ``cast``, or C's operator; ``?`` is the choice.
        type: VALUE, LONG, INT or BOOL.
        parts: the operands.
        value: of a number, or the name of a variable or function.
    """

    op: str
    type: str
    parts: tuple[CTerm, ...] = ()
    value: Any = None


class ExpressionText(NamedTuple):
    """Assignments in their order.

    Attributes:
        statements: names and values; the last one is the output's.
        floating: it has a function or number that integers have not.
        integral: it has an operator that floats have not.
    """

    statements: tuple[tuple[str, CTerm], ...]
    floating: bool
    integral: bool

    @property
    def output(self) -> str:
        """The name of the output."""
        return self.statements[-1][0]

    @property
    def cost(self) -> int:
        """Instructions of an element, about."""
        return sum(_cost(term) for _, term in self.statements)


def _cost(term: CTerm) -> int:
    own = FUNCTIONS[term.value].cost if term.op == "call" else term.op not in ("number", "name")
    return own + sum(map(_cost, term.parts))


# Functions ----------------------------------------------------------------------------------------


class CFunction(NamedTuple):
    """A function of C.

    Attributes:
        arity: how many operands.
        numpy: what it is of arrays.
        tensors: the name of the function of Tensors.
        cuda: its name in kernels, which has overloads; with a ``*`` another in float, by an f.
        type: of its result.
        cost: in instructions.
    """

    arity: int
    numpy: Callable[..., Any]
    tensors: str
    cuda: str
    type: str = VALUE
    cost: int = 8


def _row(name: str) -> Callable[..., Any]:
    """The reference of an op of the table."""
    reference = TABLE[name].numpy
    assert reference is not None
    return reference


def _functions() -> dict[str, CFunction]:
    plain = "exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh sqrt floor ceil trunc"
    table = {name: CFunction(1, getattr(np, name), name, f"tgc_{name}") for name in plain.split()}
    for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh"):
        table[name] = CFunction(1, getattr(np, f"arc{name[1:]}"), name, f"tgc_{name}", cost=16)
    for name in ("erf", "erfc", "rsqrt", "lgamma"):
        table[name] = CFunction(1, _row(name), name, f"tgc_{name}", cost=16)
    for name in ("floor", "ceil", "trunc"):
        table[name] = table[name]._replace(cost=1)
    table["rint"] = CFunction(1, np.rint, "round", "tgc_rint", cost=1)
    table["fabs"] = table["abs"] = CFunction(1, np.abs, "abs", "tgc_abs", cost=1)
    table["pow"] = CFunction(2, np.power, "pow", "tgc_pow", cost=20)
    table["atan2"] = CFunction(2, np.arctan2, "atan2", "tgc_atan2", cost=20)
    table["hypot"] = CFunction(2, np.hypot, "hypot", "tgc_hypot")
    table["fmod"] = CFunction(2, np.fmod, "fmod", "tgc_fmod")
    table["copysign"] = CFunction(2, np.copysign, "copysign", "tgc_copysign", cost=1)
    table["fmin"] = table["min"] = CFunction(2, np.fmin, "fmin", "*fmin", cost=1)
    table["fmax"] = table["max"] = CFunction(2, np.fmax, "fmax", "*fmax", cost=1)
    for name in ("isnan", "isinf", "isfinite"):
        table[name] = CFunction(1, getattr(np, name), name, f"tgc_{name}", BOOL, 1)
    return table


FUNCTIONS = _functions()
# Those that integers have, too.
_OF_INTEGERS = {"abs", "min", "max"}


# Parsing ------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?(?P<suffix>[fFlLuU]*))"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>&&|\|\||<<|>>|[<>=!]=|[-+*/%<>&|^~!?:()=,;]))"
)
_BINARY = [
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="),
    ("<<", ">>"), ("+", "-"), ("*", "/", "%"),
]  # fmt: skip
_BITS = ("|", "^", "&", "<<", ">>", "%", "~")
_TRUTHS = ("||", "&&", "==", "!=", "<", "<=", ">", ">=", "!")


def parsed(text: str, inputs: Sequence[str]) -> ExpressionText:
    """The assignments of a text.

    Raises:
        Untranslatable: it is something else.
    """
    return _CParser(text, inputs).program()


class _CParser:
    def __init__(self, text: str, inputs: Sequence[str]) -> None:
        self.tokens: list[tuple[str, str]] = []
        self.types = dict.fromkeys(inputs, VALUE)
        self.floating = self.integral = False
        end, text = 0, re.sub(r"//.*|/\*.*?\*/", " ", text).rstrip()
        while end < len(text):
            match = _TOKEN.match(text, end)
            if match is None:
                raise Untranslatable(f"{text[end:].strip()[:20]!r} is no part of an expression")
            kind = match.lastgroup or ""
            kind = "number" if kind == "suffix" else kind
            self.tokens.append((kind, match[kind]))
            end = match.end()

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[ahead][1] if len(self.tokens) > ahead else ""

    def take(self, expected: str = "") -> tuple[str, str]:
        if not self.tokens or (expected and self.peek() != expected):
            actual = repr(self.peek()) if self.tokens else "the end"
            raise Untranslatable(f"{expected or 'an operand'!r} is missing before {actual}")
        return self.tokens.pop(0)

    def program(self) -> ExpressionText:
        statements: list[tuple[str, CTerm]] = []
        while self.tokens:
            if self.peek() in ("const", "auto", "float", "double", "T"):
                self.take()
                continue
            kind, name = self.take()
            if kind != "name" or self.peek() != "=":
                raise Untranslatable(f"{name} {self.peek()!r} begins no assignment 'name = value'")
            self.take("=")
            term = self.choice()
            # A variable has the value type, as its declaration would say.
            self.types[name] = VALUE
            statements.append((name, term))
            if self.tokens:
                self.take(";")
        if not statements:
            raise Untranslatable("there is no assignment 'y = ...'")
        return ExpressionText(tuple(statements), self.floating, self.integral)

    def choice(self) -> CTerm:
        condition = self.binary(0)
        if self.peek() != "?":
            return condition
        self.take()
        first = self.choice()
        self.take(":")
        other = self.choice()
        return CTerm("?", _wider(first, other), (condition, first, other))

    def binary(self, level: int) -> CTerm:
        if level == len(_BINARY):
            return self.unary()
        term = self.binary(level + 1)
        while self.peek() in _BINARY[level]:
            sign = self.take()[1]
            other = self.binary(level + 1)
            kind = BOOL if sign in _TRUTHS else _wider(term, other, INT)
            self.integral |= sign in _BITS and VALUE in (term.type, other.type)
            term = CTerm(sign, kind, (term, other))
        return term

    def unary(self) -> CTerm:
        sign = self.peek()
        if sign in ("-", "+", "!", "~"):
            self.take()
            term = self.unary()
            self.integral |= sign == "~" and term.type == VALUE
            kind = BOOL if sign == "!" else _wider(term, term, INT)
            return CTerm("neg" if sign == "-" else "plus" if sign == "+" else sign, kind, (term,))
        if sign == "(":
            if self.peek(1) in _CASTS and self.peek(2) == ")":
                _, (_, name), _ = self.take(), self.take(), self.take()
                return CTerm("cast", _CASTS[name], (self.unary(),))
            if [self.peek(k) for k in (1, 2, 3)] == ["long", "long", ")"]:
                del self.tokens[:4]
                return CTerm("cast", LONG, (self.unary(),))
            self.take()
            term = self.choice()
            self.take(")")
            return term
        return self.operand()

    def operand(self) -> CTerm:
        kind, text = self.take()
        if kind == "number":
            return self.number(text)
        if kind != "name":
            raise Untranslatable(f"an operand is missing before {text!r}")
        if self.peek() == "(":
            return self.call(text)
        if text in self.types:
            return CTerm("name", self.types[text], (), text)
        if text in ("true", "false"):
            return CTerm("number", BOOL, (), text == "true")
        constants = {"M_PI": np.pi, "M_E": np.e, "INFINITY": np.inf, "NAN": np.nan}
        if text in constants:
            self.floating = True
            return CTerm("number", VALUE, (), constants[text])
        raise Untranslatable(f"{text!r} is neither an input nor a name assigned before")

    def number(self, text: str) -> CTerm:
        digits = text.rstrip("fFlLuU")
        suffix = text[len(digits) :].lower()
        if "u" in suffix:
            raise Untranslatable(f"{text!r} is unsigned")
        if "." in digits or "e" in digits.lower() or "f" in suffix:
            self.floating = True
            return CTerm("number", VALUE, (), float(digits))
        if len(digits) > 1 and digits[0] == "0":
            raise Untranslatable(f"{text!r} is octal")
        value = int(digits)
        return CTerm("number", INT if value < 1 << 31 else LONG, (), value)

    def call(self, name: str) -> CTerm:
        self.take("(")
        parts = [self.choice()]
        while self.peek() == ",":
            self.take()
            parts.append(self.choice())
        self.take(")")
        if name in _CASTS and len(parts) == 1:
            return CTerm("cast", _CASTS[name], tuple(parts))
        plain = name.removeprefix("__") if name.startswith("__") else name
        plain = plain if plain in FUNCTIONS else plain.removesuffix("f")
        function = FUNCTIONS.get(plain)
        if function is None:
            raise Untranslatable(f"the function {name!r} has no counterpart in NumPy here")
        if len(parts) != function.arity:
            raise Untranslatable(f"{name} takes {function.arity} operands, not {len(parts)}")
        if plain not in _OF_INTEGERS:
            self.floating = True
        kind = function.type
        if plain in _OF_INTEGERS and all(part.type != VALUE for part in parts):
            kind = _wider(parts[0], parts[-1], INT)
        return CTerm("call", kind, tuple(parts), plain)


def _wider(a: CTerm, b: CTerm, least: str = BOOL) -> str:
    """The type that C brings two operands to."""
    return max(a.type, b.type, least, key=_RANKS.index)


# Arrays -------------------------------------------------------------------------------------------

_NUMPY: dict[str, Callable[..., Any]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "==": np.equal, "!=": np.not_equal,
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
    "&&": np.logical_and, "||": np.logical_or, "!": np.logical_not, "&": np.bitwise_and,
    "|": np.bitwise_or, "^": np.bitwise_xor, "<<": np.left_shift, ">>": np.right_shift,
    "~": np.invert, "neg": np.negative, "plus": np.positive, "%": np.fmod,
}  # fmt: skip


def on_arrays(program: ExpressionText, names: Sequence[str]) -> Callable[..., Any]:
    """The function of arrays of one dtype and shape that a text means."""

    def reference(*arrays: Any) -> Any:
        dtype = arrays[0].dtype
        compute = _computed_in(dtype)
        values = {name: array.astype(compute, copy=False) for name, array in zip(names, arrays)}
        with np.errstate(all="ignore"):
            for name, term in program.statements:
                # A variable of half type is not rounded: kernels hold it in float32.
                values[name] = _array(term, values, compute, VALUE)
            result = np.asarray(values[program.output]).astype(dtype)
        return result if result.shape == arrays[0].shape else np.full(arrays[0].shape, result)

    return reference


def _computed_in(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """float32 for half types, int32 for smaller integers, as C promotes them."""
    if dtype.kind in "iub":
        return np.dtype(np.int32) if dtype.itemsize < 4 else dtype
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def _array(term: CTerm, values: Mapping[str, Any], compute: np.dtype[Any], wanted: str) -> Any:
    """A part's value in the type that its reader brings it to."""
    kind, parts = term.type, term.parts
    # What operands are brought to: of comparisons the wider of both, of truths bool.
    common = kind if kind != BOOL else max((p.type for p in parts), key=_RANKS.index, default=BOOL)
    if term.op in ("&&", "||", "!"):
        common = BOOL
    if term.op == "number":
        result = term.value
    elif term.op == "name":
        result = values[term.value]
    elif term.op == "?":
        condition = _array(parts[0], values, compute, BOOL)
        result = np.where(condition, *(_array(p, values, compute, kind) for p in parts[1:]))
    elif term.op == "cast":
        result = _array(parts[0], values, compute, parts[0].type)
        result = _brought(result, compute if kind == VALUE else np.dtype(_INTEGERS[kind]))
    else:
        if term.op == "call" and term.type == BOOL:
            common = VALUE
        operands = [_array(part, values, compute, common) for part in parts]
        function = FUNCTIONS[term.value].numpy if term.op == "call" else _NUMPY.get(term.op)
        result = _quotient(*operands) if function is None else function(*operands)
    return _brought(result, compute if wanted == VALUE else np.dtype(_INTEGERS[wanted]))


def _quotient(a: Any, b: Any) -> Any:
    """C's division: towards zero of integers, which have no quotient by zero."""
    if a.dtype.kind == "f":
        return a / b
    safe = np.where(b == 0, 1, b)
    return np.where(b == 0, 0, np.sign(a) * np.sign(safe) * (np.abs(a) // np.abs(safe)))


def _brought(value: Any, dtype: np.dtype[Any]) -> Any:
    array = np.asarray(value)
    if array.dtype.kind == "f" and dtype.kind == "i":
        array = np.trunc(array)
    return array.astype(dtype, copy=False)


# Tensors ------------------------------------------------------------------------------------------


def on_tensors(program: ExpressionText, values: Mapping[str, Any]) -> Any:
    """The output as a Tensor, or a number, of Tensors of one floating dtype; differentiable."""
    named = dict(values)
    for name, term in program.statements:
        named[name] = _tensor(term, named)
    return named[program.output]


def _tensor(term: CTerm, values: Mapping[str, Any]) -> Any:
    op, parts = term.op, [_tensor(part, values) for part in term.parts]
    if op == "number":
        return term.value
    if op == "name":
        return values[term.value]
    if not any(isinstance(part, TensorBase) for part in parts):
        return _of_numbers(term)
    if op == "?":
        condition = parts[0] if isinstance(parts[0], TensorBase) else bool(parts[0])
        if isinstance(condition, bool):
            return parts[1] if condition else parts[2]
        return tc.where(_truth(condition), parts[1], parts[2])
    if op == "call":
        function = getattr(tc, FUNCTIONS[term.value].tensors)
        like: Any = next(part for part in parts if isinstance(part, TensorBase))
        return function(
            *(p if isinstance(p, TensorBase) else tc.full_like(like, float(p)) for p in parts)
        )
    if op == "cast":
        return parts[0] if term.type == VALUE else tc.trunc(parts[0])
    return _TENSORS[op](*parts)


def _of_numbers(term: CTerm) -> Any:
    """What operands without a Tensor give, in double."""
    value = _array(term, {}, np.dtype(np.float64), term.type)
    return value.item()


def _truth(value: Any) -> Any:
    return value if value.dtype.name == "bool" else value != 0


def _number(value: Any) -> Any:
    """A comparison's result as C has it in arithmetic."""
    is_truth = isinstance(value, TensorBase) and value.dtype.name == "bool"
    return value.float() if is_truth else value


_TENSORS: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: _number(a) + _number(b),
    "-": lambda a, b: _number(a) - _number(b),
    "*": lambda a, b: a * b,
    "/": lambda a, b: _number(a) / _number(b),
    "neg": lambda a: -_number(a),
    "plus": lambda a: a,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "&&": lambda a, b: tc.logical_and(a, b),
    "||": lambda a, b: tc.logical_or(a, b),
    "!": lambda a: tc.logical_not(a),
}


# CUDA text ----------------------------------------------------------------------------------------


def as_cuda(program: ExpressionText, names: Sequence[str], compute: str) -> str:
    """The text as an expression of ``{0} {1} ...`` in a compute type: float, double, int, ..."""
    if len(program.statements) == 1:
        fields = {name: f"{{{number}}}" for number, name in enumerate(names)}
        return _written(program.statements[0][1], fields, compute, 0)
    *first, (_, last) = program.statements
    fields = dict(zip(names, names))
    lines = []
    for number, (name, term) in enumerate(first):
        lines.append(f"const {compute} {name}_{number} = {_written(term, fields, compute, 0)};")
        fields[name] = f"{name}_{number}"
    body = " ".join([*lines, f"return {_written(last, fields, compute, 0)};"])
    return as_function(body, names, compute)


def as_function(body: str, names: Sequence[str], compute: str) -> str:
    """Statements that return a value as an expression of ``{0} {1} ...``."""
    parameters = ", ".join(f"const {compute} {name}" for name in names)
    values = ", ".join(f"{{{number}}}" for number in range(len(names)))
    return f"[]({parameters}) -> {compute} {{{{ {body} }}}}({values})"


def _written(term: CTerm, names: Mapping[str, str], compute: str, level: int) -> str:
    """A part as text, in parentheses where it binds less than `level`."""
    if term.op == "number":
        return _literal(term.value, term.type, compute)
    if term.op == "name":
        return names[term.value]
    if term.op == "call":
        return _called(term, names, compute)
    if term.op == "?":
        condition, first, other = (_written(part, names, compute, 1) for part in term.parts)
        text = f"{condition} ? {first} : {other}"
        return f"({text})" if level else text
    top = len(_BINARY) + 1
    if term.op == "cast":
        ctype = compute if term.type == VALUE else {LONG: "long long"}.get(term.type, term.type)
        return f"({ctype}){_written(term.parts[0], names, compute, top)}"
    if len(term.parts) == 1:
        sign = {"neg": "-", "plus": "+"}.get(term.op, term.op)
        text = f"{sign}{_written(term.parts[0], names, compute, top)}"
        return f"({text})" if level >= top else text
    own = next(k for k, signs in enumerate(_BINARY) if term.op in signs) + 1
    left, right = term.parts
    text = f"{_written(left, names, compute, own)} {term.op} "
    text += _written(right, names, compute, own + 1)
    return f"({text})" if level > own else text


def _called(term: CTerm, names: Mapping[str, str], compute: str) -> str:
    cuda = FUNCTIONS[term.value].cuda
    if cuda.startswith("*"):
        # A blank before the parenthesis: the generator renames what it knows by other rules.
        plain = {"float": f"{cuda[1:]}f", "double": cuda[1:]}.get(compute, cuda[2:])
        cuda = f"{plain} "
    parts = []
    for part in term.parts:
        text = _written(part, names, compute, 0)
        whole = term.type in (INT, LONG) or part.type == VALUE
        parts.append(text if whole else f"({compute})({text})")
    return f"{cuda}({', '.join(parts)})"


def _literal(value: Any, kind: str, compute: str) -> str:
    if kind == BOOL:
        return "true" if value else "false"
    if kind in (INT, LONG):
        return f"{value}LL" if kind == LONG else str(value)
    if value != value or value in (np.inf, -np.inf):
        return f"({compute})({'NAN' if value != value else 'INFINITY'})"
    return f"{value!r}f" if compute == "float" else repr(value)
