"""Convolutions of few channels without a matrix, and gradients of small kernels, on the emulator.

One program holds several cuts of a problem whose sizes they do not divide.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from execution import Batch, device_or_skip

from tinygrad_cuda.core.device import CPU
from tinygrad_cuda.core.dtypes import float32
from tinygrad_cuda.graph.node import Node
from tinygrad_cuda.graph.ops import common, contraction
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement as mv
from tinygrad_cuda.lowering.codegen.skeleton import THREADS
from tinygrad_cuda.lowering.skeletons.contract import contract
from tinygrad_cuda.lowering.skeletons.conv.direct import Cut, Windows, cut_of, cuts_of, windows_of
from tinygrad_cuda.lowering.skeletons.conv.weight_gradient import ImagePart, parts_of
from tinygrad_cuda.lowering.target import BLOCK_SHARED
from tinygrad_cuda.nn.windows import padded, windows

Array = np.ndarray[Any, Any]

# N, C, (H, W), O, kernel, stride, pads, dilation
PROBLEMS = [
    (2, 6, (14, 14), 16, (5, 5), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    (3, 4, (9, 13), 5, (3, 3), (2, 1), ((1, 1), (1, 2)), (1, 1)),
    (2, 3, (11, 10), 1, (3, 2), (1, 2), ((2, 0), (1, 1)), (2, 3)),
    (1, 8, (7, 12), 7, (2, 3), (1, 1), ((0, 0), (1, 1)), (1, 1)),
]


def columns(x: Node, problem: tuple) -> tuple[Node, tuple[int, int]]:  # type: ignore[type-arg]
    """The windows of a convolution as a matrix, and the sizes of its result."""
    n, c, sizes, _, kernel, stride, pads, dilation = problem
    lengths = tuple(
        (size + sum(pad) - d * (k - 1) - 1) // s + 1
        for size, pad, k, s, d in zip(sizes, pads, kernel, stride, dilation, strict=True)
    )
    wide = windows(padded(x, pads), kernel, stride, dilation, lengths)
    wide = mv.permute(wide, axes=(1, 4, 5, 0, 2, 3))
    shape = (1, c * kernel[0] * kernel[1], n * lengths[0] * lengths[1])
    return mv.reshape(wide, shape=shape), (lengths[0], lengths[1])


def windows_in(x: Array, kernel: Any, stride: Any, pads: Any, dilation: Any) -> Array:
    """All windows of an array, shape (N, C, H', W', K, L)."""
    (sy, sx), (dy, dx) = stride, dilation
    x = np.pad(x, ((0, 0), (0, 0), *pads))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    near = np.lib.stride_tricks.sliding_window_view(x, reach, axis=(2, 3))
    return near[:, :, ::sy, ::sx, ::dy, ::dx]


def products(a: Array, b: Array) -> Any:
    """The sum of products; an infinite one may appear in it."""
    return (a.astype(np.float64) * b).sum()


def convolution(x: Array, w: Array, problem: tuple) -> Any:  # type: ignore[type-arg]
    """By its definition, in float64."""
    near = windows_in(x.astype(np.float64), *problem[4:])
    return np.einsum("ncyxuv,ocuv->noyx", near, w)


@pytest.mark.parametrize("problem", PROBLEMS, ids=["plain", "stride", "dilation", "odd"])
def test_any_cut_gives_the_convolution(
    problem: tuple,  # type: ignore[type-arg]
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Its reader joins it; values outside the input count as zeros, whatever memory held."""
    n, c, sizes, m, kernel, *_ = problem
    batch = Batch(device_or_skip("emu", request))
    rng = np.random.default_rng(5)
    cuts: dict[Node, Cut] = {}
    expected = {}
    for number in range(4):
        x = rng.standard_normal((n, c, *sizes)).astype(np.float32)
        w = rng.standard_normal((m, c, *kernel)).astype(np.float32)
        b, lengths = columns(batch.input(x), problem)
        a = mv.reshape(batch.input(w), shape=(1, m, c * kernel[0] * kernel[1]))
        y = mv.reshape(contraction.matmul(a, b), shape=(m, n, *lengths))
        y = ew.neg(mv.permute(y, axes=(1, 0, 2, 3)))
        batch.want(str(number), [y])
        expected[str(number)] = -convolution(x, w, problem)
    draw = random.Random(6)

    def chosen(found: Windows, outputs: int) -> Cut:
        cut = draw.choice(list(cuts_of(found, outputs)))
        cuts[found.input] = cut
        return cut

    monkeypatch.setattr(contract, "cut_of", chosen)
    monkeypatch.setattr(contract, "is_slower", lambda *_: False)
    for name, (found,) in batch.run().items():
        np.testing.assert_allclose(found, expected[name], atol=1e-4, err_msg=name)
    assert len(set(cuts.values())) == 4, "not every product went this way"


