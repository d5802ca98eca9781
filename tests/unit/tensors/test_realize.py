"""tc.realize: values without a copy to the host."""

from __future__ import annotations

import pytest

import tinygrad_cuda as tc


@pytest.mark.parametrize("device", ["cpu", "emu"])
def test_all_that_is_pending_on_the_device_is_one_plan(device: str) -> None:
    x = tc.ones(3, device=device)
    first, second, view = x.exp(), x.log(), x.reshape(3, 1)[1]
    tc.realize(first)
    assert first.node.storage is not None and second.node.storage is not None
    assert view.item() == 1 and first.explain() == "nothing to run: the values are there already"


def test_without_an_argument_every_device() -> None:
    values = [tc.ones(3, device=device) + 1 for device in ("cpu", "emu")]
    tc.realize()
    assert all(value.node.storage is not None for value in values)


def test_gradients_pass_through_what_was_realized() -> None:
    x = tc.tensor([1.0, 2.0], device="cpu", requires_grad=True)
    y = x * x
    tc.realize(y)
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 4]


def test_no_tensor_is_refused_before_any_is_realized() -> None:
    x = tc.ones(3, device="cpu") + 1
    with pytest.raises(tc.ArgumentError, match=r"\[realize\] an argument is no Tensor"):
        tc.realize(x, [x])
    assert x.node.storage is None


def test_a_compiled_function_is_one_plan() -> None:
    @tc.compile
    def step(x: tc.Tensor) -> tc.Tensor:
        y = x + 1
        tc.realize(y)
        return y

    with pytest.raises(tc.CompileError):
        step(tc.ones(3, device="cpu"))
