"""Special values through every function that torch has samples of, values and gradients.

A seed is one function in one dtype; contiguous seeds go through all functions in float32, then in
the next dtype. A step takes one of torch's sample calls and fills its tensors with one pattern of
special values: nan, infinities, both zeros, subnormals, extremes, the limits of integers. Functions
of one or two elementwise operands also meet every pair of values, 0-d tensors and empty ones.
"""

from __future__ import annotations

import itertools
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch.testing._internal import common_methods_invocations as collection
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

import tinygrad_cuda as tc

Array = np.ndarray[Any, Any]
Step = tuple[Any, ...]

DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int64", "uint8", "bool", "int32", "int8", "int16",
)  # fmt: skip
FLOATS = DTYPES[:4]
PARTS = {"complex64": "float32", "complex128": "float64"}
OPMATH = dict.fromkeys(FLOATS, torch.float32) | {"float64": torch.float64}
NAN, INF = float("nan"), float("inf")
PATTERNS = ("some_nan", "some_inf", "mixed", "tiny", "extreme", "zeros", "plain")
INTEGER_PATTERNS = ("limits", "plain")
SAMPLES, LARGEST = 3, 300
LONG = {"cpu": 4_600, "emu": 4_600, "cuda": 4_600}  # every function and dtype
# Functions that meet torch's own samples alone. LAPACK's answer to nan, infinities and nearly
# singular matrices is one of many, or none; torch's grid_sample reads out of bounds for nan.
TAME = (
    "linalg.", "cholesky", "geqrf", "lu", "matrix_exp", "norm.nuc", "ormqr", "pinverse", "qr",
    "svd", "logdet", "triangular_solve", "multinomial", "nn.functional.grid_sample",
)  # fmt: skip
NOT_TAME = tuple(
    f"linalg.{name}"
    for name in ("cross", "diagonal", "vecdot", "vector_norm", "multi_dot", "vander")
)

# What cannot be compared, with the reason. All else that both libraries have is compared.
LEFT_OUT: dict[str, str] = {
    "svd_lowrank": "torch's samples are the factors of a matrix that is not handed over",
    "pca_lowrank": "torch's samples are the factors of a matrix that is not handed over",
    "linalg.eigh": "eigenvectors have any sign; eigvalsh compares the values",
    "as_strided.partial_views": "it shows memory beyond the view, which is not handed over",
    "polar gradient": "torch's has the wrong sign below zero, where the size has another direction",
    "as_strided_scatter gradient": "torch's is 1 for an element that src replaces",
}
# Of these only the dtypes and shapes are compared: torch draws other numbers, or leaves memory as
# it was.
UNSPECIFIED = (
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal",
    "uniform", "randn", "randn_like", "rand_like", "randint", "randint_like",
    "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout", "nn.functional.rrelu",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d", "empty",
    "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_",
    "resize_as_",
)  # fmt: skip
TORCHS_NAMES: dict[str, Callable[..., Any]] = {
    "where": lambda x, condition, y: tc.where(condition, x, y),
    "linalg.pinv.singular": lambda a, b: tc.linalg.pinv(a @ b.mT),
    "linalg.lstsq.grad_oriented": lambda a, b, **more: tc.linalg.lstsq(a, b, **more)[:2],
    "normal.in_place": lambda x, *more: x.clone().normal_(*more),
    "polygamma": lambda x, n: tc.polygamma(n, x),
    "special.polygamma": lambda x, n: tc.special.polygamma(n, x),
    "zero_": lambda x: x.clone().zero_(),
    "T": lambda x: x.T,
    "H": lambda x: x.H,
    "mT": lambda x: x.mT,
    "mH": lambda x: x.mH,
    "nn.functional.embedding": lambda w, i, **more: tc.nn.functional.embedding(i, w, **more),
    "nn.functional.embedding_bag": lambda w, i, **more: tc.nn.functional.embedding_bag(
        i, w, **more
    ),
}


# Programs -----------------------------------------------------------------------------------------


def full_name(op: Any) -> str:
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


@cache
def catalogue() -> dict[str, Any]:
    """Functions that both libraries have, by torch's names."""
    ops = [op for op in collection.op_db if not {op.name, full_name(op)} & LEFT_OUT.keys()]
    return {full_name(op): op for op in ops if function_of(full_name(op), op) is not None}


