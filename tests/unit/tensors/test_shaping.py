"""Views, joins and rearrangements against torch: values, strides, gradients, aliasing, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from twins import compare, errors, values

import tinygrad_cuda as tc

Program = Callable[..., Any]

VIEWS: dict[str, Program] = {
    "reshape": lambda lib, x: x.reshape(6, -1),
    "reshape tuple": lambda lib, x: lib.reshape(x, (4, 3, 2)),
    "reshape of a transpose": lambda lib, x: x.transpose(0, 1).reshape(-1),
    "reshape of a slice": lambda lib, x: x[:, 1:].reshape(2, 8),
    "view": lambda lib, x: x.view(2, 12),
    "view of a transpose": lambda lib, x: x.transpose(0, 2).view(4, 1, 3, 2),
    "view splits a strided dimension": lambda lib, x: x[:, :, ::2].view(2, 3, 2, 1),
    "view with ones": lambda lib, x: x.view(1, 2, 1, 12),
    "flatten": lambda lib, x: x.flatten(),
    "flatten some": lambda lib, x: x.flatten(1, -1),
    "flatten none": lambda lib, x: x.flatten(1, 1),
    "unflatten": lambda lib, x: x.unflatten(2, (2, -1)),
    "unflatten transpose": lambda lib, x: x.transpose(0, 2).unflatten(0, (2, 2)),
    "squeeze": lambda lib, x: x[:, :1].squeeze(),
    "squeeze one": lambda lib, x: x[:1, :1].squeeze(-2),
    "squeeze several": lambda lib, x: x[:1, :1, :1].squeeze((0, 2)),
    "squeeze a larger one": lambda lib, x: x.squeeze(1),
    "unsqueeze": lambda lib, x: x.unsqueeze(0),
    "unsqueeze last": lambda lib, x: x.unsqueeze(-1),
    "unsqueeze middle": lambda lib, x: x.transpose(0, 1).unsqueeze(-2),
    "permute": lambda lib, x: x.permute(2, 0, 1),
    "permute negative": lambda lib, x: lib.permute(x, (-1, 0, -2)),
    "transpose": lambda lib, x: x.transpose(0, -1),
    "swapaxes": lambda lib, x: x.swapaxes(1, 2),
    "movedim": lambda lib, x: x.movedim(0, 2),
    "movedim several": lambda lib, x: lib.movedim(x, (0, 2), (-1, 0)),
    "t": lambda lib, x: x[0].t(),
    "T": lambda lib, x: x[0].T,
    "mT": lambda lib, x: x.mT,
    "expand": lambda lib, x: x[:, :1].expand(2, 5, 4),
    "expand in front": lambda lib, x: x[:, :1].expand(3, -1, 5, -1),
    "expand to the same": lambda lib, x: x.expand(2, 3, 4),
    "expand new ones": lambda lib, x: x.expand(1, 2, 3, 4),
    "broadcast_to": lambda lib, x: lib.broadcast_to(x[0, 0], (3, 4)),
    "expand_as": lambda lib, x: x[0, 0].expand_as(x),
    "narrow": lambda lib, x: x.narrow(1, 1, 2),
    "narrow negative": lambda lib, x: x.narrow(-1, -3, 2),
    "narrow nothing": lambda lib, x: x.narrow(0, 2, 0),
    "select": lambda lib, x: x.select(1, -1),
    # Integers, which a Tensor of one element may hold.
    "split by a tensor": lambda lib, x: x.split(lib.tensor(2))[0],
    "chunks of a tensor": lambda lib, x: x.chunk(lib.tensor(2))[1],
    "tensor_split by a tensor": lambda lib, x: lib.tensor_split(x, lib.tensor(2))[1],
    "windows of tensors": lambda lib, x: x.unfold(1, lib.tensor(2), lib.tensor(1)),
    "slice of tensors": lambda lib, x: x[lib.tensor(1) :, : lib.tensor(2)],
    "split": lambda lib, x: x.split(2, dim=-1),
    "split uneven": lambda lib, x: x.split(3, 2),
    "split sections": lambda lib, x: lib.split(x, [1, 0, 3], dim=2),
    "chunk": lambda lib, x: x.chunk(3, dim=2),
    "chunk more than there is": lambda lib, x: lib.chunk(x, 7, 1),
    "unbind": lambda lib, x: x.unbind(1),
    "diagonal": lambda lib, x: x.diagonal(),
    "diagonal offset": lambda lib, x: x.diagonal(1, 1, 2),
    "diagonal below": lambda lib, x: lib.diagonal(x, -1, -1, 0),
    "diagonal of none": lambda lib, x: x.diagonal(-3, 0, 1),
    "diagonal of a slice": lambda lib, x: x[:, :, 1::2].diagonal(0, 2, 1),
    "unfold": lambda lib, x: x.unfold(2, 2, 1),
    "unfold steps": lambda lib, x: x.unfold(1, 2, 2),
    "unfold of a transpose": lambda lib, x: x.transpose(0, 2).unfold(0, 3, 1),
    "contiguous": lambda lib, x: x.transpose(0, 1).contiguous(),
    "clone": lambda lib, x: x.clone(),
    "clone keeps strides": lambda lib, x: x.permute(2, 0, 1).clone(),
    "clone of a slice": lambda lib, x: x[:, 1:].clone(),
}

COPIES: dict[str, Program] = {
    "repeat": lambda lib, x: x.repeat(2, 1, 3),
    "repeat in front": lambda lib, x: x.repeat(2, 1, 1, 2),
    "repeat nothing": lambda lib, x: x.repeat(1, 0, 1),
    "tile": lambda lib, x: x.tile(3),
    "tile more": lambda lib, x: lib.tile(x, (2, 1, 1, 2)),
    "repeat_interleave": lambda lib, x: x.repeat_interleave(3, dim=1),
    "repeat_interleave flat": lambda lib, x: lib.repeat_interleave(x, 2),
    "repeat_interleave none": lambda lib, x: x.repeat_interleave(0, dim=0),
    "flip": lambda lib, x: x.flip(0, 2),
    "flip tuple": lambda lib, x: lib.flip(x, (-1,)),
    "roll": lambda lib, x: x.roll(1),
    "roll dims": lambda lib, x: lib.roll(x, (1, -2), (0, 2)),
    "roll by a tensor": lambda lib, x: x.roll(lib.tensor(1), lib.tensor(0)),
    "roll round": lambda lib, x: x.roll(-13, 1),
    "roll by nothing": lambda lib, x: x.roll(4, 2),
    "tril": lambda lib, x: x.tril(),
    "tril offset": lambda lib, x: lib.tril(x, -1),
    "triu": lambda lib, x: x.triu(1),
    "triu low": lambda lib, x: x.triu(-2),
    "diag of a vector": lambda lib, x: x[0, 0].diag(),
    "diag above": lambda lib, x: lib.diag(x[0, 0], 2),
    "diag below": lambda lib, x: lib.diag(x[0, 0], -1),
    "diag of a matrix": lambda lib, x: lib.diag(x[0], 1),
    "cat": lambda lib, x: lib.cat([x, x * 2, x[:1]], 0),
    "cat last": lambda lib, x: lib.cat((x[..., 1:], x), dim=-1),
    "cat of one": lambda lib, x: lib.cat([x]),
    "cat with an empty vector": lambda lib, x: lib.cat([x[0, 0, :0], x, x[:, :0]], 1),
    "cat promotes": lambda lib, x: lib.cat([x.float(), x.float().long(), x]),
    "stack": lambda lib, x: lib.stack([x, x.flip(0)]),
    "stack last": lambda lib, x: lib.stack((x, x, x), -1),
    "stack middle": lambda lib, x: lib.stack((x[0], x[1]), 1),
    "hstack": lambda lib, x: lib.hstack([x, x]),
    "hstack vectors": lambda lib, x: lib.hstack([x[0, 0], x[0, 0, :2]]),
    "vstack": lambda lib, x: lib.vstack([x[0, 0], x[1]]),
    "meshgrid": lambda lib, x: lib.meshgrid(x[0, 0], x[0, :, 0], x[:, 0, 0], indexing="ij"),
    "meshgrid xy": lambda lib, x: lib.meshgrid(x[0, 0], x[0, :, 0], indexing="xy"),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str) -> None:
    """Values, gradients and strides are torch's."""
    compare(VIEWS[name], values(2, 3, 4), grad="none" not in name and "nothing" not in name)


