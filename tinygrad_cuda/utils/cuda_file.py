"""The text of an exported step: its kernels, and a `main` that launches them turn after turn."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isfinite, prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tinygrad_cuda.backend.emu.compiler import HEADERS, HERE, OPTIONS
from tinygrad_cuda.backend.launch.executable import LoweredExecutable
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import ArgumentError, DTypeError
from tinygrad_cuda.core.shapes import Shape
from tinygrad_cuda.lowering.codegen.pack import PackedLaunch, translation_unit
from tinygrad_cuda.lowering.codegen.skeleton import KernelParam, TensorMap, fill

CUH = "host.cuh"
NVCC_OPTIONS = "-std=c++17 -fmad=false"  # as NVRTC compiles kernels
# cuda.h's CUtensorMapDataType.
MAP_TYPES = {"float16": 6, "float32": 7, "bfloat16": 9}
_MASK = 2**64 - 1
_FNV_START, _FNV_PRIME = 14695981039346656037, 1099511628211  # of FNV-1a, 64 bits


class Piece(NamedTuple):
    """Memory of the exported program.

    Attributes:
        name: of its variable.
        nbytes: of one step.
        tensor: the name in the file of what it holds at first; None: zeros.
        by_step: whether the tensor holds the data of all steps.
        other: whether there are two, which change places after each step.
    """

    name: str
    nbytes: int
    tensor: str | None = None
    by_step: bool = False
    other: bool = False

    @property
    def text(self) -> str:
        """Its address in a step."""
        return f"({self.name} + {self.nbytes}LL * step)" if self.by_step else self.name


class Shown(NamedTuple):
    """A result that the program prints, and its bytes as they were in each step."""

    text: str
    shape: Shape
    dtype: DType
    data: Sequence[bytes]


@dataclass
class ExportedRun:
    """A run of a plan in each step: texts of its inputs and results, numbers of each step."""

    executable: LoweredExecutable
    inputs: list[str]
    results: list[str]
    numbers: list[bytes]


@dataclass
class ExportedStep:
    """What a file is written from."""

    title: str
    steps: int
    runs: list[ExportedRun]
    pieces: list[Piece]
    shown: list[Shown]
    offsets: dict[str, int] = field(default_factory=dict)  # of tensors in their file, in bytes


def cuda_text(step: ExportedStep, path: Path, tensors: Path) -> str:
    """The whole file."""
    launches = [launch for run in step.runs for launch in run.executable.launches]
    call = next((launch for launch in launches if launch.library is not None), None)
    if call is not None:
        raise ArgumentError(
            "export_cuda", "a library's call is no kernel that a file can hold",
            expect="generated kernels alone", actual=call.text.strip().removeprefix("// "),
            hint="call the compiled step once under tc.kernels.provider(None), after "
            "tc.tune('off'), then export it",
        )  # fmt: skip
    target = step.runs[0].executable.machine.target
    kernels = translation_unit(launches, target)
    maps = any(word.kind == "map" for launch in launches for word in launch.words)
    host = fill(CUH, "host") + (fill(CUH, "maps") if maps else "")
    major, minor = target.architecture
    suffix = "a" if (major, minor) == (9, 0) and "tgc_wgmma_" in kernels else ""
    return "".join((
        _head(step, path, f"{major}{minor}{suffix}"), kernels, "\n", host, _main(step, tensors),
    ))  # fmt: skip


def _head(step: ExportedStep, path: Path, arch: str) -> str:
    left_out = {"-fPIC", "-shared", "-fvisibility=hidden"}
    options = " ".join(option for option in OPTIONS if option not in left_out)
    name = path.stem
    return (
        f"// nvcc {NVCC_OPTIONS} -gencode arch=compute_{arch},code=sm_{arch} "
        f"-o {name} {path.name} && ./{name}\n"
        f"// Without a GPU: c++ {options} -O1 -I{HERE} "
        f"-include {HEADERS[0].name} {path.name} -o {name} -lm\n"
        f"//\n// {step.title}\n\n"
    )


def _main(step: ExportedStep, tensors: Path) -> str:
    arenas = [run.executable.arena for run in step.runs]
    arena = max(one.nbytes + one.block_bytes for one in arenas)
    launches: list[str] = []
    for number, run in enumerate(step.runs):
        launches += _run(number, run)
    memory = [line for piece in step.pieces for line in _memory(piece, step.offsets)]
    exchanged = [piece for piece in step.pieces if piece.other]
    return fill(
        CUH,
        "main",
        comment=step.title,
        steps=step.steps,
        tensors=tensors.name,
        arena=arena,
        memory=memory,
        numbers=[line for n, run in enumerate(step.runs) for line in _numbers(n, run, step.steps)],
        expected=_expected(step.shown),
        launches=launches,
        results=[_show(number, shown) for number, shown in enumerate(step.shown)],
        exchange=[_exchanged(piece) for piece in exchanged],
    )


def _memory(piece: Piece, offsets: dict[str, int]) -> list[str]:
    """How memory is allocated, and filled from the file."""
    made = f"tgc_allocate({piece.nbytes})"
    if piece.tensor is not None:
        count = " * steps" if piece.by_step else ""
        made = f"tgc_read({offsets[piece.tensor]}, {piece.nbytes}LL{count})"
        made += f";  // {piece.tensor}" if piece.tensor != piece.name else ";"
    else:
        made += ";"
    if not piece.other:
        return [f"const tgc_memory {piece.name} = {made}"]
    other = f"tgc_memory {piece.name}_next = tgc_allocate({piece.nbytes});"
    return [f"tgc_memory {piece.name} = {made}", other]


def _exchanged(piece: Piece) -> str:
    name = piece.name
    return f"{{ const tgc_memory last = {name}; {name} = {name}_next; {name}_next = last; }}"


def _numbers(number: int, run: ExportedRun, steps: int) -> list[str]:
    """The table of a run's numbers by step, the memory they go to, that of its exchanges."""
    own, lines = run.executable, []
    if own.exchange_bytes:
        lines.append(f"const tgc_memory exchange{number} = tgc_allocate({own.exchange_bytes});")
    kinds = own.numbers.format[1:]
    if kinds:
        rows = [_row(data, kinds) for data in run.numbers]
        head = f"const tgc_number table{number}[{steps}][{len(kinds)}] = {{"
        lines += [
            *_wrapped(head, rows, "};"),
            f"const tgc_memory numbers{number} = tgc_allocate({8 * len(kinds)});",
        ]
    return lines


