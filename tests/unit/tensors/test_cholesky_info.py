"""cholesky_ex against torch: what it says of matrices that are not positive definite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")
GOOD = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]])
CASES = {
    "good": GOOD,
    "first": -GOOD,
    "second": GOOD * [[1, 9, 1], [9, 1, 1], [1, 1, 1]],
    "third": GOOD * [[1, 1, 9], [1, 1, 9], [9, 9, 1]],
    "batch": np.stack([GOOD, -GOOD, 2 * GOOD]).reshape(3, 1, 3, 3),
    "none": np.zeros((0, 2, 2)),
}


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_info(name: str, upper: bool) -> None:
    results: list[Any] = []
    for lib in (tc, torch):
        device = {"device": "cpu"} if lib is tc else {}
        a = lib.tensor(CASES[name], requires_grad=True, **device)
        factor, info = lib.linalg.cholesky_ex(a, upper=upper)
        right = (info == 0).unsqueeze(-1).unsqueeze(-1)
        (factor * right).pow(2).sum().backward()
        kept = (factor * right).detach().numpy()
        gradient = (a.grad * right).numpy()
        results.append((kept, info.numpy(), gradient if np.all(info.numpy() == 0) else 0))
    for own, other in zip(*results, strict=True):
        np.testing.assert_allclose(own, other, atol=1e-12)
    assert results[0][1].dtype == results[1][1].dtype


def test_no_gradient_where_there_is_no_factor() -> None:
    a = tc.tensor(CASES["batch"], device="cpu", requires_grad=True)
    tc.linalg.cholesky_ex(a).L.sum().backward()
    assert a.grad.isfinite().all().item() and not a.grad[1].any().item()


def test_errors_on_demand() -> None:
    with pytest.raises(tc.linalg.LinAlgError):
        tc.linalg.cholesky_ex(tc.tensor(-GOOD, device="cpu"), check_errors=True)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("name", ["first", "second", "third"])
def test_columns_before_the_failing_minor(name: str, upper: bool) -> None:
    """Programs find a direction of negative curvature from them; zeros had one loop for ever."""
    columns = []
    for lib in (tc, torch):
        device = {"device": "cpu"} if lib is tc else {}
        factor, info = lib.linalg.cholesky_ex(lib.tensor(CASES[name], **device), upper=upper)
        factor = factor.mT if upper else factor
        columns.append(factor[:, : int(info) - 1].numpy())
    np.testing.assert_allclose(*columns, atol=1e-12)
