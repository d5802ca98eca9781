"""Functions of nn where they are seldom called: integers, no dimensions, nothing in them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from layers import compare, real

import tinygrad_cuda as tc
from tinygrad_cuda import nn

WHOLE = np.arange(-8, 8).reshape(1, 1, 4, 4)
W_1 = np.ones((4, 2, 3))
ONE, SEVERAL = np.array(0.3), np.array([0.3, 2.0, -1.0])
NO_KEYS = (np.ones((2, 3, 4)), np.zeros((2, 0, 4)), np.zeros((2, 0, 5)))
Case = tuple[Callable[..., Any], tuple[Any, ...]]

CASES: dict[str, Case] = {
    "avg_pool1d, whole": (lambda F, x: F.avg_pool1d(x[0], 2), (WHOLE,)),
    "avg_pool2d, whole": (lambda F, x: F.avg_pool2d(x, 3, 1, 1), (WHOLE,)),
    "avg_pool2d, whole, not counted": (
        lambda F, x: F.avg_pool2d(x, 3, 2, 1, True, False), (WHOLE,)),
    "avg_pool2d, whole, divisor": (
        lambda F, x: F.avg_pool2d(x, 2, divisor_override=3), (WHOLE,)),
    "avg_pool3d, whole": (lambda F, x: F.avg_pool3d(x, (1, 2, 2)), (WHOLE,)),
    **{
        f"{kind}, {dtype}": (call, (WHOLE.astype(dtype),))
        for dtype in ("int8", "int32", "int64")
        for kind, call in {
            "hardtanh": lambda F, x: F.hardtanh(x),
            "hardtanh, fractions": lambda F, x: F.hardtanh(x, -2.5, 3.5),
            "relu6": lambda F, x: F.relu6(x),
        }.items()
    },
    "relu6, uint8": (lambda F, x: F.relu6(x), (WHOLE.astype("uint8"),)),
    **{
        f"{kind}, {reduction}": (lambda F, *t, f=call, r=reduction: f(F, *t, reduction=r), arrays)
        for kind, (call, arrays) in {
            "hinge, one": (
                lambda F, x, **o: F.hinge_embedding_loss(x, x.new_tensor(-1.0), **o), (ONE,)),
            "hinge, one target": (
                lambda F, x, **o: F.hinge_embedding_loss(x, x.new_tensor(-1.0), **o), (SEVERAL,)),
            "hinge, one input": (
                lambda F, x, **o: F.hinge_embedding_loss(x, x.new_tensor([1.0, -1.0]), **o),
                (ONE,)),
            "hinge, other targets": (
                lambda F, x, **o: F.hinge_embedding_loss(x, x.new_tensor([0.0, 1.0, 2.0]), **o),
                (SEVERAL,)),
            "multi_margin, one": (
                lambda F, *t, **o: F.multi_margin_loss(*t, **o), (ONE, np.array(0))),
            "multi_margin, one of one": (
                lambda F, *t, **o: F.multi_margin_loss(*t, **o), (ONE.reshape(1), np.array([0]))),
            "multi_margin, row": (
                lambda F, *t, **o: F.multi_margin_loss(*t, p=2, **o), (SEVERAL, np.array(1))),
            "multi_margin, row of one": (
                lambda F, *t, **o: F.multi_margin_loss(*t, **o), (SEVERAL, np.array([1]))),
        }.items()
        for reduction in ("mean", "sum", "none")
    },
    "attention, no queries": (
        lambda F, q, k, v: F.scaled_dot_product_attention(q, k, v),
        (np.zeros((2, 0, 4)), real(2, 3, 4), real(2, 3, 5))),
    "attention, no keys": (
        lambda F, q, k, v: F.scaled_dot_product_attention(q, k, v), NO_KEYS),
    "attention, nothing": (
        lambda F, q: F.scaled_dot_product_attention(q, q, q), (np.zeros((2, 0, 4)),)),
    "attention, no batch": (
        lambda F, q: F.scaled_dot_product_attention(q, q, q), (np.zeros((0, 3, 4)),)),
    "attention, no width": (
        lambda F, q, v: F.scaled_dot_product_attention(q, q, v),
        (np.zeros((2, 3, 0)), real(2, 3, 5))),
    "linear, no features": (
        lambda F, x, w, b: F.linear(x, w, b), (np.zeros((2, 0)), np.zeros((3, 0)), real(3))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_as_torch(name: str) -> None:
    call, arrays = CASES[name]
    compare(call, arrays, "float64")


@pytest.mark.parametrize(
    ("left", "right"),
    [((2, 3, 0), (2, 0, 4)), ((2, 3, 0), (0, 4)), ((0,), (0,)), ((0,), (0, 3)), ((3, 0), (0,))],
)
def test_products_of_nothing_keep_their_history(
    left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    """Every operand gets its empty gradient."""
    a, b = (tc.zeros(*shape, device="cpu", requires_grad=True) for shape in (left, right))
    product = a @ b
    assert not product.detach().numpy().any()
    product.sum().backward()
    assert (a.grad.shape, b.grad.shape) == (left, right)


def test_unsigned_bounds_are_not_negative() -> None:
    with pytest.raises(tc.ArgumentError, match="no negative bounds"):
        nn.functional.hardtanh(tc.ones(2, dtype=tc.uint8, device="cpu"))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    "options",
    [
        {"size": (5, 7)}, {"size": (20, 9), "align_corners": True}, {"scale_factor": (1.7, 0.3)},
        {"scale_factor": 0.4, "recompute_scale_factor": True},
    ],
)  # fmt: skip
def test_interpolation_without_aliasing(mode: str, options: dict[str, Any]) -> None:
    """Values and gradients where the output is smaller, and where it is larger."""
    compare(
        lambda F, x: F.interpolate(x, mode=mode, antialias=True, **options),
        (real(2, 3, 13, 17),), "float64",
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [tc.float16, tc.bfloat16])
def test_half_precision_finds_far_positions(dtype: tc.dtype) -> None:
    """Positions beyond 2048, which the dtype cannot number, and squares beyond its range."""
    x = tc.zeros(1, 1, 3000, device="cpu", dtype=dtype)
    x[..., 2999] = 1.0
    y = nn.functional.interpolate(x, size=6000, mode="linear").float().numpy().reshape(-1)
    np.testing.assert_array_equal(y[-4:], [0.0, 0.25, 0.75, 1.0])
    assert not y[:-4].any()
    big = tc.tensor([[600.0, -800.0]], device="cpu").to(dtype)
    scaled = nn.functional.rms_norm(big, (2,)).float().numpy()
    np.testing.assert_allclose(scaled, [[6 / 50**0.5, -8 / 50**0.5]], rtol=1e-2)


BYTES: list[dict[str, Any]] = [
    {"size": (9, 20)}, {"size": (3, 2)}, {"size": (7, 3)}, {"size": (1, 4)},
    {"size": (20, 9), "align_corners": True}, {"size": (4, 5), "align_corners": True},
    {"scale_factor": (1.01, 1.7)}, {"scale_factor": (0.3, 2.0)},
]  # fmt: skip


def images() -> Iterator[np.ndarray[Any, Any]]:
    """Bytes of shapes down to one row, half of them the extremes alone."""
    random = np.random.default_rng(5)
    for shape in ((2, 3, 7, 11), (1, 1, 4, 5), (2, 4, 16, 3)):
        yield random.integers(0, 256, shape).astype(np.uint8)
        yield random.choice([0, 255], shape).astype(np.uint8)


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_bytes_are_resized_in_fixed_point(mode: str, antialias: bool) -> None:
    """Bit by bit and with the strides of PyTorch's CPU, row-major and channels-last."""
    torch = pytest.importorskip("torch")
    for image, options, last in itertools.product(images(), BYTES, (False, True)):
        ours, theirs = tc.tensor(image, device="cpu"), torch.from_numpy(image)
        if last:
            ours = ours.contiguous(memory_format=tc.channels_last)
            theirs = theirs.contiguous(memory_format=torch.channels_last)
        found = nn.functional.interpolate(ours, mode=mode, antialias=antialias, **options)
        expected = torch.nn.functional.interpolate(
            theirs, mode=mode, antialias=antialias, **options
        )
        np.testing.assert_array_equal(found.numpy(), expected.numpy(), strict=True)
        assert found.stride() == expected.stride()


