"""Parameters of kernels that are written in place, and told to the driver when changed."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tinygrad_cuda.backend.cuda.graphs.graph import CudaGraph, KernelNode
from tinygrad_cuda.backend.cuda.graphs.graph_replay import Replay
from tinygrad_cuda.backend.cuda.transfer.pinned_ring import (
    FETCHED,
    NUMBERS_WITHIN,
    FetchParams,
    from_pinned,
)
from tinygrad_cuda.backend.launch.graphs_by_address_replay import GRAPHS
from tinygrad_cuda.core.errors import ArgumentError, CudaError

SIZE = 8 * (3 * FETCHED + 2) + NUMBERS_WITHIN


class Card:
    """A driver that keeps what it is told, as the real one does, until the next launch."""

    CUDA_KERNEL_NODE_PARAMS = SimpleNamespace
    launches: deque[Any] = deque(maxlen=16)
    stream = 0

    def __init__(self) -> None:
        self.driver, self.lock = self, threading.RLock()
        self.described: dict[int, bytes] = {}
        self.told: list[dict[int, bytes]] = []  # of each executable graph
        self.started: list[dict[int, bytes]] = []
        self.nodes: list[bytes] = []
        self.status = 0

    def enter(self) -> None:
        """There is one context."""

    def call(self, name: str, *arguments: Any) -> Any:
        if name == "cuGraphAddKernelNode":
            self.described[len(self.nodes)] = at(arguments[3])
            self.nodes.append(b"")
            return len(self.nodes) - 1
        if name == "cuGraphInstantiate":
            self.told.append(dict(self.described))
            return len(self.told) - 1
        return 7

    def cuGraphExecKernelNodeSetParams(self, graph: int, node: int, given: Any) -> tuple[int]:
        if not self.status:
            self.told[graph][node] = at(given)
        return (self.status,)

    def cuGraphLaunch(self, graph: int, stream: Any) -> tuple[int]:
        self.started.append(dict(self.told[graph]))
        return (0,)

    def error(self, name: str, status: int) -> CudaError:
        return CudaError("cuda", "a driver call failed", expect=name, actual=str(status))

    def destroy(self, name: str, handle: Any) -> None:
        """Nothing was made."""


def at(parameters: Any) -> bytes:
    """What lies where a node's parameters point to."""
    place = ctypes.c_void_p.from_address(parameters.kernelParams).value
    assert place is not None
    return ctypes.string_at(place, SIZE)


class Function:
    name, handle = "kernel", 1

    def prepare(self, nbytes: int, shared: int) -> None:
        """Nothing is loaded."""


def node(words: bytes) -> KernelNode:
    return KernelNode(Function(), 1, 128, 0, words)


def waiting(place: int, card: Any = None) -> Any:
    return from_pinned(card, np.zeros(4), place, 32, lambda nbytes: None)


@pytest.fixture
def card() -> Card:
    return Card()


@pytest.fixture
def replay(card: Card) -> Replay:
    """A program of one kernel behind one that fetches an array and numbers."""
    memory: Any = SimpleNamespace(address=4096, nbytes=32)
    numbers: Any = SimpleNamespace(address=8192)
    frame: Any = SimpleNamespace(fill=lambda addresses: [], words=lambda number: bytes(SIZE))
    made = Replay(card, None, [None], [()], frame, [memory], numbers)
    made._built = lambda words: CudaGraph(card, [node(words), node(bytes(SIZE))])
    return made


def words_of(told: bytes) -> tuple[int, ...]:
    return struct.unpack(f"{len(told) // 8}Q", told)


def test_a_replay_fetches_from_where_arrays_wait(card: Card, replay: Replay) -> None:
    """In each turn what this turn gave, and the numbers as long as there are any."""
    numbers = struct.pack("<2d", 0.5, 0.25)
    replay.run([], [waiting(100)], numbers)
    for place in (200, 300, 300):
        replay.relaunch([waiting(place)], numbers)
    replay.run([], [waiting(400)], b"")
    found = [words_of(told[0]) for told in card.started]
    assert [words[0] for words in found] == [100, 200, 300, 300, 400]
    assert all(words[1:3] == (4096, 2) and words[3 * FETCHED] == 8192 for words in found)
    assert [words[3 * FETCHED + 1] for words in found] == [2, 2, 2, 2, 0]
    assert card.started[3][0].endswith(numbers + bytes(NUMBERS_WITHIN - 16))
    assert {told[1] for told in card.started} == {bytes(SIZE)}


