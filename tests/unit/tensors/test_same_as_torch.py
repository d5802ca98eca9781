"""Expressions with odd arguments on both libraries: values, dtypes, shapes, refusals."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
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
t.nn.functional.hardshrink(t.tensor([0.3, -0.7, 2.0]), t.tensor(1, dtype=t.uint8))
t.nn.functional.softshrink(t.tensor([0.3, -0.7, 2.0]), np.uint8(1))
t.nn.functional.elu(t.tensor(-0.7, dtype=t.float16), t.tensor(2.0, dtype=t.float64))
t.nn.functional.celu(t.tensor(-0.7, dtype=t.float16), t.tensor(2, dtype=t.uint8))
t.nn.functional.leaky_relu(t.tensor(-0.7, dtype=t.float16), t.tensor(2.0, dtype=t.float64))
t.nn.functional.softplus(t.tensor(-0.7, dtype=t.float16), t.tensor(2.0, dtype=t.float64))
t.nn.functional.hardtanh(t.tensor(-0.7, dtype=t.float16), t.tensor(-0.5), t.tensor(2.0))
t.nn.functional.threshold(t.tensor([0.3, 2.0]), t.tensor(1, dtype=t.uint8), np.uint8(200))
t.nn.functional.rrelu(t.tensor([-1.0]), t.tensor(1, dtype=t.uint8), t.tensor(3, dtype=t.uint8))
t.nn.functional.dropout(t.ones(3), t.tensor(1, dtype=t.uint8))
t.nn.functional.alpha_dropout(t.ones(3), t.tensor(1.0), True) * 0
t.logit(t.tensor([0, 1]), t.tensor(0.25, dtype=t.float16))
t.lerp(t.ones(2), t.zeros(2), t.tensor(3, dtype=t.uint8))
t.lerp(t.ones(2), t.zeros(2), np.uint8(3))
t.linspace(0, 1, t.tensor(3))
t.polygamma(t.tensor(1), t.tensor([3.0]))
t.normal(0.0, t.tensor(0.0), (2,))
t.diag(t.ones(2), t.tensor(1, dtype=t.uint8))
t.diag(t.ones(2, 3), t.tensor(1, dtype=t.uint8))
t.diag_embed(t.ones(2), np.uint8(1))
t.diagflat(t.ones(2), t.tensor(1, dtype=t.uint8))
t.diagonal(t.ones(2, 2), np.uint8(1))
t.tril_indices(2, 2, t.tensor(1, dtype=t.uint8))
t.histc(t.arange(4.0), bins=t.tensor(2, dtype=t.uint8))
t.histc(t.arange(300.0, dtype=t.bfloat16), 300)
t.histc(t.linspace(0, 1, 1000).bfloat16(), 300).sum()
t.dist(t.ones(2, dtype=t.float16), t.zeros(2, dtype=t.complex64))
t.logsumexp(t.tensor([[1 + 1j, 2 - 1j], [800, 700]]), 1)
t.logsumexp(t.tensor([1 + 1j, 2 - 1j]), 0, keepdim=True)
t.logcumsumexp(t.tensor([1 + 1j, 2 - 1j, 3]), 0)
t.zeros(2, dtype=t.complex64).scatter_reduce(0, t.tensor([0, 0]), t.tensor([1 + 1j, 2]), "mean")
t.topk(t.tensor(3.0), 0).values
t.trapezoid(t.zeros(3, 0, dtype=t.int64))
t.trapezoid(t.zeros(0, dtype=t.int64), t.zeros(0, dtype=t.int64))
t.bincount(t.tensor([], dtype=t.int64), t.tensor([], dtype=t.float32), minlength=3)
t.zeros(0, 2)[t.tensor([0]), t.zeros(0, 1, dtype=t.int64)]
t.zeros(2, 0)[t.tensor([[5], [1]])]
t.zeros(2, 0)[[5]]
t.nn.functional.pad(t.ones(1, 1, 3), (1, 1), mode="circular", value=0.0)
t.zeros(2, True)
t.tensor(t.Size([np.int64(2), t.tensor(3)]))
t.bucketize(t.tensor(0.5 + 5e-13, dtype=t.float64), t.tensor([0.0, 0.5, 2.0]))
t.bucketize(t.tensor([0.5 + 5e-13], dtype=t.float64), t.tensor([0.0, 0.5, 2.0]))
t.bucketize(0.5 + 5e-13, t.tensor([0.0, 0.5, 2.0], dtype=t.float64))
t.searchsorted(t.tensor([1, 2, 3], dtype=t.uint8), t.tensor(-1))
t.searchsorted(t.tensor([0.0, 0.5], dtype=t.float16), t.tensor(0.5001))
t.trapezoid(t.tensor([[200], [128]], dtype=t.uint8), dim=1)
t.trapezoid(t.tensor([200, 100], dtype=t.uint8))
t.trapezoid(t.tensor([100, 100, 100], dtype=t.int8), dx=2)
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
t.nn.functional.leaky_relu(t.ones(2), t.tensor(2.0, requires_grad=True))
t.nn.functional.elu(t.ones(2), t.tensor([2.0]))
t.add(t.tensor([1, 2]), t.tensor([1, 2]), alpha=t.tensor(2.5))
t.arange(t.tensor([5]))
t.full((2,), t.tensor([5]))
t.cartesian_prod(t.tensor(1))
t.cartesian_prod(t.tensor(1), t.tensor([1]))
t.cartesian_prod(t.ones(2, 2))
t.cumsum(t.ones(2, 3))
t.ones(2, 3).cumprod()
t.ones(2, 3).flip()
t.tile(t.ones(2, 3))
t.zeros(True)
t.zeros((True,))
t.ones(1).view(True)
t.ones(2).expand(True, 2)
t.eye(True)
t.ones(2, 3).sum(True)
t.pdist(t.ones(3))
t.pdist(t.ones(2, 2, 3))
t.gradient(t.ones(3, dtype=t.uint8))
t.gradient(t.ones(3, dtype=t.bool))
t.tril(t.ones(2, 2), 0.5)
t.polygamma(1.5, t.ones(2))
t.Size([1.5])
t.Size(["a"])
t.nn.functional.one_hot(t.tensor([0, 1]), num_classes=-2)
t.nn.functional.one_hot(t.tensor([], dtype=t.int64), num_classes=0)
t.nn.functional.pad(t.ones(1, 1, 3), (1, 1), mode="reflect", value=1.0)
t.nn.functional.pad(t.ones(1, 1, 3), (1, 1), mode="replicate", value=2)
t.zeros(0, 0)[:, t.tensor([0])].tolist()
t.zeros(2, 0)[t.tensor([1.5])]
"""


