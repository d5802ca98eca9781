"""Views and rows of large memory that NumPy writes as well: values beside torch's, what is read."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.data import DataLoader, TensorDataset
from tinygrad_cuda.engine.shared import LARGE, SharedCell

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("on_cpu")

ROWS, COLUMNS = 300, 70


class Both:
    """The same program under both libraries, each over a NumPy array of its own.

    Args:
        draw: decides what is done.
    """

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        begin = np.random.default_rng(draw.randrange(1000)).integers(0, 99, (ROWS, COLUMNS))
        self.arrays = [begin.astype(np.float64) for _ in range(2)]
        self.libraries = (tc, torch)
        self.shown = [[lib.from_numpy(array)] for lib, array in zip(self.libraries, self.arrays)]
        self.kept: list[list[Any]] = [[], []]

    def each(self, function: Callable[[Any, Any], Any]) -> list[Any]:
        return [function(lib, own) for lib, own in zip(self.libraries, self.shown)]

    def view(self) -> None:
        """One of what is shown, through another movement."""
        which = self.draw.randrange(len(self.shown[0]))
        shape = tuple(self.shown[1][which].shape)
        if not shape or 0 in shape:
            return
        size = shape[0]
        at, length, step = (
            self.draw.randrange(size),
            self.draw.randint(1, 40),
            self.draw.choice([1, 1, 3]),
        )
        end = shape[-1]
        movements: list[Callable[[Any], Any]] = [
            lambda x: x[at], lambda x: x[at : at + length : step], lambda x: x[..., end // 2 :],
            lambda x: x.transpose(0, -1), lambda x: x[-1:], lambda x: x.narrow(0, at, 1),
            lambda x: x.unsqueeze(0), lambda x: x[None, at], lambda x: x.split(7)[-1],
            lambda x: x.unbind(0)[at], lambda x: x.select(0, at), lambda x: x.expand(2, *x.shape),
            lambda x: x.diagonal() if x.ndim > 1 else x, lambda x: x.T if x.ndim == 2 else x,
            lambda x: x.flip(0), lambda x: x.detach(), lambda x: x.reshape(-1)[: max(1, length)],
        ]  # fmt: skip
        movement = self.draw.choice(movements)
        for own in self.shown:
            own.append(movement(own[which]))

    def rows(self) -> None:
        """Rows by positions or a mask: a copy, which stays as it is."""
        which = self.draw.randrange(len(self.shown[0]))
        shape = tuple(self.shown[1][which].shape)
        if not shape or 0 in shape:
            return
        index = [self.draw.randrange(-shape[0], shape[0]) for _ in range(self.draw.randint(1, 5))]
        mask = [self.draw.random() < 0.1 for _ in range(shape[0])]
        kind = self.draw.randrange(4)
        for lib, own, kept in zip(self.libraries, self.shown, self.kept):
            key = (index, lib.tensor(index), np.array(index), lib.tensor(mask))[kind]
            kept.append(own[which][key])

    def write(self) -> None:
        """By NumPy, or through one of what is shown."""
        which, value = self.draw.randrange(len(self.shown[0])), self.draw.random()
        kind, row = self.draw.randrange(5), self.draw.randrange(ROWS)
        shape, stride = self.shown[1][which].shape, self.shown[1][which].stride()
        repeats = any(n > 1 and not s for n, s in zip(shape, stride))
        for own, array in zip(self.shown, self.arrays):
            if kind == 0:
                array[row] += value
            elif kind == 1:
                array[:, row % COLUMNS] = value
            elif kind == 2 and not repeats:
                own[which].add_(value)
            elif kind == 3 and not repeats:
                own[which].zero_()
            elif kind == 4 and len(shape) and shape[0] and not repeats:
                own[which][0] = value

    def check(self) -> None:
        for one, other in zip(*self.shown):
            assert tuple(one.shape) == tuple(other.shape)
            np.testing.assert_array_equal(np.array(one.tolist()), np.array(other.tolist()))
            apart = other.data_ptr() - self.arrays[1].ctypes.data
            if other.numel() and 0 <= apart < self.arrays[1].nbytes:  # no copy, as flip makes
                assert one.data_ptr() - self.arrays[0].ctypes.data == apart
        for one, other in zip(*self.kept):
            np.testing.assert_array_equal(one.numpy(), other.numpy())
        np.testing.assert_array_equal(*self.arrays)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    """Views of views, rows, writes from both sides; all that is shown is compared."""
    draw = random.Random(seed)
    both = Both(draw)
    for _ in range(25):
        draw.choices([both.view, both.rows, both.write], [4, 2, 3])[0]()
        if draw.random() < 0.3:
            both.check()
    both.check()


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each comparison of memory with the value that was read last."""
    found: list[int] = []
    unchanged = SharedCell.unchanged

    def noted(cell: SharedCell, node: Any) -> bool:
        found.append(cell.memory.nbytes)
        return unchanged(cell, node)

    monkeypatch.setattr(SharedCell, "unchanged", noted)
    return found


