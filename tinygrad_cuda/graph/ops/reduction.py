"""Reductions: an associative combine with an identity, over any set of axes.

The reduced axes stay with size 1, so a cotangent goes back with one `expand`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod as count_of
from typing import Any

import numpy as np

from tinygrad_cuda.core.dtypes import DType, float32, int64
from tinygrad_cuda.core.errors import ShapeError
from tinygrad_cuda.graph.node import Gradient, Node, Op, Outputs
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.graph.ops import numeric
from tinygrad_cuda.graph.ops.common import full, full_like, output, require_dtype


@dataclass(frozen=True)
class Accumulation:
    """How kernels reduce, in CUDA C++ where ``{T}`` is the type in which elements are computed.

    Attributes:
        functor: the type whose call combines two running values; a skeleton names it often.
        identity: what a running value begins with: a number, or C++ where no number says it.
        state: the type of a running value.
        element: the running value of one element ``{x}``, which stands at ``{at}`` in its row.
        take: a running value ``{r}`` and one more element, where that is quicker than a combine.
        vectors: whether `take` also takes an array of elements at once.
        results: the outputs, from the last running value ``{r}``.
        empty: the result for no elements at all, where it is not the number `identity`.
        nbytes: bytes of a running value, from those of an element.
        device: the functor's C++ where device.cuh has none; see `functor`.
    """

    functor: str
    identity: float | str
    state: str = "{T}"
    element: str = "{x}"
    take: str = ""
    vectors: bool = False
    results: tuple[str, ...] = ("{r}",)
    empty: float | None = None
    nbytes: Callable[[int], int] = lambda itemsize: itemsize
    device: str = ""

    @property
    def of_nothing(self) -> float | None:
        """The result for no elements; None where there is none."""
        identity = None if isinstance(self.identity, str) else self.identity
        return identity if self.empty is None else self.empty

    @property
    def is_number(self) -> bool:
        """Whether a running value is one number of the type in which elements are computed."""
        return self.state == "{T}"

    @property
    def keeps_one(self) -> bool:
        """Whether the reduction of one element is that element."""
        return self.is_number and (self.element, self.results) == ("{x}", ("{r}",))


def functor(name: str, combine: str) -> str:
    """The C++ of a functor whose call is an expression of two running values ``a`` and ``b``.

    Example:
        >>> functor("tgc_xor_op", "T(a ^ b)").splitlines()[0]
        'struct tgc_xor_op {'
    """
    return (
        f"struct {name} {{\n"
        "  template <class T> __device__ __forceinline__ T operator()(T a, T b) const {\n"
        f"    return {combine};\n"
        "  }\n"
        "};\n"
    )


class ReductionOp(Op):
    """A row of a reduction.

    Attributes:
        cuda: what kernels need.
        idempotent: whether equal elements reduce to one of them, however many they are.
        extreme: of an op that gives a position: the reduction whose result stands there.
        by_slices: ``(sizes, x) -> array``: NumPy's form for short rows, the last axes of `x`.
        flops: arithmetic operations for each element.
    """

    __slots__ = ("idempotent", "extreme", "by_slices", "flops")

    cuda: Accumulation

    def __init__(
        self,
        *row: Any,
        idempotent: bool = False,
        extreme: ReductionOp | None = None,
        by_slices: Callable[..., Any] | None = None,
        flops: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(*row, **options)
        self.idempotent = idempotent
        self.extreme = extreme
        self.by_slices = by_slices
        self.flops = flops

    @property
    def selects(self) -> bool:
        """Whether results are elements or their positions, so that no combination rounds."""
        return self.idempotent or self.extreme is not None


def reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if axis in axes else size for axis, size in enumerate(shape))


def _checked(
    domain: str, result: DType | None = None, nonempty: bool = False, outputs: int = 1
) -> Callable[..., Outputs]:
    def infer(op: Op, sources: tuple[Node, ...], attributes: dict[str, Any]) -> Outputs:
        x, axes = sources[0], attributes["axes"]
        require_dtype(op.name, x, domain)
        if nonempty and count_of(x.shape[axis] for axis in axes) == 0:
            raise ShapeError(
                op.name,
                "nothing to reduce",
                expect="at least one element along the reduced dimensions",
                actual=f"shape {x.shape}, dim {axes}",
            )
        return ((reduced_shape(x.shape, axes), result or x.dtype),) * outputs

    return infer


def _op(
    name: str,
    numpy: Callable[..., Any],
    cuda: Accumulation,
    gradient: Gradient | None,
    infer: Callable[..., Outputs],
    **more: Any,
) -> ReductionOp:
    return ReductionOp(
        name, "reduction", infer, numpy=numpy, cuda=cuda, gradient=(gradient,), cost=2, **more
    )


def _keep(function: Any) -> Callable[..., Any]:
    return lambda x, axes: function(x, axis=axes, keepdims=True)


def _accumulate(function: Any) -> Callable[..., Any]:
    # NumPy would widen small integers; here the result has the dtype of x and wraps.
    return lambda x, axes: function(x, axis=axes, keepdims=True, dtype=x.dtype)


def _back(g: Node, x: Node) -> Node:
    return mv.expand(g, shape=x.shape)


def _shared_among_ties(g: Node, out: Node, x: Node, axes: tuple[int, ...]) -> Node:
    # NaN is equal to nothing, and is the result where there is one.
    chosen = ew.logical_or(ew.eq(x, _back(out, x)), ew.isnan(x))
    mask = ew.cast(chosen, dtype=x.dtype)
    if not x.dtype.is_half:
        return ew.mul(_back(ew.div(g, sum(mask, axes=axes)), x), mask)
    # A half type does not hold every count.
    count = sum(ew.cast(chosen, dtype=float32), axes=axes)
    share = ew.cast(ew.div(ew.cast(g, dtype=float32), count), dtype=x.dtype)
    return ew.mul(_back(share, x), mask)


def _product_of_others(g: Node, out: Node, x: Node, axes: tuple[int, ...]) -> Node:
    """g times the product of all other elements: exact with zeros, at every order.

    Prefix and suffix products by doubling (Hillis and Steele, 1986), one axis at a time.
    """
    for step, axis in enumerate(axes):
        remaining = axes[step + 1 :]
        before, after = mv.shifted(x, axis, 1, 1), mv.shifted(x, axis, -1, 1)
        distance = 1
        while distance < x.shape[axis]:
            before = ew.mul(before, mv.shifted(before, axis, distance, 1))
            after = ew.mul(after, mv.shifted(after, axis, -distance, 1))
            distance *= 2
        others = ew.conjugated(ew.mul(before, after))
        if not remaining:
            return ew.mul(_back(g, x), others)
        line = prod(x, axes=(axis,))
        g = _product_of_others(g, out, line, remaining)
        return ew.mul(_back(g, x), others)
    return g


sum: ReductionOp = _op(
    "sum", numeric.total, Accumulation("tgc_sum_op", 0),
    lambda g, out, x, axes: _back(g, x),
    _checked("arithmetic"),
)  # fmt: skip
prod: ReductionOp = _op(
    "prod", _accumulate(np.prod), Accumulation("tgc_product_op", 1),
    _product_of_others,
    _checked("arithmetic"),
)  # fmt: skip
max: ReductionOp = _op(
    "max", _keep(np.max), Accumulation("tgc_max_op", "tgc_lowest<{T}>()"),
    _shared_among_ties,
    _checked("real", nonempty=True),
    idempotent=True, by_slices=partial(numeric.short_extreme, np.maximum),
)  # fmt: skip
min: ReductionOp = _op(
    "min", _keep(np.min), Accumulation("tgc_min_op", "tgc_highest<{T}>()"),
    _shared_among_ties,
    _checked("real", nonempty=True),
    idempotent=True, by_slices=partial(numeric.short_extreme, np.minimum),
)  # fmt: skip
any: ReductionOp = _op(
    "any", _keep(np.any), Accumulation("tgc_or_op", False), None, _checked("bool"), idempotent=True
)
all: ReductionOp = _op(
    "all", _keep(np.all), Accumulation("tgc_and_op", True), None, _checked("bool"), idempotent=True
)


def _arg(function: Any) -> Callable[..., Any]:
    def reference(x: Any, axes: tuple[int, ...]) -> Any:
        remaining = [axis for axis in range(x.ndim) if axis not in axes]
        count = count_of(x.shape[axis] for axis in axes)
        moved = x.transpose(remaining + list(axes)).reshape(
            [x.shape[axis] for axis in remaining] + [count]
        )
        return function(moved, axis=-1).astype(np.int64).reshape(reduced_shape(x.shape, axes))

    return reference


def _position(functor: str, worst: str) -> Accumulation:
    """A value and its position, which the functor compares."""
    return Accumulation(
        functor, f"{{{{{worst}<{{T}}>(), 9223372036854775807LL}}}}",
        state="tgc_pair<{T}>", element="tgc_pair<{T}>{{{x}, {at}}}", results=("{r}.index",),
        nbytes=lambda itemsize: 16,
    )  # fmt: skip


# The first position of the extreme value, counted row-major over the reduced axes; NaN wins.
argmax: ReductionOp = _op(
    "argmax", _arg(np.argmax), _position("tgc_argmax_op", "tgc_lowest"),
    None,
    _checked("real", int64, nonempty=True),
    extreme=max, by_slices=partial(numeric.short_position, np.maximum),
)  # fmt: skip
argmin: ReductionOp = _op(
    "argmin", _arg(np.argmin), _position("tgc_argmin_op", "tgc_highest"),
    None,
    _checked("real", int64, nonempty=True),
    extreme=min, by_slices=partial(numeric.short_position, np.minimum),
)  # fmt: skip


def _welford_gradient(
    gs: tuple[Node | None, Node | None], out: Node, x: Node, axes: tuple[int, ...]
) -> Node:
    g_mean, g_m2 = gs
    total: Node | None = None
    if g_mean is not None:
        count = count_of(x.shape[axis] for axis in axes)
        total = _back(ew.mul(g_mean, full_like(g_mean, 1.0 / count)), x)
    if g_m2 is not None:
        centered = ew.sub(x, _back(output(out, index=0), x))
        part = ew.mul(_back(ew.add(g_m2, g_m2), x), centered)
        total = part if total is None else ew.add(total, part)
    assert total is not None
    return total


# Mean and the sum of squared deviations from it, in one pass (Welford, 1962).
welford: ReductionOp = _op(
    "welford", numeric.welford,
    Accumulation(
        "tgc_welford_op", "{{0, 0, 0}}",
        state="tgc_welford<{T}>", take="tgc_welford_add({r}, {x})", vectors=True,
        results=("{r}.mean", "{r}.m2"), nbytes=lambda itemsize: 3 * itemsize,
    ),
    _welford_gradient,
    _checked("float", nonempty=True, outputs=2),
    flops=4,  # an addition for the mean; a subtraction, a product and an addition for M2
)  # fmt: skip

ROWS: tuple[ReductionOp, ...] = (sum, prod, max, min, any, all, argmax, argmin, welford)


def mean(x: Node, axes: tuple[int, ...]) -> Node:
    """The sum over `axes` divided by their element count."""
    count = count_of(x.shape[axis] for axis in axes)
    total = sum(x, axes=axes)
    return ew.div(total, full(count, total.shape, total))
