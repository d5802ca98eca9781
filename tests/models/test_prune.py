"""Pruning against torch: masks, names in the state, and what happens one after another."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from layers import torch

import tinygrad_cuda as tc

import_module("torch.nn.utils.prune")  # PyTorch does not import it by itself

SHAPES = {"weight": (4, 6), "bias": (4,)}


@pytest.fixture(autouse=True)
def on_cpu() -> Any:
    tc.set_default_device("cpu")
    yield
    tc.set_default_device(None)


def layer(lib: Any, seed: int = 0) -> Any:
    made = lib.nn.Linear(6, 4)
    numbers = np.random.default_rng(seed)
    made.load_state_dict(
        {k: lib.tensor(numbers.standard_normal(s).astype("float32")) for k, s in SHAPES.items()}
    )
    return made


def both(program: Any) -> None:
    """The same program leaves the same state and the same gradients with both libraries."""
    results = []
    for lib in (tc, torch):
        model = program(lib, lib.nn.utils.prune)
        model(lib.ones(2, 6)).pow(2).sum().backward()
        results.append(
            {k: v.tolist() for k, v in model.state_dict().items()}
            | {f"gradient {k}": p.grad.tolist() for k, p in model.named_parameters()}
            | {f"value {k}": getattr(model, k).tolist() for k in SHAPES if hasattr(model, k)}
        )
    assert list(results[0]) == list(results[1])
    for name, value in results[0].items():
        np.testing.assert_allclose(value, results[1][name], rtol=1e-5, atol=1e-6, err_msg=name)


def fraction(lib: Any, prune: Any) -> Any:
    return prune.l1_unstructured(layer(lib), "weight", 0.3)


def several(lib: Any, prune: Any) -> Any:
    model = layer(lib)
    prune.l1_unstructured(model, name="weight", amount=5)
    prune.ln_structured(model, name="weight", amount=0.5, n=2, dim=0)
    prune.l1_unstructured(model, "bias", amount=1)
    prune.l1_unstructured(model, "weight", 3)
    return model


def channels(lib: Any, prune: Any) -> Any:
    model = prune.ln_structured(layer(lib), "weight", amount=2, n=float("-inf"), dim=1)
    return prune.ln_structured(model, "weight", amount=1, n=1, dim=0)


def scores(lib: Any, prune: Any) -> Any:
    order = lib.arange(24.0).reshape(4, 6)
    return prune.l1_unstructured(layer(lib), "weight", 7, importance_scores=order)


def removed(lib: Any, prune: Any) -> Any:
    model = prune.l1_unstructured(layer(lib), "weight", 0.5)
    assert prune.is_pruned(model)
    prune.remove(model, "weight")
    assert not prune.is_pruned(model)
    return model


def of_ones_own(lib: Any, prune: Any) -> Any:
    class EveryOther(prune.BasePruningMethod):  # type: ignore[misc]
        PRUNING_TYPE = "unstructured"

        def compute_mask(self, t: Any, default_mask: Any) -> Any:
            mask = default_mask.clone()
            mask.view(-1)[::2] = 0
            return mask

    model = layer(lib)
    EveryOther.apply(model, "bias")
    prune.custom_from_mask(model, "weight", lib.arange(24).reshape(4, 6) % 3 > 0)
    return prune.identity(model, "weight")


def trained(lib: Any, prune: Any) -> Any:
    model = prune.l1_unstructured(layer(lib), "weight", 0.5)
    optimizer = lib.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(lib.ones(2, 6)).pow(2).sum().backward()
        optimizer.step()
    optimizer.zero_grad()
    return model


def as_a_hook_of_a_sequence(lib: Any, prune: Any) -> Any:
    model = lib.nn.Sequential(layer(lib), lib.nn.ReLU(), lib.nn.Linear(4, 1))
    with lib.no_grad():
        model[2].weight.copy_(lib.tensor([[0.5, -0.25, 0.75, 0.1]]))
        model[2].bias.fill_(0.5)
    pairs = [(model[0], "weight"), (model[0], "bias"), (model[2], "weight")]
    prune.l1_unstructured(model[0], "weight", 2)
    prune.global_unstructured(pairs, pruning_method=prune.L1Unstructured, amount=0.4)
    return model


PROGRAMS = [
    fraction, several, channels, scores, removed, of_ones_own, trained, as_a_hook_of_a_sequence,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_like_torch(program: Any) -> None:
    both(program)


@pytest.mark.parametrize("kind", ["random_unstructured", "random_structured"])
def test_at_random(kind: str) -> None:
    dim = {"dim": 1} if kind == "random_structured" else {}
    model = getattr(tc.nn.utils.prune, kind)(layer(tc), "weight", amount=0.5, **dim)
    mask = model.weight_mask.numpy()
    assert mask.sum() == 12
    assert not dim or set(mask.sum(0)) == {0.0, 4.0}
    assert (model.weight.detach().numpy() == mask * model.weight_orig.detach().numpy()).all()


def test_a_tensor_by_itself_and_history() -> None:
    for lib in (tc, torch):
        prune = lib.nn.utils.prune
        method = prune.L1Unstructured(amount=2)
        assert method.prune(lib.tensor([1.0, -3.0, 2.0, 0.5])).tolist() == [0, -3, 2, 0]
        model = several(lib, prune)
        hook = next(h for h in model._forward_pre_hooks.values() if h._tensor_name == "weight")
        kinds = [type(method).__name__ for method in hook]
        assert kinds == ["L1Unstructured", "LnStructured", "L1Unstructured"] and len(hook) == 3


def test_state_goes_from_library_to_library() -> None:
    ours, theirs = (several(lib, lib.nn.utils.prune) for lib in (tc, torch))
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    assert np.allclose(ours(tc.ones(1, 6)).tolist(), theirs(torch.ones(1, 6)).tolist())


def test_refusals() -> None:
    prune = tc.nn.utils.prune
    with pytest.raises(ValueError, match="amount is out of range"):
        prune.l1_unstructured(layer(tc), "weight", 1.5)
    with pytest.raises(ValueError, match="more than there is"):
        prune.l1_unstructured(layer(tc), "weight", 25)
    with pytest.raises(TypeError, match="amount is no number"):
        prune.l1_unstructured(layer(tc), "weight", "half")
    with pytest.raises(ValueError, match="is not pruned"):
        prune.remove(layer(tc), "weight")
    with pytest.raises(AttributeError):
        prune.l1_unstructured(layer(tc), "wieght", 0.5)
    with pytest.raises(tc.ShapeError, match="scores have another shape"):
        prune.l1_unstructured(layer(tc), "weight", 0.5, importance_scores=tc.ones(3))
    with pytest.raises(ValueError, match="prunes channels"):
        pairs = [(layer(tc), "weight")]
        prune.global_unstructured(pairs, prune.LnStructured, amount=1, n=2)
    model = layer(tc)
    with pytest.raises(ValueError, match="more than"):
        prune.l1_unstructured(model, "weight", 100)
    assert list(model.state_dict()) == ["weight", "bias"]


def test_compiled() -> None:
    model = tc.nn.utils.prune.l1_unstructured(layer(tc), "weight", 0.5)
    x = tc.ones(2, 6)
    step = tc.compile(model)
    assert tc.equal(step(x), model(x))
    with tc.no_grad():
        model.weight_orig.mul_(2)
    tc.testing.assert_close(step(x), model(x))
