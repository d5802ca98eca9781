"""`make smoke` tries every room of the package."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Namespaces of PyTorch without logic of their own, and what einops asks for.
NAMESPACES = {
    "amp", "backends", "cuda", "distributions", "einops_support", "fft", "func", "fx", "hub", "jit",
    "kernels", "linalg", "profiler", "random", "special",
}  # fmt: skip


def test_every_room_has_a_test_in_the_smoke_selection() -> None:
    """A room is a folder of the package."""
    marked = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        marked |= set(re.findall(r'mark\.smoke\("(\w+)"\)', path.read_text(encoding="utf-8")))
    rooms = {path.parent.name for path in (ROOT / "tinygrad_cuda").glob("*/__init__.py")}
    assert marked == rooms - NAMESPACES
