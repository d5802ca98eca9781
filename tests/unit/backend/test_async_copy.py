"""Arrays that are copied beside the compute stream: none is read early or written over unread."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinygrad_cuda.backend.cuda.transfer import async_copy
from tinygrad_cuda.backend.cuda.transfer.async_copy import LARGEST_REUSED, TURNS, AsyncCopier


class Stream:
    """Work in order: things to do, and points to wait for."""

    def __init__(self) -> None:
        self.work: deque[Callable[[], bool]] = deque()


class Card:
    """Two streams whose work is done as late as possible, in any order that events allow."""

    def __init__(self, seed: int) -> None:
        self.lock = threading.RLock()
        self.driver = self
        self.stream, self.copy_stream = Stream(), Stream()
        self.random = random.Random(seed)
        self.memory: dict[int, Any] = {}
        self.sources: dict[int, Any] = {}
        self.free: deque[int] = deque()
        self.made = 0

    def allocate(self, nbytes: int) -> Any:
        """As the pool does it: memory whose last user may still wait on the compute stream."""
        card = self

        class Allocation:
            def __init__(self) -> None:
                card.made += not card.free
                self.address = card.free.popleft() if card.free else 1000 + card.made
                self.nbytes = nbytes

            def __del__(self) -> None:
                card.free.append(self.address)

        return Allocation()

    def enter(self) -> None:
        """There is one card."""

    def cuMemcpyHtoDAsync(self, to: int, place: int, nbytes: int, stream: Stream) -> tuple[int]:
        stream.work.append(lambda: self.memory.update({to: self.sources[place]}) or True)
        return (0,)

    def cuEventRecord(self, event: Event, stream: Stream) -> tuple[int]:
        event.record(stream)
        return (0,)

    def cuStreamWaitEvent(self, stream: Stream, event: Event, flags: int) -> tuple[int]:
        event.hold(stream)
        return (0,)

    def use(self, address: int, found: list[Any]) -> None:
        """Enqueues a kernel that reads memory."""
        self.stream.work.append(lambda: found.append(self.memory[address]) or True)

    def finish(self) -> None:
        """Does all work."""
        while self.stream.work or self.copy_stream.work:
            streams = [s for s in (self.stream, self.copy_stream) if s.work]
            self.random.shuffle(streams)
            for stream in streams:
                if stream.work[0]():
                    stream.work.popleft()
                    break
            else:
                pytest.fail("the streams wait for each other")


class Event:
    """A point in a stream's work, recorded anew each time."""

    def __init__(self, card: Card, timing: bool) -> None:
        self.card, self.recorded, self.reached, self.handle = card, 0, 0, self

    def record(self, stream: Stream | None = None) -> Event:
        self.recorded = number = self.recorded + 1
        work = (stream or self.card.stream).work
        work.append(lambda: setattr(self, "reached", max(self.reached, number)) or True)
        return self

    def hold(self, stream: Stream) -> None:
        number = self.recorded
        stream.work.append(lambda: self.reached >= number)


@pytest.fixture(params=range(5))
def card(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Card:
    monkeypatch.setattr(async_copy, "DriverEvent", Event)
    return Card(request.param)


def array(card: Card, value: int, nbytes: int = 8) -> Any:
    made = np.full(nbytes // 8, value)
    card.sources[value] = value
    return made


def test_a_loop_reads_each_array_and_takes_turns_with_few_places(card: Card) -> None:
    copier, found, given = AsyncCopier(card), [], None
    for value in range(40):
        given = copier.send(array(card, value), value)
        card.use(given.address, found)
        if card.random.random() < 0.1:
            card.finish()
    card.finish()
    assert found == list(range(40)) and card.made <= TURNS


def test_the_copy_does_not_wait_for_the_step_before(card: Card) -> None:
    """With the compute stream stuck in the last step, the next array still arrives."""
    copier, given = AsyncCopier(card), None
    for value in range(TURNS):
        given = copier.send(array(card, value), value)
        card.use(given.address, [])
    card.finish()
    card.stream.work.append(lambda: False)  # a step that takes long
    given = copier.send(array(card, 99), 99)
    while card.copy_stream.work and card.copy_stream.work[0]():
        card.copy_stream.work.popleft()
    assert card.memory[given.address] == 99


def test_what_is_kept_stays_and_places_come_from_the_pool(card: Card) -> None:
    copier, found = AsyncCopier(card), []
    kept = [copier.send(array(card, value), value) for value in range(10)]
    assert len({x.address for x in kept}) == 10
    del kept[::2]
    later = [copier.send(array(card, value), value) for value in range(10, 22)]
    for x in (*kept, *later):
        card.use(x.address, found)
    card.finish()
    assert found == [1, 3, 5, 7, 9, *range(10, 22)]


def test_memory_that_the_pool_gives_out_again_is_free_by_then(card: Card) -> None:
    """More than the places kept goes back, while kernels that read it may still wait."""
    copier, found = AsyncCopier(card), []
    for start in range(0, 60, 12):
        several = [copier.send(array(card, k, 8 + start), k) for k in range(start, start + 12)]
        for x in several:
            card.use(x.address, found)
        del x, several
    card.finish()
    assert found == list(range(60))


def test_no_place_is_kept_for_very_large_arrays(card: Card) -> None:
    copier = AsyncCopier(card)
    big = array(card, 1, 16)
    big = np.lib.stride_tricks.as_strided(big, (LARGEST_REUSED // 8 + 1,), (0,))
    for _ in range(3):
        copier.send(big, 1)
        copier.send(array(card, 2), 2)
    assert (
        sum(p.memory.nbytes > LARGEST_REUSED for idle in copier._idle.values() for p in idle) == 0
    )
