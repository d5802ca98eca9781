"""Reading and writing by key, gather and scatter against torch: values, gradients, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from twins import compare, errors, values

import tinygrad_cuda as tc
from tinygrad_cuda.engine.plan import cache

pytestmark = pytest.mark.smoke("tensors")

Program = Callable[..., Any]
Key = Callable[[Any], Any]


def array(lib: Any, *items: Any) -> Any:
    """An int64 tensor of either library."""
    return lib.tensor(list(items), device="cpu")


def mask(lib: Any, *shape: int) -> Any:
    """A fixed bool tensor of either library."""
    chosen = values(*shape, dtype="bool", seed=3)
    return tc.tensor(chosen, device="cpu") if lib is tc else lib.tensor(chosen)


VIEWS: dict[str, Key] = {
    "int": lambda lib: 1,
    "negative int": lambda lib: -1,
    "NumPy int": lambda lib: np.int64(2),
    "slice": lambda lib: slice(1, 3),
    "slice step": lambda lib: slice(None, None, 2),
    "slice negative": lambda lib: slice(-3, -1),
    "slice beyond": lambda lib: slice(2, 100),
    "slice empty": lambda lib: slice(3, 1),
    "two": lambda lib: (1, slice(1, None, 2)),
    "ellipsis": lambda lib: (..., 2),
    "ellipsis alone": lambda lib: ...,
    "ellipsis middle": lambda lib: (0, ..., slice(1, 2)),
    "ellipsis for nothing": lambda lib: (0, 1, ..., 2),
    "all ints": lambda lib: (3, 4, 5),
    "none": lambda lib: None,
    "nones": lambda lib: (None, 1, None, slice(0, 2), None),
    "colon": lambda lib: slice(None),
}

ARRAYS: dict[str, Key] = {
    "list": lambda lib: [0, 2],
    "list of one tensor": lambda lib: array(lib, 1, 1, 0),
    "negative array": lambda lib: array(lib, -1, 0, -4),
    "NumPy array": lambda lib: np.array([[0, 1], [2, 3]]),
    "matrix": lambda lib: array(lib, [0, 1, 2], [3, 2, 1]),
    "int32": lambda lib: array(lib, 1, 2).to(lib.int32),
    "empty": lambda lib: array(lib, 1, 2)[:0],
    "two arrays": lambda lib: (array(lib, 0, 1), array(lib, 2, 4)),
    "broadcast arrays": lambda lib: (array(lib, [0], [3]), array(lib, 1, 2, -1)),
    "in the middle": lambda lib: (slice(None), array(lib, 4, 0, 1)),
    "adjacent": lambda lib: (slice(1, 3), array(lib, 0, 1), array(lib, 2, 2)),
    "separated": lambda lib: (array(lib, 0, 1), slice(None), array(lib, 2, 2)),
    "separated by none": lambda lib: (array(lib, 0, 1), None, array(lib, 2, 2)),
    "with an int between": lambda lib: (array(lib, 0, 1), 2, array(lib, 2, 2)),
    "int first": lambda lib: (0, slice(None), array(lib, 1, 2)),
    "ellipsis": lambda lib: (..., array(lib, 1, 0)),
    "matrix in the middle": lambda lib: (slice(None), array(lib, [0, 1], [2, 3]), slice(0, 2)),
    "three": lambda lib: (array(lib, 0, 1), array(lib, 1, 2), array(lib, 3, 4)),
    "0-d tensor": lambda lib: lib.tensor(2, device="cpu"),
    "0-d tensor and array": lambda lib: (
        lib.tensor(2, device="cpu"), slice(None), array(lib, 0, 5)
    ),
    "two 0-d tensors": lambda lib: (lib.tensor(2, device="cpu"), lib.tensor(-1, device="cpu")),
    "with none": lambda lib: (None, array(lib, 0, 1), None),
    "mask": lambda lib: mask(lib, 4, 5, 6),
    "mask of rows": lambda lib: mask(lib, 4),
    "mask of two": lambda lib: mask(lib, 4, 5),
    "mask in the middle": lambda lib: (slice(None), mask(lib, 5)),
    "mask of the last two": lambda lib: (slice(1, 3), mask(lib, 5, 6)),
    "mask and array": lambda lib: (lib.tensor([True, False, True, False], device="cpu"),
                                   array(lib, 1, 2)),
    "mask list": lambda lib: [True, False, True, True],
    "True": lambda lib: True,
    "False": lambda lib: False,
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str) -> None:
    """Integers, slices, None and Ellipsis give torch's values, strides and gradients."""
    compare(lambda lib, x: x[VIEWS[name](lib)], values(4, 5, 6), grad=name != "slice empty")
    compare(lambda lib, x: x.permute(2, 0, 1)[VIEWS[name](lib)], values(5, 6, 4), grad=False)


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(name: str) -> None:
    """Arrays and masks place their dimensions where torch does; gradients add up."""
    compare(lambda lib, x: x[ARRAYS[name](lib)], values(4, 5, 6), strides=False)


