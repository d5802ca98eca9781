"""Every layer against torch: values, gradients of inputs and parameters, state, running values."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from layers import compare_layer, real, torch

import tinygrad_cuda as tc
from tinygrad_cuda import nn

IMAGES = real(2, 4, 9, 8)
LINES = real(2, 4, 11)
VOLUMES = real(2, 3, 5, 6, 4)
FLAT = np.maximum(IMAGES, 0)  # many equal elements


def drawn(lib: Any, *shape: int) -> Any:
    """Fixed numbers from 0 to 1, a Tensor of the library."""
    return (tc if lib is nn else torch).tensor(np.random.default_rng(5).random(shape))


Case = tuple[Callable[[Any], Any], tuple[Any, ...]]
LAYERS: dict[str, Case] = {
    "Conv1d": (lambda lib: lib.Conv1d(4, 6, 3, padding=1), (LINES,)),
    "Conv1d, unbatched": (lambda lib: lib.Conv1d(4, 6, 3, stride=2), (LINES[0],)),
    "Conv1d, circular": (
        lambda lib: lib.Conv1d(4, 2, 4, padding=2, padding_mode="circular"), (LINES,)),
    "Conv2d": (lambda lib: lib.Conv2d(4, 6, 3), (IMAGES,)),
    "Conv2d, 1x1, no bias": (lambda lib: lib.Conv2d(4, 5, 1, bias=False), (IMAGES,)),
    "Conv2d, stride": (lambda lib: lib.Conv2d(4, 6, 3, stride=2, padding=1), (IMAGES,)),
    "Conv2d, stride over kernel": (lambda lib: lib.Conv2d(4, 6, 2, stride=3), (IMAGES,)),
    "Conv2d, tiles": (lambda lib: lib.Conv2d(4, 6, 2, stride=2), (IMAGES,)),
    "Conv2d, uneven": (
        lambda lib: lib.Conv2d(4, 6, (3, 2), (2, 3), (1, 2), (2, 1), groups=2), (IMAGES,)),
    "Conv2d, depthwise": (lambda lib: lib.Conv2d(4, 8, 3, padding="same", groups=4), (IMAGES,)),
    "Conv2d, same": (lambda lib: lib.Conv2d(4, 3, 4, padding="same", dilation=2), (IMAGES,)),
    "Conv2d, valid": (lambda lib: lib.Conv2d(4, 3, 4, padding="valid"), (IMAGES,)),
    "Conv2d, wide padding": (lambda lib: lib.Conv2d(4, 3, 2, padding=3), (IMAGES,)),
    "Conv2d, reflect": (
        lambda lib: lib.Conv2d(4, 3, 3, padding=2, padding_mode="reflect"), (IMAGES,)),
    "Conv2d, replicate": (
        lambda lib: lib.Conv2d(4, 3, 3, padding=(2, 1), padding_mode="replicate"), (IMAGES,)),
    "Conv3d": (lambda lib: lib.Conv3d(3, 4, (2, 3, 2), padding=1, stride=(1, 2, 1)), (VOLUMES,)),
    "ConvTranspose1d": (lambda lib: lib.ConvTranspose1d(4, 6, 3, stride=2, padding=1), (LINES,)),
    "ConvTranspose2d": (lambda lib: lib.ConvTranspose2d(4, 6, 3), (IMAGES,)),
    "ConvTranspose2d, all": (
        lambda lib: lib.ConvTranspose2d(
            4, 6, (3, 2), stride=(2, 3), padding=(1, 0), output_padding=(1, 2), groups=2,
            dilation=(2, 1), bias=False,
        ), (IMAGES,)),
    "Conv2d, no images": (lambda lib: lib.Conv2d(4, 6, 3, stride=2), (IMAGES[:0],)),
    "MaxPool2d, no images": (lambda lib: lib.MaxPool2d(2), (IMAGES[:0],)),
    "AdaptiveAvgPool2d, no images": (lambda lib: lib.AdaptiveAvgPool2d(2), (IMAGES[:0],)),
    "LayerNorm, no images": (lambda lib: lib.LayerNorm(8), (IMAGES[:0],)),
    "GroupNorm, no images": (lambda lib: lib.GroupNorm(2, 4), (IMAGES[:0],)),
    "MaxPool1d": (lambda lib: lib.MaxPool1d(3, 2, 1), (LINES,)),
    "MaxPool2d": (lambda lib: lib.MaxPool2d(2), (IMAGES,)),
    "MaxPool2d, ties": (lambda lib: lib.MaxPool2d(2), (FLAT,)),
    "MaxPool2d, overlap, ties": (lambda lib: lib.MaxPool2d(3, 1, 1), (FLAT,)),
    "MaxPool2d, dilated": (lambda lib: lib.MaxPool2d((2, 3), (2, 1), (1, 1), 2), (IMAGES,)),
    "MaxPool2d, ceil": (lambda lib: lib.MaxPool2d(3, 2, 1, ceil_mode=True), (IMAGES,)),
    "MaxPool2d, indices": (
        lambda lib: lib.MaxPool2d(3, 2, 1, return_indices=True, ceil_mode=True), (FLAT,)),
    "MaxPool2d, unbatched": (lambda lib: lib.MaxPool2d(2, 3), (IMAGES[0],)),
    "MaxPool3d": (lambda lib: lib.MaxPool3d(2, padding=1), (VOLUMES,)),
    "AvgPool1d": (lambda lib: lib.AvgPool1d(3, 2, 1), (LINES,)),
    "AvgPool2d": (lambda lib: lib.AvgPool2d(2), (IMAGES,)),
    "AvgPool2d, padding": (lambda lib: lib.AvgPool2d(3, 2, 1), (IMAGES,)),
    "AvgPool2d, not counted": (
        lambda lib: lib.AvgPool2d((3, 2), 2, 1, True, count_include_pad=False), (IMAGES,)),
    "AvgPool2d, ceil": (lambda lib: lib.AvgPool2d(3, 2, 1, ceil_mode=True), (IMAGES,)),
    "AvgPool2d, divisor": (lambda lib: lib.AvgPool2d(2, divisor_override=3), (IMAGES,)),
    "AvgPool3d": (lambda lib: lib.AvgPool3d(2), (VOLUMES,)),
    "LPPool1d": (lambda lib: lib.LPPool1d(2, 3, 2), (LINES,)),
    "LPPool2d": (lambda lib: lib.LPPool2d(2, (3, 2), 2), (IMAGES,)),
    "FractionalMaxPool2d": (
        lambda lib: lib.FractionalMaxPool2d((3, 2), (4, 5), None, True, drawn(lib, 2, 4, 2)),
        (IMAGES,)),
    "FractionalMaxPool2d, ratio, ties": (
        lambda lib: lib.FractionalMaxPool2d(
            2, output_ratio=(0.5, 0.6), _random_samples=drawn(lib, 2, 4, 2)), (FLAT,)),
    "FractionalMaxPool2d, one, unbatched": (
        lambda lib: lib.FractionalMaxPool2d(3, (1, 3), _random_samples=drawn(lib, 1, 4, 2)),
        (IMAGES[0],)),
    "FractionalMaxPool3d": (
        lambda lib: lib.FractionalMaxPool3d(2, (3, 4, 2), None, True, drawn(lib, 2, 3, 3)),
        (VOLUMES,)),
    "AdaptiveAvgPool1d": (lambda lib: lib.AdaptiveAvgPool1d(4), (LINES,)),
    "AdaptiveAvgPool2d, 1": (lambda lib: lib.AdaptiveAvgPool2d(1), (IMAGES,)),
    "AdaptiveAvgPool2d, uneven": (lambda lib: lib.AdaptiveAvgPool2d((5, None)), (IMAGES,)),
    "AdaptiveAvgPool2d, more": (lambda lib: lib.AdaptiveAvgPool2d((11, 3)), (IMAGES,)),
    "AdaptiveMaxPool1d": (lambda lib: lib.AdaptiveMaxPool1d(4, return_indices=True), (LINES,)),
    "AdaptiveMaxPool2d": (lambda lib: lib.AdaptiveMaxPool2d((5, 3)), (FLAT,)),
    "AdaptiveMaxPool2d, even": (lambda lib: lib.AdaptiveMaxPool2d((3, 4), True), (FLAT,)),
    "AdaptiveMaxPool2d, indices": (lambda lib: lib.AdaptiveMaxPool2d((5, 3), True), (FLAT,)),
    "BatchNorm1d": (lambda lib: lib.BatchNorm1d(5), (real(7, 5),)),
    "BatchNorm1d, lines": (lambda lib: lib.BatchNorm1d(4, momentum=0.3), (LINES,)),
    "BatchNorm2d": (lambda lib: lib.BatchNorm2d(4), (IMAGES,)),
    "BatchNorm2d, average": (lambda lib: lib.BatchNorm2d(4, momentum=None), (IMAGES,)),
    "BatchNorm2d, plain": (lambda lib: lib.BatchNorm2d(4, affine=False, eps=1e-3), (IMAGES,)),
    "BatchNorm2d, no bias": (lambda lib: lib.BatchNorm2d(4, bias=False), (IMAGES,)),
    "GroupNorm, no bias": (lambda lib: lib.GroupNorm(2, 4, bias=False), (IMAGES,)),
    "BatchNorm2d, untracked": (
        lambda lib: lib.BatchNorm2d(4, track_running_stats=False), (IMAGES,)),
    "BatchNorm3d": (lambda lib: lib.BatchNorm3d(3), (VOLUMES,)),
    "InstanceNorm1d": (lambda lib: lib.InstanceNorm1d(4), (LINES,)),
    "InstanceNorm2d": (lambda lib: lib.InstanceNorm2d(4, affine=True), (IMAGES,)),
    "InstanceNorm2d, tracked": (
        lambda lib: lib.InstanceNorm2d(4, track_running_stats=True), (IMAGES,)),
    "LayerNorm": (lambda lib: lib.LayerNorm(8), (IMAGES,)),
    "LayerNorm, two axes": (lambda lib: lib.LayerNorm((9, 8), bias=False), (IMAGES,)),
    "LayerNorm, plain": (lambda lib: lib.LayerNorm(8, elementwise_affine=False), (IMAGES,)),
    "RMSNorm": (lambda lib: lib.RMSNorm(8), (IMAGES,)),
    "RMSNorm, eps": (lambda lib: lib.RMSNorm((9, 8), eps=1e-3), (IMAGES,)),
    "GroupNorm": (lambda lib: lib.GroupNorm(2, 4), (IMAGES,)),
    "GroupNorm, plain": (lambda lib: lib.GroupNorm(4, 4, affine=False), (LINES,)),
    "LocalResponseNorm": (lambda lib: lib.LocalResponseNorm(3, 0.2, 0.6, 2.0), (IMAGES,)),
    "LocalResponseNorm, even": (lambda lib: lib.LocalResponseNorm(2), (LINES,)),
}  # fmt: skip
if "bias" not in inspect.signature(torch.nn.GroupNorm).parameters:  # before torch 2.13
    del LAYERS["BatchNorm2d, no bias"], LAYERS["GroupNorm, no bias"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str, dtype: str) -> None:
    """Two calls in training mode, so that running values and their use are compared too."""
    make, arrays = LAYERS[name]
    compare_layer(make, arrays, dtype, steps=2)


@pytest.mark.parametrize("name", [name for name in LAYERS if "Norm" in name])
def test_evaluation(name: str) -> None:
    """Normalization in evaluation mode uses the running values."""
    make, arrays = LAYERS[name]
    compare_layer(make, arrays, "float64", evaluate=True)


def test_text() -> None:
    """repr shows what torch's shows, where norms tell of their bias only lately."""

    def text(layer: Any) -> str:
        return re.sub(r", bias=(True|False)", "", repr(layer))

    for name, (make, _) in LAYERS.items():
        if not name.startswith("AvgPool1d"):  # torch makes tuples of its numbers
            assert text(make(nn)) == text(make(torch.nn)), name


