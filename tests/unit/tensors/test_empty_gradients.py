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


def beside(library: Any, case: str) -> tuple[Any, list[Any]]:
    """What is joined or added to, and a gradient where an operand gave the result no value."""
    p, q = library.zeros((2, 0)).requires_grad_(), library.ones((2, 2)).requires_grad_()
    v, bad = library.zeros(0).requires_grad_(), library.full((2, 2), float("nan"))
    bad.requires_grad_()
    y = BESIDE[case](library, p, q, v, bad)
    (y * 2).sum().backward()
    grads = [None if x.grad is None else x.grad.tolist() for x in (p, q, v, bad)]
    return y.tolist(), grads


BESIDE = {
    "cat": lambda m, p, q, v, bad: m.cat([p, q], 1),
    "cat behind": lambda m, p, q, v, bad: m.cat([q, p, q, p[:, :0]], 1),
    "cat of empty ones": lambda m, p, q, v, bad: m.cat([p, p * 2, q[:, :0]], 1),
    "cat of a vector": lambda m, p, q, v, bad: m.cat([v, q], 1),
    "cat of a part": lambda m, p, q, v, bad: m.cat([bad[:0], q]),
    "hstack": lambda m, p, q, v, bad: m.hstack([p, q]),
    "vstack": lambda m, p, q, v, bad: m.vstack([bad[:0], q]),
    "addmm": lambda m, p, q, v, bad: m.addmm(bad, q.detach(), q, beta=0),
    "addmm of a row": lambda m, p, q, v, bad: m.addmm(bad[0], q, q, beta=0, alpha=2),
    "addmv": lambda m, p, q, v, bad: m.addmv(bad[0], q, q[0], beta=0),
    "addr": lambda m, p, q, v, bad: m.addr(bad, q[0], q[1], beta=0),
    "baddbmm": lambda m, p, q, v, bad: m.baddbmm(bad[None], q[None], q[None], beta=0),
    "addbmm": lambda m, p, q, v, bad: m.addbmm(bad, q[None], q[None], beta=0),
}


@pytest.mark.parametrize("case", BESIDE)
def test_operands_without_values_have_the_gradients_of_torch(case: str) -> None:
    torch = pytest.importorskip("torch")
    assert beside(tc, case) == beside(torch, case)
