"""Trains a small GPT on text, a character at a time, and lets it write some.

By default 4 blocks of width 128; `--layers 6 --heads 6 --width 384 --context 256 --batch-size 64
--steps 5000 --dropout 0.2` needs a GPU. `--smoke` takes less than a minute on two cores.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from tqdm import tqdm

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.nn import functional as F


class Attention(nn.Module):
    """Each place looks at those before it, in several ways at once (Vaswani et al., 2017)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.project_in = nn.Linear(width, 3 * width, bias=False)
        self.project_out = nn.Linear(width, width, bias=False)

    def forward(self, x: tc.Tensor) -> tc.Tensor:
        batch, length, width = x.shape
        apart = self.project_in(x).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = apart.permute(2, 0, 3, 1, 4).unbind()
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, None, dropout, is_causal=True)
        return self.project_out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention, then two layers for each place; both are added to what comes in."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.expand = nn.Linear(width, 4 * width, bias=False)
        self.project_out = nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: tc.Tensor) -> tc.Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.project_out(F.gelu(self.expand(self.norm2(x)))))


class GPT(nn.Module):
    """Radford et al. (2019): logits of the next character at each place."""

    def __init__(
        self, symbols: int, context: int, width: int, heads: int, layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.context = context
        self.symbols = nn.Embedding(symbols, width)
        self.places = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols, bias=False)
        # What a symbol looks like coming in is what it looks like going out.
        self.head.weight = self.symbols.weight
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                # 2 layers additions to x: their sum keeps its size.
                last = name.endswith("project_out.weight")
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if last else 0.02)

    def forward(self, text: tc.Tensor) -> tc.Tensor:
        places = tc.arange(text.shape[1], device=text.device)
        x = self.dropout(self.symbols(text) + self.places(places))
        return self.head(self.norm(self.blocks(x)))


class Text:
    """A text as numbers; the last tenth is kept for validation."""

    def __init__(self, text: str, context: int) -> None:
        self.alphabet = sorted(set(text))
        numbers = self.encoded(text)
        cut = len(numbers) * 9 // 10
        self.train, self.test = tc.tensor(numbers[:cut]), tc.tensor(numbers[cut:])
        self.context = context

    def encoded(self, text: str) -> np.ndarray:
        """Numbers of characters; those that the text does not have are left out."""
        number = {character: n for n, character in enumerate(self.alphabet)}
        return np.array([number[c] for c in text if c in number], np.int64)

    def batch(self, part: tc.Tensor, count: int) -> tuple[tc.Tensor, tc.Tensor]:
        """Pieces from random places, and the same pieces one character later."""
        start = tc.randint(0, len(part) - self.context, (count, 1), device=part.device)
        piece = part[start + tc.arange(self.context + 1, device=part.device)]
        return piece[:, :-1], piece[:, 1:]


def made_up_text(sentences: int = 20_000, seed: int = 0) -> str:
    """Sentences of a small grammar, about a million characters."""
    draw = random.Random(seed).choice
    people = ["the king", "a fool", "my lady", "the old ghost", "every sailor", "no soldier"]
    acts = ["loves", "fears", "follows", "forgets", "remembers", "sings to"]
    places = ["in the forest", "at sea", "before dawn", "by the river", "after the battle"]
    questions = ["who knows why?", "what then?", "so they say.", "let it be.", "and all is well!"]
    return "".join(
        f"{draw(people).capitalize()} {draw(acts)} {draw(people)} {draw(places)};\n"
        f"{draw(questions)}\n"
        for _ in range(sentences)
    )


def read_text(path: Path | None) -> tuple[str, str]:
    """A text, and where it comes from: a file, tinyshakespeare if it is there, or made up."""
    if path is None and settings.data is not None:
        path = settings.data / "tinyshakespeare" / "input.txt"
        path = path if path.is_file() else None
    if path is not None:
        return path.read_text(encoding="utf-8"), str(path)
    print("no --text, and no tinyshakespeare/input.txt in $TGC_DATA: sentences are made up",
          file=sys.stderr)  # fmt: skip
    return made_up_text(), "made-up sentences"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--text", type=Path, metavar="FILE", help="default: tinyshakespeare in $TGC_DATA, or made")
    add("--layers", type=int, default=4, help="(default: %(default)s)")
    add("--heads", type=int, default=4, help="(default: %(default)s)")
    add("--width", type=int, default=128, help="(default: %(default)s)")
    add("--context", type=int, default=64, help="characters looked at (default: %(default)s)")
    add("--dropout", type=float, default=0.0, help="(default: %(default)s)")
    add("--batch-size", type=int, default=32, help="pieces a step (default: %(default)s)")
    add("--steps", type=int, default=3000, help="(default: %(default)s)")
    add("--lr", type=float, default=2e-3, help="highest learning rate; falls as half a cosine")
    add("--sample", type=int, default=500, metavar="N", help="characters to write at the end")
    add("--prompt", default="\n", help="what they go on from")
    add("--temperature", type=float, default=0.8, help="below 1 is more careful (%(default)s)")
    add("--smoke", action="store_true", help="2 blocks of width 64, 200 steps: does it work?")
    add("--target", type=float, metavar="LOSS", help="fail above this validation loss")
    add("--device", help="cpu, cuda, cuda:1, ... or emu (default: a usable GPU, else cpu)")
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    add("--out", type=Path, default=Path("gpt"), metavar="DIR", help="for the picture and text")
    args = parser.parse_args()
    if args.smoke:
        args.layers, args.width = min(args.layers, 2), min(args.width, 64)
        args.context, args.batch_size = min(args.context, 32), min(args.batch_size, 16)
        args.steps, args.sample = min(args.steps, 200), min(args.sample, 200)
    return args