@pytest.mark.parametrize("name", COPIES)
def test_copies(name: str) -> None:
    """Values and gradients are torch's."""
    compare(COPIES[name], values(2, 3, 4), strides=False)


PADS = [
    ((1, 2), "constant"),
    ((1, 2, 0, 3), "constant"),
    ((-1, 2, 1, -1, 0, 1), "constant"),
    ((0, -4), "constant"),
    ((2, 1), "reflect"),
    ((2, 3), "replicate"),
    ((3, 5), "circular"),
    ((0, 1), "circular"),
]


@pytest.mark.parametrize(("widths", "mode"), PADS)
def test_pad(widths: tuple[int, ...], mode: str) -> None:
    """All modes, with widths of both signs."""

    def program(lib: Any, x: Any) -> Any:
        pad = tc.pad if lib is tc else lib.nn.functional.pad
        return pad(x, widths, mode, 1.5 if mode == "constant" else None)

    compare(program, values(2, 3, 5), strides=False)


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool"])
def test_other_dtypes(dtype: str) -> None:
    """Joining and moving work for every kind of dtype."""

    def program(lib: Any, x: Any) -> Any:
        return lib.cat([x.flip(0), x.roll(1, 1)], 1), x.tril(), lib.stack([x, x]), x.repeat(2, 1)

    compare(program, values(3, 5, dtype=dtype), grad=False, strides=False)


