"""A small GPT on made-up text, written for tinygrad_cuda: AdamW, clipping, tied weights."""

import math

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        batch, length, width = x.shape
        apart = self.project(self.norm1(x)).reshape(batch, length, 3, self.heads, -1)
        query, key, value = apart.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    def __init__(self, symbols=11, context=8, width=16, heads=2, layers=2):
        super().__init__()
        self.symbols, self.places = nn.Embedding(symbols, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols, bias=False)
        self.head.weight = self.symbols.weight
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers))

    def forward(self, text):
        x = self.symbols(text) + self.places(tc.arange(text.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    model = GPT()
    optimizer = tc.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    text = tc.randint(0, 11, (4, 9))
    for _ in range(100):
        logits = model(text[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


if __name__ == "__main__":
    main()
