"""`.numpy()` shares memory as torch's does; everything else that has the value keeps its own."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.engine.cell import Cell

pytestmark = pytest.mark.usefixtures("on_cpu")


def seen_both_ways(t: Any) -> list[Any]:
    x = t.zeros(3)
    a = x.numpy()
    a[1] = 5
    seen = [x.tolist()]
    x += 2
    seen.append(a.tolist())
    x.fill_(9)
    seen += [a.tolist(), (x * 2).tolist()]
    a *= 3
    seen += [x.tolist(), x.numpy().tolist()]
    del a
    x.sub_(1)
    b = x.numpy()
    b[0] = -1
    return [*seen, x.tolist(), b.tolist()]


def clones_keep_theirs(t: Any) -> list[Any]:
    x = t.arange(4.0)
    y, z = x.clone(), x + 0
    view = x[1:3]
    a = x.numpy()
    a[:] = 7
    return [x.tolist(), y.tolist(), z.tolist(), view.tolist()]


def views(t: Any) -> list[Any]:
    x = t.zeros(2, 3)
    x.t().numpy()[0, 1] = 2
    x[1].numpy()[2] = 3
    x.view(6)[::2].numpy()[1] = 4
    a = x[:, 1:].numpy()
    x[0, 1] = 8
    return [x.tolist(), a.tolist()]


def views_by_strides(t: Any) -> list[Any]:
    """Views that a chain of NumPy's views would copy, or would not let write."""
    seen = []
    for view in (
        lambda x: x.diagonal(), lambda x: x.diagonal(1, 0, 2), lambda x: x[1].diagonal()[1:],
        lambda x: x.permute(2, 1, 0).diagonal(0, 0, 1), lambda x: x.narrow(1, 1, 2).diagonal(),
        lambda x: x.unfold(2, 2, 2), lambda x: x.unfold(1, 2, 1),
        lambda x: x[:, :1].expand(2, 3, 4),
        lambda x: t.view_as_complex(x.view(2, 3, 2, 2)).real.diagonal(), lambda x: x[:0],
    ):  # fmt: skip
        x = t.arange(24.0).reshape(2, 3, 4).clone()
        shown = view(x)
        array = shown.numpy()
        array[...] = 100
        seen += [x.tolist(), shown.tolist(), array.shape]
    return seen


def without_gradients(t: Any) -> list[Any]:
    w = t.ones(3, requires_grad=True)
    with t.no_grad():
        w.numpy()[1] = 5
        seen = [w.tolist(), np.asarray(w).tolist()]
    (w * w).sum().backward()
    return [*seen, w.grad.tolist()]


def gradients(t: Any) -> list[Any]:
    w = t.nn.Parameter(t.tensor([1.0, 2.0]))
    w.detach().numpy()[0] = 3
    (w * w).sum().backward()
    seen = [w.grad.tolist(), w.tolist()]
    w.grad.numpy()[:] = 1
    with t.no_grad():
        w -= w.grad
    return [*seen, w.tolist(), w.grad.tolist()]


def histories(t: Any) -> list[Any]:
    w = t.tensor([1.0, 2.0], requires_grad=True)
    y = w * 3
    y.detach().numpy()[0] = 10
    y.sum().backward()
    return [y.tolist(), w.grad.tolist()]


def temporaries(t: Any) -> list[Any]:
    x = t.zeros(2)
    x.numpy()[0] = 1
    x.numpy()[1] += 2
    part = x.numpy()[1:]
    part[0] = 9
    return [x.tolist(), part.tolist(), np.asarray(x).tolist()]


def arrays_taken(t: Any) -> list[Any]:
    """`as_tensor` and `asarray` share what they can, strides and 0-d arrays too."""
    seen = []
    for take in (t.as_tensor, t.asarray):
        a = np.zeros((2, 3))
        made = [take(a), take(a, dtype=t.float64), take(a.T), take(a[:, ::2]), take(a[1, 1:2][0:])]
        other = [take(a, dtype=t.float32), take([0.0]), t.tensor(a), t.asarray(a, copy=True)]
        a += 1
        made[0][0, 0] = 5
        made[2][2, 1] = 7
        y = made[0] * 2
        a[1, 0] = 9
        seen += [a.tolist(), y.tolist(), *[x.tolist() for x in (*made, *other)]]
        point = np.array(1.0)
        x = take(point)
        point[...] = 3
        seen.append(x.tolist())
    for given in (a, [1.0]):
        try:
            seen.append(t.asarray(given, dtype=t.float32, copy=False).tolist())
        except ValueError:
            seen.append(-1.0)
    return [*seen, t.asarray(a, copy=False, requires_grad=True).requires_grad]


def training(t: Any) -> list[Any]:
    layer = t.nn.Linear(2, 1)
    with t.no_grad():
        layer.weight.fill_(0.5), layer.bias.zero_()
    array = layer.weight.detach().numpy()
    optimizer = t.optim.SGD(layer.parameters(), 0.1, momentum=0.9)
    seen = []
    for _ in range(4):
        optimizer.zero_grad()
        layer(t.ones(3, 2)).square().mean().backward()
        optimizer.step()
        seen.append(array.tolist())
        array += 0.25
    return [*seen, layer.weight.tolist()]


