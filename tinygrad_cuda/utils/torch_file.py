"""PyTorch's zip files of tensors, as `torch.save` writes them, read without running a pickle.

The pickle is run twice by `restricted_pickle`: once to see all that it asks for, before anything is
allocated, and once to build. Tensors on one storage share a cell where views can express it.
"""

from __future__ import annotations

import io
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple, NoReturn

import numpy as np

from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.device import Device, as_device
from tinygrad_cuda.core.dtypes import DType, as_dtype
from tinygrad_cuda.core.errors import ArgumentError, DataError
from tinygrad_cuda.core.shapes import Shape, contiguous_strides
from tinygrad_cuda.nn.parameter import Parameter
from tinygrad_cuda.tensors.base import Size
from tinygrad_cuda.tensors.tensor import Tensor
from tinygrad_cuda.utils.restricted_pickle import Global, Refusal, hashable, run

Array = np.ndarray[Any, Any]
MAGIC = b"PK\x03\x04"  # of a zip file
# Strides of 0 let few bytes stand for many elements: bytes of all Tensors for one of the file.
MOST_EXPANSION, FREE_EXPANSION = 16, 4 << 20

_STORAGES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16",
    "Char": "int8", "Byte": "uint8", "Short": "int16", "Int": "int32", "Long": "int64",
    "Bool": "bool", "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip


class LoadEndianness(Enum):
    """The order of bytes in a file of torch.save that does not say it: from before 2.1."""

    NATIVE = 1
    LITTLE = 2
    BIG = 3


_default: list[LoadEndianness | None] = [None]


def get_default_load_endianness() -> LoadEndianness | None:
    """What `set_default_load_endianness` was given; None is the order of this machine."""
    return _default[0]


def set_default_load_endianness(endianness: LoadEndianness | None) -> None:
    """Says the order of bytes in files of torch.save that do not say it.

    Args:
        endianness: None is the order of this machine.

    Raises:
        ArgumentError: it is none of these.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.serialization.set_default_load_endianness(None)
        >>> tc.serialization.get_default_load_endianness() is None
        True
    """
    if endianness is not None and not isinstance(endianness, LoadEndianness):
        raise ArgumentError(
            "set_default_load_endianness", "no order of bytes",
            expect="a LoadEndianness or None", actual=repr(endianness),
        )  # fmt: skip
    _default[0] = endianness


def _order_of_old_files() -> bytes:
    """The order of bytes where a file does not say it."""
    if _default[0] in (None, LoadEndianness.NATIVE):
        return sys.byteorder.encode()
    return b"big" if _default[0] is LoadEndianness.BIG else b"little"


class Storage(NamedTuple):
    """What a persistent id names: a run of elements in a record of the file.

    Attributes:
        key: the name of the record.
        dtype: of its elements; None where each Tensor says its own.
        location: the device that it was on.
        nbytes: its length.
    """

    key: str
    dtype: DType | None
    location: str
    nbytes: int


class StorageView(NamedTuple):
    """Where a Tensor's elements lie in its storage, in elements."""

    dtype: DType
    offset: int
    shape: Shape
    strides: Shape

    @property
    def reach(self) -> int:
        """One past the last element that it touches."""
        if 0 in self.shape:
            return 0
        return self.offset + 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides))


def unpack(content: bytes, what: str, put: Callable[[Array, str], Tensor]) -> Any:
    """The value in a file of torch.save.

    Args:
        content: the whole file.
        what: its name, for errors.
        put: makes a Tensor of an array and the name of the device that it was on.

    Raises:
        DataError: it is damaged, of another kind, or asks for more than containers, numbers and
            tensors.
    """
    archive = _Archive(content, what)
    pickle = archive.record("data.pkl")
    used: dict[str, dict[StorageView, None]] = {}
    run(pickle, what, _globals(lambda s, layout: _noted(used, s, layout)), _storage)
    total = sum(prod(x.shape) * x.dtype.itemsize for xs in used.values() for x in xs)
    if total > MOST_EXPANSION * len(content) + FREE_EXPANSION:
        raise DataError(
            "load", f"{what}: overlapping or expanded tensors stand for more than the file holds",
            expect=f"at most {MOST_EXPANSION} times the file's {len(content)} bytes",
            actual=f"{total} bytes", hint="save x.contiguous() in PyTorch",
        )  # fmt: skip
    builder = _Builder(archive, used, put)
    return run(pickle, what, _globals(builder.tensor), _storage)


