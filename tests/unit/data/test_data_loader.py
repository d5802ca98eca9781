"""Data sets, samplers and the DataLoader: order, batches, types, threads and refusals."""

from __future__ import annotations

import gc
import itertools
import json
import threading
import tracemalloc
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_cuda as tc
from tinygrad_cuda.core.errors import ArgumentError, IndexError, ShapeError
from tinygrad_cuda.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)


def numbers(n: int) -> TensorDataset:
    """Row i of the first array is (i, i + 0.5), of the second i."""
    rows = np.arange(n, dtype=np.float32)
    return TensorDataset(np.stack([rows, rows + 0.5], axis=1), np.arange(n))


class Items(Dataset):
    """The same samples, one at a time."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return np.array([index, index + 0.5], dtype=np.float32), index


def rows(loader: DataLoader) -> list[Any]:
    return [labels.tolist() for _, labels in loader]


# Samplers ---------------------------------------------------------------------------------------


@given(st.integers(0, 50), st.integers(1, 12), st.booleans())
def test_batch_sampler_covers_every_index_once(n: int, size: int, drop: bool) -> None:
    batches = list(BatchSampler(SequentialSampler(range(n)), size, drop))
    assert len(batches) == len(BatchSampler(SequentialSampler(range(n)), size, drop))
    assert all(len(batch) == size for batch in batches[:-1])
    seen = [index for batch in batches for index in batch]
    assert seen == list(range(n - n % size if drop else n))


def test_random_sampler_depends_on_seed_and_epoch_alone() -> None:
    """A resumed run visits the same order as the one that was not interrupted."""
    sampler = RandomSampler(range(100), seed=1)
    epochs = [list(sampler) for _ in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert all(sorted(epoch) == list(range(100)) for epoch in epochs)
    resumed = RandomSampler(range(100), seed=1)
    resumed.set_epoch(2)
    assert list(resumed) == epochs[2]
    assert list(RandomSampler(range(100), seed=2)) != epochs[0]


def test_random_sampler_with_num_samples() -> None:
    """More samples than there are begin a second pass; fewer are drawn without repetition."""
    few = list(RandomSampler(range(10), num_samples=4))
    assert len(set(few)) == 4
    many = list(RandomSampler(range(10), num_samples=25))
    assert sorted(many[:10]) == sorted(many[10:20]) == list(range(10))
    assert len(many) == 25
    drawn = list(RandomSampler(range(1000), replacement=True, num_samples=1000))
    assert len(set(drawn)) < 1000


@pytest.mark.parametrize("size", [0, -1, 2.0, True])
def test_bad_batch_size(size: Any) -> None:
    with pytest.raises(ArgumentError, match="batch_size"):
        DataLoader(range(3), batch_size=size)


def test_nothing_to_draw_from() -> None:
    with pytest.raises(ArgumentError, match="nothing to draw from"):
        list(RandomSampler([], num_samples=1))
    assert list(RandomSampler([])) == []


# Data sets --------------------------------------------------------------------------------------


def test_tensor_dataset_of_tensors_and_arrays() -> None:
    """Tensors give Tensors, arrays give arrays, alone and in a batch."""
    data = TensorDataset(tc.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), np.array([7, 8, 9]))
    row, label = data[1]
    assert row.tolist() == [3.0, 4.0]
    assert label == 8
    (rows, labels) = next(iter(DataLoader(data, batch_size=2)))
    assert rows.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert labels.tolist() == [7, 8]


def test_tensor_dataset_refuses_other_lengths() -> None:
    with pytest.raises(ShapeError, match=r"\(3,\), \(4, 2\)"):
        TensorDataset(np.zeros(3), np.zeros((4, 2)))
    with pytest.raises(ShapeError):
        TensorDataset(np.float64(3.0))
    with pytest.raises(ArgumentError):
        TensorDataset()


@pytest.mark.parametrize("kind", [numbers, Items])
def test_subsets_and_sums(kind: Any) -> None:
    """Subset and ConcatDataset give the same samples singly and in batches."""
    subset = Subset(kind(10), [7, 1, 4])
    both = subset + kind(5)
    assert isinstance(both, ConcatDataset)
    assert [both[index][1] for index in range(len(both))] == [7, 1, 4, 0, 1, 2, 3, 4]
    assert both[-1][1] == 4
    assert rows(DataLoader(both, batch_size=3)) == [[7, 1, 4], [0, 1, 2], [3, 4]]
    assert subset.batch(np.array([2, 0]))[0].tolist() == [[4.0, 4.5], [7.0, 7.5]]
    with pytest.raises(IndexError):
        both[8]


def test_random_split() -> None:
    """Parts do not overlap, cover everything, and follow the seed."""
    parts = random_split(numbers(103), [0.7, 0.2, 0.1], seed=4)
    assert [len(part) for part in parts] == [73, 20, 10]
    seen = np.concatenate([part.indices for part in parts])
    assert sorted(seen.tolist()) == list(range(103))
    again = random_split(numbers(103), [73, 20, 10], seed=4)
    assert all(a.indices == b.indices for a, b in zip(parts, again))
    assert [len(part) for part in random_split(range(1), [1, 0])] == [1, 0]


@pytest.mark.parametrize("lengths", [[1, 2], [0.5, 0.6], [5.5, 4.5], [11, -1]])
def test_random_split_refuses(lengths: list[float]) -> None:
    with pytest.raises(ArgumentError, match="random_split"):
        random_split(range(10), lengths)


# DataLoader -------------------------------------------------------------------------------------


@pytest.mark.smoke("data")
@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("kind", [numbers, Items])
def test_batches(kind: Any, workers: int) -> None:
    """Values, dtypes, the short last batch and the length, with threads and without."""
    loader = DataLoader(kind(7), batch_size=3, num_workers=workers)
    batches = list(loader)
    assert len(loader) == len(batches) == 3
    values, labels = batches[0]
    assert isinstance(values, tc.Tensor)
    assert values.dtype is tc.float32
    assert labels.dtype is tc.int64
    assert values.tolist() == [[0.0, 0.5], [1.0, 1.5], [2.0, 2.5]]
    assert rows(loader) == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize("workers", [0, 2])
def test_shuffle_follows_the_seed_and_the_epoch(workers: int) -> None:
    """Another order each epoch, the same in a second run, and not another with threads."""
    loader = DataLoader(numbers(20), 6, shuffle=True, num_workers=workers, seed=3)
    first, second = rows(loader), rows(loader)
    assert first != second
    assert sorted(itertools.chain(*first)) == list(range(20))
    again = DataLoader(Items(20), 6, shuffle=True, seed=3)
    assert [rows(again), rows(again)] == [first, second]
    other = DataLoader(numbers(20), 6, shuffle=True, seed=4)
    assert rows(other) != first


def test_sources_of_the_order() -> None:
    """tc.manual_seed, a Generator and a seed give the same order; two at once are refused."""
    tc.manual_seed(11)
    orders = [
        rows(DataLoader(numbers(30), 30, shuffle=True, **source))
        for source in ({}, {"seed": 11}, {"generator": tc.Generator().manual_seed(11)})
    ]
    assert orders[0] == orders[1] == orders[2]
    tc.manual_seed(12)
    assert rows(DataLoader(numbers(30), 30, shuffle=True)) != orders[0]
    for make in (
        lambda **both: DataLoader(numbers(3), shuffle=True, **both),
        lambda **both: RandomSampler(range(3), **both),
        lambda **both: random_split(range(3), [3], **both),
    ):
        with pytest.raises(ArgumentError, match="two sources"):
            make(seed=1, generator=tc.Generator())


def test_drop_last() -> None:
    loader = DataLoader(numbers(7), 3, drop_last=True)
    assert len(loader) == 2
    assert rows(loader) == [[0, 1, 2], [3, 4, 5]]


def test_samplers_and_batch_samplers() -> None:
    assert rows(DataLoader(numbers(9), 2, sampler=[8, 1, 5])) == [[8, 1], [5]]
    assert rows(DataLoader(numbers(9), batch_sampler=[[3], [4, 0]])) == [[3], [4, 0]]
    loader = DataLoader(numbers(9), sampler=(index for index in [2]))
    with pytest.raises(TypeError, match="has no length"):
        len(loader)


def test_without_batching() -> None:
    """batch_size=None gives the samples themselves, arrays as Tensors."""
    loader = DataLoader(numbers(3), batch_size=None)
    assert len(loader) == 3
    values, label = list(loader)[2]
    assert values.tolist() == [2.0, 2.5]
    assert label.tolist() == 2
    assert label.shape == ()


@pytest.mark.parametrize("workers", [0, 2])
def test_collate_fn_gets_the_samples(workers: int) -> None:
    loader = DataLoader(Items(5), 2, num_workers=workers, collate_fn=lambda batch: len(batch))
    assert list(loader) == [2, 2, 1]


@pytest.mark.parametrize("collate", [None, default_collate])
def test_pinned_memory_changes_no_batch(collate: Any) -> None:
    plain = DataLoader(numbers(7), 3, shuffle=True, seed=2, collate_fn=collate)
    pinned = DataLoader(numbers(7), 3, shuffle=True, seed=2, collate_fn=collate, pin_memory=True)
    assert pinned.pin_memory
    assert [[x.tolist() for x in b] for b in pinned] == [[x.tolist() for x in b] for b in plain]


def test_plain_lists_are_data_sets() -> None:
    assert [batch.tolist() for batch in DataLoader([3.0, 1.0, 2.0], 2)] == [[3.0, 1.0], [2.0]]


def test_empty_data_set() -> None:
    loader = DataLoader(numbers(0), 4, shuffle=True)
    assert len(loader) == 0
    assert list(loader) == []


class Broken(Items):
    def __getitem__(self, index: int) -> Any:
        if index == 4:
            raise ValueError("sample 4 is broken")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_a_sample_arrives(workers: int) -> None:
    """Batches before it come first; then the error itself, not a wrapper; no thread is left."""
    seen = []
    with pytest.raises(ValueError, match="sample 4 is broken"):
        for _, labels in DataLoader(Broken(8), 2, num_workers=workers):
            seen.append(labels.tolist())
    assert seen == [[0, 1], [2, 3]]
    assert not [t for t in threading.enumerate() if t.name.startswith("DataLoader")]


def test_leaving_early_ends_the_threads() -> None:
    iterator = iter(DataLoader(Items(100), 2, num_workers=2))
    next(iterator)
    del iterator
    assert not [t for t in threading.enumerate() if t.name.startswith("DataLoader")]


def test_threads_run_at_once() -> None:
    """Two batches wait for each other: they can only come if both are in work together."""
    barrier = threading.Barrier(2, timeout=60)

    class Meeting(Items):
        def __getitem__(self, index: int) -> Any:
            barrier.wait()
            return index

    batches = [batch.tolist() for batch in DataLoader(Meeting(4), 1, num_workers=2)]
    assert batches == [[0], [1], [2], [3]]


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": -1},
        {"prefetch_factor": 2},
        {"num_workers": 1, "multiprocessing_context": "fork"},
        {"num_workers": 1, "timeout": -1},
        {"persistent_workers": True},
        {"sampler": [0], "shuffle": True},
        {"batch_sampler": [[0]], "batch_size": 2},
        {"batch_sampler": [[0]], "drop_last": True},
        {"batch_size": None, "drop_last": True},
        {"batch_size": 0},
    ],
)
def test_refused_arguments(arguments: dict[str, Any]) -> None:
    """Nothing is ignored silently."""
    with pytest.raises(ArgumentError):
        DataLoader(numbers(3), **arguments)


# Gathering --------------------------------------------------------------------------------------


class Pair(NamedTuple):
    x: Any
    y: Any


def test_collate_keeps_structure() -> None:
    batch = default_collate([{"a": (1, [2.0]), "s": "x"}, {"a": (3, [4.0]), "s": "y"}])
    assert batch["a"][0].tolist() == [1, 3]
    assert batch["a"][1][0].dtype is tc.float64
    assert batch["s"] == ["x", "y"]
    pair = default_collate([Pair(True, np.zeros(2)), Pair(False, np.ones(2))])
    assert isinstance(pair, Pair)
    assert pair.x.dtype is tc.bool
    assert pair.y.shape == (2, 2)


def test_collate_of_tensors() -> None:
    batch = default_collate([tc.tensor([1.0, 2.0]), tc.tensor([3.0, 4.0])])
    assert batch.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_collate_agrees_with_torch() -> None:
    """Dtypes and values of each kind of sample are those of torch's default_collate."""
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("torch.utils.data").default_collate
    for sample in (1, 2.5, True, np.float32(3), np.arange(3, dtype=np.int16), np.zeros((2, 0))):
        ours, gold = default_collate([sample, sample]), theirs([sample, sample])
        assert str(gold.dtype) == f"torch.{ours.dtype.name}"
        assert tuple(ours.shape) == tuple(gold.shape)
        assert torch.equal(torch.tensor(ours.tolist(), dtype=gold.dtype), gold.reshape(ours.shape))


