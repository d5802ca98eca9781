"""Every error of tinygrad_cuda and the one formatter behind them.

An error names the operation, the expected and the actual value, the user's line and a remedy.
"""

from __future__ import annotations

import builtins
import linecache
import os
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple, Self

from tinygrad_cuda.core.observer import ScopedCode

PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
LIBRARY_FOLDER = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)


def is_internal(filename: str) -> bool:
    """Whether code is this package's or the standard library's (copy, functools, ...)."""
    if filename.startswith((PACKAGE_FOLDER, "<frozen ")):
        return True
    return filename.startswith(LIBRARY_FOLDER) and not any(part in filename for part in INSTALLED)


# A position in the user's program as nodes hold it: a code object and an offset, and in nodes of a
# gradient the name of the forward op. A plain tuple, since recording must stay cheap;
# `Site(*raw)` formats it.
Code = CodeType | ScopedCode  # the latter while a profiler records in which Module a line is
RawSite = tuple[Code, int] | tuple[Code, int, str]


class Site(NamedTuple):
    """A position in the user's program that can be printed."""

    code: Code
    instruction: int
    gradient_of: str = ""

    @property
    def filename(self) -> str:
        return self.code.co_filename

    @property
    def line(self) -> int:
        number = self.code.co_firstlineno
        if self.instruction < 0:
            return number
        for index, positions in enumerate(self.code.co_positions()):
            if index * 2 >= self.instruction and positions[0] is not None:
                return positions[0]
        return number

    def __str__(self) -> str:
        line = self.line
        text = linecache.getline(self.filename, line).strip()
        shown = f"{os.path.basename(self.filename)}:{line}  {text}".rstrip()
        return f"{shown}  (backward of {self.gradient_of})" if self.gradient_of else shown


def describe_site(site: RawSite | None) -> str:
    """A line of the user's program as text."""
    return "an unknown line" if site is None else str(Site(*site))


def user_frame() -> FrameType | None:
    """The innermost frame whose code is neither this package's nor the standard library's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_internal(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_site() -> Site | None:
    """The user's current line, or None when there is no user code on the stack."""
    frame = user_frame()
    return None if frame is None else Site(frame.f_code, frame.f_lasti)


def format_error(
    op: str,
    message: str,
    expect: str | None,
    actual: str | None,
    site: Site | None,
    hint: str | None,
    module: str | None = None,
) -> str:
    """The text of an error; see docs/architecture.md for the layout."""
    lines = [f"[{op}] {message}"]
    for label, text in (
        ("expect", expect),
        ("actual", actual),
        ("at", site),
        ("module", module),
        ("hint", hint),
    ):
        if text is not None:
            indented = str(text).replace("\n", "\n          ")
            lines.append(f"  {label + ':':<8}{indented}")
    return "\n".join(lines)


# What `format_error` takes but the module.
Fields = tuple[str, str, str | None, str | None, Site | None, str | None]


class TgcError(RuntimeError):
    """Base of every error of this package.

    Args:
        op: the operation as the user knows it, such as ``matmul``.
        message: one clause that says what is wrong.
        expect: what would have been right.
        actual: the value that was given or computed.
        site: the user's line; the innermost frame of the user's code when left out.
        hint: what to do about it.

    Attributes:
        reported: a device detected it while it computed.
    """

    reported = False

    def __init__(
        self,
        op: str,
        message: str,
        *,
        expect: str | None = None,
        actual: str | None = None,
        site: RawSite | None = None,
        hint: str | None = None,
    ) -> None:
        self.op = op
        self.site = Site(*site) if site is not None else user_site()
        self._fields: Fields = (op, message, expect, actual, self.site, hint)
        self.module_path: list[tuple[str, object]] = []
        super().__init__(format_error(*self._fields))

    def __reduce__(self) -> Any:
        # A position in the program does not travel to another process; its text does.
        return _restored, (type(self), self.op, str(self))

    def moved(self, op: str, site: RawSite | None) -> Self:
        """The same error of another operation, at another line."""
        _, message, expect, actual, _, hint = self._fields
        return type(self)(op, message, expect=expect, actual=actual, site=site, hint=hint)

    def anew(self) -> TgcError:
        """An equal error without this one's traceback, whose frames keep tensors alive."""
        error = type(self).__new__(type(self))
        RuntimeError.__init__(error, *self.args)
        error.__dict__.update(self.__dict__, module_path=[*self.module_path])
        return error

    def name_module(self, path: str) -> None:
        """Adds the path of the module in whose forward it happened, such as ``Net.body.0``."""
        self.args = (format_error(*self._fields, path),)


