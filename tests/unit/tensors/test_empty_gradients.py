"""Results of Tensors without elements require gradients as PyTorch's do, and pass them back."""

from __future__ import annotations

from typing import Any

import pytest

import tinygrad_cuda as tc

CASES = {
    "logsumexp": lambda m, x: m.logsumexp(x, -1),
    "logsumexp over all": lambda m, x: m.logsumexp(x, (0, 1, 2), True),
    "median": lambda m, x: m.median(x),
    "nanmedian": lambda m, x: m.nanmedian(x),
    "topk": lambda m, x: m.topk(x, 0).values,
    "topk of rows": lambda m, x: m.topk(x, 2, 0).values,
    "local_response_norm": lambda m, x: m.nn.functional.local_response_norm(x, 2),
    "softmax": lambda m, x: m.softmax(x, -1),
    "mean": lambda m, x: m.mean(x),
    "sort": lambda m, x: m.sort(x).values,
}


def results(library: Any, case: str) -> tuple[Any, ...]:
    x = library.zeros((7, 0, 0)).requires_grad_()
    y = CASES[case](library, x)
    y.sum().backward()
    values = [repr(value) for value in y.detach().reshape(-1).tolist()]
    return tuple(y.shape), y.requires_grad, values, tuple(x.grad.shape)


@pytest.mark.parametrize("case", CASES)
def test_nothing_has_the_gradients_of_torch(case: str) -> None:
    torch = pytest.importorskip("torch")
    assert results(tc, case) == results(torch, case)
