"""Generated CUDA source to a shared library with the machine's C++ compiler, cached on disk.

The prelude and the kernels are compiled as they are, against device_twin.h.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import struct
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.errors import CompileError, DeviceError, numbered_lines
from tinygrad_cuda.core.interrupts import uninterrupted
from tinygrad_cuda.core.locks import new_lock
from tinygrad_cuda.core.ownership import own_folder, read_own

HERE = Path(__file__).resolve().parent
HEADERS = tuple(
    HERE / name for name in ("device_twin.h", "device_twin_math.h", "device_twin_async.h")
)

# Without C++ headers, errno, exceptions and type information a kernel compiles in half the time.
# No contraction, wrapping integers: what separately rounded and integer device code means.
OPTIONS = shlex.split(
    "-x c++ -std=c++20 -fPIC -shared -nostdinc++ -DTGC_EMULATOR -fvisibility=hidden "
    "-ffp-contract=off -fno-math-errno -fno-trapping-math -fno-exceptions -fno-rtti "
    "-fno-strict-aliasing -fwrapv -fsigned-char -Werror=return-type"
)


def options() -> list[str]:
    """The compiler's options; every level gives the same results."""
    return [*OPTIONS, "-O1" if settings.emu_optimize else "-O0"]


_MAGIC = b"tgc-emu1"
# What shared libraries begin with: ELF, or Mach-O of 64 bits.
_ELF = (b"\x7fELF", b"\xcf\xfa\xed\xfe")
_FOOTER = struct.Struct(f"<32s{len(_MAGIC)}s")  # sha256 of the library before it, magic
_ERROR_LINE = re.compile(r"^(.*?):(\d+):(?:\d+:)? (?:fatal )?error: (.*)$", re.MULTILINE)


class Toolchain(NamedTuple):
    """A C++ compiler: the command's words, and its first line about itself."""

    command: tuple[str, ...]
    version: str


def toolchain() -> Toolchain:
    """The machine's C++ compiler: ``$CXX``, else c++, g++ or clang++.

    Raises:
        DeviceError: there is none.
    """
    return _find_toolchain(os.environ.get("CXX", ""), os.environ.get("PATH", ""))


@lru_cache(maxsize=8)
def _find_toolchain(chosen: str, path: str) -> Toolchain:
    for candidate in [chosen] if chosen else ["c++", "g++", "clang++"]:
        try:
            words = shlex.split(candidate)
        except ValueError:  # a quotation without an end
            continue
        program = shutil.which(words[0], path=path) if words else None
        if program is None:
            continue
        command = (program, *words[1:])
        with suppress(OSError):
            answer = subprocess.run([*command, "--version"], capture_output=True, text=True)
            if answer.returncode == 0:
                return Toolchain(command, answer.stdout.split("\n", 1)[0])
    raise DeviceError(
        "emu",
        "no C++ compiler on this machine",
        expect="a working c++, g++ or clang++ in PATH, or its name in CXX",
        actual=f"CXX={chosen!r}, PATH={path!r}",
        hint="install one (such as the package g++), or use the device 'cpu', which needs none",
    )


def compile_source(source: str, extra_options: tuple[str, ...] = ()) -> Path:
    """Compiles one translation unit (prelude and kernels) unless the cache has it.

    Args:
        source: the text that NVRTC would get.
        extra_options: options besides those of all kernels.

    Returns:
        The shared library's path.

    Raises:
        DeviceError: the machine has no C++ compiler.
        CompileError: the compiler refused the source; the text shows the line.

    Example:
        >>> from tinygrad_cuda.backend.emu.runtime import prelude
        >>> compile_source(prelude()).suffix
        '.so'
    """
    key, folder = cache_key(source, extra_options), _folder()
    path = folder / f"{key}.so"
    if path in _checked and path.exists():
        return path
    if not _is_valid_entry(path):
        with _locks[int(key[:2], 16)]:
            if not _is_valid_entry(path):  # else another thread has built it meanwhile
                _build(source, folder, key, extra_options)
    _checked.add(path)
    return path


def compile_many(sources: Sequence[str]) -> list[Path]:
    """Compiles several translation units at once, one process a core; see `compile_source`."""
    if len(sources) < 2:
        return [compile_source(source) for source in sources]
    with ThreadPoolExecutor(min(len(sources), os.cpu_count() or 1)) as pool:
        return list(pool.map(compile_source, sources))


