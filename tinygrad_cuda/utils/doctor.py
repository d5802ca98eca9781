"""The machine's check-up behind `python -m tinygrad_cuda doctor`.

Each finding is a line; one that can be mended is followed by the one command that mends it.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from tinygrad_cuda.backend.cuda import compiler as nvrtc
from tinygrad_cuda.backend.cuda import driver
from tinygrad_cuda.backend.emu import compiler as emulator
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import TgcError
from tinygrad_cuda.core.ownership import own_folder

OLDEST_PYTHON = (3, 11)  # as requires-python in pyproject.toml
NVIDIA = "0x10de"  # the vendor's number on the PCI bus
DRIVER = "sudo apt-get install nvidia-driver-580"


class Finding(NamedTuple):
    """One line of the report. `level` is ``ok``, ``note`` (a device is absent) or ``bad``."""

    level: str
    name: str
    text: str
    command: str | None = None


def doctor(write: Callable[[str], object] = print) -> int:
    """Checks what tinygrad_cuda needs and prints the findings.

    Args:
        write: takes each line.

    Returns:
        0 if the package works here, be it without a GPU or a C++ compiler; else 1.

    Example:
        >>> doctor(write=lambda line: None)
        0
    """
    findings = list(findings_of_machine())
    for finding in findings:
        write(f"{finding.level:<5}{finding.name:<10}{finding.text}")
        if finding.command is not None:
            write(f"{'':15}-> {finding.command}")
    bad = [finding.name for finding in findings if finding.level == "bad"]
    write(f"not usable: {', '.join(bad)}" if bad else f"usable on {_devices(findings)}")
    return int(bool(bad))


def findings_of_machine() -> Iterator[Finding]:
    """Every finding, in the order of what depends on what."""
    yield _python()
    yield from _packages()
    yield _nvrtc()
    yield _gpu()
    yield _cxx()
    yield _cache()


def _devices(findings: list[Finding]) -> str:
    well = {finding.name for finding in findings if finding.level == "ok"}
    devices = [("cpu", True), ("emu", "C++" in well), ("cuda", "GPU" in well)]
    return ", ".join(name for name, usable in devices if usable)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        command = "python3.11 -m venv .venv && .venv/bin/pip install tinygrad_cuda"
        return Finding("bad", "Python", f"{version}, and 3.11 or later is needed", command)
    return Finding("ok", "Python", f"{version}, {sys.executable}")


def _packages() -> Iterator[Finding]:
    """The requirements that the installed package states, each with what is there."""
    try:
        requirements = metadata.requires("tinygrad_cuda") or []
    except metadata.PackageNotFoundError:
        text = "tinygrad_cuda is run from its source without being installed"
        yield Finding("bad", "packages", text, f"{sys.executable} -m pip install -e .")
        return
    installed, wrong = [], []
    for requirement in requirements:
        if "extra ==" in requirement:
            continue
        name, limits = _parse(requirement)
        version = _installed(name)
        if version is None:
            wrong.append((f"{name} is missing", requirement))
            continue
        if all(_holds(version, sign, limit) for sign, limit in limits):
            installed.append(f"{name} {version}")
        else:
            wrong.append((f"{name} is {version}", requirement))
    for text, requirement in wrong:
        command = f"{sys.executable} -m pip install '{requirement}'"
        yield Finding("bad", "packages", f"{text}, and {requirement} is needed", command)
    if not wrong:
        yield Finding("ok", "packages", ", ".join(installed))


def _installed(name: str) -> str | None:
    """The version of a distribution; cuda-python may be there as the bindings it consists of."""
    for candidate in (name, *(["cuda-bindings"] if name == "cuda-python" else [])):
        try:
            return metadata.version(candidate)
        except metadata.PackageNotFoundError:
            continue
    return None


def _parse(requirement: str) -> tuple[str, list[tuple[str, str]]]:
    match = re.match(r"[\w.-]+", requirement)
    assert match is not None, requirement
    limits = re.findall(r"(>=|<)\s*([\d.]+)", requirement[match.end() :].split(";")[0])
    return match[0], limits


def _holds(version: str, sign: str, limit: str) -> bool:
    have, want = (tuple(map(int, re.findall(r"\d+", text)[:3])) for text in (version, limit))
    return have >= want if sign == ">=" else have < want


def _nvrtc() -> Finding:
    try:
        version = nvrtc.toolchain().rsplit(" ", 1)[0]
        archs = nvrtc.supported_archs()
    except TgcError as error:
        return Finding("bad", "NVRTC", _reason(error), nvrtc.INSTALL)
    return Finding("ok", "NVRTC", f"{version}, compiles for sm_{archs[0]} to sm_{archs[-1]}")


def _gpu() -> Finding:
    if not driver.available():
        text = f"{driver.reason()}; the devices cpu and emu do without"
        return Finding("note", "GPU", text, DRIVER if _has_nvidia_card() else None)
    properties = driver.device(0).properties
    text = f"{properties.name}, {properties.arch}, {properties.memory_bytes / 2**30:.0f} GiB"
    try:
        archs = nvrtc.supported_archs()
    except TgcError:
        return Finding("ok", "GPU", text)
    if int(properties.arch.removeprefix("sm_")) not in archs:
        return Finding("bad", "GPU", f"{text}: NVRTC cannot compile for it", nvrtc.INSTALL)
    return Finding("ok", "GPU", text)


def _has_nvidia_card() -> bool:
    """Whether the PCI bus has one: without a card no driver would help."""
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    return any(vendor.read_text().strip() == NVIDIA for vendor in vendors)


def _cxx() -> Finding:
    try:
        toolchain = emulator.toolchain()
    except TgcError as error:
        text = f"{_reason(error)}; only the device emu needs one"
        return Finding("note", "C++", text, "sudo apt-get install g++")
    return Finding("ok", "C++", f"{toolchain.version} ({toolchain.command[0]})")


def _cache() -> Finding:
    folder = settings.cache_dir
    try:
        reason = own_folder(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"tinygrad_cuda")
    except OSError as error:
        reason = error.strerror or str(error)
    if reason is not None:
        text = f"{folder} cannot be used ({reason}): kernels are compiled in each process"
        # A new folder that is the user's own; what others can write to is not loaded.
        return Finding("note", "cache", text, 'export TGC_CACHE_DIR="$(mktemp -d)"')
    return Finding("ok", "cache", f"{folder} can be written")


def _reason(error: TgcError) -> str:
    """The first line of an error without the name of the operation."""
    return str(error).splitlines()[0].partition("] ")[2]
