"""Special values through every function that torch has samples of, values and gradients.

A seed is one function in one dtype; contiguous seeds go through all functions in float32, then in
the next dtype. A step takes one of torch's sample calls and fills its tensors with one pattern of
special values: nan, infinities, both zeros, subnormals, extremes, the limits of integers. Functions
of one or two elementwise operands also meet every pair of values, 0-d tensors and empty ones.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

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
NAN, INF = float("nan"), float("inf")
PATTERNS = ("some_nan", "some_inf", "mixed", "tiny", "extreme", "zeros", "plain")
INTEGER_PATTERNS = ("limits", "plain")
SAMPLES, LARGEST = 3, 300

# Other libraries' results, random numbers, unspecified values, strides of memory that samples do
# not hand over, and what this package does not have; each is compared elsewhere or documented.
LEFT_OUT = (
    "masked.", "fft.", "signal.", "sparse.", "jiterator", "_", "torch.", "native_", "complex",
    "view_as_", "polar", "imag", "to_sparse", "cdouble", "cfloat", "chalf", "stft", "istft",
    "hash_tensor", "max_pool2d_with", "grid_sampler", "constant_pad_nd", "bmm.triton", "linalg.",
    "cholesky", "svd", "lu", "qr", "geqrf", "ormqr", "pinverse", "triangular_solve", "symeig",
    "logdet", "matrix_exp", "slogdet", "lobpcg", "as_strided", "empty", "new_empty", "rand",
    "normal", "cauchy", "exponential", "geometric", "log_normal", "uniform", "multinomial",
    "bernoulli", "pca_lowrank", "nn.functional.dropout", "nn.functional.alpha_dropout",
    "nn.functional.feature_alpha", "nn.functional.rrelu", "nn.functional.fractional", "item",
    "nn.functional.triplet_margin_with",
    "nn.functional.multi_head", "nn.functional.scaled_dot_product", "equal", "allclose", "argwhere",
    "slice", "special.airy_ai", "uniform", "to", "tensordot", "einsum", "cov", "corrcoef", "zero_",
    "nn.functional.grid_sample", "nn.functional.interpolate", "nn.functional.upsample", "unique",
    "special.bessel", "nn.functional.ctc", "quantile", "nanquantile", "histogram", "histc",
    "nn.functional.gaussian", "item", "resize", "special.hermite", "special.laguerre",
    "special.legendre", "special.chebyshev", "special.shifted",
    "lcm",  # torch's ends the process at the lowest integer
)  # fmt: skip
TORCHS_NAMES: dict[str, Callable[..., Any]] = {
    "where": lambda x, condition, y: tc.where(condition, x, y),
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
    ops = [op for op in collection.op_db if not op.name.startswith(LEFT_OUT)]
    return {full_name(op): op for op in ops if function_of(full_name(op), op) is not None}


def function_of(name: str, op: Any) -> Callable[..., Any] | None:
    """The function, or else the method, of this name here."""
    if name in TORCHS_NAMES:
        return TORCHS_NAMES[name]
    found: Any = tc
    for part in op.name.split("."):
        found = getattr(found, part, None) if found is not None else None
    if found is None or isinstance(found, tc.dtype):
        found = getattr(tc.Tensor, op.name, None) or getattr(tc.Tensor, f"{op.name}_", None)
    return found  # type: ignore[no-any-return]


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


def special_values(dtype: str) -> list[float]:
    """nan, infinities, both zeros, subnormals, extremes and ordinary numbers of a dtype."""
    if dtype == "bool":
        return [0, 1]
    if dtype not in FLOATS:
        limits = torch.iinfo(getattr(torch, dtype))
        return [
            0,
            1,
            2,
            3,
            7,
            limits.max,
            limits.max - 1,
            limits.min,
            *([-1, -2] * (limits.min < 0)),
        ]
    info = torch.finfo(getattr(torch, dtype))
    smallest = info.smallest_normal * info.eps  # subnormal
    positive = [0.0, smallest, info.smallest_normal / 2, info.smallest_normal, info.eps, 0.5, 1.0]
    positive += [3.0, 6.0, 20.0, 100.0, info.max / 2, info.max, INF]
    return [NAN, *positive, *(-value for value in positive)]


def pattern_values(
    pattern: str, dtype: str, size: int, elementwise: bool, rng: np.random.Generator
) -> Array | None:
    """A whole tensor's values, or None where the sample's own stay.

    Functions that add and multiply elements meet no value whose square over- or underflows: what
    remains of it would depend on their order.
    """
    values = np.array(special_values(dtype), object)
    if not elementwise and dtype in FLOATS:
        info = torch.finfo(getattr(torch, dtype))
        low, high = info.smallest_normal**0.3, info.max**0.3
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


def filled(tensor: Any, pattern: str, elementwise: bool, rng: np.random.Generator) -> Any:
    """torch's tensor with its values replaced; indices and masks stay."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    floating = dtype in FLOATS
    if not floating and pattern not in ("limits", "grid"):
        return tensor
    shape, size = tuple(tensor.shape), tensor.numel()
    values = pattern_values(pattern, dtype, size, elementwise, rng)
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
    values = special_values(dtype)
    two = isinstance(op, BinaryUfuncInfo)
    columns = list(zip(*itertools.product(values, values))) if two else [values]
    kind, gradual = getattr(torch, dtype), dtype in FLOATS and op.supports_autograd
    if number == -2:
        columns = [column[-1:] for column in columns]
    elif number == -3:
        columns = [[] for _ in columns]
    shape = {-1: (-1,), -2: (), -3: (0, 3)}[number]
    tensors = [torch.tensor(list(c), dtype=kind).reshape(shape) for c in columns]
    yield tuple(tensor.requires_grad_(gradual) for tensor in tensors), {}