@pytest.mark.parametrize("name", [*VIEWS, *ARRAYS])
def test_writes(name: str) -> None:
    """A number, a tensor of the full shape and a broadcast row are written to every kind of key."""
    key = (VIEWS | ARRAYS)[name]

    def number(lib: Any, x: Any) -> Any:
        x[key(lib)] = 7
        return x

    def whole(lib: Any, x: Any) -> Any:
        place = x[key(lib)]
        size = place.numel()
        x[key(lib)] = lib.arange(size, device="cpu").reshape(place.shape).to(x.dtype)
        return x

    def broadcast(lib: Any, x: Any) -> Any:
        place = x[key(lib)]
        row = place.shape[-1:] if place.ndim else ()
        x[key(lib)] = lib.full((1, 1, *row), 3, device="cpu").to(x.dtype)
        return x

    repeated = {"matrix", "list of one tensor"}
    for program in (number, broadcast) if name in repeated else (number, whole, broadcast):
        compare(program, values(4, 5, 6), grad=False)


@pytest.mark.parametrize("name", ["slice", "two", "nones", "adjacent", "separated", "mask of two"])
def test_gradients_of_writes(name: str) -> None:
    """Overwritten values receive no gradient, written ones do."""
    key = (VIEWS | ARRAYS)[name]

    def program(lib: Any, x: Any, y: Any) -> Any:
        z = x * 1.5
        z[key(lib)] = y
        return z * z

    compare(program, values(4, 5, 6), values(1))


MASKED: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "0-d": ((), (), (3, 4)),
    "0-d, a row": ((), (), (4,)),
    "0-d of a number": ((), (), ()),
    "0-d in the middle": ((slice(None),), (), (3, 1, 4)),
    "rows": ((), (3,), (1, 4)),
    "columns": ((slice(None),), (4,), (3, 1)),
    "the last": ((...,), (4,), ()),
    "the last, with an int": ((1,), (4,), (1,)),
    "with a slice and none": ((slice(1, 3), None), (4,), (2, 1, 1)),
}


@pytest.mark.parametrize("name", MASKED)
def test_masked_writes_look_at_no_mask(name: str) -> None:
    """Where the value has one element for all places; so a compiled function may do it."""
    before, sizes, shape = MASKED[name]
    call = tc.compile(lambda x, chosen, y: masked(x, chosen, y))

    def masked(x: Any, chosen: Any, y: Any) -> Any:
        z = x * 2
        z[(*before, chosen) if before else chosen] = y
        return z

    for seed in range(4):
        chosen = values(*sizes, dtype="bool", seed=seed)
        chosen = np.asarray(chosen) if sizes else np.asarray(seed % 2 == 0)

        def program(lib: Any, x: Any, y: Any) -> Any:
            return masked(x, lib.tensor(chosen, device="cpu"), y)  # noqa: B023

        x, y = values(*((3, 4) if name != "0-d of a number" else ())), values(*shape, seed=seed)
        compare(program, x, y)
        given = [tc.tensor(a, device="cpu") for a in (x, chosen, y)]
        assert call(*given).tolist() == masked(*given).tolist()


