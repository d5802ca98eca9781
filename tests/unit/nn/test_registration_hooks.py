"""Hooks on what modules are given: the same calls as in torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")
# The name of one class that is a Linear here.
OUT = "NonDynamicallyQuantizableLinear"
KINDS = ("parameter", "buffer", "module")


@pytest.fixture(autouse=True)
def on_cpu() -> Any:
    with tc.device("cpu"):
        yield


def assigned(lib: Any) -> None:
    nn = lib.nn
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.note = None
    model[0].bias = None
    model[1].running_mean = lib.ones(2)
    model[1].running_mean = None
    model.x = nn.ReLU()
    model.x = None
    model.add_module("none", None)
    model.register_buffer("empty", None)
    model.register_parameter("absent", None)
    model[1] = nn.ReLU()
    model.b = nn.Buffer(lib.ones(1))


def containers(lib: Any) -> None:
    nn = lib.nn
    nn.ModuleList([nn.ReLU()]).append(nn.Tanh())
    nn.ModuleDict({"a": nn.ReLU()})
    nn.ParameterList([nn.Parameter(lib.ones(1))])
    nn.ParameterDict({"k": nn.Parameter(lib.ones(1))})


def layers(lib: Any) -> None:
    nn = lib.nn
    nn.LSTM(2, 2)
    nn.MultiheadAttention(4, 2)
    nn.TransformerEncoderLayer(4, 2, 8)
    nn.Conv2d(1, 1, 1, bias=False)


@pytest.mark.parametrize("program", [assigned, containers, layers])
def test_what_is_told(program: Callable[[Any], None]) -> None:
    registered = []
    for lib in (torch, tc):
        log: list[Any] = []
        with ExitStack() as stack:
            for kind in KINDS:
                register = getattr(
                    lib.nn.modules.module, f"register_module_{kind}_registration_hook"
                )

                def hook(
                    module: Any, name: str, value: Any, kind: str = kind, log: list[Any] = log
                ) -> None:
                    log.append((kind, type(module).__name__, name, value is None))

                stack.enter_context(register(hook))
            program(lib)
        count = len(log)
        program(lib)
        assert len(log) == count
        registered.append(log)
    assert registered[1] == [
        tuple("Linear" if word == OUT else word for word in line) for line in registered[0]
    ]


@pytest.mark.parametrize("lib", [torch, tc])
def test_what_a_hook_returns_is_taken(lib: Any) -> None:
    nn = lib.nn
    module = nn.modules.module
    with module.register_module_parameter_registration_hook(
        lambda module, name, value: nn.Parameter(lib.full((3, 1), 2.0))
    ):
        assert nn.Linear(1, 1).weight.shape == (3, 1)
    with module.register_module_module_registration_hook(lambda *_: nn.Tanh()):
        assert type(nn.Sequential(nn.ReLU())[0]) is nn.Tanh
    with module.register_module_buffer_registration_hook(lambda m, n, value: value + 1):
        owner = nn.Module()
        owner.register_buffer("count", lib.zeros(1))
        assert owner.count.tolist() == [1.0]
