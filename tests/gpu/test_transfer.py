"""Small arrays on their way to the GPU: copied when they are needed, or fetched by a graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.backend import registry
from tinygrad_cuda.backend.cuda.graphs.graph import CudaGraph
from tinygrad_cuda.backend.cuda.transfer.async_copy import SMALLEST, TURNS
from tinygrad_cuda.backend.cuda.transfer.pinned_ring import FETCHED, PART, PARTS, PinnedRing, Staged
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import as_device

# What a pretended GPU can run in a few seconds.
PRETENDED = (
    "test_an_array_is_copied_when_it_is_needed_and_once",
    "test_more_than_the_ring_holds",
    "test_every_dtype",
    "test_a_graph_fetches_what_only_it_reads",
    "test_what_a_graph_has_fetched_is_there_for_others",
    "test_the_same_array_again_is_copied",
    "test_arrays_that_are_written_to",
    "test_more_arrays_than_a_graph_fetches",
    "test_numbers_that_change_are_fetched_too",
    "test_pinned_tensors_are_read_where_they_are",
    "test_batches_that_are_kept_have_places_of_their_own",
    "test_a_write_to_a_pinned_tensor_leaves_its_copy",
)


@pytest.fixture(autouse=True)
def device(some_gpu: str) -> Iterator[None]:
    tc.set_default_device(some_gpu)
    yield
    tc.set_default_device(None)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each copy that the driver makes from the ring."""
    registry.get(as_device("cuda"))  # which copies a word of its own
    found: list[int] = []
    send = PinnedRing.send

    def counted(self: Any, address: int, place: int, nbytes: int) -> None:
        found.append(nbytes)
        send(self, address, place, nbytes)

    monkeypatch.setattr(PinnedRing, "send", counted)
    return found


def arrays(count: int, nbytes: int) -> list[Any]:
    rng = np.random.default_rng(nbytes)
    return [rng.standard_normal(nbytes // 4).astype(np.float32) for _ in range(count)]


def test_an_array_is_copied_when_it_is_needed_and_once(copies: list[int]) -> None:
    array = np.arange(1000, dtype=np.float32)
    x = tc.tensor(array)
    assert isinstance(x.node.storage, Staged) and not copies
    array[:] = -1
    assert (x + 1).tolist() == list(range(1, 1001))
    assert x.tolist() == list(range(1000))
    assert copies == [4000]


@pytest.mark.parametrize("nbytes", [4, 1000, 100_000, PART, PART + 4])
def test_more_than_the_ring_holds(nbytes: int) -> None:
    """All are alive: those whose part is written again have gone to the GPU before."""
    count = 3 * PARTS * PART // max(nbytes, 40_000)
    given = arrays(count, nbytes)
    found = [tc.tensor(array) for array in given]
    for x, array in zip(found, given):
        assert x.numpy().tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "bfloat16", "int64", "float64"])
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (3, 5)])
def test_every_dtype(dtype: str, shape: tuple[int, ...]) -> None:
    values = tc.arange(15, device="cpu")[: int(np.prod(shape))].reshape(*shape)
    values = values.to(getattr(tc, dtype))
    x = tc.tensor(values, device="cuda")
    assert x.dtype == values.dtype and x.tolist() == values.tolist()


def test_a_graph_fetches_what_only_it_reads(copies: list[int]) -> None:
    """No copy by the driver and one kernel's parameters, to the bits of arrays that are there."""
    w = tc.randn(300, 40)

    def function(x: Any, y: Any) -> Any:
        return (x @ w).softmax(1) * y

    call = tc.compile(function)
    given = [(a.reshape(64, 300), y) for a, y in zip(arrays(60, 76_800), arrays(60, 160))]
    resident = [call(tc.tensor(x) + 0, tc.tensor(y) + 0).numpy() for x, y in given]
    for _ in range(3):
        call(tc.tensor(given[0][0]), tc.tensor(given[0][1]))
    copies.clear()
    found = []
    for x, y in given:
        found.append(call(tc.tensor(x), tc.tensor(y)))
    assert settings.slow or not copies
    assert [f.numpy().tobytes() for f in found] == [r.tobytes() for r in resident]


def test_what_a_graph_has_fetched_is_there_for_others() -> None:
    """It is used again by the same graph, by another program and on the host, much later."""
    call = tc.compile(lambda x: x * 2 + 1)
    given = arrays(80, 100_000)
    kept = []
    for array in given:
        x = tc.tensor(array)
        kept.append((x, call(x)))
    for (x, y), array in zip(kept, given):
        assert y.numpy().tobytes() == (array * 2 + 1).tobytes()
        assert call(x).numpy().tobytes() == y.numpy().tobytes()
        assert (x - 1).numpy().tobytes() == (array - 1).tobytes()
        assert x.numpy().tobytes() == array.tobytes()


