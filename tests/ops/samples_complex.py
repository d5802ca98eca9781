"""Samples of complex numbers and of Fourier transforms.

Where a gradient is checked, complex operands are made of real ones and results taken apart, so that
central differences of real numbers decide: gradients by a real and by an imaginary part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sampling import Array, Sample, generator, plain, reshaped, sliced, transposed

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.graph.node import Node, Op
from tinygrad_cuda.graph.ops import common, fft, scan, special
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import reduction as rd

Formula = Callable[..., Any]
# Rows of complex numbers and their formulas, by how many operands they take.
OF_ONE: dict[Op, Formula] = {
    ew.neg: lambda z: -z, ew.contiguous: lambda z: z, ew.reciprocal: lambda z: 1 / z,
    ew.exp: np.exp, ew.log: np.log, ew.sqrt: np.sqrt, ew.sin: np.sin, ew.cos: np.cos,
    ew.sinh: np.sinh, ew.cosh: np.cosh, ew.tanh: np.tanh, ew.conj: np.conj,
    ew.real: lambda z: z.real, ew.imag: lambda z: z.imag,
    ew.modulus: lambda z: np.hypot(z.real, z.imag), ew.expm1: lambda z: np.exp(z) - 1,
    ew.log1p: lambda z: np.log(1 + z), ew.log2: lambda z: np.log(z) / 0.6931471805599453,
    ew.sigmoid: lambda z: 1 / (1 + np.exp(-z)),
    ew.rsqrt: lambda z: 1 / np.sqrt(z), ew.tan: lambda z: np.sin(z) / np.cos(z),
    ew.asin: lambda z: -1j * np.log(1j * z + np.sqrt(1 - z * z)),
    ew.acos: lambda z: np.pi / 2 + 1j * np.log(1j * z + np.sqrt(1 - z * z)),
    ew.atan: lambda z: 0.5j * (np.log(1 - 1j * z) - np.log(1 + 1j * z)),
    special.asinh: lambda z: np.log(z + np.sqrt(z * z + 1)),
    special.acosh: lambda z: np.log(z + np.sqrt(z + 1) * np.sqrt(z - 1)),
    special.atanh: lambda z: 0.5 * (np.log(1 + z) - np.log(1 - z)),
}  # fmt: skip
OF_TWO: dict[Op, Formula] = {
    ew.add: lambda a, b: a + b, ew.sub: lambda a, b: a - b, ew.mul: lambda a, b: a * b,
    ew.div: lambda a, b: a / b, ew.eq: lambda a, b: a == b, ew.ne: lambda a, b: a != b,
}  # fmt: skip
OWN = (ew.conj, ew.real, ew.imag, ew.modulus)  # rows that take nothing else
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 30, 77, 97, 128, 1000)
PARTS = 8192 + 64  # points of a transform in several kernels


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    """Away from zero, where some functions have poles and roots."""
    parts = rng.uniform(0.3, 1.5, (2, *shape)) * rng.choice((-1, 1), (2, *shape))
    return np.asarray(parts[0] + 1j * parts[1]).astype(dtype.numpy)


def samples() -> Iterator[Sample]:
    for dtype in dtypes.COMPLEX:
        yield from _elementwise(dtype)
        yield from _rest(dtype)
    yield from _smooth()
    yield _made()
    for dtype in (dtypes.float32, dtypes.float64):
        rng = generator("complex of", dtype.name)
        parts = [plain(rng.uniform(-2, 2, (4, 3)).astype(dtype.numpy)) for _ in (0, 1)]
        yield Sample(
            ew.complex_, dtype.name, tuple(parts), exact=True,
            expected=lambda a, b: (a + 1j * b).astype(np.result_type(a, np.complex64)),
        )  # fmt: skip


def _elementwise(dtype: DType) -> Iterator[Sample]:
    for count, table in ((1, OF_ONE), (2, OF_TWO)):
        for op, formula in table.items():
            rng = generator("complex", op.name, dtype.name)
            for shape, view in (((7,), plain), ((3, 5), transposed), ((2, 3, 4), sliced)):
                values = [numbers(rng, shape, dtype) for _ in range(count)]
                if op in (ew.eq, ew.ne):  # equal, and equal in one part alone
                    values[1][..., ::2] = values[0][..., ::2]
                    values[1].imag = values[0].imag
                yield Sample(
                    op, f"{view.__name__} {dtype.name}", tuple(map(view, values)),
                    expected=formula, loose=4,
                )  # fmt: skip


def _rest(dtype: DType) -> Iterator[Sample]:
    rng = generator("complex rest", dtype.name)
    z = numbers(rng, (4, 6), dtype)
    for op, formula in ((rd.sum, np.sum), (rd.prod, np.prod)):
        for axes in ((1,), (0,), (0, 1)):
            yield Sample(
                op, f"{axes} {dtype.name}", (plain(z),), {"axes": axes}, loose=20,
                expected=lambda z, axes, formula=formula: formula(z, axis=axes, keepdims=True),
            )  # fmt: skip
    long = numbers(rng, (3, 5000), dtype)
    yield Sample(
        rd.sum, f"long {dtype.name}", (plain(long),), {"axes": (1,)}, loose=100,
        expected=lambda z, axes: z.astype(complex).sum(1, keepdims=True).astype(z.dtype),
    )  # fmt: skip
    yield Sample(
        scan.cumsum, dtype.name, (plain(z),), {"axis": 1}, loose=20,
        expected=lambda z, axis: np.cumsum(z, axis),
    )  # fmt: skip
    condition = np.asarray(rng.integers(0, 2, z.shape)).astype(bool)
    yield Sample(
        ew.where, dtype.name, (plain(condition), plain(z), reshaped(z[::-1])),
        expected=np.where, exact=True,
    )  # fmt: skip
    for to in (*dtypes.COMPLEX, dtypes.float32, dtypes.int32, dtypes.bool_, dtypes.float16):
        yield Sample(
            ew.cast, f"{dtype.name} to {to.name}", (plain(z),), {"dtype": to}, exact=True,
            expected=lambda z, dtype: ew.cast_array(z, dtype),
        )  # fmt: skip
    for of in (dtypes.bool_, dtypes.int64, dtypes.float32, dtypes.bfloat16):
        value = np.asarray(rng.integers(0, 2, (9,))).astype(of.numpy)
        yield Sample(
            ew.cast, f"{of.name} to {dtype.name}", (plain(value),), {"dtype": dtype}, exact=True,
            expected=lambda x, dtype: x.astype(float).astype(dtype.numpy),
        )  # fmt: skip
    yield Sample(
        common.complex_constant, dtype.name, (), {"real": 1.5, "imag": -0.25},
        leaf=((2, 3), dtype), exact=True,
        expected=lambda real, imag: np.full((2, 3), complex(real, imag), dtype.numpy),
    )  # fmt: skip


# Gradients ----------------------------------------------------------------------------------------


def _apart(node: Node) -> tuple[Node, ...]:
    return (ew.real(node), ew.imag(node)) if node.dtype.is_complex else (node,)


def _of_parts(op: Op) -> Callable[..., tuple[Node, ...]]:
    """The row of complex numbers whose parts are the operands, two each."""

    def build(*parts: Node, **how: Any) -> tuple[Node, ...]:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return _apart(op(*(ew.complex_(*pair) for pair in pairs), **how))

    return build


def _with_parts(formula: Formula) -> Formula:
    def expected(*parts: Array, **how: Any) -> tuple[Array, ...]:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        found = formula(*(real + 1j * imag for real, imag in pairs), **how)
        return (found.real, found.imag) if np.iscomplexobj(found) else (found,)

    return expected


def _smooth() -> Iterator[Sample]:
    for op, formula in {**OF_ONE, **OF_TWO}.items():
        if op in (ew.eq, ew.ne):
            continue
        rng, count = generator("smooth", op.name), 2 if op in OF_TWO else 1
        z = [numbers(rng, (5,), dtypes.complex128) for _ in range(count)]
        if op in (ew.log, ew.sqrt):  # away from the cut along the negative axis
            z = [np.abs(x.real) + 1j * x.imag for x in z]
        parts = [part for x in z for part in (x.real, x.imag)]
        yield Sample(
            op, "complex smooth", tuple(map(plain, parts)), build=_of_parts(op),
            expected=_with_parts(formula), differentiate=True, loose=10, halves=False,
        )  # fmt: skip
    for op in (rd.sum, rd.prod):
        rng = generator("smooth", op.name)
        z = numbers(rng, (3, 4), dtypes.complex128)
        formula = np.sum if op is rd.sum else np.prod
        yield Sample(
            op, "complex smooth", (plain(z.real), plain(z.imag)), {"axes": (1,)},
            build=_of_parts(op), differentiate=True, loose=10, halves=False,
            expected=_with_parts(lambda z, axes, f=formula: f(z, axis=axes, keepdims=True)),
        )  # fmt: skip


def _made() -> Sample:
    rng = generator("made")
    a, b = (rng.uniform(-2, 2, (3, 4)) for _ in (0, 1))
    return Sample(
        ew.complex_, "of parts", (plain(a), transposed(b)),
        build=lambda a, b: _apart(ew.mul(ew.complex_(a, b), ew.complex_(b, a))),
        expected=_with_parts_of(lambda a, b: (a + 1j * b) * (b + 1j * a)), differentiate=True,
        loose=4, halves=False,
    )  # fmt: skip


def _with_parts_of(formula: Formula) -> Formula:
    def expected(*operands: Array, **how: Any) -> tuple[Array, ...]:
        found = formula(*operands, **how)
        return found.real, found.imag

    return expected


# Transforms ---------------------------------------------------------------------------------------


def _matrix(n: int, sign: int) -> Array:
    """exp(sign * 2 pi i j k / n), from integers reduced before."""
    k = np.arange(n)
    return np.exp(sign * 2j * np.pi * (np.outer(k, k) % n) / n)


def _fft(z: Array, inverse: bool, scale: float) -> Array:
    return (scale * (z @ _matrix(z.shape[-1], 1 if inverse else -1))).astype(z.dtype)


def _fft_columns(z: Array, inverse: bool, scale: float, turn: bool, flat: bool) -> Array:
    made, (*head, rows, n) = _fft(z.astype(complex), inverse, scale), z.shape
    if turn:
        total = np.outer(np.arange(rows), np.arange(n)) % (rows * n)
        made = made * np.exp((2j if inverse else -2j) * np.pi * total / (rows * n))
    made = made.swapaxes(-1, -2).astype(z.dtype)
    return made.reshape(*head, n * rows) if flat else made


def _rfft(x: Array, scale: float) -> Array:
    whole = _fft(x.astype(complex), False, scale)[..., : x.shape[-1] // 2 + 1]
    return whole.astype(np.result_type(x, np.complex64))


def _irfft(z: Array, n: int, scale: float) -> Array:
    half = z.astype(complex)
    ends = (0, n // 2) if n % 2 == 0 else (0,)
    half[..., ends] = half[..., ends].real
    mirrored = np.conj(half[..., 1 : n - half.shape[-1] + 1])[..., ::-1]
    whole = _fft(np.concatenate((half, mirrored), -1), True, scale)
    return whole.real.astype(z.real.dtype)


def transforms() -> Iterator[Sample]:
    for dtype in dtypes.COMPLEX:
        for n in LENGTHS:
            yield from _transforms((3, n), plain, dtype)
        yield from _transforms((300, 6), plain, dtype)  # several rows a block, and a rest
        yield from _transforms((), plain, dtype)
        for view in (transposed, sliced):
            yield from _transforms((2, 3, 12), view, dtype)
        for view in (plain, transposed):  # neighbouring threads take neighbouring rows
            yield from _transforms((2, 150, 32), view, dtype)
    yield from _transforms((1, PARTS), plain, dtypes.complex64, long=True)
    for n in (1, 2, 5, 6, 8, 17):
        yield from _smooth_transforms(n)


def _transforms(
    shape: tuple[int, ...], view: Callable[[Array], Any], dtype: DType, long: bool = False
) -> Iterator[Sample]:
    """Each of the three rows; of no shape vectors of nine points."""
    rng = generator("fft", shape, dtype.name)
    z = numbers(rng, shape or (9,), dtype)
    n = z.shape[-1]
    half = np.ascontiguousarray(z[..., : n // 2 + 1])
    real = np.ascontiguousarray(z.real)
    # Errors are those of the largest frequency, which is a sum.
    label, loose = f"{z.shape} {view.__name__} {dtype.name}", 10 + n / (20 if long else 2)
    formulas = (None, None, None) if long else (_fft, _rfft, _irfft)
    for inverse in (False, True):
        how = {"inverse": inverse, "scale": 1 / n if inverse else 1.0}
        yield Sample(
            fft.fft, f"{label} {inverse}", (view(z),), how, expected=formulas[0], loose=loose
        )
        for turn in (False, True) if len(shape) > 1 and not long else ():
            yield Sample(
                fft.fft_columns, f"{label} {inverse} {turn}", (view(z),),
                {**how, "turn": turn, "flat": inverse}, expected=_fft_columns, loose=loose,
            )  # fmt: skip
    yield Sample(fft.rfft, label, (view(real),), {"scale": 0.5}, expected=formulas[1], loose=loose)
    yield Sample(
        fft.irfft, label, (view(half),), {"n": n, "scale": 1 / n}, expected=formulas[2],
        loose=loose,
    )  # fmt: skip


def _smooth_transforms(n: int) -> Iterator[Sample]:
    rng = generator("smooth fft", n)
    z = numbers(rng, (2, n), dtypes.complex128)
    half = z[:, : n // 2 + 1]
    for inverse in (False, True):
        yield Sample(
            fft.fft, f"smooth {n} {inverse}", (plain(z.real), plain(z.imag)),
            {"inverse": inverse, "scale": 0.5}, build=_of_parts(fft.fft),
            expected=_with_parts(_fft), differentiate=True, loose=10, halves=False,
        )  # fmt: skip
        yield Sample(
            fft.fft_columns, f"smooth {n} {inverse}", (plain(z.real), plain(z.imag)),
            {"inverse": inverse, "scale": 0.5, "turn": inverse, "flat": inverse},
            build=_of_parts(fft.fft_columns), expected=_with_parts(_fft_columns),
            differentiate=True, loose=10, halves=False,
        )  # fmt: skip
    yield Sample(
        fft.rfft, f"smooth {n}", (plain(z.real),), {"scale": 0.5}, differentiate=True, loose=10,
        halves=False, build=lambda x, scale: _apart(fft.rfft(x, scale=scale)),
        expected=_with_parts_of(_rfft),
    )  # fmt: skip
    yield Sample(
        fft.irfft, f"smooth {n}", (plain(half.real), plain(half.imag)), {"n": n, "scale": 0.5},
        build=_of_parts(fft.irfft), expected=_with_parts(_irfft), differentiate=True, loose=10,
        halves=False,
    )  # fmt: skip
