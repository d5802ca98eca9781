"""``x[t]`` with a 0-d integer Tensor: a view whose index stays on the device, as torch's views."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.engine.plan import cache

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("device")

Program = Callable[[Any, Any], Any]


def fill(lib: Any, x: Any) -> Any:
    x[lib.tensor(1)].fill_(5)
    return x


def column(lib: Any, x: Any) -> Any:
    y = x[:, lib.tensor(-1)]
    y.mul_(2)
    return x, y


def index_changes(lib: Any, x: Any) -> Any:
    """The view stays where it was made."""
    t = lib.tensor(0)
    y = x[t]
    t += 1
    y.add_(100)
    x[t].sub_(100)
    return x, y, t


def several(lib: Any, x: Any) -> Any:
    y = x[lib.tensor(0), 1:, lib.tensor(2)]
    y.add_(100)
    return x, y


def beside_arrays(lib: Any, x: Any) -> Any:
    """The integer Tensor goes first, as an integer does."""
    x[lib.tensor(1), [0, 2]] = -3.0
    return x, x[:, lib.tensor(1), [0, 3]], x[[0, 1], :, lib.tensor(1)], x[lib.tensor(0), :, [1, 1]]


def new_dimensions(lib: Any, x: Any) -> Any:
    y = x[None, lib.tensor(1), ..., None]
    y += 1
    return x, y


def augmented(lib: Any, x: Any) -> Any:
    x[lib.tensor(1), lib.tensor(0)] += 10
    x[:, lib.tensor(2)] *= -1
    return x


def view_of_view(lib: Any, x: Any) -> Any:
    y = x.transpose(0, 2)[lib.tensor(3)].t()[lib.tensor(1)][1:]
    y.fill_(0)
    return x, y


def of_an_expansion(lib: Any, x: Any) -> Any:
    x[:1].expand(4, 3, 4)[lib.tensor(2)].add_(1)
    return x


def of_windows(lib: Any, x: Any) -> Any:
    x.unfold(2, 2, 1)[..., lib.tensor(2), :].fill_(7)
    return x


def selected(lib: Any, x: Any) -> Any:
    """`select` is an index, whatever holds the number."""
    t = lib.tensor([1])
    y = x.select(2, t)
    t += 1
    y.add_(100)
    return x, lib.select(x, -2, t.reshape(())), x.select(0, -t.sum() + 1)


def written_elsewhere(lib: Any, x: Any) -> Any:
    """The view shows what is written to the tensor later."""
    y = x[lib.tensor(1)]
    x.mul_(3)
    return y, x


def small_integers(lib: Any, x: Any) -> Any:
    return x[lib.tensor(1, dtype=lib.int8)].add_(1), x[lib.tensor(-1, dtype=lib.int32)].add_(1), x


def masks(lib: Any, x: Any) -> Any:
    """0-d bools and bytes are masks: a new dimension, and a copy."""
    some = [x[lib.tensor(n, dtype=lib.uint8)] for n in (0, 1, 3)]
    some += [x[lib.tensor(True)], x[lib.tensor(False)]]
    rows = lib.tensor([1, 0], dtype=lib.uint8)
    return *[y.clone() for y in some], x[rows], some[1].add_(1), x


PROGRAMS = [
    fill, column, index_changes, several, beside_arrays, new_dimensions, augmented, view_of_view,
    of_an_expansion, of_windows, selected, written_elsewhere, small_integers, masks,
]  # fmt: skip


def _facts(results: Any) -> list[Any]:
    results = results if isinstance(results, tuple) else (results,)
    return [(x.tolist(), tuple(x.shape), tuple(x.stride())) for x in results]


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("program", PROGRAMS)
def test_values_and_strides(program: Program) -> None:
    data = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    ours = program(tc, tc.tensor(data))
    theirs = program(torch, torch.tensor(data))
    assert _facts(ours) == _facts(theirs)


@pytest.mark.parametrize("program", [fill, several, augmented, view_of_view, written_elsewhere])
def test_gradients(program: Program) -> None:
    """Through what was written and through what was there before."""

    def gradient(lib: Any) -> Any:
        x = lib.arange(24.0).reshape(2, 3, 4).requires_grad_()
        results = program(lib, x * 2)
        results = results if isinstance(results, tuple) else (results,)
        sum((y * y * (n + 1)).sum() for n, y in enumerate(results)).backward()
        return x.grad.tolist()

    assert gradient(tc) == gradient(torch)


def test_a_view_of_a_leaf_is_not_written() -> None:
    x = tc.ones(2, 3, requires_grad=True)
    with pytest.raises(tc.GradientError, match="written in place"):
        x[tc.tensor(1)].fill_(5)
    with tc.no_grad():
        x[tc.tensor(1)].fill_(5)
    assert x.tolist() == [[1] * 3, [5] * 3] and x.is_leaf


@pytest.mark.parametrize("bad", [2, -3])
def test_out_of_range(bad: int) -> None:
    """The error has the line of the call; nothing is written."""
    x = tc.ones(2, 3)
    x.tolist()
    y = x[tc.tensor(bad)]
    with pytest.raises(tc.IndexError) as caught:
        y.tolist()
    assert "y = x[tc.tensor(bad)]" in str(caught.value)
    assert "-2 <= index < 2" in str(caught.value)
    x[tc.tensor(bad)].fill_(7)
    with pytest.raises(tc.IndexError, match=rf"actual: {bad}\b"):
        x.tolist()
    assert x.tolist() == [[1.0] * 3] * 2
    with pytest.raises(tc.IndexError):
        tc.tensor(1.0)[tc.tensor(0)]


@pytest.mark.parametrize("index", [2, [2]])
def test_a_view_after_an_error(index: Any) -> None:
    """A view that is looked at with the error shows what was there before."""
    x = tc.arange(6.0).reshape(2, 3).requires_grad_()
    (x * x).sum().backward()
    assert x.grad is not None
    x.grad.tolist()
    x.detach()[tc.tensor(index)] = 3
    with pytest.raises(tc.IndexError):
        x.tolist()
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_where_it_lies() -> None:
    """Offset, address, NumPy's view and as_strided read the index."""
    x = tc.arange(12.0).reshape(3, 4)
    y = x[1:, tc.tensor(2)]
    assert (y.storage_offset(), y.stride(), y.data_ptr()) == (6, (4,), x[1, 2].data_ptr())
    assert tc.as_strided(y, (2,), (1,)).tolist() == [6, 7]
    if x.device.kind == "cpu":
        y.numpy()[:] = -1
        assert x[:, 2].tolist() == [2, -1, -1]


