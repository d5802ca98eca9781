"""DLPack with NumPy and torch on the host: one memory, both ways, and what is refused."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.core import dlpack

pytestmark = pytest.mark.usefixtures("on_cpu")
DTYPES = [
    "float32", "float64", "float16", "int8", "uint8", "int16", "int32", "int64", "bool",
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 4)])
def test_numpy_both_ways(dtype: str, shape: tuple[int, ...]) -> None:
    x = tc.ones(shape, dtype=getattr(tc, dtype))
    array = np.from_dlpack(x)
    assert array.shape == shape and array.dtype == x.dtype.numpy
    again = tc.from_dlpack(array)
    assert again.dtype is x.dtype and again.shape == shape
    if array.size:
        assert array.ctypes.data == x.data_ptr() == again.data_ptr()
        array[...] = 0
        assert not x.any() and not again.any()
        again.fill_(1)
        assert array.all() and x.all()


@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
def test_torch_both_ways(dtype: str) -> None:
    """Pointers are equal and writes show on either side, whoever made the memory."""
    torch = pytest.importorskip("torch")
    theirs = torch.arange(6).to(getattr(torch, dtype)).view(2, 3)
    ours = tc.from_dlpack(theirs)
    assert ours.data_ptr() == theirs.data_ptr() and ours.dtype.name == dtype
    back = torch.from_dlpack(ours)
    assert back.data_ptr() == theirs.data_ptr() and back.dtype is theirs.dtype
    back[0, 0], theirs[1, 1] = 1, 0
    assert ours.tolist() == theirs.tolist()
    ours[1, 2] = 1
    assert theirs[1, 2].item() == 1
    assert tc.from_dlpack(theirs.t()).stride() == (1, 3)
    assert tc.from_dlpack(theirs[:, 1]).tolist() == theirs[:, 1].tolist()


def test_other_functions_take_tensors() -> None:
    torch = pytest.importorskip("torch")
    x = tc.arange(4.0) * 2
    for taken in (torch.tensor(x), torch.as_tensor(x), torch.from_dlpack(x), np.asarray(x)):
        assert taken.tolist() == [0.0, 2.0, 4.0, 6.0]
    capsule = torch.utils.dlpack.to_dlpack(torch.ones(2))
    assert tc.from_dlpack(capsule).tolist() == [1.0, 1.0]
    with pytest.raises(tc.ArgumentError, match="cannot share"):
        tc.from_dlpack(capsule)  # whose tensor is taken out
    assert torch.utils.dlpack.from_dlpack(x.__dlpack__()).tolist() == x.tolist()


def test_pending_values_are_computed() -> None:
    x = tc.ones(3).exp().log() * 2
    np.testing.assert_allclose(np.from_dlpack(x), [2.0] * 3, rtol=1e-6)


def test_others_with_the_value_keep_theirs() -> None:
    x = tc.zeros(3)
    clone, more = x.clone(), x + 1
    np.from_dlpack(x)[:] = 7
    assert clone.tolist() == [0.0] * 3 and more.tolist() == [1.0] * 3 and x.tolist() == [7.0] * 3


def test_steps_write_into_exported_memory() -> None:
    """As in PyTorch: an optimizer's update goes to the memory that was handed out."""
    weight = tc.nn.Parameter(tc.ones(2))
    array = np.from_dlpack(weight.detach())
    optimizer = tc.optim.SGD([weight], 0.5)
    for count in range(1, 4):
        optimizer.zero_grad()
        (weight * 2).sum().backward()
        optimizer.step()
        assert array.tolist() == [1.0 - count] * 2 == weight.tolist()


def test_memory_lives_as_long_as_either() -> None:
    array = np.arange(1000.0)
    x = tc.from_dlpack(array)
    del array
    gc.collect()
    assert x.sum().item() == 499500
    back = np.from_dlpack(x)
    del x
    gc.collect()
    assert back.sum() == 499500


def test_read_only_memory_is_shared_until_a_write() -> None:
    array = np.arange(3.0)
    array.flags.writeable = False
    x = tc.from_dlpack(array)
    assert x.data_ptr() == array.ctypes.data
    x += 1
    assert array.tolist() == [0.0, 1.0, 2.0] and x.tolist() == [1.0, 2.0, 3.0]


class Producer:
    """An array of another library, of an older DLPack or with a capsule of our own."""

    def __init__(self, array: Any, capsule: Any = None) -> None:
        self.array, self.capsule = array, capsule

    def __dlpack__(self, *, stream: Any = None) -> Any:
        return self.capsule or self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_older_producers() -> None:
    """Capsules without a version may be written to, as PyTorch does."""
    array = np.zeros(3)
    x = tc.from_dlpack(Producer(array))
    x[1] = 4
    assert array.tolist() == [0.0, 4.0, 0.0] and x.data_ptr() == array.ctypes.data


def test_versions_copies_and_devices() -> None:
    x = tc.arange(3.0)
    for options, versioned in (({}, False), ({"max_version": (1, 1)}, True)):
        _, whole = dlpack._parts(x.__dlpack__(**options))
        assert (whole is not None) is versioned
    _, whole = dlpack._parts(x.__dlpack__(max_version=(1, 0), copy=True))
    assert whole is not None and whole.flags & 2
    copy = np.from_dlpack(x, copy=True)
    copy[0] = 9
    assert x.tolist() == [0.0, 1.0, 2.0] and x.__dlpack_device__() == (1, 0)
    copied = tc.from_dlpack(copy, copy=True)
    copied[0] = 1
    assert copy[0] == 9
    assert tc.from_dlpack(copy, device="meta").is_meta
    for options in ({"dl_device": (2, 0)}, {"dl_device": (7, 0), "copy": True}):
        with pytest.raises(BufferError, match="not shared"):
            x.__dlpack__(**options)
    assert np.from_dlpack(x, device="cpu", copy=False).tolist() == x.tolist()


def test_what_is_refused() -> None:
    cases: list[tuple[Any, str]] = [
        (3, "int"), (Producer(None, "capsule"), "cannot share"),
        (np.ones(2, np.longdouble), "IEEE"), (np.arange(3)[::-1], "strides"),
    ]  # fmt: skip
    for value, text in cases:
        with pytest.raises((tc.ArgumentError, tc.DTypeError), match=text):
            tc.from_dlpack(value)
    with pytest.raises(tc.ArgumentError, match="can only be copied"):
        tc.from_dlpack(np.ones(2), device="meta", copy=False)
    with pytest.raises(tc.GradientError, match=r"detach\(\)"):
        tc.ones(2, requires_grad=True).__dlpack__()
    assert not hasattr(tc.ones(2), "__cuda_array_interface__")
    with pytest.raises(ValueError, match="only by a copy"):
        np.asarray(tc.ones(2), dtype=np.int8, copy=False)


def test_emulated_memory_is_copied() -> None:
    x = tc.arange(3.0, device="emu")
    assert np.from_dlpack(x).tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(BufferError):
        x.__dlpack__(copy=False)