def test_write_of_a_masked_count() -> None:
    """As many values as the mask has places are written in order."""

    def program(lib: Any, x: Any, y: Any) -> Any:
        z = x * 1
        chosen = mask(lib, 4, 5)
        z[chosen] = y[: int(chosen.sum())]
        return z

    compare(program, values(4, 5), values(20))


def test_writes_reach_aliases() -> None:
    """A write by key to a view of a view reaches the base."""

    def program(lib: Any, x: Any) -> Any:
        part = x.transpose(0, 1)[1:]
        part[array(lib, 0, 2), 1] = -1
        part[..., 2][part[..., 2] > 0] = 9
        part[0] += 100
        return x

    compare(program, values(4, 5), grad=False)


def test_in_place_operators_by_key() -> None:
    """``x[key] += y`` reads, adds and writes once."""

    def program(lib: Any, x: Any) -> Any:
        x[1] += 1
        x[:, [0, 2]] *= 2
        x[x < 0] -= 5
        return x

    compare(program, values(3, 4), grad=False)


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool"])
def test_dtypes(dtype: str) -> None:
    """Every kind of dtype is read and written; the target keeps its dtype."""

    def program(lib: Any, x: Any) -> Any:
        x[0, 1:] = 1
        x[array(lib, 1, 2)] = lib.tensor([1.0, 0.0, 3.0], device="cpu").to(x.dtype)
        x[mask(lib, 4, 3)] = 0
        return x, x[array(lib, 3, 0)], x[mask(lib, 4)]

    compare(program, values(4, 3, dtype=dtype), grad=False, strides=False)