def cache_key(source: str, extra_options: tuple[str, ...] = ()) -> str:
    """The name of a cache entry: a hash of all that decides the machine code."""
    tools = toolchain()
    digest = hashlib.sha256()
    for part in (*tools.command, tools.version, *options(), *extra_options, _headers(), source):
        data = part.encode()
        digest.update(struct.pack("<Q", len(data)) + data)
    return digest.hexdigest()[:40]


@lru_cache(maxsize=1)
def _headers() -> str:
    return "".join(path.read_text() for path in HEADERS)


# The cache --------------------------------------------------------------------------------------

# A source has one of these while this process builds it, by the first byte of its key.
_locks = [new_lock() for _ in range(256)]
_checked: set[Path] = set()  # entries that this process has verified or made


def _folder() -> Path:
    """Where libraries go: the cache, or a folder of this process if that cannot be written."""
    if not settings.cache:
        return _private_folder()
    folder = settings.cache_dir / "emu"
    try:
        reason = own_folder(folder)
        if reason is None and not os.access(folder, os.W_OK):
            reason = "not writable"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason is None:
        return folder
    _warn_unwritable(folder, reason)
    return _private_folder()


@lru_cache(maxsize=8)
def _warn_unwritable(folder: Path, reason: str) -> None:
    warnings.warn(
        f"tinygrad_cuda: compiled kernels cannot be kept in {folder} ({reason}); the next process "
        "compiles them again. TGC_CACHE_DIR names another folder.",
        RuntimeWarning,
        stacklevel=2,
    )


_private: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends


def _private_folder() -> Path:
    if not _private:
        _private.append(tempfile.TemporaryDirectory(prefix="tinygrad_cuda_emu_"))
    return Path(_private[0].name)


def _is_valid_entry(path: Path) -> bool:
    """Whether the entry is there, undamaged, and the user's own: a library runs when loaded."""
    data = read_own(path)
    if data is None or len(data) <= _FOOTER.size:
        return False
    digest, magic = _FOOTER.unpack(data[-_FOOTER.size :])
    return bool(magic == _MAGIC and hashlib.sha256(data[: -_FOOTER.size]).digest() == digest)


def _build(source: str, folder: Path, key: str, extra_options: tuple[str, ...]) -> None:
    """Source and library under a name of our own first, then moved: no one sees half a file."""
    own = f"{key}.{os.getpid()}.{threading.get_ident()}"
    text, library = folder / f"{own}.cpp", folder / f"{own}.so"
    try:
        text.write_text(source)
        command = [*toolchain().command, *options(), f"-I{HERE}", "-include", str(HEADERS[0])]
        failed, log = _run([*command, str(text), "-o", str(library), "-lm", *extra_options])
        if failed:
            raise _rejected(source, str(text), log)
        if not library.exists() or not library.read_bytes().startswith(_ELF):
            raise _rejected(source, str(text), "it made no shared library")
        library.chmod(0o700)
        with open(library, "ab") as file:
            digest = hashlib.sha256(library.read_bytes()).digest()
            file.write(_FOOTER.pack(digest, _MAGIC))
        os.replace(text, folder / f"{key}.cpp")
        os.replace(library, folder / f"{key}.so")
    finally:
        for path in (text, library):
            with suppress(OSError):
                path.unlink()


def _run(command: Sequence[str]) -> tuple[int, str]:
    """The exit status of a compiler and what it said; Ctrl-C ends it and is no error of its."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
        start_new_session=True,
    )
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                log = process.communicate(timeout=0.2)[1]
                return process.returncode, log
            uninterrupted.check()
    except BaseException:
        process.kill()
        process.communicate()
        raise


def _rejected(source: str, name: str, log: str) -> CompileError:
    """The error of a source that was refused, with its lines around the first complaint."""
    errors = _ERROR_LINE.findall(log)
    shown = [f"{os.path.basename(file)}:{line}: {text}" for file, line, text in errors[:8]]
    shown = [text.replace(os.path.basename(name), "kernels") for text in shown]
    shown = shown or log.strip().splitlines()[:12]
    for file, line, _ in errors[:1]:
        text = source if file == name else Path(file).read_text() if os.path.exists(file) else ""
        shown += numbered_lines(text, int(line))
    return CompileError(
        "emu",
        "the C++ compiler refused the source",
        expect=f"CUDA C++ that {toolchain().version} accepts against {HEADERS[0].name}",
        actual="\n".join(shown),
        hint="TGC_DEBUG=4 prints each source",
    )
