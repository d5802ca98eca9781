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
from typing import Any, BinaryIO

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
MOST_AXES = 64  # of a NumPy array


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
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == GZIP_MAGIC
            file.seek(0)
            if not compressed:
                return _array(path, file, file.seek(0, os.SEEK_END))
            with gzip.GzipFile(fileobj=file) as stream:
                # Deflate makes at most 1032 bytes of one.
                return _array(path, stream, 1032 * path.stat().st_size)
    except (EOFError, OSError, zlib.error) as error:
        damaged = not isinstance(error, OSError) or isinstance(error, gzip.BadGzipFile)
        raise DataError(
            "read_idx",
            f"{path} {'is damaged' if damaged else 'cannot be read'}",
            expect="a whole gzip stream" if damaged else "an IDX file",
            actual=f"{path.stat().st_size} bytes: {error}" if damaged else str(error),
            hint="fetch the file again" if damaged else None,
        ) from error


def _array(path: Path, stream: BinaryIO | gzip.GzipFile, largest: int) -> Array:
    """Header first, then only as many bytes as it announces.

    Args:
        largest: how many bytes there can be, header included.
    """
    stream.seek(0)
    dtype, shape = _header(path, stream.read(4 + 4 * MOST_AXES))
    start = 4 + 4 * len(shape)
    size = prod(shape) * dtype.itemsize
    stream.seek(start)
    content = stream.read(min(size, largest) + 1)
    if len(content) != size:
        kind = "is truncated" if len(content) < size else "has trailing bytes"
        raise DataError(
            "read_idx",
            f"{path} {kind}",
            expect=f"{size} bytes of elements: {shape} of {dtype.newbyteorder('=').name}",
            actual=f"{'at least ' * (len(content) > size)}{len(content)} bytes after the header",
            hint="fetch the file again" if len(content) < size else None,
        )
    elements = np.frombuffer(content, dtype=dtype)
    try:
        return elements.reshape(shape).astype(dtype.newbyteorder("="))
    except ValueError as error:  # sizes whose product is 0, but larger ones than an array has
        raise DataError(
            "read_idx", f"{path} has no possible shape", expect="sizes that memory can have",
            actual=f"{shape}: {error}"[:200],
        ) from None  # fmt: skip


def write_idx(path: str | os.PathLike[str], array: Array) -> None:
    """Writes an array as an IDX file, compressed when the name ends in ``.gz``.

    Args:
        path: where to write; an existing file is replaced.
        array: uint8, int8, int16, int32, float32 or float64, at most 64 axes.

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
    if axes > MOST_AXES:
        raise DataError(
            "read_idx", f"{path} has too many axes", expect=f"at most {MOST_AXES}",
            actual=str(axes),
        )  # fmt: skip
    if len(content) < 4 + 4 * axes:
        raise DataError(
            "read_idx",
            f"{path} is truncated",
            expect=f"a header of {4 + 4 * axes} bytes for {axes} axes",
            actual=f"{len(content)} bytes",
            hint="fetch the file again",
        )
    return TYPES[content[2]], struct.unpack_from(f">{axes}I", content, 4)