def calls(step: Step) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """torch's arguments of a step; none where the function has no such sample."""
    name, dtype, number, pattern, turn = step
    op = catalogue()[name]
    if number < 0:
        yield from grid(op, dtype, number)
        return
    torch.manual_seed(turn)
    np.random.seed(turn)  # noqa: NPY002 (torch's samples draw from it)
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
            return filled(value, filling, elementwise, rng)
        if isinstance(value, list | tuple) and type(value) in (list, tuple):
            return type(value)(replaced(part) for part in value)
        return value

    options = {key: replaced(value) for key, value in sample.kwargs.items()}
    yield replaced((sample.input, *sample.args)), options


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
    inputs = [t for t in tensors_in((args, options), library.Tensor) if t.requires_grad]
    try:
        results = tensors_in(function(*args, **options), library.Tensor)
        outputs = [r for r in results if r.requires_grad and r.numel()]
        gradients: list[Any] = []
        if outputs and inputs:
            cotangents = [_cotangent(library, output) for output in outputs]
            gradients = list(library.autograd.grad(outputs, inputs, cotangents, allow_unused=True))
        return Run([_array(r) for r in results], [_array(g) for g in gradients], None)
    except Exception as error:
        # Without its traceback, whose tensors would raise again in the next step.
        return Run([], [], (type(error), str(error)))


def _cotangent(library: Any, output: Any) -> Any:
    weights = np.resize([1.0, -0.5, 0.25, -1.0, 0.75], tuple(output.shape))
    kind = getattr(library, str(output.dtype).split(".")[-1])
    made = library.tensor(weights.tolist(), dtype=kind)
    return made.reshape(tuple(output.shape)).to(output.device)


def _array(tensor: Any) -> tuple[str, Array] | None:
    if tensor is None:
        return None
    name = str(tensor.dtype).split(".")[-1]
    tensor = tensor.detach()
    wide = tensor.double() if name in FLOATS else tensor
    return name, np.array(wide.numpy() if isinstance(wide, torch.Tensor) else wide.cpu().numpy())


# Comparison ---------------------------------------------------------------------------------------

