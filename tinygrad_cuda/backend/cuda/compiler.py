"""CUDA C++ source to cubin with NVRTC, remembered in memory and on disk.

Needs no GPU and no driver: the architecture is always given, and compiled code is plain bytes.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import sys
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import CompileError, numbered_lines
from tinygrad_cuda.core.ownership import distrust, own_folder, read_own, write_own

FORMAT = "1"  # of a cache entry; part of the key, so a change of it makes old entries misses
# No contraction: what the compiler fuses would depend on what else stands in a kernel. Sums of
# products that round once say `tgc_fma`.
OPTIONS = ("--std=c++17", "--fmad=false")
# The assembler's report, see `resources`: an entry of its own, since NVRTC has a cache too, from
# which machine code comes without it.
REPORT = ("--ptxas-options=-v", "--no-cache")
SLOW = 0.5  # seconds of compiling after which the user sees a notice

INSTALL = "pip install 'nvidia-cuda-nvrtc>=13,<14' 'cuda-python>=13,<14'"
_MAGIC = b"tgc-cubin"
_FOOTER = struct.Struct(f"<QQ32s{len(_MAGIC)}s")  # length of code, of log, sha256 of both, magic
_DIRECTIVE = re.compile(r"^[ \t]*#(?:.*\\\n)*.*$", re.MULTILINE)
_KERNEL = re.compile(r"\b__global__\b|\bTGC_KERNEL(?:_MIN_BLOCKS|_CLUSTER)?\s*\(")
_GENERATED = re.compile(r"^TGC_KERNEL_(?:MIN_BLOCKS|CLUSTER)\((\w+)", re.MULTILINE)
_ERROR_LINE = re.compile(r"^kernels\.cu\((\d+)\): (?:catastrophic )?error", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Binary:
    """Machine code of one translation unit; `cached` says that nothing was compiled for it."""

    cubin: bytes
    arch: str
    key: str
    log: str
    cached: bool


class Resources(NamedTuple):
    """What one kernel takes, as the assembler reports it (bytes except `registers`)."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int


def taken(name: str, used: Resources) -> str:
    """What TGC_DEBUG=5 prints of a kernel: what the assembler gave it."""
    return (
        f"{name:<56} {used.registers:>4} registers {used.shared:>7} bytes shared "
        f"{used.stack:>6} stack  spills {used.spill_stores} stored, {used.spill_loads} loaded"
    )


def compile_source(source: str, arch: str, options: tuple[str, ...] = ()) -> Binary:
    """Compiles one translation unit, of one kernel or many, to a cubin.

    Args:
        source: self-contained CUDA C++ whose kernels are ``extern "C"``.
        arch: the target, such as ``sm_90`` or ``sm_90a``.
        options: further NVRTC options.

    Raises:
        CompileError: NVRTC is missing, cannot target ``arch`` or refused the source.

    Example:
        >>> binary = compile_source('extern "C" __global__ void nothing() {}', "sm_90")
        >>> binary.cubin[:4]
        b'\\x7fELF'
    """
    return compile_many([source], arch, options)[0]


def architecture_of(source: str, arch: str) -> str:
    """The target that a source needs: wgmma is only of ``sm_90a``, which runs on sm_90 alone."""
    return f"{arch}a" if arch == "sm_90" and "tgc_wgmma_" in source else arch


def compile_many(sources: Sequence[str], arch: str, options: tuple[str, ...] = ()) -> list[Binary]:
    """Compiles several translation units at once, in threads; see `compile_source`.

    The first source that fails, in the order given, decides the error.
    """
    keys = [cache_key(source, arch, options) for source in sources]
    binaries = {key: hit for key in keys if (hit := _cache.get(key, arch)) is not None}
    missing = {key: text for key, text in zip(keys, sources) if key not in binaries}
    if missing:
        _check_arch(arch)
        split = len(missing) == 1  # several units already fill the cores with a thread each
        with _SlowNotice(sum(count_kernels(text) for text in missing.values())):
            outcomes = _in_threads(list(missing.values()), arch, options, split)
        for (key, text), outcome in zip(missing.items(), outcomes):
            if outcome.cubin is None:
                raise _rejected(text, arch, options, outcome.log)
            binary = binaries[key] = Binary(outcome.cubin, arch, key, outcome.log, cached=False)
            _cache.put(binary, text)
    return [binaries[key] for key in keys]


