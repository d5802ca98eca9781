"""Arrays and metadata as the bytes of a safetensors file, and back, through the library."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.dtypes import DType
from tinygrad_cuda.core.errors import DataError

Array = np.ndarray[Any, Any]
DTYPES: dict[str, DType] = {
    "F32": dtypes.float32, "F64": dtypes.float64, "F16": dtypes.float16, "BF16": dtypes.bfloat16,
    "I8": dtypes.int8, "U8": dtypes.uint8, "I16": dtypes.int16, "I32": dtypes.int32,
    "I64": dtypes.int64, "U16": dtypes.uint16, "U32": dtypes.uint32, "U64": dtypes.uint64,
    "BOOL": dtypes.bool_, "C64": dtypes.complex64,
}  # fmt: skip


def pack(arrays: dict[str, Array], metadata: dict[str, str]) -> bytes:
    """The content of a file: the same bytes for the same arrays and metadata."""
    from safetensors.numpy import save

    for name, array in arrays.items():
        if array.dtype == np.complex128:
            raise DataError(
                "save", f"{name} is complex128, which the format does not have",
                expect=", ".join(DTYPES), actual="complex128",
                hint="x.to(tc.complex64), or tc.view_as_real(x)",
            )  # fmt: skip
    content = save({name: np.asarray(a, order="C") for name, a in arrays.items()}, metadata)
    # The library writes metadata in an order that differs from call to call.
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"] = metadata
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the data stay aligned
    return b"".join((len(text).to_bytes(8, "little"), text, content[8 + size :]))


def unpack(content: bytes, what: str) -> tuple[dict[str, Array], dict[str, str]]:
    """Arrays by name, and the metadata.

    Args:
        content: the whole file.
        what: its name, for errors.

    Raises:
        DataError: the file is truncated, damaged, of another kind, or has a dtype unknown here.
    """
    import safetensors

    deserialize: Any = safetensors.deserialize
    try:
        entries = deserialize(content)
    except (safetensors.SafetensorError, ValueError, OverflowError) as error:
        raise _foreign(what, content, str(error)) from None
    arrays = {}
    for name, entry in entries:
        dtype = DTYPES.get(entry["dtype"])
        if dtype is None:
            raise DataError(
                "load", f"{what}: {name} has a dtype that is unknown here",
                expect=", ".join(DTYPES), actual=str(entry["dtype"]),
            )  # fmt: skip
        flat = np.frombuffer(bytes(entry["data"]), dtype.numpy)
        try:
            # A copy of its own, aligned and writable.
            arrays[name] = flat.reshape(entry["shape"]).copy()
        except (ValueError, OverflowError) as error:  # more axes or larger ones than arrays have
            raise DataError(
                "load", f"{what}: {name} has no possible shape", expect="at most 64 axes",
                actual=f"{error}: {entry['shape']}"[:200],
            ) from None  # fmt: skip
    # The library has checked the header, but does not hand out its metadata from bytes.
    size = int.from_bytes(content[:8], "little")
    return arrays, json.loads(content[8 : 8 + size]).get("__metadata__") or {}


def _foreign(what: str, content: bytes, reason: str) -> DataError:
    pickled = content[:1] == b"\x80"
    return DataError(
        "load",
        f"{what} is no whole safetensors file",
        expect="a file that save() or the safetensors library wrote",
        actual="a pickle, or a file of PyTorch before 1.6"
        if pickled
        else f"{len(content)} bytes: {reason}",
        hint="load reads the zip files of today: in PyTorch torch.save(torch.load(path), new_path)"
        if pickled
        else "copy or download it again",
    )
