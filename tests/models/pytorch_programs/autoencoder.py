"""A variational autoencoder: transposed convolution, a sampled code, averaged weights."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset


class VAE(nn.Module):
    def __init__(self, code=3):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 4, 4, 2, 1), nn.Mish(), nn.Flatten())
        self.mu, self.log_var = nn.Linear(64, code), nn.Linear(64, code)
        self.decoder = nn.Sequential(
            nn.Linear(code, 64), nn.Unflatten(1, (4, 4, 4)), nn.ReLU(),
            nn.ConvTranspose2d(4, 1, 4, 2, 1),
        )  # fmt: skip

    def forward(self, x, noise):
        hidden = self.encoder(x)
        mu, log_var = self.mu(hidden), self.log_var(hidden)
        z = mu + noise * torch.exp(0.5 * log_var)
        return self.decoder(z), mu, log_var


def build():
    return VAE()


def train(model):
    rng = np.random.default_rng(29)
    images = (rng.uniform(size=(24, 1, 8, 8)) > 0.6).astype(np.float32)
    images[:, :, :4] = 1.0
    dataset = TensorDataset(torch.from_numpy(images), torch.arange(24))
    loader = DataLoader(dataset, batch_size=8, drop_last=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    losses = []
    for _ in range(4):
        for x, _ in loader:
            noise = torch.from_numpy(rng.standard_normal((len(x), 3)).astype(np.float32))
            logits, mu, log_var = model(x, noise)
            reconstruction = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
            divergence = -0.5 * torch.sum(1 + log_var - mu.pow(2) - log_var.exp())
            loss = (reconstruction + divergence) / x.shape[0]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            averaged.update_parameters(model)
            losses.append(loss.item())
    with torch.no_grad():
        mean, _, _ = averaged.module(dataset.tensors[0], torch.zeros(24, 3))
    return losses, torch.sigmoid(mean).mean().item()
