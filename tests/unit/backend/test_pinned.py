"""Pinned arrays are known by identity for as long as they live; a card of ctypes stands in."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.backend.cuda.transfer.pinned import Pinned


class Card:
    """Memory of the host in place of pinned memory, and what was given back."""

    stream = 7

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.calls: list[tuple[str, int]] = []

    def enter(self) -> None:
        """There is one card."""

    def call(self, name: str, nbytes: int, flags: int) -> int:
        assert name == "cuMemHostAlloc"
        room = ctypes.create_string_buffer(nbytes)
        self.memory[ctypes.addressof(room)] = room
        return ctypes.addressof(room)

    def destroy(self, name: str, handle: int) -> None:
        self.calls.append((name, handle))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4),
        np.arange(12).reshape(3, 4).T,
        np.array(3, np.int8),
        np.array([True, False]),
        np.array([1.5, 2.5], ml_dtypes.bfloat16),
    ],
)
def test_a_copy_has_the_values_and_a_place(array: Any) -> None:
    card = Card()
    pinned = Pinned(card)  # type: ignore[arg-type]
    found = pinned.copy_of(array)
    assert found.dtype == array.dtype and found.shape == array.shape
    assert found.tolist() == array.tolist()
    address = pinned.address_of(found)
    assert address in card.memory and found.ctypes.data == address
    assert pinned.address_of(array) is None
    assert pinned.address_of(found.view()) is None
    raw = card.memory[address].raw
    del found
    gc.collect()
    assert card.calls == [("cuStreamSynchronize", 7), ("cuMemFreeHost", address)]
    assert not pinned._entries
    assert raw == np.ascontiguousarray(array).tobytes()


def test_a_view_keeps_the_memory() -> None:
    card = Card()
    pinned = Pinned(card)  # type: ignore[arg-type]
    part = pinned.copy_of(np.arange(10))[2:4]
    gc.collect()
    assert not card.calls and part.tolist() == [2, 3]


def test_an_empty_array_needs_none() -> None:
    pinned = Pinned(Card())  # type: ignore[arg-type]
    found = pinned.copy_of(np.zeros((0, 3), np.float32))
    assert found.shape == (0, 3) and pinned.address_of(found) is None


def test_without_a_gpu_nothing_is_pinned() -> None:
    if tc.cuda.is_available():
        pytest.skip("this machine has a GPU")
    x = tc.tensor([1.0], device="cpu")
    assert not x.is_pinned()
    with pytest.raises(tc.DeviceError):
        x.pin_memory()
