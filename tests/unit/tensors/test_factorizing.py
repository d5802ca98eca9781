"""Factorizations: defining equations, what is refused, values that are written to later."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.autograd import gradcheck, gradgradcheck
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common


def matrix(*shape: int, kind: str = "cpu", grad: bool = False) -> tc.Tensor:
    array = np.random.default_rng([*shape]).standard_normal(shape)
    if shape[-1] == shape[-2]:
        array = array + 3 * np.eye(shape[-1])
    return tc.tensor(array, device=kind, requires_grad=grad)


def near(a: tc.Tensor, b: tc.Tensor) -> bool:
    return bool(np.allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-10, atol=1e-10))


@pytest.mark.parametrize("kind", ["cpu", "emu"])
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (2, 3, 4, 2)])
def test_defining_equations(shape: tuple[int, ...], kind: str) -> None:
    A = matrix(*shape, kind=kind)
    m, n = shape[-2:]
    U, S, Vh = tc.linalg.svd(A, full_matrices=False)
    assert near((U * S.unsqueeze(-2)) @ Vh, A)
    U, S, Vh = tc.linalg.svd(A)
    assert near(U @ U.mT, tc.eye(m, dtype=tc.float64, device=kind).expand(*shape[:-2], m, m))
    assert near(Vh @ Vh.mT, tc.eye(n, dtype=tc.float64, device=kind).expand(*shape[:-2], n, n))
    Q, R = tc.linalg.qr(A)
    assert near(Q @ R, A)
    assert near(R.triu(), R)
    P = tc.linalg.pinv(A)
    assert near(A @ P @ A, A)
    assert near(P @ A @ P, P)
    G = A @ A.mT + tc.eye(m, dtype=tc.float64, device=kind)
    L = tc.linalg.cholesky(G)
    assert near(L @ L.mT, G)
    values, vectors = tc.linalg.eigh(G)
    assert near((vectors * values.unsqueeze(-2)) @ vectors.mT, G)
    assert near(tc.linalg.inv(G) @ G, tc.linalg.solve(G, G))
    assert near(tc.linalg.slogdet(G).logabsdet, tc.linalg.det(G).log())


@pytest.mark.parametrize("kind", ["cpu", "emu"])
def test_tolerances_of_pinv_for_each_matrix(kind: str) -> None:
    """Numbers, 0-d Tensors, or Tensors of the batch, as for PyTorch."""
    A = tc.tensor([[[4.0, 0.0], [0.0, 1.0]]] * 2, dtype=tc.float64, device=kind)
    whole, half = [[0.25, 0.0], [0.0, 1.0]], [[0.25, 0.0], [0.0, 0.0]]

    def tolerance(value: object) -> tc.Tensor:
        return tc.tensor(value, dtype=tc.float64, device=kind)

    for options, expected in [
        ({"rtol": tolerance(0.5)}, [half, half]),
        ({"rtol": tolerance([0.5, 0.0])}, [half, whole]),
        ({"atol": tolerance([0.0, 2.0])}, [whole, half]),
        ({"atol": tolerance([2.0, 0.0]), "rtol": tolerance([0.0, 0.1])}, [half, whole]),
        ({"atol": 2.0}, [half, half]),
        ({"rcond": 0.1}, [whole, whole]),
    ]:
        np.testing.assert_allclose(tc.linalg.pinv(A, **options).cpu().numpy(), expected)


@pytest.mark.parametrize("name", ["inv", "det", "cholesky", "eigvalsh", "svdvals", "pinv"])
def test_gradients_by_differences_twice(name: str) -> None:
    """First and second derivatives of a symmetric function of a matrix."""
    function = getattr(tc.linalg, name)

    def symmetric(A: tc.Tensor) -> tc.Tensor:
        return function(A @ A.mT)

    A = matrix(3, 3, grad=True)
    assert gradcheck(symmetric, (A,))
    assert gradgradcheck(symmetric, (A,))


def test_what_fails_is_an_error_that_says_so() -> None:
    flat = tc.ones(3, 3, device="cpu")
    for call in (
        lambda: tc.linalg.inv(flat), lambda: tc.linalg.solve(flat, flat),
        lambda: tc.linalg.cholesky(-flat), lambda: tc.linalg.qr(flat, "thin"),
    ):  # fmt: skip
        with pytest.raises(tc.ArgumentError):
            call()
    with pytest.raises(tc.ShapeError, match="square"):
        tc.linalg.det(matrix(2, 3))
    with pytest.raises(tc.DTypeError, match="float32, float64 or complex"):
        tc.linalg.inv(tc.eye(2, dtype=tc.int64, device="cpu"))


def test_a_later_write_does_not_change_the_gradient() -> None:
    leaf = matrix(3, 3, grad=True)
    A = leaf * 1
    value = tc.linalg.det(A)
    A.zero_()
    value.backward()
    expected = np.linalg.det(leaf.detach().numpy()) * np.linalg.inv(leaf.detach().numpy()).T
    np.testing.assert_allclose(leaf.grad.numpy(), expected, rtol=1e-10)


def test_history_is_released() -> None:
    """No cycle holds a result: its node goes with the last handle, without the collector."""
    leaf = matrix(3, 3, grad=True)

    def custom_nodes() -> int:
        return sum(type(x) is Node and x.op is common.custom for x in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = custom_nodes()
        kept = tc.linalg.svd(leaf)
        assert custom_nodes() == before + 1
        kept.S.sum().backward()
        assert leaf.grad is not None and np.isfinite(leaf.grad.numpy()).all()
        del kept
        assert custom_nodes() == before
    finally:
        gc.enable()


def test_gradients_of_matrix_exp_are_linear_in_the_cotangent() -> None:
    """Also far from the size of the matrix: large ones lost all digits of the second gradient."""

    def gradients(scale: float) -> list[Any]:
        values = np.random.default_rng(0).normal(size=(2, 3, 3)) * 0.3
        x = tc.tensor(values, device="cpu", requires_grad=True)
        (first,) = tc.autograd.grad((tc.linalg.matrix_exp(x) * scale).sum(), x, create_graph=True)
        (second,) = tc.autograd.grad((first * scale).sum(), x)
        return [first.detach().numpy() / scale, second.numpy() / scale**2]

    for scale in (1e9, -1e6, 1e-9):
        for found, expected in zip(gradients(scale), gradients(1.0)):
            np.testing.assert_allclose(found, expected, rtol=1e-12)