@pytest.mark.parametrize("problem", PROBLEMS, ids=["plain", "stride", "dilation", "odd"])
def test_any_parts_give_the_gradient_of_the_kernel(
    problem: tuple,  # type: ignore[type-arg]
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Infinite values of the input reach those weights that they meet, and no others."""
    n, c, sizes, m, kernel, stride, pads, dilation = problem
    batch = Batch(device_or_skip("emu", request))
    rng = np.random.default_rng(7)
    parts: dict[Node, ImagePart] = {}
    expected = {}
    for number in range(4):
        x = rng.standard_normal((n, c, *sizes)).astype(np.float32)
        x[-1, 0, -1, -1] = np.inf if number == 3 else 1.0
        b, lengths = columns(batch.input(x), problem)
        g = rng.standard_normal((n, m, *lengths)).astype(np.float32)
        a = mv.permute(batch.input(g), axes=(1, 0, 2, 3))
        a = mv.reshape(a, shape=(1, m, n * lengths[0] * lengths[1]))
        y = contraction.matmul(a, contraction.transpose(b))
        batch.want(str(number), [mv.reshape(y, shape=(m, c, *kernel))])
        near = windows_in(x.astype(np.float64), kernel, stride, pads, dilation)
        expected[str(number)] = np.stack(
            [
                [
                    [[products(g[:, o], near[:, i, :, :, u, v]) for v in range(kernel[1])]
                     for u in range(kernel[0])]
                    for i in range(c)
                ]
                for o in range(m)
            ]
        )  # fmt: skip
    draw = random.Random(8)

    def chosen(found: Windows, outputs: int) -> ImagePart:
        part = draw.choice(list(parts_of(found, outputs)))
        parts[found.input] = part
        return part

    monkeypatch.setattr(contract, "part_of", chosen)
    monkeypatch.setattr(contract, "is_slower", lambda *_: False)
    for name, (found,) in batch.run().items():
        np.testing.assert_allclose(found, expected[name], atol=2e-4, rtol=1e-4, err_msg=name)
    assert len(parts) == 4, "not every product went this way"


def test_windows_are_recognized_and_others_are_not() -> None:
    problem = PROBLEMS[1]
    x = common.buffer.leaf((3, 4, 9, 13), float32, CPU, slot=0)
    b, lengths = columns(x, problem)
    found = windows_of(b)
    assert found is not None
    assert (found.places, found.taps, found.stride) == (lengths, (3, 3), (2, 1))
    assert (found.inner, found.top, found.left) == (x, 1, 1)
    other = mv.permute(windows(x, (3, 3), (1, 1), (1, 1), (7, 11)), axes=(4, 1, 5, 0, 2, 3))
    assert windows_of(mv.reshape(other, shape=(1, 36, 3 * 77))) is None, "another order of k"
    assert windows_of(common.buffer.leaf((1, 36, 231), float32, CPU, slot=1)) is None


def test_cuts_fit_a_block_and_many_outputs_have_none() -> None:
    x = common.buffer.leaf((128, 6, 14, 14), float32, CPU, slot=0)
    found = windows_of(columns(x, (128, *PROBLEMS[0][1:]))[0])
    assert found is not None
    for cut in cuts_of(found, 16):
        assert cut.threads <= THREADS
        assert cut.shared <= BLOCK_SHARED
    best = cut_of(found, 16)
    assert best is not None
    assert best.clocks == min(cut.clocks for cut in cuts_of(found, 16))
    assert cut_of(found, 64) is None
