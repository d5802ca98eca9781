"""What an argument is when it is left out: as PyTorch has it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")

MODULES = (
    "nn", "nn.functional", "nn.init", "nn.utils", "optim", "optim.lr_scheduler", "utils.data",
    "distributions",
)  # fmt: skip
# Written in another way, with the same meaning.
SAME = {
    ("Transformer", "activation"): "a name or a function",
    ("TransformerDecoderLayer", "activation"): "a name or a function",
    ("TransformerEncoderLayer", "activation"): "a name or a function",
    ("random_split", "generator"): "None is the default generator",
    ("argsort", "dim"): "torch 2.11 leaves out what 2.13 says: the last",
    ("cdist", "compute_mode"): "the mode is not looked at",
    ("embedding_bag", "mode"): "0 is the sum at the top level, as PyTorch's schema says",
    ("embedding", "padding_idx"): "-1 means none at the top level, as PyTorch's schema says",
    ("gradient", "spacing"): "None is 1",
    ("kthvalue", "dim"): "None is the last",
    ("nan_to_num", "nan"): "None is 0",
    ("pinverse", "rcond"): "None is PyTorch's number in float32 and float64",
    ("stft", "onesided"): "None is True for real signals, as in PyTorch's code",
    ("rms_norm", "eps"): "None is the dtype's eps, as in PyTorch's code",
}
# At PyTorch's top level these do not reduce unless asked; test_losses_at_the_top_level.
LOSSES = (
    "binary_cross_entropy_with_logits", "cosine_embedding_loss", "ctc_loss", "hinge_embedding_loss",
    "kl_div", "margin_ranking_loss", "triplet_margin_loss",
)  # fmt: skip
EMPTY = inspect.Parameter.empty


def parameters(function: Any) -> dict[str, Any]:
    try:
        return dict(inspect.signature(function).parameters)
    except (ValueError, TypeError):  # made in C++ without a signature
        return {}


def pairs() -> Iterator[tuple[str, Any, Any]]:
    """Names with PyTorch's and our function, or constructor."""
    for module in MODULES:
        theirs = importlib.import_module(f"torch.{module}")
        ours = importlib.import_module(f"tinygrad_cuda.{module}")
        for name in dir(ours):
            a, b = getattr(theirs, name, None), getattr(ours, name)
            if name.startswith("_") or not (callable(a) and callable(b)):
                continue
            if inspect.isclass(a) and inspect.isclass(b):
                a, b = a.__init__, b.__init__
            yield name, a, b
    # For what has no signature PyTorch lists one.
    for function, listed in torch.overrides.get_testing_overrides().items():
        name = getattr(function, "__name__", "_")
        if getattr(torch, name, None) is function and hasattr(tc, name) and name not in LOSSES:
            yield name, listed, getattr(tc, name)


def test_defaults_are_those_of_torch() -> None:
    count, different = 0, []
    for name, theirs, ours in pairs():
        own = parameters(ours)
        for key, parameter in parameters(theirs).items():
            default = own[key].default if key in own else EMPTY
            if EMPTY in (parameter.default, default) or (name, key) in SAME:
                continue
            count += 1
            if str(parameter.default) != str(default) and parameter.default != default:
                different.append(f"{name}({key}={default}), PyTorch: {parameter.default}")
    assert not different, "\n".join(different)
    assert count > 1000


# Methods and functions of linalg that are made in C++: PyTorch's schemas state their defaults.
SCHEMAS = {
    "Tensor": (tc.Tensor, torch.Tensor, "aten::"),
    "linalg": (tc.linalg, torch.linalg, "aten::linalg_"),
}
OF_SCHEMAS = {
    "clone": "None means preserve_format",
    "contiguous": "0 means contiguous_format",
    "pinverse": "as at the top level",
    "std": "by correction",
    "var": "by correction",
    "bernoulli": "the Tensor's own probabilities, unless p is given",
}


def stated(part: str, name: str) -> dict[str, list[Any]]:
    """The defaults of an operator's overloads, by the argument's name."""
    _, owner, prefix = SCHEMAS[part]
    if parameters(getattr(owner, name)):
        return {}
    found: dict[str, list[Any]] = {}
    schemas = torch._C._jit_get_schemas_for_operator
    for schema in (*schemas(prefix + name), *schemas(prefix + name.rstrip("_"))):
        for argument in schema.arguments:
            if argument.has_default_value():
                found.setdefault(argument.name, []).append(argument.default_value)
    return found


@pytest.mark.parametrize("part", SCHEMAS)
def test_defaults_are_those_of_a_schema(part: str) -> None:
    owner, theirs, _ = SCHEMAS[part]
    count, different = 0, []
    for name in dir(theirs):
        function = getattr(owner, name, None)
        if name.startswith("_") or not callable(function) or name in OF_SCHEMAS:
            continue
        defaults = stated(part, name)
        for key, parameter in parameters(function).items():
            if parameter.default is EMPTY or key not in defaults:
                continue
            count += 1
            mine = parameter.default
            mine = [] if mine is None else list(mine) if isinstance(mine, tuple) else mine
            if mine not in [[] if value is None else value for value in defaults[key]]:
                different.append(f"{name}({key}={mine}), PyTorch: {defaults[key]}")
    assert not different, "\n".join(different)
    assert count > 40


@pytest.mark.parametrize("name", LOSSES)
def test_losses_at_the_top_level_are_not_reduced(name: str) -> None:
    rng = np.random.default_rng(0)
    x, y, z = rng.standard_normal((3, 4, 2)).astype(np.float32)
    signs = np.array([1, -1, 1, 1], np.float32)
    arguments: list[Any] = {
        "cosine_embedding_loss": [x, y, signs],
        "margin_ranking_loss": [x[:, 0], y[:, 0], signs],
        "triplet_margin_loss": [x, y, z],
        "hinge_embedding_loss": [x[:, 0], signs],
        "ctc_loss": [
            np.log(rng.dirichlet([1.0] * 4, (5, 2))).astype(np.float32),
            np.array([[1, 2], [1, 3]]), np.array([5, 5]), np.array([2, 2]),
        ],
    }.get(name, [x, abs(y)])  # fmt: skip
    expected = getattr(torch, name)(*map(torch.tensor, arguments))
    found = getattr(tc, name)(*(tc.tensor(a) for a in arguments))
    assert tuple(found.shape) == tuple(expected.shape) != ()
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5)


@pytest.mark.parametrize("name", ["tril_indices", "triu_indices"])
@pytest.mark.parametrize("offset", [(), (0,), (1,), (-2,)])
def test_indices_of_a_triangle(name: str, offset: tuple[int, ...]) -> None:
    assert getattr(tc, name)(3, 4, *offset).tolist() == getattr(torch, name)(3, 4, *offset).tolist()
