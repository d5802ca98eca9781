"""Where the host has no room, the error names the operation and the user's line."""

from __future__ import annotations

import pytest

import tinygrad_cuda as tc

pytestmark = pytest.mark.usefixtures("on_cpu")
HUGE = 1 << 50  # bytes; no process can address them, wherever memory may be overcommitted


def line_of(error: tc.TgcError) -> str:
    return next(line for line in str(error).splitlines() if line.startswith("  at:"))


def test_a_result_without_room_names_its_line() -> None:
    x = tc.ones(HUGE // 4)  # the line
    with pytest.raises(tc.OutOfMemoryError, match=r"^\[full\] no room on the cpu for") as caught:
        x.numpy()
    assert "the line" in line_of(caught.value)
    assert isinstance(caught.value, MemoryError)


def test_an_intermediate_without_room_names_its_op_and_line() -> None:
    x = tc.arange(1 << 24)
    wide = x.reshape(-1, 1) * x  # the line
    total = wide.sum()
    with pytest.raises(tc.OutOfMemoryError, match=r"^\[(mul|sum)\]") as caught:
        total.item()
    assert "test_out_of_memory.py" in line_of(caught.value)


def test_what_comes_after_is_computed() -> None:
    kept = tc.ones(3) * 2
    large = tc.ones(HUGE // 4) + kept.sum()
    with pytest.raises(tc.OutOfMemoryError):
        large.numpy()
    del large
    assert (tc.ones(3) + 1).tolist() == [2.0, 2.0, 2.0]
    assert (kept + 1).tolist() == [3.0, 3.0, 3.0]


def test_an_error_does_not_come_back_with_the_next_value() -> None:
    """Two checks fail; what was pending behind the second is gone with the call that failed."""

    def step(probabilities: list[float], targets: list[float]) -> float:
        x = tc.tensor(probabilities, requires_grad=True)
        y = tc.tensor(targets, requires_grad=True)
        loss = tc.nn.functional.binary_cross_entropy(x, y)
        gradients = tc.autograd.grad([loss], [x, y])
        return loss.item() if gradients else 0.0

    with pytest.raises(tc.ArgumentError, match="out of range"):
        step([2.0, 0.5], [3.0, 0.0])
    assert step([0.25, 0.5], [1.0, 0.0]) == pytest.approx(1.0397208)
