"""Trains a small GPT on text, a character at a time, and lets it write some.

By default 4 blocks of width 128; `--layers 6 --heads 6 --width 384 --context 256 --batch-size 64
--steps 5000 --dropout 0.2` needs a GPU. `--smoke` takes less than a minute on two cores.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import recipe
from tqdm import tqdm

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.core.config import settings
from tinygrad_cuda.data import DataLoader, Dataset, RandomSampler, Subset
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


class Text(Dataset):
    """Pieces of a text as numbers, each with the same piece one character later."""

    def __init__(self, numbers: np.ndarray, context: int) -> None:
        self.numbers, self.context = numbers, context

    def __len__(self) -> int:
        return len(self.numbers) - self.context

    def batch(self, indices: np.ndarray) -> Any:
        pieces = self.numbers[np.asarray(indices)[:, None] + np.arange(self.context + 1)]
        return pieces[:, :-1], pieces[:, 1:]


class Alphabet:
    """The characters of a text and their numbers."""

    def __init__(self, text: str) -> None:
        self.characters = sorted(set(text))
        self.number = {character: n for n, character in enumerate(self.characters)}

    def encoded(self, text: str) -> np.ndarray:
        """Numbers of characters; those that the text does not have are left out."""
        return np.array([self.number[c] for c in text if c in self.number], np.int64)


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


def read_text(path: Path | None, synthetic: bool) -> tuple[str, str]:
    """A text, and where it comes from: a file, tinyshakespeare if it is there, or made up."""
    if path is None and settings.data is not None:
        path = settings.data / "tinyshakespeare" / "input.txt"
        path = path if path.is_file() else None
    if path is not None:
        return path.read_text(encoding="utf-8"), str(path)
    if not synthetic:
        raise tc.DataError(
            "gpt", "there is no text to train on", expect="--text FILE, or "
            "tinyshakespeare/input.txt in the folder that TGC_DATA names", actual="neither",
            hint="--synthetic trains on sentences that are made up",
        )  # fmt: skip
    return made_up_text(), "made-up sentences"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = recipe.parser(
        __doc__, "gpt", epochs=None, batch_size=32, lr=2e-3, data=None,
        smoke="2 blocks of width 64, 200 steps", target="stop at this validation loss",
    )  # fmt: skip
    add = parser.add_argument
    add("--text", type=Path, metavar="FILE", help="default: tinyshakespeare in $TGC_DATA")
    add("--synthetic", action="store_true", help="made-up sentences, where there is no text")
    for name, value, meaning in (
        ("--layers", 4, "blocks"), ("--heads", 4, "heads of a block's attention"),
        ("--width", 128, "numbers a character becomes"), ("--context", 64, "characters looked at"),
        ("--steps", 3000, "steps of training"), ("--sample", 500, "characters to write at the end"),
    ):  # fmt: skip
        add(name, type=recipe.positive, default=value, metavar="N", help=f"{meaning} (%(default)s)")
    add("--dropout", type=float, default=0.0, help="(default: %(default)s)")
    add("--prompt", default="\n", help="what they go on from")
    add(
        "--temperature", type=recipe.rate, default=0.8, help="below 1 is more careful (%(default)s)"
    )
    args = recipe.parse(parser, argv)
    if args.width % args.heads:
        parser.error(f"argument --width: {args.width} is no multiple of --heads {args.heads}")
    if args.smoke:
        args.layers, args.width = min(args.layers, 2), min(args.width, 64)
        args.context, args.batch_size = min(args.context, 32), min(args.batch_size, 16)
        args.steps, args.sample = min(args.steps, 200), min(args.sample, 200)
    args.steps = min(args.steps, args.max_batches or args.steps)
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


def loss_of(logits: tc.Tensor, following: tc.Tensor) -> tc.Tensor:
    """Cross-entropy of the next characters, in nats."""
    return F.cross_entropy(logits.flatten(0, 1), following.flatten())


def pieces(args: argparse.Namespace, numbers: np.ndarray) -> tuple[DataLoader, DataLoader]:
    """Random pieces of the first nine tenths of the text; fixed ones of the last to validate."""
    cut = len(numbers) * 9 // 10
    train, test = Text(numbers[:cut], args.context), Text(numbers[cut:], args.context)
    if len(test) < 1:
        raise tc.DataError("gpt", "the text is too short", actual=f"{len(numbers)} characters",
                           expect=f"{10 * (args.context + 1)} or more")  # fmt: skip
    sampler = RandomSampler(
        train, replacement=True, num_samples=args.steps * args.batch_size, seed=args.seed
    )
    held_out = np.linspace(0, len(test) - 1, min(len(test), 10 * args.batch_size)).astype(int)
    return (
        DataLoader(train, args.batch_size, sampler=sampler),
        DataLoader(Subset(test, held_out), args.batch_size),
    )


@tc.no_grad()
def write(model: GPT, alphabet: Alphabet, args: argparse.Namespace) -> str:
    """Lets the model go on from the prompt, a drawn character at a time."""
    model.eval()
    numbers = alphabet.encoded(args.prompt).tolist() or [0]
    for _ in tqdm(range(args.sample), desc="write", unit="character", leave=False, disable=None):
        seen = numbers[-model.context :]
        # Always the same shape, so always the same plan: nobody looks at what is after the end.
        padded = tc.tensor([seen + [0] * (model.context - len(seen))])
        end = tc.tensor([len(seen) - 1])
        logits = model(padded)[0].index_select(0, end)
        chances = (logits / args.temperature).softmax(-1)
        numbers.append(tc.multinomial(chances, 1).item())
    return "".join(alphabet.characters[number] for number in numbers)


def main() -> int:
    args = arguments()
    content, source = read_text(args.text, args.synthetic)
    alphabet = Alphabet(content)
    size = len(alphabet.characters)
    print(f"data: {source}, {len(content):,} characters, {size} different ones")
    model = GPT(size, args.context, args.width, args.heads, args.layers, args.dropout)
    recipe.describe("GPT", model)
    batches, held_out = pieces(args, alphabet.encoded(content))
    optimizer, schedule = make_optimizer(model, args.lr, args.steps)
    args.validate_every = args.validate_every or max(1, args.steps // 10)
    history, report = recipe.train(
        args, model, loss_of, optimizer, batches, validation=held_out, scheduler=schedule,
        scheduler_interval="step", clip_grad_norm=1.0, compile=True, target=args.target,
        show=lambda row: f"step {row['step']}  loss {row['train_loss']:.4f}  validation "
        f"{row['val_loss']:.4f}",
    )  # fmt: skip
    recipe.draw_losses(
        history, report, args.out / "loss.png", "GPT: loss while training",
        "cross-entropy, nats a character", logarithmic=False,
    )  # fmt: skip
    written = write(model, alphabet, args)
    print(written)
    (args.out / "sample.txt").write_text(written, encoding="utf-8")
    print(f"text: {args.out / 'sample.txt'}")
    return recipe.missed(args, history["val_loss"][-1] <= (args.target or 0))


if __name__ == "__main__":
    recipe.run(main)
