"""Schedules and weight averages against torch, step by step."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda import optim
from tinygrad_cuda.optim import lr_scheduler

torch = pytest.importorskip("torch")

SCHEDULES: dict[str, Callable[[Any, Any], Any]] = {
    "lambda": lambda s, o: s.LambdaLR(o, lambda step: 0.95**step),
    "step": lambda s, o: s.StepLR(o, 7, gamma=0.5),
    "multi-step": lambda s, o: s.MultiStepLR(o, [5, 5, 30], gamma=0.3),
    "exponential": lambda s, o: s.ExponentialLR(o, 0.9),
    "cosine": lambda s, o: s.CosineAnnealingLR(o, 25, eta_min=0.01),
    "linear": lambda s, o: s.LinearLR(o, 0.25, 0.75, total_iters=20),
    "multiplicative": lambda s, o: s.MultiplicativeLR(o, lambda step: 1 - 1 / (step + 5)),
    "functions": lambda s, o: s.LambdaLR(o, [lambda step: 0.9**step, lambda step: 1 / (1 + step)]),
    "constant": lambda s, o: s.ConstantLR(o),
    "constant, long": lambda s, o: s.ConstantLR(o, factor=0.5, total_iters=31),
    "polynomial": lambda s, o: s.PolynomialLR(o),
    "polynomial, cubic": lambda s, o: s.PolynomialLR(o, total_iters=40, power=3.0),
    "restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 7),
    "restarts, longer": lambda s, o: s.CosineAnnealingWarmRestarts(o, 5, T_mult=2, eta_min=0.01),
    "one cycle": lambda s, o: s.OneCycleLR(o, max_lr=1.0, total_steps=60),
    "one cycle, linear": lambda s, o: s.OneCycleLR(
        o, [1.0, 2.0], epochs=7, steps_per_epoch=9, pct_start=0.4, anneal_strategy="linear"
    ),
    "one cycle, three phases": lambda s, o: s.OneCycleLR(
        o, 1.0, total_steps=61, three_phase=True, div_factor=10, final_div_factor=100
    ),
    "triangular": lambda s, o: s.CyclicLR(o, 0.1, 1.0, step_size_up=7),
    "triangular2": lambda s, o: s.CyclicLR(
        o, 0.1, [1.0, 2.0], step_size_up=5, step_size_down=9, mode="triangular2"
    ),
    "exp_range": lambda s, o: s.CyclicLR(
        o, 0.1, 1.0, step_size_up=6, mode="exp_range", gamma=0.98, base_momentum=0.5
    ),
    "own scale": lambda s, o: s.CyclicLR(
        o, 0.1, 1.0, step_size_up=6, scale_fn=lambda x: 1 / x, cycle_momentum=False
    ),
    "sequence": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1, total_iters=5), s.CosineAnnealingLR(o, 30)], [5]
    ),
    "sequence of three": lambda s, o: s.SequentialLR(
        o,
        [s.ConstantLR(o, 0.1, 10), s.ExponentialLR(o, 0.9), s.CosineAnnealingWarmRestarts(o, 7)],
        [10, 25],
    ),
    "sequence of more": lambda s, o: s.SequentialLR(
        o,
        [
            s.LinearLR(o),
            s.PolynomialLR(o, 20),
            s.StepLR(o, 4),
            s.LambdaLR(o, lambda t: 1 / (t + 1)),
        ],
        [5, 22, 40],
    ),
    "chain": lambda s, o: s.ChainedScheduler(
        [s.ConstantLR(o, factor=0.1, total_iters=2), s.ExponentialLR(o, gamma=0.9)]
    ),
    "chain of three": lambda s, o: s.ChainedScheduler(
        [s.LinearLR(o), s.StepLR(o, 9), s.MultiplicativeLR(o, lambda t: 0.99)], optimizer=o
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_sixty_rates_as_torch(name: str) -> None:
    def run(lib: Any, kinds: Any, schedules: Any) -> list[list[float]]:
        parameters = [lib.tensor([1.0], requires_grad=True) for _ in range(2)]
        optimizer = kinds.SGD([{"params": parameters[0]}, {"params": parameters[1], "lr": 0.5}],
                              lr=0.1, momentum=0.7)  # fmt: skip
        schedule = SCHEDULES[name](schedules, optimizer)
        rates = [[g[k] for k in ("lr", "momentum") for g in optimizer.param_groups]]
        for _ in range(60):
            optimizer.step()
            schedule.step()
            assert schedule.get_last_lr() == [g["lr"] for g in optimizer.param_groups]
            rates.append(
                [*schedule.get_last_lr(), *(g["momentum"] for g in optimizer.param_groups)]
            )
        return rates

    wanted = run(torch, torch.optim, torch.optim.lr_scheduler)
    np.testing.assert_allclose(run(tc, optim, lr_scheduler), wanted, rtol=1e-12)


EPOCHS = (1, 2, 4, 3, 12, None, 5, 40, None, None)


@pytest.mark.parametrize("name", [n for n in SCHEDULES if not n.startswith(("sequence", "chain"))])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_rates_of_a_given_step_as_torch(name: str) -> None:
    """Forwards, backwards, and on from there."""

    def run(lib: Any, kinds: Any, schedules: Any) -> list[list[float]]:
        groups = [{"params": lib.tensor([1.0], requires_grad=True), "lr": r} for r in (0.1, 0.5)]
        optimizer = kinds.SGD(groups, momentum=0.7)
        schedule = SCHEDULES[name](schedules, optimizer)
        optimizer.step()
        rates = []
        for epoch in EPOCHS:
            schedule.step(epoch)
            rates.append([schedule.last_epoch, *schedule.get_last_lr()])
        return rates

    wanted = run(torch, torch.optim, torch.optim.lr_scheduler)
    np.testing.assert_allclose(run(tc, optim, lr_scheduler), wanted, rtol=1e-12)


def test_a_given_step_of_plateaus_and_of_several() -> None:
    optimizer = one_parameter()
    optimizer.step()
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer)
    plateau.step(1.0, 7)
    plateau.step(1.0)
    assert plateau.last_epoch == 8
    several = lr_scheduler.ChainedScheduler([lr_scheduler.StepLR(optimizer, 2)])
    with pytest.warns(UserWarning, match="step.epoch."), pytest.raises(tc.ArgumentError):
        several.step(3)


def test_a_schedule_of_ones_own_is_given_the_step() -> None:
    """Many a warm-up calls ``super().step(epoch)`` and has a `get_lr` alone."""
    optimizer = one_parameter()

    class Warm(lr_scheduler.LRScheduler):
        def get_lr(self) -> list[float]:
            return [base * min(1.0, (self.last_epoch + 1) / 4) for base in self.base_lrs]

    schedule = Warm(optimizer)
    optimizer.step()
    with pytest.warns(UserWarning, match="step.epoch."):
        schedule.step(2)
    assert schedule.get_last_lr() == [0.75]


def one_parameter() -> optim.SGD:
    return optim.SGD([tc.ones(1, device="cpu", requires_grad=True)], lr=1.0, momentum=0.7)


def two_parameters() -> optim.SGD:
    return optim.SGD(
        [{"params": tc.ones(1, device="cpu", requires_grad=True), "lr": rate} for rate in (1, 0.5)],
        momentum=0.7,
    )


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_goes_on_from_its_state(name: str) -> None:
    optimizer = two_parameters()
    schedule = SCHEDULES[name](lr_scheduler, optimizer)
    optimizer.step()
    for _ in range(9):
        schedule.step()
    successor = two_parameters()
    other = SCHEDULES[name](lr_scheduler, successor)
    successor.load_state_dict(optimizer.state_dict())
    other.load_state_dict(schedule.state_dict())
    for _ in range(30):
        schedule.step()
        other.step()
        assert schedule.get_last_lr() == other.get_last_lr()
        assert optimizer.param_groups[0]["momentum"] == successor.param_groups[0]["momentum"]


def both_optimizers(**options: Any) -> list[tuple[Any, Any]]:
    """SGD with two groups of one rate each, in torch and here, with torch's names."""
    found = []
    for lib, kinds in ((torch, torch.optim), (tc, optim)):
        parameters = [lib.tensor([1.0], requires_grad=True) for _ in range(2)]
        groups = [{"params": p, "lr": rate} for p, rate in zip(parameters, (0.1, 0.5))]
        found.append((kinds.lr_scheduler, kinds.SGD(groups, lr=0.1, momentum=0.7, **options)))
    return found


