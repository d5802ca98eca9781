"""Gradients accumulated over small batches, groups with rates of their own, an averaged copy."""

import copy

import numpy as np
import torch
import torch.nn as nn


class EMA:
    def __init__(self, model, decay):
        self.module = copy.deepcopy(model).eval()
        self.decay = decay
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for ours, theirs in zip(self.module.parameters(), model.parameters()):
            ours.mul_(self.decay).add_(theirs.detach(), alpha=1 - self.decay)
        for ours, theirs in zip(self.module.buffers(), model.buffers()):
            ours.copy_(theirs)


def build():
    return nn.Sequential(
        nn.Linear(5, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 16), nn.ReLU(),
        nn.Linear(16, 1),
    )  # fmt: skip


def train(model):
    rng = np.random.default_rng(5)
    x = torch.as_tensor(rng.standard_normal((48, 5)), dtype=torch.float32)
    y = x.pow(2).sum(dim=1, keepdim=True).sqrt()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(
        [
            {"params": model[:3].parameters(), "lr": 0.02},
            {"params": model[3:].parameters()},
        ],
        lr=0.05,
        momentum=0.9,
    )
    ema = EMA(model, decay=0.8)
    criterion = nn.MSELoss()
    accumulate, losses = 3, []
    optimizer.zero_grad()
    for _ in range(3):
        for i, (inputs, targets) in enumerate(zip(x.chunk(6), y.chunk(6))):
            loss = criterion(model(inputs), targets) / accumulate
            loss.backward()
            if (i + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
                ema.update(model)
                losses.append(loss.item())
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
    assert not torch.equal(before["0.weight"], model[0].weight)
    with torch.no_grad():
        averaged = criterion(ema.module(x), y)
        plain = criterion(model.eval()(x), y)
    return losses, averaged.item(), plain.item(), [g["lr"] for g in optimizer.param_groups]
