"""nn.utils.parametrize and nn.utils.parametrizations against torch."""

from __future__ import annotations

import copy
import importlib
import re
from typing import Any

import numpy as np
import pytest
from layers import close, compare_layer, real, torch

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim

pytestmark = pytest.mark.usefixtures("on_cpu")
ROWS, LINES, SEQUENCE = real(5, 4), real(2, 4, 9), real(5, 2, 6)


def symmetric(lib: Any) -> Any:
    class Symmetric(lib.Module):
        def forward(self, x: Any) -> Any:
            return x.triu() + x.triu(1).transpose(-1, -2)

        def right_inverse(self, x: Any) -> Any:
            return x.triu()

    return Symmetric()


def rank_one(lib: Any) -> Any:
    class RankOne(lib.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x.unsqueeze(-1) @ y.unsqueeze(-2)

        def right_inverse(self, z: Any) -> Any:
            return z[:, 0] * 1.0, z[0] * 2.0

    return RankOne()


def double(lib: Any) -> Any:
    class Double(lib.Module):
        def forward(self, x: Any) -> Any:
            return x * 2

        def right_inverse(self, x: Any) -> Any:
            return x / 2

    return Double()


def register(lib: Any, module: Any, name: str, *made: Any) -> Any:
    for one in made:
        lib.utils.parametrize.register_parametrization(module, name, one(lib))
    return module


def norms(lib: Any) -> Any:
    return lib.utils.parametrizations


LAYERS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "symmetric": (lambda lib: register(lib, lib.Linear(4, 4), "weight", symmetric), (ROWS,)),
    "two": (lambda lib: register(lib, lib.Linear(4, 4), "weight", symmetric, double), (ROWS,)),
    "rank one": (lambda lib: register(lib, lib.Linear(4, 3), "weight", rank_one), (ROWS,)),
    "weight and bias": (
        lambda lib: register(
            lib, register(lib, lib.Linear(4, 4), "weight", symmetric), "bias", double), (ROWS,)),
    "buffer": (
        lambda lib: register(lib, lib.BatchNorm1d(4).eval(), "running_var", double), (ROWS,)),
    "weight norm": (lambda lib: norms(lib).weight_norm(lib.Linear(4, 3)), (ROWS,)),
    "weight norm, one length": (
        lambda lib: norms(lib).weight_norm(lib.Linear(4, 3), dim=None), (ROWS,)),
    "weight norm, convolution": (
        lambda lib: norms(lib).weight_norm(lib.Conv1d(4, 3, 2), dim=1), (LINES,)),
    "weight norm, GRU": (
        lambda lib: norms(lib).weight_norm(lib.GRU(6, 3), "weight_hh_l0"), (SEQUENCE,)),
    "spectral norm": (lambda lib: norms(lib).spectral_norm(lib.Linear(4, 3)), (ROWS,)),
    "spectral norm, vector": (
        lambda lib: norms(lib).spectral_norm(lib.Linear(4, 3), "bias"), (ROWS,)),
    "spectral norm, transposed": (
        lambda lib: norms(lib).spectral_norm(
            lib.ConvTranspose1d(4, 3, 2), n_power_iterations=3), (LINES,)),
    "exponential": (lambda lib: norms(lib).orthogonal(lib.Linear(4, 4)), (ROWS,)),
    "exponential, tall": (
        lambda lib: norms(lib).orthogonal(lib.Linear(4, 6), "weight", "matrix_exp"), (ROWS,)),
    "Cayley": (lambda lib: norms(lib).orthogonal(lib.Linear(4, 4), "weight", "cayley"), (ROWS,)),
    "Cayley, wide, plain": (
        lambda lib: norms(lib).orthogonal(
            lib.Linear(4, 3), "weight", "cayley", use_trivialization=False), (ROWS,)),
    "Householder": (lambda lib: norms(lib).orthogonal(lib.Linear(4, 6)), (ROWS,)),
    "Householder, wide, plain": (
        lambda lib: norms(lib).orthogonal(lib.Linear(4, 3), use_trivialization=False), (ROWS,)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str) -> None:
    """Outputs, gradients, names and values of the state, over two calls."""
    make, arrays = LAYERS[name]
    compare_layer(make, arrays, "float64", steps=2)


def test_text() -> None:
    """repr shows what torch's shows, where norms tell of their bias only lately."""

    def text(layer: Any) -> str:
        return re.sub(r", bias=(True|False)", "", repr(layer))

    for name, (make, _) in LAYERS.items():
        assert text(make(nn)) == text(make(torch.nn)), name


def test_assigning_and_removing() -> None:
    """Assigning goes through the inverses; a removed parametrization leaves value or original."""
    found = []
    for lib, make in ((nn, tc.tensor), (torch.nn, torch.tensor)):
        parametrize = lib.utils.parametrize
        layer = register(lib, lib.Linear(4, 4), "weight", symmetric, double)
        layer.weight = make(real(4, 4)).float()
        original = layer.parametrizations.weight.original
        assert isinstance(original, lib.Parameter if lib is nn else torch.nn.Parameter)
        kept = register(lib, lib.Linear(4, 4), "weight", symmetric, double)
        kept.load_state_dict(layer.state_dict())
        parametrize.remove_parametrizations(kept, "weight", leave_parametrized=False)
        values = [original * 1, layer.weight * 1, kept.weight * 1]
        assert parametrize.is_parametrized(layer, "weight")
        assert parametrize.type_before_parametrizations(layer) is lib.Linear
        parametrize.remove_parametrizations(layer, "weight")
        assert layer.weight is original  # an optimizer that has it goes on
        assert type(layer) is lib.Linear
        assert not parametrize.is_parametrized(layer)
        found.append([*values, layer.weight, *(layer.state_dict()[k] for k in ("weight",))])
    for ours, theirs in zip(*found, strict=True):
        close(ours, theirs, 1e-6, "value")


def test_a_copy_is_removed_from_alone() -> None:
    """The original stays parametrized (torch's, which shares its class, loses the attribute)."""
    layer = register(nn, nn.Linear(4, 4), "weight", symmetric)
    twin = copy.deepcopy(layer)
    nn.utils.parametrize.remove_parametrizations(twin, "weight")
    assert tc.equal(layer.weight, twin.weight)
    assert [name for name, _ in twin.named_parameters()] == ["bias", "weight"]


def test_values_inside_cached_are_computed_once() -> None:
    layer = register(nn, nn.Linear(4, 4), "weight", symmetric)
    assert layer.weight is not layer.weight
    with nn.utils.parametrize.cached():
        assert layer.weight is layer.weight
    assert layer.weight is not layer.weight


@pytest.mark.parametrize("kind", ["matrix_exp", "cayley", "householder"])
@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3)])
def test_steps_stay_orthogonal(kind: str, shape: tuple[int, int]) -> None:
    """An orthogonal start is kept, and steps of an optimizer move along such matrices."""
    layer = nn.Linear(*shape).double()
    nn.init.orthogonal_(layer.weight)
    before = np.array(layer.weight.detach().numpy())
    nn.utils.parametrizations.orthogonal(layer, "weight", kind)
    np.testing.assert_allclose(layer.weight.detach().numpy(), before, atol=1e-6)
    optimizer = optim.SGD(layer.parameters(), lr=0.3)
    for _ in range(3):
        optimizer.zero_grad()
        (layer.weight**4).sum().backward()
        optimizer.step()
    after = layer.weight.detach().numpy()
    assert np.abs(after - before).max() > 0.01
    gram = after.T @ after if after.shape[0] >= after.shape[1] else after @ after.T
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-10)


