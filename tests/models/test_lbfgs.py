"""L-BFGS against torch, step by step, with and without its line search."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import nn, optim
from tinygrad_cuda.engine import realize
from tinygrad_cuda.engine.plan import cache

rng = np.random.default_rng(2)
START = [rng.standard_normal((4, 3)), rng.standard_normal(3), rng.standard_normal((3, 1))]
X, Y = rng.standard_normal((16, 4)), rng.standard_normal((16, 1))

WOLFE = {"line_search_fn": "strong_wolfe"}
# Options, and for how many steps roundings stay small: L-BFGS magnifies them.
VARIANTS: dict[str, tuple[dict[str, Any], int]] = {
    "fixed step": ({"lr": 0.3, "max_iter": 5, "history_size": 4}, 8),
    "line search": ({"max_iter": 4, **WOLFE}, 9),
    "pairs are forgotten": ({"max_iter": 6, "history_size": 3, **WOLFE}, 8),
    "search from far away": ({"lr": 30.0, "max_iter": 6, "history_size": 3, **WOLFE}, 5),
    "search from nearby": ({"lr": 1e-3, "max_iter": 3, **WOLFE}, 5),
    "few evaluations": ({"lr": 30.0, "max_iter": 9, "max_eval": 5, **WOLFE}, 6),
    "one evaluation": ({"max_iter": 3, "max_eval": 1, **WOLFE}, 3),
    "one direction a step": ({"lr": 0.3, "max_iter": 1}, 8),
    "ends early": ({"tolerance_grad": 0.06, "max_iter": 50, **WOLFE}, 3),
    "small changes end": ({"tolerance_change": 1e-2, "max_iter": 50, **WOLFE}, 4),
}


@pytest.fixture
def on_cpu() -> Iterator[None]:
    tc.set_default_device("cpu")
    yield
    tc.set_default_device(None)


def network(parameters: list[Any], x: Any, y: Any) -> Any:
    """A small network with a kinkless loss."""
    w1, b1, w2 = parameters
    difference = (x @ w1 + b1).tanh() @ w2 - y
    return (difference * difference).mean()


class Run:
    """A training with parameters, data and an optimizer of one of the libraries."""

    def __init__(self, lib: Any, dtype: Any, options: dict[str, Any], device: str = "cpu") -> None:
        def make(a: Any, **more: Any) -> Any:
            return lib.tensor(a, dtype=dtype, device=device, **more)

        self.parameters = [make(a, requires_grad=True) for a in START]
        self.x, self.y = make(X), make(Y)
        self.optimizer = (optim if lib is tc else lib.optim).LBFGS(self.parameters, **options)
        self.evaluations = 0

    def closure(self) -> Any:
        self.evaluations += 1
        self.optimizer.zero_grad()
        loss = network(self.parameters, self.x, self.y)
        loss.backward()
        return loss

    def steps(self, count: int) -> list[Any]:
        """Loss, evaluations and parameters of each step."""
        found = []
        for _ in range(count):
            loss = self.optimizer.step(self.closure).item()
            found.append([loss, self.evaluations, *self.values()])
        return found

    def values(self) -> list[Any]:
        return [p.detach().cpu().numpy().copy() for p in self.parameters]


def assert_close(found: Any, wanted: Any, tolerance: float) -> None:
    for step, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, tolerance, tolerance, err_msg=f"step {step}")


@pytest.mark.parametrize("name", VARIANTS)
def test_steps_as_torch(name: str) -> None:
    """Losses, numbers of evaluations and parameters, in both precisions."""
    torch = pytest.importorskip("torch")
    options, steps = VARIANTS[name]
    wanted = Run(torch, torch.float64, options).steps(steps)
    assert_close(Run(tc, tc.float64, options).steps(steps), wanted, 1e-7)
    assert_close(Run(tc, tc.float64, options).steps(2), wanted[:2], 1e-11)
    # In float32 no further from these than torch's own float32.
    theirs, ours = Run(torch, torch.float32, options), Run(tc, tc.float32, options)
    theirs.steps(2), ours.steps(2)
    exact = np.concatenate([a.ravel() for a in wanted[1][2:]])
    lost, ours_lost = (
        np.abs(np.concatenate([a.ravel() for a in run.values()]) - exact).max()
        for run in (theirs, ours)
    )
    assert ours_lost <= 8 * lost + 1e-5


def quadratic(lib: Any, **options: Any) -> tuple[Any, Callable[[], Any]]:
    """The minimum of a paraboloid in 60 dimensions, far from round."""
    scales = np.linspace(1.0, 40.0, 60)
    x = lib.tensor(np.cos(np.arange(60.0)), requires_grad=True)
    weights = lib.tensor(scales)
    optimizer = (optim if lib is tc else lib.optim).LBFGS([x], **options)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (weights * x * x).sum()
        loss.backward()
        return loss

    return x, lambda: optimizer.step(closure)


@pytest.mark.parametrize(
    "options",
    [{"lr": 0.1, "max_iter": 1}, {"lr": 0.05, "max_iter": 1, "history_size": 3},
     {"max_iter": 4, **WOLFE}, {"max_iter": 1, **WOLFE}, {}],
)  # fmt: skip
def test_fifty_steps_as_torch(options: dict[str, Any], on_cpu: None) -> None:
    """Where the function is convex and well scaled, roundings do not grow."""
    torch = pytest.importorskip("torch")

    def trajectory(lib: Any) -> list[Any]:
        x = lib.tensor(np.cos(np.arange(6.0)), requires_grad=True)
        scales = lib.tensor(np.linspace(1.0, 4.0, 6))
        optimizer = (optim if lib is tc else lib.optim).LBFGS([x], **options)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = (scales * x * x).sum() + 0.1 * (x**4).sum()
            loss.backward()
            return loss

        found = []
        for _ in range(50):
            optimizer.step(closure)
            found.append(x.detach().numpy().copy())
        return found

    for ours, theirs in zip(trajectory(tc), trajectory(torch)):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)


def test_more_pairs_than_there_was_room_for(on_cpu: None) -> None:
    """25 directions of one step, of which 10, then 40 pairs find room."""
    torch = pytest.importorskip("torch")
    options = {"max_iter": 25, "lr": 0.5, "max_eval": 100}
    ours, step = quadratic(tc, **options)
    theirs, their_step = quadratic(torch, **options)
    step(), their_step()
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), 1e-7, 1e-9)
    step()
    assert ours.detach().abs().max().item() < 1e-2


def test_steps_on_devices(device: str) -> None:
    """Through generated kernels the same as in NumPy."""
    options = {"lr": 0.3, "max_iter": 4, "history_size": 2}
    wanted = Run(tc, tc.float32, options).steps(1)
    assert_close(Run(tc, tc.float32, options, device).steps(1), wanted, 1e-4)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_one_plan_an_evaluation(
    search: str | None, on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And after the first few steps none that is new, though lr, step and pairs differ."""
    runs, find, run_known = [0], cache.find, realize.run_cached_plan

    def counted(*arguments: Any) -> Any:
        runs[0] += 1
        return find(*arguments)

    def counted_too(*arguments: Any) -> Any:
        found = run_known(*arguments)
        runs[0] += found is True
        return found

    options = {"lr": 0.3, "max_iter": 4, "history_size": 5, "line_search_fn": search}
    run = Run(tc, tc.float64, options)
    run.steps(12)
    made, before = cache.made, run.evaluations
    monkeypatch.setattr(cache, "find", counted)
    monkeypatch.setattr(realize, "run_cached_plan", counted_too)
    for turn in range(4):
        run.optimizer.param_groups[0]["lr"] = 0.3 / (turn + 1)
        run.optimizer.step(run.closure)
    assert cache.made == made
    # A last move without evaluation ends each step of the variant that does not search.
    moves = 4 if search is None else 0
    assert runs[0] == run.evaluations - before + moves


