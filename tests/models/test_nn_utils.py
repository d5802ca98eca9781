"""nn.utils, backward hooks, lists of parameters and the rarer initial values, against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from layers import close, compare_layer, real, torch

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.nn import init

IMAGES = real(3, 4, 6, 5)
ROWS = real(5, 4)


@pytest.fixture(autouse=True)
def on_cpu() -> Any:
    tc.set_default_device("cpu")
    yield
    tc.set_default_device(None)


def pair(make: Any) -> tuple[Any, Any]:
    """A module of each library with the same state, in float64."""
    ours, theirs = make(nn).double(), make(torch.nn).double()
    theirs.load_state_dict(
        {k: torch.tensor(v.numpy().copy()) for k, v in ours.state_dict().items()}
    )
    return ours, theirs


# Gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [1.0, 2.0, 3.5, float("inf")])
@pytest.mark.parametrize("limit", [0.1, 1e4])
def test_clip_grad_norm(norm: float, limit: float) -> None:
    """The norm before, and gradients after, small ones unchanged."""
    ours, theirs = pair(lambda lib: lib.Sequential(lib.Linear(4, 3), lib.Linear(3, 2)))
    ours(tc.tensor(ROWS)).square().sum().backward()
    theirs(torch.tensor(ROWS)).square().sum().backward()
    found = nn.utils.clip_grad_norm_(ours.parameters(), limit, norm)
    wanted = torch.nn.utils.clip_grad_norm_(theirs.parameters(), limit, norm)
    close(found, wanted, 1e-10, "norm")
    for p, q in zip(ours.parameters(), theirs.parameters()):
        close(p.grad, q.grad, 1e-10, "gradient")


def test_clip_grad_norm_tells_of_infinity() -> None:
    x = tc.tensor([0.0], requires_grad=True)
    (1 / x).sum().backward()
    with pytest.raises(tc.GradientError, match="not finite"):
        nn.utils.clip_grad_norm_(x, 1.0, error_if_nonfinite=True)


def test_clip_grad_value_and_no_gradients() -> None:
    x = tc.tensor([1.0, -2.0, 0.1], requires_grad=True)
    assert nn.utils.clip_grad_norm_([x], 1.0).item() == 0.0
    (x * x).sum().backward()
    nn.utils.clip_grad_value_(x, 1.5)
    np.testing.assert_allclose(x.grad.numpy(), [1.5, -1.5, 0.2], rtol=1e-6)


def test_vector_of_parameters_and_back() -> None:
    ours, theirs = pair(lambda lib: lib.Sequential(lib.Linear(4, 3), lib.Conv1d(2, 3, 2)))
    vector = nn.utils.parameters_to_vector(ours.parameters())
    close(vector, torch.nn.utils.parameters_to_vector(theirs.parameters()), 0.0, "vector")
    nn.utils.vector_to_parameters(vector.detach() * 2, ours.parameters())
    close(ours[0].bias, theirs[0].bias * 2, 0.0, "bias")
    assert ours[0].bias.is_leaf and ours[0].bias.requires_grad
    with pytest.raises(tc.ShapeError, match="does not fit"):
        nn.utils.vector_to_parameters(vector[1:], ours.parameters())


@pytest.mark.parametrize("lib", [torch, tc], ids=["torch", "ours"])
def test_parameters_become_views_of_a_vector(lib: Any) -> None:
    """What they were views of keeps its values, and the vector is seen in them."""
    old = lib.arange(6.0)
    weight, bias = lib.nn.Parameter(lib.zeros(2, 2)), lib.nn.Parameter(lib.zeros(2))
    weight.data, bias.data = old[:4].view(2, 2), old[4:]
    vector = lib.zeros(6)
    lib.nn.utils.vector_to_parameters(vector, [weight, bias])
    assert old.tolist() == list(range(6))
    vector += 1
    assert weight.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    (weight.sum() * bias.sum()).backward()
    lib.optim.SGD([weight, bias], lr=0.5).step()
    assert vector.tolist() == [0.0, 0.0, 0.0, 0.0, -1.0, -1.0]


# Reparametrization --------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
@pytest.mark.parametrize("dim", [0, 1, -1, None])
def test_weight_norm(dim: int | None) -> None:
    make = {
        "linear": (lambda lib: lib.utils.weight_norm(lib.Linear(4, 3), dim=dim), (ROWS,)),
        "conv": (lambda lib: lib.utils.weight_norm(lib.Conv2d(4, 3, 2), dim=dim), (IMAGES,)),
    }
    for call, arrays in make.values():
        compare_layer(call, arrays, "float64", steps=2)


@pytest.mark.filterwarnings("ignore:.*spectral_norm. is deprecated")
@pytest.mark.parametrize("evaluate", [False, True])
def test_spectral_norm(evaluate: bool) -> None:
    """Weight, gradients and the singular vectors, which training refines."""
    compare_layer(
        lambda lib: lib.utils.spectral_norm(lib.Linear(4, 3), n_power_iterations=2), (ROWS,),
        "float64", steps=3, evaluate=evaluate,
    )  # fmt: skip
    compare_layer(
        lambda lib: lib.utils.spectral_norm(lib.ConvTranspose2d(4, 3, 2)), (IMAGES,), "float64",
        evaluate=evaluate,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm"])
def test_removal_keeps_the_weight(name: str) -> None:
    layer = getattr(nn.utils, name)(nn.Linear(4, 3)).eval()
    x = tc.tensor(ROWS.astype(np.float32))
    before = layer(x).detach().numpy().copy()
    getattr(nn.utils, f"remove_{name}")(layer)
    assert sorted(layer.state_dict()) == ["bias", "weight"]
    np.testing.assert_allclose(layer(x).detach().numpy(), before, rtol=1e-6)
    with pytest.raises(tc.ArgumentError, match="is not reparametrized"):
        getattr(nn.utils, f"remove_{name}")(layer)


@pytest.mark.parametrize("affine", [True, False])
def test_fused_batch_norm(affine: bool) -> None:
    """One layer does what two did; training mode is refused."""
    for make, arrays, transpose in (
        (lambda: nn.Conv2d(4, 6, 3, bias=False), IMAGES, False),
        (lambda: nn.ConvTranspose2d(4, 6, 3), IMAGES, True),
    ):
        layer, norm = make().double(), nn.BatchNorm2d(6, affine=affine).double()
        for _ in range(3):
            norm(layer(tc.tensor(arrays)))
        with pytest.raises(tc.ArgumentError, match="evaluation mode"):
            nn.utils.fuse_conv_bn_eval(layer, norm, transpose)
        both = nn.Sequential(layer, norm).eval()
        fused = nn.utils.fuse_conv_bn_eval(layer, norm, transpose)
        x = tc.tensor(arrays)
        assert both(x).allclose(fused(x), rtol=1e-10)
    linear, norm = nn.Linear(4, 3).double(), nn.BatchNorm1d(3, affine=affine).double()
    norm(linear(tc.tensor(ROWS)))
    both = nn.Sequential(linear, norm).eval()
    fused = nn.utils.fuse_linear_bn_eval(linear, norm)
    assert both(tc.tensor(ROWS)).allclose(fused(tc.tensor(ROWS)), rtol=1e-10)


# Hooks --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("needs", [True, False])
def test_full_backward_hooks(needs: bool) -> None:
    """Gradients seen and replaced, in torch's order, with inputs that need one and that do not."""
    found = []
    for lib, make in ((nn, tc.tensor), (torch.nn, torch.tensor)):
        layer = lib.Bilinear(4, 4, 3).double()
        for seed, p in enumerate(layer.parameters()):
            p.data = make(real(*p.shape, seed=seed))
        seen: list[Any] = []
        layer.register_full_backward_pre_hook(
            lambda module, out, seen=seen: seen.append(("before", out)) or (out[0] * 2,)
        )

        def after(module: Any, into: Any, out: Any, seen: Any = seen) -> Any:
            seen.append(("after", into, out))
            return tuple(None if g is None else g * 3 for g in into) if into and needs else None

        handle = layer.register_full_backward_hook(after)
        x = make(ROWS)
        if needs:
            x.requires_grad_()
        layer(x, make(ROWS + 1)).square().sum().backward()
        handle.remove()
        layer(x, make(ROWS + 1)).sum().backward()
        found.append((seen, [p.grad for p in layer.parameters()], x.grad))
    (ours, our_grads, our_x), (theirs, their_grads, their_x) = found
    assert [kind for kind, *_ in ours] == [kind for kind, *_ in theirs]
    assert [kind for kind, *_ in ours] == ["before", "after", "before"]
    for a, b in zip(our_grads, their_grads):
        close(a, b, 1e-10, "gradient of a parameter")
    close(ours[1][2][0], theirs[1][2][0], 1e-10, "grad_output")
    if needs:
        close(our_x, their_x, 1e-10, "gradient of the input")
        close(ours[1][1][0], theirs[1][1][0], 1e-10, "grad_input")
        assert ours[1][1][1] is None


