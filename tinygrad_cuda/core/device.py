"""Device: a (kind, index) pair such as ``cuda:1``; interned, so compare with ``is``."""

from __future__ import annotations

import threading
from typing import Any

from tinygrad_cuda.core.errors import DeviceError
from tinygrad_cuda.core.locks import new_lock

KINDS = ("cpu", "cuda", "emu", "meta")


class _Chosen(threading.local):
    """The devices of `with device:` blocks that this thread is in."""

    def __init__(self) -> None:
        self.stack: list[Device] = []


class _Blocks:
    """How many of these blocks are open in all threads: without one, no thread's own are read."""

    open = 0


chosen, blocks = _Chosen(), _Blocks()
_lock = new_lock()
_interned: dict[tuple[str, int], Device] = {}
_named: dict[str, Device] = {}  # by the text that was asked for


class Device:
    """A device where values live and kernels run: ``device("cuda", 1)`` or ``device("cuda:1")``.

    Args:
        type: a text such as ``cpu``, ``cuda`` or ``cuda:1``, a number (of a GPU), or a Device.
        index: the number of the GPU.

    Raises:
        DeviceError: there is no such kind of device.

    Example:
        >>> import tinygrad_cuda as tc
        >>> tc.device("cuda", 1)
        device('cuda:1')
        >>> tc.device("cuda", 1) is tc.device("cuda:1")
        True
    """

    __slots__ = ("kind", "index", "__weakref__")

    kind: str
    index: int

    def __new__(cls, type: Any, index: int | None = None) -> Device:
        return as_device(type if index is None else f"{type}:{index}")

    @property
    def type(self) -> str:
        """PyTorch's name for `kind`."""
        return self.kind

    def __str__(self) -> str:
        return self.kind if self.kind != "cuda" else f"{self.kind}:{self.index}"

    def __repr__(self) -> str:
        return f"device({str(self)!r})"

    def __reduce__(self) -> Any:
        return (as_device, (str(self),))

    def __copy__(self) -> Device:
        return self

    def __deepcopy__(self, memo: Any) -> Device:
        return self

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            try:
                return self is as_device(other)
            except DeviceError:  # such as "auto", which names no device
                return False
        return self is other

    def __enter__(self) -> Device:
        """Inside the block, new Tensors of this thread go to this device."""
        with _lock:
            blocks.open += 1
        chosen.stack.append(self)
        return self

    def __exit__(self, *raised: object) -> None:
        chosen.stack.pop()
        with _lock:
            blocks.open -= 1

    # There is one object for each device.
    __hash__ = object.__hash__


def as_device(value: Any) -> Device:
    """Accepts a Device, ``"cuda"``, ``"cuda:1"`` or an int (a CUDA index).

    Raises:
        DeviceError: the text names no kind of device.
    """
    if type(value) is str and (named := _named.get(value)) is not None:
        return named
    if isinstance(value, Device):
        return value
    if isinstance(value, int):
        value = f"cuda:{value}"
    kind, _, index = str(value).partition(":")
    single = kind != "cuda" and index not in ("", "0")
    if kind not in KINDS or (index and not index.isdigit()) or single:
        raise DeviceError(
            "device",
            "unknown device",
            expect="cpu, emu, meta, cuda or cuda:N",
            actual=repr(value),
            hint="a GPU is 'cuda', the second one 'cuda:1'",
        )
    key = (kind, int(index or 0))
    if key not in _interned:
        made = _interned[key] = object.__new__(Device)
        made.kind, made.index = key
    return _named.setdefault(str(value), _interned[key])


CPU = as_device("cpu")
