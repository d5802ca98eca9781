"""Hooks: activations kept, inputs scaled, gradients seen, scaled and counted; a frozen layer."""

import numpy as np
import torch
import torch.nn as nn


def build():
    model = nn.Sequential()
    model.add_module("first", nn.Linear(4, 8))
    model.add_module("act", nn.Tanh())
    model.add_module("second", nn.Linear(8, 8))
    model.add_module("act2", nn.ELU())
    model.add_module("last", nn.Linear(8, 2))
    return model


def train(model):
    rng = np.random.default_rng(9)
    x = torch.tensor(rng.standard_normal((10, 4)).astype("float32"))
    y = torch.tensor(rng.integers(0, 2, 10))
    activations, norms, counts = {}, [], {"backward": 0}

    def keep(name):
        def hook(module, args, output):
            activations[name] = output.detach()

        return hook

    def scale_input(module, args):
        return (args[0] * 0.5,)

    def see(module, grad_input, grad_output):
        counts["backward"] += 1
        norms.append(grad_output[0].norm().item())

    handles = [
        model.act.register_forward_hook(keep("act")),
        model.get_submodule("last").register_forward_pre_hook(scale_input),
        model.second.register_full_backward_hook(see),
        model.last.weight.register_hook(lambda grad: grad * 2),
    ]
    model.first.weight.requires_grad_(False)
    frozen = model.first.weight.clone()
    optimizer = torch.optim.Adagrad(filter(lambda p: p.requires_grad, model.parameters()), lr=0.1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        logits = model(x)
        logits.retain_grad()
        loss = nn.functional.cross_entropy(logits, y, reduction="sum")
        loss.backward()
        assert logits.grad is not None and model.first.weight.grad is None
        optimizer.step()
        losses.append(loss.item())
    for handle in handles:
        handle.remove()
    model(x).sum().backward()
    assert counts["backward"] == 5
    assert torch.equal(frozen, model.first.weight)
    return losses, norms, activations["act"].mean().item()
