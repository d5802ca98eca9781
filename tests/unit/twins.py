"""Runs one program on tinygrad_cuda and on torch and compares values, strides and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")


def values(*shape: int, dtype: str = "float64", seed: int = 0) -> np.ndarray[Any, Any]:
    """Fixed random values: distinct reals, or small integers."""
    generator = np.random.default_rng([seed, *shape])
    if dtype == "bool":
        return generator.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        return generator.integers(0, 5, shape).astype(dtype)
    return generator.standard_normal(shape).astype(dtype)


def _outputs(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


def _inputs(library: Any, arrays: tuple[Any, ...], grad: bool) -> list[Any]:
    if library is tc:
        tensors = [tc.tensor(array, device="cpu") for array in arrays]
    else:
        tensors = [torch.tensor(array) for array in arrays]
    for tensor in tensors:
        if grad and tensor.is_floating_point():
            tensor.requires_grad_()
    return tensors


def _gradients(library: Any, tensors: list[Any], outputs: list[Any]) -> list[Any]:
    """Gradients of a fixed weighted sum of all floating outputs."""
    total: Any = None
    for seed, output in enumerate(outputs):
        if output.is_floating_point() and output.requires_grad:
            weight = values(*output.shape, seed=seed + 100).astype("float64")
            part = (output * _inputs(library, (weight,), False)[0]).sum()
            total = part if total is None else total + part
    assert total is not None, "nothing to differentiate"
    total.backward()
    return [tensor.grad for tensor in tensors if tensor.is_floating_point()]


def compare(
    function: Callable[..., Any],
    *arrays: Any,
    grad: bool = True,
    strides: bool = True,
    tolerance: float = 1e-12,
) -> None:
    """Asserts that ``function(library, *tensors)`` gives the same on both libraries.

    Compared are shape, dtype, values, strides (where a dimension has more than one element) and,
    if `grad`, the gradients of all floating inputs.
    """
    found = []
    for library in (tc, torch):
        tensors = _inputs(library, arrays, grad)
        outputs = _outputs(function(library, *tensors))
        gradients = _gradients(library, tensors, outputs) if grad else []
        found.append((outputs, gradients))
    (ours, our_gradients), (theirs, their_gradients) = found
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        assert tuple(a.shape) == tuple(b.shape)
        assert a.dtype.name == str(b.dtype).removeprefix("torch.")
        expected = b.detach().numpy()
        np.testing.assert_allclose(
            a.detach().numpy(), expected, rtol=tolerance, atol=tolerance, strict=True
        )
        if strides and b.numel():
            wanted = [stride for stride, size in zip(b.stride(), b.shape) if size > 1]
            assert [stride for stride, size in zip(a.strides, a.shape) if size > 1] == wanted
            assert a.is_contiguous() == b.is_contiguous()
    for a, b in zip(our_gradients, their_gradients):
        assert (a is None) == (b is None)
        if b is not None:
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=tolerance, atol=tolerance)


def errors(function: Callable[..., Any], *arrays: Any) -> str:
    """The text of the error that both libraries raise: ours, without the user's line.

    That line is the caller's own, which may quote the text that it expects.
    """
    with pytest.raises((RuntimeError, IndexError, ValueError, TypeError)):
        function(torch, *_inputs(torch, arrays, False))
    with pytest.raises(tc.TgcError) as caught:
        function(tc, *_inputs(tc, arrays, False))
    lines = str(caught.value).splitlines()
    return "\n".join(line for line in lines if not line.startswith("  at:"))
