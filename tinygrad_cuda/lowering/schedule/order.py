"""The order in which kernels run: that of the program, but what frees memory runs at once.

Recorded orders put all gradients of weights behind the backward pass, since the optimizer asks for
them; what they read would be in memory until then.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set
from heapq import heapify, heappop, heappush
from typing import NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)

# Bytes from which on it matters when they are free again; see WORTH_AN_EDGE of memory.py.
WORTH_AN_ORDER = 1 << 20


class Traffic(NamedTuple):
    """What a kernel does to the memory between kernels.

    Attributes:
        reads: values there that it reads.
        stores: values there that it writes.
        copies: whether it does nothing but put values in another layout or dtype.
    """

    reads: Sequence[Hashable]
    stores: Sequence[Hashable]
    copies: bool = False


def execution_order(
    before: Mapping[K, Set[K]], traffic: Mapping[K, Traffic], sizes: Mapping[Hashable, int]
) -> list[K]:
    """A topological order; a kernel that frees more than it takes runs as soon as it can.

    A copy that frees nothing runs just before the first kernel that waits for it, and both count
    as one: the gradient of a weight frees an activation, even where it multiplies a transposed
    copy of that.

    Args:
        before: for each kernel those that it waits for, in the order that decides otherwise.
        traffic: what each reads and writes.
        sizes: bytes of the values.

    Raises:
        ValueError: there is a circle.
    """
    copies = _late_copies(before, traffic, sizes)
    if not copies:
        return _freeing_order(before, traffic, sizes)
    others = [kernel for kernel in before if kernel not in copies]
    own: dict[K, list[K]] = {kernel: [] for kernel in others}
    after = _successors(before)
    for copy in copies:
        for later in after[copy]:
            own[later].append(copy)
    waits, joined, taken = dict[K, set[K]](), dict[K, Traffic](), set[K]()
    for kernel in others:
        waits[kernel] = set(before[kernel]).union(*(before[c] for c in own[kernel]))
        waits[kernel].difference_update(own[kernel])
        own_reads, stores = traffic[kernel].reads, list(traffic[kernel].stores)
        first = {copy: None for copy in own[kernel] if copy not in taken}
        taken.update(first)
        for copy in own[kernel]:  # what does not read a copy had better not be why it is made
            stores += [v for v in copies[copy] if copy in first or v not in own_reads]
        reads = dict.fromkeys(value for part in (*first, kernel) for value in traffic[part].reads)
        joined[kernel] = Traffic(list(reads), stores)
    order: dict[K, None] = {}
    for kernel in _freeing_order(waits, joined, sizes):
        order.update(dict.fromkeys([*own[kernel], kernel]))
    return list(order)


def _late_copies(
    before: Mapping[K, Set[K]], traffic: Mapping[K, Traffic], sizes: Mapping[Hashable, int]
) -> dict[K, Sequence[Hashable]]:
    """Copies of at least as many bytes as they read that others wait for, and what they store."""
    awaited = {earlier for waits in before.values() for earlier in waits}
    copies = {kernel for kernel in before if traffic[kernel].copies}
    candidates = copies & awaited

    def frees_nothing(copy: K) -> bool:
        stores, reads = traffic[copy].stores, traffic[copy].reads
        return sum(sizes[value] for value in stores) >= sum(sizes[value] for value in reads)

    return {
        copy: traffic[copy].stores
        for copy in before
        if copy in candidates and copies.isdisjoint(before[copy]) and frees_nothing(copy)
    }


def _freeing_order(
    before: Mapping[K, Set[K]], traffic: Mapping[K, Traffic], sizes: Mapping[Hashable, int]
) -> list[K]:
    """The order of kernels none of which counts together with another one."""
    kernels, after = list(before), _successors(before)
    position = {kernel: number for number, kernel in enumerate(kernels)}
    readers, freed = _freed(kernels, traffic, sizes)
    waiting = {kernel: len(before[kernel]) for kernel in kernels}
    ready = [number for kernel, number in position.items() if not waiting[kernel]]
    heapify(ready)
    # Those that free most come first: the others may need memory before they free some.
    freeing = [
        (-freed[kernels[number]], number)
        for number in ready
        if freed[kernels[number]] >= WORTH_AN_ORDER
    ]
    heapify(freeing)
    done: set[K] = set()
    order: list[K] = []
    while ready or freeing:
        kernel = kernels[heappop(freeing)[1] if freeing else heappop(ready)]
        if kernel in done:
            continue
        done.add(kernel)
        order.append(kernel)
        for later in after[kernel]:
            waiting[later] -= 1
            if not waiting[later]:
                heappush(ready, position[later])
                if freed[later] >= WORTH_AN_ORDER:
                    heappush(freeing, (-freed[later], position[later]))
        for value in traffic[kernel].reads:
            users = readers[value]
            users.remove(kernel)
            if len(users) == 1:
                (last,) = users
                freed[last] += sizes[value]
                if not waiting[last] and freed[last] >= WORTH_AN_ORDER:
                    heappush(freeing, (-freed[last], position[last]))
    if len(order) < len(kernels):
        raise ValueError("the kernels wait for each other in a circle")
    return order


def _successors(before: Mapping[K, Set[K]]) -> dict[K, list[K]]:
    """For each kernel those that wait for it."""
    after: dict[K, list[K]] = {kernel: [] for kernel in before}
    for kernel, waits in before.items():
        for earlier in waits:
            after[earlier].append(kernel)
    return after


def _freed(
    kernels: list[K], traffic: Mapping[K, Traffic], sizes: Mapping[Hashable, int]
) -> tuple[dict[Hashable, set[K]], dict[K, int]]:
    """Who reads each value, and the bytes that each kernel frees, less those that it takes."""
    readers: dict[Hashable, set[K]] = {}
    freed = {kernel: -sum(sizes[value] for value in traffic[kernel].stores) for kernel in kernels}
    for kernel in kernels:
        for value in traffic[kernel].reads:
            readers.setdefault(value, set()).add(kernel)
    for value, users in readers.items():
        if len(users) == 1:
            freed[next(iter(users))] += sizes[value]
    return readers, freed
