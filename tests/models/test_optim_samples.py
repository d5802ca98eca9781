"""torch's own inputs of its optimizers, handed to both libraries: their steps, and the errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # torch's module of samples needs it
collection = pytest.importorskip("torch.testing._internal.common_optimizers")

CHOICES = ("foreach", "fused", "capturable", "differentiable")
rng = np.random.default_rng(11)
START = [rng.standard_normal(shape) for shape in ((4, 3), (3,), (3, 1), (), (0, 2))]
X, Y = rng.standard_normal((8, 4)), rng.standard_normal((8, 1))


def cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """The inputs without keywords that only choose an implementation, each once."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for info in collection.optim_db:
        if info.only_supports_sparse_grads:
            continue
        for sample in info.optim_inputs_func(device="cpu"):
            options = {k: v for k, v in sample.kwargs.items() if k not in CHOICES}
            if not any(repr(options) == repr(o) and info.name == n for n, o in found.values()):
                found[f"{info.name}, {sample.desc}"] = info.name, options
    return found


CASES = cases()


def ours(value: Any) -> Any:
    """torch's option as ours."""
    if isinstance(value, torch.Tensor):
        return tc.tensor(value.numpy(), device="cpu")
    return tuple(map(ours, value)) if isinstance(value, tuple) else value


def loss_of(parameters: list[Any], x: Any, y: Any) -> Any:
    w1, b1, w2, scalar, *empty = parameters
    loss = (((x @ w1 + b1).tanh() @ w2 * scalar - y) ** 2).mean()
    return loss + sum((e * e).sum() for e in empty)


def trained(name: str) -> list[int]:
    """Which parameters an optimizer takes: Muon matrices, Adafactor (there) nothing empty."""
    return {"Muon": [0, 2], "Adafactor": [0, 1, 2, 3]}.get(name, [0, 1, 2, 3, 4])


class Run:
    """Parameters and their optimizer, in two groups where it takes several."""

    def __init__(self, lib: Any, name: str, options: dict[str, Any], dtype: str) -> None:
        kind = getattr(lib, dtype)
        make = {"dtype": kind, "device": "cpu"}
        self.x, self.y = (lib.tensor(a, **make) for a in (X, Y))
        self.parameters = [lib.tensor(a, requires_grad=True, **make) for a in START]
        own = [self.parameters[k] for k in trained(name)]
        self.groups: Any = own
        if name != "LBFGS":
            self.groups = [{"params": own[:1]}, {"params": own[1:], "lr": 0.02}]
        if lib is tc:
            options = {key: ours(value) for key, value in options.items()}
        self.optimizer = getattr(lib.optim, name)(self.groups, **options)
        self.name, self.steps = name, 0

    def turn(self) -> None:
        """One step; at every third the second matrix has no gradient."""

        def closure() -> Any:
            self.optimizer.zero_grad()
            loss = loss_of(self.parameters, self.x, self.y)
            loss.backward()
            if self.steps % 3 == 2 and self.name != "LBFGS":
                self.parameters[2].grad = None
            return loss

        self.optimizer.step(closure)
        self.steps += 1

    def values(self) -> list[np.ndarray]:
        return [np.array(p.detach().numpy(), np.float64) for p in self.parameters]

    def trajectory(self, steps: int) -> list[list[np.ndarray]]:
        found = []
        for _ in range(steps):
            self.turn()
            found.append(self.values())
        return found


def distance(found: Any, wanted: Any) -> float:
    """The largest difference of a trajectory, relative to the largest number of its parameter."""
    worst = 0.0
    for ours, theirs in zip(found, wanted, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.shape == b.shape
            if b.size:
                worst = max(worst, float(np.abs(a - b).max() / (np.abs(b).max() + 1e-30)))
    return worst


@pytest.fixture(autouse=True)
def double_numbers() -> Any:
    """Host numbers of a torch state have its default dtype; ours are float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


FIRST = {name: case for case, (name, _) in reversed(CASES.items())}


def length(case: str) -> int:
    """50 steps for the first input of each optimizer, 9 for others; LBFGS makes 20 in each.

    LBFGS is chaotic: after some fifty directions any rounding has grown to 1e-5.
    """
    name = CASES[case][0]
    return 2 if name == "LBFGS" else 50 if case == FIRST[name] else 9


@pytest.mark.parametrize("case", [c for c, (name, _) in CASES.items() if name != "Muon"])
def test_steps_as_torch(case: str) -> None:
    """float64 to 1e-10; float32 to 1e-5, or as near as torch's own."""
    name, options = CASES[case]
    wanted = Run(torch, name, options, "float64").trajectory(length(case))
    assert distance(Run(tc, name, options, "float64").trajectory(length(case)), wanted) <= 1e-10
    if case != FIRST[name]:
        return
    steps = 1 if name == "LBFGS" else 15
    found = Run(tc, name, options, "float32").trajectory(steps)
    theirs = Run(torch, name, options, "float32").trajectory(steps)
    own = distance(theirs, wanted[:steps])
    assert distance(found, wanted[:steps]) <= max(1e-5, 8 * own)


@pytest.mark.parametrize("case", [c for c, (name, _) in CASES.items() if name == "Muon"])
def test_muon_to_the_precision_of_bfloat16(case: str) -> None:
    """torch iterates in bfloat16 whatever the parameters are; roundings are at other places."""
    name, options = CASES[case]
    wanted = Run(torch, name, options, "float32").trajectory(8)
    found = Run(tc, name, options, "float32").trajectory(8)
    assert distance(found, wanted) <= 1e-2
    assert distance([START], wanted[-1:]) > 2e-2  # so much has moved
