"""Every environment variable of tinygrad_cuda: name, type, default and meaning.

Nothing else in the package reads ``TGC_*``.
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

_WORDS = {"": False, "0": False, "false": False, "no": False, "off": False}
_WORDS |= {"1": True, "true": True, "yes": True, "on": True}


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in _WORDS:
        raise ValueError(word)
    return _WORDS[word]


def _path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None


def _folder(text: str) -> Path:
    """A folder that is always needed: an empty text is the default, as where it is unset."""
    try:
        return Path(text or _default_cache()).expanduser()
    except RuntimeError as error:  # there is no home folder
        raise ValueError(text) from error


PRECISIONS = ("highest", "high", "medium", "ieee", "tf32x3")
ROUNDED = ("high", "medium")  # of these, operands of products may lose mantissa bits
# Of these, operands may be split in two parts of tf32, where sums then err no more.
SPLIT = ("highest", "tf32x3", *ROUNDED)
# Rungs of the climb of matrix products, each with a skeleton of its own.
MATMUL_TIERS = ("naive", "tiled", "register_tiled", "mma", "wgmma")
# The same of convolutions. Columns of windows are stored by im2col; naive, tiled and register_tiled
# read them from the images, direct, depthwise and winograd have none.
CONVOLUTION_TIERS = (
    "naive", "tiled", "im2col", "register_tiled", "direct", "depthwise", "winograd", "mma", "wgmma",
)  # fmt: skip
# Libraries that may make products, convolutions or transforms in place of generated kernels; each
# is an extra.
PROVIDERS = ("cublas", "cudnn", "cufft")

# What decides the kernels of products and convolutions: the model of time alone, choices that were
# measured before, or these with what is missing measured when a plan is made.
TUNING = ("off", "cached", "on")


def _tuning(text: str) -> str:
    if text in TUNING:
        return text
    return "on" if _boolean(text) else "off"


def _precision(text: str) -> str:
    if text not in PRECISIONS:
        raise ValueError(text)
    return text


def _tier_of(tiers: tuple[str, ...]) -> Callable[[str], str]:
    def tier(text: str) -> str:
        if text and text not in tiers:
            raise ValueError(text)
        return text

    return tier


def _provider(text: str) -> str:
    if text and text not in PROVIDERS:
        raise ValueError(text)
    return text


def _names(text: str) -> tuple[str, ...]:
    return tuple([name.strip() for name in text.split(",") if name.strip()])


class EnvironmentVariable(NamedTuple):
    """One environment variable."""

    name: str
    field: str
    parse: Any
    default: str
    meaning: str
    least: int | None = None
    most: int | None = None


def _default_cache() -> str:
    if os.name == "nt":
        base = os.environ.get("LOCALAPPDATA") or "~\\AppData\\Local"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return os.path.join(base, "tinygrad_cuda")


VARIABLES: tuple[EnvironmentVariable, ...] = (
    EnvironmentVariable(
        "TGC_DEVICE", "device", str, "", "default device; empty: cuda if usable, else cpu"
    ),
    EnvironmentVariable(
        "TGC_DEBUG",
        "debug",
        int,
        "0",
        "1 plan and cache hits, 2 a line per kernel, 3 why each kernel exists, 4 CUDA source, "
        "5 registers and spills",
        0,
        5,
    ),
    EnvironmentVariable(
        "TGC_EAGER", "eager", _boolean, "0", "realize each operation as it is called"
    ),
    EnvironmentVariable(
        "TGC_VALIDATE", "validate", _boolean, "0", "run each kernel against NumPy as well"
    ),
    EnvironmentVariable(
        "TGC_SLOW",
        "slow",
        _boolean,
        "0",
        "switch off all that recognises what was seen before; read at import",
    ),
    EnvironmentVariable(
        "TGC_FAST",
        "fast",
        _names,
        "",
        "fast paths that are on, by commas, or with -name those that are off; empty: all; "
        "read at import",
    ),
    EnvironmentVariable(
        "TGC_SYNC", "sync", _boolean, "0", "check for device errors after each launch"
    ),
    EnvironmentVariable("TGC_CACHE_DIR", "cache_dir", _folder, "", "compiled kernels and data"),
    EnvironmentVariable(
        "TGC_CACHE", "cache", _boolean, "1", "0 keeps compiled kernels in memory only"
    ),
    EnvironmentVariable("TGC_DATA", "data", _path, "", "folder that holds data sets such as MNIST"),
    EnvironmentVariable(
        "TGC_EMU_ORDER",
        "emu_order",
        int,
        "0",
        "seed that permutes threads and asynchronous copies on emu; 0 is 0, 1, 2, ...",
        0,
    ),
    EnvironmentVariable(
        "TGC_EMU_LAUNCHES",
        "emu_launches",
        int,
        "0",
        "seed that picks an order of launches on emu, of those a plan allows; 0 is the plan's own",
        0,
    ),
    EnvironmentVariable(
        "TGC_EMU_OPTIMIZE",
        "emu_optimize",
        _boolean,
        "1",
        "0 has emu's kernels compiled three times as fast, for programs that run only a few steps",
    ),
    EnvironmentVariable(
        "TGC_WINOGRAD",
        "winograd",
        _boolean,
        "1",
        "0 sums 3 x 3 convolutions by their definition, not by tiles",
    ),
    EnvironmentVariable(
        "TGC_MATMUL_PRECISION",
        "matmul_precision",
        _precision,
        "highest",
        "how exact products of float32 are: highest as sums of float32, on any units (tf32x3: "
        "all recurrent steps); high and medium permit tf32; ieee has float32 units make them",
    ),
    EnvironmentVariable(
        "TGC_CUDNN_TF32",
        "cudnn_tf32",
        _boolean,
        "1",
        "0 keeps convolutions of float32 exact where TGC_MATMUL_PRECISION permits tf32",
    ),
    EnvironmentVariable(
        "TGC_MATMUL_TIER",
        "matmul_tier",
        _tier_of(MATMUL_TIERS),
        "",
        "the kernels that make all matrix products: naive, tiled, register_tiled, mma or wgmma; "
        "empty: the quickest by the model of time",
    ),
    EnvironmentVariable(
        "TGC_CONVOLUTION_TIER",
        "convolution_tier",
        _tier_of(CONVOLUTION_TIERS),
        "",
        "the kernels that make all convolutions: naive, tiled, im2col, register_tiled, direct, "
        "depthwise, winograd, mma or wgmma; empty: the quickest by the model of time",
    ),
    EnvironmentVariable(
        "TGC_PROVIDER",
        "provider",
        _provider,
        "",
        "a library in place of kernels on a GPU: cublas makes products, cudnn convolutions and "
        "attention, cufft transforms; empty: none",
    ),
    EnvironmentVariable(
        "TGC_TUNE",
        "tune",
        _tuning,
        "off",
        "on measures the kernels of products and convolutions and remembers the quickest, cached "
        "uses what was measured, off leaves the choice to the model of time",
    ),
    EnvironmentVariable(
        "TGC_POOL_LIMIT", "pool_limit", int, "0", "bytes the GPU pool may hold; 0: no limit", 0
    ),
)


def _value(variable: EnvironmentVariable, text: str | None) -> Any:
    """The value of a variable; outside its range the nearest in it, and else the default."""
    default = variable.parse(variable.default)
    if text is None:
        return default
    try:
        value = variable.parse(text)
    except ValueError:
        _warn(f"{variable.name}={text!r} is not a valid value, {variable.default} is used "
              f"instead ({variable.meaning})")  # fmt: skip
        return default
    inside = value
    if variable.least is not None:
        inside = max(inside, variable.least)
    if variable.most is not None:
        inside = min(inside, variable.most)
    if inside != value:
        _warn(f"{variable.name}={value} is out of range, {inside} is used instead "
              f"({variable.meaning})")  # fmt: skip
    return inside


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=3)


class Settings:
    """The values of all variables, read once; `override` changes them for a while."""

    device: str
    debug: int
    eager: bool
    validate: bool
    slow: bool
    fast: tuple[str, ...]
    sync: bool
    cache_dir: Path
    cache: bool
    data: Path | None
    emu_order: int
    emu_launches: int
    emu_optimize: bool
    winograd: bool
    matmul_precision: str
    cudnn_tf32: bool
    matmul_tier: str
    convolution_tier: str
    provider: str
    tune: str
    pool_limit: int

    def __init__(self) -> None:
        self.reload()

    def reload(self) -> None:
        """Reads the environment again; a name or a value that is none warns."""
        for variable in VARIABLES:
            setattr(self, variable.field, _value(variable, os.environ.get(variable.name)))
        names = [variable.name for variable in VARIABLES]
        for name in sorted(os.environ):
            if name.startswith("TGC_") and name not in names:
                near = difflib.get_close_matches(name, names, 1, 0.8)
                _warn(f"{name} is no variable of tinygrad_cuda"
                      + (f"; did you mean {near[0]}?" if near else ""))  # fmt: skip

    @contextmanager
    def override(self, **values: Any) -> Iterator[None]:
        """Sets fields inside a `with` block and puts the old values back after it."""
        old = {name: getattr(self, name) for name in values}
        self._set(values)
        try:
            yield
        finally:
            self._set(old)

    def _set(self, values: dict[str, Any]) -> None:
        # Not by `__dict__`: an object whose dictionary has been asked for is read more slowly.
        for name, value in values.items():
            setattr(self, name, value)


settings = Settings()
# What decides the kernels of a program: part of the key of its plan.
decisive = attrgetter(
    "winograd", "matmul_precision", "cudnn_tf32", "matmul_tier", "convolution_tier", "provider",
    "tune",
)  # fmt: skip
