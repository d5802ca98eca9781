"""Buffers that share storage are never alive together, in any order a kernel DAG may run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinygrad_cuda.lowering.schedule import memory
from tinygrad_cuda.lowering.schedule.memory import (
    ALIGNMENT,
    MemoryPlan,
    PlannedBuffer,
    PlannedRegion,
    RegionPart,
    plan_memory,
)

MIB = 1 << 20


def chain(count: int) -> nx.DiGraph:
    return nx.path_graph(count, create_using=nx.DiGraph)


def simulate(
    kernels: nx.DiGraph, buffers: Sequence[PlannedBuffer], plan: MemoryPlan, seed: int
) -> None:
    """Runs the DAG in a random legal order; each 256-byte cell remembers who wrote it last."""
    dag = nx.DiGraph(kernels)
    dag.add_edges_from((edge.before, edge.after) for edge in plan.edges)
    rng = random.Random(seed)
    waiting = {kernel: dag.in_degree(kernel) for kernel in dag}
    ready = [kernel for kernel, count in waiting.items() if not count]
    cells: list[Any] = [None] * (plan.peak // ALIGNMENT)
    executed = 0

    def places(buffer: PlannedBuffer) -> range:
        first = plan.offsets[buffer.name] // ALIGNMENT
        return range(first, first + -(-buffer.nbytes // ALIGNMENT))

    while ready:
        kernel = ready.pop(rng.randrange(len(ready)))
        executed += 1
        # Written first: what a kernel reads must survive what it writes, block by block.
        for buffer in buffers:
            if buffer.writer == kernel:
                for cell in places(buffer):
                    cells[cell] = buffer.name
        for buffer in buffers:
            if kernel in buffer.readers:
                assert all(cells[cell] == buffer.name for cell in places(buffer)), buffer
        for after in dag.successors(kernel):
            waiting[after] -= 1
            if not waiting[after]:
                ready.append(after)
    assert executed == len(dag), "the edges close a cycle"
    for buffer in buffers:
        if not buffer.reusable:
            assert all(cells[cell] == buffer.name for cell in places(buffer)), buffer


def test_a_chain_needs_two_buffers() -> None:
    """What a kernel writes may not lie over what it reads, but may over what came before."""
    buffers = [PlannedBuffer(k, 1000, k, (k + 1,)) for k in range(9)]
    plan = plan_memory(chain(10), buffers)
    assert plan.peak == 2 * 1024
    assert plan.unshared == 9 * 1024
    assert plan.edges == ()
    assert [plan.offsets[k] for k in range(4)] == [0, 1024, 0, 1024]
    simulate(chain(10), buffers, plan, 0)


def test_a_later_reader_keeps_a_buffer() -> None:
    kernels = chain(4)
    kernels.add_edge(0, 3)
    buffers = [
        PlannedBuffer("a", 256, 0, (1, 3)),
        PlannedBuffer("b", 256, 1, (2,)),
        PlannedBuffer("c", 256, 2, (3,)),
    ]
    assert plan_memory(kernels, buffers).peak == 3 * 256


def test_outputs_are_not_reused() -> None:
    buffers = [PlannedBuffer(k, 256, k, (k + 1,), reusable=k != 0) for k in range(5)]
    plan = plan_memory(chain(6), buffers)
    assert plan.peak == 3 * 256
    simulate(chain(6), buffers, plan, 0)


def test_scratch_is_free_after_its_kernel() -> None:
    buffers = [PlannedBuffer(k, 512, k) for k in range(4)]
    assert plan_memory(chain(4), buffers).peak == 512


def test_gaps_are_filled_by_the_best_fit_and_merged() -> None:
    """Two neighbours that are dead make one gap; a small buffer takes the smaller of two gaps."""
    kernels = chain(5)
    buffers = [
        PlannedBuffer("large", 1024, 0, (1,)),
        PlannedBuffer("kept", 256, 0, (4,)),
        PlannedBuffer("small", 256, 0, (1,)),
        PlannedBuffer("end", 256, 0, (4,)),
        PlannedBuffer("tiny", 256, 2, (3,)),
    ]
    plan = plan_memory(kernels, buffers)
    assert plan.offsets["tiny"] == plan.offsets["small"]
    assert plan.peak == 1024 + 3 * 256
    both = [
        PlannedBuffer("a", 256, 0, (1,)),
        PlannedBuffer("b", 256, 0, (1,)),
        PlannedBuffer("ab", 512, 2, (3,)),
    ]
    assert plan_memory(kernels, both).peak == 512


def branches() -> tuple[nx.DiGraph, list[PlannedBuffer]]:
    """A start, two independent branches of two kernels, and their join."""
    kernels = nx.DiGraph()
    kernels.add_nodes_from(["start", "a1", "a2", "b1", "b2", "join"])
    for name in "ab":
        nx.add_path(kernels, ["start", f"{name}1", f"{name}2", "join"])
    size = 4 * MIB
    buffers = [
        PlannedBuffer("ta", size, "a1", ("a2",)),
        PlannedBuffer("ra", 256, "a2", ("join",)),
        PlannedBuffer("tb", size, "b1", ("b2",)),
        PlannedBuffer("rb", 256, "b2", ("join",)),
    ]
    return kernels, buffers


def test_small_buffers_leave_branches_parallel() -> None:
    kernels, buffers = branches()
    plan = plan_memory(kernels, buffers, worth_an_edge=8 * MIB)
    assert plan.edges == ()
    assert plan.offsets["ta"] != plan.offsets["tb"]


def test_large_buffers_order_branches() -> None:
    """4 MiB are worth more than running two branches at once; the edge says why it is there."""
    kernels, buffers = branches()
    plan = plan_memory(kernels, buffers)
    (edge,) = plan.edges
    assert (edge.before, edge.after) == ("a2", "b1")
    assert edge.reason == "tb takes the storage of ta (4194304 bytes)"
    assert plan.offsets["ta"] == plan.offsets["tb"]
    assert plan.peak == 4 * MIB + 2 * 256
    assert not kernels.has_edge("a2", "b1")  # the caller's graph is left alone
    for seed in range(20):
        simulate(kernels, buffers, plan, seed)


def test_a_reader_must_follow_its_writer() -> None:
    with pytest.raises(ValueError, match="2 reads b but does not follow 3"):
        plan_memory(chain(5), [PlannedBuffer("b", 4, 3, (2,))])


def test_nothing_to_place() -> None:
    assert plan_memory(chain(3), []) == MemoryPlan({}, (), 0, 0, {}, {})
    assert plan_memory(chain(3), [PlannedBuffer("e", 0, 0, (1,))]).offsets == {"e": 0}


def test_a_thousand_kernels() -> None:
    """Forward and backward of a deep chain: activations stay, gradients take turns."""
    depth = 600
    kernels = chain(2 * depth)
    kernels.add_edges_from((k, 2 * depth - 1 - k) for k in range(depth))
    buffers = [PlannedBuffer(k, 256, k, (k + 1, 2 * depth - 1 - k)) for k in range(depth)]
    buffers += [PlannedBuffer(k, 256, k, (k + 1,)) for k in range(depth, 2 * depth - 1)]
    plan = plan_memory(kernels, buffers)
    assert plan.peak == 256 * (depth + 1)


@st.composite
def problems(draw: st.DrawFn) -> tuple[nx.DiGraph, list[PlannedBuffer]]:
    count = draw(st.integers(2, 14))
    labels = draw(st.permutations(range(count)))
    kernels = nx.DiGraph()
    kernels.add_nodes_from(draw(st.permutations(labels)))
    for after in range(1, count):
        for before in draw(st.lists(st.integers(0, after - 1), max_size=3, unique=True)):
            kernels.add_edge(labels[before], labels[after])
    buffers = []
    for name in range(draw(st.integers(1, 16))):
        writer = draw(st.sampled_from(labels))
        later = sorted(nx.descendants(kernels, writer))
        readers = draw(st.lists(st.sampled_from(later), max_size=3, unique=True)) if later else []
        size = draw(st.sampled_from((0, 1, 256, 257, 512, 1000, 5000)))
        buffers.append(
            PlannedBuffer(name, size, writer, tuple(readers), draw(st.integers(0, 9)) > 0)
        )
    return kernels, buffers


@settings(max_examples=300)
@given(problems(), st.sampled_from((1, 300, 1 << 20)), st.integers(0, 99))
def test_random_dags(
    problem: tuple[nx.DiGraph, list[PlannedBuffer]], worth: int, seed: int
) -> None:
    """No overlap of live buffers in random legal orders; edges close no cycle; sizes add up."""
    kernels, buffers = problem
    plan = plan_memory(kernels, buffers, worth_an_edge=worth)
    assert all(offset % ALIGNMENT == 0 for offset in plan.offsets.values())
    assert plan.peak <= plan.unshared
    assert len(plan.offsets) == len(buffers)
    for edge in plan.edges:
        assert not nx.has_path(kernels, edge.before, edge.after)
    for attempt in range(5):
        simulate(kernels, buffers, plan, seed + attempt)
    assert plan_memory(kernels, buffers, worth_an_edge=worth) == plan


# Values stored over what their kernel reads -------------------------------------------------------


def test_a_value_takes_the_storage_of_what_its_kernel_reads() -> None:
    """Both readers are done by then: the second one waits for the first by a new edge."""
    kernels = nx.DiGraph([(0, 1), (0, 2)])
    buffers = [PlannedBuffer("a", 4 * MIB, 0, (1, 2)), PlannedBuffer("b", 4 * MIB, 2, over=("a",))]
    plan = plan_memory(kernels, buffers)
    assert plan.over == {"b": "a"}
    assert plan.offsets["a"] == plan.offsets["b"]
    assert plan.peak == 4 * MIB
    assert [(edge.before, edge.after) for edge in plan.edges] == [(1, 2)]


def test_a_value_that_is_read_later_is_not_stored_over() -> None:
    kernels = chain(3)
    buffers = [
        PlannedBuffer("a", 4 * MIB, 0, (1, 2)), PlannedBuffer("b", 4 * MIB, 1, (2,), over=("a",)),
    ]  # fmt: skip
    plan = plan_memory(kernels, buffers)
    assert (plan.over, plan.peak) == ({}, 8 * MIB)


def test_free_storage_is_taken_first() -> None:
    """A kernel that only reads and one that only writes overlap in time."""
    kernels = chain(4)
    buffers = [
        PlannedBuffer("a", 4 * MIB, 0, (1,)),
        PlannedBuffer("b", 4 * MIB, 1, (2,)),
        PlannedBuffer("c", 4 * MIB, 2, (3,), over=("b",)),
    ]
    plan = plan_memory(kernels, buffers)
    assert (plan.over, plan.peak) == ({}, 8 * MIB)
    assert plan.offsets["c"] == plan.offsets["a"]


# Memory of results --------------------------------------------------------------------------------


def result(name: str, nbytes: int, writer: int) -> PlannedRegion:
    return PlannedRegion(name, (RegionPart(nbytes, writer),))


def test_a_result_holds_other_values_until_it_is_written() -> None:
    """Values that are read before; the writer waits for a reader that is on no path to it."""
    kernels = nx.DiGraph([(0, 1), (0, 2), (1, 3)])
    buffers = [PlannedBuffer("a", 3 * MIB, 0, (1, 2)), PlannedBuffer("b", 2 * MIB, 1, (3,))]
    plan = plan_memory(kernels, buffers, [result("r", 4 * MIB, 3)])
    assert plan.inside == {"a": "r"}
    assert plan.offsets == {"a": 0, "b": 0}
    assert plan.peak == 2 * MIB  # b is read by the writer of r itself
    assert [(edge.before, edge.after) for edge in plan.edges] == [(2, 3)]


def test_a_result_holds_several_values() -> None:
    """One behind the other while both are there, one after the other where not."""
    kernels = chain(5)
    buffers = [
        PlannedBuffer("a", 2 * MIB, 0, (2,)),
        PlannedBuffer("b", MIB, 1, (2,)),
        PlannedBuffer("c", 3 * MIB, 3, (4,)),
    ]
    plan = plan_memory(kernels, buffers, [result("r", 3 * MIB + 100, 4)])
    assert plan.inside == {"a": "r", "b": "r"}
    assert (plan.offsets["a"], plan.offsets["b"]) == (0, 2 * MIB)
    assert plan.peak == 3 * MIB
    later = plan_memory(chain(6), buffers, [result("r", 3 * MIB, 5)])
    assert later.inside == dict.fromkeys("abc", "r")
    assert (later.offsets["c"], later.peak) == (0, 0)


def test_small_values_stay_in_the_arena() -> None:
    buffers = [PlannedBuffer("a", MIB - ALIGNMENT, 0, (1,))]
    plan = plan_memory(chain(3), buffers, [result("r", 4 * MIB, 2)])
    assert (plan.inside, plan.peak) == ({}, MIB - ALIGNMENT)


@pytest.mark.parametrize("seed", range(60))
def test_random_plans_with_results(seed: int) -> None:
    """In any order that the edges allow, each value is there when it is read, wherever it lies."""
    rng = random.Random(seed)
    count = 16
    dag = nx.DiGraph()
    dag.add_nodes_from(range(count))
    dag.add_edges_from((a, b) for b in range(count) for a in range(b) if rng.random() < 0.2)
    buffers = [
        PlannedBuffer(f"b{k}", rng.choice((1, 2, 3)) * MIB, k, tuple(dag.successors(k)))
        for k in range(count)
    ]
    regions = [result(f"r{k}", rng.choice((4, 6)) * MIB, k) for k in rng.sample(range(4, count), 3)]
    plan = plan_memory(dag, buffers, regions)
    dag.add_edges_from((edge.before, edge.after) for edge in plan.edges)
    assert nx.is_directed_acyclic_graph(dag)
    for _ in range(10):
        run_in_any_order(dag, buffers, regions, plan, rng)


@pytest.mark.parametrize("seed", range(60))
def test_random_plans_with_a_block(seed: int) -> None:
    """Values that lie across several results are gone before the first of these is written."""
    rng = random.Random(seed)
    count = 24
    dag = nx.DiGraph()
    dag.add_nodes_from(range(count))
    dag.add_edges_from((a, b) for b in range(count) for a in range(b) if rng.random() < 0.12)
    buffers = [
        PlannedBuffer(f"b{k}", rng.choice((1, 2, 3, 5)) * MIB, k, tuple(dag.successors(k)))
        for k in range(count)
    ]
    writers = sorted(rng.choices(range(6, count), k=6))
    parts = tuple(RegionPart(rng.choice((1, 2)) * MIB, k) for k in writers)
    regions = [PlannedRegion("block", parts), result("r", 4 * MIB, 20)]
    plan = plan_memory(dag, buffers, regions)
    dag.add_edges_from((edge.before, edge.after) for edge in plan.edges)
    assert nx.is_directed_acyclic_graph(dag)
    for _ in range(10):
        run_in_any_order(dag, buffers, regions, plan, rng)


def test_a_value_lies_across_results_that_are_written_later() -> None:
    """Not over the first of them, which is written while it is read."""
    parts = tuple(RegionPart(MIB, writer) for writer in (2, 3, 4))
    buffers = [PlannedBuffer("a", 2 * MIB, 0, (2,)), PlannedBuffer("b", 3 * MIB, 0, (1,))]
    plan = plan_memory(chain(5), buffers, [PlannedRegion("block", parts)])
    assert plan.inside == {"b": "block"}
    one = plan_memory(chain(5), buffers[:1], [PlannedRegion("block", parts)])
    assert (one.inside, one.offsets, one.peak) == ({"a": "block"}, {"a": MIB}, 0)


def run_in_any_order(
    dag: nx.DiGraph,
    buffers: Sequence[PlannedBuffer],
    regions: Sequence[PlannedRegion],
    plan: MemoryPlan,
    rng: random.Random,
) -> None:
    """Each MiB remembers who wrote it last; a result must be whole at the end."""
    keys = {node: rng.random() for node in dag}
    cells: dict[Any, Any] = {}

    def of(buffer: PlannedBuffer) -> list[Any]:
        start = plan.offsets[buffer.name] // ALIGNMENT
        size = buffer.nbytes // ALIGNMENT
        return [(plan.inside.get(buffer.name), start + k) for k in range(0, size, 1024)]

    starts = {
        region: [*accumulate((p.nbytes for p in region.parts), initial=0)] for region in regions
    }
    whole = {
        (region.name, start): (
            part.writer,
            [(region.name, (start + k) // ALIGNMENT) for k in range(0, part.nbytes, MIB)],
        )
        for region in regions
        for part, start in zip(region.parts, starts[region])
    }
    for kernel in nx.lexicographical_topological_sort(dag, key=keys.__getitem__):
        for buffer in buffers:
            if buffer.writer == kernel:
                cells |= dict.fromkeys(of(buffer), buffer.name)
        for buffer in buffers:
            if kernel in buffer.readers:
                assert {cells[cell] for cell in of(buffer)} == {buffer.name}
        for part, (writer, own) in whole.items():
            if writer == kernel:
                cells |= dict.fromkeys(own, part)
    for part, (_, own) in whole.items():
        assert {cells[cell] for cell in own} == {part}


# Layouts by lifetimes -----------------------------------------------------------------------------

LAYOUTS = [(rank, few) for rank in (memory._size, memory._area) for few in (True, False)]


def laid_out(
    kernels: nx.DiGraph,
    buffers: Sequence[PlannedBuffer],
    rank: Any,
    few_edges: bool,
    regions: Sequence[PlannedRegion] = (),
) -> MemoryPlan:
    """One layout of the large values, whether or not another one is taken."""
    order = memory._topological(kernels)
    planner = memory._Planner(kernels, order, regions, MIB)
    layouts = memory._Layouts(kernels, order, buffers, regions, MIB)
    if layouts.large:
        spans, lowest = layouts.arranged(rank)
        planner.fix(layouts.spots(spans, few_edges))
        assert layouts.least_height <= (planner.height if few_edges else lowest)
        assert few_edges or planner.height == lowest
    return memory._planned(planner, buffers)


def test_a_layout_by_size_leaves_no_gaps() -> None:
    """In the order of writers b lies behind a, and c, larger than what a leaves, behind both."""
    kernels = chain(6)
    buffers = [
        PlannedBuffer("a", 2 * MIB, 0, (1,)),
        PlannedBuffer("b", 2 * MIB, 1, (5,)),
        PlannedBuffer("c", 4 * MIB, 2, (3,)),
        PlannedBuffer("d", 4 * MIB, 4, (5,)),
    ]
    plan = plan_memory(kernels, buffers)
    assert plan.peak == 6 * MIB
    assert plan.offsets["c"] == plan.offsets["d"] == 0
    simulate(kernels, buffers, plan, 0)


def test_what_lies_on_top_comes_earlier() -> None:
    """By size alone c, the smallest one, lies behind a and b; before a there is room for it."""
    kernels = chain(6)
    buffers = [
        PlannedBuffer("a", 3 * MIB, 3, (4,)),
        PlannedBuffer("b", 4 * MIB, 1, (5,)),
        PlannedBuffer("c", 2 * MIB, 4, (5,)),
        PlannedBuffer("d", 4 * MIB, 0, (1,)),
    ]
    layouts = memory._Layouts(kernels, list(kernels), buffers, (), MIB)
    first = layouts.pieces(sorted(layouts.large, key=memory._size), False)[None]
    _, lowest = layouts.arranged(memory._size)
    assert (max(piece.end for piece in first), lowest) == (10 * MIB, 9 * MIB)
    plan = plan_memory(kernels, buffers)
    assert plan.peak == lowest
    simulate(kernels, buffers, plan, 0)


def test_a_layout_by_size_and_lifetime_takes_less_than_one_by_size() -> None:
    kernels = chain(6)
    buffers = [
        PlannedBuffer("a", 3 * MIB, 1, (3,)),
        PlannedBuffer("b", 3 * MIB, 2, (5,)),
        PlannedBuffer("c", 2 * MIB, 4, (5,)),
        PlannedBuffer("d", 2 * MIB, 3, (4,)),
        PlannedBuffer("e", 2 * MIB, 4, (5,)),
    ]
    layouts = memory._Layouts(kernels, list(kernels), buffers, (), MIB)
    assert [layouts.arranged(rank)[1] for rank in (memory._size, memory._area)] == [
        10 * MIB, 9 * MIB,
    ]  # fmt: skip
    plan = plan_memory(kernels, buffers)
    assert plan.peak == 9 * MIB
    simulate(kernels, buffers, plan, 0)
    assert plan_memory(kernels, buffers, below=9 * MIB).peak == 10 * MIB


def test_of_two_places_that_with_fewer_edges_is_taken() -> None:
    """b follows the user of a2 on a path, but no user of a1, which lies lower."""
    kernels = nx.DiGraph([(0, 1), (0, 2), (2, 3), (3, 4), (1, 5), (4, 5)])
    buffers = [
        PlannedBuffer("a1", 2 * MIB, 0, (1,)),
        PlannedBuffer("a2", 2 * MIB, 0, (2,)),
        PlannedBuffer("b", 2 * MIB, 3, (4,)),
    ]
    low, few = (laid_out(kernels, buffers, memory._size, few) for few in (False, True))
    assert (low.offsets["b"], len(low.edges)) == (low.offsets["a1"], 1)
    assert (few.offsets["b"], len(few.edges)) == (few.offsets["a2"], 0)
    assert low.peak == few.peak == 4 * MIB


def test_small_values_lie_among_large_ones_where_that_needs_no_edge() -> None:
    """After a; beside it there is nothing free. What runs beside the user of a lies behind all."""
    kernels = nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 4), (0, 5), (5, 4)])
    buffers = [
        PlannedBuffer("a", 2 * MIB, 0, (1,)),
        PlannedBuffer("b", 2 * MIB, 3, (4,)),
        PlannedBuffer("after", MIB // 2, 2, (2,)),
        PlannedBuffer("beside", MIB // 2, 5, (4,)),
    ]
    plan = laid_out(kernels, buffers, memory._size, True)
    assert plan.offsets["a"] == plan.offsets["b"] == plan.offsets["after"] == 0
    assert (plan.offsets["beside"], plan.edges) == (2 * MIB, ())
    simulate(kernels, buffers, plan, 0)


@pytest.mark.parametrize(("rank", "few_edges"), LAYOUTS)
@pytest.mark.parametrize("seed", range(12))
def test_layouts_are_sound(
    seed: int, rank: Any, few_edges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of values of all sizes, some of them stored over what their kernel reads."""
    monkeypatch.setattr(memory, "WORTH_A_HOLE", 1)
    rng = random.Random(seed)
    count = 20
    dag = nx.DiGraph()
    dag.add_nodes_from(range(count))
    dag.add_edges_from((a, b) for b in range(count) for a in range(b) if rng.random() < 0.15)
    sizes = [rng.choice((1, 100, MIB // 4, MIB, 2 * MIB, 3 * MIB)) for _ in range(count)]
    buffers = [
        PlannedBuffer(k, sizes[k], k, tuple(dag.successors(k)), reusable=rng.random() < 0.9)
        for k in range(count)
    ]
    plan = laid_out(dag, buffers, rank, few_edges)
    assert plan.peak <= plan.unshared
    for order in range(5):
        simulate(dag, buffers, plan, order)


@pytest.mark.parametrize(("rank", "few_edges"), LAYOUTS)
@pytest.mark.parametrize("seed", range(10))
def test_layouts_in_results_are_sound(seed: int, rank: Any, few_edges: bool) -> None:
    rng = random.Random(seed)
    count = 24
    dag = nx.DiGraph()
    dag.add_nodes_from(range(count))
    dag.add_edges_from((a, b) for b in range(count) for a in range(b) if rng.random() < 0.12)
    buffers = [
        PlannedBuffer(f"b{k}", rng.choice((1, 2, 3, 5)) * MIB, k, tuple(dag.successors(k)))
        for k in range(count)
    ]
    writers = sorted(rng.choices(range(6, count), k=6))
    parts = tuple(RegionPart(rng.choice((1, 2)) * MIB, k) for k in writers)
    regions = [PlannedRegion("block", parts), result("r", 4 * MIB, 20)]
    plan = laid_out(dag, buffers, rank, few_edges, regions)
    dag.add_edges_from((edge.before, edge.after) for edge in plan.edges)
    assert nx.is_directed_acyclic_graph(dag)
    for _ in range(5):
        run_in_any_order(dag, buffers, regions, plan, rng)
