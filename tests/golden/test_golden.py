"""Generated kernels as reviewed: a change of the generator shows as a difference of text.

`python tests/golden/test_golden.py` writes the files anew.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
KERNELS = HERE / "kernels"
sys.path.insert(0, str(HERE.parent / "unit"))

from programs import family, launches_of  # noqa: E402

pytestmark = pytest.mark.smoke("lowering")

NAMES = tuple(family())  # each skeleton, each of its tiers, and a whole training step


def text_of(name: str) -> str:
    """The launches of a program, without the prelude."""
    return "\n".join(launch.text for launch in launches_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_generated_text_is_as_reviewed(name: str) -> None:
    path = KERNELS / f"{name}.cu"
    assert text_of(name) == path.read_text(), (
        f"{path.name} differs: review it, then run python tests/golden/test_golden.py"
    )


if __name__ == "__main__":
    for golden in NAMES:
        (KERNELS / f"{golden}.cu").write_text(text_of(golden))
