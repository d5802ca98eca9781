"""Expressions with odd arguments on both libraries: values, dtypes, shapes, refusals."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.usefixtures("on_cpu"), pytest.mark.filterwarnings("ignore")]

SAME = """
t.tensor([2, 3]).sum(dtype=t.bool)
t.tensor([[2, 0], [0, 0]]).sum(0, dtype=t.bool)
t.tensor([2.0, 0.0]).nansum(dtype=t.bool)
t.tensor([2, 0]).prod(dtype=t.bool)
t.tensor([[2, 0], [3, 1]]).prod(1, keepdim=True, dtype=t.bool)
t.tensor([1, 0]).all(dim=())
t.tensor([1, 0]).any(dim=())
t.tensor([1, 0], dtype=t.uint8).any(dim=())
t.tensor([1, 0]).any(dim=(0,))
t.vander(t.tensor([1, 2, 3], dtype=t.uint8))
t.vander(t.tensor([20, 100], dtype=t.int8), 4)
t.vander(t.tensor([True, False]))
t.eye(t.tensor(2, dtype=t.uint8))
t.eye(2, t.tensor(3))
t.zeros(2, 3, dtype=t.int64).fill_diagonal_(t.tensor(3, dtype=t.int8))
t.zeros(2, 3).fill_diagonal_(t.tensor(2.5))
t.tensor([True, False]) ** True
t.tensor([True, False]) ** False
t.tensor([1 + 1j, 2.0]) ** float("nan")
t.tensor([1 + 1j, 0j]) ** 0.0
t.exp2(t.tensor([1 + 1j, -2j]))
t.tensor([1 + 1j]).exp2_()
t.ldexp(t.tensor([1 + 1j]), t.tensor([2]))
t.logaddexp(t.tensor([1 + 1j, 800 + 2j]), t.tensor([2 + 0j, 800 - 1j]))
t.nan_to_num(t.tensor([complex(float("nan"), float("inf")), complex(1, float("-inf"))]))
t.nan_to_num(t.tensor([complex(float("nan"), float("inf"))]), 2.0, 3.0, 4.0)
t.tensor([1 + 1j], dtype=t.complex128).float_power_(2)
t.adjoint(t.tensor(2.0 + 1j))
t.float_power(t.tensor([2.0]), 1j)
t.float_power(2.0, t.tensor([1j]))
t.tensor(copy.copy(t.ones(2)).tolist())
t.tensor([0, 1] * t.tensor(2))
t.tensor((0, 1) * t.tensor(2, dtype=t.uint8))
t.tensor(len("ab" * t.tensor(3)))
t.tensor(t.ones(2, 3, 4).shape[1:].numel())
t.tensor((t.ones(2, 3).shape + (1,)).numel())
t.tensor((t.ones(2, 3).shape * 2).numel())
t.tensor(pickle.loads(pickle.dumps(t.ones(2, 3).t())).stride())
t.histogram(t.tensor([1.0, 2.0])).hist
t.histogram(t.tensor([]), 3).bin_edges
t.unique(t.tensor([1.5, -1.0, float("nan"), 0.0, -1.5, 1.5], dtype=t.bfloat16))
t.unique(t.tensor([1.5, float("nan"), -1.5, 1.5], dtype=t.bfloat16), return_inverse=True)[1]
t.mode(t.tensor([float("nan")] * 3)).indices
t.quantile(t.tensor([-float("inf"), -1.0, 1.0, float("inf")]), 0.3)
t.renorm(t.tensor([[1 + 1j, 2]]), 2, 0, 1.0)
t.combinations(t.tensor([1, 2]), 0)
t.linalg.matrix_norm(t.zeros(2, 0, 3), 2)
t.linalg.matrix_norm(t.zeros(3, 0), 1, keepdim=True)
t.linalg.matrix_norm(t.zeros(0, 3), float("inf"))
t.linalg.norm(t.zeros(0, 0), 2)
t.linalg.cholesky_ex(t.full((2, 2), float("nan"))).info
t.linalg.cholesky_ex(t.tensor([[1.0, 0.0], [0.0, float("nan")]])).info
t.linalg.cond(t.zeros(2, 0, 0))
t.linalg.cond(t.zeros(0, 3), 1)
t.linalg.cond(t.ones(2, 2), 1)
t.linalg.cond(t.tensor([[[1.0, 2.0], [2.0, 4.0]], [[1.0, 0.0], [0.0, 2.0]]]), "fro")
t.frexp(t.tensor([3.0, -0.5])).exponent
t.lu(t.tensor([[2.0, 1.0], [1.0, 3.0]]), get_infos=True)[0]
t.fft.fft(t.tensor([1.0, 2.0]), out=t.empty(2, dtype=t.complex64))
t.special.entr(t.tensor([0.5]), out=t.empty(0))
t.argmax(t.tensor([1.0, 3.0]), out=t.empty(0, dtype=t.int64))
t.complex(t.ones(2), t.zeros(2), out=t.empty(0, dtype=t.complex64))
t.polar(t.ones(2), t.zeros(2), out=t.empty(0, dtype=t.complex64))
t.cummax(t.tensor([1, 3, 2]), 0, out=(t.empty(3).long(), t.empty(3).long())).indices
t.linalg.qr(t.eye(2), out=(t.empty(2, 2), t.empty(2, 2))).R.abs()
t.sort(t.tensor([2.0, 1.0]), out=(t.empty(2), t.empty(2).long())).values
"""
REFUSED = """
[0, 1] + t.tensor([2])
(0, 1) * t.tensor([2, 3])
"a" * t.tensor(2.0)
t.ones(2).shape + [1]
t.zeros(3, dtype=t.int64).__setitem__(0, 1 + 1j)
t.zeros(3).__setitem__(slice(None), 1j)
t.zeros(3).__setitem__([0, 1], 1j)
t.zeros(3).__setitem__(t.tensor([True, False, False]), 1j)
t.tensor([True, False]) ** -1
t.argmin(t.tensor(2), 1)
t.argmax(t.tensor(2), dim=-2)
t.softmax(t.tensor(2.0), 1)
t.log_softmax(t.tensor(2.0), -2)
t.flip(t.tensor(2.0), (0, 0))
t.sum(t.tensor(2.0), (0, -1))
t.count_nonzero(t.tensor(2.0), (0, 0))
t.bincount(t.tensor([1]), minlength=-1)
t.linalg.cholesky(t.tensor([[1.0, 0.0], [0.0, float("nan")]]))
t.linalg.cholesky(t.tensor([[float("inf"), 0.0], [0.0, 1.0]]))
t.ones(3, dtype=t.float64).float_power_(1j)
t.ones(3, requires_grad=True).requires_grad_(False).retain_grad()
t.ones(3, requires_grad=True).detach_().retain_grad()
"""


def value_of(expression: str, library: Any) -> Any:
    return eval(expression, {"t": library, "copy": copy, "pickle": pickle})


def lines(text: str) -> list[str]:
    return text.strip().split("\n")


@pytest.mark.parametrize("expression", lines(SAME))
def test_results_are_torchs(expression: str) -> None:
    ours, theirs = (value_of(expression, library) for library in (tc, torch))
    assert (str(ours.dtype).split(".")[-1], tuple(ours.shape)) == (
        str(theirs.dtype).split(".")[-1], tuple(theirs.shape)
    )  # fmt: skip
    assert torch.allclose(
        torch.tensor(ours.tolist(), dtype=theirs.dtype), theirs, rtol=1e-5, equal_nan=True
    )


@pytest.mark.parametrize("expression", lines(REFUSED))
def test_what_torch_refuses_is_refused(expression: str) -> None:
    for library in (torch, tc):
        with pytest.raises((RuntimeError, IndexError, ValueError, TypeError, tc.TgcError)):
            value_of(expression, library)


def test_results_with_names_keep_them_with_out() -> None:
    """Each is the Tensor that was given."""
    for library in (torch, tc):
        out: Any = library.empty(2), library.empty(2, dtype=library.int64)
        result = library.sort(library.tensor([2.0, 1.0]), out=out)
        assert result.values is out[0] and result.indices is out[1]


def test_gradients_of_complex_sums_of_exponentials() -> None:
    found = []
    for t in (torch, tc):
        a = t.tensor([1 + 1j, -2 + 0.5j], dtype=t.complex128, requires_grad=True)
        b = t.tensor([0.3 - 1j, 2], dtype=t.complex128, requires_grad=True)
        (t.logaddexp(a, b) * t.exp2(a)).abs().sum().backward()
        found.append([*a.grad.tolist(), *b.grad.tolist()])
    assert found[1] == pytest.approx(found[0], rel=1e-12)


def copies(t: Any) -> list[Any]:
    """`copy.copy` shares memory, a pickle and a deep copy do not; all keep attributes."""
    x = t.ones(2)
    x.note = "n"
    shared, apart, read = copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))
    shared.add_(1)
    w = t.ones(2, requires_grad=True)
    result = pickle.loads(pickle.dumps(w * 2))
    p = copy.copy(t.nn.Parameter(t.ones(2)))
    facts = [p.requires_grad, isinstance(p, t.nn.Parameter), copy.copy(w).requires_grad]
    return [
        x.tolist(), apart.tolist(), read.tolist(), shared.note, apart.note, read.note, *facts,
        result.requires_grad, result.is_leaf,
    ]  # fmt: skip


def test_copies_are_torchs() -> None:
    assert copies(tc) == copies(torch)


def test_limits_are_printed() -> None:
    for t in (torch, tc):
        assert repr(t.iinfo(t.int8)) == "iinfo(min=-128, max=127, dtype=int8)"
    for name in ("float16", "bfloat16", "float32", "float64"):
        assert repr(tc.finfo(getattr(tc, name))) == repr(torch.finfo(getattr(torch, name)))


def test_histograms_of_bfloat16_leave_nan_out() -> None:
    """torch has no kernel for them: the counts are those of float32."""
    values = [-1.0, float("nan"), -1.0, 1.0]
    x = tc.tensor(values, dtype=tc.bfloat16)
    found = tc.histogram(x, 4, range=(-1.0, 1.0)).hist.float().tolist()
    assert found == torch.histogram(torch.tensor(values), 4, range=(-1.0, 1.0)).hist.tolist()