def function_of(name: str, op: Any) -> Callable[..., Any] | None:
    """The function, or else the method, of this name here."""
    for known in (name, op.name):
        if known in TORCHS_NAMES:
            return TORCHS_NAMES[known]
    found: Any = tc
    for part in op.name.split("."):
        found = getattr(found, part, None) if found is not None else None
    if found is None or isinstance(found, tc.dtype):
        found = getattr(tc.Tensor, op.name, None) or getattr(tc.Tensor, f"{op.name}_", None)
    return found


@cache
def pairs() -> tuple[tuple[str, str], ...]:
    """Every function with each of its dtypes; all of float32 first."""
    return tuple(
        (name, dtype)
        for dtype in DTYPES
        for name, op in catalogue().items()
        if getattr(torch, dtype) in op.dtypes
    )


def generate(seed: int) -> list[Step]:
    """Steps (function, dtype, sample, pattern, seed of the pattern); a grid has sample -1."""
    name, dtype = pairs()[seed % len(pairs())]
    turn = seed // len(pairs())
    patterns = PATTERNS if dtype in FLOATS else INTEGER_PATTERNS
    if name.startswith(TAME) and not name.startswith(NOT_TAME):
        patterns = ("plain",)
    elementwise = is_elementwise(catalogue()[name])
    numbers = ([-1, -2, -3] if elementwise else []) + list(range(SAMPLES))
    steps = [(name, dtype, n, p, turn) for n in numbers if n >= 0 for p in patterns]
    return [(name, dtype, n, "grid", turn) for n in numbers if n < 0] + steps


def is_elementwise(op: Any) -> bool:
    return isinstance(op, UnaryUfuncInfo | BinaryUfuncInfo)


def show(program: list[Step]) -> str:
    """The steps, with the arguments that torch and this package meet."""
    texts = []
    for step in program:
        arguments = next(calls(step), None)
        texts.append(f"{step}: {arguments}")
    return "\n".join(texts)


# Values -------------------------------------------------------------------------------------------


def special_values(dtype: str, name: str = "") -> list[float]:
    """nan, infinities, both zeros, subnormals, extremes and ordinary numbers of a dtype."""
    if dtype == "bool":
        return [0, 1]
    if dtype not in FLOATS:
        limits = torch.iinfo(getattr(torch, dtype))
        below = [-1, -2] if limits.min < 0 else []
        if "polynomial" in name:
            return [0, 1, 2, 3, 7, 100, *below]  # degrees, up to which recurrences go
        # torch's lcm ends the process at the lowest integer.
        lowest = limits.min + (name == "lcm" and limits.min < 0)
        return [0, 1, 2, 3, 7, limits.max, limits.max - 1, lowest, *below]
    info = torch.finfo(getattr(torch, dtype))
    smallest = info.smallest_normal * info.eps  # subnormal
    positive = [0.0, smallest, info.smallest_normal / 2, info.smallest_normal, info.eps, 0.5, 1.0]
    positive += [3.0, 6.0, 20.0, 100.0, info.max / 2, info.max, INF]
    return [NAN, *positive, *(-value for value in positive)]


def pattern_values(
    pattern: str, dtype: str, size: int, op: Any, rng: np.random.Generator
) -> Array | None:
    """A whole tensor's values, or None where the sample's own stay.

    Functions that add and multiply elements meet no value whose square over- or underflows: what
    remains of it would depend on their order.
    """
    values = np.array(special_values(dtype, op.name), object)
    if not is_elementwise(op) and dtype in FLOATS:
        info = torch.finfo(getattr(torch, dtype))
        low, high = info.smallest_normal**0.3, info.max**0.3
        if op.name.endswith("attention") or op.name.endswith("attention_forward"):
            # Exponentials of products, whose last place must be below 1.
            high = min(high, (0.01 / torch.finfo(OPMATH[dtype]).eps) ** 0.5)
        kept = [v for v in values if not 0 < abs(v) < low and not high < abs(v) < INF]
        values = np.array([*kept, low, -low, high, -high], object)
    if pattern in ("mixed", "limits", "grid"):
        chosen = values
    elif pattern == "zeros":
        chosen = np.array([0.0, -0.0, 1.0, 1.0, -1.0], object)
    elif pattern == "tiny":
        chosen = np.array([v for v in values if abs(v) < 1e-4], object)
    elif pattern == "extreme":
        chosen = np.array([v for v in values if np.isfinite(v) and abs(v) >= 1.0], object)
    else:
        return None
    return rng.choice(chosen, size)


