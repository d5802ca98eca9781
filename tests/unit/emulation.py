"""Helpers of the emulator's tests: kernel text around an expression, and launches on arrays."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tinygrad_cuda.backend.emu.runtime import EmulatedModule, prelude

C_NAMES = {
    "float32": "float",
    "float64": "double",
    "float16": "tgc_half",
    "bfloat16": "tgc_bfloat16",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "bool": "bool",
}
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def numpy_dtype(name: str) -> np.dtype[Any]:
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def elementwise(name: str, inputs: list[str], output: str, expression: str) -> str:
    """A kernel `out = expression` over inputs a, b, ...; dtypes by their NumPy names."""
    letters = "abcd"[: len(inputs)]
    fields = "".join(f"const {C_NAMES[d]}* {x}; " for x, d in zip(letters, inputs))
    loads = "".join(f"auto {x} = tgc_load(p.{x}, i); " for x in letters)
    return f"""
struct {name}_params {{ {fields}{C_NAMES[output]}* out; long long n; }};
__device__ void {name}_stage(int virtual_block, const {name}_params& p, char* smem) {{
  long long i = (long long)virtual_block * 256 + threadIdx.x;
  if (i >= p.n) return;
  {loads}
  tgc_store(p.out, i, {expression});
}}
TGC_KERNEL({name}, 256)
"""


def kernel(name: str, fields: str, body: str, threads: int = 1024) -> str:
    """A kernel with the given parameter fields and body."""
    return f"""
struct {name}_params {{ {fields} }};
__device__ void {name}_stage(int virtual_block, const {name}_params& p, char* smem) {{
{body}
}}
TGC_KERNEL({name}, {threads})
"""


def module(*kernels: str) -> EmulatedModule:
    return EmulatedModule(prelude() + "".join(kernels))


def launch(
    unit: EmulatedModule,
    name: str,
    *parameters: Any,
    grid: int = 1,
    block: int = 32,
    shared: int = 0,
    order: int = 0,
) -> None:
    """Arrays become pointers into buffers of the launch, floats doubles, the rest integers."""
    words, ranges = [], []
    for value in parameters:
        if isinstance(value, np.ndarray):
            words.append(value.ctypes.data)
            ranges.append((value.ctypes.data, value.nbytes))
        elif isinstance(value, float):
            words.append(int(np.float64(value).view(np.uint64)))
        else:
            words.append(value % 2**64)
    unit.launch(name, grid, block, shared, np.array(words, np.uint64), ranges, order)


def apply(unit: EmulatedModule, name: str, output: str, *inputs: np.ndarray[Any, Any]) -> Any:
    """Runs an `elementwise` kernel."""
    out = np.zeros(inputs[0].shape, numpy_dtype(output))
    inputs = tuple(np.ascontiguousarray(x) for x in inputs)
    launch(unit, name, *inputs, out, out.size, grid=-(-out.size // 256), block=256)
    return out