@pytest.mark.parametrize(
    "program",
    [
        arrays_taken,
        seen_both_ways,
        clones_keep_theirs,
        views,
        views_by_strides,
        without_gradients,
        gradients,
        histories,
        temporaries,
        training,
    ],
)
def test_programs_agree_with_torch(program: Callable[[Any], list[Any]]) -> None:
    torch = pytest.importorskip("torch")
    for expected, found in zip(program(torch), program(tc)):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_recorded_gradients_keep_the_values_as_recorded() -> None:
    x, w = tc.tensor([2.0]), tc.tensor([3.0], requires_grad=True)
    y = w * x
    x.numpy()[0] = 50
    y.backward()
    assert w.grad.tolist() == [2.0]


def test_the_cell_is_ordinary_again_when_the_arrays_are_gone() -> None:
    x = tc.zeros(3)
    a = x.numpy()
    b = a[1:]
    del a
    gc.collect()
    b[0] = 4
    assert x.tolist() == [0.0, 4.0, 0.0] and type(x.cell) is not Cell
    del b
    gc.collect()
    assert (x + 0).tolist() == [0.0, 4.0, 0.0] and type(x.cell) is Cell


def test_compiled_functions_see_writes() -> None:
    w = tc.zeros(2)

    @tc.compile
    def f(x: tc.Tensor) -> tc.Tensor:
        return x + w

    one = tc.ones(2)
    found = [f(one).tolist() for _ in range(4)]
    array = w.numpy()
    for k in range(1, 5):
        array[:] = k
        found.append(f(one).tolist())
    assert found == [[1.0, 1.0]] * 4 + [[1.0 + k] * 2 for k in range(1, 5)]


def test_compiled_steps_write_to_arrays() -> None:
    layer = tc.nn.Linear(2, 1)
    optimizer = tc.optim.SGD(layer.parameters(), 0.1)

    @tc.compile
    def step(x: tc.Tensor) -> tc.Tensor:
        optimizer.zero_grad()
        loss = layer(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    x = tc.ones(3, 2)
    for _ in range(4):
        step(x)
    array = layer.weight.detach().numpy()
    for k in range(4):
        step(x)
        assert array.tolist() == layer.weight.tolist()
        array[:] = k
        assert layer.weight.tolist() == [[float(k)] * 2]


def test_dlpack() -> None:
    x = tc.arange(4.0)
    a = np.from_dlpack(x)
    a[0] = 5
    assert x.tolist() == [5.0, 1.0, 2.0, 3.0]
    torch = pytest.importorskip("torch")
    torch.from_dlpack(x)[1] = 6
    assert x.tolist() == [5.0, 6.0, 2.0, 3.0]


def test_same_memory_by_data_ptr() -> None:
    x = tc.arange(6.0).reshape(2, 3)
    assert x.data_ptr() == x.view(6).data_ptr() == x.detach().data_ptr()
    assert x[1].data_ptr() - x.data_ptr() == 12 and x.t()[1].storage_offset() == 1
    assert x.clone().data_ptr() != x.data_ptr() and x.data_ptr() > 0


@pytest.mark.parametrize("dtype", [tc.bfloat16, tc.float16, tc.int64, tc.bool])
def test_dtypes(dtype: Any) -> None:
    x = tc.tensor([[0, 1], [1, 0]]).to(dtype)
    x.numpy()[0, 0] = 1
    assert x.float().tolist() == [[1.0, 1.0], [1.0, 0.0]] and x.numpy().dtype == dtype.numpy
    assert tc.zeros(0, 3, dtype=dtype).numpy().shape == (0, 3)
    assert tc.tensor(1).to(dtype).numpy().shape == ()


def test_strided_arrays_are_shared() -> None:
    torch = pytest.importorskip("torch")
    for make in (
        lambda: np.arange(6.0)[::2],
        lambda: np.arange(6.0).reshape(2, 3).T,
        lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        lambda: np.arange(12.0).reshape(3, 4)[:, 1:3],
        lambda: np.broadcast_to(np.arange(2.0), (3, 2)).copy()[:, :1],
        lambda: np.array(3.0),
    ):
        results = []
        for t in (torch, tc):
            array = make()
            x = t.from_numpy(array)
            seen = [x.tolist(), x.stride(), x.is_contiguous(), (x + 1).tolist()]
            x += 1
            array *= 2
            results.append([*seen, x.tolist(), array.tolist(), x.sum().item()])
        assert results[0] == results[1]
    with pytest.raises(tc.ArgumentError, match="cannot share this memory"):
        tc.from_numpy(np.arange(3)[::-1])


def test_read_only_arrays_are_shared_until_a_write() -> None:
    array = np.arange(3.0)
    array.flags.writeable = False
    with pytest.warns(UserWarning, match="read-only"):
        x = tc.from_numpy(array)
    assert (x * 2).tolist() == [0.0, 2.0, 4.0]
    x += 1
    assert x.tolist() == [1.0, 2.0, 3.0] and array.tolist() == [0.0, 1.0, 2.0]


def test_where_by_bytes() -> None:
    condition = tc.tensor([1, 0], dtype=tc.uint8)
    assert tc.where(condition, 5, 6).tolist() == [5, 6]


def test_attributes_of_tensors() -> None:
    x = tc.ones(2)
    x.note = "mine"
    assert x.note == "mine" and not hasattr(tc.ones(2), "note")
