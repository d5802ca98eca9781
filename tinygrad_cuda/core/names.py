"""Names that are not here: how what is meant is spelled, or else the nearest name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from tinygrad_cuda.core.errors import UnknownNameError

# PyTorch's methods of Tensors that are spelled otherwise here; x is the Tensor, y another.
TENSOR = {
    "hardshrink": "tc.where(x.abs() > 0.5, x, 0.0)",
}
# PyTorch's functions.
MODULE = {
    "range": "tc.arange",
}
# Its layers that are left out, and what to take.
LAYERS = {
    "MLP": "nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)) is one",
    "Perceptron": "nn.Linear(2, 1) is one",
    "CrossMapLRN2d": "the formula is that of nn.LocalResponseNorm",
    "NLLLoss2d": "nn.NLLLoss takes images too",
}
# NumPy's names for methods and functions.
NUMPY = {
    "array": "tc.tensor",
    "astype": "x.to(dtype)",
    "copy": "x.clone()",
    "expand_dims": "x.unsqueeze(dim)",
    "power": "x.pow(y)",
}


def unknown_name(
    owner: str, name: str, candidates: Callable[[], Iterable[str]]
) -> UnknownNameError:
    """The error for a name that `owner` (a class or the package) does not have.

    Args:
        owner: as the user knows it: ``Tensor`` or ``tinygrad_cuda``.
        name: what was asked for.
        candidates: returns the existing names.
    """

    def names() -> list[str]:
        return [other for other in candidates() if not other.startswith("_")]

    return UnknownNameError(
        owner,
        f"there is no {name!r}",
        expect=lambda: f"one of {len(names())} names, see dir({owner})",
        actual=name,
        hint=lambda: _spelling(owner, name, names()),
    )


def missing_from(
    module: str, candidates: Callable[[], Iterable[str]]
) -> Callable[[str], UnknownNameError]:
    """The ``__getattr__`` of a module: raises for a name that it does not have.

    Args:
        module: its ``__name__``.
        candidates: returns the existing names.
    """

    def __getattr__(name: str) -> UnknownNameError:  # noqa: N807 (what it is to be)
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise unknown_name(module, name, candidates)

    return __getattr__


def also_named(package: str, modules: Mapping[str, ModuleType]) -> None:
    """Lets modules of a package be imported under PyTorch's names for them as well.

    Args:
        package: whose modules they become, such as ``tinygrad_cuda.distributions``.
        modules: by name; afterwards ``from package.name import ...`` works.
    """
    for name, module in modules.items():
        sys.modules[f"{package}.{name}"] = module
        setattr(sys.modules[package], name, module)


def also_importable(package: str, modules: Mapping[str, ModuleType]) -> None:
    """Lets modules be imported under names of a package that its functions have.

    Args:
        package: that has the functions, such as ``tinygrad_cuda.nn.utils``.
        modules: by name; afterwards ``from package.name import ...`` works.
    """
    sys.modules.update({f"{package}.{name}": module for name, module in modules.items()})


def public(names: dict[str, Any]) -> list[str]:
    """The functions that a module without ``__all__`` offers, of what stands in it."""
    return [name for name, value in names.items() if callable(value) and name.islower()]


# Parts of PyTorch that are left out on purpose, by words of their names.
OUT_OF_SCOPE = {
    "sparse tensors": (
        "sparse",
        "Sparse",
        "to_mkldnn",
        "crow_indices",
        "ccol_indices",
        "coalesced",
    ),
    "quantized tensors": ("quantize", "qint", "quint", "q_scale", "q_zero_point"),
}


def _spelling(owner: str, name: str, names: list[str]) -> str | None:
    for what, words in OUT_OF_SCOPE.items():
        if any(word in name for word in words):
            return f"{what} are out of scope"
    if name in LAYERS and owner.endswith("nn"):
        return LAYERS[name]
    own, other = (TENSOR, MODULE) if owner == "Tensor" else (MODULE, TENSOR)
    for table, whose in ((own, "torch"), (NUMPY, "NumPy"), (other, "torch")):
        if name in table:
            return f"{whose}'s {name} is spelled {table[name]} here"
    if name.endswith("_") and name.rstrip("_") in names:
        base = name.rstrip("_")
        return f"there is no form in place: x = x.{base}(...), or x.copy_(x.{base}(...))"
    # Only what looks like a slip of the fingers: other names seldom mean the same.
    near = get_close_matches(name, names, 3, cutoff=0.8)
    return f"near to it: {', '.join(near)}" if near else None
