"""What layers and optimizers are made with, and say of themselves: as PyTorch's do."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim

torch = pytest.importorskip("torch")
OLDER = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
pytestmark = pytest.mark.usefixtures("on_cpu")

# Arguments of layers that cannot be made of one of GENERAL.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "Linear": (3, 4), "Bilinear": (2, 3, 4), "MultiheadAttention": (4, 2), "RMSNorm": (4,),
    **{f"Conv{rank}d": (2, 3, 3) for rank in (1, 2, 3)},
    **{f"ConvTranspose{rank}d": (2, 3, 3) for rank in (1, 2, 3)},
    "Embedding": (5, 3), "EmbeddingBag": (5, 3), "LayerNorm": (4,), "GroupNorm": (2, 4),
    **{f"{kind}{cell}": (3, 4) for kind in ("RNN", "LSTM", "GRU") for cell in ("", "Cell")},
    "Unfold": (3,), "Fold": ((4, 4), 3), "Unflatten": (1, (2, 2)), "Upsample": (None, 2),
    "Threshold": (0.1, 20), "TransformerEncoderLayer": (4, 2), "TransformerDecoderLayer": (4, 2),
    "Transformer": (4, 2, 1, 1, 8),
}  # fmt: skip
GENERAL: tuple[tuple[Any, ...], ...] = (
    (), (3,), (2,), (2, 3), ((3, 3),), (3, 4), (2, 3, 3),
)  # fmt: skip
# Not made here, or said better here.
OTHER = {
    ("Embedding", "sparse"), ("EmbeddingBag", "sparse"),  # there are no sparse gradients
    ("Hardsigmoid", "inplace"), ("Hardswish", "inplace"),  # PyTorch does not say it
}  # fmt: skip


def made(kind: Any, arguments: tuple[Any, ...], **options: Any) -> str | None:
    """The text of a layer, or None if it cannot be made so."""
    try:
        return repr(kind(*arguments, **options)).replace("NonDynamicallyQuantizable", "")
    except (TypeError, ValueError, AttributeError, AssertionError, RuntimeError):
        return None


def layers() -> Iterator[tuple[str, Any, Any, tuple[Any, ...]]]:
    for name in dir(nn):
        theirs, ours = getattr(torch.nn, name, None), getattr(nn, name)
        if not (inspect.isclass(theirs) and issubclass(theirs, torch.nn.Module)):
            continue
        tries = (ARGUMENTS[name],) if name in ARGUMENTS else GENERAL
        for arguments in tries:
            if made(theirs, arguments) is not None:
                yield name, theirs, ours, arguments
                break


def another(default: Any) -> Any:
    """An option unlike its default; None where there is nothing to try."""
    if isinstance(default, bool):
        return not default
    if isinstance(default, int):
        return default + 1
    return default + 0.25 if isinstance(default, float) else None


@pytest.mark.skipif(OLDER, reason="before torch 2.13 layers leave out options: bias of norms")
@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch about its own options
def test_layers_say_what_they_were_made_with() -> None:
    count, different = 0, []
    for name, theirs, ours, arguments in layers():
        options: list[dict[str, Any]] = [{}]
        positional = list(inspect.signature(theirs.__init__).parameters)[1 : 1 + len(arguments)]
        for key, parameter in inspect.signature(theirs.__init__).parameters.items():
            value = another(parameter.default)
            if value is not None and key not in positional and (name, key) not in OTHER:
                options.append({key: value})
        for chosen in options:
            count += 1
            found, expected = made(ours, arguments, **chosen), made(theirs, arguments, **chosen)
            if found != expected:
                different.append(f"{name}{arguments} {chosen}: {found}, PyTorch: {expected}")
    assert not different, "\n".join(different)
    assert count > 400


def test_groups_of_optimizers_begin_as_those_of_torch() -> None:
    different = []
    switches = {"params", "foreach", "fused", "capturable", "differentiable"}
    for name in dir(optim):
        theirs, ours = getattr(torch.optim, name, None), getattr(optim, name)
        if not inspect.isclass(theirs) or name in ("Optimizer", "SparseAdam"):
            continue
        expected = theirs([torch.zeros(3, 3, requires_grad=True)], lr=0.1).param_groups[0]
        found = ours([tc.zeros(3, 3, requires_grad=True)], lr=0.1).param_groups[0]
        for key in expected.keys() - switches:
            if found.get(key, "missing") != expected[key]:
                different.append(f"{name}: {key} is {found.get(key)}, PyTorch: {expected[key]}")
    assert not different, "\n".join(different)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_limits_of_floating_dtypes(name: str) -> None:
    found, expected = tc.finfo(getattr(tc, name)), torch.finfo(getattr(torch, name))
    for key in ("bits", "eps", "max", "min", "tiny", "smallest_normal", "resolution", "dtype"):
        assert getattr(found, key) == getattr(expected, key), key


@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "int32", "int64"])
def test_limits_of_integer_dtypes(name: str) -> None:
    found, expected = tc.iinfo(getattr(tc, name)), torch.iinfo(getattr(torch, name))
    for key in ("bits", "max", "min", "dtype"):
        assert getattr(found, key) == getattr(expected, key), key


def test_gains_of_activations() -> None:
    names = [
        "linear",
        "conv1d",
        "conv_transpose3d",
        "sigmoid",
        "tanh",
        "relu",
        "leaky_relu",
        "selu",
    ]
    for name in names:
        assert nn.init.calculate_gain(name) == torch.nn.init.calculate_gain(name)
    expected = torch.nn.init.calculate_gain("leaky_relu", 0.3)
    assert nn.init.calculate_gain("leaky_relu", 0.3) == expected
