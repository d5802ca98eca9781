"""torch's own sample inputs, handed to both libraries: what their tests share.

Values, dtypes and shapes of the results, and gradients, in float64.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")
if not torch.__version__.startswith("2.13."):
    # They are an internal part: each version has others, and modules that are written otherwise.
    pytest.skip("the samples compared are those of torch 2.13", allow_module_level=True)
pytest.importorskip("expecttest")  # torch's module of samples needs it
collection = pytest.importorskip("torch.testing._internal.common_methods_invocations")

SAMPLES, LARGEST = 3, 300
VALUES, GRADIENTS = 1e-10, 1e-8
ROUNDING = 1e-13  # what is left of terms of size 1 that cancel


def full_name(op: Any) -> str:
    return op.name + ("." + op.variant_test_name if op.variant_test_name else "")


def seed() -> None:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 (torch's samples draw from it)
    random.seed(0)


def handed_over(value: Any, pairs: list[tuple[Any, Any]]) -> Any:
    """torch's arguments as ours; `pairs` collects the tensors of both."""
    if isinstance(value, torch.Tensor):
        for theirs, ours in pairs:
            if theirs is value:
                return ours
        if value.requires_grad:
            value.retain_grad()  # some samples are results themselves
        tensor = tc.tensor(value.detach().numpy(), device="cpu", requires_grad=value.requires_grad)
        pairs.append((value, tensor))
        return tensor
    if isinstance(value, torch.dtype):
        return getattr(tc, str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return "cpu"
    if getattr(value, "__module__", "") in ("torch.nn.functional", "torch._C._nn"):
        return getattr(tc.nn.functional, value.__name__)
    if isinstance(value, dict):
        extra = (torch.layout, torch.memory_format)
        return {k: handed_over(v, pairs) for k, v in value.items() if not isinstance(v, extra)}
    if isinstance(value, list | tuple):
        parts = [handed_over(part, pairs) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value


def flat(result: Any) -> list[Any]:
    if isinstance(result, list | tuple):
        return [tensor for part in result for tensor in flat(part)]
    return [result]


def close(found: Any, expected: Any, tolerance: float) -> None:
    a, b = np.asarray(found), np.asarray(expected)
    if b.dtype.kind != "f":
        np.testing.assert_array_equal(a, b)
        return
    finite = np.isfinite(b)
    np.testing.assert_array_equal(a[~finite], b[~finite])
    scale = np.max(np.abs(b[finite]), initial=0)
    np.testing.assert_allclose(
        a[finite], b[finite], rtol=tolerance, atol=tolerance * scale + ROUNDING
    )


def alike(ours: list[Any], theirs: list[Any], values: bool) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert tuple(a.shape) == tuple(b.shape)
        assert a.dtype.name == str(b.dtype).removeprefix("torch.")
        if values:
            single = b.dtype in (torch.float32, torch.float16, torch.bfloat16)
            as_double = (x.detach().double() if single else x.detach() for x in (a, b))
            close(*(x.numpy() for x in as_double), 1e-5 if single else VALUES)


def weighted(library: Any, results: list[Any]) -> Any:
    """A fixed weighted sum of what can be differentiated; None if nothing can."""
    total: Any = None
    for number, result in enumerate(results):
        if isinstance(result, library.Tensor) and result.requires_grad:
            rng = np.random.default_rng([number, *result.shape])
            weights = np.asarray(rng.uniform(-1, 1, tuple(result.shape)))
            factor = tc.tensor(weights, device="cpu") if library is tc else torch.tensor(weights)
            part = (result.double() * factor).sum()
            total = part if total is None else total + part
    return total


def samples(op: Any, gradual: bool, count: int = SAMPLES, largest: int = LARGEST) -> Iterator[Any]:
    """The first of the op's samples that are small."""
    seed()
    # Not op.sample_inputs, which walks the stack of frames each time.
    found = op.sample_inputs_func(op, "cpu", torch.float64, gradual)
    small = (s for s in found if not isinstance(s.input, torch.Tensor) or s.input.numel() < largest)
    return itertools.islice(small, count)


def both(ours: Any, theirs: Any, pairs: Iterable[tuple[Any, Any]], values: bool = True) -> None:
    """Raises where results differ, or gradients of the (theirs, ours) in `pairs`."""
    expected = weighted(torch, flat(theirs))
    if expected is not None:
        total = weighted(tc, flat(ours))
        expected.backward()
        total.backward()  # before the first look: values and gradients are one plan
    alike(flat(ours), flat(theirs), values)
    for b, a in pairs if expected is not None else ():
        if b.requires_grad:
            none = np.zeros(tuple(b.shape))
            wanted = none if b.grad is None else b.grad.numpy(force=True)
            close(none if a.grad is None else a.grad.numpy(), wanted, GRADIENTS)
            b.grad = None  # samples share tensors
