"""The safetensors format: eight bytes of length, a JSON header, then the values of all tensors.

https://github.com/huggingface/safetensors describes it; the checks below are its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import DataError

Array = np.ndarray[Any, Any]
DTYPES: dict[str, DType] = {
    "F32": dtypes.float32, "F64": dtypes.float64, "F16": dtypes.float16, "BF16": dtypes.bfloat16,
    "I8": dtypes.int8, "U8": dtypes.uint8, "I16": dtypes.int16, "I32": dtypes.int32,
    "I64": dtypes.int64, "BOOL": dtypes.bool_,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def pack(arrays: dict[str, Array], metadata: dict[str, str]) -> Iterator[bytes]:
    """The parts of a file, in order."""
    # Large elements first, so that each array is aligned to its own.
    order = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name in order:
        array = arrays[name]
        begin, end = end, end + array.nbytes
        header[name] = {
            "dtype": NAMES[dtypes.from_numpy(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for name in order:
        yield arrays[name].tobytes()


def unpack(content: bytes, what: str) -> tuple[dict[str, Array], dict[str, str]]:
    """Arrays by name, and the metadata.

    Args:
        content: the whole file.
        what: its name, for errors.

    Raises:
        DataError: the file is truncated, damaged, of another kind, or has a dtype unknown here.
    """
    try:
        size = int.from_bytes(content[:8], "little")
        if len(content) < 8 + size or size == 0:
            raise ValueError("the header is longer than the file")
        header = json.loads(content[8 : 8 + size])
        metadata = header.pop("__metadata__", None) or {}
        _check(header, len(content) - 8 - size)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _foreign(what, content, str(error)) from None
    arrays = {}
    for name, entry in header.items():
        dtype = DTYPES.get(entry["dtype"])
        if dtype is None:
            raise DataError(
                "load", f"{what}: {name} has a dtype that is unknown here",
                expect=", ".join(DTYPES), actual=str(entry["dtype"]),
            )  # fmt: skip
        begin, end = entry["data_offsets"]
        count = math.prod(entry["shape"])
        if end - begin != count * dtype.itemsize:
            raise _foreign(what, content, f"{name} has {end - begin} bytes for {count} elements")
        flat = np.frombuffer(content, dtype.numpy, count, 8 + size + begin)
        # A copy of its own, aligned and writable.
        arrays[name] = flat.reshape(entry["shape"]).copy()
    return arrays, metadata


def _check(header: dict[str, Any], size: int) -> None:
    """Values must follow one another and end where the file does."""
    last = 0
    for begin, end in sorted(entry["data_offsets"] for entry in header.values()):
        if begin != last or end < begin:
            raise ValueError(f"the values are not contiguous at byte {last}")
        last = end
    if last != size:
        raise ValueError(f"{size} bytes of values instead of {last}")
    for entry in header.values():
        if not all(isinstance(n, int) and n >= 0 for n in entry["shape"]):
            raise ValueError(f"a shape is {entry['shape']}")
        if not isinstance(entry["dtype"], str):
            raise ValueError(f"a dtype is {entry['dtype']}")


def _foreign(what: str, content: bytes, reason: str) -> DataError:
    pickled = content[:2] == b"PK" or content[:1] == b"\x80"
    return DataError(
        "load",
        f"{what} is no whole safetensors file",
        expect="a file that save() or the safetensors library wrote",
        actual="a pickle" if pickled else f"{len(content)} bytes: {reason}",
        hint="where you trust it: safetensors.torch.save_file(torch.load(path), new_path)"
        if pickled
        else "copy or download it again",
    )