def _row(data: bytes, kinds: str) -> str:
    words = np.frombuffer(data, np.uint64)
    doubles = words.view(np.float64)
    texts = []
    for kind, word, double in zip(kinds, words.tolist(), doubles.tolist()):
        if kind == "d" and isfinite(double):
            texts.append(repr(double))
        elif kind == "d":
            texts.append(f"(long long)0x{word:x}ull")
        else:
            texts.append(f"{word}LL" if word >> 63 == 0 else f"(long long){word}ull")
    return "{" + ", ".join(texts) + "}"


def _run(number: int, run: ExportedRun) -> list[str]:
    """The launches of a plan in their order."""
    executable = run.executable
    lines = []
    if executable.numbers.nbytes:
        lines.append(f"tgc_copy(numbers{number}, table{number}[step], sizeof table{number}[step]);")
    block = f"arena + {executable.arena.nbytes}"  # each result has memory of its own
    own = ["error", "arena", block, f"exchange{number}", f"numbers{number}"]
    names = [*run.inputs, *run.results, *own]
    for launch in executable.launches:
        lines += _launch(launch, lambda word: _address(executable, names, word))
    for result, slot in executable.copies:
        nbytes = executable.sizes[result]
        lines.append(f"tgc_copy({run.inputs[slot]}, {run.results[result]}, {nbytes});")
    return lines


def _address(executable: LoweredExecutable, names: Sequence[str], word: KernelParam) -> str:
    value, offset = executable.sources[word.memory]
    text = f"{names[value]} + {offset}" if offset else names[value]
    return _map(word.operand, text) if word.kind == "map" else text


def _launch(launch: PackedLaunch, address: Callable[[KernelParam], str]) -> list[str]:
    words = [address(word) for word in launch.words if word.kind != "unused"]
    together = launch.blocks if launch.stages[0].waits else launch.cluster
    sizes = f"{launch.blocks}, {launch.threads}, {launch.shared}, {together}"
    return [
        f"{{  // {launch.site}",
        *_wrapped(f"  const {launch.name}_params p = {{", words, "};"),
        f'  tgc_launch("{launch.name}", {launch.name}, {sizes}, p);',
        "}",
    ]


def _wrapped(head: str, words: Sequence[str], tail: str) -> list[str]:
    """Words between commas, in lines of at most about 100 characters."""
    lines, line = [], head
    for number, word in enumerate(words):
        text = word + (", " if number < len(words) - 1 else "")
        if len(line) + len(text) > 92:
            lines.append(line.rstrip())
            line = "      "
        line += text
    return [*lines, line + tail]


def _map(tensor: TensorMap, address: str) -> str:
    def listed(numbers: Sequence[int]) -> str:
        return "{" + ", ".join(map(str, numbers)) + "}"

    start = f"{address} + {tensor.offset}" if tensor.offset else address
    sizes = f"{listed(tensor.shape)}, {listed(tensor.strides)}, {listed(tensor.box)}"
    box = f"{{{sizes}, {len(tensor.shape)}, {tensor.swizzle}}}"
    corners = "{}"
    if tensor.pixels is not None:
        lower, upper, steps = map(listed, tensor.pixels[:2] + ((1, *tensor.pixels.steps, 1),))
        corners = f"{{{lower}, {upper}, {steps}, true}}"
    dtype = tensor.node.dtype
    return f"tgc_map({start}, {dtype.itemsize}, {MAP_TYPES[dtype.name]}, {box}, {corners})"


# Results ------------------------------------------------------------------------------------------


def _expected(shown: Sequence[Shown]) -> list[str]:
    return [
        f"const unsigned long long expected{number}[] = "
        f"{{{', '.join(f'0x{fnv(data):016x}' for data in one.data)}}};"
        for number, one in enumerate(shown)
    ]


def _show(number: int, shown: Shown) -> str:
    dtype = shown.dtype
    if dtype.is_complex:
        raise DTypeError(
            "export_cuda", "complex results are not printed", expect="a real dtype",
            actual=f"{shown.text} {dtype.name}", hint="return tc.view_as_real(z)",
        )  # fmt: skip
    whole = "tgc_signed" if dtype.is_signed else "tgc_unsigned"
    kind = "tgc_brain" if dtype.name == "bfloat16" else "tgc_floating"
    kind = kind if dtype.is_floating else whole
    text = f'"result {number}", {shown.text}, {prod(shown.shape)}, {kind}, {dtype.itemsize}'
    return f"same &= tgc_show(step, {text}) == expected{number}[step];"


def fnv(data: bytes) -> int:
    """The FNV-1a hash of bytes, 64 bits."""
    value = _FNV_START
    for byte in data:
        value = (value ^ byte) * _FNV_PRIME & _MASK
    return value


def identifier(name: str) -> str:
    """A tensor's name as a C++ variable."""
    text = re.sub(r"\W", "_", name)
    return f"tensor_{text}" if text[:1].isdigit() else text
