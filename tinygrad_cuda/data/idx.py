"""The IDX file format of MNIST: arrays of any of its six element types, plain or gzip-compressed.

Layout: two zero bytes, a type code, the number of axes, big-endian uint32 sizes, the elements.
"""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygrad_cuda.core.errors import DataError, DTypeError

Array = NDArray[Any]

TYPES: dict[int, np.dtype[Any]] = {
    0x08: np.dtype(np.uint8),
    0x09: np.dtype(np.int8),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
    0x0D: np.dtype(">f4"),
    0x0E: np.dtype(">f8"),
}
GZIP_MAGIC = b"\x1f\x8b"


def read_idx(path: str | os.PathLike[str]) -> Array:
    """Reads an IDX file as an array in the machine's own byte order.

    Whether the file is compressed is seen from its first bytes, not from its name.

    Args:
        path: an IDX file, plain or gzip-compressed.

    Raises:
        DataError: the file is missing, is not IDX, is truncated or has trailing bytes.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "labels-idx1-ubyte")
        >>> write_idx(path, np.array([5, 0, 4], dtype=np.uint8))
        >>> read_idx(path)
        array([5, 0, 4], dtype=uint8)
    """
    path = Path(path)
    content = _content(path)
    dtype, shape = _header(path, content)
    start = 4 + 4 * len(shape)
    size = prod(shape) * dtype.itemsize
    found = len(content) - start
    if found != size:
        kind = "is truncated" if found < size else "has trailing bytes"
        raise DataError(
            "read_idx",
            f"{path} {kind}",
            expect=f"{size} bytes of elements: {shape} of {dtype.newbyteorder('=').name}",
            actual=f"{found} bytes after the header",
            hint="fetch the file again" if found < size else None,
        )
    elements = np.frombuffer(content, dtype=dtype, offset=start).reshape(shape)
    return elements.astype(dtype.newbyteorder("="))


def write_idx(path: str | os.PathLike[str], array: Array) -> None:
    """Writes an array as an IDX file, compressed when the name ends in ``.gz``.

    Args:
        path: where to write; an existing file is replaced.
        array: uint8, int8, int16, int32, float32 or float64, at most 255 axes.

    Raises:
        DTypeError: IDX has no code for the array's dtype.
    """
    path = Path(path)
    array = np.asarray(array)
    native = array.dtype.newbyteorder("=")
    code = next((code for code, dtype in TYPES.items() if dtype.newbyteorder("=") == native), None)
    if code is None:
        names = ", ".join(dtype.newbyteorder("=").name for dtype in TYPES.values())
        raise DTypeError("write_idx", "IDX has no such dtype", expect=names, actual=native.name)
    header = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    content = header + array.astype(TYPES[code]).tobytes()
    if path.suffix == ".gz":
        # No name and no time in the stream: the same array gives the same bytes.
        content = gzip.compress(content, mtime=0)
    path.write_bytes(content)


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            "read_idx", f"{path} cannot be read", expect="an IDX file", actual=str(error)
        ) from error
    if not content.startswith(GZIP_MAGIC):
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(
            "read_idx",
            f"{path} is damaged",
            expect="a whole gzip stream",
            actual=f"{len(content)} bytes: {error}",
            hint="fetch the file again",
        ) from error


def _header(path: Path, content: bytes) -> tuple[np.dtype[Any], tuple[int, ...]]:
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in TYPES:
        codes = " ".join(f"{code:02x}" for code in TYPES)
        raise DataError(
            "read_idx",
            f"{path} is not an IDX file",
            expect=f"first bytes 00 00, a type code ({codes}), the number of axes",
            actual=f"{content[:4].hex(' ')} ({content[:16]!r})" if content else "an empty file",
        )
    axes = content[3]
    if len(content) < 4 + 4 * axes:
        raise DataError(
            "read_idx",
            f"{path} is truncated",
            expect=f"a header of {4 + 4 * axes} bytes for {axes} axes",
            actual=f"{len(content)} bytes",
            hint="fetch the file again",
        )
    return TYPES[content[2]], struct.unpack_from(f">{axes}I", content, 4)