def test_collate_refuses() -> None:
    with pytest.raises(ShapeError, match=r"\(3,\) in sample 1"):
        default_collate([np.zeros(2), np.zeros(3)])
    with pytest.raises(ShapeError, match="entries"):
        default_collate([(1, 2), (1, 2, 3)])
    with pytest.raises(ArgumentError, match="collate_fn"):
        default_collate([object()])


def test_memory_does_not_grow_from_epoch_to_epoch() -> None:
    """Neither the loader nor its threads keep batches: the last epoch ends where the fourth did."""
    loader = DataLoader(numbers(2500), 50, shuffle=True, num_workers=2)
    sizes = []
    tracemalloc.start()
    try:
        for _ in range(8):
            for _ in loader:
                pass
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[7] - sizes[3] < 10_000  # one epoch of batches is 50,000 bytes


# Exact resume -----------------------------------------------------------------------------------


def resumable(**order: Any) -> DataLoader:
    return DataLoader(Items(23), num_workers=order.pop("num_workers", 0), **order)


@pytest.mark.smoke("data")
@pytest.mark.parametrize(
    "order",
    [
        {"batch_size": 3, "shuffle": True},
        {"batch_size": 3, "shuffle": True, "num_workers": 2},
        {"batch_size": 4},
        {"batch_size": 3, "sampler": WeightedRandomSampler(range(23), 20, seed=9)},
        {"batch_sampler": BatchSampler(SubsetRandomSampler(range(5, 17), seed=2), 5, True)},
        {"batch_size": 2, "sampler": [4, 1, 0, 9, 7]},
    ],
)
def test_resume_hands_out_exactly_the_rest(order: dict[str, Any]) -> None:
    """At every place of the second epoch; the epochs after it agree too, whatever the seed is."""
    tc.manual_seed(5)
    loader = resumable(**order)
    rows(loader)
    states, epoch = [json.loads(json.dumps(loader.state_dict()))], []
    for _, labels in loader:
        epoch.append(labels.tolist())
        states.append(json.loads(json.dumps(loader.state_dict())))
    third = rows(loader)
    tc.manual_seed(6)
    for handed, state in enumerate(states):
        other = resumable(**order)
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert rows(other) == epoch[handed:]
        assert other.state_dict()["epoch"] == 2
        assert rows(other) == third


