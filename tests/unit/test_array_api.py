"""The array API standard's namespace beside NumPy's, and scipy and scikit-learn that run on it."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

pytestmark = pytest.mark.usefixtures("on_cpu")
xp = tc.array_api
ROOT = Path(__file__).resolve().parents[2]
NAMES = [
    "__array_api_version__",
    "__array_namespace_info__",
    "e",
    "inf",
    "nan",
    "newaxis",
    "pi",
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "arange",
    "asarray",
    "empty",
    "empty_like",
    "eye",
    "from_dlpack",
    "full",
    "full_like",
    "linspace",
    "meshgrid",
    "ones",
    "ones_like",
    "tril",
    "triu",
    "zeros",
    "zeros_like",
    "astype",
    "can_cast",
    "finfo",
    "iinfo",
    "isdtype",
    "result_type",
    "abs",
    "acos",
    "acosh",
    "add",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_invert",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "ceil",
    "clip",
    "conj",
    "copysign",
    "cos",
    "cosh",
    "divide",
    "equal",
    "exp",
    "expm1",
    "floor",
    "floor_divide",
    "greater",
    "greater_equal",
    "hypot",
    "imag",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "nextafter",
    "not_equal",
    "positive",
    "pow",
    "real",
    "reciprocal",
    "remainder",
    "round",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "square",
    "sqrt",
    "subtract",
    "tan",
    "tanh",
    "trunc",
    "take",
    "take_along_axis",
    "matmul",
    "matrix_transpose",
    "tensordot",
    "vecdot",
    "broadcast_arrays",
    "broadcast_to",
    "concat",
    "expand_dims",
    "flip",
    "moveaxis",
    "permute_dims",
    "repeat",
    "reshape",
    "roll",
    "squeeze",
    "stack",
    "tile",
    "unstack",
    "argmax",
    "argmin",
    "count_nonzero",
    "nonzero",
    "searchsorted",
    "where",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "argsort",
    "sort",
    "cumulative_prod",
    "cumulative_sum",
    "max",
    "mean",
    "min",
    "prod",
    "std",
    "sum",
    "var",
    "all",
    "any",
    "diff",
    "fft",
    "linalg",
]
FFT = [
    "fft",
    "ifft",
    "fftn",
    "ifftn",
    "rfft",
    "irfft",
    "rfftn",
    "irfftn",
    "hfft",
    "ihfft",
    "fftfreq",
    "rfftfreq",
    "fftshift",
    "ifftshift",
]
LINALG = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]


@pytest.mark.smoke("array_api")
def test_every_name_of_the_standard() -> None:
    assert not [name for name in NAMES if not hasattr(xp, name)]
    assert not [name for name in LINALG if not hasattr(xp.linalg, name)]
    assert not [name for name in FFT if not hasattr(xp.fft, name)]
    x = tc.ones(2)
    assert x.__array_namespace__() is xp is x.__array_namespace__(api_version="2024.12")
    with pytest.raises(tc.ArgumentError, match="a version that is not here"):
        x.__array_namespace__(api_version="1999.01")


def test_arguments_are_positional_and_by_keyword_as_in_the_standard() -> None:
    cases: list[tuple[Any, str]] = [
        (xp.sum, "(x, /, *, axis, dtype, keepdims)"), (xp.add, "(x1, x2, /)"),
        (xp.exp, "(x, /)"), (xp.reshape, "(x, /, shape, *, copy)"),
        (xp.clip, "(x, /, min, max)"), (xp.sort, "(x, /, *, axis, descending, stable)"),
        (xp.linalg.svd, "(x, /, *, full_matrices)"),
        (xp.fft.irfft, "(x, /, *, n, axis, norm)"), (xp.fft.ifftn, "(x, /, *, s, axes, norm)"),
        (xp.fft.fftfreq, "(n, /, *, d, dtype, device)"), (xp.fft.fftshift, "(x, /, *, axes)"),
    ]  # fmt: skip
    for function, expected in cases:
        text = inspect.signature(function)
        plain = [p.replace(annotation=p.empty, default=p.empty) for p in text.parameters.values()]
        found = text.replace(parameters=plain, return_annotation=text.empty)
        assert str(found) == expected, function.__name__
        assert function.__doc__


def values(kind: str) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    numbers = rng.integers(*((0, 9) if kind.startswith("u") else (-4, 5)), (3, 4))
    if kind.startswith("c"):
        numbers = numbers + 1j * rng.integers(-4, 5, (3, 4))
    return (numbers + (0.25 if kind[0] in "fc" else 0)).astype(kind)


FUNCTIONS = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "expm1", "log10", "log1p",
    "log2", "reciprocal", "round", "sign", "sin", "sinh", "tan", "tanh",
)  # fmt: skip
CALLS: list[tuple[str, Callable[[Any, Any], Any]]] = [
    (kinds, call)
    for kinds, calls in {
        "float32 float64": [
            lambda n, x: n.mean(x, axis=(0, 1), keepdims=True),
            lambda n, x: n.var(x, axis=1, correction=1),
            lambda n, x: n.std(x, axis=()),
            lambda n, x: n.round(x),
            lambda n, x: n.sign(n.asarray([np.nan, -0.0, 3.0], dtype=x.dtype)),
            lambda n, x: n.floor_divide(x, 0.5), lambda n, x: n.remainder(x, -1.5),
            lambda n, x: n.clip(x, -1.0, n.asarray(2.0, dtype=x.dtype)),
            lambda n, x: n.clip(x, max=0.0),
            lambda n, x: n.linalg.vector_norm(x, axis=(0, 1), ord=1),
            lambda n, x: n.linalg.matrix_norm(x), lambda n, x: n.linalg.svdvals(x),
            lambda n, x: n.linalg.matrix_rank(x), lambda n, x: n.linalg.pinv(x),
            lambda n, x: n.linalg.solve(x[:, :3] + 5 * n.eye(3, dtype=x.dtype), x[:, 3]),
            lambda n, x: n.linspace(0, 1, 5, endpoint=False, dtype=x.dtype),
            lambda n, x: n.logaddexp(x, x),
            lambda n, x: n.unique_counts(n.asarray([np.nan, 1.0, np.nan, 1.0])).counts,
        ],
        "int8 int64 uint8 uint16 uint32 uint64 float32": [
            lambda n, x: n.sum(x, axis=0, keepdims=True), lambda n, x: n.max(x, axis=(0, 1)),
            lambda n, x: n.argmin(x, axis=1, keepdims=True), lambda n, x: n.argmax(x),
            lambda n, x: n.cumulative_sum(x, axis=1, include_initial=True, dtype=n.int64),
            lambda n, x: n.prod(x[:1, :2], dtype=n.int64), lambda n, x: n.any(x, axis=(0,)),
            lambda n, x: n.sort(x, axis=0), lambda n, x: n.argsort(x, axis=1, stable=True),
            lambda n, x: n.take(x, n.asarray([2, 0, -1]), axis=0),
            lambda n, x: n.take_along_axis(x, n.asarray([[1], [0], [3]]), axis=1),
            lambda n, x: n.concat([x, x[:1]], axis=None), lambda n, x: n.tile(x, (2, 1)),
            lambda n, x: n.roll(x, (1, -1), axis=(0, 1)), lambda n, x: n.flip(x),
            lambda n, x: n.repeat(x, n.asarray([1, 2, 0]), axis=0), lambda n, x: n.tril(x, k=-1),
            lambda n, x: n.moveaxis(x, 0, -1), lambda n, x: n.unstack(x, axis=1)[2],
            lambda n, x: n.searchsorted(n.sort(x[0]), x[1], side="right"),
            lambda n, x: n.unique_all(x).inverse_indices, lambda n, x: n.unique_all(x).indices,
            lambda n, x: n.diff(x[:, ::2], append=x[:, :1]), lambda n, x: n.vecdot(x, x, axis=0),
            lambda n, x: n.tensordot(x, x, axes=((0,), (0,))), lambda n, x: n.matmul(x, x.mT),
            lambda n, x: n.count_nonzero(x, axis=1), lambda n, x: n.where(x > 1, x, 0),
            lambda n, x: n.expand_dims(x, axis=-2), lambda n, x: n.full_like(x, 3),
            lambda n, x: n.astype(x, n.float64), lambda n, x: n.eye(3, 4, k=1, dtype=n.int8),
            lambda n, x: n.arange(5, 0, -2), lambda n, x: n.nonzero(x)[1],
            lambda n, x: n.meshgrid(x[0], x[1])[1], lambda n, x: n.maximum(x, 2),
        ],
        "bool": [
            lambda n, x: n.logical_xor(x, n.asarray(True)), lambda n, x: n.all(x, axis=0),
            lambda n, x: n.sum(x), lambda n, x: n.unique_values(x), lambda n, x: x & True,
        ],
        "complex64 complex128": [
            lambda n, x: n.abs(x), lambda n, x: n.conj(x), lambda n, x: n.real(x),
            lambda n, x: n.imag(x), lambda n, x: n.exp(x) + n.sqrt(x) * n.log(x),
            *[lambda n, x, name=name: getattr(n, name)(x) for name in FUNCTIONS],
            lambda n, x: n.add(x, 1j), lambda n, x: n.pow(x, 2), lambda n, x: n.square(x),
            lambda n, x: n.where(n.real(x) > 0, x, 1.5), lambda n, x: n.equal(x, n.conj(x)),
            lambda n, x: n.sum(x, axis=0), lambda n, x: n.prod(x[:, :2], axis=1),
            lambda n, x: n.mean(x, axis=(0, 1)), lambda n, x: n.cumulative_sum(x, axis=0),
            lambda n, x: n.cumulative_prod(x, axis=1), lambda n, x: n.any(x), lambda n, x: n.all(x),
            lambda n, x: n.count_nonzero(x, axis=1), lambda n, x: n.vecdot(x, n.exp(x)),
            lambda n, x: n.matmul(x, x.mT), lambda n, x: n.tensordot(x, x, axes=((0,), (0,))),
            lambda n, x: n.linalg.trace(x), lambda n, x: n.linalg.outer(x[0], x[1]),
            lambda n, x: n.linalg.vector_norm(x), lambda n, x: n.linalg.matrix_norm(x),
            lambda n, x: n.linalg.matrix_power(x[:, :3], 3), lambda n, x: n.tril(x),
            lambda n, x: n.linalg.matrix_power(x[:, :3], -2), lambda n, x: n.linalg.pinv(x),
            lambda n, x: n.linalg.inv(n.stack([x[:, :3], x[:, 1:]])),
            lambda n, x: n.linalg.solve(x[:, 1:], x), lambda n, x: n.linalg.svdvals(x),
            lambda n, x: n.linalg.solve(x[:, 1:], x[:, 0]), lambda n, x: n.linalg.matrix_rank(x),
            lambda n, x: n.linalg.eigvalsh(n.matmul(x, n.conj(x.mT))),
            lambda n, x: n.linalg.matrix_norm(x, ord="nuc", keepdims=True),
            lambda n, x: n.linalg.matrix_norm(x, ord=-2), lambda n, x: n.diff(x, axis=0),
            lambda n, x: n.unique_all(n.concat([x, x])).values,
            lambda n, x: n.unique_all(n.stack([x, n.conj(x), x])).inverse_indices,
            lambda n, x: n.linspace(0, 1 + 2j, 5, dtype=x.dtype), lambda n, x: n.zeros_like(x),
            lambda n, x: n.fft.fft(x), lambda n, x: n.fft.ifft(x, n=6, axis=0, norm="ortho"),
            lambda n, x: n.fft.fftn(x), lambda n, x: n.fft.ifftn(x, s=(3, 5), axes=(0, 1)),
            lambda n, x: n.fft.irfft(x), lambda n, x: n.fft.hfft(x, n=7, axis=-1),
            lambda n, x: n.fft.irfftn(x, axes=(1, 0), norm="forward"),
            lambda n, x: n.fft.fftshift(x, axes=0), lambda n, x: n.fft.ifftshift(x),
            lambda n, x: n.fft.rfft(n.real(x)), lambda n, x: n.fft.rfftn(n.imag(x)),
            lambda n, x: n.fft.ihfft(n.real(x), norm="backward"),
        ],
    }.items()
    for call in calls
]  # fmt: skip


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="not the standard's yet")
@pytest.mark.parametrize("number", range(len(CALLS)))
def test_values_and_dtypes_are_numpys(number: int) -> None:
    kinds, call = CALLS[number]
    for kind in kinds.split():
        given = values(kind)
        found, expected = call(xp, xp.asarray(given.copy())), np.asarray(call(np, given))
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
        if expected.dtype.name != "int64":  # NumPy's sums of int8 are its long's
            assert found.dtype.name == expected.dtype.name


def test_the_standards_own_rules() -> None:
    """Infinite quotients, descending order of equal elements, and what NumPy has no name for."""
    divisor = xp.asarray([2.0, 2, -2, -xp.inf])
    quotient = xp.floor_divide(xp.asarray([xp.inf, -3.0, 7.0, 1.0]), divisor)
    assert quotient.tolist() == [xp.inf, -2.0, -4.0, 0.0] and xp.signbit(quotient)[3]
    x = xp.asarray([1, 3, 2, 3])
    assert xp.sort(x, descending=True).tolist() == [3, 3, 2, 1]
    assert xp.argsort(x, descending=True).tolist() == [1, 3, 2, 0]
    assert xp.clip(x, 1.5, xp.inf).tolist() == [1, 3, 2, 3]
    found = xp.unique_all(xp.asarray([[2, 1], [1, 3]]))
    assert [part.tolist() for part in found] == [[1, 2, 3], [1, 0, 3], [[1, 0], [0, 2]], [2, 1, 1]]


def test_dtypes_and_limits() -> None:
    assert xp.isdtype(xp.uint8, "unsigned integer") and xp.isdtype(xp.float32, ("bool", xp.float32))
    assert not xp.isdtype(xp.bool, "numeric")
    assert xp.result_type(xp.int8, xp.uint8) is xp.int16
    assert xp.result_type(xp.ones(1, dtype=xp.float32), 2.0) is xp.float32
    wide, narrow = xp.asarray(1, dtype=xp.uint16), xp.ones(2, dtype=xp.uint8)  # 0-d ones count
    assert xp.add(wide, narrow).dtype is xp.where(narrow > 0, wide, narrow).dtype is xp.uint16
    assert xp.add(narrow, 1).dtype is xp.uint8 and (wide + narrow).dtype is xp.uint8  # PyTorch's
    assert xp.can_cast(xp.int8, xp.int16) and not xp.can_cast(xp.float64, xp.float32)
    assert xp.finfo(xp.float32).dtype is xp.float32 and xp.iinfo(xp.int8).max == 127
    info = xp.__array_namespace_info__()
    assert info.default_dtypes()["integral"] is xp.int64 and "float32" in info.dtypes()
    assert list(info.dtypes(kind="bool")) == ["bool"] and tc.device("cpu") in info.devices()


def test_complex_dtypes() -> None:
    """The standard's promotion of real to complex, limits of the parts, and no cast back."""
    info = xp.__array_namespace_info__()
    assert list(info.dtypes(kind="complex floating")) == ["complex64", "complex128"]
    assert info.default_dtypes()["complex floating"] is xp.complex64
    assert xp.isdtype(xp.complex64, "complex floating") and xp.isdtype(xp.complex64, "numeric")
    assert xp.result_type(xp.float64, xp.complex64) is xp.complex128
    assert xp.result_type(xp.float64, 1j) is xp.complex128
    assert xp.result_type(xp.float32, 1j) is xp.result_type(xp.int8, 1j) is xp.complex64
    assert xp.can_cast(xp.float32, xp.complex64) and not xp.can_cast(xp.complex64, xp.float64)
    assert xp.finfo(xp.complex128).dtype is xp.float64 and xp.finfo(xp.complex64).bits == 32
    z = xp.asarray([1 + 2j, 0])
    assert z.dtype is xp.complex64 and xp.full((), 1j).dtype is xp.complex64
    assert xp.add(xp.ones(2, dtype=xp.float64), 1j).dtype is xp.complex128
    assert xp.multiply(z, 2.0).dtype is xp.complex64
    assert xp.astype(z, xp.bool).tolist() == [True, False]
    assert xp.astype(z, xp.complex128).dtype is xp.complex128
    for dtype in (xp.float32, xp.int64):
        with pytest.raises(TypeError, match="no real values"):
            xp.astype(z, dtype)
    assert xp.sign(-0.0 * z).tolist() == [0, 0] and xp.round(z * 0.75).tolist() == [1 + 2j, 0]
    unordered: list[Callable[[Any], Any]] = [
        xp.clip, xp.var, xp.std, xp.max, xp.sort, xp.floor, lambda z: xp.less(z, z),
    ]  # fmt: skip
    for function in unordered:
        with pytest.raises(TypeError, match="dtype is not supported"):
            function(z)
    assert xp.vecdot(z, xp.asarray([1j, 1])).tolist() == 2 + 1j
    assert xp.fft.fftfreq(4, d=0.5, dtype=xp.float64).tolist() == [0.0, 0.5, -1.0, -0.5]
    assert xp.fft.rfftfreq(4).tolist() == [0.0, 0.25, 0.5]