SELECTIONS: dict[str, Program] = {
    "gather": lambda lib, x, i: lib.gather(x, 1, i),
    "gather first": lambda lib, x, i: x.gather(0, i % 3),
    "gather a part": lambda lib, x, i: x.gather(1, i[:2, :3]),
    "take_along_dim": lambda lib, x, i: lib.take_along_dim(x, i, dim=1),
    "take_along_dim broadcast": lambda lib, x, i: x.take_along_dim(i[:1], 1),
    "take_along_dim flat": lambda lib, x, i: x.take_along_dim(i),
    "take": lambda lib, x, i: lib.take(x, i),
    "take negative": lambda lib, x, i: x.take(-i - 1),
    "index_select": lambda lib, x, i: lib.index_select(x, 1, i[0]),
    "index_select first": lambda lib, x, i: x.index_select(0, i[:, 0] % 3),
    "scatter": lambda lib, x, i: x.scatter(1, array(lib, [1, 3], [0, 2]), x[:2, :2] * 2),
    "scatter value": lambda lib, x, i: lib.scatter(x, 0, i % 3, 2.5),
    "scatter_add": lambda lib, x, i: lib.scatter_add(x, 1, i, x.flip(0)),
    "scatter_add first": lambda lib, x, i: x.scatter_add(0, i[:2, :2] % 3, x[:2, :2]),
    "index_add": lambda lib, x, i: lib.index_add(x, 1, i[0], x * 2),
    "index_add alpha": lambda lib, x, i: x.index_add(0, array(lib, 2, 2), x[:2], alpha=-3),
    "index_copy": lambda lib, x, i: x.index_copy(1, array(lib, 4, 0), x[:, :2]),
    "index_fill": lambda lib, x, i: x.index_fill(0, array(lib, 1), -2.0),
    "masked_fill": lambda lib, x, i: lib.masked_fill(x, i > 2, 4.0),
    "masked_fill broadcast": lambda lib, x, i: x.masked_fill(i[0] > 2, 4),
    "masked_fill tensor": lambda lib, x, i: x.masked_fill(i > 2, x[0, 0]),
    "masked_select": lambda lib, x, i: lib.masked_select(x, i[:1] > 1),
    "where": lambda lib, x, i: lib.where(i > 1, x, x.flip(1)),
    "where number": lambda lib, x, i: lib.where(i > 1, x, 0),
    "where numbers": lambda lib, x, i: (lib.where(i > 1, 1.5, 0), x * 1),
    "where broadcast": lambda lib, x, i: lib.where(i[:, :1] > 1, x[0], x[1, 2]),
    "where promotes": lambda lib, x, i: lib.where(i > 1, x, i),
    "where positions": lambda lib, x, i: (*lib.where(i > 2), x * 1),
    "nonzero": lambda lib, x, i: (lib.nonzero(i), i.nonzero(as_tuple=True)[1], x * 1),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_selections(name: str) -> None:
    """Functions that choose by index or condition, with their gradients."""
    index = values(3, 5, dtype="int64")
    compare(SELECTIONS[name], values(3, 5), index, strides=False)


def test_one_hot() -> None:
    """Given and counted numbers of classes."""

    def program(lib: Any, x: Any) -> Any:
        one_hot = tc.one_hot if lib is tc else lib.nn.functional.one_hot
        return one_hot(x, 7), one_hot(x)

    compare(program, values(3, 4, dtype="int64"), grad=False)


def test_zero_dimensional() -> None:
    """0-d tensors are indexed by None, Ellipsis, bools and along dim 0."""

    def program(lib: Any, x: Any) -> Any:
        i = lib.tensor(0, device="cpu")
        return (
            x[...], x[None], x[()], x[True], x.gather(0, i), x.index_select(0, i),
            x.scatter(0, i, 3.0), x.nonzero(), x[x > 100],
        )  # fmt: skip

    compare(program, values(), strides=False, grad=False)


def test_repeated_writes_keep_the_last() -> None:
    """Of several values for one place the last one stays."""
    x = tc.zeros(3, device="cpu")
    x[[1, 1, 1]] = tc.tensor([5.0, 6.0, 7.0], device="cpu")
    assert x.tolist() == [0, 7, 0]


def test_a_changing_index_makes_no_new_plan() -> None:
    """``betas[t]`` and ``betas[t:t + 5]`` in a loop: the position is an argument of one plan."""
    betas = tc.tensor(np.arange(100.0), device="cpu")
    plans = []
    for t in range(50):
        assert (betas[t] * 2).item() == 2 * t
        assert (betas[t : t + 5] + 1).tolist() == [t + k for k in range(1, 6)]
        plans.append(cache.made)
    assert plans[3:] == plans[3:4] * 47


def test_numbers_become_the_targets_dtype() -> None:
    """A float written to integers is truncated; what is not finite is refused."""
    x = tc.zeros(3, dtype=tc.int64, device="cpu")
    x[0] = 2.7
    x[[1]] = -2.7
    assert x.masked_fill(x == 0, 1.5).tolist() == [2, -2, 1]
    with pytest.raises(tc.ArgumentError, match="the number does not fit"):
        x[0] = float("nan")


def test_tensor_index_is_checked_when_it_is_computed() -> None:
    """A bad value raises with the user's value and line at the look; the target is unchanged."""
    x = tc.arange(4, device="cpu")
    index = tc.tensor([0, -5], device="cpu")
    result = x[index]
    with pytest.raises(tc.IndexError) as caught:
        result.tolist()
    text = str(caught.value)
    assert "index[1] is out of range" in text
    assert "actual: -5" in text
    assert "result = x[index]" in text
    y = tc.zeros(4, device="cpu")
    y[tc.tensor([4], device="cpu")] = 1
    with pytest.raises(tc.IndexError, match="actual: 4"):
        y.tolist()


ERRORS: dict[str, tuple[Program, str]] = {
    "too many": (lambda lib, x: x[0, 0, 0], "at most 2 for a tensor of 2 dimensions"),
    "range": (lambda lib, x: x[0, 4], "the index is out of range for dim 1"),
    "negative range": (lambda lib, x: x[-4], "-3 <= index < 3"),
    "list": (lambda lib, x: x[[0, 3]], "index[1] is out of range"),
    "float": (lambda lib, x: x[1.5], "not an index"),
    "float tensor": (lambda lib, x: x[x], "an index is not an integer"),
    "mask": (lambda lib, x: x[x[:, :2] > 0], "the mask does not fit"),
    "zero step": (lambda lib, x: x[::0], "a slice step is zero"),
    "negative step": (lambda lib, x: x[::-1], "flip() reverses a dimension"),
    "string": (lambda lib, x: x["a"], "not an index"),
    "arrays": (lambda lib, x: x[[0, 1], [0, 1, 2]], "do not broadcast"),
    "value": (lambda lib, x: x.__setitem__(0, x), "the value does not fit the selected elements"),
    "gather": (lambda lib, x: x.gather(0, array(lib, 0)), "the index does not fit"),
    "gather range": (
        lambda lib, x: x.gather(0, array(lib, [0, 0, 0, 3])).tolist(), "index[3] is out of range"
    ),
    "gather negative": (
        lambda lib, x: x.gather(0, array(lib, [0, 0, -1, 0])).tolist(), "actual: -1"
    ),
    "scatter": (lambda lib, x: x.scatter(0, array(lib, [0, 1, 2]), x[:, :2]), "src is smaller"),
    "masked_fill": (lambda lib, x: x.masked_fill(x, 1), "the mask is not bool"),
    "index_add": (lambda lib, x: x.index_add(0, array(lib, 0), x), "the source does not fit"),
    "index_select": (lambda lib, x: x.index_select(0, array(lib, [0])), "not a vector"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    """Where torch raises we raise, and the text says what was wrong."""
    program, text = ERRORS[name]
    assert text in errors(program, values(3, 4))


def test_index_errors_are_builtin_index_errors() -> None:
    """Loops that rely on IndexError to stop work."""
    with pytest.raises(IndexError):
        tc.zeros(2, device="cpu")[2]
    assert [row.tolist() for row in tc.arange(3, device="cpu")] == [0, 1, 2]


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 1), (2, 1, 3)])
def test_plain_keys_take_the_short_way_to_the_same_view(
    shape: tuple[int, ...], on_cpu: None
) -> None:
    from tinygrad_cuda.tensors.indexing.keys import _at_plain, _read

    x = tc.arange(int(np.prod(shape))).reshape(shape)
    parts = (0, -1, slice(None), slice(0, 1), slice(-1, None), slice(None, None, 2), slice(9, 9))
    keys = [(a,) for a in parts] + [(a, b) for a in parts for b in parts]
    for source in (x, x.transpose(0, 1)):
        for key in keys:
            short, long = _at_plain(source, key), _read("index", source, key).view
            assert short is not None
            assert (short.shape, short.stride()) == (long.shape, long.stride())
            assert [step[0] for step in short.chain] == [step[0] for step in long.chain]
            assert short.tolist() == long.tolist()
    assert x[(0,) * len(shape)].item() == 0
    assert x[(-1,) * len(shape)].item() == x.numel() - 1