def make_optimizer(
    model: GPT, lr: float, steps: int
) -> tuple[optim.AdamW, optim.lr_scheduler.SequentialLR]:
    """AdamW, which lets matrices decay; the rate rises in a straight line, then falls."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = optim.AdamW(groups, lr=lr, betas=(0.9, 0.99))
    warm = max(1, min(100, steps // 10))
    rising = optim.lr_scheduler.LinearLR(optimizer, 1.0 / warm, total_iters=warm)
    falling = optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps - warm), lr / 10)
    return optimizer, optim.lr_scheduler.SequentialLR(optimizer, [rising, falling], [warm])


def loss_of(model: GPT, batch: tuple[tc.Tensor, tc.Tensor]) -> tc.Tensor:
    """Cross-entropy of the next characters, in nats."""
    text, following = batch
    return F.cross_entropy(model(text).flatten(0, 1), following.flatten())


@tc.no_grad()
def evaluate(model: GPT, text: Text, count: int, batches: int = 10) -> float:
    """The loss on text that is not trained on."""
    model.eval()
    losses = [loss_of(model, text.batch(text.test, count)) for _ in range(batches)]
    return tc.stack(losses).mean().item()


def train(model: GPT, text: Text, args: argparse.Namespace) -> tuple[list[float], dict[int, float]]:
    """All steps; returns the loss of each, and validation losses by step."""
    optimizer, schedule = make_optimizer(model, args.lr, args.steps)
    losses: list[tc.Tensor] = []
    checked = {0: evaluate(model, text, args.batch_size)}
    every = max(1, args.steps // 10)
    start = time.perf_counter()
    with tqdm(total=args.steps, desc="train", unit="step", leave=False) as bar:
        for step in range(1, args.steps + 1):
            model.train()
            loss = loss_of(model, text.batch(text.train, args.batch_size))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
            bar.update()
            if step % every == 0 or step == args.steps:
                checked[step] = evaluate(model, text, args.batch_size)
                recent = np.mean([loss.item() for loss in losses[-every:]])
                bar.write(
                    f"step {step}  loss {recent:.4f}  validation {checked[step]:.4f}  "
                    f"{time.perf_counter() - start:.1f} s",
                    file=sys.stdout,
                )
    return [loss.item() for loss in losses], checked


@tc.no_grad()
def write(model: GPT, text: Text, prompt: str, count: int, temperature: float) -> str:
    """Lets the model go on from the prompt, a drawn character at a time."""
    model.eval()
    numbers = text.encoded(prompt).tolist() or [0]
    for _ in tqdm(range(count), desc="write", unit="character", leave=False):
        seen = numbers[-model.context :]
        # Always the same shape, so always the same plan: nobody looks at what is after the end.
        padded = tc.tensor([seen + [0] * (model.context - len(seen))])
        end = tc.tensor([len(seen) - 1])
        logits = model(padded)[0].index_select(0, end)
        numbers.append(tc.multinomial((logits / temperature).softmax(-1), 1).item())
    return "".join(text.alphabet[number] for number in numbers)


def draw_losses(losses: list[float], checked: dict[int, float], path: Path) -> None:
    """The loss of every step, its running mean, and what is not trained on."""
    window = max(1, len(losses) // 50)
    smooth = np.convolve(losses, np.ones(window) / window, mode="valid")
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    steps = np.arange(1, len(losses) + 1)
    axes.plot(steps, losses, color="tab:blue", alpha=0.25, linewidth=0.8, label="each step")
    axes.plot(steps[window - 1 :], smooth, color="tab:blue", label=f"mean of {window}")
    axes.plot(list(checked), list(checked.values()), "o-", color="tab:orange", label="validation")
    axes.set(xlabel="step", ylabel="cross-entropy, nats a character", title="GPT")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> int:
    args = arguments()
    if args.device:
        tc.set_default_device(args.device)
    tc.manual_seed(args.seed)
    content, source = read_text(args.text)
    text = Text(content, args.context)
    print(f"data: {source}, {len(content):,} characters, {len(text.alphabet)} different ones")
    model = GPT(len(text.alphabet), args.context, args.width, args.heads, args.layers, args.dropout)
    print(f"model: GPT, {sum(p.numel() for p in model.parameters()):,} parameters, "
          f"on {tc.get_default_device()}")  # fmt: skip
    losses, checked = train(model, text, args)
    written = write(model, text, args.prompt, args.sample, args.temperature)
    print(written)
    args.out.mkdir(parents=True, exist_ok=True)
    draw_losses(losses, checked, args.out / "loss.png")
    (args.out / "sample.txt").write_text(written, encoding="utf-8")
    print(f"written: {args.out / 'loss.png'}, {args.out / 'sample.txt'}")
    if args.target is not None and not checked[args.steps] <= args.target:
        print(f"the target of {args.target} was missed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