def test_the_same_array_again_is_copied(copies: list[int]) -> None:
    call = tc.compile(lambda x: x * 2)
    x = tc.tensor(np.ones(100, np.float32))
    for _ in range(5):
        assert call(x).tolist() == [2.0] * 100
    assert copies == [400]


def test_arrays_that_are_written_to() -> None:
    call = tc.compile(lambda x: x.add_(1))
    for number in range(5):
        x = tc.tensor(np.full(100, number, np.float32))
        y = x.clone()
        call(x)
        assert x.tolist() == [number + 1.0] * 100
        assert y.tolist() == [number] * 100


def test_more_arrays_than_a_graph_fetches() -> None:
    call = tc.compile(lambda *xs: sum(x * k for k, x in enumerate(xs)))
    given = arrays(FETCHED + 3, 400)
    expected = None
    for _ in range(5):
        found = call(*map(tc.tensor, given)).numpy().tobytes()
        expected = expected or found
        assert found == expected
    plain = sum(tc.tensor(x) * k for k, x in enumerate(given))
    assert plain.numpy().tobytes() == expected


def test_numbers_that_change_are_fetched_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam's corrections, a schedule and dropout's counter: one kernel has another parameter."""
    updates: list[bool] = []
    update = CudaGraph.update
    monkeypatch.setattr(
        CudaGraph,
        "update",
        lambda self, *words: updates.append(update(self, *words)) or updates[-1],
    )
    tc.manual_seed(0)
    model = tc.nn.Sequential(tc.nn.Linear(20, 30), tc.nn.Dropout(0.5), tc.nn.Linear(30, 5))
    optimizer = tc.optim.Adam(model.parameters(), lr=0.01)
    schedule = tc.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = tc.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.detach()

    call = tc.compile(step)
    counts = []
    for x in arrays(12, 1280):
        updates.clear()
        call(tc.tensor(x.reshape(16, 20)), tc.tensor(np.arange(16) % 5))
        counts.append(sum(updates))
    assert max(counts[6:]) <= 2, counts


@pytest.mark.parametrize("nbytes", [4, 100_000, SMALLEST, PART + 4])
def test_pinned_tensors_are_read_where_they_are(nbytes: int, copies: list[int]) -> None:
    """Without a copy by the host; small ones by a graph, large ones on the copy stream."""
    call = tc.compile(lambda x: x * 2 + 1)
    given = arrays(12, nbytes)
    for array in given:
        x = tc.tensor(array, device="cpu").pin_memory()
        assert x.is_pinned() and x.pin_memory() is x and x.device.type == "cpu"
        y = x.to("cuda", non_blocking=True)
        assert call(y).numpy().tobytes() == (array * 2 + 1).tobytes()
        assert y.numpy().tobytes() == array.tobytes()
    assert len(copies) == (len(given) if nbytes < SMALLEST else 0)
    copies.clear()
    found = [call(tc.tensor(a, device="cpu").pin_memory().to("cuda")) for a in given]
    assert settings.slow or not copies
    for y, array in zip(found, given):
        assert y.numpy().tobytes() == (array * 2 + 1).tobytes()


def test_batches_cross_the_bus_while_the_gpu_is_busy() -> None:
    """Each has its own values when it is used, and its memory takes turns with few others."""
    given = [tc.tensor(a, device="cpu").pin_memory() for a in arrays(8, SMALLEST)]
    w = tc.randn(2048, 2048) / 45
    call = tc.compile(
        lambda x: (x.reshape(-1, 2048) @ w @ w @ w).sum(1) + x.reshape(-1, 2048)[:, 0]
    )
    expected = [call(x.to("cuda") + 0).numpy().tobytes() for x in given]
    found, places = [], set()
    for number in range(200):
        x = given[number % 8].to("cuda", non_blocking=True)
        found.append(call(x))
        places.add(x.node.storage.address)
    assert [f.numpy().tobytes() for f in found] == expected * 25
    assert len(places) <= TURNS


def test_batches_that_are_kept_have_places_of_their_own() -> None:
    given = [tc.tensor(a, device="cpu").pin_memory() for a in arrays(12, SMALLEST)]
    kept = [x.to("cuda") for x in given]
    assert len({x.node.storage.address for x in kept}) == len(kept)
    for x, y in zip(given, kept):
        assert (y + 0).numpy().tobytes() == y.numpy().tobytes() == x.numpy().tobytes()
    place = kept.pop().node.storage.address
    given.pop()
    other = tc.ones(SMALLEST // 4)
    assert all(x.numpy().tobytes() == y.numpy().tobytes() for x, y in zip(given, kept))
    assert place and other.sum().item() == SMALLEST // 4


def test_a_write_to_a_pinned_tensor_leaves_its_copy() -> None:
    x = tc.tensor([1.0, 2.0], device="cpu").pin_memory()
    y = x.to("cuda")
    x.add_(1)
    assert x.tolist() == [2.0, 3.0] and y.tolist() == [1.0, 2.0]
    with pytest.raises(tc.ArgumentError, match="only tensors on cpu"):
        y.pin_memory()
