"""DLPack capsules through NumPy, which makes and frees them in C.

NumPy knows neither bfloat16 nor memory of a GPU. Such memory stands behind an array of integers
that nobody reads, and the capsule's own words on dtype and device are set right.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

from tinygrad_cuda.core.dtypes import DType, bfloat16, from_numpy

Array = np.ndarray[Any, Any]
CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # DLDeviceType
ON_HOST = (CPU, CUDA_HOST)
_BFLOAT, _UNSIGNED = 4, 1  # DLDataTypeCode
VERSION = (1, 0)  # that NumPy reads
_VERSIONED, _UNVERSIONED = b"dltensor_versioned", b"dltensor"


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class _Versioned(ctypes.Structure):
    """What a capsule of DLPack 1.0 holds; an older one holds the tensor first."""

    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor),
    ]  # fmt: skip


_api = ctypes.pythonapi
_api.PyCapsule_IsValid.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p


def is_capsule(value: Any) -> bool:
    """Whether a value is a capsule that nobody has taken the tensor out of."""
    valid = _api.PyCapsule_IsValid
    return bool(type(value).__name__ == "PyCapsule" and (
        valid(value, _VERSIONED) or valid(value, _UNVERSIONED)
    ))  # fmt: skip


def _parts(capsule: Any) -> tuple[_DLTensor, _Versioned | None]:
    if not is_capsule(capsule):
        raise BufferError("no DLPack capsule, or one whose tensor was taken out already")
    if _api.PyCapsule_IsValid(capsule, _VERSIONED):
        whole = _Versioned.from_address(_api.PyCapsule_GetPointer(capsule, _VERSIONED))
        if whole.major > VERSION[0]:
            raise BufferError(f"DLPack {whole.major}.{whole.minor} is newer than {VERSION[0]}.x")
        return whole.tensor, whole
    return _DLTensor.from_address(_api.PyCapsule_GetPointer(capsule, _UNVERSIONED)), None


def export(array: Array, device: tuple[int, int] = (CPU, 0), **options: Any) -> Any:
    """A capsule of an array's memory.

    Args:
        array: its memory may be a GPU's, behind `over`.
        device: where the memory is, in DLPack's numbers.
        options: of the protocol: max_version, copy.
    """
    brain = array.dtype == bfloat16.numpy
    capsule = (array.view(np.uint16) if brain else array).__dlpack__(**options)
    tensor, _ = _parts(capsule)
    tensor.device_type, tensor.device_id = device
    if brain:
        tensor.code = _BFLOAT
    return capsule


class Imported(NamedTuple):
    """What a capsule holds.

    Attributes:
        array: over its memory, which stays as long as the array; not to be read on a GPU.
        dtype: of the elements.
        device: in DLPack's numbers.
    """

    array: Array
    dtype: DType
    device: tuple[int, int]


class _Taken:
    """Hands NumPy a capsule that it shall think is one of host memory."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CPU, 0)


def imported(capsule: Any) -> Imported:
    """Takes the tensor out of a capsule.

    Raises:
        BufferError: it is no capsule, is empty, or has a dtype or device that is unknown here.
    """
    tensor, whole = _parts(capsule)
    device = (tensor.device_type, tensor.device_id)
    if device[0] not in (*ON_HOST, CUDA, CUDA_MANAGED):
        raise BufferError(f"memory of DLPack's device type {device[0]}")
    brain = (tensor.code, tensor.bits, tensor.lanes) == (_BFLOAT, 16, 1)
    writable = whole is None or not whole.flags & 1
    # NumPy refuses what it does not know.
    tensor.device_type = CPU
    if brain:
        tensor.code = _UNSIGNED
    array = np.from_dlpack(_Taken(capsule))
    dtype = bfloat16 if brain else from_numpy(array.dtype)
    if array.size:
        array = over(array, array.__array_interface__, writable)
    return Imported(array.view(dtype.numpy), dtype, device)


class _Memory:
    """Keeps the owner of memory as long as NumPy's arrays over it."""

    def __init__(self, owner: object, interface: dict[str, Any]) -> None:
        self.owner, self.__array_interface__ = owner, interface


def over(owner: object, interface: dict[str, Any], writable: bool = True) -> Array:
    """An array over memory that an owner keeps alive.

    Args:
        interface: NumPy's `__array_interface__`, of which the address may be a GPU's.
        writable: whether the memory may be written.
    """
    address = interface["data"][0]
    return np.asarray(_Memory(owner, {**interface, "data": (address, not writable)}))
