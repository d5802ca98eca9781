"""Strides, memory formats and what shares memory, as torch has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")

Program = Callable[..., Any]


def numbers(lib: Any, *shape: int) -> Any:
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return lib.tensor(data, device="cpu")


def image(lib: Any) -> Any:
    return numbers(lib, 2, 3, 4, 5).to(memory_format=lib.channels_last)


def turned(lib: Any) -> Any:
    return numbers(lib, 3, 4, 5).permute(2, 0, 1)


ELEMENTWISE: dict[str, Program] = {
    "number": lambda lib, x: x * 2 + 1,
    "broadcast first": lambda lib, x: numbers(lib, 4) + x,
    "broadcast": lambda lib, x: x + numbers(lib, 4),
    "two layouts": lambda lib, x: x + numbers(lib, *x.shape),
    "row-major first": lambda lib, x: numbers(lib, *x.shape) + x,
    "gaps": lambda lib, x: x[::2] * 3,
    "compare": lambda lib, x: x > 0,
    "logical": lambda lib, x: lib.logical_and(x > 0, x < 1),
    "where": lambda lib, x: lib.where(x > 0, x, -1.0),
    "masked_fill": lambda lib, x: x.masked_fill(x > 0, 0.0),
    "clamp": lambda lib, x: x.clamp(-1, 1),
    "isnan": lambda lib, x: lib.isnan(x),
    "floor": lambda lib, x: x.floor(),
    "cast": lambda lib, x: x.double().half(),
    "clone": lambda lib, x: x.clone(),
    "lgamma": lambda lib, x: lib.lgamma(x),
    "logaddexp": lambda lib, x: lib.logaddexp(x, x),
    "celu": lambda lib, x: lib.nn.functional.celu(x),
    "hardswish": lambda lib, x: lib.nn.functional.hardswish(x),
    "zeros_like": lambda lib, x: lib.zeros_like(x),
    "rand_like": lambda lib, x: lib.rand_like(x),
    "flip": lambda lib, x: x.flip(0),
    "sort": lambda lib, x: x.sort(0)[0],
    "argsort": lambda lib, x: x.argsort(-1),
    "expanded": lambda lib, x: x[:1].expand(3, *x.shape[1:]) * 2,
    "index": lambda lib, x: x[[1, 0]],
    "index behind": lambda lib, x: x[:, [1, 0, 1]],
    "copy of view": lambda lib, x: x.to(lib.float64, copy=True),
}

IMAGES: dict[str, Program] = {
    "conv2d": lambda lib, x: lib.nn.functional.conv2d(x, numbers(lib, 6, 3, 3, 3)),
    "conv2d weight": lambda lib, x: lib.nn.functional.conv2d(
        x.contiguous(), numbers(lib, 6, 3, 3, 3).to(memory_format=lib.channels_last)
    ),
    "conv_transpose2d": lambda lib, x: lib.nn.functional.conv_transpose2d(
        x, numbers(lib, 3, 6, 3, 3)
    ),
    "max_pool2d": lambda lib, x: lib.nn.functional.max_pool2d(x, 2),
    "avg_pool2d": lambda lib, x: lib.nn.functional.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda lib, x: lib.nn.functional.adaptive_avg_pool2d(x, (3, 2)),
    "adaptive_max_pool2d": lambda lib, x: lib.nn.functional.adaptive_max_pool2d(x, (3, 2)),
    "nearest": lambda lib, x: lib.nn.functional.interpolate(x, scale_factor=2),
    "bilinear": lambda lib, x: lib.nn.functional.interpolate(x, size=(7, 3), mode="bilinear"),
    "batch_norm": lambda lib, x: lib.nn.functional.batch_norm(x, None, None, training=True),
    "relu": lambda lib, x: lib.relu(x),
    "cat": lambda lib, x: lib.cat([x, x], 1),
    "pad": lambda lib, x: lib.nn.functional.pad(x, (1, 1)),
    "contiguous": lambda lib, x: x.contiguous(),
    "clone": lambda lib, x: x.clone(memory_format=lib.contiguous_format),
    "empty_like": lambda lib, x: lib.empty_like(x, memory_format=lib.channels_last),
    "module": lambda lib, x: (
        lib.nn.Conv2d(3, 4, 2).to(memory_format=lib.channels_last).weight.detach()
    ),
}


def strides_of(x: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides, but for dimensions of one element."""
    shape = tuple(x.shape)
    return shape, tuple(0 if n == 1 else s for n, s in zip(shape, x.stride()))


