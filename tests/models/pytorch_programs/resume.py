"""Checkpoint and resume: model, optimizer, schedule; the run goes on as if unbroken."""

import os
import tempfile

import numpy as np
import torch
import torch.nn as nn


def make_model():
    return nn.Sequential(nn.Linear(4, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 1))


def make_training(model):
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=14)
    return optimizer, scheduler


def batches():
    rng = np.random.default_rng(21)
    pool = rng.standard_normal((3, 8, 4)).astype(np.float32)
    for i in range(12):
        x = torch.from_numpy(pool[i % 3])
        yield x, x.sum(dim=1, keepdim=True).abs()


def run(model, optimizer, scheduler, data):
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def build():
    return make_model()


def train(model):
    data = list(batches())
    initial = {key: value.clone() for key, value in model.state_dict().items()}
    unbroken = run(model, *make_training(model), data)

    model.load_state_dict(initial)
    optimizer, scheduler = make_training(model)
    losses = run(model, optimizer, scheduler, data[:5])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "checkpoint.pt")
        checkpoint = {
            "epoch": 5,
            "model_state_dict": model.state_dict(),
            "optimizer_state_dict": optimizer.state_dict(),
            "scheduler_state_dict": scheduler.state_dict(),
            "best": min(losses),
        }
        torch.save(checkpoint, path)
        del model, optimizer, scheduler

        again = make_model()
        optimizer, scheduler = make_training(again)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    result = again.load_state_dict(loaded["model_state_dict"], strict=True)
    assert not result.missing_keys and not result.unexpected_keys
    optimizer.load_state_dict(loaded["optimizer_state_dict"])
    scheduler.load_state_dict(loaded["scheduler_state_dict"])
    losses += run(again, optimizer, scheduler, data[loaded["epoch"] :])
    assert losses == unbroken, "a resumed run is the unbroken one, bit for bit"
    return losses, loaded["best"]