# What torch 2.13 has and releases before it have not.
NEW = {
    "t.tensor([2.0, 0.0]).nansum(dtype=t.bool)",
    "t.zeros(0, 2)[t.tensor([0]), t.zeros(0, 1, dtype=t.int64)]",
    "t.nextafter(x, y)",
}
OLDER = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


def value_of(expression: str, library: Any) -> Any:
    if OLDER and expression in NEW:
        pytest.skip("the result is that of torch 2.13")
    return eval(expression, {"t": library, "copy": copy, "pickle": pickle, "np": np})


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


ON_EMU = """
t.nn.functional.celu(t.tensor(-0.7, dtype=t.float16), t.tensor(2, dtype=t.uint8))
t.histc(t.arange(300.0).bfloat16(), 300)
t.logsumexp(t.tensor([[1 + 1j, 2 - 1j], [800, 700]]), 1)
t.logcumsumexp(t.tensor([1 + 1j, 2 - 1j, 3]), 0)
t.zeros(2, dtype=t.complex64).scatter_reduce(0, t.tensor([0, 0]), t.tensor([1 + 1j, 2]), "mean")
t.zeros(2, 0)[t.tensor([[5], [1]])]
t.diag(t.ones(2), t.tensor(1, dtype=t.uint8))
"""


@pytest.mark.parametrize("expression", lines(ON_EMU))
def test_results_on_emu_are_torchs(expression: str) -> None:
    tc.set_default_device("emu")  # `on_cpu` sets it back
    test_results_are_torchs(expression)


def data_of_results(t: Any) -> list[Any]:
    """A result whose `data` is replaced keeps its history: that of a view, or of an operation."""
    facts = []
    for made in (lambda x: x[:2], lambda x: (x * 2)[:2]):
        x = t.ones(4, requires_grad=True)
        result, given = made(x), t.zeros(2)
        result.data = given
        given.add_(3)
        facts += [result.requires_grad, result.is_leaf, result.tolist(), x.tolist()]
        (result * result).sum().backward()
        facts.append(x.grad.tolist())
        with t.no_grad():
            result.mul_(2)
        facts.append(given.tolist())
    result = t.ones(2, requires_grad=True) * 2
    result.data = t.zeros(2)
    facts += [result.detach_().requires_grad, result.is_leaf]
    return facts


