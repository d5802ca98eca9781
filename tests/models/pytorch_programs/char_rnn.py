"""A character model: Embedding, LSTM carried along in pieces, sampling from the softmax."""

import torch
import torch.nn as nn
import torch.nn.functional as F

TEXT = "the quick brown fox jumps over the lazy dog. the dog sleeps. " * 3
CHARS = sorted(set(TEXT))
INDEX = {ch: i for i, ch in enumerate(CHARS)}


class CharRNN(nn.Module):
    def __init__(self, vocabulary, hidden):
        super().__init__()
        self.hidden = hidden
        self.embedding = nn.Embedding(vocabulary, 12)
        self.lstm = nn.LSTM(12, hidden, num_layers=2, batch_first=True)
        self.decoder = nn.Linear(hidden, vocabulary)

    def forward(self, tokens, state=None):
        output, state = self.lstm(self.embedding(tokens), state)
        return self.decoder(output), state

    def init_state(self, batch):
        weight = next(self.parameters())
        zeros = weight.new_zeros(2, batch, self.hidden)
        return zeros, zeros.clone()


def build():
    return CharRNN(len(CHARS), 20)


def train(model):
    data = torch.tensor([INDEX[ch] for ch in TEXT], dtype=torch.long)
    batch, length = 3, 10
    data = data[: len(data) // batch * batch].view(batch, -1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    losses = []
    for _ in range(2):
        state = model.init_state(batch)
        for start in range(0, data.size(1) - 1 - length, length):
            inputs = data[:, start : start + length]
            targets = data[:, start + 1 : start + 1 + length]
            state = tuple(part.detach() for part in state)
            logits, state = model(inputs, state)
            loss = F.cross_entropy(logits.reshape(-1, len(CHARS)), targets.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, len(sample(model, "the ", 5))


def sample(model, prime, count):
    model.eval()
    torch.manual_seed(0)
    text = prime
    with torch.no_grad():
        tokens = torch.tensor([[INDEX[ch] for ch in prime]])
        state = None
        for _ in range(count):
            logits, state = model(tokens, state)
            probabilities = torch.softmax(logits[0, -1] / 0.8, dim=-1)
            token = torch.multinomial(probabilities, num_samples=1).item()
            text += CHARS[token]
            tokens = torch.tensor([[token]])
    return text