def test_the_driver_is_told_of_changes_only(card: Card, replay: Replay) -> None:
    replay.run([], [waiting(100)], b"")
    assert replay.graph is not None
    for place, updates in ((100, 0), (200, 1), (200, 1), (100, 2)):
        replay.relaunch([waiting(place)], b"")
        assert replay.graph.updates == updates


def test_what_could_not_be_told_is_told_next_time(card: Card, replay: Replay) -> None:
    """An error of the driver leaves nothing that looks as if it had been told."""
    replay.run([], [waiting(100)], b"")
    card.status = 1
    with pytest.raises(CudaError, match="SetParams"):
        replay.relaunch([waiting(200)], b"")
    card.status = 0
    replay.relaunch([waiting(200)], b"")
    assert [words_of(told[0])[0] for told in card.started] == [100, 200]


class Addresses:
    """The parameters of one kernel: the addresses themselves."""

    def __init__(self) -> None:
        self.last: list[int] = []

    def fill(self, addresses: list[int]) -> set[int]:
        changed, self.last = addresses != self.last, addresses
        return {0} if changed else set()

    def words(self, number: int) -> bytes:
        return struct.pack(f"{len(self.last)}Q", *self.last).ljust(SIZE, b"\0")

    def twin(self) -> Addresses:
        return Addresses()


@pytest.mark.fast_paths
@pytest.mark.parametrize("fetches", [False, True])
@pytest.mark.parametrize("period", [1, 2, 3, 40])
def test_places_that_come_again_are_not_told_again(card: Card, fetches: bool, period: int) -> None:
    """Each run has its own addresses and what it fetches, whichever graph it is that starts."""
    memory: Any = [SimpleNamespace(address=4096, nbytes=32)] if fetches else []
    frame: Any = Addresses()
    replay = Replay(card, None, [None], [()], frame, memory, None)

    def built(words: bytes | None) -> CudaGraph:
        return CudaGraph(card, [node(w) for w in (words, frame.words(0)) if w is not None])

    replay._built = built
    turns = [*range(4), *[k % period for k in range(120)], 1000, *range(4), 7, 8, 7]
    for turn, number in enumerate(turns):
        replay.run([number, 5], [waiting(100 + turn)] * fetches)
        if turn % 5 == 0:
            replay.relaunch([waiting(500 + turn)] * fetches, b"")
            assert words_of(card.started.pop()[0])[0] == 500 + turn or not fetches
        assert words_of(card.started[-1][int(fetches)])[:2] == (number, 5)
        assert not fetches or words_of(card.started[-1][0])[0] == 100 + turn
        assert not 60 < turn < 120 or period == 40 or replay.updated == 0
    assert len(card.told) <= 1 + GRAPHS


def test_words_in_place_are_not_for_update(card: Card) -> None:
    graph = CudaGraph(card, [node(bytes(16)), node(bytes(16))])
    words = graph.parameters(0)
    words[1] = 5
    assert graph.words(0) == struct.pack("<QQ", 0, 5) and graph.words(1) == bytes(16)
    with pytest.raises(ArgumentError):
        graph.update(0, bytes(16))


def test_moved_words_are_those_from_before() -> None:
    words = FetchParams([(4096, 40)], 0)
    words.fill([waiting(100)], struct.pack("<d", 0.5))
    before, memory = words.tobytes(), memoryview(bytearray(SIZE)).cast("Q")
    assert words.changed
    words.move(memory)
    assert memory.tobytes() == before and not words.changed
    words.fill([waiting(300)], struct.pack("<d", 0.75))
    assert words.changed and memory[0] == 300
    assert memory.tobytes()[8 * (3 * FETCHED + 2) :][:8] == struct.pack("<d", 0.75)