def test_kernels_resize_bytes_in_fixed_point() -> None:
    image = next(images())
    for mode, antialias in (("bilinear", False), ("bicubic", True)):
        resize = functools.partial(
            nn.functional.interpolate, size=(3, 20), mode=mode, antialias=antialias
        )
        expected = resize(tc.tensor(image, device="cpu")).numpy()
        found = resize(tc.tensor(image, device="emu"))
        np.testing.assert_array_equal(found.numpy(), expected, strict=True)
        compiled = tc.compile(resize)
        for _ in range(2):
            again = compiled(tc.tensor(image, device="cpu"))
            np.testing.assert_array_equal(again.numpy(), expected, strict=True)


def test_integers_are_not_weighed() -> None:
    """But bytes of images, as in PyTorch."""
    image = tc.zeros(1, 1, 4, 4, device="cpu", dtype=tc.uint8)
    assert nn.functional.interpolate(image, size=2).dtype is tc.uint8
    with pytest.raises(tc.DTypeError, match="needs a floating dtype"):
        nn.functional.interpolate(image.int(), size=2, mode="bilinear")
    with pytest.raises(tc.DTypeError, match="needs a floating dtype"):
        nn.functional.interpolate(image[0], size=2, mode="linear")


POOLS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "max_pool1d": (
        lambda F, x: F.max_pool1d(x[0], 3, 2, 1, return_indices=True), [[0, 1, 3]] * 3),
    "max_pool2d": (
        lambda F, x: F.max_pool2d(x, 3, 2, 1, return_indices=True), [[[0, 1, 3], [5, 6, 8]]]),
    "max_pool2d, dilated": (
        lambda F, x: F.max_pool2d(x, 2, 1, 1, 2, return_indices=True),
        [[[6, 5, 6, 7, 8], [1, 0, 1, 2, 3], [6, 5, 6, 7, 8]]]),
    "max_pool3d": (
        lambda F, x: F.max_pool3d(x[None], (1, 3, 3), 2, (0, 1, 1), return_indices=True),
        [[[[0, 1, 3], [5, 6, 8]]]]),
    "adaptive_max_pool1d": (
        lambda F, x: F.adaptive_max_pool1d(x[0], 3, return_indices=True), [[0, 1, 3]] * 3),
    "adaptive_max_pool2d": (
        lambda F, x: F.adaptive_max_pool2d(x, (2, 3), return_indices=True),
        [[[0, 1, 3], [5, 6, 8]]]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "lowest"), [("uint8", 0), ("int64", -(2**63)), ("float32", -np.inf)]
)
@pytest.mark.parametrize("name", POOLS)
def test_the_largest_of_lowest_values_is_inside(name: str, dtype: str, lowest: Any) -> None:
    """Where all are as low as padding, the first element of a window, as in PyTorch."""
    call, expected = POOLS[name]
    values, indices = call(
        nn.functional, tc.tensor(np.full((1, 3, 5), lowest, dtype), device="cpu")
    )
    assert (values == lowest).all()
    assert indices.tolist() == expected


