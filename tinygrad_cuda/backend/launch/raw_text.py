"""A kernel's text as a user wrote it, CUDA C++ or PTX, and the parameters that it declares."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import ArgumentError

# C's types of one element, by the dtype whose bytes they are.
_ELEMENTS: dict[str, DType] = {
    "float": dtypes.float32, "double": dtypes.float64, "__half": dtypes.float16,
    "half": dtypes.float16, "tgc_half": dtypes.float16, "__nv_bfloat16": dtypes.bfloat16,
    "tgc_bfloat16": dtypes.bfloat16, "bool": dtypes.bool_, "char": dtypes.int8,
    "signed char": dtypes.int8, "int8_t": dtypes.int8, "unsigned char": dtypes.uint8,
    "uint8_t": dtypes.uint8, "short": dtypes.int16, "int16_t": dtypes.int16,
    "int": dtypes.int32, "int32_t": dtypes.int32, "long long": dtypes.int64,
    "long": dtypes.int64, "int64_t": dtypes.int64, "unsigned short": dtypes.uint16,
    "uint16_t": dtypes.uint16, "unsigned": dtypes.uint32, "unsigned int": dtypes.uint32,
    "uint32_t": dtypes.uint32, "unsigned long long": dtypes.uint64,
    "unsigned long": dtypes.uint64, "uint64_t": dtypes.uint64, "size_t": dtypes.uint64,
}  # fmt: skip
# And by struct's letter, what a number is passed as.
_NUMBERS = {
    "float": "f", "double": "d", "bool": "?", "char": "b", "signed char": "b", "int8_t": "b",
    "unsigned char": "B", "uint8_t": "B", "short": "h", "int16_t": "h", "unsigned short": "H",
    "uint16_t": "H", "int": "i", "int32_t": "i", "unsigned": "I", "unsigned int": "I",
    "uint32_t": "I", "long": "q", "long long": "q", "int64_t": "q", "unsigned long": "Q",
    "unsigned long long": "Q", "uint64_t": "Q", "size_t": "Q",
}  # fmt: skip
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_WORDLESS = re.compile(
    r"\b(?:__restrict__|__restrict|restrict|volatile|struct|__grid_constant__)\b"
)


class RawParameter(NamedTuple):
    """A parameter of a kernel.

    Attributes:
        name: of it.
        ctype: its type as it stands in the text.
        dtype: of the elements that a pointer points to; None of a number, or of any (``void*``).
        pointer: whether it is one.
        written: a pointer to what is not const.
        letter: how `struct` packs a number.
    """

    name: str
    ctype: str
    dtype: DType | None
    pointer: bool
    written: bool
    letter: str

    def __str__(self) -> str:
        return f"{self.ctype} {self.name}".strip()


class RawText(NamedTuple):
    """Text, the name of its kernel, what that takes, and further options of NVRTC."""

    source: str
    name: str
    parameters: tuple[RawParameter, ...]
    options: tuple[str, ...] = ()

    @property
    def is_ptx(self) -> bool:
        """Whether it is assembly for a GPU instead of C++."""
        return looks_like_ptx(self.source)


def looks_like_ptx(source: str) -> bool:
    """Whether a text is PTX: it begins with the version of the language."""
    return re.search(r"^\s*\.version\s", _COMMENT.sub("", source), re.MULTILINE) is not None


def raw_text(
    source: str, name: str, signature: str | None = None, options: tuple[str, ...] = ()
) -> RawText:
    """The text with the parameters of its kernel.

    Args:
        signature: the parameters in C++, where the text does not declare them: PTX.

    Raises:
        ArgumentError: there is no such kernel, or a parameter that cannot be passed.
    """
    if signature is None:
        signature = _declared(source, name)
    elif looks_like_ptx(source) and not re.search(rf"\.entry\s+{re.escape(name)}\b", source):
        raise _no_kernel(name, re.findall(r"\.entry\s+([\w$]+)", source), ".visible .entry")
    parts = [part for part in _split(_COMMENT.sub(" ", signature)) if part not in ("", "void")]
    return RawText(source, name, tuple(_parameter(name, part) for part in parts), options)


def _declared(source: str, name: str) -> str:
    if looks_like_ptx(source):
        raise ArgumentError(
            "RawKernel", "PTX does not say which arguments are written",
            expect='signature="const float* x, float* y, int n"', actual=f"kernel {name} without",
        )  # fmt: skip
    text = _COMMENT.sub(" ", source)
    pattern = r"(extern\s+\"C\"\s+)?__global__\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?void\s+"
    pattern += r"(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\("
    kernels = {match[2]: match for match in re.finditer(pattern, text)}
    match = kernels.get(name)
    if match is None:
        raise _no_kernel(name, list(kernels), "__global__ void")
    within = re.search(r"extern\s+\"C\"\s*\{", text[: match.start()])
    if not match[1] and within is None:
        raise ArgumentError(
            "RawKernel", f"the kernel {name} has a mangled name",
            expect=f'extern "C" __global__ void {name}(...)', actual=f"__global__ void {name}(...)",
        )  # fmt: skip
    depth, end = 1, match.end()
    while depth and end < len(text):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    return text[match.end() : end - 1]


def _no_kernel(name: str, kernels: list[str], form: str) -> ArgumentError:
    return ArgumentError(
        "RawKernel", "the text has no such kernel", expect=f"{form} {name}",
        actual=f"kernels: {', '.join(kernels) or 'none'}",
    )  # fmt: skip


def _split(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split(",")]


def _parameter(kernel: str, text: str) -> RawParameter:
    plain = " ".join(_WORDLESS.sub(" ", text).split())
    match = re.fullmatch(r"(.*?)\s*((?:\*\s*(?:const\s*)?)*)(\w+)?(\[\])?", plain)
    assert match is not None
    base, stars, name, array = match[1], match[2], match[3] or "", match[4]
    if name and not stars and (not base or f"{base} {name}" in _NUMBERS):
        base, name = f"{base} {name}".strip(), ""  # a type without a name
    pointers = stars.count("*") + bool(array)
    is_const = re.search(r"\bconst\b", base) is not None
    base = " ".join(re.sub(r"\bconst\b", " ", base).split())
    base = {"long long int": "long long", "long int": "long", "short int": "short"}.get(base, base)
    ctype = f"{'const ' * (is_const and pointers > 0)}{base}{'*' * pointers}"
    if pointers == 1 and (base in _ELEMENTS or base == "void"):
        return RawParameter(name, ctype, _ELEMENTS.get(base), True, not is_const, "Q")
    if pointers == 0 and base in _NUMBERS:
        return RawParameter(name, ctype, None, False, False, _NUMBERS[base])
    raise ArgumentError(
        "RawKernel", f"the kernel {kernel} has a parameter that cannot be passed",
        expect="pointers to elements of a dtype, and numbers", actual=text,
        hint="pass a pointer to the elements, and cast it inside the kernel",
    )  # fmt: skip


class RawLaunch(NamedTuple):
    """One launch of such a kernel.

    Attributes:
        grid, block: three sizes each.
        shared: bytes of dynamic shared memory.
        arguments: the bytes of each.
        touched: the storages behind the pointers, each once.
        site: the user's line.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    arguments: tuple[bytes, ...]
    touched: tuple[Any, ...]
    site: Any
