"""What tuning gains: the model's choice, the tuned one and each candidate, in microseconds.

    python -m lab.tuned OUT.json [SECONDS]

On a GPU, with a cold L2 cache. Shapes are those of products and convolutions in docs/matmul.md. No
shape is begun after SECONDS (100).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import tinygrad_cuda as tc
from tinygrad_cuda.core.errors import TgcError

PRODUCTS = (
    (4096, 4096, 4096), (8192, 8192, 8192), (16384, 2304, 768), (16384, 3072, 768),
    (16384, 50304, 768), (64, 4096, 4096), (8192, 768, 3072),
)  # fmt: skip
# Images, channels, side, channels of the result, taps, stride.
CONVOLUTIONS = (
    (128, 128, 28, 128, 3, 1), (256, 64, 32, 64, 3, 1), (128, 128, 28, 128, 3, 2),
    (128, 128, 28, 128, 1, 1), (256, 64, 32, 128, 1, 1), (256, 64, 32, 128, 3, 2),
)  # fmt: skip


def numbers(*shape: int) -> Any:
    """Uniform numbers in bfloat16 on the GPU."""
    return (tc.rand(*shape, device="cuda") - 0.5).to(tc.bfloat16)


def work() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each shape's name, and what records it."""
    for m, n, k in PRODUCTS:
        yield f"{m} x {n} x {k}", lambda m=m, n=n, k=k: numbers(m, k) @ numbers(n, k).T
    yield "96 x 1024 x 1024 x 64", lambda: numbers(96, 1024, 64) @ numbers(96, 64, 1024)
    for images, channels, side, features, taps, stride in CONVOLUTIONS:
        sizes = (images, channels, side, side), (features, channels, taps, taps)
        options = {"stride": stride, "padding": taps // 2}
        name = f"conv {taps}x{taps} N{images} C{channels} {side}x{side} -> {features} / {stride}"
        yield name, lambda s=sizes, o=options: tc.conv2d(numbers(*s[0]), numbers(*s[1]), **o)


def main(path: str, seconds: float = 100.0) -> None:
    """Measures all shapes and writes what was chosen."""
    start, failed = time.monotonic(), {}
    with tc.tune():
        for name, record in work():
            if time.monotonic() - start > seconds:
                failed[name] = "not begun"
                continue
            try:
                tc.realize(record())
                tc.cuda.synchronize()
            except TgcError as error:
                failed[name] = str(error)
                print(f"{name}: {error}")
    rows = [row._asdict() for row in tc.kernels.choices()]
    for row in tc.kernels.choices():
        print(row)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"choices": rows, "failed": failed}, file, indent=1)


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:3]))