# Containers ---------------------------------------------------------------------------------


def test_lists_and_dicts_of_parameters() -> None:
    """They are found under PyTorch's names and behave like lists and dicts."""
    values = nn.ParameterList([tc.zeros(2), nn.Parameter(tc.ones(3))])
    values += [tc.ones(1)]
    values[0] = tc.ones(4)
    assert [tuple(p.shape) for p in values.parameters()] == [(4,), (3,), (1,)]
    assert len(values[1:]) == 2 and values[-1] is values[2]
    with pytest.raises(tc.IndexError, match="no parameter at this index"):
        values[3]
    named = nn.ParameterDict({"left": tc.zeros(2), "right": tc.ones(3)})
    assert list(named) == list(named.state_dict()) == ["left", "right"]
    del named["left"]
    assert "left" not in named and [key for key, _ in named.items()] == ["right"]
    twin = torch.nn.ParameterList([torch.zeros(2)])
    assert list(nn.ParameterList([tc.zeros(2)]).state_dict()) == list(twin.state_dict())


# Initial values -----------------------------------------------------------------------------


def test_fixed_initial_values_are_those_of_torch() -> None:
    for shape in ((3, 5), (4, 4)):
        close(init.eye_(tc.empty(*shape)), torch.nn.init.eye_(torch.empty(shape)), 0, "eye_")
    for shape, groups in (((4, 3, 3), 1), ((4, 2, 3, 2), 2), ((2, 3, 1, 3, 3), 1)):
        found = init.dirac_(tc.empty(*shape), groups)
        close(found, torch.nn.init.dirac_(torch.empty(shape), groups), 0, "dirac_")


@pytest.mark.parametrize("shape", [(6, 6), (4, 7), (7, 4), (3, 2, 2)])
def test_orthogonal(shape: tuple[int, ...]) -> None:
    matrix = init.orthogonal_(tc.empty(*shape), gain=2.0).numpy().reshape(shape[0], -1)
    product = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    np.testing.assert_allclose(product, 4 * np.eye(len(product)), atol=1e-5)


def test_truncated_normal_and_sparse() -> None:
    """Deviation and bounds as torch's; a fifth of each column is zero."""
    x = init.trunc_normal_(tc.empty(200, 300), 1.0, 2.0, -1.0, 2.0).numpy()
    y = torch.nn.init.trunc_normal_(torch.empty(200, 300), 1.0, 2.0, -1.0, 2.0).numpy()
    assert x.min() >= -1.0 and x.max() <= 2.0
    assert x.mean() == pytest.approx(y.mean(), abs=0.01)
    assert x.std() == pytest.approx(y.std(), abs=0.01)
    sparse = init.sparse_(tc.empty(50, 40), 0.2, std=0.5).numpy()
    assert ((sparse == 0).sum(0) == 10).all()
    assert sparse[sparse != 0].std() == pytest.approx(0.5, rel=0.1)
