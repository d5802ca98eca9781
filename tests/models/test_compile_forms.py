"""tc.compile: the forms in which PyTorch's programs call it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.core.config import settings

pytestmark = pytest.mark.usefixtures("device")


def test_forms_of_pytorch() -> None:
    """The keywords that programs give, and a Module that compiles itself."""
    calls: list[None] = []

    def step(x: Any) -> Any:
        calls.append(None)
        return x * 2

    x = tc.ones(2)
    forms: list[dict[str, Any]] = [
        {"backend": "inductor", "mode": "max-autotune"}, {"fullgraph": True, "dynamic": False},
        {"mode": "reduce-overhead", "options": {"triton.cudagraphs": True}},
        {"backend": "aot_eager", "disable": False},
    ]  # fmt: skip
    for form in forms:
        calls.clear()
        for compiled in (tc.compile(step, **form), tc.compile(**form)(step)):
            assert [compiled(x).tolist() for _ in range(3)] == [[2.0, 2.0]] * 3
        assert settings.slow or len(calls) == 2
    assert tc.compile(step, backend="eager") is step and tc.compile(step, disable=True) is step
    with pytest.raises(tc.ArgumentError, match="not a mode"):
        tc.compile(step, mode="fast")
    with pytest.raises(tc.ArgumentError, match="a backend is a function"):
        tc.compile(step, backend=lambda graph, inputs: graph)


def test_a_module_that_compiles_itself() -> None:
    """In place: its calls are replayed, it stays a part of others and is copied."""
    calls: list[None] = []

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            calls.append(None)
            return self.inner(x)

    plain, net = Net(), Net()
    net.load_state_dict(plain.state_dict())
    net.compile(fullgraph=True)
    whole, x = nn.Sequential(net, nn.ReLU()), tc.ones(3, 2)
    with tc.no_grad():
        wanted = plain(x).tolist()
        calls.clear()
        assert [net(x).tolist() for _ in range(4)] == [wanted] * 4
        assert settings.slow or len(calls) == 1
        assert list(whole.state_dict()) == ["0.inner.weight", "0.inner.bias"]
        other = copy.deepcopy(net)
        other.inner.weight.zero_()
        assert net(x).tolist() == wanted != other(x).tolist()
    for module in (plain, net):
        module(x).square().sum().backward()
    assert tc.equal(plain.inner.weight.grad, net.inner.weight.grad)
