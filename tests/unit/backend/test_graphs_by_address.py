"""Runs of a steady loop: each combination of places that comes again has a graph of its own."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tinygrad_cuda.backend.cuda.transfer.pinned_ring import Staged
from tinygrad_cuda.backend.launch.graphs_by_address_replay import GRAPHS, IDLE
from tinygrad_cuda.backend.launch.steady_replay import SteadyRuns
from tinygrad_cuda.core.config import settings


class Memory:
    def __init__(self, address: int, nbytes: int = 64) -> None:
        self.address, self.nbytes = address, nbytes


class Graph:
    """Notes what each start would read and write."""

    def __init__(self, log: list[Any], fetched: list[Memory]) -> None:
        self.log, self.fetched = log, fetched
        self.addresses: list[int] = []

    def run(self, addresses: list[int], staged: list[Any], numbers: bytes) -> None:
        self.addresses = addresses
        self._start("made", staged, numbers)

    def relaunch(self, staged: list[Any], numbers: bytes) -> None:
        self._start("again", staged, numbers)

    def _start(self, how: str, staged: list[Any], numbers: bytes) -> None:
        for piece in staged:
            piece.pending = False
        self.log.append((how, list(self.addresses), numbers))


class ArgumentBuffer:
    nbytes = 8

    def packed(self, numbers: Any) -> bytes:
        return struct.pack("<d", *numbers)


class Executable:
    """A program of one argument, one state and one result, and the machine below it."""

    unit = launches = after = None

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.machine: Any = self
        self.numbers, self.sent = ArgumentBuffer(), b""
        self.number_memory = Memory(7)
        self.arena_address = 5
        self.arena_bytes = 1
        self.asked: list[int] = []
        self.staged = Staged
        self.few = True
        self.sent_bytes: list[bytes] = []
        self.graphs_made: list[Graph] = []
        self.checks, self.first_code = True, 1 << 20
        self.watched: list[Any] = []

    def arena(self, nbytes: int) -> Memory:
        self.asked.append(nbytes)
        return Memory(self.arena_address, nbytes)

    def coded(self, numbers: Any) -> Any:
        return [], numbers

    def sent_within(self, numbers: bytes) -> bytes:
        return numbers if self.few else b""

    def stage(self, data: bytes) -> Any:
        self.sent_bytes.append(data)
        return waiting()

    def memory(self, inputs: Any, results: Any) -> list[Any]:
        return [*inputs, *results, Memory(self.arena_address), self.number_memory]

    def fetch_memory(self, slot: int, nbytes: int) -> Memory:
        return Memory(900 + slot, nbytes)

    def new_replay(self, memory: Any, places: Any) -> Graph:
        self.graphs_made.append(Graph(self.log, [memory[k] for k in places]))
        return self.graphs_made[-1]

    def start(self, inputs: Any, results: Any, numbers: Any) -> None:
        self.sent = self.numbers.packed(numbers)
        self.log.append(("long way", [], b""))

    def watch_error(self, first: int, codes: Any) -> None:
        self.watched.append((first, codes))

    def watch(self, codes: Any) -> None:
        self.watch_error(self.first_code, codes)


class Loop:
    """Turns of a program whose state lies at 100."""

    def __init__(self) -> None:
        self.executable = Executable()
        self.held = SteadyRuns(self.executable)
        self.fixed = [100]

    def turn(self, given: Any, result: int, number: float = 1.0) -> str:
        """Runs one; how it was started."""
        new, numbers = [Memory(result)], [number]
        if not self.held.start([given], new, self.fixed, numbers):
            self.held.run([given, Memory(100)], new, numbers)
        return str(self.executable.log[-1][0])


@pytest.fixture
def loop() -> Loop:
    return Loop()


def waiting() -> Any:
    """An array that a graph is to fetch."""
    piece: Any = object.__new__(Staged)
    piece.nbytes, piece.pending = 64, True
    return piece


@pytest.mark.fast_paths
def test_places_that_come_again_get_a_graph(loop: Loop) -> None:
    x = Memory(10)
    assert [loop.turn(x, 20) for _ in range(4)] == ["long way", "long way", "made", "again"]
    assert loop.executable.log[-1][1] == [10, 100, 20, 5, 7]


def test_the_arena_has_what_its_graphs_need(loop: Loop) -> None:
    """A run whose results lie elsewhere may need more of it than the program's layout has."""
    loop.turn(Memory(10), 20)
    loop.executable.arena_bytes = 9
    loop.turn(Memory(10), 20)
    assert loop.executable.asked == [1, 9]


