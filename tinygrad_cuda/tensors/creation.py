"""Tensors from data and from nothing: tensor, from_numpy, zeros, full, arange, eye, ..."""

from __future__ import annotations

import functools
import math
import sys
import warnings
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from tinygrad_cuda.backend import registry
from tinygrad_cuda.core import dtypes
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import CPU, Device, as_device, chosen
from tinygrad_cuda.core.dtypes import DType, as_dtype, signed_64
from tinygrad_cuda.core.errors import ArgumentError, DTypeError
from tinygrad_cuda.core.shapes import Shape, as_int, as_shape, contiguous_strides
from tinygrad_cuda.engine.capture import capturing, watching
from tinygrad_cuda.engine.cell import Leaf
from tinygrad_cuda.engine.shared import SharedCell
from tinygrad_cuda.graph.node import Node, current_site, holding, mode, site_of
from tinygrad_cuda.graph.ops import common, elementwise, movement
from tinygrad_cuda.tensors.arguments import plain_number
from tinygrad_cuda.tensors.base import TensorBase, arrived, wrap
from tinygrad_cuda.tensors.layout import copied_strides
from tinygrad_cuda.tensors.transfer import to_device

if TYPE_CHECKING:
    from tinygrad_cuda.tensors.tensor import Tensor

__all__ = [
    "arange", "as_tensor", "asarray", "empty", "empty_like", "eye", "from_numpy", "frombuffer",
    "full", "full_like", "get_default_device", "get_default_dtype", "linspace", "logspace", "ones",
    "ones_like", "set_default_device", "set_default_dtype", "tensor", "zeros", "zeros_like",
]  # fmt: skip

DeviceLike = Device | str | int | None
DTypeLike = DType | str | type | None


class _Defaults:
    """What a creation function takes where nothing is said."""

    def __init__(self) -> None:
        self.device: Device | None = None
        self.dtype: DType = dtypes.float32


defaults = _Defaults()


def set_default_device(device: DeviceLike) -> None:
    """New tensors go to `device`; None restores the rule: a usable GPU, else cpu."""
    defaults.device = None if device is None else as_device(device)


def get_default_device() -> Device:
    """Where new tensors go: the first of what is said.

    In this order: a ``with device:`` block, `set_default_device`, TGC_DEVICE, a usable GPU, cpu.
    """
    if chosen.stack:
        return chosen.stack[-1]
    if defaults.device is None:
        if settings.device:
            defaults.device = as_device(settings.device)
        else:
            defaults.device = as_device("cuda") if registry.usable("cuda") else CPU
    return defaults.device


def set_default_dtype(dtype: DTypeLike) -> None:
    """The dtype of new floating tensors made from Python numbers."""
    chosen = as_dtype(dtype)
    if not chosen.is_floating:
        raise DTypeError(
            "set_default_dtype",
            "not a floating dtype",
            expect="a floating dtype",
            actual=chosen.name,
        )
    defaults.dtype = chosen


def get_default_dtype() -> DType:
    """The dtype of new floating tensors made from Python numbers."""
    return defaults.dtype


def resolve_device(device: DeviceLike) -> Device:
    return get_default_device() if device is None else as_device(device)


def as_leaf(tensor: Tensor, requires_grad: bool, leaf: Leaf | None = None) -> Tensor:
    """The Tensor itself, or a handle on its cell where gradients arrive."""
    if not requires_grad:
        return tensor
    if tensor.dtype.category < 2:
        raise DTypeError(
            "requires_grad",
            "only floating and complex tensors can require grad",
            expect="float16, bfloat16, float32, float64, complex64 or complex128",
            actual=tensor.dtype.name,
        )
    leaf = leaf or Leaf()
    made = tensor.with_step((common.variable, leaf))
    leaf.owner = ref(made)
    return made