def test_state_goes_on_elsewhere(on_cpu: None) -> None:
    """Half way, another optimizer takes over from a state in torch's layout; ours and torch's."""
    torch = pytest.importorskip("torch")
    options: dict[str, Any] = {"lr": 0.3, "max_iter": 3, "history_size": 4}
    theirs, ours = Run(torch, torch.float64, options), Run(tc, tc.float64, options)
    theirs.steps(3), ours.steps(3)
    state, layout = ours.optimizer.state_dict(), theirs.optimizer.state_dict()
    assert state["state"].keys() == layout["state"].keys() == {0}
    # torch's "al" is room for intermediate values.
    assert {*state["state"][0], "al"} == layout["state"][0].keys()
    given = {
        key: [tc.tensor(v.numpy()) for v in value] if key in ("old_dirs", "old_stps")
        else tc.tensor(value.numpy()) if isinstance(value, torch.Tensor) else value
        for key, value in layout["state"][0].items() if key != "al"
    }  # fmt: skip
    begun = [tc.tensor(p.detach(), requires_grad=True) for p in ours.parameters]
    for run in (theirs, ours):
        kept = run.optimizer.state[run.parameters[0]]
        assert (kept["func_evals"], kept["n_iter"]) == (9, 6)
    wanted = theirs.steps(2)
    assert_close([row[2:] for row in ours.steps(2)], [row[2:] for row in wanted], 1e-9)
    for taken in (state, {**state, "state": {0: given}}):
        again = Run(tc, tc.float64, {"lr": 99.0})
        for p, value in zip(again.parameters, begun):
            p.data.copy_(value.detach())
        again.optimizer.load_state_dict(taken)
        found = again.steps(2)
        assert_close([row[2:] for row in found], [row[2:] for row in wanted], 1e-9)