def rates_of(schedule: Any, steps: int) -> list[float]:
    rates = [float(rate) for rate in schedule.get_last_lr()]
    for _ in range(steps):
        schedule.step()
        rates += [float(rate) for rate in schedule.get_last_lr()]
        rates += [group["momentum"] for group in schedule.optimizer.param_groups]
    return rates


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_goes_on_from_torchs_state(name: str) -> None:
    (their_kinds, theirs), (kinds, successor) = both_optimizers()
    schedule = SCHEDULES[name](their_kinds, theirs)
    other = SCHEDULES[name](kinds, successor)
    theirs.step()
    successor.step()
    for _ in range(9):
        schedule.step()
    state = schedule.state_dict()
    successor.load_state_dict(theirs.state_dict())
    other.load_state_dict(state)
    np.testing.assert_allclose(rates_of(other, 30), rates_of(schedule, 30), rtol=1e-12)
    shared = {"last_epoch", "base_lrs", "_last_lr", "_step_count"} & state.keys()
    assert shared <= other.state_dict().keys()
    for key in ("last_epoch", "_step_count"):
        if key in state:  # a chain has neither, there
            assert other.state_dict()[key] == state[key] + 30


@pytest.mark.parametrize("last_epoch", [0, 5, 8])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("StepLR", {"step_size": 7}),
        ("MultiStepLR", {"milestones": [3, 8, 12]}),
        ("ExponentialLR", {"gamma": 0.9}),
        ("ConstantLR", {"total_iters": 9}),
        ("LinearLR", {"total_iters": 20}),
        ("PolynomialLR", {"total_iters": 30}),
        ("CosineAnnealingLR", {"T_max": 25}),
        ("CosineAnnealingWarmRestarts", {"T_0": 7}),
        ("LambdaLR", {"lr_lambda": lambda step: 0.9**step}),
        ("MultiplicativeLR", {"lr_lambda": lambda step: 0.9}),
        ("CyclicLR", {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 7}),
        ("OneCycleLR", {"max_lr": 1.0, "total_steps": 60}),
    ],
)
def test_going_on_by_last_epoch_as_torch(
    name: str, options: dict[str, Any], last_epoch: int
) -> None:
    """The constructor changes no rate then; groups bring the initial ones."""
    found = []
    for kinds, optimizer in both_optimizers():
        for group in optimizer.param_groups:
            group |= {"initial_lr": 2 * group["lr"], "max_lr": 1.0, "min_lr": 0.001}
            group |= {"max_momentum": 0.95, "base_momentum": 0.8}
        schedule = getattr(kinds, name)(optimizer, last_epoch=last_epoch, **options)
        optimizer.step()
        found.append(rates_of(schedule, 30))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-12)


