"""Moving values: to another device, to another dtype, to the host."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from tinygrad_cuda.backend import registry
from tinygrad_cuda.core import dtypes, layouts
from tinygrad_cuda.core.device import CPU, KINDS, Device, as_device
from tinygrad_cuda.core.dtypes import DType, as_dtype
from tinygrad_cuda.core.errors import ArgumentError, RawSite
from tinygrad_cuda.engine.capture import capturing, watching
from tinygrad_cuda.engine.realize import check_errors, realize
from tinygrad_cuda.graph.node import Node, current_site, holding, mode, node_made
from tinygrad_cuda.graph.ops import common, elementwise
from tinygrad_cuda.tensors.base import TensorBase, wrap
from tinygrad_cuda.tensors.layout import another, copied_strides, stored_in_format, suggests

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor


def to_device(node: Node, device: Device, site: RawSite | None = None) -> Node:
    """The value on another device; realizes the source. The gradient goes back to its device.

    Args:
        site: the user's line, or None.
    """
    if node.device is device:
        return node
    if watching.on and (capture := capturing()) is not None:
        capture.refuse(node)
    if node.storage is None:
        realize(node.device, (node,))
    if node.device is CPU:
        array = node.storage  # itself, since it may be pinned
    else:
        array = registry.get(node.device).to_host(node.storage, node.shape, node.dtype)
        check_errors(node.device)
    storage = registry.get(device).from_host(array)
    moved = holding(common.buffer, node.outputs, device, storage, site or current_site())
    if not (node.requires_grad and mode.now.gradients):
        return moved
    home = node.device
    # Sources on two devices: made by hand, since an op's own check would refuse them.
    return node_made(
        common.custom,
        (moved, node),
        {"results": 1, "function": lambda g: (to_device(g, home),)},
        moved.outputs,
        device,
        True,
        current_site(),
    )


def to(input: Tensor, *targets: Any, device: Any = None, dtype: Any = None, **options: Any) -> Any:
    """The Tensor on another device, in another dtype, or both; itself if nothing changes.

    Args:
        targets: a device, a dtype or another Tensor, in any order; then `non_blocking` and `copy`.
        device, dtype: the same by name.
        options: `non_blocking`, `copy` and `memory_format`, as in PyTorch.

    Raises:
        DeviceError: the device cannot be used here.
    """
    flags = []
    for target in targets:
        if isinstance(target, builtins.bool):
            flags.append(target)
        elif isinstance(target, TensorBase):
            device, dtype = target.device, target.dtype
        elif _names_device(target):
            device = target
        else:
            dtype = target
    options.update(zip(("non_blocking", "copy"), flags))
    copy = builtins.bool(options.pop("copy", False))
    options.pop("non_blocking", None)
    format = options.pop("memory_format", layouts.preserve_format)
    if options:
        raise ArgumentError(
            "to",
            "unknown argument",
            expect="device, dtype, non_blocking, copy, memory_format",
            actual=", ".join(options),
        )
    node = result = input.node
    if dtype is not None and result.dtype is not as_dtype(dtype):
        result = elementwise.cast(result, dtype=as_dtype(dtype))
    if device is not None:
        result = to_device(result, as_device(device))
    if result is node and not copy and suggests(input, format):
        return input
    moved = copied_strides(wrap(another(result) if result is node else result), input)
    return stored_in_format("to", moved, format)


def pin_memory(input: Tensor, device: Any = None) -> Any:
    """A copy in page-locked memory of the host, which a GPU reads where it is.

    ``x.pin_memory().to("cuda")`` needs no copy by the host: the GPU fetches the values when they
    are first used. The copy is no part of the graph: no gradient goes through it.

    Args:
        input: on ``cpu``.
        device: whose GPU; ``cuda`` if left out.

    Raises:
        ArgumentError: it is on another device.
        DeviceError: there is no usable GPU.
    """
    if input.device is not CPU:
        raise ArgumentError(
            "pin_memory",
            "only tensors on cpu can be pinned",
            expect="a tensor on cpu",
            actual=f"a tensor on {input.device}",
        )
    backend: Any = registry.get(as_device("cuda" if device is None else device))
    node = input.detach().realized()
    if backend.pinned.address_of(node.storage) is not None:
        return input
    pinned = common.buffer.leaf(node.shape, node.dtype, CPU)
    pinned.storage = backend.pinned.copy_of(node.storage)
    return wrap(pinned)


def is_pinned(input: Tensor, device: Any = None) -> builtins.bool:
    """Whether its values are in page-locked memory, as `pin_memory` puts them."""
    if input.device is not CPU or not registry.usable("cuda"):
        return False
    backend: Any = registry.get(as_device("cuda" if device is None else device))
    return backend.pinned.address_of(input.detach().realized().storage) is not None


def _names_device(target: Any) -> builtins.bool:
    """Whether what `to` was given is a device, rather than a dtype."""
    return type(target) in (Device, builtins.int) or (
        isinstance(target, str) and target.partition(":")[0] in KINDS
    )


def cpu(input: Tensor) -> Any:
    """The Tensor on the CPU."""
    return to(input, CPU)


def cuda(input: Tensor, device: Any = None) -> Any:
    """The Tensor on a GPU.

    Raises:
        DeviceError: there is no usable GPU; the text says why.
    """
    return to(input, "cuda" if device is None else device)


def _caster(name: str, dtype: DType) -> Any:
    def function(input: Tensor) -> Any:
        return to(input, dtype=dtype)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The Tensor as {dtype.name}."
    return function


float = _caster("float", dtypes.float32)
double = _caster("double", dtypes.float64)
half = _caster("half", dtypes.float16)
bfloat16 = _caster("bfloat16", dtypes.bfloat16)
int = _caster("int", dtypes.int32)
long = _caster("long", dtypes.int64)
short = _caster("short", dtypes.int16)
char = _caster("char", dtypes.int8)
byte = _caster("byte", dtypes.uint8)
bool = _caster("bool", dtypes.bool_)
