"""Draws pictures of the pages anew: `python docs/images/make.py`, or with the names of some.

It needs the extra ``plot``. What is measured is measured on this machine, on the device that the
picture's caption names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import tinygrad_cuda as tc
from tinygrad_cuda import nn

FOLDER = Path(__file__).parent


def training_step(path: Path) -> None:
    """The step of looking_inside.md, on cpu."""
    model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = tc.optim.SGD(model.parameters(), lr=0.1)
    x, target = tc.rand(32, 784), tc.zeros(32, 10)
    tc.realize(x, target, *model.parameters())

    def step() -> tc.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        return loss

    tc.draw(step, path)


PICTURES: dict[str, Callable[[Path], None]] = {"training_step": training_step}


def main(names: list[str], folder: Path = FOLDER) -> None:
    """Draws the pictures of these names, or all of them, into a folder."""
    for name in names or PICTURES:
        with tc.device("cpu"):
            PICTURES[name](folder / f"{name}.png")
        _shrink(folder / f"{name}.png")


def _shrink(path: Path) -> None:
    """Few colours are a quarter of the bytes; matplotlib brings Pillow."""
    from PIL import Image

    with Image.open(path) as image:
        few = image.convert("RGB").quantize(48, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
