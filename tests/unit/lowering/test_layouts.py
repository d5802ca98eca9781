"""Channels last over whole plans, as for an H200: images change their order at edges alone."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from lab.step_memory import Plan, pretended_h200
from tinygrad_cuda import nn
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.engine.realize import realize_all
from tinygrad_cuda.graph.ops import elementwise as ew
from tinygrad_cuda.graph.ops import movement
from tinygrad_cuda.lowering.schedule.kernel_dag import Kernel, Schedule

F = nn.functional
IMAGES, CHANNELS, SIZE = 64, 64, 32


class Block(nn.Module):
    """A residual block; a stride halves its images."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: Any = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Any) -> Any:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def plan_of(program: Callable[[], Any]) -> Schedule:
    """The largest plan of a program on a pretended H200."""
    with pretended_h200() as found:
        kept = program()
        realize_all()
        del kept
    largest: Plan = max(found, key=lambda plan: len(plan.lowered.schedule.kernels))
    return largest.lowered.schedule


def images(*shape: int, last: bool = False) -> Any:
    data = np.zeros(shape, np.float32)
    x = tc.tensor(data, device="emu").to(tc.bfloat16)
    return x.to(memory_format=tc.channels_last) if last else x


def reorders(schedule: Schedule) -> list[Kernel]:
    """Kernels that do nothing but store values as large as a weight or larger in another order."""
    return [
        kernel
        for kernel in schedule.kernels
        if kernel.kind == "map" and kernel.numel > 1 << 20 and all(map(_is_copy, kernel.stores))
    ]


def _is_copy(node: Any) -> bool:
    copies = node.op is ew.contiguous or node.op.kind == "movement"
    return copies and any(source.op is movement.permute for source in (node, *node.sources))


def _training(x: Any) -> Any:
    model = nn.Sequential(Block(CHANNELS, CHANNELS, 1), Block(CHANNELS, 2 * CHANNELS, 2)).to("emu")
    with tc.autocast("emu", dtype=tc.bfloat16):
        loss = model(x).float().square().mean()
    loss.backward()
    return [p.grad for p in model.parameters()]


def test_a_training_step_puts_its_input_channels_last_and_nothing_else() -> None:
    schedule = plan_of(lambda: _training(images(IMAGES, CHANNELS, SIZE, SIZE)))
    (first,) = reorders(schedule)
    assert first.stores[0].shape == (IMAGES, SIZE, SIZE, CHANNELS)
    products = [k for k in schedule.kernels if k.choice and "mma" in k.choice.tier]
    assert len(products) >= 3 * 5 - 1  # of five convolutions; the input has no gradient


def test_an_input_with_the_channels_last_is_read_as_it_lies() -> None:
    def program() -> Any:
        x = images(IMAGES, CHANNELS, SIZE, SIZE, last=True)
        realize_all()
        return _training(x)

    assert not reorders(plan_of(program))


def test_few_channels_are_filled_with_zeros() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, CHANNELS, 3, padding=1), nn.ReLU(), nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
    )

    def program() -> Any:
        model.to("emu")
        with tc.autocast("emu", dtype=tc.bfloat16):
            loss = model(images(4 * IMAGES, 3, SIZE, SIZE)).float().square().mean()
        loss.backward()
        return [p.grad for p in model.parameters()]

    schedule = plan_of(program)
    kinds = [k.choice.tier for k in schedule.kernels if k.choice and k.choice.tier != "tiled"]
    assert kinds and all("mma" in kind for kind in kinds)
    filled = readers_of(schedule, (4 * IMAGES, SIZE, SIZE, 8))
    assert [len(kernels) for kernels in filled] == [1, 1]  # again for the weight's gradient


def test_a_convolution_alone_is_its_products() -> None:
    """Images with the channels last in a cell before: no launch but products and weights."""

    def program() -> Any:
        x = images(IMAGES, CHANNELS, SIZE, SIZE, last=True)
        w = images(CHANNELS, CHANNELS, 3, 3, last=True)
        realize_all()
        x.requires_grad_(True)
        y = F.conv2d(x, w, padding=1)
        (y.sum()).backward()
        return y, x.grad

    schedule = plan_of(program)
    products = [k for k in schedule.kernels if k.choice is not None]
    assert len(products) == 2 and not reorders(schedule)


def readers_of(schedule: Schedule, shape: tuple[int, ...]) -> list[list[Kernel]]:
    """For each copy of this shape the kernels that read it."""
    kernels = schedule.kernels
    copies = [node for k in kernels for node in k.stores if node.op is ew.contiguous]
    return [[k for k in kernels if n in k.reads] for n in copies if n.shape == shape]


def _pixels_of(schedule: Schedule, size: int) -> list[Kernel]:
    """Kernels that store images of this size in the order of their axes."""
    return [
        kernel
        for kernel in schedule.kernels
        for node in kernel.stores
        if len(node.shape) == 4 and node.shape[2:] == (size, size)
    ]