def test_states_of_the_older_weight_norm_load() -> None:
    old = nn.utils.weight_norm(nn.Linear(4, 3))
    new = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    new.load_state_dict(old.state_dict())
    x = tc.tensor(ROWS).float()
    np.testing.assert_allclose(new(x).detach().numpy(), old(x).detach().numpy(), rtol=1e-5)


def test_refusals() -> None:
    class Shorter(nn.Module):
        def forward(self, x: Any) -> Any:
            return x[1:]

    register_one = nn.utils.parametrize.register_parametrization
    layer = nn.Linear(4, 4)
    with pytest.raises(tc.ArgumentError, match=r"changes its shape(.|\n)*unsafe=True"):
        register_one(layer, "weight", Shorter())
    with pytest.raises(tc.ArgumentError, match="no such parameter or buffer"):
        register_one(layer, "wait", Shorter())
    with pytest.raises(tc.ArgumentError, match="is not parametrized"):
        nn.utils.parametrize.remove_parametrizations(layer, "weight")
    register_one(layer, "weight", Shorter(), unsafe=True)
    assert layer.weight.shape == (3, 4)
    with pytest.raises(tc.ArgumentError, match="Shorter has none"):
        layer.weight = tc.zeros(4, 4)
    with pytest.raises(tc.ArgumentError, match="no single original"):
        nn.utils.parametrize.remove_parametrizations(
            nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), "weight", False
        )
    with pytest.raises(tc.ArgumentError, match="no such map"):
        nn.utils.parametrizations.orthogonal(nn.Linear(2, 2), "weight", "best")
    with pytest.raises(tc.ArgumentError, match="needs a matrix"):
        nn.utils.parametrizations.orthogonal(nn.Linear(2, 2), "bias")


@pytest.mark.parametrize("lib", [torch, tc], ids=["torch", "ours"])
def test_what_shares_an_original_keeps_its_values(lib: Any) -> None:
    """When parametrizations or masks are removed, and when a value is assigned."""
    utils, prune = lib.nn.utils, importlib.import_module(f"{lib.__name__}.nn.utils.prune")
    layer = lib.nn.Linear(3, 3)
    weight = layer.weight
    utils.parametrize.register_parametrization(layer, "weight", symmetric(lib.nn))
    shared = weight.detach()
    before = shared.clone()
    value = lib.eye(3)
    layer.weight = value
    assert lib.equal(shared, before) and lib.equal(layer.weight, value)
    shared = weight.detach()
    weight.data[0, 1] = 5
    before = shared.clone()
    utils.parametrize.remove_parametrizations(layer, "weight")
    assert layer.weight is weight and weight[1, 0].item() == 5
    assert lib.equal(shared, before)
    prune.l1_unstructured(layer, "weight", 4)
    shared, before = weight.detach(), weight.detach().clone()
    prune.remove(layer, "weight")
    assert layer.weight is weight and (weight == 0).sum() >= 4
    assert lib.equal(shared, before)