def _restored(kind: type[TgcError], op: str, text: str) -> TgcError:
    error = kind.__new__(kind)
    RuntimeError.__init__(error, text)
    error.op, error.site, error.module_path = op, None, []
    error._fields = (op, text.partition("] ")[2], None, None, None, None)
    return error


class ShapeError(TgcError, ValueError):
    """Shapes, axes or lengths that do not fit."""


class DTypeError(TgcError, TypeError):
    """A dtype that the operation does not take."""


class DeviceError(TgcError):
    """A device that is absent, or operands on different devices."""


class ArgumentError(TgcError, ValueError):
    """An argument outside its allowed values."""


class LinAlgError(ArgumentError):
    """A matrix that a factorization does not take: singular, not positive definite, with NaN."""


class NameTakenError(ArgumentError, KeyError):
    """A name that cannot be given to a Module's attribute; PyTorch raises a KeyError."""

    __str__ = BaseException.__str__  # KeyError's own quotes the text


class IndexError(TgcError, builtins.IndexError):
    """An index or label outside its range."""


class GradientError(TgcError):
    """A gradient that does not exist or can no longer be computed."""


class NonFiniteError(TgcError, FloatingPointError):
    """An inf or nan made from finite values, while `detect_nan` watches."""


class CompileError(TgcError):
    """Generated source that a compiler refused, or no compiler at all."""


def numbered_lines(source: str, center: int, around: int = 3) -> list[str]:
    """The lines of a source around one, with their numbers and a mark at that one."""
    lines = source.splitlines()
    first, last = max(1, center - around), min(len(lines), center + around)
    return [
        f"{'>' if number == center else ' '} {number:>4} | {lines[number - 1]}"
        for number in range(first, last + 1)
    ]


class CudaError(TgcError):
    """A failed call of the CUDA driver."""


class OutOfMemoryError(CudaError, MemoryError):
    """The device has no room for an allocation.

    Attributes:
        nbytes: of the allocation, or None.
    """

    nbytes = 0


class DataError(TgcError, ValueError):
    """A data file that is missing, truncated or of another kind."""


class MissingFileError(DataError, FileNotFoundError):
    """A file that is not there."""


class UnknownNameError(TgcError, AttributeError):
    """A name that a class or the package does not have.

    Its text is made when it is shown: `hasattr` drops the error, and near names take long to find.

    Args:
        op: what does not have it.
        message: one clause that says what is wrong.
        expect: gives what would have been right.
        actual: the name.
        hint: gives what to do about it.
    """

    _late: tuple[Callable[[], str], Callable[[], str | None]] | None = None

    def __init__(
        self, op: str, message: str, *, expect: Callable[[], str], actual: str,
        hint: Callable[[], str | None],
    ) -> None:  # fmt: skip
        self.op, self.site, self._late = op, user_site(), (expect, hint)
        self._fields = (op, message, None, actual, self.site, None)
        self.module_path = []
        RuntimeError.__init__(self, f"[{op}] {message}")

    def _complete(self) -> None:
        if self._late is not None:
            op, message, _, actual, site, _ = self._fields
            (expect, hint), self._late = self._late, None
            self._fields = op, message, expect(), actual, site, hint()
            self.args = (format_error(*self._fields),)

    def __str__(self) -> str:
        self._complete()
        return super().__str__()

    def name_module(self, path: str) -> None:
        """Adds the path of the module in whose forward it happened, such as ``Net.body.0``."""
        self._complete()
        super().name_module(path)


for _class in list(globals().values()):
    if isinstance(_class, type) and issubclass(_class, TgcError):
        _class.__module__ = "tinygrad_cuda"
