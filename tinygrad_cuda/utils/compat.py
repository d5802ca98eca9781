"""`python -m tinygrad_cuda compat`: how much of PyTorch's surface has the same name here.

Counts names only; that they do the same is what the tests compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any, NamedTuple

from tinygrad_cuda.core.names import OUT_OF_SCOPE


class Coverage(NamedTuple):
    """One part of the surface.

    Attributes:
        part: such as ``Tensor`` or ``nn``.
        here: names of torch's that exist here too.
        missing: names that do not.
        left_out: names that do not on purpose: sparse and quantized tensors.
    """

    part: str
    here: list[str]
    missing: list[str]
    left_out: list[str]

    @property
    def total(self) -> int:
        """All names of torch's."""
        return len(self.here) + len(self.missing) + len(self.left_out)

    @property
    def percent(self) -> float:
        """The share of all names that exists here."""
        return 100 * len(self.here) / max(self.total, 1)

    def __str__(self) -> str:
        return (
            f"{self.part:<14} {self.percent:5.1f} %  {len(self.here):4} of {self.total:4}"
            f"  ({len(self.left_out)} left out on purpose)"
        )


# Parts of torch's own machinery, which its documentation does not list.
INTERNAL = ("cudnn_", "miopen_", "mkldnn_", "fbgemm_", "native_", "sym_", "batch_norm_")


def _left_out(name: str) -> bool:
    return any(word in name for words in OUT_OF_SCOPE.values() for word in words)


def _count(part: str, names: Iterable[str], owner: Any) -> Coverage:
    here: list[str] = []
    missing: list[str] = []
    left_out: list[str] = []
    for name in sorted(set(names)):
        group = here if hasattr(owner, name) else left_out if _left_out(name) else missing
        group.append(name)
    return Coverage(part, here, missing, left_out)


def _public(owner: Any, wanted: Callable[[Any], bool]) -> list[str]:
    return [
        name
        for name in dir(owner)
        if not name.startswith("_") and wanted(getattr(owner, name, None))
    ]


def coverage(package: Any) -> list[Coverage]:
    """What of torch's surface `package` has, part by part; torch must be installed."""
    import torch

    def layer(value: Any) -> bool:
        return isinstance(value, type) and issubclass(value, torch.nn.Module)

    def optimizer(value: Any) -> bool:
        return isinstance(value, type) and issubclass(value, torch.optim.Optimizer)

    def own(module: str) -> Callable[[Any], bool]:
        return lambda value: callable(value) and getattr(value, "__module__", "") == module

    def function(value: Any) -> bool:
        name = getattr(value, "__name__", "_")
        internal = name.startswith(INTERNAL) or name.endswith(("_", "_copy"))
        return type(value).__name__ == "builtin_function_or_method" and not internal

    def functional(value: Any) -> bool:
        # Those of the module torch are builtin: convolutions, distances, shuffles.
        modules = ("torch.nn.functional", "torch._C._nn", "torch")
        named = getattr(value, "__module__", "") in modules
        return named and callable(value) and not isinstance(value, type)

    schedulers = torch.optim.lr_scheduler
    parts: list[tuple[str, list[str], Any]] = [
        ("Tensor", [name for name in dir(torch.Tensor) if not name.startswith("_")],
         package.Tensor),
        ("torch", _public(torch, function), package),
        ("linalg", _public(torch.linalg, function), package.linalg),
        ("fft", _public(torch.fft, function), package.fft),
        ("nn", _public(torch.nn, layer), package.nn),
        ("nn.functional", _public(torch.nn.functional, functional), package.nn.functional),
        ("nn.init", _public(torch.nn.init, own("torch.nn.init")), package.nn.init),
        ("optim", _public(torch.optim, optimizer), package.optim),
        ("lr_scheduler", _public(schedulers, own(schedulers.__name__)),
         package.optim.lr_scheduler),
    ]  # fmt: skip
    return [_count(part, names, owner) for part, names, owner in parts]


def compat(package: Any, missing: bool = False, write: Callable[[str], None] = print) -> int:
    """Writes the coverage, with the missing names if asked, and returns the exit status."""
    if find_spec("torch") is None:
        write("torch is not installed here, so there is nothing to compare with")
        return 1
    for part in coverage(package):
        write(str(part))
        if missing and part.missing:
            write("  missing: " + ", ".join(part.missing))
    return 0
