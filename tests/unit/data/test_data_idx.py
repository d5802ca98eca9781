"""IDX files: every element type round-trips, and every damage is a clear DataError."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tinygrad_cuda.core.errors import DataError, DTypeError
from tinygrad_cuda.data.idx import TYPES, read_idx, write_idx

NATIVE = [dtype.newbyteorder("=") for dtype in TYPES.values()]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("dtype", NATIVE, ids=lambda dtype: dtype.name)
def test_round_trip(tmp_path: Path, dtype: np.dtype, suffix: str) -> None:
    """What is written is read back, in native byte order, plain and compressed."""
    array = np.arange(-12, 12).reshape(2, 3, 4).astype(dtype)
    path = tmp_path / f"array{suffix}"
    write_idx(path, array)
    back = read_idx(path)
    assert back.dtype == dtype
    assert back.dtype.isnative
    np.testing.assert_array_equal(back, array)
    back[0] = 0  # writable, not a view of the file's bytes


@given(
    npst.arrays(
        st.sampled_from(NATIVE),
        npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    )
)
def test_any_array_round_trips(tmp_path_factory: pytest.TempPathFactory, array: np.ndarray) -> None:
    """Any shape, sizes 0 and 0-d included, any bits."""
    path = tmp_path_factory.mktemp("idx") / "array"
    write_idx(path, array)
    back = read_idx(path)
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


def test_bytes_are_those_of_the_format(tmp_path: Path) -> None:
    """The file is the published layout, not only something we can read ourselves."""
    path = tmp_path / "array"
    write_idx(path, np.array([[1, 2, 3]], dtype=np.int16))
    assert path.read_bytes() == bytes.fromhex("00000b02 00000001 00000003 0001 0002 0003")
    path.write_bytes(bytes.fromhex("00000d01 00000002 3f800000 c0000000"))
    np.testing.assert_array_equal(read_idx(path), np.array([1.0, -2.0], dtype=np.float32))


def test_compression_is_seen_from_the_content(tmp_path: Path) -> None:
    """A compressed file without .gz and a plain one with it are both read."""
    array = np.arange(5, dtype=np.uint8)
    write_idx(tmp_path / "a.gz", array)
    write_idx(tmp_path / "b", array)
    (tmp_path / "a.gz").rename(tmp_path / "a")
    (tmp_path / "b").rename(tmp_path / "b.gz")
    np.testing.assert_array_equal(read_idx(tmp_path / "a"), array)
    np.testing.assert_array_equal(read_idx(tmp_path / "b.gz"), array)


def test_compressed_files_are_reproducible(tmp_path: Path) -> None:
    """No time and no name in the stream."""
    array = np.arange(100, dtype=np.int32)
    write_idx(tmp_path / "one.gz", array)
    write_idx(tmp_path / "two.gz", array)
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()


def header(code: int, *shape: int) -> bytes:
    return struct.pack(f">HBB{len(shape)}I", 0, code, len(shape), *shape)


@pytest.mark.parametrize(
    ("content", "message", "actual"),
    [
        (b"", "is not an IDX file", "an empty file"),
        (b"\x89PNG\r\n\x1a\n", "is not an IDX file", "89 50 4e 47"),
        (header(0x0A, 1) + b"x", "is not an IDX file", "00 00 0a 01"),
        (header(0x08, 3, 4)[:9], "is truncated", "9 bytes"),
        (header(0x08, 2, 3) + bytes(5), "is truncated", "5 bytes after the header"),
        (header(0x0D, 2) + bytes(9), "has trailing bytes", "9 bytes after the header"),
        (header(0x0E, 0xFFFFFFFF, 0xFFFFFFFF) + bytes(8), "is truncated", "8 bytes"),
        (gzip.compress(header(0x08, 2, 3) + bytes(6), mtime=0)[:-12], "is damaged", "bytes: "),
        (gzip.compress(b"hello", mtime=0), "is not an IDX file", "68 65 6c 6c"),
    ],
    ids=[
        "empty",
        "png",
        "type code",
        "short header",
        "short",
        "long",
        "huge shape",
        "short gzip",
        "text in gzip",
    ],
)
def test_damage(tmp_path: Path, content: bytes, message: str, actual: str) -> None:
    """Truncated, overlong and foreign files say which file, what was expected and what found."""
    path = tmp_path / "images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        read_idx(path)
    lines = str(error.value).splitlines()
    assert lines[0] == f"[read_idx] {path} {message}"
    assert lines[1].startswith("  expect: ")
    assert actual in lines[2]


def test_flipped_bit_in_compressed_file(tmp_path: Path) -> None:
    """The stream's own checksum is checked."""
    content = bytearray(gzip.compress(header(0x08, 64) + bytes(range(64)), mtime=0))
    content[30] ^= 1
    path = tmp_path / "labels.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match="is damaged"):
        read_idx(path)


def test_missing_file(tmp_path: Path) -> None:
    """A missing file is a DataError that keeps the system's reason."""
    with pytest.raises(DataError, match="cannot be read") as error:
        read_idx(tmp_path / "nothing")
    assert isinstance(error.value.__cause__, FileNotFoundError)


def test_dtype_without_a_code(tmp_path: Path) -> None:
    """int64 has no place in IDX; it is refused rather than narrowed."""
    with pytest.raises(DTypeError, match="int64"):
        write_idx(tmp_path / "array", np.arange(3))
    assert not list(tmp_path.iterdir())


def test_the_header_is_read_before_anything_is_inflated(tmp_path: Path) -> None:
    """A file of 64 KB that inflates to 64 MB, of which the header announces 3 bytes."""
    path = tmp_path / "images.gz"
    header = bytes([0, 0, 8, 1]) + (3).to_bytes(4, "big")
    path.write_bytes(gzip.compress(header + bytes(64 << 20), 1))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="trailing bytes"):
            read_idx(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([2**32 - 1] * 3, "truncated"),
        ([1] * 65, "too many axes"),
        ([2**32 - 1] * 20 + [0], "no possible shape"),
    ],
)
def test_sizes_that_no_memory_has(
    tmp_path: Path, sizes: list[int], message: str, compressed: bool
) -> None:
    path = tmp_path / "images"
    content = bytes([0, 0, 14, len(sizes)]) + b"".join(n.to_bytes(4, "big") for n in sizes)
    path.write_bytes(gzip.compress(content) if compressed else content)
    with pytest.raises(DataError, match=message):
        read_idx(path)