@pytest.mark.parametrize("name", POOLS)
def test_the_gradient_of_lowest_values_is_inside(name: str) -> None:
    """It goes to the element that is chosen, not to padding."""
    torch = pytest.importorskip("torch")
    call, _ = POOLS[name]
    array = np.full((1, 3, 5), -np.inf)
    array[0, 1, 2:4] = [2.0, 2.0]
    ours = tc.tensor(array, device="cpu", requires_grad=True)
    theirs = torch.tensor(array, requires_grad=True)
    for framework, x in ((nn.functional, ours), (torch.nn.functional, theirs)):
        call(framework, x)[0].sum().backward()
    assert ours.grad is not None and theirs.grad is not None
    assert ours.grad.tolist() == theirs.grad.tolist()


REFUSED: dict[str, Callable[[], Any]] = {
    "probabilities have no label": lambda: nn.functional.cross_entropy(
        tc.ones(2, 3), tc.ones(2, 3), ignore_index=0
    ),
    "delta must be positive": lambda: nn.functional.huber_loss(tc.ones(2), tc.ones(2), delta=0),
    "mean over nothing": lambda: nn.functional.avg_pool2d(tc.ones(1, 4, 4), 2, divisor_override=0),
    "the table is no matrix": lambda: nn.functional.embedding(tc.tensor([0]), tc.ones(1, 1, 1)),
    "batch_first is no bool": lambda: nn.LSTM(3, 5, 1, True, 0.5),  # type: ignore[arg-type]
    "sizes must be positive": lambda: nn.GRU(0, 5),
    "bias have different dtypes": lambda: nn.functional.conv1d(
        tc.ones(1, 1, 4), tc.ones(1, 1, 2), tc.ones(1, dtype=tc.float64)
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_arguments_that_hide_a_mistake(text: str) -> None:
    with pytest.raises(tc.TgcError, match=text):
        REFUSED[text]()


def test_convolution_with_the_channels_last() -> None:
    arrays = (real(7, 2, 3), real(4, 3, 5), real(5))
    compare(lambda F, x, w, b: F.conv_tbc(x, w, b, 2), arrays, "float64")


LAYERS: dict[str, Case] = {
    "conv2d": (lambda t, x, w: t.conv2d(x, w, None, 2, 1), (WHOLE * 0.5, np.ones((3, 1, 2, 2)))),
    "conv_transpose1d": (lambda t, x, w: t.conv_transpose1d(x[0], w), (WHOLE * 0.5, W_1)),
    "layer_norm": (lambda t, x: t.layer_norm(x, (4,)), (WHOLE * 0.5,)),
    "group_norm": (lambda t, x: t.group_norm(x, 1), (WHOLE * 0.5,)),
    "max_pool2d": (lambda t, x: t.max_pool2d(x, 2, 1), (WHOLE * 0.5,)),
    "max_pool1d_with_indices": (lambda t, x: t.max_pool1d_with_indices(x[0], 2), (WHOLE * 0.5,)),
    "prelu, pixels": (lambda t, x: t.prelu(t.pixel_unshuffle(x, 2), x[0, 0, 0]), (WHOLE * 0.5,)),
    "threshold": (lambda t, x: t.threshold(t.selu(t.celu(x)), 0.1, 2.0), (WHOLE * 0.5,)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_functions_that_the_package_has_too(name: str) -> None:
    """PyTorch has some of nn.functional as its own functions."""
    torch = pytest.importorskip("torch")
    call, arrays = LAYERS[name]
    compare(
        lambda F, *tensors: call(tc if F is nn.functional else torch, *tensors), arrays, "float64"
    )
