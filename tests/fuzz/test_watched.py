"""Some programs that are looked at, in CI; and whether the instrument notices what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import watched  # noqa: E402

from tinygrad_cuda.graph import draw  # noqa: E402
from tinygrad_cuda.utils import drawing  # noqa: E402

LEAF = ("leaf", 0, (3, 4), "float32", "normal", True, 1)
PROGRAM = [LEAF, ("op", 1, "abs", (2, 3, 4), 7), ("backward", 2, 4, 6)]


# 13, 18 and 23 look at a value in a Module's forward pass, at which `summary` failed.
@pytest.mark.parametrize("seed", [0, 2, 13, 18, 23, 31])
def test_random_programs(seed: int) -> None:
    assert watched.check(watched.generate(seed), "cpu") is None


def test_a_program_on_emu() -> None:
    assert watched.check(PROGRAM, "emu") is None


def twice(nodes: Any) -> str:
    return "\n".join([text := _text(nodes), text.splitlines()[-1]])


_text, _joined, _profiled = draw.text, drawing.joined, watched.profiled


def lacking(plans: Any) -> Any:
    graph = _joined(plans)
    graph.remove_node(max(graph))
    return graph


def changing(first: Any, device: str) -> Any:
    """The trail of a profiled run, one result of which has other bits."""
    trail, fault = _profiled(first, device)
    return [*trail[:-1], (trail[-1][0], "another")], fault


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "said"),
    [
        (draw, "text", twice, "drawn: "),
        (drawing, "joined", lacking, "drawn: "),
        (watched, "isclose", lambda *a, **k: False, "profile: times"),
        (watched, "profiled", changing, "error of leaf: profiled"),
    ],
)
def test_what_is_wrong_is_noticed(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, wrong: Callable[..., Any], said: str
) -> None:
    monkeypatch.setattr(owner, name, wrong)
    assert (watched.check(PROGRAM, "cpu") or "").startswith(said)
