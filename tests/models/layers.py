"""One layer or function of nn on tinygrad_cuda and on torch: values, gradients, state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn

torch = pytest.importorskip("torch")
VALUES = {"float32": 1e-5, "float64": 1e-10}
GRADIENTS = {"float32": 1e-4, "float64": 1e-8}


def real(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Fixed standard normal numbers."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def close(found: Any, wanted: Any, tolerance: float, what: str) -> None:
    """|found - wanted| <= tolerance (|wanted| + max|wanted|), of one shape."""
    assert tuple(found.shape) == tuple(wanted.shape), (what, found.shape, wanted.shape)
    assert found.dtype.name == str(wanted.dtype).removeprefix("torch."), what
    a, b = found.detach().cpu().numpy(), wanted.detach().numpy()
    if not b.size:
        return
    finite = np.isfinite(b)
    largest = np.abs(b[finite]).max() if finite.any() else 0.0
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * largest, err_msg=what)


def outputs(result: Any) -> list[Any]:
    """The tensors of a result, in order."""
    if isinstance(result, tuple | list):
        return [part for item in result for part in outputs(item)]
    return [] if result is None else [result]


def weighted(parts: list[Any], make: Callable[[Any], Any]) -> Any:
    """A scalar that depends on every floating output by another factor."""
    total: Any = None
    for part in parts:
        if part.is_floating_point() and part.requires_grad:
            factors = np.cos(np.arange(part.numel(), dtype=np.float64)).reshape(tuple(part.shape))
            term = (part * make(factors)).sum()
            total = term if total is None else total + term
    return total


def compare(
    call: Callable[[Any, Any], Any], arrays: tuple[Any, ...], dtype: str, device: str = "cpu",
    grad: bool = True,
) -> None:  # fmt: skip
    """``call(F, *tensors)`` with F the functional module of each library."""

    def ours(array: Any, leaf: bool = False) -> Any:
        tensor = tc.tensor(cast(array, dtype), device=device)
        return tensor.requires_grad_() if leaf and tensor.is_floating_point() else tensor

    def theirs(array: Any, leaf: bool = False) -> Any:
        tensor = torch.tensor(cast(array, dtype))
        return tensor.requires_grad_() if leaf and tensor.is_floating_point() else tensor

    found = []
    for functions, make in ((nn.functional, ours), (torch.nn.functional, theirs)):
        tensors = [make(array, grad) for array in arrays]
        parts = outputs(call(functions, *tensors))
        total = weighted(parts, make) if grad else None
        if total is not None:
            total.backward()
        found.append((parts, [tensor.grad for tensor in tensors if tensor.is_floating_point()]))
    check(found, dtype)


def cast(array: Any, dtype: str) -> Any:
    """Floating arrays in the dtype of the case."""
    array = np.asarray(array)
    return array.astype(dtype) if array.dtype.kind == "f" else array


def check(found: list[tuple[list[Any], list[Any]]], dtype: str) -> None:
    """Both libraries' outputs and gradients."""
    (our_parts, our_grads), (their_parts, their_grads) = found
    assert len(our_parts) == len(their_parts)
    for number, (a, b) in enumerate(zip(our_parts, their_parts)):
        close(a, b, VALUES[dtype], f"output {number}")
    for number, (a, b) in enumerate(zip(our_grads, their_grads)):
        if a is not None and b is not None:
            close(a, b, GRADIENTS[dtype], f"gradient {number}")
        else:
            rest = a if a is not None else b
            assert rest is None or not rest.detach().cpu().numpy().any(), f"gradient {number}"


def compare_layer(
    make: Callable[[Any], Any], arrays: tuple[Any, ...], dtype: str, device: str = "cpu",
    steps: int = 1, evaluate: bool = False, **options: Any,
) -> None:  # fmt: skip
    """The layer ``make(nn)`` of both libraries, with the first one's state, over `steps` calls."""
    layer = make(nn).to(device).to(getattr(tc, dtype))
    twin = make(torch.nn).to(getattr(torch, dtype))
    state = {name: np.array(value.cpu().numpy()) for name, value in layer.state_dict().items()}
    their_state = twin.state_dict()
    assert list(state) == list(their_state)
    for name, value in their_state.items():
        assert tuple(value.shape) == state[name].shape, name
    twin.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
    if evaluate:
        layer.eval()
        twin.eval()
    found = []
    for module, make_tensor in (
        (layer, lambda array: tc.tensor(array, device=device)), (twin, torch.tensor)
    ):  # fmt: skip
        inputs = [make_tensor(cast(array, dtype)) for array in arrays]
        for tensor in inputs:
            if tensor.is_floating_point():
                tensor.requires_grad_()
        parts: list[Any] = []
        for step in range(steps):
            shifted = [x * (step + 1) if x.is_floating_point() else x for x in inputs]
            parts += outputs(module(*shifted, **options))
        total = weighted(parts, lambda array, f=make_tensor: f(cast(array, dtype)))
        if total is not None:
            total.backward()
        grads = [x.grad for x in inputs if x.is_floating_point()]
        found.append((parts, grads + [p.grad for p in module.parameters()]))
    check(found, dtype)
    for name, value in twin.state_dict().items():
        close(layer.state_dict()[name], value, VALUES[dtype], name)
