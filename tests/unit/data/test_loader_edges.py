"""Data sets, loaders and Generators at their edges: what PyTorch does there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.data import (
    ConcatDataset,
    DataLoader,
    RandomSampler,
    Subset,
    random_split,
)  # fmt: skip
from tinygrad_cuda.utils import data


class Named:
    """Samples under names."""

    def __getitem__(self, name: str) -> int:
        return {"a": 1, "b": 2}[name]

    def __len__(self) -> int:
        return 2


class AtOnce(data.Dataset[Any]):
    """All samples of a batch by one call."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [index * 10 for index in indices]

    def __getitem__(self, index: int) -> int:
        raise AssertionError("one by one")

    def __len__(self) -> int:
        return 5


def test_keys_that_are_no_numbers() -> None:
    loader = DataLoader(Named(), batch_size=2, sampler=["b", "a", "b"])  # type: ignore[list-item]
    assert [batch.tolist() for batch in loader] == [[2, 1], [2]]


@pytest.mark.parametrize("collate_fn", [None, lambda samples: tc.tensor(samples, device="cpu")])
def test_samples_at_once(collate_fn: Any) -> None:
    loader = DataLoader(AtOnce(), batch_size=2, collate_fn=collate_fn)
    assert [batch.tolist() for batch in loader] == [[0, 10], [20, 30], [40]]
    part = Subset(AtOnce(), [4, 1, 2])
    loader = DataLoader(part, batch_size=2, collate_fn=collate_fn)
    assert [batch.tolist() for batch in loader] == [[40, 10], [20]]


def test_single_samples_are_converted() -> None:
    converted = data.default_convert((np.float32(1), "text", 3))
    assert converted == [tc.tensor(1.0, device="cpu"), "text", 3]
    samples = list(DataLoader([(1, np.zeros(2))], batch_size=None))
    assert isinstance(samples[0], list) and samples[0][1].dtype is tc.float64
    assert data._utils.collate.default_convert is data.default_convert


def test_what_a_loader_is_made_of_is_fixed() -> None:
    generator = tc.Generator()
    loader = DataLoader(range(4), batch_size=2, shuffle=True, generator=generator)
    assert loader.generator is generator and loader.multiprocessing_context is None
    for name in ("batch_size", "sampler", "batch_sampler", "drop_last", "dataset"):
        with pytest.raises(tc.ArgumentError, match="fixed"):
            setattr(loader, name, 1)
    assert len(loader) == 2


def test_parts() -> None:
    generator = tc.Generator().manual_seed(1)
    first = random_split(range(5), [2, 3], generator)
    other = random_split(range(5), [2, 3], generator)
    again = random_split(range(5), [2, 3], generator.manual_seed(1))
    assert first[0].indices == again[0].indices and isinstance(first[0].indices, list)
    assert first[0].indices != other[0].indices
    part = Subset(np.arange(10, 20), [3, 1])
    assert part[[0, 1]].tolist() == [13, 11]
    assert ConcatDataset([range(3), range(2)]).cumulative_sizes == [3, 5]
    with pytest.raises(tc.DTypeError):
        RandomSampler(range(3), replacement=1)  # type: ignore[arg-type]


def orders(count: int, **options: Any) -> list[list[int]]:
    """The first pass of one DataLoader after another."""
    loaders = [DataLoader(range(30), None, shuffle=True, **options) for _ in range(count)]
    return [list(loader) for loader in loaders]


@pytest.mark.parametrize("own", [False, True])
def test_a_loader_for_each_epoch_has_another_order(own: bool) -> None:
    """As in PyTorch, where each pass draws from the generator; the seed says which ones."""
    options = {"generator": tc.Generator()} if own else {}
    seeded = options["generator"].manual_seed if own else tc.manual_seed
    seeded(5)
    first = orders(3, **options)
    before = tc.rand(1, device="cpu").item()
    assert len({*map(tuple, first)}) == 3
    seeded(5)
    if not own:
        assert tc.rand(1, device="cpu").item() == before  # orders are no random nodes
    assert orders(3, **options) == first
    assert orders(2, seed=5) == [first[0]] * 2  # the first order is that of the seed itself


def test_a_resumed_loader_has_the_order_of_its_state() -> None:
    tc.manual_seed(5)
    DataLoader(range(30), None, shuffle=True).state_dict()
    loader = DataLoader(range(30), None, shuffle=True)
    passing = iter(loader)
    begun = [next(passing) for _ in range(4)]
    state = loader.state_dict()
    rest = list(passing)
    resumed = DataLoader(range(30), None, shuffle=True)
    resumed.load_state_dict(state)
    assert list(resumed) == rest and sorted(begun + rest) == [*range(30)]
    assert list(resumed) == list(loader)


def test_generators() -> None:
    generator = tc.Generator().manual_seed(3)
    tc.rand(2, generator=generator, device="cpu")
    twin = generator.clone_state()
    drawn = [tc.rand(2, generator=g, device="cpu").tolist() for g in (generator, twin)]
    assert drawn[0] == drawn[1] and generator.device == tc.device("cpu")