def _noted(used: dict[str, dict[StorageView, None]], storage: Storage, layout: StorageView) -> Any:
    used.setdefault(storage.key, {})[layout] = None
    return _STAND_IN


# Takes the place of Tensors while a pickle is only looked at.
_STAND_IN: Any = object()


class _Archive:
    """The records of a file, by their names below its one folder."""

    def __init__(self, content: bytes, what: str) -> None:
        self.what, self.content = what, content
        try:
            self.zip = zipfile.ZipFile(io.BytesIO(content))
        except (zipfile.BadZipFile, ValueError, OverflowError, NotImplementedError) as error:
            self.damaged(error)
        names = [name for name in self.zip.namelist() if name.endswith("/data.pkl")]
        if len(names) != 1:
            self.refused("no one data.pkl in a folder" if names else "no data.pkl in a folder")
        self.folder = names[0].removesuffix("data.pkl")
        if f"{self.folder}constants.pkl" in self.zip.namelist():
            self.refused("a TorchScript program")
        for name in self.zip.namelist():
            if not name.startswith(f"{self.folder}data/"):
                self.record(name.removeprefix(self.folder))  # each has the name that it should
        order = self.record("byteorder") if self.has("byteorder") else _order_of_old_files()
        if order not in (b"little", b"big"):
            self.damaged(ValueError(f"byte order {order[:20]!r}"))
        self.order = "<" if order == b"little" else ">"

    def has(self, name: str) -> bool:
        return f"{self.folder}{name}" in self.zip.namelist()

    def record(self, name: str) -> bytes:
        """The bytes of a record, compared with their checksum."""
        try:
            entry = self.zip.getinfo(self.folder + name)
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > len(self.content):
                raise ValueError(f"{name} is compressed or longer than the file")
            return self.zip.read(entry)
        except (
            KeyError, ValueError, OverflowError, RuntimeError, NotImplementedError, EOFError,
            OSError, zipfile.BadZipFile,
        ) as error:  # fmt: skip
            self.damaged(error)

    def elements(self, storage: Storage, dtype: DType) -> Array:
        """A storage's elements, in this machine's byte order; the memory is the caller's own."""
        data = self.record(f"data/{storage.key}")
        if storage.nbytes > len(data):
            self.damaged(ValueError(f"storage {storage.key} has {len(data)} bytes"))
        flat = np.frombuffer(data[: storage.nbytes // dtype.itemsize * dtype.itemsize], np.uint8)
        if self.order == ">":
            flat = flat.reshape(-1, dtype.itemsize)[:, ::-1].reshape(-1)
        if dtype is dtypes.bool_:
            return np.array(flat != 0)
        return flat.copy().view(dtype.numpy)

    def refused(self, actual: str) -> NoReturn:
        raise DataError(
            "load", f"{self.what} is a zip file of another kind",
            expect="what torch.save wrote", actual=actual,
            hint="in PyTorch: torch.save(model.state_dict(), path)",
        )  # fmt: skip

    def damaged(self, error: Exception) -> NoReturn:
        raise DataError(
            "load", f"{self.what}: the zip file is damaged", expect="what torch.save wrote",
            actual=f"{type(error).__name__}: {error}"[:200], hint="copy or download it again",
        ) from None  # fmt: skip


# What the pickle may name -------------------------------------------------------------------------


def _globals(build: Callable[[Storage, StorageView], Tensor]) -> dict[str, Global]:
    """All that a pickle of tensors may name; `build` makes a Tensor on a storage."""

    def tensor(storage: Any, offset: Any, shape: Any, strides: Any, needs: Any, *rest: Any) -> Any:
        if not isinstance(storage, Storage) or storage.dtype is None or len(rest) > 2:
            raise TypeError("a tensor without a storage")
        return _flagged(build(storage, _layout(storage, storage.dtype, offset, shape, strides)),
                        needs)  # fmt: skip

    def tensor_of_dtype(
        storage: Any, offset: Any, shape: Any, strides: Any, needs: Any, hooks: Any, dtype: Any,
        *rest: Any,
    ) -> Any:  # fmt: skip
        if not isinstance(storage, Storage) or not isinstance(dtype, DType) or len(rest) > 1:
            raise TypeError("a tensor without a storage and a dtype")
        return _flagged(build(storage, _layout(storage, as_dtype(dtype), offset, shape, strides)),
                        needs)  # fmt: skip

    def parameter(data: Any, needs: Any, hooks: Any) -> Any:
        if data is _STAND_IN:
            return data
        if not isinstance(data, Tensor):
            raise TypeError("a parameter without a tensor")
        return Parameter(data, bool(needs))

    table = [
        Global("torch._utils _rebuild_tensor_v2", tensor),
        Global("torch._utils _rebuild_tensor_v3", tensor_of_dtype),
        Global("torch._utils _rebuild_parameter", parameter),
        Global("torch.storage UntypedStorage", value=_UNTYPED),
        *(
            Global(f"torch {name}Storage", value=_StorageType(dtype))
            for name, dtype in _STORAGES.items()
        ),
        *_PLAIN,
    ]
    return {entry.name: entry for entry in table}


class _StorageType(NamedTuple):
    """The class of a storage in a persistent id."""

    dtype: str | None


_UNTYPED = _StorageType(None)


def _ordered(*pairs: Any) -> OrderedDict[Any, Any]:
    result: OrderedDict[Any, Any] = OrderedDict()
    for key, value in pairs[0] if pairs else ():
        result[hashable(key)] = value
    return result


def _size(dims: Any = ()) -> Size:
    return Size(_sizes(dims))


def _device(kind: Any, index: Any = None) -> Device:
    if type(kind) is not str or not (index is None or type(index) is int):
        raise TypeError("a device has a name and a number")
    return as_device(kind if index is None else f"{kind}:{index}")


def _complex(real: Any, imaginary: Any) -> complex:
    if type(real) is not float or type(imaginary) is not float:
        raise TypeError("a complex number has two floats")
    return complex(real, imaginary)


def _bytes(text: Any, encoding: Any) -> bytes:
    if type(text) is not str or encoding != "latin1":
        raise TypeError("bytes stand in the file as text in latin1")
    return text.encode("latin1")


def _set(elements: Any = ()) -> set[Any]:
    return {hashable(element) for element in elements}


_PLAIN = [
    Global("collections OrderedDict", _ordered),
    Global("torch Size", _size),
    Global("torch device", _device),
    *(Global(f"torch {dtype.name}", value=dtype) for dtype in (*dtypes.ALL, *dtypes.COMPLEX)),
    *(Global(f"torch {name}", value=dtype) for name, dtype in dtypes.UNSUPPORTED.items()),
    *(Global(f"{module} complex", _complex) for module in ("__builtin__", "builtins")),
    *(Global(f"{module} set", _set) for module in ("__builtin__", "builtins")),
    Global("_codecs encode", _bytes),
]


def _sizes(values: Any) -> Shape:
    if not isinstance(values, tuple | list) or len(values) > 64:
        raise TypeError("sizes are a tuple of at most 64 numbers")
    for value in values:
        if type(value) is not int or not 0 <= value < 1 << 62:
            raise ValueError(f"{str(value)[:40]} is no size")
    return tuple(values)


def _storage(identity: Any) -> Storage:
    """What a persistent id stands for: ("storage", its class, key, location, length)."""
    if type(identity) is not tuple or len(identity) != 5 or identity[0] != "storage":
        raise Refusal("a persistent id that is no storage")
    _, kind, key, location, count = identity
    if not isinstance(kind, _StorageType) or type(key) is not str or type(location) is not str:
        raise Refusal("a persistent id that is no storage")
    (count,) = _sizes((count,))
    if kind.dtype is None:
        return Storage(key, None, location, count)
    dtype = as_dtype(dtypes.UNSUPPORTED.get(kind.dtype, kind.dtype))
    return Storage(key, dtype, location, count * dtype.itemsize)


def _layout(storage: Storage, dtype: DType, offset: Any, shape: Any, strides: Any) -> StorageView:
    (offset,) = _sizes((offset,))
    layout = StorageView(dtype, offset, _sizes(shape), _sizes(strides))
    if len(layout.shape) != len(layout.strides):
        raise ValueError("shape and strides have different lengths")
    if layout.reach * dtype.itemsize > storage.nbytes:
        raise ValueError(
            f"a tensor reaches element {layout.reach} of a storage of {storage.nbytes} bytes"
        )
    if prod(n for n in layout.shape if n) >= 1 << 62:
        raise ValueError(f"shape {layout.shape} is too large")
    return layout


def _flagged(tensor: Any, needs: Any) -> Any:
    """A handle of its own, so that a flag set on one is not that of others on the storage."""
    return tensor if tensor is _STAND_IN else tensor.detach().requires_grad_(bool(needs))


# Tensors on storages ------------------------------------------------------------------------------


class _Builder:
    """Makes Tensors; those on one storage are views of one cell where views can express it."""

    def __init__(
        self,
        archive: _Archive,
        used: dict[str, dict[StorageView, None]],
        put: Callable[[Array, str], Tensor],
    ) -> None:
        self.archive, self.used, self.put = archive, used, put
        self._made: dict[tuple[str, StorageView], Tensor] = {}
        self._flat: dict[str, Tensor] = {}

    def tensor(self, storage: Storage, layout: StorageView) -> Tensor:
        made = self._made.get((storage.key, layout))
        if made is None:
            made = self._view(storage, layout)
            if made is None:
                made = self._copy(storage, layout)
            self._made[storage.key, layout] = made
        return made

    def _view(self, storage: Storage, layout: StorageView) -> Tensor | None:
        """A view of the storage's cell, if there are others on it and it is a grid of its own."""
        layouts = self.used[storage.key]
        if len(layouts) == 1 or len({other.dtype for other in layouts}) > 1:
            return None
        count = storage.nbytes // layout.dtype.itemsize
        grid = _grid(layout, count)
        if grid is None:
            return None
        flat = self._flat.get(storage.key)
        if flat is None:
            array = self.archive.elements(storage, layout.dtype)
            flat = self._flat[storage.key] = self.put(array, storage.location)
        return grid.view(flat)

    def _copy(self, storage: Storage, layout: StorageView) -> Tensor:
        """Its elements in a cell of their own, with the strides that they had."""
        flat = self.archive.elements(storage, layout.dtype)
        step = layout.dtype.itemsize
        shape = tuple(1 if s == 0 and n else n for n, s in zip(layout.shape, layout.strides))
        array = np.lib.stride_tricks.as_strided(
            flat[layout.offset :] if 0 not in shape else flat[:0],
            shape, tuple(s * step for s in layout.strides) if 0 not in shape else (0,) * len(shape),
        )  # fmt: skip
        tensor = self.put(np.array(array, order="C"), storage.location)
        if shape != layout.shape:
            tensor = tensor.expand(layout.shape)
        if layout.strides != contiguous_strides(layout.shape):
            tensor._strides = layout.strides
        return tensor


class _Grid(NamedTuple):
    """How views make a Tensor of a flat one.

    Attributes:
        first: where the grid begins in the flat one.
        widths: of the grid; the last are the elements between neighbours of the innermost axis.
        starts: of the slices in it; one more than `sizes`, for the last width.
        sizes: of the slices.
        order: which slice each axis of the Tensor is, of those that are not of size 1.
        layout: of the Tensor.
    """

    first: int
    widths: Shape
    starts: Shape
    sizes: Shape
    order: Shape
    layout: StorageView

    def view(self, flat: Tensor) -> Tensor:
        """The Tensor, on the cell of the flat one."""
        block = flat[self.first : self.first + prod(self.widths)].view(self.widths)
        for axis, (start, n) in enumerate(zip(self.starts, self.sizes)):
            block = block.narrow(axis, start, n)
        result = block.select(len(self.sizes), self.starts[-1]).permute(self.order)
        for axis, n in enumerate(self.layout.shape):
            if n == 1:
                result = result.unsqueeze(axis)
        result._strides = self.layout.strides
        return result


def _grid(layout: StorageView, count: int) -> _Grid | None:
    """The grid that a Tensor is a slice of.

    Args:
        count: elements of the flat Tensor that it lies in.

    Returns:
        None where strides do not divide each other or elements repeat: no views express it.
    """
    axes = [axis for axis, n in enumerate(layout.shape) if n != 1]
    axes.sort(key=lambda axis: -layout.strides[axis])
    sizes = tuple(layout.shape[axis] for axis in axes)
    strides = [*(layout.strides[axis] for axis in axes), 1]
    if 0 in layout.shape or 0 in strides:
        return None
    if any(outer % inner for outer, inner in pairwise(strides)):
        return None
    order = tuple(sorted(range(len(axes)), key=lambda k: axes[k]))
    # A grid from the start cuts nothing off, one from the Tensor's own start has whole rows.
    for first in (0, layout.offset, count - sizes[0] * strides[0] if sizes else 0):
        if not 0 <= first <= layout.offset:
            continue
        widths = ((count - first) // strides[0], *(a // b for a, b in pairwise(strides)))
        starts, rest = [], layout.offset - first
        for stride in strides:
            starts.append(rest // stride)
            rest %= stride
        if all(start + n <= width for start, n, width in zip(starts, (*sizes, 1), widths)):
            return _Grid(first, widths, tuple(starts), sizes, order, layout)
    return None
