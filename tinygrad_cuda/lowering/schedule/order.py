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

    A copy that frees nothing and has one reader runs just before it, and both count as one kernel:
    the gradient of a weight frees an activation, even where it multiplies transposed copies.

    Args:
        before: for each kernel those that it waits for, in the order that decides otherwise.
        traffic: what each reads and writes.
        sizes: bytes of the values.

    Raises:
        ValueError: there is a circle.
    """
    readers = _readers_of_copies(before, traffic, sizes)
    if not readers:
        return _freeing_order(before, traffic, sizes)
    parts: dict[K, list[K]] = {kernel: [] for kernel in before if kernel not in readers}
    for kernel in before:
        parts[readers.get(kernel, kernel)].append(kernel)
    for reader, kernels in parts.items():
        kernels.sort(key=lambda kernel: kernel is reader)  # a circle might put it before its copy
    waits = {
        reader: {readers.get(k, k) for part in kernels for k in before[part]} - {reader}
        for reader, kernels in parts.items()
    }
    joined = {reader: _joined(traffic, kernels) for reader, kernels in parts.items()}
    return [k for reader in _freeing_order(waits, joined, sizes) for k in parts[reader]]


def _readers_of_copies(
    before: Mapping[K, Set[K]], traffic: Mapping[K, Traffic], sizes: Mapping[Hashable, int]
) -> dict[K, K]:
    """The one kernel that waits for each copy of at least as many bytes as it reads."""
    after: dict[K, list[K]] = {kernel: [] for kernel in before if traffic[kernel].copies}
    for kernel, waits in before.items():
        for earlier in waits:
            if earlier in after:
                after[earlier].append(kernel)
    return {
        copy: readers[0]
        for copy, readers in after.items()
        if len(readers) == 1
        and not traffic[readers[0]].copies
        and sum(sizes[v] for v in traffic[copy].stores)
        >= sum(sizes[v] for v in traffic[copy].reads)
    }


def _joined(traffic: Mapping[K, Traffic], kernels: Sequence[K]) -> Traffic:
    """What kernels that run one after another do together."""
    inside = {value for kernel in kernels[:-1] for value in traffic[kernel].stores}
    reads = dict.fromkeys(value for kernel in kernels for value in traffic[kernel].reads)
    return Traffic([value for value in reads if value not in inside], traffic[kernels[-1]].stores)


def _freeing_order(
    before: Mapping[K, Set[K]], traffic: Mapping[K, Traffic], sizes: Mapping[Hashable, int]
) -> list[K]:
    """The order of kernels none of which counts together with another one."""
    kernels = list(before)
    position = {kernel: number for number, kernel in enumerate(kernels)}
    after: dict[K, list[K]] = {kernel: [] for kernel in kernels}
    for kernel in kernels:
        for earlier in before[kernel]:
            after[earlier].append(kernel)
    readers, freed = _freed(kernels, traffic, sizes)
    waiting = {kernel: len(before[kernel]) for kernel in kernels}
    ready = [number for kernel, number in position.items() if not waiting[kernel]]
    heapify(ready)
    freeing = [number for number in ready if freed[kernels[number]] >= WORTH_AN_ORDER]
    done: set[K] = set()
    order: list[K] = []
    while ready or freeing:
        kernel = kernels[heappop(freeing or ready)]
        if kernel in done:
            continue
        done.add(kernel)
        order.append(kernel)
        for later in after[kernel]:
            waiting[later] -= 1
            if not waiting[later]:
                heappush(ready, position[later])
                if freed[later] >= WORTH_AN_ORDER:
                    heappush(freeing, position[later])
        for value in traffic[kernel].reads:
            users = readers[value]
            users.remove(kernel)
            if len(users) == 1:
                (last,) = users
                freed[last] += sizes[value]
                if not waiting[last] and freed[last] >= WORTH_AN_ORDER:
                    heappush(freeing, position[last])
    if len(order) < len(kernels):
        raise ValueError("the kernels wait for each other in a circle")
    return order


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
