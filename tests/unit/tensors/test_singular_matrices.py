"""Singular matrices: what PyTorch does not refuse is not refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")
GOOD = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]])
CASES = {
    "good": GOOD,
    "third": np.diag([1.0, 2.0, 0.0]),
    "first": np.zeros((3, 3)),
    "batch": np.stack([GOOD, np.diag([0.0, 1.0, 1.0]), 2 * GOOD]).reshape(3, 1, 3, 3),
}


def both(program: Any, *arrays: Any) -> list[Any]:
    return [
        program(lib, *(lib.tensor(a, requires_grad=True) for a in arrays)) for lib in (tc, torch)
    ]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("vectors", [None, False, True])
def test_info_instead_of_an_error(name: str, vectors: bool | None) -> None:
    """Of `inv_ex`, and of `solve_ex` with matrices and vectors; gradients where there is one."""
    a = CASES[name]

    def program(lib: Any, x: Any, y: Any) -> Any:
        found = lib.linalg.inv_ex(x) if vectors is None else lib.linalg.solve_ex(x, y)
        value, info = found
        right = (info == 0).unsqueeze(-1)
        right = right if vectors else right.unsqueeze(-1)
        value = lib.where(right, value, lib.zeros_like(value))
        if bool((info == 0).all()):
            value.square().sum().backward()
        return value.detach().numpy(), info.numpy(), x.grad

    b = np.ones(a.shape[:-1] if vectors else (*a.shape[:-1], 2))
    (value, info, grad), (expected, other, expected_grad) = both(program, a, b)
    np.testing.assert_allclose(value, expected, atol=1e-12)
    assert info.dtype == other.dtype and info.tolist() == other.tolist()
    assert (grad is None) == (expected_grad is None)
    if grad is not None:
        np.testing.assert_allclose(grad.numpy(), expected_grad.numpy(), atol=1e-12)


@pytest.mark.parametrize("name", ["inv_ex", "solve_ex"])
def test_errors_where_they_are_asked_for(name: str) -> None:
    def program(lib: Any, x: Any, y: Any) -> None:
        function = getattr(lib.linalg, name)
        arguments = (x,) if name == "inv_ex" else (x, y)
        with pytest.raises(lib.linalg.LinAlgError):
            function(*arguments, check_errors=True)

    both(program, CASES["third"], np.ones((3, 1)))


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_triangles(upper: bool, left: bool, unit: bool) -> None:
    """Solutions and gradients of batches, which one shape is spread over."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(3, 5, 5)) + 4 * np.eye(5)
    b = rng.normal(size=(2, 1, 5, 2) if left else (2, 1, 2, 5))

    def program(lib: Any, x: Any, y: Any) -> Any:
        options = {"upper": upper, "left": left, "unitriangular": unit}
        value = lib.linalg.solve_triangular(x, y, **options)
        value.sin().sum().backward()
        return [t.detach().numpy() for t in (value, x.grad, y.grad)]

    for own, other in zip(*both(program, a, b), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-9, atol=1e-9)


def test_a_zero_on_the_diagonal_divides() -> None:
    a = np.array([[2.0, 0.0], [1.0, 0.0]])
    own, other = both(
        lambda lib, x, y: lib.linalg.solve_triangular(x, y, upper=False).detach().numpy(),
        a, np.array([[2.0], [3.0]]),
    )  # fmt: skip
    assert own.tolist() == other.tolist() == [[1.0], [np.inf]]


def test_an_empty_system() -> None:
    own, other = both(
        lambda lib, x, y: lib.linalg.solve_triangular(x, y, upper=True).shape,
        np.zeros((0, 0)), np.zeros((0, 3)),
    )  # fmt: skip
    assert tuple(own) == tuple(other) == (0, 3)