def test_results_with_other_data_keep_their_history() -> None:
    assert data_of_results(tc) == data_of_results(torch)


RESHAPED = (("t_",), ("squeeze_",), ("unsqueeze_", 0), ("transpose_", 0, 1), ("swapaxes_", 0, 1))


@pytest.mark.parametrize("call", RESHAPED, ids=lambda call: call[0])
def test_a_leaf_changes_its_shape_without_grad(call: tuple[Any, ...]) -> None:
    """It stays the leaf; a result that did so can be detached."""
    found = []
    for t in (torch, tc):
        p = t.nn.Parameter(t.arange(3.0).reshape(1, 3))
        with t.no_grad():
            same = getattr(p, call[0])(*call[1:]) is p
            p.add_(1)
        (p * p).sum().backward()
        optimizer = t.optim.SGD([p], 0.5)
        optimizer.step()
        facts = [same, p.is_leaf, p.grad.tolist(), p.tolist(), p.stride()]
        result = t.ones(1, 3, requires_grad=True) * 2
        getattr(result, call[0])(*call[1:]).detach_()
        facts += [result.requires_grad, result.is_leaf, tuple(result.shape)]
        found.append(facts)
        with pytest.raises((RuntimeError, tc.TgcError)):
            getattr(p, call[0])(*call[1:])
        with pytest.raises((RuntimeError, tc.TgcError)):
            (t.ones(1, 3, requires_grad=True) * 2).t().detach_()
    assert found[0] == found[1]


FLAT = """
t.div(x, y, rounding_mode="floor")
t.div(x, y, rounding_mode="trunc")
t.round(x, decimals=1)
t.floor(x)
t.sign(x)
t.trunc(x)
t.frac(x)
t.nextafter(x, y)
t.copysign(x, y)
t.bernoulli(y / 2)
t.poisson(y)
t.nn.functional.grid_sample(x.reshape(1, 1, 1, 3), y[:2].reshape(1, 1, 1, 2), mode="nearest")
"""


@pytest.mark.parametrize("device", ["cpu", "emu"])
@pytest.mark.parametrize("expression", lines(FLAT))
def test_gradients_of_steps_are_zeros(expression: str, device: str) -> None:
    if OLDER and expression in NEW:
        pytest.skip("the gradient is that of torch 2.13")
    found = []
    tc.set_default_device(device)  # `on_cpu` sets it back
    for t in (torch, tc):
        x = t.tensor([0.3, -1.5, 2.0], requires_grad=True)
        y = t.tensor([1.0, 2.0, 0.5], requires_grad=True)
        eval(expression, {"t": t, "x": x, "y": y}).sum().backward()
        found.append([None if v.grad is None else v.grad.tolist() for v in (x, y)])
    assert found[0] == found[1]


def assigned(t: Any) -> list[Any]:
    """What a module has after `load_state_dict(assign=True)`: the given Tensors themselves."""
    layer, norm = t.nn.Linear(2, 2), t.nn.BatchNorm1d(2)
    norm.weight.requires_grad_(False)
    old, weight, bias = layer.weight, t.nn.Parameter(t.ones(2, 2)), t.zeros(2)
    model = t.nn.Sequential(layer, norm)
    mean, scale = t.zeros(2), t.nn.Parameter(t.ones(2))
    state = {
        **model.state_dict(), "0.weight": weight, "0.bias": bias,
        "1.running_mean": mean, "1.weight": scale,
    }  # fmt: skip
    model.load_state_dict(state, assign=True)
    bias.add_(1)
    facts = [layer.weight is weight, layer.weight is old, layer.bias is bias]
    facts += [isinstance(layer.bias, t.nn.Parameter), layer.bias.requires_grad, layer.bias.tolist()]
    facts += [norm.running_mean is mean, norm.weight is scale, scale.requires_grad]
    return [*facts, sorted(model.state_dict()), len(list(model.parameters()))]


def test_loading_by_assignment_replaces_parameters() -> None:
    assert assigned(tc) == assigned(torch)


DEPENDENT = """
t.linalg.qr(a, mode="r")
t.linalg.qr(a, mode="complete")
t.linalg.ldl_factor(a.T @ a)
t.linalg.ldl_factor_ex(a.T @ a)
t.geqrf(a)
"""


