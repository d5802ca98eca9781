"""Eigenvalues of general matrices against torch: values, gradients twice, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")
rng = np.random.default_rng(4)
TURN = np.array([[0.0, -2.0, 0.5], [1.0, 0.3, 0.0], [0.2, 0.1, -1.5]])
CASES = {
    "complex pair": TURN,
    "several": rng.standard_normal((2, 3, 4, 4)),
    "of complex": rng.standard_normal((3, 3)) + 1j * rng.standard_normal((3, 3)),
    "single": rng.standard_normal((3, 3)).astype(np.float32),
    "one": np.array([[3.0]]),
    "symmetric": TURN + TURN.T,
    "none": np.zeros((0, 2, 2)),
}


@pytest.fixture(autouse=True)
def on_cpu() -> Any:
    tc.set_default_device("cpu")
    yield
    tc.set_default_device(None)


def ask(lib: Any, array: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Values, and gradients of what does not depend on the phase of vectors."""
    a = lib.tensor(array, requires_grad=True)
    values, vectors = lib.linalg.eig(a)
    weights = lib.arange(float(array.shape[-1])).to(a.dtype)
    loss = ((values * weights).abs().pow(2) + values.real).sum()
    loss = loss + (vectors.abs().pow(2) * weights.real.unsqueeze(-1)).sum()
    (gradient,) = lib.autograd.grad(loss, a, create_graph=True)
    (second,) = lib.autograd.grad(gradient.abs().pow(2).sum(), a)
    only = lib.linalg.eigvals(a.detach())
    return [x.detach().numpy() for x in (values, vectors, gradient, second, only)]


@pytest.mark.parametrize("name", CASES)
def test_like_torch(name: str) -> None:
    ours, theirs = ask(tc, CASES[name]), ask(torch, CASES[name])
    single = CASES[name].dtype == np.float32
    # Vectors are LAPACK's up to their phases.
    matrices = CASES[name] @ ours[1] - ours[1] * ours[0][..., None, :]
    np.testing.assert_allclose(matrices, 0 * matrices, atol=1e-5 if single else 1e-12)
    ours[1], theirs[1] = np.abs(ours[1]), np.abs(theirs[1])
    for own, other in zip(ours, theirs, strict=True):
        assert own.dtype == other.dtype and own.shape == other.shape
        scale = max(1.0, np.abs(other).max(initial=0))
        np.testing.assert_allclose(own / scale, other / scale, atol=1e-4 if single else 1e-9)


def test_gradcheck() -> None:
    a = tc.tensor(TURN, requires_grad=True)
    assert tc.autograd.gradcheck(lambda a: tc.linalg.eigvals(a).abs(), (a,))
    assert tc.autograd.gradgradcheck(lambda a: tc.linalg.eigvals(a).real, (a,))


def test_on_kernels() -> None:
    a = tc.tensor(TURN, device="emu", requires_grad=True)
    values, vectors = tc.linalg.eig(a)
    assert values.device.type == "emu"
    (values.abs().sum() + vectors.abs().sum()).backward()
    b = torch.tensor(TURN, requires_grad=True)
    values, vectors = torch.linalg.eig(b)
    (values.abs().sum() + vectors.abs().sum()).backward()
    np.testing.assert_allclose(a.grad.cpu().numpy(), b.grad.numpy(), atol=1e-9)


def test_refusals() -> None:
    with pytest.raises(tc.ShapeError, match="square"):
        tc.linalg.eig(tc.ones(2, 3))
    with pytest.raises(tc.DTypeError, match="not supported"):
        tc.linalg.eigvals(tc.ones(2, 2).half())
    with pytest.raises(tc.linalg.LinAlgError, match="infinite or NaN"):
        tc.linalg.eig(tc.full((2, 2), float("nan")))
