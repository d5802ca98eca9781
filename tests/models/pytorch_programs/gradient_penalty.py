"""WGAN-GP: a critic whose gradient has norm one, so a gradient of a gradient; two optimizers."""

import numpy as np
import torch
from torch import autograd, nn


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(2, 12), nn.LeakyReLU(0.2), nn.Linear(12, 2))

    def forward(self, z):
        return self.main(z)


def build():
    critic = nn.Sequential(nn.Linear(2, 12), nn.Softplus(), nn.Linear(12, 1))
    return nn.ModuleDict({"generator": Generator(), "critic": critic})


def gradient_penalty(critic, real, fake, mix):
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    scores = critic(between)
    (gradients,) = autograd.grad(
        outputs=scores, inputs=between, grad_outputs=torch.ones_like(scores),
        create_graph=True, retain_graph=True, only_inputs=True,
    )  # fmt: skip
    return ((gradients.view(gradients.size(0), -1).norm(2, dim=1) - 1) ** 2).mean()


def train(model):
    generator, critic = model["generator"], model["critic"]
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-2, betas=(0.5, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), lr=1e-2, betas=(0.5, 0.9))
    rng = np.random.default_rng(7)

    def noise(*shape):
        return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))

    losses = []
    for _ in range(5):
        for _ in range(2):
            real = noise(16, 2) * 0.3 + torch.tensor([1.0, -1.0])
            with torch.no_grad():
                fake = generator(noise(16, 2))
            mix = torch.from_numpy(rng.uniform(size=(16, 1)).astype(np.float32))
            penalty = gradient_penalty(critic, real, fake.detach(), mix)
            loss_c = critic(fake).mean() - critic(real).mean() + 10.0 * penalty
            opt_c.zero_grad()
            loss_c.backward()
            opt_c.step()
        for parameter in critic.parameters():
            parameter.requires_grad = False
        loss_g = -critic(generator(noise(16, 2))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        for parameter in critic.parameters():
            parameter.requires_grad = True
        losses += [loss_c.item(), loss_g.item()]
    return losses