def test_a_shortcut_with_a_stride_reads_pixels_as_they_lie() -> None:
    """By tf32 beside convolutions that read the channels last, though it multiplies too little.

    Its images were copied in the order of their axes, its result and gradients lay so.
    """
    numbers = np.zeros((4 * IMAGES, CHANNELS, SIZE, SIZE), np.float32)
    model = nn.Sequential(Block(CHANNELS, CHANNELS, 1), Block(CHANNELS, 2 * CHANNELS, 2))

    def program() -> Any:
        model.to("emu")(tc.tensor(numbers, device="emu")).square().mean().backward()
        return [p.grad for p in model.parameters()]

    with settings.override(matmul_precision="high"):
        schedule = plan_of(program)
    products = [k for k in schedule.kernels if k.choice is not None]
    assert len(products) == 3 * 5 - 1 and not _pixels_of(schedule, SIZE // 2)
    assert all(k.anchors[0].op.name == "matmul" for k in products)


@pytest.mark.parametrize("half", [False, True], ids=["tf32", "bf16"])
def test_images_of_one_channel_become_images_with_the_channels_last(half: bool) -> None:
    """Its own result was stored in the order of the axes, and turned with its cotangent."""
    model = nn.Sequential(nn.Conv2d(1, CHANNELS, 3, padding=1), Block(CHANNELS, CHANNELS, 1))

    def program() -> Any:
        model.to("emu")
        x = tc.tensor(np.zeros((4 * IMAGES, 1, SIZE, SIZE), np.float32), device="emu")
        with tc.autocast("emu", dtype=tc.bfloat16, enabled=half):
            loss = model(x).float().square().mean()
        loss.backward()
        return [p.grad for p in model.parameters()]

    with settings.override(matmul_precision="high"):
        schedule = plan_of(program)
    assert not _pixels_of(schedule, SIZE)
    assert half or not reorders(schedule)  # with zeros behind the channel they are stored so


def test_float32_has_no_other_order() -> None:
    """Where float32 is exact, products are stored in the order of axes, those of parts too."""
    channels, size = 256, 16

    def program() -> Any:
        model = nn.Sequential(*(Block(n, 2 * n, 2) for n in (channels // 2, channels)))
        model.to("emu")
        x = tc.zeros(channels, channels // 2, size, size, device="emu", requires_grad=True)
        model(x).square().mean().backward()
        return x.grad, [p.grad for p in model.parameters()]

    schedule = plan_of(program)
    products = [node for k in schedule.kernels for node in k.anchors if k.choice is not None]
    part = size // 4  # of the second shortcut's gradient
    assert any(node.shape == (channels, channels, part, part) for node in products)
    stored = {node.shape for kernel in schedule.kernels for node in kernel.stores}
    assert (channels, part, part, channels) not in stored


class Unet(nn.Module):
    """Group norms, a change of scale and back, and one channel at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(4, CHANNELS) for _ in range(4))
        self.convs = nn.ModuleList(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(3))
        self.down = nn.Conv2d(CHANNELS, CHANNELS, 3, 2, padding=1)
        self.last = nn.Conv2d(CHANNELS, 1, 3, padding=1)

    def forward(self, x: Any) -> Any:
        for norm, conv in zip(self.norms, self.convs):
            x = x + conv(F.silu(norm(x)))
        x = F.interpolate(self.down(x), scale_factor=2)
        return self.last(F.silu(self.norms[3](self.convs[0](x))))


def _unet_training() -> Any:
    model, x = Unet().to("emu"), images(IMAGES, CHANNELS, SIZE, SIZE, last=True)
    realize_all()
    with tc.autocast("emu", dtype=tc.bfloat16):
        loss = model(x).float().square().mean()
    loss.backward()
    return [p.grad for p in model.parameters()]


def test_group_norms_and_changes_of_scale_keep_the_channels_last() -> None:
    """A group's sums are over pixels and neighbouring channels, as they lie.

    They were over an axis joined of channels and pixels, for which all images were turned. The
    last convolution, of one channel, reads its images in the order of their axes.
    """
    schedule = plan_of(_unet_training)
    turned = [node.shape for kernel in reorders(schedule) for node in kernel.stores]
    assert turned in ([], [(IMAGES, CHANNELS, SIZE, SIZE)])
    rows = [kernel for kernel in schedule.kernels if kernel.kind == "row_reduce"]
    read = [node for kernel in rows for node in kernel.reads if prod(node.shape) > 1 << 20]
    assert read and all(node.shape[1:3] == (SIZE, SIZE) for node in read)


def test_enlarged_images_are_stored_before_they_are_multiplied() -> None:
    """Products copy boxes of images along strides; a pixel that is read twice has none."""
    down = nn.Conv2d(CHANNELS, CHANNELS, 3, 2, padding=1)
    up = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)

    def program() -> Any:
        model = nn.ModuleList([down, up]).to("emu")
        x = tc.tensor(np.zeros((4 * IMAGES, CHANNELS, SIZE, SIZE), np.float32), device="emu")
        up(F.interpolate(down(x), scale_factor=2)).square().mean().backward()
        return [p.grad for p in model.parameters()]

    with settings.override(matmul_precision="high"):
        schedule = plan_of(program)
    whole = (4 * IMAGES, SIZE, SIZE, CHANNELS)
    (enlarged,) = (
        kernel for kernel in schedule.kernels
        if kernel.kind == "map" and kernel.stores[0].shape == whole
        and kernel.reads[0].shape == (4 * IMAGES, SIZE // 2, SIZE // 2, CHANNELS)
    )  # fmt: skip
    products = [k for k in schedule.kernels if enlarged.stores[0] in k.reads]
    assert len(products) == 2 and all(k.choice and "tf32" in k.choice.tier for k in products)
