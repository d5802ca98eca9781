"""Memory of a GPU shared by DLPack and CUDA's array interface."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.core import dlpack

PRETENDED = {
    "test_capsules_share_and_keep_memory", "test_exported_values_stay", "test_interface",
    "test_memory_of_another_library_is_not_written", "test_views_and_copies",
}  # fmt: skip


def address(x: tc.Tensor) -> int:
    storage: Any = x.realized().storage
    return int(storage.address)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_capsules_share_and_keep_memory(some_gpu: str, dtype: str) -> None:
    """From Tensor to Tensor: one address, which stays while either has it."""
    x = (tc.arange(6, device=some_gpu) % 2).to(getattr(tc, dtype)).reshape(2, 3)
    assert x.__dlpack_device__() == (2, 0)
    taken = dlpack.imported(x.__dlpack__(max_version=(1, 0)))
    assert taken.device == (2, 0) and taken.dtype.name == dtype
    y = tc.from_dlpack(x)
    assert y.device == x.device and address(y) == address(x)
    del x, taken
    assert [tc.zeros(2, 3, device=some_gpu).tolist() for _ in range(3)]
    assert y.float().tolist() == [[0, 1, 0], [1, 0, 1]]


def test_exported_values_stay(some_gpu: str) -> None:
    """A write here makes memory of its own: who took the value still has it."""
    x = tc.zeros(4, device=some_gpu) + 1
    y = tc.from_dlpack(x)
    for _ in range(4):
        x += 1
        assert (x + y).tolist() and (y * 2).tolist() == [2.0] * 4
    y += 5
    assert x.tolist() == [5.0] * 4 and y.tolist() == [6.0] * 4


def test_memory_of_another_library_is_not_written(some_gpu: str) -> None:
    """Each write makes memory of its own, of a Tensor that nobody here shares, too."""
    x = tc.zeros(4, device=some_gpu) + 1
    taken = [tc.from_dlpack(x) for _ in range(6)]
    assert x.tolist() == [1.0] * 4
    for count, y in enumerate(taken):
        y += 5
        assert y.tolist() == [6.0] * 4
        assert x.tolist() == [1.0] * 4
        assert all(z.tolist() == [1.0] * 4 for z in taken[count + 1 :])


def test_views_and_copies(some_gpu: str) -> None:
    x = tc.arange(6.0, device=some_gpu).reshape(2, 3) * 1
    assert tc.from_dlpack(x.t()).tolist() == [[0, 3], [1, 4], [2, 5]]
    with pytest.raises(BufferError, match="a view"):
        x.t().__dlpack__(copy=False)
    copy = tc.from_dlpack(x, copy=True)
    assert address(copy) != address(x) and copy.tolist() == x.tolist()
    there = tc.from_dlpack(x, device="cpu")
    assert there.device == "cpu" and there.tolist() == x.tolist()
    with pytest.raises(tc.ArgumentError, match="can only be copied"):
        tc.from_dlpack(x, device="cpu", copy=False)
    assert np.from_dlpack(dlpack._Taken(x.__dlpack__(dl_device=(1, 0)))).tolist() == x.tolist()


def test_interface(some_gpu: str) -> None:
    x = tc.arange(6, device=some_gpu).reshape(2, 3) * 2
    interface = x.__cuda_array_interface__
    assert interface["version"] == 3 and interface["shape"] == (2, 3)
    assert interface["typestr"] == "<i8" and interface["data"] == (address(x), False)
    assert not hasattr(tc.ones(1, device="cpu"), "__cuda_array_interface__")
    with pytest.raises(tc.DTypeError, match="no bfloat16"):
        assert x.bfloat16().__cuda_array_interface__


def test_torch_and_cupy_share_memory(cuda_device: str) -> None:
    """On a GPU alone: each library's pointer is the Tensor's."""
    x = tc.arange(6.0, device=cuda_device) + 1
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch without CUDA")
    theirs = torch.from_dlpack(x)
    assert theirs.data_ptr() == address(x) and theirs.tolist() == x.tolist()
    ours = tc.from_dlpack(theirs * 2)
    assert ours.tolist() == [2, 4, 6, 8, 10, 12]
    assert torch.as_tensor(x, device="cuda").data_ptr() == address(x)
    cupy = pytest.importorskip("cupy")
    assert cupy.from_dlpack(x).data.ptr == address(x) == cupy.asarray(x).data.ptr
    assert tc.from_dlpack(cupy.arange(3)).tolist() == [0, 1, 2]


JAX = """
import jax, tinygrad_cuda as tc
x = tc.arange(6.0, device="cuda") + 1
interface = x.__cuda_array_interface__
shared = jax.dlpack.from_dlpack(x)
assert shared.unsafe_buffer_pointer() == interface["data"][0]
assert shared.tolist() == x.tolist() == tc.from_dlpack(shared).tolist()
"""


def test_jax_shares_memory(cuda_device: str) -> None:
    """In a process of its own: with JAX's threads beside it, a later fork in this one warns."""
    if importlib.util.find_spec("jax") is None:
        pytest.skip("JAX is not installed")
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    child = subprocess.run(
        [sys.executable, "-c", JAX], capture_output=True, text=True, env=environment, check=False
    )
    assert child.returncode == 0, child.stderr
