"""A classifier of points: shuffled batches, dropout, weights of its own; one mistake on request."""

import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

# Made under tinygrad_cuda alone, as a wrong port would.
MISTAKE = sys.argv[1] if len(sys.argv) > 1 and torch.__name__ == "tinygrad_cuda" else ""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(12, 12)
        self.drop = nn.Dropout(0.25)
        self.fc2 = nn.Linear(12, 5)
        self.scale = nn.Parameter(1 + 0.1 * torch.randn(5))

    def forward(self, x):
        hidden = self.fc1(x)
        logits = self.fc2(self.drop(F.relu(hidden)))
        if MISTAKE == "sign":
            return -logits * self.scale
        return logits * self.scale


def initialize(module):
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


data = np.random.default_rng(0)
points = torch.from_numpy(data.standard_normal((64, 12)).astype(np.float32))
labels = torch.from_numpy(data.integers(0, 5, 64))
device = torch.empty(0).device  # from_numpy gives memory of the host
train, held = random_split(TensorDataset(points, labels), [48, 16])
loader = DataLoader(train, batch_size=16, shuffle=True)
model = Net()
model.apply(initialize)
if MISTAKE == "weight":
    with torch.no_grad():
        model.fc1.weight.copy_(model.fc1.weight.clone().T)
if MISTAKE == "class":
    with torch.no_grad():
        model.fc2.weight.copy_(model.fc2.weight[torch.tensor([0, 2, 1, 3, 4])])
if MISTAKE == "gradient":
    model.fc2.weight.register_hook(lambda g: 0.5 * g)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _epoch in range(2):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        x = x + 0.01 * torch.randn_like(x)
        loss = F.cross_entropy(model(x), y, reduction="sum" if MISTAKE == "mean" else "mean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
