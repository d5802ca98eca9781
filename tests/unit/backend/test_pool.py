"""The device-memory pool over a pretended GPU: reuse, limits, garbage, giving back."""

from __future__ import annotations

import gc
import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinygrad_cuda.backend.cuda.pool import GRANULE, SEGMENT, Allocation, DevicePool, size_class
from tinygrad_cuda.core.errors import OutOfMemoryError


class Card:
    """Addresses that are never given twice, and a record of what is out."""

    def __init__(self, size: int = 1 << 40) -> None:
        self.size = size
        self.next = 1 << 30
        self.out: dict[int, int] = {}
        self.calls = 0

    def allocate_segment(self, nbytes: int) -> int | None:
        self.calls += 1
        if sum(self.out.values()) + nbytes > self.size:
            return None
        address, self.next = self.next, self.next + nbytes + GRANULE
        self.out[address] = nbytes
        return address

    def free_segment(self, address: int) -> None:
        del self.out[address]

    def free(self) -> tuple[int, int]:
        return self.size - sum(self.out.values()), self.size

    def pool(self, limit: int = 0) -> DevicePool:
        return DevicePool(self.allocate_segment, self.free_segment, self.free, limit)


@given(st.integers(0, 1 << 40))
def test_size_classes_hold_the_request_and_waste_little(nbytes: int) -> None:
    size = size_class(nbytes)
    assert size >= max(nbytes, 1)
    assert size % GRANULE == 0
    assert size_class(size) == size
    assert size - nbytes <= max(GRANULE, min(nbytes / 8, 2 << 20))