@pytest.mark.fast_paths
def test_each_run_of_a_graph_is_watched(loop: Loop) -> None:
    """By the codes of its own checks, which are the same object as long as they are the same."""
    x, executable = Memory(10), loop.executable
    for lines in (1, 1, 1, 2):
        executable.coded = lambda numbers, lines=lines: ([lines], numbers)
        for number in (1.0, 2.0):
            loop.turn(x, 20, number)
    started = [how for how, *_ in executable.log if how != "long way"]
    assert [first for first, _ in executable.watched] == [1 << 20] * len(started)
    codes = [codes for _, codes in executable.watched]
    assert codes[-2:] == [[2], [2]] and codes[0] == [1]
    assert len(set(map(id, codes))) == 2


@pytest.mark.fast_paths
def test_results_in_two_places_by_turns(loop: Loop) -> None:
    """As where the caller holds the last result: nothing is written again."""
    x = Memory(10)
    found = [loop.turn(x, 20 + k % 2) for k in range(10)]
    assert found[6:] == ["again"] * 4 and found.count("made") == 2
    assert [addresses[2] for _, addresses, _ in loop.executable.log[6:]] == [20, 21, 20, 21]


@pytest.mark.fast_paths
def test_fresh_arrays_have_one_place(loop: Loop) -> None:
    found = [loop.turn(waiting(), 20) for k in range(6)]
    assert found[3:] == ["again"] * 3
    assert loop.executable.log[-1][1] == [900, 100, 20, 5, 7]


def test_an_array_that_was_fetched_is_where_it_was_copied_to(loop: Loop) -> None:
    """It waits no more: its place is another one than that of fresh arrays."""
    for _ in range(6):
        loop.turn(waiting(), 20)
    assert loop.turn(Memory(60), 20) == "long way"


@pytest.mark.fast_paths
@pytest.mark.parametrize("what", ["state", "arena"])
def test_what_moves_is_noticed(loop: Loop, what: str) -> None:
    x = Memory(10)
    for _ in range(5):
        loop.turn(x, 20)
    if what == "state":
        loop.fixed = [101]
    else:
        loop.executable.arena_address = 6
    assert [loop.turn(x, 20) for _ in range(3)] == ["long way", "made", "again"]


@pytest.mark.fast_paths
def test_numbers_are_sent_when_they_are_others(loop: Loop) -> None:
    """By their bits: a zero and its negative are two."""
    x = Memory(10)
    for number in [0.0] * 6 + [-0.0] * 4 + [0.5, 0.25, 0.125]:
        loop.turn(x, 20, number)
    pack = ArgumentBuffer().packed
    sent = [(how, numbers) for how, _, numbers in loop.executable.log]
    assert sent[5] == ("again", b"")
    assert sent[6] == ("made", pack([-0.0])) and sent[9] == ("again", b"")
    assert sent[-1] == ("again", pack([0.125])) and sent[-2][1] == pack([0.25])


@pytest.mark.fast_paths
def test_many_numbers_wait_to_be_fetched(loop: Loop) -> None:
    """They are more than parameters hold."""
    loop.executable.few = False
    x = Memory(10)
    for turn in range(8):
        loop.turn(x, 20, float(turn))
    assert loop.executable.log[-1] == ("again", [10, 100, 20, 5, 7], b"")
    assert loop.executable.sent_bytes[-1] == ArgumentBuffer().packed([7.0])
    assert len(loop.executable.graphs_made[-1].fetched) == 1


@pytest.mark.fast_paths
@pytest.mark.parametrize("option", [{"debug": 1}, {"sync": True}, {"validate": True}])
def test_what_is_to_be_looked_at_goes_the_long_way(loop: Loop, option: dict[str, Any]) -> None:
    x = Memory(10)
    for _ in range(5):
        loop.turn(x, 20)
    with settings.override(**option):
        assert loop.turn(x, 20) == "long way"
    assert loop.turn(x, 20) == "again"


def test_too_many_places_make_no_more_graphs(loop: Loop) -> None:
    x = Memory(10)
    for k in range(40 * 2 * GRAPHS):
        loop.turn(x, 20 + k % (2 * GRAPHS))
    assert [how for how, *_ in loop.executable.log].count("made") <= 2 * GRAPHS


@pytest.mark.fast_paths
def test_a_graph_that_has_not_run_for_long_makes_room(loop: Loop) -> None:
    x = Memory(10)
    for k in range(4 * GRAPHS):
        loop.turn(x, 20 + k // 4)
    for _ in range(IDLE):
        loop.turn(x, 20)
    found = [loop.turn(x, 500) for _ in range(4)]
    assert found[-1] == "again" and len(loop.held.graphs) == GRAPHS
