"""Memory shared with other libraries: DLPack both ways, and CUDA's array interface.

On cpu a write on either side shows on the other. On a GPU values are immutable: other libraries see
the value as it was handed over, and a write here makes memory of its own.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygrad_cuda.backend import registry
from tinygrad_cuda.core import dlpack
from tinygrad_cuda.core.device import CPU, Device, as_device
from tinygrad_cuda.core.dtypes import bfloat16
from tinygrad_cuda.core.errors import ArgumentError, DTypeError, GradientError, TgcError
from tinygrad_cuda.core.shapes import contiguous_strides
from tinygrad_cuda.engine.realize import check_errors
from tinygrad_cuda.graph.node import current_site, holding, made_by
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.tensors.base import wrap
from tinygrad_cuda.tensors.creation import from_memory

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = ["from_dlpack"]

_DEFAULT_STREAM = 1  # CUDA's legacy default stream, in DLPack's numbers


def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A Tensor that shares memory with an array of another library.

    Args:
        ext_tensor: has ``__dlpack__`` and ``__dlpack_device__``, as arrays of NumPy, PyTorch, CuPy
            and JAX have; or a DLPack capsule of such.
        device: where the Tensor shall be; by default where the memory is.
        copy: True for memory of its own; False to refuse what can only be copied.

    Raises:
        ArgumentError: it is no such array, or `copy` is False and the memory cannot be shared.
        DTypeError: the dtype has no counterpart.

    Example:
        >>> import numpy as np
        >>> import tinygrad_cuda as tc
        >>> array = np.zeros(3)
        >>> x = tc.from_dlpack(array)
        >>> array[1] = 5
        >>> x.tolist()
        [0.0, 5.0, 0.0]
    """
    taken = _taken(ext_tensor)
    on = CPU if taken.device[0] in dlpack.ON_HOST else as_device(f"cuda:{taken.device[1]}")
    target = on if device is None else as_device(device)
    if copy is False and target is not on:
        raise ArgumentError(
            "from_dlpack", "memory of another device can only be copied", expect=f"device {on}",
            actual=f"device {target} and copy=False",
        )  # fmt: skip
    if on is CPU:
        array = taken.array.copy() if copy else taken.array
        result = from_memory("from_dlpack", array)
    else:
        result = _on_gpu(taken, on)
        result = _copied(result) if copy and target is on else result
    return result if target is on else result.to(target)