@pytest.mark.parametrize("name", ["cosine", "sequence", "chain", "one cycle", "triangular"])
def test_rates_that_are_tensors_are_written_into(name: str) -> None:
    found = []
    for lib, (kinds, optimizer) in zip((torch, tc), both_optimizers(), strict=True):
        rates = [lib.tensor(value, dtype=lib.float64) for value in (0.1, 0.5)]
        for group, rate in zip(optimizer.param_groups, rates):
            group["lr"] = rate
        schedule = SCHEDULES[name](kinds, optimizer)
        optimizer.step()
        found.append(rates_of(schedule, 20))
        assert optimizer.param_groups[1]["lr"] is rates[1]
        assert float(rates[1]) == found[-1][-3]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-12)


class Fading:
    """A callable object with state of its own."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, step: int) -> float:
        return self.factor**step


def test_attributes_of_callable_objects_are_state() -> None:
    for kinds, optimizer in both_optimizers():
        first = kinds.LambdaLR(optimizer, [Fading(0.5), lambda step: 1.0])
        state = first.state_dict()
        assert state["lr_lambdas"] == [{"factor": 0.5}, None]
        second = kinds.LambdaLR(optimizer, [Fading(0.9), lambda step: 1.0])
        second.load_state_dict(state)
        assert second.lr_lambdas[0].factor == 0.5


def test_wrong_order_warns_once() -> None:
    schedule = lr_scheduler.StepLR(one_parameter(), 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        schedule.step()
        schedule.step()
    assert [str(w.message).partition(":")[0] for w in caught] == [
        "lr_scheduler.step() was called before optimizer.step()"
    ]
    assert caught[0].filename == __file__
    optimizer = one_parameter()
    right = lr_scheduler.StepLR(optimizer, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
        right.step()
    with pytest.raises(tc.ArgumentError, match="initial_lr"):
        lr_scheduler.StepLR(one_parameter(), 3, last_epoch=4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"patience": 2, "factor": 0.5, "cooldown": 3, "min_lr": 0.02},
        {"mode": "max", "patience": 1, "threshold": 0.1, "threshold_mode": "abs"},
        {"mode": "max", "patience": 3, "threshold": 0.05, "min_lr": [0.01, 0.3]},
        {"patience": 0, "threshold_mode": "abs", "eps": 0.03},
    ],
)
def test_plateau_as_torch(options: dict[str, Any]) -> None:
    metrics = np.abs(np.random.default_rng(3).standard_normal(60)) + np.exp(-np.arange(60) / 20)

    def run(lib: Any, kinds: Any) -> list[list[float]]:
        parameters = [lib.tensor([1.0], requires_grad=True) for _ in range(2)]
        optimizer = kinds.SGD([{"params": parameters[0]}, {"params": parameters[1], "lr": 0.5}],
                              lr=0.1)  # fmt: skip
        schedule = kinds.lr_scheduler.ReduceLROnPlateau(optimizer, **options)
        rates = []
        for number, metric in enumerate(metrics):
            if number == 30:
                state = schedule.state_dict()
                schedule = kinds.lr_scheduler.ReduceLROnPlateau(optimizer, patience=99)
                schedule.load_state_dict(state)
            schedule.step(lib.tensor(metric))
            rates.append(schedule.get_last_lr())
        return rates

    wanted = run(torch, torch.optim)
    np.testing.assert_allclose(run(tc, optim), wanted, rtol=1e-12)
    assert wanted[-1][0] < 0.1


def test_restarts_between_epochs_as_torch() -> None:
    def run(lib: Any, kinds: Any, growth: int) -> list[float]:
        optimizer = kinds.SGD([lib.tensor([1.0], requires_grad=True)], lr=0.1)
        schedule = kinds.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4, growth)
        rates = []
        optimizer.step()
        for step in range(60):
            schedule.step(step / 3)
            rates += schedule.get_last_lr()
        schedule.step()
        return rates + schedule.get_last_lr()

    for growth in (1, 2):
        wanted = run(torch, torch.optim, growth)
        np.testing.assert_allclose(run(tc, optim, growth), wanted, rtol=1e-12)


def test_beta_cycles_as_torch() -> None:
    """Adam has no momentum: its first beta moves."""

    def run(lib: Any, kinds: Any) -> list[float]:
        optimizer = kinds.Adam([lib.tensor([1.0], requires_grad=True)], lr=0.1)
        schedule = kinds.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=30)
        betas = []
        for _ in range(29):
            optimizer.step()
            schedule.step()
            betas += optimizer.param_groups[0]["betas"]
        return betas

    np.testing.assert_allclose(run(tc, optim), run(torch, torch.optim), rtol=1e-12)


def test_refusals() -> None:
    s, o = lr_scheduler, one_parameter()
    plain = optim.Adagrad([tc.ones(1, device="cpu", requires_grad=True)])
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: s.LambdaLR(o, [abs, abs]), "one function per group"),
        (lambda: s.ConstantLR(o, factor=2.0), "factor is out of range"),
        (lambda: s.CosineAnnealingWarmRestarts(o, 0), "T_0 is out of range"),
        (lambda: s.OneCycleLR(o, 1.0), "number of steps is missing"),
        (lambda: s.OneCycleLR(o, 1.0, total_steps=5, pct_start=2.0), "out of range"),
        (lambda: s.CyclicLR(o, 0.1, 1.0, mode="square"), "no such mode"),
        (lambda: s.CyclicLR(o, [0.1, 0.2], 1.0), "one base_lr per group"),
        (lambda: s.CyclicLR(plain, 0.1, 1.0), "the optimizer has no momentum"),
        (lambda: s.SequentialLR(o, [s.StepLR(o, 3)], [3]), "the numbers do not fit"),
        (lambda: s.ChainedScheduler([]), "there are no schedules"),
        (lambda: s.ChainedScheduler([s.StepLR(plain, 3)], o), r"schedulers\[0\] does not fit"),
        (lambda: s.ChainedScheduler([s.ReduceLROnPlateau(o)]), r"schedulers\[0\] does not fit"),
        (lambda: s.ReduceLROnPlateau(o, factor=1.0), "an option is out of range"),
        (lambda: optim.swa_utils.SWALR(o, 0.1, anneal_strategy="log"), "an option is out of range"),
    ]
    for call, text in cases:
        with pytest.raises(tc.ArgumentError, match=text):
            call()
    schedule = s.OneCycleLR(o, 1.0, total_steps=2)
    o.step()
    schedule.step()
    schedule.step()
    with pytest.raises(tc.ArgumentError, match="more steps than were announced"):
        schedule.step()


# Averages of weights -----------------------------------------------------------------------------


def network(lib: Any) -> Any:
    """A small network with batch norm whose weights are the same here and in torch."""
    values = np.random.default_rng(5)
    n = lib.nn
    model = n.Sequential(n.Linear(4, 3), n.BatchNorm1d(3), n.Tanh(), n.Linear(3, 1)).double()
    with lib.no_grad():
        for parameter in model.parameters():
            parameter.copy_(lib.tensor(values.standard_normal(tuple(parameter.shape))))
    return model


AVERAGES: dict[str, Callable[[Any, Any], Any]] = {
    "swa": lambda u, m: u.AveragedModel(m),
    "swa, lists": lambda u, m: u.AveragedModel(m, multi_avg_fn=u.get_swa_multi_avg_fn()),
    "ema": lambda u, m: u.AveragedModel(m, avg_fn=u.get_ema_avg_fn(0.9), use_buffers=True),
    "ema, lists": lambda u, m: u.AveragedModel(m, multi_avg_fn=u.get_ema_multi_avg_fn(0.9)),
    "own": lambda u, m: u.AveragedModel(m, avg_fn=lambda a, b, n: a + (b - a) / (n + 3)),
}


@pytest.mark.parametrize("name", AVERAGES)
def test_averages_and_batch_norm_as_torch(name: str) -> None:
    """Ten steps with averaging from the third on, at SWALR's rates; then update_bn."""
    data = np.random.default_rng(6).standard_normal((10, 8, 4))

    def run(lib: Any, kinds: Any) -> dict[str, Any]:
        utils = kinds.swa_utils
        model = network(lib)
        averaged = AVERAGES[name](utils, model)
        optimizer = kinds.SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = utils.SWALR(optimizer, swa_lr=0.02, anneal_epochs=4)
        batches = [lib.tensor(batch) for batch in data]
        for step, batch in enumerate(batches):
            optimizer.zero_grad()
            (model(batch) ** 2).mean().backward()
            optimizer.step()
            if step >= 2:
                averaged.update_parameters(model)
                schedule.step()
        found = {k: np.array(v.detach().numpy()) for k, v in averaged.state_dict().items()}
        found["rate"] = np.array(schedule.get_last_lr())
        utils.update_bn(((batch, 0) for batch in batches[:4]), averaged)
        assert averaged.training
        assert averaged.module[1].momentum == 0.1
        found |= {
            k + " after": np.array(v.detach().numpy()) for k, v in averaged.state_dict().items()
        }
        return found

    tc.set_default_device("cpu")
    torch.set_default_dtype(torch.float64)  # of 1 / n_averaged, there
    try:
        found, wanted = run(tc, optim), run(torch, torch.optim)
    finally:
        tc.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-9, atol=1e-12, err_msg=key)
    assert found["n_averaged"] == 8


@pytest.mark.parametrize("options", [{}, {"anneal_epochs": 0}, {"anneal_strategy": "linear"}])
def test_swa_rates_as_torch(options: dict[str, Any]) -> None:
    def run(lib: Any, kinds: Any) -> list[float]:
        optimizer = kinds.SGD([lib.tensor([1.0], requires_grad=True)], lr=0.1)
        schedule = kinds.swa_utils.SWALR(optimizer, 0.3, **options)
        rates = list(schedule.get_last_lr())
        optimizer.step()
        for _ in range(60):
            schedule.step()
            rates += schedule.get_last_lr()
        return rates

    np.testing.assert_allclose(run(tc, optim), run(torch, torch.optim), rtol=1e-12)