TOLERANCE = {"float64": 1e-9, "float32": 3e-5, "bfloat16": 3e-2, "float16": 4e-3}
# Layers that are elementwise, though torch's samples do not say so.
POINTWISE = tuple(
    f"nn.functional.{name}"
    for name in (
        "relu6", "hardtanh", "hardshrink", "softshrink", "elu", "selu", "celu", "threshold",
        "prelu",
        "hardswish", "hardsigmoid", "l1_loss", "smooth_l1_loss", "huber_loss", "leaky_relu", "silu",
        "mish",
    )
) + ("clamp", "lerp", "addcmul", "addcdiv", "xlogy", "where", "copysign")  # fmt: skip
EXTREMES = (
    "amax", "amin", "aminmax", "index_reduce", "scatter_reduce", "norm", "nn.functional.max_pool1d",
    "nn.functional.max_pool2d", "nn.functional.max_pool3d", "nn.functional.max_unpool2d",
    "nn.functional.max_unpool1d", "nn.functional.max_unpool3d",
    "nn.functional.adaptive_max_pool1d", "nn.functional.adaptive_max_pool2d",
    "nn.functional.adaptive_max_pool3d",
)  # fmt: skip
RULES_OF_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "limits": (
        "polygamma", "digamma", "special.polygamma", "lgamma", "mvlgamma", "igamma", "igammac",
        "special.gammainc", "special.gammaincc", "nn.functional.hardswish", "nn.functional.gelu",
        "i0", "special.i0", "special.i1", "nn.functional.cosine_similarity", "fmod", "remainder",
        "__rmod__", "nn.functional.hardsigmoid gradient", "gcd", "nn.functional.softsign",
        "special.ndtr", "special.zeta",
    ),
    "order_of_terms": (
        "addmm", "addbmm", "baddbmm", "addmv", "addr", "bmm", "mm", "mv", "matmul", "__rmatmul__",
        "cross", "kron", "nn.functional.linear", "nn.functional.bilinear", "var_mean", "std_mean",
        *(f"nn.functional.conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3)),
        *(f"nn.functional.adaptive_avg_pool{n}d" for n in (1, 2, 3)),
        *(f"nn.functional.{kind}_norm" for kind in ("batch", "group", "instance", "layer")),
        "nn.functional.multilabel_soft_margin_loss", "dist",
        "logcumsumexp gradient", "nanmean gradient",
    ),
    "exact_products": ("cumprod", "prod", "index_reduce", "scatter_reduce"),
    "which_of_equals": (
        "mode", "kthvalue", "median", "nanmedian", "nn.functional.max_unpool1d",
        "nn.functional.max_unpool2d", "nn.functional.max_unpool3d", "clamp gradient",
        "index_reduce gradient",
    ),
    "nan_spreads": (
        "nn.functional.multilabel_margin_loss", "nn.functional.triplet_margin_loss gradient",
    ),
}  # fmt: skip
FINITE_TOO = ("limits", "which_of_equals", "nan_spreads")  # of these finite numbers may differ
# torch has no such kernel, or refuses what is defined: nothing to compare with.
CLEAR = (tc.TgcError, TypeError, ValueError, IndexError, NotImplementedError, ZeroDivisionError)


def agree(ours: Array, theirs: Array, name: str, scale: float) -> Array:
    """Where two arrays are equal up to rounding; nan equals nan."""
    if name not in FLOATS:
        return np.asarray(ours == theirs)
    rtol = TOLERANCE[name]
    info = torch.finfo(getattr(torch, name))
    with np.errstate(all="ignore"):
        near = np.abs(ours - theirs) <= rtol * np.abs(theirs) + rtol * scale + info.smallest_normal
        # One rounding away from overflow.
        edge = np.isinf(ours) & (np.abs(theirs) >= info.max * (1 - 4 * rtol)) & (ours * theirs > 0)
        edge |= np.isinf(theirs) & (np.abs(ours) >= info.max * (1 - 4 * rtol)) & (ours * theirs > 0)
    return np.asarray(near | edge | (ours == theirs) | (np.isnan(ours) & np.isnan(theirs)))


def check(program: list[Step], device: str) -> str | None:
    """The first difference that no rule accepts; else a rule that accepted one."""
    met: str | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in program:
            for args, options in calls(step):
                difference = compare(step, args, options, device)
                if difference and not difference.startswith("accepted"):
                    return difference
                met = met or difference
    return met