@pytest.mark.parametrize(
    "name", ["Conv2d, uneven", "ConvTranspose2d, all", "MaxPool2d, overlap, ties", "BatchNorm2d"]
)
def test_layer_on_devices(name: str, device: str) -> None:
    """Generated kernels give the same."""
    make, arrays = LAYERS[name]
    compare_layer(make, arrays, "float32", device)


def test_second_derivatives_of_convolution() -> None:
    """The explicit gradients are differentiable themselves."""
    x = tc.tensor(real(1, 2, 5, 4), device="cpu", requires_grad=True)
    w = tc.tensor(real(2, 1, 2, 3), device="cpu", requires_grad=True)

    def call(x: Any, w: Any) -> Any:
        return nn.functional.conv2d(x, w, stride=2, padding=1, groups=2)

    assert tc.autograd.gradcheck(call, (x, w))
    assert tc.autograd.gradgradcheck(call, (x, w))


def test_windows_are_never_stored() -> None:
    """Forward, both gradients: no buffer as large as the columns of windows."""
    tc.set_default_device("emu")
    try:
        x = tc.rand(2, 3, 12, 12, requires_grad=True)
        w = tc.rand(4, 3, 5, 5, requires_grad=True)
        y = nn.functional.conv2d(x, w, padding=2)
        (y * y).sum().backward()
        text = tc.explain([y, w.grad, x.grad])
    except tc.CompileError as error:
        pytest.skip(str(error))
    finally:
        tc.set_default_device(None)
    columns = {str(2 * 12 * 12 * 3 * 25), "75, 288", "288, 75", "100, 288", "288, 100"}
    assert "contract" in text
    assert not any(size in text for size in columns), text


