"""3 x 3 convolutions and their gradients by tiles, on the emulator, and where tiles are used."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from execution import device_or_skip

import tinygrad_cuda as tc
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.dtypes import float32
from tinygrad_cuda.engine.plan import cache
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common
from tinygrad_cuda.graph.ops.convolution import convolution, convolution_weight_gradient
from tinygrad_cuda.graph.ops.winograd import PARTS, TransformPart
from tinygrad_cuda.lowering import algorithms
from tinygrad_cuda.lowering.codegen.skeleton import THREADS
from tinygrad_cuda.lowering.skeletons.conv import winograd
from tinygrad_cuda.lowering.skeletons.conv.winograd_transforms import block_of
from tinygrad_cuda.lowering.target import Target
from tinygrad_cuda.nn import functional as F

Array = np.ndarray[Any, Any]

# N, C, (H, W), O, padding
TARGET = Target.h200()
PROBLEMS = [
    (2, 3, (8, 12), 5, 1),
    (1, 4, (7, 5), 3, 0),  # one image, and tiles that hang over both edges
    (3, 2, (6, 9), 4, 2),
    (2, 17, (4, 6), 19, 0),
]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Every convolution of these tests by tiles of this many results along an axis."""
    chosen = {"form": 4, "used": 0}

    def tiles(*problem: Any) -> winograd.Tiles | None:
        found = winograd.tiles_of_least_time(*problem)
        chosen["used"] += found is not None
        return found and replace(found, form=chosen["form"], clocks=0.0)

    monkeypatch.setattr(settings, "winograd", True)
    monkeypatch.setattr(winograd, "MOST_OUTPUTS", 0)
    monkeypatch.setattr(algorithms, "tiles_of_least_time", tiles)
    cache.clear()
    yield chosen
    cache.clear()


def convolved(x: Array, w: Array, g: Array | None, padding: int) -> tuple[Array, ...]:
    """A convolution by its definition in float64, and its gradients where g is a cotangent."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2))
    near = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    y = np.einsum("ncyxuv,ocuv->noyx", near, w)
    if g is None:
        return (y,)
    back = np.zeros_like(x)
    for u, v in np.ndindex(3, 3):
        part = np.einsum("noyx,oc->ncyx", g, w[:, :, u, v])
        back[:, :, u : u + g.shape[2], v : v + g.shape[3]] += part
    edge = slice(padding, -padding or None)
    return y, back[:, :, edge, edge], np.einsum("ncyxuv,noyx->ocuv", near, g)


@pytest.mark.parametrize("form", [2, 4])
def test_tiles_give_the_convolution_and_both_gradients(
    form: int, always: dict[str, int], request: pytest.FixtureRequest
) -> None:
    """With cheap operations before it, of which padding is none, a bias and an activation."""
    device = device_or_skip("emu", request)
    always["form"] = form
    rng = np.random.default_rng(form)
    expected, found = list[Array](), list[tc.Tensor]()
    for n, c, sizes, o, padding in PROBLEMS:
        x = rng.standard_normal((n, c, *sizes)).astype(np.float32)
        w = rng.standard_normal((o, c, 3, 3)).astype(np.float32)
        b = rng.standard_normal(o).astype(np.float32)
        near = x * 0.5 + 1
        shown = convolved(near, w, None, padding)[0] + b[:, None, None]
        g = rng.standard_normal(shown.shape).astype(np.float32)
        _, dx, dw = convolved(near, w, g * (shown > 0), padding)
        expected += [np.maximum(shown, 0), dx * 0.5, dw]
        X, W, B = (tc.tensor(value, device=device, requires_grad=True) for value in (x, w, b))
        Y = F.relu(F.conv2d(X * 0.5 + 1, W, B, padding=padding))
        found += [Y, *tc.autograd.grad(Y, (X, W), tc.tensor(g, device=device))]
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        worst = np.abs(a.detach().numpy() - b).max() / np.abs(b).max()
        assert worst < 5e-6, f"problem {k // 3}, result {k % 3}: {worst:.1e}"
    assert always["used"] == 3 * len(PROBLEMS)


def test_error_of_many_channels(always: dict[str, int], request: pytest.FixtureRequest) -> None:
    """The documented bound, with 256 channels of normal numbers."""
    device = device_or_skip("emu", request)
    rng = np.random.default_rng(3)
    x = rng.standard_normal((1, 256, 8, 8)).astype(np.float32)
    w = rng.standard_normal((4, 256, 3, 3)).astype(np.float32)
    found = F.conv2d(tc.tensor(x, device=device), tc.tensor(w, device=device)).numpy()
    (expected,) = convolved(x, w, None, 0)
    assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-5
    assert always["used"] == 1


def test_second_derivatives_go_through_tiles(
    always: dict[str, int], request: pytest.FixtureRequest
) -> None:
    """The gradient of a gradient's square, beside the same without tiles."""
    device = device_or_skip("emu", request)

    def twice() -> list[Array]:
        rng = np.random.default_rng(4)
        x, w = (
            tc.tensor(rng.standard_normal(shape).astype(np.float32), device=device).requires_grad_()
            for shape in ((2, 3, 6, 7), (4, 3, 3, 3))
        )
        y = F.conv2d(x, w, padding=1)
        first = tc.autograd.grad((y * y * y).sum(), (x, w), create_graph=True)
        total = sum(((g * g).sum() for g in first), tc.zeros((), device=device))
        return [g.numpy() for g in tc.autograd.grad(total, (x, w))]

    by_tiles = twice()
    assert always["used"] > 3
    with settings.override(winograd=False):
        cache.clear()
        always["used"] = 0
        by_definition = twice()
    assert always["used"] == 0
    for a, b in zip(by_tiles, by_definition, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max())