def _taken(value: Any) -> dlpack.Imported:
    """The tensor of a capsule, which the other library is asked for if it is none."""
    try:
        return dlpack.imported(value if dlpack.is_capsule(value) else _capsule(value))
    except TgcError:
        raise
    except (BufferError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise ArgumentError(
            "from_dlpack", "cannot share this memory",
            expect="an array with __dlpack__ on the host or an NVIDIA GPU",
            actual=f"{type(value).__name__}: {error}"[:200], hint="tc.tensor(data) copies",
        ) from error  # fmt: skip


def _capsule(value: Any) -> Any:
    kind, index = value.__dlpack_device__()
    options: dict[str, Any] = {}
    if kind == dlpack.CUDA:
        # The producer has this package's stream wait for its own work.
        backend: Any = registry.get(as_device(f"cuda:{index}"))
        options["stream"] = int(backend.gpu.stream) or _DEFAULT_STREAM
    try:
        return value.__dlpack__(max_version=dlpack.VERSION, **options)
    except TypeError:  # of a producer before DLPack 1.0
        return value.__dlpack__(**options)


def _on_gpu(taken: dlpack.Imported, device: Device) -> Tensor:
    """A Tensor whose value lies in another library's memory, which is never written."""
    array = taken.array
    shape, strides = array.shape, tuple(s // taken.dtype.itemsize for s in array.strides)
    order = sorted(range(len(shape)), key=lambda axis: -strides[axis])
    inner = tuple(shape[axis] for axis in order)
    if tuple(strides[axis] for axis in order) != contiguous_strides(inner) and 0 not in shape:
        raise ArgumentError(
            "from_dlpack", "memory with gaps is not shared on a GPU", expect="dense strides",
            actual=f"strides {strides} of shape {shape}", hint="make it contiguous first",
        )  # fmt: skip
    backend: Any = registry.get(device)
    storage = backend.adopt(array.__array_interface__["data"][0], array.nbytes, array)
    outputs = ((inner, taken.dtype),)
    result: Tensor = wrap(holding(common.buffer, outputs, device, storage, current_site()))
    # A second reference: no plan may take over memory that is another library's.
    result.cell.memory = storage
    if order == sorted(order):
        return result
    return result.permute([order.index(axis) for axis in range(len(shape))])


def _copied(tensor: Tensor) -> Tensor:
    """The value in memory of its own on its GPU: `clone` shares it until a write."""
    node = tensor.realized()
    machine: Any = registry.get(tensor.device)
    storage: Any = node.storage
    if prod(node.shape):
        storage = machine.allocate(prod(node.shape) * node.dtype.itemsize)
        machine.copy(storage, node.storage)
    return wrap(holding(common.buffer, node.outputs, node.device, storage, current_site()))


# The other way ------------------------------------------------------------------------------------


def device_of(tensor: Tensor) -> tuple[int, int]:
    """Where a capsule's memory is, in DLPack's numbers; what `emu` has is copied to the host."""
    device = tensor.device
    return (dlpack.CUDA, device.index) if device.kind == "cuda" else (dlpack.CPU, 0)


def capsule_of(
    tensor: Tensor, stream: Any = None, max_version: Any = None, dl_device: Any = None,
    copy: bool | None = None,
) -> Any:  # fmt: skip
    """`Tensor.__dlpack__`."""
    if tensor.requires_grad:
        raise GradientError(
            "__dlpack__", "the tensor requires grad",
            expect="a tensor without history, since other libraries record none",
            actual=made_by(tensor.node), hint="use .detach()",
        )  # fmt: skip
    own = device_of(tensor)
    wanted = own if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
    elsewhere = wanted != own or tensor.device.kind not in ("cpu", "cuda")
    if wanted not in (own, (dlpack.CPU, 0)) or (copy is False and elsewhere):
        raise BufferError(f"memory of {tensor.device} is not shared with DLPack device {wanted}")
    options: dict[str, Any] = {} if max_version is None else {"max_version": max_version}
    if wanted[0] == dlpack.CPU:
        if copy or elsewhere:
            options["copy"] = True  # a capsule of DLPack 1.0 says so
        return dlpack.export(tensor.cpu().numpy(), **options)
    source = _copied(tensor) if copy else tensor
    if copy is False and source.chain:
        raise BufferError("a view on a GPU can only be copied; share the tensor that it views")
    array = _gpu_array(source)
    if stream != -1:
        registry.get(tensor.device).synchronize()
    return dlpack.export(array, own, **options)


def _gpu_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """An array, not to be read, that stands for the value's memory and keeps it."""
    node = tensor.realized()
    check_errors(tensor.device)
    storage: Any = node.storage
    interface = {
        "shape": node.shape, "version": 3, "data": (storage.address, False),
        "typestr": np.dtype(f"u{node.dtype.itemsize}").str if node.dtype is bfloat16
        else node.dtype.numpy.str,
    }  # fmt: skip
    if not prod(node.shape):
        return np.empty(node.shape, node.dtype.numpy)
    return dlpack.over(storage, interface).view(node.dtype.numpy)


def cuda_array_interface(tensor: Tensor) -> dict[str, Any]:
    """`Tensor.__cuda_array_interface__`, version 3."""
    if tensor.device.kind != "cuda":
        raise AttributeError(
            f"__cuda_array_interface__ is for tensors on cuda; this one is on {tensor.device}"
        )
    if tensor.requires_grad:
        raise AttributeError("__cuda_array_interface__ of a tensor that requires grad: .detach()")
    if tensor.dtype is bfloat16:
        raise DTypeError(
            "__cuda_array_interface__", "the interface has no bfloat16", expect="another dtype",
            actual="bfloat16", hint="DLPack has: from_dlpack(x)",
        )  # fmt: skip
    array = _gpu_array(tensor)
    registry.get(tensor.device).synchronize()
    address = array.__array_interface__["data"][0] if array.size else 0
    return {
        "shape": tuple(array.shape), "typestr": array.dtype.str, "data": (address, False),
        "version": 3, "strides": None, "stream": None,
    }  # fmt: skip