def test_copies_keep_the_alias() -> None:
    x = tc.arange(6.0).reshape(2, 3)
    same, view = copy.deepcopy([x, x[tc.tensor(1)]])
    view.fill_(9)
    assert (same.tolist(), x[1].tolist()) == ([[0, 1, 2], [9, 9, 9]], [3, 4, 5])


def test_no_look_is_needed() -> None:
    """The index may be a result that nobody has computed yet."""
    x = tc.zeros(4)
    t = (tc.tensor([0.1, 0.9, 0.3]) * 2).argmax()
    x[t].add_(1)
    x[t + 1].add_(2)
    assert x.tolist() == [0, 1, 2, 0]


def test_one_plan_for_every_index() -> None:
    table, plans = tc.arange(9.0) + 1, []
    for n in range(9):
        assert (table[tc.tensor(n)] * 2).item() == 2 * n + 2
        plans.append(cache.made)
    assert plans[2:] == plans[2:3] * 7


def test_select_follows_the_index_through_replays() -> None:
    x = tc.arange(12.0).reshape(3, 4)
    column = tc.compile(lambda t: x.select(1, t) * 1)
    for number in (0, 3, -2, 1):
        assert column(tc.tensor(number)).tolist() == x[:, number].tolist()
    with pytest.raises(tc.IndexError, match=r"\[select\]"):
        column(tc.tensor(4)).tolist()
    with pytest.raises(tc.DTypeError, match="not an integer"):
        x.select(0, tc.tensor(1.0))
    with pytest.raises(tc.IndexError, match="out of range"):
        x.select(0, 3)
    with pytest.raises(tc.IndexError, match="no dimension"):
        tc.tensor(1.0).select(0, 0)


def test_vmap() -> None:
    x = tc.arange(6.0).reshape(3, 2)
    found = tc.func.vmap(lambda row, t: row[t] * 2)(x, tc.tensor([1, 0, 1]))
    assert found.tolist() == [2, 4, 10]


