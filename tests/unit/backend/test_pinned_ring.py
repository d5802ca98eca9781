"""The ring of pinned memory beside a card that lags behind: nothing is written over unread."""

from __future__ import annotations

import ctypes
import gc
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinygrad_cuda.backend.cuda.transfer import pinned_ring
from tinygrad_cuda.backend.cuda.transfer.pinned_ring import (
    LARGEST_STAGED,
    PART,
    PARTS,
    SWEEP_PERIOD,
    PinnedRing,
    Sent,
    Staged,
    from_pinned,
)


class Memory:
    """A piece of the card's memory."""

    def __init__(self, nbytes: int) -> None:
        self.room = ctypes.create_string_buffer(max(nbytes, 1))
        self.address = ctypes.addressof(self.room)
        self.nbytes = nbytes


class Card:
    """Work is queued, and done when somebody waits for it: as late as it may be."""

    stream = 0

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.queue: list[Callable[[], None]] = []
        self.done = 0
        self.driver = self
        self.pieces: list[Memory] = []

    def call(self, name: str, nbytes: int, flags: int) -> int:
        assert name == "cuMemHostAlloc"
        self.room = ctypes.create_string_buffer(nbytes)
        return ctypes.addressof(self.room)

    def destroy(self, name: str, handle: int) -> None:
        """The room goes with the card."""

    def allocate(self, nbytes: int) -> Any:
        """Memory that nobody else gets before the queue is done with it."""
        self.pieces.append(Memory(nbytes))
        return self.pieces[-1]

    def submit(self, work: Callable[[], None]) -> None:
        self.queue.append(work)

    def reach(self, point: int) -> None:
        while self.done < point:
            self.queue[self.done]()
            self.done += 1

    def cuMemcpyHtoDAsync(self, to: int, at: int, nbytes: int, stream: int) -> tuple[int]:
        self.submit(lambda: ctypes.memmove(to, at, nbytes) and None)
        return (0,)


class Event:
    """A point in the card's queue."""

    def __init__(self, card: Card, timing: bool) -> None:
        self.card, self.point = card, 0

    def record(self) -> None:
        self.point = len(self.card.queue)

    def synchronize(self) -> None:
        self.card.reach(self.point)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    monkeypatch.setattr(pinned_ring, "DriverEvent", Event)
    return Card()


def read(card: Card, at: int, nbytes: int) -> Memory:
    """What a graph does with an array that it fetches."""
    memory = Memory(nbytes)
    card.submit(lambda: ctypes.memmove(memory.address, at, nbytes) and None)
    return memory


def value(card: Card, memory: Any, nbytes: int) -> bytes:
    address = memory.address  # which may have it copied
    card.reach(len(card.queue))
    return ctypes.string_at(address, nbytes)


@pytest.mark.parametrize("seed", range(6))
def test_every_array_arrives_however_late_it_is_read(card: Card, seed: int) -> None:
    """Copied, fetched by a graph, both, or dropped, at once or much later, in ten rounds."""
    rng = random.Random(seed)
    ring = PinnedRing(card)  # type: ignore[arg-type]
    waiting: list[tuple[Any, bytes]] = []
    copied: list[tuple[Any, bytes]] = []
    for number in range(20 * PARTS * 5):
        data = np.full(rng.choice([3, 1000, 100_000, LARGEST_STAGED // 4]), number % 251, np.uint8)
        waiting.append((ring.stage(data, card.allocate), data.tobytes()))
        data[:] = 255
        while len(waiting) > rng.choice([0, 0, 30]):
            piece, wanted = waiting.pop(rng.randrange(len(waiting)))
            if rng.random() < 0.7:
                copied.append((read(card, piece.address_for_fetch(), piece.nbytes), wanted))
            if rng.random() < 0.3:
                assert piece.address
                copied.append((piece, wanted))
        if rng.random() < 0.02:
            waiting.clear()
    assert card.done < len(card.queue)
    for piece, wanted in copied:
        assert value(card, piece, piece.nbytes) == wanted
    for piece, wanted in waiting:
        assert value(card, piece, piece.nbytes) == wanted


def test_an_array_is_pending_until_it_was_fetched_or_copied(card: Card) -> None:
    ring = PinnedRing(card)  # type: ignore[arg-type]
    first, second = (ring.stage(np.arange(9), card.allocate) for _ in range(2))  # type: ignore[arg-type]
    assert first.pending and second.pending
    first.address_for_fetch()
    assert not first.pending and not card.queue
    assert second.address and not second.pending and len(card.queue) == 1
    assert second.address == second.address and len(card.queue) == 1
    assert value(card, first, 72) == np.arange(9).tobytes()


def test_what_others_keep_is_read_where_it_is(card: Card) -> None:
    """Pinned memory of its own: large arrays go by the driver, and the array lives as long."""
    ring = PinnedRing(card)  # type: ignore[arg-type]
    array = np.arange(LARGEST_STAGED // 8 + 1)
    large = from_pinned(ring, array, array.ctypes.data, array.nbytes, card.allocate)
    small = from_pinned(ring, array, array.ctypes.data, 16, card.allocate)
    assert small.pending and not large.pending
    assert value(card, large, array.nbytes) == array.tobytes()
    assert small.address_for_fetch() == array.ctypes.data


def test_the_ring_keeps_no_track_of_what_is_gone(card: Card) -> None:
    ring = PinnedRing(card)  # type: ignore[arg-type]
    for _ in range(PART // 256 - 1):
        ring.stage(np.zeros(4, np.uint8), card.allocate)
        assert len(ring.part.pieces) <= SWEEP_PERIOD
    kept = [ring.stage(np.zeros(4, np.uint8), card.allocate) for _ in range(3 * SWEEP_PERIOD)]  # type: ignore[arg-type]
    gc.collect()
    assert all(isinstance(piece, Staged) for piece in kept)
    alive = [reference() for part in ring._parts for reference in part.pieces]
    assert all(any(piece is one for one in alive) for piece in kept)


def test_what_has_been_sent_is_ordinary_memory(card: Card) -> None:
    """No kernel is to fetch it again, and its place in the ring may be another array's."""
    ring = PinnedRing(card)  # type: ignore[arg-type]
    piece = ring.stage(np.arange(4, dtype=np.float32), card.allocate)
    place = piece.address_for_fetch()
    assert type(piece) is Staged and not piece.pending  # a graph has read it where it waits
    address = piece.address
    assert type(piece) is Sent and not piece.pending and address != place
    assert piece.address == piece.address_for_fetch() == address and not piece.upload()