@pytest.mark.parametrize("make", [turned, image], ids=["turned", "channels-last"])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_results_keep_the_order_of_dimensions(name: str, make: Program) -> None:
    program = ELEMENTWISE[name]
    if make is image and name.startswith("broadcast"):
        pytest.skip("the vector has the length of another dimension")
    assert strides_of(program(tc, make(tc))) == strides_of(program(torch, make(torch)))


@pytest.mark.parametrize("make", [image, lambda lib: numbers(lib, 2, 3, 4, 5)])
@pytest.mark.parametrize("name", IMAGES)
def test_images_stay_channels_last(name: str, make: Program) -> None:
    program = IMAGES[name]
    assert strides_of(program(tc, make(tc))) == strides_of(program(torch, make(torch)))


def channels_last(lib: Any, *shape: int) -> Any:
    """(N, C, ...) with the channels innermost, of any rank."""
    first, channels, *rest = shape
    return numbers(lib, first, *rest, channels).movedim(-1, 1)


# Input, weight, options: a line, image or volume; whole or without a batch.
CONVOLUTIONS: dict[str, tuple[Program, Program, dict[str, Any]]] = {
    "row-major": (lambda lib: numbers(lib, 2, 3, 5), lambda lib: numbers(lib, 3, 3, 2), {}),
    "weight of one tap": (
        lambda lib: numbers(lib, 2, 3, 5), lambda lib: numbers(lib, 3, 3, 1).mT.contiguous().mT, {}
    ),
    "line": (lambda lib: channels_last(lib, 2, 3, 5), lambda lib: numbers(lib, 3, 3, 2), {}),
    "line with weight": (
        lambda lib: numbers(lib, 2, 3, 5), lambda lib: channels_last(lib, 3, 3, 2), {"stride": 2}
    ),
    "one channel": (lambda lib: numbers(lib, 3, 3, 1).mT, lambda lib: numbers(lib, 1, 1, 2), {}),
    "line of float64": (
        lambda lib: numbers(lib, 2, 3, 5).double(),
        lambda lib: channels_last(lib, 3, 3, 2).double(), {},
    ),
    "line alone": (lambda lib: numbers(lib, 4, 5), lambda lib: channels_last(lib, 4, 4, 2), {}),
    "column alone": (lambda lib: numbers(lib, 1, 4).t(), lambda lib: numbers(lib, 4, 4, 1), {}),
    "line in half": (
        lambda lib: channels_last(lib, 2, 3, 5).half(), lambda lib: numbers(lib, 3, 3, 2).half(), {}
    ),
    "image alone": (
        lambda lib: numbers(lib, 3, 5, 4), lambda lib: channels_last(lib, 3, 3, 2, 2), {}
    ),
    "image by rows of channels": (
        lambda lib: numbers(lib, 5, 4, 3).permute(2, 0, 1), lambda lib: numbers(lib, 3, 3, 2, 2), {}
    ),
    "volume": (
        lambda lib: channels_last(lib, 2, 3, 4, 3, 5),
        lambda lib: numbers(lib, 3, 3, 2, 2, 2), {"dilation": 2, "padding": 1},
    ),
    "volume of float64": (
        lambda lib: channels_last(lib, 2, 3, 4, 3, 5).double(),
        lambda lib: numbers(lib, 3, 3, 2, 2, 2).double(), {},
    ),
    "volume alone": (
        lambda lib: channels_last(lib, 3, 4, 3, 5), lambda lib: numbers(lib, 3, 3, 2, 2, 2), {}
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["conv", "conv_transpose"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_every_rank_are_laid_out_as_torchs(name: str, kind: str) -> None:
    make, weights, options = CONVOLUTIONS[name]

    def laid_out(lib: Any) -> Any:
        x, w = make(lib), weights(lib)
        return getattr(lib.nn.functional, f"{kind}{w.dim() - 2}d")(x, w, **options)

    assert strides_of(laid_out(tc)) == strides_of(laid_out(torch))


def places(lib: Any, *shape: int) -> Any:
    return lib.zeros(shape, dtype=lib.int64)


# Several operands, dimensions of one element, copies: each with an order that rules must agree on.
ORDERS: dict[str, Program] = {
    "clamp of two": lambda lib: numbers(lib, 3, 4).t().clamp(
        numbers(lib, 3, 4).t(), numbers(lib, 1, 1)
    ),
    "clamp, broadcast": lambda lib: numbers(lib, 3).clamp(
        numbers(lib, 3, 4).t(), numbers(lib, 4, 3) + 9
    ),
    "one image": lambda lib: -numbers(lib, 1, 1, 3, 3).transpose(1, 3),
    "index behind a new axis": lambda lib: numbers(lib, 2, 1, 2).transpose(0, 2)[
        None, places(lib, 3, 1), 0
    ],
    "index of channels": lambda lib: channels_last(lib, 1, 3, 4, 2)[:, places(lib, 2)],
    "index of two axes": lambda lib: numbers(lib, 3, 4, 5).permute(2, 0, 1)[
        places(lib, 2, 1), :, places(lib, 1, 3)
    ],
    "huber_loss": lambda lib: lib.nn.functional.huber_loss(
        numbers(lib, 3, 1).expand(3, 4), numbers(lib, 4, 3).t(), reduction="none"
    ),
    "huber_loss of half": lambda lib: lib.nn.functional.huber_loss(
        numbers(lib, 4, 3).t().half(), numbers(lib, 3, 4).half(), reduction="none"
    ),
    "mvlgamma": lambda lib: lib.mvlgamma(numbers(lib, 3, 4).t().abs() + 3, 2),
    "rrelu": lambda lib: lib.nn.functional.rrelu(numbers(lib, 3, 4).t()),
    "select_scatter": lambda lib: lib.select_scatter(
        numbers(lib, 1, 3, 4).mT.expand(2, 4, 3), numbers(lib, 4, 3), 0, 0
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDERS)
def test_the_order_of_dimensions_follows_every_operand(name: str) -> None:
    assert strides_of(ORDERS[name](tc)) == strides_of(ORDERS[name](torch))


@pytest.mark.parametrize(
    "copy",
    [
        lambda lib, x: x.clone(),
        lambda lib, x: x.to(lib.float64),
        lambda lib, x: lib.zeros_like(x),
        lambda lib, x: x.flip(0),
        lambda lib, x: x.sort(0)[0],
    ],
)
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.transpose(1, 3),
        lambda x: x.permute(3, 2, 1, 0),
        lambda x: x[:, :1].transpose(1, 2),
        lambda x: x[:1, :1].expand(3, 1, 4, 1),
    ],
)
def test_copies_keep_the_strides_of_single_elements(copy: Any, view: Any) -> None:
    # Such a stride is read by rules that ask whether channels lie innermost.
    def strides(lib: Any) -> Any:
        return tuple(copy(lib, view(numbers(lib, 2, 3, 4, 1))).stride())

    assert strides(tc) == strides(torch)


def test_memory_formats_are_asked_for() -> None:
    x = tc.zeros(2, 3, 4, 5, device="cpu").to(memory_format=tc.channels_last)
    assert x.is_contiguous(memory_format=tc.channels_last)
    assert not x.is_contiguous()
    assert x.contiguous().is_contiguous()
    with pytest.raises(tc.ShapeError, match="channels_last does not fit"):
        x[0].contiguous(memory_format=tc.channels_last)
    with pytest.raises(tc.ArgumentError, match="unknown memory_format"):
        x.contiguous(memory_format="channels_last")


COPIES: dict[str, Program] = {
    "interpolate": lambda lib, x: lib.nn.functional.interpolate(x, size=(4, 5)),
    "bilinear": lambda lib, x: lib.nn.functional.interpolate(x, size=(4, 5), mode="bilinear"),
    "pixel_shuffle": lambda lib, x: lib.nn.functional.pixel_shuffle(x, 1),
    "pixel_unshuffle": lambda lib, x: lib.nn.functional.pixel_unshuffle(x, 1),
    "channel_shuffle": lambda lib, x: lib.nn.functional.channel_shuffle(x, 1),
    "diff": lambda lib, x: x.diff(n=0),
    "max_pool2d": lambda lib, x: lib.nn.functional.max_pool2d(x, 1),
    "pad": lambda lib, x: lib.nn.functional.pad(x, (0, 0)),
    "roll": lambda lib, x: x.roll(0, 0),
}


@pytest.mark.parametrize("name", COPIES)
def test_what_is_no_view_shares_nothing(name: str) -> None:
    x = numbers(tc, 2, 3, 4, 5)
    before = x.clone()
    y = COPIES[name](tc, x)
    y.fill_(7)
    assert tc.equal(x, before)
    leaf = numbers(tc, 2, 3, 4, 5).requires_grad_()
    COPIES[name](tc, leaf).sum().backward()
    assert tc.equal(leaf.grad, tc.ones_like(leaf))


VIEWABLE: dict[str, Program] = {
    "trilinear": lambda lib: lib.nn.functional.interpolate(
        numbers(lib, 1, 2, 3, 4, 5), size=(2, 3, 4), mode="trilinear"
    ),
    "adaptive_max_pool2d": lambda lib: lib.nn.functional.adaptive_max_pool2d(
        numbers(lib, 1, 2, 5, 7), (3, 2)
    ),
    "adaptive_avg_pool2d": lambda lib: lib.nn.functional.adaptive_avg_pool2d(
        numbers(lib, 1, 2, 5, 7), (3, 2)
    ),
    "attention": lambda lib: lib.nn.MultiheadAttention(4, 2, device="cpu")(
        *[numbers(lib, 3, 2, 4)] * 3
    )[0],
}


@pytest.mark.parametrize("name", VIEWABLE)
def test_new_results_are_row_major(name: str) -> None:
    result = VIEWABLE[name](tc)
    assert result.is_contiguous()
    assert result.view(-1).shape == (result.numel(),)


REFUSED: dict[str, Program] = {
    "relu of bool": lambda lib: lib.relu(lib.tensor([True])),
    "bool minus number": lambda lib: lib.tensor([True]) - 1,
    "number minus bool": lambda lib: 1.5 - lib.tensor([True]),
    "bool minus integer": lambda lib: lib.tensor([True]) - lib.tensor([1]),
    "bool minus bool": lambda lib: lib.tensor([True]) - lib.tensor([False]),
    "roll of 0-d": lambda lib: lib.tensor(1.0).roll(1, 0),
    "diff of 0-d": lambda lib: lib.tensor(1.0).diff(n=0),
    "unflatten of 0-d": lambda lib: lib.tensor(1.0).unflatten(0, (1, 1)),
    "meshgrid of two dtypes": lambda lib: lib.meshgrid(
        lib.tensor([1]), lib.tensor([1.0]), indexing="ij"
    ),
    "group_norm of one element": lambda lib: lib.nn.functional.group_norm(lib.ones(1, 4, 1), 4),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses(name: str) -> None:
    with pytest.raises((RuntimeError, ValueError, TypeError, IndexError)):
        REFUSED[name](torch)
    with pytest.raises(tc.TgcError):
        REFUSED[name](tc)


@pytest.mark.parametrize("name", ["hstack", "vstack"])
def test_stacks_of_one_channel_lie_as_their_parts(name: str) -> None:
    """Strides of dimensions of size 1 tell the order, too."""

    def strides(lib: Any) -> Any:
        x = lib.zeros(1, 1, 1, 5).to(memory_format=lib.channels_last)
        return getattr(lib, name)([x, x]).stride()

    assert strides(tc) == strides(torch)


def test_means_of_a_line_whose_channels_lie_innermost() -> None:
    """`interpolate(mode="area")` is adaptive pooling, with its strides."""

    def strides(lib: Any) -> Any:
        x = lib.zeros(2, 3, 3).permute(0, 2, 1)
        return lib.nn.functional.interpolate(x, scale_factor=2, mode="area").stride()

    assert strides(tc) == strides(torch) == (18, 1, 3)


def test_a_written_copy_of_windows_repeats_no_element() -> None:
    """PyTorch copies the overlap too, so that one slice written changes its neighbours."""
    windows = tc.arange(7.0, device="cpu").unfold(0, 5, 2)
    written = tc.select_scatter(windows, tc.zeros(5, device="cpu"), 0, 1)
    assert written.tolist() == [[0, 1, 2, 3, 4], [0, 0, 0, 0, 0]]
    assert written.stride() == (5, 1)


MOVED: dict[str, Program] = {
    "contiguous": lambda lib, x: x.contiguous(memory_format=lib.channels_last),
    "clone": lambda lib, x: x.clone(memory_format=lib.channels_last),
    "to": lambda lib, x: x.to(memory_format=lib.channels_last),
    "to, then cast": lambda lib, x: x.to(memory_format=lib.channels_last).to(lib.float16),
    "clone of it": lambda lib, x: x.to(memory_format=lib.channels_last).clone(),
}


@pytest.mark.parametrize("name", MOVED)
def test_a_memory_format_is_the_order_in_memory(name: str) -> None:
    """What NumPy sees of the memory, and a write that reaches it."""
    program = MOVED[name]
    ours, theirs = (program(lib, numbers(lib, 2, 3, 4, 5)) for lib in (tc, torch))
    assert ours.numpy().strides == theirs.numpy().strides
    for x in (ours, theirs):
        x[:, 1] += 2
        x.mul_(3)
    assert strides_of(ours) == strides_of(theirs)
    assert ours.numpy().strides == theirs.numpy().strides
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_gradients_go_through_a_memory_format() -> None:
    found = []
    for lib in (tc, torch):
        x = numbers(lib, 2, 3, 4, 5).requires_grad_(True)
        y = x.to(memory_format=lib.channels_last)
        (y * y).sum().backward()
        z = y.detach().requires_grad_(True)
        (z * 3).sum().backward()
        found.append((x.grad.numpy(), z.grad.numpy(), y.is_leaf, z.is_leaf))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)
