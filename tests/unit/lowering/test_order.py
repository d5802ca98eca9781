"""The order of kernels: that of the program, but what frees memory comes first."""

from __future__ import annotations

import random
from collections.abc import Hashable

import pytest

from tinygrad_cuda.lowering.schedule.order import WORTH_AN_ORDER, Traffic, execution_order

BIG = WORTH_AN_ORDER


def peak(order: list[int], traffic: dict[int, Traffic], sizes: dict[Hashable, int]) -> int:
    """Most bytes that are there at a time: a value from its writer to its last reader."""
    last = {value: k for k, kernel in enumerate(order) for value in traffic[kernel].reads}
    held = worst = 0
    for number, kernel in enumerate(order):
        held += sum(sizes[value] for value in traffic[kernel].stores)
        worst = max(worst, held)
        held -= sum(sizes[value] for value, k in last.items() if k == number)
    return worst


def backward(layers: int, size: int) -> tuple[dict[int, set[int]], dict[int, Traffic]]:
    """Products of a backward pass, the gradients of weights behind it as an optimizer asks.

    Kernel k < `layers` makes the gradient of an activation from the one before; kernel
    `layers` + k makes a weight's gradient from that and a saved activation.
    """
    before = {k: {k - 1} if k else set[int]() for k in range(layers)}
    before |= {layers + k: {k} for k in range(layers)}
    traffic = {k: Traffic([k - 1] if k else [], [k]) for k in range(layers)}
    traffic |= {layers + k: Traffic([k], []) for k in range(layers)}
    return before, traffic


def test_a_gradient_of_a_weight_follows_what_it_reads() -> None:
    before, traffic = backward(6, BIG)
    sizes: dict[Hashable, int] = dict.fromkeys(range(6), BIG)
    order = execution_order(before, traffic, sizes)
    assert order == [0, 1, 6, 2, 7, 3, 8, 4, 9, 5, 10, 11]
    assert peak(list(before), traffic, sizes) == 6 * BIG
    assert peak(order, traffic, sizes) == 2 * BIG


def with_copies(layers: int, size: int) -> tuple[dict[int, set[int]], dict[int, Traffic]]:
    """The same products, but gradients of weights read a copy of what they multiply.

    Kernel 2 `layers` + k makes the copy for `layers` + k, and comes just before it.
    """
    plain, traffic = backward(layers, size)
    before = {k: plain[k] for k in range(layers)}
    for k in range(layers):
        copy, product = 2 * layers + k, layers + k
        before |= {copy: {k}, product: {copy, k}}
        traffic |= {copy: Traffic([k], [copy], True), product: Traffic([copy], [])}
    return before, traffic


def test_a_copy_comes_just_before_the_product_that_it_is_for() -> None:
    before, traffic = with_copies(4, BIG)
    sizes: dict[Hashable, int] = dict.fromkeys([*range(4), *range(8, 12)], BIG)
    order = execution_order(before, traffic, sizes)
    assert order == [0, 1, 8, 4, 2, 9, 5, 3, 10, 6, 11, 7]
    assert peak(list(before), traffic, sizes) == 5 * BIG
    assert peak(order, traffic, sizes) == 3 * BIG


def test_a_copy_of_less_than_it_reads_need_not_wait() -> None:
    """Half as many bytes: kernel 1 frees memory, though the product behind it waits for 2."""
    before = {0: set[int](), 2: set[int](), 1: {0}, 3: {1, 2}}
    traffic = {
        0: Traffic([], ["a"]), 1: Traffic(["a"], ["b"], True), 2: Traffic([], ["c"]),
        3: Traffic(["b", "c"], []),
    }  # fmt: skip
    sizes: dict[Hashable, int] = {"a": 2 * BIG, "b": BIG, "c": BIG}
    assert execution_order(before, traffic, sizes) == [0, 1, 2, 3]
    assert execution_order(before, traffic, sizes | {"b": 2 * BIG}) == [0, 2, 1, 3]