def test_zero_dimensional() -> None:
    """0-d tensors go through the functions that take them."""

    def program(lib: Any, x: Any) -> Any:
        return (
            x.reshape(1, 1), x.flatten(), x.squeeze(), x.unsqueeze(0), x.expand(3), x.permute(()),
            x.repeat(2), x.t(), x.flip(()), lib.stack([x, x]), x.transpose(0, -1), x.clone(),
        )  # fmt: skip

    compare(program, values())


def test_empty() -> None:
    """Tensors without elements keep their shapes."""

    def program(lib: Any, x: Any) -> Any:
        return (
            x.reshape(3, 0), x.view(0), x.permute(1, 0), x.repeat(2, 2), x.flip(0), lib.cat([x, x]),
            lib.stack([x, x]), x.expand(4, 0, 3), x.roll(1, 0), x.split(2, 1)[1], x.tril(),
        )  # fmt: skip

    compare(program, values(0, 3), grad=False, strides=False)


def test_cat_is_exact() -> None:
    """Neither NaN nor infinity nor the sign of zero leaks from one part to another."""
    a = tc.tensor([-0.0, float("nan")], device="cpu")
    b = tc.tensor([float("inf"), -0.0], device="cpu")
    found = tc.cat([a, b]).numpy()
    np.testing.assert_array_equal(np.signbit(found[[0, 3]]), [True, True])
    np.testing.assert_array_equal(found, np.array([0.0, np.nan, np.inf, 0.0], np.float32))


def test_cat_of_two_devices_raises() -> None:
    """Nothing moves by itself: the error names the tensor and its device."""
    a, b = tc.zeros(2, device="cpu"), tc.zeros(2, device="emu")
    with pytest.raises(tc.DeviceError) as caught:
        tc.cat([a, b])
    assert "expect: cpu" in str(caught.value)
    assert "actual: emu  (tensor 1)" in str(caught.value)


def test_repeat_interleave_by_tensor() -> None:
    """Counts may differ from element to element."""
    compare(lambda lib, x, n: lib.repeat_interleave(x, n, dim=1), values(2, 3), np.array([2, 0, 3]))


