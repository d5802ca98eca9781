"""NumPy's scalars, arrays and functions beside Tensors, and the dtypes of what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore")

Program = Callable[..., Any]

SCALARS: dict[str, Program] = {
    "product": lambda x: np.sqrt(2.0) * x,
    "sum": lambda x: np.float32(0.1) + x,
    "difference": lambda x: np.float64(1) - x,
    "quotient": lambda x: np.float64(1) / x,
    "power": lambda x: np.float32(2) ** x,
    "remainder": lambda x: np.int64(7) % x,
    "less": lambda x: np.float64(2) < x,
    "equal": lambda x: np.float64(2) == x,
    "add": lambda x: np.add(x, 1),
}
# torch lets NumPy compute these; here they are the functions of the package.
FUNCTIONS: dict[str, tuple[Program, Program]] = {
    "exp": (np.exp, tc.exp),
    "sqrt": (np.sqrt, tc.sqrt),
    "arctan2": (lambda x: np.arctan2(x, x + 1), lambda x: tc.atan2(x, x + 1)),
    "isfinite": (np.isfinite, tc.isfinite),
    "absolute": (np.absolute, tc.abs),
    "rint": (np.rint, tc.round),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64"])
@pytest.mark.parametrize("name", SCALARS)
def test_numpy_on_the_left(name: str, dtype: str) -> None:
    ours = SCALARS[name](tc.tensor([1, 2, 3], dtype=getattr(tc, dtype)))
    theirs = SCALARS[name](torch.tensor([1, 2, 3], dtype=getattr(torch, dtype)))
    assert isinstance(ours, tc.Tensor)
    assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_numpy_functions_are_ours(name: str, dtype: str) -> None:
    numpy_function, ours = FUNCTIONS[name]
    x = tc.tensor([1, 2, 3], dtype=getattr(tc, dtype))
    found, wanted = numpy_function(x), ours(x)
    assert isinstance(found, tc.Tensor)
    assert found.dtype is wanted.dtype
    assert found.tolist() == wanted.tolist()


def test_arrays_on_the_left() -> None:
    """torch refuses arrays on the left; here they are tensors, as on the right."""
    x = tc.tensor([1.0, 2.0], device="cpu", requires_grad=True)
    y = np.array([3.0, 4.0]) * x
    assert isinstance(y, tc.Tensor)
    assert y.dtype is tc.float64
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 4.0]
    product = np.eye(2, dtype=np.float32) @ x.detach()
    assert isinstance(product, tc.Tensor)
    assert product.tolist() == [1.0, 2.0]
    assert (np.array([1.0, 3.0]) == x).tolist() == [True, False]


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("shape", [(2, 3), (2,)])
def test_products_with_arrays(dtype: str, shape: tuple[int, ...]) -> None:
    """On the right they were refused, and taken on the left; torch refuses the left."""
    array = np.arange(1, 1 + np.prod(shape), dtype=dtype).reshape(shape)
    kinds = {lib: getattr(lib, dtype) for lib in (tc, torch)}
    square = [[1, 2], [3, 4]]
    ours, theirs = (
        lib.tensor(square, dtype=kinds[lib], device="cpu") @ array for lib in (tc, torch)
    )
    assert isinstance(ours, tc.Tensor)
    assert ours.dtype is kinds[tc]
    assert ours.tolist() == theirs.tolist()
    x = tc.ones(2, 2, device="cpu", requires_grad=True)
    (x @ np.array([3.0, 4.0], np.float32)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[3.0, 4.0], [3.0, 4.0]]
    for lib in (tc, torch):
        with pytest.raises(TypeError):
            lib.matmul(lib.ones(2, 2, device="cpu"), np.ones((2, 2)))
        for other in ([1.0, 2.0], "a", None, np.float32(2)):
            with pytest.raises((TypeError, ValueError)):
                lib.ones(2, 2, device="cpu") @ other


def test_numpy_functions_are_recorded() -> None:
    x = tc.tensor([0.5, 1.0], requires_grad=True)
    np.exp(x).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), np.exp([0.5, 1.0]), rtol=1e-6)


def test_what_numpy_computes() -> None:
    x = tc.tensor([1.0, 2.0])
    array = np.array([1.0, 1.0], np.float32)
    array += x
    assert array.tolist() == [2.0, 3.0]
    assert np.cbrt(tc.tensor([8.0])).tolist() == [2.0]
    with pytest.raises(tc.GradientError):
        np.cbrt(tc.tensor([8.0], requires_grad=True))
    with pytest.raises(tc.ArgumentError, match="cannot write to a Tensor"):
        np.add(array, array, out=x)


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "argmax": np.argmax,
    "argmax of rows": lambda t: np.argmax(t, axis=1),
    "argsort": np.argsort,
    "clip": lambda t: np.clip(t, 0, 1),
    "cumsum": np.cumsum,
    "inverse": np.linalg.inv,
    "repeat": lambda t: np.repeat(t, 2),
    "reshape": lambda t: np.reshape(t, -1),
    "round": np.round,
    "sort": np.sort,
    "take": lambda t: np.take(t, [0, 1]),
    "transpose": np.transpose,
}


@pytest.mark.parametrize("name", WRAPPED)
def test_functions_of_numpy_give_tensors_as_with_torch(name: str) -> None:
    """Where NumPy has a function that is no ufunc it computes, and hands its array back."""
    rows = [[0.5, 2.0], [-1.0, 3.0]]
    ours, theirs = (WRAPPED[name](lib.tensor(rows, device="cpu")) for lib in (tc, torch))
    if isinstance(theirs, torch.Tensor):
        assert isinstance(ours, tc.Tensor)
        assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
    assert type(ours).__name__ == type(theirs).__name__
    assert ours.tolist() == theirs.tolist()


LISTS: dict[str, Any] = {
    "float64": [np.float64(1)],
    "int32": [np.int32(1)],
    "nested": [[np.int16(1)], [np.int16(2)]],
    "half": [np.float16(1)],
    "half and number": [np.float16(1), 1.0],
    "number and float64": [1, np.float64(1)],
    "int32 and number": [np.int32(1), 2],
    "bool": [np.bool_(True)],
    "bool and number": [np.bool_(True), 1.0],
    "array": [np.ones(2)],
    "arrays": [np.ones(2, np.int32), np.zeros(2, np.int32)],
    "numbers": [1, 2.0],
    "integers": [1, 2],
    "empty": [],
    "scalar": np.float32(1),
}


@pytest.mark.parametrize("name", LISTS)
def test_dtypes_of_lists(name: str) -> None:
    found = tc.tensor(LISTS[name])
    wanted = torch.tensor(LISTS[name])
    assert found.dtype.name == str(wanted.dtype).removeprefix("torch.")
    assert found.tolist() == wanted.tolist()


def test_dtypes_of_lists_of_tensors() -> None:
    for dtype in ("float64", "int32", "bool"):
        found = tc.tensor([tc.tensor(1, dtype=getattr(tc, dtype))])
        assert found.dtype is getattr(tc, dtype)
    assert tc.tensor([ml_dtypes.bfloat16(1)]).dtype is tc.bfloat16


@pytest.mark.parametrize("value", [300, -400, 256.0])
def test_numbers_that_do_not_fit(value: Any) -> None:
    for lib, refusal in ((torch, RuntimeError), (tc, tc.ArgumentError)):
        with pytest.raises(refusal):
            lib.full((2,), value, dtype=lib.uint8)
    with pytest.raises(RuntimeError):
        torch.tensor([1, value], dtype=torch.uint8)
    with pytest.raises(tc.ArgumentError, match="does not fit uint8"):
        tc.tensor([1, value], dtype=tc.uint8)


def test_comparisons_with_what_is_no_tensor() -> None:
    x = tc.tensor([1.0])
    assert (x == None) is False  # noqa: E711
    assert (x != None) is True  # noqa: E711
    assert (x == "text") is False
    assert x not in [None, "text"]
    assert (x.device == "auto") is False
    assert (x.device != "auto") is True


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_default_eps_of_rms_norm(dtype: str) -> None:
    def small(lib: Any) -> Any:
        x = lib.tensor([1e-3, 2e-3], dtype=getattr(lib, dtype))
        return lib.nn.functional.rms_norm(x, (2,))

    np.testing.assert_allclose(small(tc).double().numpy(), small(torch).double().numpy(), rtol=1e-2)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
def test_variance_of_nothing(name: str, shape: tuple[int, ...]) -> None:
    for dim in (None, 0, -1):
        found = getattr(tc, name)(tc.zeros(shape), dim)
        wanted = getattr(torch, name)(torch.zeros(shape), dim)
        pairs = [(found, wanted)] if name in ("var", "std") else zip(found, wanted)
        for ours, theirs in pairs:
            np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_alpha_of_mixed_dtypes() -> None:
    for lib in (tc, torch):
        total = lib.add(lib.tensor([1], dtype=lib.int32), lib.tensor([True]), alpha=3)
        assert total.tolist() == [4]
        assert str(total.dtype).endswith("int32")


@pytest.mark.parametrize("array", [np.ones(3, np.float32), np.ones(3)], ids=["float32", "float64"])
def test_arrays_are_refused_on_another_device_every_time(array: Any) -> None:
    """Once an operation had met a number, an array of cpu was taken for a value of the device."""
    x = tc.ones(3, device="emu")
    (x * 2.5).tolist()
    (x * np.float64(2.5)).tolist()
    same = array.astype("float32")  # products do not promote
    right = (lambda: x * array, lambda: x - array, lambda: tc.maximum(x, array), lambda: x @ same)
    left = (lambda: array * x, lambda: array - x, lambda: np.maximum(array, x), lambda: same @ x)
    for function in (*right, *left):
        with pytest.raises(tc.DeviceError, match="different devices"):
            function()


def test_lists_and_texts_are_not_equal_to_tensors() -> None:
    for lib in (tc, torch):
        x = lib.tensor([1.0, 2.0], device="cpu")
        for other in ([1.0, 2.0], (1.0, 2.0), np.str_("a"), "a", None):
            assert (x == other) is False
            assert (other == x) is False
            assert (x != other) is True


@pytest.mark.parametrize("data", [2**63, [2**63], [2**64, 1], [-(2**63) - 1], [2**63, -1]])
def test_integers_beyond_int64_are_refused(data: Any) -> None:
    """They wrapped, or were called objects."""
    for make in (tc.tensor, tc.as_tensor):
        with pytest.raises(tc.ArgumentError, match="does not fit int64"):
            make(data, device="cpu")
    assert tc.tensor([2**63, 0.5], device="cpu").dtype == tc.float32
    assert tc.tensor([2**63 - 1], device="cpu").item() == 2**63 - 1
