"""LeNet with batch norm on made-up digits, by Adam with a schedule."""

import torch
from torch import nn, optim


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 5, padding=2), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(4, 8, 3), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Linear(8 * 2 * 2, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


torch.manual_seed(3)
model = LeNet()
criterion = nn.CrossEntropyLoss()
optimizer = optim.Adam(model.parameters(), lr=1e-3)
schedule = optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
for _step in range(4):
    images, labels = torch.rand(8, 1, 12, 12), torch.randint(0, 10, (8,))
    optimizer.zero_grad()
    criterion(model(images), labels).backward()
    optimizer.step()
    schedule.step()