def _random(lib: Any, seed: int) -> list[Any]:
    """Views of views, with 0-d indices among the keys, some of them written."""
    k = random.Random(seed)
    x = lib.arange(60.0).reshape(3, 4, 5) * 1
    views = [x]
    for _ in range(8):
        view = k.choice([v for v in views if v.dim() and v.numel()])
        axis = k.randrange(view.dim())
        n = view.shape[axis]
        key: list[Any] = [slice(None)] * axis
        draw = k.randrange(4)
        if draw < 2:
            key.append(lib.tensor(k.randrange(-n, n)))
        else:
            key.append(slice(k.randrange(n), None, k.randint(1, 2)))
        if draw % 2 and view.dim() > 1:
            view = view.transpose(0, -1)
            key = [key[-1]] if view.shape[0] == n else [lib.tensor(0)]
        views.append(view[tuple(key)])
        if k.random() < 0.6:
            k.choice(views).mul_(2).add_(k.randrange(5))
    return views


@pytest.mark.parametrize("seed", range(2))
def test_random_views(seed: int) -> None:
    ours, theirs = _random(tc, seed), _random(torch, seed)
    assert [(x.tolist(), tuple(x.stride())) for x in ours] == [
        (x.tolist(), tuple(x.stride())) for x in theirs
    ]
    assert [x.storage_offset() for x in ours] == [x.storage_offset() for x in theirs]


# tc.compile ---------------------------------------------------------------------------------------


def _compiled(function: Callable[..., Any], calls: list[Any]) -> Callable[..., Any]:
    def counted(*args: Any) -> Any:
        calls.append(None)
        return function(*args)

    return tc.compile(counted)


def _run(make: Callable[[], Any], compiled: bool) -> tuple[list[Any], int]:
    """What calls return, and their arguments after something was written to each result."""
    function, arguments = make()
    calls: list[Any] = []
    call = _compiled(function, calls) if compiled else function
    found = []
    for number in (0, 1, 2, 1, 0, -1, 2):
        given = arguments(number)
        result = call(*given)
        results = [] if result is None else list(result) if isinstance(result, tuple) else [result]
        for count, x in enumerate(results):
            x.add_(count + 1)
        found.append([x.tolist() for x in (*results, *given)])
    return found, len(calls)


def read_and_written() -> Any:
    def step(x: Any, t: Any) -> Any:
        x[:, t].mul_(2)
        return x.sum(0)[t] * 3

    return step, lambda n: (tc.arange(12.0).reshape(4, 3) + n, tc.tensor(n))


def view_of_a_result() -> Any:
    return lambda x, t: (x * 2)[t], lambda n: (tc.arange(12.0).reshape(4, 3) + n, tc.tensor(n))


def view_of_an_argument() -> Any:
    return lambda x, t: x[t], lambda n: (tc.arange(12.0).reshape(4, 3) + n, tc.tensor(n))


def plain_view_of_an_argument() -> Any:
    return lambda x: (x.t()[0], x[1]), lambda n: (tc.arange(12.0).reshape(4, 3) + n,)


def view_of_a_view() -> Any:
    base = tc.arange(24.0).reshape(4, 2, 3)
    return lambda x, t, _: x[:, t], lambda n: (base[n], tc.tensor(n), base)


def view_of_state() -> Any:
    table = tc.arange(12.0).reshape(4, 3) * 1

    def step(t: Any) -> Any:
        table[t].add_(100)
        return table[t + 1]

    return step, lambda n: (tc.tensor(n % 3),)


def written_argument() -> Any:
    """The argument is a view at an index that changes, and is written."""
    base = tc.arange(12.0).reshape(4, 3) * 1
    return lambda x: x.mul_(2), lambda n: (base[tc.tensor(n)],)


@pytest.mark.parametrize(
    ("make", "traces"),
    [
        (read_and_written, 2), (view_of_a_result, 2), (view_of_an_argument, 2),
        (plain_view_of_an_argument, 2), (view_of_a_view, 2), (view_of_state, 2),
        (written_argument, 3),
    ],
)  # fmt: skip
def test_compiled(make: Callable[[], Any], traces: int) -> None:
    """The index is captured, never frozen: replays follow it, and views are those of the call."""
    plain, _ = _run(make, False)
    found, calls = _run(make, True)
    assert found == plain
    assert settings.slow or calls <= traces, "a changing index needs no further trace"
