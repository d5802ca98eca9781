"""A language model of transformer layers: causal mask, tied embedding, decay for matrices alone."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class TinyLM(nn.Module):
    def __init__(self, vocabulary=11, width=16, heads=2, length=8):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(1, length, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, dim_feedforward=32, dropout=0.0, activation="gelu",
            batch_first=True, norm_first=True,
        )  # fmt: skip
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        mask = torch.triu(torch.full((length, length), float("-inf")), diagonal=1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, idx, targets=None):
        length = idx.shape[1]
        x = self.tokens(idx) * math.sqrt(16) + self.positions[:, :length]
        x = self.encoder(x, mask=self.mask[:length, :length])
        logits = self.head(self.norm(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def build():
    torch.manual_seed(1337)
    return TinyLM()


def train(model):
    names = [name for name, _ in model.named_parameters()]
    assert "head.weight" not in names and "mask" not in model.state_dict()
    assert model.head.weight is model.tokens.weight
    decay = [p for p in model.parameters() if p.dim() >= 2]
    no_decay = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": decay, "weight_decay": 0.1},
        {"params": no_decay, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=5e-3, betas=(0.9, 0.95), eps=1e-8)
    sequence = torch.arange(60) * 3 % 11
    inputs = torch.stack([sequence[i : i + 8] for i in range(4)])
    targets = torch.stack([sequence[i + 1 : i + 9] for i in range(4)])
    targets[0, -1] = -1
    losses = []
    for _ in range(12):
        _, loss = model(inputs, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    idx = inputs[:1, :3]
    for _ in range(3):
        logits, _ = model(idx)
        following = logits[:, -1, :].argmax(-1, keepdim=True)
        idx = torch.cat((idx, following), dim=1)
    return losses, idx.shape