@pytest.mark.parametrize("expression", lines(DEPENDENT))
def test_results_without_a_gradient_say_so(expression: str) -> None:
    """They require grad, and a pass through them is an error."""
    facts = []
    for t in (torch, tc):
        a = t.tensor([[1.0, 2.0], [0.5, 1.0], [3.0, 1.0]], requires_grad=True)
        results = eval(expression, {"t": t, "a": a})
        facts.append([part.requires_grad for part in results])
        with pytest.raises((RuntimeError, NotImplementedError, tc.GradientError)):
            sum(part.sum() for part in results if part.requires_grad).backward()
    assert facts[0] == facts[1]


def test_empty_residuals_require_grad() -> None:
    facts = []
    for t in (torch, tc):
        a = t.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], requires_grad=True)
        result = t.linalg.lstsq(a, t.ones(3, 1))
        facts.append([result.solution.requires_grad, result.residuals.requires_grad])
    assert facts[0] == facts[1] == [True, True]


def test_gradients_of_complex_reductions() -> None:
    found = []
    for t in (torch, tc):
        x = t.tensor([1 + 1j, 2 - 1j, 3], dtype=t.complex128, requires_grad=True)
        total = t.logsumexp(x, 0).abs() + t.logcumsumexp(x, 0).abs().sum()
        total.backward()
        found.append(x.grad.tolist())
    assert found[1] == pytest.approx(found[0], rel=1e-9)


SECOND = """
t.gather(x * x, 1, i)
t.scatter(x * x, 1, i, y * y)
t.scatter_add(x * x, 1, i, y * y)
t.scatter_reduce(x * x, 1, i, y * y, "prod")
t.scatter_reduce(x * x, 1, i, y * y, "mean", include_self=False)
t.index_add(x * x, 1, k, y[:, :2] ** 2, alpha=3)
t.index_copy(x * x, 1, k, y[:, :2] ** 2)
t.index_fill(x * x, 1, k, y[0, 0] ** 2)
t.index_put(x * x, (k, k), y[0, :2] ** 2, accumulate=True)
t.index_reduce(x * x, 1, k, y[:, :2] ** 2, "prod")
t.masked_fill(x * x, m, y[0, 0] ** 2)
t.masked_select(x * x, m)
t.masked_scatter(x * x, m, y * y)
t.take(x * x, i)
t.take_along_dim(x * x, i, 1)
(x * x)[k, k]
(x * x).put_(p, y * y)
(x * x).put_(i, y * y, accumulate=True)
t.select_scatter(x * x, y[0] ** 2, 0, 1)
t.diagonal_scatter(x * x, y[0] ** 2)
"""


def gradients_twice(expression: str, t: Any) -> list[Any]:
    def double(rows: Any) -> Any:
        return t.tensor(rows, dtype=t.float64, requires_grad=True)

    x = double([[0.3, -1.2, 2.0], [0.7, 1.1, -0.4], [1.9, 0.6, 0.8]])
    y = double([[1.3, 0.2, -2.1], [1.7, -0.1, 0.9], [0.5, 0.66, -1.8]])
    indices = {
        "i": t.tensor([[0, 1, 2], [2, 0, 1], [1, 2, 0]]),
        "p": t.tensor([[0, 4, 8], [1, 5, 6], [2, 3, 7]]), "k": t.tensor([2, 0]),
        "m": t.tensor([[True, False, True], [False, True, False], [True, True, False]]),
    }  # fmt: skip
    result = eval(expression, {"t": t, "x": x, "y": y, **indices})
    weights = t.arange(result.numel(), dtype=t.float64).reshape(tuple(result.shape)) * 0.3 + 0.5
    loss = (result * result * weights).sum()
    first = t.autograd.grad(loss, [x, y], create_graph=True, allow_unused=True)
    total = sum((g * g).sum() for g in first if g is not None)
    second = t.autograd.grad(total, [x, y], allow_unused=True)
    return [None if g is None else g.detach().reshape(-1).tolist() for g in (*first, *second)]


@pytest.mark.parametrize("expression", lines(SECOND))
def test_second_gradients_of_indexing(expression: str) -> None:
    for ours, theirs in zip(gradients_twice(expression, tc), gradients_twice(expression, torch)):
        assert (ours is None) == (theirs is None)
        assert ours is None or ours == pytest.approx(theirs, rel=1e-7)


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_least_squares_are_not_rounded_under_autocast(half: str) -> None:
    for t in (torch, tc):
        a = t.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        with t.autocast("cpu", dtype=getattr(t, half)):
            assert t.linalg.lstsq(a, t.ones(3, 1)).solution.dtype is t.float32