def test_what_is_compared(compared: list[int]) -> None:
    """Shapes are, slices and rows are not asked of all memory."""
    array = np.zeros((4 * LARGE // 8, 8), np.float32)
    x, w = tc.from_numpy(array), tc.ones(8, 3)
    images = x.view(-1, 2, 4)
    parts: list[Callable[[], Any]] = [
        lambda: x[5:9] @ w, lambda: x[7] @ w, lambda: x[3, 2] * 2, lambda: images[4].sum(),
        lambda: x.split(64)[3] + 1, lambda: x.T[2, :3] + 1, lambda: x[3], lambda: x[1, 2],
    ]  # fmt: skip
    for part in parts:  # the first call makes a template
        part().tolist()
    compared.clear()
    facts = x.shape, len(x), x.dtype, x.device, x.ndim, x.numel(), x.size(0), x.stride()
    assert facts[1] == len(array)
    rows = x[[1, 2]], x[tc.tensor([3])], x[np.arange(5)], x[tc.zeros(len(x)).bool()]
    assert [len(part) for part in rows] == [2, 1, 5, 0]
    for part in parts:
        part().tolist()
    assert x[1, 2].item() == 0 and "0." in repr(x[3])
    assert not compared
    for _ in range(2):  # the first call makes a template
        compared.clear()
        (x @ w).sum().item()
    assert compared == [array.nbytes]


def test_batches_of_a_dataset(compared: list[int]) -> None:
    """As programs for PyTorch load their data: no batch compares all of it."""
    images = np.random.default_rng(0).random((512, 1, 16, 16), np.float32)
    labels = np.arange(512) % 10
    data = TensorDataset(tc.from_numpy(images), tc.from_numpy(labels))
    compared.clear()
    seen = [(x.shape, int(y.sum())) for x, y in DataLoader(data, batch_size=64)]
    assert [shape for shape, _ in seen] == [(64, 1, 16, 16)] * 8
    assert sum(total for _, total in seen) == labels.sum()
    assert max(compared, default=0) <= 64 * 16 * 16 * 4


def test_places_in_memory() -> None:
    """A part begins where it does in torch's."""
    array = np.zeros((400, 100), np.float32)
    for make in (lambda x: x[7], lambda x: x[3:9, 2:], lambda x: x[1:][4]):
        ours, other = make(tc.from_numpy(array)), make(torch.from_numpy(array))
        assert ours.storage_offset() == other.storage_offset()
        assert ours.data_ptr() == other.data_ptr()
        assert ours.stride() == other.stride()
        assert np.shares_memory(ours.numpy(), array)


def test_gradients_pass_through_parts() -> None:
    """Of memory that requires a gradient, views have their history."""
    array = np.ones((400, 100), np.float32)
    x = tc.from_numpy(array).requires_grad_()
    (x[3:5] * 2).sum().backward()
    assert x.grad.sum().item() == 400 and x.grad[3].tolist() == [2.0] * 100
    weight = tc.ones(100, requires_grad=True)
    part = tc.from_numpy(array)[3:5]
    loss = (part @ weight).sum()
    array[3] = 5  # after the forward pass: the value then counts
    loss.backward()
    assert weight.grad.tolist() == [2.0] * 100


@pytest.mark.parametrize("rows", [10, 400])
@pytest.mark.parametrize("given", [False, True])
def test_compiled_writes_show_in_parts(rows: int, given: bool) -> None:
    """A part and what it is of are one memory to a compiled function, too, small or large."""
    results = []
    for library in (tc, torch):
        array = np.zeros((rows, 100), np.float32)
        x = library.from_numpy(array)
        part = x[3:5]

        def add(x: Any, part: Any, number: Any) -> Any:
            x.add_(number)
            part.mul_(2)
            return part.sum() + x.sum()

        def of_names(number: Any, add: Any = add, x: Any = x, part: Any = part) -> Any:
            return add(x, part, number)

        step = add if given else of_names
        step = tc.compile(step) if library is tc else step
        seen = []
        for turn in range(5):
            arguments = (x, part) if given else ()
            seen.append(float(step(*arguments, library.ones(1) * turn)))
            array[4, 0] += 1
        results.append((seen, array.tolist()))
    assert results[0] == results[1]


def test_bad_positions() -> None:
    x = tc.from_numpy(np.zeros((400, 100), np.float32))
    for key in ([400], tc.tensor([-401]), np.array([1, 999])):
        with pytest.raises(tc.IndexError):
            x[key].tolist()
    with pytest.raises(tc.IndexError):
        x[400]
    with pytest.raises(tc.IndexError):
        x[tc.ones(3).bool()]