def test_failed_evaluation_changes_nothing(on_cpu: None) -> None:
    """A label out of range in the second evaluation; the parameters are those before it."""
    tc.manual_seed(1)
    model = nn.Linear(3, 4)
    x, labels = tc.tensor([[1.0, 2.0, 3.0], [0.0, -1.0, 1.0]]), [[0, 1], [0, 7]]
    optimizer = optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
    before = [p.tolist() for p in model.parameters()]

    def closure() -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), tc.tensor(labels.pop(0)))
        loss.backward()
        return loss

    with pytest.raises(tc.IndexError, match=r"target\[1\]"):
        optimizer.step(closure)
    assert [p.tolist() for p in model.parameters()] == before


def test_refusals() -> None:
    x = tc.ones(2, device="cpu", requires_grad=True)
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: optim.LBFGS([x], lr=-1.0), "lr is negative"),
        (lambda: optim.LBFGS([x], history_size=0), "keeps no pair"),
        (lambda: optim.LBFGS([x], line_search_fn="best"), "no such line search"),
        (lambda: optim.LBFGS([x]).step(), "a closure that returns the loss"),
        (
            lambda: optim.LBFGS([x]).add_param_group({"params": [tc.ones(1, requires_grad=True)]}),
            "takes no further group",
        ),
    ]
    for call, text in cases:
        with pytest.raises(tc.ArgumentError, match=text):
            call()


def test_line_search_as_programs_import_it() -> None:
    """The same trials, step and values with both libraries."""
    results = []
    for lib in (tc, pytest.importorskip("torch")):
        search = importlib.import_module(f"{lib.__name__}.optim.lbfgs")._strong_wolfe

        def at(x: Any, step: float, d: Any) -> Any:
            y = x + step * d
            return float((y**4 - 3 * y**2 + y).sum()), 4 * y**3 - 6 * y + 1

        x = lib.tensor([2.0, -2.5], dtype=lib.float64)
        loss, gradient = at(x, 0.0, x)
        d = -gradient
        loss, gradient, step, count = search(at, x, 1.0, d, loss, gradient, gradient.dot(d))
        module = importlib.import_module(f"{lib.__name__}.optim.lbfgs")
        numbers = [lib.tensor(x) for x in (0.0, 1.0, -1.0, 2.0, 1.5, 2.0)]
        cubic = float(module._cubic_interpolate(*numbers))
        bounded = float(module._cubic_interpolate(*numbers, bounds=(1.5, 2.0)))
        results.append([loss, *gradient.tolist(), float(step), count, cubic, bounded])
    np.testing.assert_allclose(*results, rtol=1e-6)