def filled(tensor: Any, pattern: str, op: Any, rng: np.random.Generator) -> Any:
    """torch's tensor with its values replaced; indices and masks stay."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    floating = dtype in FLOATS
    if not floating and pattern not in ("limits", "grid"):
        return tensor
    shape, size = tuple(tensor.shape), tensor.numel()
    values = pattern_values(pattern, dtype, size, op, rng)
    if values is not None:
        new = torch.tensor(values.tolist(), dtype=tensor.dtype).reshape(shape)
    else:
        new = tensor.detach().clone()
        if pattern in ("some_nan", "some_inf") and size:
            places = rng.random(shape) < max(0.1, 1 / size)
            special = NAN if pattern == "some_nan" else INF
            new = torch.where(torch.from_numpy(np.asarray(places)), special, new)
        new = new.to(tensor.dtype)
    return new.requires_grad_(tensor.requires_grad) if floating else new


def grid(op: Any, dtype: str, number: int) -> Iterator[Any]:
    """Every (pair of) special value, 0-d operands, or empty ones."""
    values = special_values(dtype, op.name)
    if dtype in FLOATS and "polynomial" not in op.name:
        # Ties of rounding, and where exp(-x) is subnormal.
        edge = float(np.log(4 / torch.finfo(getattr(torch, dtype)).smallest_normal))
        values += [1.5, -1.5, 2.5, -2.5, edge, -edge]
    two = isinstance(op, BinaryUfuncInfo)
    columns = list(zip(*itertools.product(values, values))) if two else [values]
    kind, gradual = getattr(torch, dtype), dtype in FLOATS and op.supports_autograd
    if number == -2:
        columns = [column[-1:] for column in columns]
    elif number == -3:
        columns = [[] for _ in columns]
    shape = {-1: (-1,), -2: (), -3: (0, 3)}[number]
    tensors = [torch.tensor(list(c), dtype=kind).reshape(shape) for c in columns]
    seed_all(0)
    more = {} if two else op.sample_kwargs("cpu", kind, tensors[0])[0]
    yield tuple(tensor.requires_grad_(gradual) for tensor in tensors), more


def seed_all(turn: int) -> None:
    """torch's samples draw from its own generator, NumPy's and Python's."""
    torch.manual_seed(turn)
    np.random.seed(turn)  # noqa: NPY002
    random.seed(turn)


def calls(step: Step) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """torch's arguments of a step; none where the function has no such sample."""
    name, dtype, number, pattern, turn = step
    op = catalogue()[name]
    if number < 0:
        yield from grid(op, dtype, number)
        return
    seed_all(turn)
    kind = getattr(torch, dtype)
    found = op.sample_inputs_func(op, "cpu", kind, op.supports_autograd and dtype in FLOATS)
    small = (s for s in found if not isinstance(s.input, torch.Tensor) or s.input.numel() < LARGEST)
    sample = next(itertools.islice(small, number, None), None)
    if sample is None:
        return
    # Integers are indices in most functions; limits are for those that compute with them.
    elementwise = is_elementwise(op)
    rng = np.random.default_rng([turn, number, len(pattern)])

    def replaced(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            filling = pattern if elementwise or dtype in FLOATS else "plain"
            return filled(value, filling, op, rng)
        if isinstance(value, list | tuple) and type(value) in (list, tuple):
            return type(value)(replaced(part) for part in value)
        return value

    options = {key: replaced(value) for key, value in sample.kwargs.items()}
    given = [*replaced((sample.input, *sample.args))]
    if "dropout_p" in options:
        options["dropout_p"] = 0.0
    if name == "nn.functional.multi_head_attention_forward":
        given[10] = 0.0  # dropout_p
    yield tuple(given), options


# Running ------------------------------------------------------------------------------------------


class Run:
    """What a call gives: the dtypes, values and gradients, or an error."""

    def __init__(
        self, results: list[Any], gradients: list[Any], error: tuple[type[Exception], str] | None
    ) -> None:
        self.values, self.gradients, self.error = results, gradients, error


def tensors_in(value: Any, kind: Any) -> list[Any]:
    if isinstance(value, kind):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in tensors_in(part, kind)]
    return []