@given(st.lists(st.tuples(st.integers(1, 40_000_000), st.booleans()), max_size=60))
def test_live_pieces_never_overlap(steps: list[tuple[int, bool]]) -> None:
    pool = Card().pool()
    live: list[Allocation] = []
    for nbytes, drop in steps:
        live.append(pool.allocate(nbytes))
        if drop:
            del live[len(live) // 2]
        spans = sorted((piece.address, piece.address + piece.nbytes) for piece in live)
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
    exact = sum(size_class(piece.nbytes) for piece in live)
    assert exact <= pool.allocated <= exact * 9 / 8


def test_a_loop_meets_the_same_addresses() -> None:
    card = Card()
    pool = card.pool()
    turns = []
    for _ in range(5):
        pieces = [pool.allocate(nbytes) for nbytes in (100, 5000, 100, 40_000_000)]
        turns.append([piece.address for piece in pieces])
        while pieces:
            pieces.pop()
    assert turns[1:] == turns[:1] * 4
    assert card.calls == 2  # one segment for the small ones, one for the large one


def test_a_large_piece_serves_a_request_of_nearly_its_size() -> None:
    """Sizes have many classes: batches that differ by a row would each take memory of their own."""
    card = Card()
    pool = card.pool()
    first = pool.allocate(100 << 20)
    address = first.address
    del first
    smaller = pool.allocate(90 << 20)
    assert (smaller.address, pool.allocated, card.calls) == (address, 100 << 20, 1)
    del smaller
    assert pool.allocate(80 << 20).address != address  # a fifth would be lost
    assert pool.allocate(100 << 20).address == address


def test_last_freed_is_first_used() -> None:
    pool = Card().pool()
    pieces = [pool.allocate(1000) for _ in range(3)]
    addresses = [piece.address for piece in pieces]
    for _ in range(3):
        del pieces[0]
    assert [pool.allocate(1000).address for _ in range(1)] == [addresses[2]]
    again = [pool.allocate(1000) for _ in range(3)]
    assert [piece.address for piece in again] == addresses[::-1]


def test_certain_pieces_are_used_again_if_they_are_free() -> None:
    pool = Card().pool()
    pieces = [pool.allocate(1000) for _ in range(5)]
    addresses = [piece.address for piece in pieces]
    assert pool.reuse(1000, addresses[2]) is None  # in use
    pieces.clear()
    first, second = pool.reuse(1000, addresses[2]), pool.reuse(1000, addresses[2])
    third = pool.take(1000, addresses[0])
    assert first is not None and second is None
    assert (first.address, third.address) == (addresses[2], addresses[0])
    assert pool.reuse(5000, addresses[1]) is None  # of another size class
    fourth, fifth = (pool.reuse(1000, addresses[2], addresses[4]) for _ in range(2))
    assert fourth is not None and fourth.address == addresses[4] and fifth is None
    del fourth
    assert pool.allocated == 2 * 1024
    assert pool.allocate(1000).address not in (addresses[2], addresses[0])
    assert pool.peak == 5 * 1024


def test_addresses_are_aligned() -> None:
    pool = Card().pool()
    pieces = [pool.allocate(nbytes) for nbytes in (0, 1, 513, 7777, 100_001)]
    assert {piece.address % GRANULE for piece in pieces} == {0}
    assert len({piece.address for piece in pieces}) == 5


def test_counts() -> None:
    pool = Card().pool()
    first, second = pool.allocate(512), pool.allocate(1024)
    assert (pool.allocated, pool.peak, pool.reserved) == (1536, 1536, SEGMENT)
    del second
    assert (pool.allocated, pool.peak) == (512, 1536)
    pool.reset_peak()
    assert pool.peak == 512
    assert first.nbytes == 512


def test_trim_gives_back_idle_segments_only() -> None:
    card = Card()
    pool = card.pool()
    kept = pool.allocate(100)
    dropped = pool.allocate(50_000_000)
    size = size_class(50_000_000)
    assert pool.trim() == 0
    del dropped
    assert pool.trim() == size
    assert (pool.reserved, sum(card.out.values())) == (SEGMENT, SEGMENT)
    del kept
    assert pool.trim() == SEGMENT
    assert (pool.reserved, card.out) == (0, {})
    assert pool.allocate(100).address not in (0, None)


def test_a_limit_makes_room_from_idle_memory_of_another_size() -> None:
    pool = Card().pool(limit=SEGMENT)
    pieces = [pool.allocate(3 << 20) for _ in range(10)]
    pieces.clear()
    assert pool.allocate(30 << 20).nbytes == 30 << 20
    assert pool.reserved <= SEGMENT


def test_a_small_limit_still_serves_small_pieces() -> None:
    pool = Card().pool(limit=1 << 20)
    assert pool.allocate(1000).nbytes == 1000
    assert pool.reserved == 1024


def test_out_of_memory_collects_garbage_first() -> None:
    pool = Card().pool(limit=SEGMENT)

    class Cycle:
        def __init__(self) -> None:
            self.memory = pool.allocate(20 << 20)
            self.myself = self

    gc.disable()
    try:
        Cycle()
        assert pool.allocate(20 << 20).nbytes == 20 << 20
    finally:
        gc.enable()


def test_out_of_memory_says_what_is_where() -> None:
    pool = Card(size=100 << 20).pool(limit=64 << 20)
    pool.describe_live = lambda: "weights (30 MiB)  train.py:7  w = tc.zeros(...)"
    live = pool.allocate(30 << 20)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(60 << 20)
    text = str(caught.value)
    assert text.startswith("[allocate] no room for 60 MiB on the GPU\n")
    assert f"expect: {60 << 20} bytes free" in text
    assert "30 MiB live in 1 allocation, 30 MiB held by the pool, limit 64 MiB; " in text
    assert "70 MiB of 100 MiB free on the GPU" in text
    assert "train.py:7" in text
    assert pool.allocate(30 << 20).address != live.address  # the pool still works


def test_the_card_refuses_before_the_limit() -> None:
    pool = Card(size=8 << 20).pool()
    assert pool.allocate(1 << 20).nbytes == 1 << 20  # no room for a whole segment
    with pytest.raises(OutOfMemoryError, match="no room for 16 MiB"):
        pool.allocate(16 << 20)


def test_threads_share_a_pool() -> None:
    pool = Card().pool()

    def work(seed: int) -> None:
        held: list[Allocation] = []
        for turn in range(300):
            held.append(pool.allocate(1 + (turn * seed) % 20_000))
            if turn % 3 == 0:
                held.pop(0)
        spans.extend((piece.address, piece.address + piece.nbytes) for piece in held)
        keep.append(held)

    spans: list[tuple[int, int]] = []
    keep: list[list[Allocation]] = []
    threads = [threading.Thread(target=work, args=(seed,)) for seed in (7, 11, 13, 17)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans.sort()
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
    keep.clear()
    assert pool.allocated == 0


# Pieces behind one another ------------------------------------------------------------------------

SIZES = (3 << 20, 512, 5 << 20, 66048)


def ends(pieces: list[Allocation]) -> list[int]:
    return [piece.address + piece.nbytes for piece in pieces]


def test_pieces_behind_one_another_have_no_gaps_and_go_back_one_by_one() -> None:
    pool = Card().pool()
    pieces = pool.together(SIZES, 0)
    assert pieces is not None
    assert [piece.address for piece in pieces[1:]] == ends(pieces)[:-1]
    assert pool.allocated == sum(SIZES)
    first = pieces[0].address
    del pieces[2]
    assert pool.allocated == sum(SIZES) - SIZES[2]
    assert pool.reuse(SIZES[2], first + sum(SIZES[:2])) is not None
    pieces.clear()
    again = pool.together(SIZES, first)
    assert again is not None
    assert again[0].address == first
    again.clear()
    assert pool.reuse(SIZES[3], first + sum(SIZES[:3])) is not None
    other = pool.together(SIZES[::-1], first)  # of a program that writes them in another order
    assert other is not None
    assert [piece.nbytes for piece in other] == [*SIZES[::-1]]
    assert other[0].address == first
    assert [piece.address for piece in other[1:]] == ends(other)[:-1]
    assert pool.reserved == sum(SIZES)


def test_what_is_kept_costs_one_more_segment_at_most() -> None:
    """However many pieces of earlier runs a caller keeps; with the last one gone all are free."""
    card = Card()
    pool = card.pool()
    kept = []
    found = []
    for _ in range(5):
        pieces = pool.together(SIZES, 0)
        found.append(pieces is not None)
        kept += pieces[:1] if pieces is not None else []
        del pieces
    assert found == [True, True, False, False, False]
    assert card.calls == 2
    del kept[0]
    assert pool.together(SIZES, 0) is not None
    kept.clear()
    pool.trim()
    assert not card.out


def test_a_segment_of_pieces_replaces_idle_ones() -> None:
    """What single pieces of these sizes took before goes back; without room there is nothing."""
    card = Card(40 << 20)
    pool = card.pool()
    del [pool.allocate(size) for size in (20 << 20, 15 << 20)][:]
    pieces = pool.together((20 << 20, 15 << 20), 0)
    assert list(card.out.values()) == [35 << 20]
    assert pool.together((4 << 20, 2 << 20), 0) is None
    del pieces
    assert pool.together((4 << 20, 1 << 20), 0) is not None
    assert len(card.out) == 2  # the other ones wait for their next run
    assert pool.together((4 << 20, 3 << 20), 0) is not None
    assert list(card.out.values()) == [7 << 20]  # unless there is no room
