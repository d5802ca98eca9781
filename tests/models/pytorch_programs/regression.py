"""A regression: Sequential, AdamW, clipped gradients, a chain of schedules."""

import math

import numpy as np
import torch
from torch import nn, optim
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR


def build():
    model = nn.Sequential(
        nn.Linear(3, 24), nn.SiLU(), nn.LayerNorm(24), nn.Linear(24, 1), nn.Flatten(0)
    )
    nn.init.zeros_(model[0].bias)
    return model


def train(model):
    rng = np.random.default_rng(3)
    x = torch.tensor(rng.uniform(-1, 1, (64, 3)), dtype=torch.float32)
    y = torch.sin(math.pi * x[:, 0]) + x[:, 1] * x[:, 2]
    mean, std = y.mean(), y.std()
    y = (y - mean) / std
    criterion = nn.SmoothL1Loss(beta=0.5)
    optimizer = optim.AdamW(model.parameters(), lr=3e-2, betas=(0.9, 0.98), weight_decay=1e-2)
    warm = LinearLR(optimizer, start_factor=0.1, total_iters=4)
    cosine = CosineAnnealingLR(optimizer, T_max=16)
    scheduler = SequentialLR(optimizer, schedulers=[warm, cosine], milestones=[4])
    losses, rates = [], []
    for _ in range(20):
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(x), y)
        loss.backward()
        total_norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)
        assert torch.isfinite(total_norm)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[3] > rates[0] and rates[-1] < 1e-3
    with torch.inference_mode():
        error = (model(x) - y).abs().max()
    return losses, float(error), rates