def cache_key(source: str, arch: str, options: tuple[str, ...] = ()) -> str:
    """The name of a cache entry: a hash of all that decides the machine code."""
    digest = hashlib.sha256()
    for part in (FORMAT, toolchain(), arch, *OPTIONS, *options, source):
        data = part.encode()
        digest.update(struct.pack("<Q", len(data)) + data)
    return digest.hexdigest()[:40]


def count_kernels(source: str) -> int:
    """How many kernels a translation unit defines."""
    return len(_KERNEL.findall(_DIRECTIVE.sub("", source)))


def kernel_names(source: str) -> list[str]:
    """Those that a generated translation unit defines."""
    return _GENERATED.findall(_DIRECTIVE.sub("", source))


def _kernels(number: int) -> str:
    return f"{number} kernel{'s' * (number != 1)}"


def resources(log: str) -> dict[str, Resources]:
    """Registers, stack, spills and static shared memory of each kernel of a `Binary.log`.

    The source must have been compiled with the options `REPORT`.
    """
    table = {}
    for block in log.split("Compiling entry function '")[1:]:
        number = {
            unit: int(match.group(1)) if (match := re.search(rf"(\d+) {text}", block)) else 0
            for unit, text in (
                ("registers", "registers"),
                ("stack", "bytes stack frame"),
                ("spill_stores", "bytes spill stores"),
                ("spill_loads", "bytes spill loads"),
                ("shared", "bytes smem"),
            )
        }
        table[block.split("'", 1)[0]] = Resources(**number)
    return table


def clear_memory() -> None:
    """Forgets what this process has compiled; entries on disk stay."""
    _cache.memory.clear()


# NVRTC ------------------------------------------------------------------------------------------


class _Outcome(NamedTuple):
    cubin: bytes | None
    log: str


