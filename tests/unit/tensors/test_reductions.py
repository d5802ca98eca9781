"""Reductions, softmax and running sums against torch: values, dtypes, gradients, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from twins import compare, errors, values

import tinygrad_cuda as tc

Program = Callable[..., Any]
INF = float("inf")

PROGRAMS: dict[str, Program] = {
    "sum": lambda lib, x: x.sum(),
    "sum dim": lambda lib, x: x.sum(1),
    "sum negative": lambda lib, x: lib.sum(x, -1, keepdim=True),
    "sum several": lambda lib, x: x.sum((0, -1)),
    "sum of no dims is of all": lambda lib, x: x.sum(dim=()),
    "sum axis": lambda lib, x: x.sum(axis=1, keepdims=True),
    "sum dtype": lambda lib, x: x.float().sum(dtype=lib.float64),
    "mean": lambda lib, x: x.mean(),
    "mean dims": lambda lib, x: x.mean(dim=(1, 2), keepdim=True),
    "prod": lambda lib, x: x.prod(),
    "prod dim": lambda lib, x: x.prod(1, keepdim=True),
    "max": lambda lib, x: x.max(),
    "min": lambda lib, x: x.min(),
    "max dim": lambda lib, x: x.max(1),
    "min dim": lambda lib, x: lib.min(x, dim=-1, keepdim=True),
    "max other": lambda lib, x: lib.max(x, x.flip(1)),
    "min other": lambda lib, x: x.min(x[0]),
    "amax": lambda lib, x: x.amax((0, 2)),
    "amin": lambda lib, x: lib.amin(x, dim=1, keepdim=True),
    "amax all": lambda lib, x: x.amax(),
    "var": lambda lib, x: x.var(),
    "var dim": lambda lib, x: x.var(1, keepdim=True),
    "var biased": lambda lib, x: x.var((0, 1), False),
    "var positional": lambda lib, x: x.var(False),
    "var correction": lambda lib, x: lib.var(x, dim=2, correction=2),
    "std": lambda lib, x: x.std(),
    "std dim": lambda lib, x: lib.std(x, 2, unbiased=False),
    "var_mean": lambda lib, x: lib.var_mean(x, (0, 2)),
    "norm": lambda lib, x: x.norm(),
    "norm dim": lambda lib, x: lib.norm(x, dim=1, keepdim=True),
    "norm 1": lambda lib, x: x.norm(1, dim=(0, 1)),
    "norm 3": lambda lib, x: x.norm(3.0, -1),
    "norm infinity": lambda lib, x: x.norm(INF, 2),
    "norm -infinity": lambda lib, x: x.norm(-INF, 0),
    "logsumexp": lambda lib, x: x.logsumexp(1),
    "logsumexp dims": lambda lib, x: lib.logsumexp(x * 50, (0, 2), keepdim=True),
    "softmax": lambda lib, x: x.softmax(-1),
    "softmax middle": lambda lib, x: lib.softmax(x * 100, dim=1),
    "log_softmax": lambda lib, x: x.log_softmax(2),
    "log_softmax first": lambda lib, x: lib.log_softmax(x * 100, 0),
    "cumsum": lambda lib, x: x.cumsum(1),
    "cumsum last": lambda lib, x: lib.cumsum(x, dim=-1),
    "cumprod": lambda lib, x: x.cumprod(2),
}

COUNTS: dict[str, Program] = {
    "argmax": lambda lib, x: x.argmax(),
    "argmax dim": lambda lib, x: x.argmax(1),
    "argmin": lambda lib, x: lib.argmin(x, dim=-1, keepdim=True),
    "any": lambda lib, x: x.any(),
    "any dim": lambda lib, x: (x > 1).any(1),
    "all": lambda lib, x: lib.all(x),
    "all dim": lambda lib, x: (x > -1).all(dim=2, keepdim=True),
    "count_nonzero": lambda lib, x: x.count_nonzero(),
    "count_nonzero dims": lambda lib, x: lib.count_nonzero(x > 0, dim=(0, 2)),
    "norm 0": lambda lib, x: x.norm(0, 1),
}


@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 4, 7)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients(name: str, shape: tuple[int, ...]) -> None:
    """Everything differentiable, over every form of `dim`."""
    compare(PROGRAMS[name], values(*shape), strides=False, tolerance=1e-9)


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name: str) -> None:
    """Results that have no gradient."""
    compare(COUNTS[name], values(3, 4, 5), grad=False, strides=False)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "bool"])
def test_integers(dtype: str) -> None:
    """Sums and products of integers and bools are int64; extremes keep the dtype."""

    def program(lib: Any, x: Any) -> Any:
        return (
            x.sum(), x.sum(0), x.prod(1), x.cumsum(1), x.count_nonzero(), (x > 0).any(),
            (x > 0).all(1), x.max(), x.amin(0), x.sum(dtype=lib.float32), x.sum(1, dtype=lib.int32),
        )  # fmt: skip

    compare(program, values(3, 4, dtype=dtype), grad=False, strides=False)


@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_positions_of_integers(dtype: str) -> None:
    """max along a dimension gives some largest element of the dimension; argmax the first."""
    x = tc.tensor(values(6, 9, dtype=dtype), device="cpu")
    array = x.numpy()
    np.testing.assert_array_equal(x.argmax(1).numpy(), array.argmax(1))
    found = x.max(1)
    np.testing.assert_array_equal(found.values.numpy(), array.max(1))
    np.testing.assert_array_equal(found.indices.numpy(), array.argmax(1))


def test_zero_dimensional() -> None:
    """0-d tensors reduce to themselves."""

    def program(lib: Any, x: Any) -> Any:
        return (
            x.sum(), x.sum(0), x.mean(-1), x.prod(), x.max(), *x.max(0), x.amin(()), x.argmax(),
            x.softmax(0), x.logsumexp(0), x.cumsum(0), x.norm(), x.any(), x.var(unbiased=False),
        )  # fmt: skip

    compare(program, values(), strides=False)


def test_no_elements() -> None:
    """Sums, products and truth of nothing have their identities; the mean is NaN."""

    def program(lib: Any, x: Any) -> Any:
        return (
            x.sum(), x.sum(1), x.prod(0), x.mean(), x.mean(0), x.any(), x.all(), x.logsumexp(0),
            x.softmax(1), x.log_softmax(0), x.cumsum(0), x.count_nonzero(), x.amax(1), x.norm(),
        )  # fmt: skip

    compare(program, values(0, 3), grad=False, strides=False)


def test_too_few_for_a_variance() -> None:
    """One element has no unbiased variance: NaN, as in torch."""
    assert np.isnan(tc.tensor([3.0], device="cpu").var().item())
    assert tc.tensor([3.0], device="cpu").var(correction=0).item() == 0


def test_nan_and_infinity() -> None:
    """NaN wins in extremes; infinities pass through logsumexp and softmax as in torch."""

    def program(lib: Any, x: Any) -> Any:
        return (
            x.max(1).values, x.min(), x.amax(1), x.argmax(1), x.logsumexp(1), x.softmax(1),
            x.log_softmax(1), x.cumsum(1), x.sum(1),
        )  # fmt: skip

    special = np.array([[1, np.nan, 2], [INF, 0, 1], [-INF, -INF, -INF], [-INF, 0, 1.0]])
    compare(program, special, grad=False, strides=False)


def test_large_logits() -> None:
    """softmax does not overflow where exp would."""
    x = tc.tensor([1000.0, 0.0], device="cpu")
    assert x.softmax(0).tolist() == [1, 0]
    assert x.log_softmax(0).tolist() == [0, -1000]


def test_gradient_of_max_goes_to_one_element() -> None:
    """Along a dimension the selected element gets all; over all elements ties share."""

    def program(lib: Any, x: Any) -> Any:
        return x.max(1).values, x.min(0).values, x.amax(1), x.max()

    compare(program, np.array([[3.0, 3, 1], [0, 2, 2]]), strides=False)


def test_second_derivatives() -> None:
    """Gradients of gradients of the compositions."""

    def program(lib: Any, x: Any) -> Any:
        total = (x.softmax(1)[:, 0] * x.norm(dim=1) * x.prod(1)).sum() + x.std() * x.logsumexp(0)[1]
        (first,) = lib.autograd.grad(total, x, create_graph=True)
        return first

    compare(program, values(3, 4), strides=False, tolerance=1e-9)


def test_prod_with_zeros() -> None:
    """The gradient of a product with none, one and two zeros is exact."""
    zeros = np.array([[2.0, 3, 4], [0, 3, 4], [0, 0, 4]])
    compare(lambda lib, x: x.prod(1), zeros, strides=False)
    compare(lambda lib, x: x[1:2].prod(), zeros, strides=False)


def test_norm_and_std_at_zero() -> None:
    """Where the root is not differentiable the gradient is zero, not NaN."""

    def program(lib: Any, x: Any) -> Any:
        return x.norm(dim=1), x.std(1)

    compare(program, np.zeros((2, 3)), strides=False)


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 200, 4097])
def test_cumsum_of_any_length(size: int) -> None:
    """Lines shorter and longer than a block, in the middle and at the end."""

    def program(lib: Any, x: Any) -> Any:
        return x.cumsum(1), x[0, :, 0].cumsum(0)

    compare(program, values(2, size, 2), strides=False, tolerance=1e-9)


def test_cumsum_keeps_nan_behind_it() -> None:
    """An element before a NaN is not touched by it."""
    array = np.arange(150.0)
    array[100] = np.nan
    found = tc.tensor(array, device="cpu").cumsum(0).numpy()
    np.testing.assert_array_equal(np.isnan(found), np.arange(150) >= 100)
    np.testing.assert_array_equal(found[:100], np.cumsum(array[:100]))


def test_max_gives_names() -> None:
    """The pair has the names values and indices."""
    found = tc.tensor([[1.0, 5.0]], device="cpu").max(dim=1)
    assert found.values.tolist() == [5]
    assert found.indices.tolist() == [1]


ERRORS: dict[str, tuple[Program, str]] = {
    "mean of integers": (lambda lib, x: x.long().mean(), "[mean] needs a floating dtype"),
    "softmax of integers": (lambda lib, x: x.long().softmax(0), "[softmax] needs a floating"),
    "dim": (lambda lib, x: x.sum(2), "-2 <= dim < 2"),
    "twice": (lambda lib, x: x.sum((0, -2)), "a dimension appears twice"),
    "max of nothing": (lambda lib, x: x[:0].max(), "nothing to reduce"),
    "argmax of nothing": (lambda lib, x: x[:0].argmax(0), "nothing to reduce"),
    "max of several": (lambda lib, x: x.max((0, 1)), "amax() reduces several dimensions"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    """Where torch raises we raise, and the text says what was wrong."""
    program, text = ERRORS[name]
    assert text in errors(program, values(2, 3))


def test_the_gradient_of_a_product_of_one_does_not_depend_on_it() -> None:
    """As in torch: its own gradient by the input is None, not zeros."""
    for lib in (tc, pytest.importorskip("torch")):
        x, w = (lib.tensor([[3.0, 4.0]], requires_grad=True) for _ in range(2))
        (slope,) = lib.autograd.grad((x * w).cumprod(0).sum(), x, create_graph=True)
        slope.sum().backward()
        assert x.grad is None
        assert w.grad.tolist() == [[1.0, 1.0]]