def test_a_copy_that_several_wait_for_comes_before_the_first_of_them() -> None:
    """Nothing runs it earlier, and a kernel that does not read it is not drawn forward by it."""
    before = {0: set[int](), 1: {0, 9}, 2: {1}, 3: {0, 9}, 9: set[int]()}
    traffic = {
        0: Traffic([], ["a", "b"]), 1: Traffic(["a", "w"], ["c"]), 2: Traffic(["c"], []),
        3: Traffic(["b"], []), 9: Traffic([], ["w"], True),
    }  # fmt: skip
    sizes: dict[Hashable, int] = dict.fromkeys("abcw", BIG)
    assert execution_order(before, traffic, sizes) == [0, 9, 1, 2, 3]


def test_what_frees_most_comes_first() -> None:
    """Kernel 1 needs memory before it frees more; kernel 2 needs none."""
    before = {0: set[int](), 1: {0}, 2: {0}}
    traffic = {0: Traffic([], "abc"), 1: Traffic("ab", ["d"]), 2: Traffic("c", [])}
    sizes: dict[Hashable, int] = {"a": 2 * BIG, "b": BIG, "c": 2 * BIG, "d": 2 * BIG}
    order = execution_order(before, traffic, sizes)
    assert order == [0, 2, 1]
    assert peak(order, traffic, sizes) == 5 * BIG < peak(list(before), traffic, sizes)


def test_the_last_reader_of_a_copy_frees_it() -> None:
    """Kernel 1 reads the weight's copy, as the forward product 0 did; an update waits for both."""
    before = {9: set[int](), 0: {9}, 2: {0}, 1: {0, 9}}
    traffic = {
        9: Traffic([], ["w"], True), 0: Traffic(["w"], ["a"]), 2: Traffic(["a"], ["c"]),
        1: Traffic(["w", "a"], []),
    }  # fmt: skip
    sizes: dict[Hashable, int] = dict.fromkeys("wac", 2 * BIG)
    assert execution_order(before, traffic, sizes) == [9, 0, 1, 2]


def test_small_values_change_no_order() -> None:
    before, traffic = backward(6, 1)
    sizes: dict[Hashable, int] = dict.fromkeys(range(6), BIG - 1)
    assert execution_order(before, traffic, sizes) == list(before)


def test_what_takes_more_than_it_frees_waits() -> None:
    """Kernel 2 frees one value and makes two."""
    before = {0: set[int](), 1: {0}, 2: {0}}
    traffic = {0: Traffic([], ["a"]), 1: Traffic([], ["d"]), 2: Traffic(["a"], ["b", "c"])}
    sizes: dict[Hashable, int] = dict.fromkeys("abcd", BIG)
    assert execution_order(before, traffic, sizes) == [0, 1, 2]
    assert execution_order(before, traffic, sizes | {"b": 0, "c": 0}) == [0, 2, 1]


@pytest.mark.parametrize("seed", range(30))
def test_random_programs_keep_their_edges(seed: int) -> None:
    rng = random.Random(seed)
    before, traffic = dict[int, set[int]](), dict[int, Traffic]()
    for kernel in range(40):
        reads = rng.sample(range(kernel), min(kernel, rng.randrange(4)))
        before[kernel] = set(reads) | set(rng.sample(range(kernel), min(kernel, 1)))
        traffic[kernel] = Traffic(reads, [kernel], rng.random() < 0.3)
    sizes: dict[Hashable, int] = {k: rng.choice((1, BIG, 3 * BIG)) for k in range(40)}
    order = execution_order(before, traffic, sizes)
    places = {kernel: number for number, kernel in enumerate(order)}
    assert sorted(order) == list(range(40))
    assert all(places[a] < places[b] for b, earlier in before.items() for a in earlier)
    assert order == execution_order(before, traffic, sizes)


def test_a_circle_is_an_error() -> None:
    nothing = Traffic([], [])
    with pytest.raises(ValueError, match="circle"):
        execution_order({0: {1}, 1: {0}}, {0: nothing, 1: nothing}, {})