def stepping(model: tc.nn.Module, optimizer: tc.optim.Optimizer) -> Callable[..., tc.Tensor]:
    """A step of training."""

    def step(x: tc.Tensor) -> tc.Tensor:
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def test_a_compiled_step_gives_the_same_bits_and_updates_in_place(
    always: dict[str, int], request: pytest.FixtureRequest
) -> None:
    """The optimizer's update is the end of the kernel that makes a weight's gradient."""
    device = device_or_skip("emu", request)
    results, rng = list[list[Array]](), np.random.default_rng(5)
    batches = [rng.standard_normal((2, 3, 8, 8)).astype(np.float32) for _ in range(3)]
    for compiled in (False, True):
        tc.manual_seed(1)
        model = tc.nn.Sequential(
            tc.nn.Conv2d(3, 4, 3, padding=1), tc.nn.ReLU(), tc.nn.Conv2d(4, 2, 3)
        ).to(device)
        run = stepping(model, tc.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        run = tc.compile(run) if compiled else run
        losses = [run(tc.tensor(batch, device=device)).detach().numpy() for batch in batches]
        results.append([*losses, *(p.detach().numpy() for p in model.parameters())])
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)
    assert always["used"] > 0


def test_explain_shows_the_transforms(
    always: dict[str, int], request: pytest.FixtureRequest
) -> None:
    device = device_or_skip("emu", request)
    rng = np.random.default_rng(6)
    x, w = (
        tc.tensor(rng.standard_normal(shape).astype(np.float32), device=device)
        for shape in ((2, 2, 6, 6), (3, 2, 3, 3))
    )
    text = tc.explain(F.relu(F.conv2d(x, w)))
    for line in ("winograd+winograd", "contract_matmul", "winograd_unwinograd_le_where_results"):
        assert line in text
    with settings.override(winograd=False):
        cache.clear()
        assert "unwinograd" not in tc.explain(F.relu(F.conv2d(x, w) + 1))


def test_debug_shows_the_tiers(
    always: dict[str, int], request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the transforms, and of the product of planes between them."""
    device = device_or_skip("emu", request)
    x, w = tc.ones(2, 2, 6, 6, device=device), tc.ones(3, 2, 3, 3, device=device)
    with settings.override(debug=3):
        F.conv2d(x, w).numpy()
    text = capsys.readouterr().out
    assert "tier:  winograd, 0 clocks; not channels last: 2 channels" in text
    assert re.search(r"tier:  register_tiled, \d+ clocks; .*not wgmma: float32 is no operand", text)


def problem(n: int, c: int, size: int, o: int) -> tuple[Node, Node]:
    """A convolution, and its kernel's gradient."""
    at = {"stride": (1, 1), "padding": ((1, 1),) * 2, "dilation": (1, 1), "groups": 1}
    x = common.buffer.leaf((n, c, size, size), float32, CPU, slot=0)
    w = common.buffer.leaf((o, c, 3, 3), float32, CPU, slot=1)
    y = convolution(x, w, **at)
    return y, convolution_weight_gradient(y, x, kernel=(3, 3), **at)


@pytest.mark.parametrize(
    ("n", "c", "size", "o", "form"),
    [
        (128, 128, 28, 128, 4),
        (256, 64, 28, 64, 4),
        (128, 64, 32, 64, 4),
        (1, 64, 8, 64, 0),  # launches would take longer than the sums
        (128, 32, 4, 32, 0),
    ],
)
def test_tiles_are_chosen_where_they_take_less_time(
    n: int, c: int, size: int, o: int, form: int
) -> None:
    """By shapes alone, for the convolution and for its kernel's gradient."""
    for node in problem(n, c, size, o):
        cut = algorithms.choose(node, TARGET).cut
        assert (cut.form if isinstance(cut, winograd.Tiles) else 0) == form


@pytest.mark.parametrize("part", [PARTS[4]["results"], PARTS[2]["results"], PARTS[4]["taps"]])
def test_blocks_have_a_thread_for_each_tile_and_store_whole_vectors(part: TransformPart) -> None:
    """Of small and large images, in any number, with few and many channels."""
    sizes = [(3, 3)] if part.step == 3 else [(7, 7), (9, 30), (28, 28), (65, 63), (200, 7)]
    for images, channels, (height, width) in product((1, 3, 64), (1, 12, 64), sizes):
        block = block_of(part, (images, channels, height, width), TARGET)
        rows, columns = block.tiles
        assert block.channels * block.images * block.rows * columns <= THREADS
        assert block.rows * block.bands >= rows
        assert channels % block.channels == 0
        assert block.run % block.lanes == 0
        assert block.channels * block.plane % block.lanes == 0