def buffer_node(array: np.ndarray[Any, Any], device: Device) -> Node:
    """A realized node with the value of an array."""
    outputs = ((array.shape, dtypes.from_numpy(array.dtype)),)
    storage = registry.get(device).from_host(array)
    if watching.on and (capture := capturing()) is not None:
        capture.constant(storage)
    return holding(common.buffer, outputs, device, storage, current_site())


def _converted(array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    return np.asarray(elementwise.cast_array(array, dtype))


def _as_array(data: Any, dtype: DType | None) -> np.ndarray[Any, Any]:
    if isinstance(data, np.ndarray | np.generic):
        array = np.asarray(data)
        return array if dtype is None else _converted(array, dtype)
    if dtype is not None and dtype.is_complex:
        return np.array(_nested(data)).astype(dtype.numpy)
    if dtype is not None and not (dtype.category < 2):
        with np.errstate(over="ignore"):  # beyond the range is infinity
            return np.array(_nested(data), dtype=np.float64).astype(dtype.numpy)
    array = np.array(_nested(data))
    if dtype is not None and (
        array.dtype.kind == "O" or (dtype is dtypes.uint64 and array.dtype.kind == "f")
    ):
        array = _whole(data, dtype)
    if dtype is not None:
        if array.size and dtype.category == 1 and array.dtype.kind in "iuf":
            for extreme in (array.min(), array.max()):
                dtypes.number_of("tensor", extreme.item(), dtype)
        return _converted(array, dtype)
    kinds: set[Any] = set()
    _collect_kinds(data, kinds)
    if array.dtype.kind in "Ouf" and kinds and kinds <= {int, bool}:
        array = _whole(data, dtypes.int64)  # one is beyond them
    if any(isinstance(kind, DType) for kind in kinds):
        own = [kind if isinstance(kind, DType) else _of_python(kind) for kind in kinds]
        return _converted(array, functools.reduce(dtypes.promote, own))
    if array.dtype.kind == "c":
        return array.astype(defaults.dtype.to_complex().numpy)
    if array.dtype == np.float64 or array.size == 0:
        return array.astype(defaults.dtype.numpy)
    if array.dtype.kind in "iu":
        return array.astype(np.int64)
    return array


def _whole(data: Any, dtype: DType) -> np.ndarray[Any, Any]:
    """Lists of integers, of which NumPy makes floats or objects where some need over 63 bits."""
    objects = np.array(_nested(data), dtype=object)
    for value in objects.flat:
        if not isinstance(value, int | float | np.number | np.bool_):
            raise DTypeError("tensor", "not a number", expect="numbers", actual=repr(value))
    numbers = [dtypes.number_of("tensor", number, dtype) for number in objects.flat]
    return np.array(numbers, dtype.numpy).reshape(objects.shape)


def _collect_kinds(data: Any, collected: set[Any]) -> None:
    """Adds the types of Python numbers, and the dtypes of NumPy's values and Tensors."""
    if isinstance(data, list | tuple):
        kinds = set(map(type, data))
        collected |= kinds & _PYTHON_NUMBERS
        if kinds - _PYTHON_NUMBERS:
            for element in data:
                if type(element) not in _PYTHON_NUMBERS:
                    _collect_kinds(element, collected)
    elif isinstance(data, TensorBase):
        collected.add(data.dtype)
    elif isinstance(data, np.ndarray | np.generic):
        collected.add(dtypes.from_numpy(data.dtype))
    else:
        collected.add(type(data))


_PYTHON_NUMBERS = {bool, int, float, complex}


def _of_python(kind: Any) -> DType:
    own = {bool: dtypes.bool_, int: dtypes.int64, complex: defaults.dtype.to_complex()}
    return own.get(kind, defaults.dtype)


def _uneven(data: Any, name: str) -> str | None:
    """The first two elements of a nested list whose lengths differ."""
    if not isinstance(data, list | tuple):
        return None
    shapes = [_first_shape(element) for element in data]
    for k, shape in enumerate(shapes):
        if shape != shapes[0]:
            return f"{name}[0]: shape {shapes[0]}  {name}[{k}]: shape {shape}"
    texts = (_uneven(element, f"{name}[{k}]") for k, element in enumerate(data))
    return next((text for text in texts if text), None)


def _first_shape(data: Any) -> tuple[int, ...]:
    if isinstance(data, list | tuple):
        return (len(data), *(_first_shape(data[0]) if len(data) else ()))
    return tuple(getattr(data, "shape", ()))


def _nested(data: Any) -> Any:
    """Lists of numbers and Tensors as lists of numbers and arrays."""
    if isinstance(data, TensorBase):
        return data.array()
    if isinstance(data, list | tuple):
        return [_nested(element) for element in data]
    return data


def tensor(
    data: Any,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """A Tensor with a copy of `data`.

    Args:
        data: a number, nested lists of numbers, a NumPy array or a Tensor.
        dtype: defaults to the data's own; float32 for Python floats, int64 for ints.
        device: defaults to `get_default_device`.
        requires_grad: make it a leaf that collects gradients.

    Raises:
        DTypeError: the data has a dtype without counterpart (text, objects).
        ArgumentError: a number does not fit the dtype, or lists are ragged.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.tensor([[1.0, 2.0], [3.0, 4.0]], device="cpu").sum().item()
        10.0
    """
    wanted = None if dtype is None else as_dtype(dtype)
    if isinstance(data, TensorBase):
        array = data.array()
        target = data.device if device is None else as_device(device)
        array = array if wanted is None else _converted(array, wanted)
        return as_leaf(wrap(buffer_node(array, target)), requires_grad)
    try:
        array = _as_array(data, wanted)
    except ArgumentError:  # which is a ValueError: of a number that does not fit
        raise
    except ValueError as error:
        raise ArgumentError(
            "tensor",
            "the nested lists are ragged",
            expect="lists of equal length at each depth",
            actual=_uneven(data, "data") or str(error),
            hint="pad the shorter ones, or make one tensor for each",
        ) from error
    except TypeError as error:
        kinds: set[Any] = set()
        _collect_kinds(data, kinds)
        if complex not in kinds:
            raise
        raise DTypeError(
            "tensor", "complex numbers do not fit the dtype", expect="a complex dtype",
            actual=str(dtype), hint="leave dtype out, or take the real parts",
        ) from error  # fmt: skip
    return as_leaf(wrap(buffer_node(array, resolve_device(device))), requires_grad)


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A cpu Tensor that shares memory with a NumPy array: writes to one show in the other.

    A read-only array is shared as long as the Tensor is not written, with a warning.

    Raises:
        ArgumentError: it is no array, or runs backwards in memory.
    """
    if not isinstance(array, np.ndarray):
        raise ArgumentError(
            "from_numpy", "cannot share this memory", expect="a NumPy array",
            actual=type(array).__name__, hint="tc.tensor(data) copies",
        )  # fmt: skip
    return _sharing("from_numpy", array)


def _sharing(op: str, array: np.ndarray[Any, Any]) -> Tensor:
    """`from_memory`, with a warning at the caller's caller if it is read-only."""
    if not array.flags.writeable:
        warnings.warn(
            "the NumPy array is read-only: a write to the Tensor goes to a copy", stacklevel=3
        )
    return from_memory(op, array)


def from_memory(op: str, array: np.ndarray[Any, Any]) -> Tensor:
    """A cpu Tensor that shares memory with an array, as `from_numpy` gives it."""
    if not _has_element_strides(array):
        raise ArgumentError(
            op, "cannot share this memory", expect="strides of whole elements, >= 0",
            actual=f"strides {array.strides} of {array.itemsize} bytes each",
            hint="array.copy()",
        )  # fmt: skip
    strides = tuple(stride // array.itemsize for stride in array.strides)
    cell = SharedCell(array)
    result = wrap(cell.node)
    result.cell = cell
    if strides != contiguous_strides(array.shape):
        result._strides = strides
    return result


def _has_element_strides(array: np.ndarray[Any, Any]) -> bool:
    """Whether its strides are such as a Tensor's can be: whole elements, not backwards."""
    return not any(stride < 0 or stride % array.itemsize for stride in array.strides)


def _can_share(data: Any, dtype: DTypeLike, device: DeviceLike) -> bool:
    """Whether a Tensor of this dtype and device may have the memory of the data, an array."""
    if not isinstance(data, np.ndarray) or resolve_device(device) is not CPU:
        return False
    fits = dtypes.is_known(data.dtype) if dtype is None else data.dtype == as_dtype(dtype).numpy
    return fits and _has_element_strides(data)


def as_tensor(data: Any, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """A Tensor of the data, without a copy where dtype and device already fit.

    Then it is a Tensor as it is, and shares the memory of a NumPy array, as in `from_numpy`.

    Example:
        >>> import numpy as np, tinygrad_cuda as tc
        >>> array = np.zeros(2)
        >>> x = tc.as_tensor(array, device="cpu")
        >>> array[0] = 1
        >>> x.tolist()
        [1.0, 0.0]
    """
    if isinstance(data, TensorBase):
        result: Any = data
        if device is not None:
            node, target = data.cell.node, as_device(device)
            if node.device is not target:
                site = mode.now.site or site_of(sys._getframe(1))
                plain = node.device is CPU and not (data.chain or node.requires_grad)
                if plain and node.storage is not None and not (watching.on or settings.eager):
                    storage = registry.get(target).from_host(node.storage)
                    result = arrived(node.outputs, target, storage, site)
                else:
                    result = wrap(to_device(data.node, target, site))
        if dtype is not None:
            result = result.to(dtype)
        return result  # type: ignore[no-any-return]
    if _can_share(data, dtype, device):
        return _sharing("as_tensor", data)
    return tensor(data, dtype, device)


def asarray(
    obj: Any, *, dtype: DTypeLike = None, device: DeviceLike = None, copy: bool | None = None,
    requires_grad: bool | None = None,
) -> Tensor:  # fmt: skip
    """A Tensor of the data: `as_tensor` with a say on copies and gradients.

    Args:
        obj: a Tensor, an array, a number or nested lists.
        dtype, device: of the result; those of `obj` if left out.
        copy: True always copies; False refuses to.
        requires_grad: whether gradients are collected; as for `obj` if left out. False detaches.

    Raises:
        ArgumentError: `copy` is False, and dtype or device are others, or it is no array.

    Example:
        >>> import tinygrad_cuda as tc
        >>> a = tc.zeros(2, device="cpu")
        >>> b = tc.asarray(a, copy=True)
        >>> b += 1
        >>> a.tolist(), b.tolist()
        ([0.0, 0.0], [1.0, 1.0])
    """
    if isinstance(obj, TensorBase):
        result = as_tensor(obj, dtype, device)
        shares = result is obj
    else:  # as in PyTorch an array without dimensions is a number
        shares = not copy and _can_share(obj, dtype, device) and obj.ndim > 0
        result = as_tensor(obj, dtype, device) if shares else tensor(obj, dtype, device)
    if copy is False and not shares:
        raise ArgumentError(
            "asarray", "dtype or device differ, which takes a copy", expect="copy=None",
            actual="copy=False",
        )  # fmt: skip
    if result is obj and copy:
        result = wrap(result.node)
    if requires_grad is None or requires_grad is result.requires_grad:
        return result
    return as_leaf(result.detach(), requires_grad)


def frombuffer(
    buffer: Any, *, dtype: DTypeLike, count: int = -1, offset: int = 0, requires_grad: bool = False
) -> Tensor:
    """A line of the numbers in a buffer, as in `from_numpy`: on the host, in the same memory.

    Args:
        buffer: bytes, a bytearray, an array or another object with a buffer.
        dtype: how its bytes are read.
        count: how many numbers; all of them if negative.
        offset: how many bytes come before them.
        requires_grad: whether gradients are collected.

    Raises:
        ArgumentError: the buffer does not hold that many.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.frombuffer(bytearray([1, 0, 2, 0]), dtype=tc.int16, offset=2).tolist()
        [2]
    """
    wanted = as_dtype(dtype)
    try:
        array = np.frombuffer(buffer, wanted.numpy, count, offset)
    except ValueError as error:
        raise ArgumentError(
            "frombuffer", "the buffer does not fit", expect=f"whole numbers of {wanted.name}",
            actual=str(error),
        ) from error  # fmt: skip
    return as_leaf(from_numpy(array) if array.flags.writeable else tensor(array), requires_grad)


def full(
    size: Any,
    fill_value: complex,
    *,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """A Tensor of shape `size` with every element equal to `fill_value`."""
    fill_value = plain_number("full", "fill_value", fill_value)
    shape = as_shape("full", size if isinstance(size, tuple | list) else (size,))
    wanted = dtypes.scalar_dtype(fill_value, defaults.dtype) if dtype is None else as_dtype(dtype)
    value = dtypes.number_of("full", fill_value, wanted)
    node = common.number(value, shape, wanted, resolve_device(device))
    return as_leaf(wrap(node), requires_grad)


def _number(value: Any) -> Any:
    """A 0-d Tensor or NumPy scalar as a Python number."""
    if isinstance(value, TensorBase):
        return value.array().item()
    return value.item() if isinstance(value, np.generic) else value


def _filled(op: str, value: int, size: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
    dtype = options.pop("dtype", None)
    if "size" in options:
        size = (options.pop("size"),)
    return full(as_shape(op, size), value, dtype=dtype or defaults.dtype, **options)


def zeros(*size: Any, **options: Any) -> Tensor:
    """A Tensor of zeros; keywords: dtype, device, requires_grad."""
    return _filled("zeros", 0, size, options)


def ones(*size: Any, **options: Any) -> Tensor:
    """A Tensor of ones; keywords: dtype, device, requires_grad."""
    return _filled("ones", 1, size, options)


def empty(*size: Any, **options: Any) -> Tensor:
    """A Tensor whose values are unspecified; here they are zeros, so that runs repeat."""
    return _filled("empty", 0, size, options)


def _like(input: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    if options.get("dtype") is None:
        options["dtype"] = input.dtype
    if options.get("device") is None:
        options["device"] = input.device
    return options


def _filled_like(input: Tensor, value: Any, options: dict[str, Any]) -> Tensor:
    """`full` with what `input` has."""
    return copied_strides(full(input.node.shape, value, **_like(input, options)), input)


def full_like(input: Tensor, fill_value: bool | int | float, **options: Any) -> Tensor:
    """`full` with the shape, dtype, device and order of dimensions of `input`."""
    return _filled_like(input, fill_value, options)


def zeros_like(input: Tensor, **options: Any) -> Tensor:
    """`zeros` with the shape, dtype and device of `input`."""
    return _filled_like(input, 0, options)


def ones_like(input: Tensor, **options: Any) -> Tensor:
    """`ones` with the shape, dtype and device of `input`."""
    return _filled_like(input, 1, options)


def empty_like(input: Tensor, **options: Any) -> Tensor:
    """`empty` with the shape, dtype and device of `input`."""
    return _filled_like(input, 0, options)


def arange(
    start: int | float,
    end: int | float | None = None,
    step: int | float = 1,
    *,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """``start, start + step, ...`` below `end`; one argument counts from 0.

    Raises:
        ArgumentError: step is zero or leads away from `end`.
    """
    if end is None:
        start, end = 0, start
    start, end = plain_number("arange", "start", start), plain_number("arange", "end", end)
    step = plain_number("arange", "step", step)
    if dtype is not None and as_dtype(dtype) is dtypes.int64:
        start, end, step = int(start), int(end), int(step)
    if step == 0 or (end - start) / step < 0:
        raise ArgumentError(
            "arange",
            "the step does not lead from start to end",
            expect="a step other than 0, with the sign of end - start",
            actual=f"start {start}, end {end}, step {step}",
            hint="use step=-1 to count down" if step > 0 else None,
        )
    length = math.ceil((end - start) / step)
    if dtype is not None and as_dtype(dtype).is_integer:
        # As in PyTorch, the length is that of the real numbers, the elements count in whole ones.
        start, step = signed_64(int(start)), signed_64(int(step))
    if dtype is None:
        whole = all(isinstance(value, int) for value in (start, end, step))
        chosen = dtypes.int64 if whole else defaults.dtype
    else:
        chosen = as_dtype(dtype)
        if chosen.is_complex:
            raise DTypeError(
                "arange", "complex numbers have no order", expect="a real dtype",
                actual=chosen.name, hint="tc.arange(n).to(tc.complex64)",
            )  # fmt: skip
    node = common.arange.leaf((length,), chosen, resolve_device(device), start=start, step=step)
    return as_leaf(wrap(node), requires_grad)


def linspace(
    start: float,
    end: float,
    steps: int,
    *,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """`steps` evenly spaced values from `start` to `end`, both included."""
    start, end = _number(start), _number(end)
    if isinstance(start, complex) or isinstance(end, complex):
        raise DTypeError(
            "linspace", "an end is complex", expect="real numbers", actual=f"{start} and {end}",
            hint="start + (end - start) * tc.linspace(0, 1, steps)",
        )  # fmt: skip
    steps = as_int("linspace", steps, "steps")
    wanted = defaults.dtype if dtype is None else as_dtype(dtype)
    if wanted.is_integer:
        start, end = int(start), int(end)
    computed = wanted if wanted.is_floating else dtypes.float64
    if steps == 1:
        return full((1,), start, dtype=wanted, device=device, requires_grad=requires_grad)
    step = (end - start) / (steps - 1) if steps > 1 else 0.0
    # From both ends towards the middle, so that the last value is exactly `end`.
    target = resolve_device(device)
    low = common.arange.leaf((steps,), computed, target, start=start, step=step)
    high = common.arange.leaf((steps,), computed, target, start=end - step * (steps - 1), step=step)
    position = common.arange.leaf((steps,), dtypes.int64, target, start=0, step=1)
    middle = common.full_like(position, steps // 2)
    node = elementwise.where(elementwise.lt(position, middle), low, high)
    if wanted is not computed:
        node = elementwise.cast(node, dtype=wanted)
    return as_leaf(wrap(node), requires_grad)


def logspace(
    start: float,
    end: float,
    steps: int,
    base: float = 10.0,
    *,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """`base` to the powers `linspace(start, end, steps)`."""
    wanted = defaults.dtype if dtype is None else as_dtype(dtype)
    computed = wanted if wanted.is_floating else dtypes.float64
    start, end = _number(start), _number(end)
    if wanted.is_integer:
        start, end = int(start), int(end)
    powers = linspace(start, end, steps, dtype=computed, device=device).node
    node = elementwise.pow(common.full_like(powers, _number(base)), powers)
    if wanted is not computed:
        node = elementwise.cast(node, dtype=wanted)
    return as_leaf(wrap(node), requires_grad)


def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """An n by m matrix with ones on the diagonal."""
    n = as_int("eye", n, "n")
    columns = n if m is None else as_int("eye", m, "m")
    target = resolve_device(device)
    shape: Shape = (n, columns)
    row = common.arange.leaf((n,), dtypes.int64, target, start=0, step=1)
    column = common.arange.leaf((columns,), dtypes.int64, target, start=0, step=1)
    rows = movement.expand(movement.reshape(row, shape=(n, 1)), shape=shape)
    both = elementwise.eq(
        rows, movement.expand(movement.reshape(column, shape=(1, columns)), shape=shape)
    )
    node = elementwise.cast(both, dtype=defaults.dtype if dtype is None else as_dtype(dtype))
    return as_leaf(wrap(node), requires_grad)
