"""`make smoke` tries every room of the package."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOMS = {
    "core", "graph", "lowering", "backend", "engine", "replay", "tensors", "autograd", "nn",
    "optim", "data", "capture", "utils",
}  # fmt: skip


def test_every_room_has_a_test_in_the_smoke_selection() -> None:
    marked = set()
    for path in TESTS.rglob("test_*.py"):
        marked |= set(re.findall(r'mark\.smoke\("(\w+)"\)', path.read_text(encoding="utf-8")))
    assert marked == ROOMS