def _nvrtc() -> Any:
    """The NVRTC binding; loaded here alone, since it takes a tenth of a second."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()  # the shared library itself is loaded by the first call
    except (ImportError, RuntimeError) as error:  # a missing library is a RuntimeError
        raise CompileError(
            "compile",
            "the CUDA compiler NVRTC is not installed",
            expect="the packages cuda-python and nvidia-cuda-nvrtc",
            actual=f"{type(error).__name__}: {error}".splitlines()[0],
            hint=INSTALL,
        ) from error
    return nvrtc


@lru_cache(maxsize=1)
def toolchain() -> str:
    """NVRTC's version and the size of its library, which tells patch releases apart.

    Raises:
        CompileError: NVRTC is missing.
    """
    nvrtc = _nvrtc()
    from cuda.pathfinder import load_nvidia_dynamic_lib

    _, major, minor = nvrtc.nvrtcVersion()
    path = load_nvidia_dynamic_lib("nvrtc").abs_path
    size = os.path.getsize(path) if path and os.path.exists(path) else 0
    return f"nvrtc {major}.{minor} {size}"


def supported_archs() -> list[int]:
    """The compute capabilities NVRTC can target, such as 75 and 90."""
    _, archs = _nvrtc().nvrtcGetSupportedArchs()
    return list(archs)


def _check_arch(arch: str) -> None:
    match = re.fullmatch(r"sm_(\d+)[af]?", arch)
    supported = supported_archs()
    if match is None or int(match.group(1)) not in supported:
        raise CompileError(
            "compile",
            f"{toolchain().rsplit(' ', 1)[0]} cannot target {arch!r}",
            expect="one of " + " ".join(f"sm_{number}" for number in supported),
            actual=arch,
            hint=f"for a newer GPU install a newer compiler: {INSTALL}",
        )


def _in_threads(
    sources: list[str], arch: str, options: tuple[str, ...], split: bool
) -> list[_Outcome]:
    if len(sources) == 1:
        return [_run_nvrtc(sources[0], arch, options, split)]
    with ThreadPoolExecutor(min(len(sources), os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda text: _run_nvrtc(text, arch, options, split), sources))


def _run_nvrtc(source: str, arch: str, options: tuple[str, ...], split: bool) -> _Outcome:
    """One NVRTC program from source to cubin; the call releases the GIL while it works."""
    nvrtc = _nvrtc()
    flags = [f"--gpu-architecture={arch}", *OPTIONS, *options]
    if split and count_kernels(source) >= 4:
        flags.append("--split-compile=0")  # threads inside NVRTC; the code comes out the same
    status, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, None, None)
    if int(status) != 0:
        return _Outcome(None, str(status))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(
            program, len(flags), [flag.encode() for flag in flags]
        )
        log = _fetch(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        text = log.rstrip(b"\0").decode(errors="replace")
        if int(status) != 0:
            return _Outcome(None, text or str(status))
        cubin = _fetch(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        return _Outcome(cubin, text)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _fetch(size_of: Any, fill: Any, program: Any) -> bytes:
    """Reads a string from NVRTC by its pair of calls."""
    _, size = size_of(program)
    data = bytes(size)  # the binding writes into it
    if size > 1:  # Python shares its bytes of length 0 and 1
        fill(program, data)
    return data


def _rejected(source: str, arch: str, options: tuple[str, ...], log: str) -> CompileError:
    """The error of a source that NVRTC refused, with its lines around the first complaint."""
    lines = [line for line in log.splitlines() if line and not line.startswith("ptxas info")]
    shown = lines[:12] + [f"... {len(lines) - 12} more lines"] * (len(lines) > 12)
    match = _ERROR_LINE.search(log)
    if match is not None:
        shown += numbered_lines(source, int(match.group(1)))
    return CompileError(
        "compile",
        f"NVRTC refused the source ({_kernels(count_kernels(source))} for {arch})",
        expect="CUDA C++ that NVRTC accepts",
        actual="\n".join(shown),
        hint="TGC_DEBUG=4 prints each source"
        + (f"; options: {' '.join(options)}" if options else ""),
    )


class _SlowNotice:
    """One line on stderr when a compilation takes long, so that nobody thinks it hangs."""

    def __init__(self, kernels: int) -> None:
        self.text = f"tinygrad_cuda: compiling {_kernels(kernels)}\n"
        self.timer = threading.Timer(SLOW, self._show)
        self.timer.daemon = True

    def _show(self) -> None:
        with suppress(OSError, ValueError):  # stderr may be closed
            sys.stderr.write(self.text)
            sys.stderr.flush()

    def __enter__(self) -> None:
        self.timer.start()

    def __exit__(self, *_: object) -> None:
        self.timer.cancel()


# The cache --------------------------------------------------------------------------------------


class _CubinCache:
    """Compiled code by key: in memory, and in `settings.cache_dir/cuda` where that works."""

    def __init__(self) -> None:
        self.memory: dict[str, Binary] = {}
        self.trusted: set[Path] = set()
        self.unwritable: set[Path] = set()

    def get(self, key: str, arch: str) -> Binary | None:
        binary = self.memory.get(key)
        if binary is None and settings.cache:
            data = read_own(_folder() / f"{key}.cubin") if self._trusts(_folder()) else None
            parts = None if data is None else _unpack(data)
            if parts is not None:
                binary = self.memory[key] = Binary(parts[0], arch, key, parts[1], cached=True)
        return binary

    def put(self, binary: Binary, source: str) -> None:
        self.memory[binary.key] = replace(binary, cached=True)
        folder = _folder()
        if not settings.cache or folder in self.unwritable:
            return
        try:
            if reason := own_folder(folder):
                self._refuse(folder, reason)
                return
            write_own(folder / f"{binary.key}.cu", source.encode())
            write_own(folder / f"{binary.key}.cubin", _pack(binary.cubin, binary.log))
        except OSError as error:
            self._refuse(folder, error.strerror or str(error))

    def _trusts(self, folder: Path) -> bool:
        """Whether only this user writes to the folder, if it is there."""
        if folder not in self.trusted:
            try:
                reason = distrust(folder)
            except OSError:
                return False
            if reason is not None:
                return False
            self.trusted.add(folder)
        return True

    def _refuse(self, folder: Path, reason: str) -> None:
        self.unwritable.add(folder)
        warnings.warn(
            f"tinygrad_cuda: compiled kernels cannot be kept in {folder} ({reason}); they stay "
            "in memory and are compiled again by the next process. TGC_CACHE_DIR names one.",
            RuntimeWarning,
            stacklevel=2,
        )


_cache = _CubinCache()


def _folder() -> Path:
    return settings.cache_dir / "cuda"


def _pack(cubin: bytes, log: str) -> bytes:
    """Code, log and a checked footer; to a disassembler the file is the cubin it begins with."""
    text = log.encode()
    digest = hashlib.sha256(cubin + text).digest()
    return cubin + text + _FOOTER.pack(len(cubin), len(text), digest, _MAGIC)


def _unpack(data: bytes) -> tuple[bytes, str] | None:
    """Code and log of an entry, or None if it is truncated or corrupt."""
    body = data[: -_FOOTER.size]
    if len(data) <= _FOOTER.size:
        return None
    code, text, digest, magic = _FOOTER.unpack(data[-_FOOTER.size :])
    if magic != _MAGIC or code + text != len(body) or hashlib.sha256(body).digest() != digest:
        return None
    return body[:code], body[code:].decode(errors="replace")