def handed_over(value: Any, device: str, known: dict[int, Any]) -> Any:
    """torch's arguments as ours."""
    if isinstance(value, torch.Tensor):
        if id(value) not in known:
            array = value.detach().contiguous()
            wide = array.double() if value.dtype in (torch.float16, torch.bfloat16) else array
            name = str(value.dtype).removeprefix("torch.")
            ours = tc.tensor(wide.numpy(), dtype=getattr(tc, name), device=device)
            known[id(value)] = ours.requires_grad_(value.requires_grad)
        return known[id(value)]
    if isinstance(value, torch.dtype):
        return getattr(tc, str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return device
    if isinstance(value, torch.nn.Module):
        return getattr(tc.nn, type(value).__name__)()
    if isinstance(value, dict):
        extra = (torch.layout, torch.memory_format)
        return {
            k: handed_over(v, device, known) for k, v in value.items() if not isinstance(v, extra)
        }
    if isinstance(value, list | tuple):
        return type(value)(handed_over(part, device, known) for part in value)
    return value


def run(library: Any, function: Callable[..., Any], args: Any, options: Any) -> Run:
    """The call and the gradients of a weighted sum of its results."""
    return looked_at(recorded(library, function, args, options))


def recorded(library: Any, function: Callable[..., Any], args: Any, options: Any) -> Run:
    """The same as Tensors: this package has not computed them."""
    inputs = [t for t in tensors_in((args, options), library.Tensor) if t.requires_grad]
    try:
        given = function(*args, **options)
        if isinstance(given, bool | int | float):
            kind = "float64" if isinstance(given, float) else type(given).__name__
            return Run([(kind, np.array(given))], [], None)
        results = tensors_in(given, library.Tensor)
        outputs = [r for r in results if r.requires_grad and r.numel()]
        gradients: list[Any] = []
        if outputs and inputs:
            cotangents = [_cotangent(library, output) for output in outputs]
            gradients = list(library.autograd.grad(outputs, inputs, cotangents, allow_unused=True))
        return Run(results, gradients, None)
    except Exception as error:
        # Without its traceback, whose tensors would raise again in the next step.
        return Run([], [], (type(error), str(error)))


def looked_at(run: Run) -> Run:
    try:
        return Run([_array(r) for r in run.values], [_array(g) for g in run.gradients], run.error)
    except Exception as error:
        return Run([], [], (type(error), str(error)))


def run_together(calls: list[tuple[Step, Any, Any]], device: str) -> list[Run]:
    """Every call here, all of them in one plan: a kernel's compiler begins once.

    An error of one is an error of the plan: then each call has its own.
    """

    def record(step: Step, args: Any, options: Any) -> Run:
        function = function_of(step[0], catalogue()[step[0]])
        assert function is not None
        known: dict[int, Any] = {}
        ours = handed_over(args, device, known), handed_over(options, device, known)
        return recorded(tc, function, *ours)

    waiting = [record(*call) for call in calls]
    runs = [looked_at(run) for run in waiting]
    if all(run.error is None or run.error == one.error for run, one in zip(runs, waiting)):
        return runs
    del waiting
    return [looked_at(record(*call)) for call in calls]


def _cotangent(library: Any, output: Any) -> Any:
    weights = np.resize([1.0, -0.5, 0.25, -1.0, 0.75], tuple(output.shape))
    kind = getattr(library, str(output.dtype).split(".")[-1])
    made = library.tensor(weights.tolist(), dtype=kind)
    return made.reshape(tuple(output.shape)).to(output.device)


def _array(found: Any) -> tuple[str, Array] | None:
    """A Tensor's dtype and values; on the host already, where a kernel need not widen them.

    Complex values are pairs of real ones.
    """
    if found is None or isinstance(found, tuple):
        return found
    name = str(found.dtype).split(".")[-1]
    tensor = found.detach().cpu()
    if tensor.is_complex():
        pairs = np.array(tensor.resolve_conj().numpy())
        return name, np.stack((pairs.real, pairs.imag), -1).astype(np.float64)
    wide = tensor.double() if name in FLOATS else tensor
    return name, np.array(wide.numpy())


# Comparison ---------------------------------------------------------------------------------------

TOLERANCE = {"float64": 1e-9, "float32": 3e-5, "bfloat16": 3e-2, "float16": 4e-3}
# Layers that are elementwise, though torch's samples do not say so.
POINTWISE = tuple(
    f"nn.functional.{name}"
    for name in (
        "relu6", "hardtanh", "hardshrink", "softshrink", "elu", "selu", "celu", "threshold",
        "prelu", "hardswish", "hardsigmoid", "leaky_relu", "silu", "mish", "relu", "softplus",
        "logsigmoid", "softsign", "tanhshrink", "gelu",
    )
) + ("clamp", "where", "copysign", "logit")  # fmt: skip
SLOPES_AT_NAN = (
    "nn.functional.hardswish", "nn.functional.softshrink", "nn.functional.hardshrink",
    "nn.functional.hardtanh", "nn.functional.relu6", "nn.functional.elu", "nn.functional.celu",
    "nn.functional.selu", "logit",
)  # fmt: skip
# Functions of which torch has some seven digits in float64 too.
SEVEN_DIGITS = (
    "nn.functional.hardsigmoid", *(f"special.bessel_{n}" for n in ("j0", "j1", "y0", "y1")),
    *(f"special.shifted_chebyshev_polynomial_{n}" for n in "tuvw"),
)  # fmt: skip
# torch's 1 + erf and 1 - lower have no digits left of small results, nor has a root of a sum.
ABSOLUTE = (
    "special.ndtr", "igammac", "special.gammaincc",
    *(f"special.bessel_{n}" for n in ("j0", "j1", "y0", "y1")),
    *(f"special.{s}chebyshev_polynomial_{n}" for s in ("", "shifted_") for n in "tuvw"),
)  # fmt: skip
# So has 1 + tanh, of which GELU's approximation has none here; in narrow dtypes float64 agrees.
ABSOLUTE_IN_FLOAT64 = ("nn.functional.gelu",)
K_OF_BESSEL = tuple(f"special.{s}modified_bessel_k{n}" for s in ("", "scaled_") for n in (0, 1))
# Their sums are taken apart in another order by each library.
TRANSFORMS = tuple(
    f"fft.{name}{rank}" for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    for rank in ("", "2", "n")
) + ("stft", "istft")  # fmt: skip
# torch has no such kernel, or refuses what is defined: nothing to compare with.
CLEAR = (tc.TgcError, TypeError, ValueError, IndexError, NotImplementedError, ZeroDivisionError)


def agree(ours: Array, theirs: Array, name: str, scale: float) -> Array:
    """Where two arrays are equal up to rounding; nan equals nan."""
    if name not in FLOATS:
        return np.asarray(ours == theirs)
    rtol = TOLERANCE[name]
    info = torch.finfo(getattr(torch, name))
    with np.errstate(all="ignore"):
        # Subnormal numbers of a single value are compared too, to the last two digits.
        least = info.smallest_normal * (1.0 if scale else 2 * info.eps)
        near = np.abs(ours - theirs) <= rtol * np.abs(theirs) + rtol * scale + least
        # One rounding away from overflow.
        edge = np.isinf(ours) & (np.abs(theirs) >= info.max * (1 - 4 * rtol)) & (ours * theirs > 0)
        edge |= np.isinf(theirs) & (np.abs(ours) >= info.max * (1 - 4 * rtol)) & (ours * theirs > 0)
    return np.asarray(near | edge | (ours == theirs) | (np.isnan(ours) & np.isnan(theirs)))


def check(program: list[Step], device: str) -> str | None:
    """The first difference that no rule accepts; else a rule that accepted one."""
    met: str | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        called = [(step, *call) for step in program for call in calls(step)]
        for ours, (step, args, options) in zip(run_together(called, device), called):
            difference = compare(ours, step, args, options)
            if difference and not difference.startswith("accepted"):
                return difference
            met = met or difference
    return met


def compare(ours: Run, step: Step, args: Any, options: Any) -> str | None:
    name = step[0]
    op = catalogue()[name]
    theirs = run(torch, op.op, args, options)
    if ours.error is not None and not issubclass(ours.error[0], CLEAR):
        return f"raw {name}: {step}: {ours.error[0].__name__}: {ours.error[1]}"
    if theirs.error is not None:
        return None
    if ours.error is not None:
        if issubclass(ours.error[0], tc.DTypeError):
            return None  # a dtype that this package refuses in its own words
        return f"refused {name}: {step}: {ours.error[1]}"
    if len(ours.values) != len(theirs.values):
        return f"count {name}: {step}: {len(ours.values)} results, torch {len(theirs.values)}"
    meeting = Meeting(op, step, args, options)
    difference = None
    for kind in ("value", "gradient"):
        pairs_of_kind = zip(getattr(ours, f"{kind}s"), getattr(theirs, f"{kind}s"))
        for place, (a, b) in enumerate(pairs_of_kind):
            if f"{op.name} {kind}" in LEFT_OUT:
                continue
            if a is None or b is None:
                if any(x[1].any() for x in (a, b) if x is not None):
                    return f"none {name}: {step}: place {place}: ours {a}, torch {b}"
                difference = difference if a is b else "accepted: gradient_of_zeros"
                continue
            if op.name in UNSPECIFIED and a[0] == b[0] and a[1].shape == b[1].shape:
                continue
            if a[0] != b[0] or a[1].shape != b[1].shape:
                return f"kind {name}: {step}: {a[0]} {a[1].shape}, torch {b[0]} {b[1].shape}"
            real = PARTS.get(a[0], a[0])
            wrong, rule = meeting.judge(kind, place, real, a[1], b[1])
            if wrong.any():
                where = np.flatnonzero(wrong.ravel())[:4]
                shown = [(a[1].ravel()[k].item(), b[1].ravel()[k].item()) for k in where]
                return f"{kind} {name}: {step}: place {place}, elements {where.tolist()}: {shown}"
            difference = (rule and f"accepted: {rule}") or difference
    return difference


class Case(NamedTuple):
    """Functions whose results fall under a rule, and where: for some arguments or results alone."""

    rule: str
    names: tuple[str, ...]
    kind: str  # value, gradient or both
    where: Callable[[Meeting, Array, Array], Any]


def _torch_alone_is_nan(meeting: Meeting, ours: Array, theirs: Array) -> Array:
    return np.asarray(np.isnan(theirs) & ~np.isnan(ours))


def _not_finite(meeting: Meeting, ours: Array, theirs: Array) -> Array:
    if not meeting.some(lambda array: ~np.isfinite(array)):
        return np.zeros(ours.shape, bool)
    return np.asarray(~np.isfinite(ours) | ~np.isfinite(theirs))


def _sums_overflow(meeting: Meeting, ours: Array, theirs: Array) -> Array:
    """Where an operand that is broadcast has no finite gradient in both."""
    broadcast = len({array.shape for array in meeting.inputs}) > 1
    return np.asarray(broadcast & ~np.isfinite(ours) & ~np.isfinite(theirs))


def _at_nan(meeting: Meeting, ours: Array, theirs: Array) -> Array:
    return np.isnan(meeting.beside(0, ours.shape))


def _with_nan(meeting: Meeting, ours: Array, theirs: Array) -> bool:
    return meeting.some(np.isnan)


def _with_zero_or_infinity(meeting: Meeting, ours: Array, theirs: Array) -> Array:
    special = meeting.some(lambda array: (array == 0) | ~np.isfinite(array))
    return np.asarray((np.isnan(ours) | np.isnan(theirs)) & special)


def _with_equals(meeting: Meeting, ours: Array, theirs: Array) -> bool:
    """Whether an element is there twice; all nan are equal here."""
    together = np.concatenate([array.ravel() for array in meeting.inputs])
    return bool(np.unique(together).size < together.size)


def _at_poles(meeting: Meeting, ours: Array, theirs: Array) -> Array:
    """Whole numbers up to 0, infinities, and far left, where torch's sine has no digits."""
    x = meeting.beside(0, ours.shape)
    with np.errstate(invalid="ignore"):
        return np.asarray((x <= 0) & (x == np.floor(x)) | np.isinf(x) | (x < -1000))


def _far_away(meeting: Meeting, ours: Array, theirs: Array) -> Array:
    """Where the limit is reached in every dtype."""
    far = [np.abs(meeting.beside(place, ours.shape)) > 1e4 for place in (0, 1)]
    return np.asarray(far[0] | far[1])


def _at_the_ends_of_float64(meeting: Meeting, ours: Array, theirs: Array) -> Array:
    """Where torch's gamma functions have no digits: a subnormal a or x, and a > 1e300."""
    first = meeting.beside(0, ours.shape)
    return np.asarray((first > 0) & (first < np.finfo(np.float64).tiny) | (first > 1e300))


def _product_overflows(meeting: Meeting, ours: Array, theirs: Array) -> Array:
    limits = torch.iinfo(getattr(torch, meeting.step[1]))
    product = meeting.beside(0, ours.shape) * meeting.beside(1, ours.shape)
    return np.asarray(np.abs(product) > limits.max)


def _at_the_end(meeting: Meeting, ours: Array, theirs: Array) -> Array:
    """The lowest and highest integer."""
    if meeting.step[1] in (*FLOATS, "bool"):
        return np.zeros(ours.shape, bool)
    limits = torch.iinfo(getattr(torch, meeting.step[1]))
    ends = (float(limits.min), float(limits.max))
    found = np.isin(meeting.beside(0, ours.shape), ends)
    if meeting.op.name == "ldexp":  # torch's 2 ** 255 is infinite, times 0 nan
        return np.isnan(theirs)
    return np.asarray(found | np.isin(meeting.beside(1, ours.shape), ends))


def _quotient_overflows(meeting: Meeting, ours: Array, theirs: Array) -> Array:
    """torch subtracts a multiple of the divisor that has no exact number."""
    a, b = meeting.beside(0, ours.shape), meeting.beside(1, ours.shape)
    if meeting.step[1] not in FLOATS:
        return np.zeros(ours.shape, bool)
    if meeting.op.name == "__rmod__":
        a, b = b, a
    info = torch.finfo(getattr(torch, meeting.step[1]))
    with np.errstate(all="ignore"):
        return np.asarray(np.abs(a / b) > 1 / info.eps)


CASES = (
    # torch's kernels give 0, 1 or nan by the place in a vector register (see the test beside).
    Case("slope_at_nan", SLOPES_AT_NAN, "gradient", _at_nan),
    Case(
        "slope_without_nan",
        (
            "logaddexp", "logcumsumexp", "xlogy", "special.xlog1py", "norm", "dist", "nanmean",
            "nn.functional.kl_div", "nn.functional.poisson_nll_loss", "nn.functional.layer_norm",
            "nn.functional.soft_margin_loss", "nn.functional.multilabel_soft_margin_loss",
            "nn.functional.linear_cross_entropy", "nn.functional.margin_ranking_loss",
            "nn.functional.scaled_dot_product_attention", "linalg.vector_norm",
            "nn.functional.pdist", "special.log_ndtr",
        ),
        "gradient", _torch_alone_is_nan,
    ),
    Case(
        "nan_is_the_extreme",
        (
            "amax", "amin", "aminmax", "index_reduce", "scatter_reduce",
            *(f"nn.functional.{a}max_pool{n}d" for a in ("", "adaptive_") for n in (1, 2, 3)),
        ),
        "both", _with_nan,
    ),
    Case(
        "order_of_terms",
        (
            *(f"nn.functional.conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3)),
            *(f"nn.functional.{kind}_norm" for kind in ("batch", "group", "instance")),
            "var_mean", "std_mean", "nn.functional.multilabel_soft_margin_loss",
            "nn.functional.scaled_dot_product_attention",
        ),
        "both", _not_finite,
    ),
    Case(
        "order_of_terms", ("ldexp",), "gradient",
        lambda meeting, ours, theirs: ~np.isfinite(ours) | ~np.isfinite(theirs),
    ),
    # A partial sum of slopes overflows, or one of them has in a half type.
    Case("order_of_terms", ("div", "true_divide"), "gradient", _sums_overflow),
    Case("order_of_terms", TRANSFORMS, "both", _not_finite),
    Case(
        "float64_agrees", SEVEN_DIGITS, "both",
        lambda meeting, ours, theirs: agree(ours, theirs, "float32", 1.0),
    ),
    Case(
        "exact_products",
        ("cumprod", "prod", "index_reduce", "scatter_reduce", "linalg.vander"),
        "gradient", _with_zero_or_infinity,
    ),
    Case(
        "which_of_equals",
        ("mode", "kthvalue", "median", "nanmedian", "topk", "index_reduce", "scatter_reduce"),
        "both", _with_equals,
    ),
    Case("limits", ("polygamma", "special.polygamma", "digamma"), "both", _at_poles),
    Case("limits", ("special.zeta", "nn.functional.hardswish"), "value", _far_away),
    Case("limits", ("fmod", "remainder", "__rmod__"), "value", _quotient_overflows),
    Case("limits", ("igamma", "igammac", *K_OF_BESSEL), "value", _at_the_ends_of_float64),
    # The size of the lowest integer is no integer, nor is one more than the highest.
    Case("limits", ("gcd", "nn.functional.softsign", "ldexp"), "value", _at_the_end),
    Case("limits", ("lcm",), "value", _product_overflows),
    # torch's softmin of uint8 negates before it becomes a float: -1 is 255.
    Case(
        "limits", ("nn.functional.softmin",), "value",
        lambda meeting, ours, theirs: meeting.step[1] == "uint8",
    ),
)  # fmt: skip


class Meeting:
    """One call of both libraries: what is equal, and which rule accepts what is not."""

    def __init__(self, op: Any, step: Step, args: Any, options: Any) -> None:
        self.op, self.step, self.args, self.options = op, step, args, options
        self.inputs = [
            t.detach().double().numpy() for t in tensors_in((args, options), torch.Tensor)
        ]
        self.elementwise = is_elementwise(op) or op.name in POINTWISE
        self.wide: Run | None = None

    def judge(
        self, kind: str, place: int, dtype: str, ours: Array, theirs: Array
    ) -> tuple[Array, str | None]:
        """Where the arrays differ against every rule, and a rule that accepted something."""
        finite = [x[np.isfinite(x)].ravel() for x in (*self.inputs, theirs)]
        scale = 0.0
        if not self.elementwise or kind == "gradient":
            scale = float(np.abs(np.concatenate([*finite, [0.0]])).max())
        if kind == "gradient":
            scale = max(scale, 1.0)
        if self.op.name in ABSOLUTE or (dtype == "float64" and self.op.name in ABSOLUTE_IN_FLOAT64):
            scale = 1.0
        wrong = ~agree(ours, theirs, dtype, scale)
        used: str | None = None
        for rule, holds in self.rules(kind, place, ours, theirs, scale):
            if wrong.any() and (wrong & holds).any():
                wrong, used = wrong & ~holds, rule
        return wrong, used

    def rules(
        self, kind: str, place: int, ours: Array, theirs: Array, scale: float
    ) -> Iterator[tuple[str, Array]]:
        """Rules of `accepted.py` with the elements that they hold for."""
        floating = ours.dtype.kind == "f"
        if self.step[1] in FLOATS and self.step[1] != "float64" and floating:
            reference = self.reference(kind, place)
            if reference is not None and reference.shape == ours.shape:
                with np.errstate(all="ignore"):
                    nearer = np.abs(ours - reference) <= np.abs(theirs - reference)
                yield "float64_agrees", nearer | agree(ours, reference, self.step[1], scale)
        for case in CASES:
            if self.op.name in case.names and case.kind in (kind, "both"):
                met = case.where(self, ours, theirs)
                yield case.rule, np.broadcast_to(met, ours.shape)

    def beside(self, place: int, shape: tuple[int, ...]) -> Array:
        """An input's values where a result of this shape depends on them; nan if it has none."""
        try:
            return np.broadcast_to(self.inputs[place], shape)
        except (IndexError, ValueError):
            return np.full(shape, NAN)

    def some(self, test: Callable[[Array], Array]) -> bool:
        return any(test(array).any() for array in self.inputs)

    def reference(self, kind: str, place: int) -> Array | None:
        """torch's result in float64."""
        if self.wide is None:
            options = {key: widened(value) for key, value in self.options.items()}
            self.wide = run(torch, self.op.op, widened(self.args), options)
        found = getattr(self.wide, f"{kind}s")
        return found[place][1] if place < len(found) and found[place] else None


def widened(value: Any) -> Any:
    """torch's arguments in float64."""
    if isinstance(value, torch.Tensor):
        if not value.dtype.is_floating_point:
            return value
        return value.detach().double().requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):
        return type(value)(widened(part) for part in value)
    return torch.float64 if isinstance(value, torch.dtype) else value