def compare(step: Step, args: Any, options: Any, device: str) -> str | None:
    name = step[0]
    op = catalogue()[name]
    function = function_of(name, op)
    assert function is not None
    known: dict[int, Any] = {}
    our_args, our_options = handed_over(args, device, known), handed_over(options, device, known)
    ours = run(tc, function, our_args, our_options)
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
            if a is None or b is None:
                continue
            if a[0] != b[0] or a[1].shape != b[1].shape:
                return f"kind {name}: {step}: {a[0]} {a[1].shape}, torch {b[0]} {b[1].shape}"
            wrong, rule = meeting.judge(kind, place, a[0], a[1], b[1])
            if wrong.any():
                where = np.flatnonzero(wrong.ravel())[:4]
                shown = [(a[1].ravel()[k].item(), b[1].ravel()[k].item()) for k in where]
                return f"{kind} {name}: {step}: place {place}, elements {where.tolist()}: {shown}"
            difference = (rule and f"accepted: {rule}") or difference
    return difference


class Meeting:
    """One call of both libraries: what is equal, and which rule accepts what is not."""

    def __init__(self, op: Any, step: Step, args: Any, options: Any) -> None:
        self.op, self.step, self.args, self.options = op, step, args, options
        self.inputs = [
            t.detach().double().numpy() for t in tensors_in((args, options), torch.Tensor)
        ]
        self.elementwise = is_elementwise(op)
        self.wide: Run | None = None

    def judge(
        self, kind: str, place: int, dtype: str, ours: Array, theirs: Array
    ) -> tuple[Array, str | None]:
        """Where the arrays differ against every rule, and a rule that accepted something."""
        if dtype not in FLOATS and self.step[1] in FLOATS and self.step[3] != "plain":
            return np.zeros(ours.shape, bool), None  # which of equal elements, or which nan
        finite = [x[np.isfinite(x)].ravel() for x in (*self.inputs, theirs)]
        scale = 0.0
        if not self.elementwise or kind == "gradient":
            scale = float(np.abs(np.concatenate([*finite, [0.0]])).max())
        if kind == "gradient":
            scale = max(scale, 1.0)
        scale = 0.0 if self.elementwise and kind == "value" else scale
        wrong = ~agree(ours, theirs, dtype, scale)
        used: str | None = None
        for rule, holds in self.rules(kind, place, ours, theirs, scale):
            if wrong.any() and (wrong & holds).any():
                wrong, used = wrong & ~holds, rule
        return wrong, used

    def rules(
        self, kind: str, place: int, ours: Array, theirs: Array, scale: float
    ) -> Iterator[tuple[str, Array]]:
        """Rules of `accepted.py` with the elements they hold for."""
        name, nowhere = self.op.name, np.zeros(ours.shape, bool)
        everywhere = ~nowhere
        missing = nowhere
        for array in self.inputs:
            if array.shape == ours.shape and self.elementwise:
                missing = missing | np.isnan(array)
            elif np.isnan(array).any():
                missing = everywhere
        if self.step[1] in FLOATS and self.step[1] != "float64" and ours.dtype.kind == "f":
            reference = self.reference(kind, place)
            if reference is not None and reference.shape == ours.shape:
                yield "float64_agrees", agree(ours, reference, self.step[1], scale)
        if kind == "gradient":
            yield "nan_spreads", np.isnan(ours) & (missing | np.isnan(theirs) | self.infinite())
            yield "slope_without_nan", np.isnan(theirs) & ~np.isnan(ours) & ~missing
            if self.elementwise or name in POINTWISE:
                yield "slope_at_nan", self.at_nan(ours.shape)
            if name in EXTREMES:
                yield "nan_is_the_extreme", missing
        for rule, names in RULES_OF_FUNCTIONS.items():
            if name in names or f"{name} {kind}" in names:
                ordinary = np.isfinite(ours) & np.isfinite(theirs)
                yield rule, everywhere if rule in FINITE_TOO else ~ordinary

    def at_nan(self, shape: tuple[int, ...]) -> Array:
        found = np.zeros(shape, bool)
        for array in self.inputs:
            with suppress(ValueError):
                found = found | np.broadcast_to(np.isnan(array), shape)
        return found

    def infinite(self) -> bool:
        return any(np.isinf(array).any() for array in self.inputs)

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