def test_one_element_is_read_without_a_node(on_cpu: None) -> None:
    x = tc.arange(6.0).reshape(2, 3).clone()
    x.numpy()
    one = x[1, -1]
    assert one._node is None
    assert (one.item(), one.shape, one.dtype, one.requires_grad) == (5.0, (), tc.float32, False)
    x[1, 2] = 7
    assert one.item() == 7.0
    one.fill_(9)
    assert (x[1, 2].item(), x.tolist()) == (9.0, [[0, 1, 2], [3, 4, 9]])
    assert (x[0, 1] + x[1, 0]).item() == 4.0
    assert type(tc.tensor([True])[0].item()) is bool
    half = tc.tensor([1.5], dtype=tc.bfloat16)
    half.numpy()
    assert type(half[0].item()) is type(half.sum().item())
    with pytest.raises(IndexError, match="2"):
        x[2, 0]


def test_one_element_of_what_has_a_history_keeps_it(on_cpu: None) -> None:
    x = tc.ones(2, 3, requires_grad=True)
    y = x * 2
    y.tolist()
    (x[0, 1] * y[1, 2]).backward()
    assert x.grad.tolist() == [[0, 2, 0], [0, 0, 2]]


def none(lib: Any) -> Any:
    return lib.zeros(0, dtype=lib.int64)


def set_at(x: Any, key: Any, value: Any) -> Any:
    """A copy of `x` written at `key`."""
    x = x.clone()
    x[key] = value
    return x