def test_memory_is_shared_where_it_can_be() -> None:
    array = np.zeros(3)
    x = xp.asarray(array)
    array[0] = 1
    assert x.tolist() == [1, 0, 0] and xp.asarray(x) is x
    assert xp.asarray(array, copy=True).data_ptr() != x.data_ptr()
    with pytest.raises(ValueError, match="copied"):
        xp.asarray([1, 2], copy=False)
    with pytest.raises(ValueError, match="more than one"):
        xp.squeeze(xp.ones((2, 1)), axis=0)
    with pytest.raises(TypeError, match="not an array"):
        xp.exp(np.ones(2))


def test_exceptions_of_the_public_suite_have_reasons() -> None:
    """The list for --xfails-file: a comment above each group, under 5 % of the suite's 1,363."""
    text = (ROOT / "tests" / "array_api_exceptions.txt").read_text(encoding="utf-8")
    head, *groups = text.split("\n\n")
    assert "docs/exchange.md has the command" in head
    assert "--xfails-file" in (ROOT / "docs" / "exchange.md").read_text(encoding="utf-8")
    names: list[str] = []
    for group in groups:
        lines = group.splitlines()
        reason = [line for line in lines if line.startswith("# ")]
        assert reason == lines[: len(reason)] and reason, group
        names += lines[len(reason) :]
    name = re.compile(r"array_api_tests/test_\w+\.py::test_\w+(\[.+\])?")
    assert all(name.fullmatch(line) for line in names)
    assert 12 <= len(names) == len(set(names)) < 0.05 * 1363