WRITES: dict[str, Program] = {
    "view": lambda x: x.view(4, 6),
    "reshape": lambda x: x.reshape(2, 2, 6),
    "transpose": lambda x: x.transpose(0, 2),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "split": lambda x: x.split(2, 2)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "diagonal": lambda x: x.diagonal(-1, 1, 2),
    "chain": lambda x: x.permute(2, 0, 1)[1::2].view(2, 2, 3).transpose(0, 1)[:, 1],
    "view of one": lambda x: x[:1].expand(1, 3, 4),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_show_through_views(name: str) -> None:
    """A write to a view reaches its base, and a write to the base reaches the view."""

    def program(lib: Any, x: Any) -> Any:
        part = WRITES[name](x)
        part.mul_(10)
        x.add_(1)
        return x, part, WRITES[name](x)

    compare(program, values(2, 3, 4), grad=False)


def test_gradient_through_a_written_view() -> None:
    """A write through a view is differentiable: old values lose, new ones receive the gradient."""

    def program(lib: Any, x: Any, y: Any) -> Any:
        z = x * 2
        z.transpose(0, 1)[1].copy_(y)
        return z * z

    compare(program, values(2, 3), values(2))


def test_copies_are_not_aliases() -> None:
    """Writing to a copy leaves the original alone."""
    for copy in (
        tc.clone,
        lambda x: x.flip(0),
        tc.tril,
        lambda x: x.t().contiguous(),
        lambda x: x.repeat(1, 1),
    ):
        x = tc.arange(4, device="cpu").reshape(2, 2)
        before = x.tolist()
        copy(x).zero_()
        assert x.tolist() == before


def test_reshape_of_a_transpose_copies() -> None:
    """Where strides forbid a view, reshape starts a new cell."""
    x = tc.zeros(2, 3, device="cpu")
    x.t().reshape(-1).fill_(1)
    assert x.sum().item() == 0


def test_contiguous_gives_itself() -> None:
    """A contiguous tensor is not copied."""
    x = tc.zeros(2, 3, device="cpu")
    assert x.contiguous() is x
    assert x.t().t().contiguous().cell is x.cell


def test_clone_of_shared_memory() -> None:
    """The clone of a tensor that shares NumPy's memory does not follow the array."""
    array = np.zeros(3, np.float32)
    clone = tc.from_numpy(array).clone()
    array[0] = 5
    assert clone.tolist() == [0, 0, 0]


def test_clone_has_a_gradient_of_its_own() -> None:
    """A gradient asked for at the clone is not that of the original."""
    x = tc.tensor([2.0], device="cpu", requires_grad=True)
    y = x.clone()
    y.retain_grad()
    (x * 2 + y * 3).backward()
    assert y.grad.tolist() == [3]
    assert x.grad.tolist() == [5]


def test_write_to_expanded_raises() -> None:
    """An element that stands for several cannot be written."""
    x = tc.zeros(1, 3, device="cpu")
    with pytest.raises(tc.ShapeError, match="several elements of this view are one element"):
        x.expand(2, 3).add_(1)


ERRORS: dict[str, tuple[Program, str]] = {
    "reshape": (lambda lib, x: x.reshape(5, 5), "element counts differ"),
    "reshape two": (lambda lib, x: x.reshape(-1, -1), "at most one of them -1"),
    "view": (lambda lib, x: x.transpose(0, 1).view(-1), "use reshape(), which copies"),
    "expand": (lambda lib, x: x.expand(2, 3, 5), "only dimensions of size 1 expand"),
    "expand less": (lambda lib, x: x.expand(3, 4), "dimensions"),
    "permute": (lambda lib, x: x.permute(0, 0, 1), "not a permutation"),
    "dim": (lambda lib, x: x.transpose(0, 3), "-3 <= dim < 3"),
    "split": (lambda lib, x: x.split([1, 1], 2), "the sizes do not add up"),
    "narrow": (lambda lib, x: x.narrow(0, 1, 2), "start 1, length 2"),
    "cat": (lambda lib, x: lib.cat([x, x[:, 1:]]), "shapes differ outside dim 0"),
    "cat nothing": (lambda lib, x: lib.cat([]), "needs a list of tensors"),
    "stack": (lambda lib, x: lib.stack([x, x[1:]]), "shapes differ"),
    "unfold": (lambda lib, x: x.unfold(0, 3, 1), "the window does not fit"),
    "t": (lambda lib, x: x.t(), "more than two dimensions"),
    "repeat": (lambda lib, x: x.repeat(2), "fewer counts than dimensions"),
    "unbind": (lambda lib, x: x[0, 0, 0].unbind(), "0-d tensor"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    """Where torch raises we raise, and the text says what was wrong."""
    program, text = ERRORS[name]
    assert text in errors(program, values(2, 3, 4))


def test_error_text() -> None:
    """The layout of an error: operation, expectation, finding, line, hint."""
    x = tc.zeros(2, 3, device="cpu").t()
    with pytest.raises(tc.ShapeError) as caught:
        x.view(6)
    assert str(caught.value).splitlines() == [
        "[view] the strides do not allow a view of this shape",
        "  expect: dimensions that lie together in memory to become (6,)",
        "  actual: shape (3, 2), strides (1, 3)",
        f"  at:     test_shaping.py:{caught.traceback[0].lineno + 1}  x.view(6)",
        "  hint:   use reshape(), which copies where it must",
    ]
