"""`save` and `load`: nested values with Tensors as one safetensors file, never a pickle.

The structure is JSON in the file's metadata, so loading a file runs no code of its own. `load` also
reads the zip files of torch.save, whose pickle it interprets itself.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from tinygrad_cuda.core.device import CPU, Device, as_device
from tinygrad_cuda.core.errors import ArgumentError, CompileError, DataError, MissingFileError
from tinygrad_cuda.core.layouts import RANKS, strides_of
from tinygrad_cuda.core.shapes import is_contiguous, is_dense
from tinygrad_cuda.engine.capture import capturing
from tinygrad_cuda.nn.parameter import Parameter
from tinygrad_cuda.tensors.base import Size, TensorBase, wrap
from tinygrad_cuda.tensors.creation import buffer_node
from tinygrad_cuda.tensors.layout import stored_in_format
from tinygrad_cuda.tensors.tensor import Tensor
from tinygrad_cuda.tensors.views import moves
from tinygrad_cuda.utils import torch_file
from tinygrad_cuda.utils.checkpoint_values import decoded, encoded
from tinygrad_cuda.utils.safetensors_file import pack, unpack

Array = np.ndarray[Any, Any]
KEY = "tinygrad_cuda"  # of the structure in the metadata
VERSION = 2  # of the document in the metadata


def save(obj: Any, path: str | os.PathLike[str] | IO[bytes]) -> None:
    """Writes nested values with Tensors to one safetensors file.

    Besides dicts, lists, tuples, sets, numbers, strings and None there may be NumPy's arrays and
    numbers, namespaces, dtypes, devices, whole modules and dataclasses.

    The file appears whole or not at all. Tensors that share a storage cell are stored once, and
    share it again when loaded. Strides without gaps, such as channels-last ones, come back. A plain
    dict of Tensors, such as a state dict, is a file that other programs read by its names.

    Args:
        obj: the value, nested as deep as you like; dict keys are numbers, strings, None or tuples.
        path: the file, replaced if it exists; or anything with a ``write``, such as a BytesIO.

    Raises:
        ArgumentError: something in it is of another kind.
        OSError: the file cannot be written.

    Example:
        >>> import tempfile, pathlib
        >>> import tinygrad_cuda as tc
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "state.safetensors"
        >>> tc.save({"step": 3, "weights": [tc.arange(3, device="cpu")]}, path)
        >>> tc.load(path)["weights"][0].tolist()
        [0, 1, 2]
    """
    writer = _CheckpointWriter()
    try:
        structure = json.dumps(writer.encode(obj, ()))
    except RecursionError:
        raise ArgumentError(
            "save", "the object is nested too deeply", expect="at most a few hundred levels",
            actual=f"more than Python's limit of {sys.getrecursionlimit()} calls allows",
        ) from None  # fmt: skip
    document = {"version": VERSION, "structure": structure, "crc32": _crc(structure, writer.arrays)}
    metadata = {"format": "pt", KEY: json.dumps(document)}
    content = pack(writer.arrays, metadata)
    if hasattr(path, "write"):
        path.write(content)
    else:
        _write(Path(os.path.realpath(path)), content)


def _crc(structure: str, arrays: dict[str, np.ndarray[Any, Any]]) -> int:
    """The checksum of all that a file holds: it detects every damage of one byte."""
    crc = zlib.crc32(structure.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        crc = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), crc)
        crc = zlib.crc32(array.reshape(-1).view(np.uint8).data, crc)
    return crc


def _write(path: Path, content: bytes) -> None:
    """All of it, or nothing: a reader never meets half a file."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


