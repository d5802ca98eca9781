"""grid_sample and affine_grid of volumes, beside torch."""

from __future__ import annotations

import numpy as np
import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")
F, G = tc.nn.functional, torch.nn.functional


def drawn(*shape: int, seed: int = 0) -> tuple[tc.Tensor, torch.Tensor]:
    values = np.random.default_rng(seed).normal(size=shape)
    ours = tc.tensor(values, device="cpu", requires_grad=True)
    return ours, torch.tensor(values, requires_grad=True)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [True, False])
def test_volumes(mode: str, padding: str, aligned: bool) -> None:
    (x, x_), (grid, grid_) = drawn(2, 3, 4, 5, 2), drawn(2, 3, 2, 4, 3, seed=1)
    ours = F.grid_sample(x, grid, mode, padding, aligned)
    theirs = G.grid_sample(x_, grid_, mode, padding, aligned)
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), atol=1e-12)
    weights = np.random.default_rng(2).normal(size=theirs.shape)
    (ours * tc.tensor(weights, device="cpu")).sum().backward()
    (theirs * torch.tensor(weights)).sum().backward()
    for a, b in ((x, x_), (grid, grid_)):
        # The grid's gradient of ``nearest`` is 0 in torch, none here.
        if b.grad is not None and (b is x_ or mode != "nearest"):
            assert a.grad is not None
            np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), atol=1e-12)


@pytest.mark.parametrize("aligned", [True, False])
def test_maps_of_volumes(aligned: bool) -> None:
    theta, theta_ = drawn(2, 3, 4)
    ours = F.affine_grid(theta, (2, 1, 3, 1, 5), align_corners=aligned)
    theirs = G.affine_grid(theta_, (2, 1, 3, 1, 5), align_corners=aligned)
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), atol=1e-12)


def test_what_does_not_fit() -> None:
    (x, _), (grid, _) = drawn(2, 3, 4, 5, 2), drawn(2, 3, 2, 4, 3)
    with pytest.raises(tc.ArgumentError, match="bicubic"):
        F.grid_sample(x, grid, "bicubic")
    with pytest.raises(tc.ShapeError):
        F.grid_sample(x, grid[..., :2])
    with pytest.raises(tc.ShapeError):
        F.affine_grid(tc.zeros(2, 2, 3, device="cpu"), (2, 1, 3, 1, 5))


def test_no_samples() -> None:
    x, grid = tc.zeros(0, 3, 4, 5, device="cpu"), tc.zeros(0, 2, 2, 2, device="cpu")
    assert F.grid_sample(x, grid).shape == (0, 3, 2, 2)


def test_a_large_image_is_read_at_the_right_place() -> None:
    wide = 1 << 13
    x = tc.zeros(1, 1, wide, wide + 1, device="cpu")
    x[0, 0, -1, -2] = 1.0
    place = tc.tensor([2 * (wide - 1) / wide - 1.0, 1.0], device="cpu").reshape(1, 1, 1, 2)
    assert F.grid_sample(x, place, "nearest", align_corners=True).item() == 1.0