# Libraries ----------------------------------------------------------------------------------------


def run(program: str) -> None:
    """Runs a program in a process where scipy looks at arrays' namespaces."""
    text = """
        import numpy as np, tinygrad_cuda as tc
        tc.set_default_device("cpu")
        xp = tc.array_api
        a = np.random.default_rng(0).random((20, 5))
        x = xp.asarray(a)

        def agree(function):
            found = function(x)
            assert isinstance(found, tc.Tensor), type(found)
            np.testing.assert_allclose(found.numpy(), function(a), rtol=1e-9, atol=1e-12)

    """
    program = textwrap.dedent(text) + textwrap.dedent(program)
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_scipy_computes_on_tensors() -> None:
    run("""
        import scipy.cluster.vq, scipy.special, scipy.stats
        agree(lambda v: scipy.special.logsumexp(v, axis=1))
        agree(lambda v: scipy.special.softmax(v, axis=0))
        agree(lambda v: scipy.stats.zscore(v))
        agree(lambda v: scipy.stats.kurtosis(v, axis=1))
        agree(lambda v: scipy.cluster.vq.whiten(v))
    """)


def test_scikit_learn_computes_on_tensors() -> None:
    pytest.importorskip("sklearn")
    run("""
        from sklearn import config_context
        from sklearn.decomposition import PCA
        from sklearn.linear_model import Ridge
        from sklearn.preprocessing import StandardScaler
        with config_context(array_api_dispatch=True):
            agree(lambda v: PCA(2, svd_solver="full").fit(v).explained_variance_)
            agree(lambda v: Ridge(solver="svd").fit(v[:, :3], v[:, 3]).coef_)
            agree(lambda v: StandardScaler().fit_transform(v))
    """)
