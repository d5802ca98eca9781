"""A DDPM U-Net on 32 x 32 images: base 64, two levels, GroupNorm, SiLU, time embedding; Adam."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.workload import (
    PRECISIONS,
    Array,
    Initial,
    Maker,
    Repetition,
    Rule,
    Training,
    normal,
)
from benchmarks.workloads import diffusion

GROUPS = 4


def block(net: Any, x: Any, time: Any, name: str) -> Any:
    y = net.silu(net.group_norm(x, f"{name}.norm1", GROUPS))
    y = net.conv2d(y, f"{name}.conv1", padding=1)
    shift = net.linear(time, f"{name}.time")
    y = y + net.reshape(shift, (*shift.shape, 1, 1))
    y = net.silu(net.group_norm(y, f"{name}.norm2", GROUPS))
    y = net.conv2d(y, f"{name}.conv2", padding=1)
    return y + (net.conv2d(x, f"{name}.skip") if f"{name}.skip.weight" in net else x)


def noise(net: Any, x: Any, t: Any) -> Any:
    angles = net.reshape(net.to_float(t), (t.shape[0], 1)) * net["frequencies"]
    time = net.cat((net.sin(angles), net.cos(angles)), 1)
    time = net.linear(net.silu(net.linear(time, "time1")), "time2")
    time = net.silu(time)
    x = net.conv2d(x, "in", padding=1)
    fine = block(net, x, time, "down1")
    coarse = net.conv2d(fine, "down", stride=2, padding=1)
    coarse = block(net, coarse, time, "down2")
    x = block(net, coarse, time, "middle")
    x = block(net, net.cat((x, coarse), 1), time, "up2")
    x = net.conv2d(net.double(x), "up", padding=1)
    x = block(net, net.cat((x, fine), 1), time, "up1")
    return net.conv2d(net.silu(net.group_norm(x, "norm", GROUPS)), "out", padding=1)


def loss(net: Any, images: Any, target: Any, t: Any) -> Any:
    shape = (t.shape[0], 1, 1, 1)
    kept, added = (net.reshape(net.take(table, t), shape) for table in ("kept", "added"))
    return net.mse_loss(noise(net, kept * images + added * target, t), target)


def advance(net: Any, x: Any, t: Any) -> Any:
    return diffusion.reverse(net, x, t, noise(net, x, t))


def parameters(base: int) -> dict[str, Array]:
    initial = Initial()
    time = 4 * base
    initial.linear("time1", base, time)
    initial.linear("time2", time, time)
    initial.conv2d("in", 1, base, 3)
    initial.conv2d("down", base, 2 * base, 3)
    initial.conv2d("up", 2 * base, base, 3)
    for name, inputs, outputs in (
        ("down1", base, base), ("down2", 2 * base, 2 * base), ("middle", 2 * base, 2 * base),
        ("up2", 4 * base, 2 * base), ("up1", 2 * base, base),
    ):  # fmt: skip
        initial.norm(f"{name}.norm1", inputs)
        initial.conv2d(f"{name}.conv1", inputs, outputs, 3)
        initial.linear(f"{name}.time", time, outputs)
        initial.norm(f"{name}.norm2", outputs)
        initial.conv2d(f"{name}.conv2", outputs, outputs, 3)
        if inputs != outputs:
            initial.conv2d(f"{name}.skip", inputs, outputs, 1)
    initial.norm("norm", base)
    initial.conv2d("out", base, 1, 3)
    return initial.values


def buffers(base: int) -> dict[str, Array]:
    exponents = np.arange(base // 2) / (base // 2)
    return {**diffusion.tables(), "frequencies": (10000.0**-exponents).astype(np.float32)}


def training(precision: str, smoke: bool) -> Training:
    batch, base, side = (2, 8, 8) if smoke else (128, 64, 32)
    shape = (batch, 1, side, side)
    steps = np.random.default_rng(1).integers(0, diffusion.STEPS, (4, batch), np.int32)
    batches = [(normal(shape, seed), normal(shape, 100 + seed), steps[seed]) for seed in range(4)]
    rule = Rule("adam", 1e-4)
    return Training(
        loss, parameters(base), rule, batches, buffers(base), 20, precision, images=True
    )


def sampling(smoke: bool) -> Repetition:
    batch, base, side = (2, 8, 8) if smoke else (16, 64, 32)
    state = (normal((batch, 1, side, side)), np.array([diffusion.STEPS - 1], np.int32))
    return Repetition(advance, parameters(base), buffers(base), state, together=100)


WORKLOADS: dict[str, Maker] = {
    f"unet_train{suffix}": partial(training, precision) for precision, suffix in PRECISIONS.items()
}
WORKLOADS["unet_sample"] = sampling