def test_fractional_windows_are_drawn_anew() -> None:
    """Two calls look at other windows; what cannot be is refused."""
    tc.manual_seed(0)
    x = tc.tensor(real(1, 3, 20, 20), device="cpu")
    pool = nn.FractionalMaxPool2d(2, output_ratio=0.7)
    assert pool(x).shape == (1, 3, 14, 14)
    assert not tc.equal(pool(x), pool(x))
    with pytest.raises(tc.ArgumentError, match="needs one of two"):
        nn.FractionalMaxPool2d(2)
    with pytest.raises(tc.ArgumentError, match="a ratio is out of range"):
        nn.FractionalMaxPool2d(2, output_ratio=1.5)
    with pytest.raises(tc.ShapeError, match="the windows do not fit"):
        nn.functional.fractional_max_pool2d(x, 3, 19)


def _switched(lib: Any, make: Callable[[Any], Any], shape: tuple[int, ...]) -> list[Any]:
    """All values of a norm whose `track_running_stats` is set and whose statistics are reset."""
    layer, seen = make(lib.nn), []
    for turn, (tracks, training) in enumerate(
        [(True, True), (False, True), (False, False), (True, False), (False, True), (True, True)]
    ):
        layer.track_running_stats = tracks
        layer.train(training)
        if turn >= 4:
            layer.reset_running_stats()
        x = np.random.default_rng(turn).normal(1, 2, shape)
        seen += [layer(lib.tensor(x, dtype=lib.float32)), *layer.buffers()]
        # Copies: on cpu an array shows what the layer writes to its buffer later.
        seen = [x.detach().cpu().numpy().copy() if isinstance(x, lib.Tensor) else x for x in seen]
    return seen


@pytest.mark.parametrize("momentum", [0.3, None])
@pytest.mark.parametrize("kind", ["BatchNorm1d", "BatchNorm2d", "InstanceNorm2d"])
def test_running_values_while_they_are_not_tracked(kind: str, momentum: float | None) -> None:
    """They stay as they are, and are not used in training; an instance norm never uses them."""
    shape = (4, 3) if kind == "BatchNorm1d" else (4, 3, 2, 5)
    if kind == "InstanceNorm2d" and momentum is None:
        momentum = 0.5
    make = lambda nn: getattr(nn, kind)(3, momentum=momentum, track_running_stats=True)  # noqa: E731
    ours, theirs = _switched(tc, make, shape), _switched(torch, make, shape)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
