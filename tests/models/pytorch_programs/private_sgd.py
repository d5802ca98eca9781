"""Gradients of each sample by vmap, clipped one by one, and a Hessian-vector product on the way."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, jvp, vmap


def build():
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(27, 2),
    )  # fmt: skip


def train(model):
    rng = np.random.default_rng(23)
    images = torch.tensor(rng.standard_normal((8, 1, 8, 8)), dtype=torch.float32)
    labels = (images.mean(dim=(1, 2, 3)) > 0).long()

    def compute_loss(parameters, image, label):
        output = functional_call(model, parameters, (image.unsqueeze(0),))
        return F.cross_entropy(output, label.unsqueeze(0))

    per_sample = vmap(grad(compute_loss), in_dims=(None, 0, 0))
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    losses = []
    for _ in range(6):
        gradients = per_sample(parameters, images, labels)
        squares = [g.flatten(1).square().sum(dim=1) for g in gradients.values()]
        norms = torch.stack(squares).sum(dim=0).sqrt()
        factors = (1.0 / norms).clamp(max=1.0)
        for name, g in gradients.items():
            parameters[name] -= 0.5 * torch.einsum("b,b...->...", factors, g) / len(images)
        losses.append(vmap(compute_loss, (None, 0, 0))(parameters, images, labels).mean().item())

    def mean_loss(parameters):
        return F.cross_entropy(functional_call(model, parameters, (images,)), labels)

    direction = {name: torch.ones_like(p) for name, p in parameters.items()}
    _, product = jvp(grad(mean_loss), (parameters,), (direction,))
    curvature = sum((p.sum() for p in product.values()), torch.zeros(()))
    return losses, curvature.item(), norms.max().item()