class _CheckpointWriter:
    """Turns a value into JSON and a table of Tensors.

    None, booleans, numbers, strings and lists stand for themselves; an object has one key that
    says what it is: "dict" (pairs), "tuple", or "tensor" (the name in the table).
    """

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self._names: dict[Any, str] = {}
        self._open: set[int] = set()

    def encode(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, TensorBase):
            return self._tensor(value, path)  # type: ignore[arg-type]
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, Size) or not isinstance(value, dict | list | tuple):
            other = self._other(value, path)
            if other is not None:
                return other
        if isinstance(value, bool | int | float | str):
            return value
        if not isinstance(value, dict | list | tuple) or id(value) in self._open:
            raise ArgumentError(
                "save", f"{'.'.join(path) or 'the object'} cannot be stored",
                expect="dicts, lists, sets, numbers, strings, Tensors, arrays, namespaces, modules",
                actual="a container inside itself" if id(value) in self._open
                else f"{type(value).__module__}.{type(value).__name__}",
                hint="store its state_dict()" if hasattr(value, "state_dict") else None,
            )  # fmt: skip
        self._open.add(id(value))
        other = self._container(value, path)
        self._open.discard(id(value))
        return other

    def _other(self, value: Any, path: tuple[str, ...]) -> Any:
        def store(array: np.ndarray[Any, Any]) -> str:
            name = self._free_name(".".join(path) or "array")
            self.arrays[name] = array
            return name

        if id(value) in self._open:
            return None
        self._open.add(id(value))
        result = encoded(value, lambda part: self.encode(part, path), store)
        self._open.discard(id(value))
        return result

    def _container(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, dict):
            pairs = [
                [self.encode(key, (*path, "key")), self.encode(element, (*path, str(key)))]
                for key, element in value.items()
            ]
            return {"dict": pairs}
        elements = [self.encode(element, (*path, str(k))) for k, element in enumerate(value)]
        return {"tuple": elements} if isinstance(value, tuple) else elements

    def _tensor(self, tensor: Tensor, path: tuple[str, ...]) -> Any:
        views = [(op.name, repr(detail)) for op, detail in filter(moves, tensor.chain)]
        identity = (id(tensor.cell), tuple(views))
        name = self._names.get(identity)
        if name is None:
            name = self._names[identity] = self._free_name(".".join(path) or "tensor")
            self.arrays[name] = tensor.array()
        entry: dict[str, Any] = {"tensor": name, "device": str(tensor.device)}
        if isinstance(tensor, Parameter):
            entry["parameter"] = True
        if tensor.requires_grad:
            entry["requires_grad"] = True
        strides = tensor.strides
        if not is_contiguous(tensor.shape, strides) and is_dense(tensor.shape, strides):
            entry["strides"] = list(strides)
        return entry

    def _free_name(self, name: str) -> str:
        number = 1
        while name in self.arrays or name == "__metadata__":
            number += 1
            name = f"{name.partition('#')[0]}#{number}"
        return name


