"""Writes through long chains of views and windows, copies that share, and names that are taken."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn

torch = pytest.importorskip("torch")

Program = Callable[..., Any]


def nested_slices(lib: Any) -> Any:
    x = view = lib.zeros(1005)
    for _ in range(1000):
        view = view[1:]
        view.add_(1)
    return x


def nested_shapes(lib: Any) -> Any:
    x = view = lib.zeros(12)
    for k in range(3000):
        view = view.view(-1) if k % 2 else view.view(3, -1)
    view.add_(1)
    return x


def nested_mixture(lib: Any) -> Any:
    x = view = lib.zeros(2000)
    for _ in range(600):
        view = view[1:].view(1, -1)[0]
    view.fill_(2)
    return x


def permuted_again(lib: Any) -> Any:
    x = lib.arange(24.0).reshape(2, 3, 4)
    view = x.permute(2, 0, 1).permute(1, 2, 0)[:, 1:][:, :, ::2][1:]
    view.mul_(-1)
    return x


def many_views(lib: Any) -> Any:
    x = lib.zeros(700, 2)
    views = [x[i] for i in range(700)]
    for i, view in enumerate(views):
        view.add_(i)
    return x


def windows_apart(lib: Any) -> Any:
    x = lib.arange(10.0)
    x.unfold(0, 2, 3).mul_(2)
    x.unfold(0, 10, 1)[0, 3:].add_(100)
    return x


def windows_of_bool(lib: Any) -> Any:
    x = lib.zeros(2, 6, dtype=lib.bool)
    x.unfold(1, 2, 2)[:, 1] = True
    return x


def expanded_to_its_shape(lib: Any) -> Any:
    x = lib.arange(3.0)
    x.expand(3).detach().mul_(2)
    x.expand(1, -1).detach()[0, 1:].add_(1)
    x.expand_as(x)[0] = 9
    return x


def detached_windows(lib: Any) -> Any:
    x = lib.arange(6.0)
    x.unfold(0, 2, 3).detach().mul_(2)
    return x


def windows_of_one(lib: Any) -> Any:
    x = lib.arange(12.0).reshape(3, 4)
    x.unfold(1, 1, 1).add_(1)
    x.unfold(0, 1, 2)[1].mul_(3)
    return x


PROGRAMS: dict[str, Program] = {
    f.__name__: f
    for f in (
        nested_slices, nested_shapes, nested_mixture, permuted_again, many_views, windows_apart,
        windows_of_bool, expanded_to_its_shape, detached_windows, windows_of_one,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_writes_through_views(name: str) -> None:
    began = time.perf_counter()
    found = PROGRAMS[name](tc).tolist()
    seconds = time.perf_counter() - began
    assert found == PROGRAMS[name](torch).tolist()
    # Chains that grow by a link a view took minutes.
    assert seconds < 60


FILLED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "fill": lambda lib, x, wide: wide.fill_(2),
    "zero": lambda lib, x, wide: x[:, 1:2].expand(3, 4).zero_(),
    "windows": lambda lib, x, wide: x.unfold(1, 3, 1)[1:].fill_(3),
    "flattened": lambda lib, x, wide: x[1, 1].expand(3, 4).view(-1)[1:].fill_(1),
    "masked_fill_": lambda lib, x, wide: wide.masked_fill_(x > 5, 7),
    "index_fill_": lambda lib, x, wide: wide.index_fill_(1, lib.tensor([0, 2]), 7),
    "index_fill_ of a tensor": lambda lib, x, wide: wide.index_fill_(
        -1, lib.tensor([3]), lib.tensor(7.0, dtype=x.dtype)
    ),
    "mask": lambda lib, x, wide: wide.__setitem__(x > 5, 7),
    "mask of nothing": lambda lib, x, wide: wide.__setitem__(x > 50, 7),
    "index": lambda lib, x, wide: wide.__setitem__(lib.tensor([1, 1]), 7),
    "column": lambda lib, x, wide: wide.__setitem__((slice(None), lib.tensor([1, 3])), 7),
    "element": lambda lib, x, wide: wide.__setitem__((0, 1), 7),
    "tensor": lambda lib, x, wide: wide.__setitem__(0, lib.tensor(7.0)),
    "fill_diagonal_": lambda lib, x, wide: wide.fill_diagonal_(3),
    "itself": lambda lib, x, wide: wide.copy_(wide),
    "itself by key": lambda lib, x, wide: wide.__setitem__(..., wide),
}


@pytest.mark.filterwarnings("ignore:Use of")
@pytest.mark.parametrize("name", FILLED)
def test_one_number_for_repeated_elements(name: str) -> None:
    """torch writes one number through expansions and windows; other values it refuses."""

    def run(lib: Any) -> Any:
        x = lib.arange(12.0).reshape(3, 4)
        FILLED[name](lib, x, x[:1].expand(3, 4))
        return x.tolist()

    assert run(tc) == run(torch)


def test_gradients_of_a_filled_expansion() -> None:
    """What is filled has none; torch cannot compute them."""
    leaf = tc.arange(4.0).requires_grad_()
    x = leaf * 2
    x[:2].expand(3, 2).fill_(5)
    (x * x).sum().backward()
    assert x.tolist() == [5, 5, 4, 6] and leaf.grad is not None
    assert leaf.grad.tolist() == [0, 0, 16, 24]


REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "add_": lambda lib, wide: wide.add_(1),
    "fill_ of a tensor": lambda lib, wide: wide.fill_(lib.tensor(3.0)),
    "copy_": lambda lib, wide: wide.copy_(lib.ones(3, 4)),
    "a row": lambda lib, wide: wide.__setitem__(..., lib.ones(4)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_values_for_repeated_elements(name: str) -> None:
    for lib in (tc, torch):
        x = lib.arange(4.0)
        with pytest.raises((RuntimeError, tc.ShapeError)):
            REFUSED[name](lib, x.expand(3, 4))
        assert x.tolist() == [0, 1, 2, 3]


def test_a_copy_of_the_same_view_changes_nothing() -> None:
    """Even where elements repeat: torch returns before it looks. Another view is still refused."""
    x = tc.arange(6).view(1, 6).expand(3, 6)
    same = x.view_as(x)
    assert same.copy_(x) is same and same.copy_(x.detach()) is same
    assert x.tolist() == [[0, 1, 2, 3, 4, 5]] * 3
    with pytest.raises(tc.ShapeError, match="several elements"):
        x.copy_(x.flip(0) + tc.arange(3).view(3, 1))
    with pytest.raises(tc.ShapeError, match="several elements"):
        x[:, :3].copy_(x[:, 3:])


def test_a_leaf_is_not_written_where_a_mask_holds_nowhere() -> None:
    for lib in (tc, torch):
        x = lib.tensor(0.0, requires_grad=True)
        with pytest.raises(RuntimeError):
            x[x > 0.5] = 1


def test_windows_that_overlap_are_refused() -> None:
    x = tc.arange(6.0)
    with pytest.raises(tc.ShapeError, match="several elements of this view"):
        x.unfold(0, 3, 1).add_(1)
    assert x.tolist() == [0, 1, 2, 3, 4, 5]


def test_gradients_of_a_written_window() -> None:
    def gradient(lib: Any) -> Any:
        leaf = lib.ones(6, requires_grad=True)
        x = leaf * 2
        x.unfold(0, 2, 3).mul_(leaf.unfold(0, 2, 3) * 3)
        x.sum().backward()
        return leaf.grad.tolist()

    assert gradient(tc) == gradient(torch)


def test_deep_copies_share_what_was_shared() -> None:
    for lib in (tc, torch):
        x = lib.arange(4.0)
        whole, part = copy.deepcopy([x, x[:1]])
        whole[0] = 9
        assert part.tolist() == [9.0]
        part[0] = 7
        assert whole.tolist() == [7.0, 1.0, 2.0, 3.0]
        assert x.tolist() == [0.0, 1.0, 2.0, 3.0]
        part, whole = copy.deepcopy((x.view(2, 2)[1], x))
        part.fill_(5)
        assert whole.tolist() == [0.0, 1.0, 5.0, 5.0]


def test_tied_parameters_stay_tied() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    model = copy.deepcopy(nn.Sequential(first, second))
    assert model[0].weight is model[1].weight
    assert model[0].weight is not first.weight


TAKEN: dict[str, Program] = {
    "buffer over parameter": lambda lib, m: m.register_buffer("weight", lib.ones(1)),
    "buffer over module": lambda lib, m: m.register_buffer("child", lib.ones(1)),
    "buffer over method": lambda lib, m: m.register_buffer("forward", lib.ones(1)),
    "buffer over attribute": lambda lib, m: m.register_buffer("plain", lib.ones(1)),
    "parameter over method": lambda lib, m: m.register_parameter(
        "forward", lib.nn.Parameter(lib.ones(1))
    ),
    "parameter over buffer": lambda lib, m: m.register_parameter(
        "state", lib.nn.Parameter(lib.ones(1))
    ),
    "parameter assigned to method": lambda lib, m: setattr(
        m, "train", lib.nn.Parameter(lib.ones(1))
    ),
    "module over parameter": lambda lib, m: m.add_module("weight", lib.nn.Identity()),
    "module over method": lambda lib, m: m.add_module("train", lib.nn.Identity()),
}


@pytest.mark.parametrize("name", TAKEN)
def test_names_that_are_taken(name: str) -> None:
    for lib in (torch, tc):
        module: Any = lib.nn.Module()
        module.weight = lib.nn.Parameter(lib.ones(1))
        module.register_buffer("state", lib.zeros(1))
        module.child = lib.nn.Identity()
        module.plain = 3
        before = sorted(module.state_dict())
        with pytest.raises(KeyError, match="already exists") as caught:
            TAKEN[name](lib, module)
        assert lib is torch or str(caught.value).startswith("[Module] the attribute")
        assert sorted(module.state_dict()) == before
        # What is of the same kind is replaced.
        module.register_buffer("state", lib.ones(2))
        module.register_parameter("weight", lib.nn.Parameter(lib.ones(3)))
        module.plain = lib.nn.Parameter(lib.ones(1))
        assert sorted(module.state_dict()) == ["plain", "state", "weight"]


def test_a_number_fills_windows_that_overlap() -> None:
    def filled(lib: Any) -> Any:
        x = lib.arange(20).reshape(2, 10).clone()
        windows = x.unfold(-1, 3, 2)
        windows[:, 1] = -1
        windows[1, -1, :2] = -2
        return x

    ours = filled(tc)
    assert ours.tolist() == filled(torch).tolist()
    with pytest.raises(tc.ShapeError, match="several elements of this view"):
        ours.unfold(-1, 3, 2)[:, :] = tc.arange(24).reshape(2, 4, 3)
    with pytest.raises(tc.ShapeError, match="several elements of this view"):
        ours[:1].expand(3, 10)[:, 1] = 5
