"""Mixed precision: autocast around the forward pass, a scaled loss, clipping after unscaling."""

import numpy as np
import torch
import torch.nn as nn
from torch.amp import GradScaler, autocast


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.net(x))


def build():
    return MLP()


def train(model):
    rng = np.random.default_rng(17)
    x = torch.tensor(rng.standard_normal((40, 8)), dtype=torch.float)
    y = torch.tensor(np.abs(x.numpy()[:, :4]).argmax(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        with autocast(device_type="cpu", dtype=torch.bfloat16):
            output = model(x)
            assert output.dtype == torch.bfloat16
            loss = nn.functional.cross_entropy(output, y)
            assert loss.dtype == torch.float32
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert all(p.grad.dtype is torch.float32 for p in model.parameters())
    return losses, scaler.get_scale()