# Of a tensor (2, 3) and sources without rows, with a row, and of one number.
EMPTY_WRITES: dict[str, Callable[..., Any]] = {
    "put": lambda lib, x, rows, row, one: x.put(none(lib), rows[:, 0]),
    "put added": lambda lib, x, rows, row, one: x.put(none(lib), rows[:, 0], True),
    "index_put": lambda lib, x, rows, row, one: x.index_put((none(lib),), one),
    "index_put_": lambda lib, x, rows, row, one: x.clone().index_put_((none(lib),), rows),
    "index_copy": lambda lib, x, rows, row, one: x.index_copy(0, none(lib), rows),
    "index_add": lambda lib, x, rows, row, one: x.index_add(0, none(lib), rows, alpha=2),
    "index_reduce": lambda lib, x, rows, row, one: x.index_reduce(0, none(lib), rows, "prod"),
    "index_fill": lambda lib, x, rows, row, one: x.index_fill(0, none(lib), one),
    "scatter": lambda lib, x, rows, row, one: x.scatter(0, none(lib).reshape(0, 3), rows),
    "scatter_add": lambda lib, x, rows, row, one: x.scatter_add(0, none(lib).reshape(0, 3), rows),
    "scatter_reduce": lambda lib, x, rows, row, one: x.scatter_reduce(
        0, none(lib).reshape(0, 3), rows, "sum"
    ),
    "masked_scatter": lambda lib, x, rows, row, one: x.masked_scatter(x > 9, rows),
    "masked_scatter of nothing": lambda lib, x, rows, row, one: x[:0].masked_scatter(
        x[:0] > 9, row
    ),
    "setitem": lambda lib, x, rows, row, one: set_at(x, none(lib), rows),
    "setitem, one number": lambda lib, x, rows, row, one: set_at(x, none(lib), one),
    "setitem, a mask": lambda lib, x, rows, row, one: set_at(x, x > 9, one),
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", EMPTY_WRITES)
def test_what_writes_nothing_has_zero_gradients(name: str) -> None:
    """The result requires the gradient of its sources, wherever they would have gone."""
    torch = pytest.importorskip("torch")

    def gradients(lib: Any, first: bool) -> list[Any]:
        x = lib.arange(6.0).reshape(2, 3).requires_grad_(first)
        leaves = [x, *(lib.ones(n).requires_grad_() for n in ((0, 3), (1, 3), ()))]
        result = EMPTY_WRITES[name](lib, *leaves)
        assert result.requires_grad
        (result * result).sum().backward()
        grads = [leaf.grad for leaf in leaves]
        return [None if g is None else (tuple(g.shape), g.tolist()) for g in grads]

    for first in (False, True):
        assert gradients(tc, first) == gradients(torch, first)


LIST_KEYS: dict[str, Key] = {
    "two Tensors": lambda lib: [array(lib, 0, 1), array(lib, 1, 2)],
    "0-d Tensors": lambda lib: [lib.tensor(0, device="cpu"), lib.tensor(1, device="cpu")],
    "one Tensor": lambda lib: [lib.tensor(0, device="cpu")],
    "number and Tensor": lambda lib: [0, array(lib, 1, 2)],
    "lists": lambda lib: [[0, 1], [1, 2]],
    "tuple": lambda lib: [(0, 1)],
    "slice": lambda lib: [slice(0, 2), lib.tensor(1, device="cpu")],
    "none": lambda lib: [None, 0],
    "ellipsis": lambda lib: [..., 1],
    "arrays": lambda lib: [np.array([0, 1]), 1],
    "numbers": lambda lib: [0, 1],
    "bools": lambda lib: [True, False, True],
    "many": lambda lib: [0] * 40,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LIST_KEYS)
def test_a_list_of_more_than_numbers_is_a_tuple(name: str) -> None:
    """As PyTorch reads it; ours took whole rows by ``x[[i, j]]``."""
    torch = pytest.importorskip("torch")

    def both(lib: Any) -> Any:
        x = lib.arange(12.0, device="cpu").reshape(3, 4)
        read = x[LIST_KEYS[name](lib)]
        x[LIST_KEYS[name](lib)] = -1.0
        return tuple(read.shape), read.tolist(), x.tolist()

    assert both(tc) == both(torch)