def load(
    path: str | os.PathLike[str] | IO[bytes], map_location: Any = None, pickle_module: Any = None,
    *, weights_only: bool = True, mmap: bool | None = None,
) -> Any:  # fmt: skip
    """Reads what `save` wrote, any safetensors file as a dict of Tensors, or a file of torch.save.

    PyTorch's files hold a pickle. It is not run but interpreted by a table of opcodes that can
    build containers, numbers and Tensors; whatever else it asks for is refused. Tensors that shared
    a storage share one again.

    Args:
        path: the file, or anything with a ``read``.
        map_location: the device for all Tensors; or a dict of devices; or a function that is
            given a Tensor on cpu and the name of its device, and gives the Tensor moved. By default
            each goes to its own device, which must be there.
        pickle_module, mmap: accepted as in PyTorch; no pickle is run.
        weights_only: with False a whole module or dataclass in the file is rebuilt: its class is
            imported by name, so only from a file that you trust.

    Raises:
        DataError: the file is truncated or of another kind, or holds a module; or a pickle names
            anything but containers, numbers and tensors: opcode and global are in the error.
        FileNotFoundError: there is no such file.
        DeviceError: a Tensor's device cannot be used here.
        CompileError: inside a compiled function.
    """
    if capturing() is not None:
        raise CompileError(
            "load", "a compiled function reads a file, which a replay would not read again",
            expect="load(...) outside the compiled function", actual="it is traced",
            hint="pass what the file holds as an argument",
        )  # fmt: skip
    content = path.read() if hasattr(path, "read") else _read(Path(path))
    put = _placing(map_location)
    if content[:4] == torch_file.MAGIC:
        return torch_file.unpack(content, str(path), put)
    arrays, metadata = unpack(content, str(path))
    if KEY not in metadata and not any('"structure"' in text for text in metadata.values()):
        return {name: put(array, "cpu") for name, array in arrays.items()}
    try:
        document = json.loads(metadata[KEY])
        version = document["version"]
        if version == VERSION:
            structure = document["structure"]
            if _crc(structure, arrays) != document["crc32"]:
                raise ValueError("the checksum is another one")
            return _Reader(arrays, put, not weights_only).decode(json.loads(structure))
        if version == 1:  # without a checksum
            return _Reader(arrays, put, not weights_only).decode(document["structure"])
    except DataError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise DataError(
            "load", f"{path}: the structure or a tensor is damaged", expect="what save wrote",
            actual=f"{type(error).__name__}: {error}", hint="copy or download it again",
        ) from None  # fmt: skip
    raise DataError(
        "load", f"{path} was written by another version", expect=f"version {VERSION}",
        actual=f"version {version}",
    )  # fmt: skip


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        kind = MissingFileError if isinstance(error, FileNotFoundError) else DataError
        raise kind(
            "load",
            f"{path} cannot be read",
            expect="a safetensors file",
            actual=str(error.strerror),
        ) from None


Placing = Callable[[Array, str], Tensor]


def _placing(map_location: Any) -> Placing:
    """What makes a Tensor of an array and the name of the device that it was on."""

    def put(array: Array, name: str) -> Tensor:
        if callable(map_location) and not isinstance(map_location, Device):
            tensor = wrap(buffer_node(array, CPU))
            moved = map_location(tensor, name)
            return moved if isinstance(moved, Tensor) else tensor.to(as_device(name))
        wanted = map_location.get(name, name) if isinstance(map_location, dict) else map_location
        return wrap(buffer_node(array, as_device(name if wanted is None else wanted)))

    return put


class _Reader:
    """Decodes entries; Tensors of one name share a cell."""

    def __init__(self, arrays: dict[str, Array], placing: Placing, trusted: bool) -> None:
        self.arrays, self.place, self.trusted = arrays, placing, trusted
        self._made: dict[str, Tensor] = {}

    def decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.decode(element) for element in value]
        if not isinstance(value, dict):
            return value
        if "dict" in value:
            return {self.decode(key): self.decode(element) for key, element in value["dict"]}
        if "tuple" in value:
            return tuple(self.decode(element) for element in value["tuple"])
        if "tensor" in value:
            return self._tensor(value)
        return decoded(value, self.decode, self.arrays, self.trusted)

    def _tensor(self, value: dict[str, Any]) -> Tensor:
        name = value["tensor"]
        tensor = self._made.get(name)
        if tensor is None:
            tensor = self.place(self.arrays[name], value["device"])
            if "strides" in value:
                tensor = _with_strides(tensor, tuple(value["strides"]))
            self._made[name] = tensor
        wanted = bool(value.get("requires_grad"))
        if value.get("parameter"):
            return Parameter(tensor, wanted)
        # Handles of their own, so that a flag set on one is not the other's.
        return tensor.detach().requires_grad_(wanted)


def _with_strides(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """A new Tensor with its elements in another order, channels last in memory, too."""
    shape = tuple(tensor.shape)
    if len(strides) != len(shape) or not is_dense(shape, strides):
        raise ValueError(f"strides {strides} of shape {shape}")
    for order, rank in RANKS.items():
        if rank == len(shape) and strides == strides_of(shape, order):
            return stored_in_format("load", tensor, order)
    tensor._strides = strides
    return tensor
