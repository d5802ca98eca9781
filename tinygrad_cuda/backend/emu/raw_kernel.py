"""Kernels of the user's on the emulator: the same CUDA C++, with a look at every access."""

from __future__ import annotations

import re
import struct
from math import prod

import numpy as np

from tinygrad_cuda.backend.emu.compiler import HERE
from tinygrad_cuda.backend.emu.runtime import EmulatedModule, prelude
from tinygrad_cuda.backend.launch.raw_text import RawLaunch, RawText
from tinygrad_cuda.core.errors import DeviceError

# A call before each load and store; the functions that are called are raw_twin.h's own, so no
# library that has them is linked.
WATCHED = ("-fsanitize=thread", "-nodefaultlibs", "-lm", "-lc", "-lgcc")
TWIN = HERE / "raw_twin.h"
_DYNAMIC = re.compile(
    r"extern\s+__shared__\s+(?:(?:__align__|alignas)\s*\([^)]*\)\s*)?(?P<type>[\w\s:]+?)\s+"
    r"(?:(?:__align__|alignas)\s*\([^)]*\)\s*)?(?P<name>\w+)\s*\[\s*\]\s*;"
)


class EmulatedRawKernel:
    """A kernel of the user's, compiled for this machine.

    Raises:
        DeviceError: the text is PTX.
        CompileError: the compiler refused the text.
    """

    def __init__(self, text: RawText) -> None:
        if text.is_ptx:
            raise DeviceError(
                "RawKernel", f"the emulator runs no PTX: {text.name}",
                expect="CUDA C++, which the machine's C++ compiler takes", actual="PTX",
                hint="PTX runs on a GPU: device 'cuda'",
            )  # fmt: skip
        names = [parameter.name for parameter in text.parameters]
        self.name = text.name
        self.count = len(names)
        self.module = EmulatedModule(emulated_source(text), WATCHED, names)

    def launch(self, launch: RawLaunch) -> None:
        """Runs it to its end.

        Raises:
            KernelFault: an access outside of the arguments' memory, a race, a barrier that not all
                threads reach.
        """
        words = [struct.unpack("<Q", value.ljust(8, b"\0"))[0] for value in launch.arguments]
        ranges = [(piece.address, piece.nbytes) for piece in launch.touched if piece.nbytes]
        self.module.launch(
            "tgc_raw", prod(launch.grid), prod(launch.block), launch.shared,
            np.array([*words, *launch.grid, *launch.block], np.uint64), ranges, site=launch.site,
            called=self.name,
        )  # fmt: skip


def emulated_source(text: RawText) -> str:
    """The translation unit: the twins, the text, and how its kernel is called."""
    parts = [
        f"({p.ctype})words[{n}]" if p.pointer else f"*(const {p.ctype}*)(words + {n})"
        for n, p in enumerate(text.parameters)
    ]
    count = len(parts)
    lines = [
        prelude() if "tgc_" in text.source else "",
        TWIN.read_text(),
        f'#line 1 "{text.name}.cu"',
        _with_dynamic_memory(text.source),
        '#line 1 "raw_kernel.py"',
        "static void tgc_raw_worker() {",
        "  tgc_emu_work([] {",
        "    const unsigned long long* words = tgc_emu_words;",
        f"    (void)words; tgc_raw_begin(); {text.name}({', '.join(parts)});",
        "  });",
        "}",
        'extern "C" __attribute__((visibility("default"))) long long tgc_raw(',
        "    tgc_emu_launch* launch) {",
        f"  return tgc_raw_run(launch, tgc_raw_worker, {count}, {(count + 6) * 8});",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _with_dynamic_memory(source: str) -> str:
    """`extern __shared__ T name[];` as a pointer to what the emulator gives each block."""

    def pointer(match: re.Match[str]) -> str:
        before = source[: match.start()]
        inside = before.count("{") > before.count("}")
        ctype, name = match["type"], match["name"]
        if inside:
            return f"{ctype}* const {name} = ({ctype}*)tgc_emu_smem;"
        line = before.count("\n") + 1
        return f"\n#define {name} (({ctype}*)tgc_emu_smem)\n#line {line}\n"

    return _DYNAMIC.sub(pointer, source)
