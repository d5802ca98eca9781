"""A classifier: Dataset, DataLoader, momentum, step decay, evaluation under no_grad."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Spirals(Dataset):
    """Two arms, with integer labels."""

    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        label = rng.integers(0, 2, count)
        radius = rng.uniform(0.1, 1.0, count)
        angle = 3 * radius + np.pi * label + rng.normal(0, 0.1, count)
        points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
        self.points = torch.from_numpy(points.astype(np.float32))
        self.labels = torch.from_numpy(label)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.points[index], self.labels[index]


class Classifier(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.fc1 = nn.Linear(2, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, 2)
        self.drop = nn.Dropout(p=0.0)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = self.drop(torch.tanh(self.fc2(x)))
        return self.out(x)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    correct = total = 0
    for points, labels in loader:
        predicted = model(points).argmax(dim=1)
        correct += (predicted == labels).sum().item()
        total += labels.size(0)
    return correct / total


def build():
    return Classifier()


def train(model):
    device = torch.device("cpu")
    model.to(device)
    train_loader = DataLoader(Spirals(48, 0), batch_size=12, shuffle=False, num_workers=0)
    test_loader = DataLoader(Spirals(20, 1), batch_size=8)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    losses = []
    for _ in range(6):
        model.train()
        running_loss = 0.0
        for points, labels in train_loader:
            points, labels = points.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = criterion(model(points), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item() * points.size(0)
        scheduler.step()
        losses.append(running_loss / len(train_loader.dataset))
    return losses, evaluate(model, test_loader)
