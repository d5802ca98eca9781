"""Arguments of functions as PyTorch's programs give them."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")
SHAPES = [(), (1,), (3,), (2, 3), (1, 3), (2, 1), (4, 2, 3), (4, 2, 1), (4, 1, 3), (0, 3), (2, 0)]


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmin"])
def test_stacklevel_of_softmax(name: str) -> None:
    """By position and by name; the warning has the line of the caller, or of one further out."""
    lines = []
    for lib in (torch, tc):
        x = lib.tensor([[1.0, 2.0]], **({} if lib is torch else {"device": "cpu"}))
        function = getattr(lib.nn.functional, name)
        assert function(x, 1, 3, lib.float64).dtype is lib.float64
        assert function(x, dim=1, _stacklevel=5).tolist() == function(x, 1).tolist()

        def called(level: int, function: Any = function, x: Any = x) -> Any:
            return function(x, None, level)

        for level in (3, 4):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                called(level)
            lines.append([(warning.filename, warning.lineno) for warning in caught])
    assert lines[2:] == lines[:2] and len(lines[0]) == 1


def nll(lib: Any, arrays: tuple[Any, ...], reduction: str) -> list[Any] | None:
    """The loss and its gradients, or None where the shapes are refused."""
    like = {} if lib is torch else {"device": "cpu"}
    tensors = [lib.tensor(array, requires_grad=True, **like) for array in arrays]
    try:
        loss = lib.nn.functional.gaussian_nll_loss(*tensors, full=True, reduction=reduction)
    except (ValueError, RuntimeError):
        return None
    loss.sum().backward()
    return [loss.detach().numpy(), *(tensor.grad.numpy() for tensor in tensors)]


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_shapes_of_gaussian_nll_loss(reduction: str) -> None:
    rng = np.random.default_rng(0)
    accepted = 0
    for shapes in itertools.product(SHAPES, repeat=3):
        mean, target, spread = (np.asarray(rng.standard_normal(shape)) for shape in shapes)
        arrays = mean, target, np.abs(spread)
        theirs, ours = nll(torch, arrays, reduction), nll(tc, arrays, reduction)
        assert (theirs is None) == (ours is None), shapes
        if theirs is None or ours is None:
            continue
        accepted += 1
        for one, other in zip(ours, theirs, strict=True):
            assert one.shape == other.shape, shapes
            np.testing.assert_allclose(one, other, rtol=1e-9, err_msg=str(shapes))
    assert accepted > 100


def test_negative_number_as_variance() -> None:
    x = tc.ones(2, device="cpu")
    with pytest.raises(ValueError, match="var is negative"):
        tc.nn.functional.gaussian_nll_loss(x, x, -1.0)