def test_state_of_a_loader_is_checked() -> None:
    state = resumable(batch_size=2, shuffle=True).state_dict()
    for other, wrong in (
        (resumable(batch_size=3, shuffle=True), state),
        (resumable(batch_size=2), state),
        (resumable(batch_size=2, shuffle=True), {"epoch": 1}),
        (resumable(batch_size=2, shuffle=True), {**state, "batches": 99}),
    ):
        with pytest.raises(ArgumentError, match="load_state_dict"):
            other.load_state_dict(wrong)
            iter(other)


def test_set_epoch_begins_that_epoch() -> None:
    loader = DataLoader(numbers(20), 6, shuffle=True, seed=3)
    epochs = [rows(loader) for _ in range(3)]
    loader.set_epoch(1)
    assert [rows(loader), rows(loader)] == epochs[1:]


def test_samplers_with_weights_and_of_subsets() -> None:
    """Frequencies follow the weights; without replacement nothing comes twice."""
    drawn = np.bincount(list(WeightedRandomSampler([1.0, 0.0, 3.0], 4000, seed=1)), minlength=3)
    assert drawn[1] == 0
    assert abs(drawn[2] / 4000 - 0.75) < 0.03
    once = WeightedRandomSampler(np.ones(6), 6, replacement=False, seed=1)
    assert sorted(once) == list(range(6))
    subset = SubsetRandomSampler([7, 3, 5, 11], seed=1)
    epochs = {tuple(subset) for _ in range(4)}
    assert len(epochs) > 1
    assert {tuple(sorted(epoch)) for epoch in epochs} == {(3, 5, 7, 11)}
    for weights, count, again in ([[1, -1], 2, True], [[0, 0], 2, True], [[1, 0], 2, False]):
        with pytest.raises(ArgumentError, match="weights"):
            WeightedRandomSampler(weights, count, again)
    with pytest.raises(ArgumentError, match="num_samples"):
        WeightedRandomSampler([1.0], 0)
